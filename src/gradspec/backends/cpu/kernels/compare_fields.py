"""The words that describe the weight gradient of convolutions to its kernel.

Sums run over positions: of the samples, the first axis, and of all spatial ones. They are taken a block at a time: a
range of the **running** axis with everything behind it, for each position of the axes before.
"""

AXES, RUN, GROUPS, ROWS, CHANNELS = range(5)
"""Axes with the samples; the running one; per group: rows and channels of the weights."""
PARTS, PART_ROWS, CHANNEL_PARTS, PART_CHANNELS = range(5, 9)
"""What a unit has of them."""
OUTER, BLOCKS, BLOCK, INNER, TABLE = range(9, 14)
"""Positions before the running axis, blocks along it and positions of a block there, positions behind it; the table of
the bytes from a block's first cell to that of every position."""
SETS, SET_TABLE, SET_TAPS, SET_PITCH = range(14, 18)
"""Sets of taps whose columns are contiguous, and the bytes to the first cell of each; taps of a set, and the bytes
between the sums of two sets."""
PANELS, SUMS, PITCH, STAGED, STRIP, EVEN = range(18, 24)
"""Bytes into the workspace, but for the pitch of the sums and the address of the table for gathered strips."""
X, G, W = range(24, 27)
"""Addresses; the result has one gradient behind the other, one for each piece."""
X_GROUP, X_CHANNEL, G_GROUP, G_CHANNEL, W_GROUP, W_ROW, W_CHANNEL, TAP_TABLE = range(27, 35)
"""Elements between neighbours; the table of the elements to every tap of the weights, set by set."""
PIECES, W_SIZE, STAGED_CELLS = range(35, 38)
"""Pieces that the blocks are cut into, and elements of the whole result; how many cells the staged ones have room for.
"""
AXIS = 38

TAPS, TAP_STEP, STRIDE, FIRST, SIZE, POSITIONS, CELLS, CELL_PITCH, X_STRIDE, G_STRIDE, BEHIND = range(11)
"""For each axis: as in ``conv_fields``; cells staged along it, or, before the running one, taps; bytes between them;
elements between neighbours in the arrays; positions of all axes behind it."""
AXIS_WORDS = 11

# --- pieces put together ----------------------------------------------------------------------------------------------

PARTIAL, RESULT, COUNT, LENGTH, STRETCH = range(5)
"""Two addresses, how many pieces there are, their length, and the length of a unit of work."""
