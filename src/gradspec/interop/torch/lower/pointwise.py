"""Operators that work cell by cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradspec.graph.types import DTYPES
from gradspec.interop.torch.types import torch_dtype


def _step(attrs: Any, x: Tensor) -> Tensor:
    """In the dtype of ``x``: numbers alone would have torch's default one."""
    above = torch.full_like(x, attrs.above)
    return torch.where(x < 0, attrs.below, torch.where(x == 0, attrs.at, above))


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
    "step": _step,
    "convert": _convert,
    "quantize": _quantize,
    "dequantize": _dequantize,
}
