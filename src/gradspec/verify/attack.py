"""Looking for counterexamples: projected gradient from many points of a box at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array
from gradspec.runtime.run import compile

POINTS, STEPS = 64, 30
"""How many points are moved together, and how often."""

FIRST, DECAY = 0.25, 0.9
"""The first step as a part of the box, and by how much steps shrink."""


class Attack:
    """Points of a box, moved towards where every row of ``C @ y`` is at most ``b``; the graph has one output, flat."""

    def __init__(self, graph: Graph, seed: int = 0) -> None:
        self._run = compile(graph.batch(POINTS).vjp())
        self._random = np.random.default_rng(seed)

    def nearest(self, lower: Sequence[Array], upper: Sequence[Array], C: Array, b: Array) -> tuple[list[Array], float]:  # noqa: N803
        """The best point found, and how far its worst row is above ``b``; not above 0: a counterexample, in floats."""
        points = [self._spread(low, high) for low, high in zip(lower, upper, strict=True)]
        best, distance = [p[0] for p in points], np.inf
        size = FIRST
        for _ in range(STEPS):
            outputs, rows = self._values(points), C.astype(points[0].dtype)
            above = outputs @ C.T - b
            worst = np.argmax(above, axis=1)
            far = above[np.arange(POINTS), worst]
            at = int(np.argmin(far))
            if far[at] < distance:
                best, distance = [p[at].copy() for p in points], float(far[at])
            if distance <= 0:
                break
            slopes = self._run(*points, rows[worst])[1:]
            for point, slope, low, high in zip(points, slopes, lower, upper, strict=True):
                np.clip(point - size * (high - low) * np.sign(slope), low, high, out=point)
            size *= DECAY
        return best, distance

    def _values(self, points: Sequence[Array]) -> Any:
        zero = np.zeros((POINTS, self._run.graph.inputs[-1].shape[1]), points[0].dtype)
        return self._run(*points, zero)[0]

    def _spread(self, low: Array, high: Array) -> Array:
        """The middle, and points and corners at random."""
        part = self._random.uniform(0, 1, (POINTS, *low.shape))
        part[POINTS // 2 :] = part[POINTS // 2 :] > 0.5
        part[0] = 0.5
        return np.clip(low + part * (high - low), low, high).astype(low.dtype)
