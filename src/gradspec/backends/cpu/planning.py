"""What the planners of several families share: axes with their strides, windows seen tap by tap, dtypes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import TypeVar

from gradspec.backends.cpu.arguments import Grid, RowPieces, StridedAxis
from gradspec.codegen.processor import processor
from gradspec.graph.types import DType, f32
from gradspec.spec.window import Regular, Window

Strides = tuple[int, ...]
Axis = tuple[int, Strides]
"""A size, and a stride in each of some arrays."""
S = TypeVar("S", bound=Strides)


def merged(axes: Iterable[tuple[int, S]]) -> list[tuple[int, S]]:
    """Neighbouring axes as one where every array allows it; those of one cell are left out.

    >>> merged([(2, (24, 0)), (1, (7, 7)), (3, (8, 0)), (8, (1, 1))])
    [(6, (8, 0)), (8, (1, 1))]
    """
    found: list[tuple[int, S]] = []
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


# --- windows and rows of results --------------------------------------------------------------------------------------

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


# --- what kernels compute in ------------------------------------------------------------------------------------------

COMPUTED = {"f16": 4, "bf16": 4, "f32": 4, "f64": 8, "i8": 4, "u8": 4, "i32": 4, "i64": 8}
"""Bytes of the numbers that each dtype is computed in; winners are as wide."""


def is_selected_as_stored(dtype: str) -> bool:
    """Whether the largest of some numbers is found without converting them: more of them fit a vector."""
    return dtype in ("i8", "u8") or has_short_winners(dtype)


def has_short_winners(dtype: str) -> bool:
    """The same with the winner, whose number has 16 bits, too. bfloat16 is compared as float16."""
    return processor().half_arithmetic and (dtype == "f16" or (dtype == "bf16" and processor().keeps_bfloat16))


MULTIPLIED = ("f16", "bf16", "f32", "f64", "i32", "i64")
"""The dtypes that sums of products are compiled for."""


def computed_float(dtype: DType) -> DType:
    """What floats of this dtype are computed in."""
    return f32 if dtype.numpy.itemsize == 2 else dtype
