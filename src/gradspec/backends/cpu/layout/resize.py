"""Resizing and its transpose on one kernel of weighted sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from math import lcm, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradspec.backends.cpu.arguments import PLACE_BYTES
from gradspec.backends.cpu.binding import KernelCall, task_of
from gradspec.backends.cpu.layout.arguments import AxisSums, ResizeArguments, ResizeAxis
from gradspec.backends.cpu.planning import COMPUTED, Strides, grid, pieces
from gradspec.backends.tables import Ints
from gradspec.codegen.cache import kernel
from gradspec.codegen.records import Operand
from gradspec.runtime.memory import aligned
from gradspec.runtime.task import Lowering, LoweringBase, Task, Work
from gradspec.spec.resize import Axis

SOURCE = "gradspec.backends.cpu.layout.kernels.resize"

TILE, LONGEST = 1024, 8192
"""Results of a row that are made at a time, and the most cells that they may read from a row of sums."""
EXACT = 1 << 53
"""Whole numbers up to here are doubles, and NumPy divides them as such."""
ONE_CELL = Axis(1, 1, Fraction(1), Fraction(0), None)
"""What no axis at all comes to."""
NANOSECONDS_PER_TAP, NANOSECONDS_PER_UNIT = 1.0, 100.0

Table = NDArray[Any]


# --- what is read -----------------------------------------------------------------------------------------------------


def axis_sums(axis: Axis, back: bool, number: Any) -> AxisSums:
    """``spec.resize.axis_taps`` as tables, or read backwards.

    Positions are quotients of whole numbers that divide to the nearest double, so that the weights are rounded once.

    >>> sums = axis_sums(Axis(2, 3, Fraction(1, 2), Fraction(0), None), False, np.float32)
    >>> sums.starts.tolist(), sums.cells.tolist(), sums.weights.tolist()
    ([0, 1, 3, 4], [0, 0, 1, 1], [1.0, 0.5, 0.5, 1.0])
    """
    places, whole = _positions(axis)
    before = (places // whole).astype(np.int64)
    share = places - places // whole * whole
    is_between = share > 0
    o = np.arange(axis.outputs)
    outputs = np.concatenate([o, o[is_between]])
    cells = np.concatenate([before, before[is_between] + 1])
    weights = np.concatenate([(whole - share) / whole, share[is_between] / whole])
    targets, read, size = (cells, outputs, axis.size) if back else (outputs, cells, axis.outputs)
    order = np.lexsort((read, targets))
    starts = np.searchsorted(targets[order], np.arange(size + 1))
    return AxisSums(starts.astype(np.int64), read[order].astype(np.int64), weights[order].astype(number))


def piece_spans(sums: AxisSums, tile: int) -> Ints:
    """For each piece of a row of results the first cell that it reads, and the end."""
    ends = [*range(0, sums.results, tile), sums.results]
    read = [sums.cells[sums.starts[a] : sums.starts[b]] for a, b in pairwise(ends)]
    return np.array([(cells.min(), cells.max() + 1) if cells.size else (0, 0) for cells in read], np.int64)


def _positions(axis: Axis) -> tuple[Table, int]:
    """Where the outputs lie among the cells, as whole numbers over one denominator."""
    whole = lcm(axis.step.denominator, axis.start.denominator)
    first, step = int(axis.start * whole), int(axis.step * whole)
    largest = 2 * max(abs(first), abs(first + axis.outputs * step), axis.size * whole) + whole
    o = np.arange(axis.outputs, dtype=np.int64 if largest <= EXACT else object)
    places = first + o * step
    if axis.rounding is not None:
        places, whole = _rounded(places, whole, axis.rounding), 1
    return np.clip(places, 0, (axis.size - 1) * whole), whole


def _rounded(places: Table, whole: int, rounding: str) -> Table:
    """``places / whole`` as ``spec.resize.ROUNDINGS`` has it; a division rounded up is one rounded down, mirrored."""
    if rounding == "floor":
        return places // whole
    if rounding == "ceil":
        return -(-places // whole)
    if rounding == "half_down":
        return -((whole - 2 * places) // (2 * whole))
    return (2 * places + whole) // (2 * whole)


# --- the lowering -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Resizing:
    """Results ``(*leads, *sizes)`` of sums along every axis."""

    leads: tuple[int, ...]
    sums: list[AxisSums]
    cells: int
    """Of a row, whether they are read or not."""

    @cached_property
    def spans(self) -> Ints:
        return piece_spans(self.sums[-1], TILE)

    def __call__(self, strides: Sequence[Strides]) -> KernelCall[ResizeArguments]:
        """Rows are added up first, unless many of their cells are not read."""
        along = zip(self.sums, *(s[len(self.leads) :] or (0,) for s in strides), strict=True)
        axes = tuple(ResizeAxis(sums.results, step, jump, sums) for sums, step, jump in along)
        widest = int((self.spans[:, 1] - self.spans[:, 0]).max())
        rows_first = len(self.sums[-1].cells) >= self.cells and widest <= LONGEST
        rows = pieces(grid(self.leads, *strides), [axis.size for axis in axes], TILE)
        arguments = ResizeArguments(Operand(0), Operand(1), rows, axes, self.spans, rows_first)
        longest = widest if rows_first else min(TILE, axes[-1].size)
        return KernelCall(arguments, rows.units, PLACE_BYTES + aligned(longest * self.sums[-1].weights.itemsize))


@dataclass(frozen=True)
class _ResizeLowering(LoweringBase):
    back: bool

    def task(self, work: Work) -> Task | None:
        (node,) = work.nodes
        (x,), axes = node.inputs, node.attrs.axes or [ONE_CELL]
        number = np.float32 if COMPUTED[x.dtype.name] == 4 else np.float64
        sums, leads = [axis_sums(axis, self.back, number) for axis in axes], x.shape[: x.ndim - len(node.attrs.sizes)]
        resizing = _Resizing(leads, sums, axes[-1].outputs if self.back else axes[-1].size)
        cost = NANOSECONDS_PER_TAP * prod(leads) * prod(len(each.cells) for each in sums)
        function = kernel(SOURCE, f"weighted:{x.dtype}")
        name = f"weighted sums {x.dtype}"
        return task_of(name, function, node.inputs, node.outputs, resizing, cost, NANOSECONDS_PER_UNIT)


LOWERINGS: dict[str, Lowering] = {"resize": _ResizeLowering(back=False), "resize_transpose": _ResizeLowering(back=True)}
