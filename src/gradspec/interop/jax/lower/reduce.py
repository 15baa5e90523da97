"""Reductions, and the softmax around its largest cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import Array, lax
from jax import numpy as jnp

from gradspec.spec.reduce import reduced_sizes, terms_of_mean


def _sum(attrs: Any, x: Array) -> Array:
    return x.sum(axis=attrs.axes, dtype=x.dtype)


def _share(attrs: Any, x: Array) -> Array:
    parts = x.reshape(reduced_sizes(attrs.shape, attrs.axes, keepdims=True)) / terms_of_mean(attrs.shape, attrs.axes)
    return jnp.broadcast_to(parts, attrs.shape)


def _cumsum(attrs: Any, x: Array) -> Array:
    total = lax.cumsum(x, attrs.axis, reverse=attrs.reverse)
    if not (attrs.exclusive and x.size):
        return total
    moved = jnp.roll(total, -1 if attrs.reverse else 1, attrs.axis)
    return moved.at[(slice(None),) * attrs.axis + (-1 if attrs.reverse else 0,)].set(0)


def _from_largest(x: Array, axis: int) -> Array:
    return x - x.max(axis, keepdims=True, initial=-jnp.inf)


def _softmax(attrs: Any, x: Array) -> Array:
    powers = jnp.exp(_from_largest(x, attrs.axis))
    return powers / powers.sum(attrs.axis, keepdims=True)


def _log_softmax(attrs: Any, x: Array) -> Array:
    exponents = _from_largest(x, attrs.axis)
    return exponents - jnp.log(jnp.exp(exponents).sum(attrs.axis, keepdims=True))


LOWERINGS: dict[str, Callable[..., Any]] = {
    "sum": _sum,
    "mean": lambda attrs, x: _sum(attrs, x) / terms_of_mean(x.shape, attrs.axes),
    "cumsum": _cumsum,
    "share": _share,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
}
