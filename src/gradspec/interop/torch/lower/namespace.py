"""PyTorch as a namespace of the lowerings that it shares with other libraries."""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

import torch
from torch import Tensor

from gradspec.backends.xp.namespace import Namespace
from gradspec.graph.types import DType, bf16, f16
from gradspec.interop.torch.types import torch_dtype


class TorchNamespace(Namespace):
    permute_dims = staticmethod(torch.permute)
    repeat = staticmethod(torch.repeat_interleave)
    take_along_axis = staticmethod(torch.take_along_dim)

    def dtype(self, dtype: DType) -> Any:
        return torch_dtype(dtype)

    def cast(self, x: Tensor, dtype: Any) -> Tensor:
        return x.to(dtype)

    def is_float(self, x: Tensor) -> bool:
        return x.is_floating_point()

    def rounds_twice(self, x: Tensor, dtype: DType) -> bool:
        return dtype in (f16, bf16) and x.dtype in (torch.float64, torch.int32, torch.int64)

    def trunc_divide(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.div(a, b, rounding_mode="trunc")

    def normal_cdf(self, x: Tensor) -> Tensor:
        """In float64: a rounding of the argument would cost as many as its square in the tail."""
        return (torch.erfc(x.double() * -sqrt(0.5)) / 2).to(x.dtype)

    def normal_density(self, x: Tensor) -> Tensor:
        wide = x.double()
        return (torch.exp(wide * wide * -0.5) * (1 / sqrt(2 * pi))).to(x.dtype)

    def sum(self, x: Tensor, axes: tuple[int, ...]) -> Tensor:
        return torch.sum(x, axes, dtype=x.dtype) if axes else x

    def cumsum(self, x: Tensor, axis: int) -> Tensor:
        return torch.cumsum(x, axis, dtype=x.dtype) + 0  # from 0 on: 0 + −0 is 0

    def matmul(self, a: Tensor, b: Tensor, transpose_a: bool, transpose_b: bool) -> Tensor:
        return torch.matmul(a.mT if transpose_a else a, b.mT if transpose_b else b)

    def add_rows(self, size: int, places: Tensor, rows: Tensor) -> Tensor:
        """``index_put_`` sorts what meets in one place first: the same bits come out of every run."""
        y = rows.new_zeros(size, *rows.shape[1:])
        return y.index_put_((places,), rows, accumulate=True)


TORCH = TorchNamespace(torch)
