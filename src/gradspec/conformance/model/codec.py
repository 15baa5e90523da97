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

from gradspec.conformance.model.problem import ARRAY_DTYPES, FLOATS, Array, Shape
from gradspec.spec.errors import FormatError

T = TypeVar("T")


def encode(value: object, kind: object = None) -> Any:
    """A dataclass, or something of an annotated kind, as plain data.

    >>> from gradspec.conformance.model.problem import Problem
    >>> encode(Problem("fold", 1, ((2, 4), None), {"kernel_size": (2,)}))["shapes"]
    [[2, 4], None]
    """
    hint: Any = kind or type(value)
    return _codec(hint).write(value)


def decode(kind: type[T], data: object, where: str = "data") -> T:
    """What was encoded.

    >>> from gradspec.conformance.model.problem import Problem
    >>> decode(Problem, {"op": "fold", "rank": "1", "shapes": [], "attributes": {}}, "problem")
    Traceback (most recent call last):
        ...
    gradspec.spec.errors.FormatError: problem.rank: expected int, not '1'
    """
    hint: Any = kind
    found: T = _codec(hint).read(data, where)
    return found


class Codec(NamedTuple):
    """How one type is written, and how it is read from data and from where that stands."""

    write: Callable[[Any], Any]
    read: Callable[[Any, str], Any]


@cache
def _codec(hint: Any) -> Codec:
    """How an annotated type is written and read."""
    origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if meant := getattr(origin, "__value__", None):  # NDArray is an alias of its own kind from NumPy 2.5 on
        origin = typing.get_origin(meant) or meant
    if hint is Any:
        return Codec(lambda value: value, lambda data, where: data)
    if origin in (typing.Union, types.UnionType):
        write, read = _codec(next(argument for argument in arguments if argument is not types.NoneType))
        return Codec(lambda v: v if v is None else write(v), lambda data, at: data if data is None else read(data, at))
    if dataclasses.is_dataclass(hint):
        return _record(typing.cast(type, hint))
    if origin is np.ndarray:
        return _ARRAY
    if origin is Counter:
        counts = _mapping(_codec(int))
        is_plain = arguments == (str,)
        return Codec(dict, lambda data, where: Counter(counts.read(data, where))) if is_plain else _rows(hint)
    if origin is Mapping and arguments[1] is Any:
        return _mapping(Codec(_thaw, lambda data, where: _freeze(data)))
    if origin in (dict, Mapping):
        return _mapping(_codec(arguments[1]))
    if origin in (tuple, list, frozenset):
        return _sequence(origin, _codec(arguments[0]))
    return Codec(lambda value: value, lambda data, where: _expect(data, hint, where))


def _freeze(data: object) -> object:
    """Lists as tuples."""
    return tuple(map(_freeze, data)) if isinstance(data, list) else data


def _thaw(value: object) -> object:
    return list(map(_thaw, value)) if isinstance(value, tuple) else value


def _expect(data: object, kind: type, where: str) -> Any:
    """A number will do for a float, but a bool is no int."""
    if type(data) is kind or (kind is float and type(data) is int):
        return data
    told = f"{type(data).__name__} of {len(data)}" if isinstance(data, list | dict) else ascii(data)[:60]
    raise FormatError(f"{where}: expected {kind.__name__}, not {told}")


def _record(cls: type) -> Codec:
    hints = typing.get_type_hints(cls)
    fields = {field.name: _codec(hints[field.name]) for field in dataclasses.fields(cls)}
    needed = [f.name for f in dataclasses.fields(cls) if f.default is f.default_factory is dataclasses.MISSING]

    def read(data: object, where: str) -> object:
        parts = _expect(data, dict, where)
        if missing := [name for name in needed if name not in parts]:
            has = ", ".join(parts) or "none"
            raise FormatError(f"{where}: {cls.__name__} needs {', '.join(missing)}; it has {has}")
        if unknown := [name for name in parts if name not in fields]:
            raise FormatError(f"{where}: a {cls.__name__} has no {unknown[0]!r}; it has {', '.join(fields)}")
        return cls(**{name: fields[name].read(part, f"{where}.{name}") for name, part in parts.items()})

    return Codec(lambda value: {name: codec.write(getattr(value, name)) for name, codec in fields.items()}, read)


def _sequence(kind: type, codec: Codec) -> Codec:
    def read(data: object, where: str) -> object:
        return kind(codec.read(part, f"{where}[{i}]") for i, part in enumerate(_expect(data, list, where)))

    return Codec(lambda value: [codec.write(part) for part in (sorted(value) if kind is frozenset else value)], read)


def _mapping(codec: Codec) -> Codec:
    def read(data: object, where: str) -> object:
        return {name: codec.read(part, f"{where}.{name}") for name, part in _expect(data, dict, where).items()}

    return Codec(lambda value: {name: codec.write(part) for name, part in value.items()}, read)


def _rows(hint: Any) -> Codec:
    """Counts by several words."""
    words = len(typing.get_args(typing.get_args(hint)[0]))

    def read(data: object, where: str) -> object:
        found: Counter[tuple[str, ...]] = Counter()
        for i, row in enumerate(_expect(data, list, where)):
            place = f"{where}[{i}]"
            if len(_expect(row, list, place)) != words + 1:
                raise FormatError(f"{place}: expected {words} words and a number, not {len(row)} entries")
            found[tuple(_expect(word, str, place) for word in row[:-1])] = _expect(row[-1], int, place)
        return found

    return Codec(lambda value: [[*key, number] for key, number in sorted(value.items())], read)


def _write_array(array: Array) -> dict[str, object]:
    name = next(name for name, dtype in ARRAY_DTYPES.items() if dtype == array.dtype)
    cells = array.ravel().astype(np.float64).tolist() if name in FLOATS else array.ravel().tolist()
    words = [cell if isinstance(cell, int) or np.isfinite(cell) else str(cell) for cell in cells]
    return {"dtype": name, "shape": list(array.shape), "cells": words}


def _read_array(data: object, where: str) -> Array:
    parts = _expect(data, dict, where)
    dtype = _expect(parts.get("dtype"), str, f"{where}.dtype")
    if dtype not in ARRAY_DTYPES:
        raise FormatError(f"{where}.dtype: {dtype!r} is not known; use one of {', '.join(ARRAY_DTYPES)}")
    shape: Shape = _codec(Shape).read(parts.get("shape"), f"{where}.shape")
    try:
        wide = np.array(
            _expect(parts.get("cells"), list, f"{where}.cells"), np.float64 if dtype in FLOATS else np.int64
        )
        return wide.astype(ARRAY_DTYPES[dtype]).reshape(shape)
    except (ValueError, TypeError, OverflowError) as error:
        raise FormatError(f"{where}: these cells are no {dtype} array of shape {shape}: {error}") from None


_ARRAY = Codec(_write_array, _read_array)
