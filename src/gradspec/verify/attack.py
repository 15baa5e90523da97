"""Looking for counterexamples: projected gradient from many points of a box at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradspec.graph.builder import apply
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array, Var
from gradspec.ops.pointwise import detach
from gradspec.runtime.compiled import compile
from gradspec.transforms.copy import Copier

LEAST_POINTS, MOST_POINTS, MOST_CELLS, STEPS = 8, 256, 2**20, 30
"""How many points are moved together, fewer of larger networks, and how often."""

FIRST, DECAY, MOMENTUM = 0.25, 0.9, 0.5
"""The first step as a part of the box, by how much steps shrink, and how much of the last direction each keeps."""


class Attack:
    """Points of boxes, moved towards unsafe outputs; the graph has one output, flat."""

    def __init__(self, graph: Graph) -> None:
        cells = sum(v.type.size for node in graph.nodes for v in node.outputs)
        self.points = int(min(MOST_POINTS, max(LEAST_POINTS, 1 << (MOST_CELLS // max(cells, 1)).bit_length() >> 1)))
        self._run = compile(_straight_through(graph).batch(self.points).vjp())

    def nearest(
        self,
        lower: Sequence[Array],
        upper: Sequence[Array],
        matrices: Sequence[Array],
        bounds: Sequence[Array],
        random: np.random.Generator,
    ) -> tuple[int, list[Array], float]:
        """A box, the best point found, and how far its worst row is above its bound; not above 0: unsafe, as floats go.

        Each point stays in one of the boxes, which ``lower`` and ``upper`` have along a leading axis, and goes for one
        of the conjunctions ``C @ y ≤ b``, where each box has a row of ``b``, by the slope of the row that was worst.
        """
        numbers = np.arange(self.points)
        boxes = numbers % len(lower[0])
        start = int(random.integers(len(matrices)))  # of many conjunctions, every round goes for others
        aims = (start + numbers // len(lower[0])) % len(matrices)
        ends = [(low[boxes], high[boxes]) for low, high in zip(lower, upper, strict=True)]
        points = [self._spread(low, high, random, len(lower[0])) for low, high in ends]
        groups = []
        for aim in set(aims.tolist()):
            at = np.flatnonzero(aims == aim)
            groups.append((at, matrices[aim], bounds[aim][boxes[at]]))
        towards = np.stack([matrices[aim][0] for aim in aims.tolist()]).astype(points[0].dtype)
        box, best, distance, size = 0, [p[0] for p in points], np.inf, FIRST
        velocities = [np.zeros_like(p) for p in points]
        for _ in range(STEPS):
            outputs, *slopes = self._run(*points, towards)
            far, towards = self._distances(outputs, groups, towards)
            nearest = int(np.argmin(far))
            if far[nearest] < distance:
                box, best = int(boxes[nearest]), [p[nearest].copy() for p in points]
                distance = float(far[nearest])
            if distance <= 0:
                break
            for point, velocity, slope, (low, high) in zip(points, velocities, slopes, ends, strict=True):
                velocity *= MOMENTUM
                velocity += np.sign(slope)
                np.clip(point - size * (high - low) * np.clip(velocity, -1, 1), low, high, out=point)
            size *= DECAY
        return box, best, distance

    def _distances(self, outputs: Array, groups: Sequence[Any], towards: Array) -> tuple[Array, Array]:
        """How far each point is from what it goes for, and the row that it is farthest from."""
        far, rows = np.empty(self.points), np.empty_like(towards)
        for at, matrix, bounds in groups:
            with np.errstate(invalid="ignore"):  # outputs may have overflowed
                above = outputs[at] @ matrix.T - bounds
            worst = np.argmax(above, axis=1)
            far[at], rows[at] = above[np.arange(len(at)), worst], matrix[worst]
        return np.where(np.isnan(far), np.inf, far), rows

    def _spread(self, low: Array, high: Array, random: np.random.Generator, middles: int) -> Array:
        """The middle of each box, and points and corners at random."""
        part = random.uniform(0, 1, low.shape)
        part[self.points // 2 :] = part[self.points // 2 :] > 0.5
        part[:middles] = 0.5
        return np.asarray(np.clip(low + part * (high - low), low, high), low.dtype)


def _straight_through(graph: Graph) -> Graph:
    """The same values, with the slopes of surrogates where operators have none, and at the end of the graph.

    A value ``y`` with the surrogate ``s`` is ``y + (s − s)``, of which the second ``s`` is held. What only converts or
    moves such values, to integers too, does so to the surrogate.
    """
    copy, last, soft = Copier(graph), set(graph.outputs), dict[Var, Var]()
    for node in reversed(graph.nodes):
        last |= {v for v in node.inputs if node.op.is_data_movement and last.intersection(node.outputs)}
    for node in graph.nodes:
        copy.node(node)
        (out, *more), inputs = node.outputs, node.inputs
        if node.op.surrogate is not None and inputs[0].type.is_float and (node.op.constant or out in last):
            soft[out] = node.op.surrogate(node.attrs, *copy.all(inputs))
        elif not more and len(inputs) == 1 and inputs[0] in soft and node.op.linear is not None:
            moved = apply(node.op, node.attrs, soft[inputs[0]])
            soft[out] = moved if moved.type.is_float else soft[inputs[0]]
        if out in soft and out.type.is_float:
            slope = soft.pop(out)
            copy.assign(node, [copy(out) + (slope - detach(slope))])
    return copy.builder.build(copy.all(graph.outputs), allow_unused=True)
