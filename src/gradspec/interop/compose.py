"""What other libraries have as one operator, composed of ours. All of it takes variables and arrays alike."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import accumulate, pairwise
from math import inf, nan, prod
from math import log as log_of
from math import sqrt as sqrt_of
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from gradspec.graph.builder import apply, operands
from gradspec.graph.ir import Array, NoAttributes, Operand, Var, whole_power
from gradspec.graph.types import DType, bf16, boolean, dtype_of, f32, f64, u8
from gradspec.ops import gather, layout
from gradspec.ops.convert import convert
from gradspec.ops.layout import concat, getitem, transpose, turned
from gradspec.ops.linear import matmul
from gradspec.ops.lp_pool import ABS_POWER, AbsPower, lp_pool
from gradspec.ops.pointwise import (
    EXP,
    GATE,
    NORMAL_CDF,
    STEP,
    Levels,
    abs,
    add,
    atan,
    clamp,
    cos,
    detach,
    div,
    exp,
    floor,
    log,
    maximum,
    minimum,
    mul,
    neg,
    scale,
    sin,
    softplus,
    sqrt,
    sub,
    tanh,
    trunc_divide,
)
from gradspec.ops.pool import global_max_pool, max_pool
from gradspec.ops.reduce import mean, softmax
from gradspec.ops.rules import broadcast_shape
from gradspec.ops.select import equal, greater, less, where
from gradspec.ops.shape import broadcast_to, reshape
from gradspec.ops.shape import sum as sum_over
from gradspec.ops.smooth_pool import smooth_max_pool
from gradspec.spec.errors import ShapeError, UnsupportedError
from gradspec.spec.layout import normal_axis

Pairs = Sequence[tuple[int, int]]

MOST_SQUARED = 64
"""The largest power that is made of products."""

MOST_PIECES = 4096
"""Pieces that one operator may be put together from before it refuses."""

MOST_SLICES = 16
"""Slices that a selection is put together from; what needs more is gathered."""


Function: TypeAlias = Callable[..., Any]


def functions_named(module: ModuleType, names: str) -> dict[str, Function]:
    """The functions of a module by their names, which other libraries have for them, too."""
    return {name: getattr(module, name) for name in names.split()}


# --- selections by sign -----------------------------------------------------------------------------------------------


def _passed(x: Var, t: Var, below: float, at: float, above: float) -> Var:
    """``t`` where the level that the sign of ``x`` chooses is 1, and 0 where it is 0, whatever ``t`` is there."""
    return apply(GATE, NoAttributes(), apply(STEP, Levels(below, at, above), x), t)


def prelu(x: Var, slope: Var) -> Var:
    """``x`` above 0, ``slope · x`` at and below: the slope is broadcast, and has a derivative of its own."""
    x, slope = operands(x, slope)
    return _passed(x, x, 0.0, 0.0, 1.0) + slope * _passed(x, x, 1.0, 1.0, 0.0)


def elu(x: Var, alpha: float = 1.0, *, gain: float = 1.0, steepness: float = 1.0) -> Var:
    """``gain · x`` above 0, ``gain · alpha · (exp(steepness · x) − 1)`` at and below.

    The exponential is taken of what is not positive, so that it cannot overflow where it is not used.
    """
    (x,) = operands(x)
    lower = scale(exp_minus_one(scale(clamp(x, max=0.0), steepness)), alpha)
    y = _passed(x, x, 0.0, 0.0, 1.0) + _passed(x, lower, 1.0, 1.0, 0.0)
    return y if gain == 1.0 else scale(y, gain)


def exp_minus_one(x: Var) -> Var:
    """``exp(x) − 1`` as ``tanh(x/2) · (exp(x) + 1)``, which is accurate near 0 too."""
    return tanh(scale(x, 0.5)) * (exp(x) + 1.0)


def log_one_plus(x: Var) -> Var:
    """``log(1 + x)``; near 0 with what the sum ``u`` has lost of ``x``, by the derivative ``1/u`` there.

    Of an exponential it is softplus, which neither overflows nor loses what is small.
    """
    (x,) = operands(x)
    maker = x.owner.maker(x) if isinstance(x, Var) else None
    if maker is not None and maker.op is EXP:
        return softplus(maker.inputs[0])
    u = x + 1.0
    lost = detach(div(x - (u - 1.0), u))
    return log(u) + where(less(abs(x), 0.5), lost, 0.0)


def celu(x: Var, alpha: float = 1.0) -> Var:
    """``elu`` with a derivative of 1 at 0 for every ``alpha``."""
    return elu(x, alpha, steepness=1.0 / alpha)


# --- comparisons ------------------------------------------------------------------------------------------------------


def logical_not(x: Operand) -> Var:
    return equal(x, False)


def unequal(a: Operand, b: Operand) -> Var:
    return logical_not(equal(a, b))


def greater_equal(a: Operand, b: Operand) -> Var:
    return maximum(greater(a, b), equal(a, b))


def less_equal(a: Operand, b: Operand) -> Var:
    return maximum(less(a, b), equal(a, b))


# --- rounding to integers ---------------------------------------------------------------------------------------------


def ceil(x: Var) -> Var:
    """The least integer that is not below ``x``; its derivative is 0."""
    return neg(floor(neg(x)))


def trunc(x: Var) -> Var:
    """``x`` without its fraction; its derivative is 0."""
    (x,) = operands(x)
    return where(less(x, 0), ceil(x), floor(x))


def sign(x: Var) -> Var:
    """−1, 0 or 1, as ``x`` is below, at or above 0; 0 where it is not a number. Its derivative is 0.

    >>> sign(np.float32([-2, -0.0, 3, np.nan])).tolist(), sign(np.uint8([0, 7])).tolist()
    ([-1.0, 0.0, 1.0, 0.0], [0, 1])
    """
    (x,) = operands(x)
    kind = _dtype(x)
    return sub(convert(greater(x, 0), kind), convert(less(x, 0), kind))


# --- smooth -----------------------------------------------------------------------------------------------------------


def hardsigmoid(x: Var, slope: float = 1 / 6, offset: float = 0.5) -> Var:
    """``slope · x + offset``, kept between 0 and 1."""
    return clamp(scale(x, slope) + offset, 0.0, 1.0)


def hardswish(x: Var) -> Var:
    """``x · hardsigmoid(x)``."""
    return x * hardsigmoid(x)


def mish(x: Var) -> Var:
    """``x · tanh(softplus(x))``."""
    return x * tanh(softplus(x))


def softsign(x: Var) -> Var:
    """``x / (1 + |x|)``."""
    return x / (abs(x) + 1.0)


def log_to_base(x: Var, base: int) -> Var:
    """``log x / log base`` in double precision, so that in smaller formats powers of the base have whole logarithms.

    >>> log_to_base(np.float32([8, 2**29]), 2).tolist(), log_to_base(np.float32([1000]), 10).tolist()
    ([3.0, 29.0], [3.0])
    """
    (x,) = operands(x)
    return convert(log(convert(x, f64)) / log_of(base), _dtype(x))


def remainder(a: Operand, b: Operand, *, sign_of_divisor: bool) -> Var:
    """What is left of integers when they are divided, with the sign of the divisor or of the dividend.

    >>> remainder(np.int64([7, -7]), np.int64([3, 3]), sign_of_divisor=True).tolist()
    [1, 2]
    """
    dividend, divisor = operands(a, b)
    rest = dividend - divisor * trunc_divide(dividend, divisor)
    if not sign_of_divisor:
        return rest
    differs = minimum(unequal(less(rest, 0), less(divisor, 0)), unequal(rest, 0))
    return where(differs, rest + divisor, rest)


def divide(a: Var, b: Var) -> Var:
    """A quotient of floats, or of integers without its fraction."""
    return div(a, b) if a.type.is_float else trunc_divide(a, b)


def tan(x: Var) -> Var:
    """``sin x / cos x``, which are never both small."""
    return sin(x) / cos(x)


def sinh(x: Var) -> Var:
    """``(exp x − exp(−x)) / 2``, accurate near 0 too."""
    return scale(exp_minus_one(x) - exp_minus_one(neg(x)), 0.5)


def cosh(x: Var) -> Var:
    """``(exp x + exp(−x)) / 2``."""
    return scale(exp(x) + exp(neg(x)), 0.5)


def asin(x: Var) -> Var:
    """The angle whose sine is ``x``; NaN beyond ±1, as that of every function here where it is not real."""
    return atan(x / sqrt((1.0 - x) * (x + 1.0)))


def acos(x: Var) -> Var:
    return scale(atan(sqrt((1.0 - x) / (x + 1.0))), 2.0)


def asinh(x: Var) -> Var:
    """``log(x + √(x² + 1))``, accurate near 0 too; no square overflows."""

    def above(x: Var) -> Var:
        is_small = less(x, 1.0)
        size, part = where(is_small, 1.0, x), where(is_small, x, 1.0)
        one = 1.0 / size
        least = part * one  # of both, of which the other is 1
        return log(size) + log_one_plus(part + least * least / (sqrt(part * part + one * one) + 1.0))

    return _odd(x, above)


def acosh(x: Var) -> Var:
    root = 1.0 / sqrt(x - 1.0)
    return log(x) + log_one_plus(sqrt((1.0 + 1.0 / x) / (1.0 + root * root)))


def atanh(x: Var) -> Var:
    return _odd(x, lambda x: scale(log_one_plus(x * 2.0 / (1.0 - x)), 0.5))


def _odd(x: Var, above: Callable[[Var], Var]) -> Var:
    """A function that changes its sign with its argument, given from 0 on."""
    (x,) = operands(x)
    is_below = less(x, 0)
    y = above(where(is_below, neg(x), x))
    return where(is_below, neg(y), y)


def float_remainder(a: Operand, b: Operand, *, sign_of_divisor: bool) -> Var:
    """What is left of floats when they are divided, as Python and C have it; NaN for float32 quotients of 2²⁸ or more.

    In double precision quotients below that of numbers of 24 bits reach no integer by rounding, and what is taken away
    is exact; numbers of 11 bits may have quotients below 2⁴¹, which all of float16 are.

    >>> float_remainder(np.float32([5.5, -5.5]), np.float32([2, 2]), sign_of_divisor=True).tolist()
    [1.5, 0.5]
    """
    dividend, divisor = operands(a, b)
    if _dtype(dividend) is f64:
        raise UnsupportedError("the remainder of float64; only that of smaller floats is exact, so convert to float32")
    wide, by = convert(dividend, f64), convert(divisor, f64)
    quotient = wide / by
    whole, most = detach(trunc(quotient)), 2.0**28 if _dtype(dividend) is f32 else 2.0**41
    taken = where(equal(whole, 0.0), 0.0, by * whole)  # also of an infinite divisor
    rest = convert(where(less(abs(quotient), most), wide - taken, nan), _dtype(dividend))
    if not sign_of_divisor:
        return where(less(dividend, 0.0), neg(abs(rest)), rest)
    is_below = less(divisor, 0.0)
    size = abs(where(minimum(unequal(less(rest, 0.0), is_below), unequal(rest, 0.0)), rest + divisor, rest))
    return where(is_below, neg(size), size)


def erfc(x: Var) -> Var:
    """``1 − erf x``, as twice the share of the normal distribution below ``−√2·x``: accurate where it is small.

    >>> 2.08e-45 < erfc(np.float64([10])).item() < 2.09e-45
    True
    """
    return scale(apply(NORMAL_CDF, NoAttributes(), scale(x, -sqrt_of(2))), 2.0)


def times(x: Var, factor: float) -> Var:
    """``x`` times a number, and ``x`` itself for 1."""
    return x if factor == 1 else scale(x, factor)


def power(x: Var, exponent: float) -> Var:
    """``x`` to a constant power; NaN where ``x`` is negative and the exponent no integer.

    Whole powers are products; of the others those above 1 are ``|x|^p``, flat at 0, and NaN where ``x`` is negative,
    and those below are ``|√x|^(2p)``, since the root is NaN where the power is. Negative ones divide 1 by these.

    >>> power(np.float32([-2, 3]), 3).tolist(), power(np.float32([4]), 1.5).tolist()
    ([-8.0, 27.0], [8.0])
    """
    if exponent == 0:
        x, one = operands(x, 1.0)
        return broadcast_to(one, x.shape)  # where ``x`` is not a number, too
    if exponent < 0:
        return 1.0 / power(x, -exponent)
    if exponent == 0.5:
        return sqrt(x)
    if float(exponent).is_integer():
        return _whole_power(x, int(exponent))
    if exponent > 1:
        x, not_a_number = operands(x, nan)
        return apply(ABS_POWER, AbsPower(float(exponent)), x) + _passed(
            x, broadcast_to(not_a_number, x.shape), 1.0, 0.0, 0.0
        )
    return apply(ABS_POWER, AbsPower(2.0 * exponent), sqrt(x))


def _whole_power(x: Var, n: int) -> Var:
    """A product of few; roundings add up, so not of many."""
    if n <= MOST_SQUARED:
        return whole_power(x, n)
    even = apply(ABS_POWER, AbsPower(float(n - n % 2)), x)
    return even * x if n % 2 else even


def log_sum_exp(x: Var, axes: Sequence[int], keepdims: bool) -> Var:
    """``log Σ exp x`` over ``axes``, without overflow: smooth max pooling of everything, with β = 1."""
    return _over(x, axes, keepdims, lambda t, sizes: smooth_max_pool(t, sizes, beta=1.0))


# --- reductions -------------------------------------------------------------------------------------------------------


def norm(x: Var, p: float, axes: Sequence[int], keepdims: bool) -> Var:
    """``(Σ |x|^p)^(1/p)`` over ``axes``, with derivative 0 where it is 0: power pooling of everything."""
    return _over(x, axes, keepdims, lambda t, sizes: lp_pool(t, p, sizes))


def largest(x: Var, axes: Sequence[int], keepdims: bool, *, ties: str = "first") -> Var:
    """The largest number over ``axes``."""
    return _over(x, axes, keepdims, lambda t, sizes: global_max_pool(t, len(sizes), ties=ties))


def smallest(x: Var, axes: Sequence[int], keepdims: bool, *, ties: str = "first") -> Var:
    """The smallest number over ``axes``."""
    (x,) = operands(x)
    return reversed_order(largest(reversed_order(x), axes, keepdims, ties=ties))


def product(x: Var, axes: Sequence[int], keepdims: bool) -> Var:
    """The product over ``axes``, by halves: the first half of the numbers times the second, until one is left.

    Its derivatives are products of all the other numbers, right where some of them are 0.
    """

    def of_rows(t: Var, sizes: tuple[int, ...]) -> Var:
        rows = reshape(t, (*t.shape[: len(t.shape) - len(sizes)], prod(sizes)))
        last = len(rows.shape) - 1
        if rows.shape[last] == 0:
            _, one = operands(rows, 1)
            return broadcast_to(one, rows.shape[:last])
        while (n := rows.shape[last]) > 1:
            half = -(-n // 2)
            rows = _cut(rows, last, 0, half) * _grown(_cut(rows, last, half, n - half), last, 0, 2 * half - n)
        return rows

    return _over(x, axes, keepdims, of_rows)


def running_product(x: Var, axis: int) -> Var:
    """Each number times all before it along ``axis``, by doubling: of the last 1, 2, 4, … numbers up to each.

    Its derivatives are right where some numbers are 0.
    """
    (x,) = operands(x)
    axis, span = normal_axis("the product", axis, len(x.shape)), 1
    while span < x.shape[axis]:
        x = x * _grown(_cut(x, axis, 0, x.shape[axis] - span), axis, span, 0)
        span *= 2
    return x


def running_maximum(x: Var, axis: int) -> Var:
    """The largest of each number and all before it along ``axis``."""
    return _pool_those_before(max_pool, x, axis)


def running_minimum(x: Var, axis: int) -> Var:
    return reversed_order(running_maximum(reversed_order(x), axis))


def running_log_sum_exp(x: Var, axis: int) -> Var:
    return _pool_those_before(partial(smooth_max_pool, beta=1.0, padding_mode="ignore"), x, axis)


def _pool_those_before(pool: Callable[..., Var], x: Var, axis: int) -> Var:
    n = x.shape[axis]
    return gather.moved(pool(gather.moved(x, axis, -1), (n,), 1, [(n - 1, 0)]), -1, axis)


def _grown(x: Var, axis: int, lo: int, hi: int) -> Var:
    """``x`` with ones before and behind it along an axis."""
    return pad(x, [(lo, hi) if a == axis else (0, 0) for a in range(len(x.shape))], "constant", 1)


def any_true(x: Var, axes: Sequence[int], keepdims: bool) -> Var:
    """Whether one of the booleans over ``axes`` is true."""
    return convert(largest(convert(x, u8), axes, keepdims), boolean)


def all_true(x: Var, axes: Sequence[int], keepdims: bool) -> Var:
    return logical_not(any_true(logical_not(x), axes, keepdims))


def reversed_order(x: Var) -> Var:
    """The numbers of a dtype in reverse order: ``−x``, which integers do not always have, and then ``−1 − x``.

    >>> reversed_order(np.uint8([0, 1, 255])).tolist(), reversed_order(np.float32([2])).tolist()
    ([255, 254, 0], [-2.0])
    """
    kind = _dtype(x).numpy
    return sub(np.asarray(-1).astype(kind), x) if kind.kind in "iu" else neg(x)


def _dtype(x: Var | Array) -> DType:
    return x.dtype if isinstance(x, Var) else dtype_of(x)


def _over(x: Var, axes: Sequence[int], keepdims: bool, pooled: Callable[[Var, tuple[int, ...]], Var]) -> Var:
    """A pooling of whole planes, over any axes: they are moved to the end for it."""
    (x,) = operands(x)
    rank = len(x.shape)
    chosen = tuple(sorted({normal_axis("the reduction", a, rank) for a in axes}))
    if not chosen:
        return x
    rest = tuple(a for a in range(rank) if a not in chosen)
    moved = transpose(x, (*rest, *chosen))
    y = pooled(moved, moved.shape[len(rest) :])
    shape = [1 if a in chosen else n for a, n in enumerate(x.shape) if keepdims or a not in chosen]
    return reshape(y, shape)


# --- normalisation ----------------------------------------------------------------------------------------------------


def normalized(x: Var, axes: Sequence[int], eps: float, *, keeps_statistics: bool = False) -> Var:
    """``(x − mean) / √(variance + eps)``, both over ``axes``; the statistics may be stored in the dtype of ``x``."""
    (x,) = operands(x)
    wide, dtype = widened(x), _dtype(x)
    if keeps_statistics and wide is not x:
        return _by_kept_statistics(wide, axes, eps, dtype)
    centred = wide - mean(wide, axes, keepdims=True)
    y = centred / sqrt(mean(centred * centred, axes, keepdims=True) + eps)
    return y if wide is x else convert(y, dtype)


def _by_kept_statistics(x: Var, axes: Sequence[int], eps: float, dtype: DType) -> Var:
    """Numbers of ``f32``, normalised by a mean and an inverse deviation that are stored in 16 bits.

    So are, in ``bf16``, a sum of squares and its mean. In ``f16`` these might be infinite.
    """

    def kept(v: Var) -> Var:
        return convert(convert(v, dtype), f32)

    centre = mean(x, axes, keepdims=True)
    squares = (x - centre) * (x - centre)
    if dtype is bf16:
        count = prod(x.shape[a] for a in axes)
        variance = kept(kept(sum_over(squares, axes, keepdims=True)) / count)
    else:
        variance = mean(squares, axes, keepdims=True)
    return convert((x - kept(centre)) * kept(1.0 / sqrt(variance + eps)), dtype)


def widened(x: Var) -> Var:
    """Formats of 16 bits as ``f32``: in ``f16`` the square of 256 is infinite."""
    return convert(x, f32) if _dtype(x).numpy.itemsize == 2 else x


def layer_norm(x: Var, rank: int, weight: Var | None = None, bias: Var | None = None, eps: float = 1e-5) -> Var:
    """Normalised over the last ``rank`` axes, then scaled and shifted."""
    return affine(normalized(x, tuple(range(-rank, 0)), eps), weight, bias)


def group_norm(
    x: Var,
    groups: int,
    weight: Var | None = None,
    bias: Var | None = None,
    eps: float = 1e-5,
    *,
    keeps_statistics: bool = False,
) -> Var:
    """Each group of channels of ``x (N, C, …)`` normalised, then every channel scaled and shifted.

    One group per channel is instance normalisation.
    """
    n, channels, *sizes = x.shape
    if groups < 1 or channels % groups:
        raise ShapeError(f"{channels} channels do not make {groups} groups of equal size")
    grouped = reshape(x, (n, groups, channels // groups * prod(sizes)))
    y = reshape(normalized(grouped, (2,), eps, keeps_statistics=keeps_statistics), x.shape)
    return affine(y, by_channel(weight, len(sizes)), by_channel(bias, len(sizes)))


def rms_norm(x: Var, rank: int, weight: Var | None = None, eps: float = 1e-5) -> Var:
    """``x / √(mean(x²) + eps)`` over the last ``rank`` axes, then scaled."""
    (x,) = operands(x)
    wide, dtype = widened(x), _dtype(x)
    y = convert(wide / sqrt(mean(wide * wide, tuple(range(-rank, 0)), keepdims=True) + eps), dtype)
    return affine(y, weight, None)


def variance(x: Var, axes: Sequence[int], correction: float = 1.0, keepdims: bool = False) -> Var:
    """The sum of squared differences from the mean over ``axes``, by their number less ``correction``."""
    (x,) = operands(x)
    count = prod(x.shape[axis] for axis in axes) - correction
    if count <= 0:
        raise ShapeError(f"a variance over the axes {tuple(axes)} of {x.shape}, with correction={correction}, is none")
    wide, dtype = widened(x), _dtype(x)
    centred = wide - mean(wide, axes, keepdims=True)
    return convert(sum_over(centred * centred, axes, keepdims) / float(count), dtype)


def attention(query: Var, key: Var, value: Var, causal: bool = False) -> Var:
    """``softmax(query · keyᵀ / √size) · value``; with ``causal`` a query sees no key behind its own place.

    >>> x = np.float32([[1], [3]])
    >>> attention(np.zeros_like(x), x, x).tolist(), attention(np.zeros_like(x), x, x, causal=True).tolist()
    ([[2.0], [2.0]], [[1.0], [2.0]])
    """
    query, key, value = operands(query, key, value)
    dtype = _dtype(query)
    scores = convert(scale(widened(matmul(query, turned(key))), 1 / sqrt_of(query.shape[-1])), dtype)
    seen = np.tri(*scores.shape[-2:], dtype=np.bool_)
    return matmul(softmax(where(seen, scores, -inf) if causal else scores), value)


def affine(x: Var, weight: Var | None, bias: Var | None) -> Var:
    """``x · weight + bias``, of which each may be None."""
    scaled = x if weight is None else x * weight
    return scaled if bias is None else scaled + bias


def by_channel(values: Var | None, rank: int) -> Var | None:
    """One number per channel, to be broadcast over ``rank`` spatial axes."""
    return None if values is None else reshape(values, (*values.shape, *(1,) * rank))


# --- layout -----------------------------------------------------------------------------------------------------------


def pad(x: Var, pairs: Pairs, mode: str = "constant", value: float = 0.0) -> Var:
    """``x`` with ``(lo, hi)`` cells more on each axis, or fewer if negative.

    ``mode`` says what is there: ``"constant"``, ``"reflect"`` (about the end cell), ``"edge"`` (the end cell again) or
    ``"wrap"`` (what is at the other end).

    >>> pad(np.float32([1, 2, 3]), [(2, 1)], "reflect").tolist(), pad(np.float32([1, 2, 3]), [(-1, 2)], "wrap").tolist()
    ([3.0, 2.0, 1.0, 2.0, 3.0, 2.0], [2.0, 3.0, 2.0, 3.0])
    """
    (x,) = operands(x)
    if len(pairs) != len(x.shape):
        raise ShapeError(f"padding {tuple(pairs)} needs one pair for each axis of the shape {x.shape}")
    window = [slice(max(-lo, 0), n - max(-hi, 0)) for n, (lo, hi) in zip(x.shape, pairs, strict=True)]
    if any(w.stop < w.start for w in window):
        raise ShapeError(f"padding {tuple(pairs)} takes more than there is of an axis of the shape {x.shape}")
    x = getitem(x, tuple(window))
    grown = [(max(lo, 0), max(hi, 0)) for lo, hi in pairs]
    if mode == "constant":
        return layout.pad(x, grown, value) if any(map(any, grown)) else x
    if mode not in _BORDERS:
        raise UnsupportedError(f"padding mode {mode!r} is not known; give constant, {', '.join(_BORDERS)}")
    for axis, (lo, hi) in enumerate(grown):
        if lo or hi:
            x = _BORDERS[mode](x, axis, lo, hi)
    return x


def _cut(x: Var, axis: int, start: int, size: int, step: int = 1) -> Var:
    """``size`` cells of one axis from ``start`` on."""
    stop = start + size * step
    return getitem(x, (*[slice(None)] * axis, slice(start, None if stop < 0 else stop, step)))


def _reflect(x: Var, axis: int, lo: int, hi: int) -> Var:
    n = x.shape[axis]
    if max(lo, hi) >= n:
        raise ShapeError(
            f"reflect padding of ({lo}, {hi}) needs more than {max(lo, hi)} cells, and axis {axis} has {n}"
        )
    parts = [_cut(x, axis, lo, lo, -1), x, _cut(x, axis, n - 2, hi, -1)]
    return concat([part for part in parts if part.shape[axis]], axis)


def _edge(x: Var, axis: int, lo: int, hi: int) -> Var:
    n = x.shape[axis]
    if n == 0:
        raise ShapeError(f"edge padding needs a cell to repeat, and axis {axis} has none")

    def repeated(cell: Var, times: int) -> Var:
        return broadcast_to(cell, (*x.shape[:axis], times, *x.shape[axis + 1 :]))

    ends = [(repeated(_cut(x, axis, 0, 1), lo), lo), (x, 1), (repeated(_cut(x, axis, n - 1, 1), hi), hi)]
    return concat([part for part, times in ends if times], axis)


def _wrap(x: Var, axis: int, lo: int, hi: int) -> Var:
    n = x.shape[axis]
    if n == 0:
        raise ShapeError(f"wrap padding needs a cell to repeat, and axis {axis} has none")
    if lo + hi > MOST_PIECES * n:
        raise UnsupportedError(f"wrap padding of ({lo}, {hi}) repeats {n} cells more than {MOST_PIECES} times")
    parts = [_cut(x, axis, n - lo % n, lo % n), *[x] * (lo // n + 1 + hi // n), _cut(x, axis, 0, hi % n)]
    return concat([part for part in parts if part.shape[axis]], axis)


_BORDERS: dict[str, Callable[[Var, int, int, int], Var]] = {"reflect": _reflect, "edge": _edge, "wrap": _wrap}


def take(x: Var, indices: ArrayLike, axis: int) -> Var:
    """``numpy.take`` for constant indices: a few steady runs of them are slices."""
    (x,) = operands(x)
    axis, places = normal_axis("take", axis, len(x.shape)), np.asarray(indices)
    n = x.shape[axis]
    if places.size and not (-n <= places.min() and places.max() < n):
        raise ShapeError(f"an index from {places.min()} to {places.max()} lies outside axis {axis}, of size {n}")
    runs = _runs((places % n).reshape(-1).tolist() if n else [])
    if len(runs) > MOST_SLICES:
        return gather.take(x, (places % n).astype(np.int64), axis)
    shape = (*x.shape[:axis], *places.shape, *x.shape[axis + 1 :])
    if not runs:
        return reshape(_cut(x, axis, 0, 0), shape)
    return reshape(concat([_cut(x, axis, *run) for run in runs], axis), shape)


def _runs(places: Sequence[int]) -> list[tuple[int, int, int]]:
    """The places in order, as runs ``(start, size, step)`` of equal non-zero steps."""
    runs: list[tuple[int, int, int]] = []
    for place in places:
        if runs:
            start, size, step = runs[-1]
            jump = place - (start + (size - 1) * step)
            if jump and (size == 1 or jump == step):
                runs[-1] = (start, size + 1, jump)
                continue
        runs.append((place, 1, 1))
    return runs


def split(x: Var, sizes: Sequence[int], axis: int) -> list[Var]:
    """The pieces of ``sizes`` cells that make up an axis."""
    (x,) = operands(x)
    axis = normal_axis("split", axis, len(x.shape))
    if sum(sizes) != x.shape[axis] or any(size < 0 for size in sizes):
        raise ShapeError(f"pieces of {tuple(sizes)} cells do not make up axis {axis}, of size {x.shape[axis]}")
    ends = pairwise(accumulate(sizes, initial=0))
    return [_cut(x, axis, start, stop - start) for start, stop in ends]


def tile(x: Var, repeats: Sequence[int]) -> Var:
    """``x`` that many times over along each axis."""
    (x,) = operands(x)
    if len(repeats) != len(x.shape) or any(r < 0 for r in repeats):
        raise ShapeError(f"repeats {tuple(repeats)} need one number, 0 or more, for each axis of the shape {x.shape}")
    pairs = [*zip(repeats, x.shape, strict=True)]
    spread = reshape(x, [size for _, n in pairs for size in (1, n)])
    return reshape(broadcast_to(spread, [size for pair in pairs for size in pair]), [r * n for r, n in pairs])


def repeat_each(x: Var, times: int, axis: int) -> Var:
    """Every cell of an axis that many times, one after the other.

    >>> repeat_each(np.float32([1, 2]), 2, 0).tolist()
    [1.0, 1.0, 2.0, 2.0]
    """
    before, size, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    each = broadcast_to(reshape(x, (*before, size, 1, *after)), (*before, size, times, *after))
    return reshape(each, (*before, size * times, *after))


def flip(x: Var, axes: Collection[int]) -> Var:
    """``x`` read backwards along ``axes``."""
    return getitem(x, tuple(slice(None, None, -1 if a in axes else 1) for a in range(len(x.shape))))


def inverse_permutation(order: Sequence[int]) -> list[int]:
    """The order of axes that undoes another."""
    return [order.index(a) for a in range(len(order))]


def depth_to_space(x: Var, block: int, *, channels_first: bool) -> Var:
    """Channels of ``x (N, C, H, W)`` laid out as blocks of ``block × block`` cells.

    The channel is split into (channel, row, column) if ``channels_first``, else into (row, column, channel).

    >>> depth_to_space(np.float32([1, 2, 3, 4]).reshape(1, 4, 1, 1), 2, channels_first=True).tolist()
    [[[[1.0, 2.0], [3.0, 4.0]]]]
    """
    n, channels, height, width = _plane(x)
    if block < 1 or channels % block**2:
        raise ShapeError(f"{channels} channels do not make blocks of {block} × {block} cells")
    c = channels // block**2
    shape, order = (
        ((c, block, block), (0, 1, 4, 2, 5, 3)) if channels_first else ((block, block, c), (0, 3, 4, 1, 5, 2))
    )
    split_up = transpose(reshape(x, (n, *shape, height, width)), order)
    return reshape(split_up, (n, c, height * block, width * block))


def space_to_depth(x: Var, block: int, *, channels_first: bool = False) -> Var:
    """Blocks of ``block × block`` cells of ``x (N, C, H, W)`` as channels, which undoes ``depth_to_space``.

    >>> space_to_depth(np.float32([[[[1, 2], [3, 4]]]]), 2).reshape(-1).tolist()
    [1.0, 2.0, 3.0, 4.0]
    """
    n, channels, height, width = _plane(x)
    if block < 1 or height % block or width % block:
        raise ShapeError(f"a plane of {height} × {width} cells does not fall into blocks of {block} × {block}")
    split_up = reshape(x, (n, channels, height // block, block, width // block, block))
    moved = transpose(split_up, (0, 1, 3, 5, 2, 4) if channels_first else (0, 3, 5, 1, 2, 4))
    return reshape(moved, (n, channels * block**2, height // block, width // block))


def _plane(x: Var) -> tuple[int, int, int, int]:
    if len(x.shape) != 4:
        raise ShapeError(f"images of shape (N, C, H, W) are needed, not {x.shape}")
    n, channels, height, width = x.shape
    return n, channels, height, width


def variable_power(x: Operand, exponent: Operand) -> Var:
    """``x`` to the power of another tensor, as C has it: of a negative ``x`` whole powers, the others are NaN.

    That is ``exp(exponent · log |x|)`` in double precision, with the sign of ``x`` for odd exponents. The derivative by
    the exponent is 0 where ``x`` is not positive.

    >>> variable_power(np.float32([2, -2, -2, 0]), np.float32([0.5, 3, 0.5, 0])).tolist()
    [1.4142135381698608, -8.0, nan, 1.0]
    """
    base, power = operands(x, exponent)
    shape = broadcast_shape("power", base.shape, power.shape)
    base, power = broadcast_to(base, shape), broadcast_to(power, shape)
    return convert(_double_power(convert(base, f64), convert(power, f64)), _dtype(base))


def _double_power(x: Var, y: Var) -> Var:
    is_zero, is_below, size = equal(x, 0.0), less(x, 0.0), abs(x)
    is_odd = equal(sub(y, scale(floor(scale(y, 0.5)), 2.0)), 1.0)
    plain = exp(mul(where(is_below, detach(y), y), log(where(is_zero, 1.0, size))))
    signed = where(minimum(is_below, is_odd), neg(plain), plain)
    not_real = minimum(minimum(is_below, greater(x, -inf)), unequal(floor(y), y))
    return where(_is_always_one(x, y), 1.0, where(is_zero, _power_of_zero(x, y, is_odd), where(not_real, nan, signed)))


def _is_always_one(x: Var, y: Var) -> Var:
    """Where C's power is 1 although the formula is not a number: infinities and NaN to 0, ±1 to infinity, 1 to NaN."""
    to_zero = minimum(equal(y, 0.0), logical_not(less(abs(x), inf)))
    to_infinity = minimum(equal(abs(x), 1.0), equal(abs(y), inf))
    return maximum(maximum(to_zero, to_infinity), minimum(equal(x, 1.0), unequal(y, y)))


def _power_of_zero(x: Var, y: Var, is_odd: Var) -> Var:
    """Of cells that are 0, with the slopes of ``y·x^(y−1)`` there: 0 above 1, ∞ between 0 and 1, −∞ below 0.

    Elsewhere each formula is taken of 1, so that nothing infinite meets the cotangents that are not its own.
    """
    is_root = minimum(greater(y, 0.0), less(y, 1.0))
    inverse = div(1.0, where(minimum(equal(x, 0.0), less(y, 0.0)), x, 1.0))
    flat = where(greater(y, 0.0), where(is_odd, detach(x), 0.0), where(equal(y, 0.0), 1.0, detach(y)))
    pole = where(less(y, 0.0), where(is_odd, inverse, abs(inverse)), flat)
    root = where(is_root, sqrt(add(where(minimum(equal(x, 0.0), is_root), x, 1.0), 0.0)), pole)
    return where(equal(y, 1.0), x, root)
