"""Operators that work cell by cell."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt
from typing import Any

import torch
from torch import Tensor

from gradspec.graph.types import DTYPES
from gradspec.interop.torch.types import torch_dtype
from gradspec.spec.pointwise import GELU_CUBIC, GELU_SCALE


def _trunc_divide(_: Any, a: Tensor, b: Tensor) -> Tensor:
    return torch.where(b == 0, 0, torch.div(a, torch.where(b == 0, 1, b), rounding_mode="trunc"))


def _sigmoid(x: Tensor) -> Tensor:
    power = torch.exp(-torch.abs(x))
    return torch.where(x < 0, power, 1.0) / (1 + power)


def _softplus(attrs: Any, x: Tensor) -> Tensor:
    z = attrs.beta * x
    bend = torch.log1p(torch.exp(-torch.abs(z))) / attrs.beta
    return torch.where(z > 0, x + bend, bend)


def _clamp(attrs: Any, x: Tensor) -> Tensor:
    above = x if attrs.min is None else torch.where(x < attrs.min, attrs.min, x)
    return above if attrs.max is None else torch.where(above > attrs.max, attrs.max, above)


def _step(attrs: Any, x: Tensor) -> Tensor:
    above = torch.full_like(x, attrs.above)
    return torch.where(x < 0, attrs.below, torch.where(x == 0, attrs.at, above))


def _max_share(_: Any, a: Tensor, b: Tensor) -> Tensor:
    larger = torch.where(a > b, 1.0, torch.where(b > a, 0.0, torch.full_like(a, 0.5)))
    return torch.where(a.isnan() == b.isnan(), larger, a.isnan().to(a.dtype))


def _within(attrs: Any, x: Tensor) -> Tensor:
    outside = torch.zeros_like(x, dtype=torch.bool) if attrs.min is None else x < attrs.min
    return ~(outside if attrs.max is None else outside | (x > attrs.max))


def _normal_cdf(x: Tensor) -> Tensor:
    """In float64: a rounding of the argument would cost as many as its square in the tail."""
    return (torch.erfc(x.double() * -sqrt(0.5)) / 2).to(x.dtype)


def _normal_density(x: Tensor) -> Tensor:
    wide = x.double()
    return (torch.exp(wide * wide * -0.5) * (1 / sqrt(2 * pi))).to(x.dtype)


def _gelu(attrs: Any, x: Tensor) -> Tensor:
    if attrs.approximate == "none":
        return x * _normal_cdf(x)
    return x * _sigmoid(GELU_SCALE * (x + GELU_CUBIC * (x * x * x)))


def _abs_power(attrs: Any, x: Tensor) -> Tensor:
    value = torch.abs(x) ** attrs.exponent
    signed = torch.where(x < 0, -value, value) if attrs.signed else value
    return torch.where(x == 0, float(attrs.exponent == 0 and not attrs.signed), signed)


# --- conversion -------------------------------------------------------------------------------------------------------


def _convert(attrs: Any, x: Tensor) -> Tensor:
    dtype = torch_dtype(DTYPES[attrs.dtype])
    if x.dtype.is_floating_point and not dtype.is_floating_point and dtype is not torch.bool:
        return _whole(x, dtype)
    if dtype in (torch.float16, torch.bfloat16) and x.dtype in (torch.float64, torch.int32, torch.int64):
        return _to_odd(x).to(dtype)
    return x.to(dtype)


def _whole(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Floats without their fractions; those that do not fit become the nearest integer that does, and NaN 0."""
    limits, whole = torch.iinfo(dtype), torch.trunc(x.double() if x.dtype is not torch.float64 else x)
    above, below = whole >= float(limits.max), whole <= float(limits.min)
    inside = torch.where(above | below | x.isnan(), 0.0, whole).to(dtype)
    return torch.where(above, limits.max, torch.where(below, limits.min, inside))


def _to_odd(x: Tensor) -> Tensor:
    """Numbers of more bits than float32 holds as such, from which the small formats are rounded as if from ``x``: what
    does not fit is cut off, and then the last bit is set, so that it is not taken for the middle of two numbers."""
    wide = x if x.dtype is torch.float64 else _as_double(x)
    near = wide.float()
    is_exact = (near.double() == wide) | ~near.isfinite()
    cut = near.view(torch.int32) - (near.double().abs() > wide.abs()).to(torch.int32)
    return torch.where(is_exact, near, (cut | 1).view(torch.float32))


def _as_double(x: Tensor) -> Tensor:
    """Integers, of which those that doubles do not hold are cut off and marked in the same way."""
    long = x.to(torch.int64)
    marked = ((long >> 11) | ((long & 2047) != 0).to(torch.int64)).double() * 2048
    return torch.where((long > -(2**53)) & (long < 2**53), long.double(), marked)


# --- quantisation -----------------------------------------------------------------------------------------------------


def _spread(t: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``t`` so that it broadcasts to ``shape``: cells that are for several neighbours, but not for all, repeated."""
    for axis in range(-t.ndim, 0):
        if t.shape[axis] not in (1, shape[axis]):
            t = torch.repeat_interleave(t, shape[axis] // t.shape[axis], axis)
    return t


def _quantize(attrs: Any, x: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    limits, offset = torch.iinfo(torch_dtype(DTYPES[attrs.dtype])), _spread(zero, x.shape).to(torch.int32)
    level = torch.round(x / _spread(scale, x.shape))
    inside = torch.clamp(level, (limits.min - offset).to(x.dtype), (limits.max - offset).to(x.dtype))
    return torch.where(level.isnan(), 0.0, inside).to(torch.int32) + offset


def _dequantize(attrs: Any, q: Tensor, scale: Tensor, *zero: Tensor) -> Tensor:
    steps = q.to(torch.int32)
    for z in zero:
        steps = steps - _spread(z, q.shape).to(torch.int32)
    return steps.to(scale.dtype) * _spread(scale, q.shape)


LOWERINGS: dict[str, Callable[..., Any]] = {
    "neg": lambda _, x: -x,
    "add": lambda _, a, b: a + b,
    "sub": lambda _, a, b: a - b,
    "mul": lambda _, a, b: a * b,
    "div": lambda _, a, b: a / b,
    "trunc_divide": _trunc_divide,
    "scale": lambda attrs, x: x * attrs.factor,
    "detach": lambda _, x: x,
    "relu": lambda _, x: torch.where(x <= 0, 0, x),
    "leaky_relu": lambda attrs, x: torch.where(x <= 0, attrs.negative_slope * x, x),
    "abs": lambda _, x: torch.abs(x),
    "abs_power": _abs_power,
    "clamp": _clamp,
    "maximum": lambda _, a, b: torch.maximum(a, b),
    "minimum": lambda _, a, b: torch.minimum(a, b),
    "floor": lambda _, x: torch.floor(x),
    "round": lambda _, x: torch.round(x),
    "exp": lambda _, x: torch.exp(x),
    "log": lambda _, x: torch.log(x),
    "sqrt": lambda _, x: torch.sqrt(x),
    "tanh": lambda _, x: torch.tanh(x),
    "sin": lambda _, x: torch.sin(x),
    "cos": lambda _, x: torch.cos(x),
    "sigmoid": lambda _, x: _sigmoid(x),
    "softplus": _softplus,
    "silu": lambda _, x: x * _sigmoid(x),
    "gelu": _gelu,
    "erf": lambda _, x: torch.erf(x),
    "normal_cdf": lambda _, x: _normal_cdf(x),
    "normal_density": lambda _, x: _normal_density(x),
    "step": _step,
    "max_share": _max_share,
    "within": _within,
    "gate": lambda _, weight, t: torch.where(weight == 0, 0, weight * t),
    "greater": lambda _, a, b: a > b,
    "equal": lambda _, a, b: a == b,
    "where": lambda _, condition, a, b: torch.where(condition, a, b),
    "convert": _convert,
    "quantize": _quantize,
    "dequantize": _dequantize,
}
