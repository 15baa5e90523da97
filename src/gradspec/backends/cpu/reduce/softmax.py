"""The softmax and its logarithm on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradspec.backends.cpu.axes import Strides, by_stride, merged
from gradspec.backends.cpu.binding import KernelCall, laid_out, task_of
from gradspec.backends.cpu.dtypes import computed_float
from gradspec.backends.cpu.reduce.arguments import LANES_BYTES, PIECE, SCRATCH_BYTES, SoftmaxArguments
from gradspec.backends.cpu.reduce.plan import outputs_of, pieces_of, take_column
from gradspec.codegen.cache import kernel
from gradspec.runtime.task import Lowering, LoweringBase, Task, Work

SOURCE = "gradspec.backends.cpu.reduce.kernels.softmax"

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

    def __call__(self, strides: Sequence[Strides]) -> KernelCall[SoftmaxArguments]:
        (x, y), cells = strides, self.shape[self.axis]
        x_stride, y_stride, pieces = x[self.axis], y[self.axis], pieces_of(self.shape, (self.axis,))
        kept = merged(by_stride((n, (x[a], y[a])) for a, n in enumerate(self.shape) if a != self.axis))
        column, is_side_by_side = take_column(kept, [(cells, (x_stride, y_stride))])
        is_side_by_side |= cells <= SHORT_ROW and column[0] >= FEWEST_COLUMNS
        at_once = max(1, min(cells, PIECE))
        fitting = CELLS_AT_A_TIME // at_once
        most = min(max(fitting, FEWEST_COLUMNS), MOST_COLUMNS) if is_side_by_side else max(1, fitting)
        outputs, units = outputs_of(kept, column, most)
        width = outputs.block if is_side_by_side else 1
        each = width * self.itemsize
        places, workspace = laid_out(
            SCRATCH_BYTES,
            sums_at=pieces.count * each,
            lanes_at=LANES_BYTES * width,
            cells_at=at_once * each,
            powers_at=at_once * each,
            largest_at=each,
        )
        arguments = SoftmaxArguments(
            **vars(outputs),
            **places,
            x_stride=x_stride,
            y_stride=y_stride,
            pieces=pieces,
            is_side_by_side=is_side_by_side,
            is_log=self.is_log,
        )
        return KernelCall(arguments, units if cells else 0, workspace)


class _SoftmaxLowering(LoweringBase):
    def task(self, work: Work) -> Task | None:
        (node,) = work.nodes
        (x,), name = node.inputs, node.op.name
        function, cost = kernel(SOURCE, f"softmax:{x.dtype}"), NANOSECONDS_PER_CELL * x.type.size
        itemsize = computed_float(x.dtype).numpy.itemsize
        softmax = _Softmax(x.shape, node.attrs.axis, itemsize, is_log=name == "log_softmax")
        arrays = node.inputs, node.outputs
        return task_of(f"{name} {x.dtype}", function, *arrays, softmax, cost, NANOSECONDS_PER_UNIT, keeps_layout=True)


LOWERINGS: dict[str, Lowering] = {"softmax": _SoftmaxLowering(), "log_softmax": _SoftmaxLowering()}
