"""Paths that random trials seldom take: geometries, each compared as a trial of the fuzzer is, and calls on numbers or
layouts that trials do not have, compared with NumPy."""

from dataclasses import replace

import numpy as np
import pytest

import gradspec as gs
from gradspec.graph.types import type_of
from gradspec.testing.fuzz import SPEC_WORK, Trial, attempt_trial


def pool(shape, kernel, stride=1, padding=0, mode="value", dtype="f32", op="max_pool", **attributes):
    """A pooling; an average has a divisor of 1, so that it is a sum."""
    rank = len(kernel)
    stride, padding, dilation = (
        (n,) * rank if isinstance(n, int) else n for n in (stride, padding, attributes.pop("dilation", 1))
    )
    sides = tuple((n, n) if isinstance(n, int) else n for n in padding)
    layout = attributes.pop("layout", "contiguous")
    given = {"kernel_size": kernel, "stride": stride, "padding": sides, "dilation": dilation, **attributes}
    given |= {"divisor_override": 1} if op == "avg_pool" else {}
    return Trial(1, op, rank, (shape,), given, dtype, layout, mode, 2, 1, SPEC_WORK)


def conv(shape, weight, stride, padding, mode="value", op="conv", **attributes):
    given = {"stride": stride, "padding": tuple((n, n) for n in padding), "dilation": (1,) * len(stride), "groups": 1}
    given |= {"output_padding": (0,) * len(stride)} if op == "conv_transpose" else {}
    return Trial(1, op, len(stride), (shape, weight), given | attributes, "f32", "contiguous", mode, 2, 1, SPEC_WORK)


def bins(shape, sizes, mode, dtype="f32", **attributes):
    layout = attributes.pop("layout", "contiguous")
    given = {"output_size": sizes, **attributes}
    return Trial(1, "adaptive_max_pool", len(sizes), (shape,), given, dtype, layout, mode, 2, 1, SPEC_WORK)


TRIALS = {
    "slabs": pool((2, 6, 7, 9), (2, 2, 2), 2),
    "slabs of sums": pool((2, 6, 7, 9), (2, 2, 2), 2, op="avg_pool"),
    "slabs of threes": pool((2, 6, 6, 6, 6), (3, 3, 3, 3), 3),
    "slabs with gaps": pool((2, 8, 7, 9), (2, 3, 3), (3, 2, 2), (0, 1, 1)),
    "pairs of slabs": pool((2, 4, 4, 4, 8), (2, 2, 2, 2), 2),
    "pairs of slabs of sums": pool((2, 5, 4, 4, 8), (2, 2, 2, 2), 2, op="avg_pool"),
    "rows of 3x3 by 2": pool((2, 9, 75), (3, 3), 2, 1, "vjp"),
    "rows of 3x3 by 2, odd": pool((2, 8, 76), (3, 3), 2, 1, "vjp"),
    "rows of 3x3": pool((2, 9, 40), (3, 3), 1, 1, "vjp"),
    "rows of 3x3 without padding": pool((2, 9, 42), (3, 3), 1, 0, "vjp"),
    "rows of 3x3 by 2 in bf16": pool((2, 12, 76), (3, 3), 2, 1, "vjp", "bf16"),
    "rows of 3x3 in f16": pool((2, 12, 40), (3, 3), 1, 1, "vjp", "f16"),
    "rows of 3x3 padded behind": pool((2, 9, 40), (3, 3), 1, ((0, 2), (0, 2)), "vjp"),
    "rows of 3x3 by 2 padded behind": pool((2, 10, 40), (3, 3), 2, ((0, 1), (0, 1)), "vjp"),
    "3x3 of 4x4": pool((40, 4, 4), (3, 3), 1, 0, "vjp"),
    "2x2 of longer rows": pool((40, 6, 9), (2, 2), 2, 0, "vjp"),
    "2x2 of more rows": pool((40, 7, 8), (2, 2), 2, 0, "vjp"),
    "one row at the border": pool((2, 5, 33), (3, 3), 2, ((2, 1), 1)),
    "one row at the border, sums": pool((2, 5, 33), (3, 2), (2, 2), ((2, 1), 1), op="avg_pool"),
    "fours": pool((2, 39), (4,), 4),
    "fours with dilation": pool((2, 39), (4,), 4, dilation=2),
    "sums of fours with dilation": pool((2, 39), (4,), 4, mode="vjp", op="avg_pool", dilation=2),
    "padding beyond the windows": pool((3, 21), (5,), 2, (4,), "vjp", ties="all"),
    "ties by 2, padded": pool((2, 5, 22), (5, 7), 2, (1, 3), "vjp", ties="all"),
    "ties by 2, padded, tangents": pool((2, 5, 22), (5, 7), 2, (1, 3), "jvp", ties="all"),
    "ties of a wide window": pool((2, 70), (33,), 3, (5,), "vjp", ties="all"),
    "ties with the channels last": pool((1, 19, 6, 7), (3, 3), 2, 1, "vjp", ties="all", layout="channels_last"),
    "ties of bins": bins((2, 7, 23), (3, 5), "vjp", ties="all"),
    "ties of bins, tangents": bins((2, 7, 23), (3, 5), "jvp", ties="all"),
    "bins that overlap": bins((2, 5, 7), (4, 6), "vjp", "bf16"),
    "one bin of a turned plane": bins((3, 2, 5), (1, 1), "value", layout="turned"),
    "cells that no window covers, turned": pool((3, 4, 6), (1,), 2, mode="vjp", layout="turned"),
    "many channels last": pool((1, 70, 6, 7), (3, 3), 1, 1, "vjp", layout="channels_last"),
    "sums of sums": pool((2, 9, 30), (3, 4), (2, 3), (1, 2), "vjp", op="avg_pool", ceil_mode=True),
    "rows joined without a stride": conv((1, 3, 9, 16), (5, 3, 3, 3), (2, 1), (1, 1)),
    "rows joined without a stride, transposed": conv((1, 5, 5, 16), (5, 3, 3, 3), (2, 1), (1, 1), op="conv_transpose"),
    "remainders": conv((2, 5, 5, 7), (5, 4, 4, 5), (3, 2), (1, 2), op="conv_transpose"),
    "remainders, cotangents": conv((2, 5, 15, 15), (6, 5, 4, 5), (3, 2), (1, 2), "vjp"),
}


@pytest.mark.rows(len(TRIALS))
@pytest.mark.parametrize("name", TRIALS)
def test_a_path_is_right(name):
    outcome = attempt_trial(TRIALS[name], libraries=("spec",))
    assert outcome.failure == ""
    assert outcome.agreed == ("spec",)


# --- calls ------------------------------------------------------------------------------------------------------------

HALVES = np.float16
INF, NAN = np.inf, np.nan


def whole(*shape, dtype=np.float32, special=()):
    """Small integers, with special numbers among them."""
    x = np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(dtype)
    x.flat[[(7 + 13 * i) % x.size for i in range(len(special))]] = special
    return x


def channels_last(x, step=1):
    """The same with the channels last in memory, and gaps between them."""
    return np.moveaxis(np.repeat(np.moveaxis(x, 1, -1), step, -1)[..., ::step], -1, 1)


def peak(*shape):
    """Cells that are far below one in the middle."""
    x = np.full(shape, -20, np.float32)
    x[(..., *(n // 2 for n in shape[-2:]))] = 0
    return x


def pooled(name, *sizes, **options):
    return lambda x: getattr(gs, name)(x, *sizes, **options)


def unpool(x, places):
    return gs.max_unpool2d(x, places, (8, 9))


def add_below_another_register(x, b):
    """The sum goes to the register that the square leaves, in front of the cube's, which is read after it."""
    return (x * x * x) * (x + b)


PLACES = np.int64(np.arange(12).reshape(1, 2, 2, 3) * 5)
MAX, MEAN, SMOOTH = "max_pool2d", "avg_pool2d", "smooth_max_pool2d"
NANS = {"special": (NAN, NAN)}
CALLS = {
    "weights that are not finite": (
        lambda x, w, b: gs.conv_transpose2d(x, w, b, stride=2, padding=1),
        [whole(1, 5, 5, 6), whole(5, 13, 3, 3, special=(INF, NAN)), whole(13)],
    ),
    "weights of rows that are not finite": (
        lambda x, w: gs.conv_transpose1d(x, w, padding=2),
        [whole(2, 2, 30), whole(2, 5, 3, special=(INF, NAN))],
    ),
    "cotangents of weights that are not finite": (
        lambda x, w: gs.conv2d(x, w, padding=1),
        [whole(2, 2, 6, 7), whole(13, 2, 3, 3, special=(INF, NAN))],
        "vjp",
    ),
    "halves pooled": (
        lambda x, w: gs.max_pool2d(gs.conv2d(x, w), 2),
        [whole(1, 2, 9, 16, dtype=HALVES), whole(4, 2, 3, 3, dtype=HALVES)],
    ),
    "strips of many channels": (gs.conv2d, [whole(1, 128, 6, 50), whole(130, 128, 1, 3)]),
    "nan in rows of 3x3": (pooled(MAX, 3, 1, 1), [whole(1, 2, 9, 40, **NANS)], "vjp"),
    "nan in rows of 3x3 by 2": (pooled(MAX, 3, 2, 1), [whole(1, 2, 9, 40, **NANS)], "vjp"),
    "nan in rows of halves": (pooled(MAX, 3, 1, 1), [whole(1, 2, 9, 40, dtype=HALVES, **NANS)], "vjp"),
    "nan in runs": (pooled(MAX, 3, 1), [channels_last(whole(1, 70, 9, 12, **NANS))], "pulled"),
    "nan in runs by 2": (pooled(MAX, 2, 2), [channels_last(whole(1, 70, 9, 12, **NANS))], "pulled"),
    "runs, tangents": (pooled(MAX, 3, 1), [channels_last(whole(1, 70, 9, 12))], "jvp"),
    "runs, cotangents": (pooled(MAX, 3, 1, 1), [channels_last(whole(1, 70, 6, 7))], "vjp of channels last"),
    "runs by 2, cotangents": (pooled(MAX, 3, 2, 1), [channels_last(whole(1, 70, 6, 7))], "vjp of channels last"),
    "padding of two columns": (pooled(MAX, 3, 1, (1, 2)), [whole(1, 2, 9, 40)]),
    "padding of two columns, halves": (pooled(MEAN, 3, 2, (1, 2)), [whole(1, 2, 9, 40, dtype=HALVES)]),
    "means of real cells": (pooled(MEAN, 3, 2, 1, count_include_pad=False), [whole(1, 2, 9, 40)], "vjp"),
    "means of real cells, halves": (
        pooled(MEAN, 3, 1, 1, count_include_pad=False),
        [whole(1, 2, 9, 40, dtype=HALVES)],
        "vjp",
    ),
    "channels with gaps": (pooled(MAX, 3, 2, 1), [channels_last(whole(2, 20, 7, 9), 2)]),
    "channels with gaps, cotangents": (pooled(MEAN, 3, 2, 1), [channels_last(whole(2, 20, 7, 9), 2)], "vjp"),
    "rows with gaps, tangents": (pooled(MAX, 2, 2), [whole(2, 3, 14, 12)[..., :9]], "jvp"),
    "rows with gaps, halves": (pooled(MEAN, 3, 1, 1), [whole(2, 3, 14, 44, dtype=HALVES)[..., :41]]),
    "a narrow image": (lambda x, w: gs.conv2d(x, w, padding=1), [whole(2, 1, 20, 3), whole(1, 1, 3, 3)]),
    "a divisor without an inverse": (pooled(MEAN, 2, divisor_override=3e-25), [whole(2, 3, 8, 9)]),
    "a divisor without an inverse, sums": (pooled(MEAN, (2, 5), 1, divisor_override=3e-25), [whole(2, 3, 8, 9)]),
    "ties of many windows": (pooled("max_pool1d", 29, 1, 14, ties="all"), [whole(2, 3, 61)], "pulled"),
    "ties of many windows, split": (pooled(MAX, (9, 29), (2, 3), (4, 1), ties="split"), [whole(3, 30, 61)], "pulled"),
    "ties of many windows with gaps": (pooled(MAX, (9, 3), (1, 5), ties="split"), [whole(3, 30, 61)], "pulled"),
    "ties of many windows, channels last": (
        pooled(MAX, 9, 1, 4, ties="split"),
        [channels_last(whole(2, 20, 12, 13))],
        "pulled",
    ),
    "ties of many bins": (pooled("adaptive_max_pool2d", (80, 70), ties="split"), [whole(3, 5, 6)], "pulled"),
    "ties of many bins of rows": (pooled("adaptive_max_pool1d", 90, ties="all"), [whole(3, 3, 4)], "pulled"),
    "winners in four bytes": (
        lambda x: gs.relu(gs.max_pool2d(gs.relu(x), (300, 300), 1)),
        [whole(1, 300, 301)],
        "vjp",
    ),
    "places in a plane": (unpool, [whole(1, 2, 2, 3), PLACES], "vjp"),
    "smooth maxima of planes": (pooled(SMOOTH, (9, 200), beta=1.0), [whole(2, 9, 200)], "jvp"),
    "shares that overflow": (pooled(SMOOTH, 7, 1, 3, beta=1.0), [peak(2, 12, 13)], "huge vjp"),
    "shares that overflow by 2": (pooled(SMOOTH, 9, 2, 4, beta=1.0), [peak(2, 22, 23)], "huge vjp"),
    "tangents that overflow": (pooled("smooth_max_pool1d", 3, 2, beta=1.0), [whole(2, 2, 2000)], "huge jvp"),
    "tangents that overflow, channels last": (
        pooled(SMOOTH, 3, 2, beta=1.0),
        [channels_last(whole(1, 20, 9, 200))],
        "huge jvp",
    ),
    "probabilities of a long row": (lambda x: (gs.softmax(x, 1), gs.log_softmax(x, 1)), [whole(3, 3000)]),
    "a sum of no terms": (lambda x: gs.sum(x, 1), [whole(3, 0, 5)]),
    "shares of a mean": (lambda x: gs.mean(x, 0), [whole(4, 33)], "vjp"),
    "shares of a mean, turned": (lambda x: gs.mean(x, 0), [whole(8, 33, 4).transpose(2, 1, 0)], "vjp"),
    "labels of a plane": (
        lambda x, k: gs.cross_entropy(x, k),
        [whole(2, 5, 3), np.int64([[0, 1, 2], [1, 2, 0]])],
        "vjp",
    ),
    "an operand that is repeated": (
        add_below_another_register,
        [whole(9, 700), np.broadcast_to(whole(9, 1), (9, 700))],
    ),
}
"""A function, its arrays, and the mode: values alone, or with derivatives, on huge numbers or small integers; "pulled"
is the cotangent without the values."""


@pytest.mark.rows(len(CALLS))
@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_right(name):
    function, given, *mode = CALLS[name]
    graph, arrays, rng = gs.trace(function, *map(type_of, given)), list(given), np.random.default_rng(1)
    if mode:
        graph = graph.jvp() if "jvp" in mode[0] else graph.vjp()
        for v in graph.inputs[len(given) :]:
            a = rng.uniform(2e38, 3e38, v.shape) if "huge" in mode[0] else rng.integers(-4, 5, v.shape)
            arrays.append((channels_last if "last" in mode[0] else np.asarray)(a.astype(v.dtype.numpy)))
        if mode[0] in ("pulled", "huge vjp"):
            graph = replace(graph, outputs=graph.outputs[1:]).simplify()
    with np.errstate(all="ignore"):
        found, wanted = (gs.compile(graph, backend=backend)(*arrays) for backend in ("cpu", "numpy"))
    one, other = (r if isinstance(r, tuple) else (r,) for r in (found, wanted))
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=1e-5, atol=1e-6)
