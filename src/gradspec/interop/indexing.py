"""What other libraries do with indices that are computed at run time, as gathers and scatters of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from gradspec.graph.builder import apply
from gradspec.graph.ir import Array, Var
from gradspec.graph.types import i64
from gradspec.interop.compose import flip, largest, product, reversed_order, smallest
from gradspec.ops.convert import convert
from gradspec.ops.gather import GATHER_ROWS, SCATTER_ADD_ROWS, SCATTER_ROWS, RowPlaces, from_the_front, moved
from gradspec.ops.layout import AlongAxis, concat, getitem
from gradspec.ops.pointwise import maximum
from gradspec.ops.pool import max_pool
from gradspec.ops.select import equal, greater, less, where
from gradspec.ops.shape import broadcast_to, reshape
from gradspec.spec.errors import ShapeError, UnsupportedError

MOST_COMPARED = 2**26
"""Cells that a reduction without an operator of its own may make."""


def flat_indices(indices: Sequence[Any], sizes: Sequence[int]) -> Var:
    """One index for each place that several name together, one on each axis; one beyond all cells if it is no place."""
    places, outside = None, []
    for given, size in zip(indices, sizes, strict=True):
        index = convert(from_the_front(given, size), i64)
        outside += [less(index, 0), greater(index, size - 1)]
        places = index if places is None else places * size + index
    assert places is not None
    return where(reduce(maximum, outside), prod(sizes), places)


# --- by several axes at once ------------------------------------------------------------------------------------------


def gather_nd(x: Var, indices: Var, shared: int) -> Var:
    """The parts of ``x`` that the last axis of the indices names, behind ``shared`` axes that both have."""
    count = _named_axes(x, indices, shared)
    sizes, rest = x.shape[shared : shared + count], x.shape[shared + count :]
    rows = reshape(x, (*x.shape[:shared], prod(sizes), *rest))
    return apply(GATHER_ROWS, AlongAxis(shared), rows, _last_axis(indices, sizes))


def scatter_nd(x: Var, indices: Var, updates: Var, reduction: str) -> Var:
    """``x`` with updates at the parts that the last axis of the indices names."""
    count = _named_axes(x, indices, 0)
    sizes, rest = x.shape[:count], x.shape[count:]
    rows = reshape(x, (prod(sizes), *rest))
    return reshape(scattered_rows(rows, _last_axis(indices, sizes), updates, 0, reduction), x.shape)


def _named_axes(x: Var, indices: Var, shared: int) -> int:
    if not indices.ndim or not 1 <= indices.shape[-1] <= x.ndim - shared:
        raise ShapeError(f"indices of shape {indices.shape} do not name parts of a tensor of shape {x.shape}")
    return indices.shape[-1]


def _last_axis(indices: Var, sizes: Sequence[int]) -> Var:
    return flat_indices([getitem(indices, (..., i)) for i in range(len(sizes))], sizes)


# --- scatters that reduce ---------------------------------------------------------------------------------------------


def scattered_rows(x: Var, indices: Var | Array, rows: Var, axis: int, reduction: str, *, ties: str = "first") -> Var:
    """``x`` with every row joined to the one that its index names: ``none`` replaces it, by the last there is."""
    if reduction == "none":
        return apply(SCATTER_ROWS, AlongAxis(axis), x, indices, rows)
    if reduction == "add":
        return x + apply(SCATTER_ADD_ROWS, RowPlaces(axis, x.shape[axis]), rows, indices)
    compared = _beside(x, indices, rows, axis, _neutral(reduction, x.dtype.numpy))
    if reduction == "mul":
        return product(compared, (axis,), False)
    return (largest if reduction == "max" else smallest)(compared, (axis,), False, ties=ties)


def join_by(axis: int, reduction: str, *, ties: str = "first") -> Callable[[Var, Var, Var], Var]:
    """How ``gather.scattered`` is to join rows."""
    return lambda x, indices, rows: scattered_rows(x, indices, rows, axis, reduction, ties=ties)


def _neutral(reduction: str, kind: np.dtype[Any]) -> Array:
    if reduction == "mul":
        return np.ones((), kind)
    least = reduction == "max"
    if kind.kind in "iu":
        return np.asarray(np.iinfo(kind).min if least else np.iinfo(kind).max, kind)
    return np.asarray(-np.inf if least else np.inf).astype(kind)


def _beside(x: Var, indices: Var | Array, rows: Var, axis: int, neutral: Array) -> Var:
    """A new axis: ``x``, then for each index its row at the place that it names, and ``neutral`` elsewhere."""
    lead, size, row = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    count = prod(indices.shape[axis:])
    if (cells := (count + 1) * prod(x.shape)) > MOST_COMPARED:
        raise UnsupportedError(f"a scatter by maximum, minimum or product that compares {cells} cells")
    numbers = x.owner.const(np.arange(size), "numbers")
    flat = reshape(indices, (*lead, count))
    named = apply(GATHER_ROWS, AlongAxis(0), numbers, flat)  # the indices again, and an error for those outside
    here = equal(reshape(named, (*lead, count, 1)), numbers)
    shape = (*lead, count, size, *row)
    spread = broadcast_to(reshape(rows, (*lead, count, 1, *row)), shape)
    chosen = where(broadcast_to(reshape(here, (*here.shape, *(1,) * len(row))), shape), spread, neutral)
    return concat([reshape(x, (*lead, 1, size, *row)), chosen], axis)


# --- places of the largest, and cells at places -----------------------------------------------------------------------


def with_places(x: Var, axis: int, keepdims: bool) -> tuple[Var, Var]:
    """The largest numbers of an axis and the first places that have them: a max pooling of all of it."""
    pooled = max_pool(moved(x, axis, -1), (x.shape[axis],), return_indices=True)
    shape = [1 if a == axis else n for a, n in enumerate(x.shape) if keepdims or a != axis]
    values, places = (reshape(v, shape) for v in pooled)
    return values, places


def argmax(x: Var, axis: int, keepdims: bool, *, last: bool = False) -> Var:
    """Where the largest number of an axis is: the first place of those that have it, or the last."""
    if not last:
        return with_places(x, axis, keepdims)[1]
    return x.shape[axis] - 1 - with_places(flip(x, (axis,)), axis, keepdims)[1]


def argmin(x: Var, axis: int, keepdims: bool, *, last: bool = False) -> Var:
    return argmax(reversed_order(x), axis, keepdims, last=last)


def one_hot(indices: Var, size: int, axis: int) -> Var:
    """Whether each of ``size`` cells of a new axis is the one that the index names; none is if it names none."""
    numbers = np.arange(size).reshape(size, *(1,) * (indices.ndim - axis))
    return equal(reshape(indices, (*indices.shape[:axis], 1, *indices.shape[axis:])), numbers)
