"""Resizing one axis after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jax import Array
from jax import numpy as jnp

from gradspec.interop.jax.lower.windows import transposed
from gradspec.ops.resize import Resize
from gradspec.spec.resize import axis_taps


def _resized(attrs: Resize, x: Array) -> Array:
    for i, axis in enumerate(attrs.axes):
        rows = axis_taps(axis)
        at = x.ndim - len(attrs.sizes) + i
        columns = [[row[t] if t < len(row) else (0, 0) for row in rows] for t in range(max(map(len, rows)))]
        x = sum((_read(column, x, at) for column in columns), start=jnp.zeros((), x.dtype))
    return x


def _read(taps: list[tuple[int, Any]], x: Array, at: int) -> Array:
    """``weight · cell`` for each output; 0 where the weight is, whatever the cell."""
    cells = np.array([cell for cell, _ in taps])
    weights = np.array([float(weight) for _, weight in taps], x.dtype).reshape(-1, *(1,) * (x.ndim - at - 1))
    return jnp.where(weights == 0, 0, jnp.take(x, cells, axis=at, mode="clip")) * weights


def _resize_transpose(attrs: Resize, g: Array) -> Array:
    shape = (*g.shape[: g.ndim - len(attrs.sizes)], *attrs.sizes)
    return transposed(lambda x: _resized(attrs, x), shape, g)


LOWERINGS: dict[str, Callable[..., Any]] = {"resize": _resized, "resize_transpose": _resize_transpose}
