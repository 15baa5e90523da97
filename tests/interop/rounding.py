"""Numbers that know how far a float32 computation of them may be off: the specification run on them bounds a runtime.

A number is a double and a bound on the error of its float32 counterpart. Sums may be formed in any order and products
fused, so a rounding is charged not at the size of a partial sum but at the sum of the absolute values of all its terms,
``size``; dividing may be done by a rounded reciprocal. Numbers that lie on a common grid, coarse enough for their sum
to have 24 bits, are added and multiplied without rounding, in any order: then the bound is 0 and equality is demanded.
What doubles leave out is 2⁻²⁹ of what is charged for float32, and the last step adds a thousandth for it.

Functions are charged what a careful implementation is off by, in units of the last place: ``ABSOLUTE`` where runtimes
promise no more than digits after the point (they clip sigmoid and tanh, and have no erfc and no log1p), else
``RELATIVE``.
"""

import math
from collections.abc import Callable
from fractions import Fraction

from gradspec.domains.domain import Domain
from gradspec.spec import scalar

UNIT = 2.0**-24
RELATIVE = 4 * UNIT
ABSOLUTE = 8 * UNIT
TINY = 2.0**-126


class UndecidedError(Exception):
    """A choice depends on a rounding, so no bound is known."""


class Rounded:
    """``value``, off by at most ``error``; exact multiples of ``grain`` where that is not 0."""

    __slots__ = ("error", "grain", "size", "value")
    __array_ufunc__ = None

    def __init__(self, value: float, error: float = 0.0, size: float | None = None, grain: float = 0.0) -> None:
        self.value, self.error, self.grain = value, error, grain
        self.size = abs(value) + error if size is None else size

    def _sum(self, other: "Rounded", value: float) -> "Rounded":
        size, error = self.size + other.size, self.error + other.error
        grain = min(self.grain, other.grain)
        if grain and size <= grain / UNIT:
            return Rounded(value, 0.0, size, grain)
        return Rounded(value, error + UNIT * size, size)

    def __add__(self, other):
        that = lift(other)
        return self._sum(that, self.value + that.value)

    __radd__ = __add__

    def __sub__(self, other):
        that = lift(other)
        return self._sum(that, self.value - that.value)

    def __rsub__(self, other):
        return lift(other) - self

    def __neg__(self):
        return Rounded(-self.value, self.error, self.size, self.grain)

    def __abs__(self):
        return Rounded(abs(self.value), self.error, self.size, self.grain)

    def __mul__(self, other):
        that = lift(other)
        value, size, grain = self.value * that.value, self.size * that.size, self.grain * that.grain
        if grain and size <= grain / UNIT:
            return Rounded(value, 0.0, size, grain)
        a, b = self, that
        error = abs(a.value) * b.error + abs(b.value) * a.error + a.error * b.error
        return Rounded(value, error + UNIT * size, size)

    __rmul__ = __mul__

    def __truediv__(self, other):
        that = lift(other)
        if that.error >= abs(that.value):
            raise UndecidedError("a divisor may be 0")
        value, size = self.value / that.value, self.size / abs(that.value)
        if self.grain and that.grain and math.frexp(that.value)[0] in (0.5, -0.5):
            return Rounded(value, 0.0, size, self.grain / abs(that.value))
        error = (self.error + abs(value) * that.error) / (abs(that.value) - that.error)
        return Rounded(value, error + 3 * UNIT * size + TINY, size)

    def __rtruediv__(self, other):
        return lift(other) / self

    def _decided(self, other):
        """The difference to ``other``, if its sign is beyond doubt."""
        that = lift(other)
        gap = 0.0 if that is self else self.value - that.value
        if that is not self and 0 < self.error + that.error >= abs(gap):
            raise UndecidedError(f"{self.value} and {that.value} are too close to tell which is larger")
        return gap

    def __gt__(self, other):
        return self._decided(other) > 0

    def __lt__(self, other):
        return self._decided(other) < 0

    def __eq__(self, other):
        return self._decided(other) == 0

    __hash__ = None

    def charged(self, value: float, spread: float, fixed: float = 0.0) -> "Rounded":
        """A function's value, its argument's error spread by its slope, and its own error."""
        return Rounded(value, spread + RELATIVE * abs(value) + fixed + TINY)


def lift(number) -> Rounded:
    if isinstance(number, Rounded):
        return number
    value = float(number)
    return Rounded(value, 0.0, None, grain_of(value))


def grain_of(value: float) -> float:
    """The largest power of two that ``value`` is a multiple of; one for 0, and none for what is not finite."""
    if not math.isfinite(value):
        return 0.0
    return 1.0 if value == 0 else 1.0 / Fraction(value).denominator if value % 1 else float(int(value) & -int(value))


class RoundedDomain(Domain):
    """float32 arithmetic, with every rounding accounted for."""

    name = "rounded"

    def scalar(self, value) -> Rounded:
        return lift(value)


ROUNDED = RoundedDomain()


@scalar.embed.register
def _(like: Rounded, value):
    return lift(value)


@scalar.stored.register
def _(x: Rounded):
    return Rounded(x.value, x.error, None, x.grain)


@scalar.is_infinite.register
def _(x: Rounded):
    return math.isinf(x.value)


@scalar.larger.register
def _(a: Rounded, b: Rounded):
    """Either may be chosen where they are close, and then the worse error is."""
    winner = b if b.value > a.value else a
    if abs(a.value - b.value) > a.error + b.error:
        return winner
    return Rounded(winner.value, max(a.error, b.error), max(a.size, b.size), min(a.grain, b.grain))


@scalar.pivot.register
def _(x: Rounded):
    return x


@scalar.order.register
def _(a: Rounded, b):
    gap = a._decided(b)
    return ((gap > 0) - (gap < 0),)


@scalar.maximum.register
def _(a: Rounded, b: Rounded):
    return scalar.larger(a, b)


@scalar.constant.register
def _(x: Rounded):
    return x


@scalar.ends.register
def _(x: Rounded):
    return x.value - x.error, x.value + x.error


@scalar.exp.register
def _(x: Rounded):
    value = math.exp(x.value)
    return x.charged(value, value * math.expm1(x.error))


@scalar.log.register
def _(x: Rounded):
    if x.value == x.error == 0:
        return lift(-math.inf)
    return x.charged(math.log(x.value), -math.log1p(-x.error / x.value))


@scalar.log1p.register
def _(x: Rounded):
    return x.charged(math.log1p(x.value), x.error / (1 + x.value - x.error), ABSOLUTE)


@scalar.sqrt.register
def _(x: Rounded):
    root = math.sqrt(x.value)
    if x.grain and Fraction(root) ** 2 == Fraction(x.value):
        return lift(root)
    return x.charged(root, root - math.sqrt(x.value - x.error))


@scalar.power.register
def _(x: Rounded, p):
    p = float(p)
    if p in (0, 1, 2):
        return (lift(1), x, x * x)[int(p)]
    if x.error >= abs(x.value):
        raise UndecidedError("the base of a power may be 0")
    value, low, high = (math.pow(v, p) for v in (x.value, x.value - x.error, x.value + x.error))
    return x.charged(value, abs(high - low))


@scalar.floor.register
def _(x: Rounded):
    return _whole(x, math.floor)


@scalar.nearest_integer.register
def _(x: Rounded):
    return _whole(x, round)


def _whole(x: Rounded, rounded: Callable):
    if rounded(x.value - x.error) != rounded(x.value + x.error):
        raise UndecidedError(f"{x.value} is too close to where it is rounded otherwise")
    return lift(rounded(x.value))


@scalar.tanh.register
def _(x: Rounded):
    return x.charged(math.tanh(x.value), x.error, ABSOLUTE)


@scalar.sin.register
def _(x: Rounded):
    return x.charged(math.sin(x.value), x.error, ABSOLUTE)


@scalar.cos.register
def _(x: Rounded):
    return x.charged(math.cos(x.value), x.error, ABSOLUTE)


@scalar.atan.register
def _(x: Rounded):
    return x.charged(math.atan(x.value), x.error, ABSOLUTE)


@scalar.erf.register
def _(x: Rounded):
    return x.charged(math.erf(x.value), 2 * x.error, ABSOLUTE)


@scalar.normal_cdf.register
def _(x: Rounded):
    return x.charged(math.erfc(-x.value * math.sqrt(0.5)) / 2, x.error, ABSOLUTE)


@scalar.normal_density.register
def _(x: Rounded):
    value = math.exp(-x.value * x.value / 2) / math.sqrt(2 * math.pi)
    return x.charged(value, x.error + 4 * UNIT * x.value * x.value * value)


@scalar.increasing.register
def _(x: Rounded, function: Callable):
    """The function itself decides by the sign of its argument which of two equal formulas to use."""
    value = function(Rounded(x.value, 0.0, None, x.grain))
    ends = [function(Rounded(end)).value for end in (x.value - x.error, x.value + x.error)] if x.error else [0, 0]
    return Rounded(value.value, value.error + ends[1] - ends[0] + ABSOLUTE, value.size)
