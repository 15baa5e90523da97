"""Rows named by indices: read, added up, replaced. An index that names no row gives NaN, derivatives too."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from jax import Array
from jax import numpy as jnp

from gradspec.backends.xp.gather import pick
from gradspec.interop.jax.lower.namespace import JAX
from gradspec.interop.jax.lower.windows import transposed


def _gathered(x: Array, indices: Array, axis: int) -> Array:
    """As cells of planes: the leading axes as one, and the places within a row as one."""
    shape, lead, cells = indices.shape + x.shape[axis + 1 :], prod(x.shape[:axis]), prod(x.shape[axis + 1 :])
    if not prod(shape):
        return jnp.zeros(shape, x.dtype)
    rows = x.reshape(lead, x.shape[axis], cells)
    places = indices.reshape(lead, prod(indices.shape[axis:]), 1)
    return JAX.take_along_axis(rows, places, 1).reshape(shape)


def _gather(attrs: Any, x: Array, indices: Array) -> Array:
    return _gathered(x, indices, attrs.axis)


def _scatter_add(attrs: Any, x: Array, indices: Array) -> Array:
    shape = (*indices.shape[: attrs.axis], attrs.size, *x.shape[indices.ndim :])
    return transposed(lambda rows: _gathered(rows, indices, attrs.axis), shape, x)


def _scatter(attrs: Any, x: Array, indices: Array, rows: Array) -> Array:
    """The largest number of a row that its index names is that of the last one, in whatever order they are compared."""
    axis, size, count = attrs.axis, x.shape[attrs.axis], prod(indices.shape[attrs.axis :])
    if not indices.size or not x.size:
        return x
    lead, cells = prod(x.shape[:axis]), prod(x.shape[axis + 1 :])
    places = indices.reshape(lead, count)
    numbers = jnp.broadcast_to(jnp.arange(count), places.shape)
    named = jnp.where((places >= 0) & (places < size), places, 0)
    last = jnp.full((lead, size), -1, numbers.dtype).at[jnp.arange(lead)[:, None], named].max(numbers)
    put = JAX.take_along_axis(rows.reshape(lead, count, cells), jnp.maximum(last, 0)[..., None], 1)
    result = jnp.where(last[..., None] >= 0, put, x.reshape(lead, size, cells))
    if jnp.issubdtype(x.dtype, jnp.floating):
        outside = ((places < 0) | (places >= size)).any(axis=1)[:, None, None]
        result = result * jnp.where(outside, jnp.nan, 1).astype(x.dtype)
    return result.reshape(x.shape)


def _place(attrs: Any, x: Array, labels: Array) -> Array:
    shape = (*x.shape[: attrs.axis], attrs.size, *x.shape[attrs.axis :])
    return transposed(lambda cells: pick(JAX, attrs, cells, labels), shape, x)


LOWERINGS: dict[str, Callable[..., Any]] = {
    "gather_rows": _gather,
    "scatter_add_rows": _scatter_add,
    "scatter_rows": _scatter,
    "place": _place,
}
