"""Decomposition: the same meaning in operators of the core."""

from __future__ import annotations

from collections.abc import Set

from gradspec.graph.graph import Graph
from gradspec.ops.core import decomposed
from gradspec.transforms.copy import Copier
from gradspec.transforms.simplify import simplify


def decompose(graph: Graph, keep: Set[str] = frozenset()) -> Graph:
    """``graph`` made of the core and of the operators whose names are in ``keep``.

    >>> import gradspec as gs
    >>> print(decompose(gs.trace(gs.silu, gs.f32[2]), keep={"sigmoid"}))
    graph(x: f32[2]):
      sigmoid : f32[2] = sigmoid(x)
      mul     : f32[2] = mul(x, sigmoid)
      return mul
    """
    while any(node.op.decompose is not None and node.op.name not in keep for node in graph.nodes):
        copy = Copier(graph)
        for node in graph.nodes:
            if node.op.decompose is None or node.op.name in keep:
                copy.node(node)
            else:
                copy.assign(node, decomposed(node.op, node.attrs, copy.all(node.inputs)))
        graph = simplify(copy.builder.build(copy.all(graph.outputs), allow_unused=True))
    return graph
