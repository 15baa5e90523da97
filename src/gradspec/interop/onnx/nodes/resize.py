"""Resizing: sizes from scales or the other way round, and where in the input each output lies.

The position of output ``o`` is ``start + o·step`` in every mode, exactly; outputs beyond both ends of the input are a
run at each end of an axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, isfinite
from typing import Any

import numpy as np

from gradspec.graph.ir import Array, Var
from gradspec.interop import compose
from gradspec.interop.onnx.node import Handler, OnnxNode, normal_axes
from gradspec.ops.layout import getitem
from gradspec.ops.resize import resize
from gradspec.saving.strict_json import brief
from gradspec.spec.errors import FormatError, ShapeError, UnsupportedError

ROUNDINGS = {"round_prefer_floor": "half_down", "round_prefer_ceil": "half_up", "floor": "floor", "ceil": "ceil"}
MODES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)
HALF = Fraction(1, 2)


@dataclass(frozen=True)
class ResizedAxis:
    """``cells`` resized to ``outputs``: output ``o`` lies at ``start + o·step``."""

    cells: int
    outputs: int
    start: Fraction
    step: Fraction

    @property
    def idle(self) -> bool:
        return self.cells == self.outputs and self.start == 0 and self.step == 1

    @property
    def inside(self) -> range:
        """The outputs that lie between the first cell and the last."""
        if self.step == 0:
            return range(self.outputs if 0 <= self.start <= self.cells - 1 else 0)
        ends = sorted((-self.start / self.step, (self.cells - 1 - self.start) / self.step))
        first = max(ceil(ends[0]), 0)
        return range(first, max(min(floor(ends[1]) + 1, self.outputs), first))


@dataclass(frozen=True)
class Extent:
    """Sizes of one axis before and after, the scale between them, and the part of the input that is wanted."""

    cells: int
    outputs: int
    scale: Fraction
    roi: tuple[Fraction, Fraction] = (Fraction(0), Fraction(1))


# --- positions --------------------------------------------------------------------------------------------------------


def _axis(mode: str, e: Extent) -> ResizedAxis:
    start, step = _position(mode, e)
    return ResizedAxis(e.cells, e.outputs, start, step)


def _position(mode: str, e: Extent) -> tuple[Fraction, Fraction]:
    step = 1 / e.scale
    if mode == "asymmetric":
        return Fraction(0), step
    if mode == "tf_half_pixel_for_nn":
        return step / 2, step
    if mode == "align_corners":
        return Fraction(0), Fraction(e.cells - 1, e.outputs - 1) if e.outputs > 1 else Fraction(0)
    if mode == "tf_crop_and_resize":
        return _crop(e)
    if mode == "pytorch_half_pixel" and e.outputs == 1:
        return Fraction(0), step
    shift = Fraction(0)
    if mode == "half_pixel_symmetric":
        shift = Fraction(e.cells, 2) * (1 - e.outputs / (e.cells * e.scale))
    return shift + step / 2 - HALF, step


def _crop(e: Extent) -> tuple[Fraction, Fraction]:
    (low, high), last = e.roi, e.cells - 1
    if e.outputs > 1:
        return low * last, (high - low) * last / (e.outputs - 1)
    return (low + high) * last / 2, Fraction(0)


# --- sizes ------------------------------------------------------------------------------------------------------------


def _extents(node: OnnxNode, shape: tuple[int, ...], scales: Array | None, sizes: list[int] | None) -> list[Extent]:
    """One extent per axis; axes that are not named keep their size."""
    given = node.attribute("axes")
    axes = tuple(range(len(shape))) if given is None else normal_axes(given, len(shape))
    count = len(sizes) if sizes is not None else 0 if scales is None else scales.size
    if count != len(axes) or any(shape[a] == 0 for a in axes):
        raise FormatError(f"{count} scales or sizes for {len(axes)} axes of the shape {shape}, which must not be empty")
    cells = [shape[a] for a in axes]
    found = _from_scales(cells, scales) if scales is not None else _from_sizes(node, cells, sizes or [])
    rois = _rois(node, len(axes))
    extents = [Extent(n, n, Fraction(1)) for n in shape]
    for axis, (outputs, scale), roi in zip(axes, found, rois, strict=True):
        if outputs < 1:
            raise ShapeError(f"axis {axis} would be resized to {outputs} cells; at least one is needed")
        extents[axis] = Extent(shape[axis], outputs, scale, roi)
    return extents


def _from_scales(cells: Sequence[int], scales: Array) -> list[tuple[int, Fraction]]:
    """``floor(cells · scale)``, the product rounded to float32 as the scales are."""
    numbers = [float(s) for s in scales.reshape(-1)]
    if not all(isfinite(s) and s > 0 for s in numbers):
        raise FormatError(f"its scales are {brief(numbers[:8])}; positive numbers are needed")
    with np.errstate(over="ignore"):
        products = [float(np.float32(n) * np.float32(s)) for n, s in zip(cells, numbers, strict=True)]
    if not all(map(isfinite, products)):
        raise FormatError(f"its scales are {brief(numbers[:8])}, which are too large")
    return [(floor(outputs), Fraction(s)) for outputs, s in zip(products, numbers, strict=True)]


def _from_sizes(node: OnnxNode, cells: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, Fraction]]:
    if any(m < 1 for m in sizes):
        raise ShapeError(f"it resizes to {brief(list(sizes))}; at least one cell is needed on each axis")
    scales = [Fraction(m, n) for m, n in zip(sizes, cells, strict=True)]
    policy = node.choice("keep_aspect_ratio_policy", "stretch", "not_larger", "not_smaller")
    if policy == "stretch":
        return list(zip(sizes, scales, strict=True))
    one = min(scales) if policy == "not_larger" else max(scales)
    return [(floor(one * n + HALF), one) for n in cells]


def _rois(node: OnnxNode, count: int) -> list[tuple[Fraction, Fraction]]:
    """The part of each axis that is wanted, which only one mode asks for."""
    if node.attribute("coordinate_transformation_mode") != "tf_crop_and_resize":
        return [(Fraction(0), Fraction(1))] * count
    roi = node.known(1)
    numbers = [float(n) for n in roi.reshape(-1)] if roi.size == 2 * count else []
    if len(numbers) != 2 * count or not all(map(isfinite, numbers)):
        raise FormatError(f"its roi has {roi.size} numbers for {count} axes; two finite ones for each are needed")
    return [(Fraction(low), Fraction(high)) for low, high in zip(numbers[:count], numbers[count:], strict=True)]


# --- nodes ------------------------------------------------------------------------------------------------------------


def _resize(node: OnnxNode) -> Any:
    if node.version < 11:
        return _asymmetric(node, node.known(1))
    mode = node.choice("mode", "nearest", "linear", "cubic")
    if mode == "cubic":
        raise UnsupportedError("Resize with mode cubic")
    if node.attributes.get("antialias", 0) and mode == "linear":
        raise UnsupportedError("Resize with antialias")
    x = node.variable(0)
    scales, sizes = _scales_or_sizes(node)
    places = node.choice("coordinate_transformation_mode", *MODES)
    axes = [_axis(places, e) for e in _extents(node, x.shape, scales, sizes)]
    rounding = ROUNDINGS[node.choice("nearest_mode", *ROUNDINGS)]
    if places != "tf_crop_and_resize":
        return _placed(x, axes, mode, rounding)
    return _with_extrapolation(x, axes, mode, rounding, node.attribute("extrapolation_value"))


def _scales_or_sizes(node: OnnxNode) -> tuple[Array | None, list[int] | None]:
    """Which of the two is given; before opset 13 an empty list stands for one that is not."""
    scales = node.known(2) if node.has(2) and node.value(2).shape != (0,) else None
    sizes = node.known_ints(3) if node.has(3) and node.value(3).shape != (0,) else None
    if (scales is None) == (sizes is None):
        raise FormatError("exactly one of scales and sizes must be given")
    return scales, sizes


def _upsample(node: OnnxNode) -> Any:
    if node.version >= 10:
        raise FormatError(f"opset {node.version} no longer has it; Resize took its place")
    scales = node.attribute("scales")
    return _asymmetric(node, node.known(1) if scales is None else np.array(scales, np.float32))


def _asymmetric(node: OnnxNode, scales: Array) -> Any:
    """Before opset 11 output ``o`` lies at ``o / scale``.

    The text leaves the nearest cell open. It is the one below, or above where the axis shrinks, as in ONNX Runtime.
    """
    x, mode = node.variable(0), node.choice("mode", "nearest", "linear")
    axes = [_axis("asymmetric", e) for e in _extents(node, x.shape, scales, None)]
    shrinks = {axis.step > 1 for axis in axes if not axis.idle}
    if mode == "nearest" and len(shrinks) > 1:
        raise UnsupportedError(f"{node.op_type} of opset {node.version} that enlarges one axis and shrinks another")
    return _placed(x, axes, mode, "ceil" if True in shrinks else "floor")


def _placed(x: Var, axes: Sequence[ResizedAxis], mode: str, rounding: str) -> Any:
    """The axes from the first that changes on, resized."""
    first = next((i for i, axis in enumerate(axes) if not axis.idle), len(axes))
    tail = axes[first:]
    if not tail:
        return x
    return resize(
        x,
        [axis.outputs for axis in tail],
        mode,
        step=[axis.step for axis in tail],
        start=[axis.start for axis in tail],
        rounding=rounding if mode == "nearest" else "floor",
    )


def _with_extrapolation(x: Var, axes: Sequence[ResizedAxis], mode: str, rounding: str, value: float) -> Any:
    """Outputs beyond the input have a value of their own: those within are kept, and padded with it."""
    y, inside = _placed(x, axes, mode, rounding), [axis.inside for axis in axes]
    kept = getitem(y, tuple(slice(within.start, within.stop) for within in inside))
    pairs = [(within.start, axis.outputs - within.stop) for axis, within in zip(axes, inside, strict=True)]
    return compose.pad(kept, pairs, "constant", value)


HANDLERS: dict[str, Handler] = {"Resize": _resize, "Upsample": _upsample}
