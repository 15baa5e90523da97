"""Constants, conversions, and operators that move numbers, from places that are known or computed.

On variables they become nodes; on arrays that are known while the model is read they are carried out at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, prod
from typing import Any

import numpy as np

from gradspec.backends import numpy
from gradspec.graph.ir import Array, Var
from gradspec.graph.types import DType, boolean, dtype_of, i64, u8
from gradspec.interop import compose, indexing
from gradspec.interop.onnx.files import MAX_CELLS, MAX_RANK, dtype_numbered
from gradspec.interop.onnx.node import Handler, OnnxNode, Value, normal_axes
from gradspec.interop.onnx.nodes.windows import halves
from gradspec.ops import layout
from gradspec.ops.convert import CONVERT, Conversion, convert
from gradspec.ops.gather import from_the_front, gather, scattered, take, topk
from gradspec.ops.grid_sample import grid_sample
from gradspec.ops.layout import concat, getitem
from gradspec.ops.rules import broadcast_shape
from gradspec.ops.select import where
from gradspec.ops.shape import broadcast_to, reshape
from gradspec.saving.strict_json import brief
from gradspec.spec.errors import FormatError, ShapeError, UnsupportedError

# --- constants and conversions ----------------------------------------------------------------------------------------


def _constant(node: OnnxNode) -> Array:
    given = [(name, content) for name, content in node.attributes.items() if content is not None]
    if len(given) != 1:
        raise FormatError(f"it has {len(given)} values; exactly one is needed")
    ((name, content),) = given
    if name == "value":
        return node.scope.array(content)
    if name in ("value_int", "value_ints", "value_float", "value_floats"):
        return np.array(content, np.int64 if "int" in name else np.float32)
    raise UnsupportedError(f"Constant with {name}")


def _constant_of_shape(node: OnnxNode) -> Array:
    shape, content = _known_shape(node, 0), node.attribute("value")
    value = np.zeros(1, np.float32) if content is None else node.scope.array(content)
    if value.size != 1:
        raise FormatError(f"its value has the shape {value.shape}, and one number is needed")
    return np.broadcast_to(value.reshape(()), shape)  # which takes no memory


def _known_shape(node: OnnxNode, i: int) -> tuple[int, ...]:
    """Operand ``i`` as the shape of a tensor that can be addressed."""
    shape = tuple(node.known_ints(i))
    if len(shape) > MAX_RANK or any(n < 0 for n in shape) or prod(shape) > MAX_CELLS:
        raise FormatError(f"its input {i}, {brief(shape[:8])}, is not the shape of a tensor")
    return shape


def _shape(node: OnnxNode) -> Array:
    rank = len(node.value(0).shape)
    start, end = node.attribute("start") or 0, node.attribute("end")
    return np.array(node.value(0).shape[slice(start, rank if end is None else end)], np.int64)


def _range(node: OnnxNode) -> Array:
    start, limit, delta = (node.known_number(i) for i in range(3))
    if delta == 0 or not all(map(isfinite, (start, limit, delta))):
        raise FormatError(f"a range from {start} to {limit} in steps of {delta}")
    count = max(int(-((start - limit) // delta)), 0)  # rounded up
    node.scope.charge(count)
    kind = node.known(0).dtype
    numbers: Array = np.arange(count, dtype=np.int64 if kind.kind in "iu" else np.float64) * delta + start
    return numbers.astype(kind)


def _cast_like(node: OnnxNode) -> Value:
    like = node.value(1)
    return _to_dtype(node, like.dtype if isinstance(like, Var) else dtype_of(like))


def _to_dtype(node: OnnxNode, dtype: DType) -> Value:
    x = node.value(0)
    if isinstance(x, Var):
        return convert(x, dtype)
    node.scope.charge(x.size)
    (y,) = numpy.apply(CONVERT, Conversion(dtype.name), x)  # a file has no kernel compiled or loaded
    return y


# --- shapes -----------------------------------------------------------------------------------------------------------


def _to_shape(node: OnnxNode, x: Value, shape: Sequence[int]) -> Value:
    if isinstance(x, Var):
        return reshape(x, tuple(shape))
    if prod(shape) != x.size:
        raise ShapeError(f"{x.size} cells do not make the shape {tuple(shape)}")
    if not x.flags.c_contiguous:  # which is copied
        node.scope.charge(x.size)
    return x.reshape(tuple(shape))


def _reshape(node: OnnxNode) -> Value:
    x, sizes = node.value(0), node.known_ints(1)
    if not node.flag("allowzero"):
        sizes = [x.shape[i] if n == 0 and i < len(x.shape) else n for i, n in enumerate(sizes)]
    if any(n < -1 for n in sizes) or sizes.count(-1) > 1:
        raise FormatError(f"the shape {brief(sizes[:8])} has a size below -1, or more than one to work out")
    if -1 in sizes:
        others = prod(n for n in sizes if n != -1)
        if others == 0 or prod(x.shape) % others:
            raise ShapeError(f"the shape {x.shape} does not fall into {brief(sizes[:8])}")
        sizes[sizes.index(-1)] = prod(x.shape) // others
    return _to_shape(node, x, sizes)


def _flatten(node: OnnxNode) -> Value:
    x, axis = node.value(0), node.attribute("axis")
    rank = len(x.shape)
    if not -rank <= axis <= rank:
        raise FormatError(f"its axis is {axis}, and its input has {rank}")
    at = axis if axis >= 0 else axis + rank
    return _to_shape(node, x, (prod(x.shape[:at]), prod(x.shape[at:])))


def _squeeze(node: OnnxNode) -> Value:
    x, named = node.value(0), node.axes()
    axes = [a for a, n in enumerate(x.shape) if n == 1] if named is None else normal_axes(named, len(x.shape))
    if any(x.shape[a] != 1 for a in axes):
        raise ShapeError(f"the axes {brief(list(axes))} of the shape {x.shape} are not all of size 1")
    return _to_shape(node, x, [n for a, n in enumerate(x.shape) if a not in axes])


def _unsqueeze(node: OnnxNode) -> Value:
    x, named = node.value(0), node.axes()
    if named is None:
        raise FormatError("its axes are left out")
    rank = len(x.shape) + len(named)
    new, sizes = set(normal_axes(named, rank)), iter(x.shape)
    return _to_shape(node, x, [1 if a in new else next(sizes) for a in range(rank)])


def _transpose(node: OnnxNode) -> Value:
    x, order = node.value(0), node.attribute("perm")
    rank = len(x.shape)
    axes = list(range(rank))[::-1] if order is None else order
    if sorted(axes) != list(range(rank)):
        raise FormatError(f"its perm is {brief(order)}, and each of 0 to {rank - 1} is needed once")
    return layout.transpose(x, axes) if isinstance(x, Var) else np.transpose(x, axes)


def _expand(node: OnnxNode) -> Value:
    x = node.value(0)
    shape = broadcast_shape("Expand", x.shape, _known_shape(node, 1))
    return broadcast_to(x, shape) if isinstance(x, Var) else np.broadcast_to(x, shape)


def _tile(node: OnnxNode) -> Value:
    x, repeats = node.value(0), node.known_ints(1)
    if isinstance(x, Var):
        return compose.tile(x, repeats)
    if len(repeats) != x.ndim or any(n < 0 for n in repeats):
        raise FormatError(f"its repeats are {brief(repeats[:8])}, and its input has {x.ndim} axes")
    node.scope.charge(x.size * prod(repeats))
    return np.tile(x, repeats)


# --- parts ------------------------------------------------------------------------------------------------------------


def _cut(x: Value, window: Sequence[slice]) -> Value:
    return getitem(x, tuple(window)) if isinstance(x, Var) else x[tuple(window)]


def _concat(node: OnnxNode) -> Value:
    parts, axis = node.operands, node.axis(len(node.value(0).shape))
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    if len(arrays) < len(parts):
        return layout.concat(node.variables(), axis)
    if len({array.dtype for array in arrays}) > 1:
        raise FormatError(f"its inputs are {', '.join(str(a.dtype) for a in arrays[:8])}, and one type is needed")
    node.scope.charge(sum(array.size for array in arrays))
    return np.concatenate(arrays, axis)


def _split(node: OnnxNode) -> Sequence[Value]:
    x, count = node.value(0), len(node.outputs)
    axis = node.axis(len(x.shape))
    sizes = _split_sizes(node, x.shape[axis], count)
    if len(sizes) != count or sum(sizes) != x.shape[axis] or min(sizes) < 0:
        raise ShapeError(f"pieces of {brief(sizes[:8])} cells for {count} outputs do not make up {x.shape[axis]}")
    ends = np.cumsum(sizes).tolist()
    return [_cut(x, [*[slice(None)] * axis, slice(end - n, end)]) for end, n in zip(ends, sizes, strict=True)]


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
    starts, ends, named, steps = _slice_limits(node)
    axes = normal_axes(range(len(starts)) if named is None else named, len(x.shape))
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


# --- borders and blocks of images -------------------------------------------------------------------------------------


def _pad(node: OnnxNode) -> Var:
    x, mode = node.variable(0), node.choice("mode", "constant", "reflect", "edge", "wrap")
    ends = list(node.attributes["pads"]) if "pads" in node.attributes else node.known_ints(1)
    value = node.known_number(2) if node.has(2) else node.attributes.get("value", 0)
    axes = normal_axes(node.known_ints(3), x.ndim) if node.has(3) else tuple(range(x.ndim))
    if len(ends) != 2 * len(axes):
        raise FormatError(f"it has {len(ends)} pads for {len(axes)} axes; two for each are needed")
    pairs = dict(zip(axes, zip(ends[: len(axes)], ends[len(axes) :], strict=True), strict=True))
    return compose.pad(x, [pairs.get(a, (0, 0)) for a in range(x.ndim)], mode, value)


def _center_crop_pad(node: OnnxNode) -> Var:
    x, sizes, named = node.variable(0), _known_shape(node, 1), node.attribute("axes")
    axes = tuple(range(x.ndim)) if named is None else normal_axes(named, x.ndim)
    if len(axes) != len(sizes):
        raise FormatError(f"it has {len(sizes)} sizes for {len(axes)} axes")
    pairs = [(0, 0)] * x.ndim
    for axis, size in zip(axes, sizes, strict=True):
        lo, hi = halves(abs(size - x.shape[axis]), low_first=False)
        pairs[axis] = (lo, hi) if size > x.shape[axis] else (-lo, -hi)
    return compose.pad(x, pairs)


def _move_blocks(node: OnnxNode) -> Var:
    function = compose.depth_to_space if node.op_type == "DepthToSpace" else compose.space_to_depth
    channels_first = node.choice("mode", "DCR", "CRD") == "CRD"
    return function(node.variable(0), node.attribute("blocksize"), channels_first=channels_first)


# --- at indices: negative ones count from the end ---------------------------------------------------------------------

REDUCTIONS = ("none", "add", "mul", "max", "min")


def _indices(node: OnnxNode) -> Var:
    indices = node.variable(1)
    if not indices.type.is_integer:
        raise FormatError(f"its indices are {indices.type}, and integers are needed")
    return indices


def _gather(node: OnnxNode) -> Any:
    if isinstance(node.value(1), np.ndarray):
        return _gather_known(node)
    x, indices = node.variable(0), _indices(node)
    axis = node.axis(x.ndim)
    return take(x, from_the_front(indices, x.shape[axis]), axis)


def _gather_known(node: OnnxNode) -> Value:
    x, places = node.value(0), node.known(1)
    axis = node.axis(len(x.shape))
    if places.dtype.kind not in "iu":
        raise FormatError(f"its indices are {places.dtype}, and integers are needed")
    node.scope.charge(places.size)
    if isinstance(x, Var):
        return compose.take(x, places, axis)
    n = x.shape[axis]
    if places.size and not -n <= places.min() <= places.max() < n:
        raise ShapeError(f"an index from {places.min()} to {places.max()} lies outside axis {axis}, of size {n}")
    node.scope.charge(places.size * (x.size // max(n, 1)))
    window: list[Any] = [*[slice(None)] * axis, places.astype(np.int64)]
    return np.asarray(x[tuple(window)])  # np.take would copy all of a wide view


def _gather_elements(node: OnnxNode) -> Var:
    x, indices = node.variable(0), _indices(node)
    axis = node.axis(x.ndim)
    return gather(x, axis, from_the_front(indices, x.shape[axis]))


def _gather_nd(node: OnnxNode) -> Var:
    x, shared = node.variable(0), node.attribute("batch_dims") or 0
    if not 0 <= shared < x.ndim:
        raise FormatError(f"its batch_dims is {shared}, and its input has {x.ndim} axes")
    return indexing.gather_nd(x, _indices(node), shared)


def _scatter_elements(node: OnnxNode) -> Var:
    x, indices, updates = node.variable(0), _indices(node), node.variable(2)
    if updates.shape != indices.shape:
        raise ShapeError(f"its updates have the shape {updates.shape}, and its indices {indices.shape}")
    axis = node.axis(x.ndim)
    places = from_the_front(indices, x.shape[axis])
    join = indexing.join_by(x.ndim - 1, node.choice("reduction", *REDUCTIONS))
    return scattered(node.op_type, x, axis, places, updates, join)


def _scatter_nd(node: OnnxNode) -> Var:
    reduction = node.choice("reduction", *REDUCTIONS)
    return indexing.scatter_nd(node.variable(0), _indices(node), node.variable(2), reduction)


def _argmax(node: OnnxNode) -> Any:
    x = node.variable(0)
    axis = node.axis(x.ndim)
    if not x.shape[axis]:
        raise ShapeError(f"axis {axis} of the shape {x.shape} has no cell, so none is largest or smallest")
    numbers = convert(x, u8) if x.dtype is boolean else x
    function = indexing.argmax if node.op_type == "ArgMax" else indexing.argmin
    return function(numbers, axis, node.flag("keepdims"), last=node.flag("select_last_index"))


def _trilu(node: OnnxNode) -> Value:
    """The cells above a diagonal or below it, and 0 elsewhere."""
    x, upper, diagonal = node.value(0), node.flag("upper"), node.known_number(1) if node.has(1) else 0
    if len(x.shape) < 2:
        raise ShapeError(f"its input has the shape {x.shape}, and a matrix has two axes")
    rows, columns = x.shape[-2:]
    node.scope.charge(prod(x.shape) if isinstance(x, np.ndarray) else rows * columns)
    kept = np.tri(rows, columns, int(min(max(diagonal, -rows), columns + 1)) - upper, bool) != upper
    return where(kept, x, np.zeros((), x.dtype.numpy)) if isinstance(x, Var) else np.where(kept, x, x.dtype.type(0))


def _one_hot(node: OnnxNode) -> Var:
    indices, values = node.variable(0), node.variable(2)
    size, axis = int(node.known_number(1)), node.axis(indices.ndim + 1)
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
    return topk(x, k, node.axis(x.ndim), largest=node.version < 11 or node.flag("largest"))


_SAMPLES = {"linear": "bilinear", "cubic": "bicubic", **{mode: mode for mode in ("bilinear", "nearest", "bicubic")}}


def _grid_sample(node: OnnxNode) -> Var:
    mode = _SAMPLES[node.choice("mode", *_SAMPLES)]
    padding = node.choice("padding_mode", "zeros", "border", "reflection")
    return grid_sample(node.variable(0), node.variable(1), mode, padding, node.flag("align_corners"))


# --- loops over slices ------------------------------------------------------------------------------------------------


def _scan(node: OnnxNode) -> Any:
    """The body takes what it handed on and a slice of each of the last operands; what it gives besides is stacked."""
    if node.version < 9:
        raise UnsupportedError("Scan with sequences of several lengths, as opset 8 has it")
    body, count = node.attribute("body"), node.attribute("num_scan_inputs")
    states = len(node.operands) - count
    if not 0 < count <= len(node.operands) == len(body.input) or len(body.output) < max(states, len(node.outputs)):
        raise FormatError(f"its body has {len(body.input)} inputs and {len(body.output)} outputs, which do not fit it")
    columns = [_slices(node, i, node.variable(states + i)) for i in range(count)]
    if len({len(column) for column in columns}) != 1 or not columns[0]:
        raise UnsupportedError("Scan over axes that differ in length, or of none")
    carry, rows = [node.value(i) for i in range(states)], []
    for slices in zip(*columns, strict=True):
        results = node.scope.branch(body, [*carry, *slices])
        if not all(isinstance(v, Var | np.ndarray) for v in results):  # it was refused
            return results[: len(node.outputs)]
        carry = [*results[:states]]
        rows.append([v if isinstance(v, Var) else node.scope.lift(v, "row") for v in results[states:]])
    stacks = [_stack(node, i, cells) for i, cells in enumerate(zip(*rows, strict=True))]
    return [*carry, *stacks][: len(node.outputs)]


def _entry(node: OnnxNode, name: str, i: int) -> int:
    """An entry of a list that may be left out, or be too short; it is 0 then."""
    given = node.attribute(name) or []
    return int(given[i]) if i < len(given) else 0


def _slices(node: OnnxNode, i: int, x: Var) -> list[Var]:
    (axis,) = normal_axes([_entry(node, "scan_input_axes", i)], x.ndim)
    places = range(x.shape[axis])[:: -1 if _entry(node, "scan_input_directions", i) else 1]
    return [getitem(x, (slice(None),) * axis + (place,)) for place in places]


def _stack(node: OnnxNode, i: int, cells: tuple[Var, ...]) -> Var:
    (axis,) = normal_axes([_entry(node, "scan_output_axes", i)], cells[0].ndim + 1)
    shape = (*cells[0].shape[:axis], 1, *cells[0].shape[axis:])
    ordered = cells[:: -1 if _entry(node, "scan_output_directions", i) else 1]
    return concat([reshape(cell, shape) for cell in ordered], axis)


HANDLERS: dict[str, Handler] = {
    "ArgMax": _argmax,
    "ArgMin": _argmax,
    "Cast": lambda node: _to_dtype(node, dtype_numbered(node.attribute("to"))),
    "CastLike": _cast_like,
    "CenterCropPad": _center_crop_pad,
    "Concat": _concat,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "DepthToSpace": _move_blocks,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "GridSample": _grid_sample,
    "Identity": lambda node: node.value(0),
    # The results of the branch that a known condition chooses; the other is not looked at.
    "If": lambda node: node.scope.branch(node.attribute("then_branch" if node.known_number(0) else "else_branch")),
    "NonZero": lambda node: node.known(0),  # which refuses what ``fold`` has left
    "OneHot": _one_hot,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Scan": _scan,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "Shape": _shape,
    "Size": lambda node: np.array(prod(node.value(0).shape), np.int64),
    "Slice": _slice,
    "SpaceToDepth": _move_blocks,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "TopK": _topk,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
}
