"""Rows of comparisons and of the choice by them."""

import numpy as np

import gradspec as gs
from graph.op_cases import GraphCase, Integers

MASK = np.array([True, False, True])

ROWS = [
    GraphCase("where", lambda x, y: gs.where(gs.greater(x, y), x * x, y), ((2, 3), (3,)), "tied"),
    GraphCase("where one is chosen", lambda x: gs.where(MASK, x, 0.5), ((2, 3),), "tied"),
    GraphCase("where the other is chosen", lambda x: gs.where(MASK, 2.0, x * x), ((2, 3),), "tied"),
    GraphCase("where equal", lambda x, y: gs.where(gs.equal(x, y), x * y, x), ((3, 2), (1, 2)), "tied"),
    GraphCase(
        "where both hold",
        lambda x, y: gs.where(gs.minimum(gs.less(x, 1.0), gs.equal(gs.greater(y, x), False)), y * x, -x),
        ((5,), (5,)),
        "tied",
    ),
    GraphCase(
        "where integers say so",
        lambda x, i: (gs.where(gs.greater(i, 0), x, -x), gs.where(gs.equal(i, 2), i, 7), gs.less(i, 1)),
        ((2, 3), Integers((3,), -2, 2)),
        "tied",
    ),
]
