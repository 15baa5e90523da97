"""Resizing one axis after another; a tap is an output, a cell and a weight, and the transpose swaps the first two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradspec.graph.ir import Array
from gradspec.ops.resize import Resize
from gradspec.spec.resize import axis_taps


def _along(axis: int, x: Array, source: Array, target: Array, weights: Array, size: int) -> Array:
    """``y[target] += weight · x[source]`` along one axis, tap by tap in order."""
    front = np.moveaxis(x, axis, 0)
    y = np.zeros((size, *front.shape[1:]), x.dtype)
    np.add.at(y, target, front[source] * weights.astype(x.dtype).reshape(-1, *(1,) * (x.ndim - 1)))
    return np.moveaxis(y, 0, axis)


def _resized(attrs: Resize, x: Array, back: bool) -> Array:
    rank = len(attrs.sizes)
    for i, axis in enumerate(attrs.axes):
        rows = enumerate(axis_taps(axis))
        taps = [(o, cell, float(weight)) for o, row in rows for cell, weight in row]
        outputs, cells, weights = (np.array(column) for column in zip(*taps, strict=True))
        source, target, size = (outputs, cells, axis.size) if back else (cells, outputs, axis.outputs)
        x = _along(x.ndim - rank + i, x, source, target, weights, size)
    return x


KERNELS: dict[str, Callable[..., Any]] = {
    "resize": lambda attrs, x: _resized(attrs, x, back=False),
    "resize_transpose": lambda attrs, g: _resized(attrs, g, back=True),
}
