"""Arithmetic on what is known while the model is read, in NumPy: the sizes, axes and scales that models compute.

Only operators whose result is the same in every correct implementation are here: whole numbers, comparisons,
selections, and the arithmetic that IEEE 754 rounds correctly. Everything else becomes nodes of the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from gradspec.graph.ir import Array
from gradspec.interop.compose import functions_named
from gradspec.interop.onnx.node import OnnxNode
from gradspec.spec.errors import FormatError, UnsupportedError

FREE_CELLS = 2**24
"""Cells that may be computed while any model is read; further ones in proportion to its size."""


class CellBudget:
    """How many more cells may be computed."""

    def __init__(self, model_bytes: int) -> None:
        self.limit = self.left = FREE_CELLS + 4 * model_bytes

    def charge(self, cells: int) -> None:
        self.left -= cells
        if self.left < 0:
            raise UnsupportedError(
                f"constants of more than {self.limit} cells computed while the model is read (fold them beforehand)"
            )


def fold(node: OnnxNode) -> Array | None:
    """The result of arithmetic on operands that are all known; None if it is left to the operator's handler."""
    rule = ARITHMETIC.get(node.op_type)
    if rule is None or not all(isinstance(v, np.ndarray) for v in node.operands):
        return None
    arrays: list[Any] = list(node.operands)
    if len({a.dtype for a in arrays[node.op_type == "Where" :]}) > 1:
        raise FormatError(f"its inputs are {', '.join(str(a.dtype) for a in arrays)}, and one type is needed")
    node.scope.charge(prod(np.broadcast_shapes(*(a.shape for a in arrays))) * max(len(arrays) - 1, 1))
    with np.errstate(all="ignore"):
        return np.asarray(rule(node, *arrays))


def _each(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda node, *arrays: function(*arrays)


def _together(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda node, *arrays: reduce(function, arrays)


def _div(node: OnnxNode, a: Array, b: Array) -> Any:
    """ONNX rounds the quotient of integers towards 0; a divisor of 0 has no meaning."""
    if a.dtype.kind not in "iu":
        return a / b
    if not np.all(b):
        raise FormatError("it divides an integer by 0")
    quotient = a // b
    return (quotient + ((a % b != 0) & ((a < 0) != (b < 0)))).astype(a.dtype)


def _mod(node: OnnxNode, a: Array, b: Array) -> Any:
    if a.dtype.kind in "iu" and not np.all(b):
        raise FormatError("it divides an integer by 0")
    return np.fmod(a, b) if node.flag("fmod") else np.mod(a, b)


def _nonzero(node: OnnxNode, a: Array) -> Any:
    """A row of places for each axis."""
    node.scope.charge(a.size * a.ndim)
    return np.argwhere(a).T.astype(np.int64)


ALIKE = "abs ceil equal floor greater less round sign sqrt where"
"""Operators that NumPy has under the same names, but for their first letters."""

ARITHMETIC: dict[str, Callable[..., Any]] = {
    **{name.capitalize(): _each(function) for name, function in functions_named(np, ALIKE).items()},
    "Add": _each(np.add),
    "Sub": _each(np.subtract),
    "Mul": _each(np.multiply),
    "Div": _div,
    "Mod": _mod,
    "Neg": _each(np.negative),
    "Max": _together(np.maximum),
    "Min": _together(np.minimum),
    "Sum": _together(np.add),
    "LessOrEqual": _each(np.less_equal),
    "GreaterOrEqual": _each(np.greater_equal),
    "And": _each(np.logical_and),
    "Or": _each(np.logical_or),
    "Xor": _each(np.logical_xor),
    "Not": _each(np.logical_not),
    "NonZero": _nonzero,
    "Relu": _each(lambda a: np.maximum(a, a.dtype.type(0))),
}
