"""Operators that move numbers without changing them."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import index as as_index
from typing import Any

import numpy as np

from gradspec.graph.builder import apply, operands
from gradspec.graph.ir import MOVED, Op, Operand, Sums, Var
from gradspec.graph.types import TensorType, boolean, number_as, require_one_dtype, type_of
from gradspec.ops.rules import applying, recorded_axis
from gradspec.ops.shape import axis_batch, batched_by, one_further, reshape
from gradspec.spec import layout as spec
from gradspec.spec.errors import DTypeError, ShapeError

# --- transpose -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Order:
    """The axes of the operand in the order the result has them."""

    axes: tuple[int, ...]


def _transpose_types(attrs: Order, x: TensorType) -> tuple[TensorType]:
    order = spec.permutation([recorded_axis("transpose", a, x.ndim) for a in attrs.axes], x.ndim)
    return (TensorType(x.dtype, tuple(x.shape[a] for a in order)),)


def _fuse_transposes(first: Order, second: Order, x: TensorType) -> Order | None:
    axes = tuple(first.axes[a] for a in second.axes)
    return None if axes == tuple(range(x.ndim)) else Order(axes)


TRANSPOSE = Op(
    "transpose",
    Order,
    types=_transpose_types,
    spec=lambda attrs, x: (spec.transpose(x, attrs.axes),),
    batch=batched_by(lambda attrs, n: Order((0, *one_further(attrs.axes)))),
    linear="jointly",
    is_data_movement=True,
    sums=MOVED,
    fuse_adjacent=_fuse_transposes,
    transpose=lambda attrs, cotangents, types, i: transpose(cotangents[0], np.argsort(attrs.axes).tolist()),
)


def transpose(x: Operand, axes: Sequence[int] | None = None) -> Var:
    """Axis ``k`` of the result is axis ``axes[k]`` of ``x``; all axes in reverse order unless given.

    >>> transpose(np.zeros((2, 3, 4), np.float32), (2, 0, 1)).shape
    (4, 2, 3)
    """
    (x,) = operands(x)
    with applying("transpose", x):
        order = spec.permutation(axes, len(x.shape))
    return x if order == tuple(range(len(order))) else apply(TRANSPOSE, Order(order), x)


def turned(x: Var) -> Var:
    """Matrices transposed, over the last two axes; a vector is as it was.

    >>> turned(np.zeros((2, 3, 4), np.float32)).shape
    (2, 4, 3)
    """
    rank = len(x.shape)
    return transpose(x, (*range(rank - 2), rank - 1, rank - 2)) if rank > 1 else x


# --- concat ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AlongAxis:
    """The axis along which the operator works."""

    axis: int


def _concat_types(attrs: AlongAxis, *xs: TensorType) -> tuple[TensorType]:
    shape = spec.concatenated_sizes([x.shape for x in xs], attrs.axis)
    recorded_axis("concat", attrs.axis, len(shape))
    return (TensorType(require_one_dtype("concat", *xs), shape),)


def _concat_transpose(attrs: AlongAxis, cotangents: Sequence[Var], xs: Sequence[TensorType | Var], i: int) -> Var:
    (g,) = cotangents
    before = sum(x.shape[attrs.axis] for x in xs[:i])
    window: list[Any] = [builtins.slice(None)] * len(g.shape)
    window[attrs.axis] = builtins.slice(before, before + xs[i].shape[attrs.axis])
    return getitem(g, tuple(window))


CONCAT = Op(
    "concat",
    AlongAxis,
    types=_concat_types,
    spec=lambda attrs, *xs: (spec.concat(xs, attrs.axis),),
    batch=axis_batch,
    linear="jointly",
    is_data_movement=True,
    sums=MOVED,
    transpose=_concat_transpose,
)


def concat(xs: Sequence[Operand], axis: int = 0) -> Var:
    """The tensors one after another along ``axis``.

    >>> concat([np.float32([1, 2]), np.float32([3])]).tolist()
    [1.0, 2.0, 3.0]
    """
    if isinstance(xs, Var):
        raise ShapeError(f"concat takes a list of tensors, not {xs!r} alone; write concat([x, y], axis)")
    parts = operands(*xs)
    with applying("concat", *parts):
        shape = spec.concatenated_sizes([x.shape for x in parts], axis)
        place = spec.normal_axis("concat", axis, len(shape))
    return parts[0] if len(parts) == 1 else apply(CONCAT, AlongAxis(place), *parts)


# --- slice and pad: each the other's transpose ------------------------------------------------------------------------


@dataclass(frozen=True)
class Slices:
    """On every axis the positions ``start + i·step``, ``0 ≤ i < size``."""

    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    steps: tuple[int, ...]


def _slice_types(attrs: Slices, x: TensorType) -> tuple[TensorType]:
    spec.require_inside(x.shape, attrs.starts, attrs.sizes, attrs.steps)
    return (TensorType(x.dtype, attrs.sizes),)


def _slice_transpose(attrs: Slices, cotangents: Sequence[Var], types: Sequence[TensorType], i: int) -> Var:
    """Put every number back where it was read: turn the axes read backwards, then pad before, after and between."""
    (g,), (x,) = cotangents, types
    forwards = getitem(g, tuple(builtins.slice(None, None, -1 if step < 0 else 1) for step in attrs.steps))
    pairs = []
    for n, start, size, step in zip(x.shape, attrs.starts, attrs.sizes, attrs.steps, strict=True):
        first, last = sorted((start, start + (size - 1) * step)) if size else (0, -1)
        pairs.append((first, n - 1 - last))
    return _spaced(forwards, tuple(pairs), tuple(abs(step) - 1 for step in attrs.steps))


SLICE = Op(
    "slice",
    Slices,
    types=_slice_types,
    spec=lambda attrs, x: (spec.strided(x, attrs.starts, attrs.sizes, attrs.steps),),
    batch=batched_by(lambda attrs, n: Slices((0, *attrs.starts), (n, *attrs.sizes), (1, *attrs.steps))),
    linear="jointly",
    is_data_movement=True,
    sums=MOVED,
    transpose=_slice_transpose,
)


def slice(
    x: Operand,
    starts: Sequence[int | None],
    stops: Sequence[int | None],
    steps: Sequence[int | None] | None = None,
) -> Var:
    """``x[start:stop:step, …]`` with one entry per axis, which means what Python's slices mean; None is an open end.

    Variables also take ``x[...]`` with integers, slices, ``...`` and ``None``.

    >>> slice(np.float32([1, 2, 3, 4]), (-3,), (None,), (2,)).tolist()
    [2.0, 4.0]
    """
    (x,) = operands(x)
    with applying("slice", x):
        window = Slices(*spec.progressions(x.shape, starts, stops, steps))
    return _strided(x, window)


def _strided(x: Var, attrs: Slices) -> Var:
    whole = attrs == Slices((0,) * len(x.shape), x.shape, (1,) * len(x.shape))
    return x if whole else apply(SLICE, attrs, x)


def getitem(x: Var, key: object) -> Var:
    """``x[key]`` for integers, slices, ``...`` and ``None`` (a new axis of size 1).

    >>> getitem(np.float32([[1, 2], [3, 4]]), (..., -1)).tolist()
    [2.0, 4.0]
    """
    slices, shape, axis = [], [], 0
    for entry in every_axis(key if isinstance(key, tuple) else (key,), x.shape):
        if entry is None:
            shape.append(1)
            continue
        n = x.shape[axis]
        if isinstance(entry, builtins.slice):
            slices.append(entry)
            shape.append(len(range(n)[entry]))
        else:
            place = _place(entry, n, axis)
            slices.append(builtins.slice(place, place + 1))
        axis += 1
    return reshape(_strided(x, Slices(*spec.progressions_of(slices, x.shape))), shape)


def every_axis(key: tuple[object, ...], shape: tuple[int, ...]) -> tuple[object, ...]:
    """The key with its ``...`` written out, so that it has one entry for each axis."""
    dots = [i for i, entry in enumerate(key) if entry is Ellipsis]
    missing = len(shape) - sum(entry is not None and entry is not Ellipsis for entry in key)
    if missing < 0 or len(dots) > 1:
        raise ShapeError(
            f"the index {key} does not fit the shape {shape}; give one entry per axis, and one ... at most"
        )
    at = dots[0] if dots else len(key)
    return (*key[:at], *[builtins.slice(None)] * missing, *key[at + 1 :])


def _place(entry: Any, n: int, axis: int) -> int:
    try:
        place = None if isinstance(entry, bool) else as_index(entry)
    except TypeError:
        place = None
    if place is None:
        raise TypeError(
            f"a variable is indexed by integers, slices, ..., None and a tensor of integers, not by {entry!r}"
        )
    if not -n <= place < n:
        raise IndexError(f"index {place} lies outside axis {axis}, of size {n}")
    return place % n


@dataclass(frozen=True)
class Padding:
    """``(lo, hi)`` cells of ``value`` before and after each axis, and ``interior`` ones between its neighbours."""

    padding: tuple[tuple[int, int], ...]
    interior: tuple[int, ...]
    value: float | int


def _pad_types(attrs: Padding, x: TensorType) -> tuple[TensorType]:
    pairs = spec.padding_pairs(attrs.padding, x.ndim)
    if len(attrs.interior) != x.ndim or any(gap < 0 for gap in attrs.interior):
        raise ShapeError(f"pad: the interior padding {attrs.interior} must be one size for each axis of {x}")
    return (TensorType(x.dtype, spec.spaced_sizes(x.shape, pairs, attrs.interior)),)


def _pad_transpose(attrs: Padding, cotangents: Sequence[Var], types: Sequence[TensorType], i: int) -> Var:
    (g,), (x,) = cotangents, types
    steps = tuple(gap + 1 for gap in attrs.interior)
    ends = [
        builtins.slice(lo, lo + n * step, step) for (lo, _), n, step in zip(attrs.padding, x.shape, steps, strict=True)
    ]
    return getitem(g, tuple(ends))


PAD: Op = Op(
    "pad",
    Padding,
    types=_pad_types,
    spec=lambda attrs, x: (spec.spaced(x, attrs.padding, attrs.interior, attrs.value),),
    batch=batched_by(lambda attrs, n: Padding(((0, 0), *attrs.padding), (0, *attrs.interior), attrs.value)),
    is_data_movement=True,
    sums=Sums(linear=lambda attrs: replace(attrs, value=0)),
    jvp=lambda attrs, primals, tangents: (
        [apply(PAD, attrs, *primals)],
        [_spaced(tangents[0], attrs.padding, attrs.interior)],
    ),
    transpose=_pad_transpose,
)


def pad(x: Operand, padding: Sequence[tuple[int, int]], value: float = 0.0) -> Var:
    """``x`` with ``lo`` cells of ``value`` before it and ``hi`` after it, for the pair ``(lo, hi)`` of every axis.

    The value is rounded to the dtype of ``x``.

    >>> pad(np.float32([1, 2]), ((1, 2),)).tolist()
    [0.0, 1.0, 2.0, 0.0, 0.0]
    """
    (x,) = operands(x)
    with applying("pad", x):
        pairs, number = spec.padding_pairs(padding, len(x.shape)), _number(value, x)
    return _spaced(x, pairs, (0,) * len(pairs), number)


def _spaced(x: Var, pairs: spec.Pairs, interior: tuple[int, ...], value: float | int = 0) -> Var:
    idle = not any(n for pair in pairs for n in pair) and not any(interior)
    return x if idle else apply(PAD, Padding(pairs, interior, value), x)


def _number(value: float, x: Var) -> float | int:
    """``value`` as a number that the dtype of ``x`` holds."""
    kind = x.type if isinstance(x, Var) else type_of(x)
    if kind.dtype is boolean:
        return int(number_as(value, kind.dtype.numpy))
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise DTypeError(f"pad: value={value!r} is a {type(value).__name__}; give a number")
    if kind.is_float:
        with np.errstate(over="ignore"):
            return float(np.asarray(float(value)).astype(kind.dtype.numpy))
    limits = np.iinfo(kind.dtype.numpy)
    if not float(value).is_integer() or not limits.min <= int(value) <= limits.max:
        raise DTypeError(f"pad: value={value!r} is not a number of {kind}; give an integer that fits, or pad floats")
    return int(value)


# --- stacks of results, one for each cell of something, as derivatives collect them ----------------------------------


def unstack_first(stack: Var, shape: tuple[int, ...]) -> Var:
    """The leading axis of a stack as axes of ``shape``."""
    return reshape(stack, (*shape, *stack.shape[1:]))


def unstack_last(stack: Var, shape: tuple[int, ...]) -> Var:
    """The leading axis of a stack as axes of ``shape``, behind the others."""
    moved = transpose(stack, (*range(1, len(stack.shape)), 0))
    return reshape(moved, (*stack.shape[1:], *shape))
