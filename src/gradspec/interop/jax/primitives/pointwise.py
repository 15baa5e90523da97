"""Functions of every cell, comparisons and selections. Where JAX's derivatives at kinks differ, they are JAX's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, log
from typing import Any

import numpy as np

from gradspec.graph.builder import apply
from gradspec.graph.ir import Var
from gradspec.graph.types import bf16, f16, f32, f64, u8
from gradspec.interop import compose
from gradspec.interop.jax.primitives import patterns
from gradspec.interop.jax.primitives.operands import constant, ordered, require_truths, to_dtype, uniform
from gradspec.ops import pointwise as ops
from gradspec.ops.layout import concat
from gradspec.ops.lp_pool import ABS_POWER, AbsPower
from gradspec.ops.rules import broadcast_shape
from gradspec.ops.select import equal, greater, less, where
from gradspec.ops.shape import broadcast_to, reshape
from gradspec.spec.errors import UnsupportedError

# --- arithmetic -------------------------------------------------------------------------------------------------------


def _mul(a: Var, b: Var, *, out_dtype: Any = None) -> Any:
    """In a wider dtype it is the product of the converted numbers."""
    return ops.mul(to_dtype(a, out_dtype), to_dtype(b, out_dtype))


def _unless(pattern: Callable[[Var, Var], Any], function: Callable[[Var, Var], Any]) -> Callable[..., Any]:
    """A function of two operands, unless they are parts of something that has an operator of its own."""

    def rule(a: Var, b: Var) -> Any:
        found = pattern(a, b) if a.type.is_float else None
        return function(a, b) if found is None else found

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


def _not(x: Var) -> Any:
    require_truths(x)
    return equal(x, False)


def _of_truths(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def rule(a: Var, b: Var) -> Any:
        require_truths(a, b)
        return function(a, b)

    return rule


def _compared(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda a, b: function(ordered(a), ordered(b))


def _in_total_order(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """NaN equals itself and is above all numbers: comparisons with it are those of 1 and 0."""

    def rule(a: Var, b: Var) -> Any:
        a_is, b_is = equal(a, a), equal(b, b)
        numbers = [to_dtype(equal(is_number, False), u8) for is_number in (a_is, b_is)]
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


def _same(x: Var, **_: Any) -> Any:
    return x


RULES: dict[str, Callable[..., Any]] = {
    "add": _unless(patterns.total, ops.add),
    "add_any": ops.add,
    "sub": _unless(patterns.difference, ops.sub),
    "mul": _mul,
    "div": _unless(patterns.quotient, _div),
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
    "copy": _same,
    "copy_p": _same,
    "name": _same,
    "sharding_constraint": _same,
    "optimization_barrier": lambda *xs: xs,
    "gt": _compared(greater),
    "lt": _compared(less),
    "eq": _compared(equal),
    "ne": _compared(lambda a, b: equal(equal(a, b), False)),
    "ge": _compared(lambda a, b: ops.maximum(greater(a, b), equal(a, b))),
    "le": _compared(lambda a, b: ops.maximum(less(a, b), equal(a, b))),
    "eq_to": _in_total_order(equal),
    "lt_to": _in_total_order(less),
    "le_to": _in_total_order(lambda a, b: ops.maximum(less(a, b), equal(a, b))),
    "not": _not,
    "and": _of_truths(ops.minimum),
    "or": _of_truths(ops.maximum),
    "xor": _of_truths(lambda a, b: equal(equal(a, b), False)),
    "select_n": _select,
    "platform_index": _platform_index,
}

OF_LIBRARY: dict[str, Callable[..., Any]] = {"relu": ops.relu, "relu6": _relu6, "logaddexp": _log_add_exp}
"""Functions of JAX that have rules for their derivatives, and what does the same."""
