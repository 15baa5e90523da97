"""Operators that work cell by cell, and reductions: over axes, of windows and by products; running ones, and order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import inf, log, prod
from string import ascii_lowercase, ascii_uppercase
from typing import Any

import numpy as np
from jax import numpy as jnp

from gradspec.graph.builder import apply
from gradspec.graph.ir import Op, Var
from gradspec.graph.types import bf16, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from gradspec.interop import compose, indexing
from gradspec.interop.compose import functions_named
from gradspec.interop.jax.primitives.layout import (
    Rule,
    Sizes,
    constant,
    ordered,
    pad_with_gaps,
    require_truths,
    to_dtype,
    uniform,
)
from gradspec.ops import bits
from gradspec.ops import pointwise as ops
from gradspec.ops.conv import WRITE, Convolution, conv
from gradspec.ops.einsum import einsum
from gradspec.ops.gather import gather, sort, topk
from gradspec.ops.layout import TRANSPOSE, concat, transpose
from gradspec.ops.lp_pool import ABS_POWER, AbsPower
from gradspec.ops.pool import MAX_POOL, MAX_POOL_GATHER, MAX_POOL_SCATTER, MaxPool, avg_pool, max_pool, sliding_windows
from gradspec.ops.reduce import cumsum, log_softmax, mean, softmax
from gradspec.ops.rules import broadcast_shape
from gradspec.ops.select import equal, greater, less, where
from gradspec.ops.shape import BROADCAST_TO, RESHAPE, SUM, broadcast_to, reshape, sum
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


def _rem(a: Var, b: Var) -> Var:
    """The rest has the sign of the dividend. Of floats it is exact in no formula of a quotient that is rounded."""
    if a.type.is_float:
        raise UnsupportedError("it is known for integers, and not for floats")
    return compose.remainder(a, b, sign_of_divisor=False)


def _max(a: Var, b: Var) -> Var:
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


def _power(x: Var, exponent: float) -> Var:
    return compose.power(x, int(exponent) if exponent.is_integer() else exponent)


def _sign(x: Var) -> Var:
    """NaN where ``x`` is, which is all that is left of it between 0 and 0."""
    y = compose.sign(x)
    return y + ops.detach(ops.clamp(x, 0.0, 0.0)) if x.type.is_float else y


def _round(x: Var, *, rounding_method: Any) -> Var:
    """To the nearest even number as gradspec does, or away from 0: then only a half is rounded otherwise."""
    if rounding_method.name == "TO_NEAREST_EVEN":
        return ops.round(x)
    whole = compose.trunc(x)
    return whole + where(less(ops.abs(x - whole), 0.5), 0.0, compose.sign(x))


def _clamp(low: Var, x: Var, high: Var) -> Var:
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


def _relu6(x: Var) -> Var:
    return _clamp(x.owner.operand(0.0, x), x, x.owner.operand(6.0, x))


def _log_add_exp(a: Var, b: Var) -> Var:
    """Of two numbers side by side, by no comparison of their difference with itself."""
    if uniform(b) == 0:
        return ops.softplus(a)
    shape = broadcast_shape("logaddexp", a.shape, b.shape)
    pairs = concat([reshape(broadcast_to(v, shape), (*shape, 1)) for v in (a, b)], len(shape))
    return compose.log_sum_exp(pairs, (len(shape),), False)


_FORMATS = {(5, 10): f16, (8, 7): bf16, (8, 23): f32, (11, 52): f64}


def _reduce_precision(x: Var, *, exponent_bits: int, mantissa_bits: int) -> Var:
    bits = exponent_bits, mantissa_bits
    if bits not in _FORMATS:
        raise UnsupportedError(f"a format of {bits} bits is not known, only {', '.join(map(str, _FORMATS.values()))}")
    return to_dtype(to_dtype(x, _FORMATS[bits]), x.dtype)


# --- comparisons and selections ---------------------------------------------------------------------------------------


UNSIGNED = {i8: u8, i16: u16, i32: u32, i64: u64}


def _logical_shift(a: Var, count: Var) -> Var:
    """Zeros come in from the left, as they do in an unsigned number of the same bits."""
    unsigned = [to_dtype(v, UNSIGNED.get(v.dtype, v.dtype)) for v in (a, count)]
    return to_dtype(bits.right_shift(*unsigned), a.dtype)


def _compared(function: Rule) -> Rule:
    return lambda a, b: function(ordered(a), ordered(b))


def _in_total_order(function: Rule) -> Rule:
    """NaN equals itself and is above all numbers: comparisons with it are those of 1 and 0."""

    def rule(a: Var, b: Var) -> Var:
        a_is, b_is = equal(a, a), equal(b, b)
        numbers = [to_dtype(compose.logical_not(is_number), u8) for is_number in (a_is, b_is)]
        return where(ops.minimum(a_is, b_is), function(a, b), function(*numbers))

    return rule


def _select(which: Var, *cases: Var) -> Var:
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


# --- reductions over axes ---------------------------------------------------------------------------------------------


Pairs = tuple[tuple[int, int], ...]


def _extreme(function: Rule) -> Rule:
    """The largest or smallest number; those that are equal share the derivative, as JAX has it."""
    return lambda x, *, axes: to_dtype(function(ordered(x), axes, False, ties="split"), x.dtype)


def _place(function: Rule) -> Rule:
    return lambda x, *, axes, index_dtype: to_dtype(function(ordered(x), axes[0], False), index_dtype)


# --- running ----------------------------------------------------------------------------------------------------------


def _running(function: Callable[[Var, int], Any]) -> Rule:
    """From the front; with ``reverse`` the axis is turned before and after."""

    def rule(x: Var, *, axis: int, reverse: bool) -> Var:
        axes = (axis,) if reverse else ()
        return compose.flip(function(compose.flip(x, axes), axis), axes) if x.type.size else x

    return rule


# --- order ------------------------------------------------------------------------------------------------------------


def _top_k(x: Var, *, k: int, axis: int = -1) -> Any:
    values, places = topk(x, k, axis)
    return values, to_dtype(places, np.int32)


def _sort(*operands: Var, dimension: int, num_keys: int) -> Any:
    """By the first key and, where it is equal, by the next: stably by each, the last one first."""
    if len(operands) == 1:
        return (to_dtype(sort(ordered(operands[0]), dimension)[0], operands[0].dtype),)
    sorted_: Sequence[Any] = operands
    for key in reversed(range(num_keys)):
        _, places = sort(ordered(sorted_[key]), dimension)
        sorted_ = [gather(v, dimension, places) for v in sorted_]
    return sorted_


# --- over windows -----------------------------------------------------------------------------------------------------


def _reduce_windows(
    pooling: Rule,
    xs: Sequence[Var],
    fill: float | None,
    window_dimensions: Sizes,
    window_strides: Sizes,
    padding: Pairs,
    base_dilation: Sizes | None = None,
    window_dilation: Sizes | None = None,
) -> Var:
    """A pooling over the axes that have windows of more than the one cell in its place.

    Cells of ``fill`` between others, and around them where a window may consist of these alone, are laid down before.
    """
    ones = (1,) * xs[0].ndim
    gaps, dilation = base_dilation or ones, window_dilation or ones
    reach = zip(padding, window_dimensions, dilation, strict=True)
    if set(gaps) != {1} or any((n and d > 1) or not 0 <= n < k for pair, k, d in reach for n in pair):
        if fill is None:
            raise UnsupportedError("it is known for windows that have a cell each, which these do not")
        ends = [(lo, hi, gap - 1) for (lo, hi), gap in zip(padding, gaps, strict=True)]
        xs, padding = [pad_with_gaps(x, ends, fill) for x in xs], ((0, 0),) * len(ones)
    windows = zip(window_dimensions, window_strides, padding, strict=True)
    axes = [a for a, window in enumerate(windows) if window != (1, 1, (0, 0))]
    order = [*(a for a in range(len(ones)) if a not in axes), *axes]
    settings = [tuple(values[a] for a in axes) for values in (window_dimensions, window_strides, padding, dilation)]
    return transpose(pooling(*(transpose(x, order) for x in xs), *settings), compose.inverse_permutation(order))


def _window_sum(x: Var, **windows: Any) -> Var:
    def total(x: Var, kernel: Sizes, stride: Sizes, padding: Pairs, dilation: Sizes) -> Var:
        return avg_pool(x, kernel, stride, padding, divisor_override=1, dilation=dilation)

    return _reduce_windows(total, [x], 0.0, **windows)


def _window_max(x: Var, **windows: Any) -> Var:
    least = int(np.iinfo(x.dtype.numpy).min) if x.type.is_integer else -inf
    return _reduce_windows(max_pool, [x], least, **windows)


def _of_winners(op: Op) -> Rule:
    """What goes from winners to windows, or back; of equal cells the first wins."""

    def rule(moving: Var, x: Var, *, select_prim: Any, **windows: Any) -> Var:
        def carried(x: Var, moving: Var, kernel: Sizes, stride: Sizes, padding: Pairs, dilation: Sizes) -> Var:
            where = sliding_windows(op.name, x, kernel, stride, padding, dilation, ceil_mode=False)
            return apply(op, MaxPool(**where), x, moving)

        compared = compose.reversed_order(x) if select_prim.name == "le" else x
        return _reduce_windows(carried, [compared, moving], None, **windows)

    return rule


# --- products of matrices ---------------------------------------------------------------------------------------------


def _dot_general(a: Var, b: Var, *, dimension_numbers: Any, preferred_element_type: Any) -> Any:
    """The axes of the result: those of the batch, the others of ``a``, the others of ``b``.

    Products in a wider dtype are those of the converted numbers. The precision says how a device may round.
    """
    (inner_a, inner_b), (batch_a, batch_b) = dimension_numbers
    names_a, names_b = list(ascii_lowercase[: a.ndim]), list(ascii_uppercase[: b.ndim])
    for i, j in zip((*inner_a, *batch_a), (*inner_b, *batch_b), strict=True):
        names_b[j] = names_a[i]
    batch = [names_a[i] for i in batch_a]
    free = [c for c in (*names_a, *names_b) if (c in names_a) != (c in names_b)]
    common = preferred_element_type or jnp.promote_types(a.dtype.numpy, b.dtype.numpy)
    wide = [to_dtype(v, common) for v in (a, b)]
    return einsum(f"{''.join(names_a)},{''.join(names_b)}->{''.join([*batch, *free])}", *wide)


# --- convolution ------------------------------------------------------------------------------------------------------


def _conv(
    x: Var,
    w: Var,
    *,
    window_strides: Sizes,
    padding: Pairs,
    lhs_dilation: Sizes,
    rhs_dilation: Sizes,
    dimension_numbers: Any,
    feature_group_count: int,
    batch_group_count: int,
    preferred_element_type: Any,
) -> Var:
    """With the axes in gradspec's order: batch, channels, space; groups of the batch become groups of channels."""
    x, w = (to_dtype(v, preferred_element_type) for v in (x, w))
    x, w = transpose(x, dimension_numbers.lhs_spec), transpose(w, dimension_numbers.rhs_spec)
    if (parts := batch_group_count) > 1:
        n, channels, *sizes = x.shape
        split = reshape(x, (parts, n // parts, channels, *sizes))
        x = reshape(transpose(split, (1, 0, *range(2, split.ndim))), (n // parts, parts * channels, *sizes))
    groups = feature_group_count * parts
    y = _as_transposed(x, w, padding, lhs_dilation, rhs_dilation, groups) if set(window_strides) <= {1} else None
    if y is None:
        ends = [(lo, hi, gap - 1) for (lo, hi), gap in zip(padding, lhs_dilation, strict=True)]
        if any(lo < 0 or hi < 0 or gap for lo, hi, gap in ends):
            x, padding = pad_with_gaps(x, [(0, 0, 0), (0, 0, 0), *ends]), ((0, 0),) * len(padding)
        y = conv(x, w, None, window_strides, padding, rhs_dilation, groups)
    return transpose(y, compose.inverse_permutation(dimension_numbers.out_spec))


def _as_transposed(x: Var, w: Var, padding: Pairs, gaps: Sizes, dilation: Sizes, groups: int) -> Any:
    """A convolution of what is spaced out by ``s``, as a transposed one; None if it is not spaced out, or is not one.

    Output ``o`` meets ``x[i]·w[k]`` where ``o + d·k − lo = i·s``. With the kernel read backwards, ``k = K−1−k'``, that
    is ``i·s + d·k' = o + p`` for ``p = d·(K−1) − lo``: cell ``o`` of a plane that is padded by ``p``, tap ``k'`` of
    its window ``i``.
    """
    reach = [d * (k - 1) for d, k in zip(dilation, w.shape[2:], strict=True)]
    pads = tuple((r - lo, r - hi) for r, (lo, hi) in zip(reach, padding, strict=True))
    if set(gaps) <= {1} or any(n < 0 for pair in pads for n in pair):
        return None
    outputs = x.shape[2:]
    sizes = tuple(
        (n - 1) * s + 1 + lo + hi - r for n, s, (lo, hi), r in zip(outputs, gaps, padding, reach, strict=True)
    )
    if min((*sizes, *outputs)) < 1:
        return None
    attrs = Convolution(sizes, w.shape[2:], gaps, pads, dilation, outputs, groups)
    m, c, *kernel = w.shape
    by_group = transpose(reshape(w, (groups, m // groups, c, *kernel)), (0, 2, 1, *range(3, w.ndim + 1)))
    whole = reshape(by_group, (groups * c, m // groups, *kernel))
    return apply(WRITE, attrs, x, compose.flip(whole, range(2, whole.ndim)))


RULES: dict[str, Rule] = {
    **functions_named(ops, "neg abs sqrt exp log sin cos atan tanh erf floor"),
    **functions_named(compose, "ceil tan asin acos sinh cosh asinh acosh atanh erfc"),
    "add": _unless(_match_log_sum_exp, ops.add),
    "add_any": ops.add,
    "sub": _unless(_match_difference, ops.sub),
    "mul": _mul,
    "div": _unless(_match_quotient, compose.divide),
    "rem": _rem,
    "sign": _sign,
    "max": _max,
    "min": ops.minimum,
    "clamp": _clamp,
    "square": lambda x: x * x,
    "one_minus_square": lambda x: (1 + x) * (1 - x),
    "polynomial": lambda x, *factors: reduce(lambda total, factor: total * x + factor, reversed(factors)),
    "integer_pow": lambda x, *, y: compose.power(x, y),
    "pow": _pow,
    "rsqrt": lambda x: 1.0 / ops.sqrt(x),
    "cbrt": lambda x: apply(ABS_POWER, AbsPower(1 / 3, signed=True), x),
    "exp2": lambda x: ops.exp(ops.scale(x, log(2))),
    "log2": lambda x: compose.log_to_base(x, 2),
    "expm1": compose.exp_minus_one,
    "log1p": compose.log_one_plus,
    "logistic": ops.sigmoid,
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
    "not": bits.bitwise_not,
    "and": bits.bitwise_and,
    "or": bits.bitwise_or,
    "xor": bits.bitwise_xor,
    "shift_left": bits.left_shift,
    "shift_right_arithmetic": bits.right_shift,
    "shift_right_logical": _logical_shift,
    "select_n": _select,
    # What is written for CPUs, or for all that nothing is written for.
    "platform_index": lambda *, platforms: np.asarray(
        next(i for i, names in enumerate(platforms) if names is None or "cpu" in names), np.int32
    ),
    "reduce_sum": lambda x, *, axes: sum(x, axes) if axes else x,
    "reduce_prod": lambda x, *, axes: compose.product(x, axes, False),
    "reduce_max": _extreme(compose.largest),
    "reduce_min": _extreme(compose.smallest),
    "reduce_or": lambda x, *, axes: compose.any_true(require_truths(x), axes, False),
    "reduce_and": lambda x, *, axes: compose.all_true(require_truths(x), axes, False),
    "argmax": _place(indexing.argmax),
    "argmin": _place(indexing.argmin),
    "cumsum": lambda x, *, axis, reverse: cumsum(x, axis, reverse=reverse),
    "cumprod": _running(compose.running_product),
    "cummax": _running(compose.running_maximum),
    "cummin": _running(compose.running_minimum),
    "cumlogsumexp": _running(compose.running_log_sum_exp),
    "sort": _sort,
    "top_k": _top_k,
    "reduce_window_sum": _window_sum,
    "reduce_window_max": _window_max,
    "reduce_window_min": lambda x, **windows: compose.reversed_order(_window_max(compose.reversed_order(x), **windows)),
    "select_and_gather_add": _of_winners(MAX_POOL_GATHER),
    "select_and_scatter_add": _of_winners(MAX_POOL_SCATTER),
    "dot_general": _dot_general,
    "conv_general_dilated": _conv,
}

OF_LIBRARY: dict[str, Rule] = {"relu": ops.relu, "relu6": _relu6, "logaddexp": _log_add_exp}
"""Functions of JAX that have rules for their derivatives, and what does the same."""
