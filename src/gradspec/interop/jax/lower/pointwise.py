"""Operators that work cell by cell."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt
from typing import Any

from jax import Array, lax
from jax import numpy as jnp

from gradspec.spec.pointwise import GELU_CUBIC, GELU_SCALE


def _trunc_divide(_: Any, a: Array, b: Array) -> Array:
    return jnp.where(b == 0, 0, lax.div(a, jnp.where(b == 0, 1, b)))


def _sigmoid(x: Array) -> Array:
    power = jnp.exp(-jnp.abs(x))
    return jnp.where(x < 0, power, 1) / (1 + power)


def _softplus(attrs: Any, x: Array) -> Array:
    z = attrs.beta * x
    bend = jnp.log1p(jnp.exp(-jnp.abs(z))) / attrs.beta
    return jnp.where(z > 0, x + bend, bend)


def _clamp(attrs: Any, x: Array) -> Array:
    above = x if attrs.min is None else jnp.where(x < attrs.min, attrs.min, x)
    return above if attrs.max is None else jnp.where(above > attrs.max, attrs.max, above)


def _step(attrs: Any, x: Array) -> Array:
    return jnp.where(x < 0, attrs.below, jnp.where(x == 0, attrs.at, attrs.above))


def _max_share(_: Any, a: Array, b: Array) -> Array:
    larger = jnp.where(a > b, 1.0, jnp.where(b > a, 0.0, 0.5))
    return jnp.where(jnp.isnan(a) == jnp.isnan(b), larger, jnp.isnan(a))


def _within(attrs: Any, x: Array) -> Array:
    below = jnp.zeros(x.shape, bool) if attrs.min is None else x < attrs.min
    return ~(below if attrs.max is None else below | (x > attrs.max))


def _normal_cdf(x: Array) -> Array:
    return lax.erfc(x * -sqrt(0.5)) / 2


def _normal_density(x: Array) -> Array:
    return jnp.exp(x * x * -0.5) * (1 / sqrt(2 * pi))


def _gelu(attrs: Any, x: Array) -> Array:
    if attrs.approximate == "none":
        return x * _normal_cdf(x)
    return x * _sigmoid(GELU_SCALE * (x + GELU_CUBIC * (x * x * x)))


LOWERINGS: dict[str, Callable[..., Any]] = {
    "neg": lambda _, x: -x,
    "add": lambda _, a, b: a + b,
    "sub": lambda _, a, b: a - b,
    "mul": lambda _, a, b: a * b,
    "div": lambda _, a, b: a / b,
    "trunc_divide": _trunc_divide,
    "scale": lambda attrs, x: x * attrs.factor,
    "detach": lambda _, x: x,
    "relu": lambda _, x: jnp.where(x <= 0, 0, x),
    "leaky_relu": lambda attrs, x: jnp.where(x <= 0, attrs.negative_slope * x, x),
    "abs": lambda _, x: jnp.abs(x),
    "clamp": _clamp,
    "maximum": lambda _, a, b: jnp.maximum(a, b),
    "minimum": lambda _, a, b: jnp.minimum(a, b),
    "floor": lambda _, x: jnp.floor(x),
    "round": lambda _, x: jnp.round(x),
    "exp": lambda _, x: jnp.exp(x),
    "log": lambda _, x: jnp.log(x),
    "sqrt": lambda _, x: jnp.sqrt(x),
    "tanh": lambda _, x: jnp.tanh(x),
    "sin": lambda _, x: jnp.sin(x),
    "cos": lambda _, x: jnp.cos(x),
    "sigmoid": lambda _, x: _sigmoid(x),
    "softplus": _softplus,
    "silu": lambda _, x: x * _sigmoid(x),
    "gelu": _gelu,
    "erf": lambda _, x: lax.erf(x),
    "normal_cdf": lambda _, x: _normal_cdf(x),
    "normal_density": lambda _, x: _normal_density(x),
    "step": _step,
    "max_share": _max_share,
    "within": _within,
    "gate": lambda _, weight, t: jnp.where(weight == 0, 0, weight * t),
}
