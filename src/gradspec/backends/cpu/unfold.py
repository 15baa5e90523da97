"""Unfolding and folding on their kernels."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from gradspec.backends.cpu.axes import Blocks, Strides
from gradspec.backends.cpu.dtypes import COMPUTED
from gradspec.backends.cpu.taps import TILE, Tables, Windows, aligned, parts, regular_axes
from gradspec.codegen.cache import kernel
from gradspec.graph.ir import Var
from gradspec.ops.conv import StatedWindows
from gradspec.runtime.task import Bound, Lowering, LoweringBase, Task, Work

SOURCE = "gradspec.backends.cpu.kernels.unfold"

NANOSECONDS_PER_COLUMN, NANOSECONDS_PER_UNIT = 0.7, 50.0


class _Columns:
    """Cells ``(*leads, *sizes)`` and columns ``(*leads[:-1], leads[-1]·taps, windows)``."""

    def __init__(self, attrs: StatedWindows, cells: Var, folds: bool) -> None:
        self.axes = regular_axes(attrs.window)
        self.leads = cells.shape[: cells.ndim - attrs.rank]
        self.folds = folds
        *others, last = self.axes
        self.tables = [*(Tables(axis, has_readers=folds) for axis in others), Tables(last)]

    @property
    def planes(self) -> int:
        return prod(self.leads)

    @property
    def taps(self) -> int:
        return prod(axis.kernel for axis in self.axes)

    def windows(self, cells: Strides, columns: Strides) -> Windows:
        """In arrays of these strides."""
        *before, by_tap, by_window = columns
        ours, theirs = cells[: len(self.leads)], (*before, self.taps * by_tap)
        strides = zip(theirs, ours, strict=True) if self.folds else zip(ours, theirs, strict=True)
        return Windows(
            self.axes,
            self.tables,
            list(zip(self.leads, strides, strict=True)),
            cells[len(self.leads) :] or (0,),
            parts([axis.kernel for axis in self.axes], by_tap),
            parts([axis.outputs for axis in self.axes], by_window),
        )


class _Unfolding(LoweringBase):
    def task(self, work: Work) -> Task | None:
        (node,) = work.nodes
        (x,), (y,) = node.inputs, node.outputs
        columns = _Columns(node.attrs, x, folds=False)
        units, workspace = columns.planes * columns.taps, aligned(24 * len(columns.axes))

        def described(strides: Sequence[Strides]) -> Bound:
            return columns.windows(*strides).words(), units, workspace

        return Task(
            kernel=f"windows {x.dtype}",
            inputs=(x,),
            outputs=(y,),
            function=kernel(SOURCE, f"unfold:{x.dtype.numpy.itemsize}"),
            units=units,
            cost=NANOSECONDS_PER_COLUMN * y.type.size + NANOSECONDS_PER_UNIT * units,
            workspace=workspace,
            bind=Blocks((1, 1), described),
        )


class _Folding(LoweringBase):
    def task(self, work: Work) -> Task | None:
        (node,) = work.nodes
        (x,), (y,) = node.inputs, node.outputs
        if x.dtype.name not in COMPUTED:
            return None
        columns, itemsize = _Columns(node.attrs, y, folds=True), x.dtype.numpy.itemsize
        last, rows = columns.axes[-1], prod(axis.size for axis in columns.axes[:-1])
        tile = last.stride * max(1, min(TILE, last.size) // last.stride + 1)
        tiles, sums_at = -(-last.size // tile), aligned(8 * len(columns.axes))
        units, workspace = columns.planes * rows * tiles, sums_at + aligned(COMPUTED[x.dtype.name] * tile)

        def described(strides: Sequence[Strides]) -> Bound:
            return columns.windows(*reversed(strides)).words(rows, tile, tiles, sums_at), units, workspace

        return Task(
            kernel=f"window sums {x.dtype}",
            inputs=(x,),
            outputs=(y,),
            function=kernel(SOURCE, f"fold:{x.dtype}"),
            units=units,
            cost=NANOSECONDS_PER_COLUMN * x.type.size + NANOSECONDS_PER_UNIT * units,
            workspace=workspace,
            bind=Blocks((itemsize, itemsize), described),
        )


LOWERINGS: dict[str, Lowering] = {"unfold": _Unfolding(), "fold": _Folding()}
