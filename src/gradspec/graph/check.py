"""What makes a graph well formed, as a table of checks; run after every transformation in tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gradspec.graph.graph import Graph
from gradspec.graph.types import type_of


def check(graph: Graph) -> Graph:
    """Return the graph if it is well formed; raise ValueError with every fault otherwise."""
    faults = [f"{name}: {fault}" for name, rule in CHECKS.items() for fault in rule(graph)]
    if faults:
        raise ValueError("the graph is not well formed:\n  " + "\n  ".join(faults))
    return graph


def _assigned_once(graph: Graph) -> Iterator[str]:
    seen = set()
    for var in [*graph.inputs, *graph.constants, *(v for node in graph.nodes for v in node.outputs)]:
        if var in seen:
            yield f"{var!r} is assigned twice"
        seen.add(var)


def _defined_before_use(graph: Graph) -> Iterator[str]:
    known = {*graph.inputs, *graph.constants}
    for node in graph.nodes:
        yield from (f"{node.op} uses {v!r} before it is assigned" for v in node.inputs if v not in known)
        known.update(node.outputs)
    yield from (f"the output {v!r} is never assigned" for v in graph.outputs if v not in known)


def _types_follow(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        expected = node.op.types(node.attrs, *(v.type for v in node.inputs))
        given = tuple(v.type for v in node.outputs)
        if given != expected:
            yield f"{node.op} gives {expected}, but its variables are {given}"


def _attributes_belong(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        if not isinstance(node.attrs, node.op.attributes):
            yield f"{node.op} has attributes {node.attrs!r}, not {node.op.attributes.__name__}"


def _names_are_unique(graph: Graph) -> Iterator[str]:
    names = set()
    for var in [*graph.inputs, *graph.constants, *(v for node in graph.nodes for v in node.outputs)]:
        if var.name in names:
            yield f"two variables are called {var.name!r}"
        names.add(var.name)


def _constants_fit(graph: Graph) -> Iterator[str]:
    for var, array in graph.constants.items():
        if type_of(array) != var.type:
            yield f"{var!r} holds an array of type {type_of(array)}"
        if array.flags.writeable:
            yield f"{var!r} holds an array that can be changed"


def _has_outputs(graph: Graph) -> Iterator[str]:
    if not graph.outputs:
        yield "there is none"


CHECKS: dict[str, Callable[[Graph], Iterator[str]]] = {
    "outputs": _has_outputs,
    "single assignment": _assigned_once,
    "order": _defined_before_use,
    "types": _types_follow,
    "attributes": _attributes_belong,
    "names": _names_are_unique,
    "constants": _constants_fit,
}
