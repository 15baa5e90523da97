"""NumPy as a namespace of the lowerings that it shares with other libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gradspec.backends.numpy import normal
from gradspec.backends.tables import Ints, table, take
from gradspec.backends.xp.namespace import Namespace
from gradspec.backends.xp.windows import as_planes
from gradspec.graph.ir import Array
from gradspec.graph.types import DType, bf16
from gradspec.spec.window import Window

BLOCK = 1 << 20
"""How many cells are gathered at a time, about: memory stays bounded in any geometry."""


class NumPyNamespace(Namespace):
    permute_dims = staticmethod(np.ndarray.transpose)
    round = staticmethod(np.rint)
    erf = staticmethod(normal.erf)
    normal_cdf = staticmethod(normal.normal_cdf)
    normal_density = staticmethod(normal.normal_density)

    def dtype(self, dtype: DType) -> np.dtype[np.generic]:
        return dtype.numpy

    def cast(self, x: Array, dtype: DTypeLike) -> Array:
        return x.astype(dtype, copy=False)

    def is_float(self, x: Array) -> bool:
        return x.dtype.kind == "f"

    def rounds_twice(self, x: Array, dtype: DType) -> bool:
        return dtype == bf16 and x.dtype.itemsize >= 4 and x.dtype != np.float32

    def trunc_divide(self, a: Array, b: Array) -> Array:
        """The remainder of ``np.fmod`` has the sign of ``a``, so that the rest is divided exactly."""
        quotient: Array = (a - np.fmod(a, b)) // b
        return quotient

    def sum(self, x: Array, axes: tuple[int, ...]) -> Array:
        return np.asarray(x.sum(axes, dtype=x.dtype))

    def cumsum(self, x: Array, axis: int) -> Array:
        return np.cumsum(x, axis, dtype=x.dtype) + np.zeros((), x.dtype)  # from 0 on: 0 + −0 is 0

    def matmul(self, a: Array, b: Array, transpose_a: bool, transpose_b: bool) -> Array:
        """NumPy hands contiguous matrices and their transposes to BLAS, and multiplies others slowly by itself."""
        left, right = np.ascontiguousarray(a), np.ascontiguousarray(b)
        product: Array = np.matmul(
            left.swapaxes(-1, -2) if transpose_a else left, right.swapaxes(-1, -2) if transpose_b else right
        )
        return product

    def zeros(self, shape: tuple[int, ...], like: Array) -> Array:
        return np.zeros(shape, like.dtype)

    def add_rows(self, size: int, places: Array, rows: Array) -> Array:
        """Cell by cell, which NumPy adds faster than rows."""
        shape, cells = rows.shape[1:], prod(rows.shape[1:])
        y = np.zeros(size * cells, rows.dtype)
        np.add.at(y, (places.reshape(-1, 1) * cells + np.arange(cells)).reshape(-1), rows.reshape(-1))
        return y.reshape(size, *shape)

    def put_rows(self, x: Array, places: Array, rows: Array) -> Array:
        """NumPy assigns in order, so that the last row stays."""
        y = x.copy()
        y[places] = rows
        return y

    # --- windows, block by block --------------------------------------------------------------------------------------

    def reduce_windows(
        self, window: Window, function: Callable[..., Array], *arrays: Array, with_padding: bool = False
    ) -> Array:
        def reduce(taps: Ints, *planes: Array) -> Array:
            return function(taps, *(take(p, taps) for p in planes))

        return reduce_blocks(window if with_padding else window.trimmed(), reduce, *arrays)

    def spread_windows(
        self, window: Window, weights: Callable[..., Array], x: Array, g: Array, with_padding: bool = False
    ) -> Array:
        def spread(taps: Ints, cotangents: Array, planes: Array) -> tuple[NDArray[np.bool_], Array]:
            return taps >= 0, cotangents * weights(taps, take(planes, taps))

        return scatter_blocks(window if with_padding else window.trimmed(), spread, g, x)


NUMPY = NumPyNamespace(np)


def _blocks(planes: int, window: Window) -> Iterator[tuple[slice, slice, Ints]]:
    """Some planes, some outputs, and the taps of these outputs; every plane meets its outputs in order."""
    outputs, taps = prod(window.outputs), table(window, range(1)).shape[1]
    rows = max(BLOCK // taps, 1)
    for start in range(0, outputs, rows):
        places = table(window, range(start, min(start + rows, outputs)))
        step = max(BLOCK // places.size, 1)
        for first in range(0, planes, step):
            yield slice(first, first + step), slice(start, start + len(places)), places


def reduce_blocks(
    window: Window, function: Callable[..., Array], *arrays: Array, dtype: DTypeLike | None = None
) -> Array:
    """One number per window: ``function(taps, *planes)`` gives ``[plane, output]`` of a block."""
    x, planes = arrays[0], [as_planes(a, window.rank) for a in arrays]
    y = np.empty((len(planes[0]), prod(window.outputs)), x.dtype if dtype is None else dtype)
    for some, outputs, taps in _blocks(len(y), window):
        y[some, outputs] = function(taps, *(p[some] for p in planes))
    return y.reshape(x.shape[: x.ndim - window.rank] + window.outputs)


def scatter_blocks(
    window: Window, spread: Callable[..., tuple[NDArray[np.bool_], Array]], g: Array, *arrays: Array
) -> Array:
    """What cells receive: ``spread(taps, cotangents, *planes)`` says which taps do (a mask) and how much each."""
    cotangents, planes = as_planes(g, window.rank), [as_planes(a, window.rank) for a in arrays]
    received = np.zeros((len(cotangents), prod(window.sizes)), g.dtype)
    for some, outputs, taps in _blocks(len(received), window):
        mask, share = spread(taps, cotangents[some, outputs, None], *(p[some] for p in planes))
        target = received[some]
        shape = (len(target), *taps.shape)
        is_kept = np.broadcast_to(mask & (taps >= 0), shape)
        places = taps + np.arange(len(target))[:, None, None] * target.shape[1]
        np.add.at(target.reshape(-1), places[is_kept], np.broadcast_to(share, shape)[is_kept])
    return received.reshape(g.shape[: g.ndim - window.rank] + window.sizes)
