"""Graphs: frozen lists of nodes, with everything that can be done to them as methods."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from gradspec.graph.ir import Array, Attributes, Body, Op, Provided
from gradspec.graph.picture import html
from gradspec.graph.show import text
from gradspec.graph.types import type_of

Wrt: TypeAlias = int | str | Sequence[int | str] | None
"""Inputs by position or name; None: all that are floating-point."""

InAxes: TypeAlias = int | Sequence[int | None] | None
"""For each input, or for all, 0 if it has a leading batch axis and None if not."""


@dataclass(frozen=True)
class Services:
    """Functions of later packages on graphs and operators."""

    jvp: Callable[[Graph, Wrt], Graph]
    vjp: Callable[[Graph, Wrt], Graph]
    batch: Callable[[Graph, int, InAxes], Graph]
    simplify: Callable[[Graph], Graph]
    save: Callable[[Graph, str | os.PathLike[str]], None]
    run: Callable[[Graph, Sequence[Any]], Any]
    """The graph on arrays of any library."""
    eager: Callable[[Op, Attributes, Sequence[Array]], tuple[Array, ...]]
    """One operator on arrays, at once."""


SERVICES = Provided[Services]()


@dataclass(frozen=True, eq=False, repr=False)
class Graph(Body):
    """Inputs, constants, nodes in order of execution, and outputs. Every method returns a new graph."""

    def __call__(self, *arrays: object) -> Any:
        """Run on arrays: one array for one output, a tuple for several."""
        return SERVICES().run(self, arrays)

    def jvp(self, wrt: Wrt = None) -> Graph:
        """``(inputs…, tangents…) → (outputs…, output tangents…)``.

        ``wrt`` names the inputs, by name or position, that have a tangent; all floating-point ones unless given.
        """
        return SERVICES().jvp(self, wrt)

    def vjp(self, wrt: Wrt = None) -> Graph:
        """``(inputs…, output cotangents…) → (outputs…, input cotangents…)``."""
        return SERVICES().vjp(self, wrt)

    def batch(self, n: int, in_axes: InAxes = 0) -> Graph:
        """A leading axis of ``n`` on the outputs, and on every input whose ``in_axes`` is 0 (not None)."""
        return SERVICES().batch(self, n, in_axes)

    def simplify(self) -> Graph:
        """The same meaning with fewer nodes."""
        return SERVICES().simplify(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the graph to a file that ``gs.load`` reads."""
        SERVICES().save(self, path)

    def __str__(self) -> str:
        return text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html(self)


# --- well-formed graphs -----------------------------------------------------------------------------------------------


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
