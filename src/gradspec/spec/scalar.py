"""What the specification asks of a number, and what it asks only now and then.

Every scalar has ``+ - * /`` with itself and with Python integers. The functions below are the rest. They are
generic functions: they work on ``int``, ``float``, ``fractions.Fraction`` and NumPy scalars as they stand, and each
number system in ``gradspec.domains`` registers what differs for it.

An order is needed only where a maximum is differentiated, and ``exp``/``log`` only by smooth pooling.
"""

import math
from collections.abc import Iterable, Sequence
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
def pivot(x: Scalar) -> Scalar:
    """A single point of ``x``: itself for a number, some inner point for an enclosure."""
    return x


@singledispatch
def exp(x: Scalar) -> Scalar:
    raise UnsupportedError(
        f"exp is not defined on {type(x).__name__}: use float, gs.ieee(...), gs.ball(bits) or gs.interval"
    )


@singledispatch
def log(x: Scalar) -> Scalar:
    raise UnsupportedError(
        f"log is not defined on {type(x).__name__}: use float, gs.ieee(...), gs.ball(bits) or gs.interval"
    )


@exp.register
def _(x: Real) -> Scalar:
    _refuse_rational(x, "exp")
    try:
        return _result_type(x)(math.exp(x))
    except OverflowError:
        return _result_type(x)(math.inf)


@log.register
def _(x: Real) -> Scalar:
    _refuse_rational(x, "log")
    if x == 0 or float(x) < 0:
        return _result_type(x)(-math.inf if x == 0 else math.nan)
    return _result_type(x)(math.log(x))


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
