"""Problems drawn at random that have wanted features: an axis at a time, then channels and leading axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from math import prod
from typing import Any, TypeAlias

import numpy as np

from gradspec.conformance.cases.axes import (
    AXIS_FEATURES,
    BIT,
    BLOCKS,
    CHANNELS,
    HEAVY_SAMPLES,
    KERNELS,
    AxisTable,
    DrawnAxis,
    axes,
    draw_axes,
    draw_size,
    mask,
    stretch_axis,
)
from gradspec.conformance.cases.features import BLOCK, LARGE, LONG_SUM, MANY_HITS, PREDICATES, Subject
from gradspec.conformance.model.domain import EVERYTHING, FREE, SIZES, AxisDomain, KernelDomain, frames
from gradspec.conformance.model.geometry import Parts, geometry_of
from gradspec.conformance.model.geometry import leaves as most_terms
from gradspec.conformance.model.problem import (
    AVERAGES,
    COLUMNS,
    CONVOLUTIONS,
    INPUTS,
    SELECTIONS,
    SLIDING_POOLS,
    Problem,
    Shape,
)

SMOOTH_OUTPUTS, SMOOTH_BLOCK, SMOOTH_TAPS = 60, 400, 12
"""A smooth maximum is judged in balls, which takes long: there are few, and of few cells."""
MOST_READS = 60_000
"""Windows times taps of an ordinary problem."""
FEW_LEAVES = 1 << 17
"""Of all results together; twice as many after every three tries."""
MOST_LEAVES = 1 << 23
SAMPLES = 4
"""One sample of four, or one plane, may hold numbers that hide everything else."""
USUAL_BATCHES, USUAL_CHANNELS = (4, 5, 1, 2, 3), (2, 3, 4, 1, 5)
"""Sizes of axes in a domain that does not exclude them."""
TRIES = 24
Counts: TypeAlias = tuple[int, int, int]
"""Groups of a convolution, and the channels in and out of each."""
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
    axes are drawn for its purpose, not for features. ``size`` is that of its long axis (`axes.BLOCKS`), if it has one;
    0 is any. All is drawn from a ``domain``, the axes from one of its ``frame``s.
    """

    op: str
    rank: int
    features: frozenset[str] = frozenset()
    sided: bool = False
    bare: bool = False
    equal: bool = False
    tie_rule: str | None = None
    wide: bool = False
    style: str = ""
    size: int = 0
    domain: KernelDomain = EVERYTHING
    frame: tuple[AxisDomain, ...] = ()

    @property
    def blocks(self) -> list[str]:
        """The axes that are long, the longest first."""
        return [name for name in BLOCKS if name in self.features]

    def has(self, *features: str) -> bool:
        return not self.features.isdisjoint(features)

    @property
    def has_long_value(self) -> bool:
        return self.has("long_sum") and not self.wide

    @property
    def is_long_by_channels(self) -> bool:
        """Whether a long sum must be one of many channels, as windows are given."""
        return self.has_long_value and self.op in CONVOLUTIONS and any(axis.kernel_size for axis in self.frame)

    @property
    def scale(self) -> str:
        """Of its axes."""
        if self.has_long_value and not self.is_long_by_channels:
            return "deep" if self.op in AVERAGES else "long"
        return "tiny" if self.blocks else "many" if self.has("many_hits_one_cell") else "small"

    @property
    def ceil(self) -> bool:
        return bool(self.domain.prefers("ceil_mode", self.has("ceil_mode")))

    @property
    def tables(self) -> list[AxisTable]:
        """The axes to draw from, for each of the window's."""
        frame = self.frame or (FREE,) * self.rank
        return [axes(family(self.op), self.rank, self.scale, self.ceil, axis) for axis in frame]

    def have(self, masks: Sequence[int]) -> bool:
        """Whether there are axes with these traits."""
        return all(len(table.having(wanted)) for table, wanted in zip(self.tables, masks, strict=True))

    @property
    def shared_traits(self) -> int:
        """Traits that every axis must have: for the kernel, for many cells of a window or many windows of a cell."""
        wanted = {*KERNELS} & self.features | ({"hit"} if self.has("many_hits_one_cell") else set())
        if self.has_long_value and not self.is_long_by_channels:
            wanted.add("hit" if self.op == "conv_transpose" else "deep")
        return mask(wanted)

    @property
    def spread_traits(self) -> list[str]:
        """Traits that some axis must have."""
        wanted = [name for name in AXIS_FEATURES if name in self.features]
        if self.has("count_exclude_pad"):
            wanted.append("padded")
        if self.op == "max_pool" and not (self.rank == 1 and self.has("one_cell_axis")) and not self.frame:
            wanted.append("several")
        slides = family(self.op) in ("sliding", "transposed")
        if self.sided or (self.rank == 1 and self.has("asymmetric") and slides):
            wanted.append("sided")
        return wanted

    def assign_traits(self) -> list[int] | None:
        """Traits for each axis, one axis after the other, as masks for which there are axes; None if there are none."""
        shared, spread = self.shared_traits, self.spread_traits
        for together in range(len(spread), 0, -1) if self.rank > 1 and not self.equal else (len(spread) or 1,):
            for first in range(self.rank if together < len(spread) else 1):
                masks = [shared] * self.rank
                for i, trait in enumerate(spread):
                    masks[(first + max(i - together + 1, 0)) % self.rank] |= BIT[trait]
                if self.equal:
                    masks = masks[:1] * self.rank
                if self.have(masks):
                    return masks
        return None if spread or not self.have([shared] * self.rank) else [shared] * self.rank

    def is_met(self, problem: Problem, leaves: int) -> bool:
        """Whether a problem has what is wanted, with at most so many leaves in all its results."""
        parts = geometry_of(problem)
        if self.domain.excludes(problem):
            return False
        smooth = SMOOTH_BLOCK if self.blocks else SMOOTH_OUTPUTS
        if problem.op == "smooth_max_pool" and (prod(parts.output) > smooth or parts.taps > SMOOTH_TAPS):
            return False
        if prod(parts.output) * max(parts.taps, most_terms(problem, "value")) > leaves:
            return False
        if self.blocks and prod(problem.x_shape) > 2 * leaves:
            return False
        reads = 0 if parts.window is None else parts.windows * parts.taps
        if (reads > MOST_READS and not self.frame) or not self._leaves_a_choice(problem):
            return False
        wanted = self.features - ({*self.blocks} if self.size else set())  # a size may be less than a block
        wanted |= {"asymmetric"} if self.style and self.rank > 1 else set()
        subject = Subject(problem, "vjp" if self.wide else "value", "contiguous", ())
        return all(PREDICATES[name](subject) for name in wanted)

    def _leaves_a_choice(self, problem: Problem) -> bool:
        """Whether a maximum has cells to choose from, and unpooling cells enough for many to go to one place."""
        small = self.rank == 1 and self.has("one_cell_axis")
        if self.style == "nothing_read" or self.has("empty_batch", "zero_channels") or small or self.frame:
            return True
        if problem.op == "max_unpool":
            enough = prod(geometry_of(problem).spatial) > MANY_HITS
            return enough or bool(self.blocks) or (self.rank == 2 and self.has("one_cell_axis"))
        return problem.op not in SELECTIONS or geometry_of(problem).reads > 1


def draw_problem(rng: np.random.Generator, goal: Goal) -> Problem | None:
    """A float32 problem with the features of a goal, or None if none was found.

    >>> from gradspec.conformance.cases.features import tags
    >>> goal = Goal("max_pool", 2, frozenset({"dilated", "ceil_mode"}))
    >>> goal.features <= tags(draw_problem(np.random.default_rng(0), goal))
    True
    """
    framed = in_frames(goal)
    for attempt in range(TRIES if framed else 0):
        one = framed[rng.integers(len(framed))] if goal.domain else goal
        if one.style and not one.frame:
            small = goal.op == "smooth_max_pool"
            chosen = draw_axes(rng, goal.style, family(goal.op), goal.rank, small, goal.ceil)
        else:
            masks = _draw_traits(rng, one) if attempt < TRIES // 2 else one.assign_traits()
            if masks is None:
                return None
            chosen = _axes(rng, one, masks)
        problem = _BUILDERS[goal.op](_Builder(rng, one, chosen))
        few = (max(FEW_LEAVES >> 2, goal.size) if goal.blocks else FEW_LEAVES) << attempt // 3
        if problem and one.is_met(problem, MOST_LEAVES if goal.style == "heavy" else few):
            return problem
    return None


@lru_cache(maxsize=1 << 14)
def in_frames(goal: Goal) -> tuple[Goal, ...]:
    """The goal in every frame of its domain that has axes for it. Where a frame says nothing, axes may have a style."""
    if not goal.domain:
        return (goal,) if goal.style or goal.assign_traits() is not None else ()
    found = []
    for frame in frames(goal.domain, goal.op, goal.rank):
        one = goal if set(frame) == {FREE} else replace(goal, frame=frame, equal=goal.equal and len(set(frame)) == 1)
        if (one.style and not one.frame) or one.assign_traits() is not None:
            found.append(one)
    return tuple(found)


def _draw_traits(rng: np.random.Generator, goal: Goal) -> list[int] | None:
    """Traits for each axis, each on some of them at random if there are such axes."""
    for _ in range(4 if goal.rank > 1 else 0):
        masks = [goal.shared_traits] * goal.rank
        for trait in goal.spread_traits:
            sure = goal.rank if goal.equal else int(rng.integers(goal.rank))
            for i in range(goal.rank):
                if goal.equal or i == sure or rng.random() < 0.3:
                    masks[i] |= BIT[trait]
        if goal.have(masks):
            return masks
    return goal.assign_traits()


def _axes(rng: np.random.Generator, goal: Goal, masks: Sequence[int]) -> list[DrawnAxis]:
    if goal.equal:
        return [_small_axis(rng, goal, goal.tables[0], masks[0])] * goal.rank
    for _ in range(6):
        drawn = [_small_axis(rng, goal, *wanted) for wanted in zip(goal.tables, masks, strict=True)]
        # Axes that are alike hide that a kernel mixes them up.
        columns = ({axis.size for axis in drawn}, {axis.outputs for axis in drawn})
        if len(set(drawn)) == goal.rank and (goal.rank == 1 or all(len(column) > 1 for column in columns)):
            break
    return drawn


def _small_axis(rng: np.random.Generator, goal: Goal, table: AxisTable, wanted: int) -> DrawnAxis:
    """An axis with these traits; of those with many cells or windows, the smallest of a few."""
    is_costly, transposed = goal.op in CONVOLUTIONS and goal.has("large", "long_sum"), goal.op == "conv_transpose"
    some = None if goal.style else wanted  # a style has no features: in a frame, any axis will do
    few = [table.draw(rng, some) for _ in range(8 if is_costly else 1 if goal.scale == "small" else 4)]

    def cost(axis: DrawnAxis) -> int:
        """By the cells that its windows lie on, and their number."""
        on = (axis.size - 1) * axis.stride + axis.dilation * (axis.kernel - 1) + 1 if transposed else axis.size
        return (on + axis.outputs) * axis.kernel

    return min(few, key=cost)


# --- operators -------------------------------------------------------------------------------------------------------


class _Builder:
    """A problem of a goal from its axes: channels, leading axes and attributes are drawn, from its domain."""

    def __init__(self, rng: np.random.Generator, goal: Goal, axes: Sequence[DrawnAxis]) -> None:
        self.rng, self.goal = rng, goal
        longest = (goal.size or draw_size(rng, goal.op, goal.blocks, BLOCK)) if goal.blocks else 0
        self.long = {name: longest if i == 0 else longest // 2 + 1 for i, name in enumerate(goal.blocks)}
        self.axes = self.lengthen(axes)
        self.sizes, self.outputs = (tuple(axis.size for axis in self.axes), tuple(axis.outputs for axis in self.axes))

    def lengthen(self, axes: Sequence[DrawnAxis]) -> list[DrawnAxis]:
        """The axes, with those stretched that are to be long."""
        found, rank = list(axes), len(axes)
        places = {"block_width": rank - 1, "block_height": int(self.rng.integers(max(rank - 1, 1)))}
        for name, place in places.items():
            if name in self.long:
                size = self.one_of((*SIZES, "")[rank - 1 - place], (self.long[name],), self.long[name]) or 1
                found[place] = stretch_axis(self.rng, found[place], size, family(self.goal.op), self.goal.ceil)
        return found

    def problem(self, lead: Shape, counts: Counts = (1, 1, 1), bias: bool = False, **options: Any) -> Problem:
        ties = {"ties": self.prefers("ties", self.goal.tie_rule or "first")} if self.goal.op in SELECTIONS else {}
        return assemble(self.goal.op, self.axes, lead, counts, bias, **options, **ties)

    def prefers(self, name: str, wanted: Any) -> Any:
        return self.goal.domain.prefers(name, wanted)

    def one_of(self, name: str, usual: Sequence[int | None], least: int = 0, divisor: int = 1) -> int | None:
        """A size that is usual, or else allowed, from ``least`` on and a multiple; any where there is none.

        None, no such axis, is given where it is usual or nothing else is allowed.
        """
        allowed = self.goal.domain.get(name)
        fit = [n for n in usual if n is None or (n >= least and n % divisor == 0)]
        if allowed is None:
            fit = fit or [-(-least // divisor) * divisor]
        else:
            smallest = (n for n in allowed if n is not None and n >= least and n % divisor == 0)
            fit = [n for n in fit if n in allowed] or [*islice(smallest, 12)] or [allowed[-1]]
        few = fit[:3] if self.rng.random() < 0.7 else fit
        return few[self.rng.integers(len(few))]

    def size_of(self, name: str, usual: Sequence[int | None], least: int = 0, divisor: int = 1) -> int | None:
        """The same for an axis that may have to be long."""
        long = self.long.get(f"block_{name}")
        return self.one_of(name, (long,), long, divisor) if long else self.one_of(name, usual, least, divisor)

    def outer_within(self, cells: int) -> Shape:
        """The same axes as the domain has them: with ``batch`` there is one before the channels."""
        none = (None,) if self.goal.bare else ()
        least = -(-LARGE // max(cells, 1)) if self.goal.has("large") else 1
        batches, numbers = (self.beside, (1,)) if self.long else (USUAL_BATCHES, USUAL_CHANNELS)
        batch = 0 if self.goal.has("empty_batch") else self.size_of("batch", (*none, *batches), 1)
        lead: Shape = () if batch is None else (batch,)
        if lead and "batch" not in self.goal.domain and not self.long and self.rng.random() < 0.3:
            lead = (*lead, 2)
        each = -(-least // max(prod(lead), 1))
        channels = 0 if self.goal.has("zero_channels") else self.size_of("channels", (*none, *numbers), each)
        return lead if channels is None else (*lead, channels)

    def outer(self, cells: int) -> Shape:
        """The axes before the spatial ones of a pooling: ``(*lead, channels)``, at least four planes."""
        if self.long or "batch" in self.goal.domain or "channels" in self.goal.domain:
            return self.outer_within(cells)
        if self.goal.has("zero_channels"):
            return (int(self.rng.integers(1, 4)), 0)
        if self.goal.has("empty_batch"):
            return (0, int(self.rng.integers(1, 4)))
        if self.goal.bare:
            return ()
        return self.enlarge([(4,), (5,), (2, 3), (3, 2), (4, 1), (1, 5), (2, 1, 2)][self.rng.integers(7)], cells)

    @property
    def beside(self) -> tuple[int, ...]:
        """Samples beside a long axis: one, or four where one may hold numbers that hide others."""
        enough = self.goal.has("block_channels") and self.goal.op != "conv_transpose"
        return (1,) if self.goal.size or enough else (SAMPLES,)

    def enlarge(self, shape: Shape, cells: int) -> Shape:
        """Where many cells are wanted, more samples until there are."""
        if not self.goal.has("large"):
            return shape
        return (max(shape[0], -(-LARGE // max(prod(shape[1:]) * cells, 1))), *shape[1:])

    def sliding_pool(self) -> Problem:
        lead = self.outer(max(prod(self.sizes), prod(self.outputs)))
        return self.problem(lead, ceil_mode=self.goal.ceil, **self.pool_options())

    def pool_options(self) -> dict[str, Any]:
        if self.goal.op == "avg_pool":
            own = int(self.rng.choice([2, 3, 4, 4, 5, 7, 8])) if self.goal.has("divisor_override") else None
            counted = self.prefers("count_include_pad", not self.goal.has("count_exclude_pad"))
            return {"count_include_pad": counted, "divisor_override": self.prefers("divisor_override", own)}
        if self.goal.op != "smooth_max_pool":
            return {}
        beta = self.rng.choice(ROUNDED_BETAS if self.goal.style else BETAS) * self.rng.choice([1.0, 1.0, -1.0])
        mode = self.prefers("padding_mode", str(self.rng.choice(["zeros", "ignore"])))
        return {"beta": float(beta), "padding_mode": mode}

    def adaptive_pool(self) -> Problem:
        pairs = zip(self.sizes, self.outputs, strict=True)
        bins = tuple(None if n == m and self.rng.random() < 0.5 else m for n, m in pairs)
        return self.problem(self.outer(max(prod(self.sizes), prod(self.outputs))), output_size=bins)

    def global_pool(self) -> Problem:
        lead = self.outer(prod(self.sizes))
        return self.problem(lead, keepdims=self.prefers("keepdims", bool(self.rng.random() < 0.7)))

    def max_unpool(self) -> Problem:
        """Values of ``sizes`` that go to planes which are longer by up to twice."""
        ends = enumerate(self.sizes)
        longer = tuple(int(n * self.rng.integers(1, 3) + self.rng.integers(0, 2) + (i == 0)) for i, n in ends)
        return self.problem(self.outer(prod(longer)), output_size=longer)

    def convolution(self) -> Problem | None:
        found = self.channels()
        if found is None:
            return None
        groups, channels, others = found
        if self.goal.has_long_value:  # so many channels in that each result has LONG_SUM leaves, and few out
            one = geometry_of(self.problem(()))
            terms = groups * -(-LONG_SUM // (one.hits if self.goal.op == "conv_transpose" else one.reads))
            channels = self.one_of("channels", (terms,), terms, groups) or terms
            others = self.one_of("out_channels", (groups,), 1, groups) or groups
            if channels % groups or others % groups:
                return None
        has_bias = self.goal.style in CHANNELS or bool(self.rng.random() < 0.75)
        counts = groups, channels // groups, others // groups
        cells = max(channels * prod(self.sizes), prod(geometry_of(self.problem((), counts, has_bias)).output))
        return self.problem(self.samples(cells), counts, has_bias)

    def samples(self, cells: int) -> Shape:
        if self.long or "batch" in self.goal.domain:
            least = -(-LARGE // max(cells, 1)) if self.goal.has("large") else 1
            least = -(-LONG_SUM // prod(self.outputs)) if self.goal.has("long_sum") and self.goal.wide else least
            some = self.beside if self.long else USUAL_BATCHES
            usual = (0,) if self.goal.has("empty_batch") else (*((None,) if self.goal.bare else ()), *some)
            batch = self.size_of("batch", usual, 0 if usual == (0,) else least)
            return () if batch is None else (batch,)
        if self.goal.has("empty_batch"):
            return (0,) if self.rng.random() < 0.7 else (2, 0)
        if self.goal.bare:
            return ()
        if self.goal.style == "heavy":
            return (HEAVY_SAMPLES,)
        shape = [(SAMPLES,), (SAMPLES,), (5,), (2, 2)][self.rng.integers(4)]
        is_long = self.goal.has("long_sum") and self.goal.wide
        return (-(-LONG_SUM // prod(self.outputs)),) if is_long else self.enlarge(shape, cells)

    def channels_within(self) -> tuple[int, int, int] | None:
        """Groups, channels in and channels out, from a domain; None where this draw has none that go together."""
        goal, usual, many = self.goal, (1, 2) if self.long else USUAL_CHANNELS, self.long.get("block_groups", 0)
        if goal.has("depthwise") or (many and not goal.has("grouped") and self.rng.random() < 0.7):
            groups = channels = self.one_of("channels", (many,) if many else (2, 3, 4), many or 2) or 1
            others = self.one_of("out_channels", [n * groups for n in (1, 2, 3)], 1, groups)
        else:
            several = goal.has("grouped")
            groups = self.size_of("groups", (2, 3, 4) if several else (1,), 2 if several else 0) or 1
            least = 2 * groups if goal.has("grouped") else groups
            if goal.has("large") and "batch" in goal.domain:
                least = max(least, -(-LARGE // max(prod(self.sizes), 1)))
            channels = self.size_of("channels", [n * groups for n in usual], least, groups) or 0
            others = self.size_of("out_channels", [n * groups for n in usual], groups, groups)
        if goal.has("zero_channels"):
            is_first = self.rng.random() < 0.6 and goal.domain.allows("channels", 0)
            channels, others = (0, others) if is_first else (channels, 0)
        return None if others is None or channels % groups or others % groups else (groups, channels, others)

    def channels(self) -> tuple[int, int, int] | None:
        """Groups, channels in and channels out."""
        if self.long or any(name in self.goal.domain for name in ("groups", "channels", "out_channels", "batch")):
            return self.channels_within()
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
        cells = max(prod(axis.kernel * axis.outputs for axis in self.axes), prod(self.sizes))
        return self.problem(self.outer(cells) or (int(self.rng.integers(1, 4)),))


def assemble(
    op: str, axes: Sequence[DrawnAxis], lead: Shape, counts: Counts = (1, 1, 1), bias: bool = False, **options: Any
) -> Problem:
    """The float32 problem of these axes, with options beside those of its windows.

    ``lead`` are all axes before the spatial ones; of a convolution those before the channels.

    >>> assemble("unfold", [DrawnAxis(5, 2, outputs=4)], (1, 3)).shapes
    ((1, 3, 5),)
    """
    sizes, kernel, stride, low, high, dilation, extra, outputs = zip(*axes, strict=True)
    sliding = {"stride": stride, "padding": tuple(zip(low, high, strict=True)), "dilation": dilation}
    windows = {"kernel_size": kernel, **sliding}
    if op in CONVOLUTIONS:
        given = {**sliding, "groups": counts[0], **({"output_padding": extra} if op == "conv_transpose" else {})}
        return Parts(op, "f32", lead, *counts, sizes, kernel, bias, given).problem()
    if op in COLUMNS:
        first = {"output_size": sizes} if op == "fold" else {}
        return Parts(op, "f32", lead[:-1], 1, lead[-1], 1, sizes, (), False, {**first, **windows}).problem()
    own = windows if op in SLIDING_POOLS else {"output_size": outputs} if op.startswith("adaptive") else {}
    return Problem(op, len(axes), ((*lead, *sizes),) * len(INPUTS[op]), {**own, **options})


_BUILDERS: dict[str, Callable[[_Builder], Problem | None]] = {
    **dict.fromkeys(SLIDING_POOLS, _Builder.sliding_pool),
    **dict.fromkeys(("adaptive_max_pool", "adaptive_avg_pool"), _Builder.adaptive_pool),
    **dict.fromkeys(("global_max_pool", "global_avg_pool"), _Builder.global_pool),
    **dict.fromkeys(CONVOLUTIONS, _Builder.convolution),
    "max_unpool": _Builder.max_unpool,
    **dict.fromkeys(("unfold", "fold"), _Builder.columns),
}
