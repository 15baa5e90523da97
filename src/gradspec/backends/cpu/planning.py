"""Windows and rows of results, as the kernels that see windows tap by tap are given them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from gradspec.backends.cpu.arguments import Grid, RowPieces, StridedAxis
from gradspec.backends.cpu.axes import Strides, merged
from gradspec.spec.window import Regular, Window

ONE_CELL = Regular(size=1, kernel=1, stride=1, lo=0, hi=0, dilation=1, outputs=1)
"""The axis that stands for none."""


def regular_axes(window: Window) -> tuple[Regular, ...]:
    """The axes of a window that has no bins."""
    return tuple(axis.canonical() for axis in window.axes if isinstance(axis, Regular))


def are_far(window: Window) -> bool:
    """Whether extents are so large that their products may not fit the words of kernels."""
    return any(max(axis.stride, axis.dilation, axis.lo) >= 1 << 31 for axis in regular_axes(window))


def grid(sizes: Sequence[int], source: Strides, target: Strides) -> Grid:
    """The first axes of two arrays, as few as will do, but one at least.

    >>> grid((2, 3), (12, 4, 1), (3, 1, 0))
    Grid(axes=(StridedAxis(size=6, source_stride=4, target_stride=1),))
    """
    axes = merged(zip(sizes, zip(source, target, strict=False), strict=False)) or [(1, (0, 0))]
    return Grid(tuple(StridedAxis(size, *strides) for size, strides in axes))


def pieces(planes: Grid, sizes: Sequence[int], tile: int) -> RowPieces:
    """Of planes of results of these sizes."""
    return RowPieces(planes, prod(sizes[:-1]), tile, -(-sizes[-1] // tile))
