"""The places of the largest or smallest cells, in order. The cells themselves are gathered there, and so are tangents.

One cell comes before another if it exceeds it, or if neither exceeds the other and it stands first. A NaN exceeds
every number; −0.0 and 0.0 do not exceed each other. Enclosures must decide every comparison: no list of places encloses
two.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cmp_to_key

from gradspec.spec.errors import AmbiguityError, ShapeError
from gradspec.spec.gather import gather_rows
from gradspec.spec.scalar import Scalar, order
from gradspec.spec.tensor import Tensor, TensorLike, tensor
from gradspec.spec.window import whole_number


def top_places(x: TensorLike, k: int, largest: bool = True) -> Tensor:
    """Where the ``k`` largest cells of each row along the last axis are, the largest first; or the smallest.

    >>> top_places([2, 5, 2, 7, 5], 4).tolist()
    [3, 1, 4, 0]
    >>> top_places([2, 5, 2, 7, 5], 3, largest=False).tolist()
    [0, 2, 1]
    """
    x = tensor(x)
    count = listed(x.shape, k)
    rows = [_ordered(row, largest)[:count] for row in x.planes(1)]
    return Tensor((*x.shape[:-1], count), (place for row in rows for place in row))


def topk(x: TensorLike, k: int, largest: bool = True) -> tuple[Tensor, Tensor]:
    """The ``k`` largest cells of each row along the last axis, the largest first, and where they are.

    >>> [result.tolist() for result in topk([2, 5, 7], 2)]
    [[7, 5], [2, 1]]
    """
    x, places = tensor(x), top_places(x, k, largest)
    return gather_rows(x, places, x.ndim - 1), places


def _ordered(row: Sequence[Scalar], largest: bool) -> list[int]:
    sign = -1 if largest else 1

    def compared(i: int, j: int) -> int:
        return sign * _order(row[i], row[j])

    return sorted(range(len(row)), key=cmp_to_key(compared))


def _order(a: Scalar, b: Scalar) -> int:
    answers = order(a, b)
    if len(answers) > 1:
        raise AmbiguityError(f"which of {a} and {b} is larger is not decided, so neither is their order")
    return answers[0]


def listed(shape: Sequence[int], k: int) -> int:
    """``k``, which is no more than there are."""
    if not shape:
        raise ShapeError("a scalar has no axis to order; give a tensor with one")
    count = whole_number("k", k, least=0)
    if count > shape[-1]:
        raise ShapeError(f"k is {count}, and there are {shape[-1]} cells to choose from; give {shape[-1]} or fewer")
    return count
