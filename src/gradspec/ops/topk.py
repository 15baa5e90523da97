"""The largest or smallest cells of an axis, in order: their places, at which cells and tangents are gathered."""

from __future__ import annotations

from dataclasses import dataclass

from gradspec.graph.builder import apply, operands
from gradspec.graph.ir import Op, Operand, Var
from gradspec.graph.types import TensorType, i64, require_numbers
from gradspec.ops.box import BoundedNode, Box
from gradspec.ops.gather import GATHER_ROWS, moved
from gradspec.ops.layout import AlongAxis
from gradspec.ops.rules import applying
from gradspec.ops.shape import leading_batch
from gradspec.spec.errors import UnsupportedError
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


def _no_places(node: BoundedNode, x: Box) -> Box:
    raise UnsupportedError(
        "top_places: which cells are the largest depends on the input, so their places, and what topk and sort gather "
        "there, have no bounds; bound the cells before, or their maximum, by gs.global_max_pool"
    )


TOP_PLACES = Op(
    "top_places",
    Top,
    types=_types,
    spec=lambda attrs, x: (top_places(x, attrs.k, attrs.largest),),
    batch=leading_batch,
    enclosure=_no_places,
    constant=True,
    selects=True,
)


def topk(x: Operand, k: int, axis: int = -1, largest: bool = True) -> tuple[Var, Var]:
    """The ``k`` largest cells along ``axis``, largest first, and their positions; or the smallest.

    Equal cells keep their order. A NaN is larger than every number.

    >>> import numpy as np
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

    >>> import numpy as np
    >>> [result.tolist() for result in sort(np.float32([2, np.nan, 1, 2]))]
    [[1.0, 2.0, 2.0, nan], [2, 0, 3, 1]]
    """
    (x,) = operands(x)
    with applying("sort", x):
        count = x.shape[normal_axis("sort", axis, len(x.shape))]
    return topk(x, count, axis, largest=descending)
