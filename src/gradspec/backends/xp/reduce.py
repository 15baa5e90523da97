"""Reductions, and the softmax around its largest cell."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from gradspec.backends.xp.namespace import Array, Namespace
from gradspec.spec.reduce import reduced_sizes, terms_of_mean


def _share(xp: Namespace, attrs: Any, x: Array) -> Array:
    parts = x.reshape(reduced_sizes(attrs.shape, attrs.axes, keepdims=True)) / terms_of_mean(attrs.shape, attrs.axes)
    return xp.broadcast_to(parts, attrs.shape)


def _cumsum(xp: Namespace, attrs: Any, x: Array) -> Array:
    axis, before = attrs.axis, (slice(None),) * attrs.axis
    total = xp.cumsum(xp.flip(x, (axis,)) if attrs.reverse else x, axis)
    if attrs.exclusive:
        first, others = total[*before, :1], total[*before, :-1]
        total = xp.concatenate([xp.zeros_like(first), others], axis)
    return xp.flip(total, (axis,)) if attrs.reverse else total


def _from_largest(xp: Namespace, x: Array, axis: int) -> Array:
    return x - (xp.amax(x, axis, keepdims=True) if x.shape[axis] else -inf)


def _softmax(xp: Namespace, attrs: Any, x: Array) -> Array:
    powers = xp.exp(_from_largest(xp, x, attrs.axis))
    return powers / powers.sum(attrs.axis, keepdims=True)


def _log_softmax(xp: Namespace, attrs: Any, x: Array) -> Array:
    exponents = _from_largest(xp, x, attrs.axis)
    return exponents - xp.log(xp.exp(exponents).sum(attrs.axis, keepdims=True))


LOWERINGS: dict[str, Callable[..., Any]] = {
    "sum": lambda xp, attrs, x: xp.sum(x, attrs.axes),
    "mean": lambda xp, attrs, x: xp.sum(x, attrs.axes) / terms_of_mean(x.shape, attrs.axes),
    "cumsum": _cumsum,
    "share": _share,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
}
