"""Problems drawn at random that have wanted features: an axis at a time, then channels and leading axes."""

from __future__ import annotations

from collections.abc import Sequence
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


def family(op: str) -> str:
    """Which windows an operator has.

    >>> family("fold"), family("global_max_pool")
    ('sliding', 'whole')
    """
    if op in (*SLIDING_POOLS, "conv", "unfold", "fold"):
        return "sliding"
    return "transposed" if op == "conv_transpose" else "adaptive" if op.startswith("adaptive") else "whole"


def kind(goal: Goal) -> str:
    """The scale of its axes."""
    if "long_sum" in goal.features and not goal.wide:
        return "deep" if goal.op in AVERAGES else "long"
    return "many" if "many_hits_one_cell" in goal.features else "small"


def drawn_problem(rng: np.random.Generator, goal: Goal) -> Problem | None:
    """A float32 problem with the features of a goal, or None if none was found.

    >>> goal = Goal("max_pool", 2, frozenset({"dilated", "ceil_mode"}))
    >>> goal.features <= tags(drawn_problem(np.random.default_rng(0), goal))
    True
    """
    for attempt in range(TRIES):
        if goal.style:
            small, ceil = goal.op == "smooth_max_pool", "ceil_mode" in goal.features
            chosen = drawn_axes(rng, goal.style, family(goal.op), goal.rank, small, ceil)
        else:
            masks = assignment(rng, goal) if attempt < TRIES // 2 else simple_assignment(goal)
            if masks is None:
                return None
            chosen = _axes(rng, goal, masks)
        problem = _BUILDERS[goal.op](rng, goal, chosen)
        if _is_fit(problem, goal, MOST_LEAVES if goal.style == "heavy" else FEW_LEAVES << attempt // 3):
            return problem
    return None


def _is_fit(problem: Problem, goal: Goal, leaves: int) -> bool:
    parts = anatomy(problem)
    if problem.op == "smooth_max_pool" and (prod(parts.output) > SMOOTH_OUTPUTS or parts.taps > SMOOTH_TAPS):
        return False
    if parts.window is not None and prod(parts.output) * max(parts.taps, most_terms(problem, "value")) > leaves:
        return False
    if parts.windows * parts.taps > MOST_READS or not _has_choice(problem, goal):
        return False
    found = tags(problem, "vjp" if goal.wide else "value")
    return goal.features <= found and (not goal.style or goal.rank == 1 or "asymmetric" in found)


def _has_choice(problem: Problem, goal: Goal) -> bool:
    """Whether a maximum has cells to choose from, and unpooling cells enough for many to go to one place."""
    small = goal.rank == 1 and "one_cell_axis" in goal.features
    if goal.style == "nothing_read" or goal.features & {"empty_batch", "zero_channels"} or small:
        return True
    if problem.op == "max_unpool":
        enough = prod(anatomy(problem).spatial) > MANY_HITS
        return enough or (goal.rank == 2 and "one_cell_axis" in goal.features)
    return problem.op not in SELECTIONS or anatomy(problem).reads > 1


# --- axes ------------------------------------------------------------------------------------------------------------


def pool(goal: Goal) -> AxisTable:
    """The axes to draw from."""
    return axes(family(goal.op), goal.rank, kind(goal), "ceil_mode" in goal.features)


def shared_traits(goal: Goal) -> set[str]:
    """Traits that every axis must have, for the window to have many cells or its cells many windows."""
    wanted: set[str] = set()
    if "many_hits_one_cell" in goal.features:
        wanted.add("hit")
    if "long_sum" in goal.features and not goal.wide:
        wanted.add("hit" if goal.op == "conv_transpose" else "deep")
    return wanted


def spread_traits(goal: Goal) -> list[str]:
    """Traits that some axis must have."""
    wanted = [name for name in AXIS_FEATURES if name in goal.features]
    if "count_exclude_pad" in goal.features:
        wanted.append("padded")
    if goal.op == "max_pool" and not (goal.rank == 1 and "one_cell_axis" in goal.features):
        wanted.append("several")
    slides = family(goal.op) in ("sliding", "transposed")
    if goal.sided or (goal.rank == 1 and "asymmetric" in goal.features and slides):
        wanted.append("sided")
    return wanted


def assignment(rng: np.random.Generator, goal: Goal) -> list[int] | None:
    """Traits for each axis, as masks for which there are axes."""
    found, shared, spread = pool(goal), shared_traits(goal), spread_traits(goal)
    for _ in range(4 if goal.rank > 1 else 0):
        masks = [mask(shared)] * goal.rank
        for trait in spread:
            for i in _some_axes(rng, goal):
                masks[i] |= BIT[trait]
        if found.have(masks):
            return masks
    return simple_assignment(goal)


def simple_assignment(goal: Goal) -> list[int] | None:
    """Traits for each axis, one axis after the other, or None if there are no such axes."""
    found, shared, spread = pool(goal), mask(shared_traits(goal)), spread_traits(goal)
    for together in range(len(spread), 0, -1) if goal.rank > 1 and not goal.equal else (len(spread) or 1,):
        for first in range(goal.rank if together < len(spread) else 1):
            masks = [shared] * goal.rank
            for i, trait in enumerate(spread):
                masks[(first + max(i - together + 1, 0)) % goal.rank] |= BIT[trait]
            if goal.equal:
                masks = masks[:1] * goal.rank
            if found.have(masks):
                return masks
    return None if spread or not found.have([shared]) else [shared] * goal.rank


def _some_axes(rng: np.random.Generator, goal: Goal) -> list[int]:
    if goal.equal:
        return list(range(goal.rank))
    sure = int(rng.integers(goal.rank))
    return [i for i in range(goal.rank) if i == sure or rng.random() < 0.3]


def _axes(rng: np.random.Generator, goal: Goal, masks: Sequence[int]) -> list[DrawnAxis]:
    found = pool(goal)
    if goal.equal:
        return [_small_axis(rng, found, masks[0], goal)] * goal.rank
    for _ in range(6):
        drawn = [_small_axis(rng, found, wanted, goal) for wanted in masks]
        # Axes that are alike hide that a kernel mixes them up.
        columns = (_column(drawn, "size"), _column(drawn, "outputs"))
        if len(set(drawn)) == goal.rank and (goal.rank == 1 or all(len(set(column)) > 1 for column in columns)):
            break
    return drawn


def _small_axis(rng: np.random.Generator, found: AxisTable, wanted: int, goal: Goal) -> DrawnAxis:
    """An axis with these traits; of those with many cells or windows, the smallest of a few."""
    is_costly = goal.op in CONVOLUTIONS and not goal.features.isdisjoint({"large", "long_sum"})
    few = [found.draw(rng, wanted) for _ in range(8 if is_costly else 1 if kind(goal) == "small" else 4)]
    return min(few, key=lambda axis: (_cells(axis, goal) + axis.outputs) * axis.kernel)


def _cells(axis: DrawnAxis, goal: Goal) -> int:
    """The cells that the windows of an axis lie on."""
    if family(goal.op) != "transposed":
        return axis.size
    return (axis.size - 1) * axis.stride + axis.dilation * (axis.kernel - 1) + 1


# --- operators -------------------------------------------------------------------------------------------------------


def _outer(rng: np.random.Generator, goal: Goal, cells: int) -> Shape:
    """The axes before the spatial ones of a pooling: ``(*lead, channels)``, at least four planes."""
    if "zero_channels" in goal.features:
        return (int(rng.integers(1, 4)), 0)
    if "empty_batch" in goal.features:
        return (0, int(rng.integers(1, 4)))
    if goal.bare:
        return ()
    shape = [(4,), (5,), (2, 3), (3, 2), (4, 1), (1, 5), (2, 1, 2)][rng.integers(7)]
    return _enlarged(shape, cells) if "large" in goal.features else shape


def _enlarged(shape: Shape, cells: int) -> Shape:
    """More samples, until there are LARGE cells."""
    rest = prod(shape[1:]) * cells
    return (max(shape[0], -(-LARGE // max(rest, 1))), *shape[1:])


def _column(chosen: Sequence[DrawnAxis], name: str) -> tuple[int, ...]:
    return tuple(getattr(axis, name) for axis in chosen)


def _sliding(chosen: Sequence[DrawnAxis]) -> dict[str, Any]:
    padding = tuple((axis.lo, axis.hi) for axis in chosen)
    return {"stride": _column(chosen, "stride"), "padding": padding, "dilation": _column(chosen, "dilation")}


def _tie_rule(goal: Goal) -> dict[str, str]:
    return {"ties": goal.tie_rule} if goal.op in SELECTIONS else {}


def _sliding_pool(rng: np.random.Generator, goal: Goal, chosen: Sequence[DrawnAxis]) -> Problem:
    sizes, outputs = _column(chosen, "size"), _column(chosen, "outputs")
    rounded_up = {"ceil_mode": "ceil_mode" in goal.features}
    attributes = {"kernel_size": _column(chosen, "kernel"), **_sliding(chosen), **rounded_up, **_tie_rule(goal)}
    shape = (*_outer(rng, goal, max(prod(sizes), prod(outputs))), *sizes)
    if goal.op == "avg_pool":
        attributes["count_include_pad"] = "count_exclude_pad" not in goal.features
        own = "divisor_override" in goal.features
        attributes["divisor_override"] = int(rng.choice([2, 3, 4, 4, 5, 7, 8])) if own else None
    if goal.op == "smooth_max_pool":
        attributes["beta"] = float(rng.choice(ROUNDED_BETAS if goal.style else BETAS) * rng.choice([1.0, 1.0, -1.0]))
        attributes["padding_mode"] = str(rng.choice(["zeros", "ignore"]))
    return Problem(goal.op, goal.rank, (shape,), attributes)


def _adaptive_pool(rng: np.random.Generator, goal: Goal, chosen: Sequence[DrawnAxis]) -> Problem:
    sizes, bins = _column(chosen, "size"), _column(chosen, "outputs")
    kept = tuple(None if n == m and rng.random() < 0.5 else m for n, m in zip(sizes, bins, strict=True))
    shape = (*_outer(rng, goal, max(prod(sizes), prod(bins))), *sizes)
    return Problem(goal.op, goal.rank, (shape,), {"output_size": kept, **_tie_rule(goal)})


def _global_pool(rng: np.random.Generator, goal: Goal, chosen: Sequence[DrawnAxis]) -> Problem:
    sizes = _column(chosen, "size")
    shape = (*_outer(rng, goal, prod(sizes)), *sizes)
    return Problem(goal.op, goal.rank, (shape,), {"keepdims": bool(rng.random() < 0.7), **_tie_rule(goal)})


def _max_unpool(rng: np.random.Generator, goal: Goal, chosen: Sequence[DrawnAxis]) -> Problem:
    """Values of ``sizes`` that go to planes which are longer by up to twice."""
    sizes = _column(chosen, "size")
    longer = tuple(int(n * rng.integers(1, 3) + rng.integers(0, 2) + (i == 0)) for i, n in enumerate(sizes))
    shape = (*_outer(rng, goal, prod(longer)), *sizes)
    return Problem(goal.op, goal.rank, (shape, shape), {"output_size": longer})


def _convolution(rng: np.random.Generator, goal: Goal, chosen: Sequence[DrawnAxis]) -> Problem:
    sizes, kernel = _column(chosen, "size"), _column(chosen, "kernel")
    groups, channels, others = _channels(rng, goal)
    if "long_sum" in goal.features and not goal.wide:
        channels, others = _long_channels(goal, groups, chosen)
    transposed = goal.op == "conv_transpose"
    weight = (channels, others // groups, *kernel) if transposed else (others, channels // groups, *kernel)
    attributes = {**_sliding(chosen), "groups": groups}
    if transposed:
        attributes["output_padding"] = _column(chosen, "extra")
    bias = (others,) if goal.style in CHANNELS or rng.random() < 0.75 else None
    problem = Problem(goal.op, goal.rank, ((channels, *sizes), weight, bias), attributes)
    cells = max(channels * prod(sizes), prod(anatomy(problem).output))
    lead = _samples(rng, goal, cells, prod(_column(chosen, "outputs")))
    return replace(problem, shapes=((*lead, channels, *sizes), weight, bias))


def _samples(rng: np.random.Generator, goal: Goal, cells: int, windows: int) -> Shape:
    if "empty_batch" in goal.features:
        return (0,) if rng.random() < 0.7 else (2, 0)
    if goal.bare:
        return ()
    if goal.style == "heavy":
        return (HEAVY_SAMPLES,)
    shape = [(SAMPLES,), (SAMPLES,), (5,), (2, 2)][rng.integers(4)]
    if "long_sum" in goal.features and goal.wide:
        return (-(-LONG_SUM // windows),)
    return _enlarged(shape, cells) if "large" in goal.features else shape


def _channels(rng: np.random.Generator, goal: Goal) -> tuple[int, int, int]:
    """Groups, channels in and channels out."""
    if "zero_channels" in goal.features:
        return (1, 0, int(rng.integers(1, 4))) if rng.random() < 0.6 else (1, int(rng.integers(1, 4)), 0)
    if "depthwise" in goal.features:
        channels = int(rng.integers(2, 5))
        return channels, channels, channels * int(rng.integers(1, 4))
    if "grouped" in goal.features:
        groups = int(rng.integers(2, 4))
        each, others = [(2, 3), (3, 2), (2, 1), (3, 4)][rng.integers(4)]
        return groups, groups * each, groups * others
    some = CHANNELS.get(goal.style, ((1, 2), (2, 3), (3, 2), (3, 4), (2, 5), (4, 1), (4, 4)))
    channels, others = some[rng.integers(len(some))]
    return 1, channels, others


def _long_channels(goal: Goal, groups: int, chosen: Sequence[DrawnAxis]) -> tuple[int, int]:
    """So many channels in that each result has LONG_SUM leaves, and few out."""
    transposed = goal.op == "conv_transpose"
    plain = {**_sliding(chosen), **({"output_padding": _column(chosen, "extra")} if transposed else {})}
    shapes = ((1, *_column(chosen, "size")), (1, 1, *_column(chosen, "kernel")), None)
    parts = anatomy(Problem(goal.op, goal.rank, shapes, plain))
    most = parts.hits if transposed else parts.reads
    return groups * -(-LONG_SUM // most), groups


def _unfold(rng: np.random.Generator, goal: Goal, chosen: Sequence[DrawnAxis]) -> Problem:
    sizes, kernel = _column(chosen, "size"), _column(chosen, "kernel")
    cells = prod(kernel) * prod(_column(chosen, "outputs"))
    shape = (*_column_lead(rng, goal, max(cells, prod(sizes))), *sizes)
    return Problem("unfold", goal.rank, (shape,), {"kernel_size": kernel, **_sliding(chosen)})


def _fold(rng: np.random.Generator, goal: Goal, chosen: Sequence[DrawnAxis]) -> Problem:
    sizes, kernel, windows = _column(chosen, "size"), _column(chosen, "kernel"), prod(_column(chosen, "outputs"))
    *lead, channels = _column_lead(rng, goal, max(prod(kernel) * windows, prod(sizes)))
    shape = (*lead, channels * prod(kernel), windows)
    return Problem("fold", goal.rank, (shape,), {"output_size": sizes, "kernel_size": kernel, **_sliding(chosen)})


def _column_lead(rng: np.random.Generator, goal: Goal, cells: int) -> Shape:
    """``(*lead, channels)``: columns always have a channel axis."""
    return _outer(rng, goal, cells) or (int(rng.integers(1, 4)),)


_BUILDERS = {
    **dict.fromkeys(SLIDING_POOLS, _sliding_pool),
    **dict.fromkeys(("adaptive_max_pool", "adaptive_avg_pool"), _adaptive_pool),
    **dict.fromkeys(("global_max_pool", "global_avg_pool"), _global_pool),
    **dict.fromkeys(CONVOLUTIONS, _convolution),
    "max_unpool": _max_unpool,
    "unfold": _unfold,
    "fold": _fold,
}
