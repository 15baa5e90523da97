"""A graph in two: what does not depend on some of its inputs, and what does."""

from __future__ import annotations

from collections.abc import Sequence

from gradspec.graph.graph import Graph
from gradspec.graph.ir import Var
from gradspec.transforms.copy import Copier
from gradspec.transforms.vjp import dependents


def split(graph: Graph, late: Sequence[Var]) -> tuple[Graph, Graph]:
    """``(other inputs) → middle`` and ``(middle…, late…) → outputs``: together they do what ``graph`` does.

    >>> import gradspec as gs
    >>> g = gs.trace(lambda w, x: gs.abs(w) * x, gs.f32[2], gs.f32[2])
    >>> first, second = split(g, g.inputs[1:])
    >>> print(first)
    graph(w: f32[2]):
      abs : f32[2] = abs(w)
      return abs
    >>> print(second)
    graph(abs: f32[2], x: f32[2]):
      mul : f32[2] = mul(abs, x)
      return mul
    """
    moving = dependents(graph, tuple(late))
    needed = [v for node in graph.nodes if moving.intersection(node.outputs) for v in node.inputs]
    middle = [v for v in dict.fromkeys([*needed, *graph.outputs]) if v not in moving and v not in graph.constants]
    early = Copier(Graph(tuple(v for v in graph.inputs if v not in moving), (), (), graph.constants))
    for node in graph.nodes:
        if not moving.intersection(node.outputs):
            early.node(node)
    inputs = tuple(middle) + tuple(late)
    later = Copier(Graph(inputs, (), (), graph.constants))
    for node in graph.nodes:
        if moving.intersection(node.outputs):
            later.node(node)
    return (
        early.builder.build(early.all(middle), allow_unused=True),
        later.builder.build(later.all(graph.outputs), allow_unused=True),
    )
