"""Padding, which other libraries have as a function."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradspec.backends.xp.layout import progressions
from gradspec.spec.layout import spaced_sizes

Array = NDArray[Any]


def _pad(attrs: Any, x: Array) -> Array:
    result = np.full(spaced_sizes(x.shape, attrs.padding, attrs.interior), attrs.value, x.dtype)
    result[progressions([lo for lo, _ in attrs.padding], x.shape, [gap + 1 for gap in attrs.interior])] = x
    return result


KERNELS: dict[str, Callable[..., Any]] = {"pad": _pad}
