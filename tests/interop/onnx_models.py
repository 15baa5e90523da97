"""Small ONNX models, and others' results on them."""

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

KINDS = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float64): TensorProto.DOUBLE} | {
    np.dtype(np.int64): TensorProto.INT64,
    np.dtype(np.int32): TensorProto.INT32,
    np.dtype(np.float16): TensorProto.FLOAT16,
    np.dtype(np.bool_): TensorProto.BOOL,
    np.dtype(np.uint8): TensorProto.UINT8,
}
RUNTIME_OPSET = 24
"""The last opset that ONNX Runtime is asked about; the reference evaluator answers for later ones."""


def value(name, shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes, inputs, outputs, initializers=None, opset=17, ir_version=8):
    """A model; ``initializers`` are arrays by name, or tensors."""
    tensors = [
        array if isinstance(array, TensorProto) else numpy_helper.from_array(np.asarray(array), name)
        for name, array in (initializers or {}).items()
    ]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def one_node(op_type, opset, arrays, constants=(), outputs=1, **attributes):
    """A model of one node: ``arrays`` are its inputs, ``constants`` the initializers behind them; None is left out."""
    names = [f"x{i}" for i in range(len(arrays))]
    weights = {f"c{i}": np.asarray(c) for i, c in enumerate(constants) if c is not None}
    operands = [*names, *(f"c{i}" if c is not None else "" for i, c in enumerate(constants))]
    node = helper.make_node(op_type, operands, [f"y{i}" for i in range(outputs)], **attributes)
    inputs = [value(name, a.shape, KINDS[a.dtype]) for name, a in zip(names, arrays, strict=True)]
    untyped = [onnx.ValueInfoProto(name=f"y{i}") for i in range(outputs)]
    return model([node], inputs, untyped, weights, opset)


def theirs(model, arrays):
    """The results of ONNX Runtime, or of ONNX's reference evaluator where that has no kernel."""
    feeds = dict(zip([i.name for i in model.graph.input], arrays, strict=True))
    if model.opset_import[0].version <= RUNTIME_OPSET:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        try:
            return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)
        except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:
            pass
    return ReferenceEvaluator(model).run(None, feeds)
