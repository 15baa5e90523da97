"""Rows and cells that are put where indices say."""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradspec.backends.numpy.namespace import NUMPY
from gradspec.backends.xp.gather import flat_rows, label_places

Array = NDArray[Any]


def _scatter(attrs: Any, x: Array, indices: Array, rows: Array) -> Array:
    """NumPy assigns in order, so that the last row stays."""
    axis = attrs.axis
    y = x.reshape(prod(x.shape[: axis + 1]), *x.shape[axis + 1 :]).copy()
    y[flat_rows(NUMPY, indices, axis, x.shape[axis])] = rows
    return y.reshape(x.shape)


def _place(attrs: Any, x: Array, labels: Array) -> Array:
    result = np.zeros((*x.shape[: attrs.axis], attrs.size, *x.shape[attrs.axis :]), x.dtype)
    places = label_places(NUMPY, labels, attrs.axis, attrs.size)
    np.put_along_axis(result, places, np.expand_dims(x, attrs.axis), attrs.axis)
    return result


KERNELS: dict[str, Callable[..., Any]] = {"scatter_rows": _scatter, "place": _place}
