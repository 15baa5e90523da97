"""Objects of users: found by ``module:object``, where a program can import them from, and what they declare."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import PurePath
from types import ModuleType
from typing import Any, Self

import numpy as np

from gradspec.conformance.judge.conventions import CONVENTIONS
from gradspec.conformance.model.case import known_blocks
from gradspec.conformance.model.problem import LAYOUTS
from gradspec.conformance.targets.arrays import ArrayTarget
from gradspec.conformance.targets.callers import ARRAYS, BARE


def object_named(name: str) -> Any:
    """What ``module:object`` names, or ``module`` alone; the current folder is searched first."""
    module, separator, path = name.partition(":")
    if not module or (separator and not path):
        raise ValueError(f"{name!r} is not a target; name one that gradspec knows, or give module:object")
    if module.endswith(".py"):
        folder, parts = "", PurePath(os.path.relpath(module)).with_suffix("").parts
        if parts[0] == os.pardir:
            folder, parts = "run the check in its folder, and ", parts[-1:]
        raise ValueError(f"{name!r} names a file; {folder}leave out .py: {'.'.join(parts)}{separator}{path}")
    found: Any = _imported(module)
    for part in path.split(".") if path else ():
        if not hasattr(found, part):
            raise ValueError(f"{name!r}: {_described(found)} has no {part!r}; it has {_public(found)}")
        found = getattr(found, part)
    return found


def _imported(module: str) -> ModuleType:
    _search_here()
    try:
        return import_module(module)
    except Exception as error:  # whatever is wrong in it, down to its syntax
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            where = "run the check in its folder or install it"
            raise ValueError(f"there is no module {module!r} to take kernels from; {where}") from None
        raise ValueError(f"importing {module!r} failed: {type(error).__name__}: {error}") from error


def _search_here() -> None:
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())


def is_module(name: str) -> bool:
    """Whether there is a module of this name, in the current folder or installed; none is run but those around it.

    >>> is_module("json"), is_module("torchh"), is_module("kernels.py")
    (True, False, False)
    """
    _search_here()
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # of the package that it would be in
        return False


def _described(found: Any) -> str:
    return f"module {found.__name__}" if isinstance(found, ModuleType) else repr(found)


def _public(found: Any) -> str:
    names = [name for name in dir(found) if not name.startswith("_")]
    return ", ".join(names[:12]) + (", …" if len(names) > 12 else "") if names else "no public names"


def home_of(found: Any) -> tuple[str, str] | None:
    """The module and the name from which a program can import an object: not one that is local, or the program's."""
    home = getattr(found, "__module__", None)
    if not isinstance(home, str) or home in ("__main__", "builtins") or home not in sys.modules:
        return None
    names = [name for name, value in vars(sys.modules[home]).items() if value is found]
    own = getattr(found, "__name__", "")
    return (home, own if own in names else names[0]) if names else None


class OwnTarget(ArrayTarget):
    """A user's object as a target, with what it declares and what is declared beside it."""

    is_own = True
    chooser = "specification"
    """Whose choices are made where no convention is declared."""

    def __init__(self, given: Any) -> None:
        self._object = given
        self._declarations: dict[str, Any] = {}

    def declared(self, name: str, default: Any) -> Any:
        """What was declared beside the object, or what it declares itself."""
        if name in self._declarations:
            return self._declarations[name]
        if isinstance(self._object, Mapping):
            return self._object.get(name, default)
        return getattr(self._object, name, default)

    def declaring(self, **declarations: Any) -> Self:
        """The same target, with declarations that go before those of the object; None and empty ones say nothing."""
        self._declarations |= {name: value for name, value in declarations.items() if value not in (None, ())}
        self.blocks = known_blocks(self.declared("blocks", ()))
        self.fresh_results, self.strict = (bool(self.declared(name, False)) for name in ("fresh_results", "strict"))
        for name in self.conventions():
            if name not in CONVENTIONS:
                raise ValueError(f"conventions names {name!r}, which is none; use some of {', '.join(CONVENTIONS)}")
        return self

    def layouts(self) -> tuple[str, ...]:
        """Those that arrays of its library have; none where it has all."""
        return () if self.array in BARE else tuple(layout for layout in LAYOUTS if layout != "reversed")

    def conventions(self) -> frozenset[str]:
        return frozenset(self.declared("conventions", ()))

    def undeclared(self, conventions: Sequence[str]) -> str:
        missing = ", ".join(f'"{name}"' for name in conventions if name not in self.conventions())
        return f"which is not the {self.chooser}'s choice; declare conventions=[{missing}], or pass strict=False"

    def versions(self) -> dict[str, str]:
        own = str(self.declared("__version__", "no version"))
        return {self.name: own, "numpy": np.__version__, "python": platform.python_version()}

    def set_threads(self, count: int) -> bool:
        chosen = self.declared("set_threads", None)
        if chosen is not None:
            chosen(count)
        return chosen is not None


def known_library(name: Any) -> str:
    """The library of the arrays that a kernel takes, if it is one."""
    if name not in ARRAYS:
        raise ValueError(f"array is {name!r}; a kernel takes arrays of one of {', '.join(ARRAYS)}")
    return str(name)
