"""Rows of the layout operators."""

import gradspec as gs
from gradspec.graph.builder import apply
from gradspec.ops.layout import PAD, Padding
from graph.op_cases import GraphCase


def row(id, function, *inputs):
    """Multiplied with itself, so that second derivatives are not zero; tied values, because nothing is compared."""
    return [
        GraphCase(id, function, inputs, "tied"),
        GraphCase(f"{id}, squared", lambda *xs: (lambda y: y * y)(function(*xs)), inputs, "tied"),
    ]


ROWS = [
    *row("broadcast_to", lambda x: gs.broadcast_to(x, (2, 3, 2)), (3, 1)),
    *row("broadcast_to from a scalar", lambda x: gs.broadcast_to(x, (2, 2)), ()),
    *row("broadcast_to no cells", lambda x: gs.broadcast_to(x, (2, 0)), (1,)),
    *row("reshape", lambda x: gs.reshape(x, (3, -1)), (2, 3, 1)),
    *row("flatten", lambda x: gs.flatten(x, 1, -2), (2, 1, 2, 2)),
    *row("flatten a scalar", lambda x: gs.flatten(x), ()),
    *row("transpose", lambda x: gs.transpose(x, (2, 0, 1)), (2, 3, 2)),
    *row("transpose reversed", lambda x: gs.transpose(x), (1, 2, 3)),
    *row("concat", lambda x, y, z: gs.concat([x, y, z], -1), (2, 1), (2, 3), (2, 0)),
    *row("concat one of them twice", lambda x, y: gs.concat((x, y, x)), (2, 2), (1, 2)),
    *row("slice", lambda x: gs.slice(x, (1, -3), (None, -1)), (3, 4)),
    *row("slice in steps", lambda x: gs.slice(x, (0, 1), (5, 7), (2, 3)), (5, 7)),
    *row("slice backwards", lambda x: gs.slice(x, (None, -2), (None, 0), (-1, -2)), (3, 6)),
    *row("slice nothing", lambda x: gs.slice(x, (2, 0), (1, 2)), (3, 2)),
    *row("slice beyond the ends", lambda x: gs.slice(x, (-9,), (9,), (2,)), (4,)),
    *row("index", lambda x: x[1, ..., None, ::-2], (2, 2, 3)),
    *row("iteration", lambda x: sum(x), (3, 2)),
    *row("pad", lambda x: gs.pad(x, ((1, 0), (0, 2)), 0.5), (2, 2)),
    *row("pad no cells", lambda x: gs.pad(x, ((0, 0), (1, 2))), (2, 0)),
    *row("pad between", lambda x: apply(PAD, Padding(((0, 1), (2, 0)), (1, 2), 0.25), x), (2, 3)),
    *row("pad between no cells", lambda x: apply(PAD, Padding(((1, 1),), (2,), 0.0), x), (0,)),
    *row("pad rank 3", lambda x: gs.pad(x, [(0, 1), (2, 0), (0, 0)]), (1, 2, 2)),
]
