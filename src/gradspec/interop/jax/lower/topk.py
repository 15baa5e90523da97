"""The places of the largest or smallest cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import Array
from jax import numpy as jnp


def _top_places(attrs: Any, x: Array) -> Array:
    """Sorted upwards, NaN comes last and equal cells stay in order; so they do downwards if all is read backwards."""
    if not attrs.largest:
        return jnp.argsort(x, axis=-1, stable=True)[..., : attrs.k]
    upwards = jnp.argsort(x[..., ::-1], axis=-1, stable=True)
    return (x.shape[-1] - 1 - upwards[..., ::-1])[..., : attrs.k]


LOWERINGS: dict[str, Callable[..., Any]] = {"top_places": _top_places}
