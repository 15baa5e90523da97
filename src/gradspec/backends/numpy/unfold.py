"""Windows of an array: gathered as a strided view, and added back tap by tap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from gradspec.graph.ir import Array
from gradspec.ops.conv import StatedWindows


def windows(geometry: StatedWindows, x: Array) -> Array:
    """A view ``(*lead, *kernel, *outputs)`` of ``x (*lead, *sizes)``, which is copied only to pad it."""
    if _reaches_far(geometry):
        return _gathered(geometry, x)
    lead, rank = x.shape[: x.ndim - geometry.rank], geometry.rank
    missing = zip(_extents(geometry), geometry.sizes, geometry.padding, strict=True)
    pads = [(lo, max(extent - n - lo, 0)) for extent, n, (lo, _) in missing]
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
    read = zip(_extents(geometry), geometry.sizes, geometry.kernel, geometry.outputs, strict=True)
    return any(extent > n + 8 * k * o for extent, n, k, o in read)


def _places(geometry: StatedWindows) -> list[NDArray[np.int64]]:
    """``[tap, output]`` of each axis: the cell that is read there, and of padding the one behind the last cell."""
    found = []
    for axis, taps in zip(geometry.window.axes, geometry.kernel, strict=True):
        cells = [p if 0 <= p < axis.size else axis.size for o in range(axis.outputs) for p in axis.positions(o)]
        found.append(np.array(cells, np.int64).reshape(axis.outputs, taps).T)
    return found


def _gathered(geometry: StatedWindows, x: Array) -> Array:
    rank = geometry.rank
    padded = np.pad(x, [(0, 0)] * (x.ndim - rank) + [(0, 1)] * rank)
    shapes = (
        [n if i % rank == axis else 1 for i, n in enumerate((*geometry.kernel, *geometry.outputs))]
        for axis in range(rank)
    )
    index: Any = [place.reshape(shape) for place, shape in zip(_places(geometry), shapes, strict=True)]
    return padded[(..., *index)]


def add_windows(
    geometry: StatedWindows, lead: tuple[int, ...], dtype: Any, parts: Iterator[tuple[Any, Array]]
) -> Array:
    """The transpose of ``windows``: ``(index, values)`` of its view, part by part, added onto ``(*lead, *sizes)``.

    An index has one slice for the first leading axis and one for each output axis.
    """
    if _reaches_far(geometry):
        return _add_gathered(geometry, lead, dtype, parts)
    padded = np.zeros((*lead, *_extents(geometry)), dtype)
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


def _add_gathered(
    geometry: StatedWindows, lead: tuple[int, ...], dtype: Any, parts: Iterator[tuple[Any, Array]]
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


def _extents(geometry: StatedWindows) -> list[int]:
    """How far a padded axis reaches: to its last cell or its last tap, whichever is further."""
    axes = zip(geometry.kernel, geometry.stride, geometry.dilation, geometry.outputs, strict=True)
    reach = [(o - 1) * s + d * (k - 1) + 1 for k, s, d, o in axes]
    cells = zip(geometry.sizes, geometry.padding, reach, strict=True)
    return [max(lo + n, last) for n, (lo, _), last in cells]


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


KERNELS: dict[str, Callable[..., Any]] = {"unfold": _unfold, "fold": _fold}
