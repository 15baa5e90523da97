"""Reading an ONNX model: every node is handed to the handler of its operator, in order, and gives variables or arrays.

A model may come from anyone. Whatever is wrong with it becomes a FormatError that says where, and what gradspec does
not have is gathered and told at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from itertools import chain
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, defs

from gradspec.graph.builder import Builder
from gradspec.graph.family import Family, OpenType, Sizes
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array, Var
from gradspec.graph.types import DType, TensorType, dtype_of
from gradspec.interop.onnx.early import upgrade_opset
from gradspec.interop.onnx.files import MAX_CELLS, MAX_RANK, Folder, array_of, load_model
from gradspec.interop.onnx.folding import CellBudget, fold
from gradspec.interop.onnx.interface import Declared, bound_constants, bound_shapes, declared, open_dims, open_shapes
from gradspec.interop.onnx.node import OnnxNode, Signature, Value, attributes_of, require_counts, signature
from gradspec.interop.onnx.nodes import FOREIGN, HANDLERS
from gradspec.interop.refusals import Refusals
from gradspec.saving.strict_json import brief
from gradspec.spec.errors import DTypeError, FormatError, FormatWarning, ShapeError, UnsupportedError
from gradspec.transforms.copy import with_floats

MAX_DEPTH = 32
"""Functions and branches inside each other."""

MOST_SOURCES = 64
"""Variables whose operands are looked at to say what an unknown one is computed from, and operands of each."""

OURS = (FormatError, UnsupportedError, ShapeError, DTypeError)

ChooseSizes: TypeAlias = Callable[[Mapping[str, Declared]], Mapping[str, tuple[int, ...]]]
"""The shapes of some of the inputs that a model states."""


def read(
    model: Any, shapes: Mapping[str, Any], constants: Mapping[str, Any], sizes: ChooseSizes = lambda stated: {}
) -> Graph:
    """The graph of a model, given as a path or as a message. ``sizes`` is asked for the shapes of open inputs."""
    message, folder = (model, None) if isinstance(model, ModelProto) else load_model(model)
    return read_message(message, folder, shapes, constants, sizes)


def read_message(
    message: ModelProto,
    folder: str | None,
    shapes: Mapping[str, Any],
    constants: Mapping[str, Any],
    sizes: ChooseSizes = lambda stated: {},
) -> Graph:
    """The graph of a model whose further files lie in a folder."""
    with wrap_as_format_error():
        reader = Reader(message, Folder(folder))
        graph = reader.graph(shapes, constants, sizes)
    if reader.doubts:
        more = f", and so with {len(reader.doubts) - 1} more" if len(reader.doubts) > 1 else ""
        warnings.warn(f"{reader.doubts[0]}, which is passed over{more}", FormatWarning, stacklevel=4)
    return graph


@contextmanager
def wrap_as_format_error() -> Iterator[None]:
    """Errors of our own as they are; what a damaged message holds may offend anything that looks at it."""
    try:
        yield
    except OURS:
        raise
    except Exception as error:
        raise FormatError(f"the model is damaged: {error or type(error).__name__}") from error


class Reader:
    """The values of one model by name: variables, arrays, or what was refused."""

    def __init__(self, model: ModelProto, folder: Folder) -> None:
        self._model, self._folder = model, folder
        self._functions = {_key(f.domain, f.name, f.overload): f for f in model.functions}
        self._seen: set[tuple[str, str, str]] = set()
        self._builder = Builder()
        size = model.ByteSize()
        self._reading, self._computing = ReadingBudget(size), CellBudget(size)
        self._refusals = Refusals("model", "part")
        self._lifted: dict[int, tuple[Array, Var]] = {}
        self._inputs: dict[str, Declared] = {}
        self._top = NameFrame(version_of(model.opset_import, 1 if model.ir_version < 3 else UNNAMED))
        self._frames = [self._top]
        self.doubts: list[str] = []
        """What the model states and is not so."""

    def graph(self, shapes: Mapping[str, Any], constants: Mapping[str, Any], sizes: ChooseSizes) -> Graph:
        source = self._model.graph
        self._begin(source)
        try:
            self._read_inputs(self._free_inputs(source, constants), shapes, sizes)
        except ShapeError:
            self._refusals.raise_any()  # no sizes would make the model readable
            raise
        self._read_stated_types(source)
        self._read_nodes(source.node)
        self._refusals.raise_any()
        return self._build(source)

    def inputs(self, constants: Mapping[str, Any]) -> dict[str, Declared]:
        """What the model states of the inputs that a caller gives, if its operators can be read at all."""
        self._begin(self._model.graph)
        free = self._free_inputs(self._model.graph, constants)
        self._refusals.raise_any()
        return free

    # --- what a handler asks of the model -----------------------------------------------------------------------------

    def lift(self, array: Array, name: str) -> Var:
        """A known array as a constant of the graph, the same for every node that uses it."""
        if id(array) not in self._lifted:
            self._lifted[id(array)] = array, self._builder.share(array.view(), name)
        return self._lifted[id(array)][1]

    def sources(self, var: Var) -> list[str]:
        """The inputs that a variable is computed from, as far as a short search finds them."""
        found, queue = {var}, [var]
        for v in queue:  # which grows meanwhile
            node = self._builder.maker(v)
            new = set(node.inputs[:MOST_SOURCES] if node and len(queue) < MOST_SOURCES else ()) - found
            found |= new
            queue.extend(new)
        return sorted(v.name for v in queue if v.name in self._inputs and self._top.values[v.name] is v)

    def array(self, tensor: TensorProto) -> Array:
        return array_of(tensor, self._folder)

    def charge(self, cells: int) -> None:
        self._computing.charge(cells)

    def branch(self, graph: GraphProto, operands: Sequence[Value] = ()) -> Sequence[Value | Refused]:
        """The results of a graph that sees the names around it."""
        around = self._frames[-1]
        place = f"{around.place}branch {brief(graph.name)}, "
        values = dict(zip((entry.name for entry in graph.input), operands, strict=False))
        with self._inside(graph, NameFrame(around.version, place, around, around.attributes, values)):
            self._refuse_operators(graph.node)
            self._read_initializers(graph)
            self._read_nodes(graph.node)
            return [self._result(output.name) for output in graph.output]

    # --- functions and branches ---------------------------------------------------------------------------------------

    def _call(
        self, function: FunctionProto, proto: NodeProto, operands: Sequence[Value | Refused | None]
    ) -> Sequence[Value | Refused]:
        """The results of a function of the model: its nodes are read with the operands for its inputs."""
        left_out = len(function.input) - len(operands)
        if left_out < 0 or len(proto.output) > len(function.output):
            raise FormatError(
                f"it has {len(operands)} inputs and {len(proto.output)} outputs, and the function at most "
                f"{len(function.input)} and {len(function.output)}"
            )
        caller = self._frames[-1]
        place = f"{caller.place}function {_word(function.name)}, "
        values = dict(zip(function.input, (*operands, *[None] * left_out), strict=True))
        version = version_of(function.opset_import, caller.version)
        attributes = _settings(function, proto, caller.attributes)
        with self._inside(function, NameFrame(version, place, None, attributes, values)):
            self._read_nodes(function.node)
            return [self._result(name) for name in function.output[: len(proto.output)]]

    @contextmanager
    def _inside(self, part: GraphProto | FunctionProto, frame: NameFrame) -> Iterator[None]:
        self._reading.charge_nodes(part.node)
        self._reading.charge_bytes(part)
        if len(self._frames) > MAX_DEPTH:
            raise FormatError(f"functions or branches of the model are nested more than {MAX_DEPTH} deep")
        self._frames.append(frame)
        try:
            yield
        finally:
            self._frames.pop()

    def _result(self, name: str) -> Value | Refused:
        value = self._operand(name)
        if value is None:
            raise FormatError(f"its result {brief(name)} has no value")
        return value

    # --- what is there before the first node --------------------------------------------------------------------------

    def _begin(self, source: GraphProto) -> None:
        self._reading.charge_nodes(source.node)
        self._refuse_operators(source.node)
        self._read_initializers(source)

    def _refuse_operators(self, nodes: Sequence[NodeProto]) -> None:
        """Note what there is no handler for, in functions that are called, too."""
        queue = [(self._frames[-1].place, nodes)]
        for place, some in queue:  # which grows meanwhile
            for number, node in enumerate(some):
                known = self._has_handler(node)
                if known and not self._functions:
                    continue
                key = _key(node.domain, node.op_type, node.overload)
                if key in self._functions and not known:
                    if key not in self._seen:
                        self._seen.add(key)
                        queue.append((f"function {_word(node.op_type)}, ", self._functions[key].node))
                elif key in self._functions:
                    reason = f"a function of the model in the place of ONNX's operator {_word(node.op_type)}"
                    self._refusals.add(reason, "", place + _place(number, node))
                elif not known:
                    self._refusals.add(f"the operator {_word(_operator(node))}", "", place + _place(number, node))

    def _has_handler(self, node: NodeProto) -> bool:
        """A function of the model goes before a handler of a foreign operator."""
        is_own = node.domain in OWN_DOMAIN
        return _operator(node) in HANDLERS and (
            is_own or _key(node.domain, node.op_type, node.overload) not in self._functions
        )

    def _read_initializers(self, source: GraphProto) -> None:
        for tensor in source.initializer:
            try:
                self._define(tensor.name, self._initial(tensor))
            except FormatError as error:
                raise FormatError(f"initializer {brief(tensor.name)}: {error}") from None
        for sparse in source.sparse_initializer:
            self._refusals.add("sparse tensors", "", f"initializer {brief(sparse.values.name)}")
            self._define(sparse.values.name, REFUSED)

    def _initial(self, tensor: TensorProto) -> Array | Refused:
        try:
            return self.array(tensor)
        except UnsupportedError as error:
            self._refusals.add(str(error), "", f"initializer {brief(tensor.name)}")
            return REFUSED

    def _free_inputs(self, source: GraphProto, constants: Mapping[str, Any]) -> dict[str, Declared]:
        """The inputs that neither the caller nor an initializer of the same name gives a value."""
        for info in source.input:
            stated = self._stated_type("input", info)
            if info.name in self._inputs or info.name == "":
                raise FormatError(f"two inputs are called {brief(info.name)}, or one has no name")
            if stated is None:
                self._top.values[info.name] = REFUSED
            self._inputs[info.name] = stated or Declared(None, None)
        for name, array in bound_constants(self._inputs, constants).items():
            self._top.values[name] = array
        return {name: stated for name, stated in self._inputs.items() if name not in self._top.values}

    def _read_inputs(self, free: Mapping[str, Declared], shapes: Mapping[str, Any], sizes: ChooseSizes) -> None:
        """These inputs become variables."""
        for name, shape in bound_shapes(free, {**open_shapes(free, sizes(free)), **shapes}).items():
            self._top.values[name] = self._builder.input(TensorType(dtype_stated(name, free[name]), shape), name)
        for name, stated in self._inputs.items():
            value = self._top.values[name]
            if isinstance(value, Var | np.ndarray) and stated.contradicts(value.shape, _kind(value)):
                raise FormatError(f"input {brief(name)} is {_type_text(value)}, but the model states {stated}")

    def _stated_type(self, what: str, info: Any) -> Declared | None:
        """The stated type of a value; None if it is of a kind that is refused."""
        try:
            return declared(info.type)
        except UnsupportedError as error:
            self._refusals.add(str(error), "", f"{what} {brief(info.name)}")
            return None
        except FormatError as error:
            raise FormatError(f"{what} {brief(info.name)}: {error}") from None

    def _read_stated_types(self, source: GraphProto) -> None:
        """What the model says of the values it computes, to be compared with what they turn out to be."""
        for what, infos in (("value", source.value_info), ("output", source.output)):
            for info in infos:
                stated = self._stated_type(what, info)
                if stated is not None:
                    self._top.stated[info.name] = stated
                    self._compare_stated(info.name, self._top.values.get(info.name), stated)

    # --- nodes --------------------------------------------------------------------------------------------------------

    def _read_nodes(self, nodes: Sequence[NodeProto]) -> None:
        every = list(nodes)
        for number in in_order(every, lambda number: _place(number, every[number]), self._reading.charge_nodes):
            self._read_node(number, every[number])

    def _read_node(self, number: int, proto: NodeProto) -> None:
        try:
            for name, result in zip(proto.output, self._refused_or_results(number, proto), strict=False):
                if name:
                    self._define(name, result)
        except (FormatError, ShapeError, DTypeError) as error:
            raise type(error)(f"{_place(number, proto)}: {error}") from None
        except Exception as error:  # operators' own rules may refuse what a file says with any exception
            raise FormatError(f"{_place(number, proto)}: {error or type(error).__name__}") from error

    def _refused_or_results(self, number: int, proto: NodeProto) -> Sequence[Value | Refused]:
        operands = [self._operand(name) for name in proto.input]
        if not any(v is REFUSED for v in operands):
            try:
                return self._results(proto, operands)
            except UnsupportedError as error:
                self._refusals.add(str(error), "", self._frames[-1].place + _place(number, proto))
        return [REFUSED] * len(proto.output)

    def _operand(self, name: str) -> Value | Refused | None:
        if name == "":
            return None
        holder = self._frames[-1].holder(name)
        if holder is None:
            raise FormatError(f"it uses {brief(name)}, which nothing gives: a part of the model is missing")
        return holder.values[name]

    def _results(self, proto: NodeProto, operands: Sequence[Value | Refused | None]) -> Sequence[Value | Refused]:
        if not self._has_handler(proto):
            function = self._functions.get(_key(proto.domain, proto.op_type, proto.overload))
            return [REFUSED] * len(proto.output) if function is None else self._call(function, proto, operands)
        frame, name, outputs = self._frames[-1], _operator(proto), tuple(proto.output)
        known = _signature(name, frame.version)
        require_counts(proto, known)
        if not known.is_strict:
            self.doubts.extend(
                f"{brief(a.name)} is no attribute of {name}" for a in proto.attribute if a.name not in known.kinds
            )
        for attribute in proto.attribute if frame.attributes else ():
            if attribute.ref_attr_name in frame.attributes:
                self._reading.charge_bytes(frame.attributes[attribute.ref_attr_name])
        present = tuple([v for v in operands if not isinstance(v, Refused)])
        attributes = attributes_of(proto, known, frame.attributes)
        node = upgrade_opset(OnnxNode(name, frame.version, tuple(proto.input), present, outputs, attributes, self))
        folded = fold(node)
        results = HANDLERS[name](node) if folded is None else folded
        several = [
            np.asarray(v) if isinstance(v, np.generic) else v
            for v in (results if isinstance(results, list | tuple) else (results,))
        ]
        if any(outputs[len(several) :]):
            raise UnsupportedError(f"{name} with {len(outputs)} outputs")
        return several

    def _define(self, name: str, value: Value | Refused) -> None:
        frame = self._frames[-1]
        if name in frame.values or name == "":
            raise FormatError(f"it gives {brief(name)}, which already has a value, or no name")
        if not isinstance(value, Refused):
            if len(value.shape) > MAX_RANK or prod(value.shape) > MAX_CELLS:
                raise FormatError(
                    f"it gives a tensor of {len(value.shape)} axes and {prod(value.shape)} cells; at most "
                    f"{MAX_RANK} and {MAX_CELLS} are read"
                )
            if name in frame.stated:
                self._compare_stated(name, value, frame.stated[name])
        frame.values[name] = value

    # --- types that the model states ----------------------------------------------------------------------------------

    def _compare_stated(self, name: str, value: Value | Refused | None, stated: Declared) -> None:
        """A dtype that is not so contradicts the model; a shape may be left from before the model was changed."""
        if isinstance(value, Refused) or value is None or not stated.contradicts(value.shape, _kind(value)):
            return
        said = f"{brief(name)} is {_type_text(value)}, but the model states {stated}"
        if stated.contradicts_kind(_kind(value)):
            raise FormatError(said)
        self.doubts.append(said)

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
        if name not in self._top.values:
            raise FormatError(f"nothing gives the output {brief(name)}")
        value = self._top.values[name]
        assert isinstance(value, Var | np.ndarray), "what was refused is told before"
        return value if isinstance(value, Var) else self.lift(value, name)


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


def _key(domain: str, name: str, overload: str) -> tuple[str, str, str]:
    """What a function of the model is called by."""
    return ("" if domain in OWN_DOMAIN else domain, name, overload)


def _settings(
    function: FunctionProto, proto: NodeProto, of_caller: Mapping[str, AttributeProto]
) -> dict[str, AttributeProto]:
    """The attributes of a call; those that refer to one that the caller was called without are left out."""
    given = {a.name: a for a in function.attribute_proto}
    for a in proto.attribute:
        if not a.ref_attr_name:
            given[a.name] = a
        elif a.ref_attr_name in of_caller:
            given[a.name] = of_caller[a.ref_attr_name]
    return given


def _operator(node: NodeProto) -> str:
    """The name of an operator, with its domain unless that is ONNX's own."""
    return str(node.op_type if node.domain in OWN_DOMAIN else f"{node.domain}.{node.op_type}")


def _kind(value: Value) -> np.dtype[Any]:
    return value.dtype.numpy if isinstance(value, Var) else value.dtype


def _type_text(value: Value) -> str:
    return f"{_kind(value)} {list(value.shape)}"


def dtype_stated(name: str, stated: Declared) -> DType:
    if stated.kind is None:
        raise FormatError(f"the input {brief(name)} has no type")
    return dtype_of(np.empty(0, stated.kind))


def _signature(name: str, version: int) -> Signature:
    if name in FOREIGN:
        return FOREIGN[name]
    if version == UNNAMED:
        raise FormatError("the model does not name the version of ONNX's operators that it uses")
    try:
        return signature(name, version)
    except defs.SchemaError:
        raise FormatError(f"opset {version} has no operator {name}") from None


# --- models of open sizes ---------------------------------------------------------------------------------------------


def read_family(model: Any, shapes: Mapping[str, Any], constants: Mapping[str, Any], dynamic: Any) -> Family:
    """The family of a model with names for open sizes; see ``gs.from_onnx``."""
    message, folder = (_copy(model), None) if isinstance(model, ModelProto) else load_model(model)
    with wrap_as_format_error():
        stated = Reader(message, Folder(folder)).inputs(constants)
    dims = open_dims(stated, shapes, dynamic)
    inputs = {name: OpenType(dtype_stated(name, stated[name]), dims[name]) for name in stated}

    def make(sizes: Sizes, dtype: DType | None) -> Graph:
        settled = {name: t.at(sizes).shape for name, t in inputs.items()}
        graph = read_message(message, folder, settled, constants)
        return graph if dtype is None else with_floats(graph, dtype)

    return Family(inputs, make)


def _copy(model: ModelProto) -> ModelProto:
    """The model as it is now, whatever becomes of it."""
    copy = ModelProto()
    copy.CopyFrom(model)
    return copy


# --- what is refused --------------------------------------------------------------------------------------------------


class Refused:
    """Stands for a value that could not be imported; what depends on it is passed over in silence."""


REFUSED = Refused()


# --- names that nodes see ---------------------------------------------------------------------------------------------


FIRST_OPSET, LAST_OPSET = 1, 28
UNNAMED = 0
OWN_DOMAIN = ("", "ai.onnx")


@dataclass(slots=True)
class NameFrame:
    """Values by name: variables, arrays, what was refused, or None for an input that a caller leaves out."""

    version: int
    """The opset that the nodes are written for; UNNAMED if none is."""

    place: str = ""
    """Where the nodes are, if not in the model's own graph."""

    around: NameFrame | None = None
    """A branch sees the names of the graph that it is in; a function sees its own alone."""

    attributes: Mapping[str, AttributeProto] = field(default_factory=dict)
    """Those that a function was called with."""

    values: dict[str, Value | Refused | None] = field(default_factory=dict)
    stated: dict[str, Declared] = field(default_factory=dict)
    """Types that the model states of values it computes, to be compared with what they turn out to be."""

    def holder(self, name: str) -> NameFrame | None:
        """The frame that has a value of this name."""
        frame: NameFrame | None = self
        while frame is not None and name not in frame.values:
            frame = frame.around
        return frame


def version_of(imports: Iterable[Any], default: int) -> int:
    """The version of ONNX's own operators: the highest that is imported, as ONNX says; ``default`` if none is."""
    versions = [int(entry.version) for entry in imports if entry.domain in OWN_DOMAIN]
    if not versions:
        return default
    version, last = max(versions), min(LAST_OPSET, defs.onnx_opset_version())
    if not FIRST_OPSET <= version <= last:
        raise UnsupportedError(f"the model is written for opset {version}, and {FIRST_OPSET} to {last} are read")
    return version


# --- limits by the size of a model ------------------------------------------------------------------------------------


MAX_NODES = 250_000
"""The most nodes that are read of any model."""

FREE_NODES, BYTES_PER_NODE = 20_000, 4
"""A model may come to so many nodes, and to one more for each of so many bytes. A node takes more bytes than that."""

NAMES_PER_NODE = 8
"""A node counts once more for each of so many inputs and outputs."""

FREE_BYTES, TIMES_READ = 2**24, 16
"""Functions, branches and attributes of calls may come to so many bytes, and to the size of the model so many times."""


class ReadingBudget:
    """The nodes and bytes that may still be read; whatever is read again is charged again.

    Functions and branches would let a small file ask for endless work.
    """

    def __init__(self, model_bytes: int) -> None:
        self._model_bytes = model_bytes
        self._max_nodes = min(MAX_NODES, FREE_NODES + model_bytes // BYTES_PER_NODE)
        self._max_bytes = FREE_BYTES + TIMES_READ * model_bytes
        self._nodes = self._bytes = 0

    def charge_nodes(self, nodes: Iterable[NodeProto]) -> None:
        self._nodes += sum(1 + (len(node.input) + len(node.output)) // NAMES_PER_NODE for node in nodes)
        if self._nodes > self._max_nodes:
            raise FormatError(
                f"the model has {self._model_bytes} bytes and comes to {self._nodes} nodes or more, counting those of "
                f"functions and branches each time they are read; at most {self._max_nodes} are read of a model of "
                "this size: inline its functions (onnx.inliner.inline_local_functions), or split the model"
            )

    def charge_bytes(self, part: GraphProto | FunctionProto | AttributeProto) -> None:
        self._bytes += part.ByteSize()
        if self._bytes > self._max_bytes:
            raise FormatError(
                f"the model has {self._model_bytes} bytes, and its functions and branches come to {self._bytes} or "
                f"more, counted each time they are read; at most {self._max_bytes} are read of a model of this size: "
                "make large tensors initializers, and pass them to functions as inputs"
            )


# --- topological order ------------------------------------------------------------------------------------------------


def in_order(
    nodes: Sequence[NodeProto], place: Callable[[int], str], charge: Callable[[Sequence[NodeProto]], None]
) -> Sequence[int]:
    """The numbers of the nodes, sorted; they stay as they are where they can.

    Names that no node gives are left to whoever looks them up. ``place`` says in an error where a node is, and
    ``charge`` is told of all nodes inside of others that are looked at.
    """
    givers: dict[str, int] = {}
    for number, node in enumerate(nodes):
        for name in node.output:
            givers.setdefault(name, number)
    givers.pop("", None)
    if all(givers.get(name, -1) < number for number, node in enumerate(nodes) for name in uses(node, charge)):
        return range(len(nodes))
    return _sorted([{givers[name] for name in uses(node, charge) if name in givers} for node in nodes], place)


def uses(node: NodeProto, charge: Callable[[Sequence[NodeProto]], None]) -> Iterator[str]:
    """The names that a node uses, also inside the graphs that it has as attributes."""
    yield from node.input
    if node.op_type not in ("If", "Loop", "Scan"):
        return
    graphs: list[tuple[GraphProto, BranchNames | None]] = [(g, None) for a in node.attribute for g in (a.g, *a.graphs)]
    while graphs:
        graph, around = graphs.pop()
        charge(graph.node)
        entries = (*graph.input, *graph.initializer)
        own = BranchNames(
            {*(e.name for e in entries), *(name for inner in graph.node for name in inner.output)}, around
        )
        used = chain((output.name for output in graph.output), *(inner.input for inner in graph.node))
        yield from (name for name in used if not own.has(name))
        inner_graphs = (g for inner in graph.node for a in inner.attribute for g in (a.g, *a.graphs) if g.node)
        graphs.extend((g, own) for g in inner_graphs)


class BranchNames(NamedTuple):
    """The names that a branch gives itself, and the branch that it is in."""

    given: set[str]
    around: BranchNames | None

    def has(self, name: str) -> bool:
        names: BranchNames | None = self
        while names is not None and name not in names.given:
            names = names.around
        return names is not None


def _sorted(before: Sequence[set[int]], place: Callable[[int], str]) -> list[int]:
    """Of those that wait for nothing more, the first comes first."""
    sorter = TopologicalSorter(dict(enumerate(before)))
    with suppress(CycleError):  # what comes before a circle is sorted all the same
        sorter.prepare()
    ready, order = sorted(sorter.get_ready()), []
    while ready:
        number = heappop(ready)
        order.append(number)
        sorter.done(number)
        for later in sorter.get_ready():
            heappush(ready, later)
    if len(order) < len(before):
        stuck = min({*range(len(before))}.difference(order))
        raise FormatError(f"{place(stuck)} uses what depends on its own result: the nodes go round in a circle")
    return order
