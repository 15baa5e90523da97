"""Operators as opsets 1 to 6 had them, rewritten as those of opset 7, which the handlers know.

Until then two tensors were broadcast only if an attribute said so, and from the axis that another named; some inputs
of today were attributes, and some attributes had other names. ``consumed_inputs``, a hint on memory, means nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import TensorProto

from gradspec.graph.ir import Var
from gradspec.interop.onnx.node import OnnxNode, Value
from gradspec.ops.shape import reshape
from gradspec.saving.strict_json import brief
from gradspec.spec.errors import FormatError, ShapeError

FIRST_MODERN = 7


def upgrade_opset(node: OnnxNode) -> OnnxNode:
    """Express a node of opsets 1 to 6 as one of opset 7; keep others."""
    rule = RULES.get(node.op_type) if node.version < FIRST_MODERN else None
    return node if rule is None else rule(node)


def _with(node: OnnxNode, *operands: Value | None, **attributes: Any) -> OnnxNode:
    """The node with other operands behind the first, and further attributes."""
    names = (*node.names, *[""] * len(operands))[: 1 + len(operands)]
    return replace(node, names=names, operands=(node.value(0), *operands), attributes=node.attributes | attributes)


def _aligned(node: OnnxNode) -> OnnxNode:
    """The second operand with axes of size 1 at its end, so that it lies along those of the first that are meant."""
    a, b = node.value(0), node.value(1)
    if not node.flag("broadcast"):
        if a.shape != b.shape:
            raise ShapeError(f"the shapes {a.shape} and {b.shape} differ, and it is not told to broadcast")
        return node
    axis = node.attribute("axis")
    start = len(a.shape) - len(b.shape) if axis is None else axis + len(a.shape) * (axis < 0)
    behind = len(a.shape) - start - len(b.shape)
    if start < 0 or behind < 0:
        raise ShapeError(f"the shape {b.shape} does not lie along {a.shape} from axis {axis} on")
    return _with(node, _reshaped(b, (*b.shape, *(1,) * behind)))


def _reshaped(x: Value, shape: tuple[int, ...]) -> Value:
    return x if shape == x.shape else reshape(x, shape) if isinstance(x, Var) else x.reshape(shape)


def _slope_of_channels(node: OnnxNode) -> OnnxNode:
    """A slope is one number, or one for each channel, which is the second axis."""
    x, slope = node.value(0), node.value(1)
    behind = len(x.shape) - 2 if len(slope.shape) == 1 and slope.shape != (1,) else 0
    return _with(node, _reshaped(slope, (*slope.shape, *(1,) * behind)))


def _kind_by_number(node: OnnxNode) -> OnnxNode:
    word, kinds = node.attribute("to"), dict(TensorProto.DataType.items())
    if isinstance(word, int):
        return node
    if word not in kinds:
        raise FormatError(f"its to is {brief(word)}, which is no type of ONNX")
    return _with(node, to=kinds[word])


def _repeats_of_all_axes(node: OnnxNode) -> OnnxNode:
    """Until opset 5 one axis was repeated, and both were inputs."""
    if not node.has(2):
        return node
    repeats, axis = np.ones(len(node.value(0).shape), np.int64), int(node.known_number(2))
    if not 0 <= axis < repeats.size:
        raise FormatError(f"its axis is {axis}, and its input has {repeats.size}")
    repeats[axis] = int(node.known_number(1))
    return _with(node, repeats)


def _default(**attributes: Any) -> Callable[[OnnxNode], OnnxNode]:
    """Defaults that the text had and the record did not."""
    return lambda node: replace(node, attributes=attributes | node.attributes)


def _pads(node: OnnxNode) -> OnnxNode:
    given = node.attribute("paddings")
    return node if given is None else replace(node, attributes=node.attributes | {"pads": given})


def _scales(node: OnnxNode) -> OnnxNode:
    return _with(node, scales=[1.0, 1.0, node.attribute("height_scale"), node.attribute("width_scale")])


FLOAT_MAX = float(np.finfo(np.float32).max)

RULES: dict[str, Callable[[OnnxNode], OnnxNode]] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less"), _aligned),
    "Cast": _kind_by_number,
    "Clip": _default(min=-FLOAT_MAX, max=FLOAT_MAX),
    "Concat": _default(axis=1),
    "PRelu": _slope_of_channels,
    "Pad": _pads,
    "Reshape": lambda node: node if node.has(1) else _with(node, np.array(node.attribute("shape") or [], np.int64)),
    "Split": _default(axis=0),
    "Tile": _repeats_of_all_axes,
    "Upsample": _scales,
}
