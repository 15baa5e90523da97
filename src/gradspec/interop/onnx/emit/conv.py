"""Convolution, its transpose and its weight gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from gradspec.interop.onnx.emit.emitter import INT32, Emitter, OnnxValue
from gradspec.interop.onnx.emit.table import emits
from gradspec.ops.conv import Convolution


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


@emits("conv_compare")
def conv_compare(e: Emitter, attrs: Convolution, x: OnnxValue, g: OnnxValue) -> OnnxValue | None:
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
