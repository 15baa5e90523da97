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
from collections.abc import Callable, Sequence
from ctypes import c_size_t, c_void_p, string_at
from ctypes import cast as cast_pointer
from dataclasses import dataclass, fields
from enum import Enum, IntEnum
from functools import cache
from struct import Struct, pack, unpack
from typing import Any, NewType, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

# A NumPy array is a Python object whose first field is the address of its data, and a bytes object ends with its bytes
# and a zero: both are part of the binary interface that every extension module relies on. Reading them there takes
# 0.3 µs; ``array.ctypes.data`` takes 2 µs.
_DATA = object.__basicsize__
_BYTES = bytes.__basicsize__ - 1
_word_at = c_size_t.from_address


def address(array: NDArray[np.generic]) -> int:
    """Where an array's data begins.

    >>> x = np.zeros(3)
    >>> address(x) == x.ctypes.data
    True
    """
    return _word_at(id(array) + _DATA).value


def block_address(block: bytes) -> int:
    """Where the bytes of a block of arguments lie, as long as the block lives.

    >>> string_at(block_address(b"abc"), 3)
    b'abc'
    """
    return id(block) + _BYTES


def function_address(function: Callable[..., object]) -> int:
    """Where the code of a compiled kernel begins, for other machine code to call.

    >>> from gradspec.codegen.cache import KERNEL_TYPE
    >>> function_address(KERNEL_TYPE(4096))
    4096
    """
    return cast_pointer(function, c_void_p).value or 0  # type: ignore[arg-type]


def _require_known_layout() -> None:
    probe, text = np.arange(8.0)[3:], b"gradspec"
    if address(probe) != probe.ctypes.data or string_at(block_address(text), len(text)) != text:
        raise ImportError("this Python interpreter lays out its objects in a way that gradspec does not know")


_require_known_layout()


# --- records ----------------------------------------------------------------------------------------------------------


Operand = NewType("Operand", int)
"""The number of an array among those that a call is bound to."""
Words: TypeAlias = NDArray[np.int64]
Memory: TypeAlias = NDArray[Any]

WORD = 8


class Record:
    """What a kernel is given. Subclasses are frozen dataclasses with the annotations above."""


Filled = TypeVar("Filled", bound=Record)


def record_from(record: type[Filled], source: object, **stated: Any) -> Filled:
    """A record of the stated fields, and of all others that the source has as attributes of the same names."""
    rest = (f.name for f in fields(record) if f.name not in stated and hasattr(source, f.name))  # type: ignore[arg-type]
    return record(**{name: getattr(source, name) for name in rest}, **stated)


class Scratch:
    """What kernels keep in a workspace while they run. Subclasses are dataclasses with the annotations above."""


class WordKind(Enum):
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
class RecordLayout:
    """Where the fields of a record lie."""

    name: str
    fields: dict[str, Field]
    size: int
    is_scratch: bool

    def __hash__(self) -> int:
        return hash(self.name)


Entry: TypeAlias = WordKind | RecordLayout | InPlace | Elsewhere


def size_of(entry: Entry) -> int:
    """The bytes that an entry takes in its record."""
    if isinstance(entry, RecordLayout):
        return entry.size
    if isinstance(entry, InPlace):
        return entry.count * size_of(entry.entry)
    return 2 * WORD if isinstance(entry, Elsewhere) else WORD


@cache
def layout(cls: type) -> RecordLayout:
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
    return RecordLayout(cls.__name__, found, end, issubclass(cls, Scratch))


_SIMPLE: dict[object, WordKind] = {
    int: WordKind.INTEGER,
    bool: WordKind.TRUTH,
    float: WordKind.FLOAT,
    Operand: WordKind.OPERAND,
    Words: WordKind.TABLE,
    Memory: WordKind.MEMORY,
}


def _entry(hint: object, where: str) -> Entry:
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
        return WordKind.INTEGER
    if isinstance(hint, type) and issubclass(hint, Record | Scratch):
        return layout(cast(type, hint))
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

    def __init__(self, record: Record | Scratch) -> None:
        kind = layout(cast(type, type(record)))
        self.words: list[int] = [0] * (kind.size // WORD)
        self.operands: dict[int, int] = {}
        _writer(kind)(self, record, 0, 0)
        self._pack, self._parts, self._slots = self._split_at_operands()

    @property
    def size(self) -> int:
        """Bytes, with all that the record holds."""
        return WORD * len(self.words)

    def at(self, addresses: Sequence[int]) -> bytes:
        """The bytes for arrays that lie there."""
        parts = self._parts.copy()
        for slot, operand in self._slots:
            parts[slot] = addresses[operand]
        return self._pack(*parts)

    def _split_at_operands(self) -> tuple[Callable[..., bytes], list[bytes | int], list[tuple[int, int]]]:
        """What packs bytes that are known and addresses that are not, these bytes, and where addresses come in."""
        parts: list[bytes | int] = []
        slots: list[tuple[int, int]] = []
        format, done = "=", 0
        for at, operand in sorted(self.operands.items()):
            if at > done:
                parts.append(_pack_words(self.words[done:at]))
                format += f"{WORD * (at - done)}s"
            slots.append((len(parts), operand))
            parts.append(0)
            format, done = format + "q", at + 1
        parts.append(_pack_words(self.words[done:]))
        return Struct(f"{format}{WORD * (len(self.words) - done)}s").pack, parts, slots


def _pack_words(words: Sequence[int]) -> bytes:
    return pack(f"={len(words)}q", *words)


# --- writers ----------------------------------------------------------------------------------------------------------
#
# Arguments are packed whenever a plan is made, so what there is to do for a record is found out once.

Writer: TypeAlias = Callable[[Block, Any, int, int], None]
"""``write(block, value, at, start)``: a value to the words from ``at`` on, of a record that begins at ``start``."""


@cache
def _writer(entry: Entry) -> Writer:
    if isinstance(entry, RecordLayout):
        return _record_writer(entry)
    if isinstance(entry, InPlace):
        return _entries_writer(entry.entry)
    if isinstance(entry, Elsewhere):
        return _elsewhere_writer(entry.entry)
    return WORD_WRITERS[entry]


def _record_writer(kind: RecordLayout) -> Writer:
    """Integers are most of what there is, so they are not written by a call for each."""
    integers, others = [], []
    for name, field in kind.fields.items():
        if field.entry in INTEGERS:
            integers.append((name, field.offset // WORD))
        else:
            others.append((name, field.offset // WORD, _writer(field.entry)))

    def write(block: Block, record: object, at: int, start: int) -> None:
        words = block.words
        for name, offset in integers:
            words[at + offset] = getattr(record, name)
        for name, offset, write_field in others:
            write_field(block, getattr(record, name), at + offset, at)

    return write


def _entries_writer(entry: Entry) -> Writer:
    """For a sequence of entries."""
    if entry in INTEGERS or entry is WordKind.FLOAT:
        return _write_integers if entry in INTEGERS else _write_floats
    step, write_entry = size_of(entry) // WORD, _writer(entry)

    def write(block: Block, values: Sequence[object], at: int, start: int) -> None:
        for value in values:
            write_entry(block, value, at, start)
            at += step

    return write


def _elsewhere_writer(entry: Entry) -> Writer:
    step, write_entries = size_of(entry) // WORD, _entries_writer(entry)

    def write(block: Block, values: Sequence[object], at: int, start: int) -> None:
        if values:
            words, first = block.words, len(block.words)
            words[at], words[at + 1] = WORD * (first - start), len(values)
            words += [0] * (step * len(values))
            write_entries(block, values, first, first)

    return write


def _write_integers(block: Block, values: Sequence[int], at: int, start: int) -> None:
    block.words[at : at + len(values)] = values


def _write_floats(block: Block, values: Sequence[float], at: int, start: int) -> None:
    block.words[at : at + len(values)] = unpack(f"={len(values)}q", pack(f"={len(values)}d", *values))


def _write_operand(block: Block, value: int | None, at: int, start: int) -> None:
    if value is not None:
        block.operands[at] = value


def _write_address(block: Block, value: Memory | None, at: int, start: int) -> None:
    block.words[at] = 0 if value is None else address(value)


INTEGERS = (WordKind.INTEGER, WordKind.TRUTH)
WORD_WRITERS: dict[WordKind, Writer] = {
    WordKind.FLOAT: lambda block, value, at, start: _write_floats(block, (value,), at, start),
    WordKind.OPERAND: _write_operand,
    WordKind.TABLE: _write_address,
    WordKind.MEMORY: _write_address,
}
