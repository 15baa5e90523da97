"""Sums, means, softmaxes, and cells chosen by labels, on the CPU. ``arguments`` says how terms are added up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np

from gradspec.backends.cpu.binding import Describe, KernelCall, laid_out, task_of
from gradspec.backends.cpu.planning import Axis, Strides, by_stride, computed_float, merged
from gradspec.backends.cpu.reduce.arguments import (
    LANES_BYTES,
    PIECE,
    SCRATCH_BYTES,
    SHORT,
    ChoiceArguments,
    ChoiceAxis,
    KeptAxis,
    LabelKind,
    ReduceArguments,
    ShareArguments,
    SoftmaxArguments,
    SumArguments,
    SumPieces,
    TermAxis,
)
from gradspec.codegen.cache import kernel
from gradspec.graph.ir import Array, Var
from gradspec.graph.types import DType, TensorType
from gradspec.runtime.task import Lowering, Task, Work
from gradspec.spec.loss import label_outside
from gradspec.spec.reduce import terms_of_mean

SUMS = "gradspec.backends.cpu.reduce.kernels.sums"
SOFTMAX = "gradspec.backends.cpu.reduce.kernels.softmax"
LABELS = "gradspec.backends.cpu.reduce.kernels.labels"

MOST_COLUMNS = 256
"""Columns that are added up side by side: their lanes fit the first cache."""

TERMS_PER_UNIT = 4096
"""So many terms, of outputs that are neighbours, are one unit if an output has fewer."""

STRETCH = 4096
"""Cells of a row that are shared out at a time."""

NANOSECONDS_PER_BYTE = 0.1
NANOSECONDS_PER_UNIT = 30.0
ENOUGH_UNITS = 16
WORTH_TWO_PASSES = 200_000.0
"""Nanoseconds of work for which fewer units are split further, so that every thread has some."""


# --- how terms are cut into pieces ------------------------------------------------------------------------------------


def pieces_of(shape: Sequence[int], axes: Sequence[int]) -> SumPieces:
    """
    >>> pieces_of((8, 64, 56, 56), (0, 2, 3))
    SumPieces(terms=25088, run=3136, split=4, length=1024, count=32)
    >>> pieces_of((8, 64, 7, 7), (0, 2, 3))
    SumPieces(terms=392, run=980, split=1, length=980, count=1)
    """
    terms = prod(shape[a] for a in axes)
    run = prod(shape[a] for a in last_run(shape, axes)) if terms else 1
    split, length = -(-run // PIECE), PIECE
    if run < SHORT:
        run = length = PIECE // run * run
        split = 1
    return SumPieces(terms, run, split, length, max(1, -(-terms // run) * split))


def last_run(shape: Sequence[int], axes: Sequence[int]) -> list[int]:
    """The axes whose cells are a run.

    >>> last_run((8, 64, 56, 56), (0, 2, 3)), last_run((8, 64, 7, 7), (0, 1, 2, 3)), last_run((5, 4, 200), (1, 2))
    ([2, 3], [1, 2, 3], [2])
    """
    found: list[int] = []
    for axis in sorted(axes, reverse=True):
        if found and (found[0] != axis + 1 or prod(shape[a] for a in found) >= SHORT):
            break
        found.insert(0, axis)
    return found


# --- arguments --------------------------------------------------------------------------------------------------------


def take_column(kept: list[Axis], terms: Sequence[Axis]) -> tuple[Axis, bool]:
    """The kept axis that is cut into blocks, and whether its cells are nearer to each other than terms are."""
    if not kept:
        return (1, (0, 0)), False
    column = min(kept, key=lambda axis: abs(axis[1][0]) or math.inf)
    kept.remove(column)
    near, far = abs(column[1][0]), abs(terms[-1][1][0]) if terms else 0
    return column, far == 0 or 0 < near < far


def outputs_of(kept: Sequence[Axis], column: Axis, most: int) -> tuple[ReduceArguments, int]:
    """With blocks of at most so many columns; and how many blocks there are."""
    block = max(1, min(column[0], most))
    blocks = -(-column[0] // block)
    *others, columns = (KeptAxis(size, *strides) for size, strides in (*kept, column))
    return ReduceArguments(tuple(others), columns, block, blocks), prod(size for size, _ in kept) * blocks


@dataclass(frozen=True)
class _Sum:
    """The sum over axes of an array, divided."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    itemsize: int
    """Bytes of the numbers that are computed with."""
    divisor: float = 1.0
    is_wide: bool = False
    """Whether the array holds such numbers, too."""

    @property
    def pieces(self) -> SumPieces:
        return pieces_of(self.shape, self.axes)

    def kept(self, x: Strides, y: Strides) -> list[Axis]:
        places = (a for a in range(len(self.shape)) if a not in self.axes)
        return [(self.shape[a], (x[a], step)) for a, step in zip(places, y, strict=True)]

    def reduced(self, x: Strides, axes: Iterable[int]) -> list[Axis]:
        return [(self.shape[a], (x[a],)) for a in sorted(axes)]

    def __call__(self, strides: Sequence[Strides]) -> KernelCall[SumArguments]:
        x, y = strides
        return self._call(self.kept(x, y), self.reduced(x, self.axes), self.pieces)

    def _call(
        self, kept: list[Axis], reduced: list[Axis], pieces: SumPieces, part_stride: int | None = None
    ) -> KernelCall[SumArguments]:
        """``part_stride`` is how far apart the sums of pieces lie if they are the results."""
        kept, reduced = merged(by_stride(kept)), merged(reduced) if pieces.terms else []
        column, is_side_by_side = take_column(kept, reduced)
        most = MOST_COLUMNS if is_side_by_side else max(1, TERMS_PER_UNIT // max(1, pieces.terms))
        outputs, units = outputs_of(kept, column, most)
        parts, at_once = (1, pieces.count) if part_stride is None else (pieces.count, 1)
        places, workspace = laid_out(
            SCRATCH_BYTES,
            sums_at=outputs.block * self.itemsize * (at_once if is_side_by_side else 1),
            lanes_at=outputs.block * LANES_BYTES if is_side_by_side else at_once * self.itemsize,
            cells_at=0 if is_side_by_side else PIECE * self.itemsize,
        )
        arguments = SumArguments(
            **vars(outputs),
            **places,
            terms=tuple(TermAxis(size, stride) for size, (stride,) in reduced or [(1, (0,))]),
            pieces=pieces,
            divisor=self.divisor,
            is_side_by_side=is_side_by_side,
            is_parted=part_stride is not None,
            part_stride=part_stride or 0,
            is_wide=self.is_wide,
        )
        return KernelCall(arguments, units * parts, workspace)


@dataclass(frozen=True)
class _SumsOfPieces(_Sum):
    """The sums of its pieces, which the first axis of the result counts.

    If runs are not short, every run is an output of its own, whose pieces are counted from the run's first one.
    """

    def __call__(self, strides: Sequence[Strides]) -> KernelCall[SumArguments]:
        x, (part_stride, *y) = strides
        pieces, inner, kept = self.pieces, tuple(last_run(self.shape, self.axes)), self.kept(x, tuple(y))
        if prod(self.shape[a] for a in inner) < SHORT:
            return self._call(kept, self.reduced(x, self.axes), pieces, part_stride)
        apart = pieces.split * part_stride
        for axis in sorted({*self.axes} - {*inner}, reverse=True):
            kept.append((self.shape[axis], (x[axis], apart)))
            apart *= self.shape[axis]
        pieces = replace(pieces, terms=pieces.run, count=pieces.split)
        return self._call(kept, self.reduced(x, inner), pieces, part_stride)


@dataclass(frozen=True)
class _Share:
    """Parts of an array, along axes that it does not have."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    divisor: float

    def __call__(self, strides: Sequence[Strides]) -> KernelCall[ShareArguments]:
        (x, y), kept_axes = strides, [a for a in range(len(self.shape)) if a not in self.axes]
        steps = dict(zip(kept_axes, x, strict=True))
        kept = merged(by_stride(((n, (steps.get(a, 0), y[a])) for a, n in enumerate(self.shape)), array=1))
        row = kept.pop() if kept else (1, (0, 1))
        outputs, units = outputs_of(kept, row, STRETCH)
        return KernelCall(ShareArguments(**vars(outputs), divisor=self.divisor), units, 0)


# --- the lowerings ----------------------------------------------------------------------------------------------------


def _task(name: str, function: str, x: Var, y: Var, describe: Describe) -> Task:
    cost = NANOSECONDS_PER_BYTE * sum(v.type.size * v.dtype.numpy.itemsize for v in (x, y))
    return task_of(name, kernel(SUMS, function), (x,), (y,), describe, cost, NANOSECONDS_PER_UNIT)


class _SumLowering(Lowering):
    """The sum, or the mean, which is divided before it is rounded. Few sums of many terms are made in two passes."""

    def task(self, work: Work) -> Task | None:
        ((node,), (x,), (y,)) = work.nodes, work.nodes[0].inputs, work.nodes[0].outputs
        if not x.type.is_float:
            return None
        axes, name, function = node.attrs.axes, f"{node.op.name} {x.dtype}", f"sum:{x.dtype}"
        divisor = float(terms_of_mean(x.shape, axes)) if node.op.name == "mean" else 1.0
        wide = computed_float(x.dtype)
        whole = _Sum(x.shape, axes, wide.numpy.itemsize, divisor)
        task, pieces = _task(name, function, x, y, whole), whole.pieces.count
        if pieces == 1 or task.cost < WORTH_TWO_PASSES or task.units >= ENOUGH_UNITS:
            return task
        sums = Var(f"{y.name}.pieces", TensorType(wide, (pieces, *y.shape)), None)
        first = _task(f"{name}, pieces", function, x, sums, _SumsOfPieces(x.shape, axes, wide.numpy.itemsize))
        rest = replace(whole, shape=sums.shape, axes=(0,), is_wide=True)
        return replace(_task(name, function, sums, y, rest), before=(first,))


class _ShareLowering(Lowering):
    """What every cell of a mean receives: an equal part."""

    def task(self, work: Work) -> Task | None:
        ((node,), (x,), (y,)) = work.nodes, work.nodes[0].inputs, work.nodes[0].outputs
        divisor = float(terms_of_mean(y.shape, node.attrs.axes))
        return _task(
            f"mean_transpose {x.dtype}", f"mean_transpose:{x.dtype}", x, y, _Share(y.shape, node.attrs.axes, divisor)
        )


# --- softmax ----------------------------------------------------------------------------------------------------------

CELLS_AT_A_TIME = 8192
"""Of rows that are worked on side by side, or one after another in a unit: they fit the caches."""

FEWEST_COLUMNS = 16
SHORT_ROW = 32
"""Rows no longer than this are worked on side by side even if their cells are neighbours, when there are enough."""

NANOSECONDS_PER_POWER = 3.0
NANOSECONDS_PER_SOFTMAX_UNIT = 100.0


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


class _SoftmaxLowering(Lowering):
    def task(self, work: Work) -> Task | None:
        (node,) = work.nodes
        (x,), name = node.inputs, node.op.name
        function, cost = kernel(SOFTMAX, f"softmax:{x.dtype}"), NANOSECONDS_PER_POWER * x.type.size
        itemsize = computed_float(x.dtype).numpy.itemsize
        softmax = _Softmax(x.shape, node.attrs.axis, itemsize, is_log=name == "log_softmax")
        costs = cost, NANOSECONDS_PER_SOFTMAX_UNIT
        return task_of(f"{name} {x.dtype}", function, node.inputs, node.outputs, softmax, *costs, keeps_layout=True)


# --- one cell per label -----------------------------------------------------------------------------------------------

CELLS_PER_UNIT = 4096
NANOSECONDS_PER_LABEL = 2.0
NANOSECONDS_PER_RESULT = 0.2


@dataclass(frozen=True)
class _Choice:
    """``shape`` of the array that has an axis of classes: what is placed in, or picked from."""

    shape: tuple[int, ...]
    axis: int
    width: int
    labels: DType
    places: bool

    @property
    def classes(self) -> int:
        return self.shape[self.axis]

    def __call__(self, strides: Sequence[Strides]) -> KernelCall[ChoiceArguments]:
        larger = 2 if self.places else 0
        steps = [[*s] for s in strides]
        class_stride = steps[larger].pop(self.axis)
        sizes = [n for a, n in enumerate(self.shape) if a != self.axis]
        found = merged(by_stride(zip(sizes, zip(*steps, strict=True), strict=True), larger))
        *axes, last = (ChoiceAxis(size, *each) for size, each in found or [(1, (0, 0, 0))])
        block = max(1, min(last.size, CELLS_PER_UNIT // max(1, self.classes if self.places else 1)))
        blocks = -(-last.size // block)
        kind, classes = LabelKind[self.labels.name.upper()], self.classes
        arguments = ChoiceArguments(tuple(axes), last, block, blocks, kind, self.width, classes, class_stride)
        return KernelCall(arguments, prod(axis.size for axis in axes) * blocks, 0)


def require_classes(labels: Array, classes: int) -> None:
    """An error that names the first label which is no class.

    Read as unsigned numbers, negative labels are larger than all others, so that one comparison finds both kinds.

    >>> require_classes(np.array([0, 2, -1]), 3)
    Traceback (most recent call last):
        ...
    ValueError: the label -1 names none of the 3 classes; labels go from 0 to 2
    """
    is_signed, width = labels.dtype.kind == "i", labels.dtype.itemsize
    limit = min(classes, 1 << (8 * width - 1)) if is_signed else classes
    if labels.size and np.maximum.reduce(labels.view(f"u{width}"), axis=None) >= limit:
        raise label_outside(int(labels[(labels < 0) | (labels >= classes)][0]), classes)


class _ChoiceLowering(Lowering):
    """Labels are looked at before anything is done with them."""

    def __init__(self, places: bool) -> None:
        self.places = places

    def task(self, work: Work) -> Task | None:
        ((node,), (x, labels), (y,)) = work.nodes, work.nodes[0].inputs, work.nodes[0].outputs
        if labels.dtype.name.upper() not in LabelKind.__members__:
            return None
        shape, width = y.shape if self.places else x.shape, x.dtype.numpy.itemsize
        choice = _Choice(shape, node.attrs.axis, width, labels.dtype, self.places)
        cost = NANOSECONDS_PER_LABEL * labels.type.size + NANOSECONDS_PER_RESULT * y.type.size
        name, function = f"{node.op.name} {x.dtype}", kernel(LABELS, node.op.name)
        checks = ((labels, partial(require_classes, classes=choice.classes)),)
        return task_of(name, function, node.inputs, node.outputs, choice, cost, checks=checks)


LOWERINGS: dict[str, Lowering] = {
    "sum": _SumLowering(),
    "mean": _SumLowering(),
    "mean_transpose": _ShareLowering(),
    "softmax": _SoftmaxLowering(),
    "log_softmax": _SoftmaxLowering(),
    "take_label": _ChoiceLowering(places=False),
    "put_label": _ChoiceLowering(places=True),
}
