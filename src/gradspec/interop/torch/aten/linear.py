"""Products of matrices, normalisation and losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gradspec.graph.builder import apply
from gradspec.graph.ir import Var
from gradspec.interop.compose import group_norm, layer_norm, normalized, widened
from gradspec.interop.torch.aten.operands import REDUCTIONS, to_dtype
from gradspec.interop.torch.aten.table import reads
from gradspec.interop.torch.types import torch_dtype
from gradspec.ops.layout import AlongAxis
from gradspec.ops.linear import MATMUL, Product, batch_norm, linear, matmul
from gradspec.ops.loss import PICK, cross_entropy, mse_loss
from gradspec.ops.pointwise import abs, neg, scale, sqrt
from gradspec.ops.reduce import mean
from gradspec.ops.shape import broadcast_to, reshape, sum
from gradspec.spec.errors import UnsupportedError
from gradspec.spec.loss import class_axis

# --- products ---------------------------------------------------------------------------------------------------------

reads("linear")(linear)
reads("mm", "bmm", "matmul", "mv", "dot")(matmul)


@reads("addmm", "baddbmm")
def _plus_product(x: Var, a: Var, b: Var, *, beta: float = 1, alpha: float = 1) -> Any:
    if beta == alpha == 1 and x.ndim == 1 and b.ndim == 2:
        return apply(MATMUL, Product(), a, b, broadcast_to(x, b.shape[1:]))
    product = _times(matmul(a, b), alpha)
    return _times(x, beta) + product if beta else product


def _times(x: Var, factor: float) -> Any:
    return x if factor == 1 else scale(x, factor)


# --- normalisation ----------------------------------------------------------------------------------------------------


@reads("batch_norm")
def _batch_norm(
    x: Var,
    weight: Var | None,
    bias: Var | None,
    running_mean: Var | None,
    running_var: Var | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Any:
    if running_mean is None or running_var is None:
        return _normalized_batch(x, weight, bias, eps)
    if training:
        return _training_batch_norm()
    return batch_norm(x, running_mean, running_var, weight, bias, eps)


@reads("_native_batch_norm_legit_no_training")
def _native_batch_norm(
    x: Var, weight: Var | None, bias: Var | None, running_mean: Var, running_var: Var, momentum: float, eps: float
) -> Any:
    return (batch_norm(x, running_mean, running_var, weight, bias, eps),)


@reads("_native_batch_norm_legit.no_stats")
def _batch_norm_without_statistics(
    x: Var, weight: Var | None, bias: Var | None, training: bool, momentum: float, eps: float
) -> Any:
    return (_normalized_batch(x, weight, bias, eps),)


def _normalized_batch(x: Var, weight: Var | None, bias: Var | None, eps: float) -> Any:
    """Each channel normalised by the statistics of this very batch, which is all there are."""
    y = normalized(x, [a for a in range(x.ndim) if a != 1], eps)
    shape = (x.shape[1], *(1,) * (x.ndim - 2))
    scaled = y if weight is None else y * reshape(weight, shape)
    return scaled if bias is None else scaled + reshape(bias, shape)


@reads("_native_batch_norm_legit", "_native_batch_norm_legit_functional", "native_batch_norm")
def _training_batch_norm(*_: Any, **__: Any) -> Any:
    raise UnsupportedError(
        "batch normalisation in training mode updates its running statistics, and a graph changes nothing; "
        "export the model after model.eval()"
    )


@reads("instance_norm")
def _instance_norm(
    x: Var,
    weight: Var | None,
    bias: Var | None,
    running_mean: Var | None,
    running_var: Var | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Any:
    if not use_input_stats:
        return batch_norm(x, running_mean, running_var, weight, bias, eps)
    if running_mean is not None:
        return _training_batch_norm()
    return group_norm(x, x.shape[1], weight, bias, eps)


@reads("group_norm")
def _group_norm(
    x: Var,
    num_groups: int,
    weight: Var | None = None,
    bias: Var | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Any:
    return group_norm(x, num_groups, weight, bias, eps)


@reads("native_group_norm")
def _native_group_norm(
    x: Var, weight: Var | None, bias: Var | None, n: int, channels: int, cells: int, group: int, eps: float
) -> Any:
    return (group_norm(x, group, weight, bias, eps),)


@reads("layer_norm")
def _layer_norm(
    x: Var,
    normalized_shape: Sequence[int],
    weight: Var | None = None,
    bias: Var | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Any:
    return layer_norm(x, len(normalized_shape), weight, bias, eps)


@reads("native_layer_norm")
def _native_layer_norm(
    x: Var, normalized_shape: Sequence[int], weight: Var | None, bias: Var | None, eps: float
) -> Any:
    return (layer_norm(x, len(normalized_shape), weight, bias, eps),)


@reads("rms_norm")
def _rms_norm(x: Var, normalized_shape: Sequence[int], weight: Var | None = None, eps: float | None = None) -> Any:
    axes = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    least = torch.finfo(torch_dtype(x.dtype)).eps if eps is None else eps
    wide = widened(x)
    y = to_dtype(wide / sqrt(mean(wide * wide, axes, keepdims=True) + least), x.dtype)
    return y if weight is None else y * weight


@reads("_fused_rms_norm")
def _fused_rms_norm(x: Var, normalized_shape: Sequence[int], weight: Var | None, eps: float | None) -> Any:
    return (_rms_norm(x, normalized_shape, weight, eps),)


# --- losses -----------------------------------------------------------------------------------------------------------


@reads("mse_loss")
def _mse_loss(x: Var, target: Var, reduction: int = 1) -> Any:
    return mse_loss(x, target, REDUCTIONS[reduction])


@reads("l1_loss")
def _l1_loss(x: Var, target: Var, reduction: int = 1) -> Any:
    return _reduced(abs(x - target), reduction)


@reads("cross_entropy_loss")
def _cross_entropy(
    x: Var,
    target: Var,
    weight: Var | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:
    _require_plain_labels(x, target, weight, ignore_index, label_smoothing)
    return cross_entropy(x, target, REDUCTIONS[reduction])


@reads("nll_loss", "nll_loss_nd", "nll_loss2d")
def _nll_loss(x: Var, target: Var, weight: Var | None = None, reduction: int = 1, ignore_index: int = -100) -> Any:
    _require_plain_labels(x, target, weight, ignore_index)
    return _reduced(neg(apply(PICK, AlongAxis(class_axis(x.shape)), x, target)), reduction)


@reads("nll_loss_forward", "nll_loss2d_forward")
def _nll_loss_forward(x: Var, target: Var, weight: Var | None, reduction: int, ignore_index: int) -> Any:
    return (_nll_loss(x, target, weight, reduction, ignore_index),)


def _reduced(losses: Any, reduction: int) -> Any:
    return mean(losses) if REDUCTIONS[reduction] == "mean" else sum(losses) if reduction else losses


def _require_plain_labels(x: Var, target: Var, weight: Var | None, ignored: int, smoothing: float = 0.0) -> None:
    if 0 <= ignored < x.shape[class_axis(x.shape)]:
        raise UnsupportedError(
            f"ignore_index={ignored} is one of the classes, and every label counts in a graph; "
            "use a number outside the classes, or mask the losses of reduction='none'"
        )
    if weight is not None or smoothing or target.type.is_float:
        raise UnsupportedError("the loss is known for class numbers, without class weights or label smoothing")
