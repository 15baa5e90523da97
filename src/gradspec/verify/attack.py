"""Looking for counterexamples: projected gradient from many points of a box at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array
from gradspec.runtime.compiled import compile

LEAST_POINTS, MOST_POINTS, MOST_CELLS, STEPS = 8, 256, 2**20, 30
"""How many points are moved together, fewer of larger networks, and how often."""

FIRST, DECAY, MOMENTUM = 0.25, 0.9, 0.5
"""The first step as a part of the box, by how much steps shrink, and how much of the last direction each keeps."""


class Attack:
    """Points of a box, moved towards unsafe outputs; the graph has one output, flat."""

    def __init__(self, graph: Graph) -> None:
        cells = sum(v.type.size for node in graph.nodes for v in node.outputs)
        self.points = int(min(MOST_POINTS, max(LEAST_POINTS, 1 << (MOST_CELLS // max(cells, 1)).bit_length() >> 1)))
        self.graph, self._run = graph, compile(graph.batch(self.points).vjp())

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
        points = [self._spread(low, high, random) for low, high in zip(lower, upper, strict=True)]
        start = int(random.integers(len(unsafe)))  # of many conjunctions, every round goes for others
        aims = [unsafe[(start + i) % len(unsafe)] for i in range(self.points)]
        towards = np.stack([rows[0] for rows, _ in aims]).astype(points[0].dtype)
        best, distance, size = [p[0] for p in points], np.inf, FIRST
        velocities = [np.zeros_like(p) for p in points]
        for _ in range(STEPS):
            outputs, *slopes = self._run(*points, towards)
            far, towards = self._distances(outputs, aims, towards)
            at = int(np.argmin(far))
            if far[at] < distance:
                best, distance = [p[at].copy() for p in points], float(far[at])
            if distance <= 0:
                break
            for point, velocity, slope, low, high in zip(points, velocities, slopes, lower, upper, strict=True):
                velocity *= MOMENTUM
                velocity += np.sign(slope)
                np.clip(point - size * (high - low) * np.clip(velocity, -1, 1), low, high, out=point)
            size *= DECAY
        return best, distance

    def _distances(self, outputs: Array, aims: Sequence[Any], towards: Array) -> tuple[Array, Array]:
        """How far each point is from what it goes for, and the row that it is farthest from."""
        far, rows = np.empty(self.points), np.empty_like(towards)
        for i, (matrix, bounds) in enumerate(aims):
            with np.errstate(invalid="ignore"):  # outputs may have overflowed
                above = matrix @ outputs[i] - bounds
            worst = int(np.argmax(above))
            far[i], rows[i] = above[worst], matrix[worst]
        return np.where(np.isnan(far), np.inf, far), rows

    def _spread(self, low: Array, high: Array, random: np.random.Generator) -> Array:
        """The middle, and points and corners at random."""
        part = random.uniform(0, 1, (self.points, *low.shape))
        part[self.points // 2 :] = part[self.points // 2 :] > 0.5
        part[0] = 0.5
        return np.asarray(np.clip(low + part * (high - low), low, high), low.dtype)
