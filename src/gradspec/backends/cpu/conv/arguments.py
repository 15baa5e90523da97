"""What the kernels of convolutions are given, and what they keep while they run.

A **case** is a set of outputs that read alike. Along an axis, position ``q`` and tap ``u`` of a case meet the cell

    q·stride + first + u·tap_step.

Convolution is one case. Transposed convolution with a stride is one for each residue of its outputs: those with the
same residue meet the same taps, at neighbouring cells. Samples are the first axes, with one tap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from gradspec.backends.cpu.arguments import MOST_AXES
from gradspec.backends.cpu.pointwise.arguments import PointwiseArguments
from gradspec.backends.cpu.pool.arguments import PoolArguments
from gradspec.codegen.records import Operand, Record, Scratch, Words, layout
from gradspec.runtime.memory import aligned


@dataclass(frozen=True)
class CaseAxis(Record):
    """An axis of a case."""

    staged_taps: int
    """Taps that are staged apart,"""
    tap_step: int
    """cells"""
    tap_pitch: int
    """and staged elements between them."""
    stride: int
    """Cells between positions."""
    first: int
    """The first cell that is staged for the first position."""
    size: int
    """Cells of the axis."""
    positions: int
    staged_positions: int
    """The same with their halo, on axes behind the running one."""
    pitch: int
    """Staged elements between positions,"""
    out_pitch: int
    """and elements of the result."""
    taps: int
    least: int
    """How many cells behind the first staged one the first tap is."""


@dataclass(frozen=True)
class CaseArguments(Record):
    """A case, cut into blocks of columns."""

    unit: int
    """Its first unit of work."""
    blocks: int
    block: int
    """Columns of a block."""
    taps: int
    table: Words
    """The bytes from a chunk's first staged element to the columns of each channel and tap."""
    panels: int
    """The first element of its panels."""
    inner: int
    """Columns of one row of the running axis,"""
    total: int
    """and of the whole."""
    halo: int
    """Rows staged beyond those of the block."""
    channel_pitch: int
    """Elements staged per channel."""
    out: int
    """The element of its first output."""
    segment: int
    """Columns that lie evenly spaced in the result,"""
    segment_axis: int
    """the first of their axes,"""
    out_step: int
    """and how far apart they are."""
    row_columns: int
    """If staged rows have gaps between them, the columns of a row, or else 0,"""
    staged_row: int
    """and the staged elements of a row."""
    order: Words | None
    """For 3 × 3 windows of one channel, the table of their taps in the order of cells,"""
    cell_bytes: int
    """and the bytes between the cells of a row."""
    axes: tuple[CaseAxis, ...]


@dataclass(frozen=True)
class ConvSource(Record):
    """What is read. Strides count elements."""

    address: Operand
    group_stride: int
    channel_stride: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class ConvProduct(Record):
    """One convolution of a group of them."""

    source: int
    """Which source it reads."""
    weights: Operand | None
    """Packed."""
    bias: Operand | None
    bias_step: int
    result: Operand | None
    scratch: int
    """Where it is put together in the workspace; −1: in place."""
    given: int
    """Its number among what the epilogue is given, or −1."""


@dataclass(frozen=True)
class FusedPooling(Record):
    """A pooling of the rows of a block, which are in the workspace then."""

    units: int
    """Of work, per channel."""
    size: int
    """Bytes of its arguments, with all that they hold."""
    arguments: tuple[PoolArguments, ...]
    """One, or none for rows without windows."""


@dataclass(frozen=True, kw_only=True)
class ConvArguments(Record):
    run: int
    """The running axis (see ``kernels.staging``)."""
    groups: int
    rows: int
    """Per group: rows of weights,"""
    channels: int
    """channels that are summed over,"""
    chunk: int
    """and how many of these are staged at once."""
    row_block: int
    """Rows that share a stretch of columns while it is in the cache."""
    parts: int
    """Parts that the rows of a unit are one of,"""
    part_rows: int
    """and its rows."""
    outer: int
    """Positions before the running axis."""
    cases: tuple[CaseArguments, ...]
    sources: tuple[ConvSource, ...]
    products: tuple[ConvProduct, ...]
    out_channel: int
    """Elements between the channels"""
    out_group: int
    """and the groups of a result."""
    flags: int
    """How many flags packed weights begin with, which say whether some are not finite; 0: that does not matter."""
    panels_at: int
    """Bytes into packed weights: panels."""
    tables_at: int = 0
    """Bytes into the workspace: tables of rows (see ``kernels.borders``), each of"""
    table_bytes: int = 0
    ends_at: int = 0
    """the ends of these rows,"""
    zeros_at: int = 0
    """zeros for a row of padding,"""
    zero_cells: int = 0
    """so many,"""
    staged_at: int
    """and staged cells;"""
    edge_at: int = 0
    """a tile,"""
    strip_at: int = 0
    """a strip of columns, which is gathered where there is a table of its offsets,"""
    even: Words | None = None
    sums_at: int = 0
    """the sums of a depthwise weight gradient,"""
    biases_at: int = 0
    """the biases of a unit's rows,"""
    rows_at: int = 0
    """rows in the format of the results,"""
    pitch: int
    """which are so many bytes apart,"""
    epilogue_at: int = 0
    """and what an epilogue works in."""
    epilogue_function: int = 0
    """The address of the kernel that works on finished rows, with"""
    epilogue: tuple[PointwiseArguments, ...] = ()
    epilogue_cells: int = 0
    """How many cells it takes at most."""
    pool_function: int = 0
    """The address of the kernel of a pooling that reads the finished rows of a block;"""
    poolings: tuple[FusedPooling, ...] = ()
    """two, for most blocks and for the last."""
    pool_rows_at: int = 0
    """Bytes into the workspace: these rows,"""
    pool_arguments_at: int = 0
    """a copy of the pooling's arguments,"""
    pool_at: int = 0
    """and what it works in."""
    pool_given: int = 0
    """The number of these rows among what the epilogue is given."""
    pooled: Operand | None = None
    pooled_channel: int = 0
    """Elements of what it makes between channels"""
    pooled_block: int = 0
    """and between blocks."""


@dataclass
class ConvUnit(Scratch):
    """A unit of work; a workspace begins with it."""

    group: int
    row: int
    rows: int
    column: int
    columns: int
    skipped: int
    """Columns of the first staged row before the block's first."""
    out: int
    """The element of its first row's results."""
    laid: int
    """Rows whose addresses are known (see ``kernels.borders``)."""
    begin: int
    """Outputs of a row that are read in place: the first,"""
    end: int
    """and how many there are with those before it."""
    first: Annotated[tuple[int, ...], MOST_AXES]
    """Along each axis the first position that is staged,"""
    count: Annotated[tuple[int, ...], MOST_AXES]
    """and how many are."""


UNIT_BYTES = aligned(layout(ConvUnit).size)


@dataclass(frozen=True)
class PackedCase(Record):
    """The weights of a case."""

    taps: int
    table: Words
    """The elements where they lie,"""
    are_neighbours: bool
    """and whether these are 0, 1 and so on."""
    first: int
    """The first element of its panels."""


@dataclass(frozen=True)
class PackArguments(Record):
    """Weights, to be packed in panels."""

    weights: Operand
    target: Operand
    rows: int
    groups: int
    channels: int
    chunk: int
    panels_at: int
    row_step: int
    """Elements between rows,"""
    channel_step: int
    """channels"""
    group_step: int
    """and groups."""
    cases: tuple[PackedCase, ...]


# --- the weight gradient ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GradientAxis(Record):
    """An axis along which positions are summed over."""

    taps: int
    tap_step: int
    stride: int
    first: int
    size: int
    positions: int
    cells: int
    """Cells staged along it or, before the running axis, taps;"""
    cell_pitch: int
    """bytes between them."""
    x_stride: int
    """Elements between neighbours in the arrays."""
    g_stride: int
    behind: int
    """Positions of all axes behind it."""


@dataclass(frozen=True)
class GradientArguments(Record):
    """Sums run over positions: of the samples, the first axes, and of all spatial ones. They are taken a block at a
    time: a range of the **running** axis with everything behind it, for each position of the axes before."""

    x: Operand
    g: Operand
    w: Operand
    """The result has one gradient behind the other, one for each piece."""
    run: int
    groups: int
    rows: int
    """Per group, of the weights."""
    channels: int
    parts: int
    """What a unit has of them."""
    part_rows: int
    channel_parts: int
    part_channels: int
    outer: int
    """Positions before the running axis,"""
    blocks: int
    """blocks along it,"""
    block: int
    """positions of a block there,"""
    inner: int
    """and positions behind it."""
    pieces: int
    """That the blocks are cut into."""
    table: Words
    """The bytes from a block's first cell to that of every position."""
    sets: Words
    """The bytes to the first cell of each set of taps whose columns are contiguous."""
    set_count: int
    set_taps: int
    set_pitch: int
    """Bytes between the sums of two sets."""
    even: Words
    """The table of offsets of a gathered strip."""
    panels_at: int
    """Bytes into the workspace."""
    sums_at: int
    sums_pitch: int
    """Bytes between the rows of sums."""
    staged_at: int
    staged_cells: int
    strip_at: int
    x_group: int
    """Elements between neighbours."""
    x_channel: int
    g_group: int
    g_channel: int
    w_group: int
    w_row: int
    w_channel: int
    w_size: int
    """Of the whole result."""
    axes: tuple[GradientAxis, ...]


@dataclass
class GradientUnit(Scratch):
    row: int
    rows: int
    channel: int
    channels: int
    count: int
    """Positions of the running axis in the block at hand."""
    first: Annotated[tuple[int, ...], MOST_AXES]
    """The first positions of every axis."""


GRADIENT_UNIT_BYTES = aligned(layout(GradientUnit).size)


@dataclass(frozen=True)
class JoinArguments(Record):
    """Pieces of a gradient, to be added up."""

    pieces: Operand
    result: Operand
    count: int
    length: int
    stretch: int
    """Numbers of a unit of work."""
