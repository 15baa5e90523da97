"""IEEE floating point: one rounding per operation, in the specification's order, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flint import arb

from gradspec.domains.ball import endpoints, working
from gradspec.domains.domain import Domain
from gradspec.domains.exact import rational_or_special
from gradspec.domains.formats import Format, format_named
from gradspec.spec.errors import UnsupportedError
from gradspec.spec.scalar import Scalar, embed, exp, is_infinite, log, stored


@dataclass(frozen=True, repr=False)
class IEEE(Domain):
    """Numbers stored in one format and computed in another (the same, unless said otherwise)."""

    storage: Format
    compute: Format

    @property
    def name(self) -> str:  # type: ignore[override]
        accumulate = "" if self.storage == self.compute else f", accumulate={self.compute.name!r}"
        return f"ieee({self.storage.name!r}{accumulate})"

    def scalar(self, value: Scalar) -> Float:
        return Float(_rounded(value, self.storage), self)


def ieee(format: str | Format, *, accumulate: str | Format | None = None) -> IEEE:
    """The number system of a floating-point format.

    Every operation rounds once, to nearest, ties to even; ``exp`` and ``log`` are correctly rounded. With
    ``accumulate`` an operator computes in that format and rounds its results to ``format`` at the end, as kernels do.

    >>> import gradspec as gs
    >>> row = [2048.0, 1.0, 1.0]
    >>> gs.spec.avg_pool(ieee("f16").tensor(row), (3,), divisor_override=1).map(float).tolist()
    [2048.0]
    >>> gs.spec.avg_pool(ieee("f16", accumulate="f32").tensor(row), (3,), divisor_override=1).map(float).tolist()
    [2050.0]
    """
    storage = format_named(format)
    compute = storage if accumulate is None else format_named(accumulate)
    for each in (storage, compute):
        if (each.precision, each.emax) != (53, 1023) and (each.precision > 25 or each.emax > 255):
            raise UnsupportedError(
                f"{each} does not round correctly from float64: ieee takes formats of at most 25 bits with emax at "
                "most 255, and f64; for more precision use gs.ball(bits)"
            )
    return IEEE(storage, compute)


class Float:
    """A number of an IEEE system.

    A double holds it, and rounding a double's ``+ − × ÷`` to a format of at most 25 bits is rounding the true result:
    with 53 ≥ 2·25 + 2 bits in between, the second rounding never changes the first one's answer.
    """

    __slots__ = ("domain", "value")
    __array_ufunc__ = None

    def __init__(self, value: float, domain: IEEE) -> None:
        self.value, self.domain = value, domain

    def _with(self, other: Scalar, operation: Callable[[float, float], float]) -> Float:
        return Float(self.domain.compute.nearest(operation(self.value, self._operand(other))), self.domain)

    def _operand(self, other: Scalar) -> float:
        if isinstance(other, Float):
            if other.domain != self.domain:
                raise TypeError(f"numbers of {self.domain} and {other.domain} do not mix; convert one of them first")
            return other.value
        return _rounded(other, self.domain.compute)

    def __add__(self, other: Scalar) -> Float:
        return self._with(other, lambda a, b: a + b)

    def __radd__(self, other: Scalar) -> Float:
        return self._with(other, lambda a, b: b + a)

    def __sub__(self, other: Scalar) -> Float:
        return self._with(other, lambda a, b: a - b)

    def __rsub__(self, other: Scalar) -> Float:
        return self._with(other, lambda a, b: b - a)

    def __mul__(self, other: Scalar) -> Float:
        return self._with(other, lambda a, b: a * b)

    def __rmul__(self, other: Scalar) -> Float:
        return self._with(other, lambda a, b: b * a)

    def __truediv__(self, other: Scalar) -> Float:
        return self._with(other, _divide)

    def __rtruediv__(self, other: Scalar) -> Float:
        return self._with(other, lambda a, b: _divide(b, a))

    def __neg__(self) -> Float:
        return Float(-self.value, self.domain)

    def __gt__(self, other: Scalar) -> bool:
        return self.value > self._operand(other)

    def __lt__(self, other: Scalar) -> bool:
        return self.value < self._operand(other)

    def __eq__(self, other: object) -> bool:
        return self.value == (other.value if isinstance(other, Float) else other)

    def __hash__(self) -> int:
        return hash(self.value)

    def __float__(self) -> float:
        return self.value

    def as_integer_ratio(self) -> tuple[int, int]:
        return self.value.as_integer_ratio()

    def __repr__(self) -> str:
        return repr(self.value)


def _divide(a: float, b: float) -> float:
    if b:
        return a / b
    return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1.0, b)


def _rounded(value: Scalar, format: Format) -> float:
    if isinstance(value, float | Float):
        return format.nearest(float(value))
    number = rational_or_special(value)
    if isinstance(number, float):
        return format.nearest(number)
    if number == 0 and not isinstance(value, str):
        return float(value)  # with its sign
    return format.nearest_ratio(int(number.p), int(number.q))


@embed.register
def _(like: Float, value: Scalar) -> Float:
    return Float(_rounded(value, like.domain.compute), like.domain)


@stored.register
def _(x: Float) -> Float:
    return Float(x.domain.storage.nearest(x.value), x.domain)


@is_infinite.register
def _(x: Float) -> bool:
    return math.isinf(x.value)


@exp.register
def _(x: Float) -> Float:
    return Float(rounded_exp(x.value, x.domain.compute), x.domain)


@log.register
def _(x: Float) -> Float:
    return Float(rounded_log(x.value, x.domain.compute), x.domain)


def rounded_exp(x: float, format: Format) -> float:
    """``exp(x)``, correctly rounded. (The platform's, and NumPy's, is not.)

    >>> rounded_exp(1.0, format_named("f32"))
    2.7182817459106445
    """
    if math.isnan(x) or x == math.inf:
        return x
    bits = x / math.log(2)  # the exponent of the result, to within a unit
    if bits > format.emax + 2:
        return math.inf
    if bits < format.lowest_bit - 2:
        return 0.0
    return _correctly_rounded(lambda: arb(x).exp(), format)


def rounded_log(x: float, format: Format) -> float:
    """``log(x)``, correctly rounded.

    >>> rounded_log(2.0, format_named("f64"))
    0.6931471805599453
    """
    if x == 0:
        return -math.inf
    if not x > 0 or x == math.inf:
        return math.nan if x < 0 else x
    return _correctly_rounded(lambda: arb(x).log(), format)


def _correctly_rounded(evaluate: Callable[[], Any], format: Format) -> float:
    """Evaluate in ever narrower balls until both ends round to the same number.

    It ends: exp and log of a double are irrational except at 0 and 1, where the ball is exact.
    """
    bits = 2 * format.precision + 20
    while True:
        with working(bits):
            low, high = (format.nearest_ratio(int(end.p), int(end.q)) for end in endpoints(evaluate()))
        if low == high:
            return low
        bits *= 2
