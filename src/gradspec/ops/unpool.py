"""Gather at places and scatter to places: a transpose pair, linear in its floating-point operand.

``indices`` are flat places in the spatial plane, as ``max_pool(..., return_indices=True)`` gives them; −1 names no
cell. ``max_unpool`` adds where several indices name one cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from gradspec.graph.builder import apply, operands
from gradspec.graph.ir import INDEXED, Op, Operand, Sums, Var, ones
from gradspec.graph.types import TensorType, i64, require_integers, require_numbers
from gradspec.ops.convert import convert
from gradspec.ops.gather import GATHER_ROWS, SCATTER_ADD_ROWS, RowPlaces
from gradspec.ops.layout import AlongAxis, getitem, pad
from gradspec.ops.rules import applying
from gradspec.ops.shape import leading_batch, reshape
from gradspec.spec.errors import ShapeError
from gradspec.spec.tensor import Index, split_shape
from gradspec.spec.unpool import max_gather as max_gather_spec
from gradspec.spec.unpool import max_unpool as max_unpool_spec
from gradspec.spec.window import per_axis, spatial_rank, spatial_sizes, whole_number


@dataclass(frozen=True)
class Plane:
    """The spatial sizes that indices point into."""

    output_size: Index


@dataclass(frozen=True)
class Rank:
    """The number of spatial axes."""

    rank: int


def _require_indices(indices: TensorType) -> None:
    require_integers("indices", indices, "give integers, as max_pool(..., return_indices=True) does")


def _unpool_types(attrs: Plane, x: TensorType, indices: TensorType) -> tuple[TensorType]:
    sizes = per_axis("output_size", attrs.output_size, spatial_rank("output_size", attrs.output_size), least=1)
    _require_indices(indices)
    require_numbers("max_unpool", x)
    spatial_sizes(x.shape, len(sizes))
    if indices.shape != x.shape:
        raise ShapeError(f"indices are {indices}, and {x} is scattered; give one index per cell")
    return (TensorType(x.dtype, split_shape(x.shape, len(sizes))[0] + sizes),)


def _gather_types(attrs: Rank, x: TensorType, indices: TensorType) -> tuple[TensorType]:
    rank = whole_number("rank", attrs.rank, least=0)
    _require_indices(indices)
    spatial_sizes(x.shape, rank)
    if indices.ndim < rank or split_shape(indices.shape, rank)[0] != split_shape(x.shape, rank)[0]:
        raise ShapeError(f"indices are {indices}, and {x} is read; all axes but the last {rank} must agree")
    return (TensorType(x.dtype, indices.shape),)


def _places(indices: Var, lead: int) -> Var:
    """Flat places in planes that have a cell of padding in front, the one that −1 names."""
    flat = reshape(indices, (*indices.shape[:lead], prod(indices.shape[lead:])))
    return convert(flat, i64) + 1


def _decompose_unpool(attrs: Plane, x: Var, indices: Var) -> tuple[Var]:
    lead, places = x.ndim - len(attrs.output_size), _places(indices, x.ndim - len(attrs.output_size))
    rows = RowPlaces(lead, prod(attrs.output_size) + 1)
    planes = apply(SCATTER_ADD_ROWS, rows, reshape(x, places.shape), places)
    return (reshape(getitem(planes, (..., slice(1, None))), (*x.shape[:lead], *attrs.output_size)),)


def _decompose_gather(attrs: Rank, x: Var, indices: Var) -> tuple[Var]:
    lead = x.ndim - attrs.rank
    planes = reshape(x, (*x.shape[:lead], prod(x.shape[lead:])))
    padded = pad(planes, [(0, 0)] * lead + [(1, 0)])
    return (reshape(apply(GATHER_ROWS, AlongAxis(lead), padded, _places(indices, lead)), indices.shape),)


MAX_UNPOOL = Op(
    "max_unpool",
    Plane,
    types=_unpool_types,
    spec=lambda attrs, x, indices: (max_unpool_spec(x, indices, attrs.output_size),),
    batch=leading_batch,
    linear="jointly",
    sums=Sums(
        max_roundings=lambda attrs, x, indices: prod(split_shape(x.shape, len(attrs.output_size))[1]),
        fixed=(1,),
        coefficient_quantum=ones,
    ),
    transpose=lambda attrs, cotangents, operands, i: max_gather(cotangents[0], operands[1], len(attrs.output_size)),
    decompose=_decompose_unpool,
)

MAX_GATHER = Op(
    "max_gather",
    Rank,
    types=_gather_types,
    spec=lambda attrs, x, indices: (max_gather_spec(x, indices, attrs.rank),),
    batch=leading_batch,
    linear="jointly",
    sums=INDEXED,
    transpose=lambda attrs, cotangents, operands, i: max_unpool(
        cotangents[0], operands[1], split_shape(operands[0].shape, attrs.rank)[1]
    ),
    decompose=_decompose_gather,
)


def max_unpool(x: Operand, indices: Operand, output_size: Sequence[int]) -> Var:
    """Zeros of ``output_size``, with each cell of ``x`` added at its index.

    >>> max_unpool(np.float32([5, 7]), np.array([1, 2]), (4,)).tolist()
    [0.0, 5.0, 7.0, 0.0]
    """
    x, indices = operands(x, indices)
    with applying("max_unpool", x, indices):
        sizes = per_axis("output_size", output_size, spatial_rank("output_size", output_size), least=1)
    return apply(MAX_UNPOOL, Plane(sizes), x, indices)


def max_gather(x: Operand, indices: Operand, rank: int) -> Var:
    """The cells of ``x`` at ``indices``, over the last ``rank`` axes.

    >>> max_gather(np.float32([10, 20, 30, 40]), np.array([1, -1, 2]), 1).tolist()
    [20.0, 0.0, 30.0]
    """
    x, indices = operands(x, indices)
    with applying("max_gather", x, indices):
        spatial = whole_number("rank", rank, least=0)
    return apply(MAX_GATHER, Rank(spatial), x, indices)
