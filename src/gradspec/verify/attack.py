"""Looking for counterexamples: projected gradient from many points of a box at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array
from gradspec.runtime.compiled import compile

POINTS, STEPS = 64, 30
"""How many points are moved together, and how often."""

FIRST, DECAY = 0.25, 0.9
"""The first step as a part of the box, and by how much steps shrink."""


class Attack:
    """Points of a box, moved towards unsafe outputs; the graph has one output, flat."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self._run = graph, compile(graph.batch(POINTS).vjp())

    def nearest(
        self,
        lower: Sequence[Array],
        upper: Sequence[Array],
        unsafe: Sequence[tuple[Array, Array]],
        random: np.random.Generator,
    ) -> tuple[list[Array], float]:
        """The best point found, and how far its worst row is above its bound; not above 0: unsafe, as floats go.

        Each point goes for one of the conjunctions ``C @ y ≤ b``, by the slope of the row that was worst a step ago.
        """
        points = [_spread(low, high, random) for low, high in zip(lower, upper, strict=True)]
        aims = [unsafe[i % len(unsafe)] for i in range(POINTS)]
        towards = np.stack([rows[0] for rows, _ in aims]).astype(points[0].dtype)
        best, distance, size = [p[0] for p in points], np.inf, FIRST
        for _ in range(STEPS):
            outputs, *slopes = self._run(*points, towards)
            far, towards = self._distances(outputs, aims, towards)
            at = int(np.argmin(far))
            if far[at] < distance:
                best, distance = [p[at].copy() for p in points], float(far[at])
            if distance <= 0:
                break
            for point, slope, low, high in zip(points, slopes, lower, upper, strict=True):
                np.clip(point - size * (high - low) * np.sign(slope), low, high, out=point)
            size *= DECAY
        return best, distance

    def _distances(self, outputs: Array, aims: Sequence[Any], towards: Array) -> tuple[Array, Array]:
        """How far each point is from what it goes for, and the row that it is farthest from."""
        far, rows = np.empty(POINTS), np.empty_like(towards)
        for i, (matrix, bounds) in enumerate(aims):
            with np.errstate(invalid="ignore"):  # outputs may have overflowed
                above = matrix @ outputs[i] - bounds
            worst = int(np.argmax(above))
            far[i], rows[i] = above[worst], matrix[worst]
        return np.where(np.isnan(far), np.inf, far), rows


def _spread(low: Array, high: Array, random: np.random.Generator) -> Array:
    """The middle, and points and corners at random."""
    part = random.uniform(0, 1, (POINTS, *low.shape))
    part[POINTS // 2 :] = part[POINTS // 2 :] > 0.5
    part[0] = 0.5
    return np.asarray(np.clip(low + part * (high - low), low, high), low.dtype)
