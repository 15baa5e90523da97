"""Operators that move numbers, and those that copy or convert them."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from typing import Any

import numpy as np
import torch

from gradspec.graph.ir import Array, Var
from gradspec.graph.types import boolean, i64, u8
from gradspec.interop import compose
from gradspec.interop.torch.aten.operands import axes_of, constant_value, positive_axis, promoted, to_dtype
from gradspec.interop.torch.aten.table import reads
from gradspec.ops.layout import concat, getitem, transpose
from gradspec.ops.pointwise import detach
from gradspec.ops.select import less, where
from gradspec.ops.shape import broadcast_to, flatten, reshape
from gradspec.ops.unpool import max_gather, max_unpool
from gradspec.spec.errors import ShapeError, UnsupportedError

Sizes = Sequence[int]


# --- shapes -----------------------------------------------------------------------------------------------------------

reads("view.default", "reshape", "_unsafe_view", "_reshape_copy", "view_copy.default")(reshape)
reads("flatten.using_ints")(flatten)


@reads("squeeze", "squeeze_copy")
def _squeeze(x: Var, dim: int | Sizes | None = None) -> Any:
    axes = range(x.ndim) if dim is None else [positive_axis(d, x.ndim) for d in _list(dim)]
    return reshape(x, [n for a, n in enumerate(x.shape) if n != 1 or a not in axes])


@reads("unsqueeze", "unsqueeze_copy")
def _unsqueeze(x: Var, dim: int) -> Any:
    axis = positive_axis(dim, x.ndim + 1)
    return reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))


@reads("expand", "expand_copy")
def _expand(x: Var, size: Sizes, *, implicit: bool = False) -> Any:
    kept = (1,) * (len(size) - x.ndim) + x.shape
    return broadcast_to(x, [n if m == -1 else m for n, m in zip(kept, size, strict=True)])


@reads("expand_as")
def _expand_as(x: Var, other: Var) -> Any:
    return broadcast_to(x, other.shape)


# --- orders of axes ---------------------------------------------------------------------------------------------------


@reads("permute", "permute_copy")
def _permute(x: Var, dims: Sizes) -> Any:
    return transpose(x, [positive_axis(d, x.ndim) for d in dims])


@reads("transpose.int", "transpose_copy.int")
def _exchange(x: Var, dim0: int, dim1: int) -> Any:
    a, b = positive_axis(dim0, x.ndim), positive_axis(dim1, x.ndim)
    order = list(range(x.ndim))
    if order:
        order[a], order[b] = b, a
    return transpose(x, order)


reads("t", "t_copy")(transpose)


@reads("movedim.int", "movedim.intlist")
def _move(x: Var, source: int | Sizes, destination: int | Sizes) -> Any:
    start, end = ([positive_axis(d, x.ndim) for d in _list(dims)] for dims in (source, destination))
    rest = iter(a for a in range(x.ndim) if a not in start)
    placed = dict(zip(end, start, strict=True))
    return transpose(x, [placed[a] if a in placed else next(rest) for a in range(x.ndim)])


def _list(dims: int | Sizes) -> list[int]:
    return [dims] if isinstance(dims, int) else list(dims)


@reads("flip")
def _flip(x: Var, dims: Sizes) -> Any:
    turned = axes_of(dims, x.ndim) if dims else ()
    return getitem(x, tuple(slice(None, None, -1 if a in turned else 1) for a in range(x.ndim)))


@reads("channel_shuffle")
def _channel_shuffle(x: Var, groups: int) -> Any:
    n, channels, *sizes = x.shape
    grouped = reshape(x, (n, groups, channels // groups, *sizes))
    return reshape(_exchange(grouped, 1, 2), x.shape)


@reads("pixel_shuffle")
def _pixel_shuffle(x: Var, upscale_factor: int) -> Any:
    r, (*lead, channels, height, width) = upscale_factor, x.shape
    blocks = reshape(x, (-1, channels // r**2, r, r, height, width))
    spread = transpose(blocks, (0, 1, 4, 2, 5, 3))
    return reshape(spread, (*lead, channels // r**2, height * r, width * r))


@reads("pixel_unshuffle")
def _pixel_unshuffle(x: Var, downscale_factor: int) -> Any:
    r, (*lead, channels, height, width) = downscale_factor, x.shape
    blocks = reshape(x, (-1, channels, height // r, r, width // r, r))
    gathered = transpose(blocks, (0, 1, 3, 5, 2, 4))
    return reshape(gathered, (*lead, channels * r**2, height // r, width // r))


# --- pieces -----------------------------------------------------------------------------------------------------------


@reads("cat", "concat", "concatenate")
def _cat(tensors: Sequence[Var], dim: int = 0) -> Any:
    """An empty vector joins anything, and adds nothing."""
    parts = promoted(*(t for t in tensors if t.shape != (0,))) or tuple(tensors[:1])
    return concat(parts, positive_axis(dim, parts[0].ndim))


@reads("stack")
def _stack(tensors: Sequence[Var], dim: int = 0) -> Any:
    axis = positive_axis(dim, tensors[0].ndim + 1)
    return concat([_unsqueeze(t, axis) for t in promoted(*tensors)], axis)


@reads("split.Tensor")
def _split(x: Var, split_size: int, dim: int = 0) -> Any:
    n = x.shape[positive_axis(dim, x.ndim)]
    return compose.split(x, [min(split_size, n - start) for start in range(0, n, split_size)] or [0], dim)


@reads("split_with_sizes", "split.sizes")
def _split_with_sizes(x: Var, split_sizes: Sizes, dim: int = 0) -> Any:
    return compose.split(x, split_sizes, dim)


@reads("chunk")
def _chunk(x: Var, chunks: int, dim: int = 0) -> Any:
    return _split(x, max(ceil(x.shape[positive_axis(dim, x.ndim)] / chunks), 1), dim)


@reads("unbind")
def _unbind(x: Var, dim: int = 0) -> Any:
    return [_select(x, dim, i) for i in range(x.shape[positive_axis(dim, x.ndim)])]


@reads("slice", "slice_copy")
def _slice(x: Var, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    return getitem(x, (*[slice(None)] * positive_axis(dim, x.ndim), slice(start, end, step)))


@reads("narrow")
def _narrow(x: Var, dim: int, start: int, length: int) -> Any:
    begin = start % x.shape[positive_axis(dim, x.ndim)] if start < 0 else start
    return _slice(x, dim, begin, begin + length)


@reads("select.int", "select_copy")
def _select(x: Var, dim: int, index: int) -> Any:
    return getitem(x, (*[slice(None)] * positive_axis(dim, x.ndim), index))


@reads("slice_scatter")
def _slice_scatter(
    x: Var, src: Var, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    """``src`` in the place of a slice of ``x``: what is before it, ``src``, what is after it."""
    axis = positive_axis(dim, x.ndim)
    places = range(x.shape[axis])[slice(start, end, step)]
    if step != 1:
        raise UnsupportedError(f"a slice with step {step} cannot be written to, only whole ranges")
    parts = [_slice(x, axis, 0, places.start), src, _slice(x, axis, max(places.stop, places.start), None)]
    return concat([part for part in parts if part.shape[axis]] or [x], axis)


@reads("select_scatter")
def _select_scatter(x: Var, src: Var, dim: int, index: int) -> Any:
    axis = positive_axis(dim, x.ndim)
    place = index % x.shape[axis]
    return _slice_scatter(x, _unsqueeze(src, axis), axis, place, place + 1)


@reads("index_select")
def _index_select(x: Var, dim: int, index: Var) -> Any:
    return compose.take(x, constant_value(index, "the indices of a selection"), dim)


@reads("index", "_unsafe_index")
def _index(x: Var, indices: Sequence[Var | None]) -> Any:
    """``x[indices]`` for indices of one axis, or constant ones of neighbouring axes, read as one axis of cells."""
    first, stop, places = _flat_places(x, indices)
    if stop - first == 1 and x.owner.value(places) is not None:
        return compose.take(x, constant_value(places, "indices"), first)
    lead, rest = x.shape[:first], x.shape[stop:]
    moved = _move(reshape(x, (*lead, -1, *rest)), first, -1)
    wanted = broadcast_to(reshape(places, (-1,)), (*moved.shape[:-1], places.type.size))
    return reshape(_move(max_gather(moved, wanted, 1), -1, first), (*lead, *places.shape, *rest))


@reads("index_put")
def _index_put(x: Var, indices: Sequence[Var | None], values: Var, accumulate: bool = False) -> Any:
    """One number where a mask is true; else cells added to at their places, or set where there was 0.

    A place that is set twice, which shows when the graph runs if the indices are computed, holds the sum.
    """
    masks = [index for index in indices if index is not None and index.dtype is boolean]
    if len(indices) == len(masks) == values.type.size == 1 and not accumulate:
        mask = reshape(masks[0], (*masks[0].shape, *(1,) * (x.ndim - masks[0].ndim)))
        return where(mask, reshape(values, ()), x)
    if not accumulate and not _is_zero(x):
        raise UnsupportedError("cells can be added at indices, or set in a tensor of zeros, but not replaced")
    first, stop, places = _flat_places(x, indices)
    if not accumulate and _repeats(places):
        raise UnsupportedError("one cell is set twice; give each index once, or add with accumulate=True")
    lead, rest = x.shape[:first], x.shape[stop:]
    spread = reshape(broadcast_to(values, (*lead, *places.shape, *rest)), (*lead, -1, *rest))
    moved = _move(spread, first, -1)
    added = max_unpool(moved, broadcast_to(reshape(places, (-1,)), moved.shape), (prod(x.shape[first:stop]),))
    result = reshape(_move(added, -1, first), x.shape)
    return result if _is_zero(x) else x + result


def _is_zero(x: Var) -> bool:
    array = x.owner.value(x)
    return array is not None and not array.any()


def _repeats(places: Var) -> bool:
    array = places.owner.value(places)
    return array is not None and np.unique(array).size < array.size


def _flat_places(x: Var, indices: Sequence[Var | None]) -> tuple[int, int, Var]:
    """The range of axes that are indexed, and the places among their cells: as one index of one axis."""
    given = {axis: index for axis, index in enumerate(indices) if index is not None}
    first, stop = min(given), max(given) + 1
    if len(given) < stop - first or any(index.dtype in (boolean, u8) for index in given.values()):
        raise UnsupportedError("indices are known if they are integers, of axes next to each other")
    sizes = x.shape[first:stop]
    if stop - first == 1 and x.owner.value(given[first]) is None:
        places = to_dtype(given[first], i64)
        return first, stop, where(less(places, 0), places + sizes[0], places)
    arrays = [constant_value(index, "indices of several axes") for index in given.values()]
    whole = map(_from_the_front, arrays, sizes)
    flat = np.ravel_multi_index(np.broadcast_arrays(*whole), sizes).astype(np.int64)
    return first, stop, x.owner.share(flat, "places")


def _from_the_front(index: Array, n: int) -> Array:
    if index.size and not (-n <= index.min() and index.max() < n):
        raise ShapeError(f"an index from {index.min()} to {index.max()} lies outside an axis of size {n}")
    return index % n if n else index


@reads("gather")
def _gather(x: Var, dim: int, index: Var, *, sparse_grad: bool = False) -> Any:
    axis = positive_axis(dim, x.ndim)
    return _move(max_gather(_move(x, axis, -1), to_dtype(_move(index, axis, -1), i64), 1), -1, axis)


@reads("embedding")
def _embedding(
    weight: Var, indices: Var, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Any:
    """A row for each index: every column is read at the same places. The row of padding is not trained."""
    if scale_grad_by_freq:
        raise UnsupportedError("gradients of an embedding are not scaled by frequency; leave scale_grad_by_freq out")
    if padding_idx >= 0:
        weight = _select_scatter(weight, detach(_select(weight, 0, padding_idx)), 0, padding_idx)
    places = reshape(to_dtype(indices, i64), (-1,))
    columns = max_gather(transpose(weight), broadcast_to(places, (weight.shape[1], places.shape[0])), 1)
    return reshape(transpose(columns), (*indices.shape, weight.shape[1]))


# --- repetition and padding -------------------------------------------------------------------------------------------


@reads("repeat", "tile")
def _repeat(x: Var, repeats: Sizes) -> Any:
    times = (1,) * (x.ndim - len(repeats)) + tuple(repeats)
    return compose.tile(reshape(x, (1,) * (len(times) - x.ndim) + x.shape), times)


@reads("repeat_interleave.self_int")
def _repeat_interleave(x: Var, repeats: int, dim: int | None = None, *, output_size: int | None = None) -> Any:
    flat, axis = (reshape(x, (-1,)), 0) if dim is None else (x, positive_axis(dim, x.ndim))
    shape = flat.shape
    spread = broadcast_to(_unsqueeze(flat, axis + 1), (*shape[: axis + 1], repeats, *shape[axis + 1 :]))
    return reshape(spread, (*shape[:axis], shape[axis] * repeats, *shape[axis + 1 :]))


@reads("roll")
def _roll(x: Var, shifts: int | Sizes, dims: int | Sizes = ()) -> Any:
    if not _list(dims):
        return reshape(_roll(reshape(x, (-1,)), shifts, 0), x.shape)
    for shift, dim in zip(_list(shifts), _list(dims), strict=True):
        n = x.shape[positive_axis(dim, x.ndim)]
        if n and shift % n:
            x = concat([_slice(x, dim, n - shift % n), _slice(x, dim, 0, n - shift % n)], positive_axis(dim, x.ndim))
    return x


_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@reads("pad")
def _pad(x: Var, pad: Sizes, mode: str = "constant", value: float | None = None) -> Any:
    """PyTorch lists the pairs from the last axis on."""
    pairs = [(lo, hi) for lo, hi in zip(pad[::2], pad[1::2], strict=True)][::-1]
    return compose.pad(x, [(0, 0)] * (x.ndim - len(pairs)) + pairs, _MODES[mode], value or 0.0)


@reads("constant_pad_nd")
def _constant_pad(x: Var, pad: Sizes, value: float = 0) -> Any:
    return _pad(x, pad, "constant", value)


@reads("reflection_pad{1,2,3}d")
def _reflection_pad(x: Var, padding: Sizes) -> Any:
    return _pad(x, padding, "reflect")


@reads("replication_pad{1,2,3}d")
def _replication_pad(x: Var, padding: Sizes) -> Any:
    return _pad(x, padding, "replicate")


@reads("_pad_circular")
def _circular_pad(x: Var, pad: Sizes) -> Any:
    return _pad(x, pad, "circular")


# --- copies and conversions -------------------------------------------------------------------------------------------


@reads("clone", "contiguous", "alias", "lift_fresh", "lift_fresh_copy", "alias_copy")
def _same(x: Var, *, memory_format: Any = None) -> Any:
    return x


reads("detach", "detach_copy")(detach)


@reads("to.dtype", "to.dtype_layout", "_to_copy")
def _convert(x: Var, dtype: torch.dtype | None = None, *_: Any, **__: Any) -> Any:
    return to_dtype(x, dtype)


@reads("to.device", "to.other", "type_as")
def _convert_like(x: Var, other: Any, dtype: Any = None, *_: Any, **__: Any) -> Any:
    return to_dtype(x, other.dtype if isinstance(other, Var) else dtype)


@reads("copy")
def _copy(x: Var, src: Var, non_blocking: bool = False) -> Any:
    return broadcast_to(to_dtype(src, x.dtype), x.shape)
