"""Quantisation: ONNX's operators for 8 bits, and arithmetic for what opset 18 does not have."""

from __future__ import annotations

import numpy as np

from gradspec.graph.ir import NoAttributes
from gradspec.graph.types import DTYPES
from gradspec.interop.onnx.emit.emitter import FLOAT32, INT32, Emitter, OnnxValue, Shape
from gradspec.interop.onnx.emit.table import emits
from gradspec.ops.quantize import Quantization


@emits("quantize")
def quantize(e: Emitter, attrs: Quantization, x: OnnxValue, scale: OnnxValue, zero: OnnxValue) -> OnnxValue:
    axis = _axis(x, scale, zero)
    if axis is None or x.dtype != FLOAT32 or zero.dtype.itemsize > 1:
        return _by_arithmetic(e, attrs, x, scale, zero)
    numbers = e.cells("Where", e.cells("IsNaN", x), e.constant(0, x.dtype), x) if e.nan_safe else x
    return e.node("QuantizeLinear", [numbers, *_alike(e, scale, zero)], x.shape, zero.dtype, axis=axis)


def _by_arithmetic(e: Emitter, attrs: Quantization, x: OnnxValue, scale: OnnxValue, zero: OnnxValue) -> OnnxValue:
    """The bounds of the range, less the zero point, are exact."""
    limits, offset = np.iinfo(DTYPES[attrs.dtype].numpy), e.cast(_spread(e, zero, x.shape), x.dtype)
    level = e.cells("Round", e.cells("Div", x, _spread(e, scale, x.shape)))
    low, high = (e.cells("Sub", e.constant(limit, x.dtype), offset) for limit in (limits.min, limits.max))
    inside = e.cells("Max", e.cells("Min", level, high), low)
    numbers = e.cells("Where", e.cells("IsNaN", level), e.constant(0, x.dtype), inside)
    return e.cast(e.cast(e.cells("Add", numbers, offset), INT32), zero.dtype)


@emits("dequantize")
def dequantize(e: Emitter, attrs: NoAttributes, q: OnnxValue, scale: OnnxValue, *zero: OnnxValue) -> OnnxValue:
    axis = _axis(q, scale, *zero)
    if axis is None or scale.dtype != FLOAT32 or q.dtype.itemsize > 1:
        steps = e.cast(q, INT32)
        for z in zero:
            steps = e.cells("Sub", steps, e.cast(_spread(e, z, q.shape), INT32))
        return e.cells("Mul", e.cast(steps, scale.dtype), _spread(e, scale, q.shape))
    return e.node("DequantizeLinear", [q, *_alike(e, scale, *zero)], q.shape, scale.dtype, axis=axis)


def _axis(x: OnnxValue, *others: OnnxValue) -> int | None:
    """The one axis along which scale and zero point vary cell by cell; any if they do not, and None for blocks."""
    varying = {(x.ndim - t.ndim + a, n) for t in others for a, n in enumerate(t.shape) if n != 1}
    if len(varying) > 1 or any(x.shape[a] != n for a, n in varying):
        return None
    return next((a for a, _ in varying), 0)


def _alike(e: Emitter, *others: OnnxValue) -> list[OnnxValue]:
    """Scale and zero point as numbers, or as lists of equal length."""
    size = max((t.size for t in others), key=lambda n: n != 1)
    return [e.reshape(t, ()) if size == 1 else e.expand(e.reshape(t, (t.size,)), (size,)) for t in others]


def _spread(e: Emitter, t: OnnxValue, shape: Shape) -> OnnxValue:
    """``t`` so that it broadcasts to ``shape``: cells that are for several neighbours, but not for all, repeated."""
    for axis in range(t.ndim):
        at = axis - t.ndim
        m, n = t.shape[at], shape[at]
        if m not in (1, n):
            t = e.gather(t, np.arange(n) * m // n, axis)
    return t
