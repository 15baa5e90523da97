"""Gather at winners and scatter to winners: the transpose pair behind max pooling's derivatives.

``indices`` are flat row-major places in the spatial plane, as ``max_pool(..., return_indices=True)`` gives them; −1
names no cell, reads 0 and receives nothing. ``max_unpool`` *adds* where several windows chose one cell: it is the
transpose of the gather. (Elsewhere one of them wins, which one is left open, and no derivative fits.)
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from gradspec.spec.errors import ShapeError
from gradspec.spec.tensor import Index, Tensor, TensorLike, require_shape, split_shape, tensor
from gradspec.spec.window import per_axis, spatial_rank, spatial_sizes, whole_number


def max_unpool(x: TensorLike, indices: TensorLike, output_size: Sequence[int]) -> Tensor:
    """Zeros of ``output_size``, with each cell of ``x`` added at its index.

    >>> max_unpool([5, 7], [1, 2], (4,)).tolist()
    [0, 5, 7, 0]
    """
    x, places = tensor(x), tensor(indices)
    sizes = per_axis("output_size", output_size, spatial_rank("output_size", output_size), least=1)
    lead = _lead(x.shape, len(sizes), places, sizes)
    cells = []
    for values, chosen in zip(x.planes(len(sizes)), places.planes(len(sizes)), strict=True):
        plane = [x.zero] * prod(sizes)
        for value, place in zip(values, chosen, strict=True):
            if place >= 0:
                plane[place] = plane[place] + value
        cells += plane
    return Tensor(lead + sizes, cells).stored()


def max_unpool_jvp(x: TensorLike, indices: TensorLike, dx: TensorLike, output_size: Sequence[int]) -> Tensor:
    """The tangents, scattered alike (indices have none).

    >>> max_unpool_jvp([5, 7], [1, 2], [1, 0], (4,)).tolist()
    [0, 1, 0, 0]
    """
    dx = tensor(dx)
    require_shape("tangent", dx, tensor(x).shape)
    return max_unpool(dx, indices, output_size)


def max_unpool_vjp(x: TensorLike, indices: TensorLike, g: TensorLike, output_size: Sequence[int]) -> Tensor:
    """The cotangent, gathered at the winners.

    >>> max_unpool_vjp([5, 7], [1, 2], [10, 20, 30, 40], (4,)).tolist()
    [20, 30]
    """
    x, places, g = tensor(x), tensor(indices), tensor(g)
    sizes = per_axis("output_size", output_size, spatial_rank("output_size", output_size), least=1)
    lead = _lead(x.shape, len(sizes), places, sizes)
    require_shape("cotangent", g, lead + sizes)
    return max_gather(g, places, len(sizes))


def max_gather(x: TensorLike, indices: TensorLike, rank: int) -> Tensor:
    """The cells of ``x`` at ``indices``, over the last ``rank`` axes: ``max_pool``'s value, read at known winners.

    >>> max_gather([10, 20, 30, 40], [1, -1, 2], 1).tolist()
    [20, 0, 30]
    """
    x, places, rank = tensor(x), tensor(indices), whole_number("rank", rank, least=0)
    sizes = spatial_sizes(x.shape, rank)
    _lead(x.shape, rank, places, sizes, same_shape=False)
    planes = zip(x.planes(rank), places.planes(rank), strict=True)
    return Tensor(places.shape, (plane[p] if p >= 0 else x.zero for plane, chosen in planes for p in chosen))


def max_gather_jvp(x: TensorLike, indices: TensorLike, dx: TensorLike, rank: int) -> Tensor:
    """The tangents at ``indices``.

    >>> max_gather_jvp([10, 20], [1], [1, 2], 1).tolist()
    [2]
    """
    dx = tensor(dx)
    require_shape("tangent", dx, tensor(x).shape)
    return max_gather(dx, indices, rank)


def max_gather_vjp(x: TensorLike, indices: TensorLike, g: TensorLike, rank: int) -> Tensor:
    """The cotangent, scattered to ``indices``.

    >>> max_gather_vjp([10, 20], [1, 1], [1, 2], 1).tolist()
    [0, 3]
    """
    x, places, g, rank = tensor(x), tensor(indices), tensor(g), whole_number("rank", rank, least=0)
    sizes = spatial_sizes(x.shape, rank)
    _lead(x.shape, rank, places, sizes, same_shape=False)
    require_shape("cotangent", g, places.shape)
    return max_unpool(g, places, sizes)


def _lead(shape: Index, rank: int, places: Tensor, sizes: Index, same_shape: bool = True) -> Index:
    """Check indices against the tensor they belong to; return the leading axes."""
    spatial_sizes(shape, rank)
    lead = split_shape(shape, rank)[0]
    expected = shape if same_shape else lead + split_shape(places.shape, rank)[1]
    if places.shape != expected:
        raise ShapeError(
            f"indices have shape {places.shape}, but {expected} is needed to match the tensor of shape {shape}"
        )
    for place in places.cells:
        whole_number("an index", place, least=-1)
        if place >= prod(sizes):
            raise ShapeError(
                f"index {place} lies outside the plane {sizes}; give 0 to {prod(sizes) - 1}, or -1 for none"
            )
    return lead
