"""Intervals with float64 ends, rounded outward, and only where an operation was inexact."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from math import inf, isfinite, isinf, nextafter
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
from gradspec.domains.domain import Domain, candidates, possible_order
from gradspec.domains.exact import rational, rational_or_special
from gradspec.domains.formats import float_above, float_below
from gradspec.spec import scalar
from gradspec.spec.errors import DTypeError, UnsupportedError
from gradspec.spec.scalar import Choice, Scalar, ends
from gradspec.spec.tensor import Tensor, TensorLike, require_shape

LARGEST = sys.float_info.max


class IntervalDomain(Domain):
    """Intervals of real numbers.

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
    lo: float
    hi: float

    def __init__(self, lo: float, hi: float) -> None:
        if lo.__class__ is not float or hi.__class__ is not float:
            lo, hi = _enclose(lo).lo, _enclose(hi).hi
        if not lo <= hi:
            raise ValueError(f"[{lo}, {hi}] is no interval: the ends must be numbers, the lower one first")
        self.lo, self.hi = lo + 0.0, hi + 0.0  # −0.0 becomes 0.0: the ends are bounds, their sign says nothing

    def __add__(self, other: Scalar) -> Interval:
        that = other if other.__class__ is Interval else _enclose(other)
        return _between(_sum_below(self.lo, that.lo), 0.0 - _sum_below(-self.hi, -that.hi))

    __radd__ = __add__

    def __neg__(self) -> Interval:
        return _between(0.0 - self.hi, 0.0 - self.lo)

    def __abs__(self) -> Interval:
        return self if self.lo >= 0 else -self if self.hi <= 0 else _between(0.0, max(-self.lo, self.hi))

    def __sub__(self, other: Scalar) -> Interval:
        that = other if other.__class__ is Interval else _enclose(other)
        return _between(_sum_below(self.lo, -that.hi), 0.0 - _sum_below(-self.hi, that.lo))

    def __rsub__(self, other: Scalar) -> Interval:
        return _enclose(other) - self

    def __mul__(self, other: Scalar) -> Interval:
        that = other if other.__class__ is Interval else _enclose(other)
        a, b, c, d = self.lo, self.hi, that.lo, that.hi
        if c < 0 < d:
            if a < 0 < b:
                low = min(_product_below(a, d), _product_below(b, c))
                return _between(low, -min(_product_below(-a, c), _product_below(-b, d)))
            a, b, c, d = c, d, a, b
        # Now [c, d] has one sign.
        if c >= 0:
            return _between(_product_below(a, c if a >= 0 else d), 0.0 - _product_below(-b, d if b >= 0 else c))
        return _between(_product_below(b, c if b >= 0 else d), 0.0 - _product_below(-a, d if a >= 0 else c))

    __rmul__ = __mul__

    def __truediv__(self, other: Scalar) -> Interval:
        that = other if other.__class__ is Interval else _enclose(other)
        a, b, c, d = self.lo, self.hi, that.lo, that.hi
        if c > 0:
            return _between(_quotient_below(a, d if a >= 0 else c), 0.0 - _quotient_below(-b, c if b >= 0 else d))
        if d < 0:
            return _between(_quotient_below(b, d if b >= 0 else c), 0.0 - _quotient_below(-a, c if a >= 0 else d))
        raise ZeroDivisionError(f"{self} / {that}: the divisor contains zero, so the quotient has no bounds; narrow it")

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
        above = self.lo == -inf or (self.lo < inf and rational(self.lo) <= number)
        return above and (self.hi == inf or (self.hi > -inf and number <= rational(self.hi)))

    @property
    def width(self) -> float:
        """An upper bound of ``hi − lo``."""
        return 0.0 - _sum_below(self.lo, -self.hi)

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


def _between(lo: float, hi: float) -> Interval:
    """The interval of ends that are in order, neither of them −0.0."""
    result: Interval = object.__new__(Interval)
    result.lo = lo
    result.hi = hi
    return result


# --- ends: a result is rounded to nearest, and the sign of what rounding dropped says on which side it is -------------

_SPLITTER = 2.0**27 + 1
"""Splits a float into two of 26 bits (Veltkamp), so that products of such halves are exact."""

_SMALL, _LARGE = 2.0**-960, 2.0**1023
"""No product of halves underflows or overflows where the whole product's size is between them."""


def _sum_below(a: float, b: float) -> float:
    """The largest float that is at most ``a + b``; of infinities, a lower bound."""
    total = a + b
    part = total - a
    error = (a - (total - part)) + (b - part)  # exact (two-sum), and NaN where something is infinite
    if error >= 0:
        return total
    if error < 0:
        return nextafter(total, -inf)
    if total == inf:
        return total if a == inf or b == inf else LARGEST
    return -inf


def _product_below(a: float, b: float) -> float:
    """The largest float that is at most ``a · b``."""
    product = a * b
    if _SMALL < product < _LARGE or -_LARGE < product < -_SMALL:
        error = _product_error(a, b, product)
        if error >= 0:
            return product
        if error < 0:
            return nextafter(product, -inf)
    if a == 0 or b == 0:
        return 0.0  # an infinite end is a bound, not a value: zero times it is zero
    if isinf(a) or isinf(b):
        return product
    (n, d), (m, e) = a.as_integer_ratio(), b.as_integer_ratio()
    return float_below(n * m, d * e)


def _quotient_below(a: float, b: float) -> float:
    """The largest float that is at most ``a / b``."""
    quotient = a / b
    product = quotient * b
    if _SMALL < product < _LARGE or -_LARGE < product < -_SMALL:
        rest = (a - product) - _product_error(quotient, b, product)  # the remainder, which is a float
        sign = rest if b > 0 else -rest
        if sign >= 0:
            return quotient
        if sign < 0:
            return nextafter(quotient, -inf)
    if a == 0 or isinf(b):
        return 0.0  # the quotients by the divisor's finite end bound everything in between
    if isinf(a):
        return a if b > 0 else -a
    (n, d), (m, e) = a.as_integer_ratio(), b.as_integer_ratio()
    return float_below(n * e, d * m) if m > 0 else float_below(-n * e, -d * m)


def _product_error(a: float, b: float, product: float) -> float:
    """``a · b − product``, exactly, of the rounded ``product`` (Dekker); NaN where a factor is too large to split."""
    scaled = a * _SPLITTER
    a_head = scaled - (scaled - a)
    a_tail = a - a_head
    scaled = b * _SPLITTER
    b_head = scaled - (scaled - b)
    b_tail = b - b_head
    return ((a_head * b_head - product) + a_head * b_tail + a_tail * b_head) + a_tail * b_tail


def _enclose(value: object) -> Interval:
    if isinstance(value, Interval):
        return value
    if isinstance(value, float):
        if value != value:
            raise ValueError("a NaN is not in any interval; remove NaNs first, or use gs.ieee to compute with them")
        end = float(value) + 0.0
        return _between(end, end)
    if isinstance(value, int) and -(2**53) <= value <= 2**53:
        return _between(float(value), float(value))
    number = rational_or_special(value)
    if isinstance(number, float):
        return _enclose(number)
    n, d = int(number.p), int(number.q)
    return Interval(float_below(n, d), float_above(n, d))


@scalar.dot.register
def _(zero: Interval, left: Sequence[Scalar], right: Sequence[Scalar]) -> Interval:
    """Rounded once, since ``math.fsum`` is exact, except for products of two wide intervals; or each by itself."""
    lows, highs = _addends(left, right)
    try:
        low, high = math.fsum(lows), math.fsum(highs)
    except (OverflowError, ValueError):
        low = high = math.nan
    if not isfinite(low) or not isfinite(high):
        return scalar.add_up((_enclose(x) * y for x, y in zip(left, right, strict=True)), zero)  # type: ignore[no-any-return]
    lows.append(-low)
    highs.append(-high)
    return Interval(
        nextafter(low, -inf) if math.fsum(lows) < 0 else low, nextafter(high, inf) if math.fsum(highs) > 0 else high
    )


def _addends(left: Sequence[Scalar], right: Sequence[Scalar]) -> tuple[list[float], list[float]]:
    """Floats whose sums are bounds of all products added up; not all are finite where one is too large to be split.

    The product of a number and an end is that of their halves, exactly. Other products are rounded outward.
    """
    lows: list[float] = []
    highs: list[float] = []
    for x, y in zip(left, right, strict=True):
        if x.__class__ is not Interval or y.__class__ is not Interval:
            x, y = _enclose(x), _enclose(y)
        a, b, c, d = x.lo, x.hi, y.lo, y.hi
        if c != d:
            a, b, c, d = c, d, a, b
        if c < 0:
            a, b = b, a
        low, high = a * c, b * c
        if c == d and (low >= _SMALL or low <= -_SMALL or a == 0) and (high >= _SMALL or high <= -_SMALL or b == 0):
            scaled = c * _SPLITTER
            head = scaled - (scaled - c)
            tail = c - head
            scaled = a * _SPLITTER
            a_head = scaled - (scaled - a)
            a_tail = a - a_head
            scaled = b * _SPLITTER
            b_head = scaled - (scaled - b)
            b_tail = b - b_head
            lows.append(a_head * head)
            lows.append(a_tail * head)
            highs.append(b_head * head)
            highs.append(b_tail * head)
            if tail != 0:  # which it is for numbers of 26 bits, such as those of float32
                lows.append(a_head * tail)
                lows.append(a_tail * tail)
                highs.append(b_head * tail)
                highs.append(b_tail * tail)
        else:
            product = x * y
            lows.append(product.lo)
            highs.append(product.hi)
    return lows, highs


@scalar.embed.register
def _(like: Interval, value: Scalar) -> Interval:
    return _enclose(value)


@scalar.larger.register
def _(a: Interval, b: Interval) -> Interval:
    return _between(max(a.lo, b.lo), max(a.hi, b.hi))


@scalar.hull.register
def _(a: Interval, b: Scalar) -> Interval:
    that = _enclose(b)
    return _between(min(a.lo, that.lo), max(a.hi, that.hi))


@scalar.choose_among.register
def _(like: Interval, cells: Sequence[Interval], ties: str, strict: bool) -> Choice:
    return candidates([c.lo for c in cells], [c.hi for c in cells], ties, strict)


@scalar.order.register
def _(a: Interval, b: Scalar) -> tuple[int, ...]:
    that = _enclose(b)
    return possible_order((a.lo, a.hi), (that.lo, that.hi))


@ends.register
def _(x: Interval) -> tuple[float, float]:
    return x.lo, x.hi


@scalar.pivot.register
def _(x: Interval) -> Interval:
    middle = x.lo / 2 + x.hi / 2
    return _enclose(middle if isfinite(middle) else next((e for e in (x.lo, x.hi) if isfinite(e)), 0.0))


@scalar.sin.register
def _(x: Interval) -> Interval:
    return _wave(x, arb.sin, 1)


@scalar.cos.register
def _(x: Interval) -> Interval:
    return _wave(x, arb.cos, 0)


def _wave(x: Interval, function: Callable[[arb], arb], quarters: int) -> Interval:
    """A sine by its ends and by where it turns between them; a double may lie within 2⁻⁶⁰ of where it is 0."""
    if isinf(x.lo) or isinf(x.hi):
        return Interval(-1.0, 1.0)
    values = [_outward(partial(function, arb(end)), 160) for end in (x.lo, x.hi)]
    values += [(float(turn), float(turn)) for turn in turning_points(arb(x.lo), arb(x.hi), quarters)]
    return Interval(max(min(low for low, _ in values), -1.0), min(max(high for _, high in values), 1.0))


@scalar.normal_density.register
def _(x: Interval) -> Interval:
    size = abs(x)
    return Interval(_normal_density_ends(size.hi)[0], _normal_density_ends(size.lo)[1])


@scalar.increasing.register
def _(x: Interval, function: Callable[[Interval], Interval]) -> Interval:
    return Interval(function(Interval(x.lo, x.lo)).lo, function(Interval(x.hi, x.hi)).hi)


@scalar.sqrt.register
def _(x: Interval) -> Interval:
    return scalar.power(x, Fraction(1, 2))  # type: ignore[no-any-return]


@scalar.power.register
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
    if x == 0 or isinf(x) or p == 0:
        exact = scalar.float_power(x, float(p))
        return exact, exact
    bits = float(p) * math.log2(abs(x))  # the exponent of the result, to within a unit
    if abs(bits) < 1100:
        ratio = float_power_ratio(x, p)
        return (float_below(*ratio), float_above(*ratio)) if ratio else _outward(lambda: arb_power(arb(x), p))
    low, high = (LARGEST, inf) if bits > 0 else (0.0, 5e-324)
    return (-high, -low) if x < 0 and p % 2 == 1 else (low, high)


def _exp_ends(x: float) -> tuple[float, float]:
    """Floats on either side of ``exp(x)``."""
    if x > 710:
        return (inf if x == inf else LARGEST), inf
    if x < -746:
        return 0.0, (0.0 if x == -inf else 5e-324)
    return _outward(lambda: arb(x).exp())


def _log_ends(x: float) -> tuple[float, float]:
    if x == 0 or x == inf:
        return (-inf, -inf) if x == 0 else (inf, inf)
    return _outward(lambda: arb(x).log())


def _log1p_ends(x: float) -> tuple[float, float]:
    if x == -1 or x == inf:
        return (-inf, -inf) if x == -1 else (inf, inf)
    return _outward(lambda: arb(x).log1p())


def _erf_ends(x: float) -> tuple[float, float]:
    if abs(x) > 40:
        below = 1.0 if isinf(x) else nextafter(1.0, 0.0)
        return (below, 1.0) if x > 0 else (-1.0, -below)
    low, high = _outward(lambda: arb(x).erf())
    return max(low, -1.0), min(high, 1.0)


def _normal_cdf_ends(x: float) -> tuple[float, float]:
    if x < -40:
        return 0.0, (0.0 if x == -inf else 5e-324)
    if x > 40:
        return (1.0 if x == inf else nextafter(1.0, 0.0)), 1.0
    return _outward(lambda: arb_normal_cdf(arb(x)))


def _tanh_ends(x: float) -> tuple[float, float]:
    low, high = _outward(lambda: arb(x).tanh())
    return max(low, -1.0), min(high, 1.0)


def _normal_density_ends(x: float) -> tuple[float, float]:
    if x > 40:
        return 0.0, (0.0 if x == inf else 5e-324)
    return _outward(lambda: arb_normal_density(arb(x)))


def _outward(evaluate: Callable[[], arb], bits: int = 80) -> tuple[float, float]:
    with working(bits):
        low, high = endpoints(evaluate())
    return float_below(int(low.p), int(low.q)), float_above(int(high.p), int(high.q))


_INCREASING: dict[Any, Callable[[float], tuple[float, float]]] = {
    scalar.exp: _exp_ends,
    scalar.log: _log_ends,
    scalar.log1p: _log1p_ends,
    scalar.tanh: _tanh_ends,
    scalar.atan: lambda x: _outward(lambda: arb(x).atan()),
    scalar.erf: _erf_ends,
    scalar.normal_cdf: _normal_cdf_ends,
    scalar.floor: lambda x: (scalar.floor(x),) * 2,
    scalar.nearest_integer: lambda x: (scalar.nearest_integer(x),) * 2,
}
"""Floats on either side of what each is at an end."""
_REAL_FROM = {scalar.log: 0.0, scalar.log1p: -1.0}


def _lift_increasing(function: Any, of_end: Callable[[float], tuple[float, float]]) -> Callable[[Interval], Interval]:
    least = _REAL_FROM.get(function, -inf)

    def of_interval(x: Interval) -> Interval:
        if x.lo < least:
            raise ValueError(f"{function.__name__} of {x}: the logarithm is not real below 0; narrow the interval")
        return Interval(of_end(x.lo)[0], of_end(x.hi)[1])

    return of_interval


for _function, _of_end in _INCREASING.items():
    _function.register(Interval, _lift_increasing(_function, _of_end))

interval = IntervalDomain()
