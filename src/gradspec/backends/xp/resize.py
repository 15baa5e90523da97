"""Resizing one axis after another; a tap is an output, a cell and a weight, and the transpose swaps the first two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradspec.backends.xp.namespace import Array, Namespace
from gradspec.ops.resize import Resize
from gradspec.spec.resize import axis_taps


def _resize(xp: Namespace, attrs: Resize, x: Array, back: bool = False) -> Array:
    for i, axis in enumerate(attrs.axes, x.ndim - len(attrs.sizes)):
        taps = [(o, cell, float(weight)) for o, row in enumerate(axis_taps(axis)) for cell, weight in row]
        outputs, cells, weights = (list(column) for column in zip(*taps, strict=True))
        source, target, size = (outputs, cells, axis.size) if back else (cells, outputs, axis.outputs)
        x = _along(xp, i, x, (source, target, weights), size)
    return x


def _along(xp: Namespace, axis: int, x: Array, taps: tuple[list[Any], ...], size: int) -> Array:
    """``y[target] += weight · x[source]`` along one axis, tap by tap in order."""
    source, target = (xp.asarray(column, device=x.device) for column in taps[:2])
    weights = xp.asarray(taps[2], dtype=x.dtype, device=x.device).reshape(-1, *(1,) * (x.ndim - 1))
    rows = xp.moveaxis(x, axis, 0)[source] * weights
    return xp.moveaxis(xp.add_rows(size, target, rows), 0, axis)


LOWERINGS: dict[str, Callable[..., Any]] = {
    "resize": _resize,
    "resize_transpose": lambda xp, attrs, g: _resize(xp, attrs, g, back=True),
}
