"""Importing ONNX models: names, and edges of operators that the tables of versions do not reach."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import gradspec as gs
from interop.onnx_models import model, one_node, theirs, value

X = np.arange(5, dtype=np.float32)
X2 = value("x", [2])
WHOLE = np.int32([2, 3, -2, 0])
UNTYPED = onnx.ValueInfoProto(name="y")


def integers(*numbers):
    return np.array(numbers, np.int64)


# --- names ------------------------------------------------------------------------------------------------------------


def chain(*names):
    """Relu after Relu, each result of its own name."""
    return [helper.make_node("Relu", [a], [b]) for a, b in zip(("x", *names), names, strict=False)]


@pytest.mark.parametrize(
    ("results", "outputs"),
    [
        (("a", "b"), ("b",)),
        (("a", "b"), ("b", "a")),
        (("a", "b", "relu"), ("relu", "a")),  # what the importer would call another
        (("relu_1", "relu_2", "relu"), ("relu", "relu_1", "relu_2")),
        (("a",), ("a", "x")),
    ],
)
def test_outputs_keep_their_names(results, outputs):
    graph = gs.from_onnx(model(chain(*results), [X2], [value(name, [2]) for name in outputs]))
    assert [v.name for v in graph.outputs] == list(outputs)
    names = [v.name for v in (*graph.inputs, *graph.constants)] + [v.name for n in graph.nodes for v in n.outputs]
    assert len(set(names)) == len(names)
    assert next(o.name for o in gs.to_onnx(graph).graph.output) == outputs[0]


def test_one_variable_keeps_the_first_of_its_names():
    nodes = [*chain("a"), helper.make_node("Identity", ["a"], ["b"]), helper.make_node("Identity", ["w"], ["c"])]
    proto = model(nodes, [X2], [value(name, [2]) for name in "abac"], {"w": np.float32([1, 2])})
    assert [v.name for v in gs.from_onnx(proto).outputs] == ["a", "a", "a", "c"]


# --- operators --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limits", [(-6, -7, -2), (-100, -1000, -1), (-(2**63), -(2**63), -1), (-100, 2, 1), (9, -9, -2)]
)
def test_a_slice_that_starts_before_the_first_cell_starts_there(limits):
    start, end, step = limits
    proto = one_node("Slice", 13, [X], [integers(n) for n in (start, end, 0, step)])
    np.testing.assert_array_equal(gs.from_onnx(proto)(X), *theirs(proto, [X]), strict=True)


@pytest.mark.parametrize("powers", [np.float32([2, 1.5, 2, 2]), np.float32(0.5), np.int32(-1), np.int32([-1, 2, 2, 2])])
def test_powers_that_are_no_integers_are_not_taken_of_integers(powers):
    with pytest.raises(gs.UnsupportedError, match="Pow of integers"):
        gs.from_onnx(one_node("Pow", 13, [WHOLE], [powers]))


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64])
def test_powers_with_computed_exponents(kind):
    x, y = np.float32([2, -2, -0.5, 0, 0, 9, -8]), np.array([3, 3, -2, 0, 2, 1, 2], kind)
    proto = one_node("Pow", 15, [x, y])
    np.testing.assert_allclose(gs.from_onnx(proto)(x, y), *theirs(proto, [x, y]), rtol=2e-7)


def test_whole_powers_of_integers():
    proto = one_node("Pow", 13, [WHOLE], [np.float32([3, 0, 1, 2])])
    np.testing.assert_array_equal(gs.from_onnx(proto)(WHOLE), *theirs(proto, [WHOLE]), strict=True)


@pytest.mark.parametrize("op_type", ["Ceil", "Floor", "Round", "Sign"])
def test_roundings_at_halves_and_special_values(op_type):
    x = np.float32([np.nan, np.inf, -np.inf, 0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.49999997, 2**23 + 1, 1e-45, -1e-45])
    proto = one_node(op_type, 13, [x])
    (wanted,) = theirs(proto, [x])
    graph = gs.from_onnx(proto)
    np.testing.assert_array_equal(graph(x), wanted, strict=True)
    zeros = wanted == 0
    np.testing.assert_array_equal(np.signbit(graph(x)[zeros]), np.signbit(wanted[zeros]))
    assert not graph.vjp()(x, np.full_like(x, 3))[1].any()


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_the_mask_of_an_old_dropout_is_of_the_input_s_type(dtype):
    graph = gs.from_onnx(one_node("Dropout", 7, [X.astype(dtype)], outputs=2))
    assert [v.dtype.numpy for v in graph.outputs] == [dtype, dtype]


def test_statistics_of_less_precision_do_not_round_the_input():
    """In float16 all these numbers are 2048."""
    x = np.float32([[2048.0, 2048.5, 2049.0]]).T
    ones = [np.float32([1]), np.float32([0]), np.float16([0]), np.float16([1])]
    y = gs.from_onnx(one_node("BatchNormalization", 15, [x], ones, epsilon=0.0))(x)
    np.testing.assert_array_equal(y, x, strict=True)


def test_known_values_are_cast_as_others_are():
    x = np.float32([3e10, -3e10, np.nan, -2.7, 7])
    unknown = gs.from_onnx(one_node("Cast", 13, [x], to=TensorProto.INT32))(x)
    known = gs.from_onnx(model([helper.make_node("Cast", ["c"], ["y"], to=TensorProto.INT32)], [], [UNTYPED], {"c": x}))
    assert not known.nodes
    np.testing.assert_array_equal(known(), unknown, strict=True)


# --- what a model holds -----------------------------------------------------------------------------------------------


def test_booleans_in_further_files_are_zero_or_one(tmp_path):
    (tmp_path / "data").write_bytes(bytes([2, 0, 255]))
    tensor = TensorProto(name="y", data_type=TensorProto.BOOL, dims=[3], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="data")
    (tmp_path / "m.onnx").write_bytes(model([], [], [UNTYPED], {"y": tensor}).SerializeToString())
    assert gs.from_onnx(tmp_path / "m.onnx")().view(np.uint8).tolist() == [1, 0, 1]


def tiled(kind):
    """A model whose second input says how often the first is repeated, in numbers of some kind."""
    nodes = [
        helper.make_node("Cast", ["n"], ["repeats"], to=TensorProto.INT64),
        helper.make_node("Tile", ["x", "repeats"], ["y"]),
    ]
    return model(nodes, [X2, value("n", ["rank"], kind)], [value("y", None)])


@pytest.mark.parametrize("kind", [TensorProto.UINT8, TensorProto.INT32, TensorProto.FLOAT])
def test_plain_numbers_become_the_type_that_is_stated(kind):
    assert gs.from_onnx(tiled(kind), constants={"n": [3]}).outputs[0].shape == (6,)


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        (TensorProto.UINT8, 256),
        (TensorProto.UINT8, -1),
        (TensorProto.UINT8, 1.5),
        (TensorProto.INT32, 2**32 + 1),
        (TensorProto.BOOL, 2),
        (TensorProto.INT64, 2**70),
    ],
)
def test_plain_numbers_are_not_bent_to_fit(kind, number):
    with pytest.raises(gs.DTypeError, match="does not fit"):
        gs.from_onnx(tiled(kind), constants={"n": [number]})


def test_an_empty_list_has_every_type():
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    proto = model(nodes, [value("x", [1]), value("shape", [0], TensorProto.INT64)], [value("y", None)])
    assert gs.from_onnx(proto, constants={"shape": []}).outputs[0].shape == ()


def test_powers_that_are_not_meant_do_not_touch_derivatives():
    x, ones = np.float32([-1, 4, 0, -2]), np.ones(4, np.float32)
    graph = gs.from_onnx(one_node("Pow", 17, [x], [np.float32([2, 0.5, 3, -1])]))
    expected = [-2.0, 0.25, 0.0, -0.25]
    assert graph.jvp()(x, ones)[1].tolist() == graph.vjp()(x, ones)[1].tolist() == expected


def test_results_may_be_left_without_a_name():
    nodes = [helper.make_node("MaxPool", ["x"], ["y", ""], kernel_shape=[2])]
    proto = model(nodes, [value("x", [1, 1, 4])], [value("y", None)])
    assert gs.from_onnx(proto)(np.float32([[[1, 2, 4, 3]]])).tolist() == [[[2.0, 4.0, 4.0]]]


@pytest.mark.parametrize("opset", [1, 6, 10])
def test_bounds_that_are_not_given_are_none(opset):
    assert gs.from_onnx(one_node("Clip", opset, [X]))(X).tolist() == X.tolist()


def test_bounds_that_cross_leave_the_upper_one_in_every_version():
    assert gs.from_onnx(one_node("Clip", 10, [X], min=2.0, max=1.0))(X).tolist() == [1.0] * 5


def test_a_number_of_pieces_that_is_not_that_of_the_outputs_is_refused():
    with pytest.raises(gs.FormatError, match="num_outputs is 4, and it has 2 outputs"):
        gs.from_onnx(one_node("Split", 18, [np.zeros(4, np.float32)], outputs=2, num_outputs=4))


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"strides": [0]}, r"its strides is \[0\]; numbers of 1 or more are needed"),
        ({"pads": [1]}, r"its pads is \[1\] with 1 entries; 2 are needed"),
    ],
)
def test_what_is_wrong_with_a_window_is_shown(attributes, said):
    with pytest.raises(gs.FormatError, match=said):
        gs.from_onnx(one_node("MaxPool", 17, [np.zeros((1, 1, 4), np.float32)], kernel_shape=[2], **attributes))
