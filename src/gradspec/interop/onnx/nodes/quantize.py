"""Quantised operators: integers less their zero points, summed as integers, and rounded to the grid of the result.

``q − zero point`` is exact, and so are sums of products of such numbers, unless they leave 32 bits. A sum stands for
itself times the product of the scales; divided by the scale of the result, that is the one factor by which it is
multiplied before it is rounded.

Most operators of ONNX Runtime's own domain are one of ONNX on the numbers that integers stand for, and its result
quantised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gradspec.graph.ir import Var
from gradspec.graph.types import DType, TensorType, f32, i32, u8
from gradspec.interop import compose
from gradspec.interop.onnx.files import dtype_numbered
from gradspec.interop.onnx.node import Handler, OnnxNode, Signature, apply_to_operands, foreign, normal_axes
from gradspec.interop.onnx.nodes import arithmetic, windows
from gradspec.ops.convert import convert
from gradspec.ops.gather import moved
from gradspec.ops.layout import concat, getitem, turned
from gradspec.ops.linear import matmul
from gradspec.ops.pointwise import add, maximum, minimum, mul, scale, sub
from gradspec.ops.quantize import dequantize, quantize
from gradspec.ops.shape import broadcast_to, reshape
from gradspec.spec.errors import FormatError, ShapeError, UnsupportedError

# --- scales and zero points -------------------------------------------------------------------------------------------


def _one_number(node: OnnxNode, i: int) -> Var:
    """Operand ``i``, which may be a list of one number."""
    t = node.variable(i)
    if t.type.size != 1:
        raise UnsupportedError(f"{node.op_type} with an input {i} of shape {t.shape}, which is not one number")
    return reshape(t, ())


def _zero_point(node: OnnxNode, i: int, dtype: DType) -> Any:
    """Operand ``i``, or 0 where it is left out."""
    if node.has(i):
        return _one_number(node, i)
    return node.variable(0).owner.zeros(TensorType(dtype, ()))


def _per_line(t: Var, axis: int, rank: int) -> Var:
    """One number, or one for each index of an axis, as it broadcasts to a tensor of ``rank``; others as they are."""
    if t.type.size == 1:
        return reshape(t, ())
    return reshape(t, (*t.shape, *(1,) * (rank - 1 - axis))) if t.ndim == 1 else t


def _fit(node: OnnxNode, x: Var, *others: Var | None) -> tuple[Any, ...]:
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
        return x, *(None if t is None else _per_line(t, axis, x.ndim) for t in others)
    return compose.pad(x, [(0, (a == axis) * (count * block - size)) for a in range(x.ndim)]), *others


def _crop(y: Var, shape: Sequence[int]) -> Var:
    """``y`` without what was laid down behind it."""
    return y if y.shape == tuple(shape) else getitem(y, tuple(map(slice, shape)))


# --- to integers and back ---------------------------------------------------------------------------------------------


def _stated_dtype(node: OnnxNode, name: str) -> DType | None:
    """The dtype that an attribute names, if any."""
    number = node.attributes.get(name, 0)
    return dtype_numbered(number) if number else None


def _quantize_linear(node: OnnxNode) -> Var:
    """The division is done in the format of the scale, unless another is named."""
    x, scale, zero = node.variable(0), node.variable(1), node.optional(2)
    wide = _stated_dtype(node, "precision") or (scale.dtype if scale.type.is_float else f32)
    dtype = _stated_dtype(node, "output_dtype") or (u8 if zero is None else zero.dtype)
    if zero is not None and zero.dtype != dtype:
        raise FormatError(f"its output_dtype is {dtype}, and its zero point is {zero.dtype}")
    padded, scale, zero = _fit(node, convert(x, wide), convert(scale, wide), zero)
    if wide.numpy.itemsize == 2:  # in kernels of these formats a quotient is not rounded before it is an integer
        padded, scale = padded / _repeat_blocks(scale, padded.shape), scale.owner.operand(1.0, scale)
    return _crop(quantize(padded, scale, 0 if zero is None else zero, dtype), x.shape)


def _repeat_blocks(t: Var, shape: Sequence[int]) -> Var:
    """A scale for every cell of its block."""
    full = (*(1,) * (len(shape) - t.ndim), *t.shape)
    pairs = [(m, n // max(m, 1)) for m, n in zip(full, shape, strict=True)]
    split = reshape(t, [size for m, _ in pairs for size in (m, 1)])
    return reshape(broadcast_to(split, [size for pair in pairs for size in pair]), shape)


def _dequantize_linear(node: OnnxNode) -> Var:
    """The product has the format of the result. For 32-bit integers the text has no zero point, and files have 0."""
    q, scale, zero = node.variable(0), node.variable(1), node.optional(2)
    if zero is not None and q.dtype == i32:
        if np.any(node.known(2)):
            raise FormatError("its zero point is not 0, and 32-bit integers have no other")
        zero = None
    wide = _stated_dtype(node, "output_dtype") or scale.dtype
    padded, scale, zero = _fit(node, q, convert(scale, wide), zero)
    return _crop(dequantize(padded, scale, zero), q.shape)


def _quantize_dynamically(x: Var) -> tuple[Any, Any, Any]:
    """``x`` in 8 bits, with its scale and zero point: the range of ``x`` and 0 in 255 steps, with 0 on one of them."""
    axes = tuple(range(x.ndim))
    low = minimum(compose.smallest(x, axes, False), 0.0)
    scale = (maximum(compose.largest(x, axes, False), 0.0) - low) / 255.0
    zero = quantize(-low, scale, 0, u8)
    return quantize(x, scale, zero), scale, zero


# --- sums of products -------------------------------------------------------------------------------------------------


def _centre(node: OnnxNode, i: int, zero: int, axis: int) -> Var:
    """Operand ``i`` less its zero point, operand ``zero``, in 32 bits; several zero points lie along ``axis``."""
    q = node.variable(i)
    if not node.has(zero) or (isinstance(node.value(zero), np.ndarray) and not np.any(node.value(zero))):
        return convert(q, i32)
    at = node.variable(zero)
    if at.dtype != q.dtype:
        raise FormatError(f"its input {i} is {q.dtype}, and the zero point {at.dtype}; they must be the same")
    return sub(convert(q, i32), convert(_per_line(at, axis, q.ndim), i32))


def _requantize(total: Var, factor: Var, zero: Var) -> Var:
    """``total · factor``, rounded, plus the zero point."""
    return quantize(dequantize(total, factor), 1.0, zero)


def _convolve(node: OnnxNode, x: tuple[int, int], w: tuple[int, int], bias: Var | None) -> Var:
    """Zeros are laid around centred numbers, so padding stands for 0."""
    return windows.convolve(node, _centre(node, *x, axis=1), _centre(node, *w, axis=0), bias)


def _qlinear_conv(node: OnnxNode) -> Var:
    total = _convolve(node, (0, 2), (3, 5), node.optional(8))
    factor = _one_number(node, 1) * _per_line(node.variable(4), 1, total.ndim) / _one_number(node, 6)
    return _requantize(total, factor, _one_number(node, 7))


def _multiply_centred(node: OnnxNode, a: tuple[int, int], b: tuple[int, int]) -> Var:
    """One zero point for each row on the left and for each column on the right."""
    left, right = (node.variable(i).ndim for i, _ in (a, b))
    return matmul(_centre(node, *a, axis=left - 2), _centre(node, *b, axis=right - 1))


def _scales(rows: Var, columns: Var, rank: int) -> Var:
    return _per_line(rows, rank - 2, rank) * _per_line(columns, rank - 1, rank)


def _qlinear_matmul(node: OnnxNode) -> Var:
    total = _multiply_centred(node, (0, 2), (3, 5))
    rows, columns = (convert(node.variable(i), f32) for i in (1, 4))
    factor = _scales(rows, columns, total.ndim)
    return _requantize(total, factor / convert(_one_number(node, 6), f32), _one_number(node, 7))


# --- operators of ONNX Runtime, on numbers ----------------------------------------------------------------------------


def _dequantize_operand(node: OnnxNode, i: int) -> Var:
    """The numbers that operand ``i`` stands for; its scale and its zero point follow it."""
    q = node.variable(i)
    return dequantize(q, _one_number(node, i + 1), _zero_point(node, i + 2, q.dtype))


def _quantize_result(node: OnnxNode, y: Var, i: int) -> Var:
    """``y`` by the scale and zero point in the operands from ``i`` on, of the dtype of the first integers."""
    return quantize(y, _one_number(node, i), _zero_point(node, i + 1, node.variable(0).dtype))


def _on_numbers(name: str, handlers: dict[str, Handler]) -> Handler:
    """ONNX's operator ``name`` on the first operand, by its own handler."""

    def of_integers(node: OnnxNode) -> Var:
        x, version = _dequantize_operand(node, 0), node.attributes.get("opset", node.version)
        inner = replace(node, op_type=name, version=version, names=node.names[:1], operands=(x,))
        return _quantize_result(node, handlers[name](inner), 3)

    return of_integers


def _channels_second(handler: Handler) -> Handler:
    """A handler of ``(N, C, …)`` for images that may have their channels last."""

    def of_either(node: OnnxNode) -> Any:
        if not node.flag("channels_last"):
            return handler(node)
        x = node.variable(0)
        if x.ndim < 2:
            raise FormatError(f"it works on (N, …, C), and its input has the shape {x.shape}")
        return moved(handler(replace(node, operands=(moved(x, -1, 1), *node.operands[1:]))), 1, -1)

    return of_either


def _on_two_numbers(function: Callable[[Any, Any], Any]) -> Handler:
    return lambda node: _quantize_result(node, function(_dequantize_operand(node, 0), _dequantize_operand(node, 3)), 6)


def _concat(node: OnnxNode) -> Var:
    """Triples of integers, scale and zero point follow the scale and zero point of the result."""
    if len(node.operands) % 3 != 2:
        raise FormatError(f"it has {len(node.operands)} inputs; two and three for each part are needed")
    parts = [_dequantize_operand(node, i) for i in range(2, len(node.operands), 3)]
    return quantize(concat(parts, node.axis(parts[0].ndim)), _one_number(node, 0), _one_number(node, 1))


# --- operators of ONNX Runtime, on sums of products -------------------------------------------------------------------


def _gemm(node: OnnxNode) -> Var:
    """``alpha · A·B`` and a bias on the same grid; without a scale of the result it stays what it stands for."""
    a, b = node.variable(0), node.variable(3)
    if a.ndim != 2 or b.ndim != 2:
        raise FormatError(f"it multiplies matrices, and its inputs have the shapes {a.shape} and {b.shape}")
    columns_lie = 0 if node.flag("transB") else 1
    left, right = _centre(node, 0, 2, axis=0), _centre(node, 3, 5, axis=columns_lie)
    total = matmul(turned(left) if node.flag("transA") else left, turned(right) if node.flag("transB") else right)
    total = _add_bias(node, total, 6)
    factor = scale(_one_number(node, 1) * _per_line(node.variable(4), 1, 2), node.attribute("alpha"))
    if not node.has(7):
        return dequantize(total, factor)
    return _requantize(total, factor / _one_number(node, 7), _zero_point(node, 8, a.dtype))


def _add_bias(node: OnnxNode, y: Var, i: int) -> Var:
    return add(y, node.variable(i)) if node.has(i) else y


def _matmul_to_float(node: OnnxNode) -> Var:
    total = _multiply_centred(node, (0, 4), (1, 5))
    return _add_bias(node, dequantize(total, _scales(node.variable(2), node.variable(3), total.ndim)), 6)


def _dynamic_matmul(node: OnnxNode) -> Var:
    """The left operand is quantised as DynamicQuantizeLinear does it."""
    q, step, zero = _quantize_dynamically(node.variable(0))
    right = _centre(node, 1, 3, axis=node.variable(1).ndim - 1)
    total = matmul(sub(convert(q, i32), convert(zero, i32)), right)
    return _add_bias(node, dequantize(total, _scales(step, node.variable(2), total.ndim)), 4)


HANDLERS: dict[str, Handler] = {
    "ConvInteger": lambda node: _convolve(node, (0, 2), (1, 3), None),
    "DequantizeLinear": _dequantize_linear,
    "DynamicQuantizeLinear": apply_to_operands(_quantize_dynamically),
    "MatMulInteger": lambda node: _multiply_centred(node, (0, 2), (1, 3)),
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "QuantizeLinear": _quantize_linear,
}

_WINDOWS: dict[str, Any] = {"auto_pad": "NOTSET", "kernel_shape": [], "pads": [], "strides": [], "channels_last": 0}
_AVERAGE = _channels_second(_on_numbers("AveragePool", windows.HANDLERS))
_GLOBAL_AVERAGE = _channels_second(_on_numbers("GlobalAveragePool", windows.HANDLERS))

FOREIGN: dict[str, tuple[Handler, Signature]] = {
    "com.microsoft.DequantizeLinear": (_dequantize_linear, foreign((2, 3), axis=1)),
    "com.microsoft.DynamicQuantizeMatMul": (_dynamic_matmul, foreign((3, 5))),
    "com.microsoft.MatMulIntegerToFloat": (_matmul_to_float, foreign((4, 7))),
    "com.microsoft.QGemm": (_gemm, foreign((6, 9), alpha=1.0, transA=0, transB=0)),
    "com.microsoft.QLinearAdd": (_on_two_numbers(add), foreign((7, 8))),
    "com.microsoft.QLinearAveragePool": (
        _AVERAGE,
        foreign((4, 5), needed="kernel_shape", **_WINDOWS, ceil_mode=0, count_include_pad=0),
    ),
    "com.microsoft.QLinearConcat": (_concat, foreign((3, 2**31 - 1), needed="axis", axis=0)),
    "com.microsoft.QLinearConv": (_channels_second(_qlinear_conv), foreign((8, 9), **_WINDOWS, dilations=[], group=1)),
    "com.microsoft.QLinearGlobalAveragePool": (_GLOBAL_AVERAGE, foreign(5, channels_last=0)),
    "com.microsoft.QLinearLeakyRelu": (_on_numbers("LeakyRelu", arithmetic.HANDLERS), foreign((4, 5), alpha=0.01)),
    "com.microsoft.QLinearMul": (_on_two_numbers(mul), foreign((7, 8))),
    "com.microsoft.QLinearSigmoid": (_on_numbers("Sigmoid", arithmetic.HANDLERS), foreign((4, 5))),
    "com.microsoft.QLinearSoftmax": (
        _on_numbers("Softmax", arithmetic.HANDLERS),
        foreign(5, needed="opset", axis=-1, opset=13),
    ),
    "com.microsoft.QuantizeLinear": (_quantize_linear, foreign((2, 3), axis=1)),
}
"""Operators that ONNX has no record of, each with a record of its inputs and attributes."""
