"""Quantised operators, of ONNX and of ONNX Runtime, in every granularity: what they give is what the runtime gives.

Where scales are powers of two nothing is rounded but the results, so all must be equal, ties among them, and equal to
the exact meaning of the graph. Other scales round on the way, in an order that no text fixes: there results may be
neighbours where the exact number is next to the middle of two.
"""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import gradspec as gs

RNG = np.random.default_rng(7)
HALF, QUARTER, EIGHTH = (np.float32(2.0**-n) for n in (1, 2, 3))


def ints(kind, *shape, low=None, high=None):
    limits = np.iinfo(kind)
    return RNG.integers(limits.min if low is None else low, (limits.max if high is None else high) + 1, shape, kind)


def halves(*shape, spread=400):
    """Numbers every second of which lies in the middle of two integers, and some beyond all of them."""
    return (RNG.integers(-spread, spread, shape) / 2).astype(np.float32)


def quantized(op_type, *operands, domain="", version=21, outputs=1, **attributes):
    """A model of one node, and its data; what is no scale or zero point is an input, and the rest is known."""
    names = ["" if t is None else f"x{i}" for i, t in enumerate(operands)]
    node = helper.make_node(op_type, names, [f"y{i}" for i in range(outputs)], domain=domain, **attributes)
    given = [(n, np.asarray(t)) for n, t in zip(names, operands, strict=True) if t is not None]
    kind = lambda t: helper.np_dtype_to_tensor_dtype(t.dtype)  # noqa: E731
    free = [(n, t) for n, t in given if t.ndim > 1]
    inputs = [helper.make_tensor_value_info(n, kind(t), t.shape) for n, t in free]
    known = [numpy_helper.from_array(t, n) for n, t in given if t.ndim <= 1]
    results = [onnx.ValueInfoProto(name=f"y{i}") for i in range(outputs)]
    sets = [helper.make_opsetid("", version), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", inputs, results, known)
    return helper.make_model(graph, opset_imports=sets, ir_version=10), dict(free)


def by_runtime(model, data):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, data)


def by_gradspec(model, data, backend="cpu"):
    graph = gs.from_onnx(model)
    results = gs.compile(graph, backend=backend)(*(data[v.name] for v in graph.inputs))
    return results if isinstance(results, tuple) else (results,)


def exactly(model, data):
    graph = gs.from_onnx(model)
    results = gs.evaluate(graph, *(data[v.name] for v in graph.inputs), domain=gs.exact)
    tensors = results if isinstance(results, tuple) else (results,)
    return [np.array([float(c) for c in t.cells]).reshape(t.shape) for t in tensors]


# --- of ONNX ----------------------------------------------------------------------------------------------------------

U8, I8, U16, I16 = np.uint8, np.int8, np.uint16, np.int16
IMAGE, WEIGHT = ints(U8, 1, 4, 5, 6), ints(I8, 6, 2, 3, 2)
CHANNELS = np.float32([0.5, 0.25, 1, 2, 0.125, 0.0625])

ONNX = {
    **{
        f"quantize {np.dtype(kind)}": quantized("QuantizeLinear", halves(3, 40, spread=200_000), HALF * 2, kind(3))
        for kind in (U8, I8, U16, I16)
    },
    "quantize opset 10": quantized("QuantizeLinear", halves(3, 40), QUARTER, U8(3), version=10),
    "quantize without a zero point": quantized("QuantizeLinear", halves(3, 40), HALF, version=13),
    "quantize along an axis": quantized(
        "QuantizeLinear", halves(2, 4, 9), CHANNELS[:4], I8([1, -2, 3, 0]), version=13, axis=-2
    ),
    "quantize blocks": quantized(
        "QuantizeLinear", halves(3, 8), CHANNELS.reshape(3, 2), ints(I8, 3, 2, low=-4, high=4), axis=1, block_size=4
    ),
    "dequantize": quantized("DequantizeLinear", ints(I8, 3, 9), QUARTER, I8(-3), version=10),
    "dequantize u16": quantized("DequantizeLinear", ints(U16, 3, 9), QUARTER, U16(40_000)),
    "dequantize i32": quantized("DequantizeLinear", ints(np.int32, 3, 9, low=-(2**20), high=2**20), QUARTER),
    "dequantize along an axis": quantized(
        "DequantizeLinear", ints(U8, 2, 6, 3), CHANNELS, U8([1, 2, 3, 4, 5, 6]), version=13, axis=1
    ),
    "dequantize blocks": quantized(
        "DequantizeLinear", ints(U8, 6, 2), CHANNELS.reshape(3, 2), ints(U8, 3, 2), axis=0, block_size=2
    ),
    "convolution of integers": quantized(
        "ConvInteger", IMAGE[:, :2], ints(U8, 6, 2, 3, 2), U8(130), U8(7), pads=(1,) * 4
    ),
    "QLinearConv": quantized(
        "QLinearConv", IMAGE[:, :2], HALF, U8(100), WEIGHT, EIGHTH, I8(0), HALF * 64, U8(128), pads=(1, 0, 2, 1)
    ),
    "QLinearConv by channels": quantized(
        "QLinearConv",
        *(
            IMAGE,
            HALF,
            U8(100),
            WEIGHT,
            CHANNELS,
            I8([0] * 6),
            HALF * 256,
            U8(9),
            ints(np.int32, 6, low=-999, high=999),
        ),
        group=2,
        strides=(2, 1),
        dilations=(1, 2),
    ),
    "product of integers": quantized("MatMulInteger", ints(U8, 2, 3, 5), ints(I8, 5, 4), U8(3), I8([1, 2, -3, 4])),
    "QLinearMatMul": quantized(
        "QLinearMatMul", ints(U8, 3, 5), HALF, U8(120), ints(U8, 5, 4), EIGHTH, U8(99), HALF * 128, U8(100)
    ),
    "DynamicQuantizeLinear": quantized("DynamicQuantizeLinear", np.float32([[-64, 191, 0.5, 1.5]]), outputs=3),
}

# --- of ONNX Runtime --------------------------------------------------------------------------------------------------


def contrib(op_type, *operands, **attributes):
    return quantized(op_type, *operands, domain="com.microsoft", **attributes)


X, PLANES = (ints(U8, 2, 3, 4), HALF, U8(100)), (ints(U8, 1, 3, 4, 6), HALF, U8(100))
MINE = (QUARTER, U8(90))

CONTRIB = {
    "QuantizeLinear": contrib("QuantizeLinear", halves(3, 40, spread=200_000), HALF, I16(3)),
    "DequantizeLinear": contrib("DequantizeLinear", ints(U16, 3, 4), CHANNELS[:4], U16([1, 2, 3, 4]), axis=1),
    "QLinearConv": contrib(
        "QLinearConv",
        *(ints(I8, 1, 5, 6, 2), HALF, I8(-3), WEIGHT, CHANNELS, I8([0] * 6), HALF * 256, I8(9)),
        channels_last=1,
        strides=(2, 1),
    ),
    "QLinearAdd": contrib("QLinearAdd", *X, ints(U8, 3, 1), QUARTER, U8(7), QUARTER, U8(100)),  # ties are its own
    "QLinearMul": contrib("QLinearMul", *X, ints(U8, 3, 1), EIGHTH, U8(7), HALF * 32, U8(100)),
    "QLinearConcat": contrib(
        "QLinearConcat",
        HALF,
        U8(9),
        *X,
        ints(U8, 2, 2, 4),
        QUARTER,
        U8(3),
        ints(U8, 2, 1, 4),
        HALF * 2,
        U8(200),
        axis=1,
    ),
    "QLinearLeakyRelu": contrib("QLinearLeakyRelu", *X, HALF * 2, U8(50), alpha=0.125),
    "QLinearAveragePool": contrib("QLinearAveragePool", *PLANES, *MINE, kernel_shape=(2, 2), strides=(2, 1)),
    "QLinearAveragePool of channels last": contrib(
        "QLinearAveragePool",
        *PLANES,
        *MINE,
        kernel_shape=(2, 2),
        pads=(1, 0, 0, 1),
        count_include_pad=1,
        channels_last=1,
    ),
    "QLinearGlobalAveragePool": contrib(
        "QLinearGlobalAveragePool", ints(U8, 1, 4, 4, 2), HALF, U8(100), *MINE, channels_last=1
    ),
    "QGemm": contrib(
        "QGemm",
        *(ints(U8, 3, 5), HALF, U8(120), ints(I8, 4, 5), EIGHTH, I8(9), ints(np.int32, 4, low=-999, high=999)),
        *(HALF * 128, U8(100)),
        transB=1,
        alpha=0.5,
    ),
    "QGemm to floats": contrib("QGemm", ints(U8, 3, 5), HALF, U8(120), ints(U8, 5, 4), CHANNELS[:4], U8([1, 2, 3, 4])),
    "MatMulIntegerToFloat": contrib(
        "MatMulIntegerToFloat",
        ints(U8, 3, 5),
        ints(I8, 5, 4),
        HALF,
        CHANNELS[:4],
        U8(9),
        I8([1, 2, 3, 4]),
        CHANNELS[2:],
    ),
    "DynamicQuantizeMatMul": contrib(
        "DynamicQuantizeMatMul", np.float32([[-64, 191, 3], [5, 7, 0]]), ints(I8, 3, 4), HALF, I8(3), CHANNELS[2:]
    ),
}
EXACT = ONNX | {f"com.microsoft {name}": case for name, case in CONTRIB.items()}


@pytest.mark.parametrize("name", EXACT)
def test_without_roundings_on_the_way_results_are_equal(name):
    model, data = EXACT[name]
    runtime, exact = by_runtime(model, data), exactly(model, data)
    for backend in ("cpu", "numpy"):
        for ours, theirs, meant in zip(by_gradspec(model, data, backend), runtime, exact, strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, meant)
            np.testing.assert_array_equal(ours, theirs)


THIRD, STEP = np.float32(1 / 3), np.float32(0.0123)
ROUNDED = {
    "quantize": quantized("QuantizeLinear", RNG.standard_normal((9, 99), np.float32), STEP, U8(128)),
    "QLinearConv": quantized(
        "QLinearConv", IMAGE, THIRD, U8(100), WEIGHT, CHANNELS / 3, I8([0] * 6), np.float32(31.7), U8(99), group=2
    ),
    "QLinearMatMul": quantized(
        "QLinearMatMul", ints(U8, 9, 50), THIRD, U8(120), ints(U8, 50, 20), STEP, U8(99), np.float32(9.7), U8(100)
    ),
    "QLinearAdd": contrib(
        "QLinearAdd", ints(U8, 9, 99), STEP, U8(3), ints(U8, 9, 99), THIRD, U8(7), np.float32(0.4), U8(8)
    ),
    "QLinearSigmoid": contrib("QLinearSigmoid", ints(U8, 9, 99), STEP, U8(99), np.float32(1 / 255), U8(3)),
    "QLinearSoftmax": contrib(
        "QLinearSoftmax", ints(U8, 9, 20), STEP, U8(99), np.float32(1 / 255), U8(3), opset=13, axis=1
    ),
    "QLinearAveragePool": contrib(
        "QLinearAveragePool", *PLANES, STEP * 7, U8(90), kernel_shape=(3, 3), pads=(1, 1, 1, 1)
    ),
    "DynamicQuantizeMatMul": contrib(
        "DynamicQuantizeMatMul", RNG.standard_normal((9, 50), np.float32), ints(U8, 50, 7), STEP, U8(120)
    ),
}


SHARE = {"QLinearSoftmax": 0.1}
"""Of results that may be off by one, where not the usual hundredth: a softmax whose exponentials are rounded first."""


@pytest.mark.parametrize("name", ROUNDED)
def test_roundings_on_the_way_move_few_results_by_one(name):
    model, data = ROUNDED[name]
    for ours, theirs in zip(by_gradspec(model, data), by_runtime(model, data), strict=True):
        unit = 1 if theirs.dtype.kind in "iu" else 2e-6 * np.abs(theirs).max()
        error = np.abs(ours.astype(float) - theirs.astype(float))
        assert error.max() <= unit
        assert theirs.dtype.kind == "f" or np.mean(error > 0) <= SHARE.get(name, 0.01)


@pytest.mark.parametrize("size", [9, 10, 11])
def test_a_last_block_may_be_short(size):
    """Blocks of 4: three scales for 9 to 12 cells. The runtime only takes what its own check allows, so by hand."""
    x, scale, zero = halves(2, size), CHANNELS.reshape(2, 3), ints(I8, 2, 3, low=-4, high=4)
    places = np.arange(size) // 4
    model, data = quantized("QuantizeLinear", x, scale, zero, axis=1, block_size=4)
    expected = np.clip(np.rint(x / scale[:, places]) + zero[:, places], -128, 127)
    np.testing.assert_array_equal(by_gradspec(model, data)[0], expected)
    model, data = quantized("DequantizeLinear", ints(I8, 2, size), scale, zero, axis=1, block_size=4)
    expected = (data["x0"].astype(np.float32) - zero[:, places]) * scale[:, places]
    np.testing.assert_array_equal(by_gradspec(model, data)[0], expected)


@pytest.mark.parametrize("block", [9, 2**31, 2**62])
def test_a_block_beyond_the_axis_is_all_of_it(block):
    x, scale = halves(2, 8), CHANNELS[:2].reshape(2, 1)
    graph = gs.from_onnx(quantized("QuantizeLinear", x, scale, ints(I8, 2, 1), axis=1, block_size=block)[0])
    assert max(v.type.size for node in graph.nodes for v in node.outputs) == x.size
    model, data = quantized("DequantizeLinear", ints(I8, 2, 8), scale, axis=1, block_size=block)
    np.testing.assert_array_equal(by_gradspec(model, data)[0], data["x0"] * scale)


def test_quotients_are_rounded_to_the_format_of_the_scale():
    """Some quotients are halves in float16 and beside them in float32: the format of the scale decides."""
    x, scale = np.arange(2048, dtype=np.float16).reshape(8, 256), np.float16(8.2)
    halves, wide = (np.rint(x.astype(kind) / kind(scale)) for kind in (np.float16, np.float32))
    assert np.any(halves != wide)
    for version, expected, settings in (
        (21, halves, {}),
        (23, halves, {}),
        (23, wide, {"precision": TensorProto.FLOAT}),
    ):
        model, data = quantized("QuantizeLinear", x, scale, U8(0), version=version, **settings)
        np.testing.assert_array_equal(by_gradspec(model, data)[0], expected)
        if not settings:
            np.testing.assert_array_equal(ReferenceEvaluator(model).run(None, data)[0], expected)


def test_integers_of_32_bits_are_quantised_as_floats():
    model, data = quantized("QuantizeLinear", np.int32([[5, -7, 1001, 3]]), QUARTER * 8, U8(100), version=13)
    (expected,) = ReferenceEvaluator(model).run(None, data)
    np.testing.assert_array_equal(by_gradspec(model, data)[0], expected)


def test_zero_points_that_are_left_out_are_0():
    """ONNX Runtime, whose text says so, ends the process."""
    model, data = contrib("QLinearLeakyRelu", X[0], HALF, None, QUARTER, alpha=0.5)
    np.testing.assert_array_equal(by_gradspec(model, data)[0], np.minimum(2 * X[0].astype(int), 255))


# --- derivatives ------------------------------------------------------------------------------------------------------


def network(*, quantises_activations):
    """A convolution with weights of 8 bits, whose input is quantised on the way or not."""
    nodes = [helper.make_node("DequantizeLinear", ["w", "s", "z"], ["weight"], axis=0)]
    if quantises_activations:
        nodes.append(helper.make_node("QuantizeLinear", ["x", "a", "b"], ["q"]))
        nodes.append(helper.make_node("DequantizeLinear", ["q", "a", "b"], ["given"]))
    nodes.append(helper.make_node("Conv", ["given" if quantises_activations else "x", "weight"], ["y"]))
    known = {"w": WEIGHT, "s": CHANNELS, "z": I8([0] * 6), "a": QUARTER, "b": U8(3)}
    used = {name for node in nodes for name in node.input}
    tensors = [numpy_helper.from_array(np.asarray(t), n) for n, t in known.items() if n in used]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 2, 5, 4))]
    graph = helper.make_graph(nodes, "g", inputs, [onnx.ValueInfoProto(name="y")], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def test_weights_of_8_bits_leave_a_network_differentiable():
    graph, x = gs.from_onnx(network(quantises_activations=False)), halves(1, 2, 5, 4)
    weight = WEIGHT.astype(np.float32) * CHANNELS[:, None, None, None]
    g = np.ones((1, 6, 3, 3), np.float32)
    value, gradient = graph.vjp("x")(x, g)
    np.testing.assert_array_equal(value, gs.conv2d(x, weight))
    np.testing.assert_array_equal(gradient, gs.conv_transpose2d(g, weight))


@pytest.mark.parametrize("mode", ["jvp", "vjp"])
def test_derivatives_through_quantised_activations_are_an_error_that_says_what_to_do(mode):
    graph = gs.from_onnx(network(quantises_activations=True))
    with pytest.raises(gs.UnsupportedError, match=r"quantize is a staircase.*gs\.detach"):
        getattr(graph, mode)("x")


# --- what is refused --------------------------------------------------------------------------------------------------

REFUSED = {
    "zero points of another dtype": (
        quantized("ConvInteger", IMAGE, ints(I8, 6, 4, 3, 2), I8(3)),
        gs.FormatError,
        "uint8|u8, and the zero point i8",
    ),
    "an output_dtype that is not so": (
        quantized("QuantizeLinear", halves(2, 3), HALF, I8(0), output_dtype=TensorProto.UINT8),
        gs.FormatError,
        "output_dtype is u8",
    ),
    "scales that do not fit the axis": (
        quantized("QuantizeLinear", halves(2, 3), CHANNELS[:2], I8([0, 0]), axis=1),
        gs.ShapeError,
        r"along axis 1 of \(2, 3\)",
    ),
    "blocks that do not fit": (
        quantized("DequantizeLinear", ints(I8, 2, 9), CHANNELS.reshape(2, 3), axis=1, block_size=2),
        gs.ShapeError,
        r"in blocks of 2, scale and zero point have the shape \(2, 5\)",
    ),
    "a negative block": (
        quantized("DequantizeLinear", ints(I8, 2, 9), CHANNELS.reshape(2, 3), axis=1, block_size=-4),
        gs.ShapeError,
        "in blocks of -4",
    ),
    "four bits": (
        quantized("QuantizeLinear", halves(2, 3), HALF, output_dtype=TensorProto.INT4),
        gs.UnsupportedError,
        "elements of type int4",
    ),
    "operands that are missing": (contrib("QLinearAdd", X[0], HALF, U8(3)), gs.FormatError, "3 inputs"),
    "attributes that there are not": (contrib("QLinearAdd", *X, *X, *MINE, axis=1), gs.FormatError, "'axis'"),
    "an operator that is not there": (contrib("QMoE", *X), gs.UnsupportedError, r"com\.microsoft\.QMoE"),
    "parts without a scale": (contrib("QLinearConcat", HALF, U8(9), *X, X[0], axis=1), gs.FormatError, "6 inputs"),
    "scales of a result by channels": (
        quantized("QLinearConv", IMAGE, HALF, U8(100), WEIGHT, EIGHTH, I8(0), CHANNELS, U8([1] * 6), group=2),
        gs.UnsupportedError,
        r"input 6 of shape \(6,\)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name):
    (model, _), error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        gs.from_onnx(model)
