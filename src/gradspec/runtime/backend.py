"""Backends: what carries out the nodes of a graph on arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from gradspec.graph.attributes import Attributes
from gradspec.graph.ir import Array, Op
from gradspec.graph.provided import Provided
from gradspec.graph.types import TensorType
from gradspec.runtime.task import Lowering
from gradspec.spec.errors import UnsupportedError

COMPILED_ON = ("linux", "darwin")

Lowerings: TypeAlias = Callable[[str], Lowering | None]
"""How an operator, by its name, is lowered to tasks; None: it is not."""

ArrayFunction: TypeAlias = Callable[..., tuple[Array, ...]]
"""A function of a node's operands that returns its results."""


@dataclass(frozen=True)
class Backend:
    """Tasks for the operators that are lowered, and a function of arrays for any other."""

    lowering: Lowerings
    kernel: Callable[[Op, Attributes, tuple[TensorType, ...]], ArrayFunction]
    """An operator as a function of arrays of these types."""
    fallback: str
    """What a plan says of a step without a task."""
    simplifies: bool
    """Whether graphs are simplified first, or carried out as they are written."""


BACKENDS = Provided[Mapping[str, Backend]]()
"""All backends by name."""


def default_backend() -> str:
    """Compiled kernels on systems whose object code can be loaded, else NumPy.

    >>> default_backend()
    'cpu'
    """
    return "cpu" if sys.platform in COMPILED_ON else "numpy"


def backend_named(name: str | None = None) -> Backend:
    """The backend of this name, or the default."""
    name, known = name or default_backend(), BACKENDS()
    if name not in known:
        names = " or ".join(f'backend="{other}"' for other in known)
        raise UnsupportedError(f"there is no backend {name!r}; use {names}")
    if name == "cpu" and default_backend() != name:
        raise UnsupportedError(
            f"compiled kernels are for Linux and macOS, and this system is {sys.platform}; leave out backend, or give "
            'backend="numpy", which runs every graph'
        )
    return known[name]
