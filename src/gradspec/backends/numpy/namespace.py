"""NumPy as a namespace of the lowerings that it shares with other libraries."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from gradspec.backends.numpy import normal
from gradspec.backends.xp.namespace import Array, Namespace
from gradspec.graph.types import DType, bf16


class NumPyNamespace(Namespace):
    permute_dims = staticmethod(np.ndarray.transpose)
    round = staticmethod(np.rint)
    erf = staticmethod(normal.erf)
    normal_cdf = staticmethod(normal.normal_cdf)
    normal_density = staticmethod(normal.normal_density)

    def dtype(self, dtype: DType) -> Any:
        return dtype.numpy

    def cast(self, x: Array, dtype: Any) -> Array:
        return x.astype(dtype, copy=False)

    def is_float(self, x: Array) -> bool:
        return bool(x.dtype.kind == "f")

    def rounds_twice(self, x: Array, dtype: DType) -> bool:
        return bool(dtype == bf16 and x.dtype.itemsize >= 4 and x.dtype != np.float32)

    def trunc_divide(self, a: Array, b: Array) -> Array:
        """The remainder of ``np.fmod`` has the sign of ``a``, so that the rest is divided exactly."""
        return (a - np.fmod(a, b)) // b

    def sum(self, x: Array, axes: tuple[int, ...]) -> Array:
        return x.sum(axes, dtype=x.dtype)

    def cumsum(self, x: Array, axis: int) -> Array:
        return np.cumsum(x, axis, dtype=x.dtype) + np.zeros((), x.dtype)  # from 0 on: 0 + −0 is 0

    def matmul(self, a: Array, b: Array, transpose_a: bool, transpose_b: bool) -> Array:
        """NumPy hands contiguous matrices and their transposes to BLAS, and multiplies others slowly by itself."""
        left, right = np.ascontiguousarray(a), np.ascontiguousarray(b)
        return np.matmul(
            left.swapaxes(-1, -2) if transpose_a else left, right.swapaxes(-1, -2) if transpose_b else right
        )

    def add_rows(self, size: int, places: Array, rows: Array) -> Array:
        """Cell by cell, which NumPy adds faster than rows."""
        shape, cells = rows.shape[1:], prod(rows.shape[1:])
        y = np.zeros(size * cells, rows.dtype)
        np.add.at(y, (places.reshape(-1, 1) * cells + np.arange(cells)).reshape(-1), rows.reshape(-1))
        return y.reshape(size, *shape)


NUMPY = NumPyNamespace(np)
