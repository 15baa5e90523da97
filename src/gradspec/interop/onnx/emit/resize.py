"""Resizing.

ONNX computes the positions of a Resize in floating point, where ours are rational. The node is written where every
position is exact in either; otherwise the cells are gathered by tables and weighed.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from gradspec.interop.onnx.emit.emitter import NONE, Emitter, OnnxValue
from gradspec.interop.onnx.emit.pool import NATIVE_RANKS
from gradspec.interop.onnx.emit.table import emits
from gradspec.ops.resize import Resize
from gradspec.spec.resize import Axis, axis_taps

Rows = Sequence[Sequence[tuple[int, Fraction]]]
"""For each output of an axis the places that it reads, and their weights."""


@emits("resize")
def resize(e: Emitter, attrs: Resize, x: OnnxValue) -> OnnxValue:
    if _is_native_resize(attrs, x):
        return _resize_natively(e, attrs, x)
    if attrs.mode == "linear":
        return _combine(e, x, [axis_taps(axis) for axis in attrs.axes])
    for i, axis in enumerate(attrs.axes, x.ndim - len(attrs.sizes)):
        x = e.gather(x, np.array([cell for ((cell, _),) in axis_taps(axis)]), i)
    return x


@emits("resize_transpose")
def resize_transpose(e: Emitter, attrs: Resize, g: OnnxValue) -> OnnxValue:
    return _combine(e, g, [_readers_of_cells(axis) for axis in attrs.axes])


def _combine(e: Emitter, x: OnnxValue, tables: Sequence[Rows]) -> OnnxValue:
    """Along the last axes the weighted sums that the rows say, one axis after another.

    Rows that name fewer cells than others are filled with the place one beyond the end, where a cell of 0 is put.
    """
    for axis, rows in enumerate(tables, x.ndim - len(tables)):
        size, width = x.shape[axis], max(map(len, rows))
        filled = [[*row, *[(size, Fraction(0))] * (width - len(row))] for row in rows]
        places, weights = (np.array([[float(tap[i]) for tap in row] for row in filled]) for i in (0, 1))
        ends = [(0, int(a == axis and bool((places == size).any()))) for a in range(x.ndim)]
        cells = e.gather(e.pad(x, ends), places.astype(np.int64), axis)
        shares = weights.reshape(*weights.shape, *(1,) * (x.ndim - axis - 1))
        x = e.reduce("ReduceSum", e.cells("Mul", cells, e.constant(shares, x.dtype)), [axis + 1])
    return x


def _readers_of_cells(axis: Axis) -> Rows:
    """The outputs that read each cell."""
    rows: list[list[tuple[int, Fraction]]] = [[] for _ in range(axis.size)]
    for o, row in enumerate(axis_taps(axis)):
        for i, w in row:
            rows[i].append((o, w))
    return rows


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
