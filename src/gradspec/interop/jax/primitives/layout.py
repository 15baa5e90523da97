"""Operators that move numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import starmap
from typing import Any

import numpy as np

from gradspec.graph.builder import apply
from gradspec.graph.ir import Array, Var
from gradspec.interop import compose
from gradspec.interop.jax.primitives.operands import uniform
from gradspec.ops.layout import PAD, Padding, concat, getitem, transpose
from gradspec.ops.select import where
from gradspec.ops.shape import broadcast_to, reshape

Sizes = tuple[int, ...]
Ends = Sequence[tuple[int, int, int]]
"""For every axis how many cells come before, after and between the others; fewer than none are taken away."""


def _broadcast_in_dim(x: Var, *, shape: Sizes, broadcast_dimensions: Sizes) -> Any:
    """Axis ``k`` of ``x`` is axis ``broadcast_dimensions[k]`` of the result."""
    axes = dict(zip(broadcast_dimensions, x.shape, strict=True))
    return broadcast_to(reshape(x, [axes.get(a, 1) for a in range(len(shape))]), shape)


def _reshape(x: Var, *, new_sizes: Sizes, dimensions: Sizes | None) -> Any:
    return reshape(x if dimensions is None else transpose(x, dimensions), new_sizes)


def _squeeze(x: Var, *, dimensions: Sizes) -> Any:
    return reshape(x, [n for a, n in enumerate(x.shape) if a not in dimensions])


def _expand_dims(x: Var, *, dimensions: Sizes) -> Any:
    sizes = iter(x.shape)
    return reshape(x, [1 if a in dimensions else next(sizes) for a in range(x.ndim + len(dimensions))])


def _stack(*xs: Var, axis: int) -> Any:
    return concat([_expand_dims(x, dimensions=(axis,)) for x in xs], axis)


def _unstack(x: Var, *, axis: int) -> Any:
    return [_squeeze(part, dimensions=(axis,)) for part in compose.split(x, [1] * x.shape[axis], axis)]


def _slice(x: Var, *, start_indices: Sizes, limit_indices: Sizes, strides: Sizes | None) -> Any:
    return getitem(x, tuple(starmap(slice, zip(start_indices, limit_indices, strides or (1,) * x.ndim, strict=True))))


def _rev(x: Var, *, dimensions: Sizes) -> Any:
    return getitem(x, tuple(slice(None, None, -1 if a in dimensions else 1) for a in range(x.ndim)))


def padded(x: Var, ends: Ends, value: float = 0) -> Any:
    """Cells of ``value`` before, after and between those of ``x``; what a negative number takes away are the last."""
    grown = tuple((max(lo, 0), max(hi, 0)) for lo, hi, _ in ends)
    gaps = tuple(gap for *_, gap in ends)
    if any(map(any, grown)) or any(gaps):
        x = apply(PAD, Padding(grown, gaps, value), x)
    return getitem(x, tuple(slice(max(-lo, 0), n - max(-hi, 0)) for n, (lo, hi, _) in zip(x.shape, ends, strict=True)))


def _pad(x: Var, value: Var, *, padding_config: Ends) -> Any:
    number = uniform(value)
    if number is not None:
        return padded(x, padding_config, number)
    real = x.owner.share(np.broadcast_to(np.True_, x.shape), "real")
    return where(padded(real, padding_config), padded(x, padding_config), value)


def _iota(*, dtype: Any, shape: Sizes, dimension: int) -> Array:
    numbers = np.arange(shape[dimension]).astype(dtype).reshape(-1, *(1,) * (len(shape) - dimension - 1))
    return np.broadcast_to(numbers, shape)


RULES: dict[str, Callable[..., Any]] = {
    "broadcast_in_dim": _broadcast_in_dim,
    "reshape": _reshape,
    "transpose": lambda x, *, permutation: transpose(x, permutation),
    "squeeze": _squeeze,
    "expand_dims": _expand_dims,
    "concatenate": lambda *xs, dimension: concat(xs, dimension),
    "stack": _stack,
    "unstack": _unstack,
    "split": lambda x, *, sizes, axis: compose.split(x, [int(n) for n in sizes], axis),
    "tile": lambda x, *, reps: compose.tile(x, reps),
    "slice": _slice,
    "rev": _rev,
    "pad": _pad,
    "iota": _iota,
}
