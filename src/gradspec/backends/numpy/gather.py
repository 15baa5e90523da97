"""Rows named by indices: read, added up, replaced."""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradspec.spec.gather import index_outside

Array = NDArray[Any]


def _checked(indices: Array, size: int) -> Array:
    outside = indices[(indices < 0) | (indices >= size)]
    if outside.size:
        raise index_outside(int(outside[0]), size)
    return indices.astype(np.intp, copy=False)


def _flat_rows(indices: Array, axis: int, size: int) -> Array:
    """The number of the row that each index names, counted through all leading indices."""
    lead = indices.shape[:axis]
    before = np.arange(prod(lead)).reshape((*lead, *(1,) * (indices.ndim - axis)))
    return before * size + _checked(indices, size)


def _gather(attrs: Any, x: Array, indices: Array) -> Array:
    axis, size = attrs.axis, x.shape[attrs.axis]
    if axis == 0:
        return x[_checked(indices, size)]
    rows = x.reshape(prod(x.shape[: axis + 1]), *x.shape[axis + 1 :])
    return rows[_flat_rows(indices, axis, size)]


def _scatter_add(attrs: Any, x: Array, indices: Array) -> Array:
    """Cell by cell, which NumPy adds faster than rows."""
    shape = (*indices.shape[: attrs.axis], attrs.size, *x.shape[indices.ndim :])
    cells = prod(x.shape[indices.ndim :])
    places = _flat_rows(indices, attrs.axis, attrs.size).reshape(-1, 1) * cells + np.arange(cells)
    y = np.zeros(prod(shape), x.dtype)
    np.add.at(y, places.reshape(-1), x.reshape(-1))
    return y.reshape(shape)


def _scatter(attrs: Any, x: Array, indices: Array, rows: Array) -> Array:
    """NumPy assigns in order, so that the last row stays."""
    axis = attrs.axis
    y = x.reshape(prod(x.shape[: axis + 1]), *x.shape[axis + 1 :]).copy()
    y[_flat_rows(indices, axis, x.shape[axis])] = rows
    return y.reshape(x.shape)


KERNELS: dict[str, Callable[..., Any]] = {
    "gather_rows": _gather,
    "scatter_add_rows": _scatter_add,
    "scatter_rows": _scatter,
}
