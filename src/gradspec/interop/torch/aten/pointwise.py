"""Functions of every cell."""

from __future__ import annotations

from collections.abc import Callable
from math import log as log_of
from typing import Any

from gradspec.graph.ir import Var
from gradspec.graph.types import boolean
from gradspec.interop import compose
from gradspec.interop.torch.aten.compare import equal, greater, less_or_equal, where
from gradspec.interop.torch.aten.operands import (
    common_dtype,
    floating,
    holds,
    positive_axis,
    product_with,
    promoted,
    summands,
    to_dtype,
)
from gradspec.interop.torch.aten.table import reads
from gradspec.ops import pointwise as ops
from gradspec.ops.shape import reshape
from gradspec.spec.errors import UnsupportedError

MOST_DECIMALS = 4
"""So many digits that their power of ten is a number of every float format."""

# --- arithmetic -------------------------------------------------------------------------------------------------------


@reads("add")
def _add(x: Any, other: Any, *, alpha: float = 1) -> Any:
    x, other = promoted(x, other)
    return ops.maximum(x, other) if _are_truths(x, other) else ops.add(*summands(x, _times(other, alpha)))


@reads("sub")
def _sub(x: Any, other: Any, *, alpha: float = 1) -> Any:
    x, other = promoted(x, other)
    return ops.sub(*summands(x, _times(other, alpha)))


@reads("rsub")
def _rsub(x: Any, other: Any, alpha: float = 1) -> Any:
    return _sub(other, x, alpha=alpha)


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


@reads("remainder")
def _remainder(x: Any, other: Any) -> Any:
    return compose.remainder(*_integers(x, other), sign_of_divisor=True)


@reads("fmod")
def _fmod(x: Any, other: Any) -> Any:
    return compose.remainder(*_integers(x, other), sign_of_divisor=False)


@reads("floor_divide")
def _floor_divide(x: Any, other: Any) -> Any:
    x, other = _integers(x, other)
    return ops.trunc_divide(x - compose.remainder(x, other, sign_of_divisor=True), other)


def _integers(*values: Any) -> tuple[Any, ...]:
    """Operands that are divided with a rest: of floats it is exact in no formula of a quotient that is rounded."""
    if common_dtype(values).is_float:
        raise UnsupportedError("it is known for integers, and not for floats")
    return promoted(*values)


@reads("addcmul")
def _addcmul(x: Var, a: Var, b: Var, *, value: float = 1) -> Any:
    return _add(x, _mul(a, b), alpha=value)


@reads("addcdiv")
def _addcdiv(x: Var, a: Var, b: Var, *, value: float = 1) -> Any:
    return _add(x, _div(a, b), alpha=value)


@reads("lerp")
def _lerp(x: Var, end: Var, weight: Any) -> Any:
    return x + weight * (end - x)


@reads("maximum", "max.other")
def _maximum(x: Var, other: Var) -> Any:
    return ops.maximum(*promoted(x, other))


@reads("minimum", "min.other")
def _minimum(x: Var, other: Var) -> Any:
    return ops.minimum(*promoted(x, other))


@reads("fmax")
def _fmax(x: Var, other: Var) -> Any:
    """The one that is a number, if one is."""
    x, other = promoted(x, other)
    return where(equal(x, x), where(equal(other, other), ops.maximum(x, other), x), other)


@reads("fmin")
def _fmin(x: Var, other: Var) -> Any:
    return ops.neg(_fmax(ops.neg(x), ops.neg(other)))


# --- powers -----------------------------------------------------------------------------------------------------------


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


@reads("square")
def _square(x: Var) -> Any:
    return x * x


@reads("rsqrt")
def _rsqrt(x: Var) -> Any:
    return 1.0 / ops.sqrt(floating(x))


@reads("reciprocal")
def _reciprocal(x: Var) -> Any:
    return 1.0 / floating(x)


# --- functions of one operand -----------------------------------------------------------------------------------------

reads("neg")(ops.neg)
reads("abs")(ops.abs)
reads("relu")(ops.relu)
reads("relu6")(lambda x: ops.clamp(x, 0.0, 6.0))
reads("clamp_min")(lambda x, low: _clamp(x, low))
reads("clamp_max")(lambda x, high: _clamp(x, None, high))
reads("leaky_relu")(ops.leaky_relu)
reads("silu")(ops.silu)
reads("mish")(compose.mish)
reads("hardswish")(compose.hardswish)
reads("hardsigmoid")(compose.hardsigmoid)
reads("celu")(compose.celu)


def _of_floats(name: str, function: Callable[[Any], Any]) -> None:
    reads(name)(lambda x: function(floating(x)))


_of_floats("exp", ops.exp)
_of_floats("exp2", lambda x: ops.exp(x * log_of(2)))
_of_floats("expm1", compose.exp_minus_one)
_of_floats("log", ops.log)
_of_floats("log1p", compose.log_one_plus)
_of_floats("log2", lambda x: compose.log_to_base(x, 2))
_of_floats("log10", lambda x: compose.log_to_base(x, 10))
_of_floats("sqrt", ops.sqrt)
_of_floats("erf", ops.erf)
_of_floats("erfc", compose.erfc)
_of_floats("sin", ops.sin)
_of_floats("cos", ops.cos)
_of_floats("tan", compose.tan)
_of_floats("sinh", compose.sinh)
_of_floats("cosh", compose.cosh)
_of_floats("tanh", ops.tanh)
_of_floats("sigmoid", ops.sigmoid)
_of_floats("log_sigmoid", lambda x: -ops.softplus(-x))


@reads("sign", "sgn")
def _sign(x: Var) -> Any:
    return x if x.dtype is boolean else compose.sign(x)


def _rounds(name: str, function: Callable[[Any], Any]) -> None:
    """Integers are what they round to."""
    reads(name)(lambda x: function(x) if x.type.is_float else x)


_rounds("floor", ops.floor)
_rounds("ceil", compose.ceil)
_rounds("round.default", ops.round)
_rounds("trunc", compose.trunc)
_rounds("fix", compose.trunc)


@reads("frac")
def _frac(x: Var) -> Any:
    return x - compose.trunc(x)


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
    above = x if min is None else _maximum(x, min)
    return above if max is None else _minimum(above, max)


@reads("hardtanh")
def _hardtanh(x: Var, min_val: float = -1, max_val: float = 1) -> Any:
    return ops.clamp(x, min_val, max_val)


@reads("gelu")
def _gelu(x: Var, *, approximate: str = "none") -> Any:
    return ops.gelu(x, approximate)


@reads("softplus")
def _softplus(x: Var, beta: float = 1, threshold: float = 20) -> Any:
    """The identity beyond a threshold below 20; beyond a higher one the two differ by less than exp(−threshold)/β."""
    y = ops.softplus(x, float(beta))
    return y if threshold >= 20 else where(greater(ops.scale(x, float(beta)), float(threshold)), x, y)


@reads("elu")
def _elu(x: Var, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    return compose.elu(x, alpha, gain=scale, steepness=input_scale)


@reads("selu")
def _selu(x: Var) -> Any:
    return compose.elu(x, 1.6732632423543772, gain=1.0507009873554805)


@reads("prelu", "_prelu_kernel")
def _prelu(x: Var, weight: Var) -> Any:
    """A vector of slopes has one for each channel."""
    by_channel = weight.ndim == 1 and weight.shape[0] > 1 and x.ndim > 1
    return compose.prelu(x, reshape(weight, (*weight.shape, *(1,) * (x.ndim - 2))) if by_channel else weight)


@reads("glu")
def _glu(x: Var, dim: int = -1) -> Any:
    axis = positive_axis(dim, x.ndim)
    values, gates = compose.split(x, [x.shape[axis] // 2] * 2, axis)
    return values * ops.sigmoid(gates)


@reads("threshold")
def _threshold(x: Var, threshold: float, value: float) -> Any:
    return ops.relu(x) if threshold == value == 0 else where(less_or_equal(x, threshold), value, x)


# --- what does nothing when a model is evaluated ----------------------------------------------------------------------


@reads("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def _dropout(x: Var, p: float, train: bool) -> Any:
    if train and p:
        raise UnsupportedError("dropout in training mode draws random numbers; call eval() on it, or on the model")
    return x


@reads("rrelu")
def _rrelu(x: Var, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, generator: Any = None) -> Any:
    """Below 0 a slope that is drawn in training, and otherwise the middle one."""
    if training:
        raise UnsupportedError("rrelu in training mode draws random numbers; call eval() on it, or on the model")
    return ops.leaky_relu(x, (lower + upper) / 2)


@reads("native_dropout")
def _native_dropout(x: Var, p: float, train: bool | None) -> Any:
    return (_dropout(x, p, bool(train) or train is None),)
