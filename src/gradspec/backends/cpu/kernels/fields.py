"""The block of integers that a pooling kernel is given, field by field: its only interface to Python.

Strides and offsets count elements. A pooled array is seen as ``(*leads, *axes, inner)``: any number of leading axes,
each of them independent; the spatial axes; and a run of ``inner`` neighbours in memory that are pooled side by side
(the channels of a channels-last array; otherwise one). The inner run is cut into blocks that fit the caches, and the
first spatial axis into bands of outputs, so that a work unit is one band of one block of one plane.
"""

X, Y, U, V, INDICES, TAPE = range(6)
"""Pointers; 0 for an array that this call does not have.

``X`` is pooled to ``Y``. ``U`` is the tangent or cotangent that comes in and ``V`` the one that goes out. ``INDICES``
receives the winners' places in their plane, ``TAPE`` their numbers within the window.
"""

ARRAYS = 6

(
    RANK,
    LEADS,  # number of leading axes
    AXES,  # where the records of the spatial axes begin
    INNER,  # elements in a block of the inner run
    INNER_TOTAL,
    BLOCKS,
    BANDS,
    HOLES,  # whether some output has no real cell at all
    QUIET,  # whether outputs are finished as soon as they are put together; 2: when their plane is
    ROWS,  # rows of the last axis in a slab of the first
    DIRECT,  # whether output slabs are dense in Y and need no conversion
    PULLS,  # whether U is a cotangent, to be sent to V's cells, rather than a tangent
    TAPE_BYTES,  # bytes per winner on the tape
    UNIT,  # what smooth pooling multiplies numbers by when it reads them, as float64 bits
    PADDED,  # whether padding takes part as zeros in smooth pooling
    SCALED,  # whether the input is divided rather than the output (the average read backwards)
    DIVISOR,  # float64 bits; 0.0: count the cells of the window
    INVERSE,  # its inverse, rounded to the numbers computed with; 0.0 where that is no use
    EXACT,  # whether the inverse was not rounded: the divisor is a power of two
    SHARES,  # pointer to the divisors of a small plane's outputs, one after another, or 0
    SOFTNESS,  # β/UNIT > 0 as float64 bits
    TIES,  # whether the tied cells of a window share its cotangent, or the mean of tangents is wanted: SPLIT, else ALL
    TILE,  # outputs of one stretch of the last axis
    TILE_AT,  # where stretches begin in each component, in elements
    TILE_ROOM,
    TABLE_AT,  # bytes
    TABLE_ROOM,  # entries of a table of the places of a window's cells; 0 where it would be too long
    COMPONENT,  # elements from one component of a running result to the next
    APART,  # whether windows share no cell
    WHOLE,  # whether each plane is one run of cells and has one output
    ZERO,  # 0, which the compiler does not know
    PLANE_AT,  # where the float32 plane of a 16-bit pull begins, in bytes
) = range(6, 38)

INNER_STRIDE = 38  # one per array
HEADER = INNER_STRIDE + ARRAYS

LEAD = 1 + ARRAYS
"""A leading axis: its extent and its stride in each array."""

(
    KIND,
    SIZE,  # input positions
    OUTPUTS,
    KERNEL,  # most taps of a window
    STRIDE,
    LOW,
    HIGH,
    DILATION,
    SCANS,  # whether windows are put together from prefixes and suffixes of blocks
    VOLUME,  # taps of a window on the later axes
    SLAB,  # outputs on the later axes
    RING,  # where its slabs begin, in inner blocks
    SLOTS,  # how many there are
    PLANAR,  # whether this axis and the last are reduced together: 1 row by row, 2 many rows, 3 rows that are kept
    INSIDE,  # the first output whose taps are all real, and
    BEYOND,  # the first after it whose are not
    SPANS,  # pointer to where each bin begins and how many cells it has
    COUNTED,  # pointer to the taps that each window counts (sums: its divisor), or 0
    REAL,  # pointer to the real cells of each window, or 0
    STRIDES,  # one per array
) = range(20)
AXIS = STRIDES + ARRAYS
"""A spatial axis."""

SLIDING, BINS, EXPANDING = range(3)
"""Kinds of axis: regular windows, adaptive bins, and regular windows read backwards (outputs are cells)."""

ALL, SPLIT = range(2)
"""How cells that tie are treated."""

PLACE = 16
FRAME = PLACE + 64
"""The frame that a workspace begins with, in words: what changes from unit to unit, then the place of the output row at
hand, with room for as many axes as a NumPy array can have.
"""
