"""Reading model files that nothing is known about: what they claim is checked before anything is read or allocated.

A model is one protobuf message, and tensors may lie in further files next to it. Those are read here and not by the
``onnx`` package: only regular files inside the model's folder, only bytes that are there, and each of them once.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
from onnx import ModelProto

from gradspec.graph.ir import Array
from gradspec.saving.files import GZIP, unpacked
from gradspec.saving.strict_json import brief
from gradspec.spec.errors import FormatError

MAX_MODEL_BYTES = 2**31 - 1  # protobuf reads no more

FREE_BYTES = 2**26
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
