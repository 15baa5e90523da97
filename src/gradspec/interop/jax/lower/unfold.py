"""Windows as columns, and columns added back."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from jax import Array

from gradspec.interop.jax.lower.windows import every_cell, transposed
from gradspec.ops.conv import StatedWindows


def _unfold(attrs: StatedWindows, x: Array) -> Array:
    """``(*lead, C, *sizes)`` to ``(*lead, C·taps, windows)``."""
    *lead, channels = x.shape[: x.ndim - attrs.rank]
    windows, count = prod(attrs.outputs), prod(attrs.kernel)
    cells = every_cell(attrs.window, x, 0).reshape(*lead, channels, windows, count)
    return cells.swapaxes(-1, -2).reshape(*lead, channels * count, windows)


def _fold(attrs: StatedWindows, x: Array) -> Array:
    *lead, rows, _ = x.shape
    shape = (*lead, rows // prod(attrs.kernel), *attrs.sizes)
    return transposed(lambda planes: _unfold(attrs, planes), shape, x)


LOWERINGS: dict[str, Callable[..., Any]] = {"unfold": _unfold, "fold": _fold}
