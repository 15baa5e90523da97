"""What sums, softmaxes and choices by label are given, and what they keep while they run.

A reduced array is seen as ``(*kept, columns, *terms)``: the kept axes but one; that one, cut into blocks, which are
worked on side by side where columns are nearer to each other in memory than terms are; and the reduced axes, whose
cells are the *terms*, in row-major order. Strides count elements, and places in a workspace bytes.

**The tree of a sum** depends on the sizes of the reduced axes, and on which of them follow each other in the shape;
neither on strides nor on other axes. The cells of the last reduced axis are a *run*; while it is shorter than ``SHORT``
and the axis before is reduced, too, that axis is part of it. Terms are cut into pieces of at most ``PIECE``: as many
whole runs as fit if these are short, and otherwise parts of one. The terms of a piece are added up in lanes, as
``total`` does. The sums of the pieces are a run of terms again, until one is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from gradspec.codegen.records import Operand, Record, Scratch, layout

FIRST, SECOND, THIRD = Operand(0), Operand(1), Operand(2)
PIECE, SHORT = 1024, 128
LANES_BYTES = 256
"""Of the lanes of one column: four vectors of the widest processor."""


@dataclass(frozen=True)
class KeptAxis(Record):
    size: int
    x_stride: int
    y_stride: int


@dataclass(frozen=True)
class TermAxis(Record):
    size: int
    stride: int


@dataclass(frozen=True)
class SumPieces(Record):
    """How the terms of one output are cut."""

    terms: int
    run: int
    """Terms after which pieces begin anew: a run, or as many short ones as fill a piece."""
    split: int
    """Pieces of a run."""
    length: int
    """Terms of a piece."""
    count: int
    """Of pieces: at least one, since the sum of nothing is zero."""


@dataclass(frozen=True)
class ReduceArguments(Record):
    """What all reductions are given. A unit of work is a block of columns."""

    kept: tuple[KeptAxis, ...]
    columns: KeptAxis
    block: int
    """Columns of a unit."""
    blocks: int
    x: Operand = FIRST
    y: Operand = SECOND


@dataclass(frozen=True, kw_only=True)
class ShareArguments(ReduceArguments):
    """``y = x/divisor`` along axes that only y has."""

    divisor: float


@dataclass(frozen=True, kw_only=True)
class SumArguments(ReduceArguments):
    terms: tuple[TermAxis, ...]
    """One of one cell stands for none."""
    pieces: SumPieces
    divisor: float
    is_side_by_side: bool
    """Whether columns are added up together, rather than one after another."""
    is_parted: bool
    """Whether the sums of pieces are the results: each is a unit, and stays a number as it is computed with."""
    part_stride: int
    """From one of them to the next in Y."""
    is_wide: bool
    """Whether X holds numbers as they are computed with, not as they are stored."""
    sums_at: int
    """The sums of columns; where they are added up together, those of their pieces,"""
    lanes_at: int
    """and their lanes; otherwise, the sums of the pieces of one,"""
    cells_at: int
    """and a piece's terms, if they are not added up where they lie."""


@dataclass(frozen=True, kw_only=True)
class SoftmaxArguments(ReduceArguments):
    """Columns are rows here, along which the softmax is taken; their cells are the terms."""

    x_stride: int
    """From one cell of a row to the next."""
    y_stride: int
    pieces: SumPieces
    is_side_by_side: bool
    is_log: bool
    """Whether the logarithm of the softmax is wanted."""
    sums_at: int
    """The sums of pieces of rows,"""
    lanes_at: int
    """their lanes,"""
    cells_at: int
    """a piece of their cells,"""
    powers_at: int
    """the exponentials of these,"""
    largest_at: int
    """and the largest cells."""


@dataclass
class TermScratch(Scratch):
    """What the workspaces of sums and softmaxes begin with."""

    position: Annotated[tuple[int, ...], 64]
    """Of a term, on as many axes as a NumPy array can have."""


SCRATCH_BYTES = layout(TermScratch).size

# --- choices ----------------------------------------------------------------------------------------------------------


class LabelKind(IntEnum):
    I64, I32, I8, U8 = range(4)


@dataclass(frozen=True)
class ChoiceAxis(Record):
    size: int
    x_stride: int
    label_stride: int
    y_stride: int


@dataclass(frozen=True)
class ChoiceArguments(Record):
    """One cell per label, picked from X or placed in Y, which alone has an axis of classes."""

    axes: tuple[ChoiceAxis, ...]
    last: ChoiceAxis
    block: int
    """Labels along the last axis that are a unit of work."""
    blocks: int
    kind: LabelKind
    width: int
    """Bytes of a cell."""
    classes: int
    class_stride: int
    x: Operand = FIRST
    labels: Operand = SECOND
    y: Operand = THIRD
