"""Reductions over axes, running ones, and order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradspec.graph.ir import Var
from gradspec.graph.types import boolean
from gradspec.interop import compose, indexing
from gradspec.interop.jax.primitives.operands import ordered, require_truths, to_dtype, with_axes_last
from gradspec.ops import topk
from gradspec.ops.gather import gather
from gradspec.ops.layout import getitem
from gradspec.ops.pool import max_pool
from gradspec.ops.reduce import cumsum
from gradspec.ops.shape import sum
from gradspec.ops.smooth_pool import smooth_max_pool

Axes = tuple[int, ...]
Rule = Callable[..., Any]


def _extreme(function: Rule) -> Rule:
    """The largest or smallest number; those that are equal share the derivative, as JAX has it."""
    return lambda x, *, axes: to_dtype(function(ordered(x), axes, False, ties="split"), x.dtype)


def _of_truths(function: Rule) -> Rule:
    def rule(x: Var, *, axes: Axes) -> Any:
        require_truths(x)
        return to_dtype(function(ordered(x), axes, False), boolean)

    return rule


def _place(function: Rule) -> Rule:
    return lambda x, *, axes, index_dtype: to_dtype(function(ordered(x), axes[0], False), index_dtype)


# --- running ----------------------------------------------------------------------------------------------------------


def _running(function: Callable[[Var, int], Any]) -> Rule:
    """From the front; with ``reverse`` the axis is turned before and after."""

    def rule(x: Var, *, axis: int, reverse: bool) -> Any:
        def turned(y: Var) -> Any:
            return getitem(y, (*[slice(None)] * axis, slice(None, None, -1))) if reverse else y

        return turned(function(turned(x), axis)) if x.type.size else x

    return rule


def _windows(pooled: Callable[..., Any]) -> Rule:
    """As a pooling: each window reaches from a cell to the front, and beyond."""

    def function(x: Var, axis: int) -> Any:
        n = x.shape[axis]
        return with_axes_last(x, (axis,), lambda rows: pooled(rows, (n,), 1, [(n - 1, 0)]))

    return _running(function)


def _running_least(x: Var, *window: Any) -> Any:
    return compose.reversed_order(max_pool(compose.reversed_order(x), *window))


def _running_log_sum_exp(x: Var, *window: Any) -> Any:
    return smooth_max_pool(x, *window, beta=1.0, padding_mode="ignore")


# --- order ------------------------------------------------------------------------------------------------------------


def _top_k(x: Var, *, k: int, axis: int = -1) -> Any:
    values, places = topk.topk(x, k, axis)
    return values, to_dtype(places, np.int32)


def _sort(*operands: Var, dimension: int, num_keys: int) -> Any:
    """By the first key and, where it is equal, by the next: stably by each, the last one first."""
    if len(operands) == 1:
        return (to_dtype(topk.sort(ordered(operands[0]), dimension)[0], operands[0].dtype),)
    sorted_: Sequence[Any] = operands
    for key in reversed(range(num_keys)):
        _, places = topk.sort(ordered(sorted_[key]), dimension)
        sorted_ = [gather(v, dimension, places) for v in sorted_]
    return sorted_


RULES: dict[str, Rule] = {
    "reduce_sum": lambda x, *, axes: sum(x, axes) if axes else x,
    "reduce_prod": lambda x, *, axes: compose.product(x, axes, False),
    "reduce_max": _extreme(compose.largest),
    "reduce_min": _extreme(compose.smallest),
    "reduce_or": _of_truths(compose.largest),
    "reduce_and": _of_truths(compose.smallest),
    "argmax": _place(indexing.argmax),
    "argmin": _place(indexing.argmin),
    "cumsum": lambda x, *, axis, reverse: cumsum(x, axis, reverse=reverse),
    "cumprod": _running(compose.running_product),
    "cummax": _windows(max_pool),
    "cummin": _windows(_running_least),
    "cumlogsumexp": _windows(_running_log_sum_exp),
    "sort": _sort,
    "top_k": _top_k,
}
