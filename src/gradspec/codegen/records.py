"""Records: what the host writes and kernels read by the same names, declared once.

A record is a frozen dataclass. Its annotations say how it lies in memory, every entry a word of eight bytes:

    int, an IntEnum    an integer
    bool               0 or 1, which kernels read as a truth
    float              a float64
    Operand            the address of one of a call's arrays, which the host names by its number; None: 0
    Words              the address of a table of integers, which kernels index; None: 0
    Memory             the address of an array of any numbers, which kernels read as an integer; None: 0
    a record           the record itself, in place
    tuple[T, T, T]     three of them, in place; many: Annotated[tuple[T, ...], 64]
    tuple[T, ...]      where they lie, counted in bytes from the record's beginning, and how many there are

So a packed record holds together wherever it is copied to, and the host and kernels both write ``args.axes[a].stride``
and ``len(args.axes)``. A ``Scratch`` record is declared alike, but kernels alone make and change it, in a workspace.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import Enum, IntEnum
from functools import cache, cached_property
from struct import Struct, pack, unpack
from typing import Any, NewType, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gradspec.codegen.addresses import address

Operand = NewType("Operand", int)
"""The number of an array among those that a call is bound to."""
Words: TypeAlias = NDArray[np.int64]
Memory: TypeAlias = NDArray[Any]

WORD = 8


class Record:
    """What a kernel is given. Subclasses are frozen dataclasses with the annotations above."""


class Scratch:
    """What kernels keep in a workspace while they run. Subclasses are dataclasses with the annotations above."""


class Kind(Enum):
    """What one word means."""

    INTEGER, TRUTH, FLOAT, OPERAND, TABLE, MEMORY = range(6)


@dataclass(frozen=True)
class InPlace:
    """So many entries, one after another."""

    entry: Entry
    count: int


@dataclass(frozen=True)
class Elsewhere:
    """Entries whose place and number two words tell."""

    entry: Entry


@dataclass(frozen=True)
class Field:
    """An entry of a record, ``offset`` bytes behind its beginning."""

    offset: int
    entry: Entry


@dataclass(frozen=True)
class Layout:
    """Where the fields of a record lie."""

    name: str
    fields: dict[str, Field]
    size: int
    is_scratch: bool

    def __hash__(self) -> int:
        return hash(self.name)

    @cached_property
    def entries(self) -> list[tuple[str, int, Entry]]:
        """The fields' names, their words, and what lies there."""
        return [(name, field.offset // WORD, field.entry) for name, field in self.fields.items()]


Entry: TypeAlias = Kind | Layout | InPlace | Elsewhere


def size_of(entry: Entry) -> int:
    """The bytes that an entry takes in its record."""
    if isinstance(entry, Layout):
        return entry.size
    if isinstance(entry, InPlace):
        return entry.count * size_of(entry.entry)
    return 2 * WORD if isinstance(entry, Elsewhere) else WORD


@cache
def layout(cls: Any) -> Layout:
    """How a record lies in memory.

    >>> @dataclass(frozen=True)
    ... class Axis(Record):
    ...     size: int
    ...     strides: tuple[int, int]
    >>> layout(Axis).size, layout(Axis).fields["strides"].offset
    (24, 8)
    """
    hints, found, end = typing.get_type_hints(cls, include_extras=True), {}, 0
    for field in fields(cls):
        found[field.name] = Field(end, _entry(hints[field.name], f"{cls.__name__}.{field.name}"))
        end += size_of(found[field.name].entry)
    return Layout(cls.__name__, found, end, issubclass(cls, Scratch))


_SIMPLE: dict[Any, Kind] = {
    int: Kind.INTEGER,
    bool: Kind.TRUTH,
    float: Kind.FLOAT,
    Operand: Kind.OPERAND,
    Words: Kind.TABLE,
    Memory: Kind.MEMORY,
}


def _entry(hint: Any, where: str) -> Entry:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType) and arguments[1:] == (type(None),):
        return _entry(arguments[0], where)
    if origin is typing.Annotated:
        entries, count = arguments
        return InPlace(_entry(typing.get_args(entries)[0], where), count)
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if origin is tuple and arguments[1:] == (...,):
        return Elsewhere(_entry(arguments[0], where))
    if origin is tuple and len({*arguments}) == 1:
        return InPlace(_entry(arguments[0], where), len(arguments))
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        return Kind.INTEGER
    if isinstance(hint, type) and issubclass(hint, Record | Scratch):
        cls: Any = hint
        return layout(cls)
    raise TypeError(f"{where}: a record cannot hold {hint!r}")


# --- packing ----------------------------------------------------------------------------------------------------------


class Block:
    """A record in bytes, for any addresses of a call's arrays. Whoever made the record keeps alive what it points to.

    >>> @dataclass(frozen=True)
    ... class Sum(Record):
    ...     x: Operand
    ...     terms: tuple[int, ...]
    >>> unpack("=5q", Block(Sum(Operand(0), (7, 8))).at([4096]))
    (4096, 24, 2, 7, 8)
    """

    def __init__(self, record: Record) -> None:
        self._words: list[int] = []
        self._operands: dict[int, int] = {}
        cls: Any = type(record)
        kind = layout(cls)
        self._words += [0] * (kind.size // WORD)
        self._write_record(kind, record, 0)
        self._pack, self._parts, self._slots = self._cut()

    @property
    def size(self) -> int:
        """Bytes, with all that the record holds."""
        return WORD * len(self._words)

    def at(self, addresses: Sequence[int]) -> bytes:
        """The bytes for arrays that lie there."""
        parts = self._parts.copy()
        for slot, operand in self._slots:
            parts[slot] = addresses[operand]
        packed: bytes = self._pack(*parts)
        return packed

    def _write_record(self, kind: Layout, record: Any, at: int) -> None:
        for name, word, entry in kind.entries:
            if entry is Kind.INTEGER:
                self._words[at + word] = int(getattr(record, name))
            else:
                self._write(entry, getattr(record, name), at + word, at)

    def _write(self, entry: Entry, value: Any, at: int, start: int) -> None:
        """A value to the words from ``at`` on, of a record that begins at ``start``."""
        if isinstance(entry, Layout):
            self._write_record(entry, value, at)
        elif isinstance(entry, InPlace):
            self._write_all(entry.entry, value, at, start)
        elif isinstance(entry, Elsewhere):
            first, count = len(self._words), len(value)
            self._words[at], self._words[at + 1] = WORD * (first - start), count
            self._words += [0] * (count * size_of(entry.entry) // WORD)
            self._write_all(entry.entry, value, first, first)
        else:
            self._words[at] = self._word(entry, value, at)

    def _write_all(self, entry: Entry, values: Sequence[Any], at: int, start: int) -> None:
        step = size_of(entry) // WORD
        for i, value in enumerate(values):
            self._write(entry, value, at + i * step, start)

    def _word(self, kind: Kind, value: Any, at: int) -> int:
        if kind is Kind.FLOAT:
            return int(unpack("=q", pack("=d", value))[0])
        if kind is Kind.INTEGER or kind is Kind.TRUTH:
            return int(value)
        if value is None:
            return 0
        if kind is Kind.OPERAND:
            self._operands[at] = value
            return 0
        return address(value)

    def _cut(self) -> tuple[Any, list[Any], list[tuple[int, int]]]:
        """What packs bytes that are known and addresses that are not, these bytes, and where addresses come in."""
        parts: list[Any] = []
        slots: list[tuple[int, int]] = []
        format, done = "=", 0
        for at, operand in sorted(self._operands.items()):
            if at > done:
                parts.append(_packed(self._words[done:at]))
                format += f"{WORD * (at - done)}s"
            slots.append((len(parts), operand))
            parts.append(0)
            format, done = format + "q", at + 1
        parts.append(_packed(self._words[done:]))
        return Struct(f"{format}{len(parts[-1])}s").pack, parts, slots


def _packed(words: Sequence[int]) -> bytes:
    return pack(f"={len(words)}q", *words)
