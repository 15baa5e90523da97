"""Axes of arrays, with their strides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Strides = tuple[int, ...]
Axis = tuple[int, Strides]
"""A size, and a stride in each of some arrays."""


def merged(axes: Iterable[Axis]) -> list[Axis]:
    """Neighbouring axes as one where every array allows it; those of one cell are left out.

    >>> merged([(2, (24, 0)), (1, (7, 7)), (3, (8, 0)), (8, (1, 1))])
    [(6, (8, 0)), (8, (1, 1))]
    """
    found: list[Axis] = []
    for size, strides in axes:
        if size == 1:
            continue
        if found and all(before == size * s for before, s in zip(found[-1][1], strides, strict=True)):
            found[-1] = (found[-1][0] * size, strides)
        else:
            found.append((size, strides))
    return found


def by_stride(axes: Iterable[Axis], array: int = 0) -> list[Axis]:
    """Axes in the order of their strides in one of the arrays, the largest first."""
    return sorted(axes, key=lambda axis: -abs(axis[1][array]))


def dense(shape: Sequence[int]) -> Strides:
    """Strides, in elements, of a C-contiguous array.

    >>> dense((2, 3, 4))
    (12, 4, 1)
    """
    strides = [1] * len(shape)
    for i in range(len(shape) - 1, 0, -1):
        strides[i - 1] = strides[i] * shape[i]
    return tuple(strides)
