"""Operators that work cell by cell."""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

import numpy as np

from gradspec.interop.onnx.emit.emitter import BOOL, NONE, Emitter, OnnxValue
from gradspec.interop.onnx.emit.pool import raised
from gradspec.interop.onnx.emit.table import emits
from gradspec.ops.lp_pool import AbsPower
from gradspec.ops.pointwise import Approximation, Beta, ClampRange, Factor, Levels, NegativeSlope
from gradspec.spec.pointwise import GELU_CUBIC, GELU_SCALE

NAMESAKES = {
    "add": "Add",
    "mul": "Mul",
    "div": "Div",
    "abs": "Abs",
    "floor": "Floor",
    "round": "Round",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "tanh": "Tanh",
    "sin": "Sin",
    "cos": "Cos",
    "sigmoid": "Sigmoid",
    "erf": "Erf",
    "greater": "Greater",
    "equal": "Equal",
    "where": "Where",
}
"""Operators that ONNX has, by its name for them."""


def _namesake(op_type: str) -> Any:
    return lambda e, attrs, *operands: e.cells(op_type, *operands)


for _name, _op_type in NAMESAKES.items():
    emits(_name)(_namesake(_op_type))


@emits("sub")
def sub(e: Emitter, attrs: Any, a: OnnxValue, b: OnnxValue) -> OnnxValue:
    return e.difference(a, b)


@emits("maximum")
def maximum(e: Emitter, attrs: Any, a: OnnxValue, b: OnnxValue) -> OnnxValue:
    return e.cells("Or" if a.dtype == BOOL else "Max", a, b)


@emits("minimum")
def minimum(e: Emitter, attrs: Any, a: OnnxValue, b: OnnxValue) -> OnnxValue:
    return e.cells("And" if a.dtype == BOOL else "Min", a, b)


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


@emits("detach", moves=True)
def detach(e: Emitter, attrs: Any, x: OnnxValue) -> OnnxValue:
    return x


@emits("neg")
def neg(e: Emitter, attrs: Any, x: OnnxValue) -> OnnxValue:
    return e.cells("Sub", e.constant(0, x.dtype), x) if x.dtype.kind == "u" else e.cells("Neg", x)


@emits("scale")
def scale(e: Emitter, attrs: Factor, x: OnnxValue) -> OnnxValue:
    return e.cells("Mul", x, attrs.factor)


# --- piecewise linear -------------------------------------------------------------------------------------------------


@emits("relu")
def relu(e: Emitter, attrs: Any, x: OnnxValue) -> OnnxValue:
    return x if x.dtype.kind == "u" else e.cells("Relu", x)


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
    power = e.cells("Mul", x, raised(e, size, attrs.exponent - 1)) if attrs.signed else raised(e, size, attrs.exponent)
    at_zero = int(attrs.exponent == 0 and not attrs.signed)
    return e.cells("Where", e.cells("Equal", x, 0), e.constant(at_zero, x.dtype), power)


# --- smooth -----------------------------------------------------------------------------------------------------------


@emits("softplus")
def softplus(e: Emitter, attrs: Beta, x: OnnxValue) -> OnnxValue:
    if attrs.beta == 1:
        return e.cells("Softplus", x)
    return e.cells("Div", e.cells("Softplus", e.cells("Mul", x, attrs.beta)), attrs.beta)


@emits("silu")
def silu(e: Emitter, attrs: Any, x: OnnxValue) -> OnnxValue:
    return e.cells("Mul", x, e.cells("Sigmoid", x))


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
