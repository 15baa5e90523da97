"""Cells in order: special values and ties against PyTorch, whose sort is stable; enclosures; what does not fit."""

from math import inf, nan

import numpy as np
import pytest
import torch

import gradspec as gs
from gradspec.graph.types import type_of

ROWS = {
    "ties": [2, 5, 2, 7, 5, 2],
    "special": [1, nan, -inf, inf, nan, 0.0, -0.0, inf, -1],
    "more than is sorted by insertion": [i * 7 % 3 for i in range(99)],
    "zeros": [-0.0, 0.0, -0.0, 0.0],
    "nothing but NaN": [nan, nan],
    "one": [3],
}


@pytest.mark.parametrize("backend", ["cpu", "numpy", "spec", "onnx", "jax"])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("name", ROWS)
def test_the_order_is_pytorchs(name, descending, backend):
    x = np.float32(ROWS[name])
    graph = gs.trace(lambda x: gs.sort(x, 0, descending), type_of(x))
    values, places = ordered(graph, x, backend)
    right = torch.sort(torch.from_numpy(x), stable=True, descending=descending)
    np.testing.assert_array_equal(places, right.indices)
    np.testing.assert_array_equal(values, right.values)


def ordered(graph, x, backend):
    if backend == "spec":
        values, places = gs.evaluate(graph, x, domain=gs.ieee("f32"))
        return [*map(float, values.cells)], places.cells
    if backend == "jax":
        return [np.asarray(t) for t in gs.to_jax(graph)(x)]
    if backend == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(gs.to_onnx(graph, nan_safe=True).SerializeToString())
        return session.run(None, {"x": x})
    return gs.compile(graph, backend=backend)(x)


def test_integers_have_an_order_too():
    for dtype in (np.uint8, np.int8, np.uint64, np.int64):
        x = np.array([0, np.iinfo(dtype).max, np.iinfo(dtype).min, 1], dtype)
        values, places = gs.topk(x, 3)
        assert values.tolist() == sorted(x.tolist(), reverse=True)[:3]
        assert x[places].tolist() == values.tolist()


def test_enclosures_decide_or_say_so():
    graph = gs.trace(lambda x: gs.topk(x, 1), gs.f64[2])
    apart = gs.interval.tensor([1.0, 3.0], [2.0, 4.0])
    value, place = gs.evaluate(graph, apart, domain=gs.interval)
    assert (str(value.tolist()), place.tolist()) == ("[[3.0, 4.0]]", [1])
    with pytest.raises(gs.AmbiguityError, match="which of"):
        gs.evaluate(graph, gs.interval.tensor([1.0, 1.5], [2.0, 4.0]), domain=gs.interval)


def test_the_cotangent_goes_to_the_chosen():
    graph = gs.trace(lambda x: gs.topk(x, 2, largest=False)[0], gs.f64[4])
    assert graph.vjp()(np.float64([4, 1, 1, 0]), np.float64([10, 20]))[1].tolist() == [0, 20, 0, 10]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: gs.topk(x, 4), gs.ShapeError, "k is 4, and there are 3 cells"),
        (lambda x: gs.topk(x, -1), gs.ShapeError, "k is -1"),
        (lambda x: gs.topk(x, 2**62), gs.ShapeError, "3 or fewer"),
        (lambda x: gs.topk(x, 1, 2), gs.ShapeError, "2 is not an axis"),
        (lambda x: gs.topk(gs.greater(x, 0.0), 1), gs.DTypeError, "needs numbers"),
        (lambda x: gs.grid_sample(x, x), gs.ShapeError, "does not sample"),
        (lambda x: gs.grid_sample(gs.reshape(x, (1, 2, 3)), np.zeros((1, 4, 1))), gs.DTypeError, "one dtype"),
        (lambda x: gs.grid_sample(gs.reshape(x, (1, 2, 3)), np.zeros((1, 4, 1), np.float32), "cubic"),
         gs.UnsupportedError, "mode 'cubic'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said(call, error, message):
    with pytest.raises(error, match=message):
        gs.trace(call, gs.f32[2, 3])
