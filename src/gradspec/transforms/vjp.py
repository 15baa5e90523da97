"""Reverse mode: the linear part of a graph's JVP, transposed.

In the graph of a JVP everything that depends on the tangents is linear in them. Walking those nodes backwards and
applying each operator's transpose turns the map of tangents into the map of cotangents. The rest is kept as it is, so a
VJP costs what its JVP costs, whatever the number of inputs, and each node is visited once.
"""

from __future__ import annotations

from gradspec.graph.builder import dependents
from gradspec.graph.graph import Graph, Wrt
from gradspec.graph.ir import Node, Var
from gradspec.transforms.copy import Copier
from gradspec.transforms.jvp import jvp, or_zero


def vjp(graph: Graph, wrt: Wrt = None) -> Graph:
    """``(inputs…, output cotangents…) → (outputs…, input cotangents…)``."""
    forward = jvp(graph, wrt)
    count = len(graph.inputs)
    floats = [i for i, v in enumerate(graph.outputs) if v.type.is_float]
    tangent_inputs = forward.inputs[count:]
    tangent_outputs = forward.outputs[len(graph.outputs) :]
    linear = dependents(forward, tangent_inputs)
    copy = Copier(Graph(forward.inputs[:count], forward.nodes, forward.outputs, forward.constants))
    for node in forward.nodes:
        if not linear.intersection(node.outputs):
            copy.node(node)
    cotangents = Cotangents()
    for i, var in zip(floats, tangent_outputs, strict=True):
        seed = copy.builder.input(var.type, copy.builder.unused(f"ct_{graph.outputs[i].name}"))
        if var in linear:
            cotangents.add(var, seed)
    for node in reversed(forward.nodes):
        if linear.intersection(node.outputs):
            _pull_back(node, linear, cotangents, copy)
    results = [or_zero(cotangents.get(v), v, copy.builder) for v in tangent_inputs]
    return copy.builder.build([*copy.all(forward.outputs[: len(graph.outputs)]), *results], allow_unused=True)


class Cotangents:
    """Cotangents, added up where a variable is used more than once."""

    def __init__(self) -> None:
        self._found: dict[Var, Var] = {}

    def get(self, var: Var) -> Var | None:
        return self._found.get(var)

    def add(self, var: Var, cotangent: Var) -> None:
        before = self._found.get(var)
        self._found[var] = cotangent if before is None else before + cotangent


def _pull_back(node: Node, linear: set[Var], cotangents: Cotangents, copy: Copier) -> None:
    """Send a node's cotangents to the operands it is linear in."""
    arriving = [cotangents.get(v) for v in node.outputs]
    if all(ct is None for ct in arriving):
        return
    op, operands = node.op, [v.type if v in linear else copy(v) for v in node.inputs]
    moving = [(i, v) for i, v in enumerate(node.inputs) if v in linear]
    if op.pull_back is not None:
        pulled = op.pull_back(node.attrs, arriving, operands)
    elif op.transpose is not None:
        pulled = {i: op.transpose(node.attrs, arriving, operands, i) for i, _ in moving}
    else:
        raise op.missing("transpose")
    for i, var in moving:
        cotangents.add(var, pulled[i])
