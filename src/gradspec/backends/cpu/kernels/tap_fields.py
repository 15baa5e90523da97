"""What the blocks of arguments of kernels that read windows tap by tap hold, word by word."""

X, Y, LEADS, AXES, RANK, TAPS, ROWS, TILE, TILES, SUMS_AT, NUMBERS, HEADER = range(12)
"""Addresses of what is read and written; how many leading axes there are, and the word behind them, where the spatial
axes begin; how many of these; the taps of a window; the rows of what is written, how many cells of a row are made at a
time and how many such pieces it has; where in the workspace they are made; and the word where numbers follow that only
one operator has."""

LEAD = 3
"""A leading axis: its size, and its strides in what is read and written."""
SIZE, KERNEL, OUTPUTS, STRIDE, CELL, TAP, OUTPUT, RANGES, READERS, AXIS = range(10)
"""A spatial axis: sizes; the strides of cells, of taps and of outputs in the arrays that have them; and the places of
two tables. RANGES has a record for each tap; READERS, if it is wanted, says where the readers of each cell begin and
where the last ones end, counted in words behind that, and there are the readers: pairs of a tap and an output."""
START, FIRST, END, RANGE = range(4)
"""The cell of output 0, real or not; the first output whose cell is real, and the end of these."""

TARGETS, STEP, JUMP, STARTS, CELLS, WEIGHTS, WEIGHTED_AXIS = range(7)
"""An axis of weighted sums, instead: the size of what is written; its strides in what is read and in what is written;
and where three tables lie: where the cells begin that each target reads, and where the last ones end; the cells; and
their weights."""
SPANS, ROWS_FIRST = range(2)
"""The numbers of weighted sums: where a table lies, the cells that each piece of a row reads, the first and the end;
and whether rows are added up before their cells are."""
