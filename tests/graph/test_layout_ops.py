"""Layout operators against NumPy in value and JAX in derivatives, bit for bit, and what they refuse."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, basic_indices

import gradspec as gs
from gradspec.graph.builder import apply
from gradspec.ops import layout, loss, reduce, shape
from strategies import few

RANDOM = np.random.default_rng(3)


@dataclass(frozen=True)
class Layout:
    """An operator of ours, and the same in NumPy's words, which JAX speaks as well (``np`` is either)."""

    id: str
    ours: Any
    theirs: Any
    shapes: tuple[tuple[int, ...], ...]

    def arrays(self, dtype=np.float64):
        return [RANDOM.integers(-100, 100, shape).astype(dtype) for shape in self.shapes]


def row(id, ours, theirs, *shapes):
    return Layout(id, ours, theirs, shapes)


ROWS = [
    row("broadcast_to", lambda x: gs.broadcast_to(x, (4, 2, 3)), lambda np, x: np.broadcast_to(x, (4, 2, 3)), (2, 1)),
    row("reshape", lambda x: gs.reshape(x, (-1, 4)), lambda np, x: np.reshape(x, (-1, 4)), (2, 3, 2)),
    row("reshape to a scalar", lambda x: gs.reshape(x, ()), lambda np, x: np.reshape(x, ()), (1, 1)),
    row("reshape by an int", lambda x: gs.reshape(x, -1), lambda np, x: np.reshape(x, -1), (2, 3)),
    row("flatten", lambda x: gs.flatten(x, 1), lambda np, x: x.reshape(2, 6), (2, 3, 2)),
    row("flatten some", lambda x: gs.flatten(x, -3, 2), lambda np, x: x.reshape(2, 6, 1), (2, 3, 2, 1)),
    row("transpose", lambda x: gs.transpose(x, (1, -1, 0)), lambda np, x: np.transpose(x, (1, -1, 0)), (2, 3, 4)),
    row("transpose all", lambda x: gs.transpose(x), lambda np, x: x.T, (2, 3, 4)),
    row("transpose nothing", lambda x: gs.transpose(x, ()), lambda np, x: np.transpose(x, ()), ()),
    row(
        "concat",
        lambda x, y, z: gs.concat([x, y, z], -2),
        lambda np, x, y, z: np.concatenate([x, y, z], -2),
        (2, 1, 3),
        (2, 4, 3),
        (2, 0, 3),
    ),
    row("concat one", lambda x: gs.concat([x], 1), lambda np, x: x, (2, 3)),
    row("slice", lambda x: gs.slice(x, (1, -4), (9, None), (1, 3)), lambda np, x: x[1:9, -4::3], (3, 5)),
    row(
        "slice backwards",
        lambda x: gs.slice(x, (None, 3), (None, None), (-2, -1)),
        lambda np, x: x[::-2, 3::-1],
        (5, 4),
    ),
    row("slice nothing", lambda x: gs.slice(x, (2, 0), (1, 2)), lambda np, x: x[2:1, 0:2], (3, 4)),
    row(
        "pad",
        lambda x: gs.pad(x, ((1, 2), (0, 3)), 7),
        lambda np, x: np.pad(x, ((1, 2), (0, 3)), constant_values=7),
        (2, 3),
    ),
    row("pad no cells", lambda x: gs.pad(x, ((1, 0),)), lambda np, x: np.pad(x, ((1, 0),)), (0,)),
]

CASES = pytest.mark.parametrize("case", ROWS, ids=lambda case: case.id)


@CASES
@pytest.mark.parametrize("dtype", [gs.f16, gs.bf16, gs.f32, gs.f64, gs.i8, gs.i32, gs.i64], ids=str)
def test_values_are_numpys(case, dtype):
    arrays = case.arrays(dtype.numpy)
    right = case.theirs(np, *arrays)
    for got in (case.ours(*arrays), gs.trace(case.ours, *(dtype[s] for s in case.shapes))(*arrays)):
        assert got.dtype == dtype.numpy
        assert np.array_equal(got, right)


@CASES
def test_the_specification_is_numpys(case):
    arrays = case.arrays()
    right = case.theirs(np, *arrays)
    got = gs.evaluate(gs.trace(case.ours, *(gs.f64[s] for s in case.shapes)), *arrays, domain=gs.exact)
    assert got.shape == right.shape
    assert got == right


@pytest.mark.parametrize("name", ["broadcast_to", "reshape", "flatten", "transpose", "concat", "slice", "pad"])
def test_specification_and_operator_take_the_same_arguments(name):
    x = np.arange(24.0).reshape(2, 3, 4)
    args = {
        "broadcast_to": (x, (2, 2, 3, 4)),
        "reshape": (x, (4, -1)),
        "flatten": (x, -2),
        "transpose": (x, (2, 0, 1)),
        "concat": ((x, x), 1),
        "slice": (x, (0, 2, -1), (2, None, 0), (None, -1, -2)),
        "pad": (x, ((0, 1), (1, 0), (2, 2)), 5),
    }[name]
    spec, operator = getattr(gs.spec, name)(*args), getattr(gs, name)(*args)
    assert spec.shape == operator.shape
    assert spec == operator


@CASES
def test_derivatives_are_jaxs(case):
    arrays, tangents = case.arrays(), case.arrays()
    graph = gs.trace(case.ours, *(gs.f64[s] for s in case.shapes))
    cotangent = RANDOM.integers(-9, 9, graph.outputs[0].shape).astype(np.float64)
    with jax.enable_x64(True):
        theirs = lambda *xs: case.theirs(jnp, *xs)  # noqa: E731
        pushed = jax.jvp(theirs, tuple(map(jnp.asarray, arrays)), tuple(map(jnp.asarray, tangents)))[1]
        pulled = jax.vjp(theirs, *map(jnp.asarray, arrays))[1](jnp.asarray(cotangent))
    assert np.array_equal(graph.jvp()(*arrays, *tangents)[1], pushed)
    for got, right in zip(graph.vjp()(*arrays, cotangent)[1:], pulled, strict=True):
        assert np.array_equal(got, right)


@pytest.mark.parametrize("shape", [(3, 2), (1, 3), (0, 2)])
def test_padding_between_neighbours_is_jaxs(shape):
    x = RANDOM.integers(1, 9, shape).astype(np.float32)
    got = apply(layout.PAD, layout.Padding(((1, 2), (0, 1)), (2, 1), 0.5), x)
    assert np.array_equal(got, jax.lax.pad(jnp.asarray(x), np.float32(0.5), [(1, 2, 2), (0, 1, 1)]))


def test_a_negative_zero_of_padding_stays():
    assert np.signbit(gs.pad(np.ones(1), ((1, 0),), -0.0)[0])
    assert np.isneginf(gs.pad(np.ones(1, np.float16), ((1, 0),), -np.inf)[0])


@pytest.mark.parametrize("dtype", [gs.f16, gs.bf16, gs.f32], ids=str)
def test_the_padding_is_rounded_once_to_the_dtype(dtype):
    """The same number in every meaning of the graph."""
    graph = gs.trace(lambda x: gs.pad(x, ((1, 0),), 0.1), dtype[1])
    x = np.ones(1, dtype.numpy)
    (padding, _) = gs.evaluate(graph, x, domain=gs.exact).cells
    assert padding == gs.exact.scalar(float(graph(x)[0])) == gs.exact.scalar(float(np.asarray(0.1).astype(dtype.numpy)))
    assert padding != gs.exact.scalar(0.1)


SHAPES = array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@few
@given(st.data())
def test_indexing_is_numpys(data):
    """And so is its transpose: what NumPy reads from, NumPy writes to."""
    shape = data.draw(SHAPES)
    key = data.draw(basic_indices(shape, allow_newaxis=True, allow_ellipsis=True))
    x = np.arange(np.prod(shape, dtype=int), dtype=np.float64).reshape(shape)
    graph = gs.trace(lambda x: x[key], gs.f64[shape])
    assert np.array_equal(graph(x), x[key])
    cotangent = np.arange(1.0, x[key].size + 1).reshape(x[key].shape)
    written = np.zeros(shape)
    written[key] += cotangent
    assert np.array_equal(graph.vjp()(x, cotangent)[1], written)


@few
@given(st.data())
def test_slice_is_pythons(data):
    shape = data.draw(SHAPES)
    end, step = st.none() | st.integers(-6, 6), st.none() | st.integers(-3, 3).filter(bool)
    starts, stops, steps = (data.draw(st.tuples(*[entry] * len(shape))) for entry in (end, end, step))
    x = np.arange(np.prod(shape, dtype=int), dtype=np.float64).reshape(shape)
    right = x[tuple(map(slice, starts, stops, steps))]
    assert np.array_equal(gs.slice(x, starts, stops, steps), right)
    assert gs.spec.slice(x, starts, stops, steps) == right


def test_a_variable_is_iterated_and_unpacked():
    def function(x):
        first, second = x
        return gs.sum(first * second)

    assert gs.trace(function, gs.f64[2, 3])(np.float64([[1, 2, 3], [4, 5, 6]])) == 32


def test_what_changes_nothing_adds_no_node():
    def function(x):
        for idle in (
            gs.broadcast_to(x, (2, 3)),
            gs.reshape(x, (2, -1)),
            gs.flatten(x, 1),
            gs.transpose(x, (0, 1)),
            gs.concat([x]),
            gs.slice(x, (0, 0), (2, 9)),
            gs.pad(x, ((0, 0), (0, 0)), 3.0),
            x[...],
            x[:, :],
        ):
            assert idle is x
        return -x

    assert len(gs.trace(function, gs.f32[2, 3]).nodes) == 1


X = gs.f32[2, 3]

REFUSED = {
    "broadcast_to other sizes": (lambda x: gs.broadcast_to(x, (2, 4)), r"\(2, 3\) does not broadcast to \(2, 4\)"),
    "broadcast_to fewer axes": (lambda x: gs.broadcast_to(x, (3,)), r"does not broadcast"),
    "broadcast_to a negative size": (lambda x: gs.broadcast_to(x, (-1, 2, 3)), r"axis 0 of the shape .* is -1"),
    "reshape other count": (lambda x: gs.reshape(x, (4,)), r"the 6 numbers .* do not fit the shape \(4,\)"),
    "reshape two open": (lambda x: gs.reshape(x, (-1, -1)), r"more than one size open"),
    "reshape -1 that does not divide": (lambda x: gs.reshape(x, (4, -1)), r"do not fit"),
    "reshape negative": (lambda x: gs.reshape(x, (-2, -3)), r"axis 0 of the shape .* is -2"),
    "reshape by a float": (lambda x: gs.reshape(x, (6.0,)), r"a float; give an int"),
    "flatten backwards": (lambda x: gs.flatten(x, 1, 0), r"start_dim=1 comes after end_dim=0"),
    "flatten no such axis": (lambda x: gs.flatten(x, 0, 2), r"flatten: 2 is not an axis .* rank 2; use -2 to 1"),
    "transpose an axis twice": (lambda x: gs.transpose(x, (0, 0)), r"axes=\(0, 0\) is not an order of the 2 axes"),
    "transpose too few": (lambda x: gs.transpose(x, (0,)), r"name each of them once"),
    "transpose no such axis": (lambda x: gs.transpose(x, (0, 2)), r"2 is not an axis"),
    "concat nothing": (lambda x: gs.concat([]), r"at least one"),
    "concat a variable": (lambda x: gs.concat(x), r"takes a list of tensors"),
    "concat other sizes": (
        lambda x: gs.concat([x, gs.transpose(x)], 0),
        r"\(2, 3\), \(3, 2\) differ on other axes than 0",
    ),
    "concat other ranks": (lambda x: gs.concat([x, gs.flatten(x)], 1), r"differ on other axes"),
    "concat a scalar": (lambda x: gs.concat([gs.sum(x)]), r"rank 0; a scalar has none"),
    "concat by a bool": (lambda x: gs.concat([x, x], True), r"concat: True is not an axis"),
    "slice too few": (lambda x: gs.slice(x, (0,), (1,)), r"starts=\(0,\) must have one entry for each axis"),
    "slice step 0": (lambda x: gs.slice(x, (0, 0), (1, 1), (1, 0)), r"steps=\(1, 0\) has a step of 0"),
    "pad negative": (lambda x: gs.pad(x, ((0, 0), (-1, 2))), r"axis 1 has the padding \(-1, 2\).*slice"),
    "pad one pair for two axes": (lambda x: gs.pad(x, ((1, 1),)), r"one pair \(lo, hi\) for each of the 2 axes"),
    "pad flat": (lambda x: gs.pad(x, (1, 1)), r"one pair"),
    "pad a float": (lambda x: gs.pad(x, ((0, 0), (0, 1.5))), r"hi on axis 1 is 1.5, a float"),
    "index too many": (lambda x: x[0, 0, 0], r"does not fit the shape \(2, 3\)"),
    "index two ...": (lambda x: x[..., 0, ...], r"one \.\.\. at most"),
}


@pytest.mark.parametrize(("function", "message"), REFUSED.values(), ids=REFUSED)
def test_refused_with_a_reason(function, message):
    with pytest.raises(gs.ShapeError, match=message):
        gs.trace(function, X)


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda x: x[2], IndexError, "index 2 lies outside axis 0, of size 2"),
        (lambda x: x[0, -4], IndexError, "index -4 lies outside axis 1, of size 3"),
        (lambda x: x[True], TypeError, "not by True"),
        (lambda x: x["0"], TypeError, "not by '0'"),
        (lambda x: x[1.0], TypeError, r"not by 1\.0"),
        (lambda x: gs.pad(x, ((0, 0), (0, 1)), "0"), gs.DTypeError, "give a number"),
        (lambda x: gs.concat([x, np.zeros((1, 3))]), gs.DTypeError, "one dtype"),
    ],
)
def test_refused_as_python_would(function, error, message):
    with pytest.raises(error, match=message):
        gs.trace(function, X)


@pytest.mark.parametrize("value", [0.5, 200, np.inf])
def test_integers_are_padded_by_integers_that_fit(value):
    with pytest.raises(gs.DTypeError, match="is not a number of i8"):
        gs.pad(np.zeros(2, np.int8), ((1, 0),), value)


def test_arrays_are_refused_alike():
    with pytest.raises(gs.ShapeError, match="do not fit"):
        gs.reshape(np.zeros(4), (3,))
    with pytest.raises(gs.ShapeError, match="slice"):
        gs.spec.pad([1, 2], ((0, -1),))


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        (layout.SLICE, layout.Slices((0, 1), (2, 3), (1, 1))),
        (layout.SLICE, layout.Slices((0, 2), (2, 4), (1, -1))),
        (layout.SLICE, layout.Slices((0, 0), (2, 3), (1, 0))),
        (layout.SLICE, layout.Slices((0, 0), (2, -1), (1, 1))),
        (layout.SLICE, layout.Slices((0,), (2,), (1,))),
        (layout.PAD, layout.Padding(((0, 0), (0, -1)), (0, 0), 0.0)),
        (layout.PAD, layout.Padding(((0, 0), (0, 0)), (0, -1), 0.0)),
        (layout.PAD, layout.Padding(((0, 0), (0, 0)), (0,), 0.0)),
        (layout.TRANSPOSE, layout.Order((-2, -1))),
        (layout.CONCAT, layout.AlongAxis(-1)),
        (shape.RESHAPE, shape.Shape((-2, -3))),
        (shape.SUM, shape.Axes((-1,))),
        (shape.SUM, shape.Axes((0, 0))),
        (shape.SUM, shape.Axes((2,))),
        (reduce.MEAN_TRANSPOSE, reduce.MeanTranspose((7,), (2, 3))),
        (reduce.MEAN_TRANSPOSE, reduce.MeanTranspose((0,), (2, 2, 2))),
        (reduce.MEAN_TRANSPOSE, reduce.MeanTranspose((0,), (0, 2, 3))),
        (reduce.SOFTMAX, layout.AlongAxis(-1)),
    ],
)
def test_nodes_do_not_trust_their_attributes(op, attrs):
    """They may come from a file."""
    builder = gs.Builder()
    with pytest.raises(gs.ShapeError):
        builder.apply(op, attrs, builder.input(X))


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        (loss.TAKE_LABEL, layout.AlongAxis(-1)),
        (loss.TAKE_LABEL, layout.AlongAxis(2)),
        (loss.PUT_LABEL, loss.PutLabel(0, -1)),
        (loss.PUT_LABEL, loss.PutLabel(3, 1)),
    ],
)
def test_labels_do_not_trust_their_attributes(op, attrs):
    builder = gs.Builder()
    with pytest.raises(gs.ShapeError):
        builder.apply(op, attrs, builder.input(X), builder.input(gs.i64[2]))
