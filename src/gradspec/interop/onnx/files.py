"""Reading model files that nothing is known about: what they claim is checked before anything is read or allocated.

A model is one protobuf message, and tensors may lie in further files next to it. Those are read here and not by the
``onnx`` package: only regular files inside the model's folder, only bytes that are there, and each of them once.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper

from gradspec.graph.ir import Array
from gradspec.graph.types import DTYPES, STORED, DType, bf16, dtype_of
from gradspec.saving.files import GZIP, unpacked
from gradspec.saving.strict_json import brief
from gradspec.spec.errors import FormatError, UnsupportedError

MAX_MODEL_BYTES = 2**31 - 1  # protobuf reads no more

FREE_BYTES = 2**28
"""Bytes that any packed model may unpack to."""


def load_model(path: Any) -> tuple[ModelProto, str]:
    """The message in a file, and the folder that its further files must lie in."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(
            f"a path or an onnx.ModelProto is needed, not {type(path).__name__}; "
            "onnx.load_model_from_string makes one of bytes"
        )
    with _regular_file(os.fspath(path)) as (descriptor, size):
        if size > MAX_MODEL_BYTES:
            raise FormatError(
                f"{path} has {size} bytes, and a model at most {MAX_MODEL_BYTES}; save its tensors as external data"
            )
        content = _read(descriptor, 0, size)
    if content.startswith(GZIP):
        content = unpacked(path, content, MAX_MODEL_BYTES, FREE_BYTES)
    model = ModelProto()
    try:
        model.ParseFromString(content)
    except Exception as error:  # the class of protobuf's own depends on its implementation
        raise FormatError(f"{path} is not an ONNX model, or is damaged: {error}") from None
    if not model.HasField("graph"):
        raise FormatError(f"{path} is not an ONNX model, or is damaged: it holds no graph")
    return model, os.path.dirname(os.path.abspath(path))


@contextmanager
def _regular_file(path: str | bytes, flags: int = 0) -> Iterator[tuple[int, int]]:
    """An open descriptor and the file's size; what is not a regular file is neither read nor waited for."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | flags)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise FormatError(f"{brief(os.fsdecode(path))} is not a regular file")
        yield descriptor, found.st_size
    finally:
        os.close(descriptor)


def _read(descriptor: int, offset: int, length: int) -> bytes:
    """Bytes of a file that is known to hold them."""
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(offset)
        content = file.read(length)
    if len(content) != length:
        raise FormatError("the file became shorter while it was read")
    return content


class Folder:
    """The folder of a model, from which tensors are read; None for a model that is not in one."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._regions: dict[tuple[str, int, int], Array] = {}
        self._taken: dict[str, int] = {}

    def region(self, location: str, offset: int, length: int) -> Array:
        """``length`` bytes of a file in the folder. The same region is read once, and no more than the file holds."""
        path = self._resolved(location)
        key = (path, offset, length)
        if key not in self._regions:
            self._regions[key] = self._fresh(path, location, offset, length)
        return self._regions[key]

    def _resolved(self, location: str) -> str:
        if self._path is None:
            raise FormatError(
                f"its data lies in the file {brief(location)}, but the model was given as a message, without a folder; "
                "give the path of the model instead"
            )
        parts = PurePosixPath(location).parts
        windows = PureWindowsPath(location)
        if not parts or "\0" in location or ".." in (*parts, *windows.parts) or location[0] in "/\\" or windows.drive:
            raise FormatError(f"its data lies at {brief(location)}, which is not a path inside the model's folder")
        folder = os.path.realpath(self._path)
        path = os.path.realpath(os.path.join(folder, *parts))
        if os.path.commonpath([folder, path]) != folder:
            raise FormatError(f"its data lies at {brief(location)}, which leads out of the model's folder")
        return path

    def _fresh(self, path: str, location: str, offset: int, length: int) -> Array:
        try:
            # The path has no symbolic links left; one that takes its place meanwhile is not followed.
            with _regular_file(path, getattr(os, "O_NOFOLLOW", 0)) as (descriptor, size):
                if offset + length > size:
                    raise FormatError(
                        f"its data, {length} bytes from {offset} on, reaches beyond the end of {brief(location)}, "
                        f"which has {size}"
                    )
                self._taken[path] = self._taken.get(path, 0) + length
                if self._taken[path] > size:
                    raise FormatError(f"tensors overlap in {brief(location)}: together they claim more than it holds")
                return np.frombuffer(_read(descriptor, offset, length), np.uint8)
        except OSError as error:
            raise FormatError(f"its data in {brief(location)} cannot be read: {error.strerror or error}") from None


# --- tensors ----------------------------------------------------------------------------------------------------------


MAX_RANK = 64
MAX_CELLS = 2**48
"""Cells of one tensor; more could not be addressed."""


def tensor_dtype(dtype: np.dtype[Any]) -> int:
    """ONNX's number for a dtype."""
    return TensorProto.BFLOAT16 if dtype == bf16.numpy else helper.np_dtype_to_tensor_dtype(dtype)


NUMPY = {tensor_dtype(dtype.numpy): dtype.numpy for dtype in DTYPES.values() if dtype not in STORED}
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


def dtype_numbered(number: int) -> DType:
    return dtype_of(np.empty(0, kind_of(number)))


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
