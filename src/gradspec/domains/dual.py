"""Dual numbers ``value + tangent·ε`` with ε² = 0, over any number system: forward derivatives by arithmetic alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from typing import Any

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


@scalar.varies.register
def _(x: Dual) -> bool:
    return scalar.varies(x.value) or not bool(x.tangent == 0)


@scalar.power.register
def _(x: Dual, p: int | float | Fraction) -> Dual:
    value = scalar.power(x.value, p)
    if p == 0:
        return Dual(value, scalar.embed(x.tangent, 0))
    return Dual(value, scalar.embed(value, p) * scalar.power(x.value, Fraction(p) - 1) * x.tangent)


def _erf_tangent(x: Scalar, y: Scalar, dx: Scalar) -> Scalar:
    root = scalar.sqrt(scalar.embed(x, 2))  # erf x = 2·Φ(√2·x) − 1
    return scalar.normal_density(x * root) * root * 2 * dx


_TANGENTS: dict[Any, Callable[[Scalar, Scalar, Scalar], Scalar]] = {
    scalar.floor: lambda x, y, dx: scalar.embed(dx, 0),
    scalar.nearest_integer: lambda x, y, dx: scalar.embed(dx, 0),
    scalar.exp: lambda x, y, dx: y * dx,
    scalar.log: lambda x, y, dx: dx / x,
    scalar.log1p: lambda x, y, dx: dx / (x + 1),
    scalar.sqrt: lambda x, y, dx: dx / (y * 2),
    scalar.tanh: lambda x, y, dx: (1 - y * y) * dx,
    scalar.sin: lambda x, y, dx: scalar.cos(x) * dx,
    scalar.cos: lambda x, y, dx: -scalar.sin(x) * dx,
    scalar.atan: lambda x, y, dx: dx / (x * x + 1),
    scalar.erf: _erf_tangent,
    scalar.normal_cdf: lambda x, y, dx: scalar.normal_density(x) * dx,
    scalar.normal_density: lambda x, y, dx: -(y * x) * dx,
}
"""Of functions ``y`` of one number ``x``: the tangent of ``y``, given that of ``x``."""


def _lift(function: Any, tangent: Callable[[Scalar, Scalar, Scalar], Scalar]) -> Callable[[Dual], Dual]:
    def of_dual(x: Dual) -> Dual:
        value = function(x.value)
        return Dual(value, tangent(x.value, value, x.tangent))

    return of_dual


for _function, _tangent in _TANGENTS.items():
    _function.register(Dual, _lift(_function, _tangent))
