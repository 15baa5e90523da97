"""Lines with free slopes and multipliers, improved by the gradient of the bound that they give.

Every choice of slopes is sound, and so is every multiplier: the graph itself takes only the part of it whose sign is
known to be right. So the search for better ones may be as careless as it likes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from gradspec.graph.ir import Array, Var
from gradspec.transforms.lines import lines
from gradspec.verify.bounding import Bounder, Ends, IntermediateBounds
from gradspec.verify.certificate import RefinedRow, node_numbers, sparse

STEP, DECAY, SLOPE_MEMORY, SIZE_MEMORY = 0.25, 0.97, 0.9, 0.999
"""Adam's: the first step, by how much steps shrink, and how long gradients and their sizes are remembered."""


@dataclass
class Free:
    """Slopes and multipliers for ``(domains, rows)``, one array for each node and variable; and weights of sums."""

    shares: list[Array]
    multipliers: list[Array]
    weights: list[Array] = field(default_factory=list)
    """For each row, those of the inequalities that it is the sum of; nothing if rows are given."""

    def arrays(self) -> list[Array]:
        return [*self.shares, *self.multipliers, *self.weights]

    def at(self, domain: int) -> Free:
        return Free(*([a[domain] for a in of] for of in self._lists()))

    def halved(self) -> Free:
        """In half the memory: whatever the numbers are rounded to is sound."""
        half = np.finfo(np.float16)
        return Free(*([np.clip(a, half.min, half.max).astype(half.dtype) for a in of] for of in self._lists()))

    @classmethod
    def stack(cls, domains: Sequence[Free], dtype: Any) -> Free:
        lists = zip(*(domain._lists() for domain in domains), strict=True)
        return cls(*([np.stack(arrays).astype(dtype) for arrays in zip(*of, strict=True)] for of in lists))

    def _lists(self) -> tuple[list[Array], list[Array], list[Array]]:
        return self.shares, self.multipliers, self.weights


@dataclass(frozen=True)
class WeightedRows:
    """Inequalities ``C·y ≤ b`` that cannot all hold if a sum of them, with weights that are not negative, does not."""

    rows: Array
    """``(domains, inequalities, *shape)``, and ``least`` likewise: what a lower bound of each must exceed."""
    least: Array
    size: Array
    """Of the target, the largest absolute values."""

    def of(self, weights: Array) -> tuple[Array, Array]:
        """The rows that are the sums, and what a lower bound of each must exceed, what rounding loses included."""
        many, flat = weights.astype(np.float64), self.rows.reshape(*self.rows.shape[:2], -1).astype(np.float64)
        unit = 2.0**-50 * (many.shape[-1] + 2)
        exact = many @ flat
        sums = exact.astype(self.rows.dtype)
        lost = np.abs(sums - exact) + unit * (many @ np.abs(flat))
        with np.errstate(over="ignore"):
            extra = lost @ self.size.reshape(-1, 1) * (1 + 2.0**-20)
        least = many @ self.least[..., None] + unit * (many @ np.abs(self.least)[..., None]) + extra
        return sums.reshape(*sums.shape[:2], *self.rows.shape[2:]), least[..., 0]

    def slopes(self, towards: Array) -> Array:
        """By how much the bound of each row grows with each weight, if it does with the coefficients as told."""
        flat = self.rows.reshape(*self.rows.shape[:2], -1)
        return towards.reshape(*towards.shape[:2], -1) @ flat.swapaxes(1, 2) - self.least[:, None]


class FreeLines:
    """Lower bounds of so many rows of a target over many domains, each with its box, its rows and its free numbers."""

    def __init__(self, bounder: Bounder, target: Var, rows: int, *, multiplied: bool = True) -> None:
        self.bounder, self.target, self.rows = bounder, target, rows
        computed = [v for node in bounder.graph.nodes for v in node.outputs]
        before = set(computed[: computed.index(target)]) if target in computed else set()
        self.shared = [node for node in bounder.sloped if node.outputs[0] in before]
        self.multiplied = [v for v in bounder.pre_activations if multiplied and v in before and bounder.bends(v)]
        self._runs = bounder.runs

    def initial(self, boxes: IntermediateBounds) -> Free:
        """The usual slopes, from boxes of one domain, and multipliers of 0."""
        shape, dtype = (1, self.rows), self.bounder.arithmetic.dtype.numpy
        shares = []
        for node in self.shared:
            low, high = boxes.ends.get(node.inputs[0], (np.zeros(1), np.zeros(1)))
            usual = high > -low if node.op.kinks is not None else 0.5
            shares.append(np.broadcast_to(usual, (*shape, *node.outputs[0].shape)).astype(dtype))
        return Free(shares, [np.zeros((*shape, *v.shape), dtype) for v in self.multiplied])

    def run(self, domains: int, gradient: str = "") -> Callable[..., Any]:
        """The bounds and, if asked, their gradient in what is ``"known"`` (of all rows together) or ``"free"``."""
        key = (self.target, self.rows, len(self.multiplied), domains, gradient)
        if key not in self._runs:
            b, inner = self.bounder, self.bounder.pre_activations
            boxes, free = sum(1 + is_bounded for is_bounded in b.bounded), len(self.shared) + len(self.multiplied)
            fixed = boxes + 2 * len(inner)
            wrt = {"": (), "known": range(boxes, fixed), "free": range(fixed, fixed + 1 + free)}[gradient]
            whole = lines(b.graph, b.arithmetic, b.bounded, self.target, inner, self.shared, self.multiplied)
            graph = whole.simplify().batch(self.rows, [*[None] * fixed, *[0] * (1 + free)])
            graph = graph.vjp(tuple(wrt)) if gradient else graph
            self._runs[key] = b.execution.compile(graph.batch(domains).simplify())
        return self._runs[key]  # type: ignore[no-any-return]

    def gradient(self, domains: Sequence[Array], free: Free, of: Array) -> list[Array]:
        """The gradient of ``⟨of, bounds⟩`` in each end of what is known."""
        numbers = free.shares + free.multipliers
        return self.run(len(of), "known")(*domains, *numbers, of)[1:]  # type: ignore[no-any-return]

    def improve(
        self,
        domains: Sequence[Array],
        free: Free,
        steps: int,
        done: Callable[[Array], bool],
        sums: WeightedRows | None = None,
    ) -> tuple[Array, Free]:
        """The best bounds found in some steps of ascent, ``(domains, rows)``, and the free numbers they came from.

        ``domains`` are the boxes of inputs, what is known, and the rows, each with a leading axis of domains. Of
        ``sums``, which take the place of rows, the bounds are those of how far they are above what must be exceeded.
        """
        count, fixed = len(domains[0]), len(domains) - (sums is None)
        if not free.arrays():  # no kinks, nothing to improve
            bound = self.run(count)(*domains)
            return np.where(np.isnan(bound), -np.inf, bound), free
        run = self.run(count, "free")
        ones = np.ones((count, self.rows), self.bounder.arithmetic.dtype.numpy)
        arrays = [a.copy() for a in free.arrays()]
        best, kept = None, [a.copy() for a in arrays]
        mean, size = [np.zeros_like(a) for a in arrays], [np.zeros_like(a) for a in arrays]
        for step in range(steps + 1):
            rows, needed = sums.of(arrays[-1]) if sums else (domains[-1], 0.0)
            bound, towards, *gradients = run(*domains[:fixed], rows, *arrays[: len(arrays) - (sums is not None)], ones)
            if sums:
                gradients.append(sums.slopes(towards))
            bound = np.nan_to_num(bound - needed, nan=-np.inf, posinf=np.inf, neginf=-np.inf)
            better = np.ones(bound.shape, bool) if best is None else bound > best
            best = bound if best is None else np.fmax(best, bound)
            for old, new in zip(kept, arrays, strict=True):
                old[better] = new[better]
            if step == steps or done(best):
                break
            self._ascend(arrays, gradients, mean, size, step)
        cut, end = len(self.shared), len(self.shared) + len(self.multiplied)
        return best, Free(kept[:cut], kept[cut:end], kept[end:])  # type: ignore[return-value]

    def _ascend(
        self, arrays: list[Array], gradients: list[Array], mean: list[Array], size: list[Array], n: int
    ) -> None:
        for i, (array, gradient) in enumerate(zip(arrays, gradients, strict=True)):
            slope = np.nan_to_num(gradient, posinf=0.0, neginf=0.0)
            mean[i] = SLOPE_MEMORY * mean[i] + (1 - SLOPE_MEMORY) * slope
            size[i] = SIZE_MEMORY * size[i] + (1 - SIZE_MEMORY) * slope**2
            step = mean[i] / (1 - SLOPE_MEMORY ** (n + 1))
            spread = np.sqrt(size[i] / (1 - SIZE_MEMORY ** (n + 1))) + 1e-12
            array += STEP * DECAY**n * step / spread
            if i < len(self.shared):
                np.clip(array, 0, 1, out=array)
        for weights in arrays[len(self.shared) + len(self.multiplied) :]:  # one of each row stays 1
            np.maximum(weights, np.eye(self.rows, dtype=weights.dtype), out=weights)
            np.minimum(weights, np.where(np.eye(self.rows), 1, np.inf), out=weights)


# --- bounds of inner variables, each by slopes of its own -------------------------------------------------------------


REFINING_STEPS, ROWS = 12, 64
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
        if not cells.size or 2 * len(cells) * passed * REFINING_STEPS > MOST_WORK:
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
        found, free = lines.improve(domain, lines.initial(boxes), REFINING_STEPS, lambda _: False)
        (number,) = node_numbers(self._bounder.graph, self._bounder.bends(lines.target)[:1])
        inside = [boxes.undecided(node) for node in lines.shared]
        for i, (cell, sign) in enumerate(signed):
            end, bound = (low, found[0, i]) if sign > 0 else (high, -found[0, i])
            if sign * (bound - end.flat[cell]) > LEAST_GAIN * (high.flat[cell] - low.flat[cell]):
                end.flat[cell] = bound
                shares = [sparse(a[0, i], where) for a, where in zip(free.shares, inside, strict=True)]
                none = [sparse(np.zeros(1), np.zeros(1, bool))] * (len(self._bounder.sloped) - len(shares))
                self.rows.append(RefinedRow(number, sign * (cell + 1), [*shares, *none]))
