"""Operators that move numbers, by steps that the program states and by indices that it computes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import starmap
from typing import Any

import numpy as np

from gradspec.graph.builder import apply
from gradspec.graph.ir import Array, Var
from gradspec.graph.types import DType, boolean, i64, u8
from gradspec.interop import compose
from gradspec.interop.indexing import scattered_rows
from gradspec.interop.jax import gradspec_dtype
from gradspec.ops.convert import convert
from gradspec.ops.gather import GATHER_ROWS
from gradspec.ops.layout import PAD, AlongAxis, Padding, concat, getitem, transpose
from gradspec.ops.pointwise import clamp, minimum
from gradspec.ops.select import greater, less, where
from gradspec.ops.shape import broadcast_to, reshape
from gradspec.spec.errors import UnsupportedError

Rule = Callable[..., Any]
Sizes = tuple[int, ...]
Ends = Sequence[tuple[int, int, int]]
"""For every axis how many cells come before, after and between the others; fewer than none are taken away."""

Index = Any
"""A variable, or an array of indices that are known while the function is read: then NumPy computes with them."""

# --- what rules ask of their operands ---------------------------------------------------------------------------------


def constant(x: Var) -> Array | None:
    """The numbers of a variable that no input changes."""
    array: Array | None = x.owner.value(x)
    return array


def uniform(x: Var) -> Any:
    """The number that is in every cell of a constant; None if they differ, or inputs change them."""
    array = constant(x)
    if array is None or not array.size:
        return None
    if any(n > 1 and step for n, step in zip(array.shape, array.strides, strict=True)):
        return None
    return array.flat[0].item() if array.dtype.kind in "iubf" else float(array.flat[0])


def to_dtype(x: Var, dtype: Any) -> Var:
    """``x`` converted to a dtype of JAX or gradspec; None keeps its own."""
    wanted = dtype if isinstance(dtype, DType | None) else gradspec_dtype(dtype)
    return x if wanted in (None, x.dtype) else convert(x, wanted, saturate=False)


def ordered(x: Var) -> Var:
    """Numbers that have an order: of booleans, false comes first."""
    return convert(x, u8) if x.dtype is boolean else x


def require_truths(x: Var) -> Var:
    """``x``, which has to hold booleans."""
    if x.dtype is not boolean:
        raise UnsupportedError("it is known for booleans, and not for the bits of integers")
    return x


# --- by stated steps --------------------------------------------------------------------------------------------------


def _broadcast_in_dim(x: Var, *, shape: Sizes, broadcast_dimensions: Sizes) -> Var:
    """Axis ``k`` of ``x`` is axis ``broadcast_dimensions[k]`` of the result."""
    axes = dict(zip(broadcast_dimensions, x.shape, strict=True))
    return broadcast_to(reshape(x, [axes.get(a, 1) for a in range(len(shape))]), shape)


def _squeeze(x: Var, *, dimensions: Sizes) -> Var:
    return reshape(x, [n for a, n in enumerate(x.shape) if a not in dimensions])


def _expand_dims(x: Var, *, dimensions: Sizes) -> Var:
    sizes = iter(x.shape)
    return reshape(x, [1 if a in dimensions else next(sizes) for a in range(x.ndim + len(dimensions))])


def _slice(x: Var, *, start_indices: Sizes, limit_indices: Sizes, strides: Sizes | None) -> Var:
    return getitem(x, tuple(starmap(slice, zip(start_indices, limit_indices, strides or (1,) * x.ndim, strict=True))))


def pad_with_gaps(x: Var, ends: Ends, value: float = 0) -> Var:
    """Cells of ``value`` before, after and between those of ``x``; what a negative number takes away are the last."""
    grown = tuple((max(lo, 0), max(hi, 0)) for lo, hi, _ in ends)
    gaps = tuple(gap for *_, gap in ends)
    if any(map(any, grown)) or any(gaps):
        x = apply(PAD, Padding(grown, gaps, value), x)
    return getitem(x, tuple(slice(max(-lo, 0), n - max(-hi, 0)) for n, (lo, hi, _) in zip(x.shape, ends, strict=True)))


def _pad(x: Var, value: Var, *, padding_config: Ends) -> Any:
    number = uniform(value)
    if number is not None:
        return pad_with_gaps(x, padding_config, number)
    real = x.owner.share(np.broadcast_to(np.True_, x.shape), "real")
    return where(pad_with_gaps(real, padding_config), pad_with_gaps(x, padding_config), value)


def _iota(*, dtype: Any, shape: Sizes, dimension: int) -> Array:
    numbers = np.arange(shape[dimension]).astype(dtype).reshape(-1, *(1,) * (len(shape) - dimension - 1))
    return np.broadcast_to(numbers, shape)


# --- at computed places -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Slices:
    """Slices of an operand that is seen as ``(*shared, rows, *rest)``.

    Axes have labels: ``d`` is that axis of the places at which slices begin, and ``n + a``, behind the ``n`` axes of
    these, is what a slice has of the operand's axis ``a``.
    """

    axes: Sequence[int]
    """The operand's axes in this order: those that the places share, those along which slices begin, the rest."""
    shared: int
    labels: Sequence[int]
    """The axes of all slices together, ``(*places, *slices)``."""
    rows: Index
    """The row of every cell."""
    inside: Index
    """Whether the slice at each place lies within the operand; None if all do."""

    def view_rows(self, x: Var) -> Var:
        moved, stop = transpose(x, self.axes), len(self.axes) - (len(self.labels) - len(self.rows.shape))
        return reshape(moved, (*moved.shape[: self.shared], -1, *moved.shape[stop:]))

    def restore(self, rows: Var, like: Var) -> Var:
        return transpose(reshape(rows, [like.shape[a] for a in self.axes]), compose.inverse_permutation(self.axes))


def _locate_slices(
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
            start, most = starts[a], x.shape[a] - sizes[a]
            first = transpose(clamp(start, 0, most) if isinstance(start, Var) else np.clip(start, 0, most), places)
            begin = reshape(first, (*first.shape, *(1,) * len(moving)))
            rows = begin if i == 1 else rows + begin
        if sizes[a] > 1:
            rows = rows + np.arange(sizes[a]).reshape(-1, *(1,) * (len(moving) - i))
    whole = broadcast_to(rows, (*(shape[d] for d in places), *(sizes[a] for a in moving)))
    inside = None if clipped else _test_inside([(start, x.shape[a] - sizes[a]) for a, start in starts.items()])
    labels = [*places, *(len(places) + a for a in moving + rest)]
    return _Slices([*shared, *moving, *rest], len(shared), labels, whole, inside)


def _test_inside(starts: Sequence[tuple[Index, int]]) -> Index:
    """Whether each start lies between 0 and the most that is possible; None if that is certain."""
    known = [(start >= 0) & (start <= most) for start, most in starts if not isinstance(start, Var)]
    certain = np.logical_and.reduce(known)
    tests = [minimum(greater(start, -1), less(start, most + 1)) for start, most in starts if isinstance(start, Var)]
    return reduce(minimum, tests, *([] if np.all(certain) else [certain])) if tests or not np.all(certain) else None


def _starts(indices: Var, axes: Sequence[int]) -> dict[int, Index]:
    """The starts along each axis, of which the last axis of the indices has one."""
    whole = _as_i64(indices)
    return {a: whole[..., i] if isinstance(whole, np.ndarray) else getitem(whole, (..., i)) for i, a in enumerate(axes)}


def _as_i64(indices: Var) -> Index:
    array = constant(indices)
    return to_dtype(indices, i64) if array is None else array.astype(np.int64)


def _label_axes(rank: int, window: Collection[int], ndim: int, missing: Collection[int]) -> list[int]:
    """The labels of a tensor whose axes ``window`` are the operand's but for ``missing`` ones; others are of places."""
    cells, places = iter(a for a in range(ndim) if a not in missing), iter(range(rank))
    return [rank - len(window) + next(cells) if i in window else next(places) for i in range(rank)]


def _arrange(x: Var, have: Sequence[int], want: Sequence[int]) -> Var:
    """The axes of ``x`` in another order; those that only one side has are of size 1."""
    sizes = dict(zip(have, x.shape, strict=True))
    both = [label for label in have if label in want]
    kept = reshape(x, [sizes[label] for label in both])
    moved = transpose(kept, [both.index(label) for label in want if label in both])
    return reshape(moved, [sizes.get(label, 1) for label in want])


def _spread_to_cells(slices: _Slices, mask: Index, cells: Var) -> Var:
    """What is known of each slice, for all its cells."""
    places = len(mask.shape)
    arranged = _arrange(mask, range(places), slices.labels[:places])
    return broadcast_to(reshape(arranged, (*arranged.shape, *(1,) * (len(cells.shape) - places))), cells.shape)


def _read(x: Var, slices: _Slices) -> Var:
    rows = slices.view_rows(x)
    if not isinstance(slices.rows, Var) and not slices.shared:
        return compose.take(rows, slices.rows, 0)
    return apply(GATHER_ROWS, AlongAxis(slices.shared), rows, slices.rows)


def _gather(x: Var, indices: Var, *, dimension_numbers: Any, slice_sizes: Sizes, mode: Any, fill_value: Any) -> Any:
    numbers, shared = dimension_numbers, dimension_numbers.operand_batching_dims
    starts = _starts(indices, numbers.start_index_map)
    clipped = mode.name != "FILL_OR_DROP"
    slices = _locate_slices(x, starts, slice_sizes, shared, numbers.start_indices_batching_dims, clipped=clipped)
    y = _read(x, slices)
    if slices.inside is not None:
        y = where(_spread_to_cells(slices, slices.inside, y), y, fill_value)
    rank = indices.ndim - 1 + len(numbers.offset_dims)
    wanted = _label_axes(rank, numbers.offset_dims, x.ndim, (*numbers.collapsed_slice_dims, *shared))
    return _arrange(y, slices.labels, wanted)


def _dynamic_slice(x: Var, *starts: Var, slice_sizes: Sizes) -> Var:
    """Along axes where the start is known a plain slice."""
    known = [constant(start) for start in starts]
    ends = zip(known, slice_sizes, x.shape, strict=True)
    cut = [slice(None) if k is None else slice(s := int(np.clip(k, 0, n - size)), s + size) for k, size, n in ends]
    x = getitem(x, tuple(cut))
    moving = {a: to_dtype(start, i64) for a, start in enumerate(starts) if known[a] is None}
    slices = _locate_slices(x, moving, slice_sizes)
    return _arrange(_read(x, slices), slices.labels, range(x.ndim)) if moving else x


def _write(x: Var, updates: Var, slices: _Slices, labels: Sequence[int], reduction: str) -> Var:
    """Slices that are not inside are left out: they go to a row of their own, behind the others."""
    rows, cells, axis = slices.view_rows(x), _arrange(updates, labels, slices.labels), slices.shared
    if slices.inside is None:
        return slices.restore(scattered_rows(rows, slices.rows, cells, axis, reduction), x)
    size = rows.shape[axis]
    grown = pad_with_gaps(rows, [(0, int(a == axis), 0) for a in range(rows.ndim)])
    is_inside = _spread_to_cells(slices, slices.inside, slices.rows)
    known = not isinstance(is_inside, Var) and not isinstance(slices.rows, Var)
    places = (np.where if known else where)(is_inside, slices.rows, size)
    joined = scattered_rows(grown, places, cells, axis, reduction)
    return slices.restore(getitem(joined, (*[slice(None)] * axis, slice(size))), x)


def _scatter(reduction: str) -> Rule:
    def rule(x: Var, indices: Var, updates: Var, *, dimension_numbers: Any, mode: Any) -> Any:
        numbers, shared = dimension_numbers, dimension_numbers.operand_batching_dims
        missing = (*numbers.inserted_window_dims, *shared)
        window = iter(numbers.update_window_dims)
        sizes = tuple(1 if a in missing else updates.shape[next(window)] for a in range(x.ndim))
        starts = _starts(indices, numbers.scatter_dims_to_operand_dims)
        with_them, clipped = numbers.scatter_indices_batching_dims, mode.name == "CLIP"
        slices = _locate_slices(x, starts, sizes, shared, with_them, clipped=clipped)
        labels = _label_axes(updates.ndim, numbers.update_window_dims, x.ndim, missing)
        return _write(x, updates, slices, labels, reduction)

    return rule


def _dynamic_update_slice(x: Var, update: Var, *starts: Var) -> Var:
    places = dict(enumerate(map(_as_i64, starts)))
    return _write(x, update, _locate_slices(x, places, update.shape), range(x.ndim), "none")


RULES: dict[str, Rule] = {
    "broadcast_in_dim": _broadcast_in_dim,
    "reshape": lambda x, *, new_sizes, dimensions: reshape(transpose(x, dimensions or range(x.ndim)), new_sizes),
    "transpose": lambda x, *, permutation: transpose(x, permutation),
    "squeeze": _squeeze,
    "expand_dims": _expand_dims,
    "concatenate": lambda *xs, dimension: concat(xs, dimension),
    "stack": lambda *xs, axis: concat([_expand_dims(x, dimensions=(axis,)) for x in xs], axis),
    "unstack": lambda x, *, axis: [
        _squeeze(part, dimensions=(axis,)) for part in compose.split(x, [1] * x.shape[axis], axis)
    ],
    "split": lambda x, *, sizes, axis: compose.split(x, [int(n) for n in sizes], axis),
    "tile": lambda x, *, reps: compose.tile(x, reps),
    "slice": _slice,
    "rev": lambda x, *, dimensions: compose.flip(x, dimensions),
    "pad": _pad,
    "iota": _iota,
    "gather": _gather,
    "dynamic_slice": _dynamic_slice,
    "scatter": _scatter("none"),
    "scatter-add": _scatter("add"),
    "scatter-mul": _scatter("mul"),
    "scatter-min": _scatter("min"),
    "scatter-max": _scatter("max"),
    "dynamic_update_slice": _dynamic_update_slice,
}
