"""Sums, means and their transposes on the CPU. ``kernels.terms`` says how terms are added up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from struct import pack

from gradspec.backends.cpu.axes import Axis, Blocks, Strides, by_stride, dense, merged
from gradspec.backends.cpu.geometry import as_bits
from gradspec.backends.cpu.kernels import terms as t
from gradspec.codegen.cache import kernel
from gradspec.graph.ir import Var
from gradspec.graph.types import DType, TensorType, f32
from gradspec.runtime.task import Bound, Lowering, LoweringBase, Task, Work
from gradspec.spec.reduce import terms_of_mean

SOURCE = "gradspec.backends.cpu.kernels.reduce"

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


def computed(dtype: DType) -> DType:
    """What numbers of this dtype are computed in."""
    return f32 if dtype.numpy.itemsize == 2 else dtype


# --- how terms are cut into pieces ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pieces:
    """The terms of one output, as ``kernels.terms`` cuts them."""

    terms: int
    run: int
    split: int
    length: int

    @classmethod
    def of(cls, shape: Sequence[int], axes: Sequence[int]) -> Pieces:
        """
        >>> Pieces.of((8, 64, 56, 56), (0, 2, 3)), Pieces.of((8, 64, 7, 7), (0, 2, 3))
        (Pieces(terms=25088, run=3136, split=4, length=1024), Pieces(terms=392, run=980, split=1, length=980))
        """
        terms = prod(shape[a] for a in axes)
        run = prod(shape[a] for a in last_run(shape, axes)) if terms else 1
        if run >= t.SHORT:
            return cls(terms, run, -(-run // t.PIECE), t.PIECE)
        several = t.PIECE // run * run
        return cls(terms, several, 1, several)

    @property
    def count(self) -> int:
        """At least one: the sum of nothing is zero."""
        return max(1, -(-self.terms // self.run) * self.split)

    @property
    def fields(self) -> dict[int, int]:
        return {
            t.TERMS: self.terms,
            t.RUN: self.run,
            t.SPLIT: self.split,
            t.LENGTH: self.length,
            t.PIECES: self.count,
        }


def last_run(shape: Sequence[int], axes: Sequence[int]) -> list[int]:
    """The axes whose cells are a run.

    >>> last_run((8, 64, 56, 56), (0, 2, 3)), last_run((8, 64, 7, 7), (0, 1, 2, 3)), last_run((5, 4, 200), (1, 2))
    ([2, 3], [1, 2, 3], [2])
    """
    found: list[int] = []
    for axis in sorted(axes, reverse=True):
        if found and (found[0] != axis + 1 or prod(shape[a] for a in found) >= t.SHORT):
            break
        found.insert(0, axis)
    return found


# --- blocks of arguments ----------------------------------------------------------------------------------------------


def take_column(kept: list[Axis], reduced: Sequence[Axis]) -> tuple[Axis, bool]:
    """The kept axis that is cut into blocks, and whether its cells are nearer to each other than terms are."""
    if not kept:
        return (1, (0, 0)), False
    column = min(kept, key=lambda axis: abs(axis[1][0]) or math.inf)
    kept.remove(column)
    near, far = abs(column[1][0]), abs(reduced[-1][1][0]) if reduced else 0
    return column, far == 0 or 0 < near < far


def in_blocks(column: Axis, most: int) -> dict[int, int]:
    """The fields that say how."""
    columns, (step_x, step_y) = column
    block = max(1, min(columns, most))
    blocks = -(-columns // block)
    return {t.COLUMNS: columns, t.BLOCK: block, t.BLOCKS: blocks, t.COLUMN_X: step_x, t.COLUMN_Y: step_y}


def places_in_workspace(room: Mapping[int, int]) -> tuple[dict[int, int], int]:
    """Where parts of so many bytes begin, one after another behind the frame, and the bytes of all."""
    places, end = {}, t.FRAME
    for field, size in room.items():
        places[field] = end
        end += size
    return places, -(-end // 64) * 64


def words_of(fields: Mapping[int, int], kept: Sequence[Axis], reduced: Sequence[Axis]) -> bytes:
    """What follows the addresses of X and Y. One axis of one cell stands for none."""
    described = {**fields, t.KEPT: len(kept), t.REDUCED: t.HEADER + t.KEPT_AXIS * len(kept)}
    reduced = reduced or [(1, (0,))]
    numbers = [described.get(i, 0) for i in range(t.Y + 1, t.HEADER)]
    numbers += [number for size, strides in kept for number in (size, *strides)]
    numbers += [len(reduced), *(number for size, strides in reduced for number in (size, *strides))]
    return pack(f"<{len(numbers)}q", *numbers)


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
    def pieces(self) -> Pieces:
        return Pieces.of(self.shape, self.axes)

    def kept(self, x: Strides, y: Strides) -> list[Axis]:
        places = (a for a in range(len(self.shape)) if a not in self.axes)
        return [(self.shape[a], (x[a], step)) for a, step in zip(places, y, strict=True)]

    def reduced(self, x: Strides, axes: Iterable[int]) -> list[Axis]:
        return [(self.shape[a], (x[a],)) for a in sorted(axes)]

    def __call__(self, strides: Sequence[Strides]) -> Bound:
        """What follows the addresses in a block, the units, and the workspace."""
        x, y = strides
        return self._described(self.kept(x, y), self.reduced(x, self.axes), self.pieces)

    def _described(self, kept: list[Axis], reduced: list[Axis], pieces: Pieces, part_y: int | None = None) -> Bound:
        """``part_y`` is how far apart the sums of pieces lie if they are the results."""
        kept, reduced = merged(by_stride(kept)), merged(reduced) if pieces.terms else []
        column, is_side_by_side = take_column(kept, reduced)
        most = MOST_COLUMNS if is_side_by_side else max(1, TERMS_PER_UNIT // max(1, pieces.terms))
        columns = in_blocks(column, most)
        parts, at_once = (1, pieces.count) if part_y is None else (pieces.count, 1)
        room = {
            t.SUMS_AT: columns[t.BLOCK] * self.itemsize * (at_once if is_side_by_side else 1),
            t.LANES_AT: columns[t.BLOCK] * t.LANES_BYTES if is_side_by_side else at_once * self.itemsize,
            t.CELLS_AT: 0 if is_side_by_side else t.PIECE * self.itemsize,
        }
        places, workspace = places_in_workspace(room)
        fields = {
            **columns,
            **pieces.fields,
            **places,
            t.SIDE_BY_SIDE: int(is_side_by_side),
            t.PARTED: int(part_y is not None),
            t.PART_Y: part_y or 0,
            t.WIDE: int(self.is_wide),
            t.DIVISOR: as_bits(self.divisor),
        }
        units = prod(size for size, _ in kept) * parts * columns[t.BLOCKS]
        return words_of(fields, kept, reduced), units, workspace


@dataclass(frozen=True)
class _SumsOfPieces(_Sum):
    """The sums of its pieces, which the first axis of the result counts.

    If runs are not short, every run is an output of its own, whose pieces are counted from the run's first one.
    """

    def __call__(self, strides: Sequence[Strides]) -> Bound:
        x, (part_y, *y) = strides
        pieces, inner, kept = self.pieces, tuple(last_run(self.shape, self.axes)), self.kept(x, tuple(y))
        if prod(self.shape[a] for a in inner) < t.SHORT:
            return self._described(kept, self.reduced(x, self.axes), pieces, part_y)
        apart = pieces.split * part_y
        for axis in sorted({*self.axes} - {*inner}, reverse=True):
            kept.append((self.shape[axis], (x[axis], apart)))
            apart *= self.shape[axis]
        pieces = replace(pieces, terms=pieces.run)
        return self._described(kept, self.reduced(x, inner), pieces, part_y)


@dataclass(frozen=True)
class _Share:
    """Parts of an array, along axes that it does not have."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    divisor: float

    def __call__(self, strides: Sequence[Strides]) -> Bound:
        (x, y), kept_axes = strides, [a for a in range(len(self.shape)) if a not in self.axes]
        steps = dict(zip(kept_axes, x, strict=True))
        kept = merged(by_stride(((n, (steps.get(a, 0), y[a])) for a, n in enumerate(self.shape)), array=1))
        row = kept.pop() if kept else (1, (0, 1))
        fields = {**in_blocks(row, STRETCH), t.DIVISOR: as_bits(self.divisor)}
        units = prod(size for size, _ in kept) * fields[t.BLOCKS]
        return words_of(fields, kept, ()), units, 0


# --- the lowerings ----------------------------------------------------------------------------------------------------


Described = Callable[[Sequence[Strides]], Bound]
"""What strides come to: the block of arguments behind the addresses, the units, and the workspace."""


def _task(name: str, function: str, x: Var, y: Var, described: Described) -> Task:
    _, units, workspace = described([dense(v.shape) for v in (x, y)])
    sizes = [v.dtype.numpy.itemsize for v in (x, y)]
    moved = sum(v.type.size * size for v, size in zip((x, y), sizes, strict=True))
    return Task(
        kernel=name,
        inputs=(x,),
        outputs=(y,),
        function=kernel(SOURCE, function),
        units=units,
        cost=NANOSECONDS_PER_BYTE * moved + NANOSECONDS_PER_UNIT * units,
        workspace=workspace,
        bind=Blocks(sizes, described),
    )


class _SumLowering(LoweringBase):
    """The sum, or the mean, which is divided before it is rounded. Few sums of many terms are made in two passes."""

    def task(self, work: Work) -> Task | None:
        ((node,), (x,), (y,)) = work.nodes, work.nodes[0].inputs, work.nodes[0].outputs
        if not x.type.is_float:
            return None
        axes, name, function = node.attrs.axes, f"{node.op.name} {x.dtype}", f"sum:{x.dtype}"
        divisor = float(terms_of_mean(x.shape, axes)) if node.op.name == "mean" else 1.0
        wide = computed(x.dtype)
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
