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


def _dequantize(_: Any, q: Array, scale: Array, *zero: Array) -> Array:
    steps = q.astype(jnp.int32)
    for z in zero:
        steps = steps - _spread(z, q.shape).astype(jnp.int32)
    return steps.astype(scale.dtype) * _spread(scale, q.shape)


LOWERINGS: dict[str, Callable[..., Any]] = {"quantize": _quantize, "dequantize": _dequantize}
