"""Smooth max pooling in its pivot form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import Array

from gradspec.backends.xp.pool import smooth_max, smooth_weights
from gradspec.interop.jax.lower.namespace import JAX
from gradspec.interop.jax.lower.windows import every_cell, reads, transposed


def _smooth_max_pool(attrs: Any, x: Array) -> Any:
    window = attrs.window(x)
    return smooth_max(JAX, attrs, attrs.beta, reads(window), every_cell(window, x, 0))


def _mean(attrs: Any, x: Array) -> Callable[[Array], Array]:
    """The mean of each window with its softmax weights, as a linear function."""
    window = attrs.window(x)
    weights = smooth_weights(JAX, attrs, attrs.beta, reads(window), every_cell(window, x, 0))
    return lambda u: (weights * every_cell(window, u, 0)).sum(axis=-1)


def _smooth_max_mean(attrs: Any, x: Array, u: Array) -> Array:
    return _mean(attrs, x)(u)


def _smooth_max_spread(attrs: Any, x: Array, g: Array) -> Array:
    return transposed(_mean(attrs, x), x.shape, g)


LOWERINGS: dict[str, Callable[..., Any]] = {
    "smooth_max_pool": _smooth_max_pool,
    "smooth_max_mean": _smooth_max_mean,
    "smooth_max_spread": _smooth_max_spread,
}
