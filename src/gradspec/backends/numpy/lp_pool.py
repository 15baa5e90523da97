"""Power pooling, scaled by powers of two so that no intermediate power overflows or vanishes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradspec.backends.numpy.pool import reduced
from gradspec.backends.tables import Ints, take

Array = NDArray[Any]


def _lp_pool(attrs: Any, x: Array) -> Array:
    def norm(taps: Ints, planes: Array) -> Array:
        sizes = np.abs(take(planes, taps))
        top: Array = sizes.max(axis=-1)
        if attrs.p == np.inf:
            return top
        shift: Array = np.where(np.isfinite(top), np.frexp(top)[1], 0)
        total: Array = (np.ldexp(sizes, -shift[..., None]) ** attrs.p).sum(axis=-1)
        return np.asarray(np.ldexp(total ** (1 / attrs.p), shift))

    return reduced(attrs.window(x).trimmed(), norm, x)


KERNELS: dict[str, Callable[..., Any]] = {"lp_pool": _lp_pool}
