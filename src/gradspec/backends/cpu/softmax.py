"""The softmax and its logarithm on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from gradspec.backends.cpu.axes import Blocks, Strides, by_stride, dense, merged
from gradspec.backends.cpu.kernels import terms as t
from gradspec.backends.cpu.reduce import Pieces, computed, in_blocks, places_in_workspace, take_column, words_of
from gradspec.codegen.cache import kernel
from gradspec.runtime.task import Bound, Lowering, LoweringBase, Task, Work

SOURCE = "gradspec.backends.cpu.kernels.softmax"

CELLS_AT_A_TIME = 8192
"""Of rows that are worked on side by side, or one after another in a unit: they fit the caches."""

FEWEST_COLUMNS, MOST_COLUMNS = 16, 256
SHORT_ROW = 32
"""Rows no longer than this are worked on side by side even if their cells are neighbours, when there are enough."""

NANOSECONDS_PER_CELL = 3.0
NANOSECONDS_PER_UNIT = 100.0


@dataclass(frozen=True)
class _Softmax:
    """Rows along an axis of an array."""

    shape: tuple[int, ...]
    axis: int
    itemsize: int
    """Bytes of the numbers that are computed with."""
    is_log: bool

    def __call__(self, strides: Sequence[Strides]) -> Bound:
        """What follows the addresses in a block, the units, and the workspace."""
        (x, y), cells = strides, self.shape[self.axis]
        pieces = Pieces.of(self.shape, (self.axis,))
        kept = merged(by_stride((n, (x[a], y[a])) for a, n in enumerate(self.shape) if a != self.axis))
        row = (cells, (x[self.axis], y[self.axis]))
        column, is_side_by_side = take_column(kept, [row])
        is_side_by_side |= cells <= SHORT_ROW and column[0] >= FEWEST_COLUMNS
        at_once = max(1, min(cells, t.PIECE))
        fitting = CELLS_AT_A_TIME // at_once
        most = min(max(fitting, FEWEST_COLUMNS), MOST_COLUMNS) if is_side_by_side else max(1, fitting)
        fields = in_blocks(column, most)
        width = fields[t.BLOCK] if is_side_by_side else 1
        room = {
            t.SUMS_AT: pieces.count * width * self.itemsize,
            t.LANES_AT: t.LANES_BYTES * width,
            t.CELLS_AT: at_once * width * self.itemsize,
            t.POWERS_AT: at_once * width * self.itemsize,
            t.LARGEST_AT: width * self.itemsize,
        }
        places, workspace = places_in_workspace(room)
        fields |= {**pieces.fields, **places, t.SIDE_BY_SIDE: int(is_side_by_side), t.LOG: int(self.is_log)}
        units = prod(size for size, _ in kept) * fields[t.BLOCKS] if cells else 0
        return words_of(fields, kept, [row]), units, workspace


class _SoftmaxLowering(LoweringBase):
    def task(self, work: Work) -> Task | None:
        ((node,), (x,), (y,)) = work.nodes, work.nodes[0].inputs, work.nodes[0].outputs
        name, size = node.op.name, x.dtype.numpy.itemsize
        described = _Softmax(x.shape, node.attrs.axis, computed(x.dtype).numpy.itemsize, name == "log_softmax")
        _, units, workspace = described([dense(x.shape)] * 2)
        return Task(
            kernel=f"{name} {x.dtype}",
            inputs=(x,),
            outputs=(y,),
            function=kernel(SOURCE, f"softmax:{x.dtype}"),
            units=units,
            cost=NANOSECONDS_PER_CELL * x.type.size + NANOSECONDS_PER_UNIT * units,
            workspace=workspace,
            bind=Blocks([size, size], described),
            keeps_layout=True,
        )


LOWERINGS: dict[str, Lowering] = {"softmax": _SoftmaxLowering(), "log_softmax": _SoftmaxLowering()}
