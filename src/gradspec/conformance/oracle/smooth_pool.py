"""Smooth max pooling on float arrays, in balls: there is no exact path, only narrower and narrower enclosures.

Most results of small formats are so far inside of what is permitted that float64 shows it; balls decide on the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
from flint import arb, ctx, fmpq

from gradspec import spec
from gradspec.backends.tables import ABSENT, hits, table, take
from gradspec.conformance.model.arithmetic import Arithmetic
from gradspec.conformance.model.problem import Array
from gradspec.conformance.oracle.meaning import (
    Bools,
    Decision,
    Floats,
    Meaning,
    MeaningRule,
    lead_of,
    planes_of,
    stored_errors,
)
from gradspec.conformance.oracle.pool import pooling_rule, sliding_window
from gradspec.conformance.oracle.tolerance import Permitted, gamma, power, stored_error
from gradspec.domains.ball import endpoints, working
from gradspec.domains.exact import rational
from gradspec.domains.formats import Format, format_named
from gradspec.spec.errors import UnsupportedError
from gradspec.spec.window import Window

BITS, MOST_BITS = 160, 4096
DEEP = 1 << 14


@dataclass(frozen=True, eq=False)
class Softmax:
    """One window around its pivot, as ``spec.smooth_pool`` defines it: exponents, their powers, the total, the weights.

    Balls of one are of the precision in which they are first asked for.
    """

    pivot: float
    exponents: tuple[fmpq | None, ...]
    """``zᵢ = β(xᵢ − c)`` exactly, None for −∞."""

    @staticmethod
    def of(cells: Sequence[float], beta: float) -> Softmax:
        pivot = max(cells) if beta > 0 else min(cells)
        if any(map(math.isnan, cells)):
            return Softmax(math.nan, ())
        return Softmax(pivot, tuple(_exponent(x, pivot, beta) for x in cells))

    def scaled(self, factor: fmpq) -> list[arb]:
        """``exp(zᵢ·factor)``."""
        return [arb(0) if z is None else _exp(z * factor) for z in self.exponents]

    @cached_property
    def powers(self) -> list[arb]:
        return self.scaled(fmpq(1))

    @cached_property
    def total(self) -> arb:
        return sum(self.powers, arb(0))

    @cached_property
    def weights(self) -> list[arb]:
        return [e / self.total for e in self.powers]


def _exp(z: fmpq) -> arb:
    """``exp z``; far below every format's smallest number an enclosure of it, which has fewer digits."""
    return arb(z).exp() if z > -DEEP else arb(0, arb(2) ** -DEEP)


def _exponent(x: float, pivot: float, beta: float) -> fmpq | None:
    if math.isinf(pivot) or math.isinf(x):
        return fmpq(0) if x == pivot else None
    return rational(beta) * (rational(x) - rational(pivot))


@dataclass(frozen=True)
class Slack:
    """The errors of one window's parts in floating point: of ``log A`` (λ), and of each weight (Bᵢ)."""

    log_total: arb
    weights: list[arb]

    @staticmethod
    def of(soft: Softmax, arithmetic: Arithmetic) -> Slack:
        n, u = len(soft.exponents), arithmetic.u
        eta, epsilon = rational(arithmetic.accumulate.tiniest), arithmetic.relative_error("exp")
        total, powers = soft.total, soft.powers
        # e^{zᵢ}·e^{|zᵢ|Γ₂}, in one exponential because zᵢ ≤ 0 may be huge.
        grown = soft.scaled(1 - gamma(u, 2))
        off = sum((g * arb((1 + epsilon) * power(u, n - 1)) - e for g, e in zip(grown, powers, strict=True)), arb(0))
        rho = (off + arb(2 * n * eta)) / total
        if not rho < 1:
            raise UnsupportedError(
                f"a smooth maximum of {n} cells accumulated in {arithmetic.accumulate.name} has no useful error bound; "
                "judge it with a wider accumulator"
            )
        factor = arb((1 + epsilon) * (1 + u)) / (1 - rho)
        weights = [(g * factor - e) / total + arb(2 * eta) for g, e in zip(grown, powers, strict=True)]
        return Slack(-(1 - rho).log(), weights)


class SmoothMax(Meaning):
    """The value (``mode="value"``), the JVP along ``other`` or the VJP of ``other``."""

    def __init__(
        self, x: Array, window: Window, beta: float, padding_mode: str, mode: str, other: Array | None = None
    ) -> None:
        self.taps, self.planes, self.mode = table(window), planes_of(x, window.rank), mode
        self.beta, self.zeros = beta, padding_mode == "zeros"
        self.other = np.zeros((len(self.planes), 0)) if other is None else planes_of(other, window.rank)
        self.shape = x.shape if mode == "vjp" else lead_of(x, window.rank) + window.outputs
        self.readers = hits(self.taps, self.planes.shape[1])
        self._known = lru_cache(maxsize=None)(self._make_softmax)
        self._slack = lru_cache(maxsize=None)(Slack.of)

    def _members(self, output: int) -> list[int]:
        """The taps that take part; negative ones are padding zeros."""
        return [int(t) for t in self.taps[output] if t >= 0 or (self.zeros and t != ABSENT)]

    def _softmax(self, plane: int, output: int, beta: float) -> Softmax | None:
        return self._known(plane, output, beta, ctx.prec)

    def _make_softmax(self, plane: int, output: int, beta: float, _: int) -> Softmax | None:
        cells = [float(self.planes[plane, t]) if t >= 0 else 0.0 for t in self._members(output)]
        return Softmax.of(cells, beta) if cells else None

    def _terms(self, place: int, beta: float) -> list[tuple[float, Softmax, int]]:
        """A derivative as a sum: ``(tangent or cotangent, window, its cell)``."""
        if self.mode == "jvp":
            plane, output = divmod(place, len(self.taps))
            soft, members = self._softmax(plane, output, beta), self._members(output)
            return [(float(self.other[plane, t]), soft, i) for i, t in enumerate(members) if t >= 0 and soft]
        plane, cell = divmod(place, self.planes.shape[1])
        outputs = [int(h) // self.taps.shape[1] for h in self.readers[cell] if h >= 0]
        read = [(o, soft) for o in outputs if (soft := self._softmax(plane, o, beta)) is not None]
        return [(float(self.other[plane, o]), soft, self._members(o).index(cell)) for o, soft in read]

    # --- the real result, and how far a kernel may be from it

    def _leaves(self, place: int, beta: float) -> list[arb] | float:
        """What the result adds up, as balls in the working precision, or the special number it is."""
        if self.mode == "value":
            soft = self._softmax(*divmod(place, len(self.taps)), beta)
            if soft is None:
                return []
            finite = math.isfinite(soft.pivot)
            return [arb(soft.pivot), soft.total.log() / arb(beta)] if finite else soft.pivot
        terms = self._terms(place, beta)
        special = _special_sum([c for c, _, _ in terms] + [s.pivot for _, s, _ in terms if math.isnan(s.pivot)])
        return special if special is not None else [arb(c) * s.weights[i] for c, s, i in terms]

    def _error(self, place: int, beta: float, arithmetic: Arithmetic) -> arb:
        u, eta = arithmetic.u, rational(arithmetic.accumulate.tiniest)
        if self.mode == "value":
            soft = self._softmax(*divmod(place, len(self.taps)), beta)
            if soft is None or not math.isfinite(soft.pivot):
                return arb(0)
            return _value_error(soft, self._slack(soft, arithmetic), beta, arithmetic)
        terms = self._terms(place, beta)
        n = len(self._members(place % len(self.taps))) if self.mode == "jvp" else len(terms)
        drift = spread = arb(0)
        for coefficient, soft, i in terms:
            off = self._slack(soft, arithmetic).weights[i]
            drift += abs(arb(coefficient)) * off
            spread += abs(arb(coefficient)) * (soft.weights[i] + off)
        return drift + arb(gamma(u, n + 1)) * spread + arb(n * eta)

    def permitted_at(self, place: int, arithmetic: Arithmetic) -> Permitted:
        _require_bound(arithmetic)
        beta = arithmetic.accumulate.nearest(self.beta)
        with working(BITS):
            leaves = self._leaves(place, beta)
            if isinstance(leaves, float):
                # An infinite tangent whose weight underflows to zero is 0 × ∞.
                nan = math.isnan(leaves) or self.mode != "value"
                return Permitted(None, None, leaves == math.inf, leaves == -math.inf, nan)
            (low, high), (_, error) = endpoints(sum(leaves, arb(0))), endpoints(self._error(place, beta, arithmetic))
            # A partial sum reaches no further than all leaves of one sign, and errs no more than the whole.
            reach = [sum((endpoints((sign * leaf).max(arb(0)))[1] for leaf in leaves), error) for sign in (1, -1)]
        storage, accumulate = arithmetic.storage, arithmetic.accumulate
        plus, minus = (bool(side >= arithmetic.accumulator_limits[1]) for side in reach)
        if storage != accumulate:
            error = max(stored_error(low, error, storage), stored_error(high, error, storage))
        edge = rational(storage.overflow)
        above, below = bool(high + error >= edge), bool(low - error <= -edge)
        return Permitted(low - error, high + error, plus or above, minus or below, plus and minus)

    def rounded(self, format: str | Format) -> Floats:
        to = format_named(format)
        beta = Arithmetic.of(to).accumulate.nearest(self.beta)
        places = range(int(np.prod(self.shape)))
        return np.asarray([self._rounded_at(place, beta, to) for place in places]).reshape(self.shape)

    def _rounded_at(self, place: int, beta: float, to: Format) -> float:
        bits = BITS
        while True:
            with working(bits):
                leaves = self._leaves(place, beta)
                if isinstance(leaves, float):
                    return leaves
                low, high = (to.nearest_ratio(int(end.p), int(end.q)) for end in endpoints(sum(leaves, arb(0))))
            if low == high or bits >= MOST_BITS:  # only a rational result can sit on a boundary for ever
                return high
            bits *= 2

    def _decide(self, got: Floats, arithmetic: Arithmetic) -> Decision:
        _require_bound(arithmetic)
        ok = self._surely_permitted(got, arithmetic)
        for place in np.flatnonzero(~ok).tolist():
            ok[place] = self.permitted_at(place, arithmetic).allows(float(got[place]))
        return Decision.of(ok, len(ok))

    def _surely_permitted(self, got: Floats, arithmetic: Arithmetic) -> Bools:
        """Where float64 suffices: the formulas of ``permitted_at``, with room for what evaluating them so may lose.

        Not where anything is not finite. An exponent is right to 2⁻⁵² of itself, and above −746 if its power is not 0:
        powers are right to 2⁻⁴² of themselves, weights to twice that, and sums of n of them to n·2⁻⁵³ more. The error
        that is permitted has positive terms only, so that a thousandth of it is more than it may be off.
        """
        u, eta = float(arithmetic.u), float(arithmetic.accumulate.tiniest)
        beta, is_cell = arithmetic.accumulate.nearest(self.beta), self.taps >= 0
        takes_part = is_cell | (self.zeros & (self.taps != ABSENT))
        count = takes_part.sum(-1)
        with np.errstate(all="ignore"):
            x = take(self.planes.astype(np.float64), self.taps)
            sign = np.copysign(1.0, beta)
            pivot = sign * np.max(np.where(takes_part, sign * x, -np.inf), -1)
            z = np.where(takes_part, beta * (x - pivot[..., None]), 0.0)
            e = np.where(takes_part, np.exp(z), 0.0)
            total = e.sum(-1)
            grown = np.log1p(float(arithmetic.relative_error("exp"))) - z * float(gamma(arithmetic.u, 2))
            off = (e * np.expm1(grown + np.log1p(u) * (count - 1)[:, None])).sum(-1)
            drift = -np.log1p(-(off + 2 * eta * count) / total)
            if self.mode == "value":
                more = np.log(total)
                y, mass = pivot + more / beta, np.abs(pivot) + (1 + more) / abs(beta)
                quotient = drift + float(arithmetic.relative_error("log")) * (more + drift) + u * more
                error = quotient / abs(beta) + eta + u * np.abs(y)
            else:
                weights = e / total[..., None]
                slack = weights * np.expm1(grown + (np.log1p(u) + drift)[..., None]) + 2 * eta
                y, mass, lost = self._added(weights, slack, is_cell)
                n = count if self.mode == "jvp" else np.bincount(self.taps[is_cell], minlength=self.planes.shape[1])
                error = lost + np.expm1(np.log1p(u) * (n + 1)) * (mass + lost) + n * eta
            if arithmetic.storage != arithmetic.accumulate:
                error = stored_errors(y, error, arithmetic.storage)
            room = 2.0**-38 + 2.0**-51 * max(self.taps.shape[1], self.readers.shape[1])
            surely: Bools = np.abs(got - y.ravel()) <= (0.999 * error - room * mass).ravel()
        return surely

    def _added(self, weights: Floats, slack: Floats, is_cell: Bools) -> tuple[Floats, Floats, Floats]:
        """Derivatives, what they add up, and what is lost with the weights."""
        other = self.other.astype(np.float64)
        if self.mode == "jvp":
            along = np.where(is_cell, take(other, self.taps), 0.0)
            size = np.abs(along)
            return (along * weights).sum(-1), (size * weights).sum(-1), (size * slack).sum(-1)
        cells = self.planes.shape[1]

        def read(terms: Floats) -> Floats:
            found = [np.bincount(self.taps[is_cell], t[is_cell], cells) for t in terms]
            return np.asarray(found, np.float64).reshape(len(terms), cells)

        along, size = other[..., None], np.abs(other[..., None])
        return read(along * weights), read(size * weights), read(size * slack)


def _require_bound(arithmetic: Arithmetic) -> None:
    if arithmetic.flush_to_zero or arithmetic.input_error:
        raise UnsupportedError(
            "no error bound is known for a smooth maximum with flushed results or rounded inputs; judge it without"
        )


def _value_error(soft: Softmax, slack: Slack, beta: float, arithmetic: Arithmetic) -> arb:
    u, eta = arb(arithmetic.u), arb(rational(arithmetic.accumulate.tiniest))
    epsilon, slope = arb(arithmetic.relative_error("log")), abs(arb(beta))
    log_total, drift = soft.total.log(), slack.log_total
    y = arb(soft.pivot) + log_total / arb(beta)
    quotient = (1 + u) * (drift + epsilon * (log_total + drift)) / slope + u * log_total / slope + eta
    return (1 + u) * quotient + u * abs(y)


def _special_sum(terms: Sequence[float]) -> float | None:
    """The sum of terms if one of them is not finite, and None otherwise."""
    special = [t for t in terms if not math.isfinite(t)]
    if not special:
        return None
    return math.nan if len(set(special)) > 1 or math.isnan(special[0]) else special[0]


def _smooth(mode: str, x: Array, *given: Any) -> Meaning:
    *other, window, beta, padding_mode = given
    spec.smooth_max_pool(np.zeros((1,) * window.rank), (1,) * window.rank, beta=beta, padding_mode=padding_mode)
    return SmoothMax(x, window, float(beta), padding_mode, mode, *other)


MEANINGS: dict[str, MeaningRule] = {
    f"smooth_max_pool{suffix}": pooling_rule(partial(_smooth, mode), sliding_window, ("beta", "padding_mode"))
    for suffix, mode in {"": "value", "_jvp": "jvp", "_vjp": "vjp"}.items()
}
