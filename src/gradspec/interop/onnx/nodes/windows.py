"""Windows as ONNX's attributes state them: kernels, strides, dilations and the several ways to give padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradspec.interop.onnx.node import OnnxNode
from gradspec.saving.strict_json import brief
from gradspec.spec.errors import FormatError
from gradspec.spec.window import paddings

Sizes = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class NodeWindows:
    """Sliding windows, one entry per spatial axis."""

    kernel: Sizes
    stride: Sizes
    dilation: Sizes
    padding: Pairs


def spatial(shape: Sequence[int]) -> Sizes:
    """The spatial sizes of ``(N, C, *spatial)``."""
    if len(shape) < 2:
        raise FormatError(f"it works on (N, C, …), and its input has the shape {tuple(shape)}")
    return tuple(shape[2:])


def per_axis(node: OnnxNode, name: str, rank: int, default: int) -> Sizes:
    """One number for each spatial axis."""
    given = node.attribute(name)
    numbers = tuple(given) if given else (default,) * rank
    if len(numbers) != rank:
        raise FormatError(f"its {name} is {brief(list(numbers))} with {len(numbers)} entries; {rank} are needed")
    return numbers


def pads(node: OnnxNode, rank: int) -> Pairs:
    """Explicit padding: all the low ends come first, then all the high ends."""
    ends = per_axis(node, "pads", 2 * rank, 0)
    return tuple(zip(ends[:rank], ends[rank:], strict=True))


def windows(node: OnnxNode, sizes: Sizes, kernel: Sizes) -> NodeWindows:
    """The windows of a node over axes of ``sizes``."""
    rank = len(sizes)
    stride, dilation = per_axis(node, "strides", rank, 1), per_axis(node, "dilations", rank, 1)
    if len(kernel) != rank or any(n < 1 for n in kernel):
        raise FormatError(f"its kernel_shape, {kernel[:8]}, is not a number of 1 or more for each of {rank} axes")
    padding = _padding(node, sizes, kernel, stride, dilation)
    return NodeWindows(kernel, stride, dilation, padding)


def auto_pad(node: OnnxNode) -> str:
    """How padding is chosen; pads of 0 beside it are those that a node has without any."""
    mode, given = node.choice("auto_pad", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"), node.attribute("pads")
    if mode != "NOTSET" and any(given or ()):
        raise FormatError(f"its auto_pad is {mode}, and its pads are {brief(given)}; ONNX has one or the other")
    return mode


def _padding(node: OnnxNode, sizes: Sizes, kernel: Sizes, stride: Sizes, dilation: Sizes) -> Pairs:
    mode = auto_pad(node)
    if mode == "NOTSET":
        return pads(node, len(sizes))
    if mode == "VALID":
        return ((0, 0),) * len(sizes)
    upper = paddings("same", sizes, kernel, stride, dilation)  # an odd cell is at the high end
    return tuple(upper) if mode == "SAME_UPPER" else tuple((hi, lo) for lo, hi in upper)


def halves(total: int, *, low_first: bool) -> tuple[int, int]:
    """A total in two parts, low and high; the odd cell goes to the low end if ``low_first``."""
    less = total // 2
    return (total - less, less) if low_first else (less, total - less)
