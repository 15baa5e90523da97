"""Sums and means over axes, the softmax, and what labels pick."""

from __future__ import annotations

from math import prod

from gradspec.interop.onnx.emit.emitter import INT64, Emitter, OnnxValue
from gradspec.interop.onnx.emit.table import emits
from gradspec.ops.layout import AlongAxis
from gradspec.ops.loss import Place
from gradspec.ops.reduce import CumSum, Share
from gradspec.ops.shape import Axes
from gradspec.ops.unpool import Plane, Rank


@emits("sum")
def sum_(e: Emitter, attrs: Axes, x: OnnxValue) -> OnnxValue:
    if not x.size:
        return e.full(tuple(n for a, n in enumerate(x.shape) if a not in attrs.axes), 0, x.dtype)
    return e.reduce("ReduceSum", x, attrs.axes)


@emits("cumsum")
def cumsum(e: Emitter, attrs: CumSum, x: OnnxValue) -> OnnxValue:
    """Integers in 64 bits, as sums are."""
    terms = x if x.is_float else e.cast(x, INT64)
    ends = {"exclusive": int(attrs.exclusive), "reverse": int(attrs.reverse)}
    return e.node("CumSum", [terms, e.constant(attrs.axis, INT64)], x.shape, terms.dtype, **ends)


@emits("mean")
def mean(e: Emitter, attrs: Axes, x: OnnxValue) -> OnnxValue:
    return e.reduce("ReduceMean", x, attrs.axes)


@emits("share")
def share(e: Emitter, attrs: Share, x: OnnxValue) -> OnnxValue:
    part = e.cells("Div", x, prod(attrs.shape[a] for a in attrs.axes))
    return e.expand(e.reshape(part, tuple(1 if a in attrs.axes else n for a, n in enumerate(attrs.shape))), attrs.shape)


@emits("softmax")
def softmax(e: Emitter, attrs: AlongAxis, x: OnnxValue) -> OnnxValue:
    return e.cells("Softmax", x, axis=attrs.axis)


@emits("log_softmax")
def log_softmax(e: Emitter, attrs: AlongAxis, x: OnnxValue) -> OnnxValue:
    return e.cells("LogSoftmax", x, axis=attrs.axis)


# --- labels and places ------------------------------------------------------------------------------------------------


def guarded(e: Emitter, places: OnnxValue, least: int, beyond: int) -> OnnxValue:
    """``places`` as ONNX takes them; below ``least`` they become ``beyond``, which runtimes refuse.

    ONNX counts negative places from the end, where the graph would raise an error.
    """
    numbers = e.cast(places, INT64)
    if places.dtype.kind == "u":
        return numbers
    return e.cells("Where", e.cells("Less", numbers, least), e.constant(beyond, INT64), numbers)


def _inserted(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    return (*shape[:axis], size, *shape[axis:])


@emits("pick", moves=True)
def pick(e: Emitter, attrs: AlongAxis, x: OnnxValue, labels: OnnxValue) -> OnnxValue:
    one = _inserted(labels.shape, attrs.axis, 1)
    places = e.reshape(guarded(e, labels, 0, x.shape[attrs.axis]), one)
    return e.reshape(e.node("GatherElements", [x, places], one, x.dtype, axis=attrs.axis), labels.shape)


@emits("place", moves=True)
def place(e: Emitter, attrs: Place, x: OnnxValue, labels: OnnxValue) -> OnnxValue:
    one, shape = (_inserted(x.shape, attrs.axis, size) for size in (1, attrs.size))
    places = e.reshape(guarded(e, labels, 0, attrs.size), one)
    zeros = e.full(shape, 0, x.dtype)
    return e.node("ScatterElements", [zeros, places, e.reshape(x, one)], shape, x.dtype, axis=attrs.axis)


@emits("max_unpool")
def max_unpool(e: Emitter, attrs: Plane, x: OnnxValue, indices: OnnxValue) -> OnnxValue:
    """−1, which names no cell, is the last place in ONNX: a cell more than the plane has, cut off again."""
    rank, cells = len(attrs.output_size), prod(attrs.output_size)
    lead = x.shape[: x.ndim - rank]
    rows = (prod(lead), prod(x.shape[x.ndim - rank :]))
    places = e.reshape(guarded(e, indices, -1, cells + 1), rows)
    zeros = e.full((rows[0], cells + 1), 0, x.dtype)
    sums = e.node("ScatterElements", [zeros, places, e.reshape(x, rows)], zeros.shape, x.dtype, axis=1, reduction="add")
    return e.reshape(e.first(sums, 1, cells), (*lead, *attrs.output_size))


@emits("max_gather", moves=True)
def max_gather(e: Emitter, attrs: Rank, x: OnnxValue, indices: OnnxValue) -> OnnxValue:
    lead, sizes = x.shape[: x.ndim - attrs.rank], x.shape[x.ndim - attrs.rank :]
    wanted = (prod(lead), prod(indices.shape[indices.ndim - attrs.rank :]))
    planes = e.pad(e.reshape(x, (prod(lead), prod(sizes))), [(0, 0), (0, 1)])
    places = e.reshape(guarded(e, indices, -1, prod(sizes) + 1), wanted)
    return e.reshape(e.node("GatherElements", [planes, places], wanted, x.dtype, axis=1), indices.shape)
