"""Products of matrices and batch normalisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import Array, lax
from jax import numpy as jnp

from gradspec.ops.linear import BatchNorm, Product


def _matmul(attrs: Product, a: Array, b: Array, *bias: Array) -> Array:
    last, stack = a.ndim - 1, tuple(range(a.ndim - 2))
    inner = ((last - attrs.transpose_a,), (last - 1 + attrs.transpose_b,))
    y = lax.dot_general(a, b, (inner, (stack, stack)), precision=lax.Precision.HIGHEST)
    return y + bias[0][..., None, :] if bias else y


def _batch_norm(attrs: BatchNorm, x: Array, mean: Array, var: Array, *affine: Array) -> Array:
    ones = (1,) * (x.ndim - 2)
    root = jnp.sqrt(var + attrs.eps)
    y = (x - mean.reshape(-1, *ones)) / root.reshape(-1, *ones)
    if attrs.weight:
        y = y * affine[0].reshape(-1, *ones)
    if attrs.bias:
        y = y + affine[-1].reshape(-1, *ones)
    return y


LOWERINGS: dict[str, Callable[..., Any]] = {"matmul": _matmul, "batch_norm": _batch_norm}
