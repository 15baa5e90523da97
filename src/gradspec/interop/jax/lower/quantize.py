"""Quantisation: a scale and a zero point for every block of cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jax import Array
from jax import numpy as jnp

from gradspec.graph.types import DTYPES


def _spread(t: Array, shape: tuple[int, ...]) -> Array:
    """``t`` so that it broadcasts to ``shape``: cells that are for several neighbours, but not for all, repeated."""
    for axis in range(-t.ndim, 0):
        if t.shape[axis] not in (1, shape[axis]):
            t = jnp.repeat(t, shape[axis] // t.shape[axis], axis)
    return t


def _quantize(attrs: Any, x: Array, scale: Array, zero: Array) -> Array:
    limits, offset = np.iinfo(DTYPES[attrs.dtype].numpy), _spread(zero, x.shape).astype(jnp.int32)
    level = jnp.round(x / _spread(scale, x.shape))
    inside = jnp.clip(level, (limits.min - offset).astype(x.dtype), (limits.max - offset).astype(x.dtype))
    return jnp.where(jnp.isnan(level), 0, inside).astype(jnp.int32) + offset


def _dequantize(_: Any, q: Array, scale: Array, zero: Array) -> Array:
    return _difference(q, _spread(zero, q.shape), scale.dtype) * _spread(scale, q.shape)


def _difference(q: Array, zero: Array, dtype: Any) -> Array:
    """``q − zero``, rounded once: of 32-bit integers by halves, whose differences are exact."""
    if q.dtype.itemsize < 4:
        return (q.astype(jnp.int32) - zero.astype(jnp.int32)).astype(dtype)
    high, low = ((part(q).astype(jnp.int32) - part(zero).astype(jnp.int32)).astype(dtype) for part in _HALVES)
    return high * 65536 + low


_HALVES: tuple[Callable[[Array], Array], ...] = (lambda n: n >> 16, lambda n: n & 0xFFFF)

LOWERINGS: dict[str, Callable[..., Any]] = {"quantize": _quantize, "dequantize": _dequantize}
