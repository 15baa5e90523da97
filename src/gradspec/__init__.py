"""gradspec: what convolution and pooling mean, in both derivative modes, over any scalar.

>>> import gradspec as gs
>>> x = gs.exact.tensor([[1, 2], [4, 3]])
>>> gs.spec.avg_pool(x, (2, 2)).tolist()
[[5/2]]
"""

from importlib import import_module
from typing import Any

from gradspec import spec
from gradspec.spec.errors import AmbiguityError, DTypeError, FormatError, FormatWarning, ShapeError, UnsupportedError

__version__ = "0.1.0"

# python-flint takes longer to import than the rest together, so the number systems load when first used; so does
# everything in ``gradspec.library``. Type checkers read a stub, which installing writes (``tools/stubs.py``).
_LAZY = dict.fromkeys(("ball", "dual", "exact", "ieee", "interval"), "gradspec.domains")
_LAZY_MODULES = ("conformance", "domains", "referee", "testing", "verify")


def __getattr__(name: str) -> Any:
    if name in _LAZY_MODULES:
        return import_module(f"gradspec.{name}")
    if name in _LAZY:
        globals()[name] = getattr(import_module(_LAZY[name]), name)
        return globals()[name]
    if not name.startswith("_") and hasattr(library := import_module("gradspec.library"), name):
        globals()[name] = getattr(library, name)
        return globals()[name]
    from gradspec.graph.hints import named

    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r}{named(name)}", name=name, obj=import_module(__name__)
    )


def __dir__() -> list[str]:
    return sorted({*__all__, *dir(import_module("gradspec.library")), "__version__"})


__all__ = [
    "AmbiguityError",
    "DTypeError",
    "FormatError",
    "FormatWarning",
    "ShapeError",
    "UnsupportedError",
    "ball",
    "conformance",
    "domains",
    "dual",
    "exact",
    "ieee",
    "interval",
    "referee",
    "spec",
    "testing",
    "verify",
]
