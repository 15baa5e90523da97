"""What pooling kernels are given, and what they keep while they run.

Strides and offsets count elements. A pooled array is seen as ``(*leads, *axes, inner)``: any number of leading axes,
each of them independent; the spatial axes; and a run of ``inner`` neighbours in memory that are pooled side by side
(the channels of a channels-last array; otherwise one). The inner run is cut into blocks that fit the caches, and the
first spatial axis into bands of outputs, so that a unit of work is one band of one block of one plane.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, TypeAlias

from gradspec.backends.cpu.arguments import MOST_AXES, Grid, RowPieces, TapAxis
from gradspec.codegen.records import Memory, Operand, Record, Scratch, Words, layout
from gradspec.runtime.memory import aligned


class Role(IntEnum):
    """The arrays of a call. ``X`` is pooled to ``Y``; ``U`` is the tangent or cotangent that comes in and ``V`` the one
    that goes out; ``INDICES`` receives the winners' places in their plane, ``TAPE`` their numbers within the window."""

    X, Y, U, V, INDICES, TAPE = range(6)


PerArray: TypeAlias = tuple[int, int, int, int, int, int]
Arrays: TypeAlias = tuple[
    Operand | None, Operand | None, Operand | None, Operand | None, Operand | None, Operand | None
]


NO_ARRAYS: Arrays = (None, None, None, None, None, None)


class AxisKind(IntEnum):
    """Regular windows, adaptive bins, and regular windows read backwards (outputs are cells)."""

    SLIDING, BINS, EXPANDING = range(3)


class Planar(IntEnum):
    """How an axis and the last one are reduced together, straight from memory: not at all, an output row at a time,
    many output rows, or many whose rows of cells are kept for the next ones; or an axis before these, by joining slabs
    of cells before any later axis is reduced, of one axis or, where the last four have pairs, of two; or windows read
    backwards, an output row at a time; or small windows of runs of neighbours."""

    NOT, BY_ROW, MANY_ROWS, KEPT_ROWS, SLABS, PAIRS, SPREAD, RUNS = range(8)


class Finish(IntEnum):
    """When outputs are finished, that is divided, filled in and written: slab by slab; as soon as they are put
    together, in the output itself; or when all of their plane are."""

    BY_SLAB, AT_ONCE, BY_PLANE = range(3)


@dataclass(frozen=True)
class Lead(Record):
    """A leading axis."""

    size: int
    strides: PerArray


@dataclass(frozen=True)
class PoolAxis(Record):
    """A spatial axis."""

    kind: AxisKind
    size: int
    """Input positions."""
    outputs: int
    kernel: int
    """Most taps of a window."""
    stride: int
    low: int
    """Padding before the first cell."""
    dilation: int
    scans: bool
    """Whether windows are put together from prefixes and suffixes of blocks (along the last axis: doubled runs)."""
    volume: int
    """Taps of a window on the later axes."""
    slab: int
    """Outputs on the later axes."""
    ring: int
    """Where its slabs begin, in inner blocks."""
    slots: int
    """How many slabs there are."""
    planar: Planar
    inside: int
    """The first output whose taps are all real, and"""
    beyond: int
    """the first after it whose are not."""
    spans: Words | None
    """Where each bin begins, and how many cells it has."""
    counted: Words | None
    """The taps that each window counts (sums: its divisor)."""
    real: Words | None
    """The real cells of each window."""
    strides: PerArray


@dataclass(frozen=True)
class StagedRows(Record):
    """How rows of neighbours are laid out where winners are found in them, or gathered from. Places and lengths count
    inner blocks, from the begin of each component."""

    is_used: bool = False
    phase: int = 0
    """Places of a staged row in each of its phases, which are as many as the stride."""
    at: int = 0
    """Where a row is staged, and then room for a copy of it,"""
    levels_at: int = 0
    """and what is reduced along the later axes of three or more."""


@dataclass(frozen=True)
class RowChunk(Record):
    """Rows of windows whose cotangents are sent as their winners are found (see ``kernels.sending``)."""

    rows: int = 0
    """How many are put together at once; 0: none."""
    is_run: bool = False
    """Whether their rows of cells are one run."""
    together: int = 1
    """The rows of cells that are reduced at once, and that gather."""
    pitch: int = 0
    """From one row of cells to the next,"""
    largest_at: int = 0
    """where their largest cells begin,"""
    kept_at: int = 0
    """and what they have heard."""


@dataclass(frozen=True)
class Gathering(Record):
    """How cells gather cotangents from the windows that cover them; counted in the same way."""

    is_used: bool = False
    is_in_place: bool = False
    """Whether rows of cells are added up in V itself."""
    in_runs: bool = False
    """Whether all that is needed lies in runs of neighbours (see ``kernels.runs``)."""
    phase: int = 0
    """Places of a row of cells in each of its phases, which are as many as the stride."""
    sums_at: int = 0
    """Where they are added up otherwise."""
    kept_at: int = 0
    """Where the winners and cotangents are that rows of cells have heard of; in runs, winners of rows of windows,"""
    slots: int = 0
    """in so many slabs of the first axis, or so many rows,"""
    pitch: int = 0
    """from one row to the next, of which the first output comes after"""
    margin: int = 0
    """places that nobody won."""
    chunk: RowChunk = RowChunk()


@dataclass(frozen=True, kw_only=True)
class PoolSettings(Record):
    """What a kernel does, whatever the layout of its arrays."""

    pulls: bool = False
    """Whether U is a cotangent, to be sent to V's cells, rather than a tangent."""
    tape_bytes: int = 0
    """Of each winner on the tape."""
    splits: bool = False
    """Whether the tied cells of a window share its cotangent, or the mean of tangents is wanted; else all get all."""
    scales_input: bool = False
    """Whether the input is divided rather than the output (the average read backwards)."""
    divisor: float = 0.0
    """0: the cells of the window are counted."""
    inverse: float = 0.0
    """Of the divisor, rounded towards 0 to the numbers computed with; 0 where it is divided by (see ``values``),"""
    inverse_rest: float = 0.0
    """and what is missing there."""
    unit: float = 1.0
    """What smooth pooling multiplies numbers by when it reads them."""
    softness: float = 1.0
    """β/unit > 0."""
    pads_with_zeros: bool = False
    """Whether padding takes part as zeros in smooth pooling."""
    nought: int = 0
    """0, which the compiler does not know."""


@dataclass(frozen=True, kw_only=True)
class PoolArguments(PoolSettings):
    arrays: Arrays
    axes: tuple[PoolAxis, ...]
    leads: tuple[Lead, ...]
    inner: int
    """Elements in a block of the inner run."""
    inner_total: int
    inner_strides: PerArray
    blocks: int
    bands: int
    has_holes: bool
    """Whether some output has no real cell at all."""
    are_apart: bool
    """Whether windows share no cell."""
    writes_cells: bool
    """Whether windows that lie side by side write all cells of the rows that they cover."""
    finish: Finish
    shares: Memory | None
    """The inverses of a small plane's divisors, one after another, and then what is missing there."""
    is_turned: bool
    """Whether the inner run is small planes, whose rows are turned so that their cells lie side by side."""
    reads_runs: bool
    """Whether windows along the last axis are put together from neighbours where they lie in X."""
    rows: int
    """Rows of the last axis in a slab of the first."""
    is_direct: bool
    """Whether output slabs are dense in Y and need no conversion."""
    is_staged: bool
    """Whether the cells of the last two axes are copied, converted and divided, before they are reduced together,"""
    staged_at: int
    """and where to, in elements; for windows read backwards"""
    staged_rows: int
    """so many rows at once, and one before them."""
    is_whole: bool
    """Whether each plane is one run of cells and has one output."""
    tile: int
    """Outputs of one stretch of the last axis."""
    tile_at: int
    """Where stretches begin in each component, in elements."""
    tile_room: int
    table_at: int
    """Bytes into the workspace: a table of the places of a window's cells, or of the taps of the last axis,"""
    table_room: int
    """and its entries; 0 where it would be too long."""
    component: int
    """Elements from one component of a running result to the next."""
    plane_at: int
    """Bytes into the workspace: the float32 plane of a 16-bit cotangent."""
    staged: StagedRows
    gathering: Gathering


@dataclass
class PoolUnit(Scratch):
    """What changes from one unit of work to the next; a workspace begins with it."""

    bases: PerArray
    """Where the plane begins in each array."""
    neighbours: int
    """Elements of this block of the inner run."""
    first_output: int
    """On the first axis: the outputs that this unit writes,"""
    end_output: int
    first_cell: int
    """and the cells that it may send cotangents to."""
    end_cell: int
    is_tabled: bool
    """Whether the table of places is made."""
    has_nan: bool
    """Whether some cell may be NaN, where that makes a difference."""
    heard: int
    """The cell of the first axis that is the next to gather cotangents."""
    workspace: int
    """Its address."""
    place: Annotated[tuple[int, ...], MOST_AXES]
    """The index of the output row at hand."""


UNIT_BYTES = aligned(layout(PoolUnit).size)
"""What it takes of the workspace."""


# --- power pooling ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exponent(Record):
    """A number as a sum of two of the numbers computed with, the larger first."""

    head: float
    rest: float


@dataclass(frozen=True)
class LpPoolArguments(Record):
    x: Operand
    y: Operand
    pieces: RowPieces
    axes: tuple[TapAxis, ...]
    p: Exponent
    inverse: Exponent
    """1/p."""


# --- places in a plane ------------------------------------------------------------------------------------------------


class IndexKind(IntEnum):
    """How places are stored."""

    I64, I32, I8, U8 = range(4)


@dataclass(frozen=True)
class UnpoolArguments(Record):
    """Numbers are gathered from places in the planes of ``x``, or scattered to places in those of ``y``."""

    x: Operand
    places: Operand
    y: Operand
    kind: IndexKind
    planes: Grid
    """Leading axes, of x and y,"""
    place_planes: Grid
    """and of places."""
    moved: Grid
    """The axes of what is moved in a plane, which is the source, and of places, the target,"""
    count: int
    """and how many of both there are."""
    plane: Grid
    """The axes of the plane that places point into,"""
    cells: int
    """and its cells."""
    band: int
    """Cells of a plane of the result that a unit of work makes, and"""
    bands: int
    """how many times that is."""
