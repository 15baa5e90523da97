"""Layers as users of JAX write them. It has no RMS normalisation, and its nearest cells are other ones."""

from __future__ import annotations

from typing import Any

from gradspec.conformance.model.problem import Problem
from gradspec.conformance.targets.layers import name_of

_AFFINE = " * weight[:, None] + bias[:, None]"
_HEADS = "query.swapaxes(1, 2), key.swapaxes(1, 2), value.swapaxes(1, 2)"
_TWICE = "(*x.shape[:2], 2 * x.shape[2], 2 * x.shape[3])"
_GROUPS = "jax.nn.standardize(x.reshape(len(x), {}, -1), axis=-1).reshape(x.shape)"
_PICKED = "-jnp.take_along_axis(jax.nn.log_softmax(x, 1), labels[:, None], 1)[:, 0]"

EXPRESSIONS = {
    "matmul": "jnp.matmul(a, b)",
    "matmul batched": "jnp.matmul(a, b)",
    "linear": "jnp.matmul(x, weight.T) + bias",
    "softmax": "jax.nn.softmax(x, -1)",
    "softmax axis=1": "jax.nn.softmax(x, 1)",
    "log_softmax": "jax.nn.log_softmax(x, -1)",
    "log_softmax axis=1": "jax.nn.log_softmax(x, 1)",
    "logsumexp": "jax.nn.logsumexp(x, -1)",
    "logsumexp keepdims": "jax.nn.logsumexp(x, (0, 2), keepdims=True)",
    "layer_norm": "jax.nn.standardize(x, -1, epsilon=1e-5) * weight + bias",
    "layer_norm axes=2": "jax.nn.standardize(x, (-2, -1), epsilon=1e-5) * weight + bias",
    "group_norm": _GROUPS.format(2) + _AFFINE,
    "group_norm groups=1": _GROUPS.format(1) + _AFFINE,
    "batch_norm": f"jax.nn.standardize(x, 1, mean[:, None], var[:, None], 1e-5){_AFFINE}",
    "batch_norm training": f"jax.nn.standardize(x, (0, 2), epsilon=1e-5){_AFFINE}",
    "cross_entropy": f"({_PICKED}).mean()",
    "cross_entropy reduction=none": _PICKED,
    "mean": "jnp.mean(x, -1)",
    "mean keepdims": "jnp.mean(x, (0, 2), keepdims=True)",
    "sum": "jnp.sum(x, -1)",
    "sum keepdims": "jnp.sum(x, (0, 2), keepdims=True)",
    "var": "jnp.var(x, -1, ddof=1)",
    "var correction=0": "jnp.var(x, (0, 2), keepdims=True)",
    "norm": "jnp.linalg.norm(x, axis=-1)",
    "norm p=1": "jnp.linalg.norm(x.swapaxes(0, 1).reshape(x.shape[1], -1), 1, axis=1).reshape(1, -1, 1)",
    "gelu": "jax.nn.gelu(x, approximate=False)",
    "gelu approximate=tanh": "jax.nn.gelu(x, approximate=True)",
    "silu": "jax.nn.silu(x)",
    "softplus": "jax.nn.softplus(x)",
    "tanh": "jnp.tanh(x)",
    "sigmoid": "jax.nn.sigmoid(x)",
    "cumsum": "jnp.cumsum(x, 1)",
    "resize mode=linear": f'jax.image.resize(x, {_TWICE}, "linear", antialias=False)',
    "attention": f"jax.nn.dot_product_attention({_HEADS}).swapaxes(1, 2)",
    "attention causal": f"jax.nn.dot_product_attention({_HEADS}, is_causal=True).swapaxes(1, 2)",
}

_OF_ONE = ("matmul", "mean", "sum", "var", "cumsum")
"""Layers that are one operation of JAX's, or accumulate in float32 by their documentation."""


def _is_composed(problem: Problem, mode: str) -> bool:
    return problem.dtype in ("f16", "bf16") and name_of(problem) not in _OF_ONE


REFUSED = ((_is_composed, "judged in wider formats: it is composed of operations that store what they give"),)

_MOMENTS = {"variance_by_moments": True, "reassociated": True}
ARITHMETICS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("layer_norm", "group_norm", "batch_norm"), _MOMENTS),
    "cumsum": {"accumulators": {"f16": "f16", "bf16": "bf16"}},
}
"""``jax.nn.standardize`` documents ``mean(x²) − mean(x)²``, and jit fuses what follows. ``lax.cumsum`` is a scan that
adds arrays of the operand's dtype."""
