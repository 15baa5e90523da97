"""What the block of arguments of a copy holds, word by word."""

GROUPS, GROUPS_AT, COPY_HEADER = range(3)

SOURCE, IS_VALUE, TARGET, SOURCE_AT, TARGET_AT, LEAD_STEP, LEAD_JUMP = range(7)
"""A box: the word of the source's address or, if it is a value, that of the value; the word of the target's address;
where it begins in both; and how far the next lead is."""
KIND, ROWS, ROW_STEP, ROW_JUMP, CELLS, CELL_STEP, CELL_JUMP, RANK, BOX = range(7, 16)
"""How its last two axes are copied; their sizes and strides in source and target; and how many other axes follow."""
BOX_AXIS = 3
"""Size, stride in the source, stride in the target."""

IN_ROWS, REPEATED, SQUARES = range(3)
"""Row by row; rows of one number each; transposed squares."""
SQUARE_BYTES = 16
