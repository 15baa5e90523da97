"""What the block of arguments of gathering at places and scattering to them holds, word by word.

Strides are in numbers.
"""

X, PLACES, Y, KIND, CELLS, BAND, BANDS, LEADS, MOVED, PLANE, HEADER = range(11)
"""Addresses; the kind of places, one of KINDS; the cells of the plane that places point into; how many cells a unit
makes, and how many such bands there are; the number of leading axes, which follow; and the words of two lists of axes:
those of places and of what is moved with them, and those of the plane."""
LEAD = 4
"""A leading axis: its size, and its strides in X, PLACES and Y."""
AXIS = 3
"""A list is the number of axes, the number of their cells, and for each axis its size and two strides: those of what is
moved and of places, or those in the plane's array and, for C order, in the plane."""

KINDS = ("i64", "i32", "i8", "u8")

FRAME_BYTES = 64
"""The start of the workspace, behind which a band of cells is added up."""
