"""The largest or smallest cells of an axis, in order: their places, at which cells and tangents are gathered."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradspec.graph.builder import apply, operands
from gradspec.graph.ir import Op, Operand, Var
from gradspec.graph.types import TensorType, i64, require_numbers
from gradspec.ops.box import OPERATORS, BoundedNode, Box
from gradspec.ops.convert import convert
from gradspec.ops.gather import GATHER_ROWS, moved
from gradspec.ops.layout import AlongAxis
from gradspec.ops.pointwise import maximum
from gradspec.ops.rules import applying
from gradspec.ops.select import greater, where
from gradspec.ops.shape import broadcast_to, leading_batch, reshape
from gradspec.ops.shape import sum as sum_over
from gradspec.spec.layout import normal_axis
from gradspec.spec.topk import listed, top_places


@dataclass(frozen=True)
class Top:
    """How many cells, and whether the largest or the smallest."""

    k: int
    largest: bool = True


def _types(attrs: Top, x: TensorType) -> tuple[TensorType]:
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
    types=_types,
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
