"""Rows of ordered cells."""

import gradspec as gs
from graph.op_cases import GraphCase


def squares(values, places):
    return values * values, places


ROWS = [
    *(
        GraphCase(
            f"topk {k} of {shape} along {axis} {'largest' if largest else 'smallest'}",
            lambda x, k=k, a=axis, largest=largest: squares(*gs.topk(x, k, a, largest)),
            (shape,),
        )
        for shape, k, axis in (((2, 5), 3, -1), ((4, 1, 2), 2, 0), ((3,), 0, 0))
        for largest in (True, False)
    ),
    GraphCase("sort", lambda x: squares(*gs.sort(x, 0)), ((4, 2),)),
]
