"""Numbers of one dtype as numbers of another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jax import Array
from jax import numpy as jnp

from gradspec.graph.types import DTYPES, i8


def _convert(attrs: Any, x: Array) -> Array:
    dtype = DTYPES[attrs.dtype]
    if not jnp.issubdtype(x.dtype, jnp.floating) or dtype.is_float:
        # By way of u8, because XLA on CPUs mixes up the cells of eleven int64 numbers as int8.
        return (x.astype(jnp.uint8) if dtype is i8 else x).astype(dtype.numpy)
    return _whole(x, dtype.numpy) if dtype.is_integer else x != 0


def _whole(x: Array, dtype: np.dtype[Any]) -> Array:
    """Without the fraction; at or beyond the power of two that bounds the integers, the last of them; 0 for NaN."""
    limits = np.iinfo(dtype)
    inside = (x > float(limits.min) - 1) & (x < float(limits.max + 1))
    least, largest = (np.asarray(limit, dtype) for limit in (limits.min, limits.max))
    outside = jnp.where(x > 0, largest, least)
    return jnp.where(inside, jnp.where(inside, x, 0).astype(dtype), jnp.where(jnp.isnan(x), 0, outside))


LOWERINGS: dict[str, Callable[..., Any]] = {"convert": _convert}
