"""The structure of a graph: operators, attributes, wiring and types, without the values of its constants."""

from __future__ import annotations

from collections.abc import Hashable
from types import MappingProxyType

from gradspec.graph.builder import is_symbolic_zero
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array


def lifted(graph: Graph) -> tuple[Graph, list[Array]]:
    """The graph with its constants as further inputs, and their arrays.

    The zeros that derivatives bring along stay: what vanishes is part of the structure.
    """
    zeros = {v: a for v, a in graph.constants.items() if is_symbolic_zero(a)}
    operands = {v: a for v, a in graph.constants.items() if v not in zeros}
    open_graph = Graph((*graph.inputs, *operands), graph.nodes, graph.outputs, MappingProxyType(zeros))
    return open_graph, list(operands.values())


def structure(graph: Graph) -> Hashable:
    """Equal for graphs that mean the same but for what they are given.

    Attributes are compared as they are written: ``0.0 == -0.0`` and ``1 == True``, but they are not the same.
    """
    leaves = (*graph.inputs, *graph.constants)
    number = {v: i for i, v in enumerate((*leaves, *(v for node in graph.nodes for v in node.outputs)))}
    return (
        len(graph.inputs),
        tuple((v.dtype.name, v.shape) for v in leaves),
        tuple((node.op, repr(node.attrs), tuple(number[v] for v in node.inputs)) for node in graph.nodes),
        tuple(number[v] for v in graph.outputs),
    )
