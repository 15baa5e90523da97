"""Rows of the pointwise operators."""

import gradspec as gs
from graph.op_cases import GraphCase

ROWS = [
    GraphCase("neg", lambda x: -x, ((2, 3),), "tied"),
    GraphCase("add broadcast", lambda x, y: x + y, ((2, 3), (3,)), "tied"),
    GraphCase("sub broadcast", lambda x, y: x - y, ((3,), (2, 1)), "tied"),
    GraphCase("mul broadcast", lambda x, y: x * y, ((2, 1), (3,)), "tied"),
    GraphCase("div broadcast", lambda x, y: x / y, ((2, 3), (3,))),
    GraphCase("one operand twice", lambda x: x * x + x, ((2, 2),), "tied"),
    GraphCase("div method", lambda x, y: gs.div(x, y), ((2,), (2,))),
]
