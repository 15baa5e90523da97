"""TensorProto messages as arrays: the kinds of numbers, and the places a message may keep them in."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto

from gradspec.graph.ir import Array
from gradspec.interop.onnx.files import Folder
from gradspec.saving.strict_json import brief
from gradspec.spec.errors import FormatError, UnsupportedError

MAX_RANK = 64
MAX_CELLS = 2**48
"""Cells of one tensor; more could not be addressed."""

NUMPY: dict[int, np.dtype[Any]] = {
    TensorProto.FLOAT16: np.dtype(np.float16),
    TensorProto.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    TensorProto.FLOAT: np.dtype(np.float32),
    TensorProto.DOUBLE: np.dtype(np.float64),
    TensorProto.INT8: np.dtype(np.int8),
    TensorProto.INT16: np.dtype(np.int16),
    TensorProto.INT32: np.dtype(np.int32),
    TensorProto.INT64: np.dtype(np.int64),
    TensorProto.UINT8: np.dtype(np.uint8),
    TensorProto.UINT16: np.dtype(np.uint16),
    TensorProto.UINT32: np.dtype(np.uint32),
    TensorProto.UINT64: np.dtype(np.uint64),
    TensorProto.BOOL: np.dtype(np.bool_),
}
"""The kinds of elements that are read, by their number in ONNX."""

_FIELDS: dict[int, str] = {
    TensorProto.FLOAT: "float_data",
    TensorProto.DOUBLE: "double_data",
    TensorProto.INT64: "int64_data",
    TensorProto.UINT32: "uint64_data",
    TensorProto.UINT64: "uint64_data",
}
"""Where a kind of element is kept if not in ``raw_data``. Others are in ``int32_data``, the small floats as bits."""


def kind_of(number: int) -> np.dtype[Any]:
    """The NumPy dtype of a kind of element."""
    if number not in NUMPY:
        known = TensorProto.DataType.values()
        if number not in known or number == TensorProto.UNDEFINED:
            raise FormatError(f"the element type {number} is not one that ONNX has")
        raise UnsupportedError(f"elements of type {TensorProto.DataType.Name(number).lower()}")
    return NUMPY[number]


def shape_of(dims: Sequence[int]) -> tuple[int, ...]:
    """The dimensions of a stored tensor."""
    shape = tuple(dims)
    if len(shape) > MAX_RANK or any(n < 0 for n in shape):
        raise FormatError(f"the dimensions {brief(shape[:8])} are not those of a tensor")
    return shape


def array_of(tensor: TensorProto, folder: Folder) -> Array:
    """The array that a message holds, or that lies in a file of the folder."""
    kind, shape = kind_of(tensor.data_type), shape_of(tensor.dims)
    if tensor.HasField("segment"):
        raise UnsupportedError("tensors in segments")
    if tensor.data_location == TensorProto.EXTERNAL:
        flat = _raw(_external(tensor, prod(shape) * kind.itemsize, folder), prod(shape), kind)
    elif tensor.HasField("raw_data"):
        flat = _raw(tensor.raw_data, prod(shape), kind)
    else:
        flat = _typed(tensor, prod(shape), kind)
    array = flat.reshape(shape)
    array.flags.writeable = False
    return array


def _external(tensor: TensorProto, length: int, folder: Folder) -> Array:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if len(entries) != len(tensor.external_data) or "location" not in entries:
        raise FormatError("the place of its external data is not given once")
    stated = _number(entries.get("length", str(length)), "length")
    if stated != length:
        raise FormatError(f"its external data has {stated} bytes, and its type and dimensions need {length}")
    return folder.region(entries["location"], _number(entries.get("offset", "0"), "offset"), length)


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise FormatError(f"the {what} of its external data is {brief(text)}, not a number")
    return int(text)


def _raw(content: bytes | Array, cells: int, kind: np.dtype[Any]) -> Array:
    if len(content) != cells * kind.itemsize:
        raise FormatError(f"it holds {len(content)} bytes, and its type and dimensions need {cells * kind.itemsize}")
    if kind == np.bool_:
        return np.frombuffer(content, np.uint8).astype(bool)
    return np.frombuffer(content, kind)


def _typed(tensor: TensorProto, cells: int, kind: np.dtype[Any]) -> Array:
    numbers = getattr(tensor, _FIELDS.get(tensor.data_type, "int32_data"))
    if len(numbers) != cells:
        raise FormatError(f"it holds {len(numbers)} numbers, and its dimensions need {cells}")
    if kind.name in ("float16", "bfloat16"):
        return _within(numbers, np.dtype(np.uint16)).view(kind)
    if kind.kind == "f":
        return np.array(numbers, kind)
    return _within(numbers, np.dtype(np.uint8)).astype(bool) if kind == np.bool_ else _within(numbers, kind)


def _within(numbers: Sequence[int], kind: np.dtype[Any]) -> Array:
    """Integers as ``kind``, which must hold them."""
    wide: Array = np.array(numbers, np.uint64 if kind == np.uint64 else np.int64)
    narrow: Array = wide.astype(kind)
    if not np.array_equal(narrow.astype(wide.dtype), wide):
        raise FormatError(f"it holds a number that {kind.name} does not")
    return narrow
