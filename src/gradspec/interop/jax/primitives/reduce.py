"""Reductions over axes, of windows and by products, running ones, and order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from string import ascii_lowercase, ascii_uppercase
from typing import Any

import numpy as np
from jax import numpy as jnp

from gradspec.graph.builder import apply
from gradspec.graph.ir import Op, Var
from gradspec.interop import compose, indexing
from gradspec.interop.jax.primitives.layout import Rule, Sizes, ordered, pad_with_gaps, require_truths, to_dtype
from gradspec.ops import topk
from gradspec.ops.conv import WRITE, Convolution, conv
from gradspec.ops.einsum import einsum
from gradspec.ops.gather import gather
from gradspec.ops.layout import getitem, transpose
from gradspec.ops.pool import MAX_POOL_PULL, MAX_POOL_PUSH, MaxPool, avg_pool, max_pool, sliding_windows
from gradspec.ops.reduce import cumsum
from gradspec.ops.shape import reshape, sum
from gradspec.spec.errors import UnsupportedError

Pairs = tuple[tuple[int, int], ...]


def _extreme(function: Rule) -> Rule:
    """The largest or smallest number; those that are equal share the derivative, as JAX has it."""
    return lambda x, *, axes: to_dtype(function(ordered(x), axes, False, ties="split"), x.dtype)


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


# --- over windows -----------------------------------------------------------------------------------------------------


def _reduce_windows(
    pooling: Rule,
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
        xs, padding = [pad_with_gaps(x, ends, fill) for x in xs], ((0, 0),) * len(ones)
    windows = zip(window_dimensions, window_strides, padding, strict=True)
    axes = [a for a, window in enumerate(windows) if window != (1, 1, (0, 0))]
    order = [*(a for a in range(len(ones)) if a not in axes), *axes]
    settings = [tuple(values[a] for a in axes) for values in (window_dimensions, window_strides, padding, dilation)]
    return transpose(pooling(*(transpose(x, order) for x in xs), *settings), compose.inverse_permutation(order))


def _window_sum(x: Var, **windows: Any) -> Any:
    def total(x: Var, kernel: Sizes, stride: Sizes, padding: Pairs, dilation: Sizes) -> Any:
        return avg_pool(x, kernel, stride, padding, divisor_override=1, dilation=dilation)

    return _reduce_windows(total, [x], 0.0, **windows)


def _window_max(x: Var, **windows: Any) -> Any:
    least = int(np.iinfo(x.dtype.numpy).min) if x.type.is_integer else -inf
    return _reduce_windows(max_pool, [x], least, **windows)


def _window_min(x: Var, **windows: Any) -> Any:
    return compose.reversed_order(_window_max(compose.reversed_order(x), **windows))


def _of_winners(op: Op) -> Rule:
    """What goes from winners to windows, or back; of equal cells the first wins."""

    def rule(moving: Var, x: Var, *, select_prim: Any, **windows: Any) -> Any:
        def carried(x: Var, moving: Var, kernel: Sizes, stride: Sizes, padding: Pairs, dilation: Sizes) -> Any:
            where = sliding_windows(op.name, x, kernel, stride, padding, dilation, ceil_mode=False)
            return apply(op, MaxPool(**where), x, moving)

        compared = compose.reversed_order(x) if select_prim.name == "le" else x
        return _reduce_windows(carried, [compared, moving], None, **windows)

    return rule


# --- products of matrices ---------------------------------------------------------------------------------------------


def _dot_general(a: Var, b: Var, *, dimension_numbers: Any, preferred_element_type: Any) -> Any:
    """The axes of the result: those of the batch, the others of ``a``, the others of ``b``.

    Products in a wider dtype are those of the converted numbers. The precision says how a device may round.
    """
    (inner_a, inner_b), (batch_a, batch_b) = dimension_numbers
    names_a, names_b = list(ascii_lowercase[: a.ndim]), list(ascii_uppercase[: b.ndim])
    for i, j in zip((*inner_a, *batch_a), (*inner_b, *batch_b), strict=True):
        names_b[j] = names_a[i]
    batch = [names_a[i] for i in batch_a]
    free = [c for c in (*names_a, *names_b) if (c in names_a) != (c in names_b)]
    common = preferred_element_type or jnp.promote_types(a.dtype.numpy, b.dtype.numpy)
    wide = [to_dtype(v, common) for v in (a, b)]
    return einsum(f"{''.join(names_a)},{''.join(names_b)}->{''.join([*batch, *free])}", *wide)


# --- convolution ------------------------------------------------------------------------------------------------------


def _conv(
    x: Var,
    w: Var,
    *,
    window_strides: Sizes,
    padding: Pairs,
    lhs_dilation: Sizes,
    rhs_dilation: Sizes,
    dimension_numbers: Any,
    feature_group_count: int,
    batch_group_count: int,
    preferred_element_type: Any,
) -> Any:
    """With the axes in gradspec's order: batch, channels, space; groups of the batch become groups of channels."""
    x, w = (to_dtype(v, preferred_element_type) for v in (x, w))
    x, w = transpose(x, dimension_numbers.lhs_spec), transpose(w, dimension_numbers.rhs_spec)
    if (parts := batch_group_count) > 1:
        n, channels, *sizes = x.shape
        split = reshape(x, (parts, n // parts, channels, *sizes))
        x = reshape(transpose(split, (1, 0, *range(2, split.ndim))), (n // parts, parts * channels, *sizes))
    groups = feature_group_count * parts
    y = _as_transposed(x, w, padding, lhs_dilation, rhs_dilation, groups) if set(window_strides) <= {1} else None
    if y is None:
        ends = [(lo, hi, gap - 1) for (lo, hi), gap in zip(padding, lhs_dilation, strict=True)]
        if any(lo < 0 or hi < 0 or gap for lo, hi, gap in ends):
            x, padding = pad_with_gaps(x, [(0, 0, 0), (0, 0, 0), *ends]), ((0, 0),) * len(padding)
        y = conv(x, w, None, window_strides, padding, rhs_dilation, groups)
    return transpose(y, compose.inverse_permutation(dimension_numbers.out_spec))


def _as_transposed(x: Var, w: Var, padding: Pairs, gaps: Sizes, dilation: Sizes, groups: int) -> Any:
    """A convolution of what is spaced out by ``s``, as a transposed one; None if it is not spaced out, or is not one.

    Output ``o`` meets ``x[i]·w[k]`` where ``o + d·k − lo = i·s``. With the kernel read backwards, ``k = K−1−k'``, that
    is ``i·s + d·k' = o + p`` for ``p = d·(K−1) − lo``: cell ``o`` of a plane that is padded by ``p``, tap ``k'`` of
    its window ``i``.
    """
    reach = [d * (k - 1) for d, k in zip(dilation, w.shape[2:], strict=True)]
    pads = tuple((r - lo, r - hi) for r, (lo, hi) in zip(reach, padding, strict=True))
    if set(gaps) <= {1} or any(n < 0 for pair in pads for n in pair):
        return None
    outputs = x.shape[2:]
    sizes = tuple(
        (n - 1) * s + 1 + lo + hi - r for n, s, (lo, hi), r in zip(outputs, gaps, padding, reach, strict=True)
    )
    if min((*sizes, *outputs)) < 1:
        return None
    attrs = Convolution(sizes, w.shape[2:], gaps, pads, dilation, outputs, groups)
    m, c, *kernel = w.shape
    by_group = transpose(reshape(w, (groups, m // groups, c, *kernel)), (0, 2, 1, *range(3, w.ndim + 1)))
    turned = (slice(None), slice(None), *[slice(None, None, -1)] * len(kernel))
    return apply(WRITE, attrs, x, getitem(reshape(by_group, (groups * c, m // groups, *kernel)), turned))


RULES: dict[str, Rule] = {
    "reduce_sum": lambda x, *, axes: sum(x, axes) if axes else x,
    "reduce_prod": lambda x, *, axes: compose.product(x, axes, False),
    "reduce_max": _extreme(compose.largest),
    "reduce_min": _extreme(compose.smallest),
    "reduce_or": lambda x, *, axes: compose.any_true(require_truths(x), axes, False),
    "reduce_and": lambda x, *, axes: compose.all_true(require_truths(x), axes, False),
    "argmax": _place(indexing.argmax),
    "argmin": _place(indexing.argmin),
    "cumsum": lambda x, *, axis, reverse: cumsum(x, axis, reverse=reverse),
    "cumprod": _running(compose.running_product),
    "cummax": _running(compose.running_maximum),
    "cummin": _running(compose.running_minimum),
    "cumlogsumexp": _running(compose.running_log_sum_exp),
    "sort": _sort,
    "top_k": _top_k,
    "reduce_window_sum": _window_sum,
    "reduce_window_max": _window_max,
    "reduce_window_min": _window_min,
    "select_and_gather_add": _of_winners(MAX_POOL_PUSH),
    "select_and_scatter_add": _of_winners(MAX_POOL_PULL),
    "dot_general": _dot_general,
    "conv_general_dilated": _conv,
}
