"""Bounds by PyTorch on a device. CPU tensors stand for those of a GPU, and Triton's interpreter pools them."""

from contextlib import contextmanager
from itertools import groupby

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import gradspec as gs  # noqa: E402
from backends.quick_triton import quick_interpreter  # noqa: E402, F401  (a fixture)
from gradspec.conformance.oracle.enclosure import enclosed_outputs  # noqa: E402
from gradspec.graph.lru import LRUCache  # noqa: E402
from gradspec.interop.torch import certified, device  # noqa: E402
from gradspec.interop.torch.certified import DeviceCompiler  # noqa: E402
from gradspec.ops.core import operators  # noqa: E402
from gradspec.spec.errors import UnsupportedError  # noqa: E402
from gradspec.verify import bounds, execution  # noqa: E402
from gradspec.verify.execution import FUNCTIONS, require_certified  # noqa: E402
from graph.test_op_laws import CASES, several  # noqa: E402
from interop.test_to_jax import drawn  # noqa: E402
from verify.test_bounds import WIDE, boxes_of, ordered, refused  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("quick_interpreter"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # of NumPy, which interprets the kernels
]
PLAIN = [case for case in CASES if refused(case) is None]


@contextmanager
def on_torch():
    """``device="cpu"`` is PyTorch's; nothing is kept of what other tests compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "OURS", set())
        patch.setattr(bounds, "_bounders", LRUCache(bounds.MOST_BOUNDERS))
        yield


# --- operators --------------------------------------------------------------------------------------------------------

EXACT = {
    *("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift", "trunc_divide", "quantize"),
    *("dequantize", "round_tangent", "round_to", "top_places", "max_pool", "step", "max_share", "within", "leaky_relu"),
    *("relu", "abs", "clamp", "maximum", "minimum", "floor", "round", "greater", "equal"),
}
"""Operators that are no sums and have no functions: they choose, compare, or round as stated."""


def test_every_operator_is_a_sum_or_exact_or_a_function():
    others = {name for name, op in operators().items() if op.sums is None and not op.is_composite}
    assert others - EXACT == {name for name in certified.FUNCTIONS if operators()[name].sums is None}
    assert set(certified.PRODUCTS) == device.PRODUCTS


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_values_and_gradients_are_within_the_certified_bound(case):
    dtype = (gs.f32, gs.f64)[CASES.index(case) % 2]
    graph = case.graph(dtype)
    forward = any(v.type.is_float for v in graph.inputs) and all(v.type.is_float for v in graph.outputs)
    whole = graph.vjp() if forward else graph
    arrays = [a.astype(v.dtype.numpy) for a, v in zip(case.arrays(), graph.inputs, strict=True)]
    arrays += drawn(whole.inputs[len(arrays) :], case.id)
    results = several(DeviceCompiler("cpu").compile(whole)(*arrays))
    for cells, bound in zip(results, enclosed_outputs(whole, *arrays), strict=True):
        inside = (bound.lower <= cells) & (cells <= bound.upper)
        assert (inside | np.isnan(bound.centre) | bound.weak).all()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_float32_are_rounded_once(name):
    x = np.random.default_rng(0).uniform(0.01, 4, 20_000).astype(np.float32)
    narrow, wide = (gs.trace(getattr(gs, name), dtype[x.size]) for dtype in (gs.f32, gs.f64))
    once = np.float32(DeviceCompiler("cpu").compile(wide)(np.float64(x)))
    np.testing.assert_array_equal(DeviceCompiler("cpu").compile(narrow)(x), once)


# --- bounds -----------------------------------------------------------------------------------------------------------


def close(a, b):
    """Both know as much, and differ by roundings; a NaN or an infinity is one in both."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return np.allclose(a, b, rtol=1e-4, atol=1e-4, equal_nan=True)


METHODS = ("boxes", "crown")
NAMES = {case: case.id.split()[0].rstrip(",") for case in PLAIN}
NAMED = [list(rows) for _, rows in groupby(sorted(PLAIN, key=NAMES.get), NAMES.get)]
TURNS = [(case, METHODS[i % 2]) for rows in NAMED for i, case in enumerate(rows if rows[1:] else rows * 2)]
"""Every operator by both methods, which take turns on its rows."""


@pytest.mark.parametrize(("case", "method"), TURNS, ids=lambda value: getattr(value, "id", value))
def test_bounds_are_those_of_the_cpu(case, method):
    low, high = boxes_of(case, WIDE / 8, np.float32)
    graph, floats = ordered(case, gs.f32), case.floats
    rest = [low[i] for i in range(len(low)) if i not in floats]
    ends = [tuple(np.float32(values[i]) for i in floats) for values in (low, high)]
    ours = gs.bounds(graph, *ends, *rest, method=method)
    with on_torch():
        found = gs.bounds(graph, *ends, *rest, method=method, device="cpu")
    computed = several(graph(*ends[0], *rest)), several(graph(*ends[1], *rest))
    ends = map(several, (found.lower, found.upper, ours.lower, ours.upper))
    for low, high, *others in zip(*ends, *computed, strict=True):
        assert all(map(close, (low, high), others[:2]))
        assert all(np.all((low <= y) & (y <= high) | np.isnan(y)) for y in others[2:])


def network(x):
    random = np.random.default_rng(0)
    w, v = (np.float32(random.standard_normal(shape) / 4) for shape in ((4, 1, 3, 3), (3, 16)))
    y = gs.relu(gs.conv2d(x, w, stride=2, padding=1))
    return gs.linear(gs.relu(gs.flatten(gs.mean(y, 2), 0) - 0.1), v)


IMAGE = np.random.default_rng(1).uniform(0, 1, (1, 8, 8)).astype(np.float32)


@pytest.mark.parametrize("method", ["crown", "alpha"])
def test_slopes_are_improved_there(method):
    graph, eps = gs.trace(network, gs.f32[1, 8, 8]), np.float32(0.05)
    ours = gs.bounds(graph, IMAGE - eps, IMAGE + eps, method=method)
    with on_torch():
        found = gs.bounds(graph, IMAGE - eps, IMAGE + eps, method=method, device="cpu")
    np.testing.assert_allclose([found.lower, found.upper], [ours.lower, ours.upper], rtol=1e-3, atol=1e-3)


def layers(x):
    random = np.random.default_rng(3)
    for sizes in ((8, *x.shape), (6, 8), (1, 6)):
        x = gs.linear(gs.relu(x), np.float32(random.standard_normal(sizes) / 2))
    return x


@pytest.mark.parametrize("inputs", [2, 20], ids=["boxes of inputs", "signs"])
def test_proofs_are_accepted_by_the_checker(inputs):
    graph, x = gs.trace(layers, gs.f32[inputs]), np.zeros(inputs, np.float32)
    largest = max(graph(np.float32(s))[0] for s in np.random.default_rng(2).choice([-1, 1], (256, inputs)))
    above = largest + 0.8 * (gs.bounds(graph, x - 1, x + 1).upper[0] - largest)
    property = gs.verify.Property.always(x - 1, x + 1, C=[[1]], b=[above])
    with on_torch():
        found = gs.verify.prove(graph, property, device="cpu")
    assert found.status == "proved"
    assert found.parts > 1
    assert gs.verify.check(found.certificate, graph, property)


def test_constants_that_are_equal_lie_there_once():
    compiler, w, x = DeviceCompiler("cpu"), np.float32([[1, 2], [3, 4]]), np.eye(2, dtype=np.float32)
    for factor in (w, w.copy(), w * np.float32([1, -1])):
        graph = gs.trace(lambda x, w=factor: gs.matmul(x, w) + np.float32(2.0), gs.f32[2, 2])
        np.testing.assert_array_equal(compiler.compile(graph)(x), factor + 2)
    assert len(compiler._constants) == 3


def test_a_device_that_is_not_there():
    with pytest.raises(UnsupportedError, match="no device 'cuda:99'"):
        gs.bounds(gs.trace(gs.relu, gs.f32[2]), np.zeros(2, "f4"), np.ones(2, "f4"), device="cuda:99")


# --- probes -----------------------------------------------------------------------------------------------------------


def cut(tensor, digits):
    return (tensor.contiguous().view(torch.int32) & -(1 << 24 - digits)).view(torch.float32)


def cut_product(digits, matmul):
    return lambda a, b: matmul(cut(a, digits), cut(b, digits)) if a.dtype is torch.float32 else matmul(a, b)


def shared_exponents(matmul):
    """Factors as integers in units of the largest of a column."""

    def product(a, b):
        unit = b.abs().amax(-2, keepdim=True) * 2.0**-40
        return matmul(a.double(), torch.round(b.double() / unit) * unit).to(a.dtype)

    return product


def leaking(conv):
    """A part of other cells is added and taken off again, as Winograd's algorithm does."""

    def product(attrs, x, w, *bias):
        other = x.sum() * 3
        return conv(attrs, x, w, *bias) + other - other

    return product


def flushed(add_rows):
    def sums(size, places, rows):
        y = add_rows(size, places, rows)
        return y * (y.abs() >= torch.finfo(y.dtype).tiny)

    return sums


def off_by(ulps):
    return lambda x: torch.exp(x) * (1 + ulps * torch.finfo(x.dtype).eps)


FAULTS = {
    "TF32": lambda m: m.setattr(torch, "matmul", cut_product(11, torch.matmul)),
    "the last bit": lambda m: m.setattr(torch, "matmul", cut_product(23, torch.matmul)),
    "shared exponents": lambda m: m.setattr(torch, "matmul", shared_exponents(torch.matmul)),
    "leaks": lambda m: m.setitem(certified.PRODUCTS, "conv", leaking(certified.PRODUCTS["conv"])),
    "transposed leaks": lambda m: m.setitem(
        certified.PRODUCTS, "conv_transpose", leaking(certified.PRODUCTS["conv_transpose"])
    ),
    "functions": lambda m: (
        m.setattr(certified, "FUNCTIONS", frozenset()),
        m.setattr(device.TORCH, "exp", off_by(4)),
    ),
    "atomics": lambda m: m.setattr(device.TORCH, "add_rows", flushed(device.TORCH.add_rows)),
    "quotients": lambda m: m.setitem(device.LOWERINGS, "div", lambda attrs, a, b: a * (1 / b)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_probe_fails(name, monkeypatch):
    FAULTS[name](monkeypatch)
    with pytest.raises(UnsupportedError, match="does not compute as bounds assume"):
        require_certified("cpu", gs.f32, DeviceCompiler("cpu").compile)


def test_a_probe_fails_where_small_numbers_are_flushed():
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush")
    try:
        with pytest.raises(UnsupportedError, match="below the normal range"):
            require_certified("cpu", gs.f32, DeviceCompiler("cpu").compile)
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("dtype", [gs.f32, gs.f64], ids=str)
def test_our_kernels_and_torchs_pass(dtype):
    for compile in (gs.compile, DeviceCompiler("cpu").compile):
        require_certified("cpu", dtype, compile)


def test_products_are_never_of_tf32(monkeypatch):
    seen = []
    monkeypatch.setitem(
        certified.PRODUCTS,
        "matmul",
        lambda attrs, a, b: (seen.append(torch.backends.cuda.matmul.fp32_precision), torch.matmul(a, b))[1],
    )
    run = DeviceCompiler("cpu").compile(gs.trace(gs.matmul, gs.f32[2, 2], gs.f32[2, 2]))
    device.set_float32_precision("tf32")
    try:
        run(np.ones((2, 2), "f4"), np.ones((2, 2), "f4"))
    finally:
        device.set_float32_precision("ieee")
    assert seen == ["ieee"]
