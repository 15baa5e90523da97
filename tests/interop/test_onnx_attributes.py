"""Attributes that ONNX's text rules out are refused when a model is read, by node and name."""

from math import inf, nan

import numpy as np
import pytest
from onnx import TensorProto, defs, helper, numpy_helper

import gradspec as gs
from gradspec.interop.onnx.node import EXCEPT, FINITE, FLAG, KIND, LIMITS, NOT_NEGATIVE, POSITIVE
from gradspec.interop.onnx.nodes import HANDLERS

ARRAYS = {
    "w": np.ones((4, 4, 3, 3), np.float32),
    "indices": np.zeros((1, 4, 6, 6), np.int64),
    "zero": np.array([0]),
    "shape": np.array([1, 4, 6, 6]),
    "row": np.ones(6, np.float32),
    "channels": np.ones(4, np.float32),
    "scales": np.float32([1, 1, 2, 2]),
}


def one_node(op_type, inputs, outputs=("y",), opset=22, **attributes):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 6, 6])
    y = helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)
    node = helper.make_node(op_type, inputs, outputs, name="it", **attributes)
    arrays = [numpy_helper.from_array(array, name) for name, array in ARRAYS.items()]
    graph = helper.make_graph([node], "one", [x], [y], arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def refused(name, *node, **attributes):
    with pytest.raises(gs.FormatError, match=rf"^node 0 \(\w+ 'it'\): .*\b{name}\b"):
        gs.from_onnx(one_node(*node, **attributes))


INPUTS = {"MaxUnpool": ["x", "indices"], "Conv": ["x", "w"], "ConvTranspose": ["x", "w"]}
POOL = {"kernel_shape": [2, 2]}
GEOMETRY = {
    "auto_pad and pads": ({"auto_pad": "SAME_UPPER", "pads": [1, 1, 1, 1]}, "auto_pad"),
    "valid and pads": ({"auto_pad": "VALID", "pads": [0, 0, 0, 1]}, "auto_pad"),
    "no such auto_pad": ({"auto_pad": "SAME"}, "auto_pad"),
    "negative pads": ({"pads": [-1, 0, 0, 0]}, "pads"),
    "too few pads": ({"pads": [1, 1]}, "pads"),
    "a stride of 0": ({"strides": [0, 1]}, "strides"),
    "a negative stride": ({"strides": [1, -1]}, "strides"),
    "too few strides": ({"strides": [1]}, "strides"),
    "a dilation of 0": ({"dilations": [0, 1]}, "dilations"),
    "a kernel of 0": ({"kernel_shape": [0, 3]}, "kernel_shape"),
    "another kernel": ({"kernel_shape": [3]}, "kernel_shape"),
}


@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize(("attributes", "name"), GEOMETRY.values(), ids=GEOMETRY)
def test_geometry(op_type, attributes, name):
    settings = {**POOL, **attributes} if "Pool" in op_type else attributes
    refused(name, op_type, INPUTS.get(op_type, ["x"]), **settings)


@pytest.mark.parametrize("mode", ["VALID", "SAME_UPPER", "SAME_LOWER"])
def test_pads_of_zero_say_nothing(mode):
    both = gs.from_onnx(one_node("Conv", ["x", "w"], auto_pad=mode, pads=[0, 0, 0, 0]))
    assert str(both) == str(gs.from_onnx(one_node("Conv", ["x", "w"], auto_pad=mode)))


ODD = {
    "perm below 0": ("perm", "Transpose", ["x"], {"perm": [0, 1, 2, -1]}),
    "perm twice": ("perm", "Transpose", ["x"], {"perm": [0, 1, 2, 2]}),
    "perm too short": ("perm", "Transpose", ["x"], {"perm": [0, 1, 2]}),
    "perm of a known value": ("perm", "Transpose", ["w"], {"perm": [0, 1, 2, -1]}),
    "output_padding": ("output_padding", "ConvTranspose", ["x", "w"], {"output_padding": [-1, 0]}),
    "output_shape": ("output_shape", "ConvTranspose", ["x", "w"], {"output_shape": [-3, 8]}),
    "the weight's kernel": ("kernel_shape", "Conv", ["x", "w"], {"kernel_shape": [3, 2]}),
    "unpooling": ("pads", "MaxUnpool", ["x", "indices"], {**POOL, "pads": [-1, 0, 0, 0]}),
    "axis of Concat": ("axis", "Concat", ["x", "x"], {"axis": 4}),
    "axis of known values": ("axis", "Concat", ["w", "w"], {"axis": -5}),
    "axis of Softmax": ("axis", "Softmax", ["x"], {"axis": 4}),
    "axis of Flatten": ("axis", "Flatten", ["x"], {"axis": 5}),
    "axis of Gather": ("axis", "Gather", ["x", "zero"], {"axis": -5}),
    "axis of LayerNormalization": ("axis", "LayerNormalization", ["x", "row"], {"axis": 4}),
    "axes twice": ("axes", "MeanVarianceNormalization", ["x"], {"axes": [0, -4]}),
    "axes of Resize": ("axes", "Resize", ["x", "", "scales"], {"axes": [0, 1, 2, 9]}),
    "p": ("p", "LpNormalization", ["x"], {"p": 3}),
    "mode": ("mode", "Pad", ["x", "shape"], {"mode": "mirror"}),
    "approximate": ("approximate", "Gelu", ["x"], {"approximate": "sigmoid"}),
}


@pytest.mark.parametrize(("name", "op_type", "inputs", "attributes"), ODD.values(), ids=ODD)
def test_values_without_a_meaning(name, op_type, inputs, attributes):
    refused(name, op_type, inputs, **attributes)


WRONG = {id(FLAG): [2, -1], id(POSITIVE): [0, -1], id(NOT_NEGATIVE): [-1], id(FINITE): [inf, nan], id(KIND): [0, 99]}


def limited(opset=22):
    """Every attribute with a limit of every operator that is read."""
    for op_type in sorted(HANDLERS):
        try:
            schema = defs.get_schema(op_type, opset, "")
        except defs.SchemaError:
            continue
        for name, attribute in schema.attributes.items():
            if name in LIMITS and (op_type, name) not in EXCEPT:
                yield pytest.param(schema, attribute, id=f"{op_type}.{name}")


@pytest.mark.parametrize(("schema", "attribute"), list(limited()))
def test_every_limit_holds_for_every_operator(schema, attribute):
    operands, results = ["x"] * schema.min_input, [f"y{i}" for i in range(schema.min_output)]
    kinds = defs.OpSchema.AttrType
    for number in WRONG[id(LIMITS[attribute.name])]:
        value = {kinds.INTS: [number, 1], kinds.FLOATS: [float(number)], kinds.FLOAT: float(number)}.get(
            attribute.type, number
        )
        refused(attribute.name, schema.name, operands, results, **{attribute.name: value})
