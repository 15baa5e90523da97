"""Operators that move numbers: views where a library has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def progressions(starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int]) -> tuple[slice, ...]:
    """``size`` positions from ``start`` in steps of ``step``, as slices."""
    ends = [start + size * step for start, size, step in zip(starts, sizes, steps, strict=True)]
    return tuple(slice(a, b if b >= 0 else None, s) for a, b, s in zip(starts, ends, steps, strict=True))


LOWERINGS: dict[str, Callable[..., Any]] = {
    "broadcast_to": lambda xp, attrs, x: xp.broadcast_to(x, attrs.shape),
    "reshape": lambda xp, attrs, x: x.reshape(attrs.shape),
    "transpose": lambda xp, attrs, x: xp.permute_dims(x, attrs.axes),
    "concat": lambda xp, attrs, *xs: xp.concatenate(xs, attrs.axis),
    "slice": lambda xp, attrs, x: x[progressions(attrs.starts, attrs.sizes, attrs.steps)],
}
