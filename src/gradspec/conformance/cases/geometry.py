"""Problems drawn at random that have wanted features: an axis at a time, then channels and leading axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from gradspec.conformance.call import SELECTIONS, Problem, Shape
from gradspec.conformance.cases.axes import AXIS_FEATURES, BIT, Axes, axes, mask
from gradspec.conformance.cases.features import LARGE, LONG_SUM, MANY_HITS, tags
from gradspec.conformance.cases.styles import CHANNELS, HEAVY_SAMPLES, drawn_axes
from gradspec.conformance.cases.windows import AVERAGES, CONVOLUTIONS, SLIDING_POOLS, anatomy
from gradspec.conformance.cases.windows import leaves as most_terms

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

Axis = tuple[int, ...]


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
        chosen = _styled_axes(rng, goal) if goal.style else _featured_axes(rng, goal, attempt)
        if chosen is None:
            return None
        problem = _BUILDERS[goal.op](rng, goal, chosen)
        if _is_fit(problem, goal, MOST_LEAVES if goal.style == "heavy" else FEW_LEAVES << attempt // 3):
            return problem
    return None


def _styled_axes(rng: np.random.Generator, goal: Goal) -> list[Axis]:
    small, ceil = goal.op == "smooth_max_pool", "ceil_mode" in goal.features
    return drawn_axes(rng, goal.style, family(goal.op), goal.rank, small, ceil)


def _featured_axes(rng: np.random.Generator, goal: Goal, attempt: int) -> list[Axis] | None:
    masks = assignment(rng, goal) if attempt < TRIES // 2 else simple_assignment(goal)
    return None if masks is None else _axes(rng, goal, masks)


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
    if goal.style == "nothing_read":
        return True
    if goal.features & {"empty_batch", "zero_channels"} or (goal.rank == 1 and "one_cell_axis" in goal.features):
        return True
    if problem.op == "max_unpool":
        enough = prod(anatomy(problem).spatial) > MANY_HITS
        return enough or (goal.rank == 2 and "one_cell_axis" in goal.features)
    return problem.op not in SELECTIONS or anatomy(problem).reads > 1


# --- axes ------------------------------------------------------------------------------------------------------------


def pool(goal: Goal) -> Axes:
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
    if goal.sided or (
        goal.rank == 1 and "asymmetric" in goal.features and family(goal.op) in ("sliding", "transposed")
    ):
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


def _axes(rng: np.random.Generator, goal: Goal, masks: Sequence[int]) -> list[Axis]:
    found = pool(goal)
    if goal.equal:
        return [_small_axis(rng, found, masks[0], goal)] * goal.rank
    for _ in range(6):
        drawn = [_small_axis(rng, found, wanted, goal) for wanted in masks]
        # Axes that are alike hide that a kernel mixes them up.
        if all(len({axis[i] for axis in drawn}) > 1 for i in (0, 7) if goal.rank > 1) and len(set(drawn)) == goal.rank:
            break
    return drawn


def _small_axis(rng: np.random.Generator, found: Axes, wanted: int, goal: Goal) -> Axis:
    """An axis with these traits; of those with many cells or windows, the smallest of a few."""
    is_costly = goal.op in CONVOLUTIONS and not goal.features.isdisjoint({"large", "long_sum"})
    few = [found.draw(rng, wanted) for _ in range(8 if is_costly else 1 if kind(goal) == "small" else 4)]
    return min(few, key=lambda axis: (_cells(axis, goal) + axis[7]) * axis[1])


def _cells(axis: Axis, goal: Goal) -> int:
    """The cells that the windows of an axis lie on."""
    size, kernel, stride, _, _, dilation, *_ = axis
    return (size - 1) * stride + dilation * (kernel - 1) + 1 if family(goal.op) == "transposed" else size


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


def _column(chosen: Sequence[Axis], i: int) -> tuple[int, ...]:
    return tuple(axis[i] for axis in chosen)


def _sliding(chosen: Sequence[Axis]) -> dict[str, Any]:
    return {
        "stride": _column(chosen, 2),
        "padding": tuple(zip(_column(chosen, 3), _column(chosen, 4), strict=True)),
        "dilation": _column(chosen, 5),
    }


def _sliding_pool(rng: np.random.Generator, goal: Goal, chosen: Sequence[Axis]) -> Problem:
    sizes, outputs = _column(chosen, 0), _column(chosen, 7)
    attributes = {"kernel_size": _column(chosen, 1), **_sliding(chosen), "ceil_mode": "ceil_mode" in goal.features}
    shape = (*_outer(rng, goal, max(prod(sizes), prod(outputs))), *sizes)
    if goal.op == "max_pool":
        attributes["ties"] = goal.tie_rule
    if goal.op == "avg_pool":
        attributes["count_include_pad"] = "count_exclude_pad" not in goal.features
        attributes["divisor_override"] = (
            int(rng.choice([2, 3, 4, 4, 5, 7, 8])) if "divisor_override" in goal.features else None
        )
    if goal.op == "smooth_max_pool":
        attributes["beta"] = float(rng.choice(ROUNDED_BETAS if goal.style else BETAS) * rng.choice([1.0, 1.0, -1.0]))
        attributes["padding_mode"] = str(rng.choice(["zeros", "ignore"]))
    return Problem(goal.op, goal.rank, (shape,), attributes)


def _adaptive_pool(rng: np.random.Generator, goal: Goal, chosen: Sequence[Axis]) -> Problem:
    sizes, bins = _column(chosen, 0), _column(chosen, 7)
    kept = tuple(None if n == m and rng.random() < 0.5 else m for n, m in zip(sizes, bins, strict=True))
    shape = (*_outer(rng, goal, max(prod(sizes), prod(bins))), *sizes)
    rule = {"ties": goal.tie_rule} if goal.op == "adaptive_max_pool" else {}
    return Problem(goal.op, goal.rank, (shape,), {"output_size": kept, **rule})


def _global_pool(rng: np.random.Generator, goal: Goal, chosen: Sequence[Axis]) -> Problem:
    sizes = _column(chosen, 0)
    rule = {"ties": goal.tie_rule} if goal.op == "global_max_pool" else {}
    shape = (*_outer(rng, goal, prod(sizes)), *sizes)
    return Problem(goal.op, goal.rank, (shape,), {"keepdims": bool(rng.random() < 0.7), **rule})


def _max_unpool(rng: np.random.Generator, goal: Goal, chosen: Sequence[Axis]) -> Problem:
    """Values of ``sizes`` that go to planes which are longer by up to twice."""
    sizes = _column(chosen, 0)
    longer = tuple(int(n * rng.integers(1, 3) + rng.integers(0, 2) + (i == 0)) for i, n in enumerate(sizes))
    shape = (*_outer(rng, goal, prod(longer)), *sizes)
    return Problem(goal.op, goal.rank, (shape, shape), {"output_size": longer})


def _convolution(rng: np.random.Generator, goal: Goal, chosen: Sequence[Axis]) -> Problem:
    sizes, kernel = _column(chosen, 0), _column(chosen, 1)
    groups, channels, others = _channels(rng, goal)
    if "long_sum" in goal.features and not goal.wide:
        channels, others = _long_channels(goal, groups, chosen)
    transposed = goal.op == "conv_transpose"
    weight = (channels, others // groups, *kernel) if transposed else (others, channels // groups, *kernel)
    attributes = {**_sliding(chosen), "groups": groups}
    if transposed:
        attributes["output_padding"] = _column(chosen, 6)
    bias = (others,) if goal.style in CHANNELS or rng.random() < 0.75 else None
    problem = Problem(goal.op, goal.rank, ((channels, *sizes), weight, bias), attributes)
    lead = _samples(rng, goal, max(channels * prod(sizes), prod(anatomy(problem).output)), prod(_column(chosen, 7)))
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


def _long_channels(goal: Goal, groups: int, chosen: Sequence[Axis]) -> tuple[int, int]:
    """So many channels in that each result has LONG_SUM leaves, and few out."""
    plain = {**_sliding(chosen), **({"output_padding": _column(chosen, 6)} if goal.op == "conv_transpose" else {})}
    shapes = ((1, *_column(chosen, 0)), (1, 1, *_column(chosen, 1)), None)
    parts = anatomy(Problem(goal.op, goal.rank, shapes, plain))
    most = parts.hits if goal.op == "conv_transpose" else parts.reads
    return groups * -(-LONG_SUM // most), groups


def _unfold(rng: np.random.Generator, goal: Goal, chosen: Sequence[Axis]) -> Problem:
    sizes, kernel = _column(chosen, 0), _column(chosen, 1)
    cells = prod(kernel) * prod(_column(chosen, 7))
    shape = (*_column_lead(rng, goal, max(cells, prod(sizes))), *sizes)
    return Problem("unfold", goal.rank, (shape,), {"kernel_size": kernel, **_sliding(chosen)})


def _fold(rng: np.random.Generator, goal: Goal, chosen: Sequence[Axis]) -> Problem:
    sizes, kernel, windows = _column(chosen, 0), _column(chosen, 1), prod(_column(chosen, 7))
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
