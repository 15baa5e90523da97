"""Products of matrices and batch normalisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradspec.backends.xp.namespace import Array, Namespace
from gradspec.ops.linear import BatchNorm, Product


def _matmul(xp: Namespace, attrs: Product, a: Array, b: Array, *bias: Array) -> Array:
    product = xp.matmul(a, b, attrs.transpose_a, attrs.transpose_b)
    return product + bias[0][..., None, :] if bias else product


def _batch_norm(xp: Namespace, attrs: BatchNorm, x: Array, mean: Array, var: Array, *affine: Array) -> Array:
    ones = (1,) * (x.ndim - 2)
    root = xp.sqrt(var + attrs.eps)
    y = (x - mean.reshape(-1, *ones)) / root.reshape(-1, *ones)
    if attrs.weight:
        y = y * affine[0].reshape(-1, *ones)
    return y + affine[-1].reshape(-1, *ones) if attrs.bias else y


LOWERINGS: dict[str, Callable[..., Any]] = {"matmul": _matmul, "batch_norm": _batch_norm}
