"""Graphs written as ONNX models. The writer names no operator: ``emit`` has one function for each."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import onnx
from onnx import helper

from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array, Node, Var
from gradspec.graph.show import distinct
from gradspec.graph.types import STORED
from gradspec.interop.onnx.emit.emitter import Emitter, OnnxValue, emit
from gradspec.interop.onnx.files import tensor_dtype
from gradspec.spec.errors import FormatWarning, UnsupportedError

OLDEST_OPSET = 18
"""The first version that has every operator the emitters use; ONNX Runtime reads it since 1.14."""

NEWEST_RUN, RUNTIME = 26, "ONNX Runtime 1.31"
"""The last version that this runtime, the newest that was tried, carries out."""

LARGEST_FILE = 2**31 - 1
"""The bytes that one protobuf message can hold."""


def write(graph: Graph, *, opset: int | None = None, nan_safe: bool = False, name: str = "gradspec") -> onnx.ModelProto:
    """The model of a graph, which ONNX's checker has passed."""
    version = _settled_opset(opset)
    _require_room(graph)
    stored = next((v for v in (*graph.inputs, *(v for n in graph.nodes for v in n.outputs)) if v.dtype in STORED), None)
    if stored is not None:
        raise UnsupportedError(f"{stored!r}: floats of eight bits are not written; convert by gs.round_to, which is")
    e = Emitter(_names(graph), nan_safe=nan_safe)
    values = {v: OnnxValue(v.name, v.shape, v.dtype.numpy) for v in graph.inputs}
    values |= {v: _constant(e, v.name, array) for v, array in graph.constants.items()}
    _write_nodes(e, graph.nodes, values)
    outputs = _distinct_outputs(e, graph, values)
    e.drop_unused(outputs)
    # The types of the graph's variables that the nodes give, for the checker to compare with what it infers.
    given = {name for node in e.nodes for name in node.output}.difference(outputs)
    body = helper.make_graph(
        e.nodes,
        name,
        [_typed(v.name, v) for v in graph.inputs],
        [_typed(output, v) for output, v in zip(outputs, graph.outputs, strict=True)],
        e.initializers,
        value_info=[_typed(v.name, v) for node in graph.nodes for v in node.outputs if v.name in given],
    )
    imports = [helper.make_opsetid("", version)]
    model = helper.make_model(
        body, producer_name="gradspec", opset_imports=imports, ir_version=helper.find_min_ir_version_for(imports)
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def _settled_opset(opset: int | None) -> int:
    newest = onnx.defs.onnx_opset_version()
    if opset is None:
        return OLDEST_OPSET
    if isinstance(opset, bool) or not isinstance(opset, int) or not OLDEST_OPSET <= opset <= newest:
        raise UnsupportedError(
            f"opset={opset!r}: models are written for operator sets {OLDEST_OPSET} to {newest}, the newest that the "
            f"installed onnx knows; choose one of them, or leave opset out. {RUNTIME} runs those up to {NEWEST_RUN}"
        )
    if opset > NEWEST_RUN:
        warnings.warn(
            f"opset={opset}: {RUNTIME} runs models up to {NEWEST_RUN}, and refuses this one; ONNX's own "
            "onnx.reference.ReferenceEvaluator runs it, and newer runtimes may. Leave opset out for one that all run",
            FormatWarning,
            stacklevel=4,
        )
    return opset


def _names(graph: Graph) -> list[str]:
    return [v.name for v in (*graph.inputs, *graph.constants, *(v for node in graph.nodes for v in node.outputs))]


# --- constants --------------------------------------------------------------------------------------------------------


def _require_room(graph: Graph) -> None:
    size = sum(distinct(array).nbytes for array in graph.constants.values())
    if size > LARGEST_FILE:
        raise UnsupportedError(
            f"the constants of this graph take {size:,} bytes, and an ONNX model holds {LARGEST_FILE:,}; make the "
            "largest of them inputs of the graph, and give them to the runtime"
        )


def _constant(e: Emitter, name: str, array: Array) -> OnnxValue:
    stored = distinct(array)
    if stored.shape == array.shape:
        return e.initializer(name, array)
    e.within(name)
    whole = e.expand(e.constant(stored), array.shape)
    return e.rename(len(e.nodes) - 1, whole, name)


# --- nodes ------------------------------------------------------------------------------------------------------------


def _write_nodes(e: Emitter, nodes: Sequence[Node], values: dict[Var, OnnxValue]) -> None:
    """Every node in turn; those that ONNX cannot express are named all at once."""
    refused = []
    for node in nodes:
        e.within(node.outputs[0].name)
        begin = len(e.nodes)
        try:
            results = emit(e, node, [values[v] for v in node.inputs])
        except UnsupportedError as error:
            refused.append(f"{node.outputs[0]!r} = {node.op}({', '.join(v.name for v in node.inputs)}): {error}")
            results = tuple(OnnxValue(v.name, v.shape, v.dtype.numpy) for v in node.outputs)
        for var, result in zip(node.outputs, results, strict=True):
            values[var] = e.rename(begin, result, var.name)
    if refused:
        raise UnsupportedError("ONNX cannot express this graph; what stands in the way:\n  " + "\n  ".join(refused))


# --- inputs and outputs -----------------------------------------------------------------------------------------------


def _distinct_outputs(e: Emitter, graph: Graph, values: dict[Var, OnnxValue]) -> list[str]:
    """The names of the outputs; one that is an input, a constant or another output again gets a name of its own."""
    used = {v.name for v in (*graph.inputs, *graph.constants)}
    names = []
    for var in graph.outputs:
        name = values[var].name
        if name in used:
            name = e.unused(f"{name}_output")
            e.nodes.append(helper.make_node("Identity", [values[var].name], [name], name=name))
        used.add(name)
        names.append(name)
    return names


def _typed(name: str, var: Var) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, tensor_dtype(var.dtype.numpy), var.shape)
