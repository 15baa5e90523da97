"""Quantised operators: integers less their zero points, summed as integers, and rounded to the grid of the result.

``q − zero point`` is exact, and so are sums of products of such numbers, unless they leave 32 bits. A sum stands for
itself times the product of the scales; divided by the scale of the result, that is the one factor by which it is
multiplied before it is rounded.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradspec.graph.ir import Var
from gradspec.graph.types import DType, TensorType, dtype_of, f32, i32, u8
from gradspec.interop import compose
from gradspec.interop.onnx.node import Handler, OnnxNode, normal_axes
from gradspec.interop.onnx.nodes.conv import kernel_of
from gradspec.interop.onnx.nodes.windows import spatial, windows
from gradspec.interop.onnx.tensors import kind_of
from gradspec.ops.conv import conv
from gradspec.ops.convert import convert
from gradspec.ops.layout import getitem
from gradspec.ops.linear import matmul
from gradspec.ops.pointwise import maximum, minimum, sub
from gradspec.ops.quantize import dequantize, quantize
from gradspec.ops.shape import broadcast_to, reshape
from gradspec.spec.errors import FormatError, ShapeError, UnsupportedError

Index = tuple[int, ...]

# --- scales and zero points -------------------------------------------------------------------------------------------


def one_number(node: OnnxNode, i: int) -> Any:
    """Operand ``i``, which may be a list of one number."""
    t = node.variable(i)
    if t.type.size != 1:
        raise UnsupportedError(f"{node.op_type} with an input {i} of shape {t.shape}, which is not one number")
    return reshape(t, ())


def zero_point(node: OnnxNode, i: int, dtype: DType) -> Any:
    """Operand ``i``, or 0 where it is left out."""
    if node.has(i):
        return one_number(node, i)
    return node.variable(0).owner.zeros(TensorType(dtype, ()))


def per_line(t: Var, axis: int, rank: int) -> Any:
    """One number, or one for each index of an axis, as it broadcasts to a tensor of ``rank``; others as they are."""
    if t.type.size == 1:
        return reshape(t, ())
    return reshape(t, (*t.shape, *(1,) * (rank - 1 - axis))) if t.ndim == 1 else t


def _fitted(node: OnnxNode, x: Any, *others: Var | None) -> tuple[Any, ...]:
    """``x``, and what goes with it in shapes that fit; of a last block that is short, the rest is laid down."""
    given = [t for t in others if t is not None]
    if all(t.type.size == 1 for t in given) and not node.attributes.get("block_size"):
        return x, *(None if t is None else reshape(t, ()) for t in others)
    (axis,) = normal_axes([node.attributes.get("axis", 1)], x.ndim)
    size = x.shape[axis]
    block = min(node.attributes.get("block_size", 0), max(size, 1))  # a block beyond the axis is all of it
    count = -(-size // block) if block > 0 else size
    wanted = (*x.shape[:axis], count, *x.shape[axis + 1 :]) if block else (size,)
    if block < 0 or any(t.shape != wanted for t in given):
        raise ShapeError(
            f"along axis {axis} of {x.shape}{f', in blocks of {block},' * bool(block)} scale and zero point have the "
            f"shape {wanted}, not {', '.join(str(t.shape) for t in given)}"
        )
    if not block:
        return x, *(None if t is None else per_line(t, axis, x.ndim) for t in others)
    return compose.pad(x, [(0, (a == axis) * (count * block - size)) for a in range(x.ndim)]), *others


def _first(y: Any, shape: Index) -> Any:
    """Without what was laid down behind."""
    return y if y.shape == shape else getitem(y, tuple(map(slice, shape)))


# --- to integers and back ---------------------------------------------------------------------------------------------


def _stated(node: OnnxNode, name: str) -> DType | None:
    """The dtype that an attribute names, if any."""
    number = node.attributes.get(name, 0)
    return dtype_of(np.empty(0, kind_of(number))) if number else None


def _quantize_linear(node: OnnxNode) -> Any:
    """The division is done in the format of the scale, unless another is named."""
    x, scale, zero = node.variable(0), node.variable(1), node.optional(2)
    wide = _stated(node, "precision") or (scale.dtype if scale.type.is_float else f32)
    dtype = _stated(node, "output_dtype") or (u8 if zero is None else zero.dtype)
    if zero is not None and zero.dtype != dtype:
        raise FormatError(f"its output_dtype is {dtype}, and its zero point is {zero.dtype}")
    given, scale, zero = _fitted(node, convert(x, wide), convert(scale, wide), zero)
    if wide.numpy.itemsize == 2:  # in kernels of these formats a quotient is not rounded before it is an integer
        given, scale = given / _repeated(scale, given.shape), scale.owner.operand(1.0, scale)
    return _first(quantize(given, scale, 0 if zero is None else zero, dtype), x.shape)


def _repeated(t: Var, shape: Index) -> Any:
    """A scale for every cell of its block."""
    full = (*(1,) * (len(shape) - t.ndim), *t.shape)
    pairs = [(m, n // max(m, 1)) for m, n in zip(full, shape, strict=True)]
    split = reshape(t, [size for m, _ in pairs for size in (m, 1)])
    return reshape(broadcast_to(split, [size for pair in pairs for size in pair]), shape)


def _dequantize_linear(node: OnnxNode) -> Any:
    """The product has the format of the result. For 32-bit integers the text has no zero point, and files have 0."""
    q, scale, zero = node.variable(0), node.variable(1), node.optional(2)
    if zero is not None and q.dtype == i32:
        if np.any(node.known(2)):
            raise FormatError("its zero point is not 0, and 32-bit integers have no other")
        zero = None
    wide = _stated(node, "output_dtype") or scale.dtype
    given, scale, zero = _fitted(node, q, convert(scale, wide), zero)
    return _first(dequantize(given, scale, zero), q.shape)


def dynamically_quantized(x: Var) -> tuple[Any, Any, Any]:
    """``x`` in 8 bits, with its scale and zero point: the range of ``x`` and 0 in 255 steps, with 0 on one of them."""
    axes = tuple(range(x.ndim))
    low = minimum(compose.smallest(x, axes, False), 0.0)
    scale = (maximum(compose.largest(x, axes, False), 0.0) - low) / 255.0
    zero = quantize(-low, scale, 0, u8)
    return quantize(x, scale, zero), scale, zero


# --- sums of products -------------------------------------------------------------------------------------------------


def centred(node: OnnxNode, i: int, zero: int, axis: int) -> Any:
    """Operand ``i`` less its zero point, operand ``zero``, in 32 bits; several zero points lie along ``axis``."""
    q = node.variable(i)
    if not node.has(zero) or _is_nothing(node.value(zero)):
        return convert(q, i32)
    at = node.variable(zero)
    if at.dtype != q.dtype:
        raise FormatError(f"its input {i} is {q.dtype}, and the zero point {at.dtype}; they must be the same")
    return sub(convert(q, i32), convert(per_line(at, axis, q.ndim), i32))


def _is_nothing(value: Any) -> bool:
    return isinstance(value, np.ndarray) and not np.any(value)


def requantized(total: Any, factor: Any, zero: Any) -> Any:
    """``total · factor``, rounded, plus the zero point."""
    return quantize(dequantize(total, factor), 1.0, zero)


def _convolution(node: OnnxNode, x: tuple[int, int], w: tuple[int, int], bias: Var | None) -> Any:
    """Zeros are laid around centred numbers, so padding stands for 0."""
    image, weight = centred(node, *x, axis=1), centred(node, *w, axis=0)
    place = windows(node, spatial(image.shape), kernel_of(node, weight))
    return conv(image, weight, bias, place.stride, place.padding, place.dilation, node.attribute("group"))


def _conv_integer(node: OnnxNode) -> Any:
    return _convolution(node, (0, 2), (1, 3), None)


def _qlinear_conv(node: OnnxNode) -> Any:
    total = _convolution(node, (0, 2), (3, 5), node.optional(8))
    factor = one_number(node, 1) * per_line(node.variable(4), 1, total.ndim) / one_number(node, 6)
    return requantized(total, factor, one_number(node, 7))


def product_of_centred(node: OnnxNode, a: tuple[int, int], b: tuple[int, int]) -> Any:
    """One zero point for each row on the left and for each column on the right."""
    left, right = (node.variable(i).ndim for i, _ in (a, b))
    return matmul(centred(node, *a, axis=left - 2), centred(node, *b, axis=right - 1))


def _qlinear_matmul(node: OnnxNode) -> Any:
    total = product_of_centred(node, (0, 2), (3, 5))
    rows, columns = (convert(node.variable(i), f32) for i in (1, 4))
    factor = per_line(rows, total.ndim - 2, total.ndim) * per_line(columns, total.ndim - 1, total.ndim)
    return requantized(total, factor / convert(one_number(node, 6), f32), one_number(node, 7))


HANDLERS: dict[str, Handler] = {
    "QuantizeLinear": _quantize_linear,
    "DequantizeLinear": _dequantize_linear,
    "DynamicQuantizeLinear": lambda node: dynamically_quantized(node.variable(0)),
    "ConvInteger": _conv_integer,
    "MatMulInteger": lambda node: product_of_centred(node, (0, 2), (1, 3)),
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
}
