"""Bounds of networks that store 16-bit numbers between operators: what is rounded there, and what overflows."""

import ml_dtypes
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


LARGEST = {t: float(ml_dtypes.finfo(t.numpy).max) for t in (gs.bf16, gs.f32, gs.f64)}
SIGNS = np.array([1.0, -1.0, 1.0, -1.0])
TO_NAN = {
    "terms of both signs": lambda x: gs.clamp(gs.sum(x * SIGNS.astype(x.dtype.numpy), -1, keepdims=True), -1.0, 1.0),
    "a mean of both": lambda x: gs.clamp(gs.mean(x * SIGNS.astype(x.dtype.numpy), -1, keepdims=True), -1.0, 1.0),
    "an infinity times 0": lambda x: gs.clamp((x * 2.0) * (x * 0.0), -1.0, 1.0),
    "a difference of infinities": lambda x: gs.sigmoid(x * 2.0 - x * 2.0),
}


@pytest.mark.rows(len(TO_NAN))
@pytest.mark.parametrize("name", TO_NAN)
def test_sums_that_may_be_nan_in_some_order_are_not_known(name):
    for dtype, most in LARGEST.items():
        x = np.full(4, most * 0.97).astype(dtype.numpy)
        wide = x.astype(np.float32 if dtype is gs.bf16 else dtype.numpy)
        for method in ("boxes", "crown"):
            bounds = gs.bounds(gs.trace(TO_NAN[name], dtype[4]), wide, wide, method=method)
            assert np.isinf(bounds.lower).all(), (dtype, method)
            assert np.isinf(bounds.upper).all(), (dtype, method)


def test_what_overflows_a_narrower_format_is_not_known():
    """Bounds of a network with float64 are computed in it, where float32 does not overflow."""
    narrowed = {
        "infinite": lambda x: gs.convert(gs.convert(x, gs.f32), gs.f64),
        "NaN": lambda x: (lambda y: gs.clamp(gs.convert(y - y, gs.f64), -1.0, 1.0))(gs.convert(x, gs.f32) * 2.0),
        "NaN in some order": lambda x: gs.convert(gs.sum(gs.convert(x, gs.f32), keepdims=True), gs.f64),
    }
    for name, function in narrowed.items():
        x = np.array([3e38, -3e38, 3e38, -3e38]) * (4 if name == "infinite" else 1)
        for method in ("boxes", "crown"):
            bounds = gs.bounds(gs.trace(function, gs.f64[4]), x, x, method=method)
            assert np.isinf(bounds.upper).all(), (name, method)


def test_a_mask_of_the_least_number_is_known():
    """It overflows to one side only, and a softmax knows what becomes of that."""
    mask = np.array([0, -LARGEST[gs.f32]], np.float32)
    graph, zeros = gs.trace(lambda x: gs.softmax(x + mask, -1), gs.f32[2]), np.zeros(2, np.float32)
    bounds = gs.bounds(graph, zeros, zeros + 1)
    assert bounds.lower[0] > 0.99
    assert bounds.upper[1] < 0.01
    most = LARGEST[gs.f32]
    there_and_back = gs.trace(lambda x: (x - most) + most, gs.f32[1])  # x − most is minus infinity
    x = np.float32([-(2.0**104)])
    assert np.isneginf(there_and_back(x)).all()
    for method in ("boxes", "crown"):
        assert np.isneginf(gs.bounds(there_and_back, x, x, method=method).lower).all()


def test_numbers_that_become_nan_are_not_compared():
    """Beyond its largest number float8_e4m3 has NaN, which is not greater than 3."""
    graph = gs.trace(
        lambda x: gs.where(gs.greater(gs.round_to(x, "f8_e4m3", saturate=False), 3.0), x * 0.0, 1.0), gs.f32[1]
    )
    low, high = np.float32([400]), np.float32([500])
    bounds = gs.bounds(graph, low, high, method="boxes")
    assert (graph(low), graph(high)) == (0, 1)
    assert bounds.lower <= 0 <= 1 <= bounds.upper


def test_powers_that_overflow_within_a_norm_are_not_known():
    graph = gs.trace(lambda x: gs.lp_pool1d(x, 2.0, 2), gs.f32[1, 2])
    for size, is_known in ((1e18, True), (2e19, False)):
        x = np.full((1, 2), size, np.float32)
        assert np.isfinite(gs.bounds(graph, x, x).upper).all() == is_known


def test_a_clamp_beyond_the_format():
    x = np.float32([1])
    for arguments, is_known in (((None, 1e5), True), ((1e5, None), False)):
        bounds = gs.bounds(gs.trace(lambda x, c=arguments: gs.clamp(x, *c), gs.f16[1]), x, x)
        assert np.isfinite(bounds.upper).all() == is_known


def rounded(x, dtype):
    return x.astype(dtype).astype(np.float32)


def stored_softmax(x, dtype):
    """Exponentials and their sum are stored."""
    powers = rounded(np.exp(x - x.max(-1, keepdims=True)), dtype)
    return powers / rounded(powers.sum(-1, keepdims=True), dtype)


def stored_log_softmax(x, dtype):
    """Both its terms are stored."""
    moved = x - x.max(-1, keepdims=True)
    return rounded(moved, dtype) - rounded(np.log(np.exp(moved).sum(-1, keepdims=True)), dtype)


WEIGHT = np.array([[0.7, -1.3, 2.1, 0.3], [1.9, 0.1, -0.7, 1.1]])
BIAS = np.array([-0.9546, 1.7])


def stored_before_the_bias(x, dtype):
    return rounded(x @ rounded(WEIGHT, dtype).T, dtype) + rounded(BIAS, dtype)


STORING = {
    "softmax": (lambda x: gs.softmax(x, -1), stored_softmax),
    "log_softmax": (lambda x: gs.log_softmax(x, -1), stored_log_softmax),
    "linear": (lambda x: gs.linear(x, *(a.astype(x.dtype.numpy) for a in (WEIGHT, BIAS))), stored_before_the_bias),
}


@pytest.mark.rows(2 * len(STORING))
@pytest.mark.parametrize("dtype", [gs.f16, gs.bf16], ids=str)
@pytest.mark.parametrize("name", STORING)
def test_kernels_that_store_parts_of_a_result(name, dtype):
    """PyTorch's store what a softmax consists of, and a product before its bias is added."""
    function, kernel = STORING[name]
    random, graph = np.random.default_rng(0), gs.trace(function, dtype[64, 4])
    for size in (0.1, 1, 20):
        x = (random.standard_normal((64, 4)) * size).astype(dtype.numpy)
        y = rounded(kernel(x.astype(np.float32), dtype.numpy), dtype.numpy)
        for method in ("boxes", "crown"):
            bounds = gs.bounds(graph, x, x, method=method)
            assert (bounds.lower <= y).all(), (size, method)
            assert (y <= bounds.upper).all(), (size, method)


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
