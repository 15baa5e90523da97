"""A row of the operator table: a function of variables, and the data its laws are tried on."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from random import Random
from typing import Any

import numpy as np

import gradspec as gs

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Integers:
    """An integer input with values from ``low`` to ``high``, inclusive."""

    shape: Shape
    low: int
    high: int

    def draw(self, random: Random) -> np.ndarray:
        return np.array([random.randint(self.low, self.high) for _ in range(prod(self.shape))], np.int64).reshape(
            self.shape
        )


@dataclass(frozen=True)
class GraphCase:
    """One use of one or several operators.

    ``data`` names the kind of numbers: ``"distinct"`` (no ties, no zeros), ``"tied"`` (few values, zero among them; for
    operators without kinks), ``"positive"`` (where logarithms and roots live) or ``"wide"`` (clear of ±1, ±2 and 0).
    """

    id: str
    function: Callable[..., Any]
    inputs: tuple[Shape | Integers, ...]
    data: str = "distinct"
    irrational: bool = False
    """The operator leaves the rationals (exp, sqrt, …), so its laws are tried on balls."""

    @property
    def domain(self) -> gs.domains.Domain:
        return gs.ball(200) if self.irrational else gs.exact

    def graph(self, dtype=gs.f64):
        types = [gs.i64[s.shape] if isinstance(s, Integers) else dtype[s] for s in self.inputs]
        return gs.trace(self.function, *types)

    @property
    def floats(self) -> list[int]:
        return [i for i, s in enumerate(self.inputs) if not isinstance(s, Integers)]

    def arrays(self, seed: str = "") -> list[np.ndarray]:
        """Dyadic numbers in float64, so that every domain reads the same values."""
        random = Random(f"{self.id} {seed}")
        return [s.draw(random) if isinstance(s, Integers) else dyadics(s, random, self.data) for s in self.inputs]


def dyadics(shape: Shape, random: Random, kind: str) -> np.ndarray:
    count = prod(shape)
    values = {
        "distinct": lambda: [Fraction(2 * n + 1, 16) for n in random.sample(range(-2 * count, 2 * count + 2), count)],
        "tied": lambda: [Fraction(random.randint(-2, 2), 2) for _ in range(count)],
        "positive": lambda: [Fraction(n, 8) for n in random.sample(range(1, 3 * count + 2), count)],
        "wide": lambda: [Fraction(8 * random.randint(-4, 3) + random.choice((3, 5)), 8) for _ in range(count)],
    }[kind]()
    return np.array([float(v) for v in values]).reshape(shape)
