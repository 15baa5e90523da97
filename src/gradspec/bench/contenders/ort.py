"""ONNX Runtime: values only."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from gradspec.bench.contenders import FIXED, Contender, Operators, Variants, as_problem, network_of
from gradspec.bench.grid import BenchProblem, Network, data
from gradspec.conformance.model.target import NotOfferedError
from gradspec.conformance.targets.onnx.model import node_of, undocumented
from gradspec.conformance.targets.onnx.target import session_of

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

OPSET, IR_VERSION = 17, 8
"""Of the operators of later ones, ONNX Runtime 1.31 does not yet lay out convolutions in blocks of channels."""


class OnnxRuntime(Contender):
    def __init__(self, threads: int) -> None:
        self.onnx, self.runtime, self.threads = import_module("onnx"), import_module("onnxruntime"), threads

    def versions(self) -> dict[str, str]:
        return {"onnxruntime": self.runtime.__version__, "onnx": self.onnx.__version__}

    def variants(self, problem: BenchProblem) -> Variants:
        if problem.mode != "forward":
            raise NotOfferedError("ONNX Runtime computes values only")
        names = list(problem.cell.inputs())
        nodes = Nodes(self.onnx.helper)
        result = nodes.of(problem, names)
        session = session_of(self._model(problem, nodes, names, result), self.threads)
        feeds = {"x": data(problem).inputs[0]}
        return {FIXED if problem.has_fixed_weights else "": lambda: session.run(None, feeds)}

    def _model(self, problem: BenchProblem, nodes: Nodes, names: list[str], result: str) -> ModelProto:
        """Weights belong to the model, as in every file that is exported: they are packed once, and only x is fed."""
        cell, numbers = problem.cell, self.onnx.TensorProto.FLOAT
        shapes = {"x": cell.inputs()["x"], result: cell.output()}
        x, y = (self.onnx.helper.make_tensor_value_info(name, numbers, shape) for name, shape in shapes.items())
        weights = dict(zip(names[1:], data(problem).inputs[1:], strict=True))
        helper, initializers = self.onnx.helper, [self.onnx.numpy_helper.from_array(a, n) for n, a in weights.items()]
        graph = helper.make_graph(nodes.made, "call", [x], [y], initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


class Nodes:
    """The nodes of a model as they are made; a value is the name of a node's output."""

    def __init__(self, helper: ModuleType) -> None:
        self.helper = helper
        self.made: list[NodeProto] = []

    def add_node(self, kind: str, *inputs: str, **attributes: object) -> str:
        output = f"value{len(self.made)}"
        self.made.append(self.helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def of(self, problem: BenchProblem, names: list[str]) -> str:
        cell = problem.cell
        if cell.rank not in (1, 2, 3):
            raise NotOfferedError("ONNX Runtime pools and convolves along one to three axes")
        if isinstance(cell, Network):
            return str(network_of(cell, problem.mode, self._operators())(*names))
        if reason := undocumented(as_problem(problem), "value"):
            raise NotOfferedError(reason)
        node = node_of(as_problem(problem), with_indices=False)
        return self.add_node(node.kind, *names, **node.attributes)

    def _operators(self) -> Operators:
        def max_pool(x: str, kernel: int, stride: int, padding: int) -> str:
            return self.add_node("MaxPool", x, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[padding] * 4)

        def conv(x: str, weight: str, bias: str, stride: int, padding: int) -> str:
            return self.add_node("Conv", x, weight, bias, strides=[stride] * 2, pads=[padding] * 4)

        plain = {kind.lower(): partial(self.add_node, kind) for kind in ("Relu", "Flatten", "Add")}
        return {**plain, "conv": conv, "max_pool": max_pool, "linear": partial(self.add_node, "Gemm", transB=1)}
