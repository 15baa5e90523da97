"""Power pooling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import Array

from gradspec.backends.xp.pool import norm
from gradspec.interop.jax.lower.namespace import JAX
from gradspec.interop.jax.lower.windows import every_cell


def _lp_pool(attrs: Any, x: Array) -> Any:
    return norm(JAX, attrs.p, every_cell(attrs.window(x), x, 0))


LOWERINGS: dict[str, Callable[..., Any]] = {"lp_pool": _lp_pool}
