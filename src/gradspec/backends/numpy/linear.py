"""Products of matrices and batch normalisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradspec.graph.ir import Array
from gradspec.ops.linear import BatchNorm, Product


def _matmul(attrs: Product, a: Array, b: Array, *bias: Array) -> Array:
    # NumPy hands contiguous matrices and their transposes to BLAS, and multiplies others slowly by itself.
    left, right = np.ascontiguousarray(a), np.ascontiguousarray(b)
    product = np.matmul(
        left.swapaxes(-1, -2) if attrs.transpose_a else left, right.swapaxes(-1, -2) if attrs.transpose_b else right
    )
    return np.add(product, bias[0][..., None, :]) if bias else product


def _batch_norm(attrs: BatchNorm, x: Array, mean: Array, var: Array, *affine: Array) -> Array:
    ones = (1,) * (x.ndim - 2)
    root = np.sqrt(var + var.dtype.type(attrs.eps))
    y: Array = (x - mean.reshape(-1, *ones)) / root.reshape(-1, *ones)
    if attrs.weight:
        y = y * affine[0].reshape(-1, *ones)
    if attrs.bias:
        y = y + affine[-1].reshape(-1, *ones)
    return y


KERNELS: dict[str, Callable[..., Any]] = {"matmul": _matmul, "batch_norm": _batch_norm}
