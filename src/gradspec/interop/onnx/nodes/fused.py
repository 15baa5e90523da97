"""Operators that ONNX Runtime makes of several of ONNX's, and those that ONNX tried in its first versions and dropped.

ONNX has no record of them, so their attributes are listed here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf, sqrt
from typing import Any

import numpy as np

from gradspec.graph.ir import Var
from gradspec.interop import compose
from gradspec.interop.onnx.node import Handler, OnnxNode, Signature, apply_to_operands, foreign
from gradspec.interop.onnx.nodes import arithmetic, windows
from gradspec.ops.layout import concat, getitem, transpose, turned
from gradspec.ops.linear import matmul
from gradspec.ops.pointwise import clamp, gelu, leaky_relu, relu, scale, sigmoid, softplus, tanh
from gradspec.ops.reduce import softmax
from gradspec.ops.select import greater, less, where
from gradspec.ops.shape import reshape
from gradspec.saving.strict_json import brief
from gradspec.spec.errors import FormatError, UnsupportedError

# --- functions of a sum -----------------------------------------------------------------------------------------------


def _of_sum(function: Callable[[Any], Any]) -> Handler:
    """A function of the first operand, to which the second is added if there is one."""
    return lambda node: function(_sum(node, 0, 1))


def _sum(node: OnnxNode, *places: int) -> Var:
    first, *others = [node.variable(i) for i in places if node.has(i)]
    return sum(others, start=first)


# --- normalisations ---------------------------------------------------------------------------------------------------


def _skip_layer_norm(node: OnnxNode) -> Any:
    """The sum of an input, what skipped a layer and a bias, normalised; and on request that sum."""
    total, settings = _sum(node, 0, 1, 4), {"axis": -1, "stash_type": 1, "epsilon": node.attribute("epsilon")}
    shift = (node.variable(3),) if node.has(3) else ()
    operands, outputs = (total, node.variable(2), *shift), ("", "", "")
    inner = replace(node, operands=operands, outputs=outputs, attributes=settings)
    return [*arithmetic.HANDLERS["LayerNormalization"](inner), total][: len(node.outputs)]


def _rms_norm(node: OnnxNode) -> Any:
    _refuse_statistics(node, 1)
    return arithmetic.HANDLERS["RMSNormalization"](node)


def _skip_rms_norm(node: OnnxNode) -> Any:
    total, settings = _sum(node, 0, 1, 3), {"axis": -1, "stash_type": 1, "epsilon": node.attribute("epsilon")}
    _refuse_statistics(node, 1, 2)
    y = arithmetic.HANDLERS["RMSNormalization"](replace(node, operands=(total, node.variable(2)), attributes=settings))
    return [y, total, total, total][: len(node.outputs)]  # those between have no names


def _refuse_statistics(node: OnnxNode, *places: int) -> None:
    if any(map(node.wants, places)):
        raise UnsupportedError(f"{node.op_type} with its statistics")


# --- products with an activation --------------------------------------------------------------------------------------

ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "": lambda x: x,
    "Relu": relu,
    "Sigmoid": sigmoid,
    "Tanh": tanh,
    "LeakyRelu": leaky_relu,
    "Clip": clamp,
    "HardSigmoid": compose.hardsigmoid,
}


def _activate(node: OnnxNode, y: Any, settings: list[float]) -> Any:
    name = node.attribute("activation")
    if name not in ACTIVATIONS:
        raise UnsupportedError(f"{node.op_type} with the activation {brief(name)}")
    return ACTIVATIONS[name](y, *settings)


def _conv(node: OnnxNode) -> Any:
    """A convolution, to which a fourth operand is added before the activation."""
    y = windows.HANDLERS["Conv"](replace(node, operands=node.operands[:3]))
    return _activate(node, y + node.variable(3) if node.has(3) else y, node.attribute("activation_params"))


def _gemm(node: OnnxNode) -> Any:
    names = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}.get(node.attribute("activation"), ())
    return _activate(node, arithmetic.HANDLERS["Gemm"](node), [node.attribute(f"activation_{name}") for name in names])


def _matmul(node: OnnxNode) -> Var:
    """``alpha`` times the product of matrices, of which each may be transposed."""
    if node.flag("transBatchA") or node.flag("transBatchB"):
        raise UnsupportedError(f"{node.op_type} with leading axes exchanged")
    a, b = node.variable(0), node.variable(1)
    y = matmul(turned(a) if node.flag("transA") else a, turned(b) if node.flag("transB") else b)
    return compose.times(y, node.attribute("alpha"))


# --- what ONNX dropped ------------------------------------------------------------------------------------------------


def _scaled(function: Callable[[Any], Any]) -> Handler:
    """``alpha · function(beta · x)``."""
    return apply_to_operands(lambda x, alpha, beta: scale(function(scale(x, beta)), alpha), "alpha", "beta")


def _image_scaler(node: OnnxNode) -> Var:
    """The image times one number, and a number added to each channel."""
    x, bias = node.variable(0), node.attribute("bias")
    rank = len(windows.spatial(x.shape))
    if len(bias) != x.shape[1]:
        raise FormatError(f"its bias has {len(bias)} entries, and its input {x.shape[1]} channels")
    numbers: Var = x.owner.const(np.array(bias, x.dtype.numpy), "bias")
    return scale(x, node.attribute("scale")) + reshape(numbers, (len(bias), *(1,) * rank))


def _crop(node: OnnxNode) -> Var:
    """Without a border of left, top, right and bottom; or, with a height and a width, so much from the corner on."""
    x, border, wanted = node.variable(0), node.attribute("border"), node.attribute("scale")
    if x.ndim != 4 or len(border) != 4 or len(wanted) not in (0, 2) or min(border) < 0:
        raise FormatError(f"its border is {brief(border)} and its scale {brief(wanted)}, for the shape {x.shape}")
    left, top, right, bottom = border
    ends = (top + wanted[0], left + wanted[1]) if wanted else (x.shape[2] - bottom, x.shape[3] - right)
    if not (top < ends[0] <= x.shape[2] and left < ends[1] <= x.shape[3]):
        raise FormatError(f"nothing is left of the shape {x.shape} between {(top, left)} and {ends}, or not all there")
    return getitem(x, (slice(None), slice(None), slice(top, ends[0]), slice(left, ends[1])))


# --- attention: queries times keys, a softmax, and that times values --------------------------------------------------


def _attention(node: OnnxNode) -> Any:
    """Queries, keys and values are one product of the input, of weights side by side."""
    x, weights, heads = node.variable(0), node.variable(1), _heads(node)
    sizes = node.attribute("qkv_hidden_sizes") or [weights.shape[-1] // 3] * 3
    if x.ndim != 3 or weights.ndim != 2 or len(sizes) != 3 or min(sizes) < 1 or sum(sizes) != weights.shape[1]:
        raise FormatError(f"its input {x.shape} and weights {weights.shape} do not make {sizes} for each place")
    product = matmul(x, weights)
    if node.has(2):
        product = product + node.variable(2)
    q, k, v = (split_heads(part, heads) for part in compose.split(product, sizes, -1))
    if node.has(4):
        past = node.variable(4)
        k, v = (concat([getitem(past, i), new], 2) for i, new in enumerate((k, v)))
    y = _attend(node, q, k, v, mask=3, bias=5)
    return [y, concat([reshape(t, (1, *t.shape)) for t in (k, v)], 0)] if node.wants(1) else y


def _multi_head_attention(node: OnnxNode) -> Any:
    """Queries, keys and values are given; keys and values by head are as they are, and have no bias added."""
    parts, heads = [node.variable(i) for i in range(3)], _heads(node)
    if node.wants(3) or node.has(8) or node.has(9) or parts[0].ndim != 3:
        raise UnsupportedError(f"{node.op_type} with packed queries, a buffer of the past, or its scores")
    if node.flag("unidirectional") and (parts[1].ndim != 3 or parts[1].shape[1] != parts[0].shape[1]):
        raise UnsupportedError(f"{node.op_type} that is unidirectional, with another number of keys than of queries")
    if node.has(3):
        sizes = [t.shape[-1] * (1 if t.ndim == 3 else heads) for t in parts]
        biases = compose.split(node.variable(3), sizes, -1)
        parts = [t + bias if t.ndim == 3 else t for t, bias in zip(parts, biases, strict=True)]
    q, k, v = (split_heads(t, heads) if t.ndim == 3 else t for t in parts)
    if node.has(6):
        k, v = (concat([node.variable(i), new], 2) for i, new in ((6, k), (7, v)))
    return [_attend(node, q, k, v, mask=4, bias=5), k, v][: len(node.outputs)]


def _heads(node: OnnxNode) -> int:
    heads = int(node.attribute("num_heads"))
    if heads < 1:
        raise FormatError(f"its num_heads is {heads}; 1 or more is needed")
    return heads


def split_heads(x: Var, heads: int) -> Var:
    """``(N, places, heads · size)`` as ``(N, heads, places, size)``."""
    n, places, size = x.shape
    if size % heads:
        raise FormatError(f"{size} numbers for each place do not make {heads} heads")
    return transpose(reshape(x, (n, places, heads, size // heads)), (0, 2, 1, 3))


def _attend(node: OnnxNode, q: Var, k: Var, v: Var, *, mask: int, bias: int) -> Var:
    n, heads, places, size = q.shape
    scores = scale(matmul(q, turned(k)), node.attribute("scale") or 1 / sqrt(size))
    if node.has(mask):
        hidden = scores + node.attribute("mask_filter_value")
        scores = where(_seen_keys(node, node.variable(mask), scores), scores, hidden)
    if node.has(bias):
        scores = scores + node.variable(bias)
    if node.flag("unidirectional"):
        seen = np.tri(places, k.shape[2], k.shape[2] - places, dtype=bool)
        node.scope.charge(seen.size)
        scores = where(seen, scores, np.full((), -inf, q.dtype.numpy))
    y = matmul(softmax(scores, -1), v)
    return reshape(transpose(y, (0, 2, 1, 3)), (n, places, heads * v.shape[3]))


def _seen_keys(node: OnnxNode, mask: Var, scores: Var) -> Var:
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

_WINDOWS: dict[str, Any] = {"auto_pad": "NOTSET", "kernel_shape": [], "pads": [], "strides": [], "dilations": []}
_PRODUCT: dict[str, Any] = {"alpha": 1.0, "transA": 0, "transB": 0}
_ATTENTION: dict[str, Any] = {"mask_filter_value": -10000.0, "num_heads": 0, "scale": 0.0, "unidirectional": 0}
_TWO_NUMBERS: dict[str, Any] = {"alpha": 1.0, "beta": 1.0}

FOREIGN: dict[str, tuple[Handler, Signature]] = {
    "com.microsoft.Attention": (_attention, foreign((2, 6), (1, 2), "num_heads", **_ATTENTION, qkv_hidden_sizes=[])),
    "com.microsoft.BiasGelu": (_of_sum(gelu), foreign(2)),
    "com.microsoft.FastGelu": (_of_sum(lambda x: gelu(x, "tanh")), foreign((1, 2))),
    "com.microsoft.FusedConv": (_conv, foreign((2, 4), **_WINDOWS, group=1, activation="", activation_params=())),
    "com.microsoft.FusedGemm": (
        _gemm,
        foreign((2, 3), **_PRODUCT, beta=1.0, activation="", activation_alpha=0.01, activation_beta=0.5),
    ),
    "com.microsoft.FusedMatMul": (_matmul, foreign(2, **_PRODUCT, transBatchA=0, transBatchB=0)),
    "com.microsoft.Gelu": (_of_sum(gelu), foreign(1)),
    "com.microsoft.MultiHeadAttention": (_multi_head_attention, foreign((3, 10), (1, 4), "num_heads", **_ATTENTION)),
    "com.microsoft.QuickGelu": (
        apply_to_operands(lambda x, alpha: x * sigmoid(scale(x, alpha)), "alpha"),
        foreign(1, alpha=1.702),
    ),
    "com.microsoft.SkipLayerNormalization": (_skip_layer_norm, foreign((3, 5), (1, 4), epsilon=1e-12)),
    "com.microsoft.SkipSimplifiedLayerNormalization": (_skip_rms_norm, foreign((3, 4), (1, 4), epsilon=1e-12)),
    "com.microsoft.TransposeMatMul": (_matmul, foreign(2, **_PRODUCT)),
    "SimplifiedLayerNormalization": (_rms_norm, foreign(2, (1, 2), axis=-1, epsilon=1e-5, stash_type=1)),
    "Affine": (
        apply_to_operands(lambda x, alpha, beta: scale(x, alpha) + beta, "alpha", "beta"),
        foreign(1, alpha=1.0, beta=0.0),
    ),
    "Crop": (_crop, foreign(1, border=[], scale=[])),
    "ImageScaler": (_image_scaler, foreign(1, bias=(), scale=1.0)),
    "ParametricSoftplus": (_scaled(softplus), foreign(1, **_TWO_NUMBERS)),
    "ScaledTanh": (_scaled(tanh), foreign(1, **_TWO_NUMBERS)),
}
"""Operators that ONNX has no record of, each with a record of its inputs, results and attributes."""
