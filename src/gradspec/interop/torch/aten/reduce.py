"""Sums, means, extremes and softmaxes over axes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from math import inf, prod
from math import sqrt as sqrt_of
from typing import Any

import torch

from gradspec.graph.ir import Var
from gradspec.graph.types import boolean, i64, u8
from gradspec.interop.compose import largest, log_sum_exp, norm, product, reversed_order, running_product, smallest
from gradspec.interop.indexing import with_places
from gradspec.interop.torch.aten.operands import axes_of, floating, positive_axis, to_dtype
from gradspec.interop.torch.aten.table import reads
from gradspec.ops.gather import moved
from gradspec.ops.pointwise import abs
from gradspec.ops.pool import max_pool
from gradspec.ops.reduce import cumsum, log_softmax, mean, softmax
from gradspec.ops.select import equal
from gradspec.ops.shape import reshape, sum
from gradspec.ops.smooth_pool import smooth_max_pool
from gradspec.spec.errors import UnsupportedError

Dims = int | Sequence[int] | None


@reads("sum")
def _sum(x: Var, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    return sum(_terms(x, dtype), axes_of(dim, x.ndim), keepdim)


def _terms(x: Var, dtype: torch.dtype | None) -> Var:
    """Integers are added and multiplied in 64 bits, unless another dtype is asked for."""
    return to_dtype(x, dtype) if dtype or x.type.is_float else to_dtype(x, i64)


@reads("cumsum")
def _running_sum(x: Var, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    terms = _terms(x, dtype)
    return cumsum(terms, positive_axis(dim, x.ndim)) if x.ndim else terms


@reads("cumprod")
def _running_product(x: Var, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    terms = _terms(x, dtype)
    return running_product(terms, positive_axis(dim, x.ndim)) if x.ndim else terms


@reads("cummax")
def _running_maximum(x: Var, dim: int) -> Any:
    return (_over_those_before(max_pool, x, dim),)


@reads("cummin")
def _running_minimum(x: Var, dim: int) -> Any:
    return (reversed_order(_over_those_before(max_pool, reversed_order(x), dim)),)


@reads("logcumsumexp")
def _running_log_sum_exp(x: Var, dim: int) -> Any:
    return _over_those_before(partial(smooth_max_pool, beta=1.0, padding_mode="ignore"), x, dim)


def _over_those_before(pool: Callable[..., Any], x: Var, dim: int) -> Any:
    """A pooling of each cell with all before it along an axis."""
    if not x.ndim:
        return x
    axis = positive_axis(dim, x.ndim)
    n = x.shape[axis]
    return moved(pool(moved(x, axis, -1), (n,), 1, [(n - 1, 0)]), -1, axis)


@reads("prod")
def _product(x: Var, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    return product(_terms(x, dtype), axes_of(dim, x.ndim), keepdim)


@reads("mean")
def _mean(x: Var, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    return mean(to_dtype(x, dtype), axes_of(dim, x.ndim), keepdim)


@reads("amax")
def _amax(x: Var, dim: Dims = (), keepdim: bool = False) -> Any:
    return largest(x, axes_of(dim, x.ndim), keepdim, ties="split")


@reads("amin")
def _amin(x: Var, dim: Dims = (), keepdim: bool = False) -> Any:
    return smallest(x, axes_of(dim, x.ndim), keepdim, ties="split")


@reads("max.default")
def _max(x: Var) -> Any:
    return _amax(x)


@reads("min.default")
def _min(x: Var) -> Any:
    return _amin(x)


@reads("max.dim")
def _max_of_axis(x: Var, dim: int, keepdim: bool = False, *, wanted: Collection[int]) -> Any:
    if 1 not in wanted:
        return (largest(x, axes_of(dim, x.ndim), keepdim),)
    return with_places(x, positive_axis(dim, x.ndim), keepdim)


@reads("min.dim")
def _min_of_axis(x: Var, dim: int, keepdim: bool = False, *, wanted: Collection[int]) -> Any:
    values, *places = _max_of_axis(reversed_order(x), dim, keepdim, wanted=wanted)
    return (reversed_order(values), *places)


@reads("argmax")
def _argmax(x: Var, dim: int | None = None, keepdim: bool = False) -> Any:
    if dim is None or x.ndim == 0:
        place = with_places(reshape(x, (-1,)), 0, False)[1]
        return reshape(place, (1,) * x.ndim if keepdim else ())
    return with_places(x, positive_axis(dim, x.ndim), keepdim)[1]


@reads("argmin")
def _argmin(x: Var, dim: int | None = None, keepdim: bool = False) -> Any:
    return _argmax(reversed_order(x), dim, keepdim)


@reads("any")
def _any(x: Var, dim: Dims = None, keepdim: bool = False) -> Any:
    return some(to_dtype(x, boolean), axes_of(dim, x.ndim), keepdim)


@reads("all")
def _all(x: Var, dim: Dims = None, keepdim: bool = False) -> Any:
    return every(to_dtype(x, boolean), axes_of(dim, x.ndim), keepdim)


def some(x: Var, axes: Sequence[int], keepdims: bool) -> Any:
    """Whether one of the booleans over ``axes`` is true."""
    return to_dtype(largest(to_dtype(x, u8), axes, keepdims), boolean)


def every(x: Var, axes: Sequence[int], keepdims: bool) -> Any:
    """Whether all booleans over ``axes`` are true."""
    return equal(some(equal(x, False), axes, keepdims), False)


@reads("logsumexp")
def _log_sum_exp(x: Var, dim: Dims, keepdim: bool = False) -> Any:
    return log_sum_exp(x, axes_of(dim, x.ndim), keepdim)


@reads("var.correction")
def _variance(x: Var, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    centred, axes, count = _centred(x, dim, correction)
    return sum(centred * centred, axes, keepdim) * (1.0 / count)


@reads("std.correction")
def _deviation(x: Var, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    """The norm of the differences, whose derivative is 0 where they all are."""
    centred, axes, count = _centred(x, dim, correction)
    return norm(centred, 2.0, axes, keepdim) * (1.0 / sqrt_of(count))


@reads("var_mean.correction")
def _variance_and_mean(x: Var, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    return _variance(x, dim, correction=correction, keepdim=keepdim), _mean(x, dim, keepdim)


@reads("var.dim")
def _variance_of_axes(x: Var, dim: Dims, unbiased: bool = True, keepdim: bool = False) -> Any:
    return _variance(x, dim, correction=int(unbiased), keepdim=keepdim)


@reads("std.dim")
def _deviation_of_axes(x: Var, dim: Dims, unbiased: bool = True, keepdim: bool = False) -> Any:
    return _deviation(x, dim, correction=int(unbiased), keepdim=keepdim)


def _centred(x: Var, dim: Dims, correction: float | None) -> tuple[Any, tuple[int, ...], float]:
    """The differences from the mean, the axes it is over, and by how many the squares are divided."""
    axes = axes_of(dim, x.ndim)
    count = prod(x.shape[a] for a in axes)
    fewer = count - (1 if correction is None else correction)
    if fewer <= 0:
        raise UnsupportedError(f"a variance of {count} numbers with correction={correction} is not a number")
    return x - mean(x, axes, keepdims=True), axes, fewer


@reads("linalg_vector_norm")
def _norm(x: Var, ord: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    x, axes = to_dtype(x, dtype), axes_of(dim, x.ndim)
    if ord == -inf:
        return smallest(abs(x), axes, keepdim, ties="split")
    if ord == 0:
        return sum(to_dtype(equal(equal(x, 0.0), False), x.dtype), axes, keepdim)
    if ord < 0:
        raise UnsupportedError(f"a norm of order {ord} is not known, only of orders of 0 and above, and of -inf")
    return norm(x, float(ord), axes, keepdim)


@reads("softmax.int")
def _softmax(x: Var, dim: int, dtype: torch.dtype | None = None) -> Any:
    return softmax(floating(to_dtype(x, dtype)), positive_axis(dim, x.ndim))


@reads("log_softmax.int")
def _log_softmax(x: Var, dim: int, dtype: torch.dtype | None = None) -> Any:
    return log_softmax(floating(to_dtype(x, dtype)), positive_axis(dim, x.ndim))


@reads("_softmax")
def _softmax_of_floats(x: Var, dim: int, half_to_float: bool) -> Any:
    return _softmax(x, dim, torch.float32 if half_to_float else None)


@reads("_log_softmax")
def _log_softmax_of_floats(x: Var, dim: int, half_to_float: bool) -> Any:
    return _log_softmax(x, dim, torch.float32 if half_to_float else None)
