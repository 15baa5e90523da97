"""Functions of every cell, comparisons and selections. Where JAX's derivatives at kinks differ, they are JAX's."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log, prod
from typing import Any

import numpy as np

from gradspec.graph.builder import apply
from gradspec.graph.ir import Op, Var
from gradspec.graph.types import bf16, f16, f32, f64, u8
from gradspec.interop import compose
from gradspec.interop.jax.primitives.layout import Rule, constant, ordered, require_truths, to_dtype, uniform
from gradspec.ops import pointwise as ops
from gradspec.ops.layout import TRANSPOSE, concat
from gradspec.ops.lp_pool import ABS_POWER, AbsPower
from gradspec.ops.pool import MAX_POOL
from gradspec.ops.reduce import log_softmax, mean, softmax
from gradspec.ops.rules import broadcast_shape
from gradspec.ops.select import equal, greater, less, where
from gradspec.ops.shape import BROADCAST_TO, RESHAPE, SUM, broadcast_to, reshape
from gradspec.spec.errors import UnsupportedError

# --- arithmetic -------------------------------------------------------------------------------------------------------


def _mul(a: Var, b: Var, *, out_dtype: Any = None) -> Any:
    """In a wider dtype it is the product of the converted numbers."""
    return ops.mul(to_dtype(a, out_dtype), to_dtype(b, out_dtype))


def _unless(pattern: Rule, function: Rule) -> Rule:
    """A function of two operands, unless they are parts of something that has an operator of its own."""

    def rule(a: Var, b: Var) -> Any:
        match = pattern(a, b) if a.type.is_float else None
        return function(a, b) if match is None else match

    return rule


def _div(a: Var, b: Var) -> Any:
    return ops.div(a, b) if a.type.is_float else ops.trunc_divide(a, b)


def _rem(a: Var, b: Var) -> Any:
    """The rest has the sign of the dividend. Of floats it is exact in no formula of a quotient that is rounded."""
    if a.type.is_float:
        raise UnsupportedError("it is known for integers, and not for floats")
    return compose.remainder(a, b, sign_of_divisor=False)


def _max(a: Var, b: Var) -> Any:
    """The maximum with −∞, from which JAX begins, is the other number."""
    for one, other in ((a, b), (b, a)):
        if uniform(one) == -inf:
            return broadcast_to(other, a.shape or b.shape)
    return ops.maximum(a, b)


def _pow(x: Var, y: Var) -> Any:
    base, exponent = uniform(x), uniform(y)
    if exponent is not None:
        return _power(x, float(exponent)) if not y.shape or x.shape else broadcast_to(_power(x, exponent), y.shape)
    if not x.type.is_float:
        raise UnsupportedError("powers of integers are known for one constant exponent, not for an array of them")
    if base is not None and base > 0 and y.type.is_float:
        return broadcast_to(ops.exp(ops.scale(y, log(base))), x.shape or y.shape)
    return compose.variable_power(x, to_dtype(y, x.dtype))


def _power(x: Var, exponent: float) -> Any:
    return compose.power(x, int(exponent) if exponent.is_integer() else exponent)


def _sign(x: Var) -> Any:
    """NaN where ``x`` is, which is all that is left of it between 0 and 0."""
    y = compose.sign(x)
    return y + ops.detach(ops.clamp(x, 0.0, 0.0)) if x.type.is_float else y


def _round(x: Var, *, rounding_method: Any) -> Any:
    """To the nearest even number as gradspec does, or away from 0: then only a half is rounded otherwise."""
    if rounding_method.name == "TO_NEAREST_EVEN":
        return ops.round(x)
    whole = compose.trunc(x)
    return whole + where(less(ops.abs(x - whole), 0.5), 0.0, compose.sign(x))


def _clamp(low: Var, x: Var, high: Var) -> Any:
    """At a bound, and beyond it, the derivative by ``x`` is 0; a bound has it where it is the result."""
    y = ops.minimum(ops.maximum(x, low), high)
    if not x.type.is_float:
        return y
    y = ops.detach(y)
    if constant(low) is None:
        y = where(ops.minimum(greater(low, x), less(low, high)), low, y)
    if constant(high) is None:
        y = where(less(high, x), high, y)
    return where(ops.minimum(greater(x, low), less(x, high)), x, y)


def _relu6(x: Var) -> Any:
    return _clamp(x.owner.operand(0.0, x), x, x.owner.operand(6.0, x))


def _log_add_exp(a: Var, b: Var) -> Any:
    """Of two numbers side by side, by no comparison of their difference with itself."""
    if uniform(b) == 0:
        return ops.softplus(a)
    shape = broadcast_shape("logaddexp", a.shape, b.shape)
    pairs = concat([reshape(broadcast_to(v, shape), (*shape, 1)) for v in (a, b)], len(shape))
    return compose.log_sum_exp(pairs, (len(shape),), False)


_FORMATS = {(5, 10): f16, (8, 7): bf16, (8, 23): f32, (11, 52): f64}


def _reduce_precision(x: Var, *, exponent_bits: int, mantissa_bits: int) -> Any:
    bits = exponent_bits, mantissa_bits
    if bits not in _FORMATS:
        raise UnsupportedError(f"a format of {bits} bits is not known, only {', '.join(map(str, _FORMATS.values()))}")
    return to_dtype(to_dtype(x, _FORMATS[bits]), x.dtype)


# --- comparisons and selections ---------------------------------------------------------------------------------------


def _of_truths(function: Rule) -> Rule:
    return lambda *values: function(*map(require_truths, values))


def _compared(function: Rule) -> Rule:
    return lambda a, b: function(ordered(a), ordered(b))


def _in_total_order(function: Rule) -> Rule:
    """NaN equals itself and is above all numbers: comparisons with it are those of 1 and 0."""

    def rule(a: Var, b: Var) -> Any:
        a_is, b_is = equal(a, a), equal(b, b)
        numbers = [to_dtype(compose.logical_not(is_number), u8) for is_number in (a_is, b_is)]
        return where(ops.minimum(a_is, b_is), function(a, b), function(*numbers))

    return rule


def _platform_index(*, platforms: Sequence[Sequence[str] | None]) -> Any:
    """What is written for CPUs, or for all that nothing is written for."""
    return np.asarray(next(i for i, names in enumerate(platforms) if names is None or "cpu" in names), np.int32)


def _select(which: Var, *cases: Var) -> Any:
    """The case of that number; a boolean counts as 0 or 1. What is known to be chosen everywhere is the result."""
    chosen = uniform(which)
    if chosen is not None:
        return cases[min(max(int(chosen), 0), len(cases) - 1)]
    if len(cases) == 2 and not which.type.is_integer:
        return where(which, cases[1], cases[0])
    y = cases[-1]
    for i in reversed(range(len(cases) - 1)):
        y = where(less(which, i + 1), cases[i], y)
    return y


# --- patterns ---------------------------------------------------------------------------------------------------------
#
# JAX writes out means and softmaxes. They are read as the operators that they are: an operator's tolerance is that of
# the whole, in whatever way a kernel computes it, and its graph is shorter to read.

SPREAD = (BROADCAST_TO, RESHAPE)


def _match_quotient(a: Var, b: Var) -> Any:
    """``Σx / n`` as a mean, ``exp z / Σ exp z`` as a softmax; None for others."""
    total = _maker(_skip_back(a, RESHAPE), SUM)
    if total is not None and uniform(b) == prod(total.inputs[0].shape[i] for i in total.attrs.axes):
        return reshape(mean(total.inputs[0], total.attrs.axes), a.shape)
    exp = _maker(a, ops.EXP)
    axis = None if exp is None else _axis_of_sum(b, a)
    return None if exp is None or axis is None else softmax(_skip_shift(exp.inputs[0], axis), axis)


def _match_difference(a: Var, b: Var) -> Any:
    """``z − log Σ exp z`` as a log-softmax; None for others."""
    log, exp = _maker(_skip_back(b, *SPREAD), ops.LOG), _exp_before_log(b)
    if exp is None or exp.inputs[0] is not a:
        return None
    beside = _skip_back(b, BROADCAST_TO)
    axis = _axis_of_sum(reshape(log.inputs[0], beside.shape), exp.outputs[0])
    return None if axis is None else log_softmax(_skip_shift(a, axis), axis)


def _match_log_sum_exp(a: Var, b: Var) -> Any:
    """``log Σ exp(x − s) + s`` for one ``s`` of each row, as what it is without; None for others."""
    for logs, shift in ((a, b), (b, a)):
        exp = _exp_before_log(logs)
        shifted = None if exp is None else _maker(exp.inputs[0], ops.SUB)
        if shifted is not None and _skip_back(shifted.inputs[1], *SPREAD) is _skip_back(shift, RESHAPE):
            (x, s), axes = shifted.inputs, _sum_before_log(logs).attrs.axes
            if _skip_back(s, BROADCAST_TO).shape == _row_shape(x, axes):
                return reshape(compose.log_sum_exp(x, axes, False), logs.shape)
    return None


def _exp_before_log(x: Var) -> Any:
    """The node that gave the exponentials of whose sums ``x`` holds logarithms."""
    node = _sum_before_log(x)
    return None if node is None else _maker(node.inputs[0], ops.EXP)


def _sum_before_log(x: Var) -> Any:
    log = _maker(_skip_back(x, *SPREAD), ops.LOG)
    return None if log is None else _maker(_skip_back(log.inputs[0], *SPREAD, ops.ABS), SUM)


def _maker(x: Var, op: Op) -> Any:
    """The node that gave ``x``, if it is of this operator."""
    node = x.owner.maker(x)
    return node if node is not None and node.op is op else None


def _skip_back(x: Var, *ops: Op) -> Var:
    """What ``x`` was before these operators."""
    node = x.owner.maker(x)
    return _skip_back(node.inputs[0], *ops) if node is not None and node.op in ops else x


def _axis_of_sum(total: Var, cells: Var) -> int | None:
    """The axis over which ``total`` is the sum of ``cells``, each row's beside it; None if it is not."""
    node = _maker(_skip_back(total, *SPREAD), SUM)
    if node is None or node.inputs[0] is not cells or len(node.attrs.axes) != 1:
        return None
    (axis,) = node.attrs.axes
    return axis if _skip_back(total, BROADCAST_TO).shape == _row_shape(cells, node.attrs.axes) else None


def _row_shape(x: Var, axes: Sequence[int]) -> tuple[int, ...]:
    """The shape of what has one number for each row."""
    return tuple(1 if axis in axes else n for axis, n in enumerate(x.shape))


def _skip_shift(x: Var, axis: int) -> Var:
    """``x`` before the largest number of each row was taken away from it, which softmaxes do themselves."""
    node = _maker(x, ops.SUB)
    if node is None or _skip_back(node.inputs[1], BROADCAST_TO).shape != _row_shape(x, (axis,)):
        return x
    largest = _maker(_skip_back(node.inputs[1], *SPREAD, ops.DETACH), MAX_POOL)
    is_of_x = largest is not None and _skip_back(largest.inputs[0], TRANSPOSE) is node.inputs[0]
    return node.inputs[0] if is_of_x else x


RULES: dict[str, Rule] = {
    "add": _unless(_match_log_sum_exp, ops.add),
    "add_any": ops.add,
    "sub": _unless(_match_difference, ops.sub),
    "mul": _mul,
    "div": _unless(_match_quotient, _div),
    "rem": _rem,
    "neg": ops.neg,
    "abs": ops.abs,
    "sign": _sign,
    "max": _max,
    "min": ops.minimum,
    "clamp": _clamp,
    "square": lambda x: x * x,
    "integer_pow": lambda x, *, y: compose.power(x, y),
    "pow": _pow,
    "sqrt": ops.sqrt,
    "rsqrt": lambda x: 1.0 / ops.sqrt(x),
    "cbrt": lambda x: apply(ABS_POWER, AbsPower(1 / 3, signed=True), x),
    "exp": ops.exp,
    "exp2": lambda x: ops.exp(ops.scale(x, log(2))),
    "expm1": compose.exp_minus_one,
    "log": ops.log,
    "log1p": compose.log_one_plus,
    "sin": ops.sin,
    "cos": ops.cos,
    "tan": compose.tan,
    "sinh": compose.sinh,
    "cosh": compose.cosh,
    "tanh": ops.tanh,
    "logistic": ops.sigmoid,
    "erf": ops.erf,
    "erfc": compose.erfc,
    "floor": ops.floor,
    "ceil": compose.ceil,
    "round": _round,
    "is_finite": lambda x: less(ops.abs(x), inf),
    "reduce_precision": _reduce_precision,
    "convert_element_type": lambda x, *, new_dtype: to_dtype(x, new_dtype),
    "stop_gradient": ops.detach,
    **dict.fromkeys(("copy", "copy_p", "name", "sharding_constraint"), lambda x, **_: x),
    "optimization_barrier": lambda *xs: xs,
    "gt": _compared(greater),
    "lt": _compared(less),
    "eq": _compared(equal),
    "ne": _compared(compose.unequal),
    "ge": _compared(compose.greater_equal),
    "le": _compared(compose.less_equal),
    "eq_to": _in_total_order(equal),
    "lt_to": _in_total_order(less),
    "le_to": _in_total_order(compose.less_equal),
    "not": _of_truths(compose.logical_not),
    "and": _of_truths(ops.minimum),
    "or": _of_truths(ops.maximum),
    "xor": _of_truths(compose.unequal),
    "select_n": _select,
    "platform_index": _platform_index,
}

OF_LIBRARY: dict[str, Rule] = {"relu": ops.relu, "relu6": _relu6, "logaddexp": _log_add_exp}
"""Functions of JAX that have rules for their derivatives, and what does the same."""
