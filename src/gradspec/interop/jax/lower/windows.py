"""Windows of an array, one axis after another: slices laid side by side, which JAX differentiates both ways.

A window is a product of axis windows, so whatever is reduced over a window can be reduced axis by axis. That takes a
slice per tap of each axis, not of their product, and no gather or scatter, which accelerators are slow at.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp
from numpy.typing import NDArray

from gradspec.backends.tables import table
from gradspec.spec.window import AxisWindow, Window

MOST_AXES = 1024
"""Axis windows whose taps are kept."""


@lru_cache(MOST_AXES)
def taps(axis: AxisWindow) -> NDArray[np.int64]:
    """``[output, tap]``: the position that each tap of one axis reads, PADDING or ABSENT."""
    return table(Window((axis,)))


def along(axis: AxisWindow, x: Array, at: int, fill: Any) -> Array:
    """``x`` with the axis ``at`` made two, outputs and the taps of each; a tap that reads no cell holds ``fill``."""
    places = taps(axis)
    outputs, width = places.shape
    spans = [axis.positions(o) for o in range(outputs)]
    step, first = spans[0].step, spans[0].start
    starts = [span.start - first for span in spans]
    reach = starts[-1] + step * (width - 1) + 1
    padded = _padded(x, at, -first, reach + first - axis.size, fill)
    cells = _beside(padded, at, starts, step, width)
    beyond = first + np.asarray(starts)[:, None] + step * np.arange(width)
    if np.array_equal(places >= 0, (beyond >= 0) & (beyond < axis.size)):
        return cells
    return jnp.where(across(places >= 0, cells.ndim, at), cells, fill)  # some windows are shorter than others


def _padded(x: Array, at: int, lo: int, hi: int, fill: Any) -> Array:
    if not (lo or hi):
        return x
    ends = [(0, 0, 0)] * x.ndim
    ends[at] = (lo, hi, 0)
    return lax.pad(x, jnp.asarray(fill, x.dtype), ends)


def _beside(x: Array, at: int, starts: list[int], step: int, width: int) -> Array:
    """The windows that begin at ``starts``, a slice for each, or for each tap where those are fewer."""
    outputs, stride = len(starts), starts[-1] // max(len(starts) - 1, 1)
    if width < outputs and starts == [o * stride for o in range(outputs)]:
        ends = [step * t + stride * (outputs - 1) + 1 for t in range(width)]
        return jnp.stack([lax.slice_in_dim(x, step * t, end, stride, at) for t, end in enumerate(ends)], at + 1)
    return jnp.stack([lax.slice_in_dim(x, s, s + step * (width - 1) + 1, step, at) for s in starts], at)


def across(mask: NDArray[Any], ndim: int, at: int) -> NDArray[Any]:
    """``[output, tap]`` with the axes it needs to broadcast against ``along``'s result."""
    return mask.reshape(*mask.shape, *(1,) * (ndim - at - 2))


def stages(window: Window, x: Array) -> list[tuple[AxisWindow, int]]:
    """The axis windows and the axes of ``x`` that they are over, the last first: axes before it keep their places."""
    lead = x.ndim - window.rank
    return [(window.axes[i], lead + i) for i in reversed(range(window.rank))]


def every_cell(window: Window, x: Array, fill: Any) -> Array:
    """``(*lead, *outputs, taps)``: the cells of each window in row-major order."""
    lead, rank = x.ndim - window.rank, window.rank
    for axis, at in stages(window, x):
        x = along(axis, x, at, fill)
    order = (*range(lead), *range(lead, x.ndim, 2), *range(lead + 1, x.ndim, 2))
    ordered = x.transpose(order)
    return ordered.reshape(*ordered.shape[: lead + rank], prod(ordered.shape[lead + rank :]))


def reads(window: Window) -> NDArray[np.int64]:
    """``(*outputs, taps)``: the flat position that each tap reads, PADDING or ABSENT."""
    return table(window).reshape(*window.outputs, -1)


def transposed(function: Callable[[Array], Array], like: Any, cotangent: Array) -> Array:
    """The transpose of a linear function of an array of the shape ``like``, applied to a cotangent."""
    operand = jax.ShapeDtypeStruct(tuple(like), cotangent.dtype)  # type: ignore[no-untyped-call]
    (result,) = jax.linear_transpose(function, operand)(cotangent)
    return result  # type: ignore[no-any-return]
