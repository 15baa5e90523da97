"""Products of matrices, normalisation and losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gradspec.graph.builder import apply
from gradspec.graph.ir import Var
from gradspec.graph.types import number_as
from gradspec.interop.compose import group_norm, layer_norm, norm, normalized, rms_norm
from gradspec.interop.torch.aten.operands import REDUCTIONS
from gradspec.interop.torch.aten.table import reads
from gradspec.interop.torch.types import torch_dtype
from gradspec.ops.einsum import einsum
from gradspec.ops.layout import AlongAxis
from gradspec.ops.linear import MATMUL, Product, batch_norm, linear, matmul
from gradspec.ops.loss import PICK, mse_loss
from gradspec.ops.pointwise import abs, neg, scale
from gradspec.ops.reduce import log_softmax, mean
from gradspec.ops.select import equal, where
from gradspec.ops.shape import broadcast_to, reshape, sum
from gradspec.spec.errors import UnsupportedError
from gradspec.spec.loss import class_axis

# --- products ---------------------------------------------------------------------------------------------------------

reads("linear")(linear)
reads("mm", "bmm", "matmul", "mv", "dot")(matmul)


@reads("einsum")
def _einsum(equation: str, tensors: Sequence[Var], *, path: Any = None) -> Any:
    """The path says in which order PyTorch multiplies, which changes no result but for rounding."""
    return einsum(equation, *tensors)


@reads("bilinear")
def _bilinear(x: Var, y: Var, weight: Var, bias: Var | None = None) -> Any:
    product = einsum("...i,oij,...j->...o", x, weight, y)
    return product if bias is None else product + bias


@reads("addmm", "baddbmm")
def _plus_product(x: Var, a: Var, b: Var, *, beta: float = 1, alpha: float = 1) -> Any:
    if beta == alpha == 1 and x.ndim == 1 and b.ndim == 2:
        return apply(MATMUL, Product(), a, b, broadcast_to(x, b.shape[1:]))
    product = _times(matmul(a, b), alpha)
    return _times(x, beta) + product if beta else product


@reads("addbmm")
def _plus_products(x: Var, a: Var, b: Var, *, beta: float = 1, alpha: float = 1) -> Any:
    product = _times(sum(matmul(a, b), (0,)), alpha)
    return _times(x, beta) + product if beta else product


@reads("_cdist_forward", "cdist")
def _distances(x: Var, y: Var, p: float = 2.0, compute_mode: int | None = None) -> Any:
    """Of every row of one to every row of the other."""
    if p <= 0:
        raise UnsupportedError(f"distances by a norm of order {p} are not known, only of orders above 0")
    *lead, count, size = y.shape
    apart = reshape(x, (*x.shape[:-1], 1, size)) - reshape(y, (*lead, 1, count, size))
    return norm(apart, float(p), (apart.ndim - 1,), False)


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
    """Each channel normalised by the statistics of this very batch, which PyTorch stores in the dtype of the batch."""
    y = normalized(x, [a for a in range(x.ndim) if a != 1], eps, keeps_statistics=True)
    shape = (x.shape[1], *(1,) * (x.ndim - 2))
    scaled = y if weight is None else y * reshape(weight, shape)
    return scaled if bias is None else scaled + reshape(bias, shape)


@reads("_native_batch_norm_legit", "_native_batch_norm_legit_functional", "native_batch_norm")
def _training_batch_norm(*_: Any, **__: Any) -> Any:
    raise UnsupportedError(
        "batch normalisation in training mode updates its running statistics, and a graph changes nothing; export the "
        "model after model.eval(), or give the module itself and training=True, which leaves them alone"
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
        assert running_mean is not None
        assert running_var is not None
        return batch_norm(x, running_mean, running_var, weight, bias, eps)
    if running_mean is not None:
        return _training_batch_norm()
    return group_norm(x, x.shape[1], weight, bias, eps, keeps_statistics=True)


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
    least = torch.finfo(torch_dtype(x.dtype)).eps if eps is None else eps
    return rms_norm(x, len(normalized_shape), weight, least)


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
    """Smoothed labels are ``1 − smoothing`` of the class and an equal share of all classes; targets may be shares."""
    axis = class_axis(x.shape)
    logs, share = log_softmax(x, axis), label_smoothing / x.shape[axis]
    if target.type.is_float:
        shares = _times(target, 1.0 - label_smoothing) + share if label_smoothing else target
        losses = sum(neg(logs * shares * _spread(weight, x) if weight is not None else logs * shares), (axis,))
        return _reduced(losses, reduction)
    loss = _nll_loss(logs, target, weight, reduction, ignore_index)
    if not label_smoothing:
        return loss
    over_all = sum(neg(logs if weight is None else logs * _spread(weight, x)), (axis,))
    smooth = _mean_of_counted(over_all, target, weight, x, reduction, ignore_index)
    return _times(loss, 1.0 - label_smoothing) + _times(smooth, share)


@reads("nll_loss", "nll_loss_nd", "nll_loss2d")
def _nll_loss(x: Var, target: Var, weight: Var | None = None, reduction: int = 1, ignore_index: int = -100) -> Any:
    weighted = x if weight is None else x * _spread(weight, x)
    losses = neg(_picked(weighted, target, ignore_index))
    return _mean_of_counted(losses, target, weight, x, reduction, ignore_index)


@reads("nll_loss_forward", "nll_loss2d_forward")
def _nll_loss_forward(x: Var, target: Var, weight: Var | None, reduction: int, ignore_index: int) -> Any:
    return (_nll_loss(x, target, weight, reduction, ignore_index),)


@reads("multilabel_margin_loss", "multilabel_margin_loss_forward")
def _multilabel_margin_loss(*_: Any, **__: Any) -> Any:
    raise UnsupportedError("PyTorch makes it of operators that give another value than it has in PyTorch itself")


def _mean_of_counted(losses: Any, target: Var, weight: Var | None, x: Var, reduction: int, ignore_index: int) -> Any:
    """Losses are 0 where the label is to be ignored; a mean divides by the weights of the others."""
    ignored = equal(target, ignore_index)
    counted = where(ignored, 0.0, losses)
    if REDUCTIONS[reduction] != "mean":
        return _reduced(counted, reduction)
    ones = broadcast_to(x.owner.const(number_as(1.0, x.dtype.numpy)), target.shape)
    weights = ones if weight is None else _picked(broadcast_to(_spread(weight, x), x.shape), target, ignore_index)
    return sum(counted) / sum(where(ignored, 0.0, weights))


def _picked(x: Var, target: Var, ignore_index: int) -> Any:
    """The cell of every label, of class 0 where the label is to be ignored: it may be none of the classes."""
    labels = where(equal(target, ignore_index), 0, target)
    return apply(PICK, AlongAxis(class_axis(x.shape)), x, labels)


def _spread(weight: Var, x: Var) -> Var:
    """One number per class, along the axis of classes."""
    spread: Var = reshape(weight, (*weight.shape, *(1,) * (x.ndim - class_axis(x.shape) - 1)))
    return spread


def _reduced(losses: Any, reduction: int) -> Any:
    return mean(losses) if REDUCTIONS[reduction] == "mean" else sum(losses) if reduction else losses
