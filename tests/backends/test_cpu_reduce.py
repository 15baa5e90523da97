"""Compiled sums, means and shares: the documented tree bit for bit, whatever the layout; the certified tolerance."""

from math import prod

import numpy as np
import pytest

import gradspec as gs
from backends.pooling import LAYOUTS, Fenced
from backends.reductions import (
    FLOATS,
    READABLE,
    assert_same_bits,
    assert_written_in_every_layout,
    carry_out,
    huge,
    laid_out,
    lowered,
    node_of,
    result_of,
    rough,
    special,
    tiny,
)
from gradspec.backends import numpy as numpy_backend
from gradspec.backends.cpu.reduce import plan as cpu_reduce
from gradspec.codegen.processor import processor
from gradspec.conformance.oracle.sums import leaf_sums
from gradspec.ops import reduce as ops
from gradspec.ops.shape import SUM, Axes

# --- the tree, written again ------------------------------------------------------------------------------------------


def lanes_sum(terms: np.ndarray) -> np.ndarray:
    """Four vectors in turn, then one; halves to halves; then the terms that fill no vector."""
    lanes = processor().loop_lanes(terms.itemsize)
    slots = np.zeros((4 * lanes, *terms.shape[1:]), terms.dtype)
    whole = len(terms) // len(slots) * len(slots)
    end = len(terms) // lanes * lanes
    for start in range(0, whole, len(slots)):
        slots += terms[start : start + len(slots)]
    for start in range(whole, end, lanes):
        slots[:lanes] += terms[start : start + lanes]
    while len(slots) > 1:
        slots = slots[: len(slots) // 2] + slots[len(slots) // 2 :]
    (result,) = slots
    for term in terms[end:]:
        result = result + term
    return result


def tree_sum(terms: np.ndarray, run: int) -> np.ndarray:
    """Terms along the first axis, ``run`` of which follow each other in the shape."""
    if run < 128:
        length = 1024 // max(run, 1) * max(run, 1)
        pieces = [terms[i : i + length] for i in range(0, max(len(terms), 1), length)]
    else:
        runs = [terms[i : i + run] for i in range(0, len(terms), run)]
        pieces = [part[i : i + 1024] for part in runs for i in range(0, run, 1024)]
    sums = np.stack([lanes_sum(part) for part in pieces])
    return sums[0] if len(sums) == 1 else tree_sum(sums, len(sums))


def terms_of(x: np.ndarray, axes: tuple[int, ...]) -> tuple[np.ndarray, int]:
    """Terms along a first axis, in the format of the sum, and the length of a run."""
    order = sorted(axes)
    kept = [a for a in range(x.ndim) if a not in axes]
    run, before = 1, max(axes, default=0)
    while before in axes and run < 128:
        run, before = run * x.shape[before], before - 1
    wide = x.astype(np.float32 if x.itemsize == 2 else x.dtype)
    terms = wide.transpose(*order, *kept).reshape(prod(x.shape[a] for a in order), *(x.shape[a] for a in kept))
    return terms, run


@np.errstate(all="ignore")
def expected(name: str, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    terms, run = terms_of(x, axes)
    total = np.asarray(tree_sum(terms, run))
    return (total / total.dtype.type(len(terms)) if name == "mean" else total).astype(x.dtype)


# --- the table --------------------------------------------------------------------------------------------------------

CASES = [
    ((), ()),
    ((1,), (0,)),
    ((0,), (0,)),
    ((3, 0, 2), (1,)),
    ((3, 0, 2), (0, 2)),
    ((0, 3), (1,)),
    ((2, 3, 4), ()),
    ((5, 1, 3), (1,)),
    ((1, 1, 1), (0, 2)),
    ((7,), (0,)),
    ((3, 33), (1,)),
    ((100, 3), (1,)),
    ((127,), (0,)),
    ((128,), (0,)),
    ((2, 1023), (1,)),
    ((1024,), (0,)),
    ((2, 1023), (0, 1)),
    ((2, 1025), (1,)),
    ((4500,), (0,)),
    ((2, 3, 5), (0, 2)),
    ((2, 3, 5), (0, 1, 2)),
    ((3, 5, 12, 20), (0, 1, 2, 3)),
    ((20, 2, 64), (0, 2)),
    ((2, 3, 5, 1100), (0, 1, 3)),
    ((9, 4, 7, 7), (0, 2, 3)),
    ((40, 2, 7, 7), (0, 2, 3)),
    ((3, 2, 11, 13), (0, 2, 3)),
    ((2, 3, 40, 30), (0, 2, 3)),
    ((2, 5, 3, 4), (1, 2)),
    ((64, 10), (0,)),
    ((31, 300), (0,)),
    ((8, 5, 9), (0,)),
    ((130, 17), (0,)),
    ((1100, 3), (0,)),
    ((2, 1030, 5), (1,)),
    ((3, 2, 2, 2, 3, 2, 2), (0, 3, 4, 6)),
]
REDUCTIONS = {"sum": SUM, "mean": ops.MEAN}


def nodes(shape, axes, dtype):
    """The sum, and the mean if there is one."""
    wanted = ["sum"] if prod(shape[a] for a in axes) == 0 else ["sum", "mean"]
    return [node_of(REDUCTIONS[name], Axes(axes), dtype[shape]) for name in wanted]


def drawn(numbers, shape, dtype):
    return numbers(np.random.default_rng(prod(shape) + len(shape)), shape, dtype.numpy)


@pytest.mark.parametrize("dtype", FLOATS.values(), ids=str)
@pytest.mark.parametrize(("shape", "axes"), CASES, ids=str)
def test_the_tree_is_the_documented_one_in_every_layout(shape, axes, dtype):
    for layout in READABLE:
        x = laid_out(drawn(rough, shape, dtype), layout)
        for node in nodes(shape, axes, dtype):
            assert_same_bits(result_of(node, x), expected(node.op.name, x, axes), node.op.name, layout)


@pytest.mark.parametrize("dtype", FLOATS.values(), ids=str)
@pytest.mark.parametrize(("shape", "axes"), [case for case in CASES if prod(case[0]) < 4000], ids=str)
def test_sums_are_permitted(shape, axes, dtype):
    for numbers in (rough, special, huge, tiny):
        x = drawn(numbers, shape, dtype)
        terms, _ = terms_of(x, axes)
        leaves = terms.reshape(len(terms), prod(terms.shape[1:])).T.astype(np.float64)
        for node in nodes(shape, axes, dtype):
            divisors = np.full(leaves.shape, float(len(terms))) if node.op.name == "mean" else None
            exact = leaf_sums(node.outputs[0].shape, leaves, divisors, x)
            judgement = exact.judge(result_of(node, x))
            assert judgement.passed, (node.op.name, numbers.__name__, judgement.failures())


@pytest.mark.parametrize("dtype", FLOATS.values(), ids=str)
@pytest.mark.parametrize("layout", ["C", "channels last", "sliced"])
@pytest.mark.parametrize(("shape", "axes"), CASES, ids=str)
def test_two_passes_make_the_same_sums(shape, axes, layout, dtype, monkeypatch):
    monkeypatch.setattr(cpu_reduce, "WORTH_TWO_PASSES", 0.0)
    monkeypatch.setattr(cpu_reduce, "ENOUGH_UNITS", 10**9)
    x = laid_out(drawn(rough, shape, dtype), layout)
    for node in nodes(shape, axes, dtype):
        pieces = cpu_reduce.pieces_of(shape, axes).count
        assert bool(lowered(node).before) == (pieces > 1)
        assert_same_bits(result_of(node, x, backwards=True), expected(node.op.name, x, axes), node.op.name)


def test_few_sums_of_many_terms_are_made_in_two_passes():
    assert lowered(nodes((1000, 1000), (0, 1), gs.f32)[0]).before
    assert not lowered(nodes((8, 64, 56, 56), (0, 2, 3), gs.f32)[0]).before
    assert not lowered(nodes((64, 10), (0,), gs.f32)[0]).before


@pytest.mark.parametrize("dtype", FLOATS.values(), ids=str)
@pytest.mark.parametrize(("shape", "axes"), CASES, ids=str)
def test_units_are_independent_and_results_are_written_where_they_belong(shape, axes, dtype):
    x = drawn(rough, shape, dtype)
    for node in nodes(shape, axes, dtype):
        wanted = expected(node.op.name, x, axes)
        assert_same_bits(result_of(node, x, backwards=True), wanted)
        assert_written_in_every_layout(node, [x], wanted)


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("dtype", [gs.f32, gs.f16], ids=str)
@pytest.mark.parametrize(("shape", "axes"), CASES, ids=str)
def test_nothing_outside_the_arrays_is_touched(shape, axes, dtype, at_end):
    fence, x = Fenced(at_end), drawn(rough, shape, dtype)
    for node in nodes(shape, axes, dtype):
        wanted = expected(node.op.name, x, axes)
        for layout in ("C", "channels last"):
            fenced, result = fence.copy(laid_out(x, layout)), fence.copy(np.empty_like(wanted))
            carry_out(lowered(node), {node.inputs[0]: fenced}, result, fence=fence)
            assert_same_bits(result, wanted)


# --- what follows from the tree, said once more -----------------------------------------------------------------------


def test_many_terms_lose_little():
    """A few dozen additions follow each other at each of three levels; one after another, ten million would."""
    x = np.random.default_rng(1).uniform(0, 1, 10_000_000).astype(np.float32)
    found, exact = result_of(nodes(x.shape, (0,), gs.f32)[0], x), float(x.sum(dtype=np.float64))
    assert abs(float(found) - exact) <= 100 * 2.0**-24 * exact


@pytest.mark.parametrize("dtype", [gs.f16, gs.bf16], ids=str)
def test_small_floats_do_not_stall(dtype):
    """Beyond 2048, adding a one to a float16 changes nothing."""
    for shape, axes in (((60000,), (0,)), ((60000, 2), (0,))):
        x = np.ones(shape, dtype.numpy)
        total, mean = (result_of(node, x) for node in nodes(shape, axes, dtype))
        assert (total == np.asarray(60000).astype(dtype.numpy)).all()
        assert (mean == 1).all()


@pytest.mark.parametrize(("shape", "axes"), [((5,), (0,)), ((40, 3), (0,)), ((3, 40), (1,)), ((0, 2), (0,))])
def test_sums_of_zeros_are_positive(shape, axes):
    found = result_of(nodes(shape, axes, gs.f32)[0], np.full(shape, -0.0, np.float32))
    assert not np.signbit(found).any()


def test_a_sample_does_not_depend_on_its_batch():
    x = drawn(rough, (5, 3, 9, 40), gs.f32)
    together = result_of(nodes(x.shape, (2, 3), gs.f32)[0], x)
    for i, sample in enumerate(x):
        assert_same_bits(result_of(nodes(sample.shape, (1, 2), gs.f32)[0], sample), together[i])


# --- shares -----------------------------------------------------------------------------------------------------------

SHARED = [(shape, axes) for shape, axes in CASES if prod(shape[a] for a in axes)] + [((3, 5000), (1,))]


@pytest.mark.parametrize("dtype", FLOATS.values(), ids=str)
@pytest.mark.parametrize(
    ("shape", "axes"), [c for c in CASES if prod(c[0][a] for a in c[1])] + [((3, 5000), (1,))], ids=str
)
def test_shares_are_divided_and_rounded_once(shape, axes, dtype):
    kept = tuple(n for a, n in enumerate(shape) if a not in axes)
    attrs = ops.MeanTranspose(axes, shape)
    node = node_of(ops.MEAN_TRANSPOSE, attrs, dtype[kept])
    for layout in LAYOUTS:
        x = laid_out(drawn(rough, kept, dtype), layout)
        (wanted,) = numpy_backend.apply(ops.MEAN_TRANSPOSE, attrs, x)
        assert_same_bits(result_of(node, x, backwards=True), wanted, layout)
    assert_written_in_every_layout(node, [x], wanted)


# --- in a compiled graph ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS.values(), ids=str)
def test_compiled_graphs_give_the_same_bits_for_every_number_of_threads(dtype):
    def moments(x):
        centered = x - gs.mean(x, (0, 2, 3), keepdims=True)
        return gs.sum(centered * centered), gs.mean(centered, 1), gs.sum(x, (0, 2, 3))

    graph = gs.trace(moments, dtype[4, 40, 30, 50])
    x = drawn(rough, (4, 40, 30, 50), dtype)
    runs = [gs.compile(graph, threads=threads) for threads in (1, 2, 3)]
    first, *others = [run(x) for run in runs]
    for other in others:
        for a, b in zip(first, other, strict=True):
            assert_same_bits(a, b)


def test_no_step_is_left_to_numpy():
    graph = gs.trace(lambda x: gs.mean(gs.sum(x * x, (0, 2))), gs.f32[4, 5, 6])
    run = gs.compile(graph.vjp())
    assert "numpy" not in str(run.plan)
