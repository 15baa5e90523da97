"""Normalisations."""

from __future__ import annotations

from math import prod
from typing import Any

from onnx import TensorProto

from gradspec.graph.builder import apply
from gradspec.graph.ir import Var
from gradspec.graph.types import bf16, f16, f32
from gradspec.interop import compose
from gradspec.interop.onnx.node import Handler, OnnxNode, normal_axes
from gradspec.interop.onnx.nodes.windows import spatial
from gradspec.ops.convert import convert
from gradspec.ops.linear import batch_norm
from gradspec.ops.pointwise import STEP, Levels, abs, sqrt
from gradspec.ops.pool import avg_pool
from gradspec.ops.reduce import mean
from gradspec.ops.shape import broadcast_to, reshape
from gradspec.ops.shape import sum as sum_over
from gradspec.spec.errors import FormatError, ShapeError, UnsupportedError


def _batch_norm(node: OnnxNode) -> Any:
    x, weight, bias, average, variance = node.variables()
    if node.flag("training_mode") or any(node.wants(i) for i in range(1, 5)):
        raise UnsupportedError("BatchNormalization in training mode")
    eps = node.attribute("epsilon")
    kind = max(variance.dtype, x.dtype, key=lambda dtype: dtype.numpy.itemsize)
    x_, weight, bias, average, variance = (convert(v, kind) for v in node.variables())
    if node.attributes.get("spatial", 1) and x.ndim > 1:
        y = batch_norm(x_, average, variance, weight, bias, eps)
    else:  # one mean and variance for every cell of a sample
        y = (x_ - average) / sqrt(variance + eps) * weight + bias
    return convert(y, x.dtype)


def _instance_norm(node: OnnxNode) -> Any:
    x, weight, bias = node.variables()
    spatial(x.shape)
    return compose.group_norm(x, x.shape[1], weight, bias, node.attribute("epsilon"))


def _group_norm(node: OnnxNode) -> Any:
    x, weight, bias = node.variables()
    spatial(x.shape)
    groups, channels = node.attribute("num_groups"), x.shape[1]
    if node.version < 21:  # one number per group
        weight, bias = (_for_each_channel(v, groups, channels) for v in (weight, bias))
    y = convert(compose.group_norm(_stashed(node, x), groups, eps=node.attribute("epsilon")), x.dtype)
    by_channel = (channels, *(1,) * (x.ndim - 2))
    return y * reshape(weight, by_channel) + reshape(bias, by_channel)


def _for_each_channel(v: Var, groups: int, channels: int) -> Any:
    if v.shape != (groups,) or groups < 1 or channels % groups:
        raise ShapeError(f"{v} does not hold one number for each of {groups} groups of {channels} channels")
    return reshape(broadcast_to(reshape(v, (groups, 1)), (groups, channels // groups)), (channels,))


def _stashed(node: OnnxNode, x: Var) -> Any:
    """``x`` in the precision that the statistics are computed in."""
    stash = node.attributes.get("stash_type", 0)
    if stash == TensorProto.FLOAT and x.dtype in (f16, bf16):
        return convert(x, f32)
    return x


def _layer_norm(node: OnnxNode) -> Any:
    x, weight, bias = node.variable(0), node.variable(1), node.optional(2)
    (axis,) = normal_axes([node.attribute("axis")], x.ndim)
    axes, wide = tuple(range(axis, x.ndim)), _stashed(node, x)
    average = mean(wide, axes, keepdims=True)
    centred = wide - average
    deviation = sqrt(mean(centred * centred, axes, keepdims=True) + node.attribute("epsilon"))
    y = _affine(convert(centred / deviation, x.dtype), weight, bias)
    return [y, average, 1.0 / deviation][: len(node.outputs)]


def _affine(y: Var, weight: Var, bias: Var | None) -> Any:
    scaled = y * broadcast_to(weight, y.shape)
    return scaled if bias is None else scaled + broadcast_to(bias, y.shape)


def _rms_norm(node: OnnxNode) -> Any:
    x, weight = node.variable(0), node.variable(1)
    (axis,) = normal_axes([node.attribute("axis")], x.ndim)
    wide = _stashed(node, x)
    mean_square = mean(wide * wide, tuple(range(axis, x.ndim)), keepdims=True)
    return _affine(convert(wide / sqrt(mean_square + node.attribute("epsilon")), x.dtype), weight, None)


def _mean_variance_norm(node: OnnxNode) -> Any:
    """Divided by the deviation plus 1e-9, as the operator's own function body has it."""
    x = node.variable(0)
    axes = normal_axes(node.attribute("axes"), x.ndim)
    centred = x - mean(x, axes, keepdims=True)
    return centred / (sqrt(mean(centred * centred, axes, keepdims=True)) + 1e-9)


def _lrn(node: OnnxNode) -> Any:
    """``x / (bias + alpha/size · Σ x²)^beta``: the mean of squares over neighbouring channels is an average pooling."""
    x, size = node.variable(0), node.attribute("size")
    spatial(x.shape)
    if size < 1:
        raise FormatError(f"its size is {size}; 1 or more is needed")
    n, channels, *sizes = x.shape
    squares = reshape(x * x, (n, channels, prod(sizes)))
    before = (size - 1) // 2
    ends = ((min(before, channels), min(size - 1 - before, channels)), (0, 0))
    window = (sum(ends[0]) + 1, 1)
    total = avg_pool(squares, window, (1, 1), ends, divisor_override=size)
    base = reshape(total, x.shape) * node.attribute("alpha") + node.attribute("bias")
    return x / compose.power(base, node.attribute("beta"))


def _lp_normalization(node: OnnxNode) -> Any:
    """Divided by the 1-norm or 2-norm along an axis; 0 where that is 0."""
    x, p = node.variable(0), node.attribute("p")
    (axis,) = normal_axes([node.attribute("axis")], x.ndim)
    if p not in (1, 2):
        raise FormatError(f"its p is {p}; ONNX has 1 and 2")
    norm = sum_over(abs(x), axis, keepdims=True) if p == 1 else sqrt(sum_over(x * x, axis, keepdims=True))
    return x / (norm + apply(STEP, Levels(0.0, 1.0, 0.0), norm))


HANDLERS: dict[str, Handler] = {
    "BatchNormalization": _batch_norm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LRN": _lrn,
    "LayerNormalization": _layer_norm,
    "LpNormalization": _lp_normalization,
    "MeanVarianceNormalization": _mean_variance_norm,
    "RMSNormalization": _rms_norm,
}
