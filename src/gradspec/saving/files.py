"""Files that are written as a whole or not at all, and files that are read as if they came from an enemy."""

from __future__ import annotations

import gzip
import os
import secrets
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, TypeAlias

from gradspec.spec.errors import FormatError

FilePath: TypeAlias = "str | os.PathLike[str]"

GZIP = b"\x1f\x8b"
"""What a file that gzip packed begins with."""

FREE_BYTES, TIMES_LARGER = 2**22, 64
"""A packed file may unpack to so many bytes, and to so many more for each of its own. Texts shrink 5 to 20 times."""


@contextmanager
def replacing(path: FilePath) -> Iterator[Path]:
    """A file to write in place of ``path``: what is there stays until the new one is complete and on the disk."""
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise FileExistsError(f"{os.fspath(path)} is there and not a regular file; give the name of a file")
    partial = target.with_name(f".{target.name[:200]}.{secrets.token_hex(8)}")
    try:
        partial.touch(exist_ok=False)
        mode = partial.stat().st_mode
        yield partial
        partial.chmod(mode)  # a library that writes the file may have given it to the user alone
        with partial.open("r+b") as file:
            os.fsync(file.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def regular_file(path: FilePath) -> Iterator[BinaryIO]:
    """A file to read; a pipe or a device, which might never end, is refused."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise FormatError(f"{os.fspath(path)} is not a regular file")
    with open(path, "rb") as file:
        yield file


def read_lines(path: FilePath) -> list[bytes]:
    """The lines of a file that is appended to. One whose writer was stopped midway is removed from it."""
    with regular_file(path) as file:
        content = file.read()
    whole, _, cut = content.rpartition(b"\n")
    if cut:
        os.truncate(path, len(content) - len(cut))
    return whole.splitlines()


def read_bounded(path: FilePath, most: int) -> bytes:
    """A file of at most so many bytes, which it may unpack to if gzip packed it."""
    with regular_file(path) as file:
        content = file.read(min(most, os.fstat(file.fileno()).st_size) + 1)  # memory is taken for all of it first
    if len(content) > most:
        raise FormatError(f"{os.fspath(path)} has more than {most} bytes, which is the limit")
    return unpacked(path, content, most, FREE_BYTES) if content.startswith(GZIP) else content


def unpacked(path: FilePath, content: bytes, most: int, free: int) -> bytes:
    """What gzip packed: at most ``most`` bytes, and no more than ``free`` and a multiple of its own."""
    most = min(most, free + TIMES_LARGER * len(content))
    try:
        with gzip.GzipFile(fileobj=BytesIO(content)) as file:
            found = file.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise FormatError(f"{os.fspath(path)} is packed by gzip, and damaged: {error}") from None
    if len(found) > most:
        raise FormatError(
            f"{os.fspath(path)} has {len(content)} bytes and unpacks to more than {most}; unpack it with gunzip"
        )
    return found
