"""Conversion between dtypes."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradspec.graph.types import DTYPES, bf16
from gradspec.ops.convert import Conversion

Array = NDArray[Any]


def _converted(attrs: Conversion, x: Array) -> Array:
    dtype = DTYPES[attrs.dtype]
    if dtype.is_integer and x.dtype.kind == "f":
        return _whole(x, dtype.numpy)
    if dtype == bf16 and x.dtype.itemsize >= 4 and x.dtype != np.float32:
        return _to_odd(x)
    return x != 0 if dtype.numpy.kind == "b" else x.astype(dtype.numpy)


def _whole(x: Array, dtype: np.dtype[Any]) -> Array:
    """Floats without their fractions. The largest integer, as a float, may be one more: all below it fit."""
    limits, whole = np.iinfo(dtype), np.trunc(x)
    above, below = whole >= x.dtype.type(limits.max), whole <= x.dtype.type(limits.min)
    inside = np.where(above | below | np.isnan(x), 0, whole).astype(dtype)
    return np.where(above, dtype.type(limits.max), np.where(below, dtype.type(limits.min), inside))


def _to_odd(x: Array) -> Array:
    """Numbers of more bits than float32 holds as such, from which bfloat16 is rounded as if from ``x``.

    What does not fit is cut off, and then the last bit is set: it tells numbers beside the middle of two bfloat16
    numbers from the middle itself, where ties go to even.
    """
    wide = x if x.dtype.kind == "f" else _as_double(x)
    near = wide.astype(np.float32)
    is_exact = (near == wide) | ~np.isfinite(near)
    cut = near.view(np.uint32) - (np.abs(near) > np.abs(wide)).astype(np.uint32)
    return np.where(is_exact, near, (cut | np.uint32(1)).view(np.float32))


def _as_double(x: Array) -> Array:
    """Integers, of which those that doubles do not hold are cut off and marked in the same way."""
    marked = (x >> 11 | ((x & 2047) != 0)).astype(np.float64) * 2048
    return np.where(np.abs(x) < 2**53, x.astype(np.float64), marked)


KERNELS: dict[str, Callable[..., Any]] = {"convert": _converted}
