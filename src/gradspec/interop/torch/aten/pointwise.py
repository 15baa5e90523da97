"""Functions of every cell, comparisons and selections by them, and tensors that an operand gives the shape of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log as log_of
from typing import Any

import numpy as np
import torch

from gradspec.graph.ir import Var
from gradspec.graph.types import boolean, number_as, u8
from gradspec.interop import compose
from gradspec.interop.torch.aten.table import (
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
from gradspec.interop.torch.types import gradspec_dtype
from gradspec.ops import pointwise as ops
from gradspec.ops import select
from gradspec.ops.shape import broadcast_to
from gradspec.spec.errors import UnsupportedError

MOST_DECIMALS = 4
"""So many digits that their power of ten is a number of every float format."""

# --- constants --------------------------------------------------------------------------------------------------------


def _full(x: Var, size: Sequence[int], value: float, dtype: torch.dtype | None = None, **_: Any) -> Any:
    """One number in every cell, in the builder of ``x``; the options that say where PyTorch puts it do not matter."""
    kind = x.dtype if dtype is None else gradspec_dtype(dtype)
    return x.owner.share(np.broadcast_to(number_as(value, kind.numpy), tuple(size)), "c")


@reads("fill")
def _fill(x: Var, value: Any) -> Any:
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

# --- comparisons, whose results are booleans and have no derivative, and selections by them ---------------------------


def _ordered(*values: Any) -> tuple[Any, ...]:
    """Operands of one dtype that has an order: of booleans, false comes first."""
    return tuple(to_dtype(v, u8) if isinstance(v, Var) and v.dtype is boolean else v for v in promoted(*values))


def _bits(*values: Any) -> tuple[Any, ...]:
    """Booleans, the one kind of numbers whose bits a graph knows."""
    if common_dtype(values) is not boolean:
        raise UnsupportedError("it is known for booleans, and not for the bits of integers")
    return values


def _truth(x: Var) -> Var:
    return to_dtype(x, boolean)


@reads("where")
def _where(condition: Var, x: Any, other: Any) -> Any:
    """One of two numbers, whatever the other is; each gets the cotangents of its own cells."""
    if not isinstance(x, Var) and not isinstance(other, Var):
        x = condition.owner.const(number_as(x, common_dtype((x, other)).numpy))
    return select.where(_truth(condition), *promoted(x, other))


@reads("masked_fill")
def _masked_fill(x: Var, mask: Var, value: Any) -> Any:
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
        "bitwise_not": lambda x: compose.logical_not(*_bits(x)),
        "bitwise_and": lambda x, other: ops.minimum(*_bits(x, other)),
        "bitwise_or": lambda x, other: ops.maximum(*_bits(x, other)),
        "bitwise_xor __xor__": lambda x, other: compose.unequal(*_bits(x, other)),
    }
)

# --- arithmetic -------------------------------------------------------------------------------------------------------


@reads("add")
def _add(x: Any, other: Any, *, alpha: float = 1) -> Any:
    x, other = promoted(x, other)
    return ops.maximum(x, other) if _are_truths(x, other) else ops.add(*summands(x, _times(other, alpha)))


@reads("sub")
def _sub(x: Any, other: Any, *, alpha: float = 1) -> Any:
    x, other = promoted(x, other)
    return ops.sub(*summands(x, _times(other, alpha)))


def _times(x: Any, factor: float) -> Any:
    return x if factor == 1 else product_with(x, factor) if isinstance(x, Var) else x * factor


@reads("mul")
def _mul(x: Any, other: Any) -> Any:
    x, other = promoted(x, other)
    if _are_truths(x, other):
        return ops.minimum(x, other)
    return product_with(x, other) if isinstance(x, Var) else ops.mul(x, other)


def _are_truths(*values: Any) -> bool:
    """Of booleans, sums mean *or* and products *and*."""
    return all(isinstance(v, bool) or (isinstance(v, Var) and v.dtype is boolean) for v in values)


@reads("div", "true_divide")
def _div(x: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is not None:
        return _rounded_quotient(x, other, rounding_mode)
    x, other = (floating(v) if isinstance(v, Var) else v for v in promoted(x, other))
    if isinstance(x, Var) and not holds(x, other):
        return to_dtype(compose.widened(x) / other, x.dtype)
    return ops.div(x, other)


def _rounded_quotient(x: Any, other: Any, mode: str) -> Any:
    if not common_dtype((x, other)).is_float:
        return ops.trunc_divide(*promoted(x, other)) if mode == "trunc" else _floor_divide(x, other)
    if mode == "trunc":
        return compose.trunc(_div(x, other))
    raise UnsupportedError(f"division of floats by rounding_mode={mode!r} is not known, only by 'trunc'")


@reads("floor_divide")
def _floor_divide(x: Any, other: Any) -> Any:
    x, other = _integers(x, other)
    return ops.trunc_divide(x - compose.remainder(x, other, sign_of_divisor=True), other)


def _integers(*values: Any) -> tuple[Any, ...]:
    """Operands that are divided with a rest: of floats it is exact in no formula of a quotient that is rounded."""
    if common_dtype(values).is_float:
        raise UnsupportedError("it is known for integers, and not for floats")
    return promoted(*values)


@reads("fmax")
def _fmax(x: Var, other: Var) -> Any:
    """The one that is a number, if one is."""
    x, other = promoted(x, other)
    largest = select.where(select.equal(other, other), ops.maximum(x, other), x)
    return select.where(select.equal(x, x), largest, other)


@reads("pow.Tensor_Scalar")
def _power(x: Var, exponent: float) -> Any:
    x, _ = promoted(x, exponent)
    return compose.power(x if float(exponent).is_integer() else floating(x), exponent)


@reads("pow.Tensor_Tensor")
def _variable_power(x: Var, exponent: Var) -> Any:
    constant = exponent.owner.value(exponent)
    if constant is not None and constant.size == 1 and constant.ndim <= x.ndim:
        return _power(x, constant.item())
    x, exponent = promoted(x, exponent)
    if not x.type.is_float:
        raise UnsupportedError("powers of integers are known for one constant exponent, not for a tensor of them")
    return compose.variable_power(x, exponent)


@reads("pow.Scalar")
def _exponential(base: float, x: Var) -> Any:
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
def _round_decimals(x: Var, *, decimals: int) -> Any:
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
def _softplus(x: Var, beta: float = 1, threshold: float = 20) -> Any:
    """The identity beyond a threshold below 20; beyond a higher one the two differ by less than exp(−threshold)/β."""
    y = ops.softplus(x, float(beta))
    return y if threshold >= 20 else select.where(select.greater(ops.scale(x, float(beta)), float(threshold)), x, y)


@reads("prelu", "_prelu_kernel")
def _prelu(x: Var, weight: Var) -> Any:
    """A vector of slopes has one for each channel."""
    has_channels = weight.ndim == 1 and weight.shape[0] > 1 and x.ndim > 1
    return compose.prelu(x, compose.by_channel(weight, x.ndim - 2) if has_channels else weight)


@reads("glu")
def _glu(x: Var, dim: int = -1) -> Any:
    axis = positive_axis(dim, x.ndim)
    values, gates = compose.split(x, [x.shape[axis] // 2] * 2, axis)
    return values * ops.sigmoid(gates)


@reads("threshold")
def _threshold(x: Var, threshold: float, value: float) -> Any:
    if threshold == value == 0:
        return ops.relu(x)
    return _where(compose.less_equal(*_ordered(x, threshold)), value, x)


def _of_floats(function: Callable[[Any], Any]) -> Callable[[Var], Any]:
    return lambda x: function(floating(x))


def _rounding(function: Callable[[Any], Any]) -> Callable[[Var], Any]:
    """Integers are what they round to."""
    return lambda x: function(x) if x.type.is_float else x


reads_each(
    {
        "neg": ops.neg,
        "abs": ops.abs,
        "sign sgn": lambda x: x if x.dtype is boolean else compose.sign(x),
        "floor": _rounding(ops.floor),
        "ceil": _rounding(compose.ceil),
        "round.default": _rounding(ops.round),
        "trunc fix": _rounding(compose.trunc),
        "frac": lambda x: x - compose.trunc(x),
        "exp": _of_floats(ops.exp),
        "exp2": _of_floats(lambda x: ops.exp(x * log_of(2))),
        "expm1": _of_floats(compose.exp_minus_one),
        "log": _of_floats(ops.log),
        "log1p": _of_floats(compose.log_one_plus),
        "log2": _of_floats(lambda x: compose.log_to_base(x, 2)),
        "log10": _of_floats(lambda x: compose.log_to_base(x, 10)),
        "sqrt": _of_floats(ops.sqrt),
        "erf": _of_floats(ops.erf),
        "erfc": _of_floats(compose.erfc),
        "sin": _of_floats(ops.sin),
        "cos": _of_floats(ops.cos),
        "tan": _of_floats(compose.tan),
        "sinh": _of_floats(compose.sinh),
        "cosh": _of_floats(compose.cosh),
        "tanh": _of_floats(ops.tanh),
        "sigmoid": _of_floats(ops.sigmoid),
        "log_sigmoid": _of_floats(lambda x: -ops.softplus(-x)),
        "relu": ops.relu,
        "relu6": lambda x: ops.clamp(x, 0.0, 6.0),
        "clamp_min": lambda x, low: _clamp(x, low),
        "clamp_max": lambda x, high: _clamp(x, None, high),
        "hardtanh": lambda x, min_val=-1, max_val=1: ops.clamp(x, min_val, max_val),
        "leaky_relu": ops.leaky_relu,
        "silu": ops.silu,
        "mish": compose.mish,
        "hardswish": compose.hardswish,
        "hardsigmoid": compose.hardsigmoid,
        "celu": compose.celu,
        "gelu": lambda x, *, approximate="none": ops.gelu(x, approximate),
        "elu": lambda x, alpha=1, scale=1, input_scale=1: compose.elu(x, alpha, gain=scale, steepness=input_scale),
        "selu": lambda x: compose.elu(x, 1.6732632423543772, gain=1.0507009873554805),
    }
)

# --- what does nothing when a model is evaluated ----------------------------------------------------------------------


@reads("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def _dropout(x: Var, p: float, train: bool) -> Any:
    if train and p:
        raise UnsupportedError("dropout in training mode draws random numbers; call eval() on it, or on the model")
    return x


@reads("native_dropout")
def _native_dropout(x: Var, p: float, train: bool | None) -> Any:
    return (_dropout(x, p, bool(train) or train is None),)


@reads("rrelu")
def _rrelu(x: Var, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, generator: Any = None) -> Any:
    """Below 0 a slope that is drawn in training, and otherwise the middle one."""
    if training:
        raise UnsupportedError("rrelu in training mode draws random numbers; call eval() on it, or on the model")
    return ops.leaky_relu(x, (lower + upper) / 2)
