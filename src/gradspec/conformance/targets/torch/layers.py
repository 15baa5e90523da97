"""Layers as users of PyTorch write them."""

from __future__ import annotations

from collections.abc import Callable

from gradspec.conformance.model.problem import Problem

_F = "torch.nn.functional"
_CONVOLVED = f"torch.relu({_F}.conv2d(x, weight, padding=1))"

EXPRESSIONS = {
    "matmul": "torch.matmul(a, b)",
    "matmul batched": "torch.matmul(a, b)",
    "linear": f"{_F}.linear(x, weight, bias)",
    "softmax": "torch.softmax(x, -1)",
    "softmax axis=1": "torch.softmax(x, 1)",
    "log_softmax": "torch.log_softmax(x, -1)",
    "log_softmax axis=1": "torch.log_softmax(x, 1)",
    "logsumexp": "torch.logsumexp(x, -1)",
    "logsumexp keepdims": "torch.logsumexp(x, (0, 2), keepdim=True)",
    "layer_norm": f"{_F}.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)",
    "layer_norm axes=2": f"{_F}.layer_norm(x, x.shape[-2:], weight, bias, 1e-5)",
    "group_norm": f"{_F}.group_norm(x, 2, weight, bias, 1e-5)",
    "group_norm groups=1": f"{_F}.group_norm(x, 1, weight, bias, 1e-5)",
    "batch_norm": f"{_F}.batch_norm(x, mean, var, weight, bias, False, 0.1, 1e-5)",
    "batch_norm training": f"{_F}.batch_norm(x, None, None, weight, bias, True, 0.1, 1e-5)",
    "rms_norm": f"{_F}.rms_norm(x, x.shape[-1:], weight, 1e-5)",
    "cross_entropy": f"{_F}.cross_entropy(x, labels)",
    "cross_entropy reduction=none": f'{_F}.cross_entropy(x, labels, reduction="none")',
    "mean": "torch.mean(x, -1)",
    "mean keepdims": "torch.mean(x, (0, 2), keepdim=True)",
    "sum": "torch.sum(x, -1)",
    "sum keepdims": "torch.sum(x, (0, 2), keepdim=True)",
    "var": "torch.var(x, -1)",
    "var correction=0": "torch.var(x, (0, 2), correction=0, keepdim=True)",
    "norm": "torch.linalg.vector_norm(x, 2, -1)",
    "norm p=1": "torch.linalg.vector_norm(x, 1, (0, 2), keepdim=True)",
    "gelu": f"{_F}.gelu(x)",
    "gelu approximate=tanh": f'{_F}.gelu(x, approximate="tanh")',
    "silu": f"{_F}.silu(x)",
    "softplus": f"{_F}.softplus(x)",
    "tanh": "torch.tanh(x)",
    "sigmoid": "torch.sigmoid(x)",
    "cumsum": "torch.cumsum(x, 1)",
    "resize mode=nearest": f'{_F}.interpolate(x, (7, 9), mode="nearest")',
    "resize mode=linear": f'{_F}.interpolate(x, scale_factor=2, mode="bilinear")',
    "conv_pool": f"{_F}.max_pool2d({_CONVOLVED}, 2)",
    "conv_pool kernel=3": f"{_F}.max_pool2d({_CONVOLVED}, 3, 2)",
    "attention": f"{_F}.scaled_dot_product_attention(query, key, value)",
    "attention causal": f"{_F}.scaled_dot_product_attention(query, key, value, is_causal=True)",
}

REFUSED: tuple[tuple[Callable[[Problem, str], bool], str], ...] = (
    (lambda problem, mode: problem.op == "batch_norm" and mode != "value", "running statistics have no derivatives"),
    (
        lambda problem, mode: problem.op == "softplus" and problem.dtype == "f64",
        "softplus documents that it is linear above its threshold, 20, which float64 sees",
    ),
)

_FOLDED = {"reassociated": True, "variance_by_moments": True}
ARITHMETICS = dict.fromkeys(("layer_norm", "group_norm", "batch_norm"), _FOLDED)
"""Normalisations are x·a + b: layer_norm_kernel.cpp, group_norm_kernel.cpp and batch_norm_kernel.cpp of ATen/native/cpu
fold mean, deviation, weight and bias into a and b first, and moments are taken in one pass (moments_utils.h)."""
