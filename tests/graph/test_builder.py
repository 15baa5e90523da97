"""Building and checking graphs: what is refused, with which words, and what is captured when."""

from types import MappingProxyType

import numpy as np
import pytest

import gradspec as gs
from gradspec.graph.graph import Graph, check
from gradspec.graph.ir import Node, Var


def two_inputs():
    b = gs.Builder()
    return b, b.input(gs.f32[2, 3], "x"), b.input(gs.f32[3], "y")


def foreign():
    _, x, _ = two_inputs()
    _, z, _ = two_inputs()
    return x + z


def mixed_dtypes():
    b = gs.Builder()
    return b.input(gs.f32[2], "x") + b.input(gs.f64[2], "y")


def unused():
    b, x, _ = two_inputs()
    return b.build(x + 1.0)


def not_built_here():
    b, _, _ = two_inputs()
    _, z, _ = two_inputs()
    return b.build(z)


def branch():
    _, x, _ = two_inputs()
    return 1 if x else 2


def compared():
    _, x, _ = two_inputs()
    return x == 0


def no_shape():
    b, x, _ = two_inputs()
    return x + b.input(gs.f32[4], "z")


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (foreign, ValueError, r"add: x: f32\[2, 3\] belongs to another graph"),
        (mixed_dtypes, gs.DTypeError, r"add\(x: f32\[2\], y: f64\[2\]\).*one dtype.*convert one of them"),
        (no_shape, gs.ShapeError, r"add: the shapes \(2, 3\), \(4,\) do not broadcast"),
        (unused, ValueError, "the input y does not reach any output; remove it, or"),
        (not_built_here, ValueError, r"the output x: f32\[2, 3\] is not a variable of this graph"),
        (lambda: gs.Builder().build([]), ValueError, "at least one output"),
        (branch, TypeError, r"x: f32\[2, 3\] has no value while the graph is built"),
        (lambda: two_inputs()[0].input(gs.f32[1], 3), TypeError, "is a text, not 3"),
        (compared, TypeError, r"x: f32\[2, 3\] has no value.*compared with 0; gs.greater"),
        (lambda: two_inputs()[0].input(gs.f32[1], "x"), ValueError, "already has a variable called 'x'"),
        (lambda: gs.Builder().input((2, 3)), gs.DTypeError, r"a type such as gs.f32\[3, 32, 32\]"),
        (lambda: gs.f32[-1], gs.ShapeError, "axis 0 of a type is -1"),
        (lambda: gs.f32[2.5], gs.ShapeError, "axis 0 of a type is 2.5"),
        (lambda: gs.trace(lambda x: 3.0, gs.f32[2]), TypeError, "returned 3.0, not a variable"),
        (lambda: gs.trace(lambda x: x, (2, 3)), TypeError, r"needs types such as gs.f32\[3, 32, 32\]"),
        (lambda: gs.trace(lambda x, y: x, gs.f32[2], gs.f32[2]), ValueError, "the input y does not reach"),
        (lambda: gs.Builder().const(np.array(["a"])), gs.DTypeError, "arrays of <U1 are not supported"),
    ],
)
def test_what_is_refused(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_an_error_points_at_the_line_that_applied_the_operator():
    with pytest.raises(gs.ShapeError) as caught:
        no_shape()
    assert any(entry.name == "no_shape" for entry in caught.traceback)


@pytest.mark.parametrize(
    ("arrays", "error", "words"),
    [
        ((np.zeros(2, np.float32),), TypeError, r"takes 2 arrays \(x: f32\[2, 3\], y: f32\[3\]\), not 1"),
        (
            (np.zeros((2, 2), np.float32), np.zeros(3, np.float32)),
            gs.ShapeError,
            r"shape \(2, 2\); pass one of shape \(2, 3\)",
        ),
        ((np.zeros((2, 3)), np.zeros(3, np.float32)), gs.DTypeError, r"f64 numbers; gs.convert\(x, gs.f32\)"),
    ],
)
def test_what_a_run_refuses(arrays, error, words):
    b, x, y = two_inputs()
    with pytest.raises(error, match=words):
        b.build(x * y)(*arrays)


def test_constants_are_copied_and_scalars_take_the_dtype():
    captured = np.ones(3, np.float32)
    graph = gs.trace(lambda x: captured * x + 2, gs.f32[3])
    captured[:] = 100
    assert graph(np.float32([1, 2, 3])).tolist() == [3, 4, 5]
    assert {v.dtype for v in graph.constants} == {gs.f32}
    assert all(not array.flags.writeable for array in graph.constants.values())


@pytest.mark.parametrize(
    "function",
    [
        lambda x: gs.broadcast_to(x, (5,)),
        lambda x: gs.reshape(x, (5,)),
        lambda x: gs.flatten(x, 2),
        lambda x: gs.transpose(x, (0, 0)),
        lambda x: gs.concat([x, gs.reshape(x, (3, 2))]),
        lambda x: gs.slice(x, (0,), (1,)),
        lambda x: gs.pad(x, (1, 1)),
        lambda x: gs.sum(x, 2),
        lambda x: gs.mean(x, 2),
        lambda x: gs.softmax(x, 2),
        lambda x: gs.log_softmax(x, 2),
        lambda x: gs.mse_loss(x, np.zeros(3, np.float32)),
        lambda x: gs.maximum(x, np.zeros(4, np.float32)),
        lambda x: gs.matmul(x, x),
        lambda x: gs.conv(x, np.zeros((1, 3, 1), np.float32)),
        lambda x: gs.max_pool1d(x, 2, stride=0),
    ],
)
def test_errors_name_the_variables_and_their_types(function):
    with pytest.raises(gs.ShapeError, match=r"\bx: f32\[2, 3\]"):
        gs.trace(function, gs.f32[2, 3])


@pytest.mark.parametrize("dtype", [gs.f16, gs.f32, gs.f64])
@pytest.mark.parametrize("number", [2, 2.5, True, np.sqrt(6.25), np.ones(3).mean()])
def test_numbers_take_the_dtype_eagerly_and_traced(dtype, number):
    """NumPy's own float64 results are numbers like Python's, of which they are a subclass."""
    x = np.ones(3, dtype.numpy)
    eager, traced = gs.mul(x, number), gs.trace(lambda x: number * x, dtype[3])(x)
    assert eager.dtype == traced.dtype == dtype.numpy
    assert eager.tolist() == traced.tolist() == [number] * 3


@pytest.mark.parametrize(
    "call",
    [
        lambda: gs.maximum(np.int32([1, 2]), 1.5),
        lambda: gs.trace(lambda n: gs.maximum(n, 1.5), gs.i32[2]),
        lambda: gs.trace(lambda n: gs.maximum(n, float("nan")), gs.i32[2]),
        lambda: gs.trace(lambda n: gs.maximum(n, n), gs.i32[()])(1.5),
        lambda: gs.evaluate(gs.trace(lambda n: gs.maximum(n, n), gs.i32[()]), 1.5, domain=gs.exact),
    ],
)
def test_fractions_are_not_cut_off_to_integers(call):
    with pytest.raises(gs.DTypeError, match="is not an integer"):
        call()


def test_a_domain_is_not_a_name():
    with pytest.raises(TypeError, match=r"domain='exact' .*gs\.exact"):
        gs.evaluate(gs.trace(gs.relu, gs.f32[()]), 1.0, domain="exact")


def test_results_are_fresh_arrays():
    graph = gs.trace(lambda x: (x, gs.reshape(x, (4,))), gs.f32[2, 2])
    x = np.ones((2, 2), np.float32)
    for result in graph(x):
        result[...] = 7
    assert (x == 1).all()


ARRAY = np.float32([[1, 2, -4], [0, 8, 1]])
EXPRESSIONS = {
    **{f"power {n}": lambda x, n=n: x**n for n in (1, 2, 3, 6, 7, np.int64(8))},
    "abs": abs,
    "plus": lambda x: +x + x,
    "array + x": lambda x: ARRAY + x,
    "array - x": lambda x: ARRAY - x,
    "array * x": lambda x: ARRAY * x,
    "x array / 2": lambda x: x * ARRAY / np.float32(2),
    "array / x": lambda x: ARRAY / (x * x + np.float32(1)),
    "array @ x": lambda x: ARRAY @ x[0],
    "scalar - x": lambda x: np.float32(3) - x,
    "np.add": lambda x: np.add(x, ARRAY),
}


@pytest.mark.parametrize("expression", EXPRESSIONS.values(), ids=EXPRESSIONS)
def test_expressions_of_variables_are_those_of_arrays(expression):
    x = np.float32([[-3, 2, 0], [1, -1, 7]])
    np.testing.assert_array_equal(gs.trace(expression, gs.f32[2, 3])(x), expression(x))


def test_an_array_is_not_changed_by_adding_a_variable():
    def added(x):
        array = np.zeros(2, np.float32)
        array += x
        return x

    with pytest.raises(TypeError, match=r"np.add computes with arrays"):
        gs.trace(added, gs.f32[2])


def test_several_outputs_and_repeated_ones():
    graph = check(gs.trace(lambda x: (x + x, x, x), gs.f32[2]))
    doubled, first, second = graph(np.float32([1, 2]))
    assert (doubled.tolist(), first.tolist(), second.tolist()) == ([2, 4], [1, 2], [1, 2])


def test_only_what_is_needed_is_kept():
    def wasteful(x):
        _ = x * x * x
        return x + 1.0

    assert [node.op.name for node in gs.trace(wasteful, gs.f32[2]).nodes] == ["broadcast_to", "add"]


BROKEN = {
    "outputs": lambda g: Graph(g.inputs, g.nodes, (), g.constants),
    "single assignment": lambda g: Graph(g.inputs, g.nodes + g.nodes, g.outputs, g.constants),
    "order": lambda g: Graph(g.inputs, g.nodes[::-1], g.outputs, g.constants),
    "types": lambda g: _with_node(g, lambda n: Node(n.op, n.attrs, n.inputs, (Var("wrong", gs.f64[7], None),))),
    "attributes": lambda g: _with_node(g, lambda n: Node(n.op, object(), n.inputs, n.outputs)),
    "names": lambda g: Graph((*g.inputs, Var("x", gs.f32[1], None)), g.nodes, g.outputs, g.constants),
    "constants": lambda g: Graph(g.inputs, g.nodes, g.outputs, MappingProxyType({v: np.zeros(9) for v in g.constants})),
}


def _with_node(graph, change):
    return Graph(graph.inputs, (*graph.nodes[:-1], change(graph.nodes[-1])), graph.outputs, graph.constants)


@pytest.mark.parametrize("fault", BROKEN)
def test_the_checker_sees_every_fault(fault):
    graph = gs.trace(lambda x: (x + 1.0) * x, gs.f32[2])
    check(graph)
    with pytest.raises(ValueError, match=f"\n  {fault}: "):
        check(BROKEN[fault](graph))


@pytest.mark.parametrize(
    ("wrt", "error", "words"),
    [
        ("z", ValueError, "wrt='z' is not an input"),
        (5, ValueError, "wrt=5 is not an input"),
        ("n", TypeError, "integers have no derivative"),
        ([], ValueError, "wrt names no input"),
    ],
)
def test_wrt(wrt, error, words):
    b = gs.Builder()
    x, n = b.input(gs.f32[2], "x"), b.input(gs.i64[2], "n")
    graph = b.build([x * x, n])
    with pytest.raises(error, match=words):
        graph.vjp(wrt)


def test_integers_have_no_tangents():
    b = gs.Builder()
    x, n = b.input(gs.f32[2], "x"), b.input(gs.i64[3], "n")
    graph = b.build([x * x, n])
    assert [v.type for v in graph.jvp().inputs] == [gs.f32[2], gs.i64[3], gs.f32[2]]
    assert [v.type for v in graph.jvp().outputs] == [gs.f32[2], gs.i64[3], gs.f32[2]]
    assert [v.type for v in graph.vjp().inputs] == [gs.f32[2], gs.i64[3], gs.f32[2]]


@pytest.mark.parametrize(
    ("in_axes", "words"),
    [([0], "1 entries for 2 inputs"), (1, "in_axes=1 is not known"), (None, "every input without a batch axis")],
)
def test_batch_axes(in_axes, words):
    graph = gs.trace(lambda x, y: x * y, gs.f32[2], gs.f32[2])
    with pytest.raises(ValueError, match=words):
        graph.batch(3, in_axes)
