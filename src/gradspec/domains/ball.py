"""Real numbers as balls, a midpoint and a radius, computed rigorously (python-flint's ``arb``)."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

from flint import arb, ctx, fmpq

from gradspec.domains.domain import Domain, both_ways, candidates, possible_order
from gradspec.domains.exact import rational_or_special
from gradspec.spec import scalar
from gradspec.spec.errors import DTypeError, UnsupportedError
from gradspec.spec.scalar import Choice, Scalar, ends


def working(bits: int) -> Any:
    """python-flint's precision for a ``with`` block. (It is one per process; any precision is sound.)"""
    return ctx.workprec(bits)


def endpoints(x: arb) -> tuple[fmpq, fmpq]:
    """The ends of a finite ball, exactly. (``arb.lower`` rounds them, and ``arb.contains`` rounds a rational first.)"""
    middle, radius = _dyadic(x.mid()), _dyadic(x.rad())
    return middle - radius, middle + radius


def _dyadic(x: arb) -> fmpq:
    """A ball of radius zero as the rational it is."""
    mantissa, exponent = (int(part) for part in x.man_exp())
    return fmpq(mantissa << max(exponent, 0), 1 << max(-exponent, 0))


@dataclass(frozen=True, repr=False)
class BallDomain(Domain):
    """Balls of a working precision."""

    bits: int

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"ball({self.bits})"

    def scalar(self, value: Scalar) -> Ball:
        if isinstance(value, Ball):
            return Ball(value.arb, self.bits)
        return Ball(_enclose(value, self.bits), self.bits)


def ball(bits: int = 128) -> BallDomain:
    """The number system of balls with ``bits`` of precision: every result contains the real result.

    >>> third = ball(64).scalar(1) / 3
    >>> third.contains("1/3"), third.rad() < 1e-18
    (True, True)
    """
    if isinstance(bits, bool) or not isinstance(bits, int) or bits < 2:
        raise ValueError(f"ball({bits!r}): the precision is a number of bits, at least 2; ball(128) is a good choice")
    return BallDomain(bits)


class Ball:
    """A rigorous enclosure of a real number.

    Comparisons are True only when certain. A NaN, which would contain everything and prove nothing, is an error.
    """

    __slots__ = ("arb", "bits")
    __array_ufunc__ = None

    def __init__(self, value: arb, bits: int) -> None:
        if value.is_nan():
            raise ValueError(
                "a ball became NaN (from a NaN, 0 × ∞, a division by zero or a function outside its domain) and proves "
                "nothing; narrow what went in, or use gs.ieee to compute with NaN"
            )
        self.arb, self.bits = value, bits

    def _with(self, other: Scalar, operation: Callable[[arb, arb], arb]) -> Ball:
        bits = min(self.bits, other.bits) if isinstance(other, Ball) else self.bits
        that = other.arb if isinstance(other, Ball) else _enclose(other, bits)
        with working(bits):
            return Ball(operation(self.arb, that), bits)

    __add__, __radd__ = both_ways(operator.add)
    __sub__, __rsub__ = both_ways(operator.sub)
    __mul__, __rmul__ = both_ways(operator.mul)
    __truediv__, __rtruediv__ = both_ways(operator.truediv)

    def __neg__(self) -> Ball:
        return self.map(lambda a: -a)  # negation, too, rounds to the working precision

    def __abs__(self) -> Ball:
        return self.map(lambda a: abs(a) if not a.contains(0) or a.is_exact() else a.abs_upper().union(0))

    def _certainly(self, other: Scalar, holds: Callable[[arb, arb], bool]) -> bool:
        return bool(holds(self.arb, other.arb if isinstance(other, Ball) else _enclose(other, self.bits)))

    def __gt__(self, other: Scalar) -> bool:
        return self._certainly(other, lambda a, b: a > b)

    def __lt__(self, other: Scalar) -> bool:
        return self._certainly(other, lambda a, b: a < b)

    def __eq__(self, other: object) -> bool:
        try:
            return self._certainly(other, lambda a, b: a == b)
        except DTypeError:
            return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # equality is certainty, not identity

    def map(self, function: Callable[[arb], arb]) -> Ball:
        with working(self.bits):
            return Ball(function(self.arb), self.bits)

    def contains(self, value: Scalar) -> bool:
        """Whether a number, or all of another ball, lies inside."""
        if isinstance(value, Ball):
            return bool(self.arb.contains(value.arb))
        number = rational_or_special(value)
        if isinstance(number, float) or not self.arb.is_finite():
            return bool(self.arb.contains(arb(number)))
        low, high = endpoints(self.arb)
        return bool(low <= number <= high)

    def mid(self) -> float:
        return float(self.arb.mid())

    def rad(self) -> float:
        return float(self.arb.rad())

    def __float__(self) -> float:
        return self.mid()

    def __int__(self) -> int:
        """The number without its fraction, if the ball holds only one."""
        return int(Fraction(*self.as_integer_ratio()))

    def as_integer_ratio(self) -> tuple[int, int]:
        """The number, if the ball holds only one."""
        if not self.arb.is_exact():
            raise UnsupportedError(f"{self} is not a single number; use .mid() and .rad(), or compute with balls")
        if not self.arb.is_finite():
            return self.mid().as_integer_ratio()
        ratio = _dyadic(self.arb)
        return int(ratio.p), int(ratio.q)

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_parts, (_parts(self.arb.mid()), _parts(self.arb.rad()), self.bits)

    def __repr__(self) -> str:
        with working(self.bits):  # as many digits as the ball's own precision holds
            return str(self.arb)


def _parts(x: arb) -> tuple[int, int] | float:
    """An exact ball as mantissa and exponent, or as the infinity it is."""
    if not x.is_finite():
        return float(x)
    mantissa, exponent = x.man_exp()
    return int(mantissa), int(exponent)


def _from_parts(mid: tuple[int, int] | float, rad: tuple[int, int] | float, bits: int) -> Ball:
    with working(max(bits, mid[0].bit_length() if isinstance(mid, tuple) else 2)):
        ball = arb(mid, rad)
        if isinstance(rad, tuple) and _parts(ball.rad()) != rad:
            # arb takes an odd radius of thirty bits one unit larger. The even one below it, plus a crumb, rounds to it.
            mantissa, exponent = rad
            narrower = arb(mid, (mantissa - 1, exponent)) + arb(0, (1, exponent - 64))
            ball = narrower if _parts(narrower.rad()) == rad else ball
        return Ball(ball, bits)


def _enclose(value: Scalar, bits: int) -> arb:
    if isinstance(value, arb | int | float):
        return arb(value)
    number = rational_or_special(value)
    with working(bits):
        return arb(number)


@scalar.embed.register
def _(like: Ball, value: Scalar) -> Ball:
    return value if isinstance(value, Ball) else Ball(_enclose(value, like.bits), like.bits)


@scalar.larger.register
def _(a: Ball, b: Ball) -> Ball:  # the builtin max of overlapping balls would keep one of them: unsound
    return a._with(b, lambda p, q: p.max(q))


@scalar.hull.register
def _(a: Ball, b: Scalar) -> Ball:
    return a._with(b, lambda p, q: p.union(q))


@scalar.choose_among.register
def _(like: Ball, cells: Sequence[Ball], ties: str, strict: bool) -> Choice:
    with working(like.bits):
        ends = [_outer_ends(c.arb) for c in cells]
    return candidates([low for low, _ in ends], [high for _, high in ends], ties, strict)


@scalar.order.register
def _(a: Ball, b: Scalar) -> tuple[int, ...]:
    that = scalar.embed(a, b)
    with working(min(a.bits, that.bits)):
        return possible_order(_outer_ends(a.arb), _outer_ends(that.arb))


def _outer_ends(x: arb) -> tuple[arb, arb]:
    """A number as it is; the ends of a wider ball rounded outward, which still enclose it."""
    return (x, x) if x.is_exact() else (x.lower(), x.upper())


@ends.register
def _(x: Ball) -> tuple[Ball, Ball]:
    with working(x.bits):
        low, high = _outer_ends(x.arb)
    return Ball(low, x.bits), Ball(high, x.bits)


@scalar.pivot.register
def _(x: Ball) -> Ball:
    return Ball(x.arb.mid(), x.bits)


@scalar.increasing.register
def _(x: Ball, function: Callable[[Ball], Ball]) -> Ball:
    if x.arb.is_exact():
        return function(x)
    with working(x.bits):
        low, high = _outer_ends(x.arb)
    return scalar.hull(function(Ball(low, x.bits)), function(Ball(high, x.bits)))  # type: ignore[no-any-return]


def arb_normal_cdf(x: arb) -> arb:
    return (-x / arb(2).sqrt()).erfc() / 2


def arb_normal_density(x: arb) -> arb:
    """By the ends of ``|x|``, in which it decreases: squaring a wide ball would forget that its square is positive."""
    near, far = ((-(end * end) / 2).exp() / (2 * arb.pi()).sqrt() for end in (x.abs_lower(), x.abs_upper()))
    return near.union(far)


MOST_TURNS = 2**16
"""Bits before the point beyond which an angle is not reduced: all that is said of its sine is that it is one."""


def turning_points(low: arb, high: arb, quarters: int) -> tuple[int, ...]:
    """Which of −1 and 1 a sine takes between two exact balls, if its maxima are ``quarters`` of a turn from 0.

    Counted from there in half turns, maxima are the even integers and minima the odd ones. In doubt they are between.
    """
    if not (low.is_finite() and high.is_finite()):
        return -1, 1
    mantissa, exponent = (int(part) for part in low.abs_upper().max(high.abs_upper()).man_exp())
    places = mantissa.bit_length() + exponent
    if places > MOST_TURNS:
        return -1, 1
    with working(ctx.prec + max(places, 0)):
        start, end = (angle / arb.pi() - arb(quarters) / 2 for angle in (low, high))
        first, last = (int(_dyadic(whole).p) for whole in (start.lower().ceil(), end.upper().floor()))
    return () if last < first else (1 - 2 * (first % 2),) if last == first else (-1, 1)


def _wave(x: Ball, function: Callable[[arb], arb], quarters: int) -> Ball:
    """A sine by the ends of a ball and by where it turns between them."""
    with working(x.bits):
        low, high = _outer_ends(x.arb)
        if not (low.is_finite() and high.is_finite()):
            return Ball(arb(0, 1), x.bits)
        value = function(low) if x.arb.is_exact() else function(low).union(function(high))
        for turn in () if x.arb.is_exact() else turning_points(low, high, quarters):
            value = value.union(turn)
        return Ball(value, x.bits)


@scalar.sin.register
def _(x: Ball) -> Ball:
    return _wave(x, arb.sin, 1)


@scalar.cos.register
def _(x: Ball) -> Ball:
    return _wave(x, arb.cos, 0)


def arb_whole(rounded: Callable[[Fraction], int]) -> Callable[[arb], arb]:
    """A rounding to integers of exact balls; one whose size is less than ¼ rounds as ±¼ does."""

    def function(x: arb) -> arb:
        if not x.is_finite() or x.is_integer():
            return x
        mantissa, exponent = (int(part) for part in x.man_exp())
        small = mantissa.bit_length() < -exponent - 2
        return arb(rounded(Fraction(mantissa, 4 * abs(mantissa) if small else 1 << -exponent)))

    return function


_INCREASING: dict[Any, Callable[[arb], arb]] = {
    scalar.exp: arb.exp,
    scalar.log: arb.log,
    scalar.log1p: arb.log1p,
    scalar.tanh: arb.tanh,
    scalar.atan: arb.atan,
    scalar.erf: arb.erf,
    scalar.normal_cdf: arb_normal_cdf,
    scalar.floor: arb_whole(math.floor),
    scalar.nearest_integer: arb_whole(round),
}

for _function, _on_arb in _INCREASING.items():
    _function.register(Ball, partial(scalar.increasing, function=partial(Ball.map, function=_on_arb)))


@scalar.normal_density.register
def _(x: Ball) -> Ball:
    return x.map(arb_normal_density)


@scalar.sqrt.register
def _(x: Ball) -> Ball:
    return x.map(lambda a: arb_power(a, Fraction(1, 2)))


@scalar.power.register
def _(x: Ball, p: int | float | Fraction) -> Ball:
    return x.map(lambda a: arb_power(a, Fraction(p)))


def arb_power(x: arb, p: Fraction) -> arb:
    """``x^p``, by the ends of ``x``, between which it turns at 0 if at all; NaN where it is not real.

    A ball cannot end at 0 exactly, so of one that holds 0 and has powers only above, the part above is meant.
    """
    exponent = arb(fmpq(p.numerator, p.denominator))
    if p == 0 or x.is_exact():
        return x**exponent
    if not x.contains(0):
        return (x.lower() ** exponent).union(x.upper() ** exponent)
    if p < 0:
        return arb.nan()
    below, above = (end**exponent for end in (-x.lower(), x.upper()))
    if p.denominator > 1:
        return above.union(0)
    return above.union(-below) if p.numerator % 2 else above.union(below).union(0)


def float_power_ratio(x: float, p: Fraction) -> tuple[int, int] | None:
    """``x^p`` as a fraction, if it is one, and a short one at that.

    A power of a double that is a double, or halfway between two, has an odd part of at most 54 bits; in range, it is
    short enough to be found here.
    """
    n, d = x.as_integer_ratio()
    return scalar.rational_power(n, d, p) if abs(p) * (n.bit_length() + d.bit_length()) < 2**13 else None
