"""NumPy as a namespace of the lowerings that it shares with other libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gradspec.backends.tables import Ints, table, take
from gradspec.backends.xp.namespace import Namespace
from gradspec.backends.xp.windows import as_planes
from gradspec.graph.ir import Array
from gradspec.graph.types import DType, bf16
from gradspec.spec.window import Window

BLOCK = 1 << 20
"""How many cells are gathered at a time, about: memory stays bounded in any geometry."""


# --- the normal distribution ------------------------------------------------------------------------------------------
#
# Computed in float64 from W. J. Cody's rational approximations of the error function, to a
# relative error of less than 10⁻¹⁵ wherever the result is a normal number; float32 results are rounded from that.

Float64 = NDArray[np.float64]

_CENTRE = (
    (1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2, 3.77485237685302021e2, 3.20937758913846947e3),
    (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3),
)
"""``erf(y)/y`` in ``y²``, for ``|y| ≤ 0.46875``: numerator and denominator, highest power first."""

_MIDDLE = (
    (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 6.61191906371416295e1,
     2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3,
     1.23033935479799725e3),
    (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
     3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3),
)  # fmt: skip
"""``exp(y²)·erfc(y)`` in ``y``, for ``0.46875 ≤ y ≤ 4``."""

_TAIL = (
    (1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1,
     1.60837851487422766e-2, 6.58749161529837803e-4),
    (1.0, 2.56852019228982242, 1.87295284992346725, 5.27905102951428412e-1, 6.05183413124413191e-2,
     2.33520497626869185e-3),
)  # fmt: skip
"""``(1/√π − y·exp(y²)·erfc(y))·y²`` in ``1/y²``, for ``y ≥ 4``."""


def _ratio(polynomials: tuple[tuple[float, ...], tuple[float, ...]], x: Float64) -> Float64:
    numerator, denominator = (np.polyval(coefficients, x) for coefficients in polynomials)
    return numerator / denominator


def _bell(x: Float64) -> Float64:
    """``exp(−x²/2)`` for ``x ≥ 0``: the square of ``x`` cut to a sixteenth is exact, and what it leaves is small."""
    cut = np.trunc(16 * x) / 16
    return np.exp(-cut * cut / 2) * np.exp(-(x - cut) * (x + cut) / 2)


_BEYOND = 40.0
"""From here on the lower tail is less than the smallest double."""


def _scaled_erfc(y: Float64) -> Float64:
    """``exp(y²)·erfc(y)``, for ``y ≥ 0.46875``."""
    far = np.maximum(y, 4.0)
    tail = (1 / np.sqrt(np.pi) - _ratio(_TAIL, far**-2.0) / far**2) / far
    return np.where(y <= 4, _ratio(_MIDDLE, np.minimum(y, 4.0)), tail)


def erf(x: Array) -> Array:
    y = np.minimum(np.abs(x), _BEYOND, dtype=np.float64)
    outside = 1 - np.exp(-y * y) * _scaled_erfc(y)
    inside = y * _ratio(_CENTRE, np.minimum(y, 0.46875) ** 2)
    return np.copysign(np.where(y <= 0.46875, inside, outside), x).astype(x.dtype)


def normal_cdf(x: Array) -> Array:
    size = np.minimum(np.abs(x), _BEYOND, dtype=np.float64)
    y = size * np.sqrt(0.5)
    tail = _bell(size) * _scaled_erfc(y) / 2
    outside = np.where(x < 0, tail, 1 - tail)
    centre = 0.5 + np.copysign(y, x) * _ratio(_CENTRE, np.minimum(y, 0.46875) ** 2) / 2
    return np.where(y <= 0.46875, centre, outside).astype(x.dtype)


def normal_density(x: Array) -> Array:
    size = np.minimum(np.abs(x), _BEYOND, dtype=np.float64)
    density: Array = (_bell(size) / np.sqrt(2 * np.pi)).astype(x.dtype)
    return density


# --- the namespace ----------------------------------------------------------------------------------------------------


class NumPyNamespace(Namespace):
    permute_dims = staticmethod(np.ndarray.transpose)
    round = staticmethod(np.rint)
    erf = staticmethod(erf)
    normal_cdf = staticmethod(normal_cdf)
    normal_density = staticmethod(normal_density)

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
