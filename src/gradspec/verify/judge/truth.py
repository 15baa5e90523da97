"""What is true of a case: values of its network at points of its box, exact ones, and such as kernels give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from gradspec.conformance.cases.numbers import generator
from gradspec.conformance.model.arithmetic import Arithmetic
from gradspec.conformance.model.attributes import spelled
from gradspec.conformance.model.problem import Array
from gradspec.conformance.oracle import meaning
from gradspec.conformance.targets.program import scope_of
from gradspec.domains.ball import ball, endpoints
from gradspec.domains.exact import exact
from gradspec.runtime.evaluate import evaluate
from gradspec.transforms.functions import vjp
from gradspec.verify.judge.cases import BoundsCase, box_of, weights_of
from gradspec.verify.judge.networks import MODULES, network
from gradspec.verify.judge.targets import EXACT, KERNEL, PERMITTED
from gradspec.verify.rationals import rounded_down, rounded_up

STEERED = 3
"""Outputs that are driven to both their ends."""
PERMITTED_POINTS = 3
ROUNDING = 2.0**-14
"""Of all that is added up: what lies outside by less is called a matter of rounding."""


@dataclass(frozen=True)
class Values:
    """At every point, for every output: a float that is no more than the value, and one that is no less."""

    below: Array
    above: Array


class Truth:
    """The network of a case, points of its box, and the values there, each kind worked out when it is asked for."""

    def __init__(self, case: BoundsCase) -> None:
        self.case = case
        self.box = box_of(case)
        self.weights = weights_of(case)
        self.scope = scope_of(network(case), {**MODULES, **self.weights})
        self.graph = self.scope["graph"]
        self.shape = self.graph.outputs[0].shape

    @cached_property
    def points(self) -> list[Array]:
        """Both ends, the middle, corners and dyadic points between; corners that drive some outputs furthest."""
        (low, high), rng = self.box, generator(self.case.seed, 3)
        shares = [np.full(low.shape, share) for share in (0.0, 1.0, 0.5)]
        shares += [rng.integers(0, 2, low.shape).astype(np.float64) for _ in range(2)]
        shares += [rng.integers(0, 9, low.shape) / 8 for _ in range(2)]
        shares += self._steered(rng)
        found = (low.astype(np.float64) + (high.astype(np.float64) - low) * share for share in shares)
        return [np.clip(x.astype(np.float32), low, high) for x in found]

    def _steered(self, rng: np.random.Generator) -> Iterator[Array]:
        low, high = self.box
        value, pull = vjp(self.scope["net"], low / 2 + high / 2)
        for place in rng.permutation(value.size)[:STEERED]:
            g = np.zeros(value.size, np.float32)
            g[place] = 1
            (slopes,) = pull(g.reshape(value.shape))
            yield (slopes > 0).astype(np.float64)
            yield (slopes < 0).astype(np.float64)

    def values(self, kind: str) -> Values:
        return {EXACT: self.exact, KERNEL: self.kernel, PERMITTED: self.permitted}[kind]

    @cached_property
    def exact(self) -> Values:
        """Rationals; a ball where a smooth maximum is none."""
        is_rational = "smooth_max_pool" not in self.case.ops
        domain = exact if is_rational else ball(128)
        ends = [self._ends(evaluate(self.graph, x, domain=domain).cells, is_rational) for x in self.points]
        return _outside(ends)

    @staticmethod
    def _ends(cells: Sequence[Any], is_rational: bool) -> list[tuple[Any, Any]]:
        return [(cell, cell) if is_rational else endpoints(cell.arb) for cell in cells]

    @cached_property
    def kernel(self) -> Values:
        """What our compiled kernels give."""
        rows = np.stack([self.graph(x).ravel().astype(np.float64) for x in self.points])
        return Values(rows, rows)

    @cached_property
    def permitted(self) -> Values:
        """For a single operator, the least and the largest float32 that the certified tolerance permits."""
        ((_, problem), *_), names = self.case.shapes(), ("weight0", "bias0")
        if len(self.case.steps) > 1 or problem is None:
            return self.kernel
        below, above = [], []
        for x in self.points[:PERMITTED_POINTS]:
            operands = [x, *map(self.weights.get, names)] if "conv" in problem.op else [x]
            means = meaning(problem.op, *operands, **spelled(problem))
            found = [means.permitted_at(place, Arithmetic.of("f32")) for place in range(int(np.prod(self.shape)))]
            below.append(rounded_up([_fraction(p.low) for p in found], np.float32))
            above.append(rounded_down([_fraction(p.high) for p in found], np.float32))
        return Values(np.stack(below).astype(np.float64), np.stack(above).astype(np.float64))

    @cached_property
    def rounding(self) -> float:
        """What is lost to rounding at most, roughly: a share of the network's value with all signs positive."""
        positive = {name: np.abs(array) for name, array in self.weights.items()}
        graph = scope_of(network(self.case), {**MODULES, **positive})["graph"]
        mass = np.max(np.abs(graph(np.maximum(*map(np.abs, self.box)))), initial=0.0)
        return float(mass) * ROUNDING + 2.0**-126


def _outside(rows: list[list[tuple[Any, Any]]]) -> Values:
    """Floats around exact ends. A float bounds a number from below iff it bounds the largest float that is no more."""
    below = [rounded_down([_fraction(low) for low, _ in row]) for row in rows]
    above = [rounded_up([_fraction(high) for _, high in row]) for row in rows]
    return Values(np.stack(below), np.stack(above))


def _fraction(number: Any) -> Fraction:
    return Fraction(int(number.p), int(number.q))
