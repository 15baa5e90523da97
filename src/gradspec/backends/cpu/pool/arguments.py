"""The records that pooling kernels are given, and what they keep while they run.

Strides and offsets count elements. A pooled array is seen as ``(*leads, *axes, inner)``: any number of independent
leading axes; the spatial axes; and a run of ``inner`` neighbours in memory that are pooled side by side (the channels
of a channels-last array; otherwise one). The inner run is cut into blocks that fit the caches, and the first spatial
axis into bands of outputs. A unit of work is one band of one block of one plane.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, TypeAlias

from gradspec.backends.cpu.arguments import MOST_AXES, Grid, RowPieces, TapAxis
from gradspec.codegen.records import Memory, Operand, Record, Scratch, Words, layout
from gradspec.runtime.memory import aligned


class Role(IntEnum):
    """The arrays of a call. ``X`` is pooled to ``Y``; ``U`` is the incoming tangent or cotangent and ``V`` the outgoing
    one; ``INDICES`` receives the winners' places in their plane, ``TAPE`` their tap indices within the window."""

    X, Y, U, V, INDICES, TAPE = range(6)


PerArray: TypeAlias = tuple[int, int, int, int, int, int]
Arrays: TypeAlias = tuple[
    Operand | None, Operand | None, Operand | None, Operand | None, Operand | None, Operand | None
]


NO_ARRAYS: Arrays = (None, None, None, None, None, None)


class AxisKind(IntEnum):
    """Regular windows, adaptive bins, and transposed regular windows (inputs are windows, outputs are cells)."""

    SLIDING, BINS, EXPANDING = range(3)


class Schedule(IntEnum):
    """How an axis is reduced. ``layout`` chooses, and says when each schedule applies."""

    GENERIC = 0
    """Alone: each row is reduced along the later axes, and rows are combined through the ring buffer."""
    ROW = 1
    """With the last axis, one output row at a time: rows of cells are joined in memory, then reduced along the row."""
    ROWS = 2
    """With the last axis, many output rows at a time: 3 × 3 or 2 × 2 windows are read straight from memory."""
    WINNER_ROWS = 3
    """With the last axis, for winners: rows that the next windows share are reduced once and kept."""
    SLABS = 4
    """Before all later axes: the slabs of cells of a window are joined elementwise."""
    PAIRS = 5
    """As ``SLABS``, for two axes of windows of two cells at once."""
    TRANSPOSE_ROWS = 6
    """With the last axis, transposed: an output row of cells is the sum of at most two rows of windows."""
    RUNS = 7
    """With the last axis, where each tap is a run of neighbours: all taps of a small window are joined at once."""


class Finish(IntEnum):
    """When outputs are finished, that is divided, filled in and written: slab by slab; as soon as they are combined, in
    the output itself; or when all outputs of their plane are combined."""

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
    """Whether windows are combined from prefixes and suffixes of blocks (along the last axis: from doubled runs)."""
    volume: int
    """Taps of a window on the later axes."""
    slab: int
    """Outputs on the later axes."""
    ring: int
    """Where the slabs of the ring begin, in inner blocks."""
    slots: int
    """Slabs of the ring."""
    schedule: Schedule
    inside: int
    """The first output whose taps are all real."""
    beyond: int
    """The first output after ``inside`` that has a tap in the padding."""
    spans: Words | None
    """The first cell of each bin, and how many cells it has."""
    counted: Words | None
    """The taps that each window counts (sums: its divisor)."""
    real: Words | None
    """The real cells of each window."""
    strides: PerArray


@dataclass(frozen=True)
class RowChunk(Record):
    """Chunks of rows of 3 × 3 windows whose cotangents are scattered as winners are found (see
    ``kernels.max_vjp_3x3``)."""

    rows: int = 0
    """Rows of windows in a chunk; 0 if chunks are not used."""
    is_run: bool = False
    """Whether the rows of cells are one run."""
    together: int = 1
    """Rows of cells that are reduced, and gathered, at once."""
    pitch: int = 0
    """Places from one row of cells to the next."""
    largest_at: int = 0
    """Where the maxima of the rows begin."""
    accumulators_at: int = 0
    """Where the accumulators of the rows begin."""


@dataclass(frozen=True)
class Gathering(Record):
    """How cells gather cotangents from the windows that cover them. Places and lengths count inner blocks, from the
    start of each component."""

    is_used: bool = False
    is_in_place: bool = False
    """Whether vectors of cells can be written to V, at stride 1 or 2."""
    in_runs: bool = False
    """Whether all operands lie in runs of neighbours (see ``kernels.runs``)."""
    sums_at: int = 0
    """Where rows of cells or cotangents are copied to if they cannot be read in place."""
    accumulators_at: int = 0
    """Where the accumulators lie: winners and sums of cotangents per row of cells; in runs, winners of output rows."""
    slots: int = 0
    """Slabs of the first axis that have accumulators; in runs, output rows that have."""
    pitch: int = 0
    """Places from one row of accumulators to the next."""
    margin: int = 0
    """Empty places before the first output of a row."""
    chunk: RowChunk = RowChunk()


@dataclass(frozen=True, kw_only=True)
class PoolSettings(Record):
    """What a kernel does, whatever the layout of its arrays."""

    is_vjp: bool = False
    """Whether U is a cotangent, to be scattered to V's cells, rather than a tangent."""
    tape_bytes: int = 0
    """Bytes of each winner on the tape."""
    splits: bool = False
    """Whether tied cells share their window's cotangent, and tangents are averaged; otherwise each gets all of it."""
    scales_input: bool = False
    """Whether the input is divided rather than the output (the transposed average)."""
    divisor: float = 0.0
    """The divisor of all windows; 0 if each is divided by its own count of cells."""
    inverse: float = 0.0
    """``1/divisor`` rounded towards 0; 0 if the kernel divides instead (see ``inverse``)."""
    inverse_rest: float = 0.0
    """``1/divisor − inverse``."""
    unit: float = 1.0
    """What smooth pooling multiplies numbers by when it reads them."""
    softness: float = 1.0
    """β/unit > 0."""
    pads_with_zeros: bool = False
    """Whether padding takes part as zeros in smooth pooling."""
    first_tap: int = 0
    """The index of a window's first tap: always 0, but unknown to the compiler (see ``FirstWinner.tap``)."""


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
    are_disjoint: bool
    """Whether windows share no cell."""
    writes_all_cells: bool
    """Whether windows that lie side by side write all cells of the rows that they cover."""
    finish: Finish
    shares: Memory | None
    """The inverses of a small plane's divisors, all heads first and then all rests (see ``inverse``)."""
    is_transposed: bool
    """Whether the inner run is small planes, which are transposed so that cells of the same place are neighbours."""
    reads_runs: bool
    """Whether windows along the last axis are joined from neighbours where they lie in X."""
    rows: int
    """Rows of the last axis in a slab of the first."""
    is_direct: bool
    """Whether output slabs are dense in Y and need no conversion."""
    is_staged: bool
    """Whether the cells of the last two axes are copied, converted and divided, before they are reduced together."""
    staged_at: int
    """Where these cells are copied to, in elements."""
    staged_rows: int
    """Rows of transposed windows that are staged at once, besides the one before them."""
    is_whole: bool
    """Whether each plane is one run of cells and has one output."""
    tile: int
    """Outputs of one tile of the last axis."""
    tile_at: int
    """Where tiles begin in each component, in elements."""
    tile_room: int
    """Elements of a tile's cells."""
    table_at: int
    """Where the table of cell offsets of a window, or of taps of the last axis, begins in the workspace, in bytes."""
    table_room: int
    """Entries of the table; 0 if it would be too long."""
    component: int
    """Elements from one component of a running result to the next."""
    plane_at: int
    """Where the float32 plane of a 16-bit cotangent begins in the workspace, in bytes."""
    gathering: Gathering


@dataclass
class PoolUnit(Scratch):
    """The state of a unit of work; a workspace begins with it."""

    bases: PerArray
    """Where the plane begins in each array."""
    neighbours: int
    """Elements of this block of the inner run."""
    first_output: int
    """The first output of the first axis that this unit writes."""
    end_output: int
    first_cell: int
    """The first cell of the first axis that this unit may add cotangents to."""
    end_cell: int
    is_tabled: bool
    """Whether the table of cell offsets is filled."""
    has_nan: bool
    """Whether some cell may be NaN, where that makes a difference."""
    seen_row: int
    """Rows of cells before this one have been searched for NaNs, where winners are found in runs."""
    nan_row: int
    """The last of them that has a NaN, or −1."""
    next_cell: int
    """The next cell of the first axis to gather its cotangents."""
    workspace: int
    """Its address."""
    place: Annotated[tuple[int, ...], MOST_AXES]
    """The index of the current output row."""


UNIT_BYTES = aligned(layout(PoolUnit).size)
"""Bytes of the workspace that a ``PoolUnit`` takes."""


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
    """Leading axes of x and y."""
    place_planes: Grid
    """Leading axes of places."""
    moved: Grid
    """The axes of the numbers moved in a plane (source), and of places (target)."""
    count: int
    """Numbers moved in a plane."""
    plane: Grid
    """The axes of the plane that places point into."""
    cells: int
    """Cells of that plane."""
    band: int
    """Cells of a plane of the result that a unit of work writes."""
    bands: int
    """Units of work per plane."""
