"""Rows of the reductions and the softmax."""

import gradspec as gs
from gradspec.graph.builder import apply
from gradspec.ops.reduce import MEAN_TRANSPOSE, MeanTranspose
from graph.op_cases import GraphCase


def squared(y):
    return y * y


ROWS = [
    *(
        GraphCase(
            f"{name} {id}", lambda x, reduce=reduce, axis=axis, kept=kept: squared(reduce(x, axis, kept)), (shape,)
        )
        for name, reduce in (("sum", gs.sum), ("mean", gs.mean))
        for id, shape, axis, kept in (
            ("all", (2, 3), None, False),
            ("last", (2, 3), -1, False),
            ("kept", (2, 3, 2), (0, -1), True),
            ("one cell", (1,), 0, True),
            ("no axes", (2, 2), (), False),
            ("a scalar", (), None, False),
            ("empty batch", (0, 2), 1, False),
        )
    ),
    GraphCase("sum of nothing", lambda x: gs.sum(x, 0), ((0, 2),)),
    *(
        GraphCase(f"cumsum {id}", lambda x, axis=axis, how=how: squared(gs.cumsum(x, axis, **how)), (shape,), "tied")
        for id, shape, axis, how in (
            ("last", (2, 3), -1, {}),
            ("first", (3, 1, 2), 0, {"reverse": True}),
            ("exclusive", (2, 4, 2), 1, {"exclusive": True}),
            ("exclusive from the end", (2, 3), 1, {"exclusive": True, "reverse": True}),
            ("of one", (2, 1), 1, {"exclusive": True}),
            ("of nothing", (2, 0), 1, {"exclusive": True, "reverse": True}),
        )
    ),
    GraphCase("mean_transpose", lambda x: squared(apply(MEAN_TRANSPOSE, MeanTranspose((0, 2), (2, 3, 1)), x)), ((3,),)),
    *(
        GraphCase(f"{name} {id}", lambda x, f=f, axis=axis: f(x, axis), (shape,), data, irrational=True)
        for name, f in (("softmax", gs.softmax), ("log_softmax", gs.log_softmax))
        for id, shape, axis, data in (
            ("last", (2, 3), -1, "distinct"),
            ("first", (3, 1, 2), 0, "distinct"),
            ("ties", (4,), 0, "tied"),
            ("one class", (2, 1), 1, "distinct"),
            ("no classes", (2, 0), 1, "distinct"),
        )
    ),
]
