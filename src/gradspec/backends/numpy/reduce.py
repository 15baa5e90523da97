"""Reductions, and the softmax around its largest cell."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradspec.spec.reduce import reduced_sizes, terms_of_mean

Array = NDArray[Any]


def _share(attrs: Any, x: Array) -> Array:
    parts = x.reshape(reduced_sizes(attrs.shape, attrs.axes, keepdims=True)) / terms_of_mean(attrs.shape, attrs.axes)
    return np.broadcast_to(parts, attrs.shape)


def _cumsum(attrs: Any, x: Array) -> Any:
    forwards = np.flip(x, attrs.axis) if attrs.reverse else x
    total = np.cumsum(forwards, attrs.axis, dtype=x.dtype) + np.zeros((), x.dtype)  # from 0 on: 0 + −0 is 0
    if attrs.exclusive and x.size:
        total = np.roll(total, 1, attrs.axis)
        np.moveaxis(total, attrs.axis, 0)[0] = 0
    return np.flip(total, attrs.axis) if attrs.reverse else total


def _from_largest(x: Array, axis: int) -> Any:
    return x - x.max(axis, keepdims=True, initial=-np.inf)


def _softmax(attrs: Any, x: Array) -> Any:
    powers = np.exp(_from_largest(x, attrs.axis))
    return powers / powers.sum(attrs.axis, keepdims=True)


def _log_softmax(attrs: Any, x: Array) -> Any:
    exponents = _from_largest(x, attrs.axis)
    return exponents - np.log(np.exp(exponents).sum(attrs.axis, keepdims=True))


KERNELS: dict[str, Callable[..., Any]] = {
    "sum": lambda attrs, x: x.sum(axis=attrs.axes),
    "mean": lambda attrs, x: x.sum(axis=attrs.axes) / terms_of_mean(x.shape, attrs.axes),
    "cumsum": _cumsum,
    "share": _share,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
}
