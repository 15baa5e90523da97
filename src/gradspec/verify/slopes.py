"""Lines with free slopes and multipliers, improved by the gradient of the bound that they give.

Every choice of slopes is sound, and so is every multiplier: the graph itself takes only the part of it whose sign is
known to be right. So the search for better ones may be as careless as it likes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradspec.graph.ir import Array, Var
from gradspec.runtime.compiled import compile
from gradspec.transforms.lines import lines
from gradspec.verify.bounding import Bounder, IntermediateBounds

STEP, DECAY, SLOPE_MEMORY, SIZE_MEMORY = 0.25, 0.97, 0.9, 0.999
"""Adam's: the first step, by how much steps shrink, and how long gradients and their sizes are remembered."""


@dataclass
class Free:
    """Slopes and multipliers for ``(domains, rows)``, one array for each node and variable."""

    shares: list[Array]
    multipliers: list[Array]

    def arrays(self) -> list[Array]:
        return [*self.shares, *self.multipliers]

    def take(self, domains: Any) -> Free:
        return Free([a[domains] for a in self.shares], [a[domains] for a in self.multipliers])


class FreeLines:
    """Lower bounds of rows of one target over many domains, each with its box, what is known, and its free numbers."""

    def __init__(self, bounder: Bounder, target: Var, rows: Array) -> None:
        self.bounder, self.target, self.rows = bounder, target, rows
        self.shared = [node for node in bounder.relaxed if node.op.kinks is not None]
        self.multiplied = [v for v in bounder.pre_activations if any(v in node.inputs for node in self.shared)]
        self._runs = bounder.runs

    def initial(self, boxes: IntermediateBounds) -> Free:
        """The usual slopes, from boxes of one domain, and multipliers of 0."""
        shape, dtype = (1, len(self.rows)), self.bounder.arithmetic.dtype.numpy
        shares = []
        for node in self.shared:
            low, high = boxes.ends.get(node.inputs[0], (np.zeros(1), np.zeros(1)))
            shares.append(np.broadcast_to(high > -low, (*shape, *node.outputs[0].shape)).astype(dtype))
        return Free(shares, [np.zeros((*shape, *v.shape), dtype) for v in self.multiplied])

    def _run(self, domains: int, gradient: str = "") -> Callable[..., Any]:
        """The bounds and, if asked, their gradient in what is ``"known"`` (of all rows together) or ``"free"``."""
        key = (self.target, len(self.rows), domains, gradient)
        if key not in self._runs:
            b, inner = self.bounder, self.bounder.pre_activations
            boxes, free = sum(1 + is_bounded for is_bounded in b.bounded), len(self.shared) + len(self.multiplied)
            fixed = boxes + 2 * len(inner)
            wrt = {"": (), "known": range(boxes, fixed), "free": range(fixed + 1, fixed + 1 + free)}[gradient]
            whole = lines(b.graph, b.arithmetic, b.bounded, self.target, inner, self.shared, self.multiplied)
            graph = whole.simplify().batch(len(self.rows), [*[None] * fixed, *[0] * (1 + free)])
            graph = graph.vjp(tuple(wrt)) if gradient else graph
            graph = graph.batch(domains, [*[0] * fixed, None, *[0] * free, *[0] * bool(gradient)])
            self._runs[key] = compile(graph.simplify())
        return self._runs[key]  # type: ignore[no-any-return]

    def lower(self, inputs: Sequence[Array], known: Sequence[Array], free: Free) -> Array:
        """``(domains, rows)``; ``inputs`` and ``known`` have a leading axis of domains."""
        return self._run(len(inputs[0]))(*inputs, *known, self.rows, *free.arrays())  # type: ignore[no-any-return]

    def gradient(self, inputs: Sequence[Array], known: Sequence[Array], free: Free, weights: Array) -> list[Array]:
        """The gradient of ``⟨weights, bounds⟩`` in each end of ``known``."""
        return self._run(len(inputs[0]), "known")(*inputs, *known, self.rows, *free.arrays(), weights)[1:]  # type: ignore[no-any-return]

    def improve(
        self, inputs: Sequence[Array], known: Sequence[Array], free: Free, steps: int, done: Callable[[Array], bool]
    ) -> tuple[Array, Free]:
        """The best bounds found in some steps of ascent, and the free numbers they came from."""
        if not free.arrays():  # no kinks, nothing to improve
            bound = self.lower(inputs, known, free)
            return np.where(np.isnan(bound), -np.inf, bound), free
        run = self._run(len(inputs[0]), "free")
        ones = np.ones((len(inputs[0]), len(self.rows)), self.bounder.arithmetic.dtype.numpy)
        arrays = [a.copy() for a in free.arrays()]
        best, kept = None, [a.copy() for a in arrays]
        mean, size = [np.zeros_like(a) for a in arrays], [np.zeros_like(a) for a in arrays]
        for count in range(steps + 1):
            bound, *gradients = run(*inputs, *known, self.rows, *arrays, ones)
            bound = np.where(np.isnan(bound), -np.inf, bound)
            better = np.ones(bound.shape, bool) if best is None else bound > best
            best = bound if best is None else np.fmax(best, bound)
            for old, new in zip(kept, arrays, strict=True):
                old[better] = new[better]
            if count == steps or done(best):
                break
            self._ascend(arrays, gradients, mean, size, count)
        return best, Free(kept[: len(self.shared)], kept[len(self.shared) :])  # type: ignore[return-value]

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
