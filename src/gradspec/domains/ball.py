"""Real numbers as balls, a midpoint and a radius, computed rigorously (python-flint's ``arb``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flint import arb, ctx, fmpq

from gradspec.domains.domain import Domain
from gradspec.domains.enclosure import candidates
from gradspec.domains.exact import rational
from gradspec.spec.scalar import Choice, Scalar, choose_among, embed, exp, hull, larger, log, pivot


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
                "a ball became NaN (0 × ∞, a division by zero, or a logarithm outside its domain): it proves nothing"
            )
        self.arb, self.bits = value, bits

    def _with(self, other: Scalar, operation: Callable[[arb, arb], arb]) -> Ball:
        bits = min(self.bits, other.bits) if isinstance(other, Ball) else self.bits
        that = other.arb if isinstance(other, Ball) else _enclose(other, bits)
        with working(bits):
            return Ball(operation(self.arb, that), bits)

    def __add__(self, other: Scalar) -> Ball:
        return self._with(other, lambda a, b: a + b)

    __radd__ = __add__

    def __sub__(self, other: Scalar) -> Ball:
        return self._with(other, lambda a, b: a - b)

    def __rsub__(self, other: Scalar) -> Ball:
        return self._with(other, lambda a, b: b - a)

    def __mul__(self, other: Scalar) -> Ball:
        return self._with(other, lambda a, b: a * b)

    __rmul__ = __mul__

    def __truediv__(self, other: Scalar) -> Ball:
        return self._with(other, lambda a, b: a / b)

    def __rtruediv__(self, other: Scalar) -> Ball:
        return self._with(other, lambda a, b: b / a)

    def __neg__(self) -> Ball:
        return Ball(-self.arb, self.bits)

    def _certainly(self, other: Scalar, holds: Callable[[arb, arb], bool]) -> bool:
        return bool(holds(self.arb, other.arb if isinstance(other, Ball) else _enclose(other, self.bits)))

    def __gt__(self, other: Scalar) -> bool:
        return self._certainly(other, lambda a, b: a > b)

    def __lt__(self, other: Scalar) -> bool:
        return self._certainly(other, lambda a, b: a < b)

    def __eq__(self, other: object) -> bool:
        return self._certainly(other, lambda a, b: a == b)

    __hash__ = None  # type: ignore[assignment]  # equality is certainty, not identity

    def map(self, function: Callable[[arb], arb]) -> Ball:
        with working(self.bits):
            return Ball(function(self.arb), self.bits)

    def contains(self, value: Scalar) -> bool:
        """Whether a number, or all of another ball, lies inside."""
        if isinstance(value, Ball):
            return bool(self.arb.contains(value.arb))
        if not self.arb.is_finite():
            return bool(self.arb.contains(arb(float(value))))
        low, high = endpoints(self.arb)
        return bool(low <= rational(value) <= high)

    def mid(self) -> float:
        return float(self.arb.mid())

    def rad(self) -> float:
        return float(self.arb.rad())

    def __float__(self) -> float:
        return self.mid()

    def __reduce__(self) -> tuple[Any, ...]:
        parts = (tuple(int(p) for p in part.man_exp()) for part in (self.arb.mid(), self.arb.rad()))
        return _from_parts, (*parts, self.bits)

    def __repr__(self) -> str:
        return str(self.arb)


def _from_parts(mid: tuple[int, int], rad: tuple[int, int], bits: int) -> Ball:
    with working(max(bits, mid[0].bit_length(), 2)):
        return Ball(arb(mid, rad), bits)


def _enclose(value: Scalar, bits: int) -> arb:
    if isinstance(value, arb):
        return value
    if isinstance(value, int):
        return arb(value)
    if isinstance(value, float) or not hasattr(value, "numerator"):
        return arb(float(value))  # infinities included
    with working(bits):
        return arb(rational(value))


@embed.register
def _(like: Ball, value: Scalar) -> Ball:
    return value if isinstance(value, Ball) else Ball(_enclose(value, like.bits), like.bits)


@larger.register
def _(a: Ball, b: Ball) -> Ball:  # the builtin max of overlapping balls would keep one of them: unsound
    return a._with(b, lambda p, q: p.max(q))


@hull.register
def _(a: Ball, b: Scalar) -> Ball:
    return a._with(b, lambda p, q: p.union(q))


@choose_among.register
def _(like: Ball, cells: Sequence[Ball], ties: str, strict: bool) -> Choice:
    with working(like.bits):  # ends rounded outward are still ends of an enclosure
        return candidates([c.arb.lower() for c in cells], [c.arb.upper() for c in cells], ties, strict)


@pivot.register
def _(x: Ball) -> Ball:
    return Ball(x.arb.mid(), x.bits)


@exp.register
def _(x: Ball) -> Ball:
    return x.map(lambda a: a.exp())


@log.register
def _(x: Ball) -> Ball:
    return x.map(lambda a: a.log())
