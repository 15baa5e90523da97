"""Numbers of one dtype as numbers of another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradspec.backends.xp.namespace import Array, Namespace
from gradspec.graph.types import DTYPES, DType


def _convert(xp: Namespace, attrs: Any, x: Array) -> Array:
    dtype = DTYPES[attrs.dtype]
    if dtype.is_integer and xp.is_float(x):
        return _whole(xp, x, dtype)
    return xp.cast(_to_odd(xp, x) if xp.rounds_twice(x, dtype) else x, xp.dtype(dtype))


def _whole(xp: Namespace, x: Array, dtype: DType) -> Array:
    """Floats without their fractions; those that do not fit become the nearest integer that does, and NaN 0.

    The largest integer, as a float, may be one more: all below it fit.
    """
    limits, whole = np.iinfo(dtype.numpy), xp.trunc(x)
    above, below = whole >= float(limits.max), whole <= float(limits.min)
    inside = xp.cast(xp.where(above | below | xp.isnan(x), 0, whole), xp.dtype(dtype))
    return xp.where(above, limits.max, xp.where(below, limits.min, inside))


def _to_odd(xp: Namespace, x: Array) -> Array:
    """Numbers of more bits than float32 holds as such, from which the small formats are rounded as if from ``x``.

    What does not fit is cut off, and then the last bit is set: it tells numbers beside the middle of two small numbers
    from the middle itself, where ties go to even.
    """
    wide = x if xp.is_float(x) else _as_double(xp, x)
    near = xp.cast(wide, xp.float32)
    back = xp.cast(near, xp.float64)
    is_exact = (back == wide) | ~xp.isfinite(near)
    cut = near.view(xp.int32) - xp.cast(xp.abs(back) > xp.abs(wide), xp.int32)
    return xp.where(is_exact, near, (cut | 1).view(xp.float32))


def _as_double(xp: Namespace, x: Array) -> Array:
    """Integers, of which those that doubles do not hold are cut off and marked in the same way."""
    if x.dtype.itemsize < 8:
        return xp.cast(x, xp.float64)
    marked = xp.cast(x >> 11 | ((x & 2047) != 0), xp.float64) * 2048
    return xp.where((x > -(2**53)) & (x < 2**53), xp.cast(x, xp.float64), marked)


LOWERINGS: dict[str, Callable[..., Any]] = {"convert": _convert}
