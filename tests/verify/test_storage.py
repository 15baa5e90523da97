"""Bounds of networks that store 16-bit numbers between operators: what is rounded there, and what overflows."""

import numpy as np
import pytest

import gradspec as gs
from gradspec.verify import Property, prove
from patience import PATIENCE

FUNCTIONS = {
    "exp": gs.exp,
    "tanh": gs.tanh,
    "sigmoid": gs.sigmoid,
    "softplus": gs.softplus,
    "gelu": gs.gelu,
    "silu": gs.silu,
    "sin": gs.sin,
    "leaky_relu": lambda x: gs.leaky_relu(x, 0.1),
    "sqrt": lambda x: gs.sqrt(gs.abs(x)),
    "log": lambda x: gs.log(gs.abs(x)),
    "square": lambda x: x * x,
    "softmax": lambda x: gs.softmax(x, -1),
    "log_softmax": lambda x: gs.log_softmax(x, -1),
    "mean": lambda x: gs.mean(x, -1, keepdims=True),
    "floor of a curve": lambda x: gs.floor(gs.neg(gs.exp(x))),
    "a curve of a curve": lambda x: gs.tanh(gs.silu(x)),
    "a convolution": lambda x: gs.conv1d(x, np.full((2, 2, 2), 0.3).astype(x.dtype.numpy)),
    "a maximum": lambda x: gs.max_pool1d(gs.exp(x), 2, 1),
}
CENTRES = [[0.693359375, -0.3, 2.6, -4.1], [5.5, 1.001, -0.0071, 0.25]]


def neighbours(centres, ulps):
    """All numbers of the format within so many units in the last place."""
    bits = centres.view(np.uint16).astype(np.int32)
    return [(bits + step).astype(np.uint16).view(centres.dtype) for step in range(-ulps, ulps + 1)]


@pytest.mark.parametrize("ulps", [0, 1, 20])
@pytest.mark.parametrize("dtype", [gs.f16, gs.bf16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_stored_is_rounded(name, dtype, ulps):
    """Lines of rows of patches and of planes, and boxes: every number of the format lies between them."""
    graph = gs.trace(FUNCTIONS[name], dtype[2, 4])
    points = neighbours(np.asarray(CENTRES).astype(dtype.numpy), ulps)
    lower, upper = (np.minimum(points[0], points[-1]), np.maximum(points[0], points[-1]))
    results = np.stack([graph(point).astype(np.float64) for point in points])
    for method in ("boxes", "crown", "alpha"):
        bounds = gs.bounds(graph, lower, upper, method=method)
        assert (bounds.lower <= results).all(), method
        assert (results <= bounds.upper).all(), method
        assert np.isfinite(bounds.lower).all(), method


OVERFLOWING = {
    "product": (lambda x: x * x, 300),
    "difference of infinities": (lambda x: x * x - x * x, 300),
    "sum": (lambda x: gs.sum(x, -1), 60000),
    "curve": (gs.exp, 12),
    "divisor": (lambda x: 1 / (x * x), 300),
    "squashed": (lambda x: gs.sigmoid(x * x - x * x), 300),
    "clamped": (lambda x: gs.clamp(x * x - x * x, -1.0, 1.0), 300),
}


@pytest.mark.parametrize("method", ["boxes", "crown"])
@pytest.mark.parametrize("name", OVERFLOWING)
def test_what_overflows_is_not_known(name, method):
    function, centre = OVERFLOWING[name]
    graph, x = gs.trace(function, gs.f16[2]), np.full(2, centre, np.float16)
    with np.errstate(all="ignore"):
        assert not np.isfinite(graph(x)).all() or name == "divisor"
    bounds = gs.bounds(graph, x, x, method=method)
    assert np.isneginf(bounds.lower).all()
    assert np.isposinf(bounds.upper).all()
    assert np.isfinite(gs.bounds(graph, x, x, method=method, kernels="real").upper).all()


@pytest.mark.parametrize("method", ["boxes", "crown"])
def test_the_largest_number_does_not_overflow(method):
    graph = gs.trace(lambda x: x * 2.0, gs.f16[2])
    for x, is_known in ((32704.0, True), (32752.0, False)):  # 2x is 65408, or 65504, which an error may push over
        box = np.full(2, x, np.float16)
        assert np.isfinite(gs.bounds(graph, box, box, method=method).upper).all() == is_known


FLOOR = FUNCTIONS["floor of a curve"]
PROOFS = [
    ("floor(-exp(x)) is -2 in float16", FLOOR, [0.693359375] * 2, [0.693359375] * 2, [[1, 0]], ["-2.5"], "unknown"),
    ("an overflow refutes nothing", lambda x: x * x, [250] * 2, [300] * 2, [[1, 0]], ["70000"], "unknown"),
    ("NaN refutes nothing", lambda x: x * x - x * x, [299] * 2, [300] * 2, [[1, 0]], ["1"], "unknown"),
    ("a product that fits", lambda x: x * x, [2] * 2, [3] * 2, [[1, 0]], ["9.1"], "proved"),
]


@pytest.mark.parametrize(("function", "lower", "upper", "C", "b", "status"), [row[1:] for row in PROOFS])
def test_proofs_of_any_kernel(function, lower, upper, C, b, status):  # noqa: N803  (as in papers)
    graph = gs.trace(function, gs.f16[2])
    timeout = 2 if status == "unknown" else PATIENCE
    assert prove(graph, Property.always(lower, upper, C=C, b=b), timeout=timeout).status == status
