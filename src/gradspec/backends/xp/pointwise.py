"""Operators that work cell by cell, comparisons among them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from gradspec.backends.xp.namespace import Array, Namespace
from gradspec.spec.pointwise import GELU_CUBIC, GELU_SCALE


def _operation(function: Callable[..., Any]) -> Callable[..., Array]:
    """An operator that Python has for arrays."""
    return lambda xp, attrs, *operands: function(*operands)


def _function(name: str) -> Callable[..., Array]:
    """An operator that every library has as a function."""
    return lambda xp, attrs, *operands: getattr(xp, name)(*operands)


def _trunc_divide(xp: Namespace, _: Any, a: Array, b: Array) -> Array:
    return xp.where(b == 0, 0, xp.trunc_divide(a, xp.where(b == 0, 1, b)))


def _sigmoid(xp: Namespace, x: Array) -> Array:
    power = xp.exp(-xp.abs(x))
    return xp.where(x < 0, power, 1) / (1 + power)


def _softplus(xp: Namespace, attrs: Any, x: Array) -> Array:
    z = attrs.beta * x
    bend = xp.log1p(xp.exp(-xp.abs(z))) / attrs.beta
    return xp.where(z > 0, x + bend, bend)


def _clamp(xp: Namespace, attrs: Any, x: Array) -> Array:
    above = x if attrs.min is None else xp.where(x < attrs.min, attrs.min, x)
    return above if attrs.max is None else xp.where(above > attrs.max, attrs.max, above)


def _step(xp: Namespace, attrs: Any, x: Array) -> Array:
    return xp.where(x < 0, attrs.below, xp.where(x == 0, attrs.at, attrs.above))


def _max_share(xp: Namespace, _: Any, a: Array, b: Array) -> Array:
    larger = xp.where(a > b, 1.0, xp.where(b > a, 0.0, 0.5))
    return xp.where(xp.isnan(a) == xp.isnan(b), larger, xp.isnan(a))


def _within(xp: Namespace, attrs: Any, x: Array) -> Array:
    outside = xp.zeros_like(x, dtype=bool) if attrs.min is None else x < attrs.min
    return ~(outside if attrs.max is None else outside | (x > attrs.max))


def _gelu(xp: Namespace, attrs: Any, x: Array) -> Array:
    if attrs.approximate == "none":
        return x * xp.normal_cdf(x)
    return x * _sigmoid(xp, GELU_SCALE * (x + GELU_CUBIC * (x * x * x)))


def _abs_power(xp: Namespace, attrs: Any, x: Array) -> Array:
    value = xp.abs(x) ** attrs.exponent
    signed = xp.where(x < 0, -value, value) if attrs.signed else value
    return xp.where(x == 0, float(attrs.exponent == 0 and not attrs.signed), signed)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "neg": operator.neg,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "greater": operator.gt,
    "equal": operator.eq,
}
FUNCTIONS = (
    *("abs", "floor", "round", "exp", "log", "sqrt", "tanh", "sin", "cos", "erf", "normal_cdf", "normal_density"),
    *("maximum", "minimum", "where"),
)

LOWERINGS: dict[str, Callable[..., Any]] = {
    **{name: _operation(function) for name, function in OPERATIONS.items()},
    **{name: _function(name) for name in FUNCTIONS},
    "trunc_divide": _trunc_divide,
    "scale": lambda xp, attrs, x: x * attrs.factor,
    "detach": lambda xp, _, x: x,
    "relu": lambda xp, _, x: xp.where(x <= 0, 0, x),
    "leaky_relu": lambda xp, attrs, x: xp.where(x <= 0, attrs.negative_slope * x, x),
    "abs_power": _abs_power,
    "clamp": _clamp,
    "sigmoid": lambda xp, _, x: _sigmoid(xp, x),
    "softplus": _softplus,
    "silu": lambda xp, _, x: x * _sigmoid(xp, x),
    "gelu": _gelu,
    "step": _step,
    "max_share": _max_share,
    "within": _within,
    "gate": lambda xp, _, weight, t: xp.where(weight == 0, 0, weight * t),
}
