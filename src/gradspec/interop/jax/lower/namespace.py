"""JAX as a namespace of the lowerings that it shares with other libraries."""

from __future__ import annotations

from collections.abc import Callable
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

    def is_float(self, x: Array) -> bool:
        return bool(jnp.issubdtype(x.dtype, jnp.floating))

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

    def checked(self, indices: Array, size: int, error: Callable[[int, int], Exception], least: int = 0) -> Array:
        """As they are: indices that JAX traces have no values to look at."""
        return indices

    def take_along_axis(self, x: Array, places: Array, axis: int) -> Array:
        """Linear in ``x``; a place that does not exist gives NaN, derivatives too."""
        if not places.size:
            return jnp.zeros(places.shape, x.dtype)
        size = x.shape[axis]
        cells = jnp.take_along_axis(x, jnp.clip(places, 0, size - 1), axis, mode="promise_in_bounds")
        if not self.is_float(x):
            return cells
        return cells * jnp.where((places >= 0) & (places < size), 1, jnp.nan).astype(x.dtype)


JAX = JaxNamespace(jnp)
