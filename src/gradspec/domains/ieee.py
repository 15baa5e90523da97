"""IEEE floating point: one rounding per operation, in the specification's order, bit for bit."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from flint import arb

from gradspec.domains.ball import arb_normal_cdf, arb_normal_density, arb_power, endpoints, float_power_ratio, working
from gradspec.domains.domain import Domain, both_ways
from gradspec.domains.exact import rational_or_special
from gradspec.domains.formats import Format, format_named
from gradspec.spec import scalar
from gradspec.spec.errors import UnsupportedError
from gradspec.spec.scalar import Scalar


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

    Every operation rounds once, to nearest, ties to even; ``exp``, ``log`` and the like too. With
    ``accumulate`` an operator computes in that format and rounds its results to ``format`` at the end, as kernels do.

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


def _divide(a: float, b: float) -> float:
    if b:
        return a / b
    return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1.0, b)


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

    __add__, __radd__ = both_ways(operator.add)
    __sub__, __rsub__ = both_ways(operator.sub)
    __mul__, __rmul__ = both_ways(operator.mul)
    __truediv__, __rtruediv__ = both_ways(_divide)

    def __neg__(self) -> Float:
        return Float(-self.value, self.domain)

    def __abs__(self) -> Float:
        return Float(abs(self.value), self.domain)

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

    def __int__(self) -> int:
        return int(self.value)

    def as_integer_ratio(self) -> tuple[int, int]:
        return self.value.as_integer_ratio()

    def __repr__(self) -> str:
        return repr(self.value)


def _rounded(value: Scalar, format: Format) -> float:
    if isinstance(value, float | Float):
        return format.nearest(float(value))
    number = rational_or_special(value)
    if isinstance(number, float):
        return format.nearest(number)
    if number == 0 and not isinstance(value, str):
        return float(value)  # with its sign
    return format.nearest_ratio(int(number.p), int(number.q))


@scalar.embed.register
def _(like: Float, value: Scalar) -> Float:
    return Float(_rounded(value, like.domain.compute), like.domain)


@scalar.stored.register
def _(x: Float) -> Float:
    return Float(x.domain.storage.nearest(x.value), x.domain)


@scalar.is_infinite.register
def _(x: Float) -> bool:
    return math.isinf(x.value)


def _applied(rounded: Callable[[float, Format], float]) -> Callable[[Float], Float]:
    return lambda x: Float(rounded(x.value, x.domain.compute), x.domain)


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


def rounded_log1p(x: float, format: Format) -> float:
    """``log(1 + x)``, correctly rounded.

    >>> rounded_log1p(1e-20, format_named("f64"))
    1e-20
    """
    if x == 0 or not x > -1 or x == math.inf:
        return -math.inf if x == -1 else math.nan if x < -1 else x
    return _correctly_rounded(lambda: arb(x).log1p(), format)


def rounded_tanh(x: float, format: Format) -> float:
    """``tanh(x)``, correctly rounded. (``1 − |tanh x| < 2·exp(−2|x|)``, soon less than any format can tell.)

    >>> rounded_tanh(0.5, format_named("f64"))
    0.46211715726000974
    """
    if x == 0 or math.isnan(x):
        return x
    if abs(x) > format.precision:
        return math.copysign(1.0, x)
    return _correctly_rounded(lambda: arb(x).tanh(), format)


def rounded_sin(x: float, format: Format) -> float:
    """``sin(x)``, correctly rounded, however large ``x`` is.

    >>> rounded_sin(1e22, format_named("f64"))
    -0.8522008497671888
    """
    if x == 0 or not math.isfinite(x):
        return x if x == 0 else math.nan
    return _correctly_rounded(lambda: arb(x).sin(), format)


def rounded_cos(x: float, format: Format) -> float:
    """``cos(x)``, correctly rounded, however large ``x`` is.

    >>> rounded_cos(1e22, format_named("f64"))
    0.523214785395139
    """
    return _correctly_rounded(lambda: arb(x).cos(), format) if math.isfinite(x) else math.nan


def rounded_atan(x: float, format: Format) -> float:
    """``atan(x)``, correctly rounded.

    >>> rounded_atan(math.inf, format_named("f64"))
    1.5707963267948966
    """
    return x if x == 0 or math.isnan(x) else _correctly_rounded(lambda: arb(x).atan(), format)


def rounded_erf(x: float, format: Format) -> float:
    """``erf(x)``, correctly rounded. (``1 − |erf x| < exp(−x²)``, soon less than any format can tell.)

    >>> rounded_erf(0.5, format_named("f64"))
    0.5204998778130465
    """
    if x == 0 or math.isnan(x):
        return x
    if x * x > format.precision:
        return math.copysign(1.0, x)
    return _correctly_rounded(lambda: arb(x).erf(), format)


def rounded_normal_cdf(x: float, format: Format) -> float:
    """``Φ(x)``, correctly rounded. (For ``|x| ≥ 1``, what is missing from 0 or 1 is less than ``exp(−x²/2)``.)

    >>> rounded_normal_cdf(0.0, format_named("f16")), rounded_normal_cdf(-1.0, format_named("f64"))
    (0.5, 0.15865525393145705)
    """
    if x == 0 or math.isnan(x):
        return 0.5 if x == 0 else x
    if x > 0 and x * x > 2 * format.precision:
        return 1.0
    if x < 0 and x * x > -2 * format.lowest_bit:
        return 0.0
    return _correctly_rounded(lambda: arb_normal_cdf(arb(x)), format)


def rounded_normal_density(x: float, format: Format) -> float:
    """``exp(−x²/2) / √(2π)``, correctly rounded.

    >>> rounded_normal_density(0.0, format_named("f64"))
    0.3989422804014327
    """
    if math.isnan(x) or x * x > -2 * format.lowest_bit:
        return x if math.isnan(x) else 0.0
    return _correctly_rounded(lambda: arb_normal_density(arb(x)), format)


for _function, _rounded_function in (
    (scalar.exp, rounded_exp),
    (scalar.log, rounded_log),
    (scalar.log1p, rounded_log1p),
    (scalar.tanh, rounded_tanh),
    (scalar.sin, rounded_sin),
    (scalar.cos, rounded_cos),
    (scalar.atan, rounded_atan),
    (scalar.erf, rounded_erf),
    (scalar.normal_cdf, rounded_normal_cdf),
    (scalar.normal_density, rounded_normal_density),
):
    _function.register(Float, _applied(_rounded_function))


@scalar.floor.register
def _(x: Float) -> Float:
    return Float(x.domain.compute.nearest(scalar.floor(x.value)), x.domain)


@scalar.nearest_integer.register
def _(x: Float) -> Float:
    return Float(x.domain.compute.nearest(scalar.nearest_integer(x.value)), x.domain)


@scalar.sqrt.register
def _(x: Float) -> Float:
    root = x.value if not x.value < 0 else math.nan
    return Float(x.domain.compute.nearest(math.sqrt(root)), x.domain)  # innocent double rounding, as for ``+ − × ÷``


@scalar.power.register
def _(x: Float, p: int | float | Fraction) -> Float:
    return Float(rounded_power(x.value, Fraction(p), x.domain.compute), x.domain)


def rounded_power(x: float, p: Fraction, format: Format) -> float:
    """``x^p``, correctly rounded.

    >>> rounded_power(2.0, Fraction(1, 2), format_named("f16"))
    1.4140625
    """
    if x == 0 or p == 0 or not math.isfinite(x) or (x < 0 and p.denominator > 1):
        return scalar.float_power(x, float(p))
    sign = -1.0 if x < 0 and p % 2 == 1 else 1.0
    bits = float(p) * math.log2(abs(x))  # the exponent of the result, to within a unit
    if bits > format.emax + 2:
        return sign * math.inf
    if bits < format.lowest_bit - 2:
        return sign * 0.0
    exact = float_power_ratio(x, p)  # or a ball would never decide a result halfway between two numbers
    return format.nearest_ratio(*exact) if exact else _correctly_rounded(lambda: arb_power(arb(x), p), format)


def _correctly_rounded(evaluate: Callable[[], Any], format: Format) -> float:
    """Evaluate in ever narrower balls until both ends round to the same number.

    It ends where the result is irrational, as exp and log of a double are (except at 0 and 1, where the ball is exact).
    """
    bits = 2 * format.precision + 20
    while True:
        with working(bits):
            low, high = (format.nearest_ratio(int(end.p), int(end.q)) for end in endpoints(evaluate()))
        if low == high:
            return low
        bits *= 2
