"""Windows in ONNX, gathered axis by axis and read backwards, and resizing by the same tables.

A window is a product of axis windows, so its cells are gathered one axis at a time by small tables of places. A table
row that names fewer cells than others is filled with a place one beyond the end, where a cell of padding is put.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from gradspec.interop.onnx.emit.emitter import NONE, Array, Emitter, OnnxValue
from gradspec.interop.onnx.emit.table import emits
from gradspec.ops.resize import Resize
from gradspec.spec.resize import Axis, axis_taps
from gradspec.spec.window import Adaptive, AxisWindow, Regular, Window

NATIVE_RANKS = (1, 2, 3)
"""The numbers of spatial axes that runtimes pool over."""


# --- tables -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """For each output of an axis the places it reads, and their weights; ``size`` is a place without a cell."""

    size: int
    places: Array
    weights: Array | None = None

    @property
    def overruns(self) -> bool:
        return bool((self.places == self.size).any())


def table(size: int, rows: Sequence[Sequence[int]], weights: Sequence[Sequence[float]] | None = None) -> Table:
    """Rows of any lengths as a table; what fills them up has weight 0."""
    width = max(map(len, rows))
    shares = None if weights is None else _fill(weights, width, 0.0, np.dtype(np.float64))
    return Table(size, _fill(rows, width, size, np.dtype(np.int64)), shares)


def _fill(rows: Sequence[Sequence[Any]], width: int, filler: float, dtype: np.dtype[Any]) -> Array:
    filled = np.full((len(rows), width), filler, dtype)
    for i, row in enumerate(rows):
        filled[i, : len(row)] = row
    return filled


def taps(axis: AxisWindow) -> Table:
    """The cells that each window reads along an axis."""
    rows = [[p if 0 <= p < axis.size else axis.size for p in axis.positions(o)] for o in range(axis.outputs)]
    return table(axis.size, rows)


def belonging(axis: AxisWindow) -> Array:
    """Which taps belong to each window, padding included: ceil_mode and bins cut some windows short."""
    lengths = [len(axis.positions(o)) for o in range(axis.outputs)]
    return np.arange(max(lengths)) < np.array(lengths)[:, None]


def real(axis: AxisWindow) -> Array:
    """Which taps are cells."""
    return np.asarray(taps(axis).places < axis.size)


def readers(places: Array, size: int) -> list[list[int]]:
    """A table read backwards: for every cell, the entries that name it, numbered row by row."""
    entries: list[list[int]] = [[] for _ in range(size + 1)]
    for entry, place in enumerate(places.ravel().tolist()):
        entries[place].append(entry)
    return entries[:size]


# --- cells of windows, and sums over them -----------------------------------------------------------------------------


def _pad_for_tables(e: Emitter, x: OnnxValue, tables: Sequence[Table], filler: float) -> OnnxValue:
    """``x`` with one more cell at the end of each axis whose table names it."""
    lead = x.ndim - len(tables)
    return e.pad(x, [(0, 0)] * lead + [(0, int(t.overruns)) for t in tables], filler)


def gather_windows(e: Emitter, x: OnnxValue, window: Window, filler: float = 0) -> OnnxValue:
    """Every window's cells, ``(*lead, *outputs, taps)``, in row-major order, with ``filler`` where there is none."""
    lead, tables = x.ndim - window.rank, [taps(axis) for axis in window.axes]
    y = _pad_for_tables(e, x, tables, filler)
    for axis, t in reversed(list(enumerate(tables))):
        y = e.gather(y, t.places, lead + axis)
    order = [*range(lead), *range(lead, y.ndim, 2), *range(lead + 1, y.ndim, 2)]
    return e.reshape(e.transpose(y, order), (*x.shape[:lead], *window.outputs, prod(t.places.shape[1] for t in tables)))


def max_over_windows(e: Emitter, x: OnnxValue, window: Window) -> OnnxValue:
    """The largest cell of each window, one axis after another; every window has a cell.

    A tap without a cell reads the window's first one again, which changes no maximum.
    """
    lead = x.ndim - window.rank
    for axis, along in enumerate(window.axes, lead):
        places, cells = taps(along).places, real(along)
        first = np.take_along_axis(places, cells.argmax(axis=1, keepdims=True), axis=1)
        x = e.reduce("ReduceMax", e.gather(x, np.where(cells, places, first), axis), [axis + 1])
    return x


def mask(e: Emitter, axes: Sequence[Array]) -> OnnxValue | None:
    """The taps ``(*outputs, taps)`` that all axes agree on; None if they are all of them."""
    if all(axis.all() for axis in axes):
        return None
    parts = [e.constant(_lay_out(axis, i, len(axes))) for i, axis in enumerate(axes)]
    agreed = reduce(lambda a, b: e.cells("And", a, b), parts)
    return e.reshape(agreed, (*(axis.shape[0] for axis in axes), prod(axis.shape[1] for axis in axes)))


def _lay_out(axis: Array, i: int, rank: int) -> Array:
    """The outputs and taps of one axis among those of all axes, the outputs before the taps."""
    shape = [1] * 2 * rank
    shape[i], shape[rank + i] = axis.shape
    return axis.reshape(shape)


def combine(e: Emitter, x: OnnxValue, tables: Sequence[Table]) -> OnnxValue:
    """Along the last axes, the weighted sums that the tables say, one axis after another."""
    lead = x.ndim - len(tables)
    y = _pad_for_tables(e, x, tables, 0)
    for axis, t in enumerate(tables, lead):
        cells = e.gather(y, t.places, axis)
        if t.weights is not None:
            shares = t.weights.reshape(*t.weights.shape, *(1,) * (y.ndim - axis - 1))
            cells = e.cells("Mul", cells, e.constant(shares, x.dtype))
        y = e.reduce("ReduceSum", cells, [axis + 1])
    return y


def sum_over_windows(e: Emitter, x: OnnxValue, window: Window) -> OnnxValue:
    """The sum of each window's cells."""
    return combine(e, x, [taps(axis) for axis in window.axes])


def spread_to_cells(e: Emitter, shares: OnnxValue, window: Window) -> OnnxValue:
    """The transpose of ``gathered``: ``shares (*lead, *outputs, taps)`` added up in the cells that the taps read."""
    lead = shares.ndim - window.rank - 1
    places = [taps(axis).places for axis in window.axes]
    split = e.reshape(shares, (*shares.shape[:-1], *(p.shape[1] for p in places)))
    pairs = [lead + axis + half * window.rank for axis in range(window.rank) for half in (0, 1)]
    merged = e.reshape(e.transpose(split, [*range(lead), *pairs]), (*shares.shape[:lead], *(p.size for p in places)))
    return combine(e, merged, [table(p.size, readers(p, n)) for p, n in zip(places, window.sizes, strict=True)])


def spread_evenly(e: Emitter, g: OnnxValue, window: Window) -> OnnxValue:
    """The transpose of ``sums``: each cell's sum over the windows that read it."""
    return combine(e, g, [_windows_of_cells(axis) for axis in window.axes])


def _windows_of_cells(axis: AxisWindow) -> Table:
    places = taps(axis).places
    return table(len(places), [[entry // places.shape[1] for entry in row] for row in readers(places, axis.size)])


# --- windows as ONNX's own pooling has them ---------------------------------------------------------------------------


@dataclass(frozen=True)
class NativePooling:
    """A pooling node's attributes; does it need more padding than the graph has; is every window the whole plane?"""

    attributes: dict[str, list[int]]
    extended: bool
    whole: bool


def native_pooling(window: Window) -> NativePooling | None:
    """The windows as a pooling node's attributes; None where ONNX or its runtimes have no such windows.

    Instead of ceil_mode, whose last window implementations do not agree on, there is as much padding as it needs.
    Padding is narrower than the kernel, and every window has a cell.
    """
    axes = [regular for axis in window.axes if (regular := _as_regular(axis)) is not None and _is_native(regular)]
    if len(axes) not in NATIVE_RANKS or len(axes) < window.rank:
        return None
    ends = [_needed(axis) for axis in axes]
    pads = [axis.lo for axis in axes] + ends
    attributes = {"kernel_shape": [a.kernel for a in axes], "strides": [a.stride for a in axes], "pads": pads}
    if any(axis.dilation > 1 for axis in axes):
        attributes["dilations"] = [axis.dilation for axis in axes]
    extended = any(end > axis.hi for end, axis in zip(ends, axes, strict=True))
    return NativePooling(attributes, extended, all(isinstance(a, Adaptive) and a.outputs == 1 for a in window.axes))


def _as_regular(axis: AxisWindow) -> Regular | None:
    if isinstance(axis, Adaptive):
        width, rest = divmod(axis.size, axis.outputs)
        return None if rest else Regular(axis.size, width, width, 0, 0, 1, axis.outputs)
    return axis


def _needed(axis: Regular) -> int:
    """Padding at the high end, enough for the last window."""
    return max(axis.hi, (axis.outputs - 1) * axis.stride + axis.dilation * (axis.kernel - 1) + 1 - axis.size - axis.lo)


def _is_native(axis: Regular) -> bool:
    return max(axis.lo, _needed(axis)) < axis.kernel and bool(real(axis).any(axis=1).all())


def as_planes(e: Emitter, x: OnnxValue, rank: int) -> OnnxValue:
    """``x`` with two leading axes, which ONNX calls batch and channels."""
    lead = x.shape[: x.ndim - rank]
    return x if len(lead) == 2 else e.reshape(x, (1, prod(lead), *x.shape[x.ndim - rank :]))


# --- resizing ---------------------------------------------------------------------------------------------------------
#
# ONNX computes the positions of a Resize in floating point, where ours are rational. The node is written where every
# position is exact in either; otherwise the cells are gathered by tables and weighed.


@emits("resize")
def resize(e: Emitter, attrs: Resize, x: OnnxValue) -> OnnxValue:
    if _is_native_resize(attrs, x):
        return _resize_natively(e, attrs, x)
    if attrs.mode == "linear":
        return combine(e, x, [_taps_of_outputs(axis) for axis in attrs.axes])
    for i, axis in enumerate(attrs.axes, x.ndim - len(attrs.sizes)):
        x = e.gather(x, _taps_of_outputs(axis).places[:, 0], i)
    return x


@emits("resize_transpose")
def resize_transpose(e: Emitter, attrs: Resize, g: OnnxValue) -> OnnxValue:
    return combine(e, g, [_readers_of_cells(axis) for axis in attrs.axes])


def _taps_of_outputs(axis: Axis) -> Table:
    """The cells that each output reads."""
    rows = axis_taps(axis)
    return table(axis.size, [[i for i, _ in row] for row in rows], [[float(w) for _, w in row] for row in rows])


def _readers_of_cells(axis: Axis) -> Table:
    """The outputs that read each cell."""
    rows: list[list[tuple[int, Fraction]]] = [[] for _ in range(axis.size)]
    for o, row in enumerate(axis_taps(axis)):
        for i, w in row:
            rows[i].append((o, w))
    return table(axis.outputs, [[o for o, _ in row] for row in rows], [[float(w) for _, w in row] for row in rows])


def _is_native_resize(attrs: Resize, x: OnnxValue) -> bool:
    """Whether ONNX has these positions, exactly: the default ones of steps that are powers of two."""
    usual = attrs.step is None and attrs.rounding == "floor" and not attrs.align_corners
    ranks = NATIVE_RANKS if attrs.mode == "nearest" else (2,)
    fits = len(attrs.sizes) in ranks and x.ndim == len(attrs.sizes) + 2
    return usual and fits and all(_is_power_of_two(axis.step) for axis in attrs.axes)


def _is_power_of_two(step: Fraction) -> bool:
    numerator, denominator = step.numerator, step.denominator
    return not numerator & (numerator - 1) and not denominator & (denominator - 1)


def _resize_natively(e: Emitter, attrs: Resize, x: OnnxValue) -> OnnxValue:
    shape = (*x.shape[:2], *attrs.outputs)
    modes = {"coordinate_transformation_mode": "half_pixel"}
    if attrs.mode == "nearest":
        modes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return e.node("Resize", [x, NONE, NONE, e.indices(shape)], shape, x.dtype, mode=attrs.mode, **modes)
