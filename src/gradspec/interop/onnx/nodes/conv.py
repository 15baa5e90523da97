"""Convolutions, and columns added back onto an image."""

from __future__ import annotations

from typing import Any

from gradspec.graph.ir import Var
from gradspec.interop import compose
from gradspec.interop.onnx.node import Handler, OnnxNode
from gradspec.interop.onnx.nodes.windows import Pairs, Sizes, auto_pad, halves, pads, per_axis, spatial, windows
from gradspec.ops.conv import conv as convolution
from gradspec.ops.conv import conv_transpose as transposed_convolution
from gradspec.ops.shape import reshape
from gradspec.ops.unfold import fold
from gradspec.saving.strict_json import brief
from gradspec.spec.errors import FormatError, ShapeError


def kernel_of(node: OnnxNode, weight: Var) -> Sizes:
    """The kernel's sizes, which the weight has and the attribute may repeat."""
    sizes, stated = spatial(weight.shape), node.attribute("kernel_shape")
    if stated and tuple(stated) != sizes:
        raise FormatError(f"its kernel_shape is {brief(stated)}, and its weight has {sizes}")
    return sizes


def _conv(node: OnnxNode) -> Any:
    x, weight, bias = node.variable(0), node.variable(1), node.optional(2)
    w = windows(node, spatial(x.shape), kernel_of(node, weight))
    return convolution(x, weight, bias, w.stride, w.padding, w.dilation, node.attribute("group"))


def _conv_transpose(node: OnnxNode) -> Any:
    x, weight, bias = node.variable(0), node.variable(1), node.optional(2)
    sizes, kernel = spatial(x.shape), kernel_of(node, weight)
    rank = len(sizes)
    stride, dilation = per_axis(node, "strides", rank, 1), per_axis(node, "dilations", rank, 1)
    extents = [s * (n - 1) + d * (k - 1) + 1 for n, k, s, d in zip(sizes, kernel, stride, dilation, strict=True)]
    crops = _crops(node, sizes, stride, extents)
    cut = tuple((max(lo, 0), max(hi, 0)) for lo, hi in crops)
    grown = [(max(-lo, 0), max(-hi, 0)) for lo, hi in crops]
    extra = tuple(hi for _, hi in grown)
    options = {"stride": stride, "padding": cut, "groups": node.attribute("group"), "dilation": dilation}
    if all(lo == 0 and hi < max(s, d) for (lo, hi), s, d in zip(grown, stride, dilation, strict=True)):
        return transposed_convolution(x, weight, bias, output_padding=extra, **options)
    y = compose.pad(transposed_convolution(x, weight, **options), [(0, 0), (0, 0), *grown])
    return y if bias is None else y + reshape(bias, (*bias.shape, *(1,) * rank))


def _crops(node: OnnxNode, sizes: Sizes, stride: Sizes, extents: list[int]) -> Pairs:
    """How many cells of the whole result are left out at both ends of each axis; below 0, how many zeros are added.

    ``output_padding`` takes back from the crop at the high end, and if the size of the result is stated, the crops
    follow from it.
    """
    rank, mode = len(sizes), auto_pad(node)
    extra = per_axis(node, "output_padding", rank, 0)
    stated = node.attribute("output_shape")
    wanted = tuple(stated)[-rank:] if stated else tuple(n * s for n, s in zip(sizes, stride, strict=True))
    if not stated and mode in ("NOTSET", "VALID"):
        ends: Pairs = pads(node, rank) if mode == "NOTSET" else ((0, 0),) * rank
    elif len(wanted) == rank:
        totals = (extent + e - size for extent, e, size in zip(extents, extra, wanted, strict=True))
        ends = tuple(halves(total, low_first=mode != "SAME_UPPER") for total in totals)
    else:
        raise ShapeError(f"its output_shape is {brief(stated)}, which does not give {rank} spatial sizes")
    return tuple((lo, hi - e) for (lo, hi), e in zip(ends, extra, strict=True))


def _col2im(node: OnnxNode) -> Any:
    x, sizes, kernel = node.variable(0), tuple(node.known_ints(1)), tuple(node.known_ints(2))
    w = windows(node, sizes, kernel)
    return fold(x, sizes, kernel, w.dilation, w.padding, w.stride)


HANDLERS: dict[str, Handler] = {"Conv": _conv, "ConvTranspose": _conv_transpose, "Col2Im": _col2im}
