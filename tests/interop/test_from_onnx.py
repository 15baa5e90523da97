"""Importing ONNX models: what each operator means in every version, what the caller binds, and what is refused."""

import os
import re
import warnings

import numpy as np
import onnx
import onnx.inliner
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import gradspec as gs
from gradspec.interop.onnx import files, reader
from interop.onnx_models import model, one_node, theirs, value


def reals(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def integers(*numbers):
    return np.array(numbers, np.int64)


# --- versions of operators --------------------------------------------------------------------------------------------

X = reals(2, 3, 5)
IMAGE = reals(2, 3, 7, 6)
TIED = np.round(IMAGE)
HALVES = IMAGE.astype(np.float16)
WEIGHTS = [reals(3, seed=i) for i in range(3)] + [np.abs(reals(3, seed=3)) + 0.5]


def attribute_or_input(op_type, since, name, numbers, x=X, **attributes):
    """Numbers that were an attribute before opset ``since`` made them an input."""

    def build(opset):
        if opset < since:
            return one_node(op_type, opset, [x], **{name: numbers}, **attributes)
        return one_node(op_type, opset, [x], [integers(*numbers)], **attributes)

    return build, [x]


def same_in_all(op_type, *arrays, constants=(), outputs=1, **attributes):
    return lambda opset: one_node(op_type, opset, arrays, constants, outputs, **attributes), list(arrays)


def clip(opset):
    if opset < 11:
        return one_node("Clip", opset, [X], min=-0.5, max=0.25)
    return one_node("Clip", opset, [X], [np.float32(-0.5), np.float32(0.25)])


def slices(opset):
    starts, ends, axes = (1, -4), (3, 100), (1, 2)
    if opset < 10:
        return one_node("Slice", opset, [X], starts=starts, ends=ends, axes=axes)
    return one_node("Slice", opset, [X], [integers(*n) for n in (starts, ends, axes)])


def backwards(opset):
    return one_node("Slice", opset, [X], [integers(-1, 4), integers(-(2**62), 0), integers(0, 2), integers(-1, -2)])


def pad(mode, pads):
    def build(opset):
        if opset < 11:
            return one_node("Pad", opset, [X], pads=pads, mode=mode, value=1.5)
        return one_node("Pad", opset, [X], [integers(*pads), np.float32(1.5)], mode=mode)

    return build, [X]


def scaled(mode, scales):
    numbers = np.float32([1, 1, *scales])

    def build(opset):
        if opset < 9:
            return one_node("Upsample", opset, [IMAGE], mode=mode, scales=numbers.tolist())
        if opset < 10:
            return one_node("Upsample", opset, [IMAGE], [numbers], mode=mode)
        return one_node("Resize", opset, [IMAGE], [numbers], mode=mode)

    return build, [IMAGE]


def group_norm(opset):
    per = (2, 4)[opset >= 21]
    return one_node("GroupNormalization", opset, [reals(2, 4, 3)], [reals(per), reals(per, seed=1)], num_groups=2)


SWEEPS = {
    "Softmax": (*same_in_all("Softmax", X, axis=1), (7, 11, 12, 13, 18)),
    "LogSoftmax": (*same_in_all("LogSoftmax", X, axis=1), (7, 12, 13)),
    "Clip": (clip, [X], (7, 11, 12, 13)),
    "Slice": (slices, [X], (7, 10, 13)),
    "Slice backwards": (backwards, [X], (10, 13)),
    "Squeeze": (*attribute_or_input("Squeeze", 13, "axes", [1], X[:, :1]), (7, 11, 13, 21)),
    "Unsqueeze": (*attribute_or_input("Unsqueeze", 13, "axes", [0, 2]), (7, 11, 13, 21)),
    "ReduceSum": (*attribute_or_input("ReduceSum", 13, "axes", [0, 2], keepdims=0), (7, 11, 13, 18)),
    "ReduceMean": (*attribute_or_input("ReduceMean", 18, "axes", [1], keepdims=1), (7, 13, 18)),
    "ReduceMax": (*attribute_or_input("ReduceMax", 18, "axes", [2]), (7, 12, 18)),
    "Split": (*attribute_or_input("Split", 13, "split", [1, 3, 1], outputs=3, axis=2), (7, 11, 13)),
    "Split in equal parts": (*same_in_all("Split", X, outputs=2), (7, 11, 13)),
    "Split in unequal parts": (*same_in_all("Split", X, outputs=3, axis=2, num_outputs=3), (18,)),
    "Pad": (*pad("constant", [0, 1, 2, 0, 0, 1]), (7, 11, 13, 18)),
    "Pad and crop": (*pad("constant", [0, -1, 2, 0, 0, -3]), (7, 11, 18)),
    "Pad by reflection": (*pad("reflect", [1, 0, 2, 1, 2, 4]), (7, 11, 18)),
    "Pad by the edge": (*pad("edge", [1, 0, 2, 0, 3, 4]), (7, 11, 18)),
    "Pad some axes": (
        lambda opset: one_node("Pad", opset, [X], [integers(1, 2), None, integers(-1)], mode="wrap"),
        [X],
        (19, 21),
    ),
    "Upsample nearest": (*scaled("nearest", (2, 3)), (7, 9, 10)),
    "Upsample linear": (*scaled("linear", (2, 4)), (7, 9, 10)),
    "shrink nearest": (*scaled("nearest", (0.5, 0.75)), (10,)),
    "BatchNormalization": (*same_in_all("BatchNormalization", IMAGE, constants=WEIGHTS, epsilon=1e-3), (7, 9, 14, 15)),
    "BatchNormalization per cell": (
        *same_in_all("BatchNormalization", X, constants=[*reals(3, 3, 5), np.abs(reals(3, 5)) + 0.5], spatial=0),
        (7,),
    ),
    "BatchNormalization of halves": (*same_in_all("BatchNormalization", HALVES, constants=WEIGHTS), (15, 26)),
    "MaxPool": (*same_in_all("MaxPool", TIED, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 2, 1]), (7, 11, 12, 22)),
    "MaxPool with indices": (
        *same_in_all("MaxPool", IMAGE, outputs=2, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 2, 1]),
        (8, 10, 12, 22),
    ),
    "MaxPool by columns": (
        *same_in_all("MaxPool", IMAGE, outputs=2, kernel_shape=[2, 3], strides=[2, 2], storage_order=1),
        (8, 12),
    ),
    "MaxPool dilated, ceil": (
        *same_in_all("MaxPool", IMAGE, kernel_shape=[2, 2], strides=[2, 3], dilations=[2, 1], ceil_mode=1),
        (10, 12),
    ),
    "AveragePool": (
        *same_in_all("AveragePool", IMAGE, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1], count_include_pad=1),
        (7, 11, 19),
    ),
    "AveragePool dilated": (*same_in_all("AveragePool", IMAGE, kernel_shape=[2, 3], dilations=[3, 2]), (19, 22)),
    "AveragePool ceil": (
        *same_in_all("AveragePool", IMAGE, kernel_shape=[2, 4], strides=[3, 3], ceil_mode=1),
        (10, 19),
    ),
    "LpPool": (*same_in_all("LpPool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], p=3), (7, 11, 18)),
    "GlobalLpPool": (*same_in_all("GlobalLpPool", IMAGE, p=3), (7, 21)),
    "Gemm": (
        *same_in_all("Gemm", reals(3, 2), reals(4, 3), reals(4), transA=1, transB=1, alpha=0.5, beta=2.0),
        (7, 9, 11, 13),
    ),
    "Gemm without C": (*same_in_all("Gemm", reals(2, 3), reals(3, 4)), (11, 13)),
    "GroupNormalization": (group_norm, [reals(2, 4, 3)], (18, 21)),
    "DepthToSpace": (*same_in_all("DepthToSpace", reals(1, 8, 2, 3), blocksize=2), (7, 11, 13)),
    "DepthToSpace CRD": (*same_in_all("DepthToSpace", reals(1, 8, 2, 3), blocksize=2, mode="CRD"), (11, 13)),
    "Reshape": (*same_in_all("Reshape", X, constants=[integers(0, -1)]), (7, 13, 14, 21)),
    "Reshape to nothing": (*same_in_all("Reshape", X[:0], constants=[integers(0, 2)], allowzero=1), (14, 19)),
    "Flatten": (*same_in_all("Flatten", IMAGE, axis=2), (7, 9, 13)),
    "Flatten from behind": (*same_in_all("Flatten", IMAGE, axis=-1), (11, 13)),
    "PRelu": (*same_in_all("PRelu", X, reals(3, 1)), (7, 9, 16)),
    "Dropout": (*same_in_all("Dropout", X), (7, 10, 12, 13, 22)),
    "Dropout with mask": (*same_in_all("Dropout", X, outputs=2), (12, 13)),
    "Shape": (*same_in_all("Shape", X, start=-2, end=3), (15, 19)),
    "Cast": (*same_in_all("Cast", 10 * X, to=TensorProto.INT32), (7, 9, 13, 19)),
    "Div of integers": (
        *same_in_all("Div", np.array([7, -7, 7, -7], np.int32), np.array([2, 2, -2, -2], np.int32)),
        (7, 14),
    ),
    "LRN": (*same_in_all("LRN", IMAGE, size=3, alpha=0.5, beta=0.6, bias=1.5), (7, 13)),
    "LRN of an even size": (*same_in_all("LRN", reals(3, 3, 2, 4), size=4, alpha=0.5), (26,)),
    "InstanceNormalization": (*same_in_all("InstanceNormalization", IMAGE, constants=WEIGHTS[:2]), (7, 22)),
    "ConvTranspose": (
        *same_in_all(
            "ConvTranspose", IMAGE, reals(3, 2, 3, 2), strides=[3, 2], output_padding=[2, 1], pads=[1, 0, 2, 1]
        ),
        (7, 11, 22),
    ),
    "ConvTranspose of a size": (
        *same_in_all("ConvTranspose", IMAGE, reals(3, 2, 3, 2), strides=[2, 2], output_shape=[13, 11]),
        (7, 11),
    ),
    "ConvTranspose beyond its reach": (
        *same_in_all("ConvTranspose", IMAGE, reals(3, 2, 3, 2), reals(2), auto_pad="SAME_UPPER", output_shape=[12, 8]),
        (26,),
    ),
    "ConvTranspose same": (
        *same_in_all("ConvTranspose", IMAGE, reals(3, 2, 3, 4), strides=[2, 3], auto_pad="SAME_UPPER"),
        (7, 11),
    ),
    "Conv": (
        *same_in_all("Conv", reals(2, 4, 7, 6), reals(6, 2, 3, 2), reals(6), group=2, strides=[2, 1], dilations=[1, 3]),
        (7, 11, 22),
    ),
    "Conv same": (*same_in_all("Conv", IMAGE, reals(4, 3, 2, 4), strides=[2, 1], auto_pad="SAME_LOWER"), (7, 11)),
}


@pytest.mark.parametrize("name", SWEEPS)
def test_meaning_in_every_version(name):
    build, arrays, opsets = SWEEPS[name]
    for opset in opsets:
        proto = build(opset)
        ours = gs.compile(gs.from_onnx(proto), backend="numpy")(*arrays)
        check(ours if isinstance(ours, tuple) else (ours,), theirs(proto, arrays), arrays)


def test_valid_padding_has_one_size_whatever_ceil_mode_says():
    """By the operator's text ⌈(n − k + 1)/s⌉ = ⌊(n − k)/s⌋ + 1; ONNX Runtime rounds up all the same."""
    options = {"kernel_shape": [2, 3], "strides": [2, 2], "auto_pad": "VALID"}
    (expected,) = theirs(one_node("MaxPool", 12, [IMAGE], **options), [IMAGE])
    ours = gs.from_onnx(one_node("MaxPool", 12, [IMAGE], **options, ceil_mode=1))(IMAGE)
    np.testing.assert_array_equal(ours, expected, strict=True)


def check(ours, expected, arrays):
    """Equal types; numbers within the rounding of 64 steps on numbers no larger than inputs and results."""
    for a, b in zip(ours, expected, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        largest = max([1.0, *(np.abs(x).max(initial=0) for x in (*arrays, b))])
        unit = np.finfo(a.dtype).eps / 2 if a.dtype.kind == "f" else 0
        np.testing.assert_allclose(a, b, rtol=0, atol=64 * unit * largest)


PLACES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize")
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
TARGETS = ((16, 5), (4, 2), (1, 8), (6, 3))
ROI = np.float32([0, 0, 0.25, -0.5, 1, 1, 0.75, 1.25])


@pytest.mark.parametrize("places", PLACES)
def test_resize_puts_outputs_where_the_mode_says(places):
    """Nearest cells would differ by rounding if positions fell on a tie by chance; these sizes give exact positions."""
    image = reals(1, 2, 8, 4)
    for sizes in TARGETS:
        for mode, nearest in [("linear", "floor"), *(("nearest", n) for n in NEAREST)]:
            options = {"mode": mode, "nearest_mode": nearest, "coordinate_transformation_mode": places}
            roi = ROI if places == "tf_crop_and_resize" else np.float32([])
            proto = one_node(
                "Resize", 13, [image], [roi, None, integers(1, 2, *sizes)], extrapolation_value=7.5, **options
            )
            check((gs.from_onnx(proto)(image),), theirs(proto, [image]), [image])


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
def test_resize_keeps_the_aspect_ratio_when_asked(policy):
    image = reals(1, 1, 4, 6)
    proto = one_node(
        "Resize", 18, [image], [None, None, integers(6, 6)], mode="linear", axes=[2, 3], keep_aspect_ratio_policy=policy
    )
    check((gs.from_onnx(proto)(image),), theirs(proto, [image]), [image])


# --- shapes= ----------------------------------------------------------------------------------------------------------


def symbolic():
    nodes = [helper.make_node("Add", ["x", "y"], ["z"])]
    return model(nodes, [value("x", ["N", 3, None]), value("y", ["N", 1, 1])], [value("z", None)])


@pytest.mark.parametrize("shapes", [{"x": (8, 3, 5)}, {"N": 8, "x": (8, 3, 5)}, {"x": [8, 3, 5], "y": (8, 1, 1)}])
def test_shapes_bind_names_and_whole_inputs(shapes):
    graph = gs.from_onnx(symbolic(), shapes=shapes)
    assert [v.type for v in (*graph.inputs, *graph.outputs)] == [gs.f32[8, 3, 5], gs.f32[8, 1, 1], gs.f32[8, 3, 5]]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({}, "'N': …, 'x': (…)"),
        ({"N": 8}, "shapes={'x': (…)}"),
        ({"M": 8, "x": (8, 3, 5)}, "'M' is not a dimension"),
        ({"z": (8, 3, 5)}, "'z' is not an input"),
        ({"x": (8, 4, 5)}, "does not fit"),
        ({"x": (8, 3)}, "rank"),
        ({"N": 7, "x": (8, 3, 5)}, "does not fit"),
        ({"N": 2.5, "x": (8, 3, 5)}, "an int of at least 0"),
        ({"N": -1}, "an int of at least 0"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shapes, message):
    with pytest.raises(gs.ShapeError, match=re.escape(message)):
        gs.from_onnx(symbolic(), shapes=shapes)


def test_bytes_are_no_path():
    with pytest.raises(TypeError, match=r"not bytes; onnx\.load_model_from_string"):
        gs.from_onnx(reshaped().SerializeToString())


# --- constants= -------------------------------------------------------------------------------------------------------


def reshaped():
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    return model(nodes, [value("x", [2, 6]), value("shape", [2], TensorProto.INT64)], [value("y", None)])


def test_constants_bind_what_shapes_depend_on():
    graph = gs.from_onnx(reshaped(), constants={"shape": [4, -1]})
    assert [v.name for v in graph.inputs] == ["x"]
    assert graph.outputs[0].shape == (4, 3)


@pytest.mark.parametrize(
    ("constants", "error", "message"),
    [
        ({}, gs.UnsupportedError, "constants={'shape': …}"),
        ({"size": [4, 3]}, gs.ShapeError, "'size' is not an input"),
        ({"shape": [12]}, gs.ShapeError, "does not fit"),
        ({"shape": [4.0, 3.0]}, gs.DTypeError, "does not fit"),
        ({"shape": np.array([4, 3], np.int32)}, gs.DTypeError, "does not fit"),
        ({"shape": [5, 3]}, gs.ShapeError, "reshape"),
    ],
)
def test_constants_that_do_not_fit_are_refused(constants, error, message):
    with pytest.raises(error, match=re.escape(message)):
        gs.from_onnx(reshaped(), constants=constants)


def test_what_is_computed_from_an_input_is_bound_by_it():
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Mul", ["s", "factor"], ["t"]),
        helper.make_node("Expand", ["x", "t"], ["y"]),
    ]
    proto = model(nodes, [value("x", [1, 3]), value("factor", [2], TensorProto.INT64)], [value("y", None)])
    with pytest.raises(gs.UnsupportedError, match=r"Expand .*'factor'"):
        gs.from_onnx(proto)
    assert gs.from_onnx(proto, constants={"factor": [4, 1]}).outputs[0].shape == (4, 3)


def test_initializers_of_old_models_are_constants_unless_bound():
    weight = np.float32([2, 3])
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"])]
    proto = model(nodes, [value("x", [2]), value("w", [2])], [value("y", [2])], {"w": weight}, ir_version=3)
    graph = gs.from_onnx(proto)
    assert [v.name for v in graph.inputs] == ["x"]
    assert graph(np.ones(2, np.float32)).tolist() == [2, 3]
    assert gs.from_onnx(proto, constants={"w": [5.0, 7.0]})(np.ones(2, np.float32)).tolist() == [5, 7]


def test_arithmetic_on_shapes_is_done_at_import():
    """The tail of a classifier as exporters wrote it: Reshape(x, Concat(Shape(x)[0], −1))."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Unsqueeze", ["n", "axis"], ["row"]),
        helper.make_node("Concat", ["row", "rest"], ["t"], axis=0),
        helper.make_node("Reshape", ["x", "t"], ["y"]),
    ]
    known = {"zero": np.int64(0), "axis": integers(0), "rest": integers(-1)}
    graph = gs.from_onnx(model(nodes, [value("x", ["N", 3, 4])], [value("y", None)], known), shapes={"N": 5})
    assert [node.op.name for node in graph.nodes] == ["reshape"]
    assert graph.outputs[0].shape == (5, 12)


SIGNED, DIVISORS = integers(7, -7, 7, -7), integers(2, 2, -2, -2)
HALFWAY = np.float32([-2.5, -1.5, -0.25, 0.5, 1.5, 2.75])
FOLDED = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Equal", "Less", "Greater"), (SIGNED, DIVISORS)),
    **dict.fromkeys(("LessOrEqual", "GreaterOrEqual"), (SIGNED, SIGNED[::-1])),
    **dict.fromkeys(("Floor", "Ceil", "Round", "Sign", "Abs", "Neg"), (HALFWAY,)),
    **dict.fromkeys(("And", "Or", "Xor"), (SIGNED > 0, DIVISORS > 0)),
    "Not": (SIGNED > 0,),
    "Sqrt": (np.abs(HALFWAY),),
    "Relu": (HALFWAY,),
    "Sum": (HALFWAY, HALFWAY[::-1], HALFWAY),
    "Where": (SIGNED > 0, SIGNED, DIVISORS),
    "Range": (np.int64(7), np.int64(-4), np.int64(-3)),
    "ReduceProd": (SIGNED.reshape(2, 2),),
    "ReduceMax": (SIGNED,),
    "ReduceMin": (SIGNED,),
    "Cast": (HALFWAY,),
    "Transpose": (SIGNED.reshape(2, 2),),
    "Tile": (SIGNED, integers(2)),
}


@pytest.mark.parametrize("op_type", FOLDED)
def test_arithmetic_on_known_values_leaves_no_node(op_type):
    attributes = {"to": TensorProto.INT64} if op_type == "Cast" else {}
    proto = one_node(op_type, 17, [], FOLDED[op_type], **attributes)
    graph = gs.from_onnx(proto)
    assert not graph.nodes
    check((graph(),), theirs(proto, []), [])


def test_known_integers_are_not_divided_by_zero():
    for op_type in ("Div", "Mod"):
        with pytest.raises(gs.FormatError, match="divides an integer by 0"):
            gs.from_onnx(one_node(op_type, 17, [], (SIGNED, 0 * DIVISORS)))


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_everything_unsupported_is_told_at_once():
    nodes = [
        helper.make_node("Det", ["x"], ["a"], "first"),
        helper.make_node("Fancy", ["a"], ["b"], "own", domain="com.example"),
        helper.make_node("Det", ["b"], ["c"], "second"),
        helper.make_node("BatchNormalization", ["x", *4 * ["scales"]], ["d"], "up", training_mode=1),
        helper.make_node("Relu", ["d"], ["e"], "innocent"),
        helper.make_node("Reshape", ["x", "shape"], ["f"], "open"),
    ]
    inputs = [value("x", ["N", 3]), value("shape", [1], TensorProto.INT64)]
    weights = {"scales": np.float32([2, 2, 2]), "text": helper.make_tensor("text", TensorProto.STRING, [1], [b"no"])}
    proto = model(nodes, inputs, [value("e", None)], weights)
    with pytest.raises(gs.UnsupportedError, match="Det, 2 times"):
        gs.from_onnx(proto)
    with pytest.raises(gs.UnsupportedError) as caught:
        gs.from_onnx(proto, shapes={"N": 2})
    message = str(caught.value)
    for told in ("Det, 2 times", "'first'", "'second'", "com.example.Fancy", "training", "'up'", "'open'", "string"):
        assert told in message
    assert "innocent" not in message


X2 = value("x", [2])
RELU = helper.make_node("Relu", ["x"], ["y"])


def without_dims(**fields):
    return TensorProto(name="w", data_type=TensorProto.FLOAT, **fields)


def unversioned():
    proto = model([RELU], [X2], [value("y", [2])])
    del proto.opset_import[:]
    return proto


@pytest.mark.parametrize(
    ("proto", "error", "message"),
    [
        (model([RELU], [X2], []), gs.FormatError, "no outputs"),
        (model([RELU], [X2], [value("z", [2])]), gs.FormatError, "'z'"),
        (model([], [X2], [value("x", [2], TensorProto.DOUBLE)]), gs.FormatError, "the model states float64"),
        (model([RELU, RELU], [X2], [value("y", [2])]), gs.FormatError, "already has a value"),
        (model([helper.make_node("Relu", ["y"], ["y"])], [X2], [value("y", [2])]), gs.FormatError, "circle"),
        (model([RELU], [X2, X2], [value("y", [2])]), gs.FormatError, "two inputs"),
        (model([RELU], [X2], [value("y", [2])], opset=0), gs.UnsupportedError, "opset 0"),
        (model([RELU], [X2], [value("y", [2])], opset=99), gs.UnsupportedError, "opset 99"),
        (model([helper.make_node("Relu", ["x", "x"], ["y"])], [X2], [value("y", [2])]), gs.FormatError, "2 inputs"),
        (model([helper.make_node("Relu", [""], ["y"])], [X2], [value("y", [2])]), gs.FormatError, "left out"),
        (model([helper.make_node("Relu", ["x"], ["y"], alpha=1)], [X2], [value("y", [2])]), gs.FormatError, "alpha"),
        (model([helper.make_node("Concat", ["x"], ["y"])], [X2], [value("y", [2])]), gs.FormatError, "lacks"),
        (model([helper.make_node("Mish", ["x"], ["y"])], [X2], [value("y", [2])]), gs.FormatError, "opset 17 has no"),
        (model([RELU], [X2], [value("y", [2])], {"w": without_dims(dims=[10**6] * 3)}), gs.FormatError, "0 numbers"),
        (model([RELU], [X2], [value("y", [2])], {"w": without_dims(dims=[-1])}), gs.FormatError, "dimensions"),
        (
            model([RELU], [X2], [value("y", [2])], {"w": without_dims(dims=[2], raw_data=b"1")}),
            gs.FormatError,
            "1 byte",
        ),
        (onnx.ModelProto(ir_version=8), gs.FormatError, "no outputs"),
        (unversioned(), gs.FormatError, "does not name the version"),
    ],
    ids=range(18),
)
def test_damaged_models_are_refused(proto, error, message):
    with pytest.raises(error, match=message):
        gs.from_onnx(proto)


def test_constants_made_at_import_are_bounded():
    """A few bytes ask for 2⁴⁰ cells: a constant of that size takes no memory, and nothing may be computed from it."""
    shape = integers(2**20, 2**20)
    fill = helper.make_node("ConstantOfShape", ["s"], ["big"])
    cut = helper.make_node("Slice", ["big", "zero", "two"], ["y"])
    rows = helper.make_node("Gather", ["y", "zero"], ["z"])
    ends = {"s": shape, "zero": integers(0, 0), "two": integers(2, 2)}
    graph = gs.from_onnx(model([fill, cut, rows], [], [value("y", [2, 2]), value("z", None)], ends))
    assert [y.shape for y in graph()] == [(2, 2), (2, 2)]
    for node in (
        helper.make_node("Add", ["big", "big"], ["y"]),
        helper.make_node("Cast", ["big"], ["y"], to=TensorProto.INT64),
        helper.make_node("Concat", ["big", "big"], ["y"], axis=0),
        helper.make_node("Tile", ["big", "two"], ["y"]),
        helper.make_node("Flatten", ["big"], ["y"], axis=0),
    ):
        with pytest.raises(gs.UnsupportedError, match="cells"):
            gs.from_onnx(model([fill, node], [], [value("y", None)], ends))


def test_ranks_and_sizes_are_bounded():
    """Ever longer shapes would make every node slower than the one before."""
    nodes = [helper.make_node("Unsqueeze", [f"x{i}", "axis"], [f"x{i + 1}"]) for i in range(100)]
    with pytest.raises(gs.FormatError, match="65 axes"):
        gs.from_onnx(model(nodes, [value("x0", [])], [value("x100", None)], {"axis": integers(0)}))
    tile = helper.make_node("Tile", ["x", "times"], ["y"])
    with pytest.raises(gs.FormatError, match="cells"):
        gs.from_onnx(model([tile], [X2], [value("y", None)], {"times": integers(2**60)}))


def test_a_long_chain_is_read_without_recursion():
    count = 20_000
    proto = model([], [value("x0", [2])], [value(f"x{count}", [2])])
    for i in range(count):
        proto.graph.node.add(op_type="Relu", input=[f"x{i}"], output=[f"x{i + 1}"])
    assert len(gs.from_onnx(proto).nodes) == count


# --- files ------------------------------------------------------------------------------------------------------------


def external(location, offset=None, length=None, dims=(2,)):
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, content in (("location", location), ("offset", offset), ("length", length)):
        if content is not None:
            tensor.external_data.add(key=key, value=str(content))
    return model([helper.make_node("Add", ["x", "w"], ["y"])], [X2], [value("y", None)], {"w": tensor})


@pytest.fixture
def folder(tmp_path):
    """A model's folder with data in it, next to a secret."""
    inside = tmp_path / "model"
    inside.mkdir()
    (inside / "data").write_bytes(np.float32([9, 2, 3]).tobytes())
    (tmp_path / "secret").write_bytes(np.float32([9, 2, 3]).tobytes())
    (inside / "leads_out").symlink_to(tmp_path / "secret")
    (inside / "stays").symlink_to("data")
    (inside / "folder").mkdir()
    (inside / "folder" / "up").symlink_to("../..")
    os.mkfifo(inside / "pipe")
    return inside


def saved(folder, proto):
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.parametrize("location", ["data", "stays", "./data"])
def test_external_data_is_read_from_the_models_folder(folder, location):
    graph = gs.from_onnx(saved(folder, external(location, 4, 8)))
    assert graph(np.float32([1, 1])).tolist() == [3, 4]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (("../secret",), "not a path inside"),
        (("folder/../../secret",), "not a path inside"),
        (("..\\secret",), "not a path inside"),
        (("C:\\secret",), "not a path inside"),
        (("leads_out",), "leads out"),
        (("folder/up/secret",), "leads out"),
        (("",), "not a path inside"),
        (("da\0ta",), "not a path inside"),
        (("missing",), "cannot be read"),
        (("folder",), "regular file"),
        (("pipe",), "regular file"),
        (("data", 8, 8), "beyond the end"),
        (("data", 0, 4), "4 bytes"),
        (("data", "-4"), "not a number"),
        (("data", 0, 8 * 10**12, (2 * 10**12,)), "beyond the end"),
    ],
)
def test_external_data_elsewhere_is_refused(folder, place, message):
    with pytest.raises(gs.FormatError, match=message):
        gs.from_onnx(saved(folder, external(*place)))


def test_absolute_paths_and_messages_without_folder_are_refused(folder):
    with pytest.raises(gs.FormatError, match="not a path inside"):
        gs.from_onnx(saved(folder, external(str(folder / "data"), 4, 8)))
    with pytest.raises(gs.FormatError, match="give the path"):
        gs.from_onnx(external("data", 4, 8))


def test_tensors_may_share_data_but_not_claim_more_than_there_is(folder):
    def tensor(name, offset):
        found = external("data", offset, 8).graph.initializer[0]
        found.name = name
        return found

    def summed(*offsets):
        names = [f"w{i}" for i in range(len(offsets))]
        tensors = {name: tensor(name, offset) for name, offset in zip(names, offsets, strict=True)}
        return model([helper.make_node("Sum", ["x", *names], ["y"])], [X2], [value("y", [2])], tensors)

    graph = gs.from_onnx(saved(folder, summed(4, 4, 4)))
    assert graph(np.float32([0, 0])).tolist() == [6, 9]
    with pytest.raises(gs.FormatError, match="overlap"):
        gs.from_onnx(saved(folder, summed(0, 4)))


def test_what_is_not_a_model_is_refused(folder, monkeypatch):
    for content in (b"", b"not a model", b"\x08" * 100, external("data").SerializeToString()[:-3]):
        (folder / "m.onnx").write_bytes(content)
        with pytest.raises(gs.FormatError):
            gs.from_onnx(folder / "m.onnx")
    for other in ("folder", "pipe"):
        with pytest.raises((gs.FormatError, IsADirectoryError)):
            gs.from_onnx(folder / other)
    with pytest.raises(FileNotFoundError):
        gs.from_onnx(folder / "missing.onnx")
    monkeypatch.setattr(files, "MAX_MODEL_BYTES", 10)
    with pytest.raises(gs.FormatError, match="at most 10"):
        gs.from_onnx(saved(folder, external("data", 4, 8)))


def test_too_many_nodes_are_refused_at_once(monkeypatch):
    monkeypatch.setattr(reader, "MAX_NODES", 1)
    with pytest.raises(gs.FormatError, match="2 nodes"):
        gs.from_onnx(model([RELU, helper.make_node("Relu", ["y"], ["z"])], [X2], [value("z", [2])]))


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64", "int8", "uint16", "uint32", "uint64", "bool"])
def test_tensors_are_read_from_every_field(kind):
    number = getattr(TensorProto, {"float64": "DOUBLE"}.get(kind, kind.upper()))
    numbers = [1, 0] if kind == "bool" else [1, 2]
    typed = helper.make_tensor("w", number, [2], numbers)
    raw = numpy_helper.from_array(numpy_helper.to_array(typed), "w")
    for tensor in (typed, raw):
        graph = gs.from_onnx(model([], [], [onnx.ValueInfoProto(name="w")], {"w": tensor}))
        assert graph.outputs[0].dtype.numpy.name == kind
        assert graph().tolist() == numbers
    typed.dims[0] = 3
    with pytest.raises(gs.FormatError, match="2 numbers"):
        gs.from_onnx(model([], [], [onnx.ValueInfoProto(name="w")], {"w": typed}))


def test_numbers_that_their_type_does_not_hold_are_refused():
    tensor = TensorProto(name="w", data_type=TensorProto.INT8, dims=[1], int32_data=[200])
    with pytest.raises(gs.FormatError, match="int8"):
        gs.from_onnx(model([], [], [onnx.ValueInfoProto(name="w")], {"w": tensor}))


# --- derivatives ------------------------------------------------------------------------------------------------------


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.features = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3, padding=1, stride=2),
            torch.nn.BatchNorm2d(4),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Conv2d(4, 4, 3, padding=1, groups=2),
            torch.nn.Hardswish(),
            torch.nn.AdaptiveAvgPool2d(1),
        )
        self.head = torch.nn.Linear(4, 5)

    def forward(self, x):
        return torch.log_softmax(self.head(self.features(x).flatten(1)), 1)


def test_both_derivatives_of_an_imported_classifier(tmp_path):
    network = Classifier().eval()
    x, dx, g = (torch.from_numpy(reals(2, 3, 9, 9, seed=i)) for i in range(3))
    g = g.flatten()[:10].reshape(2, 5)
    path = tmp_path / "classifier.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter's own making
        torch.onnx.export(network, (x,), path, dynamo=False, input_names=["x"], dynamic_axes={"x": {0: "N"}})
    graph = gs.from_onnx(path, shapes={"N": 2})
    value_, tangent = graph.jvp()(x.numpy(), dx.numpy())
    _, cotangent = graph.vjp()(x.numpy(), g.numpy())
    expected, expected_tangent = torch.func.jvp(network, (x,), (dx,))
    (expected_cotangent,) = torch.func.vjp(network, x)[1](g)
    for ours, theirs_ in ((value_, expected), (tangent, expected_tangent), (cotangent, expected_cotangent)):
        np.testing.assert_allclose(ours, theirs_.detach().numpy(), rtol=1e-4, atol=1e-6)
