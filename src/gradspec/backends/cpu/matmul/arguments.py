"""What the kernels of matrix products are given.

``c[i, j] = Σ_k a[i, k]·b[k, j] + bias[j]`` for every index of some leading axes. Steps are in bytes.

Sums run over **blocks** of ``k_block`` products, one after another; blocks are put together one after another to
**pieces** of ``piece`` products, and pieces to the result. Both lengths depend on the number of products alone, so
that a row of the result does not depend on how many others there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from gradspec.backends.cpu.pointwise.arguments import PointwiseArguments
from gradspec.codegen.records import Operand, Record, Scratch, layout
from gradspec.runtime.memory import aligned

LONGEST_BLOCK = 256
"""Of products."""
FEW_ROWS = 4
"""Panels of fewer rows are not worth their while beside others: tiles of few rows wait for their own sums."""
SUMS_GAP = 192
"""Bytes between rows of sums that others are added to, lest all of them fall on the same lines of a cache."""
TILE_BYTES = 8 * 8 * 64
"""Room for the largest tile: eight rows of eight of the longest vectors."""


class ColumnKind(IntEnum):
    """How ``b`` is read: packed before; packed by each unit; or where it lies, which pays if few rows read it.

    ``IN_PLACE``: columns are neighbours, and tiles read them. ``STREAMED``: the same, far from each other, and whole
    rows of ``b`` are added to rows of sums. ``TURNED``: products are neighbours, and squares of ``b`` are transposed in
    registers.
    """

    PACKED, NOT_PACKED, IN_PLACE, STREAMED, TURNED = range(5)


@dataclass(frozen=True)
class MatrixLead(Record):
    """A leading axis, and its steps in the operands."""

    size: int
    a_step: int
    b_step: int
    bias_step: int


@dataclass(frozen=True, kw_only=True)
class MatmulArguments(Record):
    a: Operand | None = None
    """The left operand; of what adds up pieces, these."""
    b: Operand | None = None
    bias: Operand | None = None
    c: Operand | None = None
    """The result; None if only an epilogue reads it."""
    leads: tuple[MatrixLead, ...]
    rows: int = 0
    columns: int
    products: int = 0
    a_row: int = 0
    """From one row, or one product, to the next,"""
    a_step: int = 0
    b_step: int = 0
    b_column: int = 0
    bias_step: int = 0
    c_piece: int = 0
    """and from what one piece makes to what the next one does."""
    row_part: int = 0
    """Rows of a unit,"""
    row_parts: int = 0
    """and how many units they make."""
    column_part: int
    column_parts: int = 0
    row_group: int = 0
    """Rows that are packed at a time."""
    k_block: int = 0
    piece: int = 0
    pieces: int = 0
    piece_group: int = 0
    """Pieces that rows are packed for at a time, where columns lie across."""
    is_split: bool = False
    """Whether every piece is a unit of its own, whose sums another kernel adds up."""
    column_kind: ColumnKind = ColumnKind.NOT_PACKED
    block: int = 0
    """Columns that are packed side by side."""
    is_direct: bool = False
    """Whether results are made where they stay."""
    a_at: int = 0
    """Bytes into the workspace: packed rows,"""
    b_at: int = 0
    """packed columns, or sums of a block,"""
    tables_at: int = 0
    """where the columns of each product begin, in packed columns and in ``b``,"""
    bias_at: int = 0
    edge_at: int = 0
    """a tile,"""
    sums_at: int = 0
    """sums of a piece,"""
    totals_at: int = 0
    """sums of all of them,"""
    row_at: int = 0
    """numbers as they are stored,"""
    epilogue_at: int = 0
    """and an epilogue's workspace."""
    epilogue_function: int = 0
    """The address of the kernel that works on finished results, with"""
    epilogue: tuple[PointwiseArguments, ...] = ()
    epilogue_block: int = 0
    """How many cells it takes at a time."""


@dataclass
class MatmulUnit(Scratch):
    """A unit of work; a workspace begins with it."""

    lead: int
    row: int
    rows: int
    column: int
    columns: int
    first_piece: int
    end_piece: int
    left: int
    """Where its rows of ``a`` begin,"""
    right: int
    """and the matrix ``b``."""
    sums: int
    """Where the sums of a piece are made,"""
    sums_pitch: int
    sums_kept: int
    """whether they are still needed when the next rows' are made (1 or 0),"""
    totals: int
    """and those of all pieces."""
    totals_pitch: int


UNIT_BYTES = aligned(layout(MatmulUnit).size)
