"""What is wrong, in one sentence: planted mistakes, and what their authors read first."""

from dataclasses import replace

import numpy as np
import pytest

import gradspec as gs
from gradspec.conformance.campaign.drive import sort_worst_first
from gradspec.conformance.model.verdict import RULES, Finding
from gradspec.conformance.shrink.titles import SEVERITIES, severity, title
from gradspec.testing import check_kernel


def pooled(x, kernel_size, stride, padding=0, reduce=np.max):
    rank = len(kernel_size)
    padded = np.pad(x, [(0, 0)] * (x.ndim - rank) + list(padding or [(0, 0)] * rank))
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel_size, tuple(range(-rank, 0)))
    at = tuple(slice(None, None, s) for s in stride)
    return reduce(windows[(..., *at, *[slice(None)] * rank)], axis=tuple(range(-rank, 0)))


def mean(windows, axis):
    return windows.astype(np.float64).mean(axis).astype(windows.dtype)


def zeros_win(x, kernel_size, stride, padding):
    return pooled(x, kernel_size, stride, padding)


def floor_mode(x, kernel_size, stride, ceil_mode):
    if x.shape[-1] < kernel_size[0]:
        raise NotImplementedError
    return pooled(x, kernel_size, stride)


def nan_lost(x, kernel_size, stride):
    with np.errstate(all="ignore"):
        return pooled(x, kernel_size, stride, reduce=np.fmax.reduce)


def padding_counts(x, kernel_size, stride, padding, count_include_pad):
    return pooled(x, kernel_size, stride, padding, mean)


def short_floats(x, kernel_size, stride):
    """With 11 bits, as f16 has them, and the range of f32: what overflows there has a title of its own."""
    short = (np.ascontiguousarray(x).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return pooled(short, kernel_size, stride, reduce=mean)


def unbiased(x, weight, bias):
    return gs.conv(np.ascontiguousarray(x), np.ascontiguousarray(weight))


def undilated(x, weight, dilation):
    return gs.conv(np.ascontiguousarray(x), np.ascontiguousarray(weight))


def cleared(x, kernel_size, stride):
    y = np.array(pooled(x, kernel_size, stride))
    x[...] = 0
    return y


def raising(x, kernel_size):
    raise IndexError("tile 3 of 2")


def last_tie(x, g, kernel_size):
    k, dx = kernel_size[0], np.zeros_like(x)
    for o in range(g.shape[-1]):
        winner = o * k + k - 1 - np.flip(x[..., o * k : (o + 1) * k], -1).argmax(-1)
        np.put_along_axis(dx, winner[..., None], g[..., o : o + 1], -1)
    return dx


FEATURES = {undilated: ["dilated"], floor_mode: ["ceil_mode"]}
"""Of cases that show a mistake, where few of all do."""


@pytest.mark.rows(1)
@pytest.mark.parametrize(
    ("kernel", "op", "words"),
    [
        (zeros_win, "max_pool1d", "Padding wins over negative values"),
        (floor_mode, "max_pool1d", "The last window of ceil_mode is dropped"),
        (nan_lost, "max_pool2d", "A NaN in the window is ignored"),
        (padding_counts, "avg_pool1d", "The average is wrong with padding and without count_include_pad"),
        (short_floats, "avg_pool1d", "The average is not as precise as f32 allows"),
        (unbiased, "conv2d", "The convolution is wrong with a bias"),
        (undilated, "conv1d", "The convolution has the wrong shape with dilation"),
        (cleared, "max_pool1d", "It changes its input x"),
        (raising, "max_pool1d", "It raises IndexError"),
        (last_tie, "max_pool1d_vjp", "The last of equal cells wins"),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_the_first_line_says_what_is_wrong(kernel, op, words):
    with pytest.raises(AssertionError) as caught:
        check_kernel(kernel, op, cases=100, dtypes=["f32"], features=FEATURES.get(kernel, ()), isolate=False)
    first = str(caught.value).splitlines()[0]
    assert first.startswith(f"{kernel.__name__}: {words}")


def of_rule(rule, kind="defect", **more):
    fields = {"got": "1.0", "expected": "2.0", **more}
    return Finding("conv", "value", kind, (), "f32", {}, rule=rule, reproducer="", **fields)


def test_the_worst_is_first():
    found = [
        of_rule("vjp.hits", "convention", count=90),
        of_rule("vjp.hits", explanation="the last of equal cells wins (last_tie)", count=80),
        of_rule("value.sum", got="1.0", expected="[1.001, 1.002]", count=70),
        of_rule("value.sum", count=60),
        of_rule("guard", count=50),
    ]
    assert [severity(finding) for finding in reversed(found)] == [*SEVERITIES, "conventions"]
    assert [finding.count for finding in sort_worst_first(found)] == [50, 60, 70, 80, 90]
    by_mode = [replace(of_rule("value.sum"), mode=mode) for mode in ("jvp", "second", "value")]
    assert [finding.mode for finding in sort_worst_first(by_mode)] == ["value", "jvp", "second"]


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_a_sentence(rule):
    said = title(of_rule(rule, result="y"))
    assert said[0].isupper()
    assert not said.endswith(".")


def test_what_shrinking_brings_about_is_no_cause():
    run = gs.conformance.check({"max_pool1d": zeros_win}, cases=40, seed=0, dtypes=["f32"])
    (finding,) = run.by_kind("defect")
    assert "one_cell_axis" in finding.features
    assert "one_cell_axis" not in finding.causes
