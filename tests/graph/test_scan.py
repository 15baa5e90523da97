"""Scans against the loops that they stand for: values, derivatives, enclosures; what is refused, and what is saved."""

import json

import numpy as np
import pytest

import gradspec as gs
from gradspec.conformance.oracle.enclosure import enclosure
from gradspec.graph import tree
from gradspec.graph.graph import check
from gradspec.ops.scan import MOST_NODES
from gradspec.saving.graphs import from_text, to_text
from graph.test_op_laws import assert_same, evaluated, several

rng = np.random.default_rng(0)


def loop(function, carry, xs, *, length=None, reverse=False):
    """What ``gs.scan`` means, of one step or more."""
    columns, rows = tree.leaves((xs,)), []
    for i in range(length if length is not None else columns[0].shape[0])[:: -1 if reverse else 1]:
        carry, y = function(carry, tree.rebuild(xs, iter([x[i] for x in columns])))
        rows.append(y)
    rows = rows[:: -1 if reverse else 1]
    columns = (gs.concat([y[None] for y in ys]) for ys in zip(*map(tree.leaves, ((r,) for r in rows)), strict=True))
    return carry, tree.rebuild(rows[0], columns)


def network(scan, x, w, h):
    def step(h, x):
        h = gs.relu(gs.matmul(w, h) + x)
        return h, (gs.sum(h * x), gs.maximum(x, 0.0))

    return scan(step, h, x)


def gated(scan, x, gate, h):
    """What is read of a later step's gate is none of the carry's."""

    def step(carry, cells):
        h, before = carry
        x, gate = cells
        h = h * gate * gate + x
        return (h, x), {"kept": h * before, "gate": gate * 2.0}

    return scan(step, (h, h), (x, gate), reverse=True)


def nested(scan, x, w, h):
    def outer(h, x):
        return scan(lambda p, _: (p * h + x, p), h, None, length=2)

    return scan(outer, h, x)


def mapped(scan, x, w, h):
    return scan(lambda carry, x: (carry, x * x * h), None, x)[1], w


LOOPS = {
    "network": (network, (4, 3), (3, 3), (3,)),
    "gated": (gated, (4, 3), (4, 3), (3,)),
    "nested": (nested, (3, 3), (1,), (3,)),
    "of one step": (network, (1, 3), (3, 3), (3,)),
    "without carries": (mapped, (4, 3), (1,), (3,)),
}


def graphs(name, dtype=gs.f64):
    function, *shapes = LOOPS[name]
    types = [dtype[s] for s in shapes]
    arrays = [(np.round(rng.uniform(-2, 2, s) * 8) / 8).astype(dtype.numpy) for s in shapes]
    pair = [gs.trace(lambda *a, s=s: function(s, *a), *types, allow_unused=True) for s in (gs.scan, loop)]
    return [*map(check, pair)], arrays


def derived(graph):
    return {"value": graph, "jvp": graph.jvp(), "vjp": graph.vjp(), "second": graph.vjp().jvp()}


@pytest.mark.parametrize("name", LOOPS)
def test_a_scan_is_its_loop_in_rationals_with_its_derivatives(name):
    (scan, unrolled), arrays = graphs(name)
    other = derived(unrolled)
    for mode, graph in derived(scan).items():
        more = [np.round(rng.uniform(-2, 2, v.shape) * 4) / 4 for v in graph.inputs[len(arrays) :]]
        assert_same(*(evaluated(check(g), [*arrays, *more], gs.exact) for g in (graph, other[mode])))


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
@pytest.mark.parametrize("name", LOOPS)
def test_a_scan_has_the_bits_of_its_loop(name, backend):
    pair, arrays = graphs(name, gs.f32)
    results = [several(gs.compile(graph, backend=backend)(*arrays)) for graph in pair]
    for a, b in zip(*results, strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("wrt", ["gate", "x", "h", None])
def test_a_tangent_that_is_zero_is_not_computed_with(wrt):
    """Infinity times such a zero is none of the results."""

    def function(scan, gate, x, h):
        return scan(lambda h, cells: (cells[0] * h + cells[1], h), h, (gate, x))

    types = gs.f32[3, 2], gs.f32[3, 2], gs.f32[2]
    pair = [gs.trace(lambda gate, x, h, s=s: function(s, gate, x, h), *types) for s in (gs.scan, loop)]
    gate = np.float32([[np.inf, 1], [1, 2], [3, np.inf]])
    for derive in (gs.Graph.jvp, gs.Graph.vjp):
        graphs = [derive(graph, wrt) for graph in pair]
        results = [graph(gate, *(np.ones(v.shape, np.float32) for v in graph.inputs[1:])) for graph in graphs]
        for a, b in zip(*results, strict=True):
            assert np.array_equal(a, b, equal_nan=True)


@pytest.mark.parametrize("name", LOOPS)
def test_an_enclosure_of_a_scan_holds_what_its_loop_gives_and_is_no_wider(name):
    """Wider by no more than second orders: derivatives may be added up in another order."""
    pair, _ = graphs(name, gs.f32)
    modes = [derived(graph) for graph in pair]
    for mode in ("value", "jvp", "vjp"):
        scan, unrolled = (each[mode] for each in modes)
        arrays = [rng.uniform(-1, 1, v.shape).astype(np.float32) for v in scan.inputs]
        (low, high), (lowest, highest) = (enclosure(graph, *arrays) for graph in (scan, unrolled))
        for a, b, c, d, y in zip(low, high, lowest, highest, unrolled(*arrays), strict=True):
            assert np.all((a <= y) & (y <= b))
            assert np.all(b - a <= (d - c) * (1 + 1e-6))


# --- what is left to the steps ----------------------------------------------------------------------------------------


def test_only_the_recurrence_is_left_to_the_body():
    graph = gs.trace(
        lambda x, a, w: gs.scan(lambda h, x: (gs.exp(x * a) * h + gs.tanh(x), gs.sum(h * w)), a, x)[1],
        gs.f32[5, 2],
        gs.f32[2],
        gs.f32[2],
    )
    (scan,) = (node for node in graph.nodes if node.op.name == "scan")
    assert [node.op.name for node in scan.attrs.body.nodes] == ["mul", "add"]
    assert {"exp", "tanh", "sum"} <= {node.op.name for node in graph.nodes}
    assert not scan.attrs.body.constants


def test_a_scan_without_carries_is_none():
    graph = gs.trace(lambda x: gs.scan(lambda _, x: (None, x * x), None, x)[1], gs.f32[5, 2])
    assert [node.op.name for node in graph.nodes] == ["mul"]


def test_the_body_is_printed_below_its_node():
    graph = gs.trace(lambda x, h: gs.scan(lambda h, x: (h * x, None), h, x)[0], gs.f32[5, 2], gs.f32[2])
    assert str(graph).splitlines()[1:5] == [
        "  scan : f32[2] = scan(h, x, body=1 nodes, carries=1, columns=1, length=5)",
        "    graph(h: f32[2], x: f32[2]):",
        "      mul : f32[2] = mul(h, x)",
        "      return mul",
    ]


# --- functions of arrays ----------------------------------------------------------------------------------------------


def test_arrays_are_scanned_at_once():
    last, ys = gs.scan(lambda h, x: (h + x["a"], {"y": h * x["a"]}), np.float32(1), {"a": np.float32([2, 3])})
    assert last == 6
    assert ys["y"].tolist() == [2, 9]
    assert gs.scan(lambda h, _: (h * 2.0, h), np.float32(1), length=3, reverse=True)[1].tolist() == [4, 2, 1]
    assert gs.grad(lambda h: gs.scan(lambda h, _: (h * h, None), h, length=3)[0])(np.float64(2.0)) == 8 * 2**7


REFUSED = {
    "no pair": (lambda h, x: h + x, {}, TypeError, "a pair of the next carry"),
    "another carry": (lambda h, x: ((h, h), x), {}, TypeError, "the first carry has the structure"),
    "a smaller carry": (lambda h, x: (h[0], x), {"init": (1.0, 2.0)}, TypeError, "the carry that the function returns"),
    "another type": (lambda h, x: (gs.sum(h), x), {}, gs.ShapeError, "before a step and"),
    "another length": (lambda h, x: (h + x, x), {"length": 4}, gs.ShapeError, r"one size.*\[3, 4\]"),
    "no length": (lambda h, x: (h, None), {"xs": None}, gs.ShapeError, "one size"),
    "no axis": (lambda h, x: (h + x, None), {"xs": np.float32(1)}, gs.ShapeError, "has none"),
    "nothing": (lambda h, x: (None, None), {"init": None, "xs": None, "length": 2}, TypeError, "not a variable"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_scan_is_refused(name):
    function, change, error, message = REFUSED[name]
    given = {"init": np.ones(2, np.float32), "xs": np.ones((3, 2), np.float32)} | change
    with pytest.raises(error, match=message):
        gs.scan(function, **given)


@pytest.mark.parametrize("length", [10**9, 2**62])
def test_endless_steps_are_refused_at_once(length):
    with pytest.raises(gs.ShapeError, match=f"more than {MOST_NODES}"):
        gs.trace(lambda h: gs.scan(lambda h, _: (h * h, None), h, length=length)[0], gs.f32[2])


def test_the_steps_of_scans_within_scans_count():
    def inner(h, _):
        return gs.scan(lambda h, _: (h * h, None), h, length=2**10)

    with pytest.raises(gs.ShapeError, match=f"more than {MOST_NODES}"):
        gs.trace(lambda h: gs.scan(inner, h, length=2**10)[0], gs.f32[2])


# --- files ------------------------------------------------------------------------------------------------------------


def saved():
    return json.loads(to_text(graphs("network")[0][0].vjp()))


def scan_of(data):
    return next(node for node in data[0]["nodes"] if node["op"] == "scan")


def test_a_scan_is_saved_with_its_body():
    text = json.dumps(saved())
    assert to_text(from_text(text)) == text


DAMAGE = {
    "no graph": (lambda a: a.update(body=3), "body: expected .*Graph"),
    "an empty graph": (lambda a: a["body"].update(graph={}), r"body\.graph: version None"),
    "a record": (lambda a: a.update(body={"record": "Graph", "fields": {}}), "body: expected a value"),
    "no outputs": (lambda a: a["body"]["graph"].update(outputs=[]), r"body\.graph: .*not well formed"),
    "a constant": (
        lambda a: a["body"]["graph"]["constants"].append({"name": "k", "dtype": "f64", "shape": []}),
        r"body\.graph: constants\[0\]: the file holds no tensor",
    ),
    "another type": (lambda a: a["body"]["graph"]["inputs"][0].update(shape=[7]), r"body\.graph: nodes\["),
    "no carry": (lambda a: a.update(carries=0), "not 0 carries"),
    "too many columns": (lambda a: a.update(columns=9), "9 columns"),
    "another length": (lambda a: a.update(length=5), "its body takes"),
    "a negative length": (lambda a: a.update(length=-1), "-1 steps"),
    "endless": (lambda a: a.update(length=10**9), f"more than {MOST_NODES}"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_body_is_refused(name):
    change, message = DAMAGE[name]
    data = saved()
    change(scan_of(data)["attributes"])
    with pytest.raises(gs.FormatError, match=f"(?s)nodes.*{message}"):
        from_text(json.dumps(data))
