"""The table of cases: every operator in every situation its laws should meet. A new operator is an entry
of ``TRAITS`` and its ``ROWS``; every law in ``laws.py`` then runs on it.

A row is ``(situation, shapes of the inputs, shape of the output, attributes)``. Output shapes are worked out by hand
from the size formulas, so they test the geometry instead of repeating it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import cycle, islice
from math import prod
from random import Random
from typing import Any

import numpy as np

import gradspec as gs

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Places:
    """An integer input: flat places in a plane of ``cells`` cells, −1 among them, and repeated once these run out."""

    shape: Shape
    cells: int

    def draw(self, random: Random) -> np.ndarray:
        places = list(islice(cycle(range(-1, self.cells)), prod(self.shape)))
        random.shuffle(places)
        return np.array(places, dtype=int).reshape(self.shape)


@dataclass(frozen=True)
class OpCase:
    """One call of one operator, and what a law must know about it."""

    id: str
    operator: str
    shapes: tuple[Shape | Places | None, ...]
    """One per input; None is an input left out."""
    output: Shape
    attributes: Mapping[str, Any]
    core: int
    """How many of the first input's axes are not leading axes."""
    shared: tuple[int, ...] = ()
    """Inputs without leading axes."""
    ordered: bool = False
    """Derivatives compare cells, so they jump at ties."""
    linear: bool = False
    needs_exp: bool = False

    @property
    def rank(self) -> int:
        """The number of spatial axes."""
        return _rank(self.shapes, self.attributes)

    @property
    def ties(self) -> str | None:
        return self.attributes.get("ties", "first") if self.ordered else None

    @property
    def lead(self) -> Shape:
        shape = self.shapes[0]
        return shape[: len(shape) - self.core]

    @property
    def domain(self) -> gs.domains.Domain:
        """Where the operator is exact, or nearly so."""
        return gs.ball(200) if self.needs_exp else gs.exact

    @property
    def differentiable(self) -> tuple[int, ...]:
        """The inputs that take a tangent: all but integers."""
        return tuple(i for i, shape in enumerate(self.shapes) if not isinstance(shape, Places))

    def inputs(self, kind: str = "tied") -> tuple[np.ndarray | None, ...]:
        random = Random(f"{self.id} inputs")
        return tuple(s.draw(random) if isinstance(s, Places) else self._draw(s, random, kind) for s in self.shapes)

    def tangents(self, name: str = "tangents") -> tuple[np.ndarray | None, ...]:
        """One per differentiable input (None for one left out); another ``name``, other tangents."""
        random = Random(f"{self.id} {name}")
        return tuple(self._draw(self.shapes[i], random, "tied") for i in self.differentiable)

    def cotangent(self) -> np.ndarray:
        return self._draw(self.output, Random(f"{self.id} cotangent"), "tied")

    def _draw(self, shape: Shape | None, random: Random, kind: str) -> np.ndarray | None:
        if shape is None:
            return None
        return array(shape, map(self.domain.scalar, KINDS[kind](prod(shape), random)))


KINDS: Mapping[str, Callable[[int, Random], list[Fraction]]] = {
    # Five dyadic values, zero among them: most windows have ties, and some tie with the zero that padding reads as.
    "tied": lambda count, random: [Fraction(random.randint(-2, 2), 2) for _ in range(count)],
    # Every cell ties, and padding would win if it competed.
    "constant": lambda count, random: [Fraction(-3, 2)] * count,
    "distinct": lambda count, random: [Fraction(n, 8) for n in random.sample(range(-2 * count, 2 * count), count)],
}


def array(shape: Shape, cells: Iterable[Any]) -> np.ndarray:
    """Scalars of any system as an array of objects."""
    filled = np.empty(prod(shape), dtype=object)
    filled[:] = list(cells)
    return filled.reshape(shape)


def _rank(shapes: tuple[Any, ...], attributes: Mapping[str, Any]) -> int:
    for sizes in ("kernel_size", "output_size"):
        if sizes in attributes:
            return len(attributes[sizes])
    if len(shapes) == 3:
        return len(shapes[1]) - 2
    return attributes.get("rank", 2)


def options(**attributes: Any) -> dict[str, Any]:
    return attributes


def spatial_only(rank: int) -> int:
    return rank


def with_channels(rank: int) -> int:
    return rank + 1


def columns(rank: int) -> int:
    return 2


@dataclass(frozen=True)
class Traits:
    """What the rows of one operator have in common; each row is repeated for every one of ``variants``."""

    variants: Mapping[str, Mapping[str, Any]]
    core: Callable[[int], int] = spatial_only
    shared: tuple[int, ...] = ()
    ordered: bool = False
    linear: bool = False
    needs_exp: bool = False

    def case(self, operator: str, variant: str, situation: str, shapes: Any, output: Shape, attributes: Any) -> OpCase:
        shapes = shapes if isinstance(shapes, list) else [shapes]
        attributes = {**attributes, **self.variants[variant]}
        return OpCase(
            " ".join(filter(None, (operator, variant, situation))),
            operator,
            tuple(shapes),
            output,
            attributes,
            self.core(_rank(tuple(shapes), attributes)),
            self.shared,
            self.ordered,
            self.linear,
            self.needs_exp,
        )


ONE = {"": {}}
TIES = {"first": {}, "all": {"ties": "all"}, "split": {"ties": "split"}}
DIVISORS = {
    "by taps": {},
    "by cells": {"count_include_pad": False},
    "by 3/2": {"divisor_override": Fraction(3, 2)},
}
SOFTNESS = {"max": {"beta": 1.5}, "min, padding ignored": {"beta": -0.5, "padding_mode": "ignore"}}

TRAITS = {
    "max_pool": Traits(TIES, ordered=True),
    "avg_pool": Traits(DIVISORS, linear=True),
    "smooth_max_pool": Traits(SOFTNESS, needs_exp=True),
    "adaptive_max_pool": Traits(TIES, ordered=True),
    "adaptive_avg_pool": Traits(ONE, linear=True),
    "global_max_pool": Traits(TIES, ordered=True),
    "global_avg_pool": Traits(ONE, linear=True),
    "conv": Traits(ONE, with_channels, shared=(1, 2)),
    "conv_transpose": Traits(ONE, with_channels, shared=(1, 2)),
    "max_unpool": Traits(ONE, linear=True),
    "max_gather": Traits(ONE, linear=True),
    "unfold": Traits(ONE, with_channels, linear=True),
    "fold": Traits(ONE, columns, linear=True),
}

SLIDING = [
    ("plain", (4, 4), (2, 2), options(kernel_size=(2, 2))),
    ("overlapping", (2, 5), (2, 3), options(kernel_size=(3,), stride=1)),
    ("not divisible", (7, 5), (3, 2), options(kernel_size=(3, 2), stride=2)),
    ("with gaps", (7,), (2,), options(kernel_size=(2,), stride=3)),
    ("asymmetric", (4, 3), (2, 4), options(kernel_size=(3, 2), stride=(2, 1), padding=((1, 0), (0, 2)))),
    ("padding-only windows", (3, 2), (7, 4), options(kernel_size=(2, 2), stride=1, padding=((3, 2), (0, 3)))),
    ("straddled by its window", (2,), (3,), options(kernel_size=(2,), stride=1, padding=2, dilation=3)),
    ("dilated", (6, 7), (3, 2), options(kernel_size=(2, 3), stride=(1, 2), dilation=(3, 2))),
    ("dilated and padded", (5,), (2,), options(kernel_size=(3,), stride=2, padding=((2, 1),), dilation=2)),
    ("ceil adds", (5, 5), (3, 3), options(kernel_size=(2, 2), ceil_mode=True)),
    ("ceil drops, and adds", (2, 4), (1, 3), options(kernel_size=(2, 3), stride=(3, 2), padding=1, ceil_mode=True)),
    ("ceil cut in the padding", (7,), (3,), options(kernel_size=(3,), stride=4, padding=((2, 1),), ceil_mode=True)),
    ("ceil dilated", (7,), (3,), options(kernel_size=(2,), stride=4, padding=((2, 0),), dilation=2, ceil_mode=True)),
    ("ceil alone", (2,), (1,), options(kernel_size=(3,), stride=2, ceil_mode=True)),
    ("same", (5, 4), (3, 4), options(kernel_size=(3, 2), stride=(2, 1), padding="same")),
    ("same dilated", (5,), (5,), options(kernel_size=(3,), stride=1, padding="same", dilation=2)),
    ("valid", (4,), (2,), options(kernel_size=(3,), stride=1, padding="valid")),
    ("one cell", (1, 1), (2, 2), options(kernel_size=(2, 2), stride=1, padding=1)),
    ("several leads", (2, 1, 2, 3), (2, 1, 2, 2), options(kernel_size=(2,), stride=1)),
    ("empty batch", (0, 3), (0, 2), options(kernel_size=(2,), stride=1)),
    ("no channels", (2, 0, 3, 3), (2, 0, 2, 2), options(kernel_size=(2, 2), stride=1)),
    ("rank 0", (2, 3), (2, 3), options(kernel_size=())),
    ("rank 3", (3, 2, 4), (2, 3, 2), options(kernel_size=(2, 2, 2), stride=(1, 1, 2), padding=(0, 1, 0))),
    ("rank 4", (2, 2, 1, 3), (1, 2, 1, 2), options(kernel_size=(2, 1, 1, 2), stride=1)),
    (
        "rank 5",
        (2, 1, 2, 1, 2),
        (1, 1, 1, 1, 3),
        options(kernel_size=(2, 1, 2, 1, 2), stride=1, padding=(0, 0, 0, 0, 1)),
    ),
]

ADAPTIVE = [
    ("dividing", (2, 6), (2, 3), options(output_size=(3,))),
    ("not dividing", (7, 5), (5, 3), options(output_size=(5, 3))),
    ("more bins than cells", (2, 3), (5, 4), options(output_size=(5, 4))),
    ("kept axis", (4, 5), (4, 2), options(output_size=(None, 2))),
    ("one cell", (1, 1), (1, 3), options(output_size=(1, 3))),
    ("several leads", (2, 2, 1, 3), (2, 2, 1, 2), options(output_size=(2,))),
    ("empty batch", (0, 4), (0, 3), options(output_size=(3,))),
    ("no channels", (2, 0, 3, 3), (2, 0, 2, 2), options(output_size=(2, 2))),
    ("rank 0", (2,), (2,), options(output_size=())),
    ("rank 3", (3, 2, 4), (2, 3, 3), options(output_size=(2, 3, 3))),
    ("rank 4", (2, 3, 1, 2), (1, 2, 2, 2), options(output_size=(1, 2, 2, None))),
    ("rank 5", (2, 1, 2, 1, 3), (1, 2, 2, 1, 2), options(output_size=(1, 2, 2, 1, 2))),
]

GLOBAL = [
    ("kept", (2, 3, 4), (2, 1, 1), {}),
    ("flat", (2, 3, 4), (2,), options(keepdims=False)),
    ("flat without leads", (3, 2), (), options(keepdims=False)),
    ("one cell", (1, 1), (1, 1), {}),
    ("several leads", (2, 1, 2, 3), (2, 1, 1, 1), {}),
    ("empty batch", (0, 2, 2), (0, 1, 1), {}),
    ("no channels", (2, 0, 2, 2), (2, 0), options(keepdims=False)),
    ("rank 0", (3,), (3,), options(rank=0)),
    ("rank 1", (2, 4), (2, 1), options(rank=1)),
    ("rank 3", (2, 2, 2, 3), (2, 1, 1, 1), options(rank=3)),
    ("rank 4", (2, 1, 2, 3), (1, 1, 1, 1), options(rank=4)),
    ("rank 5", (2, 1, 2, 1, 2), (), options(rank=5, keepdims=False)),
]

ROWS = {
    "max_pool": SLIDING,
    "avg_pool": SLIDING,
    "smooth_max_pool": SLIDING,
    "adaptive_max_pool": ADAPTIVE,
    "adaptive_avg_pool": ADAPTIVE,
    "global_max_pool": GLOBAL,
    "global_avg_pool": GLOBAL,
    "conv": [
        ("plain", [(1, 4, 4), (1, 1, 2, 2), (1,)], (1, 3, 3), {}),
        ("no bias", [(2, 5), (3, 2, 2), None], (3, 4), {}),
        (
            "asymmetric",
            [(2, 5, 4), (1, 2, 3, 2), (1,)],
            (1, 2, 5),
            options(stride=(2, 1), padding=((1, 0), (0, 2))),
        ),
        ("wide padding", [(1, 2, 3), (1, 1, 2, 2), (1,)], (1, 6, 5), options(padding=((3, 2), (0, 3)))),
        ("not divisible", [(2, 7), (1, 2, 2), (1,)], (1, 2), options(stride=3)),
        ("dilated", [(1, 6, 7), (2, 1, 2, 3), None], (2, 3, 2), options(stride=(1, 2), dilation=(3, 2))),
        ("groups", [(4, 5), (6, 2, 2), (6,)], (6, 4), options(groups=2)),
        ("groups in a plane", [(4, 2, 3), (2, 2, 2, 2), None], (2, 2, 2), options(groups=2, padding=((1, 0), 0))),
        ("depthwise", [(3, 3, 3), (3, 1, 2, 2), None], (3, 2, 2), options(groups=3)),
        ("depthwise, twice", [(2, 4), (4, 1, 3), (4,)], (4, 2), options(groups=2)),
        ("same", [(1, 5, 4), (1, 1, 3, 2), (1,)], (1, 3, 4), options(stride=(2, 1), padding="same")),
        ("same dilated", [(1, 5), (1, 1, 3), None], (1, 5), options(padding="same", dilation=2)),
        ("valid", [(1, 4), (1, 1, 3), None], (1, 2), options(padding="valid")),
        ("one cell", [(1, 1, 1), (1, 1, 2, 2), (1,)], (1, 2, 2), options(padding=1)),
        ("batch", [(2, 2, 3, 3), (2, 2, 2, 2), (2,)], (2, 2, 2, 2), {}),
        ("several leads", [(2, 1, 1, 3), (2, 1, 2), (2,)], (2, 1, 2, 2), {}),
        ("empty batch", [(0, 2, 3), (1, 2, 2), (1,)], (0, 1, 2), {}),
        ("no input channels", [(2, 0, 3), (2, 0, 2), (2,)], (2, 2, 2), {}),
        ("no output channels", [(1, 3), (0, 1, 2), (0,)], (0, 2), {}),
        ("rank 0", [(2, 3), (4, 3), (4,)], (2, 4), {}),
        (
            "rank 3",
            [(1, 3, 2, 3), (2, 1, 2, 1, 2), (2,)],
            (2, 2, 2, 2),
            options(stride=(1, 1, 2), padding=(0, 0, 1)),
        ),
        ("rank 4", [(1, 2, 2, 2, 3), (1, 1, 2, 1, 2, 2), None], (1, 1, 2, 1, 2), {}),
        ("rank 5", [(1, 2, 1, 2, 1, 2), (1, 1, 2, 1, 1, 1, 2), (1,)], (1, 1, 1, 2, 1, 1), {}),
    ],
    "conv_transpose": [
        ("plain", [(1, 2, 3), (1, 2, 2, 2), (2,)], (2, 3, 4), {}),
        ("no bias", [(2, 3), (2, 1, 2), None], (1, 6), options(stride=2)),
        (
            "asymmetric",
            [(1, 3, 2), (1, 1, 3, 2), (1,)],
            (1, 6, 3),
            options(stride=(2, 3), padding=((1, 0), (0, 2))),
        ),
        ("wide padding", [(1, 4), (1, 1, 3), (1,)], (1, 4), options(stride=2, padding=((3, 2),))),
        (
            "output padding",
            [(1, 2, 2), (1, 1, 2, 3), (1,)],
            (1, 7, 6),
            options(stride=(3, 2), output_padding=(2, 1)),
        ),
        (
            "output padding above the stride",
            [(1, 3), (1, 1, 2), None],
            (1, 10),
            options(stride=2, output_padding=2, dilation=3),
        ),
        (
            "dilated",
            [(1, 2, 3), (1, 1, 2, 2), None],
            (1, 2, 7),
            options(stride=(1, 2), padding=(1, (0, 1)), dilation=(2, 3)),
        ),
        ("groups", [(4, 3), (4, 3, 2), (6,)], (6, 4), options(groups=2)),
        ("groups in a plane", [(4, 1, 2), (4, 1, 2, 2), None], (2, 2, 3), options(groups=2)),
        ("depthwise", [(2, 2, 2), (2, 1, 2, 2), None], (2, 4, 4), options(stride=2, groups=2)),
        ("one cell", [(1, 1), (1, 1, 3), None], (1, 3), {}),
        ("batch", [(2, 1, 2, 2), (1, 2, 2, 1), (2,)], (2, 2, 3, 2), {}),
        ("several leads", [(2, 1, 2, 2), (2, 1, 2), (1,)], (2, 1, 1, 3), {}),
        ("empty batch", [(0, 2, 3), (2, 1, 2), (1,)], (0, 1, 4), {}),
        ("no input channels", [(2, 0, 3), (0, 1, 2), (1,)], (2, 1, 4), {}),
        ("no output channels", [(1, 3), (1, 0, 2), (0,)], (0, 4), {}),
        ("rank 0", [(2, 3), (3, 2), (2,)], (2, 2), {}),
        ("rank 3", [(1, 2, 1, 2), (1, 2, 1, 2, 2), (2,)], (2, 2, 2, 4), options(stride=(1, 1, 2))),
        ("rank 4", [(1, 1, 2, 1, 2), (1, 1, 2, 1, 1, 2), None], (1, 2, 2, 1, 3), {}),
        (
            "rank 5",
            [(1, 1, 2, 1, 1, 2), (1, 1, 1, 2, 1, 1, 2), (1,)],
            (1, 1, 3, 1, 1, 4),
            options(stride=(1, 1, 1, 1, 2)),
        ),
    ],
    "max_unpool": [
        ("plain", [(3,), Places((3,), 4)], (4,), options(output_size=(4,))),
        ("shared winners", [(2, 3), Places((2, 3), 4)], (2, 2), options(output_size=(2, 2))),
        ("leads", [(2, 3), Places((2, 3), 3)], (2, 3), options(output_size=(3,))),
        ("several leads", [(2, 1, 2), Places((2, 1, 2), 2)], (2, 1, 2), options(output_size=(2,))),
        ("one cell", [(2,), Places((2,), 1)], (1,), options(output_size=(1,))),
        ("empty batch", [(0, 2), Places((0, 2), 3)], (0, 3), options(output_size=(3,))),
        ("rank 0", [(3,), Places((3,), 1)], (3,), options(output_size=())),
        ("rank 3", [(1, 2, 2), Places((1, 2, 2), 8)], (2, 2, 2), options(output_size=(2, 2, 2))),
        ("rank 4", [(1, 2, 1, 2), Places((1, 2, 1, 2), 3)], (1, 3, 1, 1), options(output_size=(1, 3, 1, 1))),
        (
            "rank 5",
            [(1, 2, 1, 1, 1), Places((1, 2, 1, 1, 1), 2)],
            (1, 1, 2, 1, 1),
            options(output_size=(1, 1, 2, 1, 1)),
        ),
    ],
    "max_gather": [
        ("plain", [(4,), Places((3,), 4)], (3,), options(rank=1)),
        ("shared winners", [(2, 2), Places((3, 2), 4)], (3, 2), options(rank=2)),
        ("leads", [(2, 3), Places((2, 5), 3)], (2, 5), options(rank=1)),
        ("several leads", [(2, 1, 2), Places((2, 1, 3), 2)], (2, 1, 3), options(rank=1)),
        ("one cell", [(1,), Places((3,), 1)], (3,), options(rank=1)),
        ("empty batch", [(0, 2), Places((0, 3), 2)], (0, 3), options(rank=1)),
        ("rank 0", [(3,), Places((3,), 1)], (3,), options(rank=0)),
        ("rank 3", [(2, 2, 2), Places((1, 2, 2), 8)], (1, 2, 2), options(rank=3)),
        ("rank 4", [(1, 3, 1, 1), Places((1, 2, 1, 2), 3)], (1, 2, 1, 2), options(rank=4)),
        ("rank 5", [(1, 1, 2, 1, 1), Places((1, 2, 1, 1, 1), 2)], (1, 2, 1, 1, 1), options(rank=5)),
    ],
    "unfold": [
        ("plain", (1, 3), (2, 2), options(kernel_size=(2,))),
        ("asymmetric", (2, 3, 3), (8, 8), options(kernel_size=(2, 2), padding=((1, 0), (0, 2)), stride=(2, 1))),
        ("dilated", (1, 4, 5), (6, 4), options(kernel_size=(2, 3), dilation=(2, 1), stride=(1, 2))),
        ("not divisible", (1, 6), (2, 2), options(kernel_size=(2,), stride=3)),
        ("same", (1, 3, 2), (4, 6), options(kernel_size=(2, 2), padding="same")),
        ("one cell", (1, 1), (2, 2), options(kernel_size=(2,), padding=1)),
        ("several leads", (2, 1, 2, 3), (2, 1, 4, 2), options(kernel_size=(2,))),
        ("empty batch", (0, 1, 3), (0, 2, 2), options(kernel_size=(2,))),
        ("no channels", (0, 3), (0, 2), options(kernel_size=(2,))),
        ("rank 0", (3,), (3, 1), options(kernel_size=())),
        ("rank 3", (2, 2, 1, 3), (8, 2), options(kernel_size=(2, 1, 2))),
        ("rank 4", (1, 2, 1, 2, 2), (4, 4), options(kernel_size=(2, 1, 1, 2), padding=(0, 0, 0, (1, 0)))),
        ("rank 5", (1, 1, 2, 1, 1, 2), (2, 4), options(kernel_size=(1, 2, 1, 1, 1), stride=2, padding=(0, 1, 0, 0, 1))),
    ],
    "fold": [
        ("plain", (2, 2), (1, 3), options(output_size=(3,), kernel_size=(2,))),
        (
            "asymmetric",
            (8, 8),
            (2, 3, 3),
            options(output_size=(3, 3), kernel_size=(2, 2), padding=((1, 0), (0, 2)), stride=(2, 1)),
        ),
        (
            "dilated",
            (6, 4),
            (1, 4, 5),
            options(output_size=(4, 5), kernel_size=(2, 3), dilation=(2, 1), stride=(1, 2)),
        ),
        ("not divisible", (2, 2), (1, 6), options(output_size=(6,), kernel_size=(2,), stride=3)),
        ("same", (4, 6), (1, 3, 2), options(output_size=(3, 2), kernel_size=(2, 2), padding="same")),
        ("one cell", (2, 2), (1, 1), options(output_size=(1,), kernel_size=(2,), padding=1)),
        ("several leads", (2, 1, 4, 2), (2, 1, 2, 3), options(output_size=(3,), kernel_size=(2,))),
        ("empty batch", (0, 2, 2), (0, 1, 3), options(output_size=(3,), kernel_size=(2,))),
        ("no channels", (0, 2), (0, 3), options(output_size=(3,), kernel_size=(2,))),
        ("rank 0", (3, 1), (3,), options(output_size=(), kernel_size=())),
        ("rank 3", (8, 2), (2, 2, 1, 3), options(output_size=(2, 1, 3), kernel_size=(2, 1, 2))),
        ("rank 4", (4, 2), (1, 2, 1, 2, 2), options(output_size=(2, 1, 2, 2), kernel_size=(2, 1, 1, 2))),
        ("rank 5", (2, 2), (1, 1, 2, 1, 1, 2), options(output_size=(1, 2, 1, 1, 2), kernel_size=(1, 2, 1, 1, 1))),
    ],
}

CASES = tuple(
    traits.case(operator, variant, *row)
    for operator, traits in TRAITS.items()
    for row in ROWS[operator]
    for variant in traits.variants
)
