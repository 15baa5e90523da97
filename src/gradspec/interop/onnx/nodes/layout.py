"""Operators that move numbers: on variables they become nodes, on known arrays they are carried out at once."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from gradspec.graph.ir import Var
from gradspec.interop import compose
from gradspec.interop.onnx.node import Handler, OnnxNode, Value, normal_axes
from gradspec.interop.onnx.nodes.constant import known_shape
from gradspec.interop.onnx.nodes.windows import halves
from gradspec.ops import layout
from gradspec.ops.layout import getitem
from gradspec.ops.rules import broadcast_shape
from gradspec.ops.shape import broadcast_to, reshape
from gradspec.saving.strict_json import brief
from gradspec.spec.errors import FormatError, ShapeError

# --- on variables and arrays alike ------------------------------------------------------------------------------------


def _reshape(node: OnnxNode, x: Value, shape: Sequence[int]) -> Value:
    if isinstance(x, Var):
        return reshape(x, tuple(shape))
    if prod(shape) != x.size:
        raise ShapeError(f"{x.size} cells do not make the shape {tuple(shape)}")
    if not x.flags.c_contiguous:  # which is copied
        node.scope.charge(x.size)
    return x.reshape(tuple(shape))


def _transpose(x: Value, order: Sequence[int]) -> Value:
    return layout.transpose(x, order) if isinstance(x, Var) else np.transpose(x, order)


def _broadcast(x: Value, shape: tuple[int, ...]) -> Value:
    return broadcast_to(x, shape) if isinstance(x, Var) else np.broadcast_to(x, shape)


def _cut(x: Value, window: Sequence[slice]) -> Value:
    return getitem(x, tuple(window)) if isinstance(x, Var) else x[tuple(window)]


# --- shapes -----------------------------------------------------------------------------------------------------------


def _to_shape(node: OnnxNode) -> Value:
    x, wanted = node.value(0), node.known_ints(1)
    if not node.flag("allowzero"):
        wanted = [x.shape[i] if n == 0 and i < len(x.shape) else n for i, n in enumerate(wanted)]
    if any(n < -1 for n in wanted) or wanted.count(-1) > 1:
        raise FormatError(f"the shape {brief(wanted[:8])} has a size below -1, or more than one to work out")
    if -1 in wanted:
        others = prod(n for n in wanted if n != -1)
        if others == 0 or prod(x.shape) % others:
            raise ShapeError(f"the shape {x.shape} does not fall into {brief(wanted[:8])}")
        wanted[wanted.index(-1)] = prod(x.shape) // others
    return _reshape(node, x, wanted)


def _flatten(node: OnnxNode) -> Value:
    x, axis = node.value(0), node.attribute("axis")
    rank = len(x.shape)
    if not -rank <= axis <= rank:
        raise FormatError(f"its axis is {axis}, and its input has {rank}")
    at = axis if axis >= 0 else axis + rank
    return _reshape(node, x, (prod(x.shape[:at]), prod(x.shape[at:])))


def _axes(node: OnnxNode) -> list[int] | None:
    """Axes, which were an attribute before they became an input; None if left out."""
    if "axes" in node.attributes:
        return list(node.attributes["axes"])
    return node.known_ints(1) if node.has(1) else None


def _squeeze(node: OnnxNode) -> Value:
    x, given = node.value(0), _axes(node)
    rank = len(x.shape)
    axes = [a for a, n in enumerate(x.shape) if n == 1] if given is None else normal_axes(given, rank)
    if any(x.shape[a] != 1 for a in axes):
        raise ShapeError(f"the axes {brief(list(axes))} of the shape {x.shape} are not all of size 1")
    return _reshape(node, x, [n for a, n in enumerate(x.shape) if a not in axes])


def _unsqueeze(node: OnnxNode) -> Value:
    x, given = node.value(0), _axes(node)
    if given is None:
        raise FormatError("its axes are left out")
    rank = len(x.shape) + len(given)
    new, sizes = set(normal_axes(given, rank)), iter(x.shape)
    return _reshape(node, x, [1 if a in new else next(sizes) for a in range(rank)])


def _permuted(node: OnnxNode) -> Value:
    x, order = node.value(0), node.attribute("perm")
    rank = len(x.shape)
    axes = list(range(rank))[::-1] if order is None else order
    if sorted(axes) != list(range(rank)):
        raise FormatError(f"its perm is {brief(order)}, and each of 0 to {rank - 1} is needed once")
    return _transpose(x, axes)


def _expand(node: OnnxNode) -> Value:
    x = node.value(0)
    return _broadcast(x, broadcast_shape("Expand", x.shape, known_shape(node, 1)))


def _tile(node: OnnxNode) -> Value:
    x, repeats = node.value(0), node.known_ints(1)
    if isinstance(x, Var):
        return compose.tile(x, repeats)  # type: ignore[no-any-return]
    if len(repeats) != x.ndim or any(n < 0 for n in repeats):
        raise FormatError(f"its repeats are {brief(repeats[:8])}, and its input has {x.ndim} axes")
    node.scope.charge(x.size * prod(repeats))
    return np.tile(x, repeats)


# --- parts ------------------------------------------------------------------------------------------------------------


def _concat(node: OnnxNode) -> Value:
    parts = node.operands
    (axis,) = normal_axes([node.attribute("axis")], len(node.value(0).shape))
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    if len(arrays) < len(parts):
        return layout.concat(node.variables(), axis)
    if len({array.dtype for array in arrays}) > 1:
        raise FormatError(f"its inputs are {', '.join(str(a.dtype) for a in arrays[:8])}, and one type is needed")
    node.scope.charge(sum(array.size for array in arrays))
    return np.concatenate(arrays, axis)


def _split(node: OnnxNode) -> Sequence[Value]:
    x, count = node.value(0), len(node.outputs)
    (axis,) = normal_axes([node.attribute("axis")], len(x.shape))
    sizes = _split_sizes(node, x.shape[axis], count)
    if len(sizes) != count or sum(sizes) != x.shape[axis] or min(sizes) < 0:
        raise ShapeError(f"pieces of {brief(sizes[:8])} cells for {count} outputs do not make up {x.shape[axis]}")
    starts = np.cumsum([0, *sizes])[:-1].tolist()
    lead = [slice(None)] * axis
    return [_cut(x, [*lead, slice(start, start + size)]) for start, size in zip(starts, sizes, strict=True)]


def _split_sizes(node: OnnxNode, cells: int, count: int) -> list[int]:
    if node.attribute("split"):
        return list(node.attribute("split"))
    if node.has(1):
        return node.known_ints(1)
    if node.attribute("num_outputs") not in (None, count):
        raise FormatError(f"its num_outputs is {node.attribute('num_outputs')}, and it has {count} outputs")
    if node.version < 18 and cells % count:
        raise ShapeError(f"{cells} cells do not fall into {count} equal parts")
    each = -(-cells // count)
    return [max(min(each, cells - i * each), 0) for i in range(count)]


def _slice(node: OnnxNode) -> Value:
    x = node.value(0)
    starts, ends, given, steps = _slice_limits(node)
    axes = normal_axes(range(len(starts)) if given is None else given, len(x.shape))
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise FormatError("its starts, ends, axes and steps differ in number, or a step is 0")
    window = [slice(None)] * len(x.shape)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        # A start before the first cell is the first cell, also on the way back, where Python would take none.
        window[axis] = slice(max(start, -x.shape[axis]), end, step)
    return _cut(x, window)


def _slice_limits(node: OnnxNode) -> tuple[list[int], list[int], list[int] | None, list[int]]:
    """Starts, ends, axes and steps, which were attributes before they became inputs."""
    if "starts" in node.attributes:
        starts = list(node.attribute("starts"))
        return starts, list(node.attribute("ends")), node.attribute("axes"), [1] * len(starts)
    starts = node.known_ints(1)
    axes = node.known_ints(3) if node.has(3) else None
    return starts, node.known_ints(2), axes, node.known_ints(4) if node.has(4) else [1] * len(starts)


def gather_known(node: OnnxNode) -> Value:
    x, places = node.value(0), node.known(1)
    (axis,) = normal_axes([node.attribute("axis")], len(x.shape))
    if places.dtype.kind not in "iu":
        raise FormatError(f"its indices are {places.dtype}, and integers are needed")
    node.scope.charge(places.size)
    if isinstance(x, Var):
        return compose.take(x, places, axis)  # type: ignore[no-any-return]
    n = x.shape[axis]
    if places.size and not -n <= places.min() <= places.max() < n:
        raise ShapeError(f"an index from {places.min()} to {places.max()} lies outside axis {axis}, of size {n}")
    node.scope.charge(places.size * (x.size // max(n, 1)))
    window: list[Any] = [*[slice(None)] * axis, places.astype(np.int64)]
    return np.asarray(x[tuple(window)])  # np.take would copy all of a wide view


# --- borders ----------------------------------------------------------------------------------------------------------

MODES = ("constant", "reflect", "edge", "wrap")


def _pad(node: OnnxNode) -> Any:
    x, mode = node.variable(0), node.choice("mode", *MODES)
    ends = list(node.attributes["pads"]) if "pads" in node.attributes else node.known_ints(1)
    value = node.known_number(2) if node.has(2) else node.attributes.get("value", 0)
    axes = normal_axes(node.known_ints(3), x.ndim) if node.has(3) else tuple(range(x.ndim))
    if len(ends) != 2 * len(axes):
        raise FormatError(f"it has {len(ends)} pads for {len(axes)} axes; two for each are needed")
    pairs = [(0, 0)] * x.ndim
    for axis, lo, hi in zip(axes, ends[: len(axes)], ends[len(axes) :], strict=True):
        pairs[axis] = (lo, hi)
    return compose.pad(x, pairs, mode, value)


def _center_crop_pad(node: OnnxNode) -> Any:
    x, wanted = node.variable(0), known_shape(node, 1)
    given = node.attribute("axes")
    axes = tuple(range(x.ndim)) if given is None else normal_axes(given, x.ndim)
    if len(axes) != len(wanted):
        raise FormatError(f"it has {len(wanted)} sizes for {len(axes)} axes")
    pairs = [(0, 0)] * x.ndim
    for axis, size in zip(axes, wanted, strict=True):
        lo, hi = halves(abs(size - x.shape[axis]), low_first=False)
        pairs[axis] = (lo, hi) if size > x.shape[axis] else (-lo, -hi)
    return compose.pad(x, pairs)


# --- blocks of images -------------------------------------------------------------------------------------------------


def _depth_to_space(node: OnnxNode) -> Any:
    by_column = node.choice("mode", "DCR", "CRD") == "CRD"
    return compose.depth_to_space(node.variable(0), node.attribute("blocksize"), channels_first=by_column)


def _space_to_depth(node: OnnxNode) -> Any:
    x, block = node.variable(0), node.attribute("blocksize")
    y = compose.space_to_depth(x, block)
    if node.choice("mode", "DCR", "CRD") == "DCR":
        return y
    n, channels, height, width = y.shape
    split = reshape(y, (n, block**2, channels // block**2, height, width))
    return reshape(layout.transpose(split, (0, 2, 1, 3, 4)), y.shape)


def _identity(node: OnnxNode) -> Value:
    return node.value(0)


HANDLERS: dict[str, Handler] = {
    "CenterCropPad": _center_crop_pad,
    "Concat": _concat,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Flatten": _flatten,
    "Identity": _identity,
    "Pad": _pad,
    "Reshape": _to_shape,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _permuted,
    "Unsqueeze": _unsqueeze,
}
