"""Unfolding and folding on their kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from gradspec.backends.cpu.arguments import PLACE_BYTES, TILE, TapAxis
from gradspec.backends.cpu.binding import KernelCall, task_of
from gradspec.backends.cpu.layout.arguments import FoldArguments, FoldAxis, UnfoldArguments
from gradspec.backends.cpu.planning import COMPUTED, ONE_CELL, Strides, dense, grid, pieces, regular_axes
from gradspec.backends.tables import Ints, cell_readers, tap_ranges
from gradspec.codegen.cache import kernel
from gradspec.codegen.records import Operand
from gradspec.graph.ir import Node, Var
from gradspec.runtime.memory import aligned
from gradspec.runtime.task import Lowering, LoweringBase, Task, Work
from gradspec.spec.window import Regular

SOURCE = "gradspec.backends.cpu.layout.kernels.unfold"

NANOSECONDS_PER_COLUMN, NANOSECONDS_PER_UNIT = 0.7, 50.0


@dataclass(frozen=True)
class _Columns:
    """Cells ``(*leads, *sizes)`` and columns ``(*leads[:-1], leads[-1]·taps, windows)``."""

    leads: tuple[int, ...]
    axes: tuple[Regular, ...]
    width: int
    """Bytes of a number, as it is stored where it is moved, and as it is computed with where it is added."""

    @property
    def taps(self) -> int:
        return prod(axis.kernel for axis in self.axes)

    @cached_property
    def ranges(self) -> list[Ints]:
        return [tap_ranges(axis) for axis in self.axes]

    @cached_property
    def readers(self) -> list[tuple[Ints, Ints] | tuple[None, None]]:
        """Along the last axis all taps are gone through."""
        return [*map(cell_readers, self.axes[:-1]), (None, None)]

    def cell_strides(self, strides: Strides) -> Strides:
        """Along every spatial axis."""
        return strides[len(self.leads) :] or (0,)

    def column_strides(self, strides: Strides) -> tuple[Strides, Strides, Strides]:
        """Of planes, and of taps and of windows along every spatial axis."""
        *before, by_tap, by_window = strides
        taps, windows = dense([axis.kernel for axis in self.axes]), dense([axis.outputs for axis in self.axes])
        return (*before, self.taps * by_tap), tuple(by_tap * s for s in taps), tuple(by_window * s for s in windows)

    def unfolding(self, strides: Sequence[Strides]) -> KernelCall[UnfoldArguments]:
        x, y = (tuple(self.width * s for s in each) for each in strides)
        planes, taps, windows = self.column_strides(y)
        each = zip(self.axes, self.cell_strides(x), windows, taps, self.ranges, strict=True)
        axes = tuple(
            TapAxis(axis.outputs, axis.stride * cell, window, axis.kernel, cell, tap, ranges)
            for axis, cell, window, tap, ranges in each
        )
        arguments = UnfoldArguments(Operand(0), Operand(1), grid(self.leads, x, planes), self.taps, axes)
        return KernelCall(arguments, prod(self.leads) * self.taps, PLACE_BYTES)

    def folding(self, strides: Sequence[Strides]) -> KernelCall[FoldArguments]:
        """In pieces that are multiples of the stride: cells that are a stride apart read the same taps."""
        (x, y), last = strides, self.axes[-1]
        planes, taps, windows = self.column_strides(x)
        each = zip(self.axes, windows, self.cell_strides(y), taps, self.ranges, self.readers, strict=True)
        axes = tuple(
            FoldAxis(axis.size, window, cell, axis.kernel, axis.stride, tap, ranges, *readers)
            for axis, window, cell, tap, ranges, readers in each
        )
        tile = last.stride * max(1, min(TILE, last.size) // last.stride + 1)
        rows = pieces(grid(self.leads, planes, y), [axis.size for axis in self.axes], tile)
        workspace = PLACE_BYTES + aligned(self.width * tile)
        return KernelCall(FoldArguments(Operand(0), Operand(1), rows, axes), rows.units, workspace)


def _columns(node: Node, cells: Var, width: int) -> _Columns:
    return _Columns(cells.shape[: cells.ndim - node.attrs.rank], regular_axes(node.attrs.window) or (ONE_CELL,), width)


class _UnfoldLowering(LoweringBase):
    def task(self, work: Work) -> Task | None:
        (node,) = work.nodes
        (x,), (y,) = node.inputs, node.outputs
        itemsize, cost = x.dtype.numpy.itemsize, NANOSECONDS_PER_COLUMN * y.type.size
        describe = _columns(node, x, itemsize).unfolding
        function = kernel(SOURCE, f"unfold:{itemsize}")
        return task_of(f"windows {x.dtype}", function, node.inputs, node.outputs, describe, cost, NANOSECONDS_PER_UNIT)


class _FoldLowering(LoweringBase):
    def task(self, work: Work) -> Task | None:
        (node,) = work.nodes
        (x,), (y,) = node.inputs, node.outputs
        if x.dtype.name not in COMPUTED:
            return None
        describe, cost = _columns(node, y, COMPUTED[x.dtype.name]).folding, NANOSECONDS_PER_COLUMN * x.type.size
        name, function = f"window sums {x.dtype}", kernel(SOURCE, f"fold:{x.dtype}")
        return task_of(name, function, node.inputs, node.outputs, describe, cost, NANOSECONDS_PER_UNIT)


LOWERINGS: dict[str, Lowering] = {"unfold": _UnfoldLowering(), "fold": _FoldLowering()}
