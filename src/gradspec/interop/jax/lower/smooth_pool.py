"""Smooth max pooling in its pivot form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jax import Array
from jax import numpy as jnp
from numpy.typing import NDArray

from gradspec.backends.tables import ABSENT
from gradspec.interop.jax.lower.windows import every_cell, reads, transposed
from gradspec.spec.window import Window


def _counted(attrs: Any, window: Window) -> NDArray[np.bool_]:
    """Which taps take part."""
    places = reads(window)
    return places != ABSENT if attrs.padding_mode == "zeros" else places >= 0


def _powers(attrs: Any, window: Window, x: Array) -> tuple[Array, Array]:
    """The pivot ``c`` of each window, and ``exp(β(xᵢ − c))``, 0 for taps that do not take part."""
    counted, cells = _counted(attrs, window), every_cell(window, x, 0)
    if attrs.beta > 0:
        pivot = jnp.where(counted, cells, -jnp.inf).max(axis=-1, keepdims=True)
    else:
        pivot = jnp.where(counted, cells, jnp.inf).min(axis=-1, keepdims=True)
    return pivot[..., 0], jnp.where(counted, jnp.exp(_exponents(cells, pivot, attrs.beta)), 0)


def _exponents(cells: Array, pivot: Array, beta: float) -> Array:
    """``β(x − c)``, also where both are the same infinity or their difference overflows."""
    gap = cells - pivot
    too_wide = jnp.isinf(gap) & jnp.isfinite(cells) & jnp.isfinite(pivot)
    exponents = jnp.where(too_wide, (2 * beta) * (cells / 2 - pivot / 2), beta * gap)
    return jnp.where(cells == pivot, 0, exponents)


def _smooth_max_pool(attrs: Any, x: Array) -> Array:
    window = attrs.window(x)
    pivot, powers = _powers(attrs, window, x)
    value = pivot + jnp.log(powers.sum(axis=-1)) / attrs.beta
    return jnp.where(_counted(attrs, window).any(axis=-1), value, 0)


def _mean(attrs: Any, x: Array) -> Callable[[Array], Array]:
    """The mean of each window with its softmax weights, as a linear function."""
    window = attrs.window(x)
    _, powers = _powers(attrs, window, x)
    weights = jnp.where(reads(window) >= 0, powers / powers.sum(axis=-1, keepdims=True), 0)
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
