"""Quantised operators of ONNX Runtime's own domain.

Most of them are an operator of ONNX on the numbers that integers stand for, and its result quantised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gradspec.graph.ir import Var
from gradspec.graph.types import i32
from gradspec.interop.onnx.node import Handler, OnnxNode, Signature, foreign, normal_axes
from gradspec.interop.onnx.nodes import pointwise, pool, quantize, reduce
from gradspec.interop.onnx.nodes.quantize import (
    centred,
    dynamically_quantized,
    one_number,
    per_line,
    product_of_centred,
    requantized,
    zero_point,
)
from gradspec.ops.convert import convert
from gradspec.ops.layout import concat, transpose, turned
from gradspec.ops.linear import matmul
from gradspec.ops.pointwise import add, mul, scale, sub
from gradspec.ops.quantize import dequantize
from gradspec.ops.quantize import quantize as to_integers
from gradspec.spec.errors import FormatError


def _number(node: OnnxNode, i: int) -> Any:
    """The numbers that operand ``i`` stands for; its scale and its zero point follow it."""
    q = node.variable(i)
    return dequantize(q, one_number(node, i + 1), zero_point(node, i + 2, q.dtype))


def _rounded(node: OnnxNode, y: Any, i: int) -> Any:
    """``y`` by the scale and zero point in the operands from ``i`` on, of the dtype of the first integers."""
    return to_integers(y, one_number(node, i), zero_point(node, i + 1, node.variable(0).dtype))


# --- operators on numbers ---------------------------------------------------------------------------------------------


def _by_numbers(name: str, handler: Handler) -> Handler:
    """ONNX's operator ``name`` on the first operand, by its own handler."""

    def of_integers(node: OnnxNode) -> Any:
        x, version = _number(node, 0), node.attributes.get("opset", node.version)
        inner = replace(node, op_type=name, version=version, names=node.names[:1], operands=(x,))
        return _rounded(node, handler(inner), 3)

    return of_integers


def _channels_second(handler: Handler) -> Handler:
    """A handler of ``(N, C, …)`` for images that may have their channels last."""

    def of_either(node: OnnxNode) -> Any:
        if not node.flag("channels_last"):
            return handler(node)
        x = node.variable(0)
        if x.ndim < 2:
            raise FormatError(f"it works on (N, …, C), and its input has the shape {x.shape}")
        moved = transpose(x, (0, x.ndim - 1, *range(1, x.ndim - 1)))
        y = handler(replace(node, operands=(moved, *node.operands[1:])))
        return transpose(y, (0, *range(2, y.ndim), 1))

    return of_either


def _of_two(function: Callable[[Any, Any], Any]) -> Handler:
    return lambda node: _rounded(node, function(_number(node, 0), _number(node, 3)), 6)


def _concat(node: OnnxNode) -> Any:
    """Triples of integers, scale and zero point follow the scale and zero point of the result."""
    first = range(2, len(node.operands), 3)
    if len(node.operands) % 3 != 2:
        raise FormatError(f"it has {len(node.operands)} inputs; two and three for each part are needed")
    parts = [_number(node, i) for i in first]
    (axis,) = normal_axes([node.attribute("axis")], parts[0].ndim)
    return to_integers(concat(parts, axis), one_number(node, 0), one_number(node, 1))


# --- products of matrices ---------------------------------------------------------------------------------------------


def _gemm(node: OnnxNode) -> Any:
    """``alpha · A·B`` and a bias on the same grid; without a scale of the result it stays what it stands for."""
    a, b = node.variable(0), node.variable(3)
    if a.ndim != 2 or b.ndim != 2:
        raise FormatError(f"it multiplies matrices, and its inputs have the shapes {a.shape} and {b.shape}")
    columns_lie = 0 if node.flag("transB") else 1
    left, right = centred(node, 0, 2, axis=0), centred(node, 3, 5, axis=columns_lie)
    total = matmul(turned(left) if node.flag("transA") else left, turned(right) if node.flag("transB") else right)
    total = add(total, node.variable(6)) if node.has(6) else total
    factor = scale(one_number(node, 1) * per_line(node.variable(4), 1, 2), node.attribute("alpha"))
    if not node.has(7):
        return dequantize(total, factor)
    return requantized(total, factor / one_number(node, 7), zero_point(node, 8, a.dtype))


def _biased(node: OnnxNode, y: Any, i: int) -> Any:
    return add(y, node.variable(i)) if node.has(i) else y


def _scales(rows: Var, columns: Var, rank: int) -> Any:
    return per_line(rows, rank - 2, rank) * per_line(columns, rank - 1, rank)


def _matmul_to_float(node: OnnxNode) -> Any:
    total = product_of_centred(node, (0, 4), (1, 5))
    return _biased(node, dequantize(total, _scales(node.variable(2), node.variable(3), total.ndim)), 6)


def _dynamic_matmul(node: OnnxNode) -> Any:
    """The left operand is quantised as DynamicQuantizeLinear does it."""
    q, step, zero = dynamically_quantized(node.variable(0))
    right = centred(node, 1, 3, axis=node.variable(1).ndim - 1)
    total = matmul(sub(convert(q, i32), convert(zero, i32)), right)
    return _biased(node, dequantize(total, _scales(step, node.variable(2), total.ndim)), 4)


# --- the table --------------------------------------------------------------------------------------------------------

_WINDOWS = {"auto_pad": "NOTSET", "kernel_shape": [], "pads": [], "strides": []}

OPERATORS: dict[str, tuple[Handler, range, dict[str, Any], set[str]]] = {
    "QuantizeLinear": (quantize.HANDLERS["QuantizeLinear"], range(2, 4), {"axis": 1}, set()),
    "DequantizeLinear": (quantize.HANDLERS["DequantizeLinear"], range(2, 4), {"axis": 1}, set()),
    "QLinearConv": (
        _channels_second(quantize.HANDLERS["QLinearConv"]),
        range(8, 10),
        {**_WINDOWS, "channels_last": 0, "dilations": [], "group": 1},
        set(),
    ),
    "QLinearAdd": (_of_two(add), range(7, 9), {}, set()),
    "QLinearMul": (_of_two(mul), range(7, 9), {}, set()),
    "QLinearConcat": (_concat, range(3, 2**31), {"axis": 0}, {"axis"}),
    "QLinearSigmoid": (_by_numbers("Sigmoid", pointwise.HANDLERS["Sigmoid"]), range(4, 6), {}, set()),
    "QLinearLeakyRelu": (
        _by_numbers("LeakyRelu", pointwise.HANDLERS["LeakyRelu"]),
        range(4, 6),
        {"alpha": 0.01},
        set(),
    ),
    "QLinearSoftmax": (
        _by_numbers("Softmax", reduce.HANDLERS["Softmax"]),
        range(5, 6),
        {"axis": -1, "opset": 13},
        {"opset"},
    ),
    "QLinearAveragePool": (
        _channels_second(_by_numbers("AveragePool", pool.HANDLERS["AveragePool"])),
        range(4, 6),
        {**_WINDOWS, "ceil_mode": 0, "channels_last": 0, "count_include_pad": 0},
        {"kernel_shape"},
    ),
    "QLinearGlobalAveragePool": (
        _channels_second(_by_numbers("GlobalAveragePool", pool.HANDLERS["GlobalAveragePool"])),
        range(5, 6),
        {"channels_last": 0},
        set(),
    ),
    "QGemm": (_gemm, range(6, 10), {"alpha": 1.0, "transA": 0, "transB": 0}, set()),
    "MatMulIntegerToFloat": (_matmul_to_float, range(4, 8), {}, set()),
    "DynamicQuantizeMatMul": (_dynamic_matmul, range(3, 6), {}, set()),
}
"""The handler of each operator, how many inputs it has, its attributes with their defaults, and those it needs."""

HANDLERS: dict[str, Handler] = {f"com.microsoft.{name}": entry[0] for name, entry in OPERATORS.items()}

SIGNATURES: dict[str, Signature] = {
    f"com.microsoft.{name}": foreign(counts, range(1, 2), defaults, *needed)
    for name, (_, counts, defaults, needed) in OPERATORS.items()
}
