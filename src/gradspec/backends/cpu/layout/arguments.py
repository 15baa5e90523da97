"""What the kernels are given that copy, unfold, fold and resize."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from gradspec.backends.cpu.arguments import Grid, RowPieces, StridedAxis, TapAxis
from gradspec.codegen.records import Memory, Operand, Record, Words

SQUARE_BYTES = 16
"""Of a row of the squares that are transposed in registers."""


class CopyKind(IntEnum):
    """How the last two axes of a box are copied: row by row; rows of one number each; rows of the value that cells are
    filled with; transposed squares."""

    ROWS, REPEATED, FILLED, SQUARES = range(4)


@dataclass(frozen=True)
class CopiedBox(Record):
    """Some cells of the result, axis by axis, and where they come from. Strides and places are in bytes."""

    source: Operand | None
    """None: all cells are the same value."""
    source_at: int
    target_at: int
    axes: tuple[StridedAxis, ...]
    source_lead: int
    """The stride of the axis that units are counted along,"""
    target_lead: int
    """and the same in the target."""
    kind: CopyKind


@dataclass(frozen=True)
class CopyArguments(Record):
    target: Operand
    value: int
    """The bits that cells are filled with."""
    boxes: tuple[CopiedBox, ...]
    together: int
    """How many of the boxes a unit copies."""


@dataclass(frozen=True)
class UnfoldArguments(Record):
    """A unit of work is one tap of one plane. Strides are in bytes."""

    x: Operand
    y: Operand
    planes: Grid
    taps: int
    """Of a window."""
    axes: tuple[TapAxis, ...]


@dataclass(frozen=True)
class FoldAxis(StridedAxis):
    """Cells, which are written. The source's stride leads from one window to the next one."""

    kernel: int
    stride: int
    tap_stride: int
    ranges: Words
    """As of ``TapAxis``."""
    starts: Words | None
    """Of every axis but the last: where the readers of each cell begin, and where the last ones end;"""
    readers: Words | None
    """and the readers, pairs of a tap and an output, in the order of the taps."""


@dataclass(frozen=True)
class FoldArguments(Record):
    x: Operand
    y: Operand
    pieces: RowPieces
    axes: tuple[FoldAxis, ...]


@dataclass(frozen=True)
class AxisSums(Record):
    """Along one axis: where the cells begin that each result reads, and where the last ones end; these cells, in order;
    and their weights."""

    starts: Words
    cells: Words
    weights: Memory

    @property
    def results(self) -> int:
        return len(self.starts) - 1


@dataclass(frozen=True)
class ResizeAxis(StridedAxis):
    sums: AxisSums


@dataclass(frozen=True)
class ResizeArguments(Record):
    x: Operand
    y: Operand
    pieces: RowPieces
    axes: tuple[ResizeAxis, ...]
    spans: Words
    """The first cell that each piece of a row reads, and the end of these."""
    rows_first: bool
    """Whether rows are added up before their cells are."""
