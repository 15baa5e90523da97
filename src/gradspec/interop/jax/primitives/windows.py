"""Reductions over windows of any axes, and the derivatives of maxima over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import numpy as np

from gradspec.graph.builder import apply
from gradspec.graph.ir import Op, Var
from gradspec.interop.compose import reversed_order
from gradspec.interop.jax.primitives.layout import padded
from gradspec.interop.jax.primitives.operands import inverse
from gradspec.ops.layout import transpose
from gradspec.ops.pool import MAX_POOL_PULL, MAX_POOL_PUSH, MaxPool, avg_pool, max_pool, sliding_windows
from gradspec.spec.errors import UnsupportedError

Sizes = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]
Pooling = Callable[..., Any]


def _over_windows(
    pooling: Pooling,
    xs: Sequence[Var],
    fill: float | None,
    window_dimensions: Sizes,
    window_strides: Sizes,
    padding: Pairs,
    base_dilation: Sizes | None = None,
    window_dilation: Sizes | None = None,
) -> Any:
    """A pooling over the axes that have windows of more than the one cell in its place.

    Cells of ``fill`` between others, and around them where a window may consist of these alone, are laid down before.
    """
    ones = (1,) * xs[0].ndim
    gaps, dilation = base_dilation or ones, window_dilation or ones
    reach = zip(padding, window_dimensions, dilation, strict=True)
    if set(gaps) != {1} or any((n and d > 1) or not 0 <= n < k for pair, k, d in reach for n in pair):
        if fill is None:
            raise UnsupportedError("it is known for windows that have a cell each, which these do not")
        ends = [(lo, hi, gap - 1) for (lo, hi), gap in zip(padding, gaps, strict=True)]
        xs, padding = [padded(x, ends, fill) for x in xs], ((0, 0),) * len(ones)
    windows = zip(window_dimensions, window_strides, padding, strict=True)
    axes = [a for a, window in enumerate(windows) if window != (1, 1, (0, 0))]
    order = [*(a for a in range(len(ones)) if a not in axes), *axes]
    settings = [tuple(values[a] for a in axes) for values in (window_dimensions, window_strides, padding, dilation)]
    return transpose(pooling(*(transpose(x, order) for x in xs), *settings), inverse(order))


def _sum(x: Var, **windows: Any) -> Any:
    def total(x: Var, kernel: Sizes, stride: Sizes, padding: Pairs, dilation: Sizes) -> Any:
        return avg_pool(x, kernel, stride, padding, divisor_override=1, dilation=dilation)

    return _over_windows(total, [x], 0.0, **windows)


def _max(x: Var, **windows: Any) -> Any:
    least = int(np.iinfo(x.dtype.numpy).min) if x.type.is_integer else -inf
    return _over_windows(max_pool, [x], least, **windows)


def _min(x: Var, **windows: Any) -> Any:
    return reversed_order(_max(reversed_order(x), **windows))


def _of_winners(op: Op) -> Callable[..., Any]:
    """What goes from winners to windows, or back; of equal cells the first wins."""

    def rule(moving: Var, x: Var, *, select_prim: Any, **windows: Any) -> Any:
        def carried(x: Var, moving: Var, kernel: Sizes, stride: Sizes, padding: Pairs, dilation: Sizes) -> Any:
            where = sliding_windows(op.name, x, kernel, stride, padding, dilation, ceil_mode=False)
            return apply(op, MaxPool(**where), x, moving)

        compared = reversed_order(x) if select_prim.name == "le" else x
        return _over_windows(carried, [compared, moving], None, **windows)

    return rule


RULES: dict[str, Callable[..., Any]] = {
    "reduce_window_sum": _sum,
    "reduce_window_max": _max,
    "reduce_window_min": _min,
    "select_and_gather_add": _of_winners(MAX_POOL_PUSH),
    "select_and_scatter_add": _of_winners(MAX_POOL_PULL),
}
