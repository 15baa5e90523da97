"""A pooling behind a convolution is part of its step where it can be, and the bits are those of steps of their own."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import gradspec as gs
from backends.convolutions import (
    FLOATS,
    Numbers,
    assert_fused_as_unfused,
    assert_same_bits,
    fence_frames,
    huge,
    inputs,
    laid_out,
    rough,
    run_fenced,
    share_everything,
    special,
    step_by_step,
    whole,
)
from backends.pooling import Fenced
from gradspec.backends.cpu.conv import blocking, plan
from gradspec.graph.graph import Graph
from gradspec.graph.types import DType

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """``pool(behind(conv(x, w, b)))``."""

    id: str
    x: Shape
    w: Shape
    pool: Callable[..., Any]
    attributes: dict[str, Any] = field(default_factory=dict)
    behind: Callable[..., Any] = gs.relu
    operator: Callable[..., Any] = gs.conv
    has_bias: bool = True
    rows: int = 0
    """Of the first axis, of which the smallest blocks are made; 0: all of them."""

    def graph(self, dtype: DType = gs.f32) -> Graph:
        channels = self.w[0] if self.operator is gs.conv else self.w[1] * self.attributes.get("groups", 1)
        shapes = [self.x, self.w, *[(channels,)] * self.has_bias]
        return gs.trace(self, *(dtype[shape] for shape in shapes))

    def __call__(self, x: Any, w: Any, b: Any = None) -> Any:
        return self.pool(self.behind(self.operator(x, w, b, **self.attributes)))


def unchanged(y):
    return y


def longer(y):
    return gs.clamp(gs.relu(y * 0.5) + y, -1.0, 2.5)


def halved(rank: int) -> Callable[..., Any]:
    return partial(getattr(gs, f"max_pool{rank}d"), kernel_size=2)


def mean(rank: int, *settings: Any, **named: Any) -> Callable[..., Any]:
    return lambda y: getattr(gs, f"avg_pool{rank}d")(y, *settings, **named)


SAME = {"padding": 1}
IMAGE, KERNEL = (2, 3, 11, 13), (9, 3, 3, 3)

CASES = [
    Case("even", (2, 3, 12, 14), KERNEL, halved(2), SAME, rows=2),
    Case("odd", IMAGE, KERNEL, halved(2), SAME, rows=2),
    Case("no relu", IMAGE, KERNEL, halved(2), SAME, unchanged, rows=2),
    Case("no bias", IMAGE, KERNEL, halved(2), SAME, has_bias=False, rows=2),
    Case("a long chain", IMAGE, KERNEL, halved(2), SAME, longer, rows=2),
    Case("another number when done twice", IMAGE, KERNEL, halved(2), SAME, lambda y: y * -0.5, rows=2),
    Case("few channels", (3, 1, 14, 12), (6, 1, 5, 5), halved(2), {"padding": 2}, rows=2),
    Case("many channels", (1, 40, 10, 9), (70, 40, 3, 3), halved(2), SAME, rows=2),
    Case("groups", (2, 6, 11, 13), (12, 2, 3, 3), halved(2), SAME | {"groups": 3}, rows=2),
    Case("depthwise", (2, 5, 11, 13), (5, 1, 3, 3), halved(2), SAME | {"groups": 5}, rows=2),
    Case("strided", (2, 3, 23, 25), KERNEL, halved(2), SAME | {"stride": 2}, rows=2),
    Case("pointwise weights", IMAGE, (9, 3, 1, 1), halved(2), rows=2),
    Case("no batch", IMAGE[1:], KERNEL, halved(2), SAME, rows=2),
    Case("two leading axes", (2, *IMAGE), KERNEL, halved(2), SAME, rows=2),
    Case("gaps", IMAGE, KERNEL, lambda y: gs.max_pool2d(y, 2, 3), SAME, rows=3),
    Case("an empty last block", IMAGE, KERNEL, lambda y: gs.max_pool2d(y, (5, 2), (5, 2)), SAME, rows=5),
    Case("padded columns", IMAGE, KERNEL, lambda y: gs.max_pool2d(y, (2, 3), 2, padding=(0, 1)), SAME, rows=2),
    Case("dilated columns", IMAGE, KERNEL, lambda y: gs.max_pool2d(y, 2, 2, dilation=(1, 3)), SAME, rows=2),
    Case("overlap", IMAGE, KERNEL, lambda y: gs.max_pool2d(y, 3, 2), SAME),
    Case("padded rows", IMAGE, KERNEL, lambda y: gs.max_pool2d(y, 2, 2, padding=1), SAME),
    Case("padded rows with gaps", (2, 3, 14, 9), KERNEL, lambda y: gs.max_pool2d(y, 2, 3, padding=1), SAME),
    Case("dilated rows", IMAGE, KERNEL, lambda y: gs.max_pool2d(y, 2, 2, dilation=2), SAME),
    Case("rounded up", IMAGE, KERNEL, lambda y: gs.max_pool2d(y, 2, ceil_mode=True), SAME),
    Case("rounded up, even", (2, 3, 12, 14), KERNEL, lambda y: gs.max_pool2d(y, 2, ceil_mode=True), SAME, rows=2),
    Case("bins", IMAGE, KERNEL, lambda y: gs.adaptive_max_pool2d(y, (4, 5)), SAME),
    Case("global", IMAGE, KERNEL, lambda y: gs.adaptive_avg_pool2d(y, 1), SAME),
    Case("mean", IMAGE, KERNEL, mean(2, 2), SAME, rows=2),
    Case("mean of three", IMAGE, KERNEL, mean(2, 3), SAME, rows=3),
    Case("mean, overlap", IMAGE, KERNEL, mean(2, 3, 2, 1), SAME),
    Case("mean of real cells", IMAGE, KERNEL, mean(2, 3, 3, (0, 1), count_include_pad=False), SAME, rows=3),
    Case("mean, other divisor", IMAGE, KERNEL, mean(2, 2, divisor_override=3), SAME, rows=2),
    Case("mean of bins", IMAGE, KERNEL, lambda y: gs.adaptive_avg_pool2d(y, (4, 5)), SAME),
    Case("bins of many channels", (1, 2, 8, 10), (70, 2, 3, 3), lambda y: gs.adaptive_max_pool2d(y, (3, 4)), SAME),
    Case("mean of bins of many channels", IMAGE, (70, 3, 3, 3), lambda y: gs.adaptive_avg_pool2d(y, (4, 5)), SAME),
    Case(
        "mean of bins of space",
        (1, 2, 6, 5, 7),
        (70, 2, 3, 3, 3),
        lambda y: gs.adaptive_avg_pool3d(y, (3, 2, 4)),
        SAME,
    ),
    Case("1-d", (2, 4, 201), (9, 4, 5), halved(1), rows=2),
    Case("1-d, mean", (2, 4, 101), (9, 4, 5), mean(1, 4), rows=4),
    Case("3-d", (2, 2, 7, 6, 5), (10, 2, 3, 3, 3), halved(3), SAME, rows=2),
    Case("3-d, mean", (1, 2, 6, 7, 5), (10, 2, 3, 3, 3), mean(3, 2, 2, (0, 1, 1)), SAME, rows=2),
    Case("transposed", (2, 9, 9, 11), (9, 4, 3, 3), halved(2), operator=gs.conv_transpose, rows=2),
]
"""Planes of at least 64 cells: they fill vectors, so that samples are not taken side by side."""

every = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """Plans for one thread, which has enough to do however few units there are."""
    plan_for(1, monkeypatch)


def plan_for(threads, monkeypatch):
    for module in (blocking, plan):
        monkeypatch.setattr(module, "get_num_threads", lambda: threads)


@pytest.fixture(params=["smallest", "as chosen"])
def blocks(request, monkeypatch):
    """Blocks of rows as large as they are chosen, and of as few rows as windows allow."""
    usual = blocking._by_rows

    def smallest(chosen, lines, together):
        return usual(replace(chosen, columns=1), lines, together)

    if request.param == "smallest":
        monkeypatch.setattr(blocking, "_by_rows", smallest)
    return request.param


def operators(graph: Graph, threads: int | None = None) -> list[list[str]]:
    """The operators of every step that is not a view."""
    steps = gs.compile(graph, threads=threads).plan.steps
    return [[node.op.name for node in step.nodes] for step in steps if step.view is None and step.nodes]


def ties(rng: np.random.Generator, shape: Shape, dtype: np.dtype) -> np.ndarray:
    """Few numbers, zeros of either sign among them, so that many cells of a window are equal."""
    return rng.choice(np.asarray([-1.0, -0.0, 0.0, 1.0]).astype(dtype), shape)


# --- fused is unfused -------------------------------------------------------------------------------------------------


@every
def test_a_pooling_is_part_of_the_step(case):
    graph = case.graph()
    (names,) = operators(graph)
    assert names == [node.op.name for node in graph.simplify().nodes if node.op.name != "reshape"]
    assert names[-1] in ("max_pool", "avg_pool")


@every
@pytest.mark.parametrize("blocks", ["smallest"], indirect=True)
def test_the_smallest_blocks_are_as_small_as_windows_allow(case, blocks):
    nodes = [node for node in case.graph().simplify().nodes if node.op.name != "reshape"]
    (only,) = plan._blocked(nodes).cases
    rows, size = only.blocking.columns // only.inner, nodes[-1].inputs[0].shape[-nodes[0].attrs.rank]
    assert rows == (case.rows or size)


@every
@pytest.mark.parametrize("numbers", [rough, special, ties], ids=lambda numbers: numbers.__name__)
def test_fused_is_unfused(case, numbers: Numbers, blocks):
    graph = case.graph()
    assert_fused_as_unfused(graph, inputs(graph, numbers))


@every
@pytest.mark.parametrize("dtype", [t for t in FLOATS.values() if t != gs.f32], ids=str)
def test_fused_is_unfused_in_every_format(case, dtype, blocks):
    graph = case.graph(dtype)
    assert [*map(len, operators(graph))] == [*map(len, operators(case.graph()))]
    for numbers in (rough, huge):
        assert_fused_as_unfused(graph, inputs(graph, numbers))


@every
@pytest.mark.parametrize("layout", ["channels last", "sliced"])
def test_operands_of_every_layout(case, layout, blocks):
    """Integers, and the NumPy backend as the judge."""
    graph = case.graph()
    arrays = [laid_out(a, layout) for a in inputs(graph, whole)]
    found, wanted = (gs.compile(graph, backend=backend)(*arrays) for backend in ("cpu", "numpy"))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def residual(x, w, b, r):
    return gs.max_pool2d(gs.relu(gs.conv2d(x, w, b, padding=1) + r), 2)


def repeated(x, w, b, s):
    """One more number for each channel, and one for all."""
    return gs.max_pool2d((gs.conv2d(x, w, b, padding=1) * gs.reshape(s, (9, 1, 1)) + 0.25), 2)


@pytest.mark.parametrize("block", [residual, repeated], ids=lambda block: block.__name__)
def test_a_chain_reads_other_arrays(block, blocks):
    others = {residual: (2, 9, 11, 13), repeated: (9,)}
    graph = gs.trace(block, *(gs.f32[shape] for shape in (IMAGE, KERNEL, (9,), others[block])))
    assert operators(graph)[-1][-1] == "max_pool"
    assert operators(graph)[-1][0] == "conv"
    assert_fused_as_unfused(graph, inputs(graph, rough))


@every
def test_threads_do_not_matter(case, blocks, monkeypatch):
    share_everything(monkeypatch)
    graph = case.graph()
    arrays = inputs(graph, rough)
    (wanted,) = step_by_step(graph, arrays)
    for threads in (1, 2, 3, 8):
        assert_same_bits(gs.compile(graph, threads=threads)(*arrays), wanted, threads)


@pytest.mark.skipif(os.name != "posix", reason="pages are protected with mprotect")
@every
@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("dtype", [gs.f32, gs.f16], ids=str)
def test_nothing_beyond_an_array_is_touched(case, dtype, at_end, blocks, monkeypatch):
    fenced = Fenced(at_end)
    fence_frames(monkeypatch, fenced)
    graph = case.graph(dtype)
    arrays = inputs(graph, rough)
    (found,), (wanted,) = run_fenced(graph, arrays, fenced), step_by_step(graph, arrays)
    assert_same_bits(found, wanted)


def test_parts_of_the_channels(monkeypatch):
    """Many threads and one sample: units have some of the channels each, the last fewer than the others."""
    plan_for(8, monkeypatch)
    monkeypatch.setattr(blocking, "MUCH_WORK", 1)
    case = Case("parts", (1, 16, 14, 14), (200, 16, 3, 3), halved(2), SAME)
    graph = case.graph()
    nodes = graph.simplify().nodes
    assert plan._blocked(nodes).parts > 1
    assert len(operators(graph)) == 1
    assert_fused_as_unfused(graph, inputs(graph, rough))


# --- where a pooling stays alone --------------------------------------------------------------------------------------


def both_returned(x, w):
    y = gs.relu(gs.conv2d(x, w))
    return y, gs.max_pool2d(y, 2)


def first_returned(x, w):
    y = gs.conv2d(x, w)
    return y, gs.max_pool2d(gs.relu(y), 2)


def read_twice(x, w):
    y = gs.relu(gs.conv2d(x, w))
    return gs.max_pool2d(y, 2), gs.sum(y)


def pooled_twice(x, w):
    y = gs.conv2d(x, w)
    return gs.max_pool2d(y, 2), gs.avg_pool2d(y, 2)


def with_indices(x, w):
    return gs.max_pool2d(gs.conv2d(x, w), 2, return_indices=True)


def of_fewer_axes(x, w):
    return gs.max_pool1d(gs.reshape(gs.conv2d(x, w), (2, 81, 11)), 2)


def of_two(x, w):
    """They share what is staged."""
    v = w * 2.0
    return gs.max_pool2d(gs.conv2d(x, v) + gs.conv2d(x, w), 2)


def read_backwards(x, w):
    y = gs.conv_transpose2d(gs.reshape(x[:, :, :9, :9], (2, 3, 9, 9)), gs.reshape(w, (3, 9, 3, 3)), stride=2)
    return gs.max_pool2d(y, 2)


ALONE = [both_returned, first_returned, read_twice, pooled_twice, with_indices, of_fewer_axes, of_two, read_backwards]


@pytest.mark.parametrize("function", ALONE, ids=lambda function: function.__name__)
def test_a_pooling_stays_alone_where_others_read_what_it_reads(function):
    graph = gs.trace(function, gs.f32[IMAGE], gs.f32[KERNEL])
    steps = operators(graph)
    assert not any({"conv", "conv_transpose"} & {*names} and {"max_pool", "avg_pool"} & {*names} for names in steps)
    assert_fused_as_unfused(graph, inputs(graph, rough))


@pytest.mark.parametrize("mode", ["jvp", "vjp"])
def test_derivatives_find_their_winners_on_the_tape(mode):
    """What a maximum reads is read again to find its winners, or they are recorded once for both."""
    graph = getattr(Case("odd", IMAGE, KERNEL, halved(2), SAME).graph(), mode)()
    assert not any("conv" in names and "max_pool" in names for names in operators(graph))
    assert_fused_as_unfused(graph, inputs(graph, rough))


def test_planes_that_fill_more_than_a_cache_stay_in_memory():
    """Windows that overlap need all rows of a plane at once."""
    case = Case("large", (4, 3, 56, 56), (64, 3, 3, 3), lambda y: gs.max_pool2d(y, 3, 2), SAME)
    assert operators(case.graph()) == [["conv", "relu"], ["max_pool"]]
    assert operators(replace(case, pool=halved(2)).graph()) == [["conv", "relu", "max_pool"]]


def test_no_thread_goes_without_work_for_the_sake_of_a_pooling(monkeypatch):
    case = Case("one sample", (1, 64, 28, 28), (64, 64, 3, 3), lambda y: gs.max_pool2d(y, 3, 2), SAME)
    assert len(operators(case.graph())) == 1
    plan_for(8, monkeypatch)
    assert operators(case.graph()) == [["conv", "relu"], ["max_pool"]]
    assert operators(replace(case, x=(16, 64, 28, 28)).graph()) == [["conv", "relu", "max_pool"]]
