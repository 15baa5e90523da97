"""JAX as a namespace of the lowerings that it shares with other libraries."""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

from jax import Array, lax
from jax import numpy as jnp

from gradspec.backends.xp.namespace import Namespace
from gradspec.graph.types import DType


class JaxNamespace(Namespace):
    erf = staticmethod(lax.erf)

    def dtype(self, dtype: DType) -> Any:
        return dtype.numpy

    def cast(self, x: Array, dtype: Any) -> Array:
        return x.astype(dtype)

    def trunc_divide(self, a: Array, b: Array) -> Array:
        return lax.div(a, b)

    def normal_cdf(self, x: Array) -> Array:
        return lax.erfc(x * -sqrt(0.5)) / 2

    def normal_density(self, x: Array) -> Array:
        return jnp.exp(x * x * -0.5) * (1 / sqrt(2 * pi))

    def sum(self, x: Array, axes: tuple[int, ...]) -> Array:
        return x.sum(axis=axes, dtype=x.dtype)

    def cumsum(self, x: Array, axis: int) -> Array:
        return lax.cumsum(x, axis)

    def matmul(self, a: Array, b: Array, transpose_a: bool, transpose_b: bool) -> Array:
        last, stack = a.ndim - 1, tuple(range(a.ndim - 2))
        inner = ((last - transpose_a,), (last - 1 + transpose_b,))
        return lax.dot_general(a, b, (inner, (stack, stack)), precision=lax.Precision.HIGHEST)


JAX = JaxNamespace(jnp)
