"""Kernels as they should be, for references of ``gradspec.gallery``; ``wrong`` has a mistake in each.

cd examples/gallery
gradspec check right:rms_norm --spec gradspec.gallery:rms_norm
gradspec check wrong:rms_norm --spec gradspec.gallery:rms_norm
"""

import torch
from torch.autograd.function import once_differentiable


class RMSNorm(torch.autograd.Function):
    """Forward and backward in one pass each."""

    @staticmethod
    def forward(ctx, x, weight):
        scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)
        ctx.save_for_backward(x, weight, scale)
        return x * scale * weight

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, weight, scale = ctx.saved_tensors
        along = (g * weight * x).mean(-1, keepdim=True)
        return scale * (g * weight - x * scale * scale * along), (g * x * scale).flatten(0, -2).sum(0)


def rms_norm(x, weight):
    return RMSNorm.apply(x, weight)


def softmax(x, block=16):
    """In blocks of columns, with a running maximum and a running sum."""
    largest, total = torch.full_like(x[:, :1], -torch.inf), torch.zeros_like(x[:, :1])
    for part in x.split(block, -1) if x.shape[-1] else ():
        new = torch.maximum(largest, part.amax(-1, keepdim=True))
        total = total * torch.exp(largest - new) + torch.exp(part - new).sum(-1, keepdim=True)
        largest = new
    return torch.exp(x - largest) / total


softmax.arithmetic = {"online_softmax": 16}


class CrossEntropy(torch.autograd.Function):
    """The gradient is made in the forward pass, as fused losses do."""

    @staticmethod
    def forward(ctx, logits, labels):
        kept = labels != -100
        log_p = torch.log_softmax(logits, -1)
        rows, places = torch.arange(len(labels)), torch.where(kept, labels, 0)
        slopes = torch.exp(log_p)
        slopes[rows, places] -= 1
        ctx.save_for_backward(torch.where(kept[:, None], slopes, 0) / kept.sum())
        return -torch.where(kept, log_p[rows, places], 0).sum() / kept.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (slopes,) = ctx.saved_tensors
        return g * slopes, None


def cross_entropy(logits, labels):
    return CrossEntropy.apply(logits, labels)


def rope(x, cos, sin):
    """The halves of every head, each with its part of the tables."""
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos[:, :half] - b * sin[:, :half], b * cos[:, half:] + a * sin[:, half:]], -1)


def causal_conv1d(x, weight, bias):
    """A shifted copy of the input for every tap."""
    total = torch.zeros_like(x) + bias[:, None]
    for lag in range(weight.shape[1]):
        shifted = torch.nn.functional.pad(x, (lag, 0))[..., : x.shape[-1]]
        total = total + shifted * weight[:, -1 - lag, None]
    return total * torch.sigmoid(total)


def swiglu(gate, up):
    return gate * torch.sigmoid(gate) * up
