"""All operators by name: every Op that a module of this package defines."""

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

import gradspec.ops
from gradspec.graph.ir import Op


def _defined_in(module: ModuleType) -> Iterator[Op]:
    """The operators among a module's names, alone or in tables."""
    for value in vars(module).values():
        candidates = (
            value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
        )
        yield from (v for v in candidates if isinstance(v, Op))


@cache
def operators() -> dict[str, Op]:
    """Every operator by its name.

    >>> operators()["sum"]
    sum
    """
    found: dict[str, Op] = {}
    for info in iter_modules(gradspec.ops.__path__, "gradspec.ops."):
        if info.name != __name__:
            for op in _defined_in(import_module(info.name)):
                if found.setdefault(op.name, op) is not op:
                    raise RuntimeError(f"two operators are called {op.name!r}; a saved graph could mean either")
    return found
