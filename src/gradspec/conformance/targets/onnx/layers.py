"""Nodes, and those that layers are: the operators of the ONNX standard. It has no variance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LAYER_OPSET = 24
"""The first that has all of them."""


@dataclass(frozen=True)
class JudgedNode:
    """One node: its operator, its outputs, its attributes and the numbers it takes as tensors."""

    kind: str
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, tuple[int, ...] | tuple[float, ...] | int] = field(default_factory=dict)
    unused: int = 0
    """Inputs before those numbers that are left out."""


def _one(kind: str, **attributes: Any) -> JudgedNode:
    return JudgedNode(kind, ("y",), attributes)


def _reducing(kind: str) -> dict[str, JudgedNode]:
    """Over the last axis, and over two of three that are kept."""
    last = JudgedNode(f"Reduce{kind}", ("y",), {"keepdims": 0}, {"axes": (-1,)})
    return {"": last, "keepdims": JudgedNode(f"Reduce{kind}", ("y",), {}, {"axes": (0, 2)})}


_EPS = {"epsilon": 1e-5}
_NEAREST = {"axes": [2, 3], "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
_REDUCED = {"mean": "Mean", "sum": "Sum", "logsumexp": "LogSumExp"}

LAYERS: dict[str, JudgedNode] = {
    "matmul": _one("MatMul"),
    "matmul batched": _one("MatMul"),
    "linear": _one("Gemm", transB=1),
    "softmax": _one("Softmax"),
    "softmax axis=1": _one("Softmax", axis=1),
    "log_softmax": _one("LogSoftmax"),
    "log_softmax axis=1": _one("LogSoftmax", axis=1),
    "layer_norm": _one("LayerNormalization", **_EPS),
    "layer_norm axes=2": _one("LayerNormalization", axis=-2, **_EPS),
    "group_norm": _one("GroupNormalization", num_groups=2, **_EPS),
    "group_norm groups=1": _one("GroupNormalization", num_groups=1, **_EPS),
    "batch_norm": _one("BatchNormalization", **_EPS),
    "rms_norm": _one("RMSNormalization", **_EPS),
    "cross_entropy": _one("SoftmaxCrossEntropyLoss"),
    "cross_entropy reduction=none": _one("SoftmaxCrossEntropyLoss", reduction="none"),
    **{f"{name} {row}".strip(): node for name, kind in _REDUCED.items() for row, node in _reducing(kind).items()},
    "norm": _reducing("L2")[""],
    "norm p=1": _reducing("L1")["keepdims"],
    "gelu": _one("Gelu"),
    "gelu approximate=tanh": _one("Gelu", approximate="tanh"),
    "silu": _one("Swish"),
    **{name: _one(name.capitalize()) for name in ("softplus", "tanh", "sigmoid")},
    "cumsum": JudgedNode("CumSum", ("y",), {}, {"axis": 1}),
    "resize mode=nearest": JudgedNode("Resize", ("y",), _NEAREST, {"sizes": (7, 9)}, unused=2),
    "resize mode=linear": JudgedNode("Resize", ("y",), {"mode": "linear"}, {"scales": (1.0, 1.0, 2.0, 2.0)}, unused=1),
    "attention": _one("Attention"),
    "attention causal": _one("Attention", is_causal=1),
}


def undocumented(name: str, dtype: str) -> str | None:
    """Why the standard leaves open what a layer gives in a dtype."""
    layer, kind = name.partition(" ")[0], LAYERS[name].kind
    if layer in ("gelu", "silu") and dtype in ("f16", "bf16"):
        return f"{kind} is a function of operators that store what they give; judged in wider formats"
    if layer in ("layer_norm", "group_norm", "rms_norm") and dtype == "f64":
        return f"{kind} documents that it computes in float32 (stash_type)"
    return None


ARITHMETICS: dict[str, dict[str, Any]] = {
    **{name: {"accumulators": {"f16": "f16"}} for name in ("matmul", "linear")},
    "group_norm": {"variance_by_moments": True, "reassociated": True},
    "tanh": {"function_error": 2**-21},
}
"""How ONNX Runtime computes them: MLAS adds up products of float16 in float16 where it has kernels for it (halfgemm),
and its tanh is a quotient of polynomials. The function body of GroupNormalization is ``mean(x²) − mean(x)²``."""
