"""Quantisation to small integers, which has no derivative, and back, which is linear in the scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from gradspec.graph.arrays import as_array
from gradspec.graph.builder import apply, operands
from gradspec.graph.ir import Array, Attributes, JvpResult, NoAttributes, Op, Operand, TypedOperand, Var
from gradspec.graph.types import DType, TensorType, dtype_of, f32, i32, number_as, require_floats, require_one_dtype, u8
from gradspec.ops.box import BoundedNode, Box
from gradspec.ops.convert import convert
from gradspec.ops.rules import require_count
from gradspec.ops.shape import broadcast_to, reshape, spread
from gradspec.ops.shape import sum as sum_over
from gradspec.spec.convert import NO_DERIVATIVE, QUANTIZED, full_shape
from gradspec.spec.convert import dequantize as dequantize_spec
from gradspec.spec.convert import quantize as quantize_spec
from gradspec.spec.errors import DTypeError, UnsupportedError

NONE = NoAttributes()


def _batch(op: Op, attrs: Attributes, given: Sequence[Var], batched: Sequence[bool]) -> tuple[Var]:
    """A scale or zero point without the axis serves all samples; one that has it keeps it in front of all others."""
    n = next(v.shape[0] for v, has in zip(given, batched, strict=True) if has)
    x = given[0] if batched[0] else spread(given[0], n)
    others = [
        reshape(v, (n, *(1,) * (x.ndim - v.ndim), *v.shape[1:])) if has else v
        for v, has in zip(given[1:], batched[1:], strict=True)
    ]
    return (apply(op, attrs, x, *others),)


# --- quantize ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quantization:
    """The name of the dtype of the result and of the zero point."""

    dtype: str


def _quantize_types(attrs: Quantization, *types: TensorType) -> tuple[TensorType]:
    require_count("quantize", types, 3)
    x, scale, zero = types
    require_floats("quantize", x, scale)
    if attrs.dtype not in QUANTIZED:
        raise DTypeError(
            f"quantize to {attrs.dtype} is not known; give a zero point of one of {', '.join(QUANTIZED)}, or use "
            "gs.round and gs.convert"
        )
    if zero.dtype.name != attrs.dtype:
        raise DTypeError(f"quantize to {attrs.dtype}: the zero point is {zero}; give it that dtype")
    for t in (scale, zero):
        full_shape("quantize", t.shape, x.shape)
    return (TensorType(zero.dtype, x.shape),)


def _no_derivative(attrs: Quantization, primals: Sequence[Var], tangents: Sequence[Var | None]) -> JvpResult:
    raise UnsupportedError(NO_DERIVATIVE)


def _levels(node: BoundedNode, x: Box, scale: Box, zero: Box) -> Box:
    """The quotients lie between those of the ends, rounded twice at most; a level increases with its quotient."""
    if zero.varies:
        raise UnsupportedError("quantize: a zero point that depends on the box is not bounded; give it as an input")
    scales = [_blocks(end, x.lower.shape) for end in scale.ends]
    apart = node.either(node.greater(scales[0], 0.0), node.greater(0.0, scales[1]))
    ratio = node.known_where(apart, node.around([p / q for p in x.ends for q in scales], 2))
    one = node.number(1.0, x.lower)
    return node.between(*(node.apply(end, one, zero.lower) for end in node.opened(ratio)))


def _blocks(t: Var, shape: tuple[int, ...]) -> Var:
    """The entry for each cell of a tensor of ``shape``."""
    full = full_shape("quantize", t.shape, shape)
    split = [size for m, n in zip(full, shape, strict=True) for size in (m, n // max(m, 1))]
    column = reshape(t, [size for m in full for size in (m, 1)])
    return reshape(broadcast_to(column, split), shape)


QUANTIZE = Op(
    "quantize",
    Quantization,
    types=_quantize_types,
    spec=lambda attrs, x, scale, zero: (quantize_spec(x, scale, zero, attrs.dtype),),
    batch=_batch,
    enclosure=_levels,
    jvp=_no_derivative,
)


def quantize(x: Operand, scale: Operand, zero_point: TypedOperand = 0, dtype: DType | None = None) -> Var:
    """``x / scale``, rounded to the nearest integer, of two the even one, plus ``zero_point``, as ``i8 u8 i16 u16``.

    Values out of range become the largest or the smallest integer, and NaN the zero point. Scales and zero points are
    numbers, or tensors that broadcast: ``(C, 1, 1)`` has one for each channel of ``x (N, C, H, W)``. A size may also
    divide that of ``x``; then each entry applies to a block of neighbours. The result has the dtype of the zero point;
    a plain number has ``dtype``, which is u8 unless given. There is no derivative, and asking for one is an error.

    >>> quantize(np.float32([-1, 0.5, 1.5, 400]), 1.0, 10).tolist()
    [9, 10, 12, 255]
    >>> quantize(np.float32([[1, 2], [3, 4]]), np.float32([[0.5], [0.25]]), 0, gs.i8).tolist()
    [[2, 4], [12, 16]]
    """
    zero = zero_point if isinstance(zero_point, Var) else _as_array(zero_point, dtype or u8)
    found = zero.dtype if isinstance(zero, Var) else dtype_of(zero)
    if dtype not in (None, found):
        raise DTypeError(f"quantize: dtype={dtype} is asked for, and the zero point is {found}; give one of them")
    x, scale, zero = operands(x, scale, zero)
    return apply(QUANTIZE, Quantization(found.name), x, scale, zero)


def _as_array(value: Operand, dtype: DType) -> Array:
    """A plain number as an array of ``dtype``; everything else as it is."""
    return number_as(value, dtype.numpy) if isinstance(value, int | float) else as_array(value)


# --- dequantize -------------------------------------------------------------------------------------------------------


def _dequantize_types(attrs: NoAttributes, *types: TensorType) -> tuple[TensorType]:
    require_count("dequantize", types, 2, 3)
    q, scale, *zero = types
    if q.dtype.name not in (*QUANTIZED, "i32"):
        raise DTypeError(f"dequantize reads {', '.join(QUANTIZED)} and i32, not {q}; convert it by gs.convert")
    if zero and q.dtype is i32:
        raise DTypeError(
            f"dequantize: {q} has no zero point, which could not be taken away exactly; subtract it before"
        )
    require_one_dtype("dequantize", q, *zero)
    for t in (scale, *zero):
        full_shape("dequantize", t.shape, q.shape)
    return (TensorType(require_floats("dequantize", scale), q.shape),)


def _block_sums(g: Var, shape: tuple[int, ...]) -> Var:
    """``g`` summed over the cells that share a scale of ``shape``."""
    full = full_shape("dequantize", shape, g.shape)
    split = reshape(g, [size for m, n in zip(full, g.shape, strict=True) for size in (m, n // max(m, 1))])
    return reshape(sum_over(split, tuple(range(1, split.ndim, 2))), shape)


def _dequantize_transpose(attrs: NoAttributes, cotangents: Sequence[Var], given: Sequence[Var], i: int) -> Var:
    """Of the scale, the only operand with a cotangent."""
    (g,), (q, scale, *zero) = cotangents, given
    return _block_sums(g * apply(DEQUANTIZE, NONE, q, g.owner.operand(1.0, g), *zero), scale.shape)


def _decompose_dequantize(attrs: NoAttributes, q: Var, scale: Var, *zero: Var) -> tuple[Var]:
    """With a zero point, integers have 16 bits at most, so that differences of them as floats are exact."""
    steps = convert(q, scale.dtype)
    for offset in zero:
        steps = steps - convert(_blocks(offset, q.shape), scale.dtype)
    return (steps * _blocks(scale, q.shape),)


DEQUANTIZE: Op = Op(
    "dequantize",
    NoAttributes,
    types=_dequantize_types,
    spec=lambda attrs, *tensors: (dequantize_spec(*tensors),),
    batch=_batch,
    linear="jointly",
    enclosure=lambda node, *boxes: node.around([node.apply(*ends) for ends in product(*(b.ends for b in boxes))], 1),
    transpose=_dequantize_transpose,
    decompose=_decompose_dequantize,
)


def dequantize(q: Operand, scale: TypedOperand, zero_point: TypedOperand | None = None) -> Var:
    """The numbers that integers stand for, ``(q − zero_point)·scale``, of the scale's dtype; linear in the scale.

    Scale and zero point are those of ``quantize``; a plain number as the scale is an ``f32``. The zero point, which is
    0 unless given, has the dtype of ``q``: ``i8 u8 i16 u16``. Sums of products, in ``i32``, have none.

    >>> dequantize(np.uint8([9, 10, 12]), 0.5, 10).tolist(), dequantize(np.int32([300]), 0.5).tolist()
    ([-0.5, 0.0, 1.0], [150.0])
    """
    q, *zero = operands(q, *(() if zero_point is None else (zero_point,)))
    factor = scale if isinstance(scale, Var) else _as_array(scale, f32)
    return apply(DEQUANTIZE, NONE, q, factor, *zero)
