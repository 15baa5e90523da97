"""Nodes in an order in which each comes after those whose results it uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain
from typing import NamedTuple

from onnx import GraphProto, NodeProto

from gradspec.spec.errors import FormatError


def in_order(
    nodes: Sequence[NodeProto], place: Callable[[int], str], charge: Callable[[Sequence[NodeProto]], None]
) -> Sequence[int]:
    """The numbers of the nodes, sorted; they stay as they are where they can.

    Names that no node gives are left to whoever looks them up. ``place`` says in an error where a node is, and
    ``charge`` is told of all nodes inside of others that are looked at.
    """
    givers: dict[str, int] = {}
    for number, node in enumerate(nodes):
        for name in node.output:
            givers.setdefault(name, number)
    givers.pop("", None)
    if all(givers.get(name, -1) < number for number, node in enumerate(nodes) for name in uses(node, charge)):
        return range(len(nodes))
    return _sorted([{givers[name] for name in uses(node, charge) if name in givers} for node in nodes], place)


def uses(node: NodeProto, charge: Callable[[Sequence[NodeProto]], None]) -> Iterator[str]:
    """The names that a node uses, also inside the graphs that it has as attributes."""
    yield from node.input
    if node.op_type not in ("If", "Loop", "Scan"):
        return
    graphs: list[tuple[GraphProto, BranchNames | None]] = [(g, None) for a in node.attribute for g in (a.g, *a.graphs)]
    while graphs:
        graph, around = graphs.pop()
        charge(graph.node)
        entries = (*graph.input, *graph.initializer)
        own = BranchNames(
            {*(e.name for e in entries), *(name for inner in graph.node for name in inner.output)}, around
        )
        used = chain((output.name for output in graph.output), *(inner.input for inner in graph.node))
        yield from (name for name in used if not own.has(name))
        inner_graphs = (g for inner in graph.node for a in inner.attribute for g in (a.g, *a.graphs) if g.node)
        graphs.extend((g, own) for g in inner_graphs)


class BranchNames(NamedTuple):
    """The names that a branch gives itself, and the branch that it is in."""

    given: set[str]
    around: BranchNames | None

    def has(self, name: str) -> bool:
        names: BranchNames | None = self
        while names is not None and name not in names.given:
            names = names.around
        return names is not None


def _sorted(before: Sequence[set[int]], place: Callable[[int], str]) -> list[int]:
    """Of those that wait for nothing more, the first comes first."""
    waiting = [len(givers) for givers in before]
    after: list[list[int]] = [[] for _ in before]
    for number, givers in enumerate(before):
        for giver in givers:
            after[giver].append(number)
    ready = [number for number, count in enumerate(waiting) if count == 0]
    heapify(ready)
    order = []
    while ready:
        number = heappop(ready)
        order.append(number)
        for later in after[number]:
            waiting[later] -= 1
            if waiting[later] == 0:
                heappush(ready, later)
    if len(order) < len(before):
        stuck = next(number for number, count in enumerate(waiting) if count)
        raise FormatError(f"{place(stuck)} uses what depends on its own result: the nodes go round in a circle")
    return order
