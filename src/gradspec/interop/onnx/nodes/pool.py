"""Pooling, and the scattering that undoes it."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from gradspec.graph.builder import apply
from gradspec.graph.ir import Var
from gradspec.interop.onnx.node import Handler, OnnxNode
from gradspec.interop.onnx.nodes.windows import Sizes, auto_pad, pads, per_axis, spatial, windows
from gradspec.ops.lp_pool import ABS_POWER, AbsPower, lp_pool
from gradspec.ops.pool import avg_pool, global_avg_pool, global_max_pool, max_pool
from gradspec.ops.shape import broadcast_to
from gradspec.ops.unpool import max_gather, max_unpool
from gradspec.spec.errors import FormatError


def _pooling(node: OnnxNode, x: Var) -> dict[str, Any]:
    w = windows(node, spatial(x.shape), tuple(node.attribute("kernel_shape")))
    # With auto_pad="VALID" the documented size is the same in both modes.
    ceil_mode = node.flag("ceil_mode") and auto_pad(node) != "VALID"
    return {
        "kernel_size": w.kernel,
        "stride": w.stride,
        "padding": w.padding,
        "dilation": w.dilation,
        "ceil_mode": ceil_mode,
    }


def _max_pool(node: OnnxNode) -> Any:
    x = node.variable(0)
    if not node.wants(1):
        return max_pool(x, **_pooling(node, x))
    values, winners = max_pool(x, **_pooling(node, x), return_indices=True)
    return values, _numbered_over_the_tensor(node, winners, x.shape)


def _numbered_over_the_tensor(node: OnnxNode, winners: Var, shape: Sizes) -> Any:
    """ONNX counts a winner's place from the first plane on, in row- or column-major order inside its plane."""
    sizes = spatial(shape)
    if node.flag("storage_order"):
        node.scope.charge(prod(sizes))
        table = np.arange(prod(sizes)).reshape(sizes[::-1]).T
        planes = broadcast_to(winners.owner.const(table, "numbers"), shape)
        winners = max_gather(planes, winners, len(sizes))
    return winners + _starts(node, winners, shape, prod(sizes))


def _starts(node: OnnxNode, like: Var, shape: Sizes, plane: int) -> Any:
    """The number of the first cell of every plane of ``(N, C, *spatial)``, planes having ``plane`` cells."""
    lead, rank = shape[:2], len(shape) - 2
    node.scope.charge(prod(lead))
    return like.owner.const(np.arange(prod(lead)).reshape(*lead, *(1,) * rank) * plane, "starts")


def _max_unpool(node: OnnxNode) -> Any:
    x, rank = node.variable(0), len(spatial(node.variable(0).shape))
    kernel = per_axis(node, "kernel_shape", rank, 1)
    axes = zip(x.shape[2:], kernel, per_axis(node, "strides", rank, 1), pads(node, rank), strict=True)
    sizes = tuple((n - 1) * s + k - lo - hi for n, k, s, (lo, hi) in axes)
    if node.has(2):
        wanted = node.known_ints(2)
        if len(wanted) != rank + 2 or tuple(wanted[:2]) != x.shape[:2]:
            raise FormatError(f"its output_shape is {wanted}, and its input has the shape {x.shape}")
        sizes = tuple(wanted[2:])
    return max_unpool(x, node.variable(1) - _starts(node, x, x.shape, prod(sizes)), sizes)


def _average_pool(node: OnnxNode) -> Any:
    x = node.variable(0)
    return avg_pool(x, **_pooling(node, x), count_include_pad=node.flag("count_include_pad"))


def _lp_pool(node: OnnxNode) -> Any:
    x, p = node.variable(0), node.attribute("p")
    settings = _pooling(node, x)
    if all(lo == hi == 0 for lo, hi in settings["padding"]) and set(settings["dilation"]) <= {1}:
        return lp_pool(x, p, settings["kernel_size"], settings["stride"], settings["ceil_mode"])
    powers = apply(ABS_POWER, AbsPower(float(p)), x)
    return apply(ABS_POWER, AbsPower(1 / p), avg_pool(powers, **settings, divisor_override=1))


def _global(pooling: Any) -> Handler:
    def handler(node: OnnxNode) -> Any:
        x = node.variable(0)
        return pooling(x, len(spatial(x.shape)))

    return handler


def _global_lp_pool(node: OnnxNode) -> Any:
    x = node.variable(0)
    return lp_pool(x, node.attribute("p"), spatial(x.shape))


HANDLERS: dict[str, Handler] = {
    "MaxPool": _max_pool,
    "MaxUnpool": _max_unpool,
    "AveragePool": _average_pool,
    "LpPool": _lp_pool,
    "GlobalMaxPool": _global(global_max_pool),
    "GlobalAveragePool": _global(global_avg_pool),
    "GlobalLpPool": _global_lp_pool,
}
