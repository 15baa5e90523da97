"""Loops over the slices of a tensor, whose number is known: the nodes of their body for each slice in turn."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradspec.graph.ir import Var
from gradspec.interop.onnx.node import Handler, OnnxNode, normal_axes
from gradspec.ops.layout import concat, getitem
from gradspec.ops.shape import reshape
from gradspec.spec.errors import FormatError, UnsupportedError


def _scan(node: OnnxNode) -> Any:
    """The body takes what it handed on and a slice of each of the last operands; what it gives besides is stacked."""
    if node.version < 9:
        raise UnsupportedError("Scan with sequences of several lengths, as opset 8 has it")
    body, count = node.attribute("body"), node.attribute("num_scan_inputs")
    states = len(node.operands) - count
    if not 0 < count <= len(node.operands) == len(body.input) or len(body.output) < max(states, len(node.outputs)):
        raise FormatError(f"its body has {len(body.input)} inputs and {len(body.output)} outputs, which do not fit it")
    columns = [_slices(node, i, node.variable(states + i)) for i in range(count)]
    if len({len(column) for column in columns}) != 1 or not columns[0]:
        raise UnsupportedError("Scan over axes that differ in length, or of none")
    carry, rows = [node.value(i) for i in range(states)], []
    for slices in zip(*columns, strict=True):
        results = node.scope.branch(body, [*carry, *slices])
        if not all(isinstance(v, Var | np.ndarray) for v in results):  # it was refused
            return results[: len(node.outputs)]
        carry = [*results[:states]]
        rows.append([v if isinstance(v, Var) else node.scope.lift(v, "row") for v in results[states:]])
    stacks = [_stack(node, i, cells) for i, cells in enumerate(zip(*rows, strict=True))]
    return [*carry, *stacks][: len(node.outputs)]


def _entry(node: OnnxNode, name: str, i: int) -> int:
    """An entry of a list that may be left out, or be too short; it is 0 then."""
    given = node.attribute(name) or []
    return int(given[i]) if i < len(given) else 0


def _slices(node: OnnxNode, i: int, x: Var) -> list[Var]:
    (axis,) = normal_axes([_entry(node, "scan_input_axes", i)], x.ndim)
    places = range(x.shape[axis])[:: -1 if _entry(node, "scan_input_directions", i) else 1]
    return [getitem(x, (slice(None),) * axis + (place,)) for place in places]


def _stack(node: OnnxNode, i: int, cells: tuple[Var, ...]) -> Var:
    (axis,) = normal_axes([_entry(node, "scan_output_axes", i)], cells[0].ndim + 1)
    shape = (*cells[0].shape[:axis], 1, *cells[0].shape[axis:])
    ordered = cells[:: -1 if _entry(node, "scan_output_directions", i) else 1]
    return concat([reshape(cell, shape) for cell in ordered], axis)


HANDLERS: dict[str, Handler] = {"Scan": _scan}
