"""Dual numbers ``value + tangent·ε`` with ε² = 0, over any number system: forward derivatives by arithmetic alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce

from gradspec.domains.domain import Domain
from gradspec.spec import scalar
from gradspec.spec.scalar import Choice, Scalar
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
        return other if isinstance(other, Dual) else Dual(other, scalar.embed(self.tangent, 0))

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
        slopes = {-1: -self.tangent, 0: scalar.embed(self.tangent, 0), 1: self.tangent}
        possible = (slopes[sign] for sign in scalar.order(self.value, scalar.embed(self.value, 0)))
        return Dual(abs(self.value), reduce(scalar.hull, possible))

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


@scalar.embed.register
def _(like: Dual, value: Scalar) -> Dual:
    if isinstance(value, Dual):
        return value
    return Dual(scalar.embed(like.value, value), scalar.embed(like.tangent, 0))


@scalar.stored.register
def _(x: Dual) -> Dual:
    return Dual(scalar.stored(x.value), scalar.stored(x.tangent))


@scalar.is_infinite.register
def _(x: Dual) -> bool:
    return scalar.is_infinite(x.value)


@scalar.ends.register
def _(x: Dual) -> tuple[Scalar, Scalar]:
    return scalar.ends(x.value)


@scalar.pivot.register
def _(x: Dual) -> Dual:  # smooth max does not depend on its pivot, so the pivot is a constant
    return Dual(scalar.pivot(x.value), scalar.embed(x.tangent, 0))


@scalar.larger.register
def _(a: Dual, b: Dual) -> Dual:
    choice = scalar.choose([a.value, b.value])
    return Dual(scalar.larger(a.value, b.value), choice.push([a.tangent, b.tangent]))


@scalar.maximum.register
def _(a: Dual, b: Dual) -> Dual:
    choice = scalar.choose([a.value, b.value], "split")
    return Dual(scalar.maximum(a.value, b.value), choice.push([a.tangent, b.tangent]))


@scalar.hull.register
def _(a: Dual, b: Scalar) -> Dual:
    that = a._lift(b)
    return Dual(scalar.hull(a.value, that.value), scalar.hull(a.tangent, that.tangent))


@scalar.order.register
def _(a: Dual, b: Scalar) -> tuple[int, ...]:
    return scalar.order(a.value, a._lift(b).value)


@scalar.constant.register
def _(x: Dual) -> Dual:
    return Dual(scalar.constant(x.value), scalar.embed(x.tangent, 0))


@scalar.pass_tangent.register
def _(x: Dual, function: Callable[[Scalar], Scalar]) -> Dual:
    return Dual(scalar.pass_tangent(x.value, function), x.tangent)


@scalar.increasing.register
def _(x: Dual, function: Callable[[Scalar], Scalar]) -> Dual:
    return Dual(scalar.increasing(x.value, function), function(x).tangent)


@scalar.choose_among.register
def _(like: Dual, cells: Sequence[Dual], ties: str, strict: bool) -> Choice:
    return scalar.choose([cell.value for cell in cells], ties, strict)


@scalar.floor.register
def _(x: Dual) -> Dual:
    return Dual(scalar.floor(x.value), scalar.embed(x.tangent, 0))


@scalar.nearest_integer.register
def _(x: Dual) -> Dual:
    return Dual(scalar.nearest_integer(x.value), scalar.embed(x.tangent, 0))


@scalar.varies.register
def _(x: Dual) -> bool:
    return scalar.varies(x.value) or not bool(x.tangent == 0)


@scalar.exp.register
def _(x: Dual) -> Dual:
    value = scalar.exp(x.value)
    return Dual(value, value * x.tangent)


@scalar.log.register
def _(x: Dual) -> Dual:
    return Dual(scalar.log(x.value), x.tangent / x.value)


@scalar.sqrt.register
def _(x: Dual) -> Dual:
    root = scalar.sqrt(x.value)
    return Dual(root, x.tangent / (root * 2))


@scalar.power.register
def _(x: Dual, p: int | float | Fraction) -> Dual:
    value = scalar.power(x.value, p)
    if p == 0:
        return Dual(value, scalar.embed(x.tangent, 0))
    return Dual(value, scalar.embed(value, p) * scalar.power(x.value, Fraction(p) - 1) * x.tangent)


@scalar.log1p.register
def _(x: Dual) -> Dual:
    return Dual(scalar.log1p(x.value), x.tangent / (x.value + 1))


@scalar.tanh.register
def _(x: Dual) -> Dual:
    value = scalar.tanh(x.value)
    return Dual(value, (1 - value * value) * x.tangent)


@scalar.sin.register
def _(x: Dual) -> Dual:
    return Dual(scalar.sin(x.value), scalar.cos(x.value) * x.tangent)


@scalar.cos.register
def _(x: Dual) -> Dual:
    return Dual(scalar.cos(x.value), -scalar.sin(x.value) * x.tangent)


@scalar.atan.register
def _(x: Dual) -> Dual:
    return Dual(scalar.atan(x.value), x.tangent / (x.value * x.value + 1))


@scalar.erf.register
def _(x: Dual) -> Dual:
    root = scalar.sqrt(scalar.embed(x.value, 2))  # erf x = 2·Φ(√2·x) − 1
    return Dual(scalar.erf(x.value), scalar.normal_density(x.value * root) * root * 2 * x.tangent)


@scalar.normal_cdf.register
def _(x: Dual) -> Dual:
    return Dual(scalar.normal_cdf(x.value), scalar.normal_density(x.value) * x.tangent)


@scalar.normal_density.register
def _(x: Dual) -> Dual:
    value = scalar.normal_density(x.value)
    return Dual(value, -(value * x.value) * x.tangent)
