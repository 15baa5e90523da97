"""Operators that move numbers without changing them, and the sizes and axes they take."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from math import prod
from operator import index as as_index

from gradspec.spec.errors import ShapeError
from gradspec.spec.scalar import Scalar, embed
from gradspec.spec.tensor import Index, Tensor, TensorLike, flat, indices, tensor
from gradspec.spec.window import whole_number

Pairs = tuple[tuple[int, int], ...]


def _read(x: Tensor, shape: Index, place: Callable[[Index], Sequence[int]]) -> Tensor:
    """The tensor of ``shape`` whose cell ``o`` is ``x[place(o)]``."""
    return Tensor(shape, (x.cells[flat(place(o), x.shape)] for o in indices(shape)))


# --- shapes -----------------------------------------------------------------------------------------------------------


def broadcast_to(x: TensorLike, shape: Sequence[int]) -> Tensor:
    """``x`` repeated along new leading axes and axes of size 1.

    >>> broadcast_to([1, 2], (2, 2)).tolist()
    [[1, 2], [1, 2]]
    """
    x, sizes = tensor(x), broadcast_sizes(tensor(x).shape, shape)
    extra = len(sizes) - x.ndim
    return _read(x, sizes, lambda o: [i if n > 1 else 0 for i, n in zip(o[extra:], x.shape, strict=True)])


def broadcast_sizes(given: Index, shape: Sequence[int]) -> Index:
    """``shape``, if ``given`` broadcasts to it."""
    sizes = _sizes(shape, least=0)
    extra = len(sizes) - len(given)
    if extra < 0 or any(n not in (1, m) for n, m in zip(given, sizes[extra:], strict=True)):
        raise ShapeError(
            f"the shape {given} does not broadcast to {sizes}; sizes must be equal or 1, counted from the last axis"
        )
    return sizes


def reshape(x: TensorLike, shape: Sequence[int]) -> Tensor:
    """The same numbers in another shape; one size may be −1, for what is left.

    >>> reshape([1, 2, 3, 4], (2, -1)).tolist()
    [[1, 2], [3, 4]]
    """
    given = tensor(x)
    return given.reshape(*reshaped_sizes(given.shape, shape))


def reshaped_sizes(given: Index, shape: Sequence[int]) -> Index:
    """``shape`` with its −1 replaced by what is left, if it holds as many numbers as ``given``."""
    sizes, total = _sizes(shape, least=-1), prod(given)
    if sizes.count(-1) > 1:
        raise ShapeError(f"the shape {sizes} leaves more than one size open; give at most one -1")
    known = prod(n for n in sizes if n != -1)
    if -1 in sizes and known and total % known == 0:
        return tuple(total // known if n == -1 else n for n in sizes)
    if -1 in sizes or known != total:
        raise ShapeError(f"the {total} numbers of a tensor of shape {given} do not fit the shape {sizes}")
    return sizes


def flatten(x: TensorLike, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """The axes from ``start_dim`` to ``end_dim`` as one; a scalar becomes a vector of one number.

    >>> flatten([[[1, 2], [3, 4]], [[5, 6], [7, 8]]], 1).tolist()
    [[1, 2, 3, 4], [5, 6, 7, 8]]
    """
    given = tensor(x)
    return given.reshape(*flattened_sizes(given.shape, start_dim, end_dim))


def flattened_sizes(given: Index, start_dim: int, end_dim: int) -> Index:
    rank = max(len(given), 1)
    start, end = normal_axis("flatten", start_dim, rank), normal_axis("flatten", end_dim, rank)
    if start > end:
        raise ShapeError(f"flatten: start_dim={start_dim} comes after end_dim={end_dim} in the shape {given}")
    return (*given[:start], prod(given[start : end + 1]), *given[end + 1 :])


def _sizes(shape: Sequence[int], least: int) -> Index:
    entries = shape if isinstance(shape, list | tuple) else (shape,)
    return tuple(whole_number(f"axis {axis} of the shape {shape}", n, least) for axis, n in enumerate(entries))


# --- axes -------------------------------------------------------------------------------------------------------------


def transpose(x: TensorLike, axes: Sequence[int] | None = None) -> Tensor:
    """Axis ``k`` of the result is axis ``axes[k]`` of ``x``; all axes in reverse order unless given.

    >>> transpose([[1, 2, 3], [4, 5, 6]], (1, 0)).tolist()
    [[1, 4], [2, 5], [3, 6]]
    """
    x = tensor(x)
    order = permutation(axes, x.ndim)
    return _read(x, tuple(x.shape[a] for a in order), lambda o: [o[order.index(a)] for a in range(x.ndim)])


def permutation(axes: Sequence[int] | None, rank: int) -> Index:
    """``axes``, if it names each axis once; the reverse order for None."""
    given = range(rank)[::-1] if axes is None else axes
    order = tuple(normal_axis("transpose", a, rank) for a in given)
    if sorted(order) != list(range(rank)):
        raise ShapeError(f"transpose: axes={axes} is not an order of the {rank} axes; name each of them once")
    return order


def normal_axis(name: str, axis: int, rank: int) -> int:
    """``axis`` counted from the front."""
    try:
        number = None if isinstance(axis, bool) else as_index(axis)
    except TypeError:
        number = None
    if number is None or not -rank <= number < rank:
        remedy = f"use {-rank} to {rank - 1}" if rank else "a scalar has none"
        raise ShapeError(f"{name}: {axis!r} is not an axis of a tensor of rank {rank}; {remedy}")
    return number % rank


def normal_axes(name: str, axis: int | Sequence[int] | None, rank: int) -> Index:
    """Distinct axes from 0 to rank−1, in order; all of them for None."""
    given = range(rank) if axis is None else axis if isinstance(axis, list | tuple) else (axis,)
    found = [normal_axis(name, a, rank) for a in given]
    if len(set(found)) != len(found):
        raise ShapeError(f"{name}: axis={axis} names an axis twice; name each once")
    return tuple(sorted(found))


# --- parts ------------------------------------------------------------------------------------------------------------


def concat(xs: Sequence[TensorLike], axis: int = 0) -> Tensor:
    """The tensors one after another along ``axis``.

    >>> concat([[[1], [2]], [[3, 4], [5, 6]]], 1).tolist()
    [[1, 3, 4], [2, 5, 6]]
    """
    parts = [tensor(x) for x in xs]
    shape = concatenated_sizes([x.shape for x in parts], axis)
    at = normal_axis("concat", axis, len(shape))
    blocks = [(x.cells, prod(x.shape[at:])) for x in parts]
    return Tensor(
        shape, (c for i in range(prod(shape[:at])) for cells, size in blocks for c in cells[i * size : (i + 1) * size])
    )


def concatenated_sizes(shapes: Sequence[Index], axis: int) -> Index:
    if not shapes:
        raise ShapeError("concat: there is nothing to put together; give at least one tensor")
    at = normal_axis("concat", axis, len(shapes[0]))
    if len({(len(s), s[:at], s[at + 1 :]) for s in shapes}) > 1:
        given = ", ".join(map(str, shapes))
        raise ShapeError(f"concat: the shapes {given} differ on other axes than {at}; make them equal there")
    return (*shapes[0][:at], sum(s[at] for s in shapes), *shapes[0][at + 1 :])


def slice(
    x: TensorLike,
    starts: Sequence[int | None],
    stops: Sequence[int | None],
    steps: Sequence[int | None] | None = None,
) -> Tensor:
    """``x[start:stop:step, …]`` with one entry per axis, which means what Python's slices mean; None is an open end.

    >>> slice([[1, 2, 3, 4], [5, 6, 7, 8]], (0, -1), (2, None), (1, -2)).tolist()
    [[4, 2], [8, 6]]
    """
    x = tensor(x)
    return strided(x, *progressions(x.shape, starts, stops, steps))


def strided(x: Tensor, starts: Index, sizes: Index, steps: Index) -> Tensor:
    """The cells ``start + i·step``, ``0 ≤ i < size``, of every axis."""
    return _read(x, sizes, lambda o: [a + i * s for i, a, s in zip(o, starts, steps, strict=True)])


def progressions(
    shape: Index,
    starts: Sequence[int | None],
    stops: Sequence[int | None],
    steps: Sequence[int | None] | None = None,
) -> tuple[Index, Index, Index]:
    """Python slices as ``(starts, sizes, steps)`` of the positions they read."""
    strides = (1,) * len(shape) if steps is None else steps
    for name, entries in (("starts", starts), ("stops", stops), ("steps", strides)):
        if not isinstance(entries, list | tuple) or len(entries) != len(shape):
            raise ShapeError(f"slice: {name}={entries!r} must have one entry for each axis of the shape {shape}")
    if 0 in strides:
        raise ShapeError(f"slice: steps={steps} has a step of 0; give steps above or below it")
    return progressions_of([builtins.slice(*ends) for ends in zip(starts, stops, strides, strict=True)], shape)


def progressions_of(slices: Sequence[builtins.slice], shape: Index) -> tuple[Index, Index, Index]:
    ranges = [range(*s.indices(n)) for s, n in zip(slices, shape, strict=True)]
    filled = [r or range(0) for r in ranges]
    return tuple(r.start for r in filled), tuple(map(len, filled)), tuple(r.step for r in filled)


def require_inside(shape: Index, starts: Index, sizes: Index, steps: Index) -> None:
    """Positions of ``strided`` that all lie in ``shape``."""
    if not len(starts) == len(sizes) == len(steps) == len(shape):
        raise ShapeError(f"slice: {starts}, {sizes} and {steps} must have one entry for each axis of the shape {shape}")
    for axis, (n, start, size, step) in enumerate(zip(shape, starts, sizes, steps, strict=True)):
        ends = (start, start + (size - 1) * step) if size else ()
        if step == 0 or size < 0 or not all(0 <= end < n for end in ends):
            raise ShapeError(
                f"slice: {size} positions from {start} in steps of {step} do not lie on axis {axis}, of size {n}"
            )


def pad(x: TensorLike, padding: Sequence[tuple[int, int]], value: Scalar = 0) -> Tensor:
    """``x`` with ``lo`` cells of ``value`` before it and ``hi`` after it, for the pair ``(lo, hi)`` of every axis.

    >>> pad([[1, 2]], ((0, 1), (2, 0)), 9).tolist()
    [[9, 9, 1, 2], [9, 9, 9, 9]]
    """
    x = tensor(x)
    return spaced(x, padding_pairs(padding, x.ndim), (0,) * x.ndim, value)


def spaced(x: Tensor, padding: Pairs, interior: Index, value: Scalar) -> Tensor:
    """``pad``, with ``interior`` cells of ``value`` between neighbours as well: the transpose of a strided slice."""
    shape = spaced_sizes(x.shape, padding, interior)
    fill = embed(x.cells[0], value) if x.cells else int(value) if value == 0 else value  # 0 mixes with every system
    cells = [fill] * prod(shape)
    for place in indices(x.shape):
        moved = [lo + i * (1 + gap) for i, (lo, _), gap in zip(place, padding, interior, strict=True)]
        cells[flat(moved, shape)] = x.cells[flat(place, x.shape)]
    return Tensor(shape, cells)


def spaced_sizes(shape: Index, padding: Pairs, interior: Index) -> Index:
    return tuple(lo + n + max(n - 1, 0) * gap + hi for n, (lo, hi), gap in zip(shape, padding, interior, strict=True))


def padding_pairs(padding: Sequence[tuple[int, int]], rank: int) -> Pairs:
    """``padding``, if it is a pair of sizes for every axis."""
    is_pairs = isinstance(padding, list | tuple) and all(isinstance(p, list | tuple) and len(p) == 2 for p in padding)
    if not is_pairs or len(padding) != rank:
        raise ShapeError(f"pad: padding={padding!r} must be one pair (lo, hi) for each of the {rank} axes")
    for axis, pair in enumerate(padding):
        if any(not isinstance(n, bool) and hasattr(n, "__index__") and n < 0 for n in pair):
            raise ShapeError(f"pad: axis {axis} has the padding {pair}; it cannot be negative: cut cells off by slice")
    return tuple(
        (whole_number(f"lo on axis {axis}", lo, 0), whole_number(f"hi on axis {axis}", hi, 0))
        for axis, (lo, hi) in enumerate(padding)
    )
