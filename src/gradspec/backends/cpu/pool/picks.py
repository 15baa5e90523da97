"""Small planes whose outputs are picked from runs of cells: the tables that say where (see ``kernels.picks``)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from gradspec.backends.cpu.pool.arguments import AxisKind
from gradspec.backends.cpu.pool.axes import ReducedAxis
from gradspec.backends.tables import Ints

LONGEST_RUN = 16
MOST_CELLS = 8192
"""Of a plane, of the rows that are joined, and of the tables."""
CELLS_AT_ONCE = 2048
"""The same for planes that are taken together: less is read before it has arrived in the cache."""


def _extent(axes: Sequence[ReducedAxis]) -> int:
    rows, taps = prod(axis.outputs for axis in axes[:-1]), prod(axis.slots for axis in axes[:-1])
    return max(rows * max(axes[-1].size, axes[-1].outputs, 1 + taps), prod(axis.size for axis in axes))


def most_planes(axes: Sequence[ReducedAxis]) -> int:
    return max(1, CELLS_AT_ONCE // _extent(axes))


def can_pick(axes: Sequence[ReducedAxis]) -> bool:
    """Whether the last axis has short bins, of which there are too few for anything else."""
    last = axes[-1]
    if last.kind is not AxisKind.BINS or 1 in (last.size, last.outputs) or last.kernel > LONGEST_RUN:
        return False
    if _extent(axes) > MOST_CELLS:
        return False
    return all(axis.dilation == 1 and (axis.spans[:, 1] > 0).all() for axis in axes)


def row_table(axes: Sequence[ReducedAxis], strides: Sequence[int]) -> Ints:
    """``[output row]``: how many rows of cells it reads, and where these begin, by axes and strides before the last.

    >>> from gradspec.backends.cpu.pool.axes import reduced_axis
    >>> from gradspec.spec.window import Adaptive
    >>> row_table([reduced_axis(Adaptive(5, 3))], [10]).tolist()
    [[2, 0, 10, 0], [3, 10, 20, 30], [2, 30, 40, 0]]
    """
    starts: list[list[int]] = [[0]]
    for axis, stride in zip(axes, strides, strict=True):
        cells = [range(first, first + count) for first, count in axis.spans.tolist()]
        starts = [[at + cell * stride for at in row for cell in each] for row in starts for each in cells]
    entries = max(3, *map(len, starts))  # kernels read three anyway
    return np.array([[len(row), *row, *(0,) * (entries - len(row))] for row in starts], np.int64)


def place_table(last: ReducedAxis, rows: int) -> Ints:
    """``[output]``: the place of its run, of which those of the fewest cells begin at every cell of all rows, and those
    of one more come after them.

    >>> from gradspec.backends.cpu.pool.axes import reduced_axis
    >>> from gradspec.spec.window import Adaptive
    >>> place_table(reduced_axis(Adaptive(5, 3)), 2).tolist()
    [0, 11, 3, 5, 16, 8]
    """
    first, count = last.spans.T
    here = first + (count > count.min()) * rows * last.size
    places: Ints = (np.arange(rows)[:, None] * last.size + here).ravel()
    return places
