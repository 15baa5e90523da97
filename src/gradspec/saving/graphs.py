"""Saving and loading graphs. The format is described in ``docs/format.md``.

A file is read as if it came from an enemy: nothing in it is believed before it is checked, nothing is allocated that
the file does not really hold, and whatever is wrong becomes a FormatError that says where.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import types
import typing
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from io import BytesIO
from math import prod
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from gradspec.graph.builder import Builder, is_symbolic_zero
from gradspec.graph.graph import Graph, check
from gradspec.graph.ir import Array, Attributes, Node, Var
from gradspec.graph.show import distinct
from gradspec.graph.types import DTYPES, DType, TensorType, boolean
from gradspec.ops.core import operators
from gradspec.saving.files import FilePath, regular_file, replacing
from gradspec.saving.strict_json import LARGEST_INT, brief, listed, require_keys, strict_json
from gradspec.spec.errors import FormatError

# --- attribute records ------------------------------------------------------------------------------------------------
#
# Every type is checked against the annotations of the record. Numbers, strings, booleans and None are what they are in
# JSON, and tuples are lists. JSON has no infinity and no NaN: these are ``{"float": "inf"}``. A record inside a record
# is ``{"record": its class, "fields": {…}}``, and a graph without constants ``{"graph": {…}}``, as a file has it.

Field: TypeAlias = dataclasses.Field[Any]
SPECIAL = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def fields_to_json(record: object) -> dict[str, object]:
    """The fields of a record by name, but for those that came later and have their defaults."""
    cls: type = type(record)
    values = {f: getattr(record, f.name) for f in _fields(cls)}
    return {f.name: to_json(v, f.name) for f, v in values.items() if not (_came_later(f) and v == f.default)}


def to_json(value: object, where: str) -> object:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, tuple):
        return [to_json(v, where) for v in value]
    if isinstance(value, Graph):
        return {"graph": _structure(check(value))}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {"record": type(value).__name__, "fields": fields_to_json(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if isinstance(value, int) and abs(value) > LARGEST_INT:
        raise ValueError(f"the attribute {where}={value} does not fit in 64 bits, so it cannot be saved")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(
        f"the attribute {where}={value!r} cannot be saved; attributes are numbers, strings, None, tuples and records"
    )


def fields_from_json(cls: type, data: dict[str, object], where: str) -> Attributes:
    """The record of class ``cls`` whose fields ``data`` holds."""
    expected = _fields(cls)
    optional = [f.name for f in expected if _came_later(f)]
    require_keys(data, [f.name for f in expected], where, optional)
    hints, values = _hints(cls), {}
    for name, item in data.items():
        values[name] = from_json(item, _records_within(cls), f"{where}.{name}")
        if not conforms(values[name], hints[name]):
            raise FormatError(f"{where}.{name}: expected {hints[name]}, not {brief(item)}")
    return cls(**values)


def from_json(item: object, records: dict[str, type], where: str) -> object:
    if isinstance(item, list):
        return tuple(
            from_json(v, records, f"{where}[{i}]") if isinstance(v, list | dict) else v for i, v in enumerate(item)
        )
    if not isinstance(item, dict):
        return item
    if item.keys() == {"float"} and isinstance(item["float"], str) and item["float"] in SPECIAL:
        return SPECIAL[item["float"]]
    if item.keys() == {"graph"}:
        try:
            return check(_graph(item["graph"], {}))
        except ValueError as error:
            raise FormatError(f"{where}.graph: {error}") from error
    if item.keys() == {"record", "fields"} and isinstance(item["record"], str) and item["record"] in records:
        return fields_from_json(records[item["record"]], item["fields"], f"{where}.fields")
    known = f"a value, a special float, a graph or a record of {listed(records)}"
    raise FormatError(f"{where}: expected {known}, not {brief(item)}")


def conforms(value: object, hint: object) -> bool:
    """Whether a value is of an annotated type. An int will do for a float, but a bool is no int."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(conforms(value, a) for a in arguments)
    if origin is typing.Literal:
        return any(type(value) is type(a) and value == a for a in arguments)
    if origin is tuple and arguments[-1:] != (...,):
        return isinstance(value, tuple) and len(value) == len(arguments) and all(map(conforms, value, arguments))
    if origin in (tuple, Sequence):
        return isinstance(value, tuple) and all(conforms(v, arguments[0]) for v in value)
    if hint in (None, type(None)):
        return value is None
    return type(value) in ((float, int) if hint is float else (hint,))


@cache
def _fields(cls: type) -> tuple[Field, ...]:
    return tuple(f for f in dataclasses.fields(cls) if f.init)


def _came_later(field: Field) -> bool:
    return bool(field.metadata.get("later"))


@cache
def _hints(cls: type) -> dict[str, object]:
    return typing.get_type_hints(cls)


@cache
def _records_within(cls: type) -> dict[str, type]:
    """The classes of records that the fields of ``cls`` may hold, by name."""
    found: dict[str, type] = {}
    pending = [_hints(cls)[f.name] for f in _fields(cls)]
    while pending:
        hint = pending.pop()
        pending += typing.get_args(hint)
        if isinstance(hint, type) and dataclasses.is_dataclass(hint) and hint is not Graph:
            found[hint.__name__] = hint
    return found


# --- graphs -----------------------------------------------------------------------------------------------------------


VERSION = 1
KEY = "gradspec"
STRUCTURE = ("version", "inputs", "constants", "nodes", "outputs")

MAX_NODES = 1_000_000

RENAMED = {
    "avg_pool_spread": "avg_pool_transpose",
    "conv_compare": "conv_weight_grad",
    "max_pool_pull": "max_pool_scatter",
    "max_pool_push": "max_pool_gather",
    "pick": "take_label",
    "place": "put_label",
    "share": "mean_transpose",
}
"""Operators of files that were written under their earlier names."""


# --- saving ----------------------------------------------------------------------------------------------------------


def save(graph: Graph, path: FilePath) -> None:
    """Write the graph to ``path``, all of it or nothing: a file that is there stays until the new one is complete."""
    text = json.dumps(_structure(check(graph)))
    tensors = {v.name: np.asarray(distinct(array), order="C") for v, array in graph.constants.items()}
    _graph(strict_json(text, "the graph"), tensors)  # what could not be loaded is not saved
    with replacing(path) as partial:
        try:
            save_file(tensors, partial, {KEY: text})
        except SafetensorError as error:
            raise OSError(f"{os.fspath(path)} could not be written: {error}") from error
        with partial.open("rb") as file:
            if int.from_bytes(file.read(8), "little") > MAX_HEADER:
                raise ValueError(f"the graph is too large to save: its structure takes more than {MAX_HEADER} bytes")


def to_text(graph: Graph) -> str:
    """The graph as one line of JSON with its constants in it, for graphs whose constants are small.

    >>> print(from_text(to_text(gs.trace(lambda x: x * 2.0, gs.f32[()]))))
    graph(x: f32[()]):
      c   : f32[()] = constant 2.0
      mul : f32[()] = mul(x, c)
      return mul
    """
    return json.dumps([_structure(check(graph)), [_array_to_json(array) for array in graph.constants.values()]])


def _array_to_json(array: Array) -> object:
    """Shape and bytes; None for a zero that a builder made, which ``np.zeros`` would not stand for."""
    if is_symbolic_zero(array):
        return None
    stored = np.asarray(distinct(array), order="C")
    return [list(stored.shape), b64encode(stored.tobytes()).decode()]


def _structure(graph: Graph) -> dict[str, object]:
    return {
        "version": VERSION,
        "inputs": [_declaration(v) for v in graph.inputs],
        "constants": [_declaration(v) for v in graph.constants],
        "nodes": [_application(node) for node in graph.nodes],
        "outputs": [v.name for v in graph.outputs],
    }


def _declaration(var: Var) -> dict[str, object]:
    return {"name": var.name, "dtype": var.dtype.name, "shape": list(map(int, var.shape))}


def _application(node: Node) -> dict[str, object]:
    if operators().get(node.op.name) is not node.op:
        raise ValueError(f"{node.op} is not an operator of gradspec's own, so a file cannot name it")
    return {
        "op": node.op.name,
        "attributes": fields_to_json(node.attrs),
        "inputs": [v.name for v in node.inputs],
        "outputs": [_declaration(v) for v in node.outputs],
    }


# --- loading ---------------------------------------------------------------------------------------------------------


def load(path: FilePath) -> Graph:
    """The graph that ``g.save(path)`` wrote. A file that is not one, or is damaged, raises ``gs.FormatError``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     gs.trace(lambda x: x * 2.0, gs.f32[()]).save(f"{folder}/double.gradspec")
    ...     print(load(f"{folder}/double.gradspec"))
    graph(x: f32[()]):
      c   : f32[()] = constant 2.0
      mul : f32[()] = mul(x, c)
      return mul
    """
    with regular_file(path) as file:
        try:
            header, size = read_header(file)
            metadata = header.pop(METADATA, None)
            if not isinstance(metadata, dict) or not isinstance(metadata.get(KEY), str):
                raise FormatError(
                    f"the header: no graph is stored under {METADATA}.{KEY}; this is another kind of file"
                )
            structure = strict_json(str(metadata[KEY]), "the graph")
            return check(_graph(structure, _tensors(header, file, size)))
        except Exception as error:  # operators' own rules may refuse a file with any exception
            raise FormatError(f"{os.fspath(path)}: {error or type(error).__name__}") from error


def from_text(text: str) -> Graph:
    """The graph that ``to_text`` wrote, checked as a file is. Anything else raises ``gs.FormatError``."""
    try:
        data = strict_json(text, "the graph")
        if not isinstance(data, list) or len(data) != 2 or not isinstance(data[1], list):
            raise FormatError(f"expected a graph and a list of its constants, not {brief(data)}")
        structure, arrays = data
        require_keys(structure, STRUCTURE, "the graph")
        declared = structure["constants"]
        if not isinstance(declared, list) or len(declared) != len(arrays):
            raise FormatError("constants: there is not one array for each")
        return check(_graph(structure, dict(map(_constant_from_json, declared, arrays))))
    except Exception as error:  # operators' own rules may refuse a text with any exception
        raise FormatError(f"the text of a graph: {error or type(error).__name__}") from error


def _constant_from_json(declared: Any, data: Any) -> tuple[str, Array]:
    require_keys(declared, ("name", "dtype", "shape"), "a constant")
    if data is None:
        return declared["name"], _symbolic_zeros(_type(declared["dtype"], declared["shape"], "a constant"))
    if not isinstance(data, list) or len(data) != 2 or not isinstance(data[1], str):
        raise FormatError(f"a constant: expected its shape and its bytes, not {brief(data)}")
    type, stored = _type(declared["dtype"], data[0], "a constant"), b64decode(data[1], validate=True)
    if len(stored) != type.size * type.dtype.numpy.itemsize:
        raise FormatError(f"a constant: {len(stored)} bytes do not hold {type}")
    return declared["name"], read_tensor(BytesIO(stored), type)


def _symbolic_zeros(type: TensorType) -> Array:
    builder = Builder()
    zeros = builder.value(builder.zeros(type))
    assert zeros is not None
    return zeros


def _tensors(header: dict[str, Any], file: BinaryIO, size: int) -> dict[str, Array]:
    return {stored.name: read_tensor(file, stored.type) for stored in stored_tensors(header, size)}


# --- JSON to graph ---------------------------------------------------------------------------------------------------


def _type(dtype: object, shape: object, where: str) -> TensorType:
    return type_from_json(DTYPES, dtype, shape, where)


class _Variables(dict[str, Var]):
    """The variables assigned so far, by name."""

    def __init__(self) -> None:
        self.owner = Builder()
        self.owner.finish()

    def declare(self, data: Any, where: str) -> Var:
        require_keys(data, ("name", "dtype", "shape"), where)
        name = data["name"]
        if not isinstance(name, str) or name == METADATA or any("\ud800" <= c <= "\udfff" for c in name):
            raise FormatError(f"{where}.name: {brief(name)} is not a name")
        if name in self:
            raise FormatError(f"{where}.name: there is already a variable called {brief(name)}")
        self[name] = Var(name, _type(data["dtype"], data["shape"], where), self.owner)
        return self[name]

    def used(self, name: object, where: str) -> Var:
        if not isinstance(name, str) or name not in self:
            raise FormatError(f"{where}: no variable called {brief(name)} is assigned before this place")
        return self[name]


def _graph(structure: Any, tensors: Mapping[str, Array]) -> Graph:
    """The graph that a structure describes, every part of it checked."""
    version = structure.get("version") if isinstance(structure, dict) else None
    if type(version) is not int or version != VERSION:
        raise FormatError(f"version {brief(version)} of the format is unknown; this gradspec reads version {VERSION}")
    require_keys(structure, STRUCTURE, "the graph")
    for key in ("inputs", "constants", "nodes", "outputs"):
        if not isinstance(structure[key], list):
            raise FormatError(f"{key}: expected a list, not {brief(structure[key])}")
    if len(structure["nodes"]) > MAX_NODES:
        raise FormatError(f"nodes: there are {len(structure['nodes'])}; at most {MAX_NODES} are read")
    variables = _Variables()
    inputs = tuple(variables.declare(d, f"inputs[{i}]") for i, d in enumerate(structure["inputs"]))
    constants = _constants(structure["constants"], tensors, variables)
    nodes = tuple(_node(d, variables, f"nodes[{i}]") for i, d in enumerate(structure["nodes"]))
    outputs = tuple(variables.used(name, f"outputs[{i}]") for i, name in enumerate(structure["outputs"]))
    return Graph(inputs, nodes, outputs, MappingProxyType(constants))


def _constants(declared: list[Any], tensors: Mapping[str, Array], variables: _Variables) -> dict[Var, Array]:
    constants = {}
    for i, data in enumerate(declared):
        var = variables.declare(data, where := f"constants[{i}]")
        if var.name not in tensors:
            raise FormatError(f"{where}: the file holds no tensor called {brief(var.name)}")
        array = tensors[var.name]
        repeated = array.ndim == var.ndim and all(n in (1, m) for n, m in zip(array.shape, var.shape, strict=True))
        if array.dtype != var.dtype.numpy or not repeated:
            raise FormatError(f"{where}: a tensor of {array.dtype} and shape {array.shape} does not give {var.type}")
        constants[var] = array if array.shape == var.shape else np.broadcast_to(array, var.shape)
    if len(constants) != len(tensors):
        declared_names = {v.name for v in constants}
        extra = next(name for name in tensors if name not in declared_names)
        raise FormatError(f"constants: the tensor {brief(extra)} is not among them")
    return constants


def _node(data: Any, variables: _Variables, where: str) -> Node:
    require_keys(data, ("op", "attributes", "inputs", "outputs"), where)
    name = data["op"]
    if not isinstance(name, str) or (name := RENAMED.get(name, name)) not in operators():
        raise FormatError(f"{where}.op: {brief(data['op'])} is not an operator that this gradspec knows")
    if not isinstance(data["inputs"], list) or not isinstance(data["outputs"], list):
        raise FormatError(f"{where}: its inputs and outputs are not both lists")
    op = operators()[name]
    inputs = tuple(variables.used(name, f"{where}.inputs[{i}]") for i, name in enumerate(data["inputs"]))
    try:
        attrs = fields_from_json(op.attributes, data["attributes"], f"{where}.attributes")
        expected = op.types(attrs, *(v.type for v in inputs))
    except FormatError:
        raise
    except Exception as error:
        raise FormatError(f"{where} ({op}): {error}") from error
    outputs = tuple(variables.declare(d, f"{where}.outputs[{i}]") for i, d in enumerate(data["outputs"]))
    if expected != tuple(v.type for v in outputs):
        raise FormatError(f"{where}.outputs: {op} gives {_types(expected)}, not {_types([v.type for v in outputs])}")
    return Node(op, attrs, inputs, outputs)


def _types(types: Any) -> str:
    return ", ".join(map(str, types)) or "nothing"


# --- safetensors ------------------------------------------------------------------------------------------------------


METADATA = "__metadata__"
"""The key of a header that names no tensor."""

MAX_HEADER = 100_000_000  # bytes; safetensors has the same limit
MAX_RANK = 64

_DTYPES = {dtype.name.upper(): dtype for dtype in DTYPES.values()}


def read_header(file: BinaryIO) -> tuple[dict[str, Any], int]:
    """The JSON at the start of a safetensors file, and how many bytes follow it."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > size - 8:
        raise FormatError(
            f"bytes 0 to 7: a header of {length} bytes does not fit into a file of {size}; it is cut short, or of "
            "another format than safetensors"
        )
    if length > MAX_HEADER:
        raise FormatError(f"bytes 0 to 7: a header of {length} bytes is too long; at most {MAX_HEADER} are read")
    try:
        text = file.read(length).decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"byte {8 + error.start}: the header is not UTF-8") from None
    header = strict_json(text, "the header")
    if not isinstance(header, dict):
        raise FormatError(f"the header: expected an object, not {brief(header)}")
    return header, size - 8 - length


class StoredTensor(NamedTuple):
    """A tensor of a file and where its bytes lie, counted from the end of the header."""

    begin: int
    end: int
    name: str
    type: TensorType


def stored_tensors(header: dict[str, Any], size: int) -> list[StoredTensor]:
    """The stored tensors, which must fill the rest of the file exactly, in the order of their places."""
    found = []
    for name, entry in header.items():
        where = f"the header, tensor {brief(name)}"
        require_keys(entry, ("dtype", "shape", "data_offsets"), where)
        type_ = type_from_json(_DTYPES, entry["dtype"], entry["shape"], where)
        offsets = entry["data_offsets"]
        if not isinstance(offsets, list) or [type(n) for n in offsets] != [int, int]:
            raise FormatError(f"{where}.data_offsets: expected two integers, not {brief(offsets)}")
        begin, end = offsets
        if not 0 <= begin <= end or end - begin != type_.size * type_.dtype.numpy.itemsize:
            raise FormatError(f"{where}.data_offsets: {begin} to {end} does not hold {type_}")
        found.append(StoredTensor(begin, end, name, type_))
    found.sort(key=lambda stored: stored[:2])
    end = 0
    for begin, next_end, name, _ in found:
        if begin != end:
            raise FormatError(
                f"the header, tensor {brief(name)}: its data begins at {begin}, not where the last ended, {end}"
            )
        end = next_end
    if end != size:
        raise FormatError(f"the header: its tensors take {end} bytes, but {size} follow it")
    return found


def read_tensor(file: BinaryIO, type: TensorType) -> Array:
    """The next bytes of a file as a tensor."""
    array = np.empty(type.shape, type.dtype.numpy)
    if file.readinto(array.reshape(-1).view(np.uint8)) != array.nbytes:  # type: ignore[attr-defined]
        raise FormatError("the file became shorter while it was read")
    return checked(array)


def checked(array: Array) -> Array:
    """An array of a file, which must hold what its dtype says, frozen."""
    if array.dtype == boolean.numpy and array.size and array.view(np.uint8).max() > 1:
        raise FormatError("a byte of a boolean tensor is neither 0 nor 1")
    array.flags.writeable = False
    return array


def type_from_json(dtypes: Mapping[str, DType], dtype: object, shape: object, where: str) -> TensorType:
    """A type whose dtype is written as one of ``dtypes`` and whose shape is a list."""
    if not isinstance(dtype, str) or dtype not in dtypes:
        raise FormatError(f"{where}.dtype: {brief(dtype)} is not one of {', '.join(dtypes)}")
    sizes = shape if isinstance(shape, list) and len(shape) <= MAX_RANK else None
    if sizes is None or any(type(n) is not int or n < 0 for n in sizes):
        raise FormatError(f"{where}.shape: expected at most {MAX_RANK} sizes, not {brief(shape)}")
    if prod(max(n, 1) for n in sizes) * dtypes[dtype].numpy.itemsize > LARGEST_INT:
        raise FormatError(f"{where}.shape: no memory holds a tensor of shape {sizes}")
    return TensorType(dtypes[dtype], tuple(sizes))
