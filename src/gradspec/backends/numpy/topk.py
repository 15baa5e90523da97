"""The places of the largest or smallest cells."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def _top_places(attrs: Any, x: Array) -> Array:
    """Sorted upwards, NaN comes last and equal cells stay in order; so they do downwards if all is read backwards."""
    if not attrs.largest:
        return np.argsort(x, axis=-1, kind="stable")[..., : attrs.k]
    upwards = np.argsort(x[..., ::-1], axis=-1, kind="stable")
    return np.asarray(x.shape[-1] - 1 - upwards[..., ::-1])[..., : attrs.k]


KERNELS: dict[str, Callable[..., Any]] = {"top_places": _top_places}
