"""What is known while the model is read: constants, shapes and ranges. The rest of such arithmetic is folded."""

from __future__ import annotations

from math import isfinite, prod
from typing import Any

import numpy as np

from gradspec.graph.ir import Array
from gradspec.interop.onnx.folding import ARITHMETIC
from gradspec.interop.onnx.node import Handler, OnnxNode
from gradspec.interop.onnx.tensors import MAX_CELLS, MAX_RANK
from gradspec.saving.strict_json import brief
from gradspec.spec.errors import FormatError, UnsupportedError


def _constant(node: OnnxNode) -> Array:
    given = [(name, content) for name, content in node.attributes.items() if content is not None]
    if len(given) != 1:
        raise FormatError(f"it has {len(given)} values; exactly one is needed")
    ((name, content),) = given
    if name == "value":
        return node.scope.array(content)
    if name in ("value_int", "value_ints", "value_float", "value_floats"):
        return np.array(content, np.int64 if "int" in name else np.float32)
    raise UnsupportedError(f"Constant with {name}")


def _constant_of_shape(node: OnnxNode) -> Array:
    shape, content = known_shape(node, 0), node.attribute("value")
    value = np.zeros(1, np.float32) if content is None else node.scope.array(content)
    if value.size != 1:
        raise FormatError(f"its value has the shape {value.shape}, and one number is needed")
    return np.broadcast_to(value.reshape(()), shape)  # which takes no memory


def known_shape(node: OnnxNode, i: int) -> tuple[int, ...]:
    """Operand ``i`` as the shape of a tensor that can be addressed."""
    shape = tuple(node.known_ints(i))
    if len(shape) > MAX_RANK or any(n < 0 for n in shape) or prod(shape) > MAX_CELLS:
        raise FormatError(f"its input {i}, {brief(shape[:8])}, is not the shape of a tensor")
    return shape


def _shape(node: OnnxNode) -> Array:
    rank = len(node.value(0).shape)
    start, end = node.attribute("start") or 0, node.attribute("end")
    return np.array(node.value(0).shape[slice(start, rank if end is None else end)], np.int64)


def _size(node: OnnxNode) -> Array:
    return np.array(prod(node.value(0).shape), np.int64)


def _range(node: OnnxNode) -> Array:
    start, limit, delta = (node.known_number(i) for i in range(3))
    if delta == 0 or not all(map(isfinite, (start, limit, delta))):
        raise FormatError(f"a range from {start} to {limit} in steps of {delta}")
    count = max(int(-((start - limit) // delta)), 0)  # rounded up
    node.scope.charge(count)
    kind = node.known(0).dtype
    numbers: Array = np.arange(count, dtype=np.int64 if kind.kind in "iu" else np.float64) * delta + start
    return numbers.astype(kind)


def _only_known(node: OnnxNode) -> Any:
    raise UnsupportedError(f"{node.op_type} of values that are not known at import")


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(ARITHMETIC, _only_known),
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Shape": _shape,
    "Size": _size,
    "Range": _range,
}
"""Handlers of further modules replace those that refuse variables."""
