"""Intervals with float64 ends, rounded outward, and only where an operation was inexact."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

from flint import arb

from gradspec.domains.ball import (
    arb_normal_cdf,
    arb_normal_density,
    arb_power,
    endpoints,
    float_power_ratio,
    turning_points,
    working,
)
from gradspec.domains.domain import Domain
from gradspec.domains.enclosure import candidates, possible_order
from gradspec.domains.exact import rational, rational_or_special
from gradspec.domains.formats import float_above, float_below
from gradspec.spec.errors import DTypeError, UnsupportedError
from gradspec.spec.scalar import (
    Choice,
    Scalar,
    choose_among,
    cos,
    embed,
    ends,
    erf,
    exp,
    float_power,
    floor,
    hull,
    increasing,
    larger,
    log,
    log1p,
    nearest_integer,
    normal_cdf,
    normal_density,
    order,
    pivot,
    power,
    sin,
    sqrt,
    tanh,
)
from gradspec.spec.tensor import Tensor, TensorLike, require_shape


class IntervalDomain(Domain):
    """Intervals of real numbers.

    >>> import gradspec as gs
    >>> x = gs.interval.tensor([1.0, 2.0, 5.0], [4.0, 3.0, 6.0])
    >>> gs.spec.max_pool(x, (2,), 1).tolist()
    [[2.0, 4.0], [5.0, 6.0]]
    """

    name = "interval"

    def scalar(self, value: Scalar) -> Interval:
        return _enclose(value)

    def tensor(self, data: TensorLike, upper: TensorLike | None = None) -> Tensor:
        """Enclosures of the numbers in ``data``, or the intervals from ``data`` to ``upper``."""
        low = super().tensor(data)
        if upper is None:
            return low
        high = super().tensor(upper)
        require_shape("upper", high, low.shape)
        return Tensor(low.shape, (Interval(a.lo, b.hi) for a, b in zip(low.cells, high.cells, strict=True)))


class Interval:
    """All real numbers from ``lo`` to ``hi``. Comparisons are True only when certain."""

    __slots__ = ("hi", "lo")
    __array_ufunc__ = None

    def __init__(self, lo: float, hi: float) -> None:
        if not lo <= hi:
            raise ValueError(f"[{lo}, {hi}] is no interval: the ends must be numbers, the lower one first")
        self.lo, self.hi = lo + 0.0, hi + 0.0  # −0.0 becomes 0.0: the ends are bounds, their sign says nothing

    def __add__(self, other: Scalar) -> Interval:
        that = _enclose(other)
        return Interval(_sum_below(self.lo, that.lo), -_sum_below(-self.hi, -that.hi))

    __radd__ = __add__

    def __neg__(self) -> Interval:
        return Interval(-self.hi, -self.lo)

    def __abs__(self) -> Interval:
        low, high = sorted((abs(self.lo), abs(self.hi)))
        return Interval(0.0 if self.lo <= 0 <= self.hi else low, high)

    def __sub__(self, other: Scalar) -> Interval:
        return self + -_enclose(other)

    def __rsub__(self, other: Scalar) -> Interval:
        return _enclose(other) + -self

    def __mul__(self, other: Scalar) -> Interval:
        that = _enclose(other)
        corners = [(a, b) for a in (self.lo, self.hi) for b in (that.lo, that.hi)]
        return Interval(min(_product_below(a, b) for a, b in corners), max(-_product_below(-a, b) for a, b in corners))

    __rmul__ = __mul__

    def __truediv__(self, other: Scalar) -> Interval:
        that = _enclose(other)
        if that.lo <= 0 <= that.hi:
            raise ZeroDivisionError(
                f"{self} / {that}: the divisor contains zero, so the quotient has no bounds; narrow it"
            )
        corners = [(a, b) for a in (self.lo, self.hi) for b in (that.lo, that.hi)]
        return Interval(
            min(_quotient_below(a, b) for a, b in corners), max(-_quotient_below(-a, b) for a, b in corners)
        )

    def __rtruediv__(self, other: Scalar) -> Interval:
        return _enclose(other) / self

    def __gt__(self, other: Scalar) -> bool:
        return self.lo > _enclose(other).hi

    def __lt__(self, other: Scalar) -> bool:
        return self.hi < _enclose(other).lo

    def __eq__(self, other: object) -> bool:
        try:
            that = _enclose(other)
        except DTypeError:
            return NotImplemented
        return self.lo == self.hi == that.lo == that.hi

    __hash__ = None  # type: ignore[assignment]  # equality is certainty, not identity

    def contains(self, value: Scalar) -> bool:
        """Whether a number, or all of another interval, lies inside."""
        if isinstance(value, Interval):
            return self.lo <= value.lo and value.hi <= self.hi
        number = rational_or_special(value)
        if isinstance(number, float):
            return self.lo <= number <= self.hi
        above = self.lo == -math.inf or (self.lo < math.inf and rational(self.lo) <= number)
        return above and (self.hi == math.inf or (self.hi > -math.inf and number <= rational(self.hi)))

    @property
    def width(self) -> float:
        """An upper bound of ``hi − lo``."""
        return -_sum_below(self.lo, -self.hi)

    def __float__(self) -> float:
        if self.lo != self.hi:
            raise ValueError(f"{self} is not a single number; use .lo, .hi or .width")
        return self.lo

    def as_integer_ratio(self) -> tuple[int, int]:
        """The number, if the interval holds only one."""
        if self.lo != self.hi:
            raise UnsupportedError(f"{self} is not a single number; use .lo, .hi or .width, or compute with intervals")
        return self.lo.as_integer_ratio()

    def __repr__(self) -> str:
        return f"[{self.lo}, {self.hi}]"


def _sum_below(a: float, b: float) -> float:
    """A lower bound of ``a + b``, the sum itself where it is exact."""
    total = a + b
    if math.isinf(a) or math.isinf(b):
        return -math.inf if math.isnan(total) else total
    if math.isinf(total):
        return _below(a, b, lambda n, d, m, e: (n * e + m * d, d * e))
    # Two-sum: ``error`` is what rounding dropped, exactly.
    part = total - a
    error = (a - (total - part)) + (b - part)
    return total if error >= 0 else math.nextafter(total, -math.inf)


def _product_below(a: float, b: float) -> float:
    if a == 0 or b == 0:
        return 0.0  # an infinite end is a bound, not a value: zero times it is zero
    if math.isinf(a) or math.isinf(b):
        return a * b
    return _below(a, b, lambda n, d, m, e: (n * m, d * e))


def _quotient_below(a: float, b: float) -> float:
    if a == 0 or math.isinf(b):
        return 0.0  # the quotients by the divisor's finite end bound everything in between
    if math.isinf(a):
        return a if b > 0 else -a
    return _below(a, b, lambda n, d, m, e: (n * e, d * m) if m > 0 else (-n * e, -d * m))


def _below(a: float, b: float, exactly: Callable[[int, int, int, int], tuple[int, int]]) -> float:
    return float_below(*exactly(*a.as_integer_ratio(), *b.as_integer_ratio()))


def _enclose(value: Any) -> Interval:
    if isinstance(value, Interval):
        return value
    if isinstance(value, int) and abs(value) <= 2**53:
        return Interval(float(value), float(value))
    number = value if isinstance(value, float) else rational_or_special(value)
    if isinstance(number, float):
        if math.isnan(number):
            raise ValueError("a NaN is not in any interval; remove NaNs first, or use gs.ieee to compute with them")
        return Interval(float(number), float(number))
    n, d = int(number.p), int(number.q)
    return Interval(float_below(n, d), float_above(n, d))


@embed.register
def _(like: Interval, value: Scalar) -> Interval:
    return _enclose(value)


@larger.register
def _(a: Interval, b: Interval) -> Interval:
    return Interval(max(a.lo, b.lo), max(a.hi, b.hi))


@hull.register
def _(a: Interval, b: Scalar) -> Interval:
    that = _enclose(b)
    return Interval(min(a.lo, that.lo), max(a.hi, that.hi))


@choose_among.register
def _(like: Interval, cells: Sequence[Interval], ties: str, strict: bool) -> Choice:
    return candidates([c.lo for c in cells], [c.hi for c in cells], ties, strict)


@order.register
def _(a: Interval, b: Scalar) -> tuple[int, ...]:
    that = _enclose(b)
    return possible_order((a.lo, a.hi), (that.lo, that.hi))


@ends.register
def _(x: Interval) -> tuple[float, float]:
    return x.lo, x.hi


@pivot.register
def _(x: Interval) -> Interval:
    middle = x.lo / 2 + x.hi / 2
    return _enclose(middle if math.isfinite(middle) else next((e for e in (x.lo, x.hi) if math.isfinite(e)), 0.0))


@exp.register
def _(x: Interval) -> Interval:
    return Interval(_exp_ends(x.lo)[0], _exp_ends(x.hi)[1])


@log.register
def _(x: Interval) -> Interval:
    if x.lo < 0:
        raise ValueError(f"log of {x}: the logarithm is not real below 0; narrow the interval")
    return Interval(_log_ends(x.lo)[0], _log_ends(x.hi)[1])


@log1p.register
def _(x: Interval) -> Interval:
    if x.lo < -1:
        raise ValueError(f"log1p of {x}: the logarithm is not real below 0; narrow the interval")
    return Interval(_log1p_ends(x.lo)[0], _log1p_ends(x.hi)[1])


@tanh.register
def _(x: Interval) -> Interval:
    low, high = _outward(lambda: arb(x.lo).tanh())[0], _outward(lambda: arb(x.hi).tanh())[1]
    return Interval(max(low, -1.0), min(high, 1.0))


@sin.register
def _(x: Interval) -> Interval:
    return _wave(x, arb.sin, 1)


@cos.register
def _(x: Interval) -> Interval:
    return _wave(x, arb.cos, 0)


def _wave(x: Interval, function: Callable[[arb], arb], quarters: int) -> Interval:
    """A sine by its ends and by where it turns between them; a double may lie within 2⁻⁶⁰ of where it is 0."""
    if math.isinf(x.lo) or math.isinf(x.hi):
        return Interval(-1.0, 1.0)
    values = [_outward(partial(function, arb(end)), 160) for end in (x.lo, x.hi)]
    values += [(float(turn), float(turn)) for turn in turning_points(arb(x.lo), arb(x.hi), quarters)]
    return Interval(max(min(low for low, _ in values), -1.0), min(max(high for _, high in values), 1.0))


@erf.register
def _(x: Interval) -> Interval:
    return Interval(_erf_ends(x.lo)[0], _erf_ends(x.hi)[1])


@normal_cdf.register
def _(x: Interval) -> Interval:
    return Interval(_normal_cdf_ends(x.lo)[0], _normal_cdf_ends(x.hi)[1])


@floor.register
def _(x: Interval) -> Interval:
    return Interval(floor(x.lo), floor(x.hi))


@nearest_integer.register
def _(x: Interval) -> Interval:
    return Interval(nearest_integer(x.lo), nearest_integer(x.hi))


@normal_density.register
def _(x: Interval) -> Interval:
    size = abs(x)
    return Interval(_normal_density_ends(size.hi)[0], _normal_density_ends(size.lo)[1])


@increasing.register
def _(x: Interval, function: Callable[[Interval], Interval]) -> Interval:
    return Interval(function(Interval(x.lo, x.lo)).lo, function(Interval(x.hi, x.hi)).hi)


@sqrt.register
def _(x: Interval) -> Interval:
    return power(x, Fraction(1, 2))  # type: ignore[no-any-return]


@power.register
def _(x: Interval, p: int | float | Fraction) -> Interval:
    p = Fraction(p)
    if p.denominator > 1 and x.lo < 0:
        raise ValueError(f"{x} to the power {p} is not real below 0; narrow the interval")
    if p < 0 and x.lo <= 0 <= x.hi and (x.lo < 0 or p.denominator == 1):
        raise ZeroDivisionError(f"{x} to the power {p} is not bounded: the interval contains zero; narrow it")
    ends = [_power_ends(x.lo, p), _power_ends(x.hi, p)]
    turns = [(0.0, 0.0)] if p > 0 and p % 2 == 0 and x.lo < 0 < x.hi else []
    return Interval(min(low for low, _ in ends + turns), max(high for _, high in ends + turns))


def _power_ends(x: float, p: Fraction) -> tuple[float, float]:
    """Floats on either side of ``x^p``."""
    if x == 0 or math.isinf(x) or p == 0:
        exact = float_power(x, float(p))
        return exact, exact
    bits = float(p) * math.log2(abs(x))  # the exponent of the result, to within a unit
    if abs(bits) < 1100:
        ratio = float_power_ratio(x, p)
        return (float_below(*ratio), float_above(*ratio)) if ratio else _outward(lambda: arb_power(arb(x), p))
    low, high = (1.7976931348623157e308, math.inf) if bits > 0 else (0.0, 5e-324)
    return (-high, -low) if x < 0 and p % 2 == 1 else (low, high)


def _exp_ends(x: float) -> tuple[float, float]:
    """Floats on either side of ``exp(x)``."""
    if x > 710:
        return (math.inf if x == math.inf else 1.7976931348623157e308), math.inf
    if x < -746:
        return 0.0, (0.0 if x == -math.inf else 5e-324)
    return _outward(lambda: arb(x).exp())


def _log_ends(x: float) -> tuple[float, float]:
    if x == 0 or x == math.inf:
        return (-math.inf, -math.inf) if x == 0 else (math.inf, math.inf)
    return _outward(lambda: arb(x).log())


def _log1p_ends(x: float) -> tuple[float, float]:
    if x == -1 or x == math.inf:
        return (-math.inf, -math.inf) if x == -1 else (math.inf, math.inf)
    return _outward(lambda: arb(x).log1p())


def _erf_ends(x: float) -> tuple[float, float]:
    if abs(x) > 40:
        below = 1.0 if math.isinf(x) else math.nextafter(1.0, 0.0)
        return (below, 1.0) if x > 0 else (-1.0, -below)
    low, high = _outward(lambda: arb(x).erf())
    return max(low, -1.0), min(high, 1.0)


def _normal_cdf_ends(x: float) -> tuple[float, float]:
    if x < -40:
        return 0.0, (0.0 if x == -math.inf else 5e-324)
    if x > 40:
        return (1.0 if x == math.inf else math.nextafter(1.0, 0.0)), 1.0
    return _outward(lambda: arb_normal_cdf(arb(x)))


def _normal_density_ends(x: float) -> tuple[float, float]:
    if x > 40:
        return 0.0, (0.0 if x == math.inf else 5e-324)
    return _outward(lambda: arb_normal_density(arb(x)))


def _outward(evaluate: Callable[[], arb], bits: int = 80) -> tuple[float, float]:
    with working(bits):
        low, high = endpoints(evaluate())
    return float_below(int(low.p), int(low.q)), float_above(int(high.p), int(high.q))


interval = IntervalDomain()
