"""Conversions between kinds of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradspec.graph.ir import Var
from gradspec.graph.types import dtype_of
from gradspec.interop.onnx.node import Handler, OnnxNode, Value
from gradspec.interop.onnx.tensors import kind_of
from gradspec.ops.convert import convert


def _cast(node: OnnxNode) -> Value:
    return _as_kind(node, kind_of(node.attribute("to")))


def _cast_like(node: OnnxNode) -> Value:
    like = node.value(1)
    return _as_kind(node, like.dtype.numpy if isinstance(like, Var) else like.dtype)


def _as_kind(node: OnnxNode, kind: np.dtype[Any]) -> Value:
    x = node.value(0)
    if not isinstance(x, Var):
        node.scope.charge(x.size)
    return convert(x, dtype_of(np.empty(0, kind)))  # type: ignore[no-any-return]


HANDLERS: dict[str, Handler] = {"Cast": _cast, "CastLike": _cast_like}
