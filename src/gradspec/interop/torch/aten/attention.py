"""Attention: queries times keys, a softmax, and that times values."""

from __future__ import annotations

from math import inf
from math import sqrt as sqrt_of
from typing import Any

import numpy as np

from gradspec.graph.ir import Var
from gradspec.graph.types import boolean
from gradspec.interop.torch.aten.operands import product_with, to_dtype
from gradspec.interop.torch.aten.reduce import every
from gradspec.interop.torch.aten.table import reads
from gradspec.ops.layout import turned
from gradspec.ops.linear import matmul
from gradspec.ops.reduce import softmax
from gradspec.ops.select import equal, where
from gradspec.ops.shape import broadcast_to, reshape
from gradspec.spec.errors import UnsupportedError


@reads("scaled_dot_product_attention")
def _attention(
    query: Var,
    key: Var,
    value: Var,
    attn_mask: Var | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """As PyTorch documents it, in the dtype of the operands, in which its kernels store weights, or scores too.

    A query all of whose scores are −∞ gets 0, and is given others first, whose weights have derivatives.
    """
    if dropout_p:
        raise UnsupportedError("dropout of attention draws random numbers; call eval() on the model, or give 0.0")
    if enable_gqa:
        key, value = (_for_all_heads(t, query.shape[-3]) for t in (key, value))
    scores = product_with(matmul(query, turned(key)), 1 / sqrt_of(query.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = query.owner.const(np.tri(*scores.shape[-2:], dtype=np.bool_))
    if attn_mask is not None:
        is_choice = attn_mask.dtype is boolean
        scores = where(attn_mask, scores, -inf) if is_choice else scores + to_dtype(attn_mask, scores.dtype)
    hidden = every(equal(scores, -inf), (scores.ndim - 1,), keepdims=True)
    return matmul(where(hidden, 0.0, softmax(where(hidden, 0.0, scores))), value)


def _for_all_heads(x: Var, heads: int) -> Any:
    """Each head of ``(…, heads, places, size)`` as often as queries have heads for it, one after the other."""
    *lead, fewer, places, size = x.shape
    each = broadcast_to(reshape(x, (*lead, fewer, 1, places, size)), (*lead, fewer, heads // fewer, places, size))
    return reshape(each, (*lead, heads, places, size))
