"""Proofs are of true statements, counterexamples are ones, and every way to split finds what is there."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import gradspec as gs
from gradspec.verify import Property, prove, robust
from gradspec.verify.bounding import Bounder
from gradspec.verify.branching import InputSplitting
from patience import PATIENCE

RANDOM = np.random.default_rng(0)


def matrix(*shape):
    return (RANDOM.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


def dense(inputs, hidden):
    w1, w2, w3 = matrix(hidden, inputs), matrix(hidden, hidden), matrix(2, hidden)
    return gs.trace(lambda x: gs.linear(gs.relu(gs.linear(gs.relu(gs.linear(x, w1)), w2)), w3), gs.f32[inputs])


def convolutional():
    w1, w2 = matrix(4, 1, 3, 3), matrix(3, 36)

    def function(x):
        x = gs.max_pool2d(gs.relu(gs.conv2d(x, w1, padding=1)), 3, stride=2, padding=1)
        return gs.linear(gs.flatten(x, 1), w2)

    return gs.trace(function, gs.f32[1, 1, 6, 6])


FEW, MANY, CONVOLUTIONAL = dense(3, 12), dense(16, 20), convolutional()


def reached(graph, low, high, row, count=2000):
    """The least that ``row`` was seen to be over the box."""
    n = graph.inputs[0].shape
    points = np.random.default_rng(1).uniform(low, high, (count, *n)).astype(np.float32)
    outputs = graph.batch(count)(points).reshape(count, -1)
    return float((outputs @ row).min())


@pytest.mark.parametrize("graph", [FEW, MANY, CONVOLUTIONAL], ids=["few inputs", "many inputs", "convolution"])
@pytest.mark.parametrize("slack", [0.05, 0.5])
def test_bounds_below_what_is_reached_are_proved_and_bounds_above_refuted(graph, slack):
    shape, size = graph.inputs[0].shape, graph.outputs[0].type.size
    low, high = np.full(shape, -0.25, np.float32), np.full(shape, 0.25, np.float32)
    row = np.eye(size)[0]
    least = reached(graph, low, high, row)
    refuted = prove(graph, Property.always(low, high, [-row], [-(least + slack)]), timeout=PATIENCE)
    assert refuted.status == "refuted"
    (x,) = refuted.witness
    exact = gs.evaluate(graph, x, domain=gs.exact).cells[0]
    assert Fraction(int(exact.p), int(exact.q)) < Fraction(least + slack)
    far = prove(graph, Property.always(low, high, [-row], [-(least - 10)]), timeout=PATIENCE)
    assert far.status == "proved"
    assert far.margin > 0


def hat():
    """1 at 0, falling to 0 at ±1: three relus whose lines cancel only where their signs are known."""
    w1, b1, w2 = np.float32([[1], [1], [1]]), np.float32([1, 0, -1]), np.float32([[1, -2, 1]])
    return gs.trace(lambda x: gs.linear(gs.relu(gs.linear(x, w1, b1)), w2), gs.f32[1])


@pytest.mark.parametrize("few", [12, 0], ids=["boxes of inputs", "signs"])
def test_what_lines_alone_cannot_prove_is_split(monkeypatch, few):
    monkeypatch.setitem(prove.__globals__, "FEW_INPUTS", few)
    result = prove(hat(), Property.always([-2], [2], [[1]], ["1.1"]))
    assert result.status == "proved"
    assert result.parts > 1
    assert result.margin > 0


def test_a_limit_of_no_time_is_kept():
    result = prove(MANY, Property.always([-1] * 16, [1] * 16, [[1, 0]], [0]), timeout=0)
    assert result.status == "unknown"


def test_properties_of_other_networks_are_refused():
    with pytest.raises(gs.ShapeError, match="4 inputs and the graph 3"):
        prove(FEW, Property.always([0] * 4, [1] * 4, [[1, 0]], [0]))


def test_robustness_of_a_classifier():
    graph = gs.trace(lambda x: gs.linear(x, np.float32([[1, 0], [0, 1]])), gs.f32[2])
    assert robust(graph, [0.25, 0.75], "0.2", 1).status == "proved"
    assert robust(graph, [0.25, 0.75], "0.25", 1).status == "refuted"  # a tie


def test_a_point_between_floats_is_decided_exactly():
    """1/10 is no float32: the box of floats around it is wider, and its counterexample is 1/10 itself."""
    graph = gs.trace(lambda x: x * 1.0, gs.f32[1])
    assert prove(graph, Property.always(["1/10"], ["1/10"], [[1]], ["0.11"])).status == "proved"
    assert prove(graph, Property.always(["1/10"], ["1/10"], [[1]], ["0.09"])).status == "refuted"


def test_a_misspelt_statement_is_refused():
    """Anything but "any" must not quietly mean the weaker "real"."""
    with pytest.raises(ValueError, match="kernels='every' is not known"):
        prove(FEW, Property.always([0] * 3, [1] * 3, np.zeros((0, 2)), []), kernels="every")


@pytest.mark.parametrize("graph", [FEW, MANY], ids=["few inputs", "many inputs"])
def test_nothing_unsafe_is_proved_and_everything_unsafe_refuted(graph):
    n = graph.inputs[0].type.size
    assert prove(graph, Property.always([0] * n, [1] * n, np.zeros((0, 2)), [])).status == "proved"
    assert prove(graph, Property.never([0] * n, [1] * n, np.zeros((0, 2)), [])).status == "refuted"


@pytest.mark.parametrize("dtype", [gs.f16, gs.bf16, gs.f64], ids=str)
def test_networks_of_every_format(dtype):
    w = np.ones((1, 2), dtype.numpy)
    graph = gs.trace(lambda x: gs.relu(gs.linear(x, w)), dtype[2])
    assert prove(graph, Property.always([0, 0], ["1/10", 1], [[1]], ["1.2"])).status == "proved"
    assert prove(graph, Property.always([0, 0], ["1/10", 1], [[1]], ["0.9"])).status == "refuted"


def test_every_case_is_attacked(monkeypatch):
    """The first case is proved; the second has a counterexample at its end."""
    monkeypatch.setattr(prove.__globals__["_Search"], "_try_centres", lambda *given: None)
    safe, unsafe = (Property.always([0], [high], [[1]], ["0.99"]) for high in ("1/2", 1))
    graph = gs.trace(lambda x: gs.relu(x) - gs.relu(x - 2.0), gs.f32[1])
    monkeypatch.setitem(prove.__globals__, "MOST_PARTS", 0)  # what the attack does not find, splitting may not
    assert prove(graph, replace(safe, cases=(*safe.cases, *unsafe.cases))).status == "refuted"


def test_boxes_of_inputs_are_split_only_where_all_rows_fit():
    """Few pixels of a large plane: bounds of all its cells for each of many parts would take gigabytes."""
    w = matrix(8, 1, 3, 3)
    large = gs.trace(
        lambda x: gs.sum(gs.relu(gs.conv2d(gs.relu(gs.conv2d(x, w)), matrix(8, 8, 3, 3)))), gs.f32[1, 40, 40]
    )
    assert not InputSplitting.fits(Bounder(large, 1, "any"))
    assert InputSplitting.fits(Bounder(FEW, 1, "any"))
