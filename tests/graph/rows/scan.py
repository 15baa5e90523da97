"""Rows of scans: recurrences with several carries, both directions, few steps or none, and scans within scans."""

import gradspec as gs
from graph.op_cases import GraphCase, Integers

W = ((3, 2), (2, 2), (2,))


def recurrence(x, w, h, **more):
    def step(h, x):
        h = gs.relu(gs.matmul(w, h) + x)
        return h, (gs.sum(h * x), h)

    last, (sums, states) = gs.scan(step, h, x, **more)
    return last, sums, states


def two_carries(x, y, h):
    """One that is only handed on a step later, and one that both columns change."""

    def step(carry, cells):
        before, h = carry
        a, b = cells
        return (a, h * b + before), {"product": before * h}

    (before, h), given = gs.scan(step, (h, h), (x, y))
    return before, h, given["product"]


def powers(x, w):
    def outer(h, x):
        inner, _ = gs.scan(lambda p, _: (p * w + x, None), h, None, length=2)
        return inner, inner * x

    return gs.scan(outer, x[0], x, reverse=True)


def counted(x, i):
    """A carry of integers beside one of floats."""

    def step(carry, x):
        n, total = carry
        return (n + 1, total + x * gs.convert(n, x.dtype)), total

    return gs.scan(step, (i, x[0]), x)[0][1]


ROWS = [
    GraphCase("scan", recurrence, W),
    GraphCase("scan in reverse", lambda *args: recurrence(*args, reverse=True), W),
    GraphCase("scan of one step", recurrence, ((1, 2), (2, 2), (2,))),
    GraphCase("scan of no step", recurrence, ((0, 2), (2, 2), (2,))),
    GraphCase("scan of two carries", two_carries, ((3, 2), (3, 2), (2,)), "tied"),
    GraphCase("scan within a scan", powers, ((3, 2), (2,)), "tied"),
    GraphCase("scan of no columns", lambda h, w: gs.scan(lambda h, _: (h * w, h), h, None, length=3), ((2,), (2,))),
    GraphCase("scan of no results", lambda x: gs.scan(lambda h, x: (h * x, None), x[0], x)[0], ((3, 2),), "tied"),
    GraphCase("scan of a counter", counted, ((3, 2), Integers((), 0, 3)), "tied"),
    GraphCase(
        "scan of exponentials",
        lambda x, h: gs.scan(lambda h, x: (gs.tanh(h + x), gs.exp(h)), h, x),
        ((2, 2), (2,)),
        "tied",
        True,
    ),
]
