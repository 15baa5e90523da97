"""Convolution, its transpose, its weight gradient, unfold and fold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from gradspec.interop.onnx.emit.emitter import INT32, Emitter, OnnxValue
from gradspec.interop.onnx.emit.table import emits
from gradspec.interop.onnx.emit.windows import gather_windows, spread_to_cells
from gradspec.ops.conv import Convolution, StatedWindows
from gradspec.spec.errors import UnsupportedError


def _with_an_axis(attrs: Convolution) -> Convolution:
    """Where there is no spatial axis, one of a single cell."""
    one = (1,)
    return replace(attrs, sizes=one, kernel=one, stride=one, padding=((0, 0),), dilation=one, outputs=one)


def _flat_batch(e: Emitter, x: OnnxValue, rank: int) -> OnnxValue:
    """``x (*lead, C, *spatial)`` with one leading axis, and with a spatial axis if there is none."""
    at = x.ndim - rank - 1
    spatial = x.shape[at + 1 :] or (1,)
    return e.reshape(x, (prod(x.shape[:at]), x.shape[at], *spatial))


def _add_spatial(e: Emitter, w: OnnxValue, rank: int) -> OnnxValue:
    return w if rank else e.reshape(w, (*w.shape, 1))


def _bias_alone(e: Emitter, shape: tuple[int, ...], like: OnnxValue, rank: int, bias: Sequence[OnnxValue]) -> OnnxValue:
    """What is left of a convolution over no channels: its bias in every cell, or 0."""
    if not bias:
        return e.full(shape, 0, like.dtype)
    return e.expand(e.reshape(bias[0], (*bias[0].shape, *(1,) * rank)), shape)


# --- conv -------------------------------------------------------------------------------------------------------------


@emits("conv")
def conv(e: Emitter, attrs: Convolution, x: OnnxValue, w: OnnxValue, *bias: OnnxValue) -> OnnxValue:
    shape = (*x.shape[: x.ndim - attrs.rank - 1], w.shape[0], *attrs.outputs)
    if not w.shape[1]:
        return _bias_alone(e, shape, x, attrs.rank, bias)
    form = attrs if attrs.rank else _with_an_axis(attrs)
    if not x.is_float:
        return e.reshape(_convolve_integers(e, form, (x, w), attrs.rank, bias), shape)
    image, weight = _flat_batch(e, x, attrs.rank), _add_spatial(e, w, attrs.rank)
    return e.reshape(_convolve(e, form, image, weight, bias), shape)


def _convolve_integers(
    e: Emitter, form: Convolution, factors: tuple[OnnxValue, OnnxValue], rank: int, bias: Sequence[OnnxValue]
) -> OnnxValue:
    """ONNX's convolution of integers reads those of 8 bits, and takes their zero points away by itself."""
    centred = [pair for pair in map(e.centred, factors) if pair is not None]
    if len(centred) < 2:
        raise UnsupportedError("ONNX convolves integers of 8 bits only, less a zero point of theirs")
    (q, zero), (r, weight_zero) = centred
    zeros = [_zero(e, q, zero, 1), _zero(e, r, weight_zero, r.shape[0])]
    image, weight = _flat_batch(e, q, rank), _add_spatial(e, r, rank)
    y = _convolve(e, form, image, weight, zeros, "ConvInteger")
    return e.cells("Add", y, e.reshape(bias[0], (*bias[0].shape, *(1,) * form.rank))) if bias else y


def _zero(e: Emitter, q: OnnxValue, zero: OnnxValue | None, count: int) -> OnnxValue:
    """A zero point as ConvInteger takes it: one number, or ``count``, one for each output channel."""
    if zero is None:
        return e.constant(0, q.dtype)
    if zero.size != 1 and (zero.size, zero.ndim, zero.shape[0]) != (count, q.ndim, count):
        raise UnsupportedError("ONNX takes one zero point, or one for each output channel")
    return e.reshape(zero, () if zero.size == 1 else (zero.size,))


def _convolve(
    e: Emitter, form: Convolution, x: OnnxValue, w: OnnxValue, others: Sequence[OnnxValue], op_type: str = "Conv"
) -> OnnxValue:
    """A node with exactly the windows of ``form``: fewer than fit are had from a shorter axis."""
    ends = []
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
def conv_transpose(e: Emitter, attrs: Convolution, g: OnnxValue, w: OnnxValue, *bias: OnnxValue) -> OnnxValue:
    shape = (*g.shape[: g.ndim - attrs.rank - 1], w.shape[1] * attrs.groups, *attrs.sizes)
    if not w.shape[0]:
        return _bias_alone(e, shape, g, attrs.rank, bias)
    form = attrs if attrs.rank else _with_an_axis(attrs)
    image, weight = _flat_batch(e, g, attrs.rank), _add_spatial(e, w, attrs.rank)
    return e.reshape(_transpose(e, form, image, weight, bias), shape)


def _transpose(e: Emitter, form: Convolution, g: OnnxValue, w: OnnxValue, bias: Sequence[OnnxValue]) -> OnnxValue:
    """A ConvTranspose node cropped to the stated sizes; up to a stride beyond its reach it pads, the rest is added."""
    axes = zip(form.outputs, form.stride, form.dilation, form.kernel, form.padding, form.sizes, strict=True)
    ends = [(m - 1) * s + d * (k - 1) + 1 - lo - n for m, s, d, k, (lo, _), n in axes]
    if any(-end >= s for end, s in zip(ends, form.stride, strict=True)):
        return _transpose_and_pad(e, form, g, w, bias, [max(-end, 0) for end in ends])
    attributes = _attributes(form, [max(end, 0) for end in ends])
    shape, beyond = (g.shape[0], w.shape[1] * form.groups, *form.sizes), [max(-end, 0) for end in ends]
    return e.node("ConvTranspose", [g, w, *bias], shape, g.dtype, **attributes, output_padding=beyond)


def _transpose_and_pad(
    e: Emitter, form: Convolution, g: OnnxValue, w: OnnxValue, bias: Sequence[OnnxValue], beyond: Sequence[int]
) -> OnnxValue:
    """The cells that the windows reach, zeros ``beyond`` them, and the bias everywhere."""
    shape, rank = (g.shape[0], w.shape[1] * form.groups, *form.sizes), form.rank
    sizes = tuple(n - more for n, more in zip(form.sizes, beyond, strict=True))
    if min(sizes) < 1:
        return _bias_alone(e, shape, g, rank, bias)
    reached = _transpose(e, replace(form, sizes=sizes), g, w, ())
    y = e.pad(reached, [(0, 0), (0, 0), *((0, more) for more in beyond)])
    return e.cells("Add", y, e.reshape(bias[0], (*bias[0].shape, *(1,) * rank))) if bias else y


# --- the weight gradient ----------------------------------------------------------------------------------------------


@emits("conv_compare")
def conv_compare(e: Emitter, attrs: Convolution, x: OnnxValue, g: OnnxValue) -> OnnxValue:
    """``w[oc, ic, k] = Σ x̃[b, ic, o·s − lo + d·k] · g[b, oc, o]``: a convolution again, of stride d and dilation s.

    Batch and channels change places: the batch of every group is what is summed over, the channels of ``x`` are the
    images, and those of ``g`` the filters.
    """
    form = attrs if attrs.rank else _with_an_axis(attrs)
    image, filters = _flat_batch(e, x, attrs.rank), _flat_batch(e, g, attrs.rank)
    batch, channels, groups, rank = image.shape[0], image.shape[1] // attrs.groups, attrs.groups, form.rank
    result = (filters.shape[1], channels, *attrs.kernel)
    if not batch:
        return e.full(result, 0, x.dtype)
    spatial = range(3, 3 + rank)
    split = e.transpose(e.reshape(image, (batch, groups, channels, *form.sizes)), [2, 1, 0, *spatial])
    images = e.reshape(split, (channels, groups * batch, *form.sizes))
    weights = e.transpose(filters, [1, 0, *range(2, 2 + rank)])
    turned = replace(form, kernel=form.outputs, outputs=form.kernel, stride=form.dilation, dilation=form.stride)
    y = _convolve(e, turned, images, weights, ())
    return e.reshape(e.transpose(y, [1, 0, *range(2, 2 + rank)]), result)


# --- unfold and fold --------------------------------------------------------------------------------------------------


@emits("unfold", moves=True)
def unfold(e: Emitter, attrs: StatedWindows, x: OnnxValue) -> OnnxValue:
    rank = attrs.rank
    at = x.ndim - rank
    cells = gather_windows(e, x, attrs.window)
    columns = e.transpose(cells, [*range(at), cells.ndim - 1, *range(at, cells.ndim - 1)])
    return e.reshape(columns, (*x.shape[: at - 1], x.shape[at - 1] * prod(attrs.kernel), prod(attrs.outputs)))


@emits("fold")
def fold(e: Emitter, attrs: StatedWindows, x: OnnxValue) -> OnnxValue:
    """Not by Col2Im, which ONNX Runtime gets wrong where padding differs at the two ends."""
    lead, channels, at = x.shape[:-2], x.shape[-2] // prod(attrs.kernel), x.ndim - 1
    columns = e.reshape(x, (*lead, channels, prod(attrs.kernel), *attrs.outputs))
    return spread_to_cells(e, e.transpose(columns, [*range(at), *range(at + 1, columns.ndim), at]), attrs.window)
