"""Dual numbers ``value + tangent·ε`` with ε² = 0, over any number system: forward derivatives by arithmetic alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce

from gradspec.domains.domain import Domain
from gradspec.spec.scalar import (
    Choice,
    Scalar,
    choose,
    choose_among,
    constant,
    cos,
    embed,
    ends,
    erf,
    exp,
    floor,
    hull,
    increasing,
    is_infinite,
    larger,
    log,
    log1p,
    maximum,
    nearest_integer,
    normal_cdf,
    normal_density,
    order,
    pass_tangent,
    pivot,
    power,
    sin,
    sqrt,
    stored,
    tanh,
    varies,
)
from gradspec.spec.tensor import Tensor, TensorLike, require_shape


@dataclass(frozen=True, repr=False)
class DualDomain(Domain):
    """Dual numbers over another system."""

    over: Domain

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"dual({self.over!r})"

    def scalar(self, value: Scalar) -> Dual:
        if isinstance(value, Dual):
            return Dual(self.over.scalar(value.value), self.over.scalar(value.tangent))
        return Dual(self.over.scalar(value), self.over.scalar(0))

    def tensor(self, data: TensorLike, tangent: TensorLike | None = None) -> Tensor:
        """The numbers of ``data`` with the tangents of ``tangent`` (zero unless given)."""
        if tangent is None:
            return super().tensor(data)
        values, tangents = self.over.tensor(data), self.over.tensor(tangent)
        require_shape("tangent", tangents, values.shape)
        return Tensor(values.shape, map(Dual, values.cells, tangents.cells))


def dual(over: Domain) -> DualDomain:
    """Dual numbers over ``over``; nest them for higher derivatives.

    >>> import gradspec as gs
    >>> y = gs.spec.avg_pool(dual(gs.exact).tensor([1, 2], [1, 0]), (2,))
    >>> y.tolist()
    [3/2 + 1/2·ε]
    """
    if not isinstance(over, Domain):
        raise TypeError(f"dual({over!r}): give the number system to build on, such as gs.dual(gs.exact)")
    return DualDomain(over)


class Dual:
    """``value + tangent·ε``. Comparisons look at values alone; equality at both."""

    __slots__ = ("tangent", "value")
    __array_ufunc__ = None

    def __init__(self, value: Scalar, tangent: Scalar) -> None:
        self.value, self.tangent = value, tangent

    def _lift(self, other: Scalar) -> Dual:
        return other if isinstance(other, Dual) else Dual(other, embed(self.tangent, 0))

    def __add__(self, other: Scalar) -> Dual:
        if not isinstance(other, Dual):
            return Dual(self.value + other, self.tangent)
        return Dual(self.value + other.value, self.tangent + other.tangent)

    __radd__ = __add__

    def __neg__(self) -> Dual:
        return Dual(-self.value, -self.tangent)

    def __sub__(self, other: Scalar) -> Dual:
        return (
            Dual(self.value - other.value, self.tangent - other.tangent)
            if isinstance(other, Dual)
            else Dual(self.value - other, self.tangent)
        )

    def __rsub__(self, other: Scalar) -> Dual:
        return Dual(other - self.value, -self.tangent)

    def __mul__(self, other: Scalar) -> Dual:
        if not isinstance(other, Dual):
            return Dual(self.value * other, self.tangent * other)
        return Dual(self.value * other.value, self.tangent * other.value + self.value * other.tangent)

    __rmul__ = __mul__

    def __truediv__(self, other: Scalar) -> Dual:
        if not isinstance(other, Dual):
            return Dual(self.value / other, self.tangent / other)
        quotient = self.value / other.value
        return Dual(quotient, (self.tangent - quotient * other.tangent) / other.value)

    def __rtruediv__(self, other: Scalar) -> Dual:
        return self._lift(other) / self

    def __abs__(self) -> Dual:
        slopes = {-1: -self.tangent, 0: embed(self.tangent, 0), 1: self.tangent}
        possible = (slopes[sign] for sign in order(self.value, embed(self.value, 0)))
        return Dual(abs(self.value), reduce(hull, possible))

    def __gt__(self, other: Scalar) -> bool:
        return bool(self.value > self._lift(other).value)

    def __lt__(self, other: Scalar) -> bool:
        return bool(self.value < self._lift(other).value)

    def __eq__(self, other: object) -> bool:
        that = self._lift(other)
        return bool(self.value == that.value and self.tangent == that.tangent)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{self.value} + {self.tangent}·ε"


@embed.register
def _(like: Dual, value: Scalar) -> Dual:
    if isinstance(value, Dual):
        return value
    return Dual(embed(like.value, value), embed(like.tangent, 0))


@stored.register
def _(x: Dual) -> Dual:
    return Dual(stored(x.value), stored(x.tangent))


@is_infinite.register
def _(x: Dual) -> bool:
    return is_infinite(x.value)


@ends.register
def _(x: Dual) -> tuple[Scalar, Scalar]:
    return ends(x.value)


@pivot.register
def _(x: Dual) -> Dual:  # smooth max does not depend on its pivot, so the pivot is a constant
    return Dual(pivot(x.value), embed(x.tangent, 0))


@larger.register
def _(a: Dual, b: Dual) -> Dual:
    choice = choose([a.value, b.value])
    return Dual(larger(a.value, b.value), choice.push([a.tangent, b.tangent]))


@maximum.register
def _(a: Dual, b: Dual) -> Dual:
    choice = choose([a.value, b.value], "split")
    return Dual(maximum(a.value, b.value), choice.push([a.tangent, b.tangent]))


@hull.register
def _(a: Dual, b: Scalar) -> Dual:
    that = a._lift(b)
    return Dual(hull(a.value, that.value), hull(a.tangent, that.tangent))


@order.register
def _(a: Dual, b: Scalar) -> tuple[int, ...]:
    return order(a.value, a._lift(b).value)


@constant.register
def _(x: Dual) -> Dual:
    return Dual(constant(x.value), embed(x.tangent, 0))


@pass_tangent.register
def _(x: Dual, function: Callable[[Scalar], Scalar]) -> Dual:
    return Dual(pass_tangent(x.value, function), x.tangent)


@increasing.register
def _(x: Dual, function: Callable[[Scalar], Scalar]) -> Dual:
    return Dual(increasing(x.value, function), function(x).tangent)


@choose_among.register
def _(like: Dual, cells: Sequence[Dual], ties: str, strict: bool) -> Choice:
    return choose([cell.value for cell in cells], ties, strict)


@floor.register
def _(x: Dual) -> Dual:
    return Dual(floor(x.value), embed(x.tangent, 0))


@nearest_integer.register
def _(x: Dual) -> Dual:
    return Dual(nearest_integer(x.value), embed(x.tangent, 0))


@varies.register
def _(x: Dual) -> bool:
    return varies(x.value) or not bool(x.tangent == 0)


@exp.register
def _(x: Dual) -> Dual:
    value = exp(x.value)
    return Dual(value, value * x.tangent)


@log.register
def _(x: Dual) -> Dual:
    return Dual(log(x.value), x.tangent / x.value)


@sqrt.register
def _(x: Dual) -> Dual:
    root = sqrt(x.value)
    return Dual(root, x.tangent / (root * 2))


@power.register
def _(x: Dual, p: int | float | Fraction) -> Dual:
    value = power(x.value, p)
    if p == 0:
        return Dual(value, embed(x.tangent, 0))
    return Dual(value, embed(value, p) * power(x.value, Fraction(p) - 1) * x.tangent)


@log1p.register
def _(x: Dual) -> Dual:
    return Dual(log1p(x.value), x.tangent / (x.value + 1))


@tanh.register
def _(x: Dual) -> Dual:
    value = tanh(x.value)
    return Dual(value, (1 - value * value) * x.tangent)


@sin.register
def _(x: Dual) -> Dual:
    return Dual(sin(x.value), cos(x.value) * x.tangent)


@cos.register
def _(x: Dual) -> Dual:
    return Dual(cos(x.value), -sin(x.value) * x.tangent)


@erf.register
def _(x: Dual) -> Dual:
    root = sqrt(embed(x.value, 2))  # erf x = 2·Φ(√2·x) − 1
    return Dual(erf(x.value), normal_density(x.value * root) * root * 2 * x.tangent)


@normal_cdf.register
def _(x: Dual) -> Dual:
    return Dual(normal_cdf(x.value), normal_density(x.value) * x.tangent)


@normal_density.register
def _(x: Dual) -> Dual:
    value = normal_density(x.value)
    return Dual(value, -(value * x.value) * x.tangent)
