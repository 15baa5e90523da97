"""The block of integers that picking and placing by labels is given, field by field.

Of ``X``, ``LABELS`` and ``Y``, the one that is picked from or placed in has an axis of classes. Strides count elements.
"""

(
    X,
    LABELS,
    Y,
    KIND,  # of the labels: a place in KINDS
    WIDTH,  # bytes of a cell
    CLASSES,
    CLASS_STEP,  # from one class to the next
    COUNT,  # labels along the last axis,
    BLOCK,  # of a unit,
    BLOCKS,
    X_STEP,  # and from one to the next
    LABEL_STEP,
    Y_STEP,
    AXES,  # number of other axes
) = range(14)

HEADER = 14
AXIS = 4
"""Another axis: size, and strides in X, LABELS and Y."""

KINDS = ("i64", "i32", "i8", "u8")
