"""Layout kernels: views where NumPy has them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradspec.spec.layout import spaced_sizes

Array = NDArray[Any]


def progressions(starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int]) -> tuple[slice, ...]:
    """``size`` positions from ``start`` in steps of ``step``, as slices."""
    ends = [start + size * step for start, size, step in zip(starts, sizes, steps, strict=True)]
    return tuple(slice(a, b if b >= 0 else None, s) for a, b, s in zip(starts, ends, steps, strict=True))


def _pad(attrs: Any, x: Array) -> Array:
    result = np.full(spaced_sizes(x.shape, attrs.padding, attrs.interior), attrs.value, x.dtype)
    result[progressions([lo for lo, _ in attrs.padding], x.shape, [gap + 1 for gap in attrs.interior])] = x
    return result


KERNELS: dict[str, Callable[..., Any]] = {
    "broadcast_to": lambda attrs, x: np.broadcast_to(x, attrs.shape),
    "reshape": lambda attrs, x: x.reshape(attrs.shape),
    "transpose": lambda attrs, x: x.transpose(attrs.axes),
    "concat": lambda attrs, *xs: np.concatenate(xs, attrs.axis),
    "slice": lambda attrs, x: x[progressions(attrs.starts, attrs.sizes, attrs.steps)],
    "pad": _pad,
}
