"""Exported models in ONNX Runtime: every operator, its derivatives, and networks of them, in value and both modes.

Results are judged by the certified tolerance of one operator (``gs.conformance.meaning``), or by a running bound on the
roundings of a whole graph (``interop.rounding``), which demands equality where nothing needs to be rounded.
"""

from contextlib import nullcontext
from functools import cache
from importlib import import_module
from math import inf, nan
from pkgutil import iter_modules

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx.reference import ReferenceEvaluator

import gradspec as gs
from cases import CASES, TRAITS, Places
from gradspec.graph.builder import apply
from gradspec.interop.onnx import writer
from gradspec.interop.onnx.emit.emitter import EMITTERS
from gradspec.interop.onnx.writer import NEWEST_RUN, RUNTIME
from gradspec.ops.conv import READ, Convolution
from gradspec.ops.core import CORE, operators
from gradspec.ops.lp_pool import ABS_POWER, AbsPower
from graph import rows as tables
from interop import networks
from interop.rounding import ROUNDED, lift

MODES = ("jvp", "vjp")
"""Each of these graphs gives the value too."""


# --- running ----------------------------------------------------------------------------------------------------------


@cache
def options():
    chosen = onnxruntime.SessionOptions()
    chosen.intra_op_num_threads = chosen.inter_op_num_threads = 1
    chosen.log_severity_level = 4
    return chosen


def run(model, arrays):
    """By ONNX Runtime, and by ONNX's reference where that has no kernel for a dtype."""
    names = [i.name for i in model.graph.input]
    inputs = dict(zip(names, arrays, strict=True))
    if any(a.dtype == ml_dtypes.bfloat16 for a in arrays):
        return ReferenceEvaluator(model).run(None, inputs)
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options(), ["CPUExecutionProvider"])
    except Exception as error:
        if "NOT_IMPLEMENTED" not in str(error):
            raise
        return ReferenceEvaluator(model).run(None, inputs)
    return session.run(None, {name: inputs[name] for name in (i.name for i in session.get_inputs())})


def exported(graph, arrays, **choices):
    """The outputs of the exported graph; its types must be the graph's."""
    results = run(gs.to_onnx(graph, **choices), arrays)
    assert [(r.dtype, r.shape) for r in results] == [(v.dtype.numpy, v.shape) for v in graph.outputs]
    return results


def several(results):
    return results if isinstance(results, tuple) else (results,)


# --- judging ----------------------------------------------------------------------------------------------------------


def permitted(graph, arrays):
    """For every output its value in float64 and the largest error of a float32 computation."""
    means = several(gs.evaluate(graph, *arrays, domain=ROUNDED))
    numbers = [[lift(cell) for cell in tensor.cells] for tensor in means]
    return [
        (np.array([n.value for n in row]).reshape(v.shape), np.array([n.error for n in row]).reshape(v.shape) * 1.001)
        for row, v in zip(numbers, graph.outputs, strict=True)
    ]


def judge(graph, arrays, *runs):
    """Every result of every run lies within its bound; the bounds are returned."""
    bounds = permitted(graph, arrays)
    for results in runs:
        for result, (value, error) in zip(results, bounds, strict=True):
            distance = np.abs(result.astype(np.float64) - value)
            worst = np.argmax(distance - error) if distance.size else 0
            assert (distance <= error).all(), (
                f"{result.ravel()[worst]}, exactly {value.ravel()[worst]} ± {error.ravel()[worst]}"
            )
    return [error for _, error in bounds]


def drawn(graph, given, seed):
    """``given`` arrays, then small whole numbers for the inputs that a derivative adds."""
    random = np.random.default_rng(seed)
    more = graph.inputs[len(given) :]
    return [*given, *(random.integers(-4, 5, v.shape).astype(v.dtype.numpy) for v in more)]


# --- every operator ---------------------------------------------------------------------------------------------------


@cache
def rows():
    found = {}
    for module in iter_modules(tables.__path__, "graph.rows."):
        found |= {case.id: case for case in import_module(module.name).ROWS}
    return {row: case for row, case in found.items() if "convert to eight bits" not in row}  # ONNX's are not written


def test_floats_of_eight_bits_are_not_written():
    with pytest.raises(gs.UnsupportedError, match=r"f8_e5m2\[2\]: floats of eight bits are not written; convert by"):
        gs.to_onnx(gs.trace(lambda x: gs.convert(gs.convert(x, gs.f8_e5m2), gs.f32), gs.f32[2]))


def as_f32(arrays):
    return [a.astype(np.float32) if a.dtype == np.float64 else a for a in arrays]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("row", rows())
def test_every_operator(row, mode):
    case = rows()[row]
    derivative = getattr(case.graph(gs.f32), mode)()
    arrays = drawn(derivative, as_f32(case.arrays()), len(row))
    if row.startswith(
        "resize linear"
    ):  # weights are rounded axis by axis, so a product of them that is exact may not be
        arrays = [a / np.float32(3) for a in arrays]
    judge(derivative, arrays, exported(derivative, arrays))


TWICE = {
    "conv": lambda x: gs.conv2d(gs.conv2d(x, np.ones((2, 1, 2, 2), np.float32)) * x[:, :, :3, :3], KERNEL, stride=2),
    "max_pool": lambda x: gs.max_pool2d(x * x, 2, 1),
    "avg_pool": lambda x: gs.avg_pool2d(x, 3, 2, 1) * gs.adaptive_avg_pool2d(x * x, 2),
    "smooth_max_pool": lambda x: gs.smooth_max_pool2d(x, 2, beta=0.5),
    "gelu": lambda x: gs.gelu(x, "tanh"),
    "cumsum": lambda x: gs.cumsum(x, 1, reverse=True),
    "softmax": gs.softmax,
}
KERNEL = np.arange(16, dtype=np.float32).reshape(2, 2, 2, 2)


@pytest.mark.parametrize("name", TWICE)
def test_second_derivatives(name):
    hessian = gs.trace(TWICE[name], gs.f32[1, 1, 4, 4]).vjp().jvp(["x"])
    arrays = drawn(hessian, [np.random.default_rng(9).integers(-9, 9, (1, 1, 4, 4)).astype(np.float32) / 8], 9)
    judge(hessian, arrays, exported(hessian, arrays))


def test_every_operator_has_an_emitter_or_decomposes():
    assert {*CORE} <= EMITTERS.keys() <= operators().keys()


# --- windows: every situation, by the certified tolerance of the operator ---------------------------------------------


def plain(number):
    return float(number) if hasattr(number, "numerator") and not isinstance(number, int) else number


def window_case(case):
    """The operator as a graph, and float32 inputs with all their bits."""
    attributes = {name: plain(value) for name, value in case.attributes.items()}
    shapes = [s for s in case.shapes if s is not None]
    types = [gs.i64[s.shape] if isinstance(s, Places) else gs.f32[s] for s in shapes]
    random = np.random.default_rng(len(case.id))
    places = [a for a in case.inputs() if a is not None]
    arrays = [
        p.astype(np.int64) if isinstance(s, Places) else random.standard_normal(s, np.float32)
        for s, p in zip(shapes, places, strict=True)
    ]
    return gs.trace(lambda *inputs: getattr(gs, case.operator)(*inputs, **attributes), *types), arrays, attributes


def with_left_out(case, arrays):
    """The arrays of all inputs, None for one that is left out."""
    remaining = iter(arrays)
    return [None if shape is None else next(remaining) for shape in case.shapes]


WINDOWS = [
    pytest.param(case, mode, id=f"{case.id} {mode}")
    for number, case in enumerate(CASES)
    for mode in (MODES if len(TRAITS[case.operator].variants) == 1 else MODES[number % 2 :][:1])
]
"""Both modes of every situation; where it has several variants, they take turns."""


@pytest.mark.parametrize(("case", "mode"), WINDOWS)
def test_every_window(case, mode):
    graph, arrays, attributes = window_case(case)
    derivative = getattr(graph, mode)()
    given = drawn(derivative, arrays, len(case.id))
    inputs, moving = with_left_out(case, arrays), given[len(arrays) :]
    if mode == "jvp":
        tangents = iter(moving)
        moving = [None if case.shapes[i] is None else next(tangents) for i in case.differentiable]
    value = gs.conformance.meaning(case.operator, *inputs, **attributes)
    moved = gs.conformance.meaning(f"{case.operator}_{mode}", *inputs, *moving, **attributes)
    expected = [value, *(m for m in (moved if isinstance(moved, tuple) else [moved]) if m is not None)]
    for meaning, result in zip(expected, exported(derivative, given), strict=True):
        assert meaning.judge(result).passed, meaning.judge(result)


# --- special values ---------------------------------------------------------------------------------------------------

SPECIAL = np.float32([nan, inf, -inf, 0.0, -0.0, 1.0, 1.0, -2.0, -inf, 3.0, 1e-45, 3e38])

SELECTIONS = {
    "overlapping": lambda x: gs.max_pool2d(x, 2, 1, return_indices=True),
    "padded": lambda x: gs.max_pool2d(x, 3, 2, 1, return_indices=True),
    "padding alone": lambda x: gs.max_pool2d(x, 2, 2, 2, return_indices=True),
    "ceil": lambda x: gs.max_pool2d(x, 2, 2, ceil_mode=True, return_indices=True),
    "bins": lambda x: gs.adaptive_max_pool2d(x, 3, return_indices=True),
    "global": lambda x: gs.global_max_pool(x),
    "relu": gs.relu,
    "clamp": lambda x: gs.clamp(x, -1.0, 2.0),
    "maximum": lambda x: gs.maximum(x, x[..., ::-1, :]),
    "minimum": lambda x: gs.minimum(x, x[..., ::-1, :]),
    "maximum with itself": lambda x: gs.maximum(x, x),
    "lp_pool inf": lambda x: gs.lp_pool2d(x, inf, 2),
    "leaky_relu": lambda x: gs.leaky_relu(x, 0.5),
    "abs": gs.abs,
    "nearest": lambda x: gs.resize(x, (8, 3)),
}
SUMS = {
    "avg_pool": lambda x: gs.avg_pool2d(x, 2, 1),
    "smooth_max_pool": lambda x: gs.smooth_max_pool2d(x, 2, 1, beta=1.0),
    "smooth minimum": lambda x: gs.smooth_max_pool2d(x, 2, 2, 1, beta=-2.0, padding_mode="ignore"),
    "lp_pool": lambda x: gs.lp_pool2d(x, 2, 2),
    "linear": lambda x: gs.resize(x, (3, 7), "linear"),
    "softmax": gs.softmax,
    "log_softmax": gs.log_softmax,
    "floor": lambda x: gs.floor(x * 0.25) + x,
    "round": lambda x: gs.round(x * 0.5) + x,
    "exp": gs.exp,
    "log": gs.log,
    "sqrt": gs.sqrt,
    "sigmoid": gs.sigmoid,
    "tanh": gs.tanh,
    "sin": gs.sin,
    "cos": gs.cos,
    "silu": gs.silu,
    "gelu": gs.gelu,
    "softplus": gs.softplus,
    "fold": lambda x: gs.fold2d(gs.unfold2d(x, 2), (5, 5), 2),
}


def special_graph(function):
    """The graph of a VJP on a plane of special values."""
    traced = gs.trace(function, gs.f32[2, 5, 5])
    random = np.random.default_rng(1)
    return traced, random.choice(SPECIAL, (2, 5, 5))


@pytest.mark.parametrize("name", SELECTIONS)
def test_special_values_are_selected_as_the_specification_does(name):
    """Values, winners and derivatives; the sign of a zero is the winner's where there is one."""
    traced, x = special_graph(SELECTIONS[name])
    for mode in MODES:
        derivative = getattr(traced, mode)()
        arrays = drawn(derivative, [x], 2)
        results = exported(derivative, arrays, nan_safe=True)
        for got, expected in zip(
            results, several(gs.evaluate(derivative, *arrays, domain=gs.ieee("f32"))), strict=True
        ):
            np.testing.assert_array_equal(got, np.array([float(c) for c in expected.cells]).reshape(got.shape))


@pytest.mark.parametrize("name", SUMS)
def test_special_values_come_out_as_the_specification_says(name):
    """NaN, the infinities and finite numbers, each in their places."""
    traced, x = special_graph(SUMS[name])
    x = np.where(x == SPECIAL[-1], 1, x)  # with the largest numbers a sum may overflow on the way, or not
    (got,) = exported(traced, [x])
    (expected,) = several(gs.evaluate(traced, x, domain=gs.ieee("f32")))
    kinds = np.array([float(c) for c in expected.cells]).reshape(got.shape)
    np.testing.assert_array_equal(np.where(np.isfinite(got), 0, got), np.where(np.isfinite(kinds), 0, kinds))


@pytest.mark.parametrize("signed", [False, True])
def test_powers_of_zero(signed):
    for exponent in (-1.0, 0.0, 1.0, 2.0):
        power = gs.trace(lambda x, q=exponent: apply(ABS_POWER, AbsPower(q, signed), x), gs.f32[5])
        x = np.float32([0.0, -0.0, 2.0, -2.0, 0.5])
        assert exported(power, [x])[0].tolist() == gs.evaluate(power, x, domain=gs.exact).map(float).tolist()


@pytest.mark.parametrize("name", ["softplus", "sigmoid", "silu", "gelu", "tanh", "softmax", "log_softmax"])
def test_exponentials_of_doubles_do_not_overflow(name):
    """ONNX Runtime has no kernels of its own for some of them, and takes ONNX's decompositions."""
    traced, x = gs.trace(SUMS[name], gs.f64[3]), np.array([-800.0, 1.0, 800.0])
    np.testing.assert_allclose(exported(traced, [x])[0], traced(x), rtol=1e-6, atol=1e-12)


def test_a_smooth_maximum_of_cells_too_far_apart_for_a_difference():
    """exp(β·(x₁ − x₀)) = exp(−6), although x₁ − x₀ overflows."""
    push = gs.trace(lambda x: gs.smooth_max_pool1d(x, 2, beta=1e-38), gs.f32[2]).jvp()
    _, tangent = exported(push, [np.float32([3e38, -3e38]), np.float32([0, 1])])
    # β, both cells, their difference and the product are rounded, 6·2⁻²⁴ each; exp and the quotient a few 2⁻²⁴.
    assert tangent[0] == pytest.approx(1 / (1 + np.exp(6)), rel=40 * 2.0**-24)


# --- dtypes -----------------------------------------------------------------------------------------------------------

FORMATS = {
    "conv": (lambda x, w: gs.conv2d(x, w, padding=1), (2, 2, 4, 4), (2, 2, 3, 3)),
    "conv_transpose": (lambda x, w: gs.conv_transpose2d(x, w, stride=2), (1, 2, 3, 3), (2, 1, 2, 2)),
    "max_pool": (lambda x: gs.max_pool2d(x, 2, 1), (2, 4, 4)),
    "max_pool of padding": (lambda x: gs.max_pool2d(x, 2, 1, 3, return_indices=True), (2, 4, 4)),
    "avg_pool": (lambda x: gs.avg_pool2d(x, 2, 1, 1), (1, 2, 4, 4)),
    "layout": (lambda x: gs.pad(gs.concat([x[::-1], gs.transpose(x)], 0), ((1, 0), (0, 2)), 0.5), (3, 3)),
    "linear": (lambda x, w: gs.relu(gs.linear(x, w)), (2, 3), (4, 3)),
    "sum": (lambda x: gs.sum(x * x, 0), (3, 4)),
    "labels": (lambda x: gs.cross_entropy(x, [1, 0]), (2, 3)),
    "resize": (lambda x: gs.resize(x, (6, 5), "linear"), (1, 1, 3, 4)),
    "convert": (lambda x: gs.convert(gs.convert(x, gs.i32), gs.f64), (2, 3)),
}


@pytest.mark.parametrize("dtype", [gs.f16, gs.bf16, gs.f64], ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_every_floating_point_format(name, dtype):
    """Small formats are computed in float32 and rounded once; float64 is no worse than float32."""
    function, *shapes = FORMATS[name]
    traced = gs.trace(function, *(dtype[shape] for shape in shapes))
    random = np.random.default_rng(len(name))
    arrays = [random.integers(-4, 5, shape).astype(dtype.numpy) for shape in shapes]
    for result, (value, error) in zip(exported(traced, arrays), permitted(traced, arrays), strict=True):
        stored = value.astype(result.dtype)
        spacing = np.abs(np.spacing(stored)).astype(np.float64) * (error > 0)
        assert (np.abs(result.astype(np.float64) - stored.astype(np.float64)) <= error + spacing).all()


INTEGERS = {
    "max_pool": lambda x: gs.max_pool2d(x, 2, 1, return_indices=True),
    "max_pool of padding": lambda x: gs.max_pool2d(x, 2, 2, 2),
    "arithmetic": lambda x: (x + x * x - x[..., ::-1], -x, gs.abs(x)),
    "sums": lambda x: gs.sum(x, (0, 2)),
    "comparison": lambda x: (gs.maximum(x, x[::-1]), gs.minimum(x, x[::-1]), gs.relu(x), gs.clamp(x, 3, 90)),
    "bits": lambda x: (x & x[::-1], x | x[::-1], x ^ x[::-1], ~x),
    "shifts": lambda x: (x << (x & 15), x >> (x & 15), x << x[::-1], x >> x[::-1]),
    "division": lambda x: gs.trunc_divide(x[::-1], x),
    "layout": lambda x: gs.pad(gs.concat([x[::-2], gs.reshape(x, (3, 4, 4))], 0), ((0, 0), (1, 0), (0, 2)), 7),
    "fold": lambda x: gs.fold2d(gs.unfold2d(x, 2), (4, 4), 2),
    "unpool": lambda x: gs.max_unpool2d(*gs.max_pool2d(x, 2, 1, return_indices=True), (4, 4)),
    "to floats": lambda x: gs.convert(x, gs.f32),
    "to truths and back": lambda x: gs.convert(gs.convert(x, gs.boolean), gs.i16),
}
DTYPES = [gs.i8, gs.u8, gs.i16, gs.u16, gs.i32, gs.u32, gs.i64, gs.u64]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", INTEGERS)
def test_every_integer_dtype(name):
    for dtype in DTYPES:
        limits = np.iinfo(dtype.numpy)
        array = np.random.default_rng(0).integers(limits.min, limits.max, (3, 4, 4), dtype.numpy, endpoint=True)
        array[0, 0] = [limits.min, limits.max, 0, limits.max if limits.min == 0 else -1]
        if name in ("sums", "fold") and dtype in (gs.i64, gs.u64):
            array >>= 16  # ONNX Runtime sums 64-bit integers in doubles
        traced = gs.trace(INTEGERS[name], dtype[3, 4, 4])
        with np.errstate(over="ignore"):
            for got, expected in zip(exported(traced, [array]), several(traced(array)), strict=True):
                np.testing.assert_array_equal(got, expected, f"{dtype}", strict=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("source", [gs.f16, gs.f32, gs.f64], ids=str)
def test_floats_become_integers_as_the_specification_says(source, dtype):
    limits = np.iinfo(dtype.numpy)
    ends = [float(limits.min), float(limits.max)]
    with np.errstate(over="ignore"):
        x = np.array([nan, inf, -inf, 2.75, -2.75, -0.5, *ends, *(2 * e for e in ends), 0.5 * ends[1]], source.numpy)
    traced = gs.trace(lambda x: gs.convert(x, dtype), source[x.shape])
    (got,) = exported(traced, [x])
    assert got.tolist() == gs.spec.convert(x, dtype.name).tolist()


def test_attributes_that_onnx_keeps_in_float32_are_not_rounded():
    x = np.float64([[1.0, -3.0, 2.0]])
    slope = gs.trace(lambda x: gs.leaky_relu(x, 0.01), gs.f64[1, 3])
    assert exported(slope, [x])[0].tolist() == [[1.0, -3.0 * 0.01, 2.0]]
    norm = gs.trace(lambda x: gs.batch_norm(x, np.zeros(3), np.zeros(3), eps=1e-5), gs.f64[1, 3])
    np.testing.assert_allclose(exported(norm, [x])[0], x / np.sqrt(1e-5), rtol=4 * 2.0**-53)


# --- networks ---------------------------------------------------------------------------------------------------------


class Weights:
    """Draws weights, statistics and data: whole numbers, whose sums are exact, or numbers with all their bits."""

    def __init__(self, kind):
        self.random, self.whole = np.random.default_rng(5), kind == "whole"

    def draw(self, *shape):
        if self.whole:
            return self.random.integers(-2, 3, shape).astype(np.float32)
        return self.random.standard_normal(shape, np.float32) / np.float32(np.sqrt(np.prod(shape[1:])))

    def conv(self, x, channels, kernel=3, **choices):
        inside = x.shape[1] // choices.get("groups", 1)
        weight = self.draw(channels, inside, kernel, kernel)
        return gs.conv2d(x, weight, self.draw(channels), padding=kernel // 2, **choices)

    def norm(self, x):
        """Variances whose roots are exact, in whole numbers."""
        channels = x.shape[1]
        var = np.float32(4) ** self.random.integers(0, 2, channels).astype(np.float32) if self.whole else None
        var = self.random.uniform(0.5, 2, channels).astype(np.float32) if var is None else var
        mean, weight, bias = (self.draw(channels) for _ in range(3))
        return gs.batch_norm(x, mean, var, weight, bias, eps=0.0 if self.whole else 1e-5)


def lenet(x, w):
    x = gs.max_pool2d(gs.relu(w.conv(x, 3)), 2)
    x = gs.avg_pool2d(gs.relu(w.conv(x, 4)), 2)
    x = gs.relu(gs.linear(gs.flatten(x, 1), w.draw(5, 16), w.draw(5)))
    return gs.linear(x, w.draw(3, 5), w.draw(3))


def resnet(x, w):
    x = gs.max_pool2d(gs.relu(w.norm(w.conv(x, 3, stride=2))), 3, 2, 1)
    short = x
    x = w.norm(w.conv(gs.relu(w.norm(w.conv(x, 3))), 3))
    x = gs.relu(x + short)
    return gs.linear(gs.global_avg_pool(x, keepdims=False), w.draw(3, 3))


def unet(x, w):
    top = gs.relu(w.conv(x, 2))
    deep = gs.relu(w.conv(gs.max_pool2d(top, 2), 3))
    up = gs.conv_transpose2d(deep, w.draw(3, 2, 2, 2), w.draw(2), stride=2)
    wide = gs.resize(deep, (8, 8), "linear")
    return w.conv(gs.concat([top, up, wide], 1), 1, 1)


def mobilenet(x, w):
    x = gs.clamp(w.norm(w.conv(x, 4, 1)), 0.0, 6.0)
    x = gs.clamp(w.norm(w.conv(x, 4, groups=4, stride=2)), 0.0, 6.0)
    return gs.linear(gs.mean(w.norm(w.conv(x, 3, 1)), (2, 3)), w.draw(2, 3))


def efficientnet(x, w):
    x = gs.silu(w.norm(w.conv(x, 3, stride=2)))
    squeezed = gs.sigmoid(w.conv(gs.silu(w.conv(gs.global_avg_pool(x), 1, 1)), 3, 1))
    return gs.softmax(gs.adaptive_avg_pool2d(x * squeezed, 3)[:, :, 0, 0], 1)


NETWORKS = {f.__name__: f for f in (lenet, resnet, unet, mobilenet, efficientnet)}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["whole", "random"])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network(name, kind, mode):
    """On whole numbers nothing needs to be rounded, except where there are exponentials."""
    weights = Weights(kind)
    network = gs.trace(lambda x: NETWORKS[name](x, weights), gs.f32[1, 2, 8, 8])
    derivative = getattr(network, mode)()
    arrays = drawn(derivative, [Weights(kind).draw(1, 2, 8, 8)], 3)
    errors = judge(derivative, arrays, exported(derivative, arrays))
    if kind == "whole" and name != "efficientnet":
        assert not any(error.any() for error in errors)


@pytest.mark.parametrize("mode", MODES)
def test_weights_as_inputs(mode):
    """The gradient of a loss with respect to its weights, labels among the inputs."""

    def loss(x, w, b, labels):
        return gs.cross_entropy(gs.global_max_pool(gs.relu(gs.conv2d(x, w, b, padding=1)), keepdims=False), labels)

    network = gs.trace(loss, gs.f32[3, 1, 5, 5], gs.f32[4, 1, 3, 3], gs.f32[4], gs.i64[3])
    derivative = getattr(network, mode)()
    w = Weights("random")
    arrays = [w.draw(3, 1, 5, 5), w.draw(4, 1, 3, 3), w.draw(4), np.array([2, 0, 3])]
    arrays = drawn(derivative, arrays, 4)
    judge(derivative, arrays, exported(derivative, arrays))
    assert [i.name for i in gs.to_onnx(derivative).graph.input] == [v.name for v in derivative.inputs]


# --- there and back ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_comes_back(name):
    """With the same value, and derivatives that mean the same."""
    weights = Weights("random")
    network = gs.trace(lambda x: NETWORKS[name](x, weights), gs.f32[1, 2, 8, 8])
    back = gs.from_onnx(gs.to_onnx(network))
    assert [v.name for v in back.inputs] == ["x"]
    arrays = [Weights("random").draw(1, 2, 8, 8)]
    np.testing.assert_array_equal(network(*arrays), back(*arrays))
    for here, there in ((network.jvp(), back.jvp()), (network.vjp(), back.vjp())):
        given = drawn(here, arrays, 6)
        judge(here, given, there(*given))
        judge(here, given, gs.from_onnx(gs.to_onnx(here))(*given))


@pytest.mark.parametrize("ties", ["first", "split", "all"])
@pytest.mark.parametrize("mode", MODES)
def test_derivatives_of_maxima_come_back(ties, mode):
    """With the same winners where cells are equal, or no numbers, and where a window has padding alone."""
    pooling = gs.trace(lambda x: gs.max_pool2d(x, 2, (2, 3), ((1, 2), (0, 1)), ties=ties), gs.f32[2, 5, 7])
    here = getattr(pooling, mode)()
    x = np.random.default_rng(3).integers(0, 3, (2, 5, 7)).astype(np.float32)
    x[0, 2, 3:5] = nan
    given = drawn(here, [x], 6)
    for a, b in zip(here(*given), gs.from_onnx(gs.to_onnx(here))(*given), strict=True):
        np.testing.assert_array_equal(a, b, strict=True)


def test_second_derivatives_and_unpooling_come_back():
    def network(x):
        values, places = gs.max_pool2d(x, 2, return_indices=True)
        return gs.max_unpool(values * values, places, (4, 6))

    here = gs.trace(network, gs.f32[2, 4, 6]).vjp().jvp()
    given = drawn(here, [Weights("random").draw(2, 4, 6)], 6)
    judge(here, given, gs.from_onnx(gs.to_onnx(here))(*given))


@pytest.mark.parametrize("row", rows())
def test_every_operator_comes_back(row):
    case = rows()[row]
    here, arrays = case.graph(gs.f32), as_f32(case.arrays())
    there = gs.from_onnx(gs.to_onnx(here))
    for (a, error_a), (b, error_b) in zip(permitted(here, arrays), permitted(there, arrays), strict=True):
        assert (np.abs(a - b) <= error_a + error_b).all()


@pytest.mark.parametrize("name", networks.TORCH)
def test_a_network_of_pytorch(name):
    """In ONNX Runtime, and once more in a graph."""
    make, (_, *shape) = networks.TORCH[name]
    x = np.random.default_rng(7).standard_normal((1, *shape), np.float32)
    network = gs.from_torch(make(), torch.zeros(x.shape))
    model = gs.to_onnx(network)
    judge(network, [x], run(model, [x]), [gs.from_onnx(model)(x)])


# --- the form of the model --------------------------------------------------------------------------------------------

WRITTEN = {
    "Conv": (lambda x: gs.conv2d(x, np.ones((2, 3, 3, 3), np.float32), padding=((0, 1), (2, 0))), ["Conv"]),
    "ConvTranspose": (
        lambda x: gs.conv_transpose2d(x, np.ones((3, 2, 2, 2), np.float32), stride=2, output_padding=1),
        ["ConvTranspose"],
    ),
    "MaxPool": (lambda x: gs.max_pool2d(x, 3, 2, 1, ceil_mode=True), ["MaxPool"]),
    "MaxPool, places in the plane": (lambda x: gs.max_pool2d(x, 2, return_indices=True), ["MaxPool", "Mod"]),
    "AveragePool": (lambda x: gs.avg_pool2d(x, 3, 2, 1), ["AveragePool"]),
    "AveragePool of bins": (lambda x: gs.adaptive_avg_pool2d(x, 4), ["AveragePool"]),
    "GlobalAveragePool": (lambda x: gs.global_avg_pool(x), ["GlobalAveragePool"]),
    "GlobalMaxPool": (lambda x: gs.global_max_pool(x), ["GlobalMaxPool"]),
    "Resize": (lambda x: gs.resize(x, (16, 16), "linear"), ["Resize"]),
    "Clip": (lambda x: gs.clamp(x, 0, 6), ["Clip"]),
    "no Expand": (lambda x: x + np.ones(8, np.float32), ["Add"]),
    "Gemm": (
        lambda x: gs.linear(gs.flatten(x, 1), np.ones((2, 192), np.float32), np.ones(2, np.float32)),
        ["Reshape", "Gemm"],
    ),
    "BatchNormalization": (
        lambda x: gs.batch_norm(x, *(np.ones(3, np.float32) for _ in range(4))),
        ["BatchNormalization"],
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_onnx_has_the_operator(name):
    function, expected = WRITTEN[name]
    model = gs.to_onnx(gs.trace(function, gs.f32[1, 3, 8, 8]))
    assert [node.op_type for node in model.graph.node] == expected


@pytest.mark.parametrize(("size", "wanted"), [(14, 4), (20, 12), (21, 6), (8, 16), (8, 2)])
def test_positions_are_not_rounded(size, wanted):
    """In float32 the first three put an output just below the cell it lies on, and Resize would take the one before."""
    x = np.arange(2 * size, dtype=np.float32).reshape(1, 1, size, 2)
    (y,) = exported(gs.trace(lambda x: gs.resize(x, (wanted, 2)), gs.f32[x.shape]), [x])
    assert y[0, 0, :, 0].tolist() == [2 * (o * size // wanted) for o in range(wanted)]


@pytest.mark.parametrize("kind", [gs.i8, gs.u8], ids=str)
def test_the_largest_integer_of_a_plane(kind):
    """GlobalMaxPool is of floats only; whether all keys of an attention are hidden is a maximum of u8."""
    graph = gs.trace(lambda x: gs.global_max_pool(x, 2), kind[1, 3, 4, 5])
    x = np.random.default_rng(0).integers(0, 127, (1, 3, 4, 5)).astype(kind.numpy)
    (y,) = exported(graph, [x])
    np.testing.assert_array_equal(y, x.max((2, 3), keepdims=True))


def test_fewer_windows_than_fit():
    """A node may state fewer outputs than the axis has room for: then it is cut."""
    attrs = Convolution((9,), (2,), (1,), ((1, 0),), (2,), (3,))
    traced = gs.trace(lambda x, w: apply(READ, attrs, x, w), gs.f32[1, 9], gs.f32[1, 1, 2])
    for mode in MODES:
        derivative = getattr(traced, mode)()
        arrays = drawn(derivative, [np.arange(9, dtype=np.float32)[None], np.float32([[[1, 10]]])], 0)
        judge(derivative, arrays, exported(derivative, arrays))


@pytest.mark.parametrize("dtype", [gs.i32, gs.i64], ids=str)
def test_integers_that_onnx_does_not_convolve(dtype):
    traced = gs.trace(lambda x, w: gs.conv2d(x, w, padding=1, groups=2), dtype[2, 4, 3, 3], dtype[6, 2, 2, 2])
    random = np.random.default_rng(0)
    arrays = [random.integers(-(2**20), 2**20, v.shape).astype(v.dtype.numpy) for v in traced.inputs]
    np.testing.assert_array_equal(exported(traced, arrays)[0], traced(*arrays))


def test_outputs_that_are_inputs_constants_or_twice_the_same():
    b = gs.Builder()
    x, c = b.input(gs.f32[2], "x"), b.const(np.float32([5, 6]), "weights")
    y = gs.relu(x)
    graph = b.build([x, c, y, y])
    model = gs.to_onnx(graph)
    assert [o.name for o in model.graph.output] == ["x_output", "weights_output", "relu", "relu_output"]
    assert [i.name for i in model.graph.initializer] == ["weights"]
    assert [r.tolist() for r in run(model, [np.float32([-1, 2])])] == [[-1, 2], [5, 6], [0, 2], [0, 2]]


def test_constants_that_repeat_are_stored_once():
    b = gs.Builder()
    x = b.input(gs.f32[1000, 1000], "x")
    model = gs.to_onnx(
        b.build([x + b.zeros(x.type), b.share(np.broadcast_to(np.float32([[1], [2]]), (2, 10**6)), "c")])
    )
    assert model.ByteSize() < 2000
    x = np.ones((1000, 1000), np.float32)
    sums, c = run(model, [x])
    assert (sums == 1).all()
    assert c[:, -1].tolist() == [1, 2]


def test_what_is_refused_is_listed_at_once(monkeypatch):
    graph = gs.trace(lambda x: gs.tanh(gs.exp(gs.relu(x))), gs.f32[2])
    for name in ("exp", "tanh"):
        monkeypatch.delitem(EMITTERS, name)
    with pytest.raises(gs.UnsupportedError, match=r"(?s)exp: f32\[2\] = exp\(relu\).*tanh: f32\[2\] = tanh\(exp\)"):
        gs.to_onnx(graph)


def test_models_too_large_for_a_file(monkeypatch):
    monkeypatch.setattr(writer, "LARGEST_FILE", 100)
    graph = gs.trace(lambda x: x + np.ones(50, np.float32), gs.f32[50])
    with pytest.raises(gs.UnsupportedError, match="constants of this graph take 200 bytes"):
        gs.to_onnx(graph)


def written_for(network, opset, **settings):
    """The model, with the warning that it needs, and no other."""
    with pytest.warns(gs.FormatWarning, match=rf"opset={opset}: ONNX Runtime") if opset > NEWEST_RUN else nullcontext():
        return gs.to_onnx(network, opset=opset, **settings)


@pytest.mark.parametrize("opset", [18, 20, onnx.defs.onnx_opset_version()])
def test_the_opset_is_chosen(opset):
    network = gs.trace(lambda x: efficientnet(x, Weights("random")), gs.f32[1, 2, 8, 8])
    model = written_for(network, opset, name="small")
    assert model.opset_import[0].version == opset
    assert model.graph.name == "small"
    judge(network, [x := Weights("random").draw(1, 2, 8, 8)], ReferenceEvaluator(model).run(None, {"x": x}))


def test_who_runs_an_opset_is_true():
    """What is said of ONNX Runtime is so, if that version is installed."""
    if not f"ONNX Runtime {onnxruntime.__version__}".startswith(RUNTIME):
        pytest.skip(f"{RUNTIME} is spoken of")
    network, x = gs.trace(gs.relu, gs.f32[2]), np.float32([-1, 2])

    def run(opset):
        session = onnxruntime.InferenceSession(written_for(network, opset).SerializeToString())
        return session.run(None, {"x": x})[0].tolist()

    assert run(NEWEST_RUN) == [0, 2]
    for newer in range(NEWEST_RUN + 1, onnx.defs.onnx_opset_version() + 1):
        with pytest.raises(Exception, match=r"ONNXRuntimeError.*(Opset|IR version)"):
            run(newer)
        assert ReferenceEvaluator(written_for(network, newer)).run(None, {"x": x})[0].tolist() == [0, 2]


@pytest.mark.parametrize("opset", [17, 999, True, "18"])
def test_an_opset_that_cannot_be_written(opset):
    with pytest.raises(gs.UnsupportedError, match="operator sets 18 to"):
        gs.to_onnx(gs.trace(gs.relu, gs.f32[2]), opset=opset)


def test_what_is_no_graph_is_refused():
    with pytest.raises(TypeError, match=r"to_onnx needs a graph, such as gs\.trace"):
        gs.to_onnx(gs.compile(gs.relu, gs.f32[1]))


def test_the_oldest_format_that_will_do():
    """Runtimes refuse a format newer than they know; this one is read since ONNX Runtime 1.14."""
    assert gs.to_onnx(gs.trace(gs.relu, gs.f32[2])).ir_version == 8


@pytest.mark.parametrize(
    ("function", "types", "arrays"),
    [
        (lambda x, i: gs.cross_entropy(x, i), (gs.f32[1, 3], gs.i64[1]), (np.zeros((1, 3)), np.array([-1]))),
        (lambda x, i: gs.max_gather(x, i, 1), (gs.f32[3], gs.i64[1]), (np.zeros(3), np.array([-2]))),
        (lambda x, i: gs.max_unpool1d(x, i, 3), (gs.f32[1], gs.i64[1]), (np.zeros(1), np.array([-2]))),
    ],
)
def test_a_place_that_is_none_is_an_error_there_too(function, types, arrays):
    """ONNX would count it from the end."""
    with pytest.raises(Exception, match=r"(?i)out of.*(bound|range)"):
        run(
            gs.to_onnx(gs.trace(function, *types)),
            [a.astype(t.dtype.numpy) for a, t in zip(arrays, types, strict=True)],
        )


@pytest.mark.parametrize("place", [-1, 3, 5, 2**40])
@pytest.mark.parametrize("function", [gs.scatter, gs.scatter_add, lambda x, axis, i, s: gs.gather(x, axis, i) + s])
def test_an_index_outside_names_no_row_of_another_sample(function, place):
    graph = gs.trace(lambda x, i, s: function(x, 1, i, s), gs.f32[2, 3], gs.i64[2, 2], gs.f32[2, 2])
    arrays = {"x": np.zeros((2, 3), np.float32), "i": np.array([[place, 0], [0, 1]]), "s": np.ones((2, 2), np.float32)}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(gs.to_onnx(graph).SerializeToString(), options)
    with pytest.raises(ValueError, match=f"the index {place} names none"):
        graph(*arrays.values())
    with pytest.raises(Exception, match="INVALID_ARGUMENT"):
        session.run(None, arrays)
