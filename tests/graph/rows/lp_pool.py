"""Rows of power pooling: p = 1 and p = ∞ stay in the rationals, every other p is tried on balls."""

from math import inf

import gradspec as gs
from graph.op_cases import GraphCase

GEOMETRIES = {
    "1d": ((2, 5), ((2,), 1)),
    "2d": ((1, 4, 5), ((2, 3), (1, 2), True)),
    "3d": ((2, 3, 3), ((2, 1, 2),)),
    "0d": ((3,), ((),)),
}

ROWS = [
    GraphCase(
        f"lp_pool p={p} {name}",
        lambda x, p=p, window=window: gs.lp_pool(x, p, *window),
        (shape,),
        irrational=p not in (1, inf),
    )
    for p in (1, 2, inf, 3, 1.5, 0.5)
    for name, (shape, window) in GEOMETRIES.items()
]
