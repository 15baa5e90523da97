"""Rows of the losses, and of the pair behind the cross entropy."""

import gradspec as gs
from gradspec.graph.builder import apply
from gradspec.ops.layout import AlongAxis
from gradspec.ops.loss import PUT_LABEL, TAKE_LABEL, PutLabel
from graph.op_cases import GraphCase, Integers

REDUCTIONS = ("mean", "sum", "none")


def squared(y):
    return y * y


ROWS = [
    *(
        GraphCase(f"mse_loss {reduction}", lambda x, y, r=reduction: gs.mse_loss(x, y, r), ((2, 3), (2, 3)), "tied")
        for reduction in REDUCTIONS
    ),
    *(
        GraphCase(
            f"cross_entropy {reduction} of {logits}",
            lambda x, labels, r=reduction: gs.cross_entropy(x, labels, r),
            (logits, Integers(labels, 0, classes - 1)),
            irrational=True,
        )
        for reduction in REDUCTIONS
        for logits, labels, classes in (((3, 4), (3,), 4), ((3,), (), 3), ((2, 3, 2, 1), (2, 2, 1), 3))
    ),
    GraphCase(
        "take_label",
        lambda x, i: squared(apply(TAKE_LABEL, AlongAxis(1), x, i)),
        ((2, 3, 2), Integers((2, 2), 0, 2)),
        "tied",
    ),
    GraphCase(
        "put_label",
        lambda x, i: squared(apply(PUT_LABEL, PutLabel(1, 3), x, i)),
        ((2, 2), Integers((2, 2), 0, 2)),
        "tied",
    ),
    GraphCase("cross_entropy constant labels", lambda x: gs.cross_entropy(x, [1, 1, 0]), ((3, 2),), irrational=True),
]
