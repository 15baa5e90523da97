"""Objects of users: found by ``module:object``, and where a program can import them from."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import PurePath
from types import ModuleType
from typing import Any


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
