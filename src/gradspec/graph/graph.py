"""Graphs: frozen lists of nodes, with everything that can be done to them as methods."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from gradspec.graph.ir import Array, Attributes, Body, Op, Provided
from gradspec.graph.picture import html
from gradspec.graph.show import text

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
