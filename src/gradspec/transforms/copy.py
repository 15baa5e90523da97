"""Copying nodes from one graph into the builder of another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gradspec.graph.builder import Builder, operands
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Node, Operand, Var


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
