"""Operators that move numbers: views where the result can be one, and copies for all others; and unfolding, folding and
resizing, which add some of them up.

What is copied is a list of boxes, pairs of views of the same shape: cells of the result, and where they come from.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from itertools import accumulate, pairwise
from math import lcm, prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from gradspec.backends.cpu.arguments import PLACE_BYTES, TILE, StridedAxis, TapAxis
from gradspec.backends.cpu.binding import Binder, KernelCall, task_of
from gradspec.backends.cpu.layout.arguments import (
    SQUARE_BYTES,
    AxisSums,
    CopiedBox,
    CopyArguments,
    CopyKind,
    FoldArguments,
    FoldAxis,
    ResizeArguments,
    ResizeAxis,
    UnfoldArguments,
)
from gradspec.backends.cpu.planning import (
    COMPUTED,
    ONE_CELL,
    Axis,
    Strides,
    by_stride,
    dense,
    grid,
    merged,
    pieces,
    regular_axes,
)
from gradspec.backends.numpy import KERNELS as VIEWS
from gradspec.backends.tables import Ints, cell_readers, tap_ranges
from gradspec.backends.xp.rules import progressions
from gradspec.codegen.cache import kernel
from gradspec.codegen.records import Operand, address
from gradspec.graph.ir import Array, Node, Var
from gradspec.runtime.memory import aligned
from gradspec.runtime.task import Lowering, Task, View, Work
from gradspec.spec.resize import Axis as ResizedAxis
from gradspec.spec.window import Regular

SOURCE = "gradspec.backends.cpu.layout.kernels.layout"

UNITS_WANTED = 64
LEAST_BYTES = 1 << 14
"""Of a box that is cut from a larger one, so that several threads can share the work."""
LEAST_LEAD = 256
"""Bytes of one index of an axis that units are counted along."""
NANOSECONDS_PER_BYTE = 0.06


# --- boxes ------------------------------------------------------------------------------------------------------------


class BoxPlan(NamedTuple):
    """Some cells of the result on their way to a kernel. Axes have strides in source and target."""

    source: Operand | None
    source_at: int
    target_at: int
    axes: Sequence[Axis]
    lead: Sequence[int] = (0, 0)

    @property
    def size(self) -> int:
        return prod(n for n, _ in self.axes)


NOWHERE = np.empty(0, np.uint8)


def _stand_in(shape: Sequence[int], strides: Strides, itemsize: int) -> Array:
    """An array of which views are made, and nothing is read."""
    return as_strided(NOWHERE.view(f"V{itemsize}"), shape, strides)


def _box(target: Array, source: Array | None = None, operand: int = 0) -> BoxPlan:
    """Cells of a stand-in for the result, and the cells of the same shape that they are copied from, if any."""
    target_at = address(target) - address(NOWHERE)
    if source is None:
        return BoxPlan(
            None, 0, target_at, [(n, (0, jump)) for n, jump in zip(target.shape, target.strides, strict=True)]
        )
    axes = list(zip(target.shape, zip(source.strides, target.strides, strict=True), strict=True))
    return BoxPlan(Operand(operand), address(source) - address(NOWHERE), target_at, axes)


def _ordered(box: BoxPlan) -> BoxPlan:
    """The box with its axes in the order in which its cells lie in the result, as few as will do."""
    return box._replace(axes=merged(by_stride(box.axes, array=1)))


def _record(box: BoxPlan, itemsize: int) -> CopiedBox:
    """The box with the two axes that are copied best at the end, and how they are."""
    axes, kind = [(1, (itemsize, itemsize))] * (2 - len(box.axes)) + [*box.axes], CopyKind.ROWS
    if box.source is None:
        kind = CopyKind.FILLED
    elif axes[-1][1][0] == 0:
        kind = CopyKind.REPEATED
    else:
        if axes[-1][1][0] != itemsize:
            neighbours = (i for i, (_, (step, _)) in enumerate(axes[:-1]) if step == itemsize)
            axes.insert(-1, axes.pop(next(neighbours, len(axes) - 2)))
        (rows, (row_step, _)), (cells, (step, jump)) = axes[-2:]
        if jump == row_step == itemsize != step and min(cells, rows) * itemsize >= SQUARE_BYTES:
            kind = CopyKind.SQUARES
        elif rows > cells and not (jump == itemsize and step in (itemsize, 2 * itemsize)):  # not in vectors
            axes[-2], axes[-1] = axes[-1], axes[-2]
    source_lead, target_lead = box.lead
    records = tuple(StridedAxis(n, *strides) for n, strides in axes)
    return CopiedBox(box.source, box.source_at, box.target_at, records, source_lead, target_lead, kind)


# --- units ------------------------------------------------------------------------------------------------------------


def _take_lead(boxes: Sequence[BoxPlan], common: int, itemsize: int) -> tuple[int, list[BoxPlan]]:
    """The size of an axis that units are counted along, and the boxes without it.

    It is the longest among the first ``common`` ones, where all boxes are alike, along which nobody's cells are
    neighbours. There may be none.
    """
    shared = zip(*(box.axes[:common] for box in boxes), strict=True)
    alike = merged((axes[0][0], tuple(step for _, steps in axes for step in steps)) for axes in shared)
    longest = itemsize * sum(box.size for box in boxes) // LEAST_LEAD
    sizes = [(n, i) for i, (n, steps) in enumerate(alike) if n <= longest and itemsize not in map(abs, steps)]
    size, chosen = max(sizes, default=(1, None))
    leads = (0, 0) * len(boxes) if chosen is None else alike.pop(chosen)[1]

    def own(steps: Sequence[int], b: int) -> Strides:
        return tuple(steps[2 * b : 2 * b + 2])

    return size, [
        box._replace(axes=[*((n, own(steps, b)) for n, steps in alike), *box.axes[common:]], lead=own(leads, b))
        for b, box in enumerate(boxes)
    ]


def _shared_out(boxes: Sequence[BoxPlan], leads: int, itemsize: int) -> tuple[int, list[BoxPlan]]:
    """How many boxes make a unit, and the boxes: all if there are leads enough, else parts of them one at a time."""
    total = leads * itemsize * sum(box.size for box in boxes)
    if leads >= UNITS_WANTED or total < 2 * LEAST_BYTES:
        return max(len(boxes), 1), [*boxes]
    per_unit = max(total // UNITS_WANTED, LEAST_BYTES)
    return 1, [part for box in boxes for part in _cut(box, -(-box.size * itemsize // per_unit))]


def _cut(box: BoxPlan, parts: int) -> Iterator[BoxPlan]:
    """The box in about as many parts, along its longest axis."""
    if not box.axes or parts <= 1:
        yield box
        return
    at = max(range(len(box.axes)), key=lambda i: box.axes[i][0])
    n, (step, jump) = box.axes[at]
    most = -(-n // parts)
    for first in range(0, n, most):
        part = [*box.axes[:at], (min(most, n - first), (step, jump)), *box.axes[at + 1 :]]
        yield BoxPlan(box.source, box.source_at + first * step, box.target_at + first * jump, part, box.lead)


# --- what is copied ---------------------------------------------------------------------------------------------------

Boxes: TypeAlias = Callable[[Array, Sequence[Array]], list[BoxPlan]]
"""What is copied to a result from operands."""


@dataclass(frozen=True)
class Copying:
    """A copy to a result from operands of any layouts, whose strides are in bytes."""

    shapes: tuple[tuple[int, ...], ...]
    """Of the operands and of the result."""
    itemsize: int
    boxes: Boxes
    """They are alike in their first ``common`` axes."""
    common: int
    value: int
    """The bits that cells are filled with."""

    def __call__(self, strides: Sequence[Strides]) -> KernelCall[CopyArguments]:
        size = self.itemsize
        *operands, result = (_stand_in(*each, size) for each in zip(self.shapes, strides, strict=True))
        leads, boxes = _take_lead([box for box in self.boxes(result, operands) if box.size], self.common, size)
        together, boxes = _shared_out([_ordered(box) for box in boxes], leads, size)
        records = tuple(_record(box, size) for box in boxes)
        arguments = CopyArguments(Operand(len(operands)), self.value, records, together)
        return KernelCall(arguments, leads * len(boxes) // together, 0)


def _seen(view: View, result: Array, operands: Sequence[Array]) -> list[BoxPlan]:
    return [_box(result, view(operands[0]))]


def _reshaped(result: Array, operands: Sequence[Array]) -> list[BoxPlan]:
    """Cells keep their order, and the result, which is C-contiguous, can be seen in the operand's shape."""
    (x,) = operands
    return [_box(as_strided(result, x.shape, [result.itemsize * step for step in dense(x.shape)]), x)]


def _put_together(axis: int, result: Array, operands: Sequence[Array]) -> list[BoxPlan]:
    ends = [*accumulate(x.shape[axis] for x in operands)]
    parts = [slice(end - x.shape[axis], end) for end, x in zip(ends, operands, strict=True)]
    return [_box(result[(slice(None),) * axis + (parts[i],)], x, i) for i, x in enumerate(operands)]


def _padded(attrs: Any, result: Array, operands: Sequence[Array]) -> list[BoxPlan]:
    """The operand's cells, and for each axis what comes before, after and between them: every cell is in one box."""
    (x,), target, found = operands, result, []
    for axis, (n, (lo, hi), gap) in enumerate(zip(x.shape, attrs.padding, attrs.interior, strict=True)):
        along = (slice(None),) * axis
        size = target.shape[axis]
        found += [target[*along, :lo], target[*along, size - hi :]]
        if gap and n > 1:
            found.append(_between(target, axis, lo, n, gap))
        target = target[*along, *progressions([lo], [n], [gap + 1])]
    return [_box(target, x), *map(_box, found)]


def _between(target: Array, axis: int, lo: int, n: int, gap: int) -> Array:
    """The cells between ``n`` neighbours along an axis, with an axis of their own."""
    start = target[(slice(None),) * axis + (slice(lo + 1, None),)]
    step = target.strides[axis]
    shape = (*target.shape[:axis], n - 1, gap, *target.shape[axis + 1 :])
    return as_strided(start, shape, (*target.strides[:axis], (gap + 1) * step, step, *target.strides[axis + 1 :]))


def _untouched(attrs: Any) -> int:
    """How many leading axes are not padded."""
    touched = [any(pair) or gap > 0 for pair, gap in zip(attrs.padding, attrs.interior, strict=True)]
    return touched.index(True) if True in touched else len(touched)


# --- lowerings --------------------------------------------------------------------------------------------------------


def _what_is_copied(node: Node) -> tuple[Boxes, int, int]:
    """The boxes, how many of their first axes are alike, and the bits that cells are filled with."""
    name, attrs = node.op.name, node.attrs
    if name == "concat":
        return partial(_put_together, attrs.axis), attrs.axis, 0
    if name == "pad":
        bits = np.asarray(attrs.value, node.outputs[0].dtype.numpy).tobytes()
        return partial(_padded, attrs), _untouched(attrs), int.from_bytes(bits, sys.byteorder, signed=True)
    if name == "reshape":
        return _reshaped, node.inputs[0].ndim, 0
    return partial(_seen, partial(VIEWS[name], attrs)), node.outputs[0].ndim, 0


class _Moving(Lowering):
    """An operator whose result is a view of its operand, or copied, if it cannot be one or must be an array of its own.

    A reshape of an operand that is not contiguous may have to copy, which NumPy does.
    """

    def view(self, node: Node) -> View | None:
        name, attrs = node.op.name, node.attrs
        if name in ("concat", "pad"):
            return None
        return _repeated(node.inputs[0], attrs.shape) if name == "broadcast_to" else partial(VIEWS[name], attrs)

    def task(self, work: Work) -> Task | None:
        (node,) = work.nodes
        (result,), shapes = node.outputs, tuple(v.shape for v in (*node.inputs, *node.outputs))
        itemsize = result.dtype.numpy.itemsize
        size = result.type.size * itemsize
        return Task(
            kernel=f"copy {result.dtype}",
            inputs=node.inputs,
            outputs=node.outputs,
            function=kernel(SOURCE, f"copy:{itemsize}"),
            units=int(size > 0),
            cost=size * NANOSECONDS_PER_BYTE,
            workspace=0,
            bind=Binder((1,) * len(shapes), Copying(shapes, itemsize, *_what_is_copied(node))),
        )


def _repeated(x: Var, shape: tuple[int, ...]) -> View:
    """``np.broadcast_to``, in a tenth of its time for arrays that are contiguous."""
    steps = (step * x.dtype.numpy.itemsize for step in dense(x.shape))
    strides = (0,) * (len(shape) - x.ndim) + tuple(
        0 if n == 1 else step for n, step in zip(x.shape, steps, strict=True)
    )

    def view(array: Array) -> Array:
        if array.flags.c_contiguous and array.size:
            return np.ndarray(shape, array.dtype, array, 0, strides)
        return np.broadcast_to(array, shape)

    return view


# --- windows as columns -----------------------------------------------------------------------------------------------


COLUMNS = "gradspec.backends.cpu.layout.kernels.unfold"

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


class _UnfoldLowering(Lowering):
    def task(self, work: Work) -> Task | None:
        (node,) = work.nodes
        (x,), (y,) = node.inputs, node.outputs
        itemsize, cost = x.dtype.numpy.itemsize, NANOSECONDS_PER_COLUMN * y.type.size
        describe = _columns(node, x, itemsize).unfolding
        function = kernel(COLUMNS, f"unfold:{itemsize}")
        return task_of(f"windows {x.dtype}", function, node.inputs, node.outputs, describe, cost, NANOSECONDS_PER_UNIT)


class _FoldLowering(Lowering):
    def task(self, work: Work) -> Task | None:
        (node,) = work.nodes
        (x,), (y,) = node.inputs, node.outputs
        if x.dtype.name not in COMPUTED:
            return None
        describe, cost = _columns(node, y, COMPUTED[x.dtype.name]).folding, NANOSECONDS_PER_COLUMN * x.type.size
        name, function = f"window sums {x.dtype}", kernel(COLUMNS, f"fold:{x.dtype}")
        return task_of(name, function, node.inputs, node.outputs, describe, cost, NANOSECONDS_PER_UNIT)


# --- resizing: what is read -------------------------------------------------------------------------------------------


WEIGHTED_SUMS = "gradspec.backends.cpu.layout.kernels.resize"

RESIZED_TILE, LONGEST = 1024, 8192
"""Results of a row that are made at a time, and the most cells that they may read from a row of sums."""
EXACT = 1 << 53
"""Whole numbers up to here are doubles, and NumPy divides them as such."""
NO_AXIS = ResizedAxis(1, 1, Fraction(1), Fraction(0), None)
"""What no axis at all comes to."""
NANOSECONDS_PER_WEIGHT, NANOSECONDS_PER_PIECE = 1.0, 100.0

Table = NDArray[Any]


# --- what is read -----------------------------------------------------------------------------------------------------


def axis_sums(axis: ResizedAxis, back: bool, number: Any) -> AxisSums:
    """``spec.resize.axis_taps`` as tables, or read backwards.

    Positions are quotients of whole numbers that divide to the nearest double, so that the weights are rounded once.

    >>> sums = axis_sums(ResizedAxis(2, 3, Fraction(1, 2), Fraction(0), None), False, np.float32)
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


def _positions(axis: ResizedAxis) -> tuple[Table, int]:
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


# --- resizing on its kernel -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Resizing:
    """Results ``(*leads, *sizes)`` of sums along every axis."""

    leads: tuple[int, ...]
    sums: list[AxisSums]
    cells: int
    """Of a row, whether they are read or not."""

    @cached_property
    def spans(self) -> Ints:
        return piece_spans(self.sums[-1], RESIZED_TILE)

    def __call__(self, strides: Sequence[Strides]) -> KernelCall[ResizeArguments]:
        """Rows are added up first, unless many of their cells are not read."""
        along = zip(self.sums, *(s[len(self.leads) :] or (0,) for s in strides), strict=True)
        axes = tuple(ResizeAxis(sums.results, step, jump, sums) for sums, step, jump in along)
        widest = int((self.spans[:, 1] - self.spans[:, 0]).max())
        rows_first = len(self.sums[-1].cells) >= self.cells and widest <= LONGEST
        rows = pieces(grid(self.leads, *strides), [axis.size for axis in axes], RESIZED_TILE)
        arguments = ResizeArguments(Operand(0), Operand(1), rows, axes, self.spans, rows_first)
        longest = widest if rows_first else min(RESIZED_TILE, axes[-1].size)
        return KernelCall(arguments, rows.units, PLACE_BYTES + aligned(longest * self.sums[-1].weights.itemsize))


@dataclass(frozen=True)
class _ResizeLowering(Lowering):
    back: bool

    def task(self, work: Work) -> Task | None:
        (node,) = work.nodes
        (x,), axes = node.inputs, node.attrs.axes or [NO_AXIS]
        number = np.float32 if COMPUTED[x.dtype.name] == 4 else np.float64
        sums, leads = [axis_sums(axis, self.back, number) for axis in axes], x.shape[: x.ndim - len(node.attrs.sizes)]
        resizing = _Resizing(leads, sums, axes[-1].outputs if self.back else axes[-1].size)
        cost = NANOSECONDS_PER_WEIGHT * prod(leads) * prod(len(each.cells) for each in sums)
        function = kernel(WEIGHTED_SUMS, f"weighted:{x.dtype}")
        name = f"weighted sums {x.dtype}"
        return task_of(name, function, node.inputs, node.outputs, resizing, cost, NANOSECONDS_PER_PIECE)


LOWERINGS: dict[str, Lowering] = {
    **dict.fromkeys(("broadcast_to", "concat", "pad", "reshape", "slice", "transpose"), _Moving()),
    "unfold": _UnfoldLowering(),
    "fold": _FoldLowering(),
    "resize": _ResizeLowering(back=False),
    "resize_transpose": _ResizeLowering(back=True),
}
