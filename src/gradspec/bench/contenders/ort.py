"""ONNX Runtime: values only."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from gradspec.bench.contenders import FIXED, NotOfferedError, Variants
from gradspec.bench.data import Array, data
from gradspec.bench.grid import Conv, Network, Pool, Problem
from gradspec.bench.networks import run

OPSET = 17


class OnnxRuntime:
    def __init__(self, threads: int) -> None:
        self.onnx, self.runtime, self.threads = import_module("onnx"), import_module("onnxruntime"), threads

    def versions(self) -> dict[str, str]:
        return {"onnxruntime": self.runtime.__version__, "onnx": self.onnx.__version__}

    def arrays(self, results: list[Array]) -> list[Array]:
        return results

    def variants(self, problem: Problem) -> Variants:
        if problem.mode != "forward":
            raise NotOfferedError("ONNX Runtime computes values only")
        names = list(problem.cell.inputs())
        nodes = Nodes(self.onnx.helper)
        result = nodes.of(problem, names)
        options = self.runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self.threads, 1
        model = self._model(problem, nodes, names, result)
        session = self.runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        feeds = {"x": data(problem).inputs[0]}
        return {FIXED if problem.has_fixed_weights else "": lambda: session.run(None, feeds)}

    def _model(self, problem: Problem, nodes: Nodes, names: list[str], result: str) -> bytes:
        """Weights belong to the model, as in every file that is exported: they are packed once, and only x is fed."""
        helper, numbers = self.onnx.helper, self.onnx.TensorProto.FLOAT
        weights = zip(names[1:], data(problem).inputs[1:], strict=True)
        graph = helper.make_graph(
            nodes.made,
            "problem",
            [helper.make_tensor_value_info("x", numbers, problem.cell.inputs()["x"])],
            [helper.make_tensor_value_info(result, numbers, problem.cell.output())],
            [self.onnx.numpy_helper.from_array(array, name) for name, array in weights],
        )
        opset = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()  # type: ignore[no-any-return]


class Nodes:
    """The nodes of a model as they are made; a value is the name of a node's output."""

    def __init__(self, helper: Any) -> None:
        self.helper, self.made = helper, list[Any]()

    def add_node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        output = f"value{len(self.made)}"
        self.made.append(self.helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def of(self, problem: Problem, names: list[str]) -> str:
        cell = problem.cell
        if cell.rank not in (1, 2, 3):
            raise NotOfferedError("ONNX Runtime pools and convolves along one to three axes")
        if isinstance(cell, Pool):
            return self._pool(cell, problem.op)
        if isinstance(cell, Conv):
            return self._conv(cell, *names)
        assert isinstance(cell, Network)
        return str(run(cell, self, "x", names[1:]))

    def _pool(self, cell: Pool, op: str) -> str:
        if op == "smooth" or cell.is_adaptive:
            raise NotOfferedError("ONNX has no such operator")
        kind = {"max": "MaxPool", "avg": "AveragePool"}[op]
        if cell.is_global:
            return self.add_node(f"Global{kind}", "x")
        kernel, stride, padding = cell.windows
        counting = {"count_include_pad": 1} if op == "avg" else {}
        return self.add_node(kind, "x", kernel_shape=kernel, strides=stride, pads=padding * 2, **counting)

    def _conv(self, cell: Conv, *names: str) -> str:
        sizes = {"strides": cell.stride, "dilations": cell.dilation}
        geometry = {name: [size] * cell.rank for name, size in sizes.items()}
        kind = "ConvTranspose" if cell.transposed else "Conv"
        return self.add_node(kind, *names, **geometry, pads=[cell.padding] * (2 * cell.rank), group=cell.groups)

    # --- what a network is made of ------------------------------------------------------------------------------------

    def relu(self, x: str) -> str:
        return self.add_node("Relu", x)

    def flatten(self, x: str) -> str:
        return self.add_node("Flatten", x)

    def add(self, x: str, y: str) -> str:
        return self.add_node("Add", x, y)

    def conv(self, x: str, weight: str, bias: str, stride: int, padding: int) -> str:
        return self.add_node("Conv", x, weight, bias, strides=[stride] * 2, pads=[padding] * 4)

    def linear(self, x: str, weight: str, bias: str) -> str:
        return self.add_node("Gemm", x, weight, bias, transB=1)

    def max_pool(self, x: str, kernel: int, stride: int, padding: int) -> str:
        return self.add_node("MaxPool", x, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[padding] * 4)
