"""Conversions between kinds of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradspec.backends import numpy
from gradspec.graph.ir import Var
from gradspec.graph.types import dtype_of
from gradspec.interop.onnx.node import Handler, OnnxNode, Value
from gradspec.interop.onnx.tensors import kind_of
from gradspec.ops.convert import CONVERT, Conversion, convert


def _cast(node: OnnxNode) -> Value:
    return _as_kind(node, kind_of(node.attribute("to")))


def _cast_like(node: OnnxNode) -> Value:
    like = node.value(1)
    return _as_kind(node, like.dtype.numpy if isinstance(like, Var) else like.dtype)


def _as_kind(node: OnnxNode, kind: np.dtype[Any]) -> Value:
    x, dtype = node.value(0), dtype_of(np.empty(0, kind))
    if isinstance(x, Var):
        return convert(x, dtype)
    node.scope.charge(x.size)
    (y,) = numpy.apply(CONVERT, Conversion(dtype.name), x)  # a file has no kernel compiled or loaded
    return y


HANDLERS: dict[str, Handler] = {"Cast": _cast, "CastLike": _cast_like}
