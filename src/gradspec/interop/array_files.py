"""Arrays in .npy and .npz files: known by their headers, checked, and read only then.

Nothing in a file is run, and no more memory is taken than it really holds.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np

from gradspec.graph.arrays import native
from gradspec.graph.ir import Array
from gradspec.graph.types import bf16
from gradspec.saving.files import regular_file, replacing
from gradspec.saving.strict_json import brief
from gradspec.spec.errors import FormatError

BITS = np.dtype("V2")
"""What NumPy's files, which have no name for it, call bfloat16."""

NPY, ZIP = b"\x93NUMPY", b"PK\x03\x04"
MOST_MEMBERS = 10_000
"""Arrays in one archive."""

TIMES_SMALLER = 1032
"""Deflation makes nothing smaller than this many times."""


@dataclass(frozen=True)
class StoredArray:
    """An array that lies in a file, which ``place`` names; ``dtype`` is in the byte order of this machine."""

    place: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    _load: Callable[[], Array]
    is_mapped: bool = False
    """It takes no memory: it is looked at where it lies."""

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def load(self) -> Array:
        try:
            array = self._load()
        except Exception as error:  # NumPy and zipfile have no one class for what damage may cause
            raise FormatError(f"{self.place} is damaged: {error}") from error
        return array.view(bf16.numpy) if array.dtype == BITS else native(array)


def _stored(place: str, shape: tuple[int, ...], dtype: np.dtype[Any], load: Callable[[], Array]) -> StoredArray:
    return StoredArray(place, shape, bf16.numpy if dtype == BITS else dtype.newbyteorder("="), load)


def stored_arrays(path: str) -> dict[str, StoredArray] | StoredArray:
    """The array of an .npy file, or those of an .npz file by name."""
    with regular_file(path) as file:
        begin = file.read(6)
    if begin == NPY:
        return _single(path)
    if begin.startswith(ZIP):
        return _several(path)
    raise FormatError(f"{path} is neither an .npy nor an .npz file; write one with np.save or np.savez")


def _single(path: str) -> StoredArray:
    try:
        array = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except Exception as error:  # as above
        raise FormatError(f"{path} is damaged: {error}") from error
    return replace(_stored(path, array.shape, array.dtype, lambda: array), is_mapped=array.dtype.isnative)


def _several(path: str) -> dict[str, StoredArray]:
    found: dict[str, StoredArray] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if len(members) > MOST_MEMBERS:
                raise FormatError(f"it holds {len(members)} arrays; at most {MOST_MEMBERS} are read")
            for member in members:
                name = member.filename.removesuffix(".npy")
                if name in found:
                    raise FormatError(f"it holds two arrays called {brief(name)}")
                shape, dtype = _described(archive, member)
                found[name] = _stored(f"{name} in {path}", shape, dtype, partial(_member, path, member))
    except Exception as error:  # as above
        raise FormatError(f"{path} is damaged, or not made by np.savez: {error or type(error).__name__}") from error
    return found


def _described(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The shape and dtype that a member states, which its size must bear out, and that its own packed size."""
    if member.file_size > TIMES_SMALLER * (member.compress_size + 1):
        raise FormatError(f"{brief(member.filename)} claims {member.file_size} bytes in {member.compress_size}")
    with archive.open(member) as file:
        shape, dtype, start = _header(file)
    if dtype.hasobject:
        raise FormatError(f"{brief(member.filename)} holds Python objects, which are not read")
    if member.file_size - start != prod(shape) * dtype.itemsize:
        raise FormatError(f"{brief(member.filename)} does not hold the {dtype} {shape} that it states")
    return shape, dtype


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise FormatError(f"version {version} of the .npy format is not read")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if any(n < 0 for n in shape):
        raise FormatError(f"the shape {shape} has a negative size")
    return shape, dtype, file.tell()


def _member(path: str, member: zipfile.ZipInfo) -> Array:
    with zipfile.ZipFile(path) as archive, archive.open(member) as file:
        return np.asarray(np.lib.format.read_array(file, allow_pickle=False))


def write_arrays(path: str, arrays: Mapping[str, Array]) -> None:
    """One array as .npy, or several as .npz, by name: the whole file or none."""
    with replacing(path) as partial_file:
        if Path(path).suffix.lower() == ".npy":
            (array,) = arrays.values()
            with partial_file.open("wb") as file:
                np.save(file, array, allow_pickle=False)
            return
        with zipfile.ZipFile(partial_file, "w") as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
