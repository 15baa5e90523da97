"""The kernels of ``right``, each with a mistake that tests on random numbers of one size may miss."""

import torch
from torch.autograd.function import once_differentiable


class RMSNorm(torch.autograd.Function):
    """Rows behind the last whole block of four are missing from the gradient of the weight."""

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
        blocks = (g * x * scale)[: len(x) // 4 * 4]
        return scale * (g * weight - x * scale * scale * along), blocks.sum(0)


def rms_norm(x, weight):
    return RMSNorm.apply(x, weight)


def softmax(x):
    """Without the largest number subtracted, ``exp`` overflows."""
    return torch.exp(x) / torch.exp(x).sum(-1, keepdim=True)


def cross_entropy(logits, labels):
    """The mean is over all rows, those that are left out among them."""
    kept = labels != -100
    picked = torch.log_softmax(logits, -1)[torch.arange(len(labels)), torch.where(kept, labels, 0)]
    return -torch.where(kept, picked, 0).sum() / len(labels)


def rope(x, cos, sin):
    """Neighbours are rotated instead of halves."""
    a, b = x[..., ::2], x[..., 1::2]
    return x * cos + torch.stack([-b, a], -1).flatten(-2) * sin


def causal_conv1d(x, weight, bias):
    """The taps are in the wrong order."""
    padded = torch.nn.functional.pad(x, (weight.shape[1] - 1, 0))
    return torch.nn.functional.silu(torch.conv1d(padded, weight.flip(1)[:, None], bias, groups=x.shape[1]))


def swiglu(gate, up):
    """The activation is applied to the other half."""
    return gate * torch.nn.functional.silu(up)
