"""Operators that move numbers without changing them, and those that read, add up or replace cells at places."""

from __future__ import annotations

from math import prod

import numpy as np

from gradspec.interop.onnx.emit.emitter import FLOAT32, INT64, Emitter, OnnxValue
from gradspec.interop.onnx.emit.table import emits, emits_each
from gradspec.ops.gather import RowPlaces
from gradspec.ops.layout import AlongAxis, Padding, Slices
from gradspec.ops.topk import Top

emits_each(
    {
        "reshape": lambda e, attrs, x: e.reshape(x, attrs.shape),
        "broadcast_to": lambda e, attrs, x: e.expand(x, attrs.shape),
        "transpose": lambda e, attrs, x: e.transpose(x, attrs.axes),
        "detach": lambda e, attrs, x: x,
    },
    moves=True,
)


@emits("concat", moves=True)
def concat(e: Emitter, attrs: AlongAxis, *xs: OnnxValue) -> OnnxValue:
    parts = [x for x in xs if x.size]
    shape = list(parts[0].shape)
    shape[attrs.axis] = sum(x.shape[attrs.axis] for x in parts)
    return parts[0] if len(parts) == 1 else e.node("Concat", parts, tuple(shape), parts[0].dtype, axis=attrs.axis)


@emits("slice", moves=True)
def slice_(e: Emitter, attrs: Slices, x: OnnxValue) -> OnnxValue:
    """On the axes that are not read whole. ONNX counts a negative end from the back, so one before the first cell is
    written as far before it as the axis is long."""
    progressions = enumerate(zip(attrs.starts, attrs.sizes, attrs.steps, x.shape, strict=True))
    cut = {a: (start, size, step) for a, (start, size, step, n) in progressions if (start, size, step) != (0, n, 1)}
    if not cut:
        return x
    ends = [start + size * step for start, size, step in cut.values()]
    stops = [end if end >= 0 else end - x.shape[axis] for axis, end in zip(cut, ends, strict=True)]
    columns = ([start for start, _, _ in cut.values()], stops, list(cut), [step for _, _, step in cut.values()])
    return e.node("Slice", [x, *(e.indices(column) for column in columns)], attrs.sizes, x.dtype)


@emits("pad", moves=True)
def pad(e: Emitter, attrs: Padding, x: OnnxValue) -> OnnxValue:
    if not x.size:
        shape = [
            lo + hi + max(n + (n - 1) * gap, 0)
            for (lo, hi), gap, n in zip(attrs.padding, attrs.interior, x.shape, strict=True)
        ]
        return e.full(tuple(shape), attrs.value, x.dtype)
    # The gap behind the last cell is not between neighbours.
    ends = [(lo, hi - gap) for (lo, hi), gap in zip(attrs.padding, attrs.interior, strict=True)]
    return e.pad(_space_out(e, attrs, x), ends, attrs.value)


def _space_out(e: Emitter, attrs: Padding, x: OnnxValue) -> OnnxValue:
    """Every cell with its gap behind it, the last one's too."""
    if not any(attrs.interior):
        return x
    apart = e.reshape(x, tuple(size for n in x.shape for size in (n, 1)))
    wider = e.pad(apart, [pair for gap in attrs.interior for pair in ((0, 0), (0, gap))], attrs.value)
    return e.reshape(wider, tuple(n * (gap + 1) for n, gap in zip(x.shape, attrs.interior, strict=True)))


# --- rows named by indices --------------------------------------------------------------------------------------------


def _guard_places(e: Emitter, places: OnnxValue, beyond: int) -> OnnxValue:
    """``places`` as ONNX takes them; negative ones become ``beyond``, which runtimes refuse.

    ONNX counts negative places from the end, where the graph would raise an error.
    """
    numbers = e.cast(places, INT64)
    if e.are_places(places):
        return numbers
    return e.cells("Where", e.cells("Less", numbers, 0), e.constant(beyond, INT64), numbers)


@emits("gather_rows", moves=True)
def gather_rows(e: Emitter, attrs: AlongAxis, x: OnnxValue, indices: OnnxValue) -> OnnxValue:
    axis = attrs.axis
    places = _guard_places(e, indices, x.shape[axis])
    shape = indices.shape + x.shape[axis + 1 :]
    if axis == 0:
        return _gather_first(e, x, places)
    if axis == indices.ndim == x.ndim - 1:  # one cell of each row
        one = (*shape, 1)
        return e.reshape(e.node("GatherElements", [x, e.reshape(places, one)], one, x.dtype, axis=axis), shape)
    return e.node("GatherND", [x, e.reshape(places, (*indices.shape, 1))], shape, x.dtype, batch_dims=axis)


def _gather_first(e: Emitter, x: OnnxValue, places: OnnxValue) -> OnnxValue:
    """Along the first axis: where that was put first, from where it was."""
    source, order = e.unturned(x)
    at, more = order[0], places.ndim - 1
    shape = source.shape[:at] + places.shape + source.shape[at + 1 :]
    y = e.node("Gather", [source, places], shape, x.dtype, axis=at)
    return e.transpose(y, [*range(at, at + places.ndim), *(a if a < at else a + more for a in order[1:])])


@emits("scatter_add_rows")
def scatter_add_rows(e: Emitter, attrs: RowPlaces, x: OnnxValue, indices: OnnxValue) -> OnnxValue:
    lead, row = indices.shape[: attrs.axis], x.shape[indices.ndim :]
    zeros = e.full((*lead, attrs.size, *row), 0, x.dtype)
    if row:
        return _scatter(e, attrs.axis, zeros, indices, x, "add")
    cells = (*lead, prod(indices.shape[attrs.axis :]))
    places = e.reshape(_guard_places(e, indices, attrs.size), cells)
    inputs = [zeros, places, e.reshape(x, cells)]
    return e.node("ScatterElements", inputs, zeros.shape, x.dtype, axis=attrs.axis, reduction="add")


@emits("scatter_rows", moves=True)
def scatter_rows(e: Emitter, attrs: AlongAxis, x: OnnxValue, indices: OnnxValue, rows: OnnxValue) -> OnnxValue:
    return _scatter(e, attrs.axis, x, indices, rows, "none") if indices.size else x


def _scatter(e: Emitter, axis: int, x: OnnxValue, indices: OnnxValue, rows: OnnxValue, reduction: str) -> OnnxValue:
    """ONNX names a row by its index on every axis before it; here these are counted through as one axis.

    So an index at the size or beyond it would be one of the next lead, were it not kept outside all of them.
    """
    lead, size, row = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    outside = prod(lead) * size
    places = _guard_places(e, indices, outside)
    if axis:
        before = np.arange(prod(lead)).reshape(*lead, *(1,) * (indices.ndim - axis)) * size
        counted = e.cells("Add", places, e.indices(before))
        places = e.cells("Where", e.cells("Less", places, size), counted, e.constant(outside, places.dtype))
    count = indices.size
    flat = [e.reshape(x, (prod(lead) * size, *row)), e.reshape(places, (count, 1)), e.reshape(rows, (count, *row))]
    y = e.node("ScatterND", flat, flat[0].shape, x.dtype, **({} if reduction == "none" else {"reduction": reduction}))
    return e.reshape(y, x.shape)


# --- order ------------------------------------------------------------------------------------------------------------


@emits("top_places")
def top_places(e: Emitter, attrs: Top, x: OnnxValue) -> OnnxValue:
    """ONNX takes equal cells in order, but does not say where NaN stands: so NaN is moved, in order, to its end."""
    numbers = x if x.is_float or (x.dtype.kind == "u" and x.dtype.itemsize == 8) else e.cast(x, INT64)
    if not (e.nan_safe and x.is_float):
        return _top(e, numbers, attrs.k, attrs.largest)
    is_nan = e.node("IsNaN", [x], x.shape, e.constant(False).dtype)
    cells = e.cells("Where", is_nan, e.constant(0, x.dtype), x)
    order = _top(e, cells, x.shape[-1], attrs.largest)
    moved = e.node("GatherElements", [e.cast(is_nan, FLOAT32), order], x.shape, FLOAT32, axis=-1)
    last = _top(e, moved, attrs.k, attrs.largest)
    return e.node("GatherElements", [order, last], last.shape, INT64, axis=-1)


def _top(e: Emitter, x: OnnxValue, k: int, largest: bool) -> OnnxValue:
    shape = (*x.shape[:-1], k)
    types = [(shape, x.dtype), (shape, INT64)]
    return e.several("TopK", [x, e.indices([k])], types, axis=-1, largest=int(largest), sorted=1)[1]
