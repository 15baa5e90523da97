"""Copying nodes from one graph into the builder of another: as they are, batched, or on floats of another dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gradspec.graph.builder import Builder, is_symbolic_zero, operands
from gradspec.graph.graph import Graph, InAxes
from gradspec.graph.ir import Array, Attributes, Node, Op, Operand, Var
from gradspec.graph.types import DType, TensorType
from gradspec.ops.core import decomposed
from gradspec.ops.shape import spread
from gradspec.spec.errors import DTypeError
from gradspec.spec.window import whole_number


class Copier:
    """A builder for a new graph, and the new variable that stands for each old one."""

    def __init__(self, graph: Graph) -> None:
        self.builder = Builder()
        self.vars: dict[Var, Var] = {v: self.builder.input(v.type, v.name) for v in graph.inputs}
        self._constants = graph.constants

    def __call__(self, var: Var) -> Var:
        if var not in self.vars:
            self.vars[var] = self.builder.share(self._constants[var], var.name)
        return self.vars[var]

    def all(self, variables: Iterable[Var]) -> tuple[Var, ...]:
        return tuple(map(self, variables))

    def node(self, node: Node) -> None:
        """The same application on the new variables."""
        self.assign(node, self.builder.repeat(node, self.all(node.inputs)))

    def assign(self, node: Node, outputs: Iterable[Var]) -> None:
        self.vars.update(zip(node.outputs, outputs, strict=True))


def inline(graph: Graph, arguments: Sequence[Operand]) -> tuple[Var, ...]:
    """Add the nodes of ``graph`` to the graph that the variables among ``arguments``, of its types, belong to."""
    ready = operands(*arguments)
    builder = ready[0].owner
    new = dict(zip(graph.inputs, ready, strict=True))
    for node in graph.nodes:
        inputs = [
            new[v] if v in new else new.setdefault(v, builder.share(graph.constants[v], v.name)) for v in node.inputs
        ]
        new |= zip(node.outputs, builder.repeat(node, inputs), strict=True)
    return tuple(new[v] if v in new else builder.share(graph.constants[v], v.name) for v in graph.outputs)


def expand(graph: Graph, chosen: Callable[[Op], bool] = lambda op: op.is_composite) -> Graph:
    """``graph`` with what the chosen operators decompose into: composite ones, unless others are chosen."""
    while any(chosen(node.op) for node in graph.nodes):
        copy = Copier(graph)
        for node in graph.nodes:
            if chosen(node.op):
                copy.assign(node, decomposed(node.op, node.attrs, copy.all(node.inputs)))
            else:
                copy.node(node)
        graph = copy.builder.build(copy.all(graph.outputs), allow_unused=True)
    return graph


# --- batching ---------------------------------------------------------------------------------------------------------


def batch(graph: Graph, n: int, in_axes: InAxes = 0) -> Graph:
    """A leading axis of ``n`` on every output, and on the inputs whose ``in_axes`` is 0."""
    whole_number("the batch size", n, least=0)
    builder, has_axis = Builder(), _axes(graph, in_axes)
    new: dict[Var, Var] = {}
    batched: set[Var] = set()
    for var, leading in zip(graph.inputs, has_axis, strict=True):
        new[var] = builder.input(TensorType(var.dtype, (n, *var.shape)) if leading else var.type, var.name)
        batched |= {var} if leading else set()
    new |= {var: builder.share(array, var.name) for var, array in graph.constants.items()}
    for node in graph.nodes:
        operands = [new[v] for v in node.inputs]
        flags = [v in batched for v in node.inputs]
        outputs = (
            node.op.batch(node.op, node.attrs, operands, flags)
            if any(flags)
            else builder.apply(node.op, node.attrs, *operands)
        )
        new |= zip(node.outputs, outputs, strict=True)
        batched |= set(node.outputs) if any(flags) else set()
    results = [new[v] if v in batched else spread(new[v], n) for v in graph.outputs]
    return builder.build(results, allow_unused=True)


def _axes(graph: Graph, in_axes: InAxes) -> list[bool]:
    axes = list(in_axes) if isinstance(in_axes, list | tuple) else [in_axes] * len(graph.inputs)
    if len(axes) != len(graph.inputs):
        raise ValueError(
            f"in_axes has {len(axes)} entries for {len(graph.inputs)} inputs; give one per input, or one for all"
        )
    for axis in axes:
        if axis not in (0, None) or isinstance(axis, bool):
            raise ValueError(
                f"in_axes={axis!r} is not known; give 0 for inputs with a leading batch axis, None for others"
            )
    if all(axis is None for axis in axes):
        raise ValueError("in_axes leaves every input without a batch axis; give 0 for at least one")
    return [axis == 0 for axis in axes]


# --- floats of another dtype ------------------------------------------------------------------------------------------


def with_floats(graph: Graph, dtype: DType) -> Graph:
    """The graph with ``dtype`` in the place of its float dtype, which must be one.

    Constants are converted: exactly to a dtype with more digits, else rounded to the nearest. What the graph converts
    to its float dtype, it converts to ``dtype``.

    >>> print(with_floats(gs.trace(lambda x: x * 0.5, gs.f32[2]), gs.f64))
    graph(x: f64[2]):
      c            : f64[()] = constant 0.5
      broadcast_to : f64[2]  = broadcast_to(c, shape=(2,))
      mul          : f64[2]  = mul(x, broadcast_to)
      return mul
    """
    computed = (v for node in graph.nodes for v in node.outputs)
    floats = {v.dtype for v in (*graph.inputs, *graph.constants, *computed) if v.type.is_float} - {dtype}
    if not floats:
        return graph
    if len(floats) > 1:
        names = ", ".join(sorted(map(str, floats)))
        raise DTypeError(f"the graph computes in {names}, so it is not clear what {dtype} would stand for; convert it")
    return _Converted(graph, floats.pop(), dtype).graph


class _Converted:
    def __init__(self, graph: Graph, before: DType, after: DType) -> None:
        self._before, self._after, self._builder = before, after, Builder()
        self._new: dict[Var, Var] = {v: self._builder.input(self._type(v.type), v.name) for v in graph.inputs}
        self._new |= {v: self._constant(v, array) for v, array in graph.constants.items()}
        for node in graph.nodes:
            operands = [self._new[v] for v in node.inputs]
            results = self._builder.apply(node.op, self._attributes(node.attrs), *operands)
            self._new |= zip(node.outputs, results, strict=True)
        self.graph = self._builder.build([self._new[v] for v in graph.outputs], allow_unused=True)
        for old, new in self._new.items():
            new.name = old.name

    def _type(self, type: TensorType) -> TensorType:
        return TensorType(self._after, type.shape) if type.dtype == self._before else type

    def _constant(self, var: Var, array: Array) -> Var:
        if var.dtype != self._before:
            return self._builder.share(array, var.name)
        if is_symbolic_zero(array):
            return self._builder.zeros(self._type(var.type))
        with np.errstate(over="ignore", invalid="ignore"):  # what does not fit is infinite
            return self._builder.share(array.astype(self._after.numpy), var.name)

    def _attributes(self, attrs: Attributes) -> Attributes:
        """An attribute called ``dtype`` is the name of one, and graphs among them are converted."""
        new: dict[str, Any] = {
            name: _Converted(value, self._before, self._after).graph
            for name, value in vars(attrs).items()
            if isinstance(value, Graph)
        }
        if getattr(attrs, "dtype", None) == self._before.name:
            new["dtype"] = self._after.name
        return replace(attrs, **new) if new else attrs
