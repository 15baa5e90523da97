"""Lists of verification problems: ``instances.csv``, as benchmarks of the verification competition have them."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from gradspec.saving.files import read_bounded
from gradspec.saving.strict_json import brief
from gradspec.spec.errors import FormatError, UnsupportedError

MOST_BYTES = 1 << 24


@dataclass(frozen=True)
class Instance:
    """A network, a property, the seconds that are allowed, and what else the line says."""

    network: Path
    property: Path
    seconds: float
    more: tuple[str, ...] = ()


def read_instances(path: str | os.PathLike[str]) -> list[Instance]:
    """The lines ``network,property,seconds`` of a file; its first line may say what the columns are.

    Names are relative to the folder of the list. Where a file is not there and the same name with ``.gz`` is, that is
    taken; neither is opened.
    """
    name, folder = os.fspath(path), Path(path).parent
    try:
        text = read_bounded(path, MOST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(f"{name}: byte {error.start} is not UTF-8") from None
    found = []
    for number, (line, row) in enumerate(_rows(text, name)):
        if number == 0 and len(row) >= 3 and ".onnx" not in row[0] and _number(row[2]) is None:  # a heading
            continue
        try:
            found.append(_instance(row, folder))
        except (FormatError, UnsupportedError) as error:
            raise type(error)(f"{name}, line {line}: {error}") from None
    return found


def _rows(text: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """The lines that are not empty, with their numbers."""
    reader = csv.reader(StringIO(text, newline=""), strict=True, skipinitialspace=True)
    try:
        yield from ((reader.line_num, [cell.strip() for cell in row]) for row in reader if any(row))
    except csv.Error as error:
        raise FormatError(f"{name}, line {reader.line_num}: {error}") from None


def _instance(row: list[str], folder: Path) -> Instance:
    if row[0].startswith("["):
        raise UnsupportedError(f"{brief(row[0])}: several networks are not supported; join them to one model")
    seconds = _number(row[2]) if len(row) >= 3 else None
    if seconds is None or not 0 < seconds < math.inf or not all(row[:2]):
        raise FormatError(f"{brief(','.join(row))} was found; expected network,property,seconds")
    return Instance(_there(folder, row[0]), _there(folder, row[1]), seconds, tuple(row[3:]))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _there(folder: Path, name: str) -> Path:
    for found in (folder / name, folder / f"{name}.gz"):
        if os.path.isfile(found):  # which a name that no file can have does not offend
            return found
    raise FormatError(f"{brief(name)} is not in the folder {brief(os.fspath(folder))}, packed by gzip or not")
