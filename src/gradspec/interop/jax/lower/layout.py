"""Operators that move numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import Array, lax
from jax import numpy as jnp


def _slice(attrs: Any, x: Array) -> Array:
    """Axes that are read backwards are turned first."""
    if 0 in attrs.sizes:
        return jnp.zeros(attrs.sizes, x.dtype)
    turned = [a for a, step in enumerate(attrs.steps) if step < 0]
    ends = zip(x.shape, attrs.starts, attrs.steps, strict=True)
    starts = [n - 1 - start if step < 0 else start for n, start, step in ends]
    steps = [abs(step) for step in attrs.steps]
    stops = [start + (size - 1) * step + 1 for start, size, step in zip(starts, attrs.sizes, steps, strict=True)]
    return lax.slice(lax.rev(x, turned) if turned else x, starts, stops, steps)


def _pad(attrs: Any, x: Array) -> Array:
    ends = [(lo, hi, gap) for (lo, hi), gap in zip(attrs.padding, attrs.interior, strict=True)]
    return lax.pad(x, jnp.asarray(attrs.value, x.dtype), ends)


LOWERINGS: dict[str, Callable[..., Any]] = {
    "broadcast_to": lambda attrs, x: jnp.broadcast_to(x, attrs.shape),
    "reshape": lambda attrs, x: x.reshape(attrs.shape),
    "transpose": lambda attrs, x: x.transpose(attrs.axes),
    "concat": lambda attrs, *xs: lax.concatenate(xs, attrs.axis),
    "slice": _slice,
    "pad": _pad,
}
