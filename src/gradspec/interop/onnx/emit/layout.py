"""Operators that move numbers without changing them."""

from __future__ import annotations

from gradspec.interop.onnx.emit.emitter import Emitter, OnnxValue
from gradspec.interop.onnx.emit.table import emits
from gradspec.ops.layout import AlongAxis, Order, Padding, Slices
from gradspec.ops.shape import Shape


@emits("reshape", moves=True)
def reshape(e: Emitter, attrs: Shape, x: OnnxValue) -> OnnxValue:
    return e.reshape(x, attrs.shape)


@emits("broadcast_to", moves=True)
def broadcast_to(e: Emitter, attrs: Shape, x: OnnxValue) -> OnnxValue:
    return e.expand(x, attrs.shape)


@emits("transpose", moves=True)
def transpose(e: Emitter, attrs: Order, x: OnnxValue) -> OnnxValue:
    return e.transpose(x, attrs.axes)


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
    return e.pad(_spaced(e, attrs, x), _ends(attrs), attrs.value)


def _spaced(e: Emitter, attrs: Padding, x: OnnxValue) -> OnnxValue:
    """Every cell with its gap behind it, the last one's too."""
    if not any(attrs.interior):
        return x
    apart = e.reshape(x, tuple(size for n in x.shape for size in (n, 1)))
    wider = e.pad(apart, [pair for gap in attrs.interior for pair in ((0, 0), (0, gap))], attrs.value)
    return e.reshape(wider, tuple(n * (gap + 1) for n, gap in zip(x.shape, attrs.interior, strict=True)))


def _ends(attrs: Padding) -> list[tuple[int, int]]:
    """What to add around the spaced cells; the gap behind the last one is not between neighbours."""
    return [(lo, hi - gap) for (lo, hi), gap in zip(attrs.padding, attrs.interior, strict=True)]
