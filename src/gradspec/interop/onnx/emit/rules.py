"""Operators that work cell by cell, along axes, or that move numbers."""

from __future__ import annotations

from math import pi, prod, sqrt
from typing import Any

import numpy as np

from gradspec.graph.ir import NoAttributes
from gradspec.graph.types import DTYPES
from gradspec.interop.onnx.emit.emitter import (
    BOOL,
    FLOAT32,
    FLOAT64,
    INT32,
    INT64,
    NONE,
    UINT64,
    DType,
    Emitter,
    OnnxValue,
    Shape,
    emits,
    emits_each,
)
from gradspec.ops.convert import Conversion
from gradspec.ops.gather import RowPlaces, Top
from gradspec.ops.layout import AlongAxis, Padding, Slices
from gradspec.ops.linear import BatchNorm, Product
from gradspec.ops.lp_pool import AbsPower
from gradspec.ops.pointwise import Beta, ClampRange, NegativeSlope
from gradspec.ops.quantize import Quantization
from gradspec.ops.reduce import CumSum
from gradspec.ops.shape import Axes

NAMESAKES = (
    *("Abs", "Add", "Atan", "Cos", "Div", "Erf", "Exp", "Floor", "Log", "Mul", "Round", "Sigmoid", "Sin", "Sqrt"),
    *("Tanh", "Where"),
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
        "bitwise_and": lambda e, attrs, a, b: e.cells("BitwiseAnd", a, b),
        "bitwise_or": lambda e, attrs, a, b: e.cells("BitwiseOr", a, b),
        "bitwise_xor": lambda e, attrs, a, b: e.cells("BitwiseXor", a, b),
        "left_shift": lambda e, attrs, a, count: _shift(e, "LEFT", a, count),
        "right_shift": lambda e, attrs, a, count: _shift(e, "RIGHT", a, count),
        "scale": lambda e, attrs, x: e.cells("Mul", x, attrs.factor),
        "relu": lambda e, attrs, x: x if x.dtype.kind == "u" else e.cells("Relu", x),
    }
)


def _shift(e: Emitter, direction: str, a: OnnxValue, count: OnnxValue) -> OnnxValue:
    """In 64 bits without a sign, the ones that ONNX shifts; a negative number is shifted right as its complement.

    A count of 64 or more, which a negative one is too, has no meaning there.
    """
    is_negative = e.cells("Less", a, 0) if direction == "RIGHT" and a.dtype.kind == "i" else None
    plain = a if is_negative is None else e.cells("Where", is_negative, e.cells("BitwiseNot", a), a)
    wide, by = e.cast(plain, UINT64), e.cast(count, UINT64)
    is_known = e.cells("Less", by, 64)
    shifted = e.cells("BitShift", wide, e.cells("Where", is_known, by, e.constant(0, UINT64)), direction=direction)
    y = e.cast(e.cells("Where", is_known, shifted, e.constant(0, UINT64)), a.dtype)
    return y if is_negative is None else e.cells("Where", is_negative, e.cells("BitwiseNot", y), y)


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
def softplus(e: Emitter, attrs: Beta, x: OnnxValue) -> OnnxValue | None:
    """In float64 ONNX Runtime takes ONNX's own decomposition, ``log(exp(x) + 1)``, which overflows."""
    if x.dtype == FLOAT64:
        return None
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


# --- reductions over axes ---------------------------------------------------------------------------------------------


@emits("sum")
def sum_(e: Emitter, attrs: Axes, x: OnnxValue) -> OnnxValue:
    if not x.size:
        return e.full(tuple(n for a, n in enumerate(x.shape) if a not in attrs.axes), 0, x.dtype)
    return e.reduce("ReduceSum", x, attrs.axes)


@emits("cumsum")
def cumsum(e: Emitter, attrs: CumSum, x: OnnxValue) -> OnnxValue:
    """Integers in 64 bits, as sums are."""
    terms = x if x.is_float else e.cast(x, INT64)
    ends = {"exclusive": int(attrs.exclusive), "reverse": int(attrs.reverse)}
    return e.node("CumSum", [terms, e.constant(attrs.axis, INT64)], x.shape, terms.dtype, **ends)


emits_each(
    {
        "mean": lambda e, attrs, x: e.reduce("ReduceMean", x, attrs.axes),
        "softmax": lambda e, attrs, x: e.cells("Softmax", x, axis=attrs.axis),
        "log_softmax": lambda e, attrs, x: e.cells("LogSoftmax", x, axis=attrs.axis),
    }
)

# --- products of matrices ---------------------------------------------------------------------------------------------


@emits("matmul")
def matmul(e: Emitter, attrs: Product, a: OnnxValue, b: OnnxValue, *bias: OnnxValue) -> OnnxValue:
    rows, inner = a.shape[-2:] if not attrs.transpose_a else a.shape[:-3:-1]
    columns = b.shape[-2] if attrs.transpose_b else b.shape[-1]
    shape = (*a.shape[:-2], rows, columns)
    if not inner:
        return e.expand(_as_row(e, bias[0]), shape) if bias else e.full(shape, 0, a.dtype)
    if a.ndim == 2 and a.is_float and (bias or attrs != Product()):
        flags = {"transA": int(attrs.transpose_a), "transB": int(attrs.transpose_b)}
        return e.node("Gemm", [a, b, *bias], shape, a.dtype, **flags)
    factors = [_turn(e, a, attrs.transpose_a), _turn(e, b, attrs.transpose_b)]
    y = e.node("MatMul", factors, shape, a.dtype)
    return e.cells("Add", y, _as_row(e, bias[0])) if bias else y


def _turn(e: Emitter, x: OnnxValue, turn: bool) -> OnnxValue:
    return e.transpose(x, [*range(x.ndim - 2), x.ndim - 1, x.ndim - 2]) if turn else x


def _as_row(e: Emitter, bias: OnnxValue) -> OnnxValue:
    return e.reshape(bias, (*bias.shape[:-1], 1, bias.shape[-1]))


@emits("batch_norm")
def batch_norm(
    e: Emitter, attrs: BatchNorm, x: OnnxValue, mean: OnnxValue, var: OnnxValue, *affine: OnnxValue
) -> OnnxValue | None:
    """ONNX keeps eps in float32, which may be another number."""
    if x.dtype != FLOAT32 and float(np.float32(attrs.eps)) != attrs.eps:
        return None
    weight = affine[0] if attrs.weight else e.full(mean.shape, 1, x.dtype)
    bias = affine[-1] if attrs.bias else e.full(mean.shape, 0, x.dtype)
    return e.node("BatchNormalization", [x, weight, bias, mean, var], x.shape, x.dtype, epsilon=attrs.eps)


# --- operators that move numbers --------------------------------------------------------------------------------------


emits_each(
    {
        "reshape": lambda e, attrs, x: e.reshape(x, attrs.shape),
        "broadcast_to": lambda e, attrs, x: e.expand(x, attrs.shape),
        "transpose": lambda e, attrs, x: e.transpose(x, attrs.axes),
        "detach": lambda e, attrs, x: x,
    },
    moves=True,
)


@emits("concat", moves=True)
def concat(e: Emitter, attrs: AlongAxis, *xs: OnnxValue) -> OnnxValue:
    parts = [x for x in xs if x.size]
    shape = list(parts[0].shape)
    shape[attrs.axis] = sum(x.shape[attrs.axis] for x in parts)
    return parts[0] if len(parts) == 1 else e.node("Concat", parts, tuple(shape), parts[0].dtype, axis=attrs.axis)


@emits("slice", moves=True)
def slice_(e: Emitter, attrs: Slices, x: OnnxValue) -> OnnxValue:
    """On the axes that are not read whole. ONNX counts a negative end from the back, so one before the first cell is
    written as far before it as the axis is long."""
    progressions = enumerate(zip(attrs.starts, attrs.sizes, attrs.steps, x.shape, strict=True))
    cut = {a: (start, size, step) for a, (start, size, step, n) in progressions if (start, size, step) != (0, n, 1)}
    if not cut:
        return x
    ends = [start + size * step for start, size, step in cut.values()]
    stops = [end if end >= 0 else end - x.shape[axis] for axis, end in zip(cut, ends, strict=True)]
    columns = ([start for start, _, _ in cut.values()], stops, list(cut), [step for _, _, step in cut.values()])
    return e.node("Slice", [x, *(e.indices(column) for column in columns)], attrs.sizes, x.dtype)


@emits("pad", moves=True)
def pad(e: Emitter, attrs: Padding, x: OnnxValue) -> OnnxValue:
    if not x.size:
        shape = [
            lo + hi + max(n + (n - 1) * gap, 0)
            for (lo, hi), gap, n in zip(attrs.padding, attrs.interior, x.shape, strict=True)
        ]
        return e.full(tuple(shape), attrs.value, x.dtype)
    # The gap behind the last cell is not between neighbours.
    ends = [(lo, hi - gap) for (lo, hi), gap in zip(attrs.padding, attrs.interior, strict=True)]
    return e.pad(_space_out(e, attrs, x), ends, attrs.value)


def _space_out(e: Emitter, attrs: Padding, x: OnnxValue) -> OnnxValue:
    """Every cell with its gap behind it, the last one's too."""
    if not any(attrs.interior):
        return x
    apart = e.reshape(x, tuple(size for n in x.shape for size in (n, 1)))
    wider = e.pad(apart, [pair for gap in attrs.interior for pair in ((0, 0), (0, gap))], attrs.value)
    return e.reshape(wider, tuple(n * (gap + 1) for n, gap in zip(x.shape, attrs.interior, strict=True)))


# --- rows named by indices --------------------------------------------------------------------------------------------


def _guard_places(e: Emitter, places: OnnxValue, beyond: int) -> OnnxValue:
    """``places`` as ONNX takes them; negative ones become ``beyond``, which runtimes refuse.

    ONNX counts negative places from the end, where the graph would raise an error.
    """
    numbers = e.cast(places, INT64)
    if e.are_places(places):
        return numbers
    return e.cells("Where", e.cells("Less", numbers, 0), e.constant(beyond, INT64), numbers)


@emits("gather_rows", moves=True)
def gather_rows(e: Emitter, attrs: AlongAxis, x: OnnxValue, indices: OnnxValue) -> OnnxValue:
    axis = attrs.axis
    places = _guard_places(e, indices, x.shape[axis])
    shape = indices.shape + x.shape[axis + 1 :]
    if axis == 0:
        return _gather_first(e, x, places)
    if axis == indices.ndim == x.ndim - 1:  # one cell of each row
        one = (*shape, 1)
        return e.reshape(e.node("GatherElements", [x, e.reshape(places, one)], one, x.dtype, axis=axis), shape)
    return e.node("GatherND", [x, e.reshape(places, (*indices.shape, 1))], shape, x.dtype, batch_dims=axis)


def _gather_first(e: Emitter, x: OnnxValue, places: OnnxValue) -> OnnxValue:
    """Along the first axis: where that was put first, from where it was."""
    source, order = e.unturned(x)
    at, more = order[0], places.ndim - 1
    shape = source.shape[:at] + places.shape + source.shape[at + 1 :]
    y = e.node("Gather", [source, places], shape, x.dtype, axis=at)
    return e.transpose(y, [*range(at, at + places.ndim), *(a if a < at else a + more for a in order[1:])])


@emits("scatter_add_rows")
def scatter_add_rows(e: Emitter, attrs: RowPlaces, x: OnnxValue, indices: OnnxValue) -> OnnxValue:
    lead, row = indices.shape[: attrs.axis], x.shape[indices.ndim :]
    zeros = e.full((*lead, attrs.size, *row), 0, x.dtype)
    if row:
        return _scatter(e, attrs.axis, zeros, indices, x, "add")
    cells = (*lead, prod(indices.shape[attrs.axis :]))
    places = e.reshape(_guard_places(e, indices, attrs.size), cells)
    inputs = [zeros, places, e.reshape(x, cells)]
    return e.node("ScatterElements", inputs, zeros.shape, x.dtype, axis=attrs.axis, reduction="add")


@emits("scatter_rows", moves=True)
def scatter_rows(e: Emitter, attrs: AlongAxis, x: OnnxValue, indices: OnnxValue, rows: OnnxValue) -> OnnxValue:
    return _scatter(e, attrs.axis, x, indices, rows, "none") if indices.size else x


def _scatter(e: Emitter, axis: int, x: OnnxValue, indices: OnnxValue, rows: OnnxValue, reduction: str) -> OnnxValue:
    """ONNX names a row by its index on every axis before it; here these are counted through as one axis.

    So an index at the size or beyond it would be one of the next lead, were it not kept outside all of them.
    """
    lead, size, row = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    outside = prod(lead) * size
    places = _guard_places(e, indices, outside)
    if axis:
        before = np.arange(prod(lead)).reshape(*lead, *(1,) * (indices.ndim - axis)) * size
        counted = e.cells("Add", places, e.indices(before))
        places = e.cells("Where", e.cells("Less", places, size), counted, e.constant(outside, places.dtype))
    count = indices.size
    flat = [e.reshape(x, (prod(lead) * size, *row)), e.reshape(places, (count, 1)), e.reshape(rows, (count, *row))]
    y = e.node("ScatterND", flat, flat[0].shape, x.dtype, **({} if reduction == "none" else {"reduction": reduction}))
    return e.reshape(y, x.shape)


# --- order ------------------------------------------------------------------------------------------------------------


@emits("top_places")
def top_places(e: Emitter, attrs: Top, x: OnnxValue) -> OnnxValue:
    """ONNX takes equal cells in order, but does not say where NaN stands: so NaN is moved, in order, to its end."""
    numbers = x if x.is_float or (x.dtype.kind == "u" and x.dtype.itemsize == 8) else e.cast(x, INT64)
    if not (e.nan_safe and x.is_float):
        return _top(e, numbers, attrs.k, attrs.largest)
    is_nan = e.node("IsNaN", [x], x.shape, e.constant(False).dtype)
    cells = e.cells("Where", is_nan, e.constant(0, x.dtype), x)
    order = _top(e, cells, x.shape[-1], attrs.largest)
    moved = e.node("GatherElements", [e.cast(is_nan, FLOAT32), order], x.shape, FLOAT32, axis=-1)
    last = _top(e, moved, attrs.k, attrs.largest)
    return e.node("GatherElements", [order, last], last.shape, INT64, axis=-1)


def _top(e: Emitter, x: OnnxValue, k: int, largest: bool) -> OnnxValue:
    shape = (*x.shape[:-1], k)
    types = [(shape, x.dtype), (shape, INT64)]
    return e.several("TopK", [x, e.indices([k])], types, axis=-1, largest=int(largest), sorted=1)[1]
