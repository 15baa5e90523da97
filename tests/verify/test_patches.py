"""Rows that carry patches give what rows of whole planes give, wherever they apply, and refuse the rest."""

import numpy as np
import pytest

import gradspec as gs
from gradspec.ops.box import BoundArithmetic
from gradspec.transforms.boxes import varying
from gradspec.transforms.patches import patched_lines
from gradspec.verify.bounding import Bounder, Patches
from gradspec.verify.execution import execution_on


def weights(*shape):
    return (np.random.default_rng(sum(shape)).standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def plain(x):
    return gs.conv2d(gs.relu(gs.conv2d(x, weights(3, 2, 3, 3))), weights(4, 3, 3, 3))


def padded(x):
    x = gs.relu(gs.conv2d(x, weights(3, 2, 3, 3), weights(3), padding=1))
    return gs.conv2d(x, weights(4, 3, 3, 3), padding=((2, 0), (1, 3)))


def strided(x):
    x = gs.relu(gs.conv2d(x, weights(4, 2, 3, 2), stride=(1, 2), padding=(1, 0), dilation=(2, 1)))
    return gs.conv2d(x, weights(4, 2, 3, 3), stride=2, padding=1, groups=2)


def without_activation(x):
    """Padding of the second convolution is 0, and not what the first one gives there."""
    return gs.conv2d(gs.conv2d(x, weights(3, 2, 3, 3), weights(3), padding=1), weights(2, 3, 3, 3), padding=2)


def pooled(x):
    x = gs.max_pool2d(gs.relu(gs.conv2d(x, weights(3, 2, 3, 3), padding=1)), 3, stride=2)
    return gs.conv2d(gs.avg_pool2d(x, 2, 1), weights(4, 3, 2, 2), padding=1)


def residual(x):
    y = gs.relu(gs.conv2d(x, weights(2, 2, 3, 3), padding=1))
    return gs.conv2d(gs.conv2d(y, weights(2, 2, 3, 3), padding=1) + y - 0.5 * x, weights(2, 2, 1, 1))


def line(x):
    return gs.conv(gs.relu(gs.conv(x, weights(3, 2, 3), padding=1)), weights(3, 3, 2))


def volume(x):
    return gs.conv(gs.relu(gs.conv(x, weights(2, 2, 2, 2, 2))), weights(2, 2, 2, 2, 2), padding=1)


NETWORKS = [
    (plain, (1, 2, 12, 11), 2),
    (padded, (2, 10, 13), 2),
    (strided, (1, 2, 14, 19), 2),
    (without_activation, (1, 2, 12, 12), 2),
    (pooled, (1, 2, 17, 18), 2),
    (residual, (2, 14, 14), 2),
    (line, (2, 20), 1),
    (volume, (1, 2, 6, 7, 8), 3),
]


@pytest.mark.parametrize(("function", "shape", "rank"), NETWORKS, ids=lambda value: getattr(value, "__name__", ""))
def test_patches_agree_with_planes(function, shape, rank):
    graph = gs.trace(function, gs.f32[shape])
    bounder, (output,) = Bounder(graph, 1, "any"), graph.outputs
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    inputs = [x - np.float32(0.125), x + np.float32(0.125)]
    known = bounder.unknown()
    made = patched_lines(graph, bounder.arithmetic, bounder.bounded, output, bounder.pre_activations, rank)
    assert made is not None
    cells = np.arange(output.type.size)
    low, high = Patches(output, rank, made, np.float32, execution_on("cpu", gs.f32)).bounds(
        [*inputs, *known.flat()], cells
    )
    rows = np.eye(output.type.size, dtype=np.float32).reshape(-1, *output.shape)
    np.testing.assert_allclose(low, bounder.lower(inputs, known, output, rows), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(high, -bounder.lower(inputs, known, output, -rows), rtol=1e-4, atol=1e-5)
    for seed in range(20):
        y = graph(np.random.default_rng(seed).uniform(*inputs).astype(np.float32)).reshape(-1)
        assert np.all(low <= y)
        assert np.all(y <= high)


def border_windows(x):
    """Windows of the maximum meet padding, so patches are not alike."""
    return gs.conv2d(gs.max_pool2d(gs.conv2d(x, weights(2, 2, 3, 3)), 3, 2, padding=1), weights(2, 2, 1, 1))


def whole_planes(x):
    return gs.linear(gs.relu(gs.flatten(gs.conv2d(x, weights(2, 2, 3, 3)))), weights(3, 200))


def cut_windows(x):
    """The last window that rounding up adds has fewer cells, and so another divisor."""
    return gs.avg_pool2d(x, 5, 2, ceil_mode=True)


@pytest.mark.parametrize("function", [border_windows, whole_planes, cut_windows], ids=lambda f: f.__name__)
def test_what_has_no_patches_says_so(function):
    graph = gs.trace(function, gs.f32[2, 12, 12])
    rank = graph.outputs[0].type.ndim - 1 or 1
    assert patched_lines(graph, BoundArithmetic(gs.f32, any=True), [True], graph.outputs[0], (), rank) is None
    assert varying(graph, [True])
