"""Choices that are settled while the model is read."""

from __future__ import annotations

from typing import Any

from gradspec.interop.onnx.node import Handler, OnnxNode


def _if(node: OnnxNode) -> Any:
    """The results of the branch that a known condition chooses; the other is not looked at."""
    return node.scope.branch(node.attribute("then_branch" if node.known_number(0) else "else_branch"))


HANDLERS: dict[str, Handler] = {"If": _if}
