"""Poolings where ONNX has the windows, or the largest of cells that are gathered will do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from gradspec.interop.onnx.emit.emitter import INT64, Array, Emitter, OnnxValue
from gradspec.interop.onnx.emit.table import emits
from gradspec.ops.pool import AvgPool, MaxPool
from gradspec.ops.windows import are_cells, competitors
from gradspec.spec.window import Adaptive, AxisWindow, Regular, Window

WITH_MAXIMA = {np.dtype(t) for t in (np.float32, np.float64, np.int8, np.uint8)}
"""What MaxPool takes, small floats apart."""

NATIVE_RANKS = (1, 2, 3)
"""The numbers of spatial axes that runtimes pool over."""


@dataclass(frozen=True)
class _NativePooling:
    """A pooling node's attributes; does it need more padding than the graph has; is every window the whole plane?"""

    attributes: dict[str, list[int]]
    extended: bool
    whole: bool


def _native_pooling(window: Window) -> _NativePooling | None:
    """The windows as a pooling node's attributes; None where ONNX or its runtimes have no such windows.

    Instead of ceil_mode, whose last window implementations do not agree on, there is as much padding as it needs.
    Padding is narrower than the kernel, and every window has a cell.
    """
    axes = [regular for axis in window.axes if (regular := _as_regular(axis)) is not None and _is_native(regular)]
    if len(axes) not in NATIVE_RANKS or len(axes) < window.rank:
        return None
    ends = [_needed(axis) for axis in axes]
    pads = [axis.lo for axis in axes] + ends
    attributes = {"kernel_shape": [a.kernel for a in axes], "strides": [a.stride for a in axes], "pads": pads}
    if any(axis.dilation > 1 for axis in axes):
        attributes["dilations"] = [axis.dilation for axis in axes]
    extended = any(end > axis.hi for end, axis in zip(ends, axes, strict=True))
    return _NativePooling(attributes, extended, all(isinstance(a, Adaptive) and a.outputs == 1 for a in window.axes))


def _as_regular(axis: AxisWindow) -> Regular | None:
    if isinstance(axis, Adaptive):
        width, rest = divmod(axis.size, axis.outputs)
        return None if rest else Regular(axis.size, width, width, 0, 0, 1, axis.outputs)
    return axis


def _needed(axis: Regular) -> int:
    """Padding at the high end, enough for the last window."""
    return max(axis.hi, (axis.outputs - 1) * axis.stride + axis.dilation * (axis.kernel - 1) + 1 - axis.size - axis.lo)


def _is_native(axis: Regular) -> bool:
    return max(axis.lo, _needed(axis)) < axis.kernel and bool(are_cells(axis).any(axis=1).all())


def _as_planes(e: Emitter, x: OnnxValue, rank: int) -> OnnxValue:
    """``x`` with two leading axes, which ONNX calls batch and channels."""
    lead = x.shape[: x.ndim - rank]
    return x if len(lead) == 2 else e.reshape(x, (1, prod(lead), *x.shape[x.ndim - rank :]))


def _pool_natively(
    e: Emitter, op_type: str, x: OnnxValue, windows: _NativePooling, outputs: Sequence[int], **attributes: Any
) -> OnnxValue:
    """A pooling node of one output, whatever leading axes there are."""
    rank = len(outputs)
    planes = _as_planes(e, x, rank)
    shape = (*planes.shape[:2], *outputs)
    if windows.whole:
        y = e.node(f"Global{op_type}", [planes], shape, x.dtype)
    else:
        y = e.node(op_type, [planes], shape, x.dtype, **windows.attributes, **attributes)
    return e.reshape(y, (*x.shape[: x.ndim - rank], *outputs))


# --- the maximum ------------------------------------------------------------------------------------------------------


@emits("max_pool")
def max_pool(e: Emitter, attrs: MaxPool, x: OnnxValue) -> OnnxValue | tuple[OnnxValue, ...] | None:
    window = attrs.window(x)
    windows = _native_pooling(window)
    if e.nan_safe or x.dtype not in WITH_MAXIMA:
        return None
    if windows is None:
        cells = [are_cells(axis) for axis in window.axes]
        has_cells = all(axis.any(axis=1).all() for axis in cells)
        return _reduce_windows(e, x, window, cells) if has_cells and not attrs.return_indices else None
    if attrs.return_indices:
        return _with_indices(e, x, windows, window)
    return _pool_natively(e, "MaxPool", x, windows, window.outputs)


def _with_indices(e: Emitter, x: OnnxValue, windows: _NativePooling, window: Window) -> tuple[OnnxValue, OnnxValue]:
    """ONNX counts places over the whole tensor; inside a plane they are what is left of them."""
    planes = _as_planes(e, x, window.rank)
    shape = (*planes.shape[:2], *window.outputs)
    y, places = e.several("MaxPool", [planes], [(shape, x.dtype), (shape, INT64)], **windows.attributes)
    within = e.cells("Mod", places, prod(window.sizes))
    shape = (*x.shape[: x.ndim - window.rank], *window.outputs)
    return e.reshape(y, shape), e.reshape(within, shape)


def _reduce_windows(e: Emitter, x: OnnxValue, window: Window, cells: Sequence[Array]) -> OnnxValue:
    """The largest cell of each window, one axis after another."""
    for axis, (along, counted) in enumerate(zip(window.axes, cells, strict=True), x.ndim - window.rank):
        x = e.reduce("ReduceMax", e.gather(x, competitors(along, counted), axis), [axis + 1])
    return x


# --- the average ------------------------------------------------------------------------------------------------------


@emits("avg_pool")
def avg_pool(e: Emitter, attrs: AvgPool, x: OnnxValue) -> OnnxValue | None:
    window = attrs.window(x)
    windows = _native_pooling(window)
    includes_padding = attrs.count_include_pad and any(end for pair in attrs.padding for end in pair)
    if (
        windows is None
        or attrs.divisor_override is not None
        or "dilations" in windows.attributes
        or (includes_padding and windows.extended)
    ):
        return None
    return _pool_natively(e, "AveragePool", x, windows, window.outputs, count_include_pad=int(includes_padding))
