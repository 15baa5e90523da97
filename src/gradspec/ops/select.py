"""Comparisons, which are constants of differentiation, and the choice between two tensors, which is linear in both."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gradspec.graph.builder import apply, operands
from gradspec.graph.ir import NoAttributes, Op, Operand, Sums, Var
from gradspec.graph.types import DType, TensorType, boolean, require_numbers, require_one_dtype
from gradspec.ops.box import BoundedNode, Box
from gradspec.ops.pointwise import abs, maximum, minimum
from gradspec.ops.rules import applying, broadcast_shape, require_count, same_types
from gradspec.ops.shape import broadcast_to, leading_batch
from gradspec.spec import pointwise as spec
from gradspec.spec.errors import DTypeError, ShapeError

NONE = NoAttributes()


def _broadcast(name: str, *values: Var) -> list[Var]:
    with applying(name, *values):
        shape = broadcast_shape(name, *(v.shape for v in values))
    return [broadcast_to(v, shape) for v in values]


# --- comparisons ------------------------------------------------------------------------------------------------------


def _truths(name: str, require_dtype: Callable[..., DType]) -> Callable[..., tuple[TensorType]]:
    alike = same_types(name, 2, require_dtype)
    return lambda attrs, *types: (TensorType(boolean, alike(attrs, *types)[0].shape),)


def _maybe_equal(node: BoundedNode, a: Box, b: Box) -> Box:
    """Certain for two points, and of a variable with itself, unless it may be NaN; possible wherever the boxes meet."""
    if node.node.inputs[0] is node.node.inputs[1]:
        number = minimum(*(equal(end, end) for end in a.ends))
        return node.between(number, equal(number, number))
    points = minimum(minimum(equal(a.lower, a.upper), equal(b.lower, b.upper)), equal(a.lower, b.lower))
    exceeds = greater if a.lower.dtype is not boolean else lambda p, q: minimum(p, equal(q, False))
    apart = maximum(exceeds(a.lower, b.upper), exceeds(b.lower, a.upper))
    return node.between(points, equal(apart, False))


def _soft_step(attrs: NoAttributes, a: Var, b: Var) -> Var:
    """From −1 to 1, with slopes that do not vanish far from the step."""
    above = a - b
    return above / (abs(above) + 1.0)


GREATER = Op(
    "greater",
    NoAttributes,
    types=_truths("greater", require_numbers),
    spec=lambda attrs, a, b: (spec.greater(a, b),),
    batch=leading_batch,
    enclosure=lambda node, a, b: node.between(greater(a.lower, b.upper), equal(node.at_least(b.lower, a.upper), False)),
    constant=True,
    surrogate=_soft_step,
    selects=True,
)

EQUAL = Op(
    "equal",
    NoAttributes,
    types=_truths("equal", require_one_dtype),
    spec=lambda attrs, a, b: (spec.equal(a, b),),
    batch=leading_batch,
    enclosure=_maybe_equal,
    constant=True,
    selects=True,
)


def greater(a: Operand, b: Operand) -> Var:
    """Whether ``a > b``, cell by cell; ``maximum(greater(a, b), equal(a, b))`` is whether ``a ≥ b``.

    >>> greater(np.float32([1, 2, np.nan]), 1.5).tolist()
    [False, True, False]
    """
    return apply(GREATER, NONE, *_broadcast("greater", *operands(a, b)))


def less(a: Operand, b: Operand) -> Var:
    """Whether ``a < b``, cell by cell.

    >>> less(np.float32([1, 2, np.nan]), 1.5).tolist()
    [True, False, False]
    """
    a, b = operands(a, b)
    return greater(b, a)


def equal(a: Operand, b: Operand) -> Var:
    """Whether ``a = b``, cell by cell; ``equal(x, False)`` is whether ``x`` is not true.

    >>> equal(np.float32([1, -0.0, np.nan]), np.float32([2, 0, np.nan])).tolist()
    [False, True, False]
    """
    return apply(EQUAL, NONE, *_broadcast("equal", *operands(a, b)))


# --- the choice -------------------------------------------------------------------------------------------------------


def _where_types(attrs: NoAttributes, *types: TensorType) -> tuple[TensorType]:
    require_count("where", types, 3)
    condition, a, b = types
    if condition.dtype is not boolean:
        raise DTypeError(f"where: the condition is {condition}; give booleans, as greater and equal do")
    require_one_dtype("where", a, b)
    if not condition.shape == a.shape == b.shape:
        raise ShapeError(f"where needs operands of one shape, not {condition}, {a}, {b}; broadcast them first")
    return (a,)


def _where_transpose(attrs: NoAttributes, cotangents: Sequence[Var], operands_: Sequence[Var], i: int) -> Var:
    (g,), condition = cotangents, operands_[0]
    nothing = g.owner.zeros(g.type)
    chosen = (g, nothing) if i == 1 else (nothing, g)
    return apply(WHERE, NONE, condition, *chosen)


def _either(node: BoundedNode, condition: Box, a: Box, b: Box) -> Box:
    """Where the condition is not certain, the hull of both."""
    certain, possible = condition.ends
    low = where(certain, a.lower, where(possible, minimum(a.lower, b.lower), b.lower))
    high = where(certain, a.upper, where(possible, maximum(a.upper, b.upper), b.upper))
    return node.between(low, high)


WHERE: Op = Op(
    "where",
    NoAttributes,
    types=_where_types,
    spec=lambda attrs, condition, a, b: (spec.where(condition, a, b),),
    batch=leading_batch,
    linear="jointly",
    sums=Sums(fixed=(0,)),
    enclosure=_either,
    transpose=_where_transpose,
)


def where(condition: Operand, a: Operand, b: Operand) -> Var:
    """``a`` where the condition is true, ``b`` elsewhere; tangents are chosen alike.

    In reverse mode, what is not chosen has a cotangent of 0, which an infinite derivative before it turns into NaN:
    choose its operand first, as in ``sqrt(where(c, x, 1.0))``.

    The condition has booleans, such as ``greater``, ``less`` and ``equal`` return. Shapes are broadcast, and ``a`` and
    ``b`` have the same dtype.

    >>> where(np.array([True, False, True]), np.float32([1, np.nan, 3]), 0.0).tolist()
    [1.0, 0.0, 3.0]
    """
    a, b = operands(a, b)  # numbers take each other's dtype, not that of the condition
    return apply(WHERE, NONE, *_broadcast("where", *operands(condition, a, b)))
