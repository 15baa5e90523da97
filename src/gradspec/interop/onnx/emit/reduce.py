"""Sums and means over axes, softmaxes, products of matrices, and batch normalisation with given statistics."""

from __future__ import annotations

import numpy as np

from gradspec.interop.onnx.emit.emitter import FLOAT32, INT64, Emitter, OnnxValue
from gradspec.interop.onnx.emit.table import emits, emits_each
from gradspec.ops.linear import BatchNorm, Product
from gradspec.ops.reduce import CumSum
from gradspec.ops.shape import Axes


@emits("sum")
def sum_(e: Emitter, attrs: Axes, x: OnnxValue) -> OnnxValue:
    if not x.size:
        return e.full(tuple(n for a, n in enumerate(x.shape) if a not in attrs.axes), 0, x.dtype)
    return e.reduce("ReduceSum", x, attrs.axes)


@emits("cumsum")
def cumsum(e: Emitter, attrs: CumSum, x: OnnxValue) -> OnnxValue:
    """Integers in 64 bits, as sums are."""
    terms = x if x.is_float else e.cast(x, INT64)
    ends = {"exclusive": int(attrs.exclusive), "reverse": int(attrs.reverse)}
    return e.node("CumSum", [terms, e.constant(attrs.axis, INT64)], x.shape, terms.dtype, **ends)


emits_each(
    {
        "mean": lambda e, attrs, x: e.reduce("ReduceMean", x, attrs.axes),
        "softmax": lambda e, attrs, x: e.cells("Softmax", x, axis=attrs.axis),
        "log_softmax": lambda e, attrs, x: e.cells("LogSoftmax", x, axis=attrs.axis),
    }
)

# --- products of matrices ---------------------------------------------------------------------------------------------


@emits("matmul")
def matmul(e: Emitter, attrs: Product, a: OnnxValue, b: OnnxValue, *bias: OnnxValue) -> OnnxValue:
    rows, inner = a.shape[-2:] if not attrs.transpose_a else a.shape[:-3:-1]
    columns = b.shape[-2] if attrs.transpose_b else b.shape[-1]
    shape = (*a.shape[:-2], rows, columns)
    if not inner:
        return e.expand(_as_row(e, bias[0]), shape) if bias else e.full(shape, 0, a.dtype)
    if a.ndim == 2 and a.is_float and (bias or attrs != Product()):
        flags = {"transA": int(attrs.transpose_a), "transB": int(attrs.transpose_b)}
        return e.node("Gemm", [a, b, *bias], shape, a.dtype, **flags)
    factors = [_turn(e, a, attrs.transpose_a), _turn(e, b, attrs.transpose_b)]
    y = e.node("MatMul", factors, shape, a.dtype)
    return e.cells("Add", y, _as_row(e, bias[0])) if bias else y


def _turn(e: Emitter, x: OnnxValue, turn: bool) -> OnnxValue:
    return e.transpose(x, [*range(x.ndim - 2), x.ndim - 1, x.ndim - 2]) if turn else x


def _as_row(e: Emitter, bias: OnnxValue) -> OnnxValue:
    return e.reshape(bias, (*bias.shape[:-1], 1, bias.shape[-1]))


@emits("batch_norm")
def batch_norm(
    e: Emitter, attrs: BatchNorm, x: OnnxValue, mean: OnnxValue, var: OnnxValue, *affine: OnnxValue
) -> OnnxValue | None:
    """ONNX keeps eps in float32, which may be another number."""
    if x.dtype != FLOAT32 and float(np.float32(attrs.eps)) != attrs.eps:
        return None
    weight = affine[0] if attrs.weight else e.full(mean.shape, 1, x.dtype)
    bias = affine[-1] if attrs.bias else e.full(mean.shape, 0, x.dtype)
    return e.node("BatchNormalization", [x, weight, bias, mean, var], x.shape, x.dtype, epsilon=attrs.eps)
