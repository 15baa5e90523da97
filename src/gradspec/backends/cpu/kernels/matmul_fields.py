"""The words that describe matrix products to their kernels: what the host writes and the kernels read.

``c[i, j] = Σ_k a[i, k]·b[k, j] + bias[j]`` for every index of some leading axes. Steps are in bytes.

Sums run over **blocks** of ``K_BLOCK`` products, one after another; blocks are put together one after another to
**pieces** of ``PIECE`` products, and pieces to the result. Both lengths depend on the number of products alone, so
that a row of the result does not depend on how many others there are.
"""

A, B, BIAS, C = range(4)
"""Addresses; 0 for no bias, and for a result that only a program reads. Whoever adds up pieces finds them at ``A``."""
ROWS, COLUMNS, PRODUCTS = range(4, 7)
A_ROW, A_STEP, B_STEP, B_COLUMN, BIAS_STEP, C_PIECE = range(7, 13)
"""From one row or column, or one product, to the next; and from what one piece makes to what the next one does."""
ROW_PART, ROW_PARTS, COLUMN_PART, COLUMN_PARTS, ROW_GROUP = range(13, 18)
"""Rows and columns of a unit, and how many units they make; rows that are packed at a time."""
K_BLOCK, PIECE, PIECES, IS_SPLIT = range(18, 22)
"""Lengths and number; and whether every piece is a unit of its own, whose sums somebody else adds up."""
B_KIND, BLOCK, IS_DIRECT = range(22, 25)
"""What ``b`` is; columns that are packed side by side; and whether results are made where they stay."""
A_AT, B_AT, TABLES_AT, BIAS_AT, EDGE_AT, SUMS_AT, TOTALS_AT, ROW_AT, PROGRAM_AT = range(25, 34)
"""Bytes into the workspace, which begins with a frame: packed rows; packed columns; where the columns of each product
begin, in packed columns and in ``b``; the bias; a tile; sums of a piece and of all of them; numbers as they are stored;
a program's workspace."""
PROGRAM, PROGRAM_WORD, PROGRAM_BLOCK = range(34, 37)
"""A function that works on finished results, the word where what it does is described, and how many it takes."""
AXES = 37
HEADER = 38

AXIS_WORDS = 4
"""A leading axis: its size, and the steps of ``a``, ``b`` and the bias."""

PACKED, IN_PLACE, NOT_PACKED = range(3)
"""Packed columns; columns that lie side by side; or anything, from which a unit packs its own."""

K_MOST = 256
"""The longest block."""

LOW = 4
"""Panels of fewer rows are not worth their while beside others: tiles of few rows wait for their own sums."""

FRAME_BYTES = 128
EDGE_BYTES = 8 * 8 * 64
"""Room for the largest tile: eight rows of eight of the longest vectors."""
