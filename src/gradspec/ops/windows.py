"""Windows made of gathers and sums, axis by axis: what operators over windows decompose into.

A window is a product of axis windows, so its cells are gathered one axis at a time by small tables of places. A place
one beyond the end names no cell: there, a cell of padding is put.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod

import numpy as np

from gradspec.graph.ir import Array, Var
from gradspec.ops.gather import take
from gradspec.ops.layout import pad, transpose
from gradspec.ops.pointwise import minimum
from gradspec.ops.shape import reshape, sum
from gradspec.spec.window import AxisWindow, Window

Rows = Sequence[Sequence[int]]


def table(rows: Rows, filler: int) -> Array:
    """Rows of any lengths as an array.

    >>> table([[1], [2, 3]], 9).tolist()
    [[1, 9], [2, 3]]
    """
    filled = np.full((len(rows), max(map(len, rows), default=0)), filler, np.int64)
    for i, row in enumerate(rows):
        filled[i, : len(row)] = row
    return filled


def taps(axis: AxisWindow) -> Array:
    """``[output, tap]``: the cells that each window reads along an axis; the size of the axis where it reads none.

    >>> from gradspec.spec.window import regular
    >>> taps(regular((3,), (2,), 1, 1).axes[0]).tolist()
    [[3, 0], [0, 1], [1, 2], [2, 3]]
    """
    places = ([p if 0 <= p < axis.size else axis.size for p in axis.positions(o)] for o in range(axis.outputs))
    return table(list(places), axis.size)


def are_cells(axis: AxisWindow) -> Array:
    """Which taps are cells."""
    return np.asarray(taps(axis) < axis.size)


def are_taps(axis: AxisWindow) -> Array:
    """Which taps belong to each window, padding included: ceil_mode and bins cut some windows short."""
    lengths = [len(axis.positions(o)) for o in range(axis.outputs)]
    return np.arange(max(lengths)) < np.array(lengths)[:, None]


def competitors(axis: AxisWindow, counted: Array) -> Array:
    """``taps``, with the first that is counted in the place of those that are not."""
    places = taps(axis)
    return np.where(counted, places, np.take_along_axis(places, counted.argmax(axis=1, keepdims=True), axis=1))


def readers(places: Array, size: int) -> Rows:
    """A table read backwards: for every cell, the entries that name it, numbered row by row.

    >>> readers(np.array([[0, 1], [1, 2]]), 2)
    [[0], [1, 2]]
    """
    entries: list[list[int]] = [[] for _ in range(size + 1)]
    for entry, place in enumerate(places.ravel().tolist()):
        entries[place].append(entry)
    return entries[:size]


# --- cells ------------------------------------------------------------------------------------------------------------


def gather_windows(x: Var, window: Window, filler: int = 0) -> Var:
    """Every window's cells, ``(*lead, *outputs, taps)``, in row-major order, with ``filler`` where there is none."""
    return _gather(x, [taps(axis) for axis in window.axes], filler)


def gather_competitors(x: Var, window: Window, counted: Sequence[Array]) -> Var:
    """As ``gather_windows``; a tap that is not counted reads the first one that is again, which changes no maximum."""
    return _gather(x, [competitors(*axis) for axis in zip(window.axes, counted, strict=True)], 0)


def _gather(x: Var, tables: Sequence[Array], filler: int) -> Var:
    lead, outputs = x.ndim - len(tables), [t.shape[0] for t in tables]
    y = _pad_for_tables(x, tables, filler)
    for axis, places in reversed([*enumerate(tables, lead)]):
        y = take(y, places, axis)
    y = transpose(y, [*range(lead), *range(lead, y.ndim, 2), *range(lead + 1, y.ndim, 2)])
    return reshape(y, (*x.shape[:lead], *outputs, prod(t.shape[1] for t in tables)))


def _pad_for_tables(x: Var, tables: Sequence[Array], filler: int = 0) -> Var:
    """``x`` with one more cell at the end of each axis whose table names it."""
    sizes = x.shape[x.ndim - len(tables) :]
    ends = [(0, int((places == n).any())) for places, n in zip(tables, sizes, strict=True)]
    return pad(x, [(0, 0)] * (x.ndim - len(tables)) + ends, filler)


def mask(like: Var, axes: Sequence[Array]) -> Var | None:
    """The taps ``(*outputs, taps)`` that all axes agree on; None if they are all of them."""
    if all(axis.all() for axis in axes):
        return None
    parts = []
    for i, axis in enumerate(axes):
        shape = [1] * 2 * len(axes)
        shape[i], shape[len(axes) + i] = axis.shape
        parts.append(like.owner.share(axis.reshape(shape), "counted"))
    agreed = reduce(minimum, parts)
    return reshape(agreed, (*(axis.shape[0] for axis in axes), prod(axis.shape[1] for axis in axes)))


# --- sums -------------------------------------------------------------------------------------------------------------


def _add_up(x: Var, tables: Sequence[Array]) -> Var:
    """Along the last axes the sums of the cells that the rows of the tables name, one axis after another."""
    lead, x = x.ndim - len(tables), _pad_for_tables(x, tables)
    for axis, places in enumerate(tables, lead):
        x = sum(take(x, places, axis), axis + 1)
    return x


def sum_windows(x: Var, window: Window) -> Var:
    """The sum of each window's cells."""
    return _add_up(x, [taps(axis) for axis in window.axes])


def spread_windows(g: Var, window: Window) -> Var:
    """The transpose of ``sum_windows``: each cell's sum over the windows that read it."""
    tables = []
    for axis in window.axes:
        places = taps(axis)
        windows = [[entry // places.shape[1] for entry in row] for row in readers(places, axis.size)]
        tables.append(table(windows, axis.outputs))
    return _add_up(g, tables)


def scatter_windows(shares: Var, window: Window) -> Var:
    """The transpose of ``gather_windows``: ``shares (*lead, *outputs, taps)`` added up in the cells that taps read."""
    lead, rank = shares.ndim - window.rank - 1, window.rank
    places = [taps(axis) for axis in window.axes]
    split = reshape(shares, (*shares.shape[:-1], *(p.shape[1] for p in places)))
    pairs = [lead + axis + half * rank for axis in range(rank) for half in (0, 1)]
    merged = reshape(transpose(split, [*range(lead), *pairs]), (*shares.shape[:lead], *(p.size for p in places)))
    return _add_up(merged, [table(readers(p, n), p.size) for p, n in zip(places, window.sizes, strict=True)])
