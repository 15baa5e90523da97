"""Convolution, pooling and resizing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np

from gradspec.interop.onnx.emit.emitter import INT32, INT64, NONE, Array, Emitter, OnnxValue, emits
from gradspec.ops.conv import Convolution
from gradspec.ops.pool import AvgPool, MaxPool
from gradspec.ops.resize import Resize
from gradspec.ops.windows import are_cells, competitors
from gradspec.spec.resize import Axis, axis_taps
from gradspec.spec.window import Adaptive, AxisWindow, Regular, Window


def _flat_batch(e: Emitter, x: OnnxValue, rank: int) -> OnnxValue:
    """``x (*lead, C, *spatial)`` with one leading axis."""
    at = x.ndim - rank - 1
    return e.reshape(x, (prod(x.shape[:at]), *x.shape[at:]))


# --- conv -------------------------------------------------------------------------------------------------------------


@emits("conv")
def conv(e: Emitter, attrs: Convolution, x: OnnxValue, w: OnnxValue, *bias: OnnxValue) -> OnnxValue | None:
    """ONNX needs a channel and a spatial axis."""
    if not attrs.rank or not w.shape[1]:
        return None
    y = _convolve(e, attrs, x, w, bias) if x.is_float else _convolve_integers(e, attrs, (x, w), bias)
    return None if y is None else e.reshape(y, (*x.shape[: x.ndim - attrs.rank - 1], *y.shape[1:]))


def _convolve_integers(
    e: Emitter, form: Convolution, factors: tuple[OnnxValue, OnnxValue], bias: Sequence[OnnxValue]
) -> OnnxValue | None:
    """ONNX's convolution of integers reads those of 8 bits, and takes their zero points away by itself: one of the
    image, and one of the weights or of each output channel."""
    match [e.centred(v) for v in factors]:
        case [(q, zero), (r, weight_zero)]:
            zeros = [_zero(e, q, zero, 1), _zero(e, r, weight_zero, r.shape[0])]
            if None in zeros:
                return None
            y = _convolve(e, form, q, r, [z for z in zeros if z is not None], "ConvInteger")
            return e.cells("Add", y, e.reshape(bias[0], (*bias[0].shape, *(1,) * form.rank))) if bias else y
    return None


def _zero(e: Emitter, q: OnnxValue, zero: OnnxValue | None, count: int) -> OnnxValue | None:
    """A zero point as ConvInteger takes it: one number, or ``count``, one for each output channel; None of others."""
    if zero is None:
        return e.constant(0, q.dtype)
    if zero.size != 1 and (zero.size, zero.ndim, zero.shape[0]) != (count, q.ndim, count):
        return None
    return e.reshape(zero, () if zero.size == 1 else (zero.size,))


def _convolve(
    e: Emitter, form: Convolution, x: OnnxValue, w: OnnxValue, others: Sequence[OnnxValue], op_type: str = "Conv"
) -> OnnxValue:
    """A node with exactly the windows of ``form``: fewer than fit are had from a shorter axis."""
    x, ends = _flat_batch(e, x, form.rank), []
    for axis, count in enumerate(form.outputs):
        n, (lo, hi), s = form.sizes[axis], form.padding[axis], form.stride[axis]
        span = form.dilation[axis] * (form.kernel[axis] - 1) + 1
        if (n + lo + hi - span) // s + 1 != count:
            hi = (count - 1) * s + span - n - lo
        x = e.first(x, axis + 2, n + min(hi, 0))
        ends.append(max(hi, 0))
    shape, dtype = (x.shape[0], w.shape[0], *form.outputs), x.dtype if op_type == "Conv" else INT32
    return e.node(op_type, [x, w, *others], shape, dtype, **_attributes(form, ends))


def _attributes(form: Convolution, ends: Sequence[int]) -> dict[str, Any]:
    """The attributes of a node that pads by ``ends`` at the high ends of the axes."""
    pads = [lo for lo, _ in form.padding] + list(ends)
    lists = {"kernel_shape": list(form.kernel), "strides": list(form.stride), "dilations": list(form.dilation)}
    return {**lists, "pads": pads, "group": form.groups}


# --- conv_transpose ---------------------------------------------------------------------------------------------------


@emits("conv_transpose")
def conv_transpose(e: Emitter, attrs: Convolution, g: OnnxValue, w: OnnxValue, *bias: OnnxValue) -> OnnxValue | None:
    """A ConvTranspose node cropped to the stated sizes; it pads up to a stride beyond its reach, and no further."""
    axes = zip(attrs.outputs, attrs.stride, attrs.dilation, attrs.kernel, attrs.padding, attrs.sizes, strict=True)
    ends = [(m - 1) * s + d * (k - 1) + 1 - lo - n for m, s, d, k, (lo, _), n in axes]
    if not attrs.rank or not w.shape[0] or any(-end >= s for end, s in zip(ends, attrs.stride, strict=True)):
        return None
    image, channels = _flat_batch(e, g, attrs.rank), w.shape[1] * attrs.groups
    attributes = _attributes(attrs, [max(end, 0) for end in ends])
    shape, beyond = (image.shape[0], channels, *attrs.sizes), [max(-end, 0) for end in ends]
    y = e.node("ConvTranspose", [image, w, *bias], shape, g.dtype, **attributes, output_padding=beyond)
    return e.reshape(y, (*g.shape[: g.ndim - attrs.rank - 1], *shape[1:]))


# --- the weight gradient ----------------------------------------------------------------------------------------------


@emits("conv_weight_grad")
def conv_weight_grad(e: Emitter, attrs: Convolution, x: OnnxValue, g: OnnxValue) -> OnnxValue | None:
    """``w[oc, ic, k] = Σ x̃[b, ic, o·s − lo + d·k] · g[b, oc, o]``: a convolution again, of stride d and dilation s.

    Batch and channels change places: the batch of every group is what is summed over, the channels of ``x`` are the
    images, and those of ``g`` the filters.
    """
    image, filters = _flat_batch(e, x, attrs.rank), _flat_batch(e, g, attrs.rank)
    batch, channels, groups, rank = image.shape[0], image.shape[1] // attrs.groups, attrs.groups, attrs.rank
    if not batch or not rank:
        return None
    split = e.transpose(e.reshape(image, (batch, groups, channels, *attrs.sizes)), [2, 1, 0, *range(3, 3 + rank)])
    images = e.reshape(split, (channels, groups * batch, *attrs.sizes))
    weights = e.transpose(filters, [1, 0, *range(2, 2 + rank)])
    turned = replace(attrs, kernel=attrs.outputs, outputs=attrs.kernel, stride=attrs.dilation, dilation=attrs.stride)
    return e.transpose(_convolve(e, turned, images, weights, ()), [1, 0, *range(2, 2 + rank)])


# --- pooling ----------------------------------------------------------------------------------------------------------


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
    if windows.whole and x.is_float:  # ONNX has it of floats only
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


# --- resizing ---------------------------------------------------------------------------------------------------------


Rows = Sequence[Sequence[tuple[int, Fraction]]]
"""For each output of an axis the places that it reads, and their weights."""


@emits("resize")
def resize(e: Emitter, attrs: Resize, x: OnnxValue) -> OnnxValue:
    if _is_native_resize(attrs, x):
        return _resize_natively(e, attrs, x)
    if attrs.mode == "linear":
        return _combine(e, x, [axis_taps(axis) for axis in attrs.axes])
    for i, axis in enumerate(attrs.axes, x.ndim - len(attrs.sizes)):
        x = e.gather(x, np.array([cell for ((cell, _),) in axis_taps(axis)]), i)
    return x


@emits("resize_transpose")
def resize_transpose(e: Emitter, attrs: Resize, g: OnnxValue) -> OnnxValue:
    return _combine(e, g, [_readers_of_cells(axis) for axis in attrs.axes])


def _combine(e: Emitter, x: OnnxValue, tables: Sequence[Rows]) -> OnnxValue:
    """Along the last axes the weighted sums that the rows say, one axis after another.

    Rows that name fewer cells than others are filled with the place one beyond the end, where a cell of 0 is put.
    """
    for axis, rows in enumerate(tables, x.ndim - len(tables)):
        size, width = x.shape[axis], max(map(len, rows))
        filled = [[*row, *[(size, Fraction(0))] * (width - len(row))] for row in rows]
        places, weights = (np.array([[float(tap[i]) for tap in row] for row in filled]) for i in (0, 1))
        ends = [(0, int(a == axis and bool((places == size).any()))) for a in range(x.ndim)]
        cells = e.gather(e.pad(x, ends), places.astype(np.int64), axis)
        shares = weights.reshape(*weights.shape, *(1,) * (x.ndim - axis - 1))
        x = e.reduce("ReduceSum", e.cells("Mul", cells, e.constant(shares, x.dtype)), [axis + 1])
    return x


def _readers_of_cells(axis: Axis) -> Rows:
    """The outputs that read each cell."""
    rows: list[list[tuple[int, Fraction]]] = [[] for _ in range(axis.size)]
    for o, row in enumerate(axis_taps(axis)):
        for i, w in row:
            rows[i].append((o, w))
    return rows


def _is_native_resize(attrs: Resize, x: OnnxValue) -> bool:
    """Whether ONNX has these positions, exactly: the default ones of steps that are powers of two."""
    usual = attrs.step is None and attrs.rounding == "floor" and not attrs.align_corners
    ranks = NATIVE_RANKS if attrs.mode == "nearest" else (2,)
    fits = len(attrs.sizes) in ranks and x.ndim == len(attrs.sizes) + 2
    return usual and fits and all(_is_power_of_two(axis.step) for axis in attrs.axes)


def _is_power_of_two(step: Fraction) -> bool:
    numerator, denominator = step.numerator, step.denominator
    return not numerator & (numerator - 1) and not denominator & (denominator - 1)


def _resize_natively(e: Emitter, attrs: Resize, x: OnnxValue) -> OnnxValue:
    shape = (*x.shape[:2], *attrs.outputs)
    modes = {"coordinate_transformation_mode": "half_pixel"}
    if attrs.mode == "nearest":
        modes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return e.node("Resize", [x, NONE, NONE, e.indices(shape)], shape, x.dtype, mode=attrs.mode, **modes)
