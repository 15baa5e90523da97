"""Nodes in an order in which each comes after those whose results it uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush

from onnx import GraphProto, NodeProto

from gradspec.spec.errors import FormatError


def in_order(nodes: Sequence[NodeProto], place: Callable[[int], str]) -> Sequence[int]:
    """The numbers of the nodes, sorted; they stay as they are where they can.

    Names that no node gives are left to whoever looks them up. ``place`` says in an error where a node is.
    """
    givers: dict[str, int] = {}
    for number, node in enumerate(nodes):
        for name in node.output:
            givers.setdefault(name, number)
    givers.pop("", None)
    if all(givers.get(name, -1) < number for number, node in enumerate(nodes) for name in uses(node)):
        return range(len(nodes))
    return _sorted([{givers[name] for name in uses(node) if name in givers} for node in nodes], place)


def uses(node: NodeProto) -> Iterator[str]:
    """The names that a node uses, also inside the graphs that it has as attributes."""
    yield from node.input
    if node.op_type not in ("If", "Loop", "Scan"):
        return
    used: set[str] = set()
    given: set[str] = set()
    graphs: list[GraphProto] = [g for a in node.attribute for g in (a.g, *a.graphs)]
    for graph in graphs:  # which grow meanwhile
        used.update(output.name for output in graph.output)
        given.update(entry.name for entries in (graph.input, graph.initializer) for entry in entries)
        for inner in graph.node:
            used.update(inner.input)
            given.update(inner.output)
            graphs.extend(g for a in inner.attribute for g in (a.g, *a.graphs) if g.node)
    yield from used - given


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
