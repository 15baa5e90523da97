"""What a target is asked to bound: small networks over the judge's own windows, each with a box of inputs.

A case holds shapes, attributes and a seed, and no numbers: weights and box are drawn from it anywhere, and a smaller
case has numbers that fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from gradspec.conformance.cases.combinations import GEOMETRY
from gradspec.conformance.cases.features import tags
from gradspec.conformance.cases.geometry import Goal, drawn_problem
from gradspec.conformance.cases.numbers import Numbers, generator
from gradspec.conformance.model.geometry import anatomy
from gradspec.conformance.model.problem import CONVOLUTIONS, Array, Problem, Shape

OPS = (
    *("max_pool", "avg_pool", "conv", "max_pool", "smooth_max_pool", "conv_transpose"),
    *("max_pool", "adaptive_max_pool", "avg_pool", "adaptive_avg_pool", "global_max_pool", "global_avg_pool"),
)
"""In the order of their turns."""
RANKS = (2, 1, 2, 3, 2)
FEATURES = (
    *("asymmetric", "overlapping", "non_divisible", "dilated", "padding_only_window", "ceil_mode"),
    *("count_exclude_pad", "divisor_override", "grouped", "depthwise", "output_padding", "one_cell_axis"),
)
MOST_CELLS, MOST_TERMS, TRIES = 48, 1500, 24

Refusal = Callable[["BoundsCase"], str | None]


@dataclass(frozen=True)
class NetStep:
    """One operator of a network: of the judge's, with its attributes, or ``relu`` or ``linear``.

    Convolutions also have ``kernel_size``, ``channels`` (those of the result) and ``bias``; ``linear`` has ``outputs``.
    """

    op: str
    attributes: Mapping[str, Any]


@dataclass(frozen=True)
class BoundsCase:
    """A network of steps, from an input of a shape, over a box of a kind."""

    name: str
    steps: tuple[NetStep, ...]
    shape: Shape
    box: str
    numbers: str
    """``full`` significands, or ``small`` integers, of which sums are exact."""
    seed: int

    @property
    def rank(self) -> int:
        return len(self.shape) - 2

    @property
    def ops(self) -> tuple[str, ...]:
        return tuple(step.op for step in self.steps)

    @property
    def cells(self) -> int:
        """How large it is: cells of all arrays."""
        return sum(prod(step_in) for step_in, _ in self.shapes()) + prod(self.shape)

    def shapes(self) -> list[tuple[Shape, Problem | None]]:
        """What goes into each step, and its problem if it is one of the judge's operators; the result's shape last."""
        found, shape = list[tuple[Shape, Problem | None]](), self.shape
        for step in self.steps:
            problem = None if step.op in ("relu", "linear") else problem_of(step, shape, self.rank)
            found.append((shape, problem))
            if problem is not None:
                shape = anatomy(problem).output
            elif step.op == "linear":
                shape = (1, step.attributes["outputs"])
        return [*found, (shape, None)]

    @property
    def features(self) -> frozenset[str]:
        problems = [problem for _, problem in self.shapes() if problem is not None]
        return frozenset().union(*map(tags, problems)) & {*FEATURES}


_OWN = ("kernel_size", "channels", "bias")


def problem_of(step: NetStep, shape: Shape, rank: int) -> Problem:
    """A step on an input of this shape, as the judge knows it."""
    given = dict(step.attributes)
    if step.op not in CONVOLUTIONS:
        return Problem(step.op, rank, (shape,), given)
    kernel, channels, bias = (given.pop(name) for name in _OWN)
    ins, groups = shape[1], given.get("groups", 1)
    if ins % groups or channels % groups:
        raise ValueError(f"{groups} groups of {ins} and {channels} channels")
    weight = (channels, ins // groups) if step.op == "conv" else (ins, channels // groups)
    return Problem(step.op, rank, (shape, (*weight, *kernel), (channels,) if bias else None), given)


# --- numbers ----------------------------------------------------------------------------------------------------------


def weights_of(case: BoundsCase) -> dict[str, Array]:
    """``weight0``, ``bias0`` and so on, by the place of their step."""
    found = dict[str, Array]()
    draw = _drawer(case, 0)
    for place, (step, (shape, problem)) in enumerate(zip(case.steps, case.shapes(), strict=False)):
        own = dict[str, Shape]() if problem is None else {**problem.named_shapes()}
        if step.op == "linear":
            own = {"weight": (step.attributes["outputs"], prod(shape)), "bias": (step.attributes["outputs"],)}
        found |= {f"{name}{place}": draw(own[name]) for name in ("weight", "bias") if name in own}
    return found


def _drawer(case: BoundsCase, which: int) -> Callable[[Shape], Array]:
    numbers = Numbers(generator(case.seed, which), "f32")
    return numbers.full if case.numbers == "full" else lambda shape: numbers.small(shape, 3)


BOXES: dict[str, str] = {
    "wide": "a few units wide, around numbers near 0",
    "negative": "all of it below 0, where a zero of padding would win",
    "ties": "ends are small integers, many of them equal",
    "degenerate": "one point",
    "tiny": "a few floats wide",
    "far": "around 2^20, where rounding errors are as large as the box",
    "mixed": "single points in some cells, wide in others",
    "subnormal": "below the smallest normal number",
}


def box_of(case: BoundsCase) -> tuple[Array, Array]:
    """The ends of the box, in float32."""
    rng, middle = generator(case.seed, 1), _drawer(case, 2)(case.shape)
    reach = (rng.integers(1, 9, case.shape) / 4).astype(np.float32)
    if case.box == "wide":
        return middle - reach, middle + reach
    if case.box == "negative":
        return middle - np.float32(12) - reach, middle - np.float32(12)
    if case.box == "ties":
        low = rng.integers(-1, 2, case.shape).astype(np.float32)
        return low, low + rng.integers(0, 3, case.shape).astype(np.float32)
    if case.box == "degenerate":
        return middle, middle.copy()
    if case.box == "tiny":
        return middle, np.nextafter(np.nextafter(middle, np.float32(np.inf)), np.float32(np.inf))
    if case.box == "far":
        return middle + np.float32(2**20) - reach, middle + np.float32(2**20) + reach
    if case.box == "mixed":
        return middle, np.where(rng.random(case.shape) < 0.5, middle, middle + reach).astype(np.float32)
    low = rng.integers(-99, 99, case.shape) * 2.0**-149
    return low.astype(np.float32), (low + rng.integers(0, 99, case.shape) * 2.0**-149).astype(np.float32)


# --- drawing ----------------------------------------------------------------------------------------------------------


def cases(seed: int, refusal: Refusal, ops: tuple[str, ...] = (), ranks: tuple[int, ...] = ()) -> Iterator[BoundsCase]:
    """Cases without end: operators, ranks and boxes take turns; every third is a chain.

    >>> first = next(cases(0, lambda case: None))
    >>> first.ops, first.box
    (('max_pool',), 'wide')
    """
    turns, spaces = tuple(op for op in OPS if not ops or op in ops), ranks or RANKS
    place = 0
    while True:
        rng = generator(seed, place)
        number = int(rng.integers(len(spaces))) if place >= len(turns) else place
        yield _case(place, rng, turns[place % len(turns)], spaces[number % len(spaces)], refusal)
        place += 1


def _case(place: int, rng: np.random.Generator, op: str, rank: int, refusal: Refusal) -> BoundsCase:
    """One that the target takes, if a few tries find one."""
    box, numbers = [*BOXES][place % len(BOXES)], "small" if rng.random() < 0.4 else "full"
    found = None
    for attempt in range(TRIES):
        own = [name for name in GEOMETRY[op] if name in FEATURES]
        count = int(rng.integers(0, 3)) if attempt < TRIES // 2 else 0
        wanted = frozenset(str(name) for name in rng.permutation(own)[:count])
        problem = drawn_problem(rng, Goal(op, rank, wanted, equal=attempt % 4 == 3))
        if problem is None:
            continue
        steps, shape = _steps(problem, rng, chained=place % 3 == 2)
        case = BoundsCase(str(place), steps, shape, box, numbers, int(rng.integers(2**31)))
        if not _is_small(case):
            continue
        found = case
        if refusal(case) is None:
            return case
    if found is None:
        pool = NetStep("global_max_pool", {"keepdims": True})
        return BoundsCase(str(place), (pool,), (1, 1, *(2,) * rank), box, numbers, place)
    return found


def _is_small(case: BoundsCase) -> bool:
    *inner, (output, _) = case.shapes()
    terms = (prod(anatomy(p).output) * anatomy(p).taps * p.x_shape[1] for _, p in inner if p is not None)
    return max(prod(case.shape), prod(output)) <= MOST_CELLS and max(terms) <= MOST_TERMS and prod(output) > 0


def _steps(problem: Problem, rng: np.random.Generator, chained: bool) -> tuple[tuple[NetStep, ...], Shape]:
    """A problem with one sample and few channels, alone, or in ``conv → relu → pool → linear``."""
    given = {name: value for name, value in problem.attributes.items() if name != "ties"}
    if problem.op in CONVOLUTIONS:
        weight, groups = problem.shapes[1] or (), given.get("groups", 1)
        channels = weight[0] if problem.op == "conv" else weight[1] * groups
        given |= {"kernel_size": weight[2:], "channels": channels, "bias": problem.shapes[2] is not None}
        ins = weight[1] * groups if problem.op == "conv" else weight[0]
    else:
        ins = int(rng.integers(1, 3))
    step, shape = NetStep(problem.op, given), (1, ins, *problem.spatial)
    if not chained:
        return (step,), shape
    last = NetStep("linear", {"outputs": int(rng.integers(1, 4))})
    if problem.op in CONVOLUTIONS:
        return (step, NetStep("relu", {}), last), shape
    padding = ((1, 1),) * problem.rank
    same = NetStep("conv", {"kernel_size": (3,) * problem.rank, "channels": ins, "bias": True, "padding": padding})
    return (same, NetStep("relu", {}), step, last), (1, 1, *problem.spatial)


def with_step(case: BoundsCase, place: int, **attributes: Any) -> BoundsCase:
    """The case with other attributes of one step."""
    step = case.steps[place]
    changed = NetStep(step.op, {**step.attributes, **attributes})
    return replace(case, steps=(*case.steps[:place], changed, *case.steps[place + 1 :]))
