"""Attribute records as JSON, and back with every type checked against the record's own annotations.

Numbers, strings, booleans and None are what they are in JSON, and tuples are lists. JSON has no infinity and no NaN:
these are ``{"float": "inf"}``. A record inside a record is ``{"record": its class, "fields": {…}}``.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from gradspec.graph.ir import Attributes
from gradspec.saving.strict_json import LARGEST_INT, brief, listed, require_keys
from gradspec.spec.errors import FormatError

Field: TypeAlias = dataclasses.Field[Any]
SPECIAL = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def fields_to_json(record: object) -> dict[str, object]:
    """The fields of a record by name, but for those that came later and have their defaults."""
    cls: type = type(record)
    values = {f: getattr(record, f.name) for f in _fields(cls)}
    return {f.name: to_json(v, f.name) for f, v in values.items() if not (_came_later(f) and v == f.default)}


def to_json(value: object, where: str) -> object:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, tuple):
        return [to_json(v, where) for v in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {"record": type(value).__name__, "fields": fields_to_json(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if isinstance(value, int) and abs(value) > LARGEST_INT:
        raise ValueError(f"the attribute {where}={value} does not fit in 64 bits, so it cannot be saved")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(
        f"the attribute {where}={value!r} cannot be saved; attributes are numbers, strings, None, tuples and records"
    )


def fields_from_json(cls: type, data: dict[str, object], where: str) -> Attributes:
    """The record of class ``cls`` whose fields ``data`` holds."""
    expected = _fields(cls)
    optional = [f.name for f in expected if _came_later(f)]
    require_keys(data, [f.name for f in expected], where, optional)
    hints, values = _hints(cls), {}
    for name, item in data.items():
        values[name] = from_json(item, _records_within(cls), f"{where}.{name}")
        if not conforms(values[name], hints[name]):
            raise FormatError(f"{where}.{name}: expected {hints[name]}, not {brief(item)}")
    return cls(**values)


def from_json(item: object, records: dict[str, type], where: str) -> object:
    if isinstance(item, list):
        return tuple(
            from_json(v, records, f"{where}[{i}]") if isinstance(v, list | dict) else v for i, v in enumerate(item)
        )
    if not isinstance(item, dict):
        return item
    if item.keys() == {"float"} and isinstance(item["float"], str) and item["float"] in SPECIAL:
        return SPECIAL[item["float"]]
    if item.keys() == {"record", "fields"} and isinstance(item["record"], str) and item["record"] in records:
        return fields_from_json(records[item["record"]], item["fields"], f"{where}.fields")
    raise FormatError(f"{where}: expected a value, a special float or a record of {listed(records)}, not {brief(item)}")


def conforms(value: object, hint: object) -> bool:
    """Whether a value is of an annotated type. An int will do for a float, but a bool is no int."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(conforms(value, a) for a in arguments)
    if origin is typing.Literal:
        return any(type(value) is type(a) and value == a for a in arguments)
    if origin is tuple and arguments[-1:] != (...,):
        return isinstance(value, tuple) and len(value) == len(arguments) and all(map(conforms, value, arguments))
    if origin in (tuple, Sequence):
        return isinstance(value, tuple) and all(conforms(v, arguments[0]) for v in value)
    if hint in (None, type(None)):
        return value is None
    return type(value) in ((float, int) if hint is float else (hint,))


@cache
def _fields(cls: type) -> tuple[Field, ...]:
    return tuple(f for f in dataclasses.fields(cls) if f.init)


def _came_later(field: Field) -> bool:
    return bool(field.metadata.get("later"))


@cache
def _hints(cls: type) -> dict[str, object]:
    return typing.get_type_hints(cls)


@cache
def _records_within(cls: type) -> dict[str, type]:
    """The classes of records that the fields of ``cls`` may hold, by name."""
    found: dict[str, type] = {}
    pending = [_hints(cls)[f.name] for f in _fields(cls)]
    while pending:
        hint = pending.pop()
        pending += typing.get_args(hint)
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            found[hint.__name__] = hint
    return found
