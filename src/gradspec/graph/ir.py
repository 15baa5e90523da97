"""Graphs: frozen lists of nodes in which every variable is assigned once, before it is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from numpy.typing import NDArray

from gradspec.graph.later import later
from gradspec.graph.op import Attributes, Op
from gradspec.graph.types import DType, TensorType

Array = NDArray[Any]


class Var:
    """A variable of one graph. Python's ``+ - * / @`` and unary ``-`` apply operators to it."""

    __slots__ = ("name", "owner", "type")
    __array_ufunc__ = None  # so that ``array * variable`` is ours

    def __init__(self, name: str, type: TensorType, owner: Any) -> None:
        self.name, self.type, self.owner = name, type, owner

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def ndim(self) -> int:
        return self.type.ndim

    def __repr__(self) -> str:
        return f"{self.name}: {self.type}"

    def __add__(self, other: Any) -> Any:
        return later("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return later("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return later("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return later("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return later("mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return later("mul", other, self)

    def __truediv__(self, other: Any) -> Any:
        return later("div", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return later("div", other, self)

    def __matmul__(self, other: Any) -> Any:
        return later("matmul", self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return later("matmul", other, self)

    def __neg__(self) -> Any:
        return later("neg", self)

    def __getitem__(self, key: Any) -> Any:
        return later("getitem", self, key)

    def __eq__(self, other: object) -> bool:
        """Whether they are the same variable; a comparison of values would be decided while the graph is built."""
        if not isinstance(other, Var):
            raise TypeError(
                f"{self!r} has no value while the graph is built, so it cannot be compared with {other!r}; "
                "gs.greater, gs.less and gs.equal compare when it runs, and gs.where chooses by them"
            )
        return self is other

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise TypeError(f"{self!r} has no value while the graph is built, so Python cannot branch on it")


@dataclass(frozen=True, eq=False)
class Node:
    """One application of an operator."""

    op: Op
    attrs: Attributes
    inputs: tuple[Var, ...]
    outputs: tuple[Var, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """Inputs, constants, nodes in order of execution, and outputs. Every method gives a new graph."""

    inputs: tuple[Var, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Var, ...]
    constants: Mapping[Var, Array] = field(default_factory=lambda: MappingProxyType({}))

    def __call__(self, *arrays: Any) -> Any:
        """Run on arrays: one array for one output, a tuple for several."""
        return later("run", self, *arrays)

    def jvp(self, wrt: Any = None) -> Graph:
        """``(inputs…, tangents…) → (outputs…, output tangents…)``.

        ``wrt`` names the inputs, by name or position, that have a tangent; all floating-point ones unless given.
        """
        return later("graph_jvp", self, wrt)  # type: ignore[no-any-return]

    def vjp(self, wrt: Any = None) -> Graph:
        """``(inputs…, output cotangents…) → (outputs…, input cotangents…)``."""
        return later("graph_vjp", self, wrt)  # type: ignore[no-any-return]

    def batch(self, n: int, in_axes: int | Sequence[int | None] | None = 0) -> Graph:
        """A leading axis of ``n`` on the outputs, and on every input whose ``in_axes`` is 0 (not None)."""
        return later("graph_batch", self, n, in_axes)  # type: ignore[no-any-return]

    def simplify(self) -> Graph:
        """The same meaning with fewer nodes."""
        return later("graph_simplify", self)  # type: ignore[no-any-return]

    def save(self, path: Any) -> None:
        """Write the graph to a file that ``gs.load`` reads."""
        later("graph_save", self, path)

    def __str__(self) -> str:
        return str(later("graph_text", self))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return str(later("graph_html", self))
