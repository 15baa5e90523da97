"""Reading safetensors files: nothing is allocated that the file does not really hold."""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import prod
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from gradspec.graph.ir import Array
from gradspec.graph.types import DTYPES, DType, TensorType, boolean
from gradspec.saving.strict_json import LARGEST_INT, brief, require_keys, strict_json
from gradspec.spec.errors import FormatError

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
