"""Pooling, convolutions and windows as columns.

Pooling gathers blocks of windows through index tables. Convolutions are products of matrices: windows gathered into
columns, part by part so that the columns stay small. With ``columns[c·k, o]`` the window cells of one sample and group,
``read = w · columns``, ``compare = g · columnsᵀ`` and ``write`` adds ``wᵀ · g`` back onto the plane. Every sample is
multiplied on its own, so its result does not depend on its batch; only ``compare`` joins samples, over which it sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import DTypeLike, NDArray

from gradspec.backends.numpy.namespace import NUMPY, reduce_blocks, scatter_blocks
from gradspec.backends.tables import Ints, counted_taps, real_cells, take
from gradspec.backends.xp.windows import add_bias, extents, gather_cells, not_in_plane, scatter_cells
from gradspec.graph.ir import Array
from gradspec.ops.conv import Convolution, StatedWindows
from gradspec.ops.pool import AvgPool, AvgTranspose, MaxPool
from gradspec.spec.window import AxisWindow, Window

Bools = NDArray[np.bool_]
Box = tuple[slice, ...]

# --- the maximum ------------------------------------------------------------------------------------------------------


def require_in_plane(places: Array, cells: int) -> None:
    """An index outside the plane is an error, whatever else the array holds.

    >>> require_in_plane(np.array([0, 4, -1]), 4)
    Traceback (most recent call last):
        ...
    gradspec.spec.errors.ShapeError: index 4 lies outside a plane of 4 cells; give 0 to 3, or -1 for none
    """
    if places.size and (places.min() < -1 or places.max() >= cells):
        raise not_in_plane(places[(places < -1) | (places >= cells)][0], cells)


def _find_ties(taps: Ints, planes: Array) -> Bools:
    """``[plane, output, tap]``: the real cells that no cell of their window exceeds; NaNs, if there is one."""
    lowest = -np.inf if planes.dtype.kind == "f" else np.iinfo(planes.dtype).min
    cells = take(planes, taps, lowest)
    top = cells.max(axis=-1, keepdims=True)  # NaN if a cell is, and then only NaNs differ from themselves
    tied: Bools = (taps >= 0) & ((cells == top) | (cells != cells))
    return tied


def _find_first_tie(taps: Ints, planes: Array) -> Ints:
    tied = _find_ties(taps, planes)
    first = np.take_along_axis(np.broadcast_to(taps, tied.shape), tied.argmax(axis=-1)[..., None], axis=-1)[..., 0]
    return np.where(tied.any(axis=-1), first, -1)


def _find_winners(window: Window, x: Array) -> Ints:
    return reduce_blocks(window, _find_first_tie, x, dtype=np.int64)


def _max_pool(attrs: MaxPool, x: Array) -> Array | tuple[Array, Ints]:
    window = attrs.window(x).trimmed()
    winners = _find_winners(window, x)
    values = gather_cells(NUMPY, x, winners, window.rank)
    return (values, winners) if attrs.return_indices else values


def _max_pool_gather(attrs: MaxPool, x: Array, dx: Array) -> Array:
    window = attrs.window(x).trimmed()
    if attrs.ties == "first":
        return gather_cells(NUMPY, dx, _find_winners(window, x), window.rank)

    def push(taps: Ints, planes: Array, tangents: Array) -> Array:
        tied = _find_ties(taps, planes)
        total: Array = np.where(tied, take(tangents, taps), 0).sum(axis=-1, dtype=dx.dtype)
        return total if attrs.ties == "all" else total / _count_ties(tied, dx.dtype)

    return reduce_blocks(window, push, x, dx)


def _max_pool_scatter(attrs: MaxPool, x: Array, g: Array) -> Array:
    window = attrs.window(x).trimmed()
    if attrs.ties == "first":
        return scatter_cells(NUMPY, g, _find_winners(window, x), window.sizes)

    def pull(taps: Ints, cotangents: Array, planes: Array) -> tuple[Bools, Array]:
        tied = _find_ties(taps, planes)
        return tied, cotangents if attrs.ties == "all" else cotangents / _count_ties(tied, g.dtype)[..., None]

    return scatter_blocks(window, pull, g, x)


def _count_ties(mask: Bools, dtype: DTypeLike) -> Array:
    """How many taps of each window are counted; 1 for none, so that it can be divided by."""
    counts: Array = np.maximum(mask.sum(axis=-1), 1).astype(dtype)
    return counts


# --- the average ------------------------------------------------------------------------------------------------------


def _counted(window: Window, count: Callable[[AxisWindow], Ints]) -> Array:
    """What is counted along each axis, for the outputs of a plane."""
    return np.asarray(prod(np.ix_(*(count(axis) for axis in window.axes)), start=np.float64(1)))


def has_cells(window: Window) -> Bools:
    """Which outputs of a plane have a real cell."""
    return _counted(window, real_cells) > 0


def divisors(attrs: AvgPool, window: Window, dtype: DTypeLike) -> Array:
    """Of the outputs of a plane; 1 where there is nothing to divide."""
    if attrs.divisor_override is not None:
        return np.full(window.outputs, attrs.divisor_override, dtype)
    counts = _counted(window, counted_taps if attrs.count_include_pad else real_cells)
    return np.asarray(np.maximum(counts, 1), dtype)


def _avg_pool(attrs: AvgPool, x: Array) -> Array:
    window = attrs.window(x)
    totals = NUMPY.reduce_windows(window, lambda taps, cells: cells.sum(axis=-1, dtype=x.dtype), x)
    return np.where(has_cells(window), totals / divisors(attrs, window, x.dtype), 0)


def _avg_pool_transpose(attrs: AvgTranspose, g: Array) -> Array:
    window = attrs.window(np.broadcast_to(g.dtype.type(0), attrs.sizes))
    shares = g / divisors(attrs, window, g.dtype)
    return scatter_blocks(window.trimmed(), lambda taps, cotangents: (taps >= 0, cotangents), shares)


# --- windows as a strided view, and added back tap by tap -------------------------------------------------------------


def windows(geometry: StatedWindows, x: Array) -> Array:
    """A view ``(*lead, *kernel, *outputs)`` of ``x (*lead, *sizes)``, which is copied only to pad it."""
    if _reaches_far(geometry):
        return _gather_windows(geometry, x)
    lead, rank = x.shape[: x.ndim - geometry.rank], geometry.rank
    pads = [(lo, max(hi, 0)) for lo, hi in extents(geometry)]
    padded = np.pad(x, [(0, 0)] * len(lead) + pads) if any(map(any, pads)) else x
    steps = padded.strides[padded.ndim - rank :]
    taps = [step * d if k > 1 else 0 for step, d, k in zip(steps, geometry.dilation, geometry.kernel, strict=True)]
    moves = [step * s if o > 1 else 0 for step, s, o in zip(steps, geometry.stride, geometry.outputs, strict=True)]
    return as_strided(
        padded,
        (*lead, *geometry.kernel, *geometry.outputs),
        (*padded.strides[: padded.ndim - rank], *taps, *moves),
        writeable=False,
    )


def _reaches_far(geometry: StatedWindows) -> bool:
    """Whether there is far more padding than what is read of it, so that it had better not be laid out."""
    read = zip(_padded_sizes(geometry), geometry.sizes, geometry.kernel, geometry.outputs, strict=True)
    return any(extent > n + 8 * k * o for extent, n, k, o in read)


def _places(geometry: StatedWindows) -> list[NDArray[np.int64]]:
    """``[tap, output]`` of each axis: the cell that is read there, and of padding the one behind the last cell."""
    found = []
    for axis, taps in zip(geometry.window.axes, geometry.kernel, strict=True):
        cells = [p if 0 <= p < axis.size else axis.size for o in range(axis.outputs) for p in axis.positions(o)]
        found.append(np.array(cells, np.int64).reshape(axis.outputs, taps).T)
    return found


def _gather_windows(geometry: StatedWindows, x: Array) -> Array:
    rank = geometry.rank
    padded = np.pad(x, [(0, 0)] * (x.ndim - rank) + [(0, 1)] * rank)
    shapes = (
        [n if i % rank == axis else 1 for i, n in enumerate((*geometry.kernel, *geometry.outputs))]
        for axis in range(rank)
    )
    index: Any = [place.reshape(shape) for place, shape in zip(_places(geometry), shapes, strict=True)]
    return padded[(..., *index)]


def add_windows(
    geometry: StatedWindows, lead: tuple[int, ...], dtype: DTypeLike, parts: Iterator[tuple[Any, Array]]
) -> Array:
    """The transpose of ``windows``: ``(index, values)`` of its view, part by part, added onto ``(*lead, *sizes)``.

    An index has one slice for the first leading axis and one for each output axis.
    """
    if _reaches_far(geometry):
        return _scatter_windows(geometry, lead, dtype, parts)
    padded = np.zeros((*lead, *_padded_sizes(geometry)), dtype)
    others = (slice(None),) * (len(lead) - 1)
    for (first, *box), values in parts:
        for tap in product(*map(range, geometry.kernel)):
            starts = [
                slice(d * k + s * o.start, d * k + s * (o.stop - 1) + 1, s)
                for k, d, s, o in zip(tap, geometry.dilation, geometry.stride, box, strict=True)
            ]
            target: Any = (first, *others, *starts)
            source: Any = (slice(None), *others, *tap)
            padded[target] += values[source]
    inner: Any = [slice(lo, lo + n) for n, (lo, _) in zip(geometry.sizes, geometry.padding, strict=True)]
    return padded[(..., *inner)]


def _scatter_windows(
    geometry: StatedWindows, lead: tuple[int, ...], dtype: DTypeLike, parts: Iterator[tuple[Any, Array]]
) -> Array:
    """A tap reads no cell twice, but for the one behind the last, which is not kept."""
    padded, places = np.zeros((*lead, *(n + 1 for n in geometry.sizes)), dtype), _places(geometry)
    before = [range(n) for n in lead]
    for (first, *box), values in parts:
        for tap in product(*map(range, geometry.kernel)):
            cells = [place[t, o] for place, t, o in zip(places, tap, box, strict=True)]
            index = np.ix_(before[0][first], *before[1:], *cells)
            padded[index] += values[(slice(None),) * len(lead) + tap]
    inner: Any = [slice(0, n) for n in geometry.sizes]
    return padded[(..., *inner)]


def _padded_sizes(geometry: StatedWindows) -> list[int]:
    """How far a padded axis reaches: to its last cell or its last tap, whichever is further."""
    return [lo + n + max(hi, 0) for n, (lo, hi) in zip(geometry.sizes, extents(geometry), strict=True)]


def _unfold(attrs: StatedWindows, x: Array) -> Array:
    *lead, channels = x.shape[: x.ndim - attrs.rank]
    return windows(attrs, x).reshape(*lead, channels * prod(attrs.kernel), prod(attrs.outputs))


def _fold(attrs: StatedWindows, x: Array) -> Array:
    *lead, rows, _ = x.shape
    planes = prod(lead) * (rows // prod(attrs.kernel))
    every = (slice(0, planes), *(slice(0, o) for o in attrs.outputs))
    values = x.reshape(planes, *attrs.kernel, *attrs.outputs)
    folded = add_windows(attrs, (planes,), x.dtype, iter([(every, values)]))
    return folded.reshape(*lead, rows // prod(attrs.kernel), *attrs.sizes)


# --- convolution ------------------------------------------------------------------------------------------------------

WORKSPACE = 1 << 24
"""Bytes that the columns of one part may take."""


def _boxes(sizes: tuple[int, ...], most: int) -> Iterator[Box]:
    """Boxes of at most ``most`` cells (or one cell) that cover a box of ``sizes``, first axes split first.

    >>> list(_boxes((2, 3), 3))
    [(slice(0, 1, None), slice(0, 3, None)), (slice(1, 2, None), slice(0, 3, None))]
    """
    if not sizes:
        yield ()
        return
    size, *rest = sizes
    step = max(1, most // max(1, prod(rest)))
    for start in range(0, size, step):
        part = slice(start, min(start + step, size))
        yield from ((part, *others) for others in _boxes(tuple(rest), max(1, most // step)))


def _parts(attrs: Convolution, samples: int, channels: int, dtype: np.dtype[Any]) -> Iterator[Box]:
    """Ranges of samples and outputs whose columns fit the workspace."""
    column = max(1, channels * prod(attrs.kernel)) * dtype.itemsize
    return _boxes((samples, *attrs.outputs), max(1, WORKSPACE // column))


def _split_groups(attrs: Convolution, x: Array) -> Array:
    """``(samples, groups, channels of one group, *spatial)``."""
    at = x.ndim - attrs.rank - 1
    return x.reshape(prod(x.shape[:at]), attrs.groups, x.shape[at] // attrs.groups, *x.shape[at + 1 :])


def _matrices(attrs: Convolution, w: Array) -> Array:
    """The weights of each group as a matrix: channels of g by channels of x and taps."""
    per_group = w.shape[0] // attrs.groups
    return np.ascontiguousarray(w).reshape(attrs.groups, per_group, w.shape[1] * prod(attrs.kernel))


def _cells(values: Array, rank: int) -> Array:
    """The last ``rank`` axes as one, and memory that matrix products take as it is."""
    at = values.ndim - rank
    return np.ascontiguousarray(values).reshape(*values.shape[:at], prod(values.shape[at:]))


def _columns(attrs: Convolution, view: Array, part: Box) -> Array:
    """``(samples, groups, channels·taps, outputs)`` of one part."""
    first, *box = part
    chosen = view[(first, *(slice(None),) * (2 + attrs.rank), *box)]
    n, groups, channels = chosen.shape[:3]
    return _cells(chosen, attrs.rank).reshape(
        n, groups, channels * prod(attrs.kernel), prod(chosen.shape[3 + attrs.rank :])
    )


def _read(attrs: Convolution, x: Array, w: Array, *bias: Array) -> Array:
    grouped, matrices = _split_groups(attrs, x), _matrices(attrs, w)
    samples, groups, channels = grouped.shape[:3]
    view = windows(attrs, grouped)
    y = np.empty((samples, groups, matrices.shape[1], *attrs.outputs), x.dtype)
    for part in _parts(attrs, samples, groups * channels, x.dtype):
        index = (part[0], slice(None), slice(None), *part[1:])
        y[index] = (matrices @ _columns(attrs, view, part)).reshape(y[index].shape)
    lead = x.shape[: x.ndim - attrs.rank - 1]
    return add_bias(attrs, y.reshape(*lead, w.shape[0], *attrs.outputs), bias)


def _write(attrs: Convolution, g: Array, w: Array, *bias: Array) -> Array:
    grouped, matrices = _split_groups(attrs, g), _matrices(attrs, w).swapaxes(-1, -2)
    samples, groups = grouped.shape[:2]
    channels = w.shape[1]

    def products() -> Iterator[tuple[Box, Array]]:
        for part in _parts(attrs, samples, groups * channels, g.dtype):
            chosen = grouped[(part[0], slice(None), slice(None), *part[1:])]
            values = matrices @ _cells(chosen, attrs.rank)
            yield part, values.reshape(len(chosen), groups, channels, *attrs.kernel, *chosen.shape[3:])

    x = add_windows(attrs, (samples, groups, channels), g.dtype, products())
    lead = g.shape[: g.ndim - attrs.rank - 1]
    return add_bias(attrs, x.reshape(*lead, groups * channels, *attrs.sizes), bias)


def _compare(attrs: Convolution, x: Array, g: Array) -> Array:
    xs, gs = _split_groups(attrs, x), _split_groups(attrs, g)
    samples, groups, channels = xs.shape[:3]
    view, taps = windows(attrs, xs), 2 + attrs.rank
    total = np.zeros((groups, gs.shape[2], channels * prod(attrs.kernel)), x.dtype)
    for first, *box in _parts(attrs, samples, groups * channels, x.dtype):
        cells = view[(first, *(slice(None),) * taps, *box)]
        columns = _cells(np.moveaxis(cells, 0, taps), 1 + attrs.rank)
        cotangents = _cells(np.moveaxis(gs[(first, slice(None), slice(None), *box)], 0, 2), 1 + attrs.rank)
        total += cotangents @ columns.reshape(groups, total.shape[2], columns.shape[-1]).swapaxes(-1, -2)
    return total.reshape(groups * gs.shape[2], channels, *attrs.kernel)


KERNELS: dict[str, Callable[..., Any]] = {
    "max_pool": _max_pool,
    "max_pool_gather": _max_pool_gather,
    "max_pool_scatter": _max_pool_scatter,
    "avg_pool": _avg_pool,
    "avg_pool_transpose": _avg_pool_transpose,
    "unfold": _unfold,
    "fold": _fold,
    "conv": _read,
    "conv_transpose": _write,
    "conv_weight_grad": _compare,
}
