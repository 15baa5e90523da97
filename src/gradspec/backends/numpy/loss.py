"""Picking one cell per label, and placing it back."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradspec.spec.loss import label_outside

Array = NDArray[Any]


def _places(labels: Array, axis: int, classes: int) -> Array:
    """Labels, all of them classes, with an axis of size 1 where the classes are."""
    outside = labels[(labels < 0) | (labels >= classes)]
    if outside.size:
        raise label_outside(int(outside[0]), classes)
    return np.expand_dims(labels.astype(np.intp), axis)


def _pick(attrs: Any, x: Array, labels: Array) -> Array:
    return np.take_along_axis(x, _places(labels, attrs.axis, x.shape[attrs.axis]), attrs.axis).squeeze(attrs.axis)


def _place(attrs: Any, x: Array, labels: Array) -> Array:
    result = np.zeros((*x.shape[: attrs.axis], attrs.size, *x.shape[attrs.axis :]), x.dtype)
    np.put_along_axis(result, _places(labels, attrs.axis, attrs.size), np.expand_dims(x, attrs.axis), attrs.axis)
    return result


KERNELS: dict[str, Callable[..., Any]] = {"pick": _pick, "place": _place}
