"""The same graph with floats of another dtype."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gradspec.graph.builder import Builder, is_symbolic_zero
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array, Attributes, Var
from gradspec.graph.types import DType, TensorType
from gradspec.spec.errors import DTypeError


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
        """An attribute called ``dtype`` is the name of one."""
        names: Any = attrs
        return replace(names, dtype=self._after.name) if getattr(attrs, "dtype", None) == self._before.name else attrs
