"""The block of integers that sums and softmaxes are given, field by field: their only interface to Python.

An array is seen as ``(*kept, columns, *reduced)``: the kept axes but one; that one, cut into blocks, which are added up
side by side where columns are nearer to each other in memory than terms are; and the reduced axes, whose cells are the
*terms*, in row-major order. Strides and offsets count elements.

**The tree of a sum** depends on the sizes of the reduced axes, and on which of them follow each other in the shape;
neither on strides nor on other axes. The cells of the last reduced axis are a *run*; while it is shorter than ``SHORT``
and the axis before is reduced, too, that axis is part of it. Terms are cut into pieces of at most ``PIECE``: as many
whole runs as fit if these are short, and otherwise parts of one. The terms of a piece are added up in lanes, as
``total`` does. The sums of the pieces are a run of terms again, until one is left.
"""

PIECE, SHORT = 1024, 128

(
    X,
    Y,
    TERMS,
    RUN,  # terms after which pieces begin anew: a run, or as many short ones as fill a piece
    SPLIT,  # pieces of a run
    LENGTH,  # terms of a piece
    PIECES,
    PARTED,  # whether the sums of pieces are the results: each is a unit, and stays a number as it is computed with
    COLUMNS,
    BLOCK,  # columns of a unit
    BLOCKS,
    SIDE_BY_SIDE,  # whether columns are added up together, rather than one after another
    COLUMN_X,
    COLUMN_Y,
    PART_Y,  # from the sum of one piece to the next, where they are results
    WIDE,  # whether X holds numbers as they are computed with, not as they are stored
    DIVISOR,  # float64 bits
    LOG,  # whether the logarithm of the softmax is wanted
    SUMS_AT,  # bytes into the workspace: the sums of columns; where they are added up together, of their pieces,
    LANES_AT,  # and their lanes; otherwise, the sums of the pieces of one,
    CELLS_AT,  # and a piece's terms, if they are not added up where they lie;
    POWERS_AT,  # for the softmax, exponentials of as many,
    LARGEST_AT,  # and the largest cells of columns
    KEPT,  # number of kept axes
    REDUCED,  # the word where the reduced axes are described: their number, then each
) = range(25)

HEADER = 25
KEPT_AXIS = 3
"""A kept axis: size, and strides in X and Y. They begin behind the header, and the reduced ones behind them."""

REDUCED_AXIS = 2
"""A reduced axis: size, and stride in X. The softmax has one, and its stride in Y behind it."""

PLACES = 64
FRAME = 8 * (PLACES + 8)
"""The bytes that a workspace begins with: a place on every axis that a NumPy array can have, and a reduced axis."""

LANES_BYTES = 256
"""Of the lanes of one column: four vectors of the widest processor."""
