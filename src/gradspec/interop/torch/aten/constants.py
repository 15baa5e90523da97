"""Tensors of which only the shape and dtype come from an operand, and operators that compute nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gradspec.graph.ir import Var
from gradspec.graph.types import number_as
from gradspec.interop.torch.aten.operands import to_dtype
from gradspec.interop.torch.aten.table import reads
from gradspec.interop.torch.types import gradspec_dtype
from gradspec.ops.shape import broadcast_to


def _full(x: Var, size: Sequence[int], value: float, dtype: torch.dtype | None = None, **_: Any) -> Any:
    """One number in every cell, in the builder of ``x``; the options that say where PyTorch puts it do not matter."""
    kind = x.dtype if dtype is None else gradspec_dtype(dtype)
    return x.owner.share(np.broadcast_to(number_as(value, kind.numpy), tuple(size)), "c")


@reads("zeros_like", "empty_like", "zero")
def _zeros_like(x: Var, **options: Any) -> Any:
    return _full(x, x.shape, 0, **options)


@reads("ones_like")
def _ones_like(x: Var, **options: Any) -> Any:
    return _full(x, x.shape, 1, **options)


@reads("full_like")
def _full_like(x: Var, fill_value: float, **options: Any) -> Any:
    return _full(x, x.shape, fill_value, **options)


@reads("new_zeros", "new_empty")
def _new_zeros(x: Var, size: Sequence[int], **options: Any) -> Any:
    return _full(x, size, 0, **options)


@reads("new_ones")
def _new_ones(x: Var, size: Sequence[int], **options: Any) -> Any:
    return _full(x, size, 1, **options)


@reads("new_full")
def _new_full(x: Var, size: Sequence[int], fill_value: float, **options: Any) -> Any:
    return _full(x, size, fill_value, **options)


@reads("fill")
def _fill(x: Var, value: Any) -> Any:
    return broadcast_to(to_dtype(value, x.dtype), x.shape) if isinstance(value, Var) else _full(x, x.shape, value)


@reads("_assert_tensor_metadata")
def _assertion(*_: Any, **__: Any) -> None:
    """What ``torch.export`` has checked already."""
