"""Sums, means and their transposes on the CPU. ``arguments`` says how terms are added up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

from gradspec.backends.cpu.axes import Axis, Strides, by_stride, merged
from gradspec.backends.cpu.binding import Describe, KernelCall, laid_out, task_of
from gradspec.backends.cpu.dtypes import computed_float
from gradspec.backends.cpu.reduce.arguments import (
    LANES_BYTES,
    PIECE,
    SCRATCH_BYTES,
    SHORT,
    KeptAxis,
    ReduceArguments,
    ShareArguments,
    SumArguments,
    SumPieces,
    TermAxis,
)
from gradspec.codegen.cache import kernel
from gradspec.graph.ir import Var
from gradspec.graph.types import TensorType
from gradspec.runtime.task import Lowering, LoweringBase, Task, Work
from gradspec.spec.reduce import terms_of_mean

SOURCE = "gradspec.backends.cpu.reduce.kernels.reduce"

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
    return task_of(name, kernel(SOURCE, function), (x,), (y,), describe, cost, NANOSECONDS_PER_UNIT)


class _SumLowering(LoweringBase):
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


class _ShareLowering(LoweringBase):
    """What every cell of a mean receives: an equal part."""

    def task(self, work: Work) -> Task | None:
        ((node,), (x,), (y,)) = work.nodes, work.nodes[0].inputs, work.nodes[0].outputs
        divisor = float(terms_of_mean(y.shape, node.attrs.axes))
        return _task(f"share {x.dtype}", f"share:{x.dtype}", x, y, _Share(y.shape, node.attrs.axes, divisor))


LOWERINGS: dict[str, Lowering] = {"sum": _SumLowering(), "mean": _SumLowering(), "share": _ShareLowering()}
