"""Attention and rotary embeddings, as ONNX has them since opset 23."""

from __future__ import annotations

from functools import reduce
from math import inf, sqrt
from typing import Any

import numpy as np

from gradspec.graph.ir import Var
from gradspec.graph.types import boolean, i64
from gradspec.interop import compose
from gradspec.interop.onnx.files import dtype_numbered
from gradspec.interop.onnx.node import Handler, OnnxNode
from gradspec.interop.onnx.nodes.fused import split_heads
from gradspec.ops.convert import convert
from gradspec.ops.gather import take
from gradspec.ops.layout import concat, getitem, pad, transpose, turned
from gradspec.ops.linear import matmul
from gradspec.ops.pointwise import minimum, tanh
from gradspec.ops.reduce import softmax
from gradspec.ops.select import equal, less, where
from gradspec.ops.shape import broadcast_to, reshape
from gradspec.spec.errors import FormatError


def _attention(node: OnnxNode) -> Any:
    """A softmax of scaled products of queries and keys, capped and masked, times values; 0 for a query without keys."""
    q, k, v = (node.variable(i) for i in range(3))
    is_flat = q.ndim == 3
    if is_flat:
        heads = [node.attribute(name) or 0 for name in ("q_num_heads", "kv_num_heads", "kv_num_heads")]
        if min(heads) < 1:
            raise FormatError("operands of three axes need q_num_heads and kv_num_heads of 1 or more")
        q, k, v = (split_heads(t, count) for t, count in zip((q, k, v), heads, strict=True))
    if not q.ndim == k.ndim == v.ndim == 4 or q.shape[1] % k.shape[1]:
        raise FormatError(f"queries {q.shape}, keys {k.shape} and values {v.shape} do not belong together")
    if node.has(4):
        k, v = (concat([node.variable(i), new], 2) for i, new in ((4, k), (5, v)))
    keys, values = (compose.repeat_each(t, q.shape[1] // t.shape[1], 1) for t in (k, v))
    factor = node.attribute("scale")
    scores = compose.times(matmul(q, turned(keys)), 1 / sqrt(q.shape[3]) if factor is None else factor)
    cap = node.attribute("softcap")
    capped = compose.times(tanh(compose.times(scores, 1 / cap)), cap) if cap else scores
    bias = _bias(node, capped)
    biased = capped if bias is None else where(equal(bias, -inf), -inf, capped + bias)
    weights = _weights(node, biased, bias)
    y = matmul(weights, values)
    if is_flat:
        n, count, places, size = y.shape
        y = reshape(transpose(y, (0, 2, 1, 3)), (n, places, count * size))
    stages, stage = (scores, capped, biased, weights), node.attribute("qk_matmul_output_mode")
    if stage not in range(len(stages)):
        raise FormatError(f"its qk_matmul_output_mode is {stage}; ONNX has 0 to {len(stages) - 1}")
    return [y, k, v, stages[stage]][: len(node.outputs)]


def _weights(node: OnnxNode, scores: Var, bias: Var | None) -> Var:
    """A query all of whose keys are hidden is given scores first, of which none is infinite."""
    precision = node.attribute("softmax_precision")
    wide = convert(scores, dtype_numbered(precision)) if precision else scores
    if bias is None:
        return convert(softmax(wide, -1), scores.dtype)
    hidden = compose.all_true(equal(bias, -inf), (bias.ndim - 1,), True)
    return convert(where(hidden, 0.0, softmax(where(hidden, 0.0, wide), -1)), scores.dtype)


def _bias(node: OnnxNode, scores: Var) -> Var | None:
    """What is added to scores: a mask of numbers, and −∞ where a key is hidden from a query."""
    n, _, places, length = scores.shape
    mask, lengths = node.optional(3), node.optional(6)
    if mask is not None:
        if not mask.ndim or mask.shape[-1] > length:
            raise FormatError(f"its mask has the shape {mask.shape}, and there are {length} keys")
        lacking = [(0, 0)] * (mask.ndim - 1) + [(0, length - mask.shape[-1])]
        mask = pad(mask, lacking, False if mask.dtype is boolean else -inf) if lacking[-1][1] else mask
    key = scores.owner.const(np.arange(length))
    place = scores.owner.const(np.arange(places)[:, None])
    offset: Any = node.variable(4).shape[2] if node.has(4) else 0
    if lengths is not None:
        lengths = reshape(convert(lengths, i64), (n, 1, 1, 1))
        offset = lengths - places
    ahead = key - (place + offset)
    limits = [-1 if (size := node.attribute(f"{side}_window_size")) is None else size for side in ("left", "right")]
    seen = [mask] if mask is not None and mask.dtype is boolean else []
    seen += [compose.less_equal(ahead, 0)] if node.flag("is_causal") else []
    seen += [compose.less_equal(-limits[0], ahead)] if limits[0] >= 0 else []
    seen += [compose.less_equal(ahead, limits[1])] if limits[1] >= 0 else []
    seen += [] if lengths is None else [less(key, lengths)]
    numbers = mask if mask is not None and mask.dtype is not boolean else None
    if not seen:
        return None if numbers is None else broadcast_to(numbers, scores.shape)
    zero = scores.owner.operand(0.0, scores)
    return broadcast_to(where(reduce(minimum, seen), zero if numbers is None else numbers, -inf), scores.shape)


def _rotary_embedding(node: OnnxNode) -> Var:
    """Pairs of numbers, turned by the angle of their place; numbers beyond those stay as they are."""
    x, tables = node.variable(0), [node.variable(1), node.variable(2)]
    heads = split_heads(x, node.attribute("num_heads") or 1) if x.ndim == 3 else x
    size = node.attribute("rotary_embedding_dim") or heads.shape[3]
    if node.has(3):
        tables = [take(table, node.variable(3)) for table in tables]
    if size % 2 or any(table.ndim != 3 or table.shape[2] != size // 2 for table in tables):
        raise FormatError(
            f"{size} numbers of each head do not turn by tables of {tables[0].shape} and {tables[1].shape}"
        )
    cos, sin = (reshape(table, (table.shape[0], 1, *table.shape[1:])) for table in tables)
    is_interleaved = node.flag("interleaved")
    first, second = (
        (slice(0, size, 2), slice(1, size, 2)) if is_interleaved else (slice(size // 2), slice(size // 2, size))
    )
    a, b = (getitem(heads, (..., part)) for part in (first, second))
    turned_pair = [a * cos - b * sin, a * sin + b * cos]
    if is_interleaved:
        column = (*a.shape, 1)
        rotated = reshape(concat([reshape(t, column) for t in turned_pair], 4), (*a.shape[:3], size))
    else:
        rotated = concat(turned_pair, 3)
    y = concat([rotated, getitem(heads, (..., slice(size, None)))], 3) if size < heads.shape[3] else rotated
    return reshape(transpose(y, (0, 2, 1, 3)), x.shape) if x.ndim == 3 else y


HANDLERS: dict[str, Handler] = {"Attention": _attention, "RotaryEmbedding": _rotary_embedding}
