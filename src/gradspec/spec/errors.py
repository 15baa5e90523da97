"""The errors gradspec raises: each says what was given, what was expected and what to do."""


class ShapeError(ValueError):
    """Sizes, ranks or window settings that do not fit together."""


class DTypeError(TypeError):
    """A kind of number the operator is not defined on."""


class UnsupportedError(NotImplementedError):
    """Something the chosen number system or backend cannot do; the message names one that can."""


class AmbiguityError(ValueError):
    """A strict derivative of a maximum whose winner the enclosures do not decide."""


class FormatError(ValueError):
    """A malformed file; the message says where it goes wrong."""


class FormatWarning(UserWarning):
    """A file makes a false statement, which was ignored, or was written so that few programs can read it; the message
    says which."""
