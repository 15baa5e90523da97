"""Operators that work cell by cell, conversion between dtypes, and quantisation."""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

import numpy as np

from gradspec.graph.ir import NoAttributes
from gradspec.graph.types import DTYPES
from gradspec.interop.onnx.emit.emitter import BOOL, FLOAT32, FLOAT64, INT32, NONE, DType, Emitter, OnnxValue, Shape
from gradspec.interop.onnx.emit.table import emits, emits_each
from gradspec.ops.convert import Conversion
from gradspec.ops.lp_pool import AbsPower
from gradspec.ops.pointwise import Beta, ClampRange, NegativeSlope
from gradspec.ops.quantize import Quantization

NAMESAKES = (
    *("Abs", "Add", "Cos", "Div", "Erf", "Exp", "Floor", "Log", "Mul", "Round", "Sigmoid", "Sin", "Sqrt", "Tanh"),
    "Where",
)
"""Operators that ONNX has under the same names, but for their first letters."""


def _namesake(op_type: str) -> Any:
    return lambda e, attrs, *operands: e.cells(op_type, *operands)


def _compare(e: Emitter, op_type: str, *operands: OnnxValue) -> OnnxValue:
    """Integers in 32 or 64 bits: ONNX Runtime does not compare narrower ones."""
    dtype = operands[0].dtype
    is_narrow = dtype.kind in "iu" and dtype.itemsize < 4
    return e.cells(op_type, *(e.cast(v, INT32) if is_narrow else v for v in operands))


emits_each({op_type.lower(): _namesake(op_type) for op_type in NAMESAKES})

emits_each(
    {
        "sub": lambda e, attrs, a, b: e.difference(a, b),
        "maximum": lambda e, attrs, a, b: _compare(e, "Or" if a.dtype == BOOL else "Max", a, b),
        "minimum": lambda e, attrs, a, b: _compare(e, "And" if a.dtype == BOOL else "Min", a, b),
        "greater": lambda e, attrs, a, b: _compare(e, "Greater", a, b),
        "equal": lambda e, attrs, a, b: _compare(e, "Equal", a, b),
        "neg": lambda e, attrs, x: e.cells("Sub", 0, x) if x.dtype.kind == "u" else e.cells("Neg", x),
        "scale": lambda e, attrs, x: e.cells("Mul", x, attrs.factor),
        "relu": lambda e, attrs, x: x if x.dtype.kind == "u" else e.cells("Relu", x),
    }
)


@emits("trunc_divide")
def trunc_divide(e: Emitter, attrs: Any, a: OnnxValue, b: OnnxValue) -> OnnxValue:
    """ONNX divides integers alike, but not by 0; and by −1 the least integer, which wraps, may stop a runtime."""
    by_zero = e.cells("Equal", b, 0)
    if b.dtype.kind == "u":
        safe = e.cells("Div", a, e.cells("Where", by_zero, e.constant(1, b.dtype), b))
    else:
        by_minus_one = e.cells("Equal", b, -1)
        plain = e.cells("Where", e.cells("Or", by_zero, by_minus_one), e.constant(1, b.dtype), b)
        safe = e.cells("Where", by_minus_one, e.cells("Neg", a), e.cells("Div", a, plain))
    return e.cells("Where", by_zero, e.constant(0, a.dtype), safe)


# --- piecewise linear -------------------------------------------------------------------------------------------------


@emits("leaky_relu")
def leaky_relu(e: Emitter, attrs: NegativeSlope, x: OnnxValue) -> OnnxValue | None:
    """ONNX keeps the slope in float32, which may be another number."""
    is_exact = np.float32(attrs.negative_slope).astype(x.dtype) == np.asarray(attrs.negative_slope, x.dtype)
    return e.cells("LeakyRelu", x, alpha=attrs.negative_slope) if is_exact else None


@emits("clamp")
def clamp(e: Emitter, attrs: ClampRange, x: OnnxValue) -> OnnxValue:
    bounds = [NONE if bound is None else e.constant(bound, x.dtype) for bound in (attrs.min, attrs.max)]
    return e.node("Clip", [x, *bounds], x.shape, x.dtype)


@emits("abs_power")
def abs_power(e: Emitter, attrs: AbsPower, x: OnnxValue) -> OnnxValue:
    """0 at 0, even for a negative exponent; only ``|0|⁰`` is 1."""
    size = e.cells("Abs", x)
    power = _raise_to(e, size, attrs.exponent - attrs.signed)
    power = e.cells("Mul", x, power) if attrs.signed else power
    at_zero = int(attrs.exponent == 0 and not attrs.signed)
    return e.cells("Where", e.cells("Equal", x, 0), e.constant(at_zero, x.dtype), power)


def _raise_to(e: Emitter, x: OnnxValue, exponent: float) -> OnnxValue:
    """``x`` to a power, which is a double whatever ``x`` is."""
    return x if exponent == 1 else e.node("Pow", [x, e.constant(exponent, np.float64)], x.shape, x.dtype)


# --- smooth -----------------------------------------------------------------------------------------------------------


@emits("softplus")
def softplus(e: Emitter, attrs: Beta, x: OnnxValue) -> OnnxValue:
    if attrs.beta == 1:
        return e.cells("Softplus", x)
    return e.cells("Div", e.cells("Softplus", e.cells("Mul", x, attrs.beta)), attrs.beta)


@emits("normal_density")
def normal_density(e: Emitter, attrs: Any, x: OnnxValue) -> OnnxValue:
    bell = e.cells("Exp", e.cells("Mul", e.cells("Mul", x, x), -0.5))
    return e.cells("Mul", bell, 1 / sqrt(2 * pi))


# --- dtypes: what a float becomes that an integer dtype cannot hold, ONNX leaves open ---------------------------------


@emits("convert", moves=True)
def convert(e: Emitter, attrs: Conversion, x: OnnxValue) -> OnnxValue:
    dtype = DTYPES[attrs.dtype].numpy
    if dtype == BOOL:
        return e.cells("Not", e.cells("Equal", e.cast(x, FLOAT64) if x.is_float else x, 0))
    if x.is_float and dtype.kind in "iu":
        return _whole(e, e.cast(x, FLOAT64), dtype)
    return e.cast(x, dtype)


def _whole(e: Emitter, x: OnnxValue, dtype: DType) -> OnnxValue:
    """``x`` without its fraction, NaN as 0, and the ends of the range for what lies beyond them.

    The largest 64-bit integers are no doubles, so the upper end is not clipped to but chosen.
    """
    limits = np.iinfo(dtype)
    numbers = e.cells("Where", e.cells("IsNaN", x), e.constant(0, x.dtype), x)
    beyond = float(limits.max)
    top = limits.max if int(beyond) == limits.max else np.nextafter(beyond, 0)
    bounds = [e.constant(bound, x.dtype) for bound in (limits.min, top)]
    whole = e.cast(e.node("Clip", [numbers, *bounds], x.shape, x.dtype), dtype)
    if top == limits.max:
        return whole
    inside = e.cells("Not", e.cells("Less", e.constant(top, x.dtype), x))
    return e.cells("Where", inside, whole, e.constant(limits.max, dtype))


# --- quantisation: ONNX's operators for 8 bits, and arithmetic for what opset 18 does not have ------------------------


@emits("quantize")
def quantize(e: Emitter, attrs: Quantization, x: OnnxValue, scale: OnnxValue, zero: OnnxValue) -> OnnxValue:
    axis = _axis(x, scale, zero)
    if axis is None or x.dtype != FLOAT32 or zero.dtype.itemsize > 1:
        return _write_out(e, attrs, x, scale, zero)
    numbers = e.cells("Where", e.cells("IsNaN", x), e.constant(0, x.dtype), x) if e.nan_safe else x
    return e.node("QuantizeLinear", [numbers, *_as_lists(e, scale, zero)], x.shape, zero.dtype, axis=axis)


def _write_out(e: Emitter, attrs: Quantization, x: OnnxValue, scale: OnnxValue, zero: OnnxValue) -> OnnxValue:
    """The bounds of the range, less the zero point, are exact."""
    limits, offset = np.iinfo(DTYPES[attrs.dtype].numpy), e.cast(_repeat_blocks(e, zero, x.shape), x.dtype)
    level = e.cells("Round", e.cells("Div", x, _repeat_blocks(e, scale, x.shape)))
    low, high = (e.cells("Sub", e.constant(limit, x.dtype), offset) for limit in (limits.min, limits.max))
    inside = e.cells("Max", e.cells("Min", level, high), low)
    numbers = e.cells("Where", e.cells("IsNaN", level), e.constant(0, x.dtype), inside)
    return e.cast(e.cast(e.cells("Add", numbers, offset), INT32), zero.dtype)


@emits("dequantize")
def dequantize(e: Emitter, attrs: NoAttributes, q: OnnxValue, scale: OnnxValue, *zero: OnnxValue) -> OnnxValue | None:
    axis = _axis(q, scale, *zero)
    if axis is None or scale.dtype != FLOAT32 or q.dtype.itemsize > 1:
        return None
    return e.node("DequantizeLinear", [q, *_as_lists(e, scale, *zero)], q.shape, scale.dtype, axis=axis)


def _axis(x: OnnxValue, *others: OnnxValue) -> int | None:
    """The one axis along which scale and zero point vary cell by cell; any if they do not, and None for blocks."""
    varying = {(x.ndim - t.ndim + a, n) for t in others for a, n in enumerate(t.shape) if n != 1}
    if len(varying) > 1 or any(x.shape[a] != n for a, n in varying):
        return None
    return next((a for a, _ in varying), 0)


def _as_lists(e: Emitter, *others: OnnxValue) -> list[OnnxValue]:
    """Scale and zero point as numbers, or as lists of equal length."""
    size = max((t.size for t in others), key=lambda n: n != 1)
    return [e.reshape(t, ()) if size == 1 else e.expand(e.reshape(t, (t.size,)), (size,)) for t in others]


def _repeat_blocks(e: Emitter, t: OnnxValue, shape: Shape) -> OnnxValue:
    """``t`` so that it broadcasts to ``shape``: cells that are for several neighbours, but not for all, repeated."""
    for axis in range(t.ndim):
        at = axis - t.ndim
        m, n = t.shape[at], shape[at]
        if m not in (1, n):
            t = e.gather(t, np.arange(n) * m // n, axis)
    return t
