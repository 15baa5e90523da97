"""A graph as text that a person can follow: one line for each constant and node, with its type."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from textwrap import indent
from typing import Any

import numpy as np

from gradspec.graph.ir import Array, Attributes, Body, Node

SMALL = 6
"""Constants of at most this many numbers are written out."""

WIDEST_COLUMN = 40
"""Longer entries do not widen the column."""


def text(graph: Body) -> str:
    """Inputs, constants, nodes and outputs, in ASCII.

    >>> print(gs.trace(lambda x, y: gs.sum(x * y - 0.1, 1), gs.f32[2, 3], gs.f32[3]))
    graph(x: f32[2, 3], y: f32[3]):
      c              : f32[()]   = constant 0.1
      broadcast_to   : f32[2, 3] = broadcast_to(y, shape=(2, 3))
      mul            : f32[2, 3] = mul(x, broadcast_to)
      broadcast_to_1 : f32[2, 3] = broadcast_to(c, shape=(2, 3))
      sub            : f32[2, 3] = sub(mul, broadcast_to_1)
      sum            : f32[2]    = sum(sub, axes=(1,))
      return sum
    """
    rows = [
        *(((v,), f"constant {summary(array)}") for v, array in graph.constants.items()),
        *((node.outputs, application(node) + _bodies(node)) for node in graph.nodes),
    ]
    names = _column(", ".join(ascii_only(v.name) for v in variables) for variables, _ in rows)
    types = _column(", ".join(str(v.type) for v in variables) for variables, _ in rows)
    lines = [f"  {name} : {type} = {body}" for name, type, (_, body) in zip(names, types, rows, strict=True)]
    inputs = ", ".join(f"{ascii_only(v.name)}: {v.type}" for v in graph.inputs)
    outputs = ", ".join(ascii_only(v.name) for v in graph.outputs)
    return "\n".join([f"graph({inputs}):", *lines, f"  return {outputs}"])


def _bodies(node: Node) -> str:
    """The graphs among the attributes of a node, below its line."""
    return "".join("\n" + indent(text(v), "    ") for v in vars(node.attrs).values() if isinstance(v, Body))


def _column(entries: Iterable[str]) -> list[str]:
    """Entries of one width, but for those that would push all the others apart."""
    column = list(entries)
    width = max((len(e) for e in column if len(e) <= WIDEST_COLUMN), default=0)
    return [e.ljust(width) for e in column]


def application(node: Node) -> str:
    """``conv(x, w, stride=(2, 2))``."""
    arguments = [ascii_only(v.name) for v in node.inputs] + [ascii_only(a) for a in attributes(node.attrs)]
    return f"{node.op.name}({', '.join(arguments)})"


def attributes(record: Attributes) -> list[str]:
    """The fields of a record that a reader needs, as keyword arguments."""
    return [f"{f.name}={_format(getattr(record, f.name))}" for f in dataclasses.fields(record) if _matters(f, record)]


def _matters(field: dataclasses.Field[Any], record: Attributes) -> bool:
    """Not at its default, not implied by the types around it, and not the usual entry on every axis."""
    value = getattr(record, field.name)
    if value == field.default or field.metadata.get("implied"):
        return False
    return "usual" not in field.metadata or any(entry != field.metadata["usual"] for entry in value)


def _format(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_format, value))}{',' * (len(value) == 1)})"
    if isinstance(value, Body):
        return f"{len(value.nodes)} nodes"
    if dataclasses.is_dataclass(value):
        return f"{type(value).__name__}({', '.join(attributes(value))})"
    return repr(value)


def summary(array: Array) -> str:
    """The numbers of a constant if they are few, else where they lie.

    >>> summary(np.zeros((2, 2))), summary(np.zeros(1000)), summary(np.arange(1000.0))
    ('[[0.0, 0.0], [0.0, 0.0]]', 'all 0.0', '0 .. 999')
    """
    if array.size == 0:
        return "empty"
    if array.size <= SMALL:
        return _cells(array)
    cells = distinct(array)
    numbers = cells[~np.isnan(cells)]
    if numbers.size == 0:
        return "all nan"
    low, high = numbers.min(), numbers.max()
    span = f"{float(low):.4g} .. {float(high):.4g}" if low != high else f"all {low!s}"
    return span if numbers.size == cells.size else f"{span}, and nan"


def _cells(array: Array) -> str:
    """Nested lists of numbers, each with as few digits as its own type needs."""
    return str(array[()]) if array.ndim == 0 else f"[{', '.join(map(_cells, array))}]"


def distinct(array: Array) -> Array:
    """The array without the repetitions that take no memory: an axis of stride 0 has size 1."""
    return array[tuple(slice(1) if stride == 0 else slice(None) for stride in array.strides)]


def ascii_only(name: str) -> str:
    """A name that can be printed anywhere: everything but printable ASCII is written as an escape, as in Python.

    >>> print(ascii_only("β\\n"))
    \\u03b2\\n
    """
    return name.encode("unicode_escape").decode()
