"""Max and average pooling, and scatter at winners.

The maximum of a window is that of the maxima of its rows, and its first winner in row-major order is the first winner
of the first row that has one. So winners are chosen axis by axis, the last axis first, and tangents follow: at each
axis a mask of the taps that take part. ``"all"`` and ``"split"`` keep every tied tap in the mask.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from jax import Array
from jax import numpy as jnp

from gradspec.backends.numpy.pool import divisors, has_cells
from gradspec.backends.xp.gather import gather_cells
from gradspec.interop.jax.lower.namespace import JAX
from gradspec.interop.jax.lower.windows import across, along, stages, taps, transposed
from gradspec.spec.window import Window

# --- the maximum ------------------------------------------------------------------------------------------------------


def _lowest(dtype: Any) -> Any:
    return -jnp.inf if jnp.issubdtype(dtype, jnp.floating) else np.iinfo(dtype).min


def _largest(window: Window, x: Array) -> Array:
    """The maximum of each window; a NaN if one of its cells is."""
    for axis, at in stages(window, x):
        x = along(axis, x, at, _lowest(x.dtype)).max(axis=at + 1)
    return x


def _chosen(window: Window, x: Array, ties: str) -> tuple[Array, list[Array]]:
    """The largest cell of each window, and for each axis the taps that take part in derivatives."""
    masks: list[Any] = []
    lowest = _lowest(x.dtype)
    for axis, at in stages(window, x):
        cells = along(axis, x, at, lowest)
        top = cells.max(axis=at + 1, keepdims=True)
        mask = across(taps(axis) >= 0, cells.ndim, at) & ((cells == top) | (cells != cells))
        if ties == "first":
            first = mask.argmax(axis=at + 1, keepdims=True)
            mask = mask & (first == across(np.arange(cells.shape[at + 1])[None], cells.ndim, at))
        x = jnp.where(mask, cells, lowest).max(axis=at + 1)  # of equal zeros, the winner
        masks.append(mask)
    return x, masks


def _pushed(window: Window, masks: list[Array], dx: Array) -> Array:
    """The sum over the cells that the masks let through; linear in ``dx``."""
    for (axis, at), mask in zip(stages(window, dx), masks, strict=True):
        dx = jnp.where(mask, along(axis, dx, at, 0), 0).sum(axis=at + 1, dtype=dx.dtype)
    return dx


def _max_pool(attrs: Any, x: Array) -> Any:
    window = attrs.window(x)
    filled = has_cells(window)
    if not attrs.return_indices:
        return jnp.where(filled, _largest(window, x), 0)
    values, masks = _chosen(window, x, "first")
    places = jnp.arange(prod(window.sizes)).reshape(window.sizes)
    winners = _pushed(window, masks, jnp.broadcast_to(places, x.shape))
    return jnp.where(filled, values, 0), jnp.where(filled, winners, -1)


def _push(attrs: Any, x: Array) -> Callable[[Array], Array]:
    """The tangent of the maximum, as a linear function."""
    window = attrs.window(x)
    _, masks = _chosen(window, x, attrs.ties)
    if attrs.ties != "split":
        return lambda dx: _pushed(window, masks, dx)
    counts = jnp.maximum(_pushed(window, masks, jnp.ones_like(x)), 1)
    return lambda dx: _pushed(window, masks, dx) / counts


def _max_pool_push(attrs: Any, x: Array, dx: Array) -> Array:
    return _push(attrs, x)(dx)


def _max_pool_pull(attrs: Any, x: Array, g: Array) -> Array:
    return transposed(_push(attrs, x), x.shape, g)


# --- the average ------------------------------------------------------------------------------------------------------


def _mean(attrs: Any, window: Window, x: Array) -> Array:
    total = x
    for axis, at in stages(window, x):
        total = along(axis, total, at, 0).sum(axis=at + 1)
    return total / divisors(attrs, window, x.dtype)


def _avg_pool(attrs: Any, x: Array) -> Array:
    return _mean(attrs, attrs.window(x), x)


def _avg_pool_spread(attrs: Any, g: Array) -> Array:
    shape = (*g.shape[: g.ndim - len(attrs.sizes)], *attrs.sizes)
    window = attrs.window(np.broadcast_to(np.float32(0), shape))
    return transposed(lambda x: _mean(attrs, window, x), shape, g)


# --- scatter -----------------------------------------------------------------------------------------------


def _max_unpool(attrs: Any, x: Array, indices: Array) -> Array:
    rank = len(attrs.output_size)
    shape = (*x.shape[: x.ndim - rank], *attrs.output_size)
    return transposed(lambda planes: gather_cells(JAX, planes, indices, rank), shape, x)


LOWERINGS: dict[str, Callable[..., Any]] = {
    "max_pool": _max_pool,
    "max_pool_push": _max_pool_push,
    "max_pool_pull": _max_pool_pull,
    "avg_pool": _avg_pool,
    "avg_pool_spread": _avg_pool_spread,
    "max_unpool": _max_unpool,
}
