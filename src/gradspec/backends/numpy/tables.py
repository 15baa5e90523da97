"""Windows as integer arrays: the geometry of ``spec.window`` in the form that array code gathers with."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradspec.spec.window import AxisWindow, Window

PADDING, ABSENT = -1, -2
"""A tap that reads padding; a tap that a shorter window does not have."""

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
        inner = _axis_table(axis)[wanted // inner_outputs % axis.outputs][:, None, :]
        outer = taps[:, :, None]
        both = np.minimum(outer, inner)
        taps = np.where(both >= 0, outer * axis.size + inner, both).reshape(len(wanted), taps.shape[1] * inner.shape[2])
    return taps


def _axis_table(axis: AxisWindow) -> Ints:
    spans = [np.asarray(axis.positions(o), np.int64) for o in range(axis.outputs)]
    taps = np.full((axis.outputs, max(map(len, spans))), ABSENT, np.int64)
    for row, span in zip(taps, spans, strict=True):
        row[: len(span)] = np.where((span >= 0) & (span < axis.size), span, PADDING)
    return taps


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
