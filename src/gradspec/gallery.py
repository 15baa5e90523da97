"""References of the field's kernels, in plain PyTorch, ready to judge by.

    gradspec check mykernels:rms_norm --spec gradspec.gallery:rms_norm

Each says its formula, the arrays that a kernel of it takes, in this order, and their shapes; sizes vary. The types of
inputs and the values that they may have are declared with it, so ``--inputs`` may be left out. Constants such as
``eps`` are keywords: ``functools.partial(rms_norm, eps=1e-5)`` is a reference, too.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional

Function = TypeVar("Function", bound=Callable[..., Tensor])
IGNORED = -100
"""The label of tokens that a loss leaves out."""
LABELS = f"labels or {IGNORED}"


def _takes(inputs: str, **declared: object) -> Callable[[Function], Function]:
    """Declare the types of a reference's inputs, and more that is said of references."""

    def declare(reference: Function) -> Function:
        vars(reference).update(inputs=inputs, **declared)
        return reference

    return declare


# --- normalisation ----------------------------------------------------------------------------------------------------


@_takes("f32[8,64],f32[64]")
def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """``x / √(mean(x²) + eps) · weight`` along the last axis, of ``x[rows, n]`` and ``weight[n]``."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


@_takes("f32[8,64],f32[64],f32[64]")
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """``(x − mean) / √(var + eps) · weight + bias`` along the last axis, of ``x[rows, n]``; ``var`` divides by n."""
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps) * weight + bias


@_takes("f32[3,8,16],f32[8],f32[8]")
def group_norm(x: Tensor, weight: Tensor, bias: Tensor, groups: int = 4, eps: float = 1e-5) -> Tensor:
    """Layer norm of every group of channels of ``x[batch, channels, length]``, scaled and shifted by channel."""
    grouped = x.reshape(x.shape[0], groups, x.shape[1] // groups * x.shape[2])
    centred = grouped - grouped.mean(2, keepdim=True)
    scaled = centred * torch.rsqrt(centred.square().mean(2, keepdim=True) + eps)
    return scaled.reshape(x.shape) * weight[:, None] + bias[:, None]


# --- activations ------------------------------------------------------------------------------------------------------


@_takes("f32[8,64],f32[8,64]")
def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """``silu(gate) · up``, cell by cell."""
    return functional.silu(gate) * up


@_takes("f32[8,64],f32[8,64]")
def geglu(gate: Tensor, up: Tensor) -> Tensor:
    """``gelu(gate) · up``, cell by cell, with the approximation of GELU by tanh."""
    return functional.gelu(gate, approximate="tanh") * up


@_takes("f32[8,64]")
def softmax(x: Tensor) -> Tensor:
    """``exp(x) / Σ exp(x)`` along the last axis of ``x[rows, n]``."""
    return torch.softmax(x, -1)


# --- positions and tables ---------------------------------------------------------------------------------------------


@_takes("f32[2,3,7,8],f32[7,8],f32[7,8]", no_grad=("cos", "sin"))
def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``x · cos + rotate(x) · sin`` of ``x[batch, heads, tokens, d]`` and tables ``[tokens, d]``; ``rotate`` maps the
    halves ``(a, b)`` of the last axis to ``(−b, a)``."""
    a, b = x.reshape(*x.shape[:-1], 2, -1).unbind(-2)
    return x * cos + torch.cat([-b, a], -1) * sin


@_takes("i64[8],f32[16,32]")
def embedding(ids: Tensor, table: Tensor) -> Tensor:
    """``table[ids]``: the rows of ``table[vocabulary, d]`` that ``ids[tokens]`` name."""
    return torch.index_select(table, 0, ids)


# --- losses -----------------------------------------------------------------------------------------------------------


def _losses(logits: Tensor, labels: Tensor, smoothing: float = 0.0, z_loss: float = 0.0) -> Tensor:
    """The mean of ``−log p[label]``, and what is added to it, over the labels that are not ignored."""
    kept, log_p = labels != IGNORED, torch.log_softmax(logits, -1)
    picked = log_p.gather(-1, torch.where(kept, labels, 0)[:, None])[:, 0]
    losses = -(1 - smoothing) * picked - smoothing * log_p.mean(-1) if smoothing else -picked
    if z_loss:  # PyTorch's own gradient of logsumexp is imprecise where logits are large
        top = logits.detach().amax(-1)
        losses = losses + z_loss * (top + torch.exp(logits - top[:, None]).sum(-1).log()).square()
    return torch.where(kept, losses, 0.0).sum() / kept.sum()


@_takes("f32[8,32],i64[8]", values={"labels": LABELS})
def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean of ``logsumexp(logits) − logits[label]`` over rows of ``logits[rows, classes]``; −100 is left out."""
    return functional.cross_entropy(logits, labels)


@_takes("f32[8,32],i64[8]", values={"labels": LABELS})
def cross_entropy_smoothed(logits: Tensor, labels: Tensor, smoothing: float = 0.1) -> Tensor:
    """Cross entropy with ``smoothing / classes`` of the target's mass on every class."""
    return _losses(logits, labels, smoothing)


@_takes("f32[8,32],i64[8]", values={"labels": LABELS})
def cross_entropy_z_loss(logits: Tensor, labels: Tensor, z_loss: float = 1e-4) -> Tensor:
    """Cross entropy plus the mean of ``z_loss · logsumexp(logits)²``."""
    return _losses(logits, labels, z_loss=z_loss)


@_takes("f32[8,32],i64[8]", values={"labels": LABELS})
def cross_entropy_softcapped(logits: Tensor, labels: Tensor, cap: float = 30.0) -> Tensor:
    """Cross entropy of ``cap · tanh(logits / cap)``."""
    return _losses(cap * torch.tanh(logits / cap), labels)


@_takes("f32[8,16],f32[32,16],i64[8]", values={"labels": LABELS})
def linear_cross_entropy(x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of the logits ``x @ weightᵀ``, of ``x[rows, d]`` and ``weight[classes, d]``."""
    return _losses(x @ weight.T, labels)


@_takes("f32[8,32],f32[8,32]", values={"log_q": "log-probabilities", "log_p": "log-probabilities"}, no_grad=("log_p",))
def kl_div(log_q: Tensor, log_p: Tensor) -> Tensor:
    """``Σ p · (log p − log q) / rows``, of log-probabilities ``[rows, classes]``: the target is p."""
    return (torch.exp(log_p) * (log_p - log_q)).sum() / log_q.shape[0]


@_takes("f32[8,32],f32[8,32]", values={"log_q": "log-probabilities", "log_p": "log-probabilities"}, no_grad=("log_p",))
def jsd(log_q: Tensor, log_p: Tensor, beta: float = 0.5) -> Tensor:
    """``(β · KL(p ‖ m) + (1 − β) · KL(q ‖ m)) / rows``, with ``m = β·p + (1 − β)·q``, of log-probabilities."""
    p, q = torch.exp(log_p), torch.exp(log_q)
    log_m = torch.log(beta * p + (1 - beta) * q)
    return (beta * p * (log_p - log_m) + (1 - beta) * q * (log_q - log_m)).sum() / log_q.shape[0]


# --- attention --------------------------------------------------------------------------------------------------------


@_takes("f32[3,4,7,8],f32[3,2,7,8],f32[3,2,7,8]; f32[1,2,5,16],f32[1,2,9,16],f32[1,2,9,16]")
def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """``softmax(q kᵀ / √d) v`` of ``q[batch, heads, tokens, d]``; heads of ``k`` and ``v`` serve groups of those of
    ``q``."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    return torch.softmax(q @ k.mT / sqrt(q.shape[-1]), -1) @ v


@_takes("f32[3,4,7,8],f32[3,2,7,8],f32[3,2,7,8]")
def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of every token to itself and to those before it."""
    groups, tokens = q.shape[1] // k.shape[1], q.shape[2]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    hidden = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    return torch.softmax((q @ k.mT / sqrt(q.shape[-1])).masked_fill(hidden, -torch.inf), -1) @ v


@_takes("f32[3,2,7,8],f32[3,2,7,8],f32[3,2,7,16]")
def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """``yₜ = Sₜᵀ qₜ`` with ``Sₜ = Sₜ₋₁ + kₜ vₜᵀ``, of ``[batch, heads, tokens, d]``: causal, without a softmax."""
    states = (k[..., :, None] * v[..., None, :]).cumsum(2)  # no number of a later token is read, not even times 0
    return (q[..., None, :] @ states)[..., 0, :]


@_takes(
    "f32[3,2,5,8],f32[3,2,5,8],f32[3,2,5,6],f32[3,2,5],f32[3,2,5]",
    values={"log_decay": "not positive", "beta": "0..1", "k": "unit rows"},
)
def gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
    """``S ← α S``, ``S ← S + β k (v − Sᵀ k)ᵀ``, ``y = Sᵀ q`` for every token, with ``α = exp(log_decay)``, of
    ``q, k[batch, heads, tokens, d]``, ``v[batch, heads, tokens, e]`` and ``log_decay, beta[batch, heads, tokens]``."""
    rows = (log_decay.exp()[..., None, None], k[..., None], v[..., None, :], beta[..., None, None])
    state, states = k[:, :, :1].mT @ v[:, :, :1] * 0.0, []
    for decay, key, value, share in zip(*(t.unbind(2) for t in rows), strict=True):
        state = state * decay
        state = state + key * (share * (value - key.mT @ state))
        states.append(state)
    return (q[..., None, :] @ torch.stack(states, 2))[..., 0, :]


@_takes(
    "f32[2,6,5],f32[2,6,5],f32[6,4],f32[2,4,5],f32[2,4,5],f32[6]",
    values={"delta": "positive", "a": "not positive"},
)
def selective_scan(x: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """``h ← exp(δ a) h + δ b x``, ``y = c · h + d x`` for every token, of ``x, delta[batch, channels, tokens]``,
    ``a[channels, n]``, ``b, c[batch, n, tokens]`` and ``d[channels]``."""
    decays = torch.exp(delta[..., None] * a[:, None])
    inputs = delta[..., None] * b.mT[:, None] * x[..., None]
    state, states = x[:, :, :1] * a * 0.0, []
    for decay, term in zip(decays.unbind(2), inputs.unbind(2), strict=True):
        state = decay * state + term
        states.append(state)
    return (torch.stack(states, 2) * c.mT[:, None]).sum(-1) + x * d[:, None]


@_takes("f32[2,6,9],f32[6,4],f32[6]")
def causal_conv1d(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``silu(Σᵢ weight[i] · x[t − width + 1 + i] + bias)`` by channel, of ``x[batch, channels, tokens]`` and
    ``weight[channels, width]``; before the first token are zeros."""
    padded = functional.pad(x, (weight.shape[1] - 1, 0))
    return functional.silu(functional.conv1d(padded, weight[:, None], bias, groups=x.shape[1]))


# --- products ---------------------------------------------------------------------------------------------------------


@_takes("f32[6,8],f32[6,5],f32[5,16,8],f32[5,8,16]", values={"router": "distinct"})
def moe(x: Tensor, router: Tensor, up: Tensor, down: Tensor, top: int = 2) -> Tensor:
    """``Σₑ pₑ · down[e] silu(up[e] x)`` over the ``top`` largest ``router[tokens, experts]`` of a token, with ``p``
    their softmax, of ``x[tokens, d]``, ``up[experts, hidden, d]`` and ``down[experts, d, hidden]``."""
    chosen, experts = router.topk(top, -1)
    shares = torch.zeros_like(router).scatter(-1, experts, torch.softmax(chosen, -1))
    each = torch.einsum("edh,teh->ted", down, functional.silu(torch.einsum("ehd,td->teh", up, x)))
    return (shares[:, :, None] * each).sum(1)


@_takes("i8[8,32],i8[32,16],f32[8],f32[16]", no_grad=("row_scale", "column_scale"))
def int8_matmul(a: Tensor, b: Tensor, row_scale: Tensor, column_scale: Tensor) -> Tensor:
    """``(a @ b) · row_scale · column_scale``, of integers ``a[m, k]`` and ``b[k, n]``, whose products and sums are
    exact."""
    total = a.to(torch.int32) @ b.to(torch.int32)
    return total.to(row_scale.dtype) * row_scale[:, None] * column_scale


@_takes("f32[8,32],f32[16,32]")
def fp8_matmul(x: Tensor, weight: Tensor) -> Tensor:
    """``x₈ @ weight₈ᵀ`` times both scales: rows are divided by ``max |x| / 448`` and rounded to float8 (e4m3)."""
    x_scale, weight_scale = (torch.amax(torch.abs(t), -1, keepdim=True).clamp(min=1e-12) / 448 for t in (x, weight))
    eighth = [(t / s).to(torch.float8_e4m3fn).to(x.dtype) for t, s in ((x, x_scale), (weight, weight_scale))]
    return eighth[0] @ eighth[1].T * x_scale * weight_scale.T
