"""The model as JSON and back, by the annotations of its dataclasses.

A dataclass is an object with its fields in order. Tuples, lists and frozensets are lists, the last of them sorted; a
`Counter` of words is an object, one of tuples a list of rows ``[*key, number]``. An array has its dtype, its shape and
its cells, each as the shortest decimal that reads back as the same number, or as a word where it is not finite. ``Any``
is plain data as it stands, in a ``Mapping``, which nobody changes, with tuples for lists.

Files and other processes are not trusted: what does not fit an annotation is a `FormatError` that says where. A field
with a default may be missing, as those are that came after a file was written.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gradspec.conformance.model.problem import DTYPES, FLOATS, Array
from gradspec.spec.errors import FormatError

T = TypeVar("T")


def encode(value: Any) -> Any:
    """A dataclass as plain data.

    >>> encode(ArrayData("f32", (2,), (0.5, "nan")))
    {'dtype': 'f32', 'shape': [2], 'cells': [0.5, 'nan']}
    """
    kind: Any = type(value)
    return _codec(kind).write(value)


def decode(kind: type[T], data: Any, where: str = "data") -> T:
    """What was encoded.

    >>> decode(ArrayData, {"dtype": "f32", "shape": [1, "2"], "cells": []}, "x")
    Traceback (most recent call last):
        ...
    gradspec.spec.errors.FormatError: x.shape[1]: expected int, not '2'
    """
    hint: Any = kind
    found: T = _codec(hint).read(data, where)
    return found


class Codec(NamedTuple):
    write: Callable[[Any], Any]
    read: Callable[[Any, str], Any]
    """From data, and where it stands."""


@cache
def _codec(hint: Any) -> Codec:
    """How an annotated type is written and read."""
    origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if hint is Any:
        return Codec(lambda value: value, lambda data, where: data)
    if origin in (typing.Union, types.UnionType):
        return _optional(*(_codec(argument) for argument in arguments if argument is not types.NoneType))
    if dataclasses.is_dataclass(hint):
        return _record(typing.cast(type, hint))
    if origin is np.ndarray:
        return Codec(
            lambda array: encode(ArrayData.of(array)), lambda data, where: decode(ArrayData, data, where).array()
        )
    if origin is Counter:
        return _words_counted() if arguments == (str,) else _rows_counted(len(typing.get_args(arguments[0])))
    if origin in (dict, Mapping):
        if origin is Mapping and arguments[1] is Any:
            return _mapping(Codec(lambda value: value, lambda data, where: _frozen(data)))
        return _mapping(_codec(arguments[1]))
    if origin in (tuple, list, frozenset):
        return _sequence(origin, _codec(arguments[0]))
    return Codec(lambda value: value, lambda data, where: _expect(data, hint, where))


def _frozen(data: Any) -> Any:
    """Lists as tuples."""
    return tuple(map(_frozen, data)) if isinstance(data, list) else data


def _expect(data: Any, kind: type, where: str) -> Any:
    """A number will do for a float, but a bool is no int."""
    if type(data) is kind or (kind is float and type(data) is int):
        return data
    told = f"{type(data).__name__} of {len(data)}" if isinstance(data, list | dict) else ascii(data)[:60]
    raise FormatError(f"{where}: expected {kind.__name__}, not {told}")


def _optional(codec: Codec) -> Codec:
    return Codec(
        lambda value: None if value is None else codec.write(value),
        lambda data, where: None if data is None else codec.read(data, where),
    )


def _record(cls: type) -> Codec:
    hints = typing.get_type_hints(cls)
    fields = {field.name: _codec(hints[field.name]) for field in dataclasses.fields(cls)}
    needed = [f.name for f in dataclasses.fields(cls) if f.default is f.default_factory is dataclasses.MISSING]

    def read(data: Any, where: str) -> Any:
        _expect(data, dict, where)
        if missing := [name for name in needed if name not in data]:
            raise FormatError(
                f"{where}: {cls.__name__} lacks {', '.join(missing)}; it has {', '.join(data) or 'nothing'}"
            )
        if unknown := [name for name in data if name not in fields]:
            raise FormatError(f"{where}: {cls.__name__} has no {unknown[0]!r}; it has {', '.join(fields)}")
        return cls(**{name: fields[name].read(part, f"{where}.{name}") for name, part in data.items()})

    return Codec(lambda value: {name: codec.write(getattr(value, name)) for name, codec in fields.items()}, read)


def _sequence(kind: type, codec: Codec) -> Codec:
    def read(data: Any, where: str) -> Any:
        return kind(codec.read(part, f"{where}[{i}]") for i, part in enumerate(_expect(data, list, where)))

    return Codec(lambda value: [codec.write(part) for part in (sorted(value) if kind is frozenset else value)], read)


def _mapping(codec: Codec) -> Codec:
    return Codec(
        lambda value: {name: codec.write(part) for name, part in value.items()},
        lambda data, where: {n: codec.read(part, f"{where}.{n}") for n, part in _expect(data, dict, where).items()},
    )


def _words_counted() -> Codec:
    return Codec(dict, lambda data, where: Counter(_mapping(_codec(int)).read(data, where)))


def _rows_counted(words: int) -> Codec:
    def key(row: Any, where: str) -> tuple[str, ...]:
        if len(_expect(row, list, where)) != words + 1:
            raise FormatError(f"{where}: expected {words} words and a number, not {len(row)} entries")
        return tuple(_expect(word, str, where) for word in row[:-1])

    def read(data: Any, where: str) -> Any:
        rows = enumerate(_expect(data, list, where))
        return Counter({key(row, f"{where}[{i}]"): _expect(row[-1], int, f"{where}[{i}]") for i, row in rows})

    return Codec(lambda value: [[*words, number] for words, number in sorted(value.items())], read)


@dataclasses.dataclass(frozen=True)
class ArrayData:
    """An array as plain data."""

    dtype: str
    shape: tuple[int, ...]
    cells: tuple[Any, ...]

    @staticmethod
    def of(array: Array) -> ArrayData:
        name = next(name for name, dtype in DTYPES.items() if dtype == array.dtype)
        cells = array.ravel().astype(np.float64).tolist() if name in FLOATS else array.ravel().tolist()
        words = (cell if isinstance(cell, int) or np.isfinite(cell) else str(cell) for cell in cells)
        return ArrayData(name, array.shape, tuple(words))

    def array(self) -> Array:
        """
        >>> ArrayData.of(np.float16([[1.5, -np.inf]])).array().tolist()
        [[1.5, -inf]]
        """
        if self.dtype not in DTYPES:
            raise FormatError(f"dtype {self.dtype!r} is not known; use one of {', '.join(DTYPES)}")
        try:
            wide = np.array(self.cells, np.float64 if self.dtype in FLOATS else np.int64)
            return wide.astype(DTYPES[self.dtype]).reshape(self.shape)
        except ValueError as error:
            raise FormatError(
                f"{len(self.cells)} cells are no {self.dtype} array of shape {self.shape}: {error}"
            ) from None
