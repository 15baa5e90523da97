"""Compiled softmaxes against real balls: any axis, layout and length of rows, and special values."""

from math import inf, log2, nan, prod

import numpy as np
import pytest

import gradspec as gs
from backends.pooling import Fenced
from backends.reductions import (
    FLOATS,
    READABLE,
    assert_same_bits,
    assert_written_in_every_layout,
    carry_out,
    laid_out,
    lowered,
    node_of,
    result_of,
)
from gradspec.backends import numpy as numpy_backend
from gradspec.ops import reduce as ops
from gradspec.ops.layout import AlongAxis

OPERATORS = {"softmax": ops.SOFTMAX, "log_softmax": ops.LOG_SOFTMAX}
ROUNDOFF = {"f32": 2.0**-24, "f64": 2.0**-53, "f16": 2.0**-11, "bf16": 2.0**-8}
LEAST = {"f32": 2.0**-149, "f64": 2.0**-1074, "f16": 2.0**-24, "bf16": 2.0**-133}

CASES = [
    ((1,), 0),
    ((5,), 0),
    ((0, 3), 1),
    ((3, 0), 1),
    ((2, 0, 3), 0),
    ((64, 10), 1),
    ((64, 10), 0),
    ((15, 10), 1),
    ((17, 32), 1),
    ((17, 33), 1),
    ((3, 1, 4), 1),
    ((2, 21, 3, 7), 1),
    ((2, 5, 300), 1),
    ((2, 1023), 1),
    ((1024, 3), 0),
    ((2, 1025), 1),
    ((1025, 2), 0),
    ((2500,), 0),
    ((3, 2, 2, 4), 2),
]


def nodes(shape, axis, dtype):
    return [node_of(op, AlongAxis(axis), dtype[shape]) for op in OPERATORS.values()]


def drawn(shape, dtype, spread=4.0):
    return (spread * np.random.default_rng(prod(shape)).standard_normal(shape)).astype(dtype.numpy)


def real(name, rows):
    """The results of rows, to far more digits than any format has."""
    function, domain = getattr(gs.spec, name), gs.ball(120)
    return np.array([[float(cell.mid()) for cell in function(domain.tensor(row.tolist())).cells] for row in rows])


def tolerance(name, rows, results, dtype):
    """How far results may be off.

    With u for the roundoff, an exponent z = x − m errs by u|z|, and an exponential by 2u besides; so A errs by at most
    u(Σ w|z| + 2) and what its additions add: a row has no more than ``depth`` of them one after another.
    """
    wide = dtype if dtype.name in ("f32", "f64") else gs.f32
    u = ROUNDOFF[wide.name]
    z = np.abs(rows - rows.max(1, keepdims=True))
    weights = np.exp(-z) / np.exp(-z).sum(1, keepdims=True)
    depth = min(rows.shape[1], 60) + log2(rows.shape[1])
    of_sum = u * ((weights * z).sum(1, keepdims=True) + 2 + depth)
    if name == "softmax":
        error = np.abs(results) * (of_sum + u * (z + 2 + 1)) + 2 * LEAST[wide.name]
    else:
        error = of_sum + u * z + 3 * u * np.abs(results)
    rounding = 0 if wide is dtype else ROUNDOFF[dtype.name] * (np.abs(results) + error) + LEAST[dtype.name] / 2
    return 1.01 * (error + rounding)


@pytest.mark.parametrize("dtype", FLOATS.values(), ids=str)
@pytest.mark.parametrize(("shape", "axis"), CASES, ids=str)
def test_results_are_as_near_as_the_arithmetic_allows(shape, axis, dtype):
    for spread in (4.0, 60.0):
        x = drawn(shape, dtype, spread)
        rows = np.moveaxis(x.astype(np.float64), axis, -1).reshape(-1, shape[axis]) if x.size else None
        for node in nodes(shape, axis, dtype):
            found = result_of(node, x).astype(np.float64)
            if rows is not None:
                rows, name = rows[:40], node.op.name
                got = np.moveaxis(found, axis, -1).reshape(-1, shape[axis])[:40]
                wanted = real(name, rows)
                assert (np.abs(got - wanted) <= tolerance(name, rows, wanted, dtype)).all(), (name, spread)


@pytest.mark.parametrize("dtype", FLOATS.values(), ids=str)
@pytest.mark.parametrize(("shape", "axis"), CASES, ids=str)
def test_every_layout_gives_the_same_bits(shape, axis, dtype):
    for node in nodes(shape, axis, dtype):
        for layout in READABLE:
            x = laid_out(drawn(shape, dtype), layout)
            wanted = result_of(node, x.copy("C"))
            assert_same_bits(result_of(node, x, backwards=True), wanted, node.op.name, layout)
        x = laid_out(drawn(shape, dtype), "transposed")
        assert_written_in_every_layout(node, [x], result_of(node, x.copy("C")))


@pytest.mark.parametrize("dtype", FLOATS.values(), ids=str)
@pytest.mark.parametrize("length", [3, 10, 40, 1030])
def test_a_sample_does_not_depend_on_its_batch(length, dtype):
    """Neither on its size, which decides how rows are worked on, nor on what else is in it."""
    x = drawn((20, length), dtype)
    for alone, together in zip(nodes((length,), 0, dtype), nodes(x.shape, 1, dtype), strict=True):
        found = result_of(together, x)
        for i, row in enumerate(x):
            assert_same_bits(result_of(alone, row), found[i])


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("dtype", [gs.f32, gs.f16], ids=str)
@pytest.mark.parametrize(("shape", "axis"), CASES, ids=str)
def test_nothing_outside_the_arrays_is_touched(shape, axis, dtype, at_end):
    fence = Fenced(at_end)
    for node in nodes(shape, axis, dtype):
        for layout in ("C", "channels last"):
            x = laid_out(drawn(shape, dtype), layout)
            fenced, result = fence.copy(x), fence.copy(np.empty_like(x))
            carry_out(lowered(node), {node.inputs[0]: fenced}, result, fence=fence)
            assert_same_bits(result, result_of(node, x))


# --- special values ---------------------------------------------------------------------------------------------------

ROWS = {
    "a −∞": [0.0, -inf, 1.0],
    "all −∞ but one": [-inf, 3.0, -inf],
    "−∞ only": [-inf, -inf, -inf],
    "a +∞": [0.0, inf, 1.0],
    "both infinities": [-inf, inf, 0.0],
    "a NaN": [0.0, nan, 1.0],
    "a NaN and infinities": [inf, nan, -inf],
    "far apart": [-30000.0, 30000.0, 0.0],
    "zeros": [0.0, -0.0, 0.0],
    "beyond the range of exp": [-800.0, 0.0, 800.0],
}


@pytest.mark.parametrize("dtype", FLOATS.values(), ids=str)
@pytest.mark.parametrize("cells", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("repeats", [1, 400])
def test_special_values_are_those_of_the_specification(cells, repeats, dtype):
    """In a row of one piece and of two; alone, and among many side by side."""
    row = np.array(cells * repeats).astype(dtype.numpy)
    for x, axis in ((row, 0), (np.tile(row, (20, 1)), 1), (np.tile(row[:, None], (1, 5)), 0)):
        for node in nodes(x.shape, axis, dtype):
            (wanted,) = numpy_backend.apply(node.op, node.attrs, x.astype(np.float64))
            found = result_of(node, x)
            np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=2 * ROUNDOFF[dtype.name], atol=1e-6)
            with np.errstate(over="ignore"):
                assert_same_bits(np.isinf(found), np.isinf(wanted.astype(dtype.numpy)))


def test_the_largest_numbers_do_not_overflow():
    for dtype in (gs.f32, gs.f64):
        largest = np.finfo(dtype.numpy).max
        x = np.array([[largest, largest, -largest]], dtype.numpy)
        soft, log = (result_of(node, x) for node in nodes(x.shape, 1, dtype))
        assert soft.tolist() == [[0.5, 0.5, 0.0]]
        np.testing.assert_allclose(log, [[-np.log(2), -np.log(2), -inf]], rtol=4 * ROUNDOFF[dtype.name])


# --- in a compiled graph ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS.values(), ids=str)
def test_compiled_graphs_give_the_same_bits_for_every_number_of_threads(dtype):
    graph = gs.trace(lambda x: (gs.softmax(x, 1), gs.log_softmax(x, -1)), dtype[8, 40, 500])
    x = drawn((8, 40, 500), dtype)
    first, *others = [gs.compile(graph, threads=threads)(x) for threads in (1, 2, 3)]
    for other in others:
        for a, b in zip(first, other, strict=True):
            assert_same_bits(a, b)


def test_results_are_laid_out_like_the_operand():
    x = laid_out(drawn((2, 3, 4, 5), gs.f32), "channels last")
    assert gs.compile(gs.softmax, gs.f32[x.shape])(x).strides == x.strides
