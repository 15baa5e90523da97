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
    """A file that is not what it should be; the message says where it goes wrong."""


class FormatWarning(UserWarning):
    """A file states what is not so, and is read without it, or is written as few can read it; the message says what."""
