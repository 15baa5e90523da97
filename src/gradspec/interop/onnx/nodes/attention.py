"""Attention as ONNX Runtime has it in one operator: queries times keys, a softmax, and that times values."""

from __future__ import annotations

from math import inf, sqrt
from typing import Any

import numpy as np

from gradspec.graph.ir import Var
from gradspec.interop.onnx.node import Handler, OnnxNode, Signature, foreign
from gradspec.ops.layout import concat, getitem, transpose, turned
from gradspec.ops.linear import matmul
from gradspec.ops.pointwise import scale
from gradspec.ops.reduce import softmax
from gradspec.ops.select import greater, less, where
from gradspec.ops.shape import reshape
from gradspec.spec.errors import FormatError, UnsupportedError


def _attention(node: OnnxNode) -> Any:
    """Queries, keys and values are one product of the input, of weights side by side."""
    x, weights, heads = node.variable(0), node.variable(1), _heads(node)
    sizes = node.attribute("qkv_hidden_sizes") or [weights.shape[-1] // 3] * 3
    if x.ndim != 3 or weights.ndim != 2 or len(sizes) != 3 or min(sizes) < 1 or sum(sizes) != weights.shape[1]:
        raise FormatError(f"its input {x.shape} and weights {weights.shape} do not make {sizes} for each place")
    product = matmul(x, weights)
    if node.has(2):
        product = product + node.variable(2)
    q, k, v = (_by_head(part, heads) for part in _cut(product, sizes))
    if node.has(4):
        past = node.variable(4)
        k, v = (concat([getitem(past, i), new], 2) for i, new in enumerate((k, v)))
    y = _attended(node, q, k, v, mask=3, bias=5)
    return [y, concat([reshape(t, (1, *t.shape)) for t in (k, v)], 0)] if node.wants(1) else y


def _multi_head_attention(node: OnnxNode) -> Any:
    """Queries, keys and values are given; keys and values by head are as they are, and have no bias added."""
    given, heads = [node.variable(i) for i in range(3)], _heads(node)
    if node.wants(3) or node.has(8) or node.has(9) or given[0].ndim != 3:
        raise UnsupportedError(f"{node.op_type} with packed queries, a buffer of the past, or its scores")
    if node.flag("unidirectional") and (given[1].ndim != 3 or given[1].shape[1] != given[0].shape[1]):
        raise UnsupportedError(f"{node.op_type} that is unidirectional, with another number of keys than of queries")
    if node.has(3):
        sizes = [t.shape[-1] * (1 if t.ndim == 3 else heads) for t in given]
        biases = _cut(node.variable(3), sizes)
        given = [t + bias if t.ndim == 3 else t for t, bias in zip(given, biases, strict=True)]
    q, k, v = (_by_head(t, heads) if t.ndim == 3 else t for t in given)
    if node.has(6):
        k, v = (concat([node.variable(i), new], 2) for i, new in ((6, k), (7, v)))
    return [_attended(node, q, k, v, mask=4, bias=5), k, v][: len(node.outputs)]


def _heads(node: OnnxNode) -> int:
    heads = int(node.attribute("num_heads"))
    if heads < 1:
        raise FormatError(f"its num_heads is {heads}; 1 or more is needed")
    return heads


def _cut(x: Any, sizes: list[int]) -> list[Any]:
    """Parts of the last axis."""
    starts = np.cumsum([0, *sizes]).tolist()
    lead = (slice(None),) * (x.ndim - 1)
    return [getitem(x, (*lead, slice(start, start + size))) for start, size in zip(starts, sizes, strict=False)]


def _by_head(x: Any, heads: int) -> Any:
    """``(N, places, heads · size)`` as ``(N, heads, places, size)``."""
    n, places, size = x.shape
    if size % heads:
        raise FormatError(f"{size} numbers for each place do not make {heads} heads")
    return transpose(reshape(x, (n, places, heads, size // heads)), (0, 2, 1, 3))


def _attended(node: OnnxNode, q: Any, k: Any, v: Any, *, mask: int, bias: int) -> Any:
    n, heads, places, size = q.shape
    scores = scale(matmul(q, turned(k)), node.attribute("scale") or 1 / sqrt(size))
    if node.has(mask):
        scores = where(_kept(node, node.variable(mask), scores), scores, scores + node.attribute("mask_filter_value"))
    if node.has(bias):
        scores = scores + node.variable(bias)
    if node.flag("unidirectional"):
        seen = np.tri(places, k.shape[2], k.shape[2] - places, dtype=bool)
        node.scope.charge(seen.size)
        scores = where(seen, scores, np.full((), -inf, q.dtype.numpy))
    y = matmul(softmax(scores, -1), v)
    return reshape(transpose(y, (0, 2, 1, 3)), (n, places, heads * v.shape[3]))


def _kept(node: OnnxNode, mask: Var, scores: Var) -> Any:
    """Where a mask has ones, or before the length that it gives for each sample."""
    n, _, places, keys = scores.shape
    if mask.shape == (n,):
        return less(mask.owner.const(np.arange(keys, dtype=mask.dtype.numpy)), reshape(mask, (n, 1, 1, 1)))
    shapes = {(n, keys): (n, 1, 1, keys), (n, places, keys): (n, 1, places, keys)}
    if mask.shape not in shapes:
        raise UnsupportedError(
            f"{node.op_type} with a mask of another shape than (N,), (N, keys) and (N, places, keys)"
        )
    return greater(reshape(mask, shapes[mask.shape]), 0)


# --- the table --------------------------------------------------------------------------------------------------------

HANDLERS: dict[str, Handler] = {
    "com.microsoft.Attention": _attention,
    "com.microsoft.MultiHeadAttention": _multi_head_attention,
}

_SETTINGS: dict[str, Any] = {"mask_filter_value": -10000.0, "num_heads": 0, "scale": 0.0, "unidirectional": 0}

SIGNATURES: dict[str, Signature] = {
    "com.microsoft.Attention": foreign(range(2, 7), range(1, 3), {**_SETTINGS, "qkv_hidden_sizes": []}, "num_heads"),
    "com.microsoft.MultiHeadAttention": foreign(range(3, 11), range(1, 5), _SETTINGS, "num_heads"),
}
