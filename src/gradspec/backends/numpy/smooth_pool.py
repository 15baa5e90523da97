"""Smooth max pooling in its pivot form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradspec.backends.numpy.pool import reduced, scattered
from gradspec.backends.tables import ABSENT, Ints, take
from gradspec.spec.window import Window

Array = NDArray[Any]


class _Softened:
    """Windows around their pivots ``c``: ``eᵢ = exp(β(xᵢ − c))`` and their total."""

    def __init__(self, attrs: Any, taps: Ints, planes: Array) -> None:
        counted = taps != ABSENT if attrs.padding_mode == "zeros" else taps >= 0
        cells, beta = take(planes, taps), planes.dtype.type(attrs.beta)
        if beta > 0:
            center = np.where(counted, cells, -np.inf).max(axis=-1, keepdims=True)
        else:
            center = np.where(counted, cells, np.inf).min(axis=-1, keepdims=True)
        self.beta, self.taps, self.center = beta, taps, center[..., 0]
        self.powers = np.where(counted, np.exp(_exponents(cells, center, beta)), 0)
        self.total = self.powers.sum(axis=-1)
        self.has_cells = counted.any(axis=-1)

    def weights(self) -> Array:
        """``[plane, output, tap]``: the softmax weights of real cells; 0 for others."""
        return np.where(self.taps >= 0, self.powers / self.total[..., None], 0)


def _exponents(cells: Array, center: Array, beta: Any) -> Array:
    """``β(x − c)``, also where both are the same infinity or their difference overflows."""
    gap = cells - center
    too_wide = np.isinf(gap) & np.isfinite(cells) & np.isfinite(center)
    exponents = np.where(too_wide, (2 * beta) * (cells / 2 - center / 2), beta * gap)
    return np.where(cells == center, 0, exponents)


def _window(attrs: Any, x: Array) -> Window:
    """With all of its padding only where that takes part."""
    window: Window = attrs.window(x)
    return window if attrs.padding_mode == "zeros" else window.trimmed()


def _smooth_max_pool(attrs: Any, x: Array) -> Array:
    def value(taps: Ints, planes: Array) -> Array:
        soft = _Softened(attrs, taps, planes)
        return np.where(soft.has_cells, soft.center + np.log(soft.total) / soft.beta, 0)

    return reduced(_window(attrs, x), value, x)


def _smooth_max_mean(attrs: Any, x: Array, u: Array) -> Array:
    def mean(taps: Ints, planes: Array, others: Array) -> Array:
        weighted: Array = _Softened(attrs, taps, planes).weights() * take(others, taps)
        return np.asarray(weighted.sum(axis=-1))

    return reduced(_window(attrs, x), mean, x, u)


def _smooth_max_spread(attrs: Any, x: Array, g: Array) -> Array:
    def spread(taps: Ints, cotangents: Array, planes: Array) -> tuple[Array, Array]:
        return taps >= 0, cotangents * _Softened(attrs, taps, planes).weights()

    return scattered(_window(attrs, x), spread, g, x)


KERNELS: dict[str, Callable[..., Any]] = {
    "smooth_max_pool": _smooth_max_pool,
    "smooth_max_mean": _smooth_max_mean,
    "smooth_max_spread": _smooth_max_spread,
}
