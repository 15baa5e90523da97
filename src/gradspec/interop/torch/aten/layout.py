"""Operators that move numbers, copy or convert them; and cells at indices: read, added to, replaced, or in order."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from typing import Any

import numpy as np
import torch

from gradspec.graph.builder import apply
from gradspec.graph.ir import Array, Operand, Var
from gradspec.graph.types import boolean, i64, u8
from gradspec.interop import compose, indexing
from gradspec.interop.torch.aten.table import (
    axes_of,
    positive_axis,
    promoted,
    reads,
    reads_each,
    to_dtype,
)
from gradspec.interop.torch.types import gradspec_dtype
from gradspec.ops import gather as rows
from gradspec.ops.gather import GATHER_ROWS, from_the_front, moved
from gradspec.ops.grid_sample import grid_sample
from gradspec.ops.layout import AlongAxis, concat, getitem, transpose
from gradspec.ops.pointwise import detach
from gradspec.ops.rules import broadcast_shape
from gradspec.ops.select import equal, where
from gradspec.ops.shape import broadcast_to, flatten, reshape, sum
from gradspec.spec.errors import ShapeError, UnsupportedError

Sizes = Sequence[int]
Indices = Sequence[Var | None]


def _list(dims: int | Sizes) -> list[int]:
    return [dims] if isinstance(dims, int) else list(dims)


def _key(x: Var, dim: int, entry: Operand | slice) -> tuple[Operand | slice, ...]:
    """What ``getitem`` takes for an entry of one axis."""
    return (*[slice(None)] * positive_axis(dim, x.ndim), entry)


# --- shapes and orders of axes ----------------------------------------------------------------------------------------


@reads("squeeze", "squeeze_copy")
def _squeeze(x: Var, dim: int | Sizes | None = None) -> Var:
    axes = range(x.ndim) if dim is None else [positive_axis(d, x.ndim) for d in _list(dim)]
    return reshape(x, [n for a, n in enumerate(x.shape) if n != 1 or a not in axes])


@reads("unsqueeze", "unsqueeze_copy")
def _unsqueeze(x: Var, dim: int) -> Var:
    axis = positive_axis(dim, x.ndim + 1)
    return reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))


@reads("expand", "expand_copy")
def _expand(x: Var, size: Sizes, *, implicit: bool = False) -> Var:
    kept = (1,) * (len(size) - x.ndim) + x.shape
    return broadcast_to(x, [n if m == -1 else m for n, m in zip(kept, size, strict=True)])


@reads("transpose.int", "transpose_copy.int")
def _exchange(x: Var, dim0: int, dim1: int) -> Var:
    a, b = positive_axis(dim0, x.ndim), positive_axis(dim1, x.ndim)
    order = list(range(x.ndim))
    if order:
        order[a], order[b] = b, a
    return transpose(x, order)


@reads("movedim.int", "movedim.intlist")
def _move(x: Var, source: int | Sizes, destination: int | Sizes) -> Var:
    start, end = ([positive_axis(d, x.ndim) for d in _list(dims)] for dims in (source, destination))
    rest = iter(a for a in range(x.ndim) if a not in start)
    placed = dict(zip(end, start, strict=True))
    return transpose(x, [placed[a] if a in placed else next(rest) for a in range(x.ndim)])


@reads("pixel_shuffle")
def _pixel_shuffle(x: Var, upscale_factor: int) -> Var:
    y = compose.depth_to_space(reshape(x, (-1, *x.shape[-3:])), upscale_factor, channels_first=True)
    return reshape(y, (*x.shape[:-3], *y.shape[1:]))


@reads("diagonal", "diagonal_copy", "linalg_diagonal")
def _diagonal(x: Var, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Var:
    """As a last axis: of the two axes made one, every cell that many steps from the one before."""
    axes = [positive_axis(dim, x.ndim) for dim in (dim1, dim2)]
    height, width = (x.shape[a] for a in axes)
    turned = transpose(x, (*(a for a in range(x.ndim) if a not in axes), *axes))
    count = max(min(height + min(offset, 0), width - max(offset, 0)), 0)
    places = (offset if offset >= 0 else -offset * width) + np.arange(count) * (width + 1)
    return compose.take(reshape(turned, (*turned.shape[:-2], height * width)), places, -1)


def _view_as(x: Var, dtype: torch.dtype) -> Var:
    """Integers of as many bits wrap around to what their bits mean."""
    to = gradspec_dtype(dtype)
    are_alike = x.type.is_integer and to.is_integer and to.numpy.itemsize == x.dtype.numpy.itemsize
    if to is not x.dtype and not are_alike:
        raise UnsupportedError(f"the bits of {x.dtype} as {to}; those of integers are known as integers of one size")
    return to_dtype(x, to)


reads_each(
    {
        "view.dtype": _view_as,
        "view.default reshape _unsafe_view _reshape_copy view_copy.default": reshape,
        "flatten.using_ints": flatten,
        "flip": lambda x, dims: compose.flip(x, axes_of(dims, x.ndim) if dims else ()),
        "expand_as": lambda x, other: broadcast_to(x, other.shape),
        "permute permute_copy": lambda x, dims: transpose(x, [positive_axis(d, x.ndim) for d in dims]),
        "t t_copy numpy_T": transpose,
        "mT": lambda x: _exchange(x, -2, -1),
        "trace": lambda x: sum(_diagonal(x)),
    }
)

# --- pieces -----------------------------------------------------------------------------------------------------------


@reads("cat", "concat", "concatenate")
def _cat(tensors: Sequence[Var], dim: int = 0) -> Var:
    """An empty vector joins anything, and adds nothing."""
    parts = promoted(*(t for t in tensors if t.shape != (0,))) or tuple(tensors[:1])
    return concat(parts, positive_axis(dim, parts[0].ndim))


@reads("stack")
def _stack(tensors: Sequence[Var], dim: int = 0) -> Var:
    axis = positive_axis(dim, tensors[0].ndim + 1)
    return concat([_unsqueeze(t, axis) for t in promoted(*tensors)], axis)


@reads("split.Tensor")
def _split(x: Var, split_size: int, dim: int = 0) -> Any:
    n = x.shape[positive_axis(dim, x.ndim)]
    return compose.split(x, [min(split_size, n - start) for start in range(0, n, split_size)] or [0], dim)


@reads("slice", "slice_copy")
def _slice(x: Var, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Var:
    return getitem(x, _key(x, dim, slice(start, end, step)))


@reads("narrow")
def _narrow(x: Var, dim: int, start: int, length: int) -> Var:
    begin = start % x.shape[positive_axis(dim, x.ndim)] if start < 0 else start
    return _slice(x, dim, begin, begin + length)


@reads("slice_scatter")
def _slice_scatter(
    x: Var, src: Var, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Var:
    """``src`` in the place of a slice of ``x``: what is before it, ``src``, what is after it."""
    axis = positive_axis(dim, x.ndim)
    places = range(x.shape[axis])[slice(start, end, step)]
    if step != 1:
        raise UnsupportedError(f"a slice with step {step} cannot be written to, only whole ranges")
    parts = [_slice(x, axis, 0, places.start), src, _slice(x, axis, max(places.stop, places.start), None)]
    return concat([part for part in parts if part.shape[axis]] or [x], axis)


@reads("select_scatter")
def _select_scatter(x: Var, src: Var, dim: int, index: int) -> Var:
    axis = positive_axis(dim, x.ndim)
    place = index % x.shape[axis]
    return _slice_scatter(x, _unsqueeze(src, axis), axis, place, place + 1)


reads_each(
    {
        "select.int select_copy": lambda x, dim, index: getitem(x, _key(x, dim, index)),
        "split_with_sizes split.sizes": lambda x, split_sizes, dim=0: compose.split(x, split_sizes, dim),
        "chunk": lambda x, chunks, dim=0: _split(x, max(ceil(x.shape[positive_axis(dim, x.ndim)] / chunks), 1), dim),
        "unbind": lambda x, dim=0: [getitem(x, _key(x, dim, i)) for i in range(x.shape[positive_axis(dim, x.ndim)])],
    }
)

# --- repetition and padding -------------------------------------------------------------------------------------------


@reads("repeat", "tile")
def _repeat(x: Var, repeats: Sizes) -> Var:
    times = (1,) * (x.ndim - len(repeats)) + tuple(repeats)
    return compose.tile(reshape(x, (1,) * (len(times) - x.ndim) + x.shape), times)


@reads("repeat_interleave.self_int")
def _repeat_interleave(x: Var, repeats: int, dim: int | None = None, *, output_size: int | None = None) -> Var:
    flat, axis = (reshape(x, (-1,)), 0) if dim is None else (x, positive_axis(dim, x.ndim))
    return compose.repeat_each(flat, repeats, axis)


@reads("roll")
def _roll(x: Var, shifts: int | Sizes, dims: int | Sizes = ()) -> Var:
    if not _list(dims):
        return reshape(_roll(reshape(x, (-1,)), shifts, 0), x.shape)
    for shift, dim in zip(_list(shifts), _list(dims), strict=True):
        n = x.shape[positive_axis(dim, x.ndim)]
        if n and shift % n:
            x = concat([_slice(x, dim, n - shift % n), _slice(x, dim, 0, n - shift % n)], positive_axis(dim, x.ndim))
    return x


_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@reads("pad")
def _pad(x: Var, pad: Sizes, mode: str = "constant", value: float | None = None) -> Var:
    """PyTorch lists the pairs from the last axis on."""
    pairs = [(lo, hi) for lo, hi in zip(pad[::2], pad[1::2], strict=True)][::-1]
    return compose.pad(x, [(0, 0)] * (x.ndim - len(pairs)) + pairs, _MODES[mode], value or 0.0)


reads_each(
    {
        "constant_pad_nd": lambda x, pad, value=0: _pad(x, pad, "constant", value),
        "reflection_pad{1,2,3}d": lambda x, padding: _pad(x, padding, "reflect"),
        "replication_pad{1,2,3}d": lambda x, padding: _pad(x, padding, "replicate"),
        "_pad_circular": lambda x, pad: _pad(x, pad, "circular"),
    }
)

# --- copies and conversions -------------------------------------------------------------------------------------------


reads_each(
    {
        "to.dtype to.dtype_layout _to_copy": lambda x, dtype=None, *_, **__: to_dtype(x, dtype),
        "to.device to.other type_as": lambda x, other, dtype=None, *_, **__: to_dtype(
            x, other.dtype if isinstance(other, Var) else dtype
        ),
        "clone contiguous alias lift_fresh lift_fresh_copy alias_copy": lambda x, *, memory_format=None: x,
        "detach detach_copy": detach,
        "copy": lambda x, src, non_blocking=False: broadcast_to(to_dtype(src, x.dtype), x.shape),
    }
)

# --- at indices of one axis -------------------------------------------------------------------------------------------


@reads("index_select")
def _index_select(x: Var, dim: int, index: Var) -> Var:
    return _take(x, reshape(index, (-1,)), positive_axis(dim, x.ndim))


def _take(x: Var, index: Var, axis: int) -> Var:
    """Slices, if the indices are few runs that are known."""
    known = x.owner.value(index)
    return rows.take(x, index, axis) if known is None else compose.take(x, known, axis)


@reads("take_along_dim")
def _take_along_dim(x: Var, indices: Var, dim: int | None = None) -> Var:
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
) -> Var:
    """A row for each index. The row of padding is not trained."""
    if scale_grad_by_freq:
        raise UnsupportedError("gradients of an embedding are not scaled by frequency; leave scale_grad_by_freq out")
    vectors = rows.take(weight, indices)
    if padding_idx < 0:
        return vectors
    is_padding = reshape(equal(indices, padding_idx), (*indices.shape, *(1,) * (weight.ndim - 1)))
    return where(is_padding, detach(vectors), vectors)


@reads("one_hot")
def _one_hot(index: Var, num_classes: int = -1) -> Var:
    if num_classes < 0:
        raise UnsupportedError("one_hot needs num_classes: how many there are would depend on the numbers")
    numbers = index.owner.const(np.arange(num_classes), "classes")
    known = apply(GATHER_ROWS, AlongAxis(0), numbers, index)  # the classes again, and an error for what is none
    return to_dtype(indexing.one_hot(known, num_classes, index.ndim), i64)


_REDUCTIONS = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}


@reads("scatter_reduce.two")
def _scatter_reduce(x: Var, dim: int, index: Var, src: Var, reduce: str, *, include_self: bool = True) -> Var:
    """Gradients of equal maxima are shared, as PyTorch does it."""
    if not include_self or reduce not in _REDUCTIONS:
        raise UnsupportedError(f"scatter_reduce by {reduce} with include_self={include_self}; the cells must take part")
    join = indexing.join_by(x.ndim - 1, _REDUCTIONS[reduce], ties="split")
    return rows.scattered("scatter_reduce", x, dim, index, src, join)


def _filled(x: Var, shape: Sizes, value: float) -> Var:
    return broadcast_to(x.owner.operand(value, x), shape)


def _join_rows(x: Var, dim: int, index: Var, src: Var, reduction: str) -> Var:
    """``src`` joined to whole parts of ``x`` along an axis."""
    axis = positive_axis(dim, x.ndim)
    if src.ndim == 0 and x.ndim > 0:
        src = reshape(src, (1,) * x.ndim)
    joined = indexing.scattered_rows(moved(x, axis, 0), reshape(index, (-1,)), moved(src, axis, 0), 0, reduction)
    return moved(joined, 0, axis)


@reads("index_copy")
def _index_copy(x: Var, dim: int, index: Var, source: Var) -> Var:
    return _join_rows(x, dim, from_the_front(index, x.shape[positive_axis(dim, x.ndim)]), source, "none")


@reads("index_fill.int_Scalar")
def _index_fill(x: Var, dim: int, index: Var, value: float) -> Var:
    axis = positive_axis(dim, x.ndim)
    return _index_copy(x, dim, index, _filled(x, (*x.shape[:axis], index.type.size, *x.shape[axis + 1 :]), value))


reads_each(
    {
        "gather": lambda x, dim, index, *, sparse_grad=False: rows.gather(x, dim, index),
        "scatter.src": lambda x, dim, index, src: rows.scatter(x, dim, index, src),
        "scatter.value": lambda x, dim, index, value: rows.scatter(x, dim, index, _filled(x, index.shape, value)),
        "scatter.reduce": lambda x, dim, index, src, *, reduce: _scatter_reduce(x, dim, index, src, reduce),
        "scatter_add": lambda x, dim, index, src: rows.scatter_add(x, dim, index, src),
        "index_add": lambda x, dim, index, source, *, alpha=1: _join_rows(
            x, dim, index, source if alpha == 1 else source * alpha, "add"
        ),
        "take": lambda x, index: rows.take(reshape(x, (-1,)), from_the_front(index, x.type.size)),
    }
)

# --- at indices of several axes ---------------------------------------------------------------------------------------


@reads("index", "_unsafe_index")
def _index(x: Var, indices: Indices) -> Var:
    """``x[indices]``: the indexed axes, read as one, are replaced by those of the indices.

    If they are not next to each other, they come first, as NumPy and PyTorch have it.
    """
    if order := _order_to_join(x, indices):
        x, indices = transpose(x, order), [index for index in indices if index is not None]
    first, stop, places = _flat_places(x, indices)
    joined = reshape(x, (*x.shape[:first], prod(x.shape[first:stop]), *x.shape[stop:]))
    return _take(joined, places, first)


@reads("index_put")
def _index_put(x: Var, indices: Indices, values: Var, accumulate: bool = False) -> Var:
    """``x`` with values in the place of cells, the last where there are several, or added to them.

    One number can be put where a mask is true.
    """
    masks = [index for index in indices if index is not None and index.dtype is boolean]
    if len(indices) == len(masks) == values.type.size == 1 and not accumulate:
        mask = reshape(masks[0], (*masks[0].shape, *(1,) * (x.ndim - masks[0].ndim)))
        return where(mask, reshape(values, ()), x)
    if order := _order_to_join(x, indices):
        put = _index_put(transpose(x, order), [i for i in indices if i is not None], values, accumulate)
        return transpose(put, compose.inverse_permutation(order))
    first, stop, places = _flat_places(x, indices)
    lead, rest, rank = x.shape[:first], x.shape[stop:], places.ndim
    spread = broadcast_to(values, (*lead, *places.shape, *rest))
    order = [*range(first, first + rank), *range(first), *range(first + rank, spread.ndim)]
    joined = moved(reshape(x, (*lead, prod(x.shape[first:stop]), *rest)), first, 0)
    put = indexing.scattered_rows(joined, places, transpose(spread, order), 0, "add" if accumulate else "none")
    return reshape(moved(put, 0, first), x.shape)


def _order_to_join(x: Var, indices: Indices) -> list[int]:
    """The order of axes in which those that are indexed come first; empty if they are next to each other."""
    indexed = [axis for axis, index in enumerate(indices) if index is not None]
    if indexed[-1] - indexed[0] < len(indexed):
        return []
    return [*indexed, *(a for a in range(x.ndim) if a not in indexed)]


def _flat_places(x: Var, indices: Indices) -> tuple[int, int, Var]:
    """The range of axes that are indexed, and the places among their cells: as one index of one axis."""
    by_axis = {axis: index for axis, index in enumerate(indices) if index is not None}
    first, stop = min(by_axis), max(by_axis) + 1
    if any(index.dtype in (boolean, u8) for index in by_axis.values()):
        raise UnsupportedError("indices are integers; how many cells a mask chooses would depend on the numbers")
    sizes = x.shape[first:stop]
    if any(x.owner.value(index) is None for index in by_axis.values()):
        return first, stop, indexing.flat_indices([*by_axis.values()], sizes)
    whole = [_count_from_front(x.owner.value(i), n) for i, n in zip(by_axis.values(), sizes, strict=True)]
    flat = np.ravel_multi_index(np.broadcast_arrays(*whole), sizes).astype(np.int64)
    return first, stop, x.owner.share(flat, "places")


def _count_from_front(index: Array, n: int) -> Array:
    if index.size and not (-n <= index.min() and index.max() < n):
        raise ShapeError(f"an index from {index.min()} to {index.max()} lies outside an axis of size {n}")
    return index % n if n else index


# --- in order, and at places between cells ----------------------------------------------------------------------------


@reads("topk")
def _topk(x: Var, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    return rows.topk(x, k, dim, largest)


@reads("kthvalue")
def _kth_value(x: Var, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    key = _key(x, dim, slice(k - 1, k) if keepdim else k - 1)
    return tuple(getitem(v, key) for v in rows.sort(x, positive_axis(dim, x.ndim)))


@reads("median.dim")
def _median(x: Var, dim: int = -1, keepdim: bool = False) -> Any:
    """Of an even number the lower one of the middle; a NaN if there is one, which comes last in order."""
    n = x.shape[positive_axis(dim, x.ndim)]
    (middle, place), (last, its) = (_kth_value(x, k, dim, keepdim) for k in ((n + 1) // 2, n))
    is_number = equal(last, last)
    return where(is_number, middle, last), where(is_number, place, its)


_SAMPLINGS, _BORDERS = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")


@reads("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def _grid_sampler(x: Var, grid: Var, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Var:
    return grid_sample(x, grid, _SAMPLINGS[interpolation_mode], _BORDERS[padding_mode], align_corners)


reads_each(
    {
        "sort": lambda x, dim=-1, descending=False: rows.sort(x, dim, descending),
        "sort.stable": lambda x, *, stable, dim=-1, descending=False: rows.sort(x, dim, descending),
        "argsort": lambda x, dim=-1, descending=False: rows.sort(x, dim, descending)[1],
        "argsort.stable": lambda x, *, stable, dim=-1, descending=False: rows.sort(x, dim, descending)[1],
        "median.default": lambda x: _median(reshape(x, (-1,)), 0)[0],
    }
)
