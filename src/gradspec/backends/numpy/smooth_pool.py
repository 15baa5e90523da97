"""Smooth max pooling in its pivot form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradspec.backends.numpy.namespace import NUMPY
from gradspec.backends.numpy.pool import reduced, scattered
from gradspec.backends.tables import Ints, take
from gradspec.backends.xp.pool import smooth_max, smooth_weights
from gradspec.graph.ir import Array
from gradspec.spec.window import Window


def _window(attrs: Any, x: Array) -> Window:
    """With all of its padding only where that takes part."""
    window: Window = attrs.window(x)
    return window if attrs.padding_mode == "zeros" else window.trimmed()


def _weights(attrs: Any, taps: Ints, planes: Array) -> Any:
    """``[plane, output, tap]``."""
    return smooth_weights(NUMPY, attrs, planes.dtype.type(attrs.beta), taps, take(planes, taps))


def _smooth_max_pool(attrs: Any, x: Array) -> Array:
    def value(taps: Ints, planes: Array) -> Any:
        return smooth_max(NUMPY, attrs, x.dtype.type(attrs.beta), taps, take(planes, taps))

    return reduced(_window(attrs, x), value, x)


def _smooth_max_mean(attrs: Any, x: Array, u: Array) -> Array:
    def mean(taps: Ints, planes: Array, others: Array) -> Any:
        return (_weights(attrs, taps, planes) * take(others, taps)).sum(axis=-1)

    return reduced(_window(attrs, x), mean, x, u)


def _smooth_max_spread(attrs: Any, x: Array, g: Array) -> Array:
    def spread(taps: Ints, cotangents: Array, planes: Array) -> tuple[Array, Array]:
        return taps >= 0, cotangents * _weights(attrs, taps, planes)

    return scattered(_window(attrs, x), spread, g, x)


KERNELS: dict[str, Callable[..., Any]] = {
    "smooth_max_pool": _smooth_max_pool,
    "smooth_max_mean": _smooth_max_mean,
    "smooth_max_spread": _smooth_max_spread,
}
