"""Operators that move numbers, and those that copy or convert them."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import numpy as np
import torch

from gradspec.graph.ir import Var
from gradspec.interop import compose
from gradspec.interop.torch.aten.operands import axes_of, positive_axis, promoted, to_dtype
from gradspec.interop.torch.aten.table import reads
from gradspec.ops.layout import concat, getitem, transpose
from gradspec.ops.pointwise import detach
from gradspec.ops.shape import broadcast_to, flatten, reshape, sum
from gradspec.spec.errors import UnsupportedError

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


# --- diagonals --------------------------------------------------------------------------------------------------------


@reads("diagonal", "diagonal_copy", "linalg_diagonal")
def _diagonal(x: Var, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """As a last axis: of the two axes made one, every cell that many steps from the one before."""
    axes = [positive_axis(dim, x.ndim) for dim in (dim1, dim2)]
    rows, columns = (x.shape[a] for a in axes)
    turned = transpose(x, (*(a for a in range(x.ndim) if a not in axes), *axes))
    count = max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)
    first = offset if offset >= 0 else -offset * columns
    places = first + np.arange(count) * (columns + 1)
    return compose.take(reshape(turned, (*turned.shape[:-2], rows * columns)), places, -1)


@reads("trace")
def _trace(x: Var) -> Any:
    return sum(_diagonal(x))
