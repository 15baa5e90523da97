"""Resizing and its transpose.

ONNX computes the positions of a Resize in floating point, where ours are rational. The node is written where every
position is exact in either; otherwise the cells are gathered by tables and weighed.
"""

from __future__ import annotations

from fractions import Fraction

from gradspec.interop.onnx.emit.emitter import NONE, Emitter, OnnxValue
from gradspec.interop.onnx.emit.table import emits
from gradspec.interop.onnx.emit.windows import NATIVE_RANKS, Table, combined, table
from gradspec.ops.resize import Resize
from gradspec.spec.resize import Axis, axis_taps


@emits("resize")
def resize(e: Emitter, attrs: Resize, x: OnnxValue) -> OnnxValue:
    if _is_native(attrs, x):
        return _native(e, attrs, x)
    if attrs.mode == "linear":
        return combined(e, x, [_weighed(axis) for axis in attrs.axes])
    for i, axis in enumerate(attrs.axes, x.ndim - len(attrs.sizes)):
        x = e.gather(x, _weighed(axis).places[:, 0], i)
    return x


@emits("resize_transpose")
def resize_transpose(e: Emitter, attrs: Resize, g: OnnxValue) -> OnnxValue:
    return combined(e, g, [_readers(axis) for axis in attrs.axes])


def _weighed(axis: Axis) -> Table:
    """The cells that each output reads."""
    rows = axis_taps(axis)
    return table(axis.size, [[i for i, _ in row] for row in rows], [[float(w) for _, w in row] for row in rows])


def _readers(axis: Axis) -> Table:
    """The outputs that read each cell."""
    found: list[list[tuple[int, Fraction]]] = [[] for _ in range(axis.size)]
    for o, row in enumerate(axis_taps(axis)):
        for i, w in row:
            found[i].append((o, w))
    return table(axis.outputs, [[o for o, _ in row] for row in found], [[float(w) for _, w in row] for row in found])


def _is_native(attrs: Resize, x: OnnxValue) -> bool:
    """Whether ONNX has these positions, exactly: the default ones of steps that are powers of two."""
    usual = attrs.step is None and attrs.rounding == "floor" and not attrs.align_corners
    ranks = NATIVE_RANKS if attrs.mode == "nearest" else (2,)
    fits = len(attrs.sizes) in ranks and x.ndim == len(attrs.sizes) + 2
    return usual and fits and all(_is_power_of_two(axis.step) for axis in attrs.axes)


def _is_power_of_two(step: Fraction) -> bool:
    numerator, denominator = step.numerator, step.denominator
    return not numerator & (numerator - 1) and not denominator & (denominator - 1)


def _native(e: Emitter, attrs: Resize, x: OnnxValue) -> OnnxValue:
    shape = (*x.shape[:2], *attrs.outputs)
    modes = {"coordinate_transformation_mode": "half_pixel"}
    if attrs.mode == "nearest":
        modes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return e.node("Resize", [x, NONE, NONE, e.indices(shape)], shape, x.dtype, mode=attrs.mode, **modes)
