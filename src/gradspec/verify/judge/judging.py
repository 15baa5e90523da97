"""Whether bounds contain the values of a network at points of its box, and how wide they are."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cached_property, partial
from math import prod
from typing import Any

import numpy as np

from gradspec.conformance.cases.numbers import generator
from gradspec.conformance.checks.repeat import describe_error
from gradspec.conformance.model.arithmetic import Arithmetic
from gradspec.conformance.model.codec import encode
from gradspec.conformance.model.geometry import spelled
from gradspec.conformance.model.problem import Array
from gradspec.conformance.model.target import NotOfferedError
from gradspec.conformance.model.verdict import Finding, Verdict
from gradspec.conformance.oracle import meaning
from gradspec.conformance.targets.program import literal, scope_of
from gradspec.domains.ball import ball, endpoints
from gradspec.domains.exact import exact
from gradspec.runtime.evaluate import evaluate
from gradspec.transforms.functions import vjp
from gradspec.verify.judge.cases import BoundsCase, Ends, box_of, weights_of
from gradspec.verify.judge.targets import MODULES, BoundsTarget, network
from gradspec.verify.property import round_down, round_up

RULES = {
    "exact": "bounds contain the exact value at every point of the box",
    "kernel": "bounds contain what our compiled kernels, which conform, give at every point of the box",
    "permitted": "bounds for any kernel contain every result that the certified tolerance permits",
    "shape": "there is a bound for every output",
    "nan": "a bound is a number",
    "error": "a box is bounded, or refused",
    "bad box": "a box that is none is an error that says so",
}
AS_ROUNDING, MORE_THAN_ROUNDING = "wrong by as little as a rounding", "wrong by more than rounding explains"
STEERED = 3
"""The number of outputs that are driven to both their ends."""
PERMITTED_POINTS = 3
ROUNDING = 2.0**-14
"""A bound that is wrong by less than this share of all that is added up may be wrong by rounding alone."""


class Truth:
    """The network of a case, points of its box and the values there, each kind computed when it is needed.

    Values are pairs of arrays with a row for each point: floats that are no more than the values, and no less.
    """

    def __init__(self, case: BoundsCase) -> None:
        self.case, self.box, self.weights = case, box_of(case), weights_of(case)
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
        shares += self._steered_corners(rng)
        points = (low.astype(np.float64) + (high.astype(np.float64) - low) * share for share in shares)
        return [np.clip(x.astype(np.float32), low, high) for x in points]

    def _steered_corners(self, rng: np.random.Generator) -> Iterator[Array]:
        low, high = self.box
        value, pull = vjp(self.scope["net"], low / 2 + high / 2)
        for place in rng.permutation(value.size)[:STEERED]:
            g = np.zeros(value.size, np.float32)
            g[place] = 1
            (slopes,) = pull(g.reshape(value.shape))
            yield (slopes > 0).astype(np.float64)
            yield (slopes < 0).astype(np.float64)

    @cached_property
    def exact(self) -> Ends:
        """Rationals, or balls for a smooth maximum, rounded outward: a bound of a number bounds those floats, too."""
        if "smooth_max_pool" in self.case.ops:
            rows = [[endpoints(c.arb) for c in evaluate(self.graph, x, domain=ball(128)).cells] for x in self.points]
        else:
            rows = [[(c, c) for c in evaluate(self.graph, x, domain=exact).cells] for x in self.points]
        below = [round_down([_fraction(low) for low, _ in row]) for row in rows]
        return np.stack(below), np.stack([round_up([_fraction(high) for _, high in row]) for row in rows])

    @cached_property
    def kernel(self) -> Ends:
        """What our compiled kernels give."""
        rows = np.stack([self.graph(x).ravel().astype(np.float64) for x in self.points])
        return rows, rows

    @cached_property
    def permitted(self) -> Ends:
        """For a single operator, the least and the largest float32 that the certified tolerance permits."""
        step, *more = self.case.steps
        if more or step.signature:
            return self.kernel
        operands = map(self.weights.get, ("weight0", "bias0")) if "conv" in step.op else ()
        below, above, weights = [], [], [*operands]
        for x in self.points[:PERMITTED_POINTS]:
            means = meaning(step.op, x, *weights, **spelled(step))
            limits = [means.permitted_at(place, Arithmetic.of("f32")) for place in range(prod(self.shape))]
            below.append(round_up([_fraction(limit.low) for limit in limits], np.float32))
            above.append(round_down([_fraction(limit.high) for limit in limits], np.float32))
        return np.stack(below).astype(np.float64), np.stack(above).astype(np.float64)

    @cached_property
    def rounding(self) -> float:
        """What is lost to rounding at most, roughly: a share of the network's value with all signs positive."""
        positive = {name: np.abs(array) for name, array in self.weights.items()}
        graph = scope_of(network(self.case), {**MODULES, **positive})["graph"]
        mass = np.max(np.abs(graph(np.maximum(*map(np.abs, self.box)))), initial=0.0)
        return float(mass) * ROUNDING + 2.0**-126


def _fraction(number: Any) -> Fraction:
    return Fraction(int(number.p), int(number.q))


# --- verdicts ---------------------------------------------------------------------------------------------------------


def judge(target: BoundsTarget, method: str, truth: Truth) -> tuple[Finding | None, list[float]]:
    """The defect of bounds, if any, and their widths over the ranges of exact values that are more than rounding.

    It raises ``NotOfferedError`` or ``NotImplementedError`` where the target refuses the case.
    """
    if (refusal := target.refusal(truth.case)) is not None:
        raise NotOfferedError(refusal)
    defect, shape = partial(_finding, target, method, truth), truth.shape
    try:
        lower, upper = map(np.asarray, target.bounds(truth.case, method, truth.box))
    except (NotOfferedError, NotImplementedError):
        raise
    except Exception as error:
        return defect("error", describe_error(error), "bounds"), []
    if lower.shape != shape or upper.shape != shape:
        return defect("shape", f"shapes {lower.shape} and {upper.shape}", f"shape {shape}"), []
    ends = lower.ravel().astype(np.float64), upper.ravel().astype(np.float64)
    if np.isnan(ends).any():
        return defect("nan", f"[{lower.tolist()}, {upper.tolist()}]", "numbers"), []
    below, above = truth.exact
    ranges = below.max(axis=0) - above.min(axis=0)
    clear = ranges > truth.rounding
    defects = (_excluded_value(kind, truth, ends, defect) for kind in target.methods[method])
    return next(filter(None, defects), None), ((ends[1] - ends[0])[clear] / ranges[clear]).tolist()


def _excluded_value(kind: str, truth: Truth, ends: Ends, defect: Callable[..., Finding]) -> Finding | None:
    """The value that lies furthest outside."""
    below, above = getattr(truth, kind)
    beyond = np.maximum(ends[0] - below, above - ends[1])
    beyond[np.isnan(beyond)] = 0.0  # infinite ends on their own side
    at, place = np.unravel_index(np.argmax(beyond), beyond.shape)
    if not beyond[at, place] > 0:
        return None
    side, values = ("below", below) if ends[0][place] > below[at, place] else ("above", above)
    where = ", ".join(map(str, np.unravel_index(place, truth.shape)))
    return defect(
        kind,
        f"output [{where}] within [{float(ends[0][place])!r}, {float(ends[1][place])!r}]",
        f"the {kind} value {float(values[at, place])!r} (rounded to float64), {side} it by {beyond[at, place]:.3g}",
        size=AS_ROUNDING if beyond[at, place] <= truth.rounding else MORE_THAN_ROUNDING,
        point=f"# x = {literal(truth.points[at])}\n",
    )


def accepted_bad_boxes(target: BoundsTarget, method: str, truth: Truth) -> Iterator[Finding]:
    """The invalid boxes that the target accepts, or refuses with an error about something else."""
    lower, upper = truth.box
    swapped, nan = lower.copy(), lower.copy()
    swapped.flat[0], nan.flat[0] = upper.flat[0] + 1, np.nan
    boxes = {
        "the lower end above the upper one": ((swapped, upper), "lower|upper|empty|swap"),
        "a NaN for an end": ((nan, upper), "nan"),
        "ends of another shape": ((lower[..., :0], upper[..., :0]), "shape|size|dimension"),
    }
    for name, (box, words) in boxes.items():
        try:
            got = f"bounds {[end.tolist() for end in target.bounds(truth.case, method, box)]}"
        except Exception as error:
            if re.search(words, str(error), re.IGNORECASE):
                continue
            got = describe_error(error)
        defect = _finding(target, method, truth, "bad box", got, f"an error that names {name}", box)
        yield replace(defect, causes=(name,))


def _finding(
    target: BoundsTarget,
    method: str,
    truth: Truth,
    rule: str,
    got: str,
    right: str,
    box: Ends | None = None,
    size: str = "",
    point: str = "",
) -> Finding:
    case, verdict = truth.case, Verdict("defect", RULES[rule], size, got=got, expected=right)
    program = target.reproducer(case, method, box or truth.box)
    return Finding.of(
        verdict,
        method,
        "value",
        features=case.features,
        case=encode(case),
        causes=case.needs,
        title=f"{' → '.join(case.ops)}, {method}",
        reproducer=f"{program}\n{point}# {got}\n# right: {right}",
    )
