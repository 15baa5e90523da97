"""ONNX models of open sizes: the message is kept, and read for each size that is met."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx import ModelProto

from gradspec.graph.family import Family, OpenType, Sizes
from gradspec.graph.graph import Graph
from gradspec.graph.types import DType
from gradspec.interop.onnx.files import Folder, load_model
from gradspec.interop.onnx.interface import open_dims
from gradspec.interop.onnx.reader import Reader, dtype_stated, read_message, wrap_as_format_error
from gradspec.transforms.floats import with_floats


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
