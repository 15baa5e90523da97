"""Copying nodes from one graph into the builder of another."""

from __future__ import annotations

from collections.abc import Iterable

from gradspec.graph.builder import Builder
from gradspec.graph.ir import Graph, Node, Var


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
        self.assign(node, self.builder.apply(node.op, node.attrs, *self.all(node.inputs)))

    def assign(self, node: Node, outputs: Iterable[Var]) -> None:
        self.vars.update(zip(node.outputs, outputs, strict=True))
