"""The places of the largest or smallest cells."""

from __future__ import annotations

from gradspec.interop.onnx.emit.emitter import FLOAT32, INT64, Emitter, OnnxValue
from gradspec.interop.onnx.emit.table import emits
from gradspec.ops.topk import Top


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
