"""Reading an ONNX model: every node is handed to the handler of its operator, in order, and gives variables or arrays.

A model may come from anyone. Whatever is wrong with it becomes a FormatError that says where, and what gradspec does
not have is gathered and told at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, defs

from gradspec.graph.builder import Builder
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array, Var
from gradspec.graph.types import TensorType, dtype_of
from gradspec.interop.onnx.files import Folder, load_model
from gradspec.interop.onnx.folding import CellBudget, fold
from gradspec.interop.onnx.interface import Declared, bound_constants, bound_shapes, declared
from gradspec.interop.onnx.node import OnnxNode, Signature, Value, attributes_of, require_counts, signature
from gradspec.interop.onnx.nodes import HANDLERS
from gradspec.interop.onnx.refusals import REFUSED, OnnxRefusals, Refused
from gradspec.interop.onnx.tensors import MAX_CELLS, MAX_RANK, array_of
from gradspec.saving.strict_json import brief
from gradspec.spec.errors import DTypeError, FormatError, ShapeError, UnsupportedError

FIRST_OPSET, LAST_OPSET = 7, 28
MAX_NODES = 250_000
MOST_SOURCES = 64
"""Variables that are looked at to say what an unknown one is computed from."""

OWN_DOMAIN = ("", "ai.onnx")
OURS = (FormatError, UnsupportedError, ShapeError, DTypeError)


def read(model: Any, shapes: Mapping[str, Any], constants: Mapping[str, Any]) -> Graph:
    """The graph of a model, given as a path or as a message."""
    message, folder = (model, None) if isinstance(model, ModelProto) else load_model(model)
    try:
        return Reader(message, Folder(folder)).graph(shapes, constants)
    except OURS:
        raise
    except Exception as error:  # what a damaged message holds may offend anything that looks at it
        raise FormatError(f"the model is damaged: {error or type(error).__name__}") from error


class Reader:
    """The values of one model by name: variables, arrays, or what was refused."""

    def __init__(self, model: ModelProto, folder: Folder) -> None:
        self._model, self._folder = model, folder
        self._version = opset(model)
        self._builder = Builder()
        self._budget = CellBudget(model.ByteSize())
        self._refusals = OnnxRefusals()
        self._values: dict[str, Value | Refused] = {}
        self._lifted: dict[str, Var] = {}
        self._inputs: dict[str, Declared] = {}
        self._stated: dict[str, Declared] = {}

    def graph(self, shapes: Mapping[str, Any], constants: Mapping[str, Any]) -> Graph:
        source = self._model.graph
        if len(source.node) > MAX_NODES:
            raise FormatError(f"the model has {len(source.node)} nodes; at most {MAX_NODES} are read")
        self._refuse_operators(source)
        self._read_initializers(source)
        try:
            self._read_inputs(source, shapes, constants)
        except ShapeError:
            self._refusals.settle()  # no sizes would make the model readable
            raise
        self._read_stated_types(source)
        for number, node in enumerate(source.node):
            self._read_node(_place(number, node), node)
        self._refusals.settle()
        return self._build(source)

    # --- what a handler asks of the model -----------------------------------------------------------------------------

    def lift(self, name: str) -> Var:
        """A known array as a constant of the graph, the same for every node that uses it."""
        if name not in self._lifted:
            array = self._values[name]
            assert isinstance(array, np.ndarray)
            self._lifted[name] = self._builder.share(array.view(), name)
        return self._lifted[name]

    def sources(self, var: Var) -> list[str]:
        """The inputs that a variable is computed from, as far as a short search finds them."""
        found, queue = {var}, [var]
        for v in queue:  # which grows meanwhile
            node = self._builder.maker(v)
            new = set(node.inputs if node and len(queue) < MOST_SOURCES else ()) - found
            found |= new
            queue.extend(new)
        return sorted(v.name for v in queue if v.name in self._inputs and self._values[v.name] is v)

    def array(self, tensor: TensorProto) -> Array:
        return array_of(tensor, self._folder)

    def charge(self, cells: int) -> None:
        self._budget.charge(cells)

    # --- what is there before the first node --------------------------------------------------------------------------

    def _refuse_operators(self, source: GraphProto) -> None:
        functions = {(f.domain, f.name) for f in self._model.functions}
        for number, node in enumerate(source.node):
            own = (node.domain, node.op_type) in functions
            if node.op_type in HANDLERS and node.domain in OWN_DOMAIN and not own:
                continue
            name = node.op_type if node.domain in OWN_DOMAIN else f"{node.domain}.{node.op_type}"
            remedy = " (a function of the model: onnx.inliner.inline_local_functions)" * own
            self._refusals.add(f"the operator {_word(name)}{remedy}", _place(number, node))

    def _read_initializers(self, source: GraphProto) -> None:
        for tensor in source.initializer:
            self._define(tensor.name, self._initial(tensor), f"initializer {brief(tensor.name)}")
        for sparse in source.sparse_initializer:
            self._refusals.add("sparse tensors", f"initializer {brief(sparse.values.name)}")
            self._define(sparse.values.name, REFUSED, f"initializer {brief(sparse.values.name)}")

    def _initial(self, tensor: TensorProto) -> Array | Refused:
        place = f"initializer {brief(tensor.name)}"
        try:
            return self.array(tensor)
        except UnsupportedError as error:
            self._refusals.add(str(error), place)
            return REFUSED
        except FormatError as error:
            raise FormatError(f"{place}: {error}") from None

    def _read_inputs(self, source: GraphProto, shapes: Mapping[str, Any], constants: Mapping[str, Any]) -> None:
        """Inputs become variables, unless the caller or an initializer of the same name gives their value."""
        for info in source.input:
            stated = self._stated_type(f"input {brief(info.name)}", info)
            if info.name in self._inputs or info.name == "":
                raise FormatError(f"two inputs are called {brief(info.name)}, or one has no name")
            if stated is None:
                self._values[info.name] = REFUSED
            self._inputs[info.name] = stated or Declared(None, None)
        for name, array in bound_constants(self._inputs, constants).items():
            self._values[name] = array
        free = {name: stated for name, stated in self._inputs.items() if name not in self._values}
        for name, shape in bound_shapes(free, shapes).items():
            self._values[name] = self._builder.input(_type(name, free[name], shape), name)
        for name, stated in self._inputs.items():
            self._require_stated(f"input {brief(name)}", self._values[name], stated)

    def _stated_type(self, place: str, info: Any) -> Declared | None:
        """The stated type of a value; None if it is of a kind that is refused."""
        try:
            return declared(info.type)
        except UnsupportedError as error:
            self._refusals.add(str(error), place)
            return None
        except FormatError as error:
            raise FormatError(f"{place}: {error}") from None

    def _read_stated_types(self, source: GraphProto) -> None:
        """What the model says of the values it computes, to be compared with what they turn out to be."""
        for what, infos in (("value", source.value_info), ("output", source.output)):
            for info in infos:
                stated = self._stated_type(f"{what} {brief(info.name)}", info)
                if stated is not None:
                    self._stated[info.name] = stated

    # --- nodes --------------------------------------------------------------------------------------------------------

    def _read_node(self, place: str, proto: NodeProto) -> None:
        operands = [self._operand(place, name) for name in proto.input]
        results: Sequence[Value | Refused] = [REFUSED] * len(proto.output)
        try:
            if proto.op_type in HANDLERS and proto.domain in OWN_DOMAIN and not any(v is REFUSED for v in operands):
                results = self._results(proto, operands)
        except UnsupportedError as error:
            self._refusals.add(str(error), place)
        except (FormatError, ShapeError, DTypeError) as error:
            raise type(error)(f"{place}: {error}") from None
        except Exception as error:  # operators' own rules may refuse what a file says with any exception
            raise FormatError(f"{place}: {error or type(error).__name__}") from error
        for name, result in zip(proto.output, results, strict=False):
            if name:
                self._define(name, result, place)

    def _operand(self, place: str, name: str) -> Value | Refused | None:
        if name == "":
            return None
        if name not in self._values:
            raise FormatError(
                f"{place} uses {brief(name)}, which nothing before it gives: the nodes are not in order, go round in a "
                "circle, or a part of the model is missing"
            )
        return self._values[name]

    def _results(self, proto: NodeProto, operands: Sequence[Value | Refused | None]) -> Sequence[Value]:
        known = _signature(proto.op_type, self._version)
        require_counts(proto, known)
        node = OnnxNode(
            proto.op_type,
            self._version,
            tuple(proto.input),
            tuple(v for v in operands if not isinstance(v, Refused)),
            tuple(proto.output),
            attributes_of(proto, known),
            self,
        )
        folded = fold(node)
        results = HANDLERS[proto.op_type](node) if folded is None else folded
        several = [
            np.asarray(v) if isinstance(v, np.generic) else v
            for v in (results if isinstance(results, list | tuple) else (results,))
        ]
        if any(proto.output[len(several) :]):
            raise UnsupportedError(f"{proto.op_type} with {len(proto.output)} outputs")
        return several

    def _define(self, name: str, value: Value | Refused, place: str) -> None:
        if name in self._values or name == "":
            raise FormatError(f"{place} gives {brief(name)}, which already has a value, or no name")
        if not isinstance(value, Refused):
            if len(value.shape) > MAX_RANK or prod(value.shape) > MAX_CELLS:
                raise FormatError(
                    f"{place} gives a tensor of {len(value.shape)} axes and {prod(value.shape)} cells; at most "
                    f"{MAX_RANK} and {MAX_CELLS} are read"
                )
            if name in self._stated:
                self._require_stated(f"{place}: {brief(name)}", value, self._stated[name])
        self._values[name] = value

    def _require_stated(self, place: str, value: Value | Refused, stated: Declared) -> None:
        if isinstance(value, Refused):
            return
        kind = value.dtype.numpy if isinstance(value, Var) else value.dtype
        if stated.contradicts(value, kind):
            raise FormatError(f"{place} is {kind} {list(value.shape)}, but the model states {stated}")

    # --- the graph ----------------------------------------------------------------------------------------------------

    def _build(self, source: GraphProto) -> Graph:
        outputs = [self._output(info.name) for info in source.output]
        if not outputs:
            raise FormatError("the model has no outputs")
        graph = self._builder.build(outputs, allow_unused=True)
        self._builder.finish()
        _name_outputs(graph, [info.name for info in source.output])
        return graph

    def _output(self, name: str) -> Var:
        value = self._operand("the list of outputs", name)
        if value is not None and name in self._stated:
            self._require_stated(f"output {brief(name)}", value, self._stated[name])
        if isinstance(value, Var):
            return value
        if value is None:
            raise FormatError("an output has no name")
        return self.lift(name)


def _name_outputs(graph: Graph, names: Sequence[str]) -> None:
    """Give results of nodes the model's names for them; a variable that was called so takes over the old name."""
    unnamed = {v for node in graph.nodes for v in node.outputs}
    called = {v.name: v for v in (*graph.inputs, *graph.constants, *unnamed)}
    for name, var in zip(names, graph.outputs, strict=True):
        if var in unnamed:
            unnamed.remove(var)
            other = called.get(name, var)
            other.name, var.name = var.name, name
            called |= {other.name: other, name: var}


def _place(number: int, node: NodeProto) -> str:
    return f"node {number} ({_word(node.op_type)} {brief(node.name)})"


def _word(name: str) -> str:
    """The name of an operator without quotes."""
    return ascii(name[:60])[1:-1]


def _type(name: str, stated: Declared, shape: tuple[int, ...]) -> TensorType:
    if stated.kind is None:
        raise FormatError(f"the input {brief(name)} has no type")
    return TensorType(dtype_of(np.empty(0, stated.kind)), shape)


def _signature(op_type: str, version: int) -> Signature:
    try:
        return signature(op_type, version)
    except defs.SchemaError:
        raise FormatError(f"opset {version} has no operator {op_type}") from None


def opset(model: ModelProto) -> int:
    """The version of ONNX's own operators that a model uses."""
    versions = {entry.version for entry in model.opset_import if entry.domain in OWN_DOMAIN}
    if len(versions) != 1:
        raise FormatError(f"the model names {len(versions)} versions of ONNX's operators; exactly one is needed")
    (version,) = versions
    last = min(LAST_OPSET, defs.onnx_opset_version())
    if not FIRST_OPSET <= version <= last:
        raise UnsupportedError(
            f"the model is written for opset {version}, and {FIRST_OPSET} to {last} are read; "
            "onnx.version_converter.convert_version changes it"
        )
    return int(version)
