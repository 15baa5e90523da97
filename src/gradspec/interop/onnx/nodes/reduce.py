"""Reductions over axes."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np

from gradspec.graph.ir import Var
from gradspec.graph.types import boolean, u8
from gradspec.interop import compose
from gradspec.interop.onnx.node import Handler, OnnxNode, normal_axes
from gradspec.ops.convert import convert
from gradspec.ops.pointwise import abs, log
from gradspec.ops.reduce import cumsum, log_softmax, mean, softmax
from gradspec.ops.shape import reshape
from gradspec.ops.shape import sum as sum_over
from gradspec.spec.errors import FormatError

Axes = tuple[int, ...]
Reduction = Callable[[Any, Axes, bool], Any]


def _axes(node: OnnxNode, rank: int) -> Axes | None:
    """The axes that are reduced, which were an attribute before they became an input; None: leave it as it is."""
    given = node.attribute("axes")
    if given is None and node.has(1):
        given = node.known_ints(1)
    if not given:
        return None if node.flag("noop_with_empty_axes") else tuple(range(rank))
    return normal_axes(given, rank)


def _reduction(on_variables: Reduction, of_nothing: float | None = None, on_arrays: Any = None) -> Handler:
    """A handler; ``of_nothing`` is the result where there is no number, ``on_arrays`` reduces known integers."""

    def handler(node: OnnxNode) -> Any:
        x, keepdims = node.value(0), node.flag("keepdims")
        axes = _axes(node, len(x.shape))
        if axes is None:
            return _each(node, on_variables)
        if on_arrays is not None and isinstance(x, np.ndarray) and x.dtype.kind in "iu":
            node.scope.charge(x.size)
            return np.asarray(on_arrays(x, axis=axes, keepdims=keepdims), x.dtype)
        x = node.variable(0)
        if of_nothing is not None and any(x.shape[a] == 0 for a in axes):
            return _nothing(x, axes, keepdims, of_nothing)
        if x.dtype == boolean:
            return convert(on_variables(convert(x, u8), axes, keepdims), boolean)
        return on_variables(x, axes, keepdims)

    return handler


def _each(node: OnnxNode, reduction: Reduction) -> Any:
    """Without axes every number is reduced by itself: what is done to numbers and sums remains."""
    if node.op_type in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"):
        return node.value(0)
    x = node.variable(0)
    return reshape(reduction(reshape(x, (*x.shape, 1)), (x.ndim,), False), x.shape)


def _nothing(x: Var, axes: Axes, keepdims: bool, number: float) -> Any:
    """The result where there is no number; integers have a largest and a least one for the infinities."""
    shape = [1 if a in axes else n for a, n in enumerate(x.shape) if keepdims or a not in axes]
    kind = x.dtype.numpy
    if kind.kind in "iu":
        number = max(min(number, np.iinfo(kind).max), np.iinfo(kind).min)
    return np.broadcast_to(np.asarray(number > 0 if kind.kind == "b" else number, kind), shape)


def _cumsum(node: OnnxNode) -> Any:
    x = node.variable(0)
    (axis,) = normal_axes([int(node.known_number(1))], x.ndim)
    return cumsum(x, axis, node.flag("exclusive"), node.flag("reverse"))


def _of(outer: Callable[[Any], Any] | None, inner: Callable[[Any], Any] | None) -> Reduction:
    """``outer(Σ inner(x))``."""

    def reduction(x: Any, axes: Axes, keepdims: bool) -> Any:
        total = sum_over(x if inner is None else inner(x), axes, keepdims)
        return total if outer is None else outer(total)

    return reduction


def _square(x: Any) -> Any:
    return x * x


def _norm(x: Any, axes: Axes, keepdims: bool) -> Any:
    return compose.norm(x, 2.0, axes, keepdims)


def _softmax(function: Callable[..., Any]) -> Handler:
    def handler(node: OnnxNode) -> Any:
        x, axis = node.variable(0), node.attribute("axis")
        if node.version >= 13:
            return function(x, *normal_axes([axis], x.ndim))
        if not -x.ndim <= axis <= x.ndim:
            raise FormatError(f"its axis is {axis}, and its input has {x.ndim}")
        # Until opset 12 the axes from this one on are taken together.
        at = axis if axis >= 0 else axis + x.ndim
        rows = reshape(x, (*x.shape[:at], -1 if x.type.size else 0))
        return reshape(function(rows, at), x.shape)

    return handler


HANDLERS: dict[str, Handler] = {
    "CumSum": _cumsum,
    "ReduceL1": _reduction(_of(None, abs), 0.0),
    "ReduceL2": _reduction(_norm, 0.0),
    "ReduceLogSum": _reduction(_of(log, None), -inf),
    "ReduceLogSumExp": _reduction(compose.log_sum_exp, -inf),
    "ReduceMax": _reduction(compose.largest, -inf, np.max),
    "ReduceMean": _reduction(mean),
    "ReduceMin": _reduction(compose.smallest, inf, np.min),
    "ReduceProd": _reduction(compose.product, 1.0, np.prod),
    "ReduceSum": _reduction(_of(None, None), 0.0, np.sum),
    "ReduceSumSquare": _reduction(_of(None, _square), 0.0),
    "Softmax": _softmax(softmax),
    "LogSoftmax": _softmax(log_softmax),
}
