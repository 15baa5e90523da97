"""Sums, means, extremes and softmaxes over axes, products of matrices, normalisations, losses and attention."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import inf, prod
from math import sqrt as sqrt_of
from typing import Any

import numpy as np
import torch

from gradspec.graph.builder import apply
from gradspec.graph.ir import Var
from gradspec.graph.types import boolean, i64, number_as
from gradspec.interop import compose
from gradspec.interop.indexing import with_places
from gradspec.interop.torch.aten.table import (
    axes_of,
    floating,
    positive_axis,
    product_with,
    reads,
    reads_each,
    to_dtype,
)
from gradspec.interop.torch.types import torch_dtype
from gradspec.ops.einsum import einsum
from gradspec.ops.layout import AlongAxis, turned
from gradspec.ops.linear import MATMUL, Product, batch_norm, linear, matmul
from gradspec.ops.loss import PICK, mse_loss
from gradspec.ops.pointwise import abs, neg
from gradspec.ops.reduce import cumsum, log_softmax, mean, softmax
from gradspec.ops.select import equal, where
from gradspec.ops.shape import broadcast_to, reshape, sum
from gradspec.spec.errors import UnsupportedError
from gradspec.spec.loss import class_axis

Dims = int | Sequence[int] | None
Maybe = Var | None

# --- sums and means ---------------------------------------------------------------------------------------------------


def _terms(x: Var, dtype: torch.dtype | None) -> Var:
    """Integers are added and multiplied in 64 bits, unless another dtype is asked for."""
    return to_dtype(x, dtype) if dtype or x.type.is_float else to_dtype(x, i64)


def _along(function: Callable[[Any, int], Any], x: Var, dim: int) -> Any:
    return function(x, positive_axis(dim, x.ndim)) if x.ndim else x


@reads("mean")
def _mean(x: Var, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    return mean(to_dtype(x, dtype), axes_of(dim, x.ndim), keepdim)


def _centre(x: Var, dim: Dims, correction: float | None) -> tuple[Any, tuple[int, ...], float]:
    """The differences from the mean, the axes it is over, and by how many the squares are divided."""
    axes = axes_of(dim, x.ndim)
    count = prod(x.shape[a] for a in axes)
    fewer = count - (1 if correction is None else correction)
    if fewer <= 0:
        raise UnsupportedError(f"a variance of {count} numbers with correction={correction} is not a number")
    return x - mean(x, axes, keepdims=True), axes, fewer


def _variance(x: Var, dim: Dims, correction: float | None, keepdim: bool) -> Any:
    centred, axes, count = _centre(x, dim, correction)
    return sum(centred * centred, axes, keepdim) * (1.0 / count)


def _deviation(x: Var, dim: Dims, correction: float | None, keepdim: bool) -> Any:
    """The norm of the differences, whose derivative is 0 where they all are."""
    centred, axes, count = _centre(x, dim, correction)
    return compose.norm(centred, 2.0, axes, keepdim) * (1.0 / sqrt_of(count))


@reads("var_mean.correction")
def _variance_and_mean(x: Var, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    return _variance(x, dim, correction, keepdim), _mean(x, dim, keepdim)


@reads("linalg_vector_norm")
def _norm(x: Var, ord: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    x, axes = to_dtype(x, dtype), axes_of(dim, x.ndim)
    if ord == -inf:
        return compose.smallest(abs(x), axes, keepdim, ties="split")
    if ord == 0:
        return sum(to_dtype(compose.unequal(x, 0.0), x.dtype), axes, keepdim)
    if ord < 0:
        raise UnsupportedError(f"a norm of order {ord} is not known, only of orders of 0 and above, and of -inf")
    return compose.norm(x, float(ord), axes, keepdim)


def _softmax(function: Callable[[Any, int], Any], x: Var, dim: int, dtype: torch.dtype | None) -> Any:
    return function(floating(to_dtype(x, dtype)), positive_axis(dim, x.ndim))


reads_each(
    {
        "sum": lambda x, dim=None, keepdim=False, *, dtype=None: sum(_terms(x, dtype), axes_of(dim, x.ndim), keepdim),
        "prod": lambda x, dim=None, keepdim=False, *, dtype=None: compose.product(
            _terms(x, dtype), axes_of(dim, x.ndim), keepdim
        ),
        "cumsum": lambda x, dim, *, dtype=None: _along(cumsum, _terms(x, dtype), dim),
        "cumprod": lambda x, dim, *, dtype=None: _along(compose.running_product, _terms(x, dtype), dim),
        "logcumsumexp": lambda x, dim: _along(compose.running_log_sum_exp, x, dim),
        "logsumexp": lambda x, dim, keepdim=False: compose.log_sum_exp(x, axes_of(dim, x.ndim), keepdim),
        "var.correction": lambda x, dim=None, *, correction=None, keepdim=False: _variance(x, dim, correction, keepdim),
        "std.correction": lambda x, dim=None, *, correction=None, keepdim=False: _deviation(
            x, dim, correction, keepdim
        ),
        "var.dim": lambda x, dim, unbiased=True, keepdim=False: _variance(x, dim, int(unbiased), keepdim),
        "std.dim": lambda x, dim, unbiased=True, keepdim=False: _deviation(x, dim, int(unbiased), keepdim),
        "softmax.int": lambda x, dim, dtype=None: _softmax(softmax, x, dim, dtype),
        "log_softmax.int": lambda x, dim, dtype=None: _softmax(log_softmax, x, dim, dtype),
        "_softmax": lambda x, dim, half_to_float: _softmax(softmax, x, dim, torch.float32 if half_to_float else None),
        "_log_softmax": lambda x, dim, half_to_float: _softmax(
            log_softmax, x, dim, torch.float32 if half_to_float else None
        ),
    }
)

# --- extremes and truths ----------------------------------------------------------------------------------------------


@reads("amax", "max.default")
def _amax(x: Var, dim: Dims = (), keepdim: bool = False) -> Any:
    return compose.largest(x, axes_of(dim, x.ndim), keepdim, ties="split")


@reads("amin", "min.default")
def _amin(x: Var, dim: Dims = (), keepdim: bool = False) -> Any:
    return compose.smallest(x, axes_of(dim, x.ndim), keepdim, ties="split")


@reads("max.dim")
def _max_of_axis(x: Var, dim: int, keepdim: bool = False, *, wanted: Collection[int]) -> Any:
    if 1 not in wanted:
        return (compose.largest(x, axes_of(dim, x.ndim), keepdim),)
    return with_places(x, positive_axis(dim, x.ndim), keepdim)


@reads("min.dim")
def _min_of_axis(x: Var, dim: int, keepdim: bool = False, *, wanted: Collection[int]) -> Any:
    values, *places = _max_of_axis(compose.reversed_order(x), dim, keepdim, wanted=wanted)
    return (compose.reversed_order(values), *places)


@reads("argmax")
def _argmax(x: Var, dim: int | None = None, keepdim: bool = False) -> Any:
    if dim is None or x.ndim == 0:
        place = with_places(reshape(x, (-1,)), 0, False)[1]
        return reshape(place, (1,) * x.ndim if keepdim else ())
    return with_places(x, positive_axis(dim, x.ndim), keepdim)[1]


@reads("any")
def _any(x: Var, dim: Dims = None, keepdim: bool = False) -> Any:
    return compose.any_true(to_dtype(x, boolean), axes_of(dim, x.ndim), keepdim)


@reads("all")
def _all(x: Var, dim: Dims = None, keepdim: bool = False) -> Any:
    return compose.all_true(to_dtype(x, boolean), axes_of(dim, x.ndim), keepdim)


reads_each(
    {
        "argmin": lambda x, dim=None, keepdim=False: _argmax(compose.reversed_order(x), dim, keepdim),
        "cummax": lambda x, dim: (_along(compose.running_maximum, x, dim),),
        "cummin": lambda x, dim: (_along(compose.running_minimum, x, dim),),
    }
)

# --- products of matrices ---------------------------------------------------------------------------------------------


@reads("addmm", "baddbmm")
def _add_product(x: Var, a: Var, b: Var, *, beta: float = 1, alpha: float = 1) -> Any:
    if beta == alpha == 1 and x.ndim == 1 and b.ndim == 2:
        return apply(MATMUL, Product(), a, b, broadcast_to(x, b.shape[1:]))
    return _add_scaled(x, matmul(a, b), beta, alpha)


def _add_scaled(x: Var, product: Var, beta: float, alpha: float) -> Any:
    scaled = compose.times(product, alpha)
    return compose.times(x, beta) + scaled if beta else scaled


@reads("_cdist_forward", "cdist")
def _distances(x: Var, y: Var, p: float = 2.0, compute_mode: int | None = None) -> Any:
    """Of every row of one to every row of the other."""
    if p <= 0:
        raise UnsupportedError(f"distances by a norm of order {p} are not known, only of orders above 0")
    *lead, count, size = y.shape
    apart = reshape(x, (*x.shape[:-1], 1, size)) - reshape(y, (*lead, 1, count, size))
    return compose.norm(apart, float(p), (apart.ndim - 1,), False)


reads_each(
    {
        "linear": linear,
        "mm bmm matmul mv dot": matmul,
        # The path says in which order PyTorch multiplies, which changes no result but for rounding.
        "einsum": lambda equation, tensors, *, path=None: einsum(equation, *tensors),
        "bilinear": lambda x, y, weight, bias=None: compose.affine(
            einsum("...i,oij,...j->...o", x, weight, y), None, bias
        ),
        "addbmm": lambda x, a, b, *, beta=1, alpha=1: _add_scaled(x, sum(matmul(a, b), (0,)), beta, alpha),
    }
)


@reads("scaled_dot_product_attention")
def _attention(
    query: Var, key: Var, value: Var, attn_mask: Maybe = None, dropout_p: float = 0.0, is_causal: bool = False,
    *, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """As PyTorch documents it, in the dtype of the operands, in which its kernels store weights, or scores too.

    A query all of whose scores are −∞ gets 0, and is given others first, whose weights have derivatives.
    """
    if dropout_p:
        raise UnsupportedError("dropout of attention draws random numbers; call eval() on the model, or give 0.0")
    if enable_gqa:
        key, value = (_repeat_heads(t, query.shape[-3]) for t in (key, value))
    scores = product_with(matmul(query, turned(key)), 1 / sqrt_of(query.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = query.owner.const(np.tri(*scores.shape[-2:], dtype=np.bool_))
    if attn_mask is not None:
        is_choice = attn_mask.dtype is boolean
        scores = where(attn_mask, scores, -inf) if is_choice else scores + to_dtype(attn_mask, scores.dtype)
    hidden = compose.all_true(equal(scores, -inf), (scores.ndim - 1,), True)
    return matmul(where(hidden, 0.0, softmax(where(hidden, 0.0, scores))), value)


def _repeat_heads(x: Var, heads: int) -> Any:
    """Each head of ``(…, heads, places, size)`` as often as queries have heads for it, one after the other."""
    *lead, fewer, places, size = x.shape
    each = broadcast_to(reshape(x, (*lead, fewer, 1, places, size)), (*lead, fewer, heads // fewer, places, size))
    return reshape(each, (*lead, heads, places, size))


# --- normalisation ----------------------------------------------------------------------------------------------------


@reads("batch_norm")
def _batch_norm(
    x: Var, weight: Maybe, bias: Maybe, running_mean: Maybe, running_var: Maybe,
    training: bool, momentum: float, eps: float, cudnn_enabled: bool,
) -> Any:  # fmt: skip
    if running_mean is None or running_var is None:
        return _normalize_batch(x, weight, bias, eps)
    if training:
        return _refuse_training()
    return batch_norm(x, running_mean, running_var, weight, bias, eps)


def _normalize_batch(x: Var, weight: Maybe, bias: Maybe, eps: float) -> Any:
    """Each channel normalised by the statistics of this very batch, which PyTorch stores in the dtype of the batch."""
    y = compose.normalized(x, [a for a in range(x.ndim) if a != 1], eps, keeps_statistics=True)
    return compose.affine(y, *(compose.by_channel(v, x.ndim - 2) for v in (weight, bias)))


@reads("_native_batch_norm_legit", "_native_batch_norm_legit_functional", "native_batch_norm")
def _refuse_training(*_: Any, **__: Any) -> Any:
    raise UnsupportedError(
        "batch normalisation in training mode updates its running statistics, and a graph changes nothing; export the "
        "model after model.eval(), or give the module itself and training=True, which leaves them alone"
    )


@reads("instance_norm")
def _instance_norm(
    x: Var, weight: Maybe, bias: Maybe, running_mean: Maybe, running_var: Maybe,
    use_input_stats: bool, momentum: float, eps: float, cudnn_enabled: bool,
) -> Any:  # fmt: skip
    if not use_input_stats:
        assert running_mean is not None
        assert running_var is not None
        return batch_norm(x, running_mean, running_var, weight, bias, eps)
    if running_mean is not None:
        return _refuse_training()
    return compose.group_norm(x, x.shape[1], weight, bias, eps, keeps_statistics=True)


@reads("rms_norm")
def _rms_norm(x: Var, normalized_shape: Sequence[int], weight: Maybe = None, eps: float | None = None) -> Any:
    least = torch.finfo(torch_dtype(x.dtype)).eps if eps is None else eps
    return compose.rms_norm(x, len(normalized_shape), weight, least)


reads_each(
    {
        "_native_batch_norm_legit_no_training": lambda x, weight, bias, running_mean, running_var, momentum, eps: (
            batch_norm(x, running_mean, running_var, weight, bias, eps),
        ),
        "_native_batch_norm_legit.no_stats": lambda x, weight, bias, training, momentum, eps: (
            _normalize_batch(x, weight, bias, eps),
        ),
        "group_norm": lambda x, num_groups, weight=None, bias=None, eps=1e-5, cudnn_enabled=True: compose.group_norm(
            x, num_groups, weight, bias, eps
        ),
        "native_group_norm": lambda x, weight, bias, n, channels, cells, group, eps: (
            compose.group_norm(x, group, weight, bias, eps),
        ),
        "layer_norm": lambda x, normalized_shape, weight=None, bias=None, eps=1e-5, cudnn_enable=True: (
            compose.layer_norm(x, len(normalized_shape), weight, bias, eps)
        ),
        "native_layer_norm": lambda x, normalized_shape, weight, bias, eps: (
            compose.layer_norm(x, len(normalized_shape), weight, bias, eps),
        ),
        "_fused_rms_norm": lambda x, normalized_shape, weight, eps: (_rms_norm(x, normalized_shape, weight, eps),),
    }
)

# --- losses -----------------------------------------------------------------------------------------------------------

REDUCTIONS = ("none", "mean", "sum")
"""PyTorch's numbers for what becomes of the losses of a batch."""


@reads("cross_entropy_loss")
def _cross_entropy(
    x: Var, target: Var, weight: Maybe = None, reduction: int = 1,
    ignore_index: int = -100, label_smoothing: float = 0.0,
) -> Any:  # fmt: skip
    """Smoothed labels are ``1 − smoothing`` of the class and an equal share of all classes; targets may be shares."""
    axis = class_axis(x.shape)
    logs, share = log_softmax(x, axis), label_smoothing / x.shape[axis]
    if target.type.is_float:
        shares = compose.times(target, 1.0 - label_smoothing) + share if label_smoothing else target
        return _reduce_losses(sum(neg(_weigh(logs * shares, weight)), (axis,)), reduction)
    loss = _nll_loss(logs, target, weight, reduction, ignore_index)
    if not label_smoothing:
        return loss
    over_all = sum(neg(_weigh(logs, weight)), (axis,))
    smooth = _reduce_counted(over_all, target, weight, x, reduction, ignore_index)
    return compose.times(loss, 1.0 - label_smoothing) + compose.times(smooth, share)


@reads("nll_loss", "nll_loss_nd", "nll_loss2d")
def _nll_loss(x: Var, target: Var, weight: Maybe = None, reduction: int = 1, ignore_index: int = -100) -> Any:
    losses = neg(_pick(_weigh(x, weight), target, ignore_index))
    return _reduce_counted(losses, target, weight, x, reduction, ignore_index)


@reads("multilabel_margin_loss", "multilabel_margin_loss_forward")
def _multilabel_margin_loss(*_: Any, **__: Any) -> Any:
    raise UnsupportedError("PyTorch makes it of operators that give another value than it has in PyTorch itself")


def _reduce_counted(losses: Any, target: Var, weight: Maybe, x: Var, reduction: int, ignore_index: int) -> Any:
    """Losses are 0 where the label is to be ignored; a mean divides by the weights of the others."""
    ignored = equal(target, ignore_index)
    counted = where(ignored, 0.0, losses)
    if REDUCTIONS[reduction] != "mean":
        return _reduce_losses(counted, reduction)
    ones = broadcast_to(x.owner.const(number_as(1.0, x.dtype.numpy)), target.shape)
    weights = ones if weight is None else _pick(broadcast_to(_spread(weight, x), x.shape), target, ignore_index)
    return sum(counted) / sum(where(ignored, 0.0, weights))


def _pick(x: Var, target: Var, ignore_index: int) -> Any:
    """The cell of every label, of class 0 where the label is to be ignored: it may be none of the classes."""
    labels = where(equal(target, ignore_index), 0, target)
    return apply(PICK, AlongAxis(class_axis(x.shape)), x, labels)


def _weigh(x: Var, weight: Maybe) -> Any:
    return x if weight is None else x * _spread(weight, x)


def _spread(weight: Var, x: Var) -> Any:
    """One number per class, along the axis of classes."""
    return compose.by_channel(weight, x.ndim - class_axis(x.shape) - 1)


def _reduce_losses(losses: Any, reduction: int) -> Any:
    return mean(losses) if REDUCTIONS[reduction] == "mean" else sum(losses) if reduction else losses


reads_each(
    {
        "mse_loss": lambda x, target, reduction=1: mse_loss(x, target, REDUCTIONS[reduction]),
        "l1_loss": lambda x, target, reduction=1: _reduce_losses(abs(x - target), reduction),
        "nll_loss_forward nll_loss2d_forward": lambda x, target, weight, reduction, ignore_index: (
            _nll_loss(x, target, weight, reduction, ignore_index),
        ),
    }
)
