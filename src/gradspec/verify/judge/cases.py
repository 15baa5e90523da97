"""Random small networks, each with a box of inputs, over which a target is asked for bounds.

A case holds shapes, attributes and a seed. Weights and box are drawn from the seed, so that they fit a smaller case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from inspect import Parameter
from itertools import count
from math import prod

import numpy as np

from gradspec.conformance.cases.combinations import GEOMETRY
from gradspec.conformance.cases.features import tags
from gradspec.conformance.cases.numbers import Numbers, generator
from gradspec.conformance.cases.problems import Goal, draw_problem
from gradspec.conformance.model.changes import simpler_parts, smaller
from gradspec.conformance.model.geometry import Parts, default_attributes, geometry_of, is_usual
from gradspec.conformance.model.problem import CONVOLUTIONS, Array, CallSignature, Problem, Shape
from gradspec.spec.errors import ShapeError

OPS = (
    *("max_pool", "avg_pool", "conv", "max_pool", "smooth_max_pool", "conv_transpose"),
    *("max_pool", "adaptive_max_pool", "avg_pool", "adaptive_avg_pool", "global_max_pool", "global_avg_pool"),
)
"""The operators, in the order in which they take turns."""
RANKS = (2, 1, 2, 3, 2)
FEATURES = (
    *("asymmetric", "overlapping", "non_divisible", "dilated", "padding_only_window", "ceil_mode"),
    *("count_exclude_pad", "divisor_override", "grouped", "depthwise", "output_padding", "one_cell_axis"),
)
MOST_CELLS, MOST_TERMS, TRIES = 48, 1500, 24
RELU, LINEAR = (CallSignature(names, ("f32",) * len(names)) for names in (("x",), ("x", "weight", "bias")))
"""The layers of a chain that are not operators of the judge."""

Ends = tuple[Array, Array]


@dataclass(frozen=True)
class BoundsCase:
    """A network of steps, each on the output of the one before it, and a box of a kind in `BOXES`."""

    name: str
    steps: tuple[Problem, ...]
    box: str
    numbers: str
    """``full`` significands, or ``small`` integers, of which sums are exact."""
    seed: int

    @property
    def shape(self) -> Shape:
        return self.steps[0].x_shape

    @property
    def output(self) -> Shape:
        return output_shape(self.steps[-1])

    @property
    def ops(self) -> tuple[str, ...]:
        return tuple(step.op for step in self.steps)

    @property
    def cells(self) -> int:
        """The cells of the input and of the steps' outputs."""
        return prod(self.shape) + sum(prod(output_shape(step)) for step in self.steps)

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(sorted(frozenset().union(*map(tags, self.operators)) & {*FEATURES}))

    @property
    def needs(self) -> tuple[str, ...]:
        """The attributes that differ from their defaults: of a shrunk case, those that matter."""
        changed = (
            name
            for step in self.operators
            for name in step.attributes
            if default_attributes(step.op)[name] is not Parameter.empty
            and not is_usual(step.op, step.rank, step.attributes, name)
        )
        return tuple(dict.fromkeys(changed))

    @property
    def operators(self) -> list[Problem]:
        """The steps that are operators of the judge."""
        return [step for step in self.steps if step.signature is None]


def output_shape(step: Problem) -> Shape:
    if step.signature is None:
        return geometry_of(step).output
    return step.x_shape if step.op == "relu" else (1, *(step.shapes[2] or ()))


def connect(shape: Shape, steps: Iterable[Problem]) -> tuple[Problem, ...]:
    """The steps on an input of this shape; ``ShapeError`` where one does not fit."""
    connected = list[Problem]()
    for step in steps:
        weights = step.shapes[1:] if step.op != "linear" else ((*(step.shapes[2] or ()), prod(shape)), step.shapes[2])
        connected.append(replace(step, shapes=(shape, *weights)))
        shape = output_shape(connected[-1])
    return tuple(connected)


# --- numbers ----------------------------------------------------------------------------------------------------------


def weights_of(case: BoundsCase) -> dict[str, Array]:
    """``weight0``, ``bias0`` and so on, by the place of their step."""
    draw, steps = _drawer(case, 0), enumerate(case.steps)
    shapes = {f"{name}{i}": shape for i, step in steps for name, shape in step.named_shapes().items() if name != "x"}
    return {name: draw(shape) for name, shape in shapes.items()}


def _drawer(case: BoundsCase, stream: int) -> Callable[[Shape], Array]:
    numbers = Numbers(generator(case.seed, stream), "f32")
    return numbers.full if case.numbers == "full" else lambda shape: numbers.small(shape, 3)


def _span(low: Array, width: Array) -> Ends:
    return low.astype(np.float32), (low + width).astype(np.float32)


_FAR, _LEAST, _INFINITY = np.float32(2**20), 2.0**-149, np.float32(np.inf)

BOXES: dict[str, Callable[[Array, Array, np.random.Generator], Ends]] = {
    "wide": lambda x, reach, rng: (x - reach, x + reach),
    "negative": lambda x, reach, rng: (x - np.float32(12) - reach, x - np.float32(12)),
    "ties": lambda x, reach, rng: _span(rng.integers(-1, 2, x.shape), rng.integers(0, 3, x.shape)),
    "degenerate": lambda x, reach, rng: (x, x.copy()),
    "tiny": lambda x, reach, rng: (x, np.nextafter(np.nextafter(x, _INFINITY), _INFINITY)),
    "far": lambda x, reach, rng: (x + _FAR - reach, x + _FAR + reach),
    "mixed": lambda x, reach, rng: (x, np.where(rng.random(x.shape) < 0.5, x, x + reach)),
    "subnormal": lambda x, _, rng: _span(*(rng.integers(n, 99, x.shape) * _LEAST for n in (-99, 0))),
}
"""The kinds of boxes, from numbers near 0 and widths of a few units; ``docs/check.md`` describes them."""


def box_of(case: BoundsCase) -> Ends:
    """The ends of the box, in float32."""
    rng, middle = generator(case.seed, 1), _drawer(case, 2)(case.shape)
    return BOXES[case.box](middle, (rng.integers(1, 9, case.shape) / 4).astype(np.float32), rng)


# --- drawing ----------------------------------------------------------------------------------------------------------

Refusal = Callable[[BoundsCase], str | None]


def cases(seed: int, refusal: Refusal, ops: tuple[str, ...] = (), ranks: tuple[int, ...] = ()) -> Iterator[BoundsCase]:
    """Cases without end: operators, ranks and boxes take turns; every third is a chain.

    >>> first = next(cases(0, lambda case: None))
    >>> first.ops, first.box
    (('max_pool',), 'wide')
    """
    turns, spaces = tuple(op for op in OPS if not ops or op in ops), ranks or RANKS
    for place in count():
        rng = generator(seed, place)
        number = int(rng.integers(len(spaces))) if place >= len(turns) else place
        yield _draw_case(place, rng, turns[place % len(turns)], spaces[number % len(spaces)], refusal)


def _draw_case(place: int, rng: np.random.Generator, op: str, rank: int, refusal: Refusal) -> BoundsCase:
    """A case that the target accepts, or the last small one drawn where a few tries find none."""
    pool = Problem("global_max_pool", rank, ((1, 1, *(2,) * rank),), {"keepdims": True})
    kinds = [*BOXES][place % len(BOXES)], "small" if rng.random() < 0.4 else "full"
    case = BoundsCase(str(place), (pool,), *kinds, place)
    for attempt in range(TRIES):
        most = int(rng.integers(0, 3)) if attempt < TRIES // 2 else 0
        features = rng.permutation([name for name in GEOMETRY[op] if name in FEATURES])[:most]
        problem = draw_problem(rng, Goal(op, rank, frozenset(map(str, features)), equal=attempt % 4 == 3))
        if problem is not None:
            drawn = BoundsCase(str(place), _draw_steps(problem, rng, place % 3 == 2), *kinds, int(rng.integers(2**31)))
            case = drawn if _is_small(drawn) else case
            if case is drawn and refusal(case) is None:
                break
    return case


def _is_small(case: BoundsCase) -> bool:
    terms = max(prod(geometry_of(step).output) * geometry_of(step).taps * step.x_shape[1] for step in case.operators)
    return terms <= MOST_TERMS and 0 < prod(case.output) <= MOST_CELLS and prod(case.shape) <= MOST_CELLS


def _draw_steps(problem: Problem, rng: np.random.Generator, is_chain: bool) -> tuple[Problem, ...]:
    """A problem with one sample and few channels, alone, or in ``conv → relu → pool → linear``."""
    is_conv, rank = problem.op in CONVOLUTIONS, problem.rank
    channels = problem.x_shape[-rank - 1] if is_conv else int(rng.integers(1, 3))
    attributes = {name: value for name, value in problem.attributes.items() if name != "ties"}
    steps = [replace(problem, attributes=attributes)]
    if is_chain:
        outputs = int(rng.integers(1, 4))
        steps.append(Problem("linear", rank, ((), (), (outputs,)), {}, signature=LINEAR))
        steps.insert(is_conv, Problem("relu", rank, ((),), {}, signature=RELU))
        if not is_conv:
            weight, padding = (channels, 1, *(3,) * rank), ((1, 1),) * rank
            steps.insert(0, Problem("conv", rank, ((), weight, (channels,)), {"padding": padding}))
            channels = 1
    return connect((1, channels, *problem.spatial), steps)


# --- shrinking --------------------------------------------------------------------------------------------------------


def simpler_cases(case: BoundsCase) -> Iterator[BoundsCase]:
    """Fewer steps, fewer cells, attributes nearer to their defaults, and plainer numbers."""
    for shape, steps in _simpler_steps(case.shape, case.steps):
        with suppress(ShapeError):
            yield replace(case, steps=connect(shape, steps))
    yield replace(case, numbers="small")
    if case.box not in ("ties", "wide"):
        yield from (replace(case, box=box) for box in ("ties", "wide"))


def _simpler_steps(shape: Shape, steps: tuple[Problem, ...]) -> Iterator[tuple[Shape, tuple[Problem, ...]]]:
    for i in range(len(steps) if len(steps) > 1 else 0):
        yield shape, steps[:i] + steps[i + 1 :]
    for axis, size in enumerate(shape):
        yield from (((*shape[:axis], less, *shape[axis + 1 :]), steps) for less in smaller(size, 1))
    for i, step in enumerate(steps):
        if step.signature is None:
            whole = Parts.of(step)
            for parts in sorted(simpler_parts(whole), key=lambda parts: parts.attributes == whole.attributes):
                with suppress(ShapeError):
                    problem = parts.problem()
                    yield shape if i else problem.x_shape, (*steps[:i], problem, *steps[i + 1 :])
        elif step.op == "linear":
            for outputs in smaller(output_shape(step)[1], 1):
                yield shape, (*steps[:i], replace(step, shapes=((), (), (outputs,))), *steps[i + 1 :])
