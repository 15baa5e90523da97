"""Rows of computed indices: rows that are read, added up and replaced, and what NumPy and PyTorch make of them."""

import gradspec as gs
from gradspec.graph.builder import apply
from gradspec.ops.gather import GATHER_ROWS, SCATTER_ADD_ROWS, SCATTER_ROWS, RowPlaces
from gradspec.ops.layout import AlongAxis
from graph.op_cases import GraphCase, Integers


def squared(y):
    return y * y


SHAPES = (  # of the rows, their axis, and that of the indices
    ((3, 2), 0, (4,)),
    ((3,), 0, ()),
    ((2, 3), 1, (2, 4)),
    ((2, 3, 2), 1, (2, 2, 2)),
    ((2, 3), 1, (2,)),
    ((2, 3), 0, (0,)),
)

ROWS = [
    case
    for shape, axis, indices in SHAPES
    for rows in [(*indices, *shape[axis + 1 :])]
    for places in [Integers(indices, 0, shape[axis] - 1)]
    for name in [f"{shape} axis {axis} at {indices}"]
    for case in (
        GraphCase(
            f"gather_rows {name}",
            lambda x, i, a=axis: squared(apply(GATHER_ROWS, AlongAxis(a), x, i)),
            (shape, places),
            "tied",
        ),
        GraphCase(
            f"scatter_add_rows {name}",
            lambda x, i, a=axis, n=shape[axis]: squared(apply(SCATTER_ADD_ROWS, RowPlaces(a, n), x, i)),
            (rows, places),
            "tied",
        ),
        GraphCase(
            f"scatter_rows {name}",
            lambda x, i, y, a=axis: squared(apply(SCATTER_ROWS, AlongAxis(a), x, i, y)),
            (shape, places, rows),
            "tied",
        ),
    )
] + [
    GraphCase("take", lambda x, i: squared(gs.take(x, i, 1)), ((2, 3, 2), Integers((2, 2), 0, 2)), "tied"),
    GraphCase("x[:, i]", lambda x, i: squared(x[:1, i, None]), ((2, 3, 2), Integers((2, 2), -3, 2)), "tied"),
    GraphCase("gather", lambda x, i: squared(gs.gather(x, 0, i)), ((3, 2), Integers((4, 1), 0, 2)), "tied"),
    GraphCase(
        "scatter_add",
        lambda x, i, y: squared(gs.scatter_add(x, 0, i, y)),
        ((3, 3), Integers((4, 2), 0, 2), (4, 3)),
        "tied",
    ),
    GraphCase(
        "scatter",
        lambda x, i, y: squared(gs.scatter(x, -2, i, y)),
        ((3, 3), Integers((4, 2), 0, 2), (5, 2)),
        "tied",
    ),
]
