"""No attribute, however large, makes a call slow: work and memory are those of the cells that are read and written.

A test of a call that hangs would hang; the expected results are those of the smallest attributes with the same meaning.
"""

import traceback
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import gradspec as gs
from gradspec.backends import tables
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Node
from gradspec.ops.core import operators
from gradspec.runtime import memory
from graph.test_op_laws import CASES

LARGE = [edge + near for edge in (2**31, 2**62) for near in (-1, 0, 1)]
SIZE = 4
X = np.random.default_rng(0).standard_normal((1, 2, SIZE, SIZE)).astype(np.float32)
WEIGHT = np.random.default_rng(1).standard_normal((3, 2, 2, 2)).astype(np.float32)
CELL = X[..., :1, :1]


def average_of_all(x, taps):
    """Of every window, of so many taps along each axis, which has all cells."""
    return gs.broadcast_to(gs.sum(x, (2, 3), keepdims=True) / float(taps) / float(taps), (1, 2, 5, 5))


def smooth(x, **more):
    return gs.smooth_max_pool2d(x, beta=1.0, **more)


# --- what is as good as a small attribute -----------------------------------------------------------------------------

SAME = {
    "max_pool stride": (lambda x, n: gs.max_pool2d(x, 2, n), lambda x, n: gs.max_pool2d(x, 2, 5), X),
    "avg_pool stride": (lambda x, n: gs.avg_pool2d(x, 2, n), lambda x, n: gs.avg_pool2d(x, 2, 5), X),
    "lp_pool stride": (lambda x, n: gs.lp_pool2d(x, 3, 2, n), lambda x, n: gs.lp_pool2d(x, 3, 2, 5), X),
    "smooth stride": (
        lambda x, n: smooth(x, kernel_size=2, stride=n),
        lambda x, n: smooth(x, kernel_size=2, stride=5),
        X,
    ),
    "ceil_mode": (
        lambda x, n: gs.max_pool2d(x, 3, n, 1, ceil_mode=True),
        lambda x, n: gs.max_pool2d(x, 3, 6, 1, ceil_mode=True),
        X,
    ),
    "unfold stride": (lambda x, n: gs.unfold(x, (2, 2), stride=n), lambda x, n: gs.unfold(x, (2, 2), stride=5), X),
    "conv stride": (lambda x, n: gs.conv2d(x, WEIGHT, stride=n), lambda x, n: gs.conv2d(x, WEIGHT, stride=5), X),
    "conv dilation": (
        lambda x, n: gs.conv2d(x, WEIGHT[..., :1, :1], dilation=n),
        lambda x, n: gs.conv2d(x, WEIGHT[..., :1, :1]),
        X,
    ),
    "conv_transpose stride": (
        lambda x, n: gs.conv_transpose2d(x, WEIGHT[:2], stride=n),
        lambda x, n: gs.conv_transpose2d(x, WEIGHT[:2]),
        CELL,
    ),
    "max_pool kernel": (
        lambda x, n: gs.max_pool2d(x, n // 2 * 2, 1, n // 2),
        lambda x, n: gs.max_pool2d(x, 8, 1, 4),
        X,
    ),
    "max_pool kernel and stride": (
        lambda x, n: gs.max_pool2d(x, n // 2 * 2, n, n // 2),
        lambda x, n: gs.max_pool2d(x, 8, 9, 4),
        X,
    ),
    "avg_pool kernel": (
        lambda x, n: gs.avg_pool2d(x, n // 2 * 2, 1, n // 2, count_include_pad=False),
        lambda x, n: gs.avg_pool2d(x, 8, 1, 4, count_include_pad=False),
        X,
    ),
    "avg_pool kernel, padding counted": (
        lambda x, n: gs.avg_pool2d(x, n // 2 * 2, 1, n // 2),
        lambda x, n: average_of_all(x, n // 2 * 2),
        X,
    ),
    "smooth kernel": (
        lambda x, n: smooth(x, kernel_size=n // 2 * 2, stride=1, padding=n // 2, padding_mode="ignore"),
        lambda x, n: smooth(x, kernel_size=8, stride=1, padding=4, padding_mode="ignore"),
        X,
    ),
}


@pytest.mark.parametrize("large", LARGE)
@pytest.mark.parametrize(("function", "small", "x"), SAME.values(), ids=SAME)
def test_a_large_attribute_means_what_a_small_one_does(function, small, x, large):
    right = small(x, large)
    np.testing.assert_allclose(function(x, large), right, 1e-5)
    for backend in ("cpu", "numpy"):
        graph, other = (gs.trace(lambda x, f=f: f(x, large), gs.f32[x.shape]) for f in (function, small))
        np.testing.assert_allclose(gs.compile(graph, backend=backend)(x), right, 1e-5)
        found = gs.compile(graph.vjp(), backend=backend)(x, np.ones_like(right))
        for result, expected in zip(
            found, gs.compile(other.vjp(), backend=backend)(x, np.ones_like(right)), strict=True
        ):
            np.testing.assert_allclose(result, expected, 1e-5)


@pytest.mark.parametrize("large", LARGE)
def test_the_winners_of_a_large_window_are_where_they_are(large):
    value, places = gs.max_pool2d(X, large // 2 * 2, large, large // 2, return_indices=True)
    assert places.ravel().tolist() == X.reshape(2, -1).argmax(axis=1).tolist()
    assert value.ravel().tolist() == X.max(axis=(2, 3)).ravel().tolist()


# --- what is too large ------------------------------------------------------------------------------------------------

REFUSED = {
    "adaptive_avg_pool": lambda x, n: gs.adaptive_avg_pool2d(x, n),
    "adaptive_max_pool": lambda x, n: gs.adaptive_max_pool2d(x, n),
    "resize": lambda x, n: gs.resize(x, (n, n)),
    "conv padding": lambda x, n: gs.conv2d(x, WEIGHT, padding=n),
    "conv_transpose stride": lambda x, n: gs.conv_transpose2d(x, WEIGHT[:2], stride=n),
    "conv_transpose dilation": lambda x, n: gs.conv_transpose2d(x, WEIGHT[:2], dilation=n),
    "unfold kernel": lambda x, n: gs.unfold(x, (n, n), padding=n // 2 + 1),
    "fold": lambda x, n: gs.fold(gs.reshape(x[..., :2, :1], (1, 4, 1)), (n, n), (2, 2), stride=n),
}


@pytest.mark.parametrize("large", LARGE)
@pytest.mark.parametrize("function", REFUSED.values(), ids=REFUSED)
def test_what_is_too_large_is_refused_with_its_size(function, large):
    with pytest.raises(MemoryError, match=r"needs [\d,]{20,} bytes of memory, and there are [\d,]+"):
        function(X, large)
    for backend in ("cpu", "numpy"):
        with pytest.raises(MemoryError, match=r"needs [\d,]{20,} bytes of memory, and there are [\d,]+"):
            gs.compile(lambda x: function(x, large), gs.f32[X.shape], backend=backend)


# --- models -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("large", LARGE)
@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool", "LpPool"])
def test_a_model_with_a_large_stride_runs(operator, large):
    def outputs(stride):
        node = helper.make_node(operator, ["x"], ["y"], kernel_shape=[2, 2], strides=[stride, stride])
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 2, 1, 1))
        graph = helper.make_graph([node], "model", [x], [y])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
        return gs.from_onnx(model)(X)

    np.testing.assert_array_equal(outputs(large), outputs(5))


# --- every integer of every operator ----------------------------------------------------------------------------------

Place = tuple[Any, ...]
"""Names of fields and indices of tuples that lead to an integer."""


def integers(value: Any, place: Place = ()) -> Iterator[Place]:
    """Where the integers of a record are, but for those of graphs within it, whose nodes are operators, too."""
    if isinstance(value, int) and not isinstance(value, bool):
        yield place
    elif isinstance(value, tuple):
        for i, each in enumerate(value):
            yield from integers(each, (*place, i))
    elif is_dataclass(value) and not isinstance(value, Graph):
        for field in fields(value):
            yield from integers(getattr(value, field.name), (*place, field.name))


def changed(value: Any, places: list[Place], n: int) -> Any:
    """The record with ``n`` at these places."""
    for place in places:
        value = _put(value, place, n)
    return value


def _put(value: Any, place: Place, n: int) -> Any:
    if not place:
        return n
    first, *rest = place
    if isinstance(value, tuple):
        return tuple(_put(each, tuple(rest), n) if i == first else each for i, each in enumerate(value))
    return replace(value, **{first: _put(getattr(value, first), tuple(rest), n)})


def sweeps(attrs: Any) -> list[list[Place]]:
    """Each integer alone, and all of one field or two: a kernel and its padding, say."""
    places = list(integers(attrs))
    fields_ = dict.fromkeys(place[0] for place in places)
    pairs = combinations_with_replacement(fields_, 2)
    return [[p] for p in places] + [[p for p in places if p[0] in pair] for pair in pairs]


@cache
def nodes() -> dict[str, Node]:
    """For each operator the node with the most integers among those of all rows and their derivatives."""
    found: dict[str, Node] = {}
    for case in CASES:
        graph = case.graph(gs.f32)
        for node in (*graph.nodes, *graph.vjp().nodes, *graph.jvp().nodes):
            best = found.get(node.op.name)
            is_empty = 0 in (n for v in node.inputs for n in v.shape)
            if best is None or (not is_empty and len([*integers(node.attrs)]) > len([*integers(best.attrs)])):
                found[node.op.name] = node
    return found


def with_attributes(node: Node, attrs: Any) -> Graph:
    builder = gs.Builder()
    inputs = [builder.input(v.type) for v in node.inputs]
    return builder.build(builder.apply(node.op, attrs, *inputs))


def arrays_for(graph: Graph) -> list[np.ndarray]:
    return [(np.ones if v.type.is_float else np.zeros)(v.shape, v.dtype.numpy) for v in graph.inputs]


def is_ours(error: Exception) -> bool:
    """Whether an error says what is wrong, as those of this library do."""
    if isinstance(error, MemoryError):
        return "bytes of memory, and there are" in str(error)
    *_, last = traceback.walk_tb(error.__traceback__)
    is_plain = isinstance(error, ValueError | TypeError) and last[0].f_globals["__name__"].startswith("gradspec.")
    return is_plain or type(error).__module__.startswith("gradspec.")


def refused(call: Any, what: str) -> bool:
    """Whether a call is refused with one of our errors. One that is not must come to an end."""
    try:
        call()
    except Exception as error:
        if is_ours(error):
            return True
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    return False


@pytest.fixture
def little_memory(monkeypatch):
    """What would take more than 64 MiB is refused, so that no array of the sweep is large."""
    monkeypatch.setattr(memory, "machine_bytes", lambda: 1 << 26)
    monkeypatch.setattr(memory, "MUCH_MEMORY", 1 << 20)
    monkeypatch.setattr(tables, "machine_bytes", lambda: 1 << 26)
    monkeypatch.setattr(tables, "MANY_TAPS", 1 << 16)


def test_every_operator_is_swept():
    assert {*nodes()} == {*operators()}


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("name", sorted(operators()))
def test_every_integer_of_every_operator_is_quick_or_refused(name):
    """As a graph, by the specification and on both backends."""
    node = nodes()[name]
    for places in sweeps(node.attrs):
        for n in LARGE:
            what, graphs = f"{name}: {places} = {n}", []
            attrs = changed(node.attrs, places, n)
            if refused(lambda attrs=attrs, to=graphs: to.append(with_attributes(node, attrs)), what):
                continue
            (graph,) = graphs
            arrays = arrays_for(graph)
            refused(lambda g=graph, given=arrays: gs.evaluate(g, *given, domain=gs.ball(64)), what)
            for backend in ("numpy", "cpu"):
                refused(lambda g=graph, given=arrays, b=backend: gs.compile(g, backend=b)(*given), what)


@pytest.mark.usefixtures("little_memory")
def test_what_padding_writes_on_the_way_is_held():
    """Padding moves numbers as a view does, but it gives none."""
    graph = gs.trace(lambda x: gs.sum(gs.pad(x, [(0, 2**40)])), gs.f32[4])
    with pytest.raises(MemoryError, match=r"pad: the result, f32\[1099511627780\], needs .* give smaller shapes"):
        gs.compile(graph)


# --- the same in models -----------------------------------------------------------------------------------------------


def model_integers(model: onnx.ModelProto) -> Iterator[tuple[str, Any]]:
    """Every integer attribute of a model's nodes, and what puts another number in its place."""
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.INT:
                yield f"{node.op_type}.{attribute.name}", lambda n, a=attribute: setattr(a, "i", n)
            for i in range(len(attribute.ints)):
                yield f"{node.op_type}.{attribute.name}[{i}]", lambda n, a=attribute, i=i: a.ints.__setitem__(i, n)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("name", sorted(operators()))
def test_every_integer_of_a_model_is_quick_or_refused(name):
    """Of the model that an operator is exported as."""
    node = nodes()[name]
    try:
        text = gs.to_onnx(with_attributes(node, node.attrs)).SerializeToString()
    except gs.UnsupportedError:
        return
    count = len([*model_integers(onnx.load_from_string(text))])
    for number in range(count):
        for n in LARGE:
            model = onnx.load_from_string(text)
            what, put = [*model_integers(model)][number]
            put(n)
            graphs: list[Graph] = []
            if not refused(lambda m=model, to=graphs: to.append(gs.from_onnx(m)), f"{name}: {what} = {n}"):
                given = arrays_for(graphs[0])
                refused(lambda g=graphs[0], given=given: gs.compile(g, backend="numpy")(*given), f"{what} = {n}")


@pytest.mark.usefixtures("little_memory")
def test_the_specification_has_no_views():
    graph = gs.trace(lambda x: gs.sum(gs.broadcast_to(x, (2**40,))[:2]), gs.f32[1])
    assert gs.compile(graph)(np.float32([1])) == 2
    with pytest.raises(MemoryError, match=r"broadcast_to: the result, .* give smaller shapes"):
        gs.evaluate(graph, [1], domain=gs.exact)
