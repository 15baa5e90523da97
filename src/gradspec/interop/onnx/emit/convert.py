"""Conversion between dtypes. What a float becomes that an integer dtype cannot hold, ONNX leaves open."""

from __future__ import annotations

import numpy as np

from gradspec.graph.types import DTYPES
from gradspec.interop.onnx.emit.emitter import BOOL, FLOAT64, DType, Emitter, OnnxValue
from gradspec.interop.onnx.emit.table import emits
from gradspec.ops.convert import Conversion


@emits("convert", moves=True)
def convert(e: Emitter, attrs: Conversion, x: OnnxValue) -> OnnxValue:
    dtype = DTYPES[attrs.dtype].numpy
    if dtype == BOOL:
        return e.cells("Not", e.cells("Equal", e.cast(x, FLOAT64) if x.is_float else x, 0))
    if x.is_float and dtype.kind in "iu":
        return _whole(e, e.cast(x, FLOAT64), dtype)
    return e.cast(x, dtype)


def _whole(e: Emitter, x: OnnxValue, dtype: DType) -> OnnxValue:
    """``x`` without its fraction, NaN as 0, and the ends of the range for what lies beyond them.

    The largest 64-bit integers are no doubles, so the upper end is not clipped to but chosen.
    """
    limits = np.iinfo(dtype)
    numbers = e.cells("Where", e.cells("IsNaN", x), e.constant(0, x.dtype), x)
    beyond = float(limits.max)
    top = limits.max if int(beyond) == limits.max else np.nextafter(beyond, 0)
    bounds = [e.constant(bound, x.dtype) for bound in (limits.min, top)]
    whole = e.cast(e.node("Clip", [numbers, *bounds], x.shape, x.dtype), dtype)
    if top == limits.max:
        return whole
    inside = e.cells("Not", e.cells("Less", e.constant(top, x.dtype), x))
    return e.cells("Where", inside, whole, e.constant(limits.max, dtype))
