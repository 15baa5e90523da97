"""Power pooling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradspec.backends.numpy.namespace import NUMPY
from gradspec.backends.numpy.pool import reduced
from gradspec.backends.tables import take
from gradspec.backends.xp.pool import norm
from gradspec.graph.ir import Array


def _lp_pool(attrs: Any, x: Array) -> Array:
    return reduced(attrs.window(x).trimmed(), lambda taps, planes: norm(NUMPY, attrs.p, take(planes, taps)), x)


KERNELS: dict[str, Callable[..., Any]] = {"lp_pool": _lp_pool}
