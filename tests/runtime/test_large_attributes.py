"""No attribute, however large, makes a call slow: work and memory are those of the cells that are read and written.

A test of a call that hangs would hang; the expected results are those of the smallest attributes with the same meaning.
"""

import numpy as np
import pytest
from onnx import TensorProto, helper

import gradspec as gs

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
