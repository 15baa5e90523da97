"""Cells at indices, constant or computed: read, added to, replaced; and the largest ones, in order."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from gradspec.graph.builder import apply
from gradspec.graph.ir import Array, Var
from gradspec.graph.types import boolean, i64, u8
from gradspec.interop import compose, indexing
from gradspec.interop.torch.aten.operands import constant_value, positive_axis, to_dtype
from gradspec.interop.torch.aten.table import reads
from gradspec.ops import gather as rows
from gradspec.ops import topk as ordered
from gradspec.ops.gather import GATHER_ROWS, from_the_front, moved
from gradspec.ops.grid_sample import grid_sample
from gradspec.ops.layout import AlongAxis, getitem, transpose
from gradspec.ops.pointwise import detach
from gradspec.ops.rules import broadcast_shape
from gradspec.ops.select import equal, where
from gradspec.ops.shape import broadcast_to, reshape
from gradspec.spec.errors import ShapeError, UnsupportedError

Indices = Sequence[Var | None]

# --- along one axis ---------------------------------------------------------------------------------------------------


@reads("index_select")
def _index_select(x: Var, dim: int, index: Var) -> Any:
    axis = positive_axis(dim, x.ndim)
    if x.owner.value(index) is not None:
        return compose.take(x, constant_value(index, "the indices of a selection"), axis)
    return rows.take(x, reshape(index, (-1,)), axis)


@reads("gather")
def _gather(x: Var, dim: int, index: Var, *, sparse_grad: bool = False) -> Any:
    return rows.gather(x, dim, index)


@reads("take_along_dim")
def _take_along_dim(x: Var, indices: Var, dim: int | None = None) -> Any:
    """The other axes are broadcast."""
    if dim is None:
        return rows.gather(reshape(x, (-1,)), 0, reshape(indices, (-1,)))
    axis = positive_axis(dim, x.ndim)
    others = [tuple(1 if a == axis else n for a, n in enumerate(v.shape)) for v in (x, indices)]
    shape = broadcast_shape("take_along_dim", *others)
    spread = [broadcast_to(v, (*shape[:axis], v.shape[axis], *shape[axis + 1 :])) for v in (x, indices)]
    return rows.gather(spread[0], axis, spread[1])


@reads("embedding")
def _embedding(
    weight: Var, indices: Var, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Any:
    """A row for each index. The row of padding is not trained."""
    if scale_grad_by_freq:
        raise UnsupportedError("gradients of an embedding are not scaled by frequency; leave scale_grad_by_freq out")
    found = rows.take(weight, indices)
    if padding_idx < 0:
        return found
    is_padding = reshape(equal(indices, padding_idx), (*indices.shape, *(1,) * (weight.ndim - 1)))
    return where(is_padding, detach(found), found)


@reads("one_hot")
def _one_hot(index: Var, num_classes: int = -1) -> Any:
    if num_classes < 0:
        raise UnsupportedError("one_hot needs num_classes: how many there are would depend on the numbers")
    numbers = index.owner.const(np.arange(num_classes), "classes")
    known = apply(GATHER_ROWS, AlongAxis(0), numbers, index)  # the classes again, and an error for what is none
    return to_dtype(indexing.one_hot(known, num_classes, index.ndim), i64)


# --- scatters ---------------------------------------------------------------------------------------------------------


@reads("scatter.src")
def _scatter(x: Var, dim: int, index: Var, src: Var) -> Any:
    return rows.scatter(x, dim, index, src)


@reads("scatter.value")
def _scatter_value(x: Var, dim: int, index: Var, value: float) -> Any:
    return rows.scatter(x, dim, index, _filled(x, index.shape, value))


@reads("scatter_add")
def _scatter_add(x: Var, dim: int, index: Var, src: Var) -> Any:
    return rows.scatter_add(x, dim, index, src)


_REDUCTIONS = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}


@reads("scatter_reduce.two")
def _scatter_reduce(x: Var, dim: int, index: Var, src: Var, reduce: str, *, include_self: bool = True) -> Any:
    """Gradients of equal maxima are shared, as PyTorch does it."""
    if not include_self or reduce not in _REDUCTIONS:
        raise UnsupportedError(f"scatter_reduce by {reduce} with include_self={include_self}; the cells must take part")

    def joined(part: Any, chosen: Any, cells: Any) -> Any:
        return indexing.scattered_rows(part, chosen, cells, x.ndim - 1, _REDUCTIONS[reduce], ties="split")

    return rows.scattered("scatter_reduce", x, dim, index, src, joined)


@reads("scatter.reduce")
def _scatter_by(x: Var, dim: int, index: Var, src: Var, *, reduce: str) -> Any:
    return _scatter_reduce(x, dim, index, src, reduce)


def _filled(x: Var, shape: Sequence[int], value: float) -> Any:
    return broadcast_to(x.owner.operand(value, x), shape)


def _as_rows(x: Var, dim: int, index: Var, src: Any, reduction: str) -> Any:
    """``src`` joined to whole parts of ``x`` along an axis."""
    axis = positive_axis(dim, x.ndim)
    place = reshape(index, (-1,))
    if src.ndim == 0 and x.ndim > 0:
        src = reshape(src, (1,) * x.ndim)
    joined = indexing.scattered_rows(moved(x, axis, 0), place, moved(src, axis, 0), 0, reduction)
    return moved(joined, 0, axis)


@reads("index_add")
def _index_add(x: Var, dim: int, index: Var, source: Var, *, alpha: float = 1) -> Any:
    return _as_rows(x, dim, index, source if alpha == 1 else source * alpha, "add")


@reads("index_copy")
def _index_copy(x: Var, dim: int, index: Var, source: Var) -> Any:
    return _as_rows(x, dim, from_the_front(index, x.shape[positive_axis(dim, x.ndim)]), source, "none")


@reads("index_fill.int_Scalar")
def _index_fill(x: Var, dim: int, index: Var, value: float) -> Any:
    axis = positive_axis(dim, x.ndim)
    shape = (*x.shape[:axis], index.type.size, *x.shape[axis + 1 :])
    return _as_rows(x, dim, from_the_front(index, x.shape[axis]), _filled(x, shape, value), "none")


# --- of several axes --------------------------------------------------------------------------------------------------


@reads("index", "_unsafe_index")
def _index(x: Var, indices: Indices) -> Any:
    """``x[indices]``: the indexed axes, read as one, are replaced by those of the indices."""
    x, indices = _adjacent(x, indices)
    first, stop, places = _flat_places(x, indices)
    joined = reshape(x, (*x.shape[:first], prod(x.shape[first:stop]), *x.shape[stop:]))
    if x.owner.value(places) is not None:
        return compose.take(joined, constant_value(places, "indices"), first)
    return rows.take(joined, places, first)


@reads("index_put")
def _index_put(x: Var, indices: Indices, values: Var, accumulate: bool = False) -> Any:
    """``x`` with values in the place of cells, the last where there are several, or added to them.

    One number can be put where a mask is true.
    """
    masks = [index for index in indices if index is not None and index.dtype is boolean]
    if len(indices) == len(masks) == values.type.size == 1 and not accumulate:
        mask = reshape(masks[0], (*masks[0].shape, *(1,) * (x.ndim - masks[0].ndim)))
        return where(mask, reshape(values, ()), x)
    given = [axis for axis, index in enumerate(indices) if index is not None]
    if given[-1] - given[0] >= len(given):
        order = [*given, *(a for a in range(x.ndim) if a not in given)]
        put = _index_put(transpose(x, order), [indices[a] for a in given], values, accumulate)
        return transpose(put, [order.index(a) for a in range(x.ndim)])
    first, stop, places = _flat_places(x, indices)
    lead, rest, rank = x.shape[:first], x.shape[stop:], places.ndim
    spread = broadcast_to(values, (*lead, *places.shape, *rest))
    order = [*range(first, first + rank), *range(first), *range(first + rank, spread.ndim)]
    joined = moved(reshape(x, (*lead, prod(x.shape[first:stop]), *rest)), first, 0)
    put = indexing.scattered_rows(joined, places, transpose(spread, order), 0, "add" if accumulate else "none")
    return reshape(moved(put, 0, first), x.shape)


def _adjacent(x: Var, indices: Indices) -> tuple[Var, Indices]:
    """Axes that are indexed and not next to each other come first, as NumPy and PyTorch have it."""
    given = [axis for axis, index in enumerate(indices) if index is not None]
    if given[-1] - given[0] < len(given):
        return x, indices
    return transpose(x, [*given, *(a for a in range(x.ndim) if a not in given)]), [indices[a] for a in given]


def _flat_places(x: Var, indices: Indices) -> tuple[int, int, Var]:
    """The range of axes that are indexed, and the places among their cells: as one index of one axis."""
    given = {axis: index for axis, index in enumerate(indices) if index is not None}
    first, stop = min(given), max(given) + 1
    if any(index.dtype in (boolean, u8) for index in given.values()):
        raise UnsupportedError("indices are integers; how many cells a mask chooses would depend on the numbers")
    sizes = x.shape[first:stop]
    arrays = [x.owner.value(index) for index in given.values()]
    if any(array is None for array in arrays):
        return first, stop, indexing.flat_indices([*given.values()], sizes)
    whole = [_counted(constant_value(index, "indices"), n) for index, n in zip(given.values(), sizes, strict=True)]
    flat = np.ravel_multi_index(np.broadcast_arrays(*whole), sizes).astype(np.int64)
    return first, stop, x.owner.share(flat, "places")


def _counted(index: Array, n: int) -> Array:
    if index.size and not (-n <= index.min() and index.max() < n):
        raise ShapeError(f"an index from {index.min()} to {index.max()} lies outside an axis of size {n}")
    return index % n if n else index


@reads("take")
def _take(x: Var, index: Var) -> Any:
    return rows.take(reshape(x, (-1,)), from_the_front(index, x.type.size))


# --- in order ---------------------------------------------------------------------------------------------------------


@reads("topk")
def _topk(x: Var, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    return ordered.topk(x, k, dim, largest)


@reads("sort")
def _sort(x: Var, dim: int = -1, descending: bool = False) -> Any:
    return ordered.sort(x, dim, descending)


@reads("sort.stable")
def _stable_sort(x: Var, *, stable: bool | None, dim: int = -1, descending: bool = False) -> Any:
    return ordered.sort(x, dim, descending)


@reads("argsort")
def _argsort(x: Var, dim: int = -1, descending: bool = False) -> Any:
    return ordered.sort(x, dim, descending)[1]


@reads("argsort.stable")
def _stable_argsort(x: Var, *, stable: bool, dim: int = -1, descending: bool = False) -> Any:
    return ordered.sort(x, dim, descending)[1]


@reads("kthvalue")
def _kth_value(x: Var, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    axis = positive_axis(dim, x.ndim)
    key = (*[slice(None)] * axis, slice(k - 1, k) if keepdim else k - 1)
    return tuple(getitem(v, key) for v in ordered.sort(x, axis))


@reads("median.dim")
def _median(x: Var, dim: int = -1, keepdim: bool = False) -> Any:
    """Of an even number the lower one of the middle; a NaN if there is one, which comes last in order."""
    n = x.shape[positive_axis(dim, x.ndim)]
    (middle, place), (last, its) = (_kth_value(x, k, dim, keepdim) for k in ((n + 1) // 2, n))
    is_number = equal(last, last)
    return where(is_number, middle, last), where(is_number, place, its)


@reads("median.default")
def _median_of_all(x: Var) -> Any:
    return _median(reshape(x, (-1,)), 0)[0]


# --- at places between cells ------------------------------------------------------------------------------------------

_MODES, _BORDERS = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")


@reads("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def _grid_sampler(x: Var, grid: Var, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Any:
    return grid_sample(x, grid, _MODES[interpolation_mode], _BORDERS[padding_mode], align_corners)
