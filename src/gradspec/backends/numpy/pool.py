"""Pooling kernels: blocks of windows gathered through index tables, so that memory stays bounded in any geometry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradspec.backends.numpy.namespace import NUMPY
from gradspec.backends.tables import Ints, counted_taps, real_cells, table, take
from gradspec.backends.xp.gather import as_planes, gather_cells, not_in_plane
from gradspec.spec.window import AxisWindow, Window

Array = NDArray[Any]

BLOCK = 1 << 20
"""How many cells are gathered at a time, about."""


def _blocks(planes: int, window: Window) -> Iterator[tuple[slice, slice, Ints]]:
    """Some planes, some outputs, and the taps of these outputs; every plane meets its outputs in order."""
    outputs, taps = prod(window.outputs), table(window, range(1)).shape[1]
    rows = max(BLOCK // taps, 1)
    for start in range(0, outputs, rows):
        places = table(window, range(start, min(start + rows, outputs)))
        step = max(BLOCK // places.size, 1)
        for first in range(0, planes, step):
            yield slice(first, first + step), slice(start, start + len(places)), places


def reduced(window: Window, reduce: Callable[..., Array], *arrays: Array, dtype: Any = None) -> Array:
    """One number per window: ``reduce(taps, *planes)`` gives ``[plane, output]`` of a block."""
    x, planes = arrays[0], [as_planes(a, window.rank) for a in arrays]
    found = np.empty((len(planes[0]), prod(window.outputs)), x.dtype if dtype is None else dtype)
    for some, outputs, taps in _blocks(len(found), window):
        found[some, outputs] = reduce(taps, *(p[some] for p in planes))
    return found.reshape(x.shape[: x.ndim - window.rank] + window.outputs)


def scattered(window: Window, spread: Callable[..., tuple[Array, Array]], g: Array, *arrays: Array) -> Array:
    """What cells receive: ``spread(taps, cotangents, *planes)`` says which taps do (a mask) and how much each."""
    cotangents, planes = as_planes(g, window.rank), [as_planes(a, window.rank) for a in arrays]
    received = np.zeros((len(cotangents), prod(window.sizes)), g.dtype)
    for some, outputs, taps in _blocks(len(received), window):
        mask, share = spread(taps, cotangents[some, outputs, None], *(p[some] for p in planes))
        some_received = received[some]
        shape = (len(some_received), *taps.shape)
        flat = (len(some_received), taps.size)
        places = np.broadcast_to(np.where(mask, taps, -1), shape).reshape(flat)
        _add_at(some_received, places, np.broadcast_to(share, shape).reshape(flat))
    return received.reshape(g.shape[: g.ndim - window.rank] + window.sizes)


def _add_at(planes: Array, places: Ints, values: Array) -> None:
    """Add ``values`` to each plane at its places, in order; negative places receive nothing."""
    kept = places >= 0
    starts = np.arange(len(planes))[:, None] * planes.shape[1]
    np.add.at(planes.reshape(-1), (places + starts)[kept], values[kept])


# --- gather and scatter -----------------------------------------------------------------------------------------------


def scatter(x: Array, places: Ints, sizes: tuple[int, ...]) -> Array:
    lead = x.shape[: x.ndim - len(sizes)]
    planes = np.zeros((prod(lead), prod(sizes)), x.dtype)
    _add_at(planes, as_planes(places, len(sizes)), as_planes(x, len(sizes)))
    return planes.reshape(lead + sizes)


def require_in_plane(places: Array, cells: int) -> None:
    """An index outside the plane is an error, whatever else the array holds.

    >>> require_in_plane(np.array([0, 4, -1]), 4)
    Traceback (most recent call last):
        ...
    gradspec.spec.errors.ShapeError: index 4 lies outside a plane of 4 cells; give 0 to 3, or -1 for none
    """
    if places.size and (places.min() < -1 or places.max() >= cells):
        raise not_in_plane(places[(places < -1) | (places >= cells)][0], cells)


def _max_unpool(attrs: Any, x: Array, places: Array) -> Array:
    cells = prod(attrs.output_size)
    return scatter(x, NUMPY.checked(places, cells, not_in_plane, least=-1), attrs.output_size)


# --- the maximum ------------------------------------------------------------------------------------------------------


def _tied(taps: Ints, planes: Array) -> NDArray[np.bool_]:
    """``[plane, output, tap]``: the real cells that no cell of their window exceeds; NaNs, if there is one."""
    lowest = -np.inf if planes.dtype.kind == "f" else np.iinfo(planes.dtype).min
    cells = take(planes, taps, lowest)
    top = cells.max(axis=-1, keepdims=True)  # NaN if a cell is, and then only NaNs differ from themselves
    tied: NDArray[np.bool_] = (taps >= 0) & ((cells == top) | (cells != cells))
    return tied


def _first_of_the_tied(taps: Ints, planes: Array) -> Ints:
    tied = _tied(taps, planes)
    first = np.take_along_axis(np.broadcast_to(taps, tied.shape), tied.argmax(axis=-1)[..., None], axis=-1)[..., 0]
    return np.where(tied.any(axis=-1), first, -1)


def _winners(window: Window, x: Array) -> Ints:
    return reduced(window, _first_of_the_tied, x, dtype=np.int64)


def _max_pool(attrs: Any, x: Array) -> Any:
    window = attrs.window(x).trimmed()
    winners = _winners(window, x)
    values = gather_cells(NUMPY, x, winners, window.rank)
    return (values, winners) if attrs.return_indices else values


def _max_pool_push(attrs: Any, x: Array, dx: Array) -> Any:
    window = attrs.window(x).trimmed()
    if attrs.ties == "first":
        return gather_cells(NUMPY, dx, _winners(window, x), window.rank)

    def push(taps: Ints, planes: Array, tangents: Array) -> Array:
        tied = _tied(taps, planes)
        total: Array = np.where(tied, take(tangents, taps), 0).sum(axis=-1, dtype=dx.dtype)
        return total if attrs.ties == "all" else total / _counts(tied, dx.dtype)

    return reduced(window, push, x, dx)


def _max_pool_pull(attrs: Any, x: Array, g: Array) -> Array:
    window = attrs.window(x).trimmed()
    if attrs.ties == "first":
        return scatter(g, _winners(window, x), window.sizes)

    def pull(taps: Ints, cotangents: Array, planes: Array) -> tuple[Array, Array]:
        tied = _tied(taps, planes)
        return tied, cotangents if attrs.ties == "all" else cotangents / _counts(tied, g.dtype)[..., None]

    return scattered(window, pull, g, x)


def _counts(mask: NDArray[np.bool_], dtype: Any) -> Array:
    """How many taps of each window are counted; 1 for none, so that it can be divided by."""
    counts: Array = np.maximum(mask.sum(axis=-1), 1).astype(dtype)
    return counts


# --- the average ------------------------------------------------------------------------------------------------------


def _counted(window: Window, count: Callable[[AxisWindow], Ints]) -> Array:
    """What is counted along each axis, for the outputs of a plane."""
    each = np.ix_(*(count(axis) for axis in window.axes))
    return np.asarray(prod(each, start=np.float64(1)))


def has_cells(window: Window) -> NDArray[np.bool_]:
    """Which outputs of a plane have a real cell."""
    return _counted(window, real_cells) > 0


def divisors(attrs: Any, window: Window, dtype: Any) -> Array:
    """Of the outputs of a plane; 1 where there is nothing to divide."""
    if attrs.divisor_override is not None:
        return np.full(window.outputs, attrs.divisor_override, dtype)
    counts = _counted(window, counted_taps if attrs.count_include_pad else real_cells)
    return np.asarray(np.maximum(counts, 1), dtype)


def _avg_pool(attrs: Any, x: Array) -> Array:
    def total(taps: Ints, planes: Array) -> Array:
        return np.asarray(take(planes, taps).sum(axis=-1, dtype=x.dtype))

    window = attrs.window(x)
    means = reduced(window.trimmed(), total, x) / divisors(attrs, window, x.dtype)
    return np.where(has_cells(window), means, 0)


def _avg_pool_spread(attrs: Any, g: Array) -> Array:
    def spread(taps: Ints, cotangents: Array) -> tuple[Array, Array]:
        return taps >= 0, cotangents

    window = attrs.window(np.broadcast_to(g.dtype.type(0), attrs.sizes))
    return scattered(window.trimmed(), spread, g / divisors(attrs, window, g.dtype))


KERNELS: dict[str, Callable[..., Any]] = {
    "max_pool": _max_pool,
    "max_pool_push": _max_pool_push,
    "max_pool_pull": _max_pool_pull,
    "avg_pool": _avg_pool,
    "avg_pool_spread": _avg_pool_spread,
    "max_unpool": _max_unpool,
}
