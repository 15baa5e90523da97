"""Operators that work cell by cell.

Formulas are arranged so that no finite input overflows on the way to a finite result. Where a function has a kink, its
derivative there is a convention, and the formula is the one whose dual numbers follow it: relu′(0) = 0,
leaky_relu′(0) = its slope, abs′(0) = 0, clamp′ = 1 on the closed range, and equal operands of ``maximum`` and
``minimum`` share the derivative in halves.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from functools import reduce
from numbers import Integral

from gradspec.spec import scalar
from gradspec.spec.errors import AmbiguityError, ShapeError, UnsupportedError
from gradspec.spec.scalar import Scalar, embed, ends, hull, increasing, larger, order
from gradspec.spec.tensor import Tensor, TensorLike, tensor

APPROXIMATIONS = ("none", "tanh")

GELU_CUBIC = 0.044715
GELU_SCALE = math.sqrt(8 / math.pi)
"""The constants of the tanh form of gelu, which are these doubles in every number system (the scale is 2·√(2/π))."""


def cellwise(name: str, function: Callable[..., Scalar], *operands: TensorLike) -> Tensor:
    """``function`` of the cells that have the same place in all ``operands``."""
    tensors = [tensor(t) for t in operands]
    if any(t.shape != tensors[0].shape for t in tensors):
        shapes = ", ".join(str(t.shape) for t in tensors)
        raise ShapeError(f"{name}: the shapes {shapes} differ; operands must have one shape")
    return Tensor(tensors[0].shape, map(function, *(t.cells for t in tensors))).stored()


# --- arithmetic -------------------------------------------------------------------------------------------------------


def neg(x: TensorLike) -> Tensor:
    """−x.

    >>> neg([1, -2]).tolist()
    [-1, 2]
    """
    return cellwise("neg", lambda v: -v, x)


def add(a: TensorLike, b: TensorLike) -> Tensor:
    """a + b.

    >>> add([1, 2], [3, 4]).tolist()
    [4, 6]
    """
    return cellwise("add", lambda p, q: p + q, a, b)


def sub(a: TensorLike, b: TensorLike) -> Tensor:
    """a − b.

    >>> sub([1, 2], [3, 5]).tolist()
    [-2, -3]
    """
    return cellwise("sub", lambda p, q: p - q, a, b)


def mul(a: TensorLike, b: TensorLike) -> Tensor:
    """a · b.

    >>> mul([1, 2], [3, 4]).tolist()
    [3, 8]
    """
    return cellwise("mul", lambda p, q: p * q, a, b)


def div(a: TensorLike, b: TensorLike) -> Tensor:
    """a / b.

    >>> div([1.0, 3.0], [2.0, 4.0]).tolist()
    [0.5, 0.75]
    """
    return cellwise("div", lambda p, q: p / q, a, b)


def trunc_divide(a: TensorLike, b: TensorLike) -> Tensor:
    """The quotient of integers without its fraction, rounded toward zero; 0 where ``b`` is 0.

    >>> trunc_divide([7, -7, 7], [2, 2, 0]).tolist()
    [3, -3, 0]
    """

    def quotient(p: int, q: int) -> int:
        if q == 0:
            return p * 0
        whole = operator.abs(p) // operator.abs(q)
        return -whole if (p < 0) != (q < 0) else whole

    return cellwise("trunc_divide", quotient, a, b)


def scale(x: TensorLike, factor: float) -> Tensor:
    """``factor · x``, the factor rounded to the number system of ``x``.

    >>> scale([1.0, 3.0], 0.5).tolist()
    [0.5, 1.5]
    """
    return cellwise("scale", lambda v: v * embed(v, factor), x)


def detach(x: TensorLike) -> Tensor:
    """``x`` as a constant of differentiation.

    >>> detach([1, 2]).tolist()
    [1, 2]
    """
    return cellwise("detach", scalar.constant, x)


# --- piecewise linear -------------------------------------------------------------------------------------------------


def smaller(a: Scalar, b: Scalar) -> Scalar:
    """The smaller of two numbers, the earlier one if neither exceeds the other."""
    return -larger(-a, -b)


def relu(x: TensorLike) -> Tensor:
    """``max(0, x)``.

    >>> relu([-1.5, 0.0, 2.0]).tolist()
    [0.0, 0.0, 2.0]
    """
    return cellwise("relu", lambda v: larger(embed(v, 0), v), x)


def leaky_relu(x: TensorLike, negative_slope: float = 0.01) -> Tensor:
    """``x`` above 0, ``negative_slope · x`` below.

    >>> leaky_relu([-1.5, 0.0, 2.0], 0.5).tolist()
    [-0.75, 0.0, 2.0]
    """

    def formula(v: Scalar) -> Scalar:
        zero = embed(v, 0)
        return larger(zero, v) + embed(v, negative_slope) * smaller(v, zero)

    return cellwise("leaky_relu", formula, x)


def abs(x: TensorLike) -> Tensor:
    """|x|.

    >>> abs([-1.5, 2.0]).tolist()
    [1.5, 2.0]
    """
    return cellwise("abs", operator.abs, x)


def clamp(x: TensorLike, min: float | None = None, max: float | None = None) -> Tensor:
    """The number from ``min`` to ``max`` that is nearest to ``x``; None is no bound.

    >>> clamp([-3.0, 0.5, 4.0], -1.0, 1.0).tolist()
    [-1.0, 0.5, 1.0]
    """
    require_bounds(min, max)

    def formula(v: Scalar) -> Scalar:
        above = v if min is None else larger(v, embed(v, min))
        return above if max is None else smaller(above, embed(v, max))

    return cellwise("clamp", formula, x)


def require_bounds(min: float | None, max: float | None) -> None:
    """At least one bound, neither NaN, in order."""
    if min is None and max is None:
        raise ValueError("clamp needs a bound: give min, max or both")
    for name, bound in (("min", min), ("max", max)):
        if bound is not None and bound != bound:
            raise ValueError(f"clamp: {name} is NaN, which bounds nothing; give a number or None")
    if min is not None and max is not None and min > max:
        raise ValueError(f"clamp: min={min} exceeds max={max}, so no number lies between; exchange them")


def maximum(a: TensorLike, b: TensorLike) -> Tensor:
    """The larger of two cells; NaN if one is.

    >>> maximum([1, 5], [3, 4]).tolist()
    [3, 5]
    """
    return cellwise("maximum", scalar.maximum, a, b)


def minimum(a: TensorLike, b: TensorLike) -> Tensor:
    """The smaller of two cells; NaN if one is.

    >>> minimum([1, 5], [3, 4]).tolist()
    [1, 4]
    """

    def formula(p: Scalar, q: Scalar) -> Scalar:
        whole = isinstance(p, Integral)  # the negative of an unsigned integer is none
        return (q if q < p else p) if whole else -scalar.maximum(-p, -q)

    return cellwise("minimum", formula, a, b)


# --- rounding to integers ---------------------------------------------------------------------------------------------


def floor(x: TensorLike) -> Tensor:
    """The largest integer that is not above ``x``; its derivative is 0.

    >>> floor([-1.5, 0.75, 2.0]).tolist()
    [-2.0, 0.0, 2.0]
    """
    return cellwise("floor", scalar.floor, x)


def round(x: TensorLike) -> Tensor:
    """The integer nearest to ``x``, of two the even one; its derivative is 0.

    >>> round([-1.5, 0.5, 2.25]).tolist()
    [-2.0, 0.0, 2.0]
    """
    return cellwise("round", scalar.nearest_integer, x)


# --- smooth -----------------------------------------------------------------------------------------------------------


def exp(x: TensorLike) -> Tensor:
    """eˣ.

    >>> exp([0.0, 1.0]).tolist()
    [1.0, 2.718281828459045]
    """
    return cellwise("exp", scalar.exp, x)


def log(x: TensorLike) -> Tensor:
    """The natural logarithm: −∞ at 0 and NaN below it, in systems that have them.

    >>> log([1.0, 0.0]).tolist()
    [0.0, -inf]
    """
    return cellwise("log", scalar.log, x)


def sqrt(x: TensorLike) -> Tensor:
    """√x: NaN below 0, in systems that have it.

    >>> sqrt([4.0, 2.25]).tolist()
    [2.0, 1.5]
    """
    return cellwise("sqrt", scalar.sqrt, x)


def tanh(x: TensorLike) -> Tensor:
    """The hyperbolic tangent.

    >>> tanh([0.0]).tolist()
    [0.0]
    """
    return cellwise("tanh", scalar.tanh, x)


def sin(x: TensorLike) -> Tensor:
    """The sine; NaN at the infinities.

    >>> sin([0.0, 1e22]).tolist()
    [0.0, -0.8522008497671888]
    """
    return cellwise("sin", scalar.sin, x)


def cos(x: TensorLike) -> Tensor:
    """The cosine; NaN at the infinities.

    >>> cos([0.0, 1e22]).tolist()
    [1.0, 0.523214785395139]
    """
    return cellwise("cos", scalar.cos, x)


def sigmoid(x: TensorLike) -> Tensor:
    """``1 / (1 + exp(−x))``.

    >>> sigmoid([0.0, -745.0, 1000.0]).tolist()
    [0.5, 5e-324, 1.0]
    """
    return cellwise("sigmoid", logistic, x)


def logistic(x: Scalar) -> Scalar:
    """``1 / (1 + exp(−x)) = exp(x) / (1 + exp(x))``, whichever does not overflow."""

    def formula(v: Scalar) -> Scalar:
        if v < 0:
            power = scalar.exp(v)
            return power / (power + 1)
        return 1 / (scalar.exp(-v) + 1)

    return increasing(x, formula)


def softplus(x: TensorLike, beta: float = 1.0) -> Tensor:
    """``log(1 + exp(β·x)) / β`` for a finite β ≠ 0, everywhere: no switch to the identity for large ``x``.

    >>> softplus([0.0, 1000.0]).tolist()
    [0.6931471805599453, 1000.0]
    """
    require_beta(beta)

    def formula(v: Scalar) -> Scalar:
        """``log(1 + exp z) = z + log(1 + exp(−z))``, whichever does not overflow, ``z = β·v``."""
        b = embed(v, beta)
        z = b * v
        if z > 0:
            return v + scalar.log1p(scalar.exp(-z)) / b
        return scalar.log1p(scalar.exp(z)) / b

    return cellwise("softplus", lambda v: increasing(v, formula), x)


def require_beta(beta: float) -> None:
    if not math.isfinite(beta) or beta == 0:
        raise ValueError(f"softplus: beta={beta} must be finite and not 0")


def silu(x: TensorLike) -> Tensor:
    """``x · sigmoid(x)``.

    >>> silu([0.0, 1000.0]).tolist()
    [0.0, 1000.0]
    """
    return cellwise("silu", lambda v: v * logistic(v), x)


def gelu(x: TensorLike, approximate: str = "none") -> Tensor:
    """``x · Φ(x)``, Φ the normal distribution; with ``approximate="tanh"`` its tanh form.

    That is ``x · (1 + tanh(√(2/π)·(x + 0.044715·x³))) / 2``, and ``(1 + tanh u)/2 = sigmoid(2u)``.

    >>> gelu([0.0, 1000.0]).tolist()
    [0.0, 1000.0]
    """
    require_approximation(approximate)
    weight = scalar.normal_cdf if approximate == "none" else _normal_cdf_by_tanh
    return cellwise("gelu", lambda v: v * weight(v), x)


def _normal_cdf_by_tanh(x: Scalar) -> Scalar:
    return logistic(increasing(x, lambda v: (v + v * v * v * embed(v, GELU_CUBIC)) * embed(v, GELU_SCALE)))


def require_approximation(approximate: str) -> None:
    if approximate not in APPROXIMATIONS:
        raise UnsupportedError(f"gelu: approximate={approximate!r} is not known; use one of {APPROXIMATIONS}")


def atan(x: TensorLike) -> Tensor:
    """The angle from −π/2 to π/2 whose tangent is ``x``.

    >>> atan([0.0, 1.0]).tolist()
    [0.0, 0.7853981633974483]
    """
    return cellwise("atan", scalar.atan, x)


def erf(x: TensorLike) -> Tensor:
    """The error function, ``2/√π · ∫₀ˣ exp(−t²) dt``.

    >>> erf([0.0, 0.5, 10.0]).tolist()
    [0.0, 0.5204998778130465, 1.0]
    """
    return cellwise("erf", scalar.erf, x)


def normal_cdf(x: TensorLike) -> Tensor:
    """``Φ(x) = (1 + erf(x/√2)) / 2``.

    >>> normal_cdf([0.0]).tolist()
    [0.5]
    """
    return cellwise("normal_cdf", scalar.normal_cdf, x)


def normal_density(x: TensorLike) -> Tensor:
    """``exp(−x²/2) / √(2π)``.

    >>> normal_density([0.0]).tolist()
    [0.3989422804014327]
    """
    return cellwise("normal_density", scalar.normal_density, x)


# --- what derivatives of kinks are made of ----------------------------------------------------------------------------
# Constants of differentiation. Of an enclosure that does not decide, every possible value is enclosed.


def step(x: TensorLike, below: float, at: float, above: float) -> Tensor:
    """``below``, ``at`` or ``above``, as ``x`` is less than, equal to or larger than 0 (a NaN is larger).

    >>> step([-2.0, 0.0, 3.0], -1.0, 0.0, 1.0).tolist()
    [-1.0, 0.0, 1.0]
    """
    values = {-1: below, 0: at, 1: above}
    return cellwise("step", lambda v: _possible(v, (values[sign] for sign in order(v, embed(v, 0)))), x)


def max_share(a: TensorLike, b: TensorLike) -> Tensor:
    """The share of ``a`` in the derivative of ``maximum(a, b)``: 1 if it is larger, ½ if they are equal, else 0.

    >>> max_share([1.0, 2.0, 2.0], [2.0, 2.0, 1.0]).tolist()
    [0.0, 0.5, 1.0]
    """
    values = {-1: 0.0, 0: 0.5, 1: 1.0}
    return cellwise("max_share", lambda p, q: _possible(p, (values[sign] for sign in order(p, q))), a, b)


def within(x: TensorLike, min: float | None = None, max: float | None = None) -> Tensor:
    """1 from ``min`` to ``max``, both included (and for a NaN), and 0 outside.

    >>> within([-1.0, 0.0, 2.0], 0.0, 1.0).tolist()
    [0.0, 1.0, 0.0]
    """

    def formula(v: Scalar) -> Scalar:
        above = (1,) if min is None else order(v, embed(v, min))
        below = (1,) if max is None else order(-v, embed(v, -max))
        outside = [0.0] if -1 in above or -1 in below else []
        inside = [1.0] if {0, 1}.intersection(above) and {0, 1}.intersection(below) else []
        return _possible(v, outside + inside)

    return cellwise("within", formula, x)


def _possible(like: Scalar, values: Iterable[float]) -> Scalar:
    """The only value, or an enclosure of all of them."""
    return reduce(hull, (embed(scalar.constant(like), value) for value in values))


def gate(weight: TensorLike, t: TensorLike) -> Tensor:
    """``weight · t``, and 0 where the weight is 0 whatever ``t`` is: what a kink cuts off is not there.

    >>> gate([0.0, 0.5], [math.inf, 4.0]).tolist()
    [0.0, 2.0]
    """
    return cellwise("gate", lambda w, v: embed(v, 0) if w == 0 else v * w, weight, t)


# --- integers by their bits -------------------------------------------------------------------------------------------
#
# Integers by their bits: two's complement, of as many bits as there are.
#
# Kernels keep the bits of the dtype and wrap around. No dtype has more than 64, so a shift by more, or by a negative
# count, moves every bit out.

BITS = 64


def bitwise_and(a: TensorLike, b: TensorLike) -> Tensor:
    """The bits that both have.

    >>> bitwise_and([12, -1], [10, 5]).tolist()
    [8, 5]
    """
    return cellwise("bitwise_and", operator.and_, a, b)


def bitwise_or(a: TensorLike, b: TensorLike) -> Tensor:
    """The bits that either has.

    >>> bitwise_or([12, -8], [10, 5]).tolist()
    [14, -3]
    """
    return cellwise("bitwise_or", operator.or_, a, b)


def bitwise_xor(a: TensorLike, b: TensorLike) -> Tensor:
    """The bits that one of them has and the other has not.

    >>> bitwise_xor([12, -1], [10, 5]).tolist()
    [6, -6]
    """
    return cellwise("bitwise_xor", operator.xor, a, b)


def left_shift(a: TensorLike, count: TensorLike) -> Tensor:
    """``a · 2^count``; 0 if every bit is moved out.

    >>> left_shift([3, -3, 3], [2, 2, -1]).tolist()
    [12, -12, 0]
    """
    return cellwise("left_shift", lambda n, count: n << count if 0 <= count < BITS else 0, a, count)


def right_shift(a: TensorLike, count: TensorLike) -> Tensor:
    """``a / 2^count`` rounded down, which is 0 or −1 if every bit is moved out.

    >>> right_shift([12, -13, -13], [2, 2, -1]).tolist()
    [3, -4, -1]
    """
    return cellwise("right_shift", lambda n, count: n >> (count if 0 <= count < BITS else BITS), a, count)


# --- comparisons and selections ---------------------------------------------------------------------------------------
#
# Comparisons, whose results are true or false, and the choice between two tensors by such results.
#
# A comparison with a NaN is false. Enclosures must decide it: no truth value encloses both.


def greater(a: TensorLike, b: TensorLike) -> Tensor:
    """Whether ``a > b``.

    >>> greater([1, 2, 3], [2, 2, 2]).tolist()
    [False, False, True]
    """
    return cellwise("greater", _is_greater, a, b)


def equal(a: TensorLike, b: TensorLike) -> Tensor:
    """Whether ``a = b``.

    >>> equal([1, 2, 3], [2, 2, 2]).tolist()
    [False, True, False]
    """
    return cellwise("equal", _is_equal, a, b)


def where(condition: TensorLike, a: TensorLike, b: TensorLike) -> Tensor:
    """``a`` where the condition is true, ``b`` elsewhere; what is not chosen takes no part.

    >>> where([True, False], [1, 2], [10, 20]).tolist()
    [1, 20]
    """
    return cellwise("where", lambda is_true, p, q: p if is_true else q, _truths(condition), a, b)


def _truths(condition: TensorLike) -> TensorLike:
    """An array of booleans as a tensor of Python's."""
    is_array = getattr(getattr(condition, "dtype", None), "kind", None) == "b"
    return Tensor(condition.shape, map(bool, condition.flat)) if is_array else condition


def _is_greater(a: Scalar, b: Scalar) -> bool:
    (a_low, a_high), (b_low, b_high) = ends(a), ends(b)
    return _decided(certain=bool(a_low > b_high), possible=bool(a_high > b_low), a=a, b=b)


def _is_equal(a: Scalar, b: Scalar) -> bool:
    (a_low, a_high), (b_low, b_high) = ends(a), ends(b)
    certain = bool(a_low == b_high and a_high == b_low)
    return _decided(certain, certain or bool(_at_most(a_low, b_high) and _at_most(b_low, a_high)), a, b)


def _at_most(a: Scalar, b: Scalar) -> Scalar:
    return a < b or a == b


def _decided(certain: bool, possible: bool, a: Scalar, b: Scalar) -> bool:
    if possible and not certain:
        raise AmbiguityError(f"{a} and {b} may compare either way; give narrower enclosures")
    return certain
