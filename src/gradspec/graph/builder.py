"""Building graphs: variables, constants, and the application of operators with their shapes checked at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from types import MappingProxyType
from typing import Any, cast

import numpy as np

from gradspec.graph.arrays import as_array, plain_floats
from gradspec.graph.graph import SERVICES, Graph
from gradspec.graph.ir import Array, Attributes, Body, Node, Op, Operand, Var
from gradspec.graph.types import DTYPES, TensorType, dtype_of, number_as, type_of
from gradspec.spec.errors import DTypeError, ShapeError

_levels = count()  # of builders: the one begun last is the innermost
_ZEROS = {dtype: np.zeros((), dtype.numpy) for dtype in DTYPES.values()}


def is_symbolic_zero(array: Array | None) -> bool:
    """Whether a constant is a zero that a builder made: zero times it is zero, even where a float 0.0 gives NaN."""
    return array is not None and array.size > 0 and array.ctypes.data == _ZEROS[dtype_of(array)].ctypes.data


class Builder:
    """Collects inputs, constants and nodes; ``build`` freezes them into a Graph.

    >>> b = Builder()
    >>> x = b.input(gs.f32[2], "x")
    >>> g = b.build(x * 2.0 + b.const(np.ones(2, np.float32)))
    >>> g(np.array([1, 2], np.float32)).tolist()
    [3.0, 5.0]
    """

    def __init__(self, *, capture: bool = False) -> None:
        """``capture``: variables of graphs begun earlier become inputs of this one (see ``captured``)."""
        self.level = next(_levels)
        self._captures: dict[Var, Var] | None = {} if capture else None
        self._inputs: list[Var] = []
        self._nodes: list[Node] = []
        self._constants: dict[Var, Array] = {}
        self._makers: dict[Var, Node] = {}
        self._names: dict[str, int] = {}
        self._finished = False

    def input(self, type: TensorType, name: str | None = None) -> Var:
        """A new input; its name must be new to the graph."""
        if not isinstance(type, TensorType):
            raise DTypeError(f"an input needs a type such as gs.f32[3, 32, 32], not {type!r}")
        if name is not None and not isinstance(name, str):
            raise TypeError(f"the name of an input is a text, not {name!r}")
        if name is not None and name in self._names:
            raise ValueError(f"the graph already has a variable called {name!r}; choose another name for this input")
        var = self._new(type, name or "x")
        self._inputs.append(var)
        return var

    def const(self, value: Operand, name: str = "c") -> Var:
        """A constant: a copy of ``value``, so that later changes to it are not seen."""
        return self._constant(np.array(as_array(value)), name)

    def share(self, array: Array, name: str) -> Var:
        """A constant that is already frozen, and need not be copied."""
        return self._constant(array, name)

    def value(self, var: Var) -> Array | None:
        """The array of a constant; None for other variables."""
        return self._constants.get(var)

    @property
    def nodes(self) -> Sequence[Node]:
        """The nodes added so far."""
        return self._nodes

    def maker(self, var: Var) -> Node | None:
        """The node that computes a variable; None for inputs and constants."""
        return self._makers.get(var)

    def zeros(self, type: TensorType) -> Var:
        """A constant zero, which takes no memory."""
        return self._constant(np.broadcast_to(_ZEROS[type.dtype], type.shape), "zero")

    def _constant(self, array: Array, name: str) -> Var:
        array.flags.writeable = False
        var = self._new(type_of(array), name)
        self._constants[var] = array
        return var

    def _new(self, type: TensorType, stem: str) -> Var:
        """A variable with a name of its own: the stem if it is free, else the stem with a number."""
        name, count = stem, self._names.get(stem, 0)
        while name in self._names:
            count += 1
            name = f"{stem}_{count}"
        self._names[stem] = count
        self._names.setdefault(name, 0)
        return Var(name, type, self)

    def unused(self, name: str) -> str:
        """``name``, with as many primes as it needs to be new to the graph."""
        while name in self._names:
            name += "'"
        return name

    @property
    def captured(self) -> tuple[Var, ...]:
        """The variables of other graphs that this one uses, in the order of the inputs that stand for them."""
        return tuple(self._captures or ())

    def adopt(self, var: Var) -> Var:
        """``var`` in this graph: itself, or the input that stands for a variable of a graph begun earlier."""
        if var.owner is self or self._captures is None or var.owner.level > self.level:
            return var
        var.owner.require_open(var)
        if var not in self._captures:
            self._captures[var] = self._new(var.type, var.name)
            self._inputs.append(self._captures[var])
        return self._captures[var]

    def operand(self, value: Operand, like: Var) -> Var:
        """A variable unchanged; a number or an array as a constant (numbers and lists take the dtype of ``like``)."""
        self.require_open(like)
        if isinstance(value, Var):
            return self.adopt(value)
        if isinstance(value, int | float):
            return self._constant(number_as(value, like.dtype.numpy), "c")
        floats = plain_floats(value, like.dtype.numpy) if like.type.is_float else None
        return self.const(value) if floats is None else self._constant(floats, "c")

    def apply(self, op: Op, attrs: Attributes, *operands: Var) -> tuple[Var, ...]:
        """Add a node; the operator's shape rule decides whether it fits."""
        for var in operands:
            if var.owner is not self:
                raise ValueError(
                    f"{op}: {var!r} belongs to another graph; a graph's operands must come from its own builder "
                    "(pass arrays as inputs or constants instead)"
                )
        try:
            types = op.types(attrs, *(v.type for v in operands))
        except (ShapeError, DTypeError) as error:
            raise type(error)(f"{op}({', '.join(map(repr, operands))}): {error}") from None
        return self._add(op, attrs, operands, types)

    def repeat(self, node: Node, operands: Sequence[Var]) -> tuple[Var, ...]:
        """Add a node like one of another graph, on operands of the same types: it is known to fit."""
        return self._add(node.op, node.attrs, operands, (v.type for v in node.outputs))

    def _add(self, op: Op, attrs: Attributes, operands: Iterable[Var], types: Iterable[TensorType]) -> tuple[Var, ...]:
        outputs = tuple(self._new(t, op.name) for t in types)
        node = Node(op, attrs, tuple(operands), outputs)
        self._nodes.append(node)
        self._makers.update(dict.fromkeys(outputs, node))
        return outputs

    def finish(self) -> None:
        """Allow no further additions: the traced function has returned, or the graph came from a file."""
        self._finished = True

    def require_open(self, var: Var) -> None:
        if self._finished:
            raise ValueError(
                f"{var!r} belongs to a graph that is finished, so nothing can be added to it; use a variable only "
                "inside the function that is traced, and apply operators to what a graph returns"
            )

    def build(self, outputs: Var | Sequence[Var], *, allow_unused: bool = False) -> Graph:
        """Freeze what the outputs need into a Graph."""
        results = (outputs,) if isinstance(outputs, Var) else tuple(outputs)
        if not results:
            raise ValueError("a graph needs at least one output; pass the variables it should return to build()")
        for var in results:
            if not isinstance(var, Var) or var.owner is not self:
                raise ValueError(f"the output {var!r} is not a variable of this graph; return variables built from it")
        nodes, used = needed(self._nodes, results)
        unused = [v.name for v in self._inputs if v not in used]
        if unused and not allow_unused:
            raise ValueError(
                f"the input{'s' if len(unused) > 1 else ''} {', '.join(unused)} "
                f"do{'' if len(unused) > 1 else 'es'} not reach any output; remove it, or build(..., allow_unused=True)"
            )
        constants = {v: a for v, a in self._constants.items() if v in used}
        return Graph(tuple(self._inputs), nodes, results, MappingProxyType(constants))


def needed(nodes: Sequence[Node], results: Sequence[Var]) -> tuple[tuple[Node, ...], set[Var]]:
    """The nodes that ``results`` depend on, and the variables these use."""
    used, kept = set(results), []
    for node in reversed(nodes):
        if used.intersection(node.outputs):
            kept.append(node)
            used.update(node.inputs)
    return tuple(reversed(kept)), used


def dependents(graph: Body, sources: Iterable[Var]) -> set[Var]:
    """The sources and everything computed from them."""
    found = set(sources)
    for node in graph.nodes:
        if found.intersection(node.inputs):
            found.update(node.outputs)
    return found


def operands(*values: Operand) -> tuple[Var, ...]:
    """The operands of one application: all variables if one is, else arrays.

    Plain numbers take the dtype of the first array, or of what stands for one; so do lists of them with a float among
    them, if it is a floating-point one. Alone they are float32.
    """
    like: Var | None = None
    for v in values:  # by hand: it is done for every node that is built
        if isinstance(v, Var) and (like is None or v.owner.level > like.owner.level):
            like = v
    if like is not None:
        owner = like.owner
        return tuple([owner.operand(v, like) for v in values])
    arrays = [v for v in values if not isinstance(v, int | float)]
    typed = next((v for v in arrays if plain_floats(v) is None), arrays[0] if arrays else 0.0)
    dtype = as_array(typed).dtype
    return cast(tuple[Var, ...], tuple(_operand(v, dtype) for v in values))


def _operand(value: object, dtype: np.dtype[Any]) -> Array:
    if isinstance(value, int | float):
        return number_as(value, dtype)
    floats = plain_floats(value, dtype) if dtype.kind not in "iub" else None
    return as_array(value) if floats is None else floats


def apply(op: Op, attrs: Attributes, *values: Operand) -> Var:
    """Apply an operator that has one result: to variables by adding a node, to arrays at once."""
    (result,) = apply_all(op, attrs, *values)
    return result


def apply_all(op: Op, attrs: Attributes, *values: Operand) -> tuple[Var, ...]:
    """As ``apply``, for an operator with any number of results."""
    ready: tuple[Any, ...] = operands(*values)
    if isinstance(ready[0], Var):
        results: tuple[Var, ...] = ready[0].owner.apply(op, attrs, *ready)
        return results
    return cast(tuple[Var, ...], SERVICES().eager(op, attrs, ready))
