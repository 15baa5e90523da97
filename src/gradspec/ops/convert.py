"""Conversion between dtypes: between floating-point formats it is linear, and elsewhere there is no derivative."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gradspec.graph.builder import apply, operands
from gradspec.graph.ir import LATER, JvpResult, Op, Operand, Sums, Var, ones
from gradspec.graph.types import DTYPES, STORED, DType, TensorType, boolean, dtype_of, f32
from gradspec.ops.box import OPERATORS, BoundedNode, Box
from gradspec.ops.pointwise import abs, detach, exact_number, round
from gradspec.ops.rules import increasing, same_types
from gradspec.ops.select import equal, greater, where
from gradspec.ops.shape import leading_batch
from gradspec.spec.convert import convert as convert_spec
from gradspec.spec.convert import format_of
from gradspec.spec.convert import round_to as round_to_spec
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


# --- floats of eight or four bits -------------------------------------------------------------------------------------
#
# Rounding to floats of eight or four bits, whose derivative passes as if nothing were rounded.


@dataclass(frozen=True)
class SmallFormat:
    """The name of a format, and whether numbers beyond its largest become that one; None: if they do in PyTorch."""

    format: str
    saturate: bool | None = None


def _small_types(attrs: SmallFormat, *types: TensorType) -> tuple[TensorType, ...]:
    format_of(attrs.format)
    return same_types("round_to", 1)(attrs, *types)


def _decompose_round_to(attrs: SmallFormat, x: Var) -> tuple[Var]:
    """``x − detach(x)`` is 0, and has the derivative; it is no number where ``x``, and so ``x + 1``, is infinite."""
    format, where, greater = format_of(attrs.format), OPERATORS().where, OPERATORS().greater
    size, quantum = abs(x), exact_number(format.quantum(format.emin), x)
    more = size + 1.0
    for e in range(format.emin + 1, format.emax + 1):
        quantum = where(greater(2.0**e, size), quantum, format.quantum(e))
    y = round(x / quantum) * quantum
    most, beyond = format.largest, format.beyond(attrs.saturate)
    y = where(greater(y, most), beyond, where(greater(-most, y), -beyond, y))
    return (y + where(OPERATORS().equal(more * 0.5, more), 0.0, x - detach(x)),)


def _rounded(node: BoundedNode, x: Box) -> Box:
    """Increasing, but that large numbers may become NaN, about whose neighbours nothing is certain then either."""
    (box,) = increasing(node, x)
    are_numbers = node.both(*(equal(end, end) for end in box.ends))
    return node.known_where(are_numbers, box) if box.varies else box


def _may_be_rounded(node: BoundedNode, x: Box) -> Box:
    make, attrs = OPERATORS(), node.attrs
    low, high = (apply(ROUND_TO, attrs, end) for end in x.ends)
    are_numbers = node.both(equal(low, low), equal(high, high))
    return node.known_where(are_numbers, node.between(make.minimum(x.lower, low), make.maximum(x.upper, high)))


ROUND_TANGENT: Op = Op(
    "round_tangent",
    SmallFormat,
    types=_small_types,
    spec=lambda attrs, x: (x,),
    batch=leading_batch,
    linear="jointly",
    enclosure=_may_be_rounded,
    transpose=lambda attrs, cotangents, types, i: apply(ROUND_TANGENT, attrs, cotangents[0]),
    decompose=lambda attrs, x: (x,),
)
"""A tangent or cotangent as it is, where a kernel may round it: PyTorch and JAX convert it as they did the number."""

ROUND_TO: Op = Op(
    "round_to",
    SmallFormat,
    types=_small_types,
    spec=lambda attrs, x: (round_to_spec(x, attrs.format, attrs.saturate),),
    batch=leading_batch,
    enclosure=_rounded,
    jvp=lambda attrs, primals, tangents: ([apply(ROUND_TO, attrs, *primals)], [apply(ROUND_TANGENT, attrs, *tangents)]),
    decompose=_decompose_round_to,
)


def round_to(x: Operand, format: str, saturate: bool | None = None) -> Var:
    """The number nearest to ``x``, ties to even, that ``format`` holds: ``f8_e4m3``, ``f8_e5m2`` or ``f4_e2m1``.

    The dtype stays that of ``x``. What is beyond the largest number becomes that one if it is to ``saturate``, and else
    NaN in ``f8_e4m3`` and infinite in ``f8_e5m2``; None saturates all but ``f8_e5m2``, as PyTorch does. Derivatives
    pass as if nothing were rounded; kernels may round them to the format too, as PyTorch's conversions do.

    >>> round_to(np.float32([0.3, 17, 500]), "f8_e4m3").tolist(), round_to(np.float32([500]), "f8_e4m3", False).tolist()
    ([0.3125, 16.0, 448.0], [nan])
    """
    return apply(ROUND_TO, SmallFormat(format, saturate), x)
