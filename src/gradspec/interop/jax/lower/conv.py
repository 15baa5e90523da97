"""Convolution as XLA has it; transposed convolution and the weight gradient are its transposes."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from jax import Array, lax
from jax import numpy as jnp

from gradspec.interop.jax.lower.windows import transposed
from gradspec.ops.conv import Convolution


def _read(attrs: Convolution, x: Array, w: Array) -> Array:
    """``Σ x̃·w``, linear in each.

    The zeros around ``x`` are laid down before: XLA passes over padding of its own in some of its loops, and a zero
    times an infinite weight is NaN.
    """
    lead, channels = x.shape[: x.ndim - attrs.rank - 1], x.shape[x.ndim - attrs.rank - 1]
    shape = (*lead, w.shape[0], *attrs.outputs)
    if not prod(x.shape) or not prod(w.shape):
        return jnp.zeros(shape, x.dtype)
    one = (1,) * (not attrs.rank)  # XLA's convolutions have a spatial axis
    samples = x.reshape(prod(lead), channels, *attrs.sizes, *one)
    y = lax.conv_general_dilated(
        _padded(attrs, samples),
        w.reshape(*w.shape, *one),
        window_strides=(*attrs.stride, *one),
        padding="VALID",
        rhs_dilation=(*attrs.dilation, *one),
        feature_group_count=attrs.groups,
        precision=lax.Precision.HIGHEST,
    )
    return y.reshape(shape)


def _padded(attrs: Convolution, x: Array) -> Array:
    """``x`` from where the first window begins to where the last one ends."""
    ends = [(0, 0, 0)] * x.ndim
    axes = zip(attrs.sizes, attrs.kernel, attrs.stride, attrs.padding, attrs.dilation, attrs.outputs, strict=True)
    for a, (n, k, s, (lo, _), d, o) in enumerate(axes, 2):
        ends[a] = (lo, (o - 1) * s + d * (k - 1) + 1 - n - lo, 0)
    if all(end == (0, 0, 0) for end in ends):
        return x
    return lax.pad(x, jnp.zeros((), x.dtype), ends)


def _plus(attrs: Convolution, y: Array, bias: tuple[Array, ...]) -> Array:
    return y + bias[0].reshape(-1, *(1,) * attrs.rank) if bias else y


def _conv(attrs: Convolution, x: Array, w: Array, *bias: Array) -> Array:
    return _plus(attrs, _read(attrs, x, w), bias)


def _conv_transpose(attrs: Convolution, g: Array, w: Array, *bias: Array) -> Array:
    lead, channels = g.shape[: g.ndim - attrs.rank - 1], w.shape[1] * attrs.groups
    x = transposed(lambda x: _read(attrs, x, w), (*lead, channels, *attrs.sizes), g)
    return _plus(attrs, x, bias)


def _conv_compare(attrs: Convolution, x: Array, g: Array) -> Array:
    at = x.ndim - attrs.rank - 1
    shape = (g.shape[at], x.shape[at] // attrs.groups, *attrs.kernel)
    return transposed(lambda w: _read(attrs, x, w), shape, g)


LOWERINGS: dict[str, Callable[..., Any]] = {
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "conv_compare": _conv_compare,
}
