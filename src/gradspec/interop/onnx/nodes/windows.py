"""Operators of windows, and resizing: convolution, pooling and what undoes it, columns added back onto an image.

The position of output ``o`` of a resized axis is ``start + o·step`` in every mode, exactly; outputs beyond both ends of
the input are a run at each end of an axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, isfinite, prod
from typing import Any, TypeAlias

import numpy as np

from gradspec.graph.builder import apply
from gradspec.graph.ir import Array, Var
from gradspec.interop import compose
from gradspec.interop.onnx.node import Handler, OnnxNode, apply_to_operands, normal_axes
from gradspec.ops.conv import conv, conv_transpose
from gradspec.ops.gather import moved
from gradspec.ops.layout import getitem
from gradspec.ops.linear import matmul
from gradspec.ops.lp_pool import ABS_POWER, AbsPower, lp_pool
from gradspec.ops.pool import avg_pool, global_avg_pool, global_max_pool, max_pool
from gradspec.ops.resize import resize
from gradspec.ops.shape import broadcast_to, reshape
from gradspec.ops.unfold import fold
from gradspec.ops.unpool import max_gather, max_unpool
from gradspec.saving.strict_json import brief
from gradspec.spec.errors import FormatError, ShapeError, UnsupportedError
from gradspec.spec.window import paddings

Sizes = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]
Settings: TypeAlias = dict[str, Any]
"""Arguments of our operators, by name."""

# --- windows as attributes state them: kernels, strides, dilations and the several ways to give padding ---------------


def spatial(shape: Sequence[int]) -> Sizes:
    """The spatial sizes of ``(N, C, *spatial)``."""
    if len(shape) < 2:
        raise FormatError(f"it works on (N, C, …), and its input has the shape {tuple(shape)}")
    return tuple(shape[2:])


def _per_axis(node: OnnxNode, name: str, rank: int, default: int) -> Sizes:
    """One number for each spatial axis."""
    given = node.attribute(name)
    numbers = tuple(given) if given else (default,) * rank
    if len(numbers) != rank:
        raise FormatError(f"its {name} is {brief(list(numbers))} with {len(numbers)} entries; {rank} are needed")
    return numbers


def _explicit_pads(node: OnnxNode, rank: int) -> Pairs:
    """Explicit padding: all the low ends come first, then all the high ends."""
    ends = _per_axis(node, "pads", 2 * rank, 0)
    return tuple(zip(ends[:rank], ends[rank:], strict=True))


def _windows_of(node: OnnxNode, sizes: Sizes, kernel: Sizes) -> Settings:
    """How the windows of a node lie over axes of ``sizes``, as our operators take it."""
    rank = len(sizes)
    stride, dilation = _per_axis(node, "strides", rank, 1), _per_axis(node, "dilations", rank, 1)
    if len(kernel) != rank or any(n < 1 for n in kernel):
        raise FormatError(f"its kernel_shape, {kernel[:8]}, is not a number of 1 or more for each of {rank} axes")
    return {"stride": stride, "padding": _padding(node, sizes, kernel, stride, dilation), "dilation": dilation}


def _auto_pad(node: OnnxNode) -> str:
    """How padding is chosen; pads of 0 beside it are those that a node has without any."""
    mode, given = node.choice("auto_pad", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"), node.attribute("pads")
    if mode != "NOTSET" and any(given or ()):
        raise FormatError(f"its auto_pad is {mode}, and its pads are {brief(given)}; ONNX has one or the other")
    return mode


def _padding(node: OnnxNode, sizes: Sizes, kernel: Sizes, stride: Sizes, dilation: Sizes) -> Pairs:
    mode = _auto_pad(node)
    if mode == "NOTSET":
        return _explicit_pads(node, len(sizes))
    if mode == "VALID":
        return ((0, 0),) * len(sizes)
    upper = paddings("same", sizes, kernel, stride, dilation)  # an odd cell is at the high end
    return tuple(upper) if mode == "SAME_UPPER" else tuple((hi, lo) for lo, hi in upper)


def halves(total: int, *, low_first: bool) -> tuple[int, int]:
    """A total in two parts, low and high; the odd cell goes to the low end if ``low_first``."""
    less = total // 2
    return (total - less, less) if low_first else (less, total - less)


# --- pooling ----------------------------------------------------------------------------------------------------------


def _pool_settings(node: OnnxNode, x: Var) -> Settings:
    kernel = tuple(node.attribute("kernel_shape"))
    # With auto_pad="VALID" the documented size is the same in both modes.
    ceil_mode = node.flag("ceil_mode") and _auto_pad(node) != "VALID"
    return {"kernel_size": kernel, **_windows_of(node, spatial(x.shape), kernel), "ceil_mode": ceil_mode}


def _max_pool(node: OnnxNode) -> Any:
    x = node.variable(0)
    if not node.wants(1):
        return max_pool(x, **_pool_settings(node, x))
    values, winners = max_pool(x, **_pool_settings(node, x), return_indices=True)
    return values, _number_over_tensor(node, winners, x.shape)


def _number_over_tensor(node: OnnxNode, winners: Var, shape: Sizes) -> Any:
    """ONNX counts a winner's place from the first plane on, in row- or column-major order inside its plane."""
    sizes = spatial(shape)
    if node.flag("storage_order"):
        node.scope.charge(prod(sizes))
        table = np.arange(prod(sizes)).reshape(sizes[::-1]).T
        planes = broadcast_to(winners.owner.const(table, "numbers"), shape)
        winners = max_gather(planes, winners, len(sizes))
    return winners + _plane_starts(node, winners, shape, prod(sizes))


def _plane_starts(node: OnnxNode, like: Var, shape: Sizes, plane: int) -> Any:
    """The number of the first cell of every plane of ``(N, C, *spatial)``, planes having ``plane`` cells."""
    lead, rank = shape[:2], len(shape) - 2
    node.scope.charge(prod(lead))
    return like.owner.const(np.arange(prod(lead)).reshape(*lead, *(1,) * rank) * plane, "starts")


def _max_unpool(node: OnnxNode) -> Var:
    x, rank = node.variable(0), len(spatial(node.variable(0).shape))
    kernel = _per_axis(node, "kernel_shape", rank, 1)
    axes = zip(x.shape[2:], kernel, _per_axis(node, "strides", rank, 1), _explicit_pads(node, rank), strict=True)
    sizes = tuple((n - 1) * s + k - lo - hi for n, k, s, (lo, hi) in axes)
    if node.has(2):
        wanted = node.known_ints(2)
        if len(wanted) != rank + 2 or tuple(wanted[:2]) != x.shape[:2]:
            raise FormatError(f"its output_shape is {wanted}, and its input has the shape {x.shape}")
        sizes = tuple(wanted[2:])
    return max_unpool(x, node.variable(1) - _plane_starts(node, x, x.shape, prod(sizes)), sizes)


def _average_pool(node: OnnxNode) -> Var:
    x = node.variable(0)
    return avg_pool(x, **_pool_settings(node, x), count_include_pad=node.flag("count_include_pad"))


def _lp_pool(node: OnnxNode) -> Var:
    x, p = node.variable(0), node.attribute("p")
    settings = _pool_settings(node, x)
    if all(lo == hi == 0 for lo, hi in settings["padding"]) and set(settings["dilation"]) <= {1}:
        return lp_pool(x, p, settings["kernel_size"], settings["stride"], settings["ceil_mode"])
    powers = apply(ABS_POWER, AbsPower(float(p)), x)
    return apply(ABS_POWER, AbsPower(1 / p), avg_pool(powers, **settings, divisor_override=1))


# --- convolution ------------------------------------------------------------------------------------------------------


def _kernel_of(node: OnnxNode, weight: Var) -> Sizes:
    """The kernel's sizes, which the weight has and the attribute may repeat."""
    sizes, stated = spatial(weight.shape), node.attribute("kernel_shape")
    if stated and tuple(stated) != sizes:
        raise FormatError(f"its kernel_shape is {brief(stated)}, and its weight has {sizes}")
    return sizes


def convolve(node: OnnxNode, x: Var, weight: Var, bias: Var | None) -> Var:
    """A convolution by the attributes of a node."""
    windows = _windows_of(node, spatial(x.shape), _kernel_of(node, weight))
    return conv(x, weight, bias, **windows, groups=node.attribute("group"))


def _conv_transpose(node: OnnxNode) -> Var:
    x, weight, bias = node.variable(0), node.variable(1), node.optional(2)
    sizes, kernel = spatial(x.shape), _kernel_of(node, weight)
    rank = len(sizes)
    stride, dilation = _per_axis(node, "strides", rank, 1), _per_axis(node, "dilations", rank, 1)
    extents = [s * (n - 1) + d * (k - 1) + 1 for n, k, s, d in zip(sizes, kernel, stride, dilation, strict=True)]
    crops = _crops(node, sizes, stride, extents)
    cropped = tuple((max(lo, 0), max(hi, 0)) for lo, hi in crops)
    grown = [(max(-lo, 0), max(-hi, 0)) for lo, hi in crops]
    options = {"stride": stride, "padding": cropped, "groups": node.attribute("group"), "dilation": dilation}
    if all(lo == 0 and hi < max(s, d) for (lo, hi), s, d in zip(grown, stride, dilation, strict=True)):
        return conv_transpose(x, weight, bias, output_padding=tuple(hi for _, hi in grown), **options)
    y = compose.pad(conv_transpose(x, weight, **options), [(0, 0), (0, 0), *grown])
    return y if bias is None else y + reshape(bias, (*bias.shape, *(1,) * rank))


def _crops(node: OnnxNode, sizes: Sizes, stride: Sizes, extents: list[int]) -> Pairs:
    """How many cells of the whole result are left out at both ends of each axis; below 0, how many zeros are added.

    ``output_padding`` takes back from the crop at the high end, and if the size of the result is stated, the crops
    follow from it.
    """
    rank, mode = len(sizes), _auto_pad(node)
    extra = _per_axis(node, "output_padding", rank, 0)
    stated = node.attribute("output_shape")
    wanted = tuple(stated)[-rank:] if stated else tuple(n * s for n, s in zip(sizes, stride, strict=True))
    if not stated and mode in ("NOTSET", "VALID"):
        ends: Pairs = _explicit_pads(node, rank) if mode == "NOTSET" else ((0, 0),) * rank
    elif len(wanted) == rank:
        totals = (extent + e - size for extent, e, size in zip(extents, extra, wanted, strict=True))
        ends = tuple(halves(total, low_first=mode != "SAME_UPPER") for total in totals)
    else:
        raise ShapeError(f"its output_shape is {brief(stated)}, which does not give {rank} spatial sizes")
    return tuple((lo, hi - e) for (lo, hi), e in zip(ends, extra, strict=True))


def _col2im(node: OnnxNode) -> Var:
    x, sizes, kernel = node.variable(0), tuple(node.known_ints(1)), tuple(node.known_ints(2))
    return fold(x, sizes, kernel, **_windows_of(node, sizes, kernel))


# --- resizing ---------------------------------------------------------------------------------------------------------

ROUNDINGS = {"round_prefer_floor": "half_down", "round_prefer_ceil": "half_up", "floor": "floor", "ceil": "ceil"}
MODES = (
    *("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"),
    *("tf_half_pixel_for_nn", "tf_crop_and_resize"),
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
    def is_unchanged(self) -> bool:
        return self.cells == self.outputs and self.start == 0 and self.step == 1

    @property
    def inside(self) -> range:
        """The outputs that lie between the first cell and the last."""
        if self.step == 0:
            return range(self.outputs if 0 <= self.start <= self.cells - 1 else 0)
        ends = sorted((-self.start / self.step, (self.cells - 1 - self.start) / self.step))
        first = max(ceil(ends[0]), 0)
        return range(first, max(min(floor(ends[1]) + 1, self.outputs), first))


Roi = tuple[Fraction, Fraction]
WHOLE: Roi = Fraction(0), Fraction(1)
"""The part of an axis that is wanted."""


def _position(mode: str, cells: int, outputs: int, scale: Fraction, roi: Roi) -> tuple[Fraction, Fraction]:
    step = 1 / scale
    if mode == "asymmetric":
        return Fraction(0), step
    if mode == "tf_half_pixel_for_nn":
        return step / 2, step
    if mode == "align_corners":
        return Fraction(0), Fraction(cells - 1, outputs - 1) if outputs > 1 else Fraction(0)
    if mode == "tf_crop_and_resize":
        (low, high), last = roi, cells - 1
        if outputs > 1:
            return low * last, (high - low) * last / (outputs - 1)
        return (low + high) * last / 2, Fraction(0)
    if mode == "pytorch_half_pixel" and outputs == 1:
        return Fraction(0), step
    shift = Fraction(0)
    if mode == "half_pixel_symmetric":
        shift = Fraction(cells, 2) * (1 - outputs / (cells * scale))
    return shift + step / 2 - HALF, step


def _resized(
    node: OnnxNode, mode: str, shape: tuple[int, ...], scales: Array | None, sizes: list[int] | None
) -> list[ResizedAxis]:
    """Every axis; those that are not named keep their size."""
    named = node.attribute("axes")
    axes = tuple(range(len(shape))) if named is None else normal_axes(named, len(shape))
    count = len(sizes) if sizes is not None else 0 if scales is None else scales.size
    if count != len(axes) or any(shape[a] == 0 for a in axes):
        raise FormatError(f"{count} scales or sizes for {len(axes)} axes of the shape {shape}, which must not be empty")
    cells = [shape[a] for a in axes]
    resized = _from_scales(cells, scales) if scales is not None else _from_sizes(node, cells, sizes or [])
    found = [ResizedAxis(n, n, *_position(mode, n, n, Fraction(1), WHOLE)) for n in shape]
    for axis, (outputs, scale), roi in zip(axes, resized, _rois(node, len(axes)), strict=True):
        if outputs < 1:
            raise ShapeError(f"axis {axis} would be resized to {outputs} cells; at least one is needed")
        found[axis] = ResizedAxis(shape[axis], outputs, *_position(mode, shape[axis], outputs, scale, roi))
    return found


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


def _rois(node: OnnxNode, count: int) -> list[Roi]:
    """The part of each axis that is wanted, which only one mode asks for."""
    if node.attribute("coordinate_transformation_mode") != "tf_crop_and_resize":
        return [WHOLE] * count
    roi = node.known(1)
    numbers = [float(n) for n in roi.reshape(-1)] if roi.size == 2 * count else []
    if len(numbers) != 2 * count or not all(map(isfinite, numbers)):
        raise FormatError(f"its roi has {roi.size} numbers for {count} axes; two finite ones for each are needed")
    return [(Fraction(low), Fraction(high)) for low, high in zip(numbers[:count], numbers[count:], strict=True)]


def _resize(node: OnnxNode) -> Var:
    if node.version < 11:
        return _resize_before_opset_11(node, node.known(1))
    mode = node.choice("mode", "nearest", "linear", "cubic")
    if node.attributes.get("antialias", 0) and mode != "nearest":
        raise UnsupportedError("Resize with antialias")
    x = node.variable(0)
    scales, sizes = _scales_or_sizes(node)
    places = node.choice("coordinate_transformation_mode", *MODES)
    axes = _resized(node, places, x.shape, scales, sizes)
    rounding = ROUNDINGS[node.choice("nearest_mode", *ROUNDINGS)]
    y = _resize_cubic(node, x, axes) if mode == "cubic" else _resize_axes(x, axes, mode, rounding)
    if places != "tf_crop_and_resize":
        return y
    # Outputs beyond the input have a value of their own: those within are kept, and padded with it.
    inside = [axis.inside for axis in axes]
    kept = getitem(y, tuple(slice(within.start, within.stop) for within in inside))
    pairs = [(within.start, axis.outputs - within.stop) for axis, within in zip(axes, inside, strict=True)]
    return compose.pad(kept, pairs, "constant", node.attribute("extrapolation_value"))


def _scales_or_sizes(node: OnnxNode) -> tuple[Array | None, list[int] | None]:
    """Which of the two is given; before opset 13 an empty list stands for one that is not."""
    scales = node.known(2) if node.has(2) and node.value(2).shape != (0,) else None
    sizes = node.known_ints(3) if node.has(3) and node.value(3).shape != (0,) else None
    if (scales is None) == (sizes is None):
        raise FormatError("exactly one of scales and sizes must be given")
    return scales, sizes


def _upsample(node: OnnxNode) -> Var:
    if node.version >= 10:
        raise FormatError(f"opset {node.version} no longer has it; Resize took its place")
    scales = node.attribute("scales")
    return _resize_before_opset_11(node, node.known(1) if scales is None else np.array(scales, np.float32))


def _resize_before_opset_11(node: OnnxNode, scales: Array) -> Var:
    """Before opset 11 output ``o`` lies at ``o / scale``.

    The text leaves the nearest cell open. It is the one below, or above where the axis shrinks, as in ONNX Runtime.
    """
    x, mode = node.variable(0), node.choice("mode", "nearest", "linear")
    axes = _resized(node, "asymmetric", x.shape, scales, None)
    shrinks = {axis.step > 1 for axis in axes if not axis.is_unchanged}
    if mode == "nearest" and len(shrinks) > 1:
        raise UnsupportedError(f"{node.op_type} of opset {node.version} that enlarges one axis and shrinks another")
    return _resize_axes(x, axes, mode, "ceil" if True in shrinks else "floor")


def _resize_axes(x: Var, axes: Sequence[ResizedAxis], mode: str, rounding: str) -> Var:
    """The axes from the first that changes on, resized."""
    first = next((i for i, axis in enumerate(axes) if not axis.is_unchanged), len(axes))
    tail = axes[first:]
    if not tail:
        return x
    sizes, step, start = zip(*((axis.outputs, axis.step, axis.start) for axis in tail), strict=True)
    return resize(x, sizes, mode, step=step, start=start, rounding=rounding if mode == "nearest" else "floor")


def _resize_cubic(node: OnnxNode, x: Var, axes: Sequence[ResizedAxis]) -> Var:
    """Axis by axis, a matrix that has the weights of four cells in each row."""
    if not x.type.is_float:
        raise UnsupportedError("Resize with mode cubic of integers")
    for number, axis in enumerate(axes):
        if not axis.is_unchanged:
            node.scope.charge(axis.outputs * (axis.cells + 4))
            weights = _cubic_weights(axis, node.attribute("cubic_coeff_a"), node.flag("exclude_outside"))
            x = moved(matmul(moved(x, number, -1), weights.T.astype(x.dtype.numpy)), -1, number)
    return x


def _cubic_weights(axis: ResizedAxis, a: float, excludes_outside: bool) -> Array:
    """Keys' weights of the four cells around each output; cells beyond an end are that at the end, or left out."""
    rows, last = np.arange(axis.outputs)[:, None], axis.cells - 1
    places = float(axis.start) + rows * float(axis.step)
    cells = np.floor(places) + np.arange(-1, 3)
    d = np.abs(places - cells)
    taps = np.where(d <= 1, ((a + 2) * d - (a + 3)) * d * d + 1, (((d - 5) * d + 8) * d - 4) * a)
    if excludes_outside:
        taps = np.where((cells >= 0) & (cells <= last), taps, 0.0)
        taps /= np.sum(taps, 1, keepdims=True) + ~taps.any(1, keepdims=True)
    weights = np.zeros((axis.outputs, axis.cells))
    np.add.at(weights, (rows, np.clip(cells, 0, last).astype(np.int64)), taps)
    return weights


HANDLERS: dict[str, Handler] = {
    "AveragePool": _average_pool,
    "Col2Im": _col2im,
    "Conv": lambda node: convolve(node, node.variable(0), node.variable(1), node.optional(2)),
    "ConvTranspose": _conv_transpose,
    "GlobalAveragePool": apply_to_operands(lambda x: global_avg_pool(x, len(spatial(x.shape)))),
    "GlobalLpPool": apply_to_operands(lambda x, p: lp_pool(x, p, spatial(x.shape)), "p"),
    "GlobalMaxPool": apply_to_operands(lambda x: global_max_pool(x, len(spatial(x.shape)))),
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
    "MaxUnpool": _max_unpool,
    "Resize": _resize,
    "Upsample": _upsample,
}
