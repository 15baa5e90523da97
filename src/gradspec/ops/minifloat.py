"""Rounding to floats of eight or four bits, whose derivative passes as if nothing were rounded."""

from __future__ import annotations

from dataclasses import dataclass

from gradspec.graph.builder import apply
from gradspec.graph.ir import Op, Operand, Var
from gradspec.graph.types import TensorType
from gradspec.ops.box import OPERATORS, BoundedNode, Box
from gradspec.ops.pointwise import abs, detach, exact_number, round
from gradspec.ops.rules import increasing, same_types
from gradspec.ops.select import equal
from gradspec.ops.shape import leading_batch
from gradspec.spec.minifloat import format_of
from gradspec.spec.minifloat import round_to as round_to_spec


@dataclass(frozen=True)
class SmallFormat:
    """The name of a format, and whether numbers beyond its largest become that one; None: if they do in PyTorch."""

    format: str
    saturate: bool | None = None


def _types(attrs: SmallFormat, *types: TensorType) -> tuple[TensorType, ...]:
    format_of(attrs.format)
    return same_types("round_to", 1)(attrs, *types)


def _decompose(attrs: SmallFormat, x: Var) -> tuple[Var]:
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
    types=_types,
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
    types=_types,
    spec=lambda attrs, x: (round_to_spec(x, attrs.format, attrs.saturate),),
    batch=leading_batch,
    enclosure=_rounded,
    jvp=lambda attrs, primals, tangents: (
        [apply(ROUND_TO, attrs, *primals)],
        [apply(ROUND_TANGENT, attrs, *tangents)],
    ),
    decompose=_decompose,
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
