"""Operators that ONNX Runtime makes of several of ONNX's, and those that ONNX tried in its first versions and dropped.

ONNX has no record of them, so their attributes are listed here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from gradspec.graph.ir import Var
from gradspec.interop import compose
from gradspec.interop.onnx.node import Handler, OnnxNode, Signature, foreign
from gradspec.interop.onnx.nodes import conv, linear, norm
from gradspec.interop.onnx.nodes.windows import spatial
from gradspec.ops.layout import getitem, turned
from gradspec.ops.linear import matmul
from gradspec.ops.pointwise import clamp, gelu, leaky_relu, relu, scale, sigmoid, softplus, tanh
from gradspec.ops.shape import reshape
from gradspec.saving.strict_json import brief
from gradspec.spec.errors import FormatError, UnsupportedError

# --- functions of a sum -----------------------------------------------------------------------------------------------


def _of_sum(function: Callable[[Any], Any]) -> Handler:
    """A function of the first operand, to which the second is added if there is one."""
    return lambda node: function(_sum(node, 0, 1))


def _sum(node: OnnxNode, *places: int) -> Any:
    first, *others = [node.variable(i) for i in places if node.has(i)]
    return sum(others, start=first)


def _quick_gelu(node: OnnxNode) -> Any:
    x = node.variable(0)
    return x * sigmoid(scale(x, node.attribute("alpha")))


# --- normalisations ---------------------------------------------------------------------------------------------------


def _skip_layer_norm(node: OnnxNode) -> Any:
    """The sum of an input, what skipped a layer and a bias, normalised; and on request that sum."""
    total, settings = _sum(node, 0, 1, 4), {"axis": -1, "stash_type": 1, "epsilon": node.attribute("epsilon")}
    shift = (node.variable(3),) if node.has(3) else ()
    operands, outputs = (total, node.variable(2), *shift), ("", "", "")
    inner = replace(node, operands=operands, outputs=outputs, attributes=settings)
    return [*norm.HANDLERS["LayerNormalization"](inner), total][: len(node.outputs)]


def _rms_norm(node: OnnxNode) -> Any:
    _refuse_statistics(node, 1)
    return norm.HANDLERS["RMSNormalization"](node)


def _skip_rms_norm(node: OnnxNode) -> Any:
    total, settings = _sum(node, 0, 1, 3), {"axis": -1, "stash_type": 1, "epsilon": node.attribute("epsilon")}
    _refuse_statistics(node, 1, 2)
    y = norm.HANDLERS["RMSNormalization"](replace(node, operands=(total, node.variable(2)), attributes=settings))
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


def _activated(node: OnnxNode, y: Any, settings: list[float]) -> Any:
    name = node.attribute("activation")
    if name not in ACTIVATIONS:
        raise UnsupportedError(f"{node.op_type} with the activation {brief(name)}")
    return ACTIVATIONS[name](y, *settings)


def _conv(node: OnnxNode) -> Any:
    """A convolution, to which a fourth operand is added before the activation."""
    y = conv.HANDLERS["Conv"](replace(node, operands=node.operands[:3]))
    return _activated(node, y + node.variable(3) if node.has(3) else y, node.attribute("activation_params"))


def _gemm(node: OnnxNode) -> Any:
    names = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}.get(node.attribute("activation"), ())
    return _activated(node, linear.HANDLERS["Gemm"](node), [node.attribute(f"activation_{name}") for name in names])


def _matmul(node: OnnxNode) -> Any:
    """``alpha`` times the product of matrices, of which each may be transposed."""
    if node.flag("transBatchA") or node.flag("transBatchB"):
        raise UnsupportedError(f"{node.op_type} with leading axes exchanged")
    a, b = node.variable(0), node.variable(1)
    y = matmul(turned(a) if node.flag("transA") else a, turned(b) if node.flag("transB") else b)
    return y if node.attribute("alpha") == 1 else scale(y, node.attribute("alpha"))


# --- what ONNX dropped ------------------------------------------------------------------------------------------------


def _affine(node: OnnxNode) -> Any:
    return scale(node.variable(0), node.attribute("alpha")) + node.attribute("beta")


def _scaled(function: Callable[[Any], Any]) -> Handler:
    """``alpha · function(beta · x)``."""
    return lambda node: scale(function(scale(node.variable(0), node.attribute("beta"))), node.attribute("alpha"))


def _image_scaler(node: OnnxNode) -> Any:
    """The image times one number, and a number added to each channel."""
    x, bias = node.variable(0), node.attribute("bias")
    rank = len(spatial(x.shape))
    if len(bias) != x.shape[1]:
        raise FormatError(f"its bias has {len(bias)} entries, and its input {x.shape[1]} channels")
    numbers: Var = x.owner.const(np.array(bias, x.dtype.numpy), "bias")
    return scale(x, node.attribute("scale")) + reshape(numbers, (len(bias), *(1,) * rank))


def _crop(node: OnnxNode) -> Any:
    """Without a border of left, top, right and bottom; or, with a height and a width, so much from the corner on."""
    x, border, wanted = node.variable(0), node.attribute("border"), node.attribute("scale")
    if x.ndim != 4 or len(border) != 4 or len(wanted) not in (0, 2) or min(border) < 0:
        raise FormatError(f"its border is {brief(border)} and its scale {brief(wanted)}, for the shape {x.shape}")
    left, top, right, bottom = border
    ends = (top + wanted[0], left + wanted[1]) if wanted else (x.shape[2] - bottom, x.shape[3] - right)
    if not (top < ends[0] <= x.shape[2] and left < ends[1] <= x.shape[3]):
        raise FormatError(f"nothing is left of the shape {x.shape} between {(top, left)} and {ends}, or not all there")
    return getitem(x, (slice(None), slice(None), slice(top, ends[0]), slice(left, ends[1])))


# --- the table --------------------------------------------------------------------------------------------------------

_WINDOWS = {"auto_pad": "NOTSET", "dilations": [], "group": 1, "kernel_shape": [], "pads": [], "strides": []}
_PRODUCT = {"alpha": 1.0, "transA": 0, "transB": 0}
_EPSILON = {"epsilon": 1e-12}

OPERATORS: dict[str, tuple[Handler, range, range, dict[str, Any]]] = {
    "com.microsoft.BiasGelu": (_of_sum(gelu), range(2, 3), range(1, 2), {}),
    "com.microsoft.FastGelu": (_of_sum(lambda x: gelu(x, "tanh")), range(1, 3), range(1, 2), {}),
    "com.microsoft.Gelu": (_of_sum(gelu), range(1, 2), range(1, 2), {}),
    "com.microsoft.QuickGelu": (_quick_gelu, range(1, 2), range(1, 2), {"alpha": 1.702}),
    "com.microsoft.SkipLayerNormalization": (_skip_layer_norm, range(3, 6), range(1, 5), _EPSILON),
    "com.microsoft.SkipSimplifiedLayerNormalization": (_skip_rms_norm, range(3, 5), range(1, 5), _EPSILON),
    "com.microsoft.FusedConv": (
        _conv,
        range(2, 5),
        range(1, 2),
        {**_WINDOWS, "activation": "", "activation_params": ()},
    ),
    "com.microsoft.FusedGemm": (
        _gemm,
        range(2, 4),
        range(1, 2),
        {**_PRODUCT, "beta": 1.0, "activation": "", "activation_alpha": 0.01, "activation_beta": 0.5},
    ),
    "com.microsoft.FusedMatMul": (
        _matmul,
        range(2, 3),
        range(1, 2),
        {**_PRODUCT, "transBatchA": 0, "transBatchB": 0},
    ),
    "com.microsoft.TransposeMatMul": (_matmul, range(2, 3), range(1, 2), _PRODUCT),
    "SimplifiedLayerNormalization": (
        _rms_norm,
        range(2, 3),
        range(1, 3),
        {"axis": -1, "epsilon": 1e-5, "stash_type": 1},
    ),
    "Affine": (_affine, range(1, 2), range(1, 2), {"alpha": 1.0, "beta": 0.0}),
    "Crop": (_crop, range(1, 2), range(1, 2), {"border": [], "scale": []}),
    "ImageScaler": (_image_scaler, range(1, 2), range(1, 2), {"bias": (), "scale": 1.0}),
    "ParametricSoftplus": (_scaled(softplus), range(1, 2), range(1, 2), {"alpha": 1.0, "beta": 1.0}),
    "ScaledTanh": (_scaled(tanh), range(1, 2), range(1, 2), {"alpha": 1.0, "beta": 1.0}),
}
"""The handler of each operator, how many inputs and outputs it has, and its attributes with their defaults."""

HANDLERS: dict[str, Handler] = {name: entry[0] for name, entry in OPERATORS.items()}

SIGNATURES: dict[str, Signature] = {
    name: foreign(given, made, defaults) for name, (_, given, made, defaults) in OPERATORS.items()
}
