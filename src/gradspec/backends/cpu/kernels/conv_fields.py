"""The words that describe convolutions to their kernels: what the host writes and the kernels read.

A **case** is a set of outputs that read alike. Along axis ``a``, position ``q`` and tap ``u`` of a case meet the cell

    q·STRIDE + FIRST + u·TAP_STEP.

Convolution is one case. Transposed convolution with a stride is one for each residue of its outputs: those with the
same residue meet the same taps, at neighbouring cells. Samples are the first axis, with one tap.
"""

# --- the whole --------------------------------------------------------------------------------------------------------

AXES, RUN, GROUPS, ROWS, CHANNELS, CHUNK = range(6)
"""Axes with the samples; the running one (see ``patches``); then per group: rows of weights, channels that are summed
over, and how many of these are staged at once."""
ROW_BLOCK, PARTS, PART_ROWS = range(6, 9)
"""Rows that share a stretch of columns while it is in the cache; parts that the rows of a unit are one of."""
CASES, CASE_WORDS, SOURCES, SOURCE_WORDS, PRODUCTS = range(9, 14)
"""How many there are, and how long the records are: cases come first, then sources, then products."""
STAGED, EDGE, STRIP, PITCH, ROW_SPACE, PROGRAM_SPACE = range(14, 20)
"""Bytes into the workspace: staged cells, room for a tile and for a strip of columns, rows in the format of the
results, and what a program for finished rows works in; and between the rows of results there."""
PROGRAM, PROGRAM_WORDS, PROGRAM_CELLS = range(20, 23)
"""The function of that program, or 0; the word where its own words begin; how many cells it takes at most."""
OUT_CHANNEL, OUT_GROUP, FLAG_COUNT, PANELS_AT, EVEN, BIASES, OUTER = range(23, 30)
"""Elements between the channels and the groups of a result. Packed weights begin with flags that say whether some
are not finite: how many there are (0: it does not matter), and where panels begin. The table of offsets of a gathered
strip, and where the biases of a unit's rows lie in the workspace. Positions before the running axis, for a kernel whose
units run over all of them."""
POOL, POOL_WORDS, POOL_LAST, POOL_ROWS, POOL_ROOM, POOL_SPACE, POOL_GIVEN = range(30, 37)
"""The function of a pooling that reads the finished rows of a block, or 0; the records of its words, for most blocks
and for the last; bytes into the workspace: these rows, a copy of the words, and what the pooling works in; the number
of these rows among what the program is given."""
POOLED, POOLED_CHANNEL, POOLED_BLOCK, STAGED_CELLS = range(37, 41)
"""The address of what it makes, and the elements there between channels and between blocks; how many cells the staged
ones have room for."""
HEADER = 41

# --- a pooling's record: how many words it has, units of work per channel, and the words ------------------------------

POOL_COUNT, POOL_UNITS, POOL_RECORD = range(3)

# --- a case -----------------------------------------------------------------------------------------------------------

UNIT, BLOCKS, BLOCK, TAPS, TABLE, PANELS, INNER, TOTAL = range(8)
"""Its first unit; blocks of columns, and columns of a block; taps, and the table of offsets for one chunk; its first
panel's first element; columns of one row of the running axis, and of the whole."""
HALO, CHANNEL_PITCH, OUT, SEGMENT, SEGMENT_AXIS, OUT_STEP, ROW_COLUMNS, STAGED_ROW, ORDER, STEP = range(8, 18)
"""Rows staged beyond those of the block; elements staged per channel; the element of its first output; columns that lie
evenly spaced in the result, the first of their axes, and how far apart they are; if staged rows have gaps
between them, the columns of a row, or else 0, and the staged elements of a row. For windows of three by three
cells of one channel (see ``squares``) the table of their taps in the order of cells, or else 0, and the bytes between
the cells of a row."""
CASE_AXES = 18

(
    STAGED_TAPS,
    TAP_STEP,
    TAP_PITCH,
    STRIDE,
    FIRST,
    SIZE,
    POSITIONS,
    PITCH_OF,
    OUT_PITCH,
    ALL_TAPS,
    LEAST,
    STAGED_POSITIONS,
) = range(12)
"""For each axis: taps that are staged apart, cells and staged elements between them; cells between positions, the first
cell that is staged for the first position, cells of the axis; positions, staged elements between them, elements of the
result; all taps, and how many cells behind the first staged one the first tap is; staged positions of axes
behind the running one."""
AXIS_WORDS = 12

# --- a source: its address, elements between groups, between channels, and then along each axis -----------------------

ADDRESS, GROUP_STRIDE, CHANNEL_STRIDE, STRIDES = range(4)

# --- a product --------------------------------------------------------------------------------------------------------

SOURCE, WEIGHTS, BIAS, BIAS_STEP, RESULT, SCRATCH, GIVEN = range(7)
"""Which source; the address of the packed weights; that of the biases, or 0, and the elements between them; that of the
result, or 0; where it is put together in the workspace, or −1 for in place; its number among what the program is given,
or −1."""
PRODUCT_WORDS = 7

# --- packing ----------------------------------------------------------------------------------------------------------

PACK_ROWS, PACK_GROUPS, PACK_CHANNELS, PACK_CHUNK, PACK_CASES, PACK_PANELS = range(6)
PACK_SOURCE, PACK_ROW, PACK_CHANNEL, PACK_GROUP, PACK_TARGET = range(6, 11)
"""The weights' address and the elements between rows, channels and groups; where panels go."""
PACK_HEADER = 11
PACK_TAPS, PACK_TABLE, PACK_FIRST = range(3)
"""For each case: taps, the elements where they lie, and the first element of its panels."""
PACK_CASE_WORDS = 3
