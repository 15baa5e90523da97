"""Rows of the pooling family: sliding, adaptive and global windows, every tie rule, ranks 0 to 4, awkward geometry."""

import gradspec as gs
from graph.op_cases import GraphCase, Integers

PLACES = Integers((2, 3), -1, 7)


def pooled(name, shape, *args, data="distinct", note="", irrational=False, **options):
    def function(x):
        return getattr(gs, name)(x, *args, **options)

    words = [name, note, str(shape), *map(str, args), *(f"{k}={v}" for k, v in options.items())]
    return GraphCase(" ".join(filter(None, words)), function, (shape,), data, irrational)


def repeated(x):
    """``x`` next to itself, so that every number ties while the dual part still knows one cell from another."""
    return gs.broadcast_to(gs.reshape(x, (*x.shape, 1)), (*x.shape, 2))


MAX = [
    pooled("max_pool", (2, 5), (2,), 1),
    pooled("max_pool", (2, 5, 4), (3, 2), (2, 1), ((1, 2), (0, 1)), (1, 2), True),
    pooled("max_pool", (4, 5), (2, 3), padding="same", return_indices=True),
    pooled("max_pool", (3, 4), (1, 1), 2, 2, note="windows of padding alone"),
    pooled("max_pool", (2, 3, 2, 2), (2, 2, 1), 1, ties="all"),
    pooled("max_pool", (1, 2, 2, 3, 2), (2, 1, 2, 2), 1, ties="split"),
    pooled("max_pool", (3,), (), note="no spatial axes"),
    pooled("adaptive_max_pool", (2, 5, 4), (3, None)),
    pooled("adaptive_max_pool", (2, 3), (5,), return_indices=True, note="more bins than cells"),
    pooled("global_max_pool", (2, 3, 2)),
    pooled("global_max_pool", (2, 3, 2), 1, False, ties="split"),
    pooled("max_pool2d", (4, 4), 2, stride=1),
]

AVERAGE = [
    pooled("avg_pool", (2, 5), (2,), 1, data="tied"),
    pooled("avg_pool", (2, 5, 4), (3, 2), (2, 3), ((1, 2), (0, 1)), True, data="tied"),
    pooled("avg_pool", (2, 5, 4), (3, 2), (2, 3), ((1, 2), (0, 1)), True, False, data="tied"),
    pooled("avg_pool", (4, 5), (2, 3), padding="same", dilation=(2, 1), divisor_override=-3, data="tied"),
    pooled("avg_pool", (3, 4), (1, 1), 2, 2, False, False, data="tied", note="windows of padding alone"),
    pooled("avg_pool", (2, 2, 3, 2), (2, 1, 2), 1, 1, data="tied"),
    pooled("avg_pool", (3,), (), data="tied", note="no spatial axes"),
    pooled("adaptive_avg_pool", (2, 5, 4), (3, None), data="tied"),
    pooled("adaptive_avg_pool", (2, 3), (5,), data="tied", note="more bins than cells"),
    pooled("global_avg_pool", (2, 3, 2), data="tied"),
    pooled("global_avg_pool", (2, 3, 2), 1, False, data="tied"),
    pooled("avg_pool3d", (2, 3, 4), (2, 1, 2), data="tied"),
]

SMOOTH = [
    pooled("smooth_max_pool", (2, 4), (2,), 1, beta=1.5, irrational=True),
    pooled("smooth_max_pool", (4, 3), (3, 2), (2, 1), ((1, 2), (0, 1)), ceil_mode=True, beta=0.5, irrational=True),
    pooled("smooth_max_pool", (4,), (2,), 1, 3, beta=-0.75, padding_mode="ignore", irrational=True),
    pooled("smooth_max_pool2d", (1, 3, 3), 2, dilation=2, beta=2, irrational=True),
]

UNPOOL = [
    GraphCase("max_unpool", lambda x, i: gs.max_unpool(x, i, (4, 2)), ((1, 2, 3), Integers((1, 2, 3), -1, 7)), "tied"),
    GraphCase("max_unpool1d", lambda x, i: gs.max_unpool1d(x, i, 8), ((2, 3), PLACES), "tied"),
    GraphCase("max_gather", lambda x, i: gs.max_gather(x, i, 1), ((2, 8), PLACES), "tied"),
    GraphCase(
        "max_unpool at the winners",
        lambda x: gs.max_unpool2d(*gs.max_pool2d(x, 2, 1, return_indices=True), (3, 3)),
        ((2, 3, 3),),
    ),
]

TIED = [
    GraphCase(f"max_pool {ties} of equal cells", lambda x, t=ties: gs.max_pool(repeated(x), (2, 2), 1, ties=t), ((4,),))
    for ties in ("first", "split")
]

EMPTY = [
    GraphCase("max_pool of an empty batch", lambda x: gs.max_pool2d(x, 2), ((0, 2, 2),)),
    GraphCase("avg_pool of an empty batch", lambda x: gs.avg_pool2d(x, 2), ((0, 2, 2),)),
]

ROWS = [*MAX, *AVERAGE, *SMOOTH, *UNPOOL, *TIED, *EMPTY]
