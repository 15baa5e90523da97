"""Rows named by computed indices: a gather and the sum that is its transpose, and rows that replace others.

All three are linear in their numbers. Leading axes are shared by the indices and the rows they name, so that one
operator reads words of a dictionary (axis 0) and cells along an axis (the last one); what PyTorch and NumPy call
``gather``, ``scatter`` and ``take`` are these, with the axis moved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeGuard

import numpy as np

from gradspec.graph.builder import apply, operands
from gradspec.graph.ir import INDEXED, Array, Op, Operand, Sums, Var, ones
from gradspec.graph.types import TensorType, i64, require_integers, require_numbers, require_one_dtype
from gradspec.ops.box import OPERATORS, BoundedNode, Box
from gradspec.ops.convert import convert
from gradspec.ops.layout import AlongAxis, concat, every_axis, getitem, transpose
from gradspec.ops.pointwise import add, maximum, minimum
from gradspec.ops.rules import applying, recorded_axis
from gradspec.ops.select import equal, greater, less, where
from gradspec.ops.shape import axis_batch, broadcast_to, leading_batch, reshape
from gradspec.ops.shape import sum as sum_over
from gradspec.spec import gather as spec
from gradspec.spec.errors import ShapeError
from gradspec.spec.gather import listed, top_places
from gradspec.spec.layout import normal_axis


def _require_indices(indices: TensorType) -> None:
    require_integers("indices", indices, "convert them by .astype(int) or gs.convert")


# --- gather, and its transpose ----------------------------------------------------------------------------------------


def _gather_types(attrs: AlongAxis, x: TensorType, indices: TensorType) -> tuple[TensorType]:
    _require_indices(indices)
    shape = spec.gathered_shape(x.shape, indices.shape, recorded_axis("gather_rows", attrs.axis, x.ndim))
    return (TensorType(x.dtype, shape),)


def _gather_batch(op: Op, attrs: AlongAxis, operands_: Sequence[Var], batched: Sequence[bool]) -> tuple[Var, ...]:
    if attrs.axis == 0 and not batched[0]:  # every index may name every row already
        return (apply(op, attrs, *operands_),)
    return axis_batch(op, attrs, operands_, batched)


def _any_row(node: BoundedNode, x: Box, indices: Box) -> Box:
    """Where the index is not certain, every row is possible."""
    axis, size = node.attrs.axis, x.lower.shape[node.attrs.axis]
    inside = [minimum(maximum(end, 0), size - 1) for end in indices.ends]
    certain = reshape(equal(*inside), (*indices.lower.shape, *(1,) * (x.lower.ndim - axis - 1)))
    ends = []
    for end, sign in zip(x.ends, (-1, 1), strict=True):
        every = sign * OPERATORS().global_max_pool(moved(sign * end, axis, -1), 1)
        every = reshape(every, (*end.shape[:axis], *(1,) * (indices.lower.ndim - axis), *end.shape[axis + 1 :]))
        ends.append(where(certain, apply(GATHER_ROWS, node.attrs, end, inside[0]), every))
    return node.between(*ends)


GATHER_ROWS: Op = Op(
    "gather_rows",
    AlongAxis,
    types=_gather_types,
    spec=lambda attrs, x, indices: (spec.gather_rows(x, indices, attrs.axis),),
    batch=_gather_batch,
    linear="jointly",
    sums=INDEXED,
    enclosure=_any_row,
    transpose=lambda attrs, cotangents, operands_, i: apply(
        SCATTER_ADD_ROWS, RowPlaces(attrs.axis, operands_[0].shape[attrs.axis]), cotangents[0], operands_[1]
    ),
)


@dataclass(frozen=True)
class RowPlaces:
    """The axis of the rows in the result, and how many there are."""

    axis: int
    size: int


def _scatter_add_types(attrs: RowPlaces, x: TensorType, indices: TensorType) -> tuple[TensorType]:
    _require_indices(indices)
    require_numbers("scatter_add_rows", x)
    return (TensorType(x.dtype, spec.scattered_shape(x.shape, indices.shape, attrs.axis, attrs.size)),)


SCATTER_ADD_ROWS: Op = Op(
    "scatter_add_rows",
    RowPlaces,
    types=_scatter_add_types,
    spec=lambda attrs, x, indices: (spec.scatter_add_rows(x, indices, attrs.axis, attrs.size),),
    batch=axis_batch,
    linear="jointly",
    sums=Sums(
        max_roundings=lambda attrs, x, indices: prod(indices.shape[attrs.axis :]), fixed=(1,), coefficient_quantum=ones
    ),
    transpose=lambda attrs, cotangents, operands_, i: apply(
        GATHER_ROWS, AlongAxis(attrs.axis), cotangents[0], operands_[1]
    ),
)

# --- rows that replace others -----------------------------------------------------------------------------------------


def _scatter_types(attrs: AlongAxis, x: TensorType, indices: TensorType, rows: TensorType) -> tuple[TensorType]:
    _require_indices(indices)
    require_one_dtype("scatter_rows", x, rows)
    axis = recorded_axis("scatter_rows", attrs.axis, x.ndim)
    if rows.shape != (needed := spec.gathered_shape(x.shape, indices.shape, axis)):
        raise ShapeError(f"the rows have shape {rows.shape}, and the indices name rows of shape {needed}")
    return (x,)


def _scatter_transpose(attrs: AlongAxis, cotangents: Sequence[Var], operands_: Sequence[Var], i: int) -> Var:
    """What ``x`` receives where nothing replaced it, or what ``rows`` do where they stayed."""
    (g,), (_, indices, rows) = cotangents, operands_
    if i == 0:
        return apply(SCATTER_ROWS, attrs, g, indices, g.owner.zeros(TensorType(g.dtype, rows.shape)))
    received = apply(GATHER_ROWS, attrs, g, indices)
    stayed = reshape(_stayed(indices, g.shape, attrs.axis), (*indices.shape, *(1,) * (g.ndim - attrs.axis - 1)))
    return where(broadcast_to(stayed, rows.shape), received, g.owner.zeros(received.type))


def _stayed(indices: Var, shape: tuple[int, ...], axis: int) -> Var:
    """Which rows no later one replaced: each leaves its number at its place, and looks whether that is still there."""
    owner, attrs = indices.owner, AlongAxis(axis)
    numbers = owner.share(np.arange(indices.type.size).reshape(indices.shape), "numbers")
    nothing = owner.zeros(TensorType(i64, shape[: axis + 1]))
    left = apply(SCATTER_ROWS, attrs, nothing, indices, numbers)
    return equal(apply(GATHER_ROWS, attrs, left, indices), numbers)


SCATTER_ROWS: Op = Op(
    "scatter_rows",
    AlongAxis,
    types=_scatter_types,
    spec=lambda attrs, x, indices, rows: (spec.scatter_rows(x, indices, rows, attrs.axis),),
    batch=axis_batch,
    linear="jointly",
    sums=INDEXED,
    transpose=_scatter_transpose,
)

# --- as NumPy and PyTorch have them -----------------------------------------------------------------------------------


def take(x: Operand, indices: Operand, axis: int = 0) -> Var:
    """The slices of ``x`` along ``axis`` that the indices name; the axis is replaced by those of the indices.

    ``take(table, indices)`` looks up embeddings. A negative index, or one beyond the last slice, is an error when the
    graph runs; a variable's ``x[indices]`` counts negative ones from the end.

    >>> take(np.float32([[10, 11], [20, 21]]), np.array([[1, 0, 1]])).tolist()
    [[[20.0, 21.0], [10.0, 11.0], [20.0, 21.0]]]
    """
    x, indices = _with_indices(x, indices)
    with applying("take", x, indices):
        at = normal_axis("take", axis, len(x.shape))
    rows = apply(GATHER_ROWS, AlongAxis(0), moved(x, at, 0), indices)
    rank = len(indices.shape)
    order = [*range(rank, rank + at), *range(rank), *range(rank + at, len(rows.shape))]
    return transpose(rows, order)


def gather(x: Operand, axis: int, indices: Operand) -> Var:
    """The cell of ``x`` along ``axis`` that each index names; on the other axes the position is unchanged.

    On the other axes the indices may be shorter than ``x``.

    >>> gather(np.float32([[10, 11], [20, 21]]), 1, np.array([[1], [0]])).tolist()
    [[11.0], [20.0]]
    """
    x, indices = _with_indices(x, indices)
    at = _cells_axis("gather", x, indices, axis)
    return moved(apply(GATHER_ROWS, AlongAxis(len(x.shape) - 1), *_along(x, indices, at)), -1, at)


def scatter_add(x: Operand, axis: int, indices: Operand, source: Operand) -> Var:
    """``x`` with every cell of ``source`` added to the cell along ``axis`` that its index names.

    Cells of ``source`` beyond the indices take no part.

    >>> scatter_add(np.float32([0, 0, 7]), 0, np.array([1, 1, 2]), np.float32([1, 2, 3])).tolist()
    [0.0, 3.0, 10.0]
    """

    def joined(part: Var, chosen: Var, cells: Var) -> Var:
        return add(part, apply(SCATTER_ADD_ROWS, RowPlaces(len(part.shape) - 1, part.shape[-1]), cells, chosen))

    return scattered("scatter_add", x, axis, indices, source, joined)


def scatter(x: Operand, axis: int, indices: Operand, source: Operand) -> Var:
    """``x`` with the cells along ``axis`` that the indices name replaced by those of ``source``.

    If several target one position, the last in row-major order remains. Cells of ``source`` beyond the indices are
    ignored.

    >>> scatter(np.float32([0, 0, 7]), 0, np.array([1, 1, 0]), np.float32([1, 2, 3])).tolist()
    [3.0, 2.0, 7.0]
    """

    def joined(part: Var, chosen: Var, cells: Var) -> Var:
        return apply(SCATTER_ROWS, AlongAxis(len(part.shape) - 1), part, chosen, cells)

    return scattered("scatter", x, axis, indices, source, joined)


def scattered(
    name: str, x: Operand, axis: int, indices: Operand, source: Operand, joined: Callable[[Var, Var, Var], Var]
) -> Var:
    """``x`` with ``joined(part, indices, cells)`` in the place of the part that the indices reach.

    All three have the axis in the last place, and there are as many cells as indices.
    """
    x, indices, source = operands(x, _as_indices(indices), source)
    at = _cells_axis(name, x, indices, axis)
    with applying(name, x, indices, source):
        _require_enough(source.shape, indices.shape)
    cells = getitem(source, tuple(map(slice, indices.shape)))
    return _put_back(x, moved(joined(*_along(x, indices, at), moved(cells, at, -1)), -1, at))


def _require_enough(source: tuple[int, ...], indices: tuple[int, ...]) -> None:
    if len(source) != len(indices) or any(n < m for n, m in zip(source, indices, strict=True)):
        raise ShapeError(f"the source has shape {source}, and a cell is needed for each index of {indices}")


def indexed(x: Var, key: object) -> Var:
    """``x[key]``: as ``getitem``, and one entry may be a tensor of integers, whose axes take the place of its own.

    Negative ones count from the end.

    >>> print(gs.trace(lambda x, i: x[:, i], gs.f32[2, 3], gs.i64[4]).outputs[0].shape)
    (2, 4)
    """
    entries = key if isinstance(key, tuple) else (key,)
    if not any(map(_is_tensor, entries)):
        return getitem(x, key)
    entries = every_axis(entries, x.shape)
    ((at, given), *others) = ((i, entry) for i, entry in enumerate(entries) if _is_tensor(entry))
    if others or any(not isinstance(e, slice | None) for i, e in enumerate(entries) if i != at):
        raise TypeError(f"of the indices {key}, one is a tensor, and the others must be slices; index in two steps")
    rest = getitem(x, tuple(slice(None) if i == at else entry for i, entry in enumerate(entries)))
    _, indices = _with_indices(x, given)
    _require_indices(indices.type)
    return take(rest, from_the_front(indices, rest.shape[at]), at)


def _is_tensor(entry: object) -> TypeGuard[Var | list[int] | Array]:
    return isinstance(entry, Var | list) or (isinstance(entry, np.ndarray) and entry.ndim > 0)


def from_the_front(indices: Var, size: int) -> Var:
    """Indices of which negative ones count from the end, as all of them count from the front."""
    if indices.dtype.numpy.kind == "u":
        return indices
    wide = convert(indices, i64)
    return where(less(wide, 0), wide + size, wide)


def moved(x: Var, axis: int, to: int) -> Var:
    """``x`` with one axis in another place."""
    rank = len(x.shape)
    rest = [a for a in range(rank) if a != axis % rank]
    rest.insert(to % rank, axis % rank)
    return transpose(x, rest)


def _with_indices(x: Operand, indices: Operand) -> tuple[Var, ...]:
    return operands(x, _as_indices(indices))


def _as_indices(indices: Operand) -> Var | Array:
    """A variable as it is, all else as an array; an empty list is one of no integers."""
    if isinstance(indices, Var):
        return indices
    return np.asarray(indices, np.int64 if isinstance(indices, list) and not indices else None)


def _cells_axis(name: str, x: Var, indices: Var, axis: int) -> int:
    with applying(name, x, indices):
        at = normal_axis(name, axis, len(x.shape))
        sizes = zip(indices.shape, x.shape, strict=False)
        if len(indices.shape) != len(x.shape) or any(m > n for a, (m, n) in enumerate(sizes) if a != at):
            raise ShapeError(
                f"indices of shape {indices.shape} do not fit {x.shape} along axis {at}; they need as many axes, and "
                "no more cells on any other"
            )
    return at


def _along(x: Var, indices: Var, axis: int) -> tuple[Var, Var]:
    """The part of ``x`` that the indices reach, and the indices, with the axis in the last place."""
    reached = tuple(slice(None) if a == axis else slice(n) for a, n in enumerate(indices.shape))
    return moved(getitem(x, reached), axis, -1), moved(indices, axis, -1)


def _put_back(x: Var, part: Var) -> Var:
    """``x`` with its first cells on every axis replaced by ``part``."""
    for axis, (n, m) in enumerate(zip(x.shape, part.shape, strict=True)):
        if m < n:
            beyond = (*[slice(None)] * axis, slice(m, None), *map(slice, part.shape[axis + 1 :]))
            part = concat([part, getitem(x, beyond)], axis)
    return part


# --- order ------------------------------------------------------------------------------------------------------------
# Of the largest or smallest cells: places, at which cells and tangents are gathered.


@dataclass(frozen=True)
class Top:
    """How many cells, and whether the largest or the smallest."""

    k: int
    largest: bool = True


def _top_types(attrs: Top, x: TensorType) -> tuple[TensorType]:
    require_numbers("top_places", x)
    return (TensorType(i64, (*x.shape[:-1], listed(x.shape, attrs.k))),)


MOST_COMPARED = 2**22
"""Pairs of cells that are compared for bounds; of more, every place is possible."""


def _possible_places(node: BoundedNode, x: Box) -> Box:
    """From the first to the last cell of which few enough are surely before it, and few enough behind."""
    if not x.varies:
        return node.point(node.apply(x.lower))
    (low, high), n, shape = x.ends, x.lower.shape[-1], node.stored.shape
    if not 0 < low.type.size * n <= MOST_COMPARED:
        return node.between(*(low.owner.share(np.full(shape, place), "places") for place in (0, n - 1)))
    places, pairs = low.owner.share(np.broadcast_to(np.arange(n), (*shape, n)).copy(), "places"), (*low.shape, n)
    lows, highs = reshape(low, (*low.shape[:-1], 1, n)), reshape(high, (*high.shape, 1))
    wins = convert(greater(broadcast_to(lows, pairs), broadcast_to(highs, pairs)), i64)  # the second of the first
    axes, ranks = (-1, -2) if node.attrs.largest else (-2, -1), np.arange(shape[-1])[:, None]
    rows = [reshape(sum_over(wins, axis), (*low.shape[:-1], 1, n)) for axis in axes]
    before, behind = (broadcast_to(v, places.shape) for v in rows)
    out = maximum(greater(before, ranks), greater(behind, n - 1 - ranks))
    last, first = (OPERATORS().global_max_pool(where(out, -n, v), 1) for v in (places, -places))
    return node.between(*(reshape(end, shape) for end in (-first, last)))


TOP_PLACES = Op(
    "top_places",
    Top,
    types=_top_types,
    spec=lambda attrs, x: (top_places(x, attrs.k, attrs.largest),),
    batch=leading_batch,
    enclosure=_possible_places,
    constant=True,
    selects=True,
)


def topk(x: Operand, k: int, axis: int = -1, largest: bool = True) -> tuple[Var, Var]:
    """The ``k`` largest cells along ``axis``, largest first, and their positions; or the smallest.

    Equal cells keep their order. A NaN is larger than every number.

    >>> [result.tolist() for result in topk(np.float32([2, 5, 7, 5]), 3)]
    [[7.0, 5.0, 5.0], [2, 1, 3]]
    """
    (x,) = operands(x)
    with applying("topk", x):
        at = normal_axis("topk", axis, len(x.shape))
        last = moved(x, at, -1)
        count = listed(last.shape, k)
    places = apply(TOP_PLACES, Top(count, bool(largest)), last)
    values = apply(GATHER_ROWS, AlongAxis(len(x.shape) - 1), last, places)
    return moved(values, -1, at), moved(places, -1, at)


def sort(x: Operand, axis: int = -1, descending: bool = False) -> tuple[Var, Var]:
    """The cells along ``axis`` from the smallest to the largest, and their positions; equal ones keep their order.

    >>> [result.tolist() for result in sort(np.float32([2, np.nan, 1, 2]))]
    [[1.0, 2.0, 2.0, nan], [2, 0, 3, 1]]
    """
    (x,) = operands(x)
    with applying("sort", x):
        count = x.shape[normal_axis("sort", axis, len(x.shape))]
    return topk(x, count, axis, largest=descending)
