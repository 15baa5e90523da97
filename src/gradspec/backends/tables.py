"""Windows as integer arrays: the geometry of ``spec.window`` in the form that array code gathers with."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradspec.spec.window import Adaptive, AxisWindow, Regular, Window
from gradspec.system.machine import machine_bytes

PADDING, ABSENT = -1, -2
"""A tap that reads padding; a tap that a shorter window does not have."""

MANY_TAPS = 1 << 25
"""From which on it is asked how much memory there is."""

Ints = NDArray[np.int64]


def table(window: Window, outputs: range | None = None) -> Ints:
    """``[output, tap]``: the flat position each tap reads, PADDING or ABSENT; of all outputs, or of a range of them.

    >>> from gradspec.spec.window import regular
    >>> table(regular((3,), (2,), stride=1, padding=1)).tolist()
    [[-1, 0], [0, 1], [1, 2], [2, -1]]
    """
    wanted = np.asarray(range(prod(window.outputs)) if outputs is None else outputs, np.int64)
    taps = np.zeros((len(wanted), 1), np.int64)
    inner_outputs = prod(window.outputs)
    for axis in window.axes:
        inner_outputs //= axis.outputs
        inner = axis_table(axis)[wanted // inner_outputs % axis.outputs][:, None, :]
        outer = taps[:, :, None]
        both = np.minimum(outer, inner)
        taps = np.where(both >= 0, outer * axis.size + inner, both).reshape(len(wanted), taps.shape[1] * inner.shape[2])
    return taps


def axis_table(axis: AxisWindow) -> Ints:
    """The table of a window of one axis."""
    taps = axis.outputs * (axis.kernel if isinstance(axis, Regular) else 1)
    if taps > MANY_TAPS and (size := 4 * 8 * taps) > (there := machine_bytes()):  # four arrays of them at a time
        raise MemoryError(
            f"a list of the {taps:,} taps of an axis needs {size:,} bytes of memory, and there are {there:,}; give "
            "smaller windows"
        )
    counts = counted_taps(axis)
    starts = bin_spans(axis)[:, 0] if isinstance(axis, Adaptive) else _starts(axis)
    tap = np.arange(int(counts.max()))
    places = starts[:, None] + tap * (1 if isinstance(axis, Adaptive) else axis.dilation)
    read = np.where((places >= 0) & (places < axis.size), places, PADDING).astype(np.int64)
    return np.where(tap < counts[:, None], read, ABSENT)


def readers(taps: Ints, cells: int) -> Ints:
    """``[cell, tap]``: the output whose tap reads the cell, or PADDING. (In a regular window there is one at most.)"""
    found = np.full((cells, taps.shape[1]), PADDING, np.int64)
    outputs, numbers = np.nonzero(taps >= 0)
    found[taps[outputs, numbers], numbers] = outputs
    return found


def hits(targets: Ints, cells: int) -> Ints:
    """``[cell, j]``: the flat places in ``targets`` that name the cell, in order, padded with PADDING.

    >>> hits(np.array([2, 0, -1, 2]), 3).tolist()
    [[1, -1], [-1, -1], [0, 3]]
    """
    places = np.flatnonzero(targets.ravel() >= 0)
    named = targets.ravel()[places]
    order = np.argsort(named, kind="stable")
    named, places = named[order], places[order]
    counts = np.bincount(named, minlength=cells)
    found = np.full((cells, max(int(counts.max(initial=0)), 1)), PADDING, np.int64)
    starts = np.cumsum(counts) - counts
    found[named, np.arange(len(named)) - starts[named]] = places
    return found


def take(values: NDArray[Any], places: Ints, fill: Any = 0) -> NDArray[Any]:
    """``values[..., places]``, with ``fill`` where the place is negative."""
    extended = np.concatenate([values, np.full((*values.shape[:-1], 1), fill, values.dtype)], axis=-1)
    return np.take(extended, np.where(places >= 0, places, values.shape[-1]), axis=-1)


# --- one axis ---------------------------------------------------------------------------------------------------------


def counted_taps(axis: AxisWindow) -> Ints:
    """The taps of each output, padding included.

    >>> counted_taps(Regular(size=5, kernel=3, stride=2, lo=1, hi=0, dilation=1, outputs=3)).tolist()
    [3, 3, 2]
    """
    if isinstance(axis, Adaptive):
        return bin_spans(axis)[:, 1]
    start = _starts(axis)
    return np.asarray(np.minimum(axis.kernel, -((start - axis.size - axis.hi) // axis.dilation)), np.int64)


def _starts(axis: Regular) -> NDArray[Any]:
    """Where the window of each output begins: Python's integers where the machine's are too short."""
    ends = axis.size + axis.hi + axis.outputs * axis.stride + axis.kernel * axis.dilation
    return np.arange(axis.outputs, dtype=object if ends >> 62 else np.int64) * axis.stride - axis.lo


def real_cells(axis: AxisWindow) -> Ints:
    """The real cells of each output.

    >>> real_cells(Regular(size=5, kernel=3, stride=2, lo=1, hi=0, dilation=1, outputs=3)).tolist()
    [2, 3, 2]
    """
    if isinstance(axis, Adaptive):
        return counted_taps(axis)
    start = _starts(axis)
    first = np.maximum(0, -(start // axis.dilation))
    end = np.minimum(axis.kernel, -((start - axis.size) // axis.dilation))
    return np.asarray(np.maximum(end - first, 0), np.int64)


def bin_spans(axis: Adaptive) -> Ints:
    """Where each bin begins, and how many cells it has.

    >>> bin_spans(Adaptive(size=5, outputs=3)).tolist()
    [[0, 2], [1, 3], [3, 2]]
    """
    o = np.arange(axis.outputs)
    starts = o * axis.size // axis.outputs
    return np.stack([starts, -(-(o + 1) * axis.size // axis.outputs) - starts], axis=1)


def tap_ranges(axis: Regular) -> Ints:
    """For each tap the cell of output 0, the first output whose cell is real, and the end of these.

    >>> tap_ranges(Regular(size=5, kernel=3, stride=2, lo=1, hi=1, dilation=1, outputs=3)).tolist()
    [[-1, 1, 3], [0, 0, 3], [1, 0, 2]]
    """
    start = np.arange(axis.kernel) * axis.dilation - axis.lo
    first = np.clip(-(start // axis.stride), 0, axis.outputs)
    end = np.clip(-((start - axis.size) // axis.stride), first, axis.outputs)
    return np.ascontiguousarray(np.stack([start, first, end], axis=1), np.int64)


def cell_readers(axis: Regular) -> tuple[Ints, Ints]:
    """Where the readers of each cell begin, and where the last ones end; and the readers, pairs of a tap and an output,
    in the order of the taps."""
    ranges = tap_ranges(axis)
    taps = np.repeat(np.arange(axis.kernel), ranges[:, 2] - ranges[:, 1])
    outputs = np.concatenate([np.arange(first, end) for _, first, end in ranges])
    cells = ranges[taps, 0] + outputs * axis.stride
    order = np.argsort(cells, kind="stable")
    starts = np.searchsorted(cells[order], np.arange(axis.size + 1))
    return starts.astype(np.int64), np.stack([taps[order], outputs[order]], axis=1).astype(np.int64)
