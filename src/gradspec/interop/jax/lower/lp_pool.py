"""Power pooling, scaled by powers of two so that no intermediate power overflows or vanishes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import Array
from jax import numpy as jnp

from gradspec.interop.jax.lower.windows import every_cell


def _lp_pool(attrs: Any, x: Array) -> Array:
    sizes = jnp.abs(every_cell(attrs.window(x), x, 0))
    top = sizes.max(axis=-1)
    if attrs.p == jnp.inf:
        return top
    shift = jnp.where(jnp.isfinite(top), jnp.frexp(top)[1], 0)
    total = (jnp.ldexp(sizes, -shift[..., None]) ** attrs.p).sum(axis=-1)
    return jnp.ldexp(total ** (1 / attrs.p), shift)


LOWERINGS: dict[str, Callable[..., Any]] = {"lp_pool": _lp_pool}
