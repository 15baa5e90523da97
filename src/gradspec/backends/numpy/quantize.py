"""Quantisation: a scale and a zero point for every block of cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradspec.graph.ir import Array
from gradspec.graph.types import DTYPES
from gradspec.ops.quantize import Quantization


def _spread(t: Array, shape: tuple[int, ...]) -> Array:
    """``t`` so that it broadcasts to ``shape``: cells that are for several neighbours, but not for all, repeated."""
    for axis in range(-t.ndim, 0):
        if t.shape[axis] not in (1, shape[axis]):
            t = np.repeat(t, shape[axis] // t.shape[axis], axis)
    return t


def _quantize(attrs: Quantization, x: Array, scale: Array, zero: Array) -> Array:
    """Integers of 17 bits are exact in every float that is computed with, so ends of the range may be rounded ones."""
    limits, offset = np.iinfo(DTYPES[attrs.dtype].numpy), _spread(zero, x.shape).astype(np.int32)
    level = np.rint(x / _spread(scale, x.shape))
    inside = np.clip(level, (limits.min - offset).astype(x.dtype), (limits.max - offset).astype(x.dtype))
    return np.where(np.isnan(level), 0, inside).astype(np.int32) + offset


def _dequantize(attrs: Any, q: Array, scale: Array, *zero: Array) -> Array:
    steps = q.astype(np.int32)
    for z in zero:
        steps -= _spread(z, q.shape).astype(np.int32)
    return steps.astype(scale.dtype) * _spread(scale, q.shape)


KERNELS: dict[str, Callable[..., Any]] = {"quantize": _quantize, "dequantize": _dequantize}
