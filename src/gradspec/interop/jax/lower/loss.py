"""Picking one cell per label, and placing it back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import Array
from jax import numpy as jnp

from gradspec.interop.jax.lower.pool import taken
from gradspec.interop.jax.lower.windows import transposed


def _picked(x: Array, labels: Array, axis: int) -> Array:
    if not labels.size:
        return jnp.zeros(labels.shape, x.dtype)
    return taken(x, jnp.expand_dims(labels, axis), axis).squeeze(axis)


def _pick(attrs: Any, x: Array, labels: Array) -> Array:
    return _picked(x, labels, attrs.axis)


def _place(attrs: Any, x: Array, labels: Array) -> Array:
    shape = (*x.shape[: attrs.axis], attrs.size, *x.shape[attrs.axis :])
    return transposed(lambda cells: _picked(cells, labels, attrs.axis), shape, x)


LOWERINGS: dict[str, Callable[..., Any]] = {"pick": _pick, "place": _place}
