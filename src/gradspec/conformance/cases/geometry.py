"""Problems drawn at random that have wanted features: an axis at a time, then channels and leading axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from gradspec.conformance.cases.axes import AXIS_FEATURES, BIT, AxisTable, DrawnAxis, axes, mask
from gradspec.conformance.cases.features import LARGE, LONG_SUM, MANY_HITS, tags
from gradspec.conformance.cases.styles import CHANNELS, HEAVY_SAMPLES, drawn_axes
from gradspec.conformance.model.geometry import anatomy
from gradspec.conformance.model.geometry import leaves as most_terms
from gradspec.conformance.model.problem import AVERAGES, CONVOLUTIONS, SELECTIONS, SLIDING_POOLS, Problem, Shape

SMOOTH_OUTPUTS, SMOOTH_TAPS = 60, 12
"""A smooth maximum is judged in balls, which takes long: there are few, and of few cells."""
MOST_READS = 60_000
"""Windows times taps of an ordinary problem."""
FEW_LEAVES = 1 << 17
"""Of all results together; twice as many after every three tries."""
MOST_LEAVES = 1 << 23
SAMPLES = 4
"""One sample of four, or one plane, may hold numbers that hide everything else."""
TRIES = 24
ROUNDED_BETAS = (0.1, 0.7, 3.3)
"""Of smooth maxima: numbers that float32 does not have."""
BETAS = (0.5, 1.0, 2.5, 8.0, *ROUNDED_BETAS)


def family(op: str) -> str:
    """Which windows an operator has.

    >>> family("fold"), family("global_max_pool")
    ('sliding', 'whole')
    """
    if op in (*SLIDING_POOLS, "conv", "unfold", "fold"):
        return "sliding"
    return "transposed" if op == "conv_transpose" else "adaptive" if op.startswith("adaptive") else "whole"


@dataclass(frozen=True)
class Goal:
    """What to draw: an operator, its rank, its features, and details that are no features.

    ``sided`` asks for different paddings on both sides, ``bare`` for no leading axes, ``equal`` for axes that are all
    the same, ``tie_rule`` for the attribute ``ties`` of a selection. Long sums of a convolution are those of its value,
    or, if it is ``wide``, those of the gradients of its weights: both at once would take too long. With a ``style``
    axes are drawn for its purpose, not for features.
    """

    op: str
    rank: int
    features: frozenset[str] = frozenset()
    sided: bool = False
    bare: bool = False
    equal: bool = False
    tie_rule: str = "first"
    wide: bool = False
    style: str = ""

    def has(self, *features: str) -> bool:
        return not self.features.isdisjoint(features)

    @property
    def has_long_value(self) -> bool:
        return self.has("long_sum") and not self.wide

    @property
    def scale(self) -> str:
        """Of its axes."""
        if self.has_long_value:
            return "deep" if self.op in AVERAGES else "long"
        return "many" if self.has("many_hits_one_cell") else "small"

    @property
    def table(self) -> AxisTable:
        """The axes to draw from."""
        return axes(family(self.op), self.rank, self.scale, self.has("ceil_mode"))

    @property
    def shared_traits(self) -> int:
        """Traits that every axis must have, for the window to have many cells or its cells many windows."""
        wanted = {"hit"} if self.has("many_hits_one_cell") else set()
        if self.has_long_value:
            wanted.add("hit" if self.op == "conv_transpose" else "deep")
        return mask(wanted)

    @property
    def spread_traits(self) -> list[str]:
        """Traits that some axis must have."""
        wanted = [name for name in AXIS_FEATURES if name in self.features]
        if self.has("count_exclude_pad"):
            wanted.append("padded")
        if self.op == "max_pool" and not (self.rank == 1 and self.has("one_cell_axis")):
            wanted.append("several")
        slides = family(self.op) in ("sliding", "transposed")
        if self.sided or (self.rank == 1 and self.has("asymmetric") and slides):
            wanted.append("sided")
        return wanted

    def assigned(self) -> list[int] | None:
        """Traits for each axis, one axis after the other, as masks for which there are axes; None if there are none."""
        found, shared, spread = self.table, self.shared_traits, self.spread_traits
        for together in range(len(spread), 0, -1) if self.rank > 1 and not self.equal else (len(spread) or 1,):
            for first in range(self.rank if together < len(spread) else 1):
                masks = [shared] * self.rank
                for i, trait in enumerate(spread):
                    masks[(first + max(i - together + 1, 0)) % self.rank] |= BIT[trait]
                if self.equal:
                    masks = masks[:1] * self.rank
                if found.have(masks):
                    return masks
        return None if spread or not found.have([shared]) else [shared] * self.rank

    def is_met(self, problem: Problem, leaves: int) -> bool:
        """Whether a problem has what is wanted, with at most so many leaves in all its results."""
        parts = anatomy(problem)
        if problem.op == "smooth_max_pool" and (prod(parts.output) > SMOOTH_OUTPUTS or parts.taps > SMOOTH_TAPS):
            return False
        if parts.window is not None and prod(parts.output) * max(parts.taps, most_terms(problem, "value")) > leaves:
            return False
        if parts.windows * parts.taps > MOST_READS or not self._leaves_a_choice(problem):
            return False
        found = tags(problem, "vjp" if self.wide else "value")
        return self.features <= found and (not self.style or self.rank == 1 or "asymmetric" in found)

    def _leaves_a_choice(self, problem: Problem) -> bool:
        """Whether a maximum has cells to choose from, and unpooling cells enough for many to go to one place."""
        small = self.rank == 1 and self.has("one_cell_axis")
        if self.style == "nothing_read" or self.has("empty_batch", "zero_channels") or small:
            return True
        if problem.op == "max_unpool":
            enough = prod(anatomy(problem).spatial) > MANY_HITS
            return enough or (self.rank == 2 and self.has("one_cell_axis"))
        return problem.op not in SELECTIONS or anatomy(problem).reads > 1


def drawn_problem(rng: np.random.Generator, goal: Goal) -> Problem | None:
    """A float32 problem with the features of a goal, or None if none was found.

    >>> goal = Goal("max_pool", 2, frozenset({"dilated", "ceil_mode"}))
    >>> goal.features <= tags(drawn_problem(np.random.default_rng(0), goal))
    True
    """
    for attempt in range(TRIES):
        if goal.style:
            small, ceil = goal.op == "smooth_max_pool", goal.has("ceil_mode")
            chosen = drawn_axes(rng, goal.style, family(goal.op), goal.rank, small, ceil)
        else:
            masks = _assigned(rng, goal) if attempt < TRIES // 2 else goal.assigned()
            if masks is None:
                return None
            chosen = _axes(rng, goal, masks)
        problem = _BUILDERS[goal.op](_Builder(rng, goal, chosen))
        if goal.is_met(problem, MOST_LEAVES if goal.style == "heavy" else FEW_LEAVES << attempt // 3):
            return problem
    return None


def _assigned(rng: np.random.Generator, goal: Goal) -> list[int] | None:
    """Traits for each axis, each on some of them at random if there are such axes."""
    for _ in range(4 if goal.rank > 1 else 0):
        masks = [goal.shared_traits] * goal.rank
        for trait in goal.spread_traits:
            sure = goal.rank if goal.equal else int(rng.integers(goal.rank))
            for i in range(goal.rank):
                if goal.equal or i == sure or rng.random() < 0.3:
                    masks[i] |= BIT[trait]
        if goal.table.have(masks):
            return masks
    return goal.assigned()


def _axes(rng: np.random.Generator, goal: Goal, masks: Sequence[int]) -> list[DrawnAxis]:
    if goal.equal:
        return [_small_axis(rng, goal, masks[0])] * goal.rank
    for _ in range(6):
        drawn = [_small_axis(rng, goal, wanted) for wanted in masks]
        # Axes that are alike hide that a kernel mixes them up.
        columns = ({axis.size for axis in drawn}, {axis.outputs for axis in drawn})
        if len(set(drawn)) == goal.rank and (goal.rank == 1 or all(len(column) > 1 for column in columns)):
            break
    return drawn


def _small_axis(rng: np.random.Generator, goal: Goal, wanted: int) -> DrawnAxis:
    """An axis with these traits; of those with many cells or windows, the smallest of a few."""
    is_costly, transposed = goal.op in CONVOLUTIONS and goal.has("large", "long_sum"), goal.op == "conv_transpose"
    few = [goal.table.draw(rng, wanted) for _ in range(8 if is_costly else 1 if goal.scale == "small" else 4)]

    def cost(axis: DrawnAxis) -> int:
        """By the cells that its windows lie on, and their number."""
        on = (axis.size - 1) * axis.stride + axis.dilation * (axis.kernel - 1) + 1 if transposed else axis.size
        return (on + axis.outputs) * axis.kernel

    return min(few, key=cost)


# --- operators -------------------------------------------------------------------------------------------------------


class _Builder:
    """A problem of a goal from its axes: channels, leading axes and attributes are drawn."""

    def __init__(self, rng: np.random.Generator, goal: Goal, axes: Sequence[DrawnAxis]) -> None:
        self.rng, self.goal = rng, goal
        self.sizes, self.kernel, stride, low, high, dilation, self.extra, self.outputs = zip(*axes, strict=True)
        self.sliding = {"stride": stride, "padding": tuple(zip(low, high, strict=True)), "dilation": dilation}

    def problem(self, *shapes: Shape | None, **attributes: Any) -> Problem:
        ties = {"ties": self.goal.tie_rule} if self.goal.op in SELECTIONS else {}
        return Problem(self.goal.op, self.goal.rank, shapes, {**attributes, **ties})

    def outer(self, cells: int) -> Shape:
        """The axes before the spatial ones of a pooling: ``(*lead, channels)``, at least four planes."""
        if self.goal.has("zero_channels"):
            return (int(self.rng.integers(1, 4)), 0)
        if self.goal.has("empty_batch"):
            return (0, int(self.rng.integers(1, 4)))
        if self.goal.bare:
            return ()
        return self.enlarged([(4,), (5,), (2, 3), (3, 2), (4, 1), (1, 5), (2, 1, 2)][self.rng.integers(7)], cells)

    def enlarged(self, shape: Shape, cells: int) -> Shape:
        """Where many cells are wanted, more samples until there are."""
        if not self.goal.has("large"):
            return shape
        return (max(shape[0], -(-LARGE // max(prod(shape[1:]) * cells, 1))), *shape[1:])

    def sliding_pool(self) -> Problem:
        lead = self.outer(max(prod(self.sizes), prod(self.outputs)))
        windows = {"kernel_size": self.kernel, **self.sliding, "ceil_mode": self.goal.has("ceil_mode")}
        return self.problem((*lead, *self.sizes), **windows, **self.pool_options())

    def pool_options(self) -> dict[str, Any]:
        if self.goal.op == "avg_pool":
            own = int(self.rng.choice([2, 3, 4, 4, 5, 7, 8])) if self.goal.has("divisor_override") else None
            return {"count_include_pad": not self.goal.has("count_exclude_pad"), "divisor_override": own}
        if self.goal.op != "smooth_max_pool":
            return {}
        beta = self.rng.choice(ROUNDED_BETAS if self.goal.style else BETAS) * self.rng.choice([1.0, 1.0, -1.0])
        return {"beta": float(beta), "padding_mode": str(self.rng.choice(["zeros", "ignore"]))}

    def adaptive_pool(self) -> Problem:
        pairs = zip(self.sizes, self.outputs, strict=True)
        bins = tuple(None if n == m and self.rng.random() < 0.5 else m for n, m in pairs)
        lead = self.outer(max(prod(self.sizes), prod(self.outputs)))
        return self.problem((*lead, *self.sizes), output_size=bins)

    def global_pool(self) -> Problem:
        shape = (*self.outer(prod(self.sizes)), *self.sizes)
        return self.problem(shape, keepdims=bool(self.rng.random() < 0.7))

    def max_unpool(self) -> Problem:
        """Values of ``sizes`` that go to planes which are longer by up to twice."""
        ends = enumerate(self.sizes)
        longer = tuple(int(n * self.rng.integers(1, 3) + self.rng.integers(0, 2) + (i == 0)) for i, n in ends)
        shape = (*self.outer(prod(longer)), *self.sizes)
        return self.problem(shape, shape, output_size=longer)

    def convolution(self) -> Problem:
        groups, channels, others = self.channels()
        transposed = self.goal.op == "conv_transpose"
        extra = {"output_padding": self.extra} if transposed else {}
        if self.goal.has_long_value:  # so many channels in that each result has LONG_SUM leaves, and few out
            one = self.problem((1, *self.sizes), (1, 1, *self.kernel), None, **self.sliding, **extra)
            most = anatomy(one).hits if transposed else anatomy(one).reads
            channels, others = groups * -(-LONG_SUM // most), groups
        weight = (channels, others // groups) if transposed else (others, channels // groups)
        bias = (others,) if self.goal.style in CHANNELS or self.rng.random() < 0.75 else None
        attributes = {**self.sliding, "groups": groups, **extra}
        problem = self.problem((channels, *self.sizes), (*weight, *self.kernel), bias, **attributes)
        lead = self.samples(max(channels * prod(self.sizes), prod(anatomy(problem).output)))
        return replace(problem, shapes=((*lead, channels, *self.sizes), *problem.shapes[1:]))

    def samples(self, cells: int) -> Shape:
        if self.goal.has("empty_batch"):
            return (0,) if self.rng.random() < 0.7 else (2, 0)
        if self.goal.bare:
            return ()
        if self.goal.style == "heavy":
            return (HEAVY_SAMPLES,)
        shape = [(SAMPLES,), (SAMPLES,), (5,), (2, 2)][self.rng.integers(4)]
        is_long = self.goal.has("long_sum") and self.goal.wide
        return (-(-LONG_SUM // prod(self.outputs)),) if is_long else self.enlarged(shape, cells)

    def channels(self) -> tuple[int, int, int]:
        """Groups, channels in and channels out."""
        rng = self.rng
        if self.goal.has("zero_channels"):
            return (1, 0, int(rng.integers(1, 4))) if rng.random() < 0.6 else (1, int(rng.integers(1, 4)), 0)
        if self.goal.has("depthwise"):
            channels = int(rng.integers(2, 5))
            return channels, channels, channels * int(rng.integers(1, 4))
        if self.goal.has("grouped"):
            groups = int(rng.integers(2, 4))
            each, others = [(2, 3), (3, 2), (2, 1), (3, 4)][rng.integers(4)]
            return groups, groups * each, groups * others
        some = CHANNELS.get(self.goal.style, ((1, 2), (2, 3), (3, 2), (3, 4), (2, 5), (4, 1), (4, 4)))
        return 1, *some[rng.integers(len(some))]

    def columns(self) -> Problem:
        """Of unfolding and folding; columns always have a channel axis."""
        taps, windows = prod(self.kernel), prod(self.outputs)
        *lead, channels = self.outer(max(taps * windows, prod(self.sizes))) or (int(self.rng.integers(1, 4)),)
        if self.goal.op == "unfold":
            return self.problem((*lead, channels, *self.sizes), kernel_size=self.kernel, **self.sliding)
        windowed = {"output_size": self.sizes, "kernel_size": self.kernel, **self.sliding}
        return self.problem((*lead, channels * taps, windows), **windowed)


_BUILDERS: dict[str, Callable[[_Builder], Problem]] = {
    **dict.fromkeys(SLIDING_POOLS, _Builder.sliding_pool),
    **dict.fromkeys(("adaptive_max_pool", "adaptive_avg_pool"), _Builder.adaptive_pool),
    **dict.fromkeys(("global_max_pool", "global_avg_pool"), _Builder.global_pool),
    **dict.fromkeys(CONVOLUTIONS, _Builder.convolution),
    "max_unpool": _Builder.max_unpool,
    **dict.fromkeys(("unfold", "fold"), _Builder.columns),
}
