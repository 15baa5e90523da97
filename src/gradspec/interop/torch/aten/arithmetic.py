"""Operators that work cell by cell; reductions, running ones, order, norms and products of matrices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial, wraps
from math import inf, prod
from math import log as log_of
from math import sqrt as sqrt_of
from typing import Any

import numpy as np
import torch

from gradspec.graph.builder import apply
from gradspec.graph.ir import Var
from gradspec.graph.types import boolean, i32, i64, number_as, u8
from gradspec.interop import compose
from gradspec.interop.compose import functions_named
from gradspec.interop.indexing import with_places
from gradspec.interop.torch.aten.table import (
    axes_of,
    common_dtype,
    floating,
    holds,
    positive_axis,
    product_with,
    promoted,
    reads,
    reads_each,
    summands,
    to_dtype,
)
from gradspec.interop.torch.types import gradspec_dtype, torch_dtype
from gradspec.ops import bits, select
from gradspec.ops import pointwise as ops
from gradspec.ops.einsum import einsum
from gradspec.ops.gather import GATHER_ROWS, scatter_add
from gradspec.ops.layout import AlongAxis, transpose, turned
from gradspec.ops.linear import MATMUL, Product, batch_norm, linear, matmul
from gradspec.ops.loss import TAKE_LABEL, mse_loss
from gradspec.ops.pointwise import neg
from gradspec.ops.reduce import cumsum, log_softmax, mean, softmax
from gradspec.ops.select import equal, where
from gradspec.ops.shape import broadcast_to, reshape, sum
from gradspec.spec.errors import UnsupportedError
from gradspec.spec.loss import class_axis

MOST_DECIMALS = 4
"""So many digits that their power of ten is a number of every float format."""

# --- constants --------------------------------------------------------------------------------------------------------


def _full(x: Var, size: Sequence[int], value: float, dtype: torch.dtype | None = None, **_: object) -> Var:
    """One number in every cell, in the builder of ``x``; the options that say where PyTorch puts it do not matter."""
    kind = x.dtype if dtype is None else gradspec_dtype(dtype)
    full: Var = x.owner.share(np.broadcast_to(number_as(value, kind.numpy), tuple(size)), "c")
    return full


@reads("fill")
def _fill(x: Var, value: VarOrNumber) -> Var:
    return broadcast_to(to_dtype(value, x.dtype), x.shape) if isinstance(value, Var) else _full(x, x.shape, value)


reads_each(
    {
        "zeros_like empty_like zero": lambda x, **options: _full(x, x.shape, 0, **options),
        "ones_like": lambda x, **options: _full(x, x.shape, 1, **options),
        "full_like": lambda x, fill_value, **options: _full(x, x.shape, fill_value, **options),
        "new_zeros new_empty": lambda x, size, **options: _full(x, size, 0, **options),
        "new_ones": lambda x, size, **options: _full(x, size, 1, **options),
        "new_full": lambda x, size, fill_value, **options: _full(x, size, fill_value, **options),
        "_assert_tensor_metadata": lambda *_, **__: None,  # which ``torch.export`` has checked already
    }
)

# --- comparisons and selections ---------------------------------------------------------------------------------------


def _ordered(*values: VarOrNumber) -> tuple[VarOrNumber, ...]:
    """Operands of one dtype that has an order: of booleans, false comes first."""
    return tuple(to_dtype(v, u8) if isinstance(v, Var) and v.dtype is boolean else v for v in promoted(*values))


def _truth(x: Var) -> Var:
    return to_dtype(x, boolean)


@reads("where")
def _where(condition: Var, x: VarOrNumber, other: VarOrNumber) -> Var:
    """One of two numbers, whatever the other is; each gets the cotangents of its own cells."""
    if not isinstance(x, Var) and not isinstance(other, Var):
        x = condition.owner.const(number_as(x, common_dtype((x, other)).numpy))
    return select.where(_truth(condition), *promoted(x, other))


@reads("masked_fill")
def _masked_fill(x: Var, mask: Var, value: VarOrNumber) -> Var:
    """The dtype is that of ``x``, whatever the value's is."""
    return select.where(_truth(mask), to_dtype(value, x.dtype) if isinstance(value, Var) else value, x)


reads_each(
    {
        "gt": lambda x, other: select.greater(*_ordered(x, other)),
        "lt": lambda x, other: select.less(*_ordered(x, other)),
        "eq": lambda x, other: select.equal(*promoted(x, other)),
        "ge": lambda x, other: compose.greater_equal(*_ordered(x, other)),
        "le": lambda x, other: compose.less_equal(*_ordered(x, other)),
        "ne": lambda x, other: compose.unequal(*promoted(x, other)),
        "isnan": lambda x: compose.unequal(x, x),
        "logical_not": lambda x: compose.logical_not(_truth(x)),
        "logical_and": lambda x, other: ops.minimum(_truth(x), _truth(other)),
        "logical_or": lambda x, other: ops.maximum(_truth(x), _truth(other)),
        "logical_xor": lambda x, other: compose.unequal(_truth(x), _truth(other)),
        "bitwise_not": bits.bitwise_not,
        "bitwise_and __and__": lambda x, other: bits.bitwise_and(*promoted(x, other)),
        "bitwise_or __or__": lambda x, other: bits.bitwise_or(*promoted(x, other)),
        "bitwise_xor __xor__": lambda x, other: bits.bitwise_xor(*promoted(x, other)),
        "bitwise_left_shift __lshift__": lambda x, other: bits.left_shift(*promoted(x, other)),
        "bitwise_right_shift __rshift__": lambda x, other: bits.right_shift(*promoted(x, other)),
    }
)

# --- arithmetic -------------------------------------------------------------------------------------------------------


@reads("add")
def _add(x: Var, other: VarOrNumber, *, alpha: float = 1) -> Var:
    x, other = promoted(x, other)
    return ops.maximum(x, other) if _are_truths(x, other) else ops.add(*summands(x, _times(other, alpha)))


@reads("sub")
def _sub(x: Var, other: VarOrNumber, *, alpha: float = 1) -> Var:
    x, other = promoted(x, other)
    return ops.sub(*summands(x, _times(other, alpha)))


def _times(x: VarOrNumber, factor: float) -> VarOrNumber:
    return x if factor == 1 else product_with(x, factor) if isinstance(x, Var) else x * factor


@reads("mul")
def _mul(x: Any, other: Any) -> Any:
    x, other = promoted(x, other)
    if _are_truths(x, other):
        return ops.minimum(x, other)
    return product_with(x, other) if isinstance(x, Var) else ops.mul(x, other)


def _are_truths(*values: VarOrNumber) -> bool:
    """Of booleans, sums mean *or* and products *and*."""
    return all(isinstance(v, bool) or (isinstance(v, Var) and v.dtype is boolean) for v in values)


@reads("div", "true_divide")
def _div(x: Var, other: VarOrNumber, *, rounding_mode: str | None = None) -> Var:
    if rounding_mode is not None:
        return _rounded_quotient(x, other, rounding_mode)
    x, other = (floating(v) if isinstance(v, Var) else v for v in promoted(x, other))
    if isinstance(x, Var) and not holds(x, other):
        return to_dtype(compose.widened(x) / other, x.dtype)
    return ops.div(x, other)


def _rounded_quotient(x: Var, other: VarOrNumber, mode: str) -> Var:
    if not common_dtype((x, other)).is_float:
        return ops.trunc_divide(*promoted(x, other)) if mode == "trunc" else _floor_divide(x, other)
    if mode == "trunc":
        return compose.trunc(_div(x, other))
    raise UnsupportedError(f"division of floats by rounding_mode={mode!r} is not known, only by 'trunc'")


@reads("floor_divide")
def _floor_divide(x: Var, other: VarOrNumber) -> Var:
    a, b = _integers(x, other)
    return ops.trunc_divide(ops.sub(a, compose.remainder(a, b, sign_of_divisor=True)), b)


def _integers(*values: VarOrNumber) -> tuple[VarOrNumber, ...]:
    """Operands that are divided with a rest: of floats it is exact in no formula of a quotient that is rounded."""
    if common_dtype(values).is_float:
        raise UnsupportedError("it is known for integers, and not for floats")
    return promoted(*values)


@reads("fmax")
def _fmax(x: Var, other: VarOrNumber) -> Var:
    """The one that is a number, if one is."""
    x, other = promoted(x, other)
    largest = select.where(select.equal(other, other), ops.maximum(x, other), x)
    return select.where(select.equal(x, x), largest, other)


@reads("pow.Tensor_Scalar")
def _power(x: Var, exponent: float) -> Var:
    x, _ = promoted(x, exponent)
    return compose.power(x if float(exponent).is_integer() else floating(x), exponent)


@reads("pow.Tensor_Tensor")
def _variable_power(x: Var, exponent: Var) -> Var:
    constant = exponent.owner.value(exponent)
    if constant is not None and constant.size == 1 and constant.ndim <= x.ndim:
        return _power(x, constant.item())
    x, exponent = promoted(x, exponent)
    if not x.type.is_float:
        raise UnsupportedError("powers of integers are known for one constant exponent, not for a tensor of them")
    return compose.variable_power(x, exponent)


@reads("pow.Scalar")
def _exponential(base: float, x: Var) -> Var:
    if base <= 0:
        raise UnsupportedError(f"powers of {base} are not known, only of numbers above 0")
    return ops.exp(floating(x) * log_of(base))


reads_each(
    {
        "rsub": lambda x, other, alpha=1: _sub(other, x, alpha=alpha),
        "remainder": lambda x, other: compose.remainder(*_integers(x, other), sign_of_divisor=True),
        "fmod": lambda x, other: compose.remainder(*_integers(x, other), sign_of_divisor=False),
        "addcmul": lambda x, a, b, *, value=1: _add(x, _mul(a, b), alpha=value),
        "addcdiv": lambda x, a, b, *, value=1: _add(x, _div(a, b), alpha=value),
        "lerp": lambda x, end, weight: x + weight * (end - x),
        "maximum max.other": lambda x, other: ops.maximum(*promoted(x, other)),
        "minimum min.other": lambda x, other: ops.minimum(*promoted(x, other)),
        "fmin": lambda x, other: ops.neg(_fmax(ops.neg(x), ops.neg(other))),
        "square": lambda x: x * x,
        "rsqrt": lambda x: 1.0 / ops.sqrt(floating(x)),
        "reciprocal": lambda x: 1.0 / floating(x),
    }
)

# --- functions of one operand -----------------------------------------------------------------------------------------


@reads("round.decimals")
def _round_decimals(x: Var, *, decimals: int) -> Var:
    """In the order in which PyTorch multiplies and divides."""
    if not x.type.is_float or abs(decimals) > MOST_DECIMALS:
        raise UnsupportedError(f"rounding {x.type} to decimals={decimals}; floats are, to {MOST_DECIMALS} at most")
    power = 10.0 ** abs(decimals)
    return ops.round(x * power) / power if decimals >= 0 else ops.round(x / power) * power


@reads("clamp", "clip")
def _clamp(x: Var, min: Any = None, max: Any = None) -> Any:
    if not isinstance(min, Var) and not isinstance(max, Var):
        return ops.clamp(x, max if None not in (min, max) and min > max else min, max)
    above = x if min is None else ops.maximum(*promoted(x, min))
    return above if max is None else ops.minimum(*promoted(above, max))


@reads("softplus")
def _softplus(x: Var, beta: float = 1, threshold: float = 20) -> Var:
    """The identity beyond a threshold below 20; beyond a higher one the two differ by less than exp(−threshold)/β."""
    y = ops.softplus(x, float(beta))
    return y if threshold >= 20 else select.where(select.greater(ops.scale(x, float(beta)), float(threshold)), x, y)


@reads("prelu", "_prelu_kernel")
def _prelu(x: Var, weight: Var) -> Var:
    """A vector of slopes has one for each channel."""
    has_channels = weight.ndim == 1 and weight.shape[0] > 1 and x.ndim > 1
    return compose.prelu(x, reshape(weight, (-1, *(1,) * (x.ndim - 2))) if has_channels else weight)


@reads("glu")
def _glu(x: Var, dim: int = -1) -> Var:
    axis = positive_axis(dim, x.ndim)
    values, gates = compose.split(x, [x.shape[axis] // 2] * 2, axis)
    return values * ops.sigmoid(gates)


@reads("threshold")
def _threshold(x: Var, threshold: float, value: float) -> Var:
    if threshold == value == 0:
        return ops.relu(x)
    return _where(compose.less_equal(*_ordered(x, threshold)), value, x)


def _take_first(function: Callable[..., Var]) -> Callable[..., tuple[Var]]:
    """The first of several results; a model that uses another is refused."""

    @wraps(function)
    def read(*args: object, **kwargs: object) -> tuple[Var]:
        return (function(*args, **kwargs),)

    return read


def _of_floats(function: Callable[[Var], Var]) -> Callable[[Var], Var]:
    return lambda x: function(floating(x))


def _rounding(function: Callable[[Var], Var]) -> Callable[[Var], Var]:
    """Integers are what they round to."""
    return lambda x: function(x) if x.type.is_float else x


OF_FLOATS: dict[str, Callable[..., Var]] = {
    **functions_named(ops, "exp log sqrt erf sin cos atan tanh sigmoid"),
    **functions_named(compose, "tan asin acos sinh cosh asinh acosh atanh erfc"),
    "exp2": lambda x: ops.exp(x * log_of(2)),
    "expm1": compose.exp_minus_one,
    "log1p": compose.log_one_plus,
    "log2": lambda x: compose.log_to_base(x, 2),
    "log10": lambda x: compose.log_to_base(x, 10),
    "log_sigmoid": lambda x: -ops.softplus(-x),
}

reads_each(
    {
        **{name: _of_floats(function) for name, function in OF_FLOATS.items()},
        **functions_named(ops, "neg abs relu leaky_relu silu"),
        **functions_named(compose, "mish hardswish hardsigmoid celu"),
        "sign sgn": lambda x: x if x.dtype is boolean else compose.sign(x),
        "floor": _rounding(ops.floor),
        "ceil": _rounding(compose.ceil),
        "round.default": _rounding(ops.round),
        "trunc fix": _rounding(compose.trunc),
        "frac": lambda x: x - compose.trunc(x),
        "relu6": lambda x: ops.clamp(x, 0.0, 6.0),
        "clamp_min": lambda x, low: _clamp(x, low),
        "clamp_max": lambda x, high: _clamp(x, None, high),
        "hardtanh": lambda x, min_val=-1, max_val=1: ops.clamp(x, min_val, max_val),
        "gelu": lambda x, *, approximate="none": ops.gelu(x, approximate),
        "elu": lambda x, alpha=1, scale=1, input_scale=1: compose.elu(x, alpha, gain=scale, steepness=input_scale),
        "selu": lambda x: compose.elu(x, 1.6732632423543772, gain=1.0507009873554805),
    }
)

# --- what does nothing when a model is evaluated ----------------------------------------------------------------------


@reads("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def _dropout(x: Var, p: float, train: bool) -> Var:
    if train and p:
        raise UnsupportedError("dropout in training mode draws random numbers; call eval() on it, or on the model")
    return x


@reads("rrelu")
def _rrelu(x: Var, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, generator: object = None) -> Var:
    """Below 0 a slope that is drawn in training, and otherwise the middle one."""
    if training:
        raise UnsupportedError("rrelu in training mode draws random numbers; call eval() on it, or on the model")
    return ops.leaky_relu(x, (lower + upper) / 2)


# --- reductions over axes ---------------------------------------------------------------------------------------------


Dims = int | Sequence[int] | None
VarOrNumber = Var | float
Maybe = Var | None

# --- sums and means ---------------------------------------------------------------------------------------------------


def _terms(x: Var, dtype: torch.dtype | None) -> Var:
    """Integers are added and multiplied in 64 bits, unless another dtype is asked for."""
    return to_dtype(x, dtype) if dtype or x.type.is_float else to_dtype(x, i64)


def _reduce_over(function: Callable[..., Var], prepare: Callable[..., Var] = to_dtype) -> Callable[..., Var]:
    """A function of numbers, axes and whether these stay, which begins with a conversion."""

    def read(x: Var, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Var:
        return function(prepare(x, dtype), axes_of(dim, x.ndim), keepdim)

    return read


def _run_along(function: Callable[[Var, int], Var], prepare: Callable[..., Var] = to_dtype) -> Callable[..., Var]:
    """The same of one axis, of which a scalar has none to go along."""

    def read(x: Var, dim: int, *, dtype: torch.dtype | None = None) -> Var:
        terms = prepare(x, dtype)
        return function(terms, positive_axis(dim, x.ndim)) if x.ndim else terms

    return read


def _centre(x: Var, dim: Dims, correction: float | None) -> tuple[Var, tuple[int, ...], float]:
    """The differences from the mean, the axes it is over, and by how many the squares are divided."""
    axes = axes_of(dim, x.ndim)
    count = prod(x.shape[a] for a in axes)
    fewer = count - (1 if correction is None else correction)
    if fewer <= 0:
        raise UnsupportedError(f"a variance of {count} numbers with correction={correction} is not a number")
    return x - mean(x, axes, keepdims=True), axes, fewer


def _variance(x: Var, dim: Dims, correction: float | None, keepdim: bool) -> Var:
    centred, axes, count = _centre(x, dim, correction)
    return sum(centred * centred, axes, keepdim) * (1.0 / count)


def _deviation(x: Var, dim: Dims, correction: float | None, keepdim: bool) -> Var:
    """The norm of the differences, whose derivative is 0 where they all are."""
    centred, axes, count = _centre(x, dim, correction)
    return compose.norm(centred, 2.0, axes, keepdim) * (1.0 / sqrt_of(count))


@reads("linalg_vector_norm")
def _norm(x: Var, ord: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Var:
    x, axes = to_dtype(x, dtype), axes_of(dim, x.ndim)
    if ord == -inf:
        return compose.smallest(ops.abs(x), axes, keepdim, ties="split")
    if ord == 0:
        return sum(to_dtype(compose.unequal(x, 0.0), x.dtype), axes, keepdim)
    if ord < 0:
        raise UnsupportedError(f"a norm of order {ord} is not known, only of orders of 0 and above, and of -inf")
    return compose.norm(x, float(ord), axes, keepdim)


def _softmax(function: Callable[[Var, int], Var], x: Var, dim: int, dtype: torch.dtype | None) -> Var:
    return function(floating(to_dtype(x, dtype)), positive_axis(dim, x.ndim))


reads_each(
    {
        "sum": _reduce_over(sum, _terms),
        "mean": _reduce_over(mean),
        "prod": _reduce_over(compose.product, _terms),
        "logsumexp": _reduce_over(compose.log_sum_exp),
        "cumsum": _run_along(cumsum, _terms),
        "cumprod": _run_along(compose.running_product, _terms),
        "logcumsumexp": _run_along(compose.running_log_sum_exp),
        "var.correction": lambda x, dim=None, *, correction=None, keepdim=False: _variance(x, dim, correction, keepdim),
        "var_mean.correction": lambda x, dim=None, *, correction=None, keepdim=False: (
            _variance(x, dim, correction, keepdim),
            mean(x, axes_of(dim, x.ndim), keepdim),
        ),
        "std.correction": lambda x, dim=None, *, correction=None, keepdim=False: _deviation(
            x, dim, correction, keepdim
        ),
        "var.dim": lambda x, dim, unbiased=True, keepdim=False: _variance(x, dim, int(unbiased), keepdim),
        "std.dim": lambda x, dim, unbiased=True, keepdim=False: _deviation(x, dim, int(unbiased), keepdim),
        "softmax.int": lambda x, dim, dtype=None: _softmax(softmax, x, dim, dtype),
        "log_softmax.int": lambda x, dim, dtype=None: _softmax(log_softmax, x, dim, dtype),
        "_softmax": lambda x, dim, half_to_float: _softmax(softmax, x, dim, torch.float32 if half_to_float else None),
        "_log_softmax": lambda x, dim, half_to_float: _softmax(
            log_softmax, x, dim, torch.float32 if half_to_float else None
        ),
        "native_dropout": _take_first(lambda x, p, train: _dropout(x, p, bool(train) or train is None)),
    }
)

# --- extremes and truths ----------------------------------------------------------------------------------------------


@reads("max.dim")
def _max_of_axis(x: Var, dim: int, keepdim: bool = False, *, wanted: Collection[int]) -> tuple[Var, ...]:
    if 1 not in wanted:
        return (compose.largest(x, axes_of(dim, x.ndim), keepdim),)
    return with_places(x, positive_axis(dim, x.ndim), keepdim)


@reads("min.dim")
def _min_of_axis(x: Var, dim: int, keepdim: bool = False, *, wanted: Collection[int]) -> tuple[Var, ...]:
    values, *places = _max_of_axis(compose.reversed_order(x), dim, keepdim, wanted=wanted)
    return (compose.reversed_order(values), *places)


@reads("argmax")
def _argmax(x: Var, dim: int | None = None, keepdim: bool = False) -> Var:
    if dim is None or x.ndim == 0:
        place = with_places(reshape(x, (-1,)), 0, False)[1]
        return reshape(place, (1,) * x.ndim if keepdim else ())
    return with_places(x, positive_axis(dim, x.ndim), keepdim)[1]


reads_each(
    {
        "amax max.default": _reduce_over(partial(compose.largest, ties="split")),
        "amin min.default": _reduce_over(partial(compose.smallest, ties="split")),
        "argmin": lambda x, dim=None, keepdim=False: _argmax(compose.reversed_order(x), dim, keepdim),
        "cummax": _take_first(_run_along(compose.running_maximum)),
        "cummin": _take_first(_run_along(compose.running_minimum)),
        "any": _reduce_over(compose.any_true, lambda x, _: _truth(x)),
        "all": _reduce_over(compose.all_true, lambda x, _: _truth(x)),
    }
)


@reads("histc")
def _histogram(x: Var, bins: int = 100, min: float = 0, max: float = 0) -> Var:
    """How many numbers each bin holds, the last with its upper end; without ends, those of the numbers are taken."""
    x = ops.detach(reshape(x, (-1,)))
    low, high = x.owner.operand(float(min), x), x.owner.operand(float(max), x)
    if min == max == 0:
        low, high = compose.smallest(x, (0,), False), compose.largest(x, (0,), False)
    is_point = equal(low, high)
    low, high = where(is_point, low - 1.0, low), where(is_point, high + 1.0, high)
    is_within = ops.minimum(compose.greater_equal(x, low), compose.less_equal(x, high))
    places = to_dtype(where(is_within, (x - low) * float(bins) / (high - low), 0.0), i64)
    return scatter_add(_full(x, (bins,), 0), 0, ops.minimum(places, bins - 1), to_dtype(is_within, x.dtype))


@reads("searchsorted.Tensor")
def _places_to_insert(
    ordered: Var, x: Var, *, out_int32: bool = False, right: bool = False, side: str | None = None, sorter: Maybe = None
) -> Var:
    """How many of the ordered numbers are not at or above ``x``, or not above it; NaN is above all."""
    if sorter is not None:
        raise UnsupportedError("an order that is given apart from the numbers; give the numbers in order")
    *lead, length = ordered.shape
    pair = _ordered(reshape(ordered, (*lead, 1, length)), reshape(x, (*x.shape, 1)))
    is_above = (select.greater if right or side == "right" else compose.greater_equal)(*pair)
    return sum(to_dtype(compose.logical_not(is_above), i32 if out_int32 else i64), (x.ndim,))


reads_each({"bucketize.Tensor": lambda x, boundaries, **options: _places_to_insert(boundaries, x, **options)})

# --- products of matrices ---------------------------------------------------------------------------------------------


@reads("addmm", "baddbmm")
def _add_product(x: Var, a: Var, b: Var, *, beta: float = 1, alpha: float = 1) -> Var:
    if beta == alpha == 1 and x.ndim == 1 and b.ndim == 2:
        return apply(MATMUL, Product(), a, b, broadcast_to(x, b.shape[1:]))
    return _add_scaled(x, matmul(a, b), beta, alpha)


def _add_scaled(x: Var, product: Var, beta: float, alpha: float) -> Var:
    scaled = compose.times(product, alpha)
    return compose.times(x, beta) + scaled if beta else scaled


@reads("_scaled_mm")
def _scaled_product(
    a: Var, b: Var, scale_a: Var, scale_b: Var, bias: Maybe = None, scale_result: Maybe = None,
    out_dtype: torch.dtype | None = None, use_fast_accum: bool = False,
) -> Var:  # fmt: skip
    """Of numbers of eight bits, in float32; one scale is for all, or for each row and column."""
    if scale_result is not None:
        raise UnsupportedError("a scale of the result is not known; multiply by it, and convert, after the product")
    y = matmul(to_dtype(a, torch.float32), to_dtype(b, torch.float32)) * scale_a * scale_b
    return to_dtype(y if bias is None else y + to_dtype(bias, torch.float32), out_dtype or a.dtype)


@reads("_grouped_mm")
def _grouped_product(
    a: Var, b: Var, offs: Maybe = None, bias: Maybe = None, out_dtype: torch.dtype | None = None
) -> Var:
    """Products of groups: group ``i`` ends before row ``offs[i]`` of the axis that the groups share."""
    if bias is not None or (out_dtype is not None and gradspec_dtype(out_dtype) != a.dtype):
        raise UnsupportedError("a bias, or another dtype, is not known; add it, or convert, after the product")
    if offs is None:
        return matmul(a, b)
    if a.ndim == 3:
        return turned(_grouped_product(turned(b), turned(a), offs))
    count = a.shape[0] if b.ndim == 3 else a.shape[1]
    rows = a.owner.const(np.arange(count)[:, None])
    group = sum(to_dtype(compose.greater_equal(rows, to_dtype(offs, i64)), i64), (1,))
    if b.ndim == 3:
        every = transpose(matmul(broadcast_to(a, (b.shape[0], *a.shape)), b), (1, 0, 2))
        chosen = apply(GATHER_ROWS, AlongAxis(1), every, ops.minimum(group, b.shape[0] - 1))
        return where(reshape(select.less(group, b.shape[0]), (-1, 1)), chosen, 0.0)
    mine = equal(reshape(group, (1, -1)), a.owner.const(np.arange(offs.shape[0])[:, None]))
    left, right = reshape(mine, (-1, 1, count)), reshape(mine, (-1, count, 1))
    return matmul(where(left, a, 0.0), where(right, b, 0.0))


@reads("_cdist_forward", "cdist")
def _distances(x: Var, y: Var, p: float = 2.0, compute_mode: int | None = None) -> Var:
    """Of every row of one to every row of the other."""
    if p <= 0:
        raise UnsupportedError(f"distances by a norm of order {p} are not known, only of orders above 0")
    *lead, count, size = y.shape
    apart = reshape(x, (*x.shape[:-1], 1, size)) - reshape(y, (*lead, 1, count, size))
    return compose.norm(apart, float(p), (apart.ndim - 1,), False)


reads_each(
    {
        "linear": linear,
        "mm bmm matmul mv dot": matmul,
        # The path says in which order PyTorch multiplies, which changes no result but for rounding.
        "einsum": lambda equation, tensors, *, path=None: einsum(equation, *tensors),
        "bilinear": lambda x, y, weight, bias=None: compose.affine(
            einsum("...i,oij,...j->...o", x, weight, y), None, bias
        ),
        "addbmm": lambda x, a, b, *, beta=1, alpha=1: _add_scaled(x, sum(matmul(a, b), (0,)), beta, alpha),
    }
)


@reads("scaled_dot_product_attention")
def _attention(
    query: Var, key: Var, value: Var, attn_mask: Maybe = None, dropout_p: float = 0.0, is_causal: bool = False,
    *, scale: float | None = None, enable_gqa: bool = False,
) -> Var:  # fmt: skip
    """As PyTorch documents it, in the dtype of the operands, in which its kernels store weights, or scores too.

    A query all of whose scores are −∞ gets 0, and is given others first, whose weights have derivatives.
    """
    if dropout_p:
        raise UnsupportedError("dropout of attention draws random numbers; call eval() on the model, or give 0.0")
    if enable_gqa:
        key, value = (compose.repeat_each(t, query.shape[-3] // t.shape[-3], t.ndim - 3) for t in (key, value))
    scores = product_with(matmul(query, turned(key)), 1 / sqrt_of(query.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = query.owner.const(np.tri(*scores.shape[-2:], dtype=np.bool_))
    if attn_mask is not None:
        is_choice = attn_mask.dtype is boolean
        scores = where(attn_mask, scores, -inf) if is_choice else scores + to_dtype(attn_mask, scores.dtype)
    hidden = compose.all_true(equal(scores, -inf), (scores.ndim - 1,), True)
    return matmul(where(hidden, 0.0, softmax(where(hidden, 0.0, scores))), value)


# --- normalisation ----------------------------------------------------------------------------------------------------


@reads("batch_norm")
def _batch_norm(
    x: Var, weight: Maybe, bias: Maybe, running_mean: Maybe, running_var: Maybe,
    training: bool, momentum: float, eps: float, cudnn_enabled: bool,
) -> Var:  # fmt: skip
    if running_mean is None or running_var is None:
        return _normalize_batch(x, weight, bias, eps)
    if training:
        return _refuse_training()
    return batch_norm(x, running_mean, running_var, weight, bias, eps)


def _normalize_batch(x: Var, weight: Maybe, bias: Maybe, eps: float) -> Var:
    """Each channel normalised by the statistics of this very batch, which PyTorch stores in the dtype of the batch."""
    y = compose.normalized(x, [a for a in range(x.ndim) if a != 1], eps, keeps_statistics=True)
    return compose.affine(y, *(compose.by_channel(v, x.ndim - 2) for v in (weight, bias)))


@reads("_native_batch_norm_legit", "_native_batch_norm_legit_functional", "native_batch_norm")
def _refuse_training(*_: object, **__: object) -> Var:
    raise UnsupportedError(
        "batch normalisation in training mode updates its running statistics, and a graph changes nothing; export the "
        "model after model.eval(), or give the module itself and training=True, which leaves them alone"
    )


@reads("instance_norm")
def _instance_norm(
    x: Var, weight: Maybe, bias: Maybe, running_mean: Maybe, running_var: Maybe,
    use_input_stats: bool, momentum: float, eps: float, cudnn_enabled: bool,
) -> Var:  # fmt: skip
    if not use_input_stats:
        assert running_mean is not None
        assert running_var is not None
        return batch_norm(x, running_mean, running_var, weight, bias, eps)
    if running_mean is not None:
        return _refuse_training()
    return compose.group_norm(x, x.shape[1], weight, bias, eps, keeps_statistics=True)


def _layer_norm(
    x: Var, normalized_shape: Sequence[int], weight: Maybe = None, bias: Maybe = None, eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Var:  # fmt: skip
    return compose.layer_norm(x, len(normalized_shape), weight, bias, eps)


@reads("rms_norm")
def _rms_norm(x: Var, normalized_shape: Sequence[int], weight: Maybe = None, eps: float | None = None) -> Var:
    least = torch.finfo(torch_dtype(x.dtype)).eps if eps is None else eps
    return compose.rms_norm(x, len(normalized_shape), weight, least)


reads_each(
    {
        "_native_batch_norm_legit_no_training": _take_first(
            lambda x, weight, bias, mean, var, momentum, eps: batch_norm(x, mean, var, weight, bias, eps)
        ),
        "_native_batch_norm_legit.no_stats": _take_first(
            lambda x, weight, bias, training, momentum, eps: _normalize_batch(x, weight, bias, eps)
        ),
        "group_norm": lambda x, groups, weight=None, bias=None, eps=1e-5, cudnn_enabled=True: compose.group_norm(
            x, groups, weight, bias, eps
        ),
        "native_group_norm": _take_first(
            lambda x, weight, bias, n, channels, cells, group, eps: compose.group_norm(x, group, weight, bias, eps)
        ),
        "layer_norm": _layer_norm,
        "native_layer_norm": _take_first(_layer_norm),
        "_fused_rms_norm": _take_first(_rms_norm),
    }
)

# --- losses -----------------------------------------------------------------------------------------------------------

REDUCTIONS = ("none", "mean", "sum")
"""PyTorch's numbers for what becomes of the losses of a batch."""


@reads("cross_entropy_loss")
def _cross_entropy(
    x: Var, target: Var, weight: Maybe = None, reduction: int = 1,
    ignore_index: int = -100, label_smoothing: float = 0.0,
) -> Var:  # fmt: skip
    """Smoothed labels are ``1 − smoothing`` of the class and an equal share of all classes; targets may be shares."""
    axis = class_axis(x.shape)
    logs, share = log_softmax(x, axis), label_smoothing / x.shape[axis]
    if target.type.is_float:
        shares = compose.times(target, 1.0 - label_smoothing) + share if label_smoothing else target
        return _reduce_losses(sum(neg(_weigh(logs * shares, weight)), (axis,)), reduction)
    loss = _nll_loss(logs, target, weight, reduction, ignore_index)
    if not label_smoothing:
        return loss
    over_all = sum(neg(_weigh(logs, weight)), (axis,))
    smooth = _reduce_counted(over_all, target, weight, x, reduction, ignore_index)
    return compose.times(loss, 1.0 - label_smoothing) + compose.times(smooth, share)


@reads("nll_loss", "nll_loss_nd", "nll_loss2d")
def _nll_loss(x: Var, target: Var, weight: Maybe = None, reduction: int = 1, ignore_index: int = -100) -> Var:
    losses = neg(_take_label(_weigh(x, weight), target, ignore_index))
    return _reduce_counted(losses, target, weight, x, reduction, ignore_index)


@reads("multilabel_margin_loss", "multilabel_margin_loss_forward")
def _multilabel_margin_loss(*_: object, **__: object) -> Var:
    raise UnsupportedError("PyTorch makes it of operators that give another value than it has in PyTorch itself")


def _reduce_counted(losses: Var, target: Var, weight: Maybe, x: Var, reduction: int, ignore_index: int) -> Var:
    """Losses are 0 where the label is to be ignored; a mean divides by the weights of the others."""
    ignored = equal(target, ignore_index)
    counted = where(ignored, 0.0, losses)
    if REDUCTIONS[reduction] != "mean":
        return _reduce_losses(counted, reduction)
    ones = broadcast_to(x.owner.const(number_as(1.0, x.dtype.numpy)), target.shape)
    weights = ones if weight is None else _take_label(broadcast_to(_spread(weight, x), x.shape), target, ignore_index)
    return sum(counted) / sum(where(ignored, 0.0, weights))


def _take_label(x: Var, target: Var, ignore_index: int) -> Var:
    """The cell of every label, of class 0 where the label is to be ignored: it may be none of the classes."""
    labels = where(equal(target, ignore_index), 0, target)
    return apply(TAKE_LABEL, AlongAxis(class_axis(x.shape)), x, labels)


def _weigh(x: Var, weight: Maybe) -> Var:
    return x if weight is None else x * _spread(weight, x)


def _spread(weight: Var, x: Var) -> Var:
    """One number per class, along the axis of classes."""
    return reshape(weight, (*weight.shape, *(1,) * (x.ndim - class_axis(x.shape) - 1)))


def _reduce_losses(losses: Var, reduction: int) -> Var:
    return mean(losses) if REDUCTIONS[reduction] == "mean" else sum(losses) if reduction else losses


reads_each(
    {
        "mse_loss": lambda x, target, reduction=1: mse_loss(x, target, REDUCTIONS[reduction]),
        "l1_loss": lambda x, target, reduction=1: _reduce_losses(ops.abs(x - target), reduction),
        "nll_loss_forward nll_loss2d_forward": _take_first(_nll_loss),
    }
)
