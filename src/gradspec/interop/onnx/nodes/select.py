"""Comparisons, logic and the choice between two tensors."""

from __future__ import annotations

from functools import reduce
from math import inf
from typing import Any

import numpy as np

from gradspec.interop import compose
from gradspec.interop.onnx.node import Handler, OnnxNode
from gradspec.ops.pointwise import maximum, minimum
from gradspec.ops.select import equal, greater, less, where
from gradspec.spec.errors import UnsupportedError


def _not(x: Any) -> Any:
    return equal(x, False)


def _is_nan(node: OnnxNode) -> Any:
    x = node.variable(0)
    return _not(equal(x, x))


def _is_inf(node: OnnxNode) -> Any:
    x = node.variable(0)
    wanted = [inf] * node.flag("detect_positive") + [-inf] * node.flag("detect_negative")
    if not wanted:
        return np.broadcast_to(np.False_, x.shape)
    return reduce(maximum, (equal(x, infinity) for infinity in wanted))


def _where(node: OnnxNode) -> Any:
    return where(*node.variables())


def _mod(node: OnnxNode) -> Any:
    """What is left of integers: with the sign of the dividend, or of the divisor unless ``fmod`` says otherwise."""
    a, b = node.variable(0), node.variable(1)
    if a.type.is_float:
        raise UnsupportedError("Mod of floats that are not known at import")
    return compose.remainder(a, b, sign_of_divisor=not node.flag("fmod"))


HANDLERS: dict[str, Handler] = {
    "And": lambda node: minimum(*node.variables()),
    "Equal": lambda node: equal(*node.variables()),
    "Greater": lambda node: greater(*node.variables()),
    "GreaterOrEqual": lambda node: maximum(greater(*node.variables()), equal(*node.variables())),
    "IsInf": _is_inf,
    "IsNaN": _is_nan,
    "Less": lambda node: less(*node.variables()),
    "LessOrEqual": lambda node: maximum(less(*node.variables()), equal(*node.variables())),
    "Mod": _mod,
    "Not": lambda node: _not(node.variable(0)),
    "Or": lambda node: maximum(*node.variables()),
    "Where": _where,
    "Xor": lambda node: _not(equal(*node.variables())),
}
