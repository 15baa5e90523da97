"""Slices at computed places: read, replaced and added to.

Axes have labels here: ``d`` is that axis of the places at which slices begin, and ``n + a``, behind the ``n`` axes of
these, is what a slice has of the operand's axis ``a``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from gradspec.graph.builder import apply
from gradspec.graph.ir import Array, Var
from gradspec.graph.types import i64
from gradspec.interop import compose
from gradspec.interop.indexing import scattered_rows
from gradspec.interop.jax.primitives.layout import padded
from gradspec.interop.jax.primitives.operands import constant, inverse, to_dtype
from gradspec.ops.gather import GATHER_ROWS
from gradspec.ops.layout import AlongAxis, getitem, transpose
from gradspec.ops.pointwise import clamp, minimum
from gradspec.ops.select import greater, less, where
from gradspec.ops.shape import broadcast_to, reshape

Sizes = tuple[int, ...]
Index = Any
"""A variable, or an array of indices that are known while the function is read: then NumPy computes with them."""


@dataclass(frozen=True)
class _Slices:
    """Slices of an operand that is seen as ``(*shared, rows, *rest)``."""

    axes: Sequence[int]
    """The operand's axes in this order: those that the places share, those along which slices begin, the rest."""
    shared: int
    labels: Sequence[int]
    """The axes of all slices together, ``(*places, *slices)``."""
    rows: Index
    """The row of every cell."""
    inside: Index
    """Whether the slice at each place lies within the operand; None if all do."""

    def opened(self, x: Var) -> Any:
        moved, stop = transpose(x, self.axes), len(self.axes) - (len(self.labels) - len(self.rows.shape))
        return reshape(moved, (*moved.shape[: self.shared], -1, *moved.shape[stop:]))

    def closed(self, rows: Any, like: Var) -> Any:
        return transpose(reshape(rows, [like.shape[a] for a in self.axes]), inverse(self.axes))


def _slices(
    x: Var, starts: dict[int, Index], sizes: Sizes, shared: Sequence[int] = (), with_them: Sequence[int] = (),
    *, clipped: bool = True,
) -> _Slices:  # fmt: skip
    """Slices of ``sizes`` that begin at ``starts`` on some axes and at 0 on others; ``clipped`` moves them inside."""
    shape = next((start.shape for start in starts.values()), ())
    places = [*with_them, *(d for d in range(len(shape)) if d not in with_them)]
    moving = [a for a in range(x.ndim) if a not in shared and sizes[a] < x.shape[a]]
    rest = [a for a in range(x.ndim) if a not in (*shared, *moving)]
    rows: Any = np.zeros((), np.int64)
    for i, a in enumerate(moving, 1):
        rows = rows * x.shape[a] if i > 1 else rows
        if a in starts:
            first = transpose(_between(starts[a], x.shape[a] - sizes[a]), places)
            begin = reshape(first, (*first.shape, *(1,) * len(moving)))
            rows = begin if i == 1 else rows + begin
        if sizes[a] > 1:
            rows = rows + np.arange(sizes[a]).reshape(-1, *(1,) * (len(moving) - i))
    whole = broadcast_to(rows, (*(shape[d] for d in places), *(sizes[a] for a in moving)))
    inside = None if clipped else _all_inside([(start, x.shape[a] - sizes[a]) for a, start in starts.items()])
    labels = [*places, *(len(places) + a for a in moving + rest)]
    return _Slices([*shared, *moving, *rest], len(shared), labels, whole, inside)


def _between(start: Index, most: int) -> Any:
    return clamp(start, 0, most) if isinstance(start, Var) else np.clip(start, 0, most)


def _all_inside(starts: Sequence[tuple[Index, int]]) -> Index:
    """Whether each start lies between 0 and the most that is possible; None if that is certain."""
    known = [(start >= 0) & (start <= most) for start, most in starts if not isinstance(start, Var)]
    certain = np.logical_and.reduce(known)
    found = [minimum(greater(start, -1), less(start, most + 1)) for start, most in starts if isinstance(start, Var)]
    return reduce(minimum, found, *([] if np.all(certain) else [certain])) if found or not np.all(certain) else None


def _starts(indices: Var, axes: Sequence[int]) -> dict[int, Index]:
    """The starts along each axis, of which the last axis of the indices has one."""
    array = constant(indices)
    if array is not None:
        return {axis: array[..., i].astype(np.int64) for i, axis in enumerate(axes)}
    return {axis: to_dtype(getitem(indices, (..., i)), i64) for i, axis in enumerate(axes)}


def _labels(rank: int, window: Collection[int], ndim: int, missing: Collection[int]) -> list[int]:
    """Of a tensor: axes ``window`` are the operand's but for ``missing`` ones, and the others are the places'."""
    cells, places = iter(a for a in range(ndim) if a not in missing), iter(range(rank))
    return [rank - len(window) + next(cells) if i in window else next(places) for i in range(rank)]


def _arranged(x: Any, have: Sequence[int], want: Sequence[int]) -> Any:
    """The axes of ``x`` in another order; those that only one side has are of size 1."""
    sizes = dict(zip(have, x.shape, strict=True))
    both = [label for label in have if label in want]
    kept = reshape(x, [sizes[label] for label in both])
    moved = transpose(kept, [both.index(label) for label in want if label in both])
    return reshape(moved, [sizes.get(label, 1) for label in want])


def _for_cells(slices: _Slices, mask: Index, cells: Any) -> Any:
    """What is known of each slice, for all its cells."""
    places = len(mask.shape)
    arranged = _arranged(mask, range(places), slices.labels[:places])
    return broadcast_to(reshape(arranged, (*arranged.shape, *(1,) * (len(cells.shape) - places))), cells.shape)


# --- read -------------------------------------------------------------------------------------------------------------


def _read(x: Var, slices: _Slices) -> Any:
    rows, known = slices.opened(x), not isinstance(slices.rows, Var) and not slices.shared
    if known:
        return compose.take(rows, slices.rows, 0)
    return apply(GATHER_ROWS, AlongAxis(slices.shared), rows, slices.rows)


def _gather(x: Var, indices: Var, *, dimension_numbers: Any, slice_sizes: Sizes, mode: Any, fill_value: Any) -> Any:
    numbers, shared = dimension_numbers, dimension_numbers.operand_batching_dims
    starts = _starts(indices, numbers.start_index_map)
    clipped = mode.name != "FILL_OR_DROP"
    slices = _slices(x, starts, slice_sizes, shared, numbers.start_indices_batching_dims, clipped=clipped)
    y = _read(x, slices)
    if slices.inside is not None:
        y = where(_for_cells(slices, slices.inside, y), y, fill_value)
    rank = indices.ndim - 1 + len(numbers.offset_dims)
    wanted = _labels(rank, numbers.offset_dims, x.ndim, (*numbers.collapsed_slice_dims, *shared))
    return _arranged(y, slices.labels, wanted)


def _dynamic_slice(x: Var, *starts: Var, slice_sizes: Sizes) -> Any:
    """Along axes where the start is known a plain slice."""
    known = [constant(start) for start in starts]
    ends = zip(known, slice_sizes, x.shape, strict=True)
    cut = [slice(None) if k is None else slice(s := int(np.clip(k, 0, n - size)), s + size) for k, size, n in ends]
    x = getitem(x, tuple(cut))
    moving = {a: to_dtype(start, i64) for a, start in enumerate(starts) if known[a] is None}
    slices = _slices(x, moving, slice_sizes)
    return _arranged(_read(x, slices), slices.labels, range(x.ndim)) if moving else x


# --- written ----------------------------------------------------------------------------------------------------------


def _written(x: Var, updates: Var, slices: _Slices, labels: Sequence[int], reduction: str) -> Any:
    """Slices that are not inside are left out: they go to a row of their own, behind the others."""
    rows, cells, axis = slices.opened(x), _arranged(updates, labels, slices.labels), slices.shared
    if slices.inside is None:
        return slices.closed(scattered_rows(rows, slices.rows, cells, axis, reduction), x)
    size = rows.shape[axis]
    grown = padded(rows, [(0, int(a == axis), 0) for a in range(rows.ndim)])
    is_inside = _for_cells(slices, slices.inside, slices.rows)
    known = not isinstance(is_inside, Var) and not isinstance(slices.rows, Var)
    places = (np.where if known else where)(is_inside, slices.rows, size)
    joined = scattered_rows(grown, places, cells, axis, reduction)
    return slices.closed(getitem(joined, (*[slice(None)] * axis, slice(size))), x)


def _scatter(reduction: str) -> Callable[..., Any]:
    def rule(x: Var, indices: Var, updates: Var, *, dimension_numbers: Any, mode: Any) -> Any:
        numbers, shared = dimension_numbers, dimension_numbers.operand_batching_dims
        missing = (*numbers.inserted_window_dims, *shared)
        window = iter(numbers.update_window_dims)
        sizes = tuple(1 if a in missing else updates.shape[next(window)] for a in range(x.ndim))
        starts = _starts(indices, numbers.scatter_dims_to_operand_dims)
        with_them, clipped = numbers.scatter_indices_batching_dims, mode.name == "CLIP"
        slices = _slices(x, starts, sizes, shared, with_them, clipped=clipped)
        labels = _labels(updates.ndim, numbers.update_window_dims, x.ndim, missing)
        return _written(x, updates, slices, labels, reduction)

    return rule


def _dynamic_update_slice(x: Var, update: Var, *starts: Var) -> Any:
    given = dict(enumerate(map(_start, starts)))
    return _written(x, update, _slices(x, given, update.shape), range(x.ndim), "none")


def _start(index: Var) -> Index:
    array: Array | None = constant(index)
    return to_dtype(index, i64) if array is None else array.astype(np.int64)


RULES: dict[str, Callable[..., Any]] = {
    "gather": _gather,
    "dynamic_slice": _dynamic_slice,
    "scatter": _scatter("none"),
    "scatter-add": _scatter("add"),
    "scatter-mul": _scatter("mul"),
    "scatter-min": _scatter("min"),
    "scatter-max": _scatter("max"),
    "dynamic_update_slice": _dynamic_update_slice,
}
