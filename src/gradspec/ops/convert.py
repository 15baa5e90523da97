"""Conversion between dtypes: between floating-point formats it is linear, and elsewhere there is no derivative."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gradspec.graph.builder import apply, operands
from gradspec.graph.ir import LATER, JvpResult, Op, Operand, Sums, Var, ones
from gradspec.graph.types import DTYPES, STORED, DType, TensorType, boolean, dtype_of, f32
from gradspec.ops.box import BoundedNode, Box
from gradspec.ops.minifloat import round_to
from gradspec.ops.pointwise import abs
from gradspec.ops.select import equal, greater, where
from gradspec.ops.shape import leading_batch
from gradspec.spec.convert import convert as convert_spec
from gradspec.spec.errors import DTypeError


@dataclass(frozen=True)
class Conversion:
    """The name of the dtype of the result, and whether it holds every operand there is, so that none is rounded."""

    dtype: str
    is_exact: bool = field(default=False, metadata=LATER)


def _types(attrs: Conversion, x: TensorType) -> tuple[TensorType]:
    if attrs.dtype not in DTYPES:
        raise DTypeError(f"convert: the dtype {attrs.dtype!r} is not known; give one of {', '.join(DTYPES)}")
    return (TensorType(DTYPES[attrs.dtype], x.shape),)


def _jvp(attrs: Conversion, primals: Sequence[Var], tangents: Sequence[Var]) -> JvpResult:
    y = apply(CONVERT, attrs, *primals)
    return [y], [apply(CONVERT, Conversion(attrs.dtype), *tangents) if y.type.is_float else None]


def _converted(node: BoundedNode, x: Box) -> Box:
    """Of integers and booleans, or to them."""
    (low, high), to, given = x.ends, node.stored, node.node.inputs[0].type
    if to.is_float:
        ends = [node.apply(end) for end in x.ends]
        rounded = [where(greater(abs(end), 2.0**node.digits), node.blur(end, 1), 0.0) for end in ends]
        return node.between(ends[0] - rounded[0], ends[1] + rounded[1])
    if not x.varies:
        return node.point(node.apply(low))
    if to.dtype is boolean:
        zero = node.both(equal(low, 0), equal(high, 0))
        return node.between(node.either(greater(low, 0), greater(0, high)), equal(zero, False))
    if given.is_float:
        low, high = node.opened(x)
        return node.between(node.apply(low), node.apply(high))
    low, high = node.apply(low), node.apply(high)
    back = [equal(convert(new, given.dtype), old) for new, old in zip((low, high), x.ends, strict=True)]
    fits, limits = node.both(node.both(*back), node.at_least(high, low)), np.iinfo(to.dtype.numpy)
    return node.between(where(fits, low, limits.min), where(fits, high, limits.max))


CONVERT: Op = Op(
    "convert",
    Conversion,
    types=_types,
    spec=lambda attrs, x: (convert_spec(x, attrs.dtype),),
    batch=leading_batch,
    linear="jointly",
    sums=Sums(max_roundings=lambda attrs, x: int(not attrs.is_exact), coefficient_quantum=ones),
    enclosure=_converted,
    jvp=_jvp,
    transpose=lambda attrs, cotangents, types, i: apply(CONVERT, Conversion(types[0].dtype.name), cotangents[0]),
)


def convert(x: Operand, dtype: DType, *, saturate: bool | None = None) -> Var:
    """``x`` as numbers of another dtype.

    Floats are rounded to the nearest, ties to even. Converted to integers they lose their fraction; values out of range
    become the largest or the smallest integer, and NaN becomes 0. Integers out of range wrap around. Converted to
    booleans, everything but zero is true. Floats of eight bits are rounded by ``gs.round_to``. Between
    floating-point dtypes derivatives are converted too; otherwise there are none.

    >>> convert(np.float32([2.75, -2.75, 300, np.nan]), gs.u8).tolist()
    [2, 0, 255, 0]
    >>> convert(np.int64([2049, 1]), gs.f16).tolist()
    [2048.0, 1.0]
    """
    if not isinstance(dtype, DType):
        raise DTypeError(f"convert: {dtype!r} is not a dtype; give one such as gs.f16 or gs.i64")
    (x,) = operands(x)
    given = x.dtype if isinstance(x, Var) else dtype_of(x)
    if given == dtype:
        return x
    if dtype not in STORED:
        return apply(CONVERT, Conversion(dtype.name, is_exact=given in STORED and dtype.is_float), x)
    rounded = round_to(x if given.is_float and given not in STORED else convert(x, f32), dtype.name, saturate)
    return apply(CONVERT, Conversion(dtype.name, is_exact=True), rounded)
