"""Quantisation: a scale and a zero point for every block of cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradspec.backends.xp.namespace import Array, Namespace
from gradspec.graph.types import DTYPES
from gradspec.ops.quantize import Quantization


def _spread(xp: Namespace, t: Array, shape: tuple[int, ...]) -> Array:
    """``t`` so that it broadcasts to ``shape``: cells that are for several neighbours, but not for all, repeated."""
    for axis in range(-t.ndim, 0):
        if t.shape[axis] not in (1, shape[axis]):
            t = xp.repeat(t, shape[axis] // t.shape[axis], axis)
    return t


def _quantize(xp: Namespace, attrs: Quantization, x: Array, scale: Array, zero: Array) -> Array:
    """Integers of 17 bits are exact in every float that is computed with, so ends of the range may be rounded ones."""
    limits, offset = np.iinfo(DTYPES[attrs.dtype].numpy), xp.cast(_spread(xp, zero, x.shape), xp.int32)
    level = xp.round(x / _spread(xp, scale, x.shape))
    inside = xp.clip(level, xp.cast(limits.min - offset, x.dtype), xp.cast(limits.max - offset, x.dtype))
    return xp.cast(xp.where(xp.isnan(level), 0, inside), xp.int32) + offset


def _dequantize(xp: Namespace, _: Any, q: Array, scale: Array, *zero: Array) -> Array:
    steps = xp.cast(q, xp.int32)
    for z in zero:
        steps = steps - xp.cast(_spread(xp, z, q.shape), xp.int32)
    return xp.cast(steps, scale.dtype) * _spread(xp, scale, q.shape)


LOWERINGS: dict[str, Callable[..., Any]] = {"quantize": _quantize, "dequantize": _dequantize}
