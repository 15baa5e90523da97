"""Operators whose indices are computed when the model runs. Negative ones count from the end."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradspec.graph.ir import Var
from gradspec.graph.types import boolean, i64, u8
from gradspec.interop import indexing
from gradspec.interop.onnx.node import Handler, OnnxNode, normal_axes
from gradspec.interop.onnx.nodes import layout
from gradspec.ops.convert import convert
from gradspec.ops.gather import from_the_front, gather, scattered, take
from gradspec.ops.grid_sample import grid_sample
from gradspec.ops.select import where
from gradspec.ops.shape import broadcast_to
from gradspec.ops.topk import topk
from gradspec.saving.strict_json import brief
from gradspec.spec.errors import FormatError, ShapeError

REDUCTIONS = ("none", "add", "mul", "max", "min")


def _axis(node: OnnxNode, rank: int) -> int:
    return normal_axes([node.attribute("axis")], rank)[0]


def _indices(node: OnnxNode, i: int = 1) -> Var:
    indices = node.variable(i)
    if not indices.type.is_integer:
        raise FormatError(f"its indices are {indices.type}, and integers are needed")
    return indices


# --- gather -----------------------------------------------------------------------------------------------------------


def _gather(node: OnnxNode) -> Any:
    if isinstance(node.value(1), np.ndarray):
        return layout.gather_known(node)
    x, indices = node.variable(0), _indices(node)
    axis = _axis(node, x.ndim)
    return take(x, from_the_front(indices, x.shape[axis]), axis)


def _gather_elements(node: OnnxNode) -> Any:
    x, indices = node.variable(0), _indices(node)
    axis = _axis(node, x.ndim)
    return gather(x, axis, from_the_front(indices, x.shape[axis]))


def _gather_nd(node: OnnxNode) -> Any:
    x, shared = node.variable(0), node.attribute("batch_dims") or 0
    if not 0 <= shared < x.ndim:
        raise FormatError(f"its batch_dims is {shared}, and its input has {x.ndim} axes")
    return indexing.gather_nd(x, _indices(node), shared)


# --- scatter ----------------------------------------------------------------------------------------------------------


def _scatter_elements(node: OnnxNode) -> Any:
    x, indices, updates = node.variable(0), _indices(node), node.variable(2)
    if updates.shape != indices.shape:
        raise ShapeError(f"its updates have the shape {updates.shape}, and its indices {indices.shape}")
    axis = _axis(node, x.ndim)
    places = from_the_front(indices, x.shape[axis])
    reduction = node.choice("reduction", *REDUCTIONS)

    def joined(part: Any, chosen: Any, cells: Any) -> Any:
        return indexing.scattered_rows(part, chosen, cells, x.ndim - 1, reduction)

    return scattered(node.op_type, x, axis, places, updates, joined)


def _scatter_nd(node: OnnxNode) -> Any:
    reduction = node.choice("reduction", *REDUCTIONS)
    return indexing.scatter_nd(node.variable(0), _indices(node), node.variable(2), reduction)


# --- the largest, and ones at places ----------------------------------------------------------------------------------


def _argmax(node: OnnxNode) -> Any:
    x = node.variable(0)
    axis = _axis(node, x.ndim)
    if not x.shape[axis]:
        raise ShapeError(f"axis {axis} of the shape {x.shape} has no cell, so none is largest or smallest")
    numbers = convert(x, u8) if x.dtype is boolean else x
    function = indexing.argmax if node.op_type == "ArgMax" else indexing.argmin
    return function(numbers, axis, node.flag("keepdims"), last=node.flag("select_last_index"))


def _one_hot(node: OnnxNode) -> Any:
    indices, values = node.variable(0), node.variable(2)
    size = int(node.known_number(1))
    axis = normal_axes([node.attribute("axis")], indices.ndim + 1)[0]
    if size < 0 or values.shape != (2,):
        raise FormatError(f"its depth is {brief(size)} and its values have the shape {values.shape}; (2,) is needed")
    node.scope.charge(size)
    whole = indices if indices.dtype is i64 else convert(indices, i64)
    here = indexing.one_hot(from_the_front(whole, size), size, axis)
    off, on = (broadcast_to(values[i], here.shape) for i in (0, 1))
    return where(here, on, off)


def _topk(node: OnnxNode) -> Any:
    x = node.variable(0)
    (k,) = [node.attribute("k")] if node.version < 10 else node.known_ints(1)
    axis = _axis(node, x.ndim)
    return topk(x, k, axis, largest=node.version < 11 or node.flag("largest"))


_SAMPLES = {
    "bilinear": "bilinear",
    "linear": "bilinear",
    "nearest": "nearest",
    "bicubic": "bicubic",
    "cubic": "bicubic",
}


def _grid_sample(node: OnnxNode) -> Any:
    mode = _SAMPLES[node.choice("mode", *_SAMPLES)]
    padding = node.choice("padding_mode", "zeros", "border", "reflection")
    return grid_sample(node.variable(0), node.variable(1), mode, padding, node.flag("align_corners"))


HANDLERS: dict[str, Handler] = {
    "ArgMax": _argmax,
    "ArgMin": _argmax,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "GridSample": _grid_sample,
    "OneHot": _one_hot,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TopK": _topk,
}
