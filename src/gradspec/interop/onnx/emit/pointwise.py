"""Operators that work cell by cell, conversion between dtypes, and quantisation."""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

import numpy as np

from gradspec.graph.ir import NoAttributes
from gradspec.graph.types import DTYPES
from gradspec.interop.onnx.emit.emitter import BOOL, FLOAT32, FLOAT64, INT32, NONE, DType, Emitter, OnnxValue, Shape
from gradspec.interop.onnx.emit.pool import raise_to
from gradspec.interop.onnx.emit.table import emits, emits_each
from gradspec.ops.convert import Conversion
from gradspec.ops.lp_pool import AbsPower
from gradspec.ops.pointwise import Approximation, Beta, ClampRange, Levels, NegativeSlope
from gradspec.ops.quantize import Quantization
from gradspec.spec.pointwise import GELU_CUBIC, GELU_SCALE

NAMESAKES = (
    *("Abs", "Add", "Cos", "Div", "Equal", "Erf", "Exp", "Floor", "Greater", "Log", "Mul", "Round", "Sigmoid", "Sin"),
    *("Sqrt", "Tanh", "Where"),
)
"""Operators that ONNX has under the same names, but for their first letters."""


def _namesake(op_type: str) -> Any:
    return lambda e, attrs, *operands: e.cells(op_type, *operands)


emits_each({op_type.lower(): _namesake(op_type) for op_type in NAMESAKES})

emits_each(
    {
        "sub": lambda e, attrs, a, b: e.difference(a, b),
        "maximum": lambda e, attrs, a, b: e.cells("Or" if a.dtype == BOOL else "Max", a, b),
        "minimum": lambda e, attrs, a, b: e.cells("And" if a.dtype == BOOL else "Min", a, b),
        "neg": lambda e, attrs, x: e.cells("Sub", 0, x) if x.dtype.kind == "u" else e.cells("Neg", x),
        "scale": lambda e, attrs, x: e.cells("Mul", x, attrs.factor),
        "relu": lambda e, attrs, x: x if x.dtype.kind == "u" else e.cells("Relu", x),
        "silu": lambda e, attrs, x: e.cells("Mul", x, e.cells("Sigmoid", x)),
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
def leaky_relu(e: Emitter, attrs: NegativeSlope, x: OnnxValue) -> OnnxValue:
    """ONNX keeps the slope in float32; where that is another number, it is multiplied."""
    if np.float32(attrs.negative_slope).astype(x.dtype) == np.asarray(attrs.negative_slope, x.dtype):
        return e.cells("LeakyRelu", x, alpha=attrs.negative_slope)
    return e.cells("Where", e.cells("Less", x, 0), e.cells("Mul", x, attrs.negative_slope), x)


@emits("clamp")
def clamp(e: Emitter, attrs: ClampRange, x: OnnxValue) -> OnnxValue:
    bounds = [NONE if bound is None else e.constant(bound, x.dtype) for bound in (attrs.min, attrs.max)]
    return e.node("Clip", [x, *bounds], x.shape, x.dtype)


@emits("step")
def step(e: Emitter, attrs: Levels, x: OnnxValue) -> OnnxValue:
    """A NaN is neither less than 0 nor equal to it, and counts as larger."""
    not_below = e.choose(e.cells("Equal", x, 0), attrs.at, attrs.above, x.dtype)
    return e.cells("Where", e.cells("Less", x, 0), e.constant(attrs.below, x.dtype), not_below)


@emits("within")
def within(e: Emitter, attrs: ClampRange, x: OnnxValue) -> OnnxValue:
    outside = [e.cells("Less", x, attrs.min)] if attrs.min is not None else []
    outside += [e.cells("Greater", x, attrs.max)] if attrs.max is not None else []
    if not outside:
        return e.full(x.shape, 1, x.dtype)
    return e.choose(outside[0] if len(outside) == 1 else e.cells("Or", *outside), 0, 1, x.dtype)


@emits("max_share")
def max_share(e: Emitter, attrs: Any, a: OnnxValue, b: OnnxValue) -> OnnxValue:
    equal_or_less = e.choose(_exceeds(e, b, a), 0, 0.5, a.dtype)
    return e.cells("Where", _exceeds(e, a, b), e.constant(1, a.dtype), equal_or_less)


def _exceeds(e: Emitter, a: OnnxValue, b: OnnxValue) -> OnnxValue:
    """A NaN exceeds every number, and no other NaN."""
    sole_nan = e.cells("And", e.cells("IsNaN", a), e.cells("Not", e.cells("IsNaN", b)))
    return e.cells("Or", e.cells("Greater", a, b), sole_nan)


@emits("gate")
def gate(e: Emitter, attrs: Any, weight: OnnxValue, t: OnnxValue) -> OnnxValue:
    return e.cells("Where", e.cells("Equal", weight, 0), e.constant(0, t.dtype), e.cells("Mul", t, weight))


@emits("abs_power")
def abs_power(e: Emitter, attrs: AbsPower, x: OnnxValue) -> OnnxValue:
    """0 at 0, even for a negative exponent; only ``|0|⁰`` is 1."""
    size = e.cells("Abs", x)
    power = raise_to(e, size, attrs.exponent - attrs.signed)
    power = e.cells("Mul", x, power) if attrs.signed else power
    at_zero = int(attrs.exponent == 0 and not attrs.signed)
    return e.cells("Where", e.cells("Equal", x, 0), e.constant(at_zero, x.dtype), power)


# --- smooth -----------------------------------------------------------------------------------------------------------


@emits("softplus")
def softplus(e: Emitter, attrs: Beta, x: OnnxValue) -> OnnxValue:
    if attrs.beta == 1:
        return e.cells("Softplus", x)
    return e.cells("Div", e.cells("Softplus", e.cells("Mul", x, attrs.beta)), attrs.beta)


@emits("gelu")
def gelu(e: Emitter, attrs: Approximation, x: OnnxValue) -> OnnxValue:
    if attrs.approximate == "none":
        return e.cells("Mul", x, normal_cdf(e, None, x))
    cube = e.cells("Mul", e.cells("Mul", e.cells("Mul", x, x), x), GELU_CUBIC)
    return e.cells("Mul", x, e.cells("Sigmoid", e.cells("Mul", e.cells("Add", x, cube), GELU_SCALE)))


@emits("normal_cdf")
def normal_cdf(e: Emitter, attrs: Any, x: OnnxValue) -> OnnxValue:
    """``(1 + erf(x/√2)) / 2``: ONNX has no erfc, so the lower tail keeps its absolute accuracy only."""
    return e.cells("Mul", e.cells("Add", e.cells("Erf", e.cells("Mul", x, sqrt(0.5))), 1), 0.5)


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
def dequantize(e: Emitter, attrs: NoAttributes, q: OnnxValue, scale: OnnxValue, *zero: OnnxValue) -> OnnxValue:
    axis = _axis(q, scale, *zero)
    if axis is None or scale.dtype != FLOAT32 or q.dtype.itemsize > 1:
        steps = e.cast(q, INT32)
        for z in zero:
            steps = e.cells("Sub", steps, e.cast(_repeat_blocks(e, z, q.shape), INT32))
        return e.cells("Mul", e.cast(steps, scale.dtype), _repeat_blocks(e, scale, q.shape))
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
