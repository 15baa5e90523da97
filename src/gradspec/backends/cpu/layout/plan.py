"""Operators that only move numbers: views where the result can be one, and copies for all others.

What is copied is a list of boxes, pairs of views of the same shape: cells of the result, and where they come from.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided

from gradspec.backends.cpu.arguments import StridedAxis
from gradspec.backends.cpu.binding import Binder, KernelCall
from gradspec.backends.cpu.layout.arguments import SQUARE_BYTES, CopiedBox, CopyArguments, CopyKind
from gradspec.backends.cpu.planning import Axis, Strides, by_stride, dense, merged
from gradspec.backends.numpy import KERNELS as VIEWS
from gradspec.backends.xp.rules import progressions
from gradspec.codegen.addresses import address
from gradspec.codegen.cache import kernel
from gradspec.codegen.records import Operand
from gradspec.graph.ir import Array, Node, Var
from gradspec.runtime.task import Lowering, LoweringBase, Task, View, Work

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


class _Moving(LoweringBase):
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


MOVED = ("broadcast_to", "concat", "pad", "reshape", "slice", "transpose")

LOWERINGS: dict[str, Lowering] = dict.fromkeys(MOVED, _Moving())
