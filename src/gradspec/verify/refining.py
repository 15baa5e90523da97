"""Intermediate bounds by slopes of their own: each undecided cell's lines are improved for it, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from gradspec.graph.ir import Array, Var
from gradspec.verify.bounding import Bounder, Ends, IntermediateBounds
from gradspec.verify.certificate import RefinedRow, node_numbers, sparse
from gradspec.verify.slopes import FreeLines

STEPS, ROWS = 12, 64
"""How often the slopes of a row are improved, and of how many rows together."""

MOST_WORK, LEAST_GAIN = 2**23, 0.01
"""The coefficients that a layer may cost in all steps, and the part of its width that a cell must gain."""


class Refining:
    """Bounds of all layers, from the first on, and the rows that made some of them tighter."""

    def __init__(self, bounder: Bounder, inputs: Sequence[Array], is_over: Callable[[], bool]) -> None:
        self._bounder, self._inputs, self._is_over = bounder, list(inputs), is_over
        """When the time for this is over, the rest is bounded by the usual slopes."""
        self.rows: list[RefinedRow] = []

    def bounds(self) -> IntermediateBounds:
        known = self._bounder.unknown()
        for var in self._bounder.pre_activations:
            if var not in self._bounder.single:
                known = self._bounder.tighten_variable(self._inputs, known, var)
                if self._bounder.bends(var):
                    known = known.replace(var, self._refine(known, var))
        return known

    def _refine(self, known: IntermediateBounds, var: Var) -> Ends:
        b, (low, high) = self._bounder, (end.copy() for end in known[var])
        cells = np.flatnonzero(b.undecided(var, low, high))
        lines = FreeLines(b, var, ROWS, multiplied=False)
        passed = sum(prod(node.outputs[0].shape) for node in lines.shared)
        if not cells.size or 2 * len(cells) * passed * STEPS > MOST_WORK:
            return low, high
        boxes, _ = b.boxes(self._inputs, known)
        signed = [(cell, sign) for sign in (1, -1) for cell in cells.tolist()]
        for begun in range(0, len(signed), ROWS):
            if not self._is_over():
                self._improve(lines, boxes, signed[begun : begun + ROWS], low, high)
        return low, high

    def _improve(
        self, lines: FreeLines, boxes: IntermediateBounds, signed: Sequence[tuple[int, int]], low: Array, high: Array
    ) -> None:
        rows = np.zeros((1, ROWS, *low.shape), low.dtype)
        for i, (cell, sign) in enumerate(signed):
            rows[0, i].flat[cell] = sign
        domain = [*(a[None] for a in (*self._inputs, *boxes.flat())), rows]
        found, free = lines.improve(domain, lines.initial(boxes), STEPS, lambda _: False)
        (number,) = node_numbers(self._bounder.graph, self._bounder.bends(lines.target)[:1])
        inside = [boxes.undecided(node) for node in lines.shared]
        for i, (cell, sign) in enumerate(signed):
            end, bound = (low, found[0, i]) if sign > 0 else (high, -found[0, i])
            if sign * (bound - end.flat[cell]) > LEAST_GAIN * (high.flat[cell] - low.flat[cell]):
                end.flat[cell] = bound
                shares = [sparse(a[0, i], where) for a, where in zip(free.shares, inside, strict=True)]
                none = [sparse(np.zeros(1), np.zeros(1, bool))] * (len(self._bounder.sloped) - len(shares))
                self.rows.append(RefinedRow(number, sign * (cell + 1), [*shares, *none]))
