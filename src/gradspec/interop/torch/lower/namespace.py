"""PyTorch as a namespace of the lowerings that it shares with other libraries."""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

import torch
from torch import Tensor

from gradspec.backends.xp.namespace import Namespace
from gradspec.graph.types import DType
from gradspec.interop.torch.types import torch_dtype


class TorchNamespace(Namespace):
    permute_dims = staticmethod(torch.permute)

    def dtype(self, dtype: DType) -> Any:
        return torch_dtype(dtype)

    def cast(self, x: Tensor, dtype: Any) -> Tensor:
        return x.to(dtype)

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


TORCH = TorchNamespace(torch)
