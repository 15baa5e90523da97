"""Operators that work cell by cell. Operands of different shapes are broadcast first, by a node of its own.

Derivatives at kinks are those of ``gradspec.spec.pointwise``: an operator without derivative, such as ``step``, says
how much of a tangent passes, and ``gate`` lets it.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import inf, isfinite
from numbers import Real
from typing import Any

import numpy as np

from gradspec.graph.builder import apply, operands
from gradspec.graph.ir import MOVED, Attributes, JvpResult, NoAttributes, Op, Operand, Sums, Var, ones
from gradspec.graph.types import DType, TensorType, boolean, require_floats, require_numbers, require_one_dtype, type_of
from gradspec.ops.box import OPERATORS, BoundedNode, BoundingLine, Box, Curve, Lines, Slope, sum_of
from gradspec.ops.rules import applying, broadcast_shape, cellwise, increasing, lowest_bit, rounded_number, same_types
from gradspec.ops.shape import broadcast_to, leading_batch
from gradspec.spec import pointwise as spec
from gradspec.spec.errors import DTypeError
from gradspec.spec.tensor import Tensor

NONE = NoAttributes()


def _meaning(function: Callable[..., Tensor]) -> Callable[..., tuple[Tensor]]:
    """The specification of an operator whose attributes are the keyword arguments of ``function``."""
    return lambda attrs, *tensors: (function(*tensors, **asdict(attrs)),)


def _pointwise_op(
    name: str,
    count: int,
    function: Callable[..., Tensor],
    attributes: type = NoAttributes,
    require_dtype: Callable[..., DType] = require_floats,
    **rules: Any,
) -> Op:
    """An operator of ``count`` operands of one type, which its result has too."""
    types, meaning = same_types(name, count, require_dtype), _meaning(function)
    return Op(name, attributes, types=types, spec=meaning, batch=leading_batch, **rules)


def broadcast_apply(op: Op, a: Operand, b: Operand) -> Var:
    """An operator of two operands without attributes, which are broadcast first."""
    a, b = operands(a, b)
    if a.shape == b.shape:
        return apply(op, NONE, a, b)
    with applying(op.name, a, b):
        shape = broadcast_shape(op.name, a.shape, b.shape)
    return apply(op, NONE, broadcast_to(a, shape), broadcast_to(b, shape))


# --- arithmetic ------------------------------------------------------------------------------------------------------

NEG = _pointwise_op(
    "neg",
    1,
    spec.neg,
    require_dtype=require_numbers,
    crop=cellwise,
    linear="jointly",
    sums=Sums(absolute=lambda attrs, x: x),
    transpose=lambda attrs, cotangents, types, i: -cotangents[0],
)


def neg(x: Operand) -> Var:
    """−x.

    >>> neg(np.float32([1, -2])).tolist()
    [-1.0, 2.0]
    """
    return apply(NEG, NONE, x)


ADD = _pointwise_op(
    "add",
    2,
    spec.add,
    require_dtype=require_numbers,
    crop=cellwise,
    linear="jointly",
    sums=Sums(max_roundings=lambda attrs, a, b: 1, coefficient_quantum=ones),
    jvp=lambda attrs, primals, tangents: ([primals[0] + primals[1]], [sum_of(tangents)]),
    transpose=lambda attrs, cotangents, types, i: cotangents[0],
)


def add(a: Operand, b: Operand) -> Var:
    """a + b.

    >>> add(np.float32([1, 2]), 10.0).tolist()
    [11.0, 12.0]
    """
    return broadcast_apply(ADD, a, b)


SUB = _pointwise_op(
    "sub",
    2,
    spec.sub,
    require_dtype=require_numbers,
    crop=cellwise,
    linear="jointly",
    sums=Sums(max_roundings=lambda attrs, a, b: 1, absolute=lambda attrs, a, b: a + b, coefficient_quantum=ones),
    jvp=lambda attrs, primals, tangents: ([primals[0] - primals[1]], [_difference_of(*tangents)]),
    decompose=lambda attrs, a, b: (a + -b,),
    transpose=lambda attrs, cotangents, types, i: -cotangents[0] if i else cotangents[0],
)


def _difference_of(a: Var | None, b: Var | None) -> Var | None:
    return a if b is None else -b if a is None else a - b


def sub(a: Operand, b: Operand) -> Var:
    """a − b.

    >>> sub(np.float32([1, 2]), 1.0).tolist()
    [0.0, 1.0]
    """
    return broadcast_apply(SUB, a, b)


def _products(node: BoundedNode, a: Box, b: Box) -> Box:
    if not node.stored.is_float:
        raise node.uncertain_integers()
    return node.around([p * q for p in a.ends for q in b.ends], 1)


def _mul_lines(node: BoundedNode, boxes: Sequence[Box], share: Var | None) -> Lines:
    """McCormick's: ``(a − p)·(b − q)`` has a sign where ``p`` and ``q`` are ends, so ``a·b`` lies on one side of
    ``p·b + q·a − p·q``."""
    (p, p_high), (q, _) = (box.ends for box in boxes)
    largest = boxes[0].magnitude * boxes[1].magnitude
    room = node.blur(largest, 3) + node.blur(largest, 3)

    def line(p: Var, q: Var, room: Var) -> BoundingLine:
        return node.line(room - p * q, (0, node.slope(q)), (1, node.slope(p)))

    return line(p, q, -room), line(p_high, q, room)


MUL = _pointwise_op(
    "mul",
    2,
    spec.mul,
    require_dtype=require_numbers,
    crop=cellwise,
    linear="each",
    sums=Sums(max_roundings=lambda attrs, a, b: 1, factors=(0, 1), coefficient_quantum=ones),
    enclosure=_products,
    relaxation=_mul_lines,
    transpose=lambda attrs, cotangents, operands, i: cotangents[0] * operands[1 - i],
)


def mul(a: Operand, b: Operand) -> Var:
    """a · b.

    >>> mul(np.float32([1, 2]), 3.0).tolist()
    [3.0, 6.0]
    """
    return broadcast_apply(MUL, a, b)


def _div_jvp(attrs: Attributes, primals: Sequence[Var], tangents: Sequence[Var | None]) -> JvpResult:
    (a, b), (da, db) = primals, tangents
    quotient = a / b
    return [quotient], [_difference_of(None if da is None else da / b, None if db is None else quotient * (db / b))]


def _div_types(attrs: NoAttributes, *operands_: TensorType) -> tuple[TensorType, ...]:
    if any(t.is_integer for t in operands_):
        given = ", ".join(map(str, operands_))
        raise DTypeError(f"div of integers, {given}, is no integer; use trunc_divide, or gs.convert both to floats")
    return same_types("div", 2)(attrs, *operands_)


def _quotients(node: BoundedNode, a: Box, b: Box) -> Box:
    """Those of the ends; nothing is known if the divisor may be 0."""
    apart = node.either(node.greater(b.lower, 0.0), node.greater(0.0, b.upper))
    return node.known_where(apart, node.around([p / q for p in a.ends for q in b.ends], 1))


LEAST_DIVISOR = 2.0**-40
"""Divisors from this size to its inverse, of numbers up to its inverse, have lines: no slope overflows."""


def _div_lines(node: BoundedNode, boxes: Sequence[Box], share: Var | None) -> Lines:
    """McCormick's planes of ``a · 1/b``, where ``1/b`` lies between its tangent in the middle and its chord.

    No term of a plane is above four times the largest quotient, which what rounding changes of its slopes is part of.
    """
    (p, p_high), (q, q_high), make = boxes[0].ends, boxes[1].ends, OPERATORS()
    least = minimum(abs(q), abs(q_high))
    usual = node.either(node.greater(q, 0.0), node.greater(0.0, q_high))
    limits = (least, LEAST_DIVISOR), (1 / LEAST_DIVISOR, boxes[1].magnitude), (1 / LEAST_DIVISOR, boxes[0].magnitude)
    for larger, smaller in limits:
        usual = node.both(usual, node.greater(larger, smaller))
    q, q_high = (make.where(usual, end, 1.0) for end in (q, q_high))
    middle, low, high = q * 0.5 + q_high * 0.5, 1.0 / q_high, 1.0 / q
    tangent, chord = (1.0 / (middle * middle), 2.0 / middle), (low * high, low + high)
    room = node.blur(scale(boxes[0].magnitude / make.where(usual, least, 1.0), 16.0), 12) + node.above(2.0**-100)

    def plane(p: Var, by_tangent: Var, room: Var, end: Var) -> BoundingLine:
        slope, rise = (make.where(by_tangent, *pair) for pair in zip(tangent, chord, strict=True))
        parts = (p * (rise - low) + room, end), (low, 0.0), (-p * slope, 0.0)
        intercept, of_a, of_b = (make.where(usual, *part) for part in parts)
        return node.line(intercept, (0, node.slope(of_a)), (1, node.slope(of_b)))

    ends = _quotients(node, *boxes).ends
    return (
        plane(p, node.at_least(p * q, 0.0), -room, ends[0]),
        plane(p_high, node.greater(0.0, p_high * q), room, ends[1]),
    )


DIV = Op(
    "div",
    NoAttributes,
    types=_div_types,
    spec=_meaning(spec.div),
    batch=leading_batch,
    sums=Sums(
        max_roundings=lambda attrs, a, b: 1,
        factors=(0,),
        fixed=(1,),
        divisor=1,
        absolute=lambda attrs, a, b: a / abs(b),
    ),
    enclosure=_quotients,
    relaxation=_div_lines,
    jvp=_div_jvp,
    transpose=lambda attrs, cotangents, operands, i: cotangents[0] / operands[1],
)


def div(a: Operand, b: Operand) -> Var:
    """a / b.

    >>> div(np.float32([1, 2]), 2.0).tolist()
    [0.5, 1.0]
    """
    return broadcast_apply(DIV, a, b)


def _trunc_divide_types(attrs: NoAttributes, *operands_: TensorType) -> tuple[TensorType, ...]:
    if not all(t.is_integer for t in operands_):
        given = ", ".join(map(str, operands_))
        raise DTypeError(f"trunc_divide divides integers, not {given}; use div for floating-point numbers")
    return same_types("trunc_divide", 2, require_numbers)(attrs, *operands_)


def _whole_quotients(node: BoundedNode, a: Box, b: Box) -> Box:
    """A quotient is monotone in the dividend, and in the divisor on each side of 0, where ``−1`` and 1 are nearest.

    The least integer over −1 wraps around, and is therefore tried for itself.
    """
    signed = a.lower.dtype.numpy.kind == "i"
    dividends = [*a.ends, *([minimum(maximum(a.lower, a.lower + 1), a.upper)] if signed else [])]
    divisors = [*b.ends, *(minimum(maximum(node.number(n, b.lower), b.lower), b.upper) for n in (1, -1)[: 1 + signed])]
    return node.hull([trunc_divide(p, q) for p in dividends for q in divisors])


TRUNC_DIVIDE = Op(
    "trunc_divide",
    NoAttributes,
    types=_trunc_divide_types,
    spec=_meaning(spec.trunc_divide),
    batch=leading_batch,
    enclosure=_whole_quotients,
    constant=True,
)


def trunc_divide(a: Operand, b: Operand) -> Var:
    """The quotient of integers without its fraction, rounded toward zero; 0 where ``b`` is 0.

    >>> trunc_divide(np.int32([7, -7, 7]), np.int32([2, 2, 0])).tolist()
    [3, -3, 0]
    """
    return broadcast_apply(TRUNC_DIVIDE, a, b)


@dataclass(frozen=True)
class Factor:
    """What to multiply by."""

    factor: float


SCALE = _pointwise_op(
    "scale",
    1,
    spec.scale,
    attributes=Factor,
    crop=cellwise,
    linear="jointly",
    sums=Sums(
        max_roundings=lambda attrs, x: 1 + rounded_number(attrs.factor, x.dtype),
        terms=ones,
        factors=(0,),
        absolute=lambda attrs, x: scale(x, builtins.abs(attrs.factor)),
        coefficient_quantum=lambda attrs, x: 0.0 if rounded_number(attrs.factor, x.dtype) else lowest_bit(attrs.factor),
    ),
    transpose=lambda attrs, cotangents, types, i: scale(cotangents[0], attrs.factor),
)


def scale(x: Operand, factor: float) -> Var:
    """``factor · x`` for a constant factor, which is rounded to the dtype of ``x``.

    >>> scale(np.float32([1, 2]), 0.5).tolist()
    [0.5, 1.0]
    """
    return apply(SCALE, Factor(_number("scale", "factor", factor)), x)


def exact_number(value: float, like: Var) -> Var:
    """An attribute as an operand; what the dtype of ``like`` does not hold is a scaled 1, which only floats round.

    >>> tenth = gs.trace(lambda x: x + exact_number(0.1, x), gs.f32[()])
    >>> gs.evaluate(tenth, 0.0, domain=gs.exact).map(float).tolist()
    0.1
    """
    one: Var = like.owner.operand(1.0, like)
    with np.errstate(over="ignore"):
        is_held = float(np.asarray(value).astype(like.dtype.numpy)) == value
    return like.owner.operand(value, like) if is_held else scale(one, value)


def _number(operator: str, name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not isfinite(value):
        raise ValueError(f"{operator}: {name}={value!r} must be a finite number")
    return float(value)


DETACH = _pointwise_op(
    "detach",
    1,
    spec.detach,
    require_dtype=require_one_dtype,
    sums=MOVED,
    transpose=lambda attrs, cotangents, types, i: cotangents[0],  # which bounds ask for, and derivatives never do
    constant=True,
)


def detach(x: Operand) -> Var:
    """``x`` as a constant: derivatives ignore what it depends on.

    >>> g = gs.trace(lambda x: x * detach(x), gs.f32[1]).jvp()
    >>> [y.tolist() for y in gs.evaluate(g, [3], [1], domain=gs.exact)]
    [[9], [3]]
    """
    return apply(DETACH, NONE, x)


# --- what derivatives of kinks are made of ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Levels:
    """The values of a step function below, at and above 0."""

    below: float
    at: float
    above: float


def _levels(node: BoundedNode, x: Box) -> Box:
    levels, zero = node.attrs, 0.0
    apart = node.either(node.greater(x.lower, zero), node.greater(zero, x.upper))
    return node.among(
        (node.at_least(x.lower, zero), levels.below), (apart, levels.at), (node.at_least(zero, x.upper), levels.above)
    )


def _decompose_step(attrs: Levels, x: Var) -> tuple[Var]:
    """A NaN is neither less than 0 nor equal to it, and counts as larger."""
    make, levels = OPERATORS(), [exact_number(level, x) for level in (attrs.below, attrs.at, attrs.above)]
    return (make.where(make.greater(0.0, x), levels[0], make.where(make.equal(x, 0.0), *levels[1:])),)


STEP = _pointwise_op(
    "step", 1, spec.step, attributes=Levels, decompose=_decompose_step, enclosure=_levels, constant=True
)


def _shares(node: BoundedNode, a: Box, b: Box) -> Box:
    apart = node.either(node.greater(a.lower, b.upper), node.greater(b.lower, a.upper))
    return node.among((node.at_least(a.lower, b.upper), 0.0), (apart, 0.5), (node.at_least(b.lower, a.upper), 1.0))


def _exceeds(a: Var, b: Var) -> Var:
    """A NaN exceeds every number, and no other NaN."""
    greater, equal = OPERATORS().greater, OPERATORS().equal
    return maximum(greater(a, b), minimum(equal(b, b), equal(equal(a, a), False)))


def _decompose_max_share(attrs: NoAttributes, a: Var, b: Var) -> tuple[Var]:
    where = OPERATORS().where
    return (where(_exceeds(a, b), exact_number(1.0, a), where(_exceeds(b, a), exact_number(0.0, a), 0.5)),)


MAX_SHARE = _pointwise_op(
    "max_share", 2, spec.max_share, decompose=_decompose_max_share, enclosure=_shares, constant=True
)


@dataclass(frozen=True)
class ClampRange:
    """A closed range; None is no bound."""

    min: float | None
    max: float | None


def _inside(node: BoundedNode, x: Box) -> Box:
    low, high = node.rounded_bounds()
    inside = node.both(node.at_least(x.lower, low[1]), node.at_least(high[0], x.upper))
    outside = node.either(node.greater(low[0], x.upper), node.greater(x.lower, high[1]))
    return node.among((inside, 0.0), (outside, 1.0))


def _decompose_within(attrs: ClampRange, x: Var) -> tuple[Var]:
    greater, one = OPERATORS().greater, exact_number(1.0, x)
    outside = [] if attrs.min is None else [greater(exact_number(attrs.min, x), x)]
    outside += [] if attrs.max is None else [greater(x, exact_number(attrs.max, x))]
    if not outside:
        return (broadcast_to(one, x.shape),)
    return (OPERATORS().where(maximum(outside[0], outside[-1]), 0.0, one),)


WITHIN = _pointwise_op(
    "within", 1, spec.within, attributes=ClampRange, decompose=_decompose_within, enclosure=_inside, constant=True
)

GATE = _pointwise_op(
    "gate",
    2,
    spec.gate,
    sums=Sums(
        max_roundings=lambda attrs, weight, t: 1,
        factors=(0, 1),
        fixed=(0,),
        absolute=lambda attrs, weight, t: gate(abs(weight), t),
        coefficient_quantum=ones,
    ),
    enclosure=lambda node, weight, t: node.around([gate(p, q) for p in weight.ends for q in t.ends], 1),
    jvp=lambda attrs, primals, tangents: (
        [gate(*primals)],
        [None if tangents[1] is None else gate(primals[0], tangents[1])],
    ),
    decompose=lambda attrs, weight, t: (OPERATORS().where(OPERATORS().equal(weight, 0.0), 0.0, detach(weight) * t),),
    transpose=lambda attrs, cotangents, operands, i: gate(operands[0], cotangents[0]),
)
"""``weight · t`` with a constant weight, linear in ``t``; 0 where the weight is 0, whatever ``t`` is."""


def gate(weight: Var, t: Var) -> Var:
    return apply(GATE, NONE, weight, t)


def _unary(
    name: str,
    function: Callable[..., Tensor],
    tangent: Callable[[Attributes, Var, Var, Var], Var],
    attributes: type = NoAttributes,
    require_dtype: Callable[..., DType] = require_floats,
    decompose: Callable[[Attributes, Var], Var] | None = None,
    **bounds: Any,
) -> Op:
    """An operator of one operand; ``tangent(attrs, x, y, dx)`` is that of its value ``y``, ``decompose(attrs, x)`` is
    that value made of other operators."""

    def jvp(attrs: Attributes, primals: Sequence[Var], tangents: Sequence[Var]) -> JvpResult:
        (x,), (dx,) = primals, tangents
        y = apply(op, attrs, x)
        return [y], [tangent(attrs, x, y, dx)]

    made = None if decompose is None else lambda attrs, x: (decompose(attrs, x),)
    op = _pointwise_op(name, 1, function, attributes, require_dtype, jvp=jvp, decompose=made, crop=cellwise, **bounds)
    return op


# --- piecewise linear -------------------------------------------------------------------------------------------------


def step(x: Var, below: float, at: float, above: float) -> Var:
    return apply(STEP, Levels(below, at, above), x)


def _relu_lines(node: BoundedNode, boxes: Sequence[Box], share: Var | None) -> Lines:
    """Below, a line through 0 with any slope from 0 to 1; above, the chord."""
    (box,) = boxes
    low, high = maximum(-box.lower, 0.0), maximum(box.upper, 0.0)
    chosen = step(high - low, 0.0, 0.0, 1.0) if share is None else share
    below = minimum(maximum(chosen, step(low, 1.0, 1.0, 0.0)), step(high, 0.0, 0.0, 1.0))
    above = high / maximum(low + high, node.tiny)
    return (
        node.line(node.zeros(low), (0, node.slope(below))),
        node.line(node.above_convex(box, above, relu), (0, node.slope(above))),
    )


def _decompose_relu(attrs: NoAttributes, x: Var) -> Var:
    """At 0 the constant, which has derivative 0; a NaN is not chosen away."""
    make = OPERATORS()
    return make.where(maximum(make.greater(0, x), make.equal(x, 0)), 0, x)


# Of the result, not of the operand: the same numbers, and the result is often kept for other reasons.
RELU = _unary(
    "relu",
    spec.relu,
    lambda attrs, x, y, dx: gate(step(y, 0.0, 0.0, 1.0), dx),
    require_dtype=require_numbers,
    decompose=_decompose_relu,
    enclosure=increasing,
    relaxation=_relu_lines,
    kinks=lambda attrs: (0.0,),
)


def relu(x: Operand) -> Var:
    """``max(0, x)``; its derivative at 0 is 0.

    >>> relu(np.float32([-1, 0, 2])).tolist()
    [0.0, 0.0, 2.0]
    """
    return apply(RELU, NONE, x)


@dataclass(frozen=True)
class NegativeSlope:
    """The slope below 0."""

    negative_slope: float


LEAKY_RELU = _unary(
    "leaky_relu",
    spec.leaky_relu,
    lambda attrs, x, y, dx: gate(step(x, attrs.negative_slope, attrs.negative_slope, 1.0), dx),
    attributes=NegativeSlope,
    decompose=lambda attrs, x: OPERATORS().where(OPERATORS().greater(x, 0.0), x, scale(x, attrs.negative_slope)),
    **Curve(
        kinks=lambda attrs: (0.0,),
        turns=lambda attrs: (0.0,) * (attrs.negative_slope < 0),
        bent=lambda attrs: 1 if attrs.negative_slope <= 1 else -1,
        roundings=lambda attrs, dtype: 1 + rounded_number(attrs.negative_slope, dtype),
    ).rules(),
)


def leaky_relu(x: Operand, negative_slope: float = 0.01) -> Var:
    """``x`` above 0, ``negative_slope · x`` below; its derivative at 0 is ``negative_slope``.

    >>> leaky_relu(np.float32([-1, 0, 2]), 0.5).tolist()
    [-0.5, 0.0, 2.0]
    """
    return apply(LEAKY_RELU, NegativeSlope(_number("leaky_relu", "negative_slope", negative_slope)), x)


def _decompose_abs(attrs: NoAttributes, x: Var) -> Var:
    make = OPERATORS()
    return make.where(make.equal(x, 0), 0, make.where(make.greater(0, x), -x, x))


ABS = _unary(
    "abs",
    spec.abs,
    lambda attrs, x, y, dx: gate(step(x, -1.0, 0.0, 1.0), dx),
    require_dtype=require_numbers,
    decompose=_decompose_abs,
    **Curve(
        kinks=lambda attrs: (0.0,), turns=lambda attrs: (0.0,), bent=lambda attrs: 1, roundings=lambda attrs, dtype: 0
    ).rules(),
)


def abs(x: Operand) -> Var:
    """|x|; its derivative at 0 is 0.

    >>> abs(np.float32([-1, 2])).tolist()
    [1.0, 2.0]
    """
    return apply(ABS, NONE, x)


def _decompose_clamp(attrs: ClampRange, x: Var) -> Var:
    """A bound is chosen where ``x`` is beyond it, not where they are equal: there the derivative is 1."""
    make = OPERATORS()
    if attrs.min is not None:
        x = make.where(make.greater(low := exact_number(attrs.min, x), x), low, x)
    if attrs.max is not None:
        x = make.where(make.greater(x, high := exact_number(attrs.max, x)), high, x)
    return x


CLAMP = _unary(
    "clamp",
    spec.clamp,
    lambda attrs, x, y, dx: gate(apply(WITHIN, attrs, x), dx),
    attributes=ClampRange,
    decompose=_decompose_clamp,
    **Curve(
        kinks=lambda attrs: tuple(bound for bound in (attrs.min, attrs.max) if bound is not None),
        bent=lambda attrs: (attrs.max is None) - (attrs.min is None),
        roundings=lambda attrs, dtype: 0,
        off=lambda node: builtins.max([b - a for a, b in node.rounded_bounds() if a > -inf and b < inf], default=0.0),
    ).rules(),
)


def clamp(x: Operand, min: float | None = None, max: float | None = None) -> Var:
    """The number from ``min`` to ``max`` nearest to ``x``; its derivative is 1 from ``min`` to ``max``, both included.

    A bound is a number; for one that varies use ``maximum`` and ``minimum``.

    >>> clamp(np.float32([-1, 0.5, 2]), 0, 1).tolist()
    [0.0, 0.5, 1.0]
    """
    (x,) = operands(x)
    low = None if min is None or min == -inf else _number("clamp", "min", min)
    high = None if max is None or max == inf else _number("clamp", "max", max)
    spec.require_bounds(min, max)
    type = x.type if isinstance(x, Var) else type_of(x)
    return _clamp_integers(x, min, max, type) if type.is_integer else apply(CLAMP, ClampRange(low, high), x)


def _clamp_integers(x: Var, min: float | None, max: float | None, type: TensorType) -> Var:
    """A bound beyond all integers of the type is none."""
    limits = np.iinfo(type.dtype.numpy)
    above = x if min is None or min <= limits.min else maximum(x, min)
    return above if max is None or max >= limits.max else minimum(above, max)


def _shared(a: Var, b: Var, *tangents: Var | None) -> Var:
    """The tangent of ``maximum(a, b)``: what passes of each operand's."""
    passing = zip(((a, b), (b, a)), tangents, strict=True)
    return sum_of(gate(apply(MAX_SHARE, NONE, *pair), t) for pair, t in passing if t is not None)


def _maximum_lines(node: BoundedNode, boxes: Sequence[Box], share: Var | None) -> Lines:
    """Of ``b + relu(a − b)``: a mean of both is below, and one with an intercept above."""
    a, b = boxes
    below, above, intercept = _mean_lines(node, a.upper - b.lower, b.upper - a.lower, share)
    return node.line(node.zeros(a.lower), *below), node.line(intercept, *above)


def _minimum_lines(node: BoundedNode, boxes: Sequence[Box], share: Var | None) -> Lines:
    """Of ``b − relu(b − a)``."""
    a, b = boxes
    above, below, intercept = _mean_lines(node, b.upper - a.lower, a.upper - b.lower, share)
    return node.line(-intercept, *below), node.line(node.zeros(a.lower), *above)


def _mean_lines(
    node: BoundedNode, first: Var, second: Var, share: Var | None
) -> tuple[Sequence[tuple[int, Slope]], Sequence[tuple[int, Slope]], Var]:
    """Weights of ``a`` and ``b`` for the line that touches and for the other, and what this is away from it.

    ``a`` may win by ``first`` at most, and ``b`` by ``second``. A weight and 1 less it add up to 1 exactly if they are
    rounded in this order.
    """
    high, low = (maximum(room + abs(room) * node.rounding(2), 0.0) for room in (first, second))
    chosen = step(high - low, 0.0, 0.0, 1.0) if share is None else share
    touching = minimum(maximum(chosen, step(low, 1.0, 1.0, 0.0)), step(high, 0.0, 0.0, 1.0))
    chord = high / maximum(low + high, node.tiny)
    others = [1.0 - weight for weight in (touching, chord)]
    touches, spans = ([(0, node.slope(1.0 - other)), (1, node.slope(other))] for other in others)
    apart = maximum((1.0 - others[1]) * low, others[1] * high)
    return touches, spans, apart + apart * node.rounding(4) + node.tiny


MAXIMUM = _pointwise_op(
    "maximum",
    2,
    spec.maximum,
    require_dtype=require_one_dtype,
    enclosure=increasing,
    relaxation=_maximum_lines,
    jvp=lambda attrs, primals, tangents: ([maximum(*primals)], [_shared(*primals, *tangents)]),
    selects=True,
)


def maximum(a: Operand, b: Operand) -> Var:
    """The larger of two numbers, NaN if one is; equal numbers get half of the derivative each.

    >>> maximum(np.float32([1, 5]), 3.0).tolist()
    [3.0, 5.0]
    """
    return broadcast_apply(MAXIMUM, a, b)


def _decompose_minimum(attrs: NoAttributes, a: Var, b: Var) -> tuple[Var]:
    """The negative of an unsigned integer, or of a truth, is none."""
    make = OPERATORS()
    if a.dtype is boolean:
        return (make.where(a, b, a),)
    return (-maximum(-a, -b) if a.type.is_float else make.where(make.greater(a, b), b, a),)


MINIMUM = _pointwise_op(
    "minimum",
    2,
    spec.minimum,
    require_dtype=require_one_dtype,
    decompose=_decompose_minimum,
    enclosure=increasing,
    relaxation=_minimum_lines,
    jvp=lambda attrs, primals, tangents: ([minimum(*primals)], [_shared(-primals[0], -primals[1], *tangents)]),
    selects=True,
)


def minimum(a: Operand, b: Operand) -> Var:
    """The smaller of two numbers, NaN if one is; equal numbers get half of the derivative each.

    >>> minimum(np.float32([1, 5]), 3.0).tolist()
    [1.0, 3.0]
    """
    return broadcast_apply(MINIMUM, a, b)


# --- rounding to integers ---------------------------------------------------------------------------------------------


def _decompose_floor(attrs: NoAttributes, x: Var) -> tuple[Var]:
    nearest = round(x)
    return (OPERATORS().where(OPERATORS().greater(nearest, x), nearest - 1.0, nearest),)


FLOOR, ROUND = (
    _pointwise_op(name, 1, meaning, decompose=parts, enclosure=increasing, constant=True, surrogate=lambda attrs, x: x)
    for name, meaning, parts in (("floor", spec.floor, _decompose_floor), ("round", spec.round, None))
)


def floor(x: Operand) -> Var:
    """The largest integer that is not above ``x``; its derivative is 0 everywhere.

    >>> floor(np.float32([-1.5, 0.75, 2])).tolist()
    [-2.0, 0.0, 2.0]
    """
    return apply(FLOOR, NONE, x)


def round(x: Operand) -> Var:
    """The integer nearest to ``x``, of two the even one; its derivative is 0 everywhere.

    >>> round(np.float32([-1.5, 0.5, 2.25])).tolist()
    [-2.0, 0.0, 2.0]
    """
    return apply(ROUND, NONE, x)


# --- smooth -----------------------------------------------------------------------------------------------------------


def _bend(largest: float) -> Callable[[BoundedNode, Box], float]:
    return lambda node, box: largest


def _eight(attrs: Attributes, dtype: DType) -> int:
    """The roundings of an exponential, and of a sum, a quotient and a product with it."""
    return 8


# CUDA C++ Programming Guide, Mathematical Functions, table of intrinsics; an ulp is two units.


def _fast_exponential(factor: float) -> Callable[[BoundedNode, Box, Var], Var]:
    """``__expf``: 2 + ⌊1.173·|z|⌋ ulp, of which the first two are counted among roundings."""
    return lambda node, box, size: size * box.magnitude * node.above(2.35 * factor * 2.0**-24)


def _fast_wave(node: BoundedNode, box: Box, size: Var) -> Var:
    """``__sinf``, ``__cosf``: 2^−21.19 from −π to π, and nothing is said of others."""
    beyond = (box.magnitude - 3.1415925) * 2.0**30
    return maximum(minimum(beyond, 2.0), 2.0**-21.18)


EXP = _unary(
    "exp",
    spec.exp,
    lambda attrs, x, y, dx: dx * y,
    **Curve(bend=lambda node, box: exp(box.upper), bent=lambda attrs: 1, fast=_fast_exponential(1.0)).rules(),
)
LOG = _unary(
    "log",
    spec.log,
    lambda attrs, x, y, dx: dx / x,
    **Curve(
        bend=lambda node, box: 1.0 / (box.lower * box.lower),
        bent=lambda attrs: -1,
        fast=lambda node, box, size: node.above(2.0**-21.4),  # 2^−21.41 from ½ to 2, and 3 ulp elsewhere
    ).rules(),
)
SQRT = _unary(
    "sqrt",
    spec.sqrt,
    lambda attrs, x, y, dx: dx / scale(y, 2.0),
    **Curve(bend=lambda node, box: 0.25 / (box.lower * sqrt(box.lower)), bent=lambda attrs: -1).rules(),
)
TANH = _unary(
    "tanh",
    spec.tanh,
    lambda attrs, x, y, dx: dx * (1.0 - y * y),
    **Curve(bend=_bend(0.7699), tail=lambda attrs: (4.0, 7e-4), fast=lambda node, box, size: size * 2.0**-10.9).rules(),
)
_WAVE = Curve(bend=_bend(1.0), steepest=1.0, mass=lambda node, box: 1.0, fast=_fast_wave)
SIN = _unary("sin", spec.sin, lambda attrs, x, y, dx: dx * cos(x), **_WAVE.rules())
COS = _unary("cos", spec.cos, lambda attrs, x, y, dx: -dx * sin(x), **_WAVE.rules())
ATAN = _unary("atan", spec.atan, lambda attrs, x, y, dx: dx / (1.0 + x * x), **Curve(bend=_bend(0.6496)).rules())


def _away_from_zero(x: Var) -> tuple[Var, Var]:
    """Whether ``x`` is above 0, and ``exp(−|x|)``, whose parts on both sides of 0 have the derivatives there."""
    make = OPERATORS()
    is_above = make.greater(x, 0.0)
    return is_above, exp(make.where(is_above, -x, x))


def _decompose_sigmoid(attrs: NoAttributes, x: Var) -> Var:
    is_above, power = _away_from_zero(x)
    return OPERATORS().where(is_above, 1.0, power) / (power + 1.0)


SIGMOID = _unary(
    "sigmoid",
    spec.sigmoid,
    lambda attrs, x, y, dx: dx * (y * sigmoid(-x)),
    decompose=_decompose_sigmoid,
    **Curve(
        bend=_bend(0.09623), tail=lambda attrs: (8.0, 3.4e-4), roundings=_eight, fast=_fast_exponential(1.0)
    ).rules(),
)


def exp(x: Operand) -> Var:
    """eˣ.

    >>> exp(np.float32([0])).tolist()
    [1.0]
    """
    return apply(EXP, NONE, x)


def log(x: Operand) -> Var:
    """The natural logarithm: −∞ at 0, NaN below; the derivative is 1/x wherever that is.

    >>> log(np.float32([1, 0])).tolist()
    [0.0, -inf]
    """
    return apply(LOG, NONE, x)


def sqrt(x: Operand) -> Var:
    """√x: NaN below 0; the derivative at 0 is ∞.

    >>> sqrt(np.float32([4])).tolist()
    [2.0]
    """
    return apply(SQRT, NONE, x)


def tanh(x: Operand) -> Var:
    """The hyperbolic tangent.

    >>> tanh(np.float32([0])).tolist()
    [0.0]
    """
    return apply(TANH, NONE, x)


def sin(x: Operand) -> Var:
    """The sine, right for large angles too; NaN at the infinities.

    >>> sin(np.float64([0])).tolist()
    [0.0]
    """
    return apply(SIN, NONE, x)


def cos(x: Operand) -> Var:
    """The cosine, right for large angles too; NaN at the infinities.

    >>> cos(np.float64([0])).tolist()
    [1.0]
    """
    return apply(COS, NONE, x)


def atan(x: Operand) -> Var:
    """The angle from −π/2 to π/2 whose tangent is ``x``.

    >>> atan(np.float64([0, 1])).tolist()
    [0.0, 0.7853981633974483]
    """
    return apply(ATAN, NONE, x)


def sigmoid(x: Operand) -> Var:
    """``1 / (1 + exp(−x))``.

    >>> sigmoid(np.float32([0, -1000])).tolist()
    [0.5, 0.0]
    """
    return apply(SIGMOID, NONE, x)


@dataclass(frozen=True)
class Beta:
    """How sharply softplus bends."""

    beta: float


def _decompose_softplus(attrs: Beta, x: Var) -> Var:
    is_above, power = _away_from_zero(scale(x, attrs.beta))
    bend = log(power + 1.0) / exact_number(attrs.beta, x)
    return OPERATORS().where(is_above, x + bend, bend)


# The rounding of z = β·x changes the result by at most u·|z|·sigmoid(z)/β, and |z|·sigmoid(z) < 0.28 for z < 0.
SOFTPLUS = _unary(
    "softplus",
    spec.softplus,
    lambda attrs, x, y, dx: dx * sigmoid(scale(x, attrs.beta)),
    attributes=Beta,
    decompose=_decompose_softplus,
    **Curve(
        bend=lambda node, box: builtins.abs(node.attrs.beta) * 0.2501,
        bent=lambda attrs: 1 if attrs.beta > 0 else -1,
        tail=lambda attrs: (6 / builtins.abs(attrs.beta), 2.5e-3 / builtins.abs(attrs.beta)),
        mass=lambda node, box: 0.3 / builtins.abs(node.attrs.beta),
        roundings=lambda attrs, dtype: 8 + 2 * rounded_number(attrs.beta, dtype),
        fast=lambda node, box, size: _fast_exponential(builtins.abs(node.attrs.beta))(node, box, size) + 2.0**-21.4,
    ).rules(),
)


def softplus(x: Operand, beta: float = 1.0) -> Var:
    """``log(1 + exp(β·x)) / β``, for every ``x``: there is no threshold above which it is the identity.

    >>> softplus(np.float32([-1000, 1000])).tolist()
    [0.0, 1000.0]
    """
    spec.require_beta(beta)
    return apply(SOFTPLUS, Beta(_number("softplus", "beta", beta)), x)


SILU = _unary(
    "silu",
    spec.silu,
    lambda attrs, x, y, dx: dx * (sigmoid(x) + y * sigmoid(-x)),
    decompose=lambda attrs, x: x * sigmoid(x),
    **Curve(
        bend=_bend(0.5001),
        turns=lambda attrs: (-1.278464542761074,),
        tail=lambda attrs: (6.0, 0.0149),
        roundings=_eight,
        fast=_fast_exponential(1.0),
    ).rules(),
)


def silu(x: Operand) -> Var:
    """``x · sigmoid(x)``.

    >>> silu(np.float32([0, 1000])).tolist()
    [0.0, 1000.0]
    """
    return apply(SILU, NONE, x)


NORMAL_CDF = _unary(
    "normal_cdf",
    spec.normal_cdf,
    lambda attrs, x, y, dx: dx * _normal_density(x),
    decompose=lambda attrs, x: scale(erf(x / sqrt(x.owner.operand(2.0, x))) + 1.0, 0.5),
    **Curve(
        bend=_bend(0.24198), tail=lambda attrs: (3.5, 2.4e-4), mass=lambda node, box: 1.0, roundings=_eight
    ).rules(),
)
NORMAL_DENSITY = _unary(
    "normal_density",
    spec.normal_density,
    lambda attrs, x, y, dx: -dx * (x * y),
    **Curve(
        bend=_bend(0.39895),
        turns=lambda attrs: (0.0,),
        tail=lambda attrs: (4.0, 1.4e-4),
        mass=lambda node, box: 0.4,
        roundings=_eight,
        fast=lambda node, box, size: size * (box.magnitude * box.magnitude) * 2.0**-23.7,
    ).rules(),
)


def _normal_density(x: Var) -> Var:
    return apply(NORMAL_DENSITY, NONE, x)


def _erf_tangent(attrs: NoAttributes, x: Var, y: Var, dx: Var) -> Var:
    """``2/√π · exp(−x²) = 2·√2·φ(√2·x)``, where √2 is a node, so that no number system has to take a double for it."""
    root = sqrt(x.owner.operand(2.0, x))
    return dx * (_normal_density(x * root) * scale(root, 2.0))


ERF = _unary("erf", spec.erf, _erf_tangent, **Curve(bend=_bend(0.96789), tail=lambda attrs: (2.5, 4.1e-4)).rules())


def erf(x: Operand) -> Var:
    """The error function, ``2/√π · ∫₀ˣ exp(−t²) dt``.

    >>> erf(np.float64([0, 0.5, 10])).tolist()
    [0.0, 0.5204998778130465, 1.0]
    """
    return apply(ERF, NONE, x)


@dataclass(frozen=True)
class Approximation:
    """Which form of gelu is meant."""

    approximate: str


def _gelu_tangent(attrs: Approximation, x: Var, y: Var, dx: Var) -> Var:
    """With ``y = x·s(u)``: ``s(u) + x·s(u)·s(−u)·u′``, ``s`` the sigmoid and ``u = c·(x + a·x³)``.

    ``w = x·s(u)·s(−u)`` vanishes long before the powers of ``x`` overflow, so it is multiplied first.
    """
    if attrs.approximate == "none":
        return dx * (apply(NORMAL_CDF, NONE, x) + x * _normal_density(x))
    u = scale(x + scale(x * x * x, spec.GELU_CUBIC), spec.GELU_SCALE)
    s = sigmoid(u)
    w = x * (s * sigmoid(-u))
    return dx * (s + scale(w + scale(scale(w * x * x, spec.GELU_CUBIC), 3.0), spec.GELU_SCALE))


def _decompose_gelu(attrs: Approximation, x: Var) -> Var:
    if attrs.approximate == "none":
        return x * apply(NORMAL_CDF, NONE, x)
    return x * sigmoid(scale(x + scale(x * x * x, spec.GELU_CUBIC), spec.GELU_SCALE))


# Both forms are x/2 + x/2·w, so that errors are relative to |x|; those of the argument of w shrink with its slope.
GELU = _unary(
    "gelu",
    spec.gelu,
    _gelu_tangent,
    attributes=Approximation,
    decompose=_decompose_gelu,
    **Curve(
        bend=_bend(0.79789),
        turns=lambda attrs: (-0.7517915246935645 if attrs.approximate == "none" else -0.7524614220710162,),
        tail=lambda attrs: (3.5, 8.2e-4),
        mass=lambda node, box: box.magnitude,
        roundings=lambda attrs, dtype: 16,
        fast=lambda node, box, size: size * 2.0**-10.9,  # of the hyperbolic tangent
    ).rules(),
)


def gelu(x: Operand, approximate: str = "none") -> Var:
    """``x · Φ(x)``, Φ the normal distribution; ``approximate="tanh"`` is the form with a tanh instead.

    >>> gelu(np.float32([0, 1000])).tolist()
    [0.0, 1000.0]
    """
    spec.require_approximation(approximate)
    return apply(GELU, Approximation(approximate), x)
