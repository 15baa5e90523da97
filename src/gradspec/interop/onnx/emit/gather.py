"""Rows named by indices: read, added up, replaced."""

from __future__ import annotations

from math import prod

import numpy as np

from gradspec.interop.onnx.emit.emitter import Emitter, OnnxValue
from gradspec.interop.onnx.emit.reduce import guarded
from gradspec.interop.onnx.emit.table import emits
from gradspec.ops.gather import RowPlaces
from gradspec.ops.layout import AlongAxis


@emits("gather_rows", moves=True)
def gather_rows(e: Emitter, attrs: AlongAxis, x: OnnxValue, indices: OnnxValue) -> OnnxValue:
    axis = attrs.axis
    places = guarded(e, indices, 0, x.shape[axis])
    shape = indices.shape + x.shape[axis + 1 :]
    if axis == 0:
        return e.node("Gather", [x, places], shape, x.dtype, axis=0)
    return e.node("GatherND", [x, e.reshape(places, (*indices.shape, 1))], shape, x.dtype, batch_dims=axis)


@emits("scatter_add_rows")
def scatter_add_rows(e: Emitter, attrs: RowPlaces, x: OnnxValue, indices: OnnxValue) -> OnnxValue:
    shape = (*indices.shape[: attrs.axis], attrs.size, *x.shape[indices.ndim :])
    return _scattered(e, attrs.axis, e.full(shape, 0, x.dtype), indices, x, "add")


@emits("scatter_rows", moves=True)
def scatter_rows(e: Emitter, attrs: AlongAxis, x: OnnxValue, indices: OnnxValue, rows: OnnxValue) -> OnnxValue:
    return _scattered(e, attrs.axis, x, indices, rows, "none") if indices.size else x


def _scattered(e: Emitter, axis: int, x: OnnxValue, indices: OnnxValue, rows: OnnxValue, reduction: str) -> OnnxValue:
    """ONNX names a row by its index on every axis before it; here these are counted through as one axis.

    So an index at the size or beyond it would be one of the next lead, were it not kept outside all of them.
    """
    lead, size, row = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    outside = prod(lead) * size
    places = guarded(e, indices, 0, outside)
    if axis:
        before = np.arange(prod(lead)).reshape(*lead, *(1,) * (indices.ndim - axis)) * size
        counted = e.cells("Add", places, e.indices(before))
        places = e.cells("Where", e.cells("Less", places, size), counted, e.constant(outside, places.dtype))
    count = indices.size
    flat = [e.reshape(x, (prod(lead) * size, *row)), e.reshape(places, (count, 1)), e.reshape(rows, (count, *row))]
    y = e.node("ScatterND", flat, flat[0].shape, x.dtype, **({} if reduction == "none" else {"reduction": reduction}))
    return e.reshape(y, x.shape)
