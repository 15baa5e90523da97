"""What the specification asks of a number, and what it asks only now and then.

Every scalar has ``+ - * /`` with itself and with Python integers. The functions below are the rest. They are
generic functions: they work on ``int``, ``float``, ``fractions.Fraction`` and NumPy scalars as they stand, and each
number system in ``gradspec.domains`` registers what differs for it.

An order is needed only where a maximum is differentiated, and ``exp``, ``log`` and the like only by the operators that
are made of them.
"""

import functools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import singledispatch
from numbers import Integral, Rational, Real
from typing import Any, Protocol, TypeAlias

from gradspec.spec.errors import DTypeError, UnsupportedError

Scalar: TypeAlias = Any
"""A number of any system. Python has no type for "closed under + - * /", so the checker sees ``Any``."""

TIES = ("first", "all", "split")


def add_up(terms: Iterable[Scalar], zero: Scalar) -> Scalar:
    """The left fold ``((0 + t₁) + t₂) + …``: this order is part of the meaning, and ``sum`` has another one.

    (From Python 3.12 on, the builtin ``sum`` compensates floats.)

    >>> add_up([1e16, 1.0, -1e16], 0.0)
    0.0
    """
    total = zero
    for term in terms:
        total = total + term
    return total


@singledispatch
def dot(zero: Scalar, left: Sequence[Scalar], right: Sequence[Scalar]) -> Scalar:
    """The products of ``left`` and ``right``, cell by cell, added up; enclosures need not round every one of them.

    >>> dot(0, [1, 2], [3, 10])
    23
    """
    return add_up(map(operator.mul, left, right), zero)


@singledispatch
def embed(like: Scalar, value: Scalar) -> Scalar:
    """``value`` as a number of the system that ``like`` belongs to.

    >>> embed(Fraction(1, 3), 0.5)
    Fraction(1, 2)
    """
    return type(like)(value)


@embed.register
def _(like: int, value: Scalar) -> Scalar:  # integers mix with every system already
    return value


@embed.register
def _(like: Fraction, value: Scalar) -> Scalar:
    return Fraction(int(value)) if isinstance(value, Integral) else Fraction(*value.as_integer_ratio())


@singledispatch
def stored(x: Scalar) -> Scalar:
    """``x`` as it is kept once an operator has finished: systems that compute wider than they store round here."""
    return x


@singledispatch
def is_infinite(x: Scalar) -> bool:
    """Whether ``x`` is +∞ or −∞ (always False in systems without infinities)."""
    return False


@is_infinite.register
def _(x: Real) -> bool:
    return not isinstance(x, Rational) and math.isinf(x)


@singledispatch
def ends(x: Scalar) -> tuple[Scalar, Scalar]:
    """The least and the largest number that ``x`` may be: itself twice, if it is one number."""
    return x, x


@singledispatch
def pivot(x: Scalar) -> Scalar:
    """A single point of ``x``: itself for a number, some inner point for an enclosure."""
    return x


def _elementary(
    name: str, function: Callable[[Any], float], meaning: str = ""
) -> "functools._SingleDispatchCallable[Scalar]":
    """A generic function that is ``function`` of Python's floats and of NumPy's, and undefined elsewhere.

    Of a rational it is no rational number; integers are taken for floats.
    """

    def undefined(x: Scalar) -> Scalar:
        raise _undefined(name, x)

    def of_real(x: Real) -> Scalar:
        _refuse_rational(x, name)
        return _result_type(x)(function(x))

    undefined.__name__ = undefined.__qualname__ = name
    undefined.__doc__ = meaning
    found = singledispatch(undefined)
    found.register(Real, of_real)
    return found


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def _log(x: float) -> float:
    if x == 0 or float(x) < 0:
        return -math.inf if x == 0 else math.nan
    return math.log(x)


def _log1p(x: float) -> float:
    if not float(x) > -1:
        return -math.inf if x == -1 else math.nan
    return math.log1p(x)


def _normal_density(x: float) -> float:
    value = float(x)
    return math.exp(-value * value / 2) / math.sqrt(2 * math.pi)


exp = _elementary("exp", _exp)
log = _elementary("log", _log)
log1p = _elementary("log1p", _log1p, "``log(1 + x)``, accurate near 0.")
tanh = _elementary("tanh", math.tanh)
sin = _elementary("sin", lambda x: math.sin(x) if math.isfinite(x) else math.nan)
cos = _elementary("cos", lambda x: math.cos(x) if math.isfinite(x) else math.nan)
atan = _elementary("atan", math.atan)
erf = _elementary(
    "erf", math.erf, "``2/√π · ∫₀ˣ exp(−t²) dt``, accurate near 0, where it is not the difference of ``Φ`` and ½."
)
normal_cdf = _elementary(
    "normal_cdf",
    lambda x: math.erfc(-float(x) * math.sqrt(0.5)) / 2,
    "``Φ(x) = (1 + erf(x/√2)) / 2``, by ``erfc`` so that the lower tail is accurate too.",
)
normal_density = _elementary("normal_density", _normal_density, "``φ(x) = exp(−x²/2) / √(2π)``, the derivative of Φ.")


@singledispatch
def sqrt(x: Scalar) -> Scalar:
    """√x; of a rational, if its root is rational too.

    >>> sqrt(Fraction(9, 4)), sqrt(2.25), sqrt(-1.0)
    (Fraction(3, 2), 1.5, nan)
    """
    raise _undefined("sqrt", x)


@sqrt.register
def _(x: Real) -> Scalar:
    if isinstance(x, Rational) and not isinstance(x, Integral):
        return power(x, Fraction(1, 2))
    return _result_type(x)(math.sqrt(x) if not x < 0 else math.nan)


@singledispatch
def power(x: Scalar, p: int | float | Fraction) -> Scalar:
    """``x`` to the constant power ``p``, which is taken as the rational number it is.

    A negative ``x`` has integer powers only; the others are NaN, or an error in systems without one.

    >>> power(3, 2), power(Fraction(8, 27), Fraction(-2, 3)), power(0.25, 1.5)
    (9, Fraction(9, 4), 0.125)
    """
    raise _undefined("power", x)


@power.register
def _(x: Real, p: int | float | Fraction) -> Scalar:
    if isinstance(x, Integral) and p == int(p) and p >= 0:
        return x ** int(p)
    if isinstance(x, Rational) and not isinstance(x, Integral):
        ratio = rational_power(int(x.numerator), int(x.denominator), Fraction(p))
        if ratio is None:
            _refuse_rational(x, f"the power {p}")
        else:
            return Fraction(*ratio)
    return _result_type(x)(float_power(float(x), float(p)))


def float_power(x: float, p: float) -> float:
    """IEEE's power: no exception, but infinities and NaN.

    >>> float_power(0.0, -1.0), float_power(-8.0, 0.5), float_power(-10.0, 333.0)
    (inf, nan, -inf)
    """
    try:
        return math.pow(x, p)
    except OverflowError:
        return -math.inf if x < 0 and p % 2 == 1 else math.inf
    except ValueError:  # zero to a negative power, or a negative number to one that is not whole
        return math.copysign(math.inf, x) if x == 0 and p % 2 == 1 else math.inf if x == 0 else math.nan


def rational_power(numerator: int, denominator: int, p: Fraction) -> tuple[int, int] | None:
    """``(numerator/denominator)^p`` as a fraction, if it is one.

    In lowest terms a fraction is a ``q``-th power exactly if its numerator and denominator are.

    >>> rational_power(4, 9, Fraction(-3, 2)), rational_power(2, 1, Fraction(1, 2))
    ((27, 8), None)
    """
    if numerator == 0 and p < 0:
        raise ZeroDivisionError(f"0 to the power {p} is a division by zero")
    if numerator < 0 and p.denominator > 1:
        return None
    up, down = _root(numerator, p.denominator), _root(denominator, p.denominator)
    if up is None or down is None:
        return None
    n, d = up ** abs(p.numerator), down ** abs(p.numerator)
    return (n, d) if p >= 0 else (d, n) if n > 0 else (-d, -n)


def _root(n: int, q: int) -> int | None:
    """The integer whose ``q``-th power is ``n``, by bisection, or None."""
    if q == 1 or n in (0, 1):
        return n
    if q >= n.bit_length():  # 2^q > n
        return None
    low, high = 1, 1 << (n.bit_length() // q + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**q <= n else (low, middle - 1)
    return low if low**q == n else None


@singledispatch
def floor(x: Scalar) -> Scalar:
    """The largest integer that is not above ``x``, a constant of differentiation.

    >>> floor(-2.5), floor(-0.0), floor(Fraction(7, 2))
    (-3.0, -0.0, Fraction(3, 1))
    """
    raise _undefined("floor", x)


@floor.register
def _(x: Real) -> Scalar:
    return _whole(x, math.floor)


@singledispatch
def nearest_integer(x: Scalar) -> Scalar:
    """The integer nearest to ``x``, of two the even one, with the sign of ``x``; a constant of differentiation.

    >>> nearest_integer(2.5), nearest_integer(-0.3), nearest_integer(Fraction(7, 2))
    (2.0, -0.0, Fraction(4, 1))
    """
    raise _undefined("nearest_integer", x)


@nearest_integer.register
def _(x: Real) -> Scalar:
    return _whole(x, round)


def _whole(x: Real, rounded: Callable[[Any], int]) -> Scalar:
    """Infinities and NaN are as they are, and a zero keeps the sign of ``x``."""
    if isinstance(x, Integral):
        return x
    if isinstance(x, Rational):
        return Fraction(rounded(x))
    value = float(x)
    return _result_type(x)(math.copysign(rounded(value), value)) if math.isfinite(value) else x


@singledispatch
def increasing(x: Scalar, function: Callable[[Scalar], Scalar]) -> Scalar:
    """``function(x)`` for a function that never decreases: of an enclosure its ends are enough."""
    return function(x)


@singledispatch
def constant(x: Scalar) -> Scalar:
    """``x`` as a constant of differentiation: a dual number loses its tangent."""
    return x


@singledispatch
def pass_tangent(x: Scalar, function: Callable[[Scalar], Scalar]) -> Scalar:
    """``function(x)`` with the tangent of ``x``, if it has one."""
    return function(x)


@singledispatch
def varies(x: Scalar) -> bool:
    """Whether ``x`` changes with what is differentiated: a dual number whose tangent is not 0."""
    return False


def _undefined(function: str, x: Scalar) -> UnsupportedError:
    return UnsupportedError(
        f"{function} is not defined on {type(x).__name__}: use float, gs.ieee(...), gs.ball(bits) or gs.interval"
    )


def _refuse_rational(x: Real, function: str) -> None:
    if isinstance(x, Rational) and not isinstance(x, Integral):
        raise UnsupportedError(
            f"{function} of the rational {x} is not a rational number: "
            "use gs.ball(128) for a rigorous enclosure, or gs.ieee('f64') or float for a rounded value"
        )


def _result_type(x: Real) -> Any:
    return float if isinstance(x, Integral) else type(x)


def refuse_fixed_width_integers(operator: str, x: Scalar) -> None:
    """Averages of machine integers would truncate or change type; Python integers divide exactly enough."""
    if isinstance(x, Integral) and not isinstance(x, int):
        raise DTypeError(
            f"{operator} divides, and {type(x).__name__} cannot hold the quotient; "
            "convert the array to a floating-point dtype, or to a number system such as gs.ball(bits)"
        )


# --- the maximum, and the choice its derivatives make ---------------------------------------------------------------


def exceeds(a: Scalar, b: Scalar) -> bool:
    """Whether ``a`` is larger than ``b``; a NaN exceeds every number, and no NaN exceeds another.

    >>> exceeds(math.nan, math.inf), exceeds(math.nan, math.nan), exceeds(0.0, -0.0)
    (True, False, False)
    """
    return bool(a > b or (a != a and b == b))


@singledispatch
def larger(a: Scalar, b: Scalar) -> Scalar:
    """The larger of two numbers, the earlier one if neither exceeds the other."""
    return b if exceeds(b, a) else a


@singledispatch
def order(a: Scalar, b: Scalar) -> tuple[int, ...]:
    """The possible answers to "is ``a`` smaller (−1), tied (0) or larger (1) than ``b``": one, except of enclosures.

    >>> order(1, 2), order(0.0, -0.0), order(math.nan, 1.0)
    ((-1,), (0,), (1,))
    """
    return (1,) if exceeds(a, b) else (-1,) if exceeds(b, a) else (0,)


@singledispatch
def maximum(a: Scalar, b: Scalar) -> Scalar:
    """The larger of two numbers; where they are equal, a derivative sees half of each."""
    return larger(a, b)


@singledispatch
def hull(a: Scalar, b: Scalar) -> Scalar:
    """The smallest enclosure of both; only enclosures have one."""
    raise UnsupportedError(f"{type(a).__name__} is not an enclosure: convert to gs.interval or gs.ball(bits) first")


class Choice(Protocol):
    """Which cells of one window a derivative of its maximum sees, and with what share."""

    @property
    def winner(self) -> int:
        """The place of the winner in the window."""

    def push(self, tangents: Sequence[Scalar]) -> Scalar:
        """The tangent of the maximum."""

    def pull(self, cotangent: Scalar) -> list[tuple[int, Scalar]]:
        """The places that receive something, each with what it receives."""


@dataclass(frozen=True, slots=True)
class Decided:
    """A choice among plain numbers: the winner and everything that ties with it."""

    tied: tuple[int, ...]
    ties: str

    @property
    def winner(self) -> int:
        return self.tied[0]

    def push(self, tangents: Sequence[Scalar]) -> Scalar:
        if self.ties == "first":
            return tangents[self.winner]
        total = add_up((tangents[i] for i in self.tied), embed(tangents[0], 0))
        return total if self.ties == "all" else total / len(self.tied)

    def pull(self, cotangent: Scalar) -> list[tuple[int, Scalar]]:
        if self.ties == "first":
            return [(self.winner, cotangent)]
        share = cotangent if self.ties == "all" else cotangent / len(self.tied)
        return [(i, share) for i in self.tied]


def choose(cells: Sequence[Scalar], ties: str = "first", strict: bool = False) -> Choice:
    """Decide who wins a non-empty window: the first cell that no other cell exceeds.

    Cells tie when neither exceeds the other. ``ties`` says who takes part in derivatives: the ``"first"`` winner
    alone, ``"all"`` tied cells in full, or ``"split"``, all of them in equal parts. Enclosures that overlap leave
    several candidates; ``strict`` makes that an error.

    >>> choose([1, 3, 2, 3], "split").pull(Fraction(1))
    [(1, Fraction(1, 2)), (3, Fraction(1, 2))]
    """
    return choose_among(cells[0], cells, ties, strict)


@singledispatch
def choose_among(like: Scalar, cells: Sequence[Scalar], ties: str, strict: bool) -> Choice:
    """``choose`` for the number system of ``like``."""
    best = 0
    for i in range(1, len(cells)):
        if exceeds(cells[i], cells[best]):
            best = i
    tied = tuple(i for i in range(best, len(cells)) if not exceeds(cells[best], cells[i]))
    return Decided(tied, ties)
