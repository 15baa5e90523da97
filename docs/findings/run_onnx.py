"""What the programs for ONNX Runtime share: run one operator."""

import numpy as np
import onnxruntime
from onnx import helper, numpy_helper


def run(operator, arrays, constants=(), outputs=1, opset=22, **attributes):
    """The results of an operator on arrays, then constants."""
    names = [f"x{i}" for i in range(len(arrays))]
    weights = [numpy_helper.from_array(np.asarray(array), f"c{i}") for i, array in enumerate(constants)]
    kinds = [helper.np_dtype_to_tensor_dtype(array.dtype) for array in arrays]
    types = [helper.make_tensor_value_info(n, k, a.shape) for n, k, a in zip(names, kinds, arrays, strict=True)]
    results = [helper.make_empty_tensor_value_info(f"y{i}") for i in range(outputs)]
    node = helper.make_node(operator, [*names, *(w.name for w in weights)], [r.name for r in results], **attributes)
    graph = helper.make_graph([node], "g", types, results, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip(names, arrays, strict=True)))
