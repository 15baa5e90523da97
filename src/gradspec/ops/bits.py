"""Integers by their bits; of booleans, which have one, *and*, *or* and *exclusive or*. There are no derivatives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gradspec.graph.builder import operands
from gradspec.graph.ir import Attributes, NoAttributes, Op, Operand, Var
from gradspec.graph.types import TensorType, boolean, require_integers, require_one_dtype, type_of
from gradspec.ops.box import BoundedNode, Box
from gradspec.ops.pointwise import NONE, broadcast_apply, maximum, minimum
from gradspec.ops.rules import same_types
from gradspec.ops.select import equal
from gradspec.ops.shape import leading_batch
from gradspec.spec import pointwise as spec
from gradspec.spec.tensor import Tensor


def _bits_op(function: Callable[..., Tensor], decompose: Callable[..., tuple[Var]] | None = None) -> Op:
    name = function.__name__

    def types(attrs: Attributes, *types: TensorType) -> tuple[TensorType, ...]:
        for t in types:
            require_integers(f"the operands of {name}", t, "convert them by gs.convert")
        return same_types(name, 2, require_one_dtype)(attrs, *types)

    def enclosure(node: BoundedNode, *boxes: Box) -> Box:
        if any(box.varies for box in boxes):
            raise node.uncertain_integers()
        return node.point(node.apply(*(box.lower for box in boxes)))

    return Op(
        name,
        NoAttributes,
        types=types,
        spec=lambda attrs, a, b: (function(a, b),),
        batch=leading_batch,
        decompose=decompose,
        enclosure=enclosure,
        constant=True,
    )


AND, LEFT, RIGHT = map(_bits_op, (spec.bitwise_and, spec.left_shift, spec.right_shift))
OR = _bits_op(spec.bitwise_or, lambda attrs, a, b: (a + b - bitwise_and(a, b),))
XOR = _bits_op(spec.bitwise_xor, lambda attrs, a, b: (a + b - bitwise_and(a, b) * 2,))


def _is_truth(*values: Var) -> bool:
    """Also of arrays, which have a dtype of NumPy's."""
    return any(v.dtype in (boolean, boolean.numpy) for v in values)


def bitwise_and(a: Operand, b: Operand) -> Var:
    """The bits that both have; of booleans, whether both are true. ``a & b`` on variables.

    >>> bitwise_and(np.int32([12, -1]), 10).tolist()
    [8, 10]
    """
    a, b = operands(a, b)
    return minimum(a, b) if _is_truth(a, b) else broadcast_apply(AND, a, b)


def bitwise_or(a: Operand, b: Operand) -> Var:
    """The bits that either has; of booleans, whether one is true. ``a | b`` on variables.

    >>> bitwise_or(np.int32([12, -8]), 5).tolist()
    [13, -3]
    """
    a, b = operands(a, b)
    return maximum(a, b) if _is_truth(a, b) else broadcast_apply(OR, a, b)


def bitwise_xor(a: Operand, b: Operand) -> Var:
    """The bits that one has and the other has not; of booleans, whether they differ. ``a ^ b`` on variables.

    >>> bitwise_xor(np.int32([12, -1]), 5).tolist()
    [9, -6]
    """
    a, b = operands(a, b)
    return equal(equal(a, b), False) if _is_truth(a, b) else broadcast_apply(XOR, a, b)


def bitwise_not(x: Operand) -> Var:
    """The bits that ``x`` has not; of booleans, whether it is false. ``~x`` on variables.

    >>> bitwise_not(np.int32([12, -1])).tolist(), bitwise_not(np.uint8([1])).tolist()
    ([-13, 0], [254])
    """
    (x,) = operands(x)
    if _is_truth(x):
        return equal(x, False)
    (t,) = AND.types(NONE, *[x.type if isinstance(x, Var) else type_of(x)] * 2)
    return bitwise_xor(x, -1 if t.dtype.numpy.kind == "i" else int(np.iinfo(t.dtype.numpy).max))


def left_shift(a: Operand, count: Operand) -> Var:
    """``a · 2^count``, wrapped around; 0 if the count is negative or moves every bit out. ``a << count`` on variables.

    >>> left_shift(np.uint8([3, 200, 3]), np.uint8([2, 1, 8])).tolist()
    [12, 144, 0]
    """
    return broadcast_apply(LEFT, a, count)


def right_shift(a: Operand, count: Operand) -> Var:
    """``a / 2^count`` rounded down; 0 or −1 if the count is negative or moves every bit out. ``a >> count``.

    >>> right_shift(np.int32([12, -13, -13]), np.int32([2, 2, 40])).tolist()
    [3, -4, -1]
    """
    return broadcast_apply(RIGHT, a, count)
