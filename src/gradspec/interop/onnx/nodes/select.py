"""Comparisons, logic and the choice between two tensors."""

from __future__ import annotations

from typing import Any

from gradspec.interop.onnx.node import Handler, Node
from gradspec.ops.pointwise import maximum, minimum
from gradspec.ops.select import equal, greater, less, where


def _not(x: Any) -> Any:
    return equal(x, False)


def _where(node: Node) -> Any:
    return where(*node.variables())


HANDLERS: dict[str, Handler] = {
    "And": lambda node: minimum(*node.variables()),
    "Equal": lambda node: equal(*node.variables()),
    "Greater": lambda node: greater(*node.variables()),
    "GreaterOrEqual": lambda node: maximum(greater(*node.variables()), equal(*node.variables())),
    "Less": lambda node: less(*node.variables()),
    "LessOrEqual": lambda node: maximum(less(*node.variables()), equal(*node.variables())),
    "Not": lambda node: _not(node.variable(0)),
    "Or": lambda node: maximum(*node.variables()),
    "Where": _where,
    "Xor": lambda node: _not(equal(*node.variables())),
}
