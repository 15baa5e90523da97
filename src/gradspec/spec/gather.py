"""Rows named by integers that are known only at run time: read, added up, and replaced.

A *row* is what lies behind one axis. The axes before it are shared: the indices at a leading index name rows at the
same one. With ``axis=0`` and a matrix of words, a word is read for every index; with the last axis, a row is one cell.

    gather_rows        y[i, r] = x[i₁ … iₐ, k, r]    where k = indices[i], a = axis, and r is a place within a row
    scatter_add_rows   y[i₁ … iₐ, k, r] = the sum of all x[i, r] whose index is k
    scatter_rows       y[i₁ … iₐ, k, r] = the last rows[i, r] whose index is k, else x there

The first two are each other's transposes. An index counts from 0; a negative one, or one at the size or beyond it, is
an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cmp_to_key
from numbers import Integral

from gradspec.spec.errors import AmbiguityError, DTypeError, ShapeError
from gradspec.spec.layout import normal_axis
from gradspec.spec.scalar import Scalar, order
from gradspec.spec.tensor import Index, Tensor, TensorLike, flat, require_shape, tensor
from gradspec.spec.tensor import indices as places_of
from gradspec.spec.window import whole_number


def gather_rows(x: TensorLike, indices: TensorLike, axis: int = 0) -> Tensor:
    """The row of ``x`` along ``axis`` that each index names.

    >>> gather_rows([[10, 11], [20, 21], [30, 31]], [2, 0, 2]).tolist()
    [[30, 31], [10, 11], [30, 31]]
    >>> gather_rows([[10, 11], [20, 21]], [[1, 1, 0], [0, 1, 0]], 1).tolist()
    [[11, 11, 10], [20, 21, 20]]
    """
    x, chosen = tensor(x), tensor(indices)
    at = normal_axis("gather_rows", axis, x.ndim)
    shape = gathered_shape(x.shape, chosen.shape, at)
    return Tensor(shape, (x.cells[flat(named, x.shape)] for named, _ in _pairs(chosen, at, x.shape)))


def scatter_add_rows(x: TensorLike, indices: TensorLike, axis: int, size: int) -> Tensor:
    """Zeros with ``size`` rows along ``axis``, and every row of ``x`` added, in order, to the one that its index names.

    >>> scatter_add_rows([[1, 2], [10, 20], [100, 200]], [2, 0, 2], 0, 4).tolist()
    [[10, 20], [0, 0], [101, 202], [0, 0]]
    """
    x, chosen = tensor(x), tensor(indices)
    shape = scattered_shape(x.shape, chosen.shape, axis, size)
    y = Tensor(shape, [x.zero] * len(places_of(shape)))
    for named, read in _pairs(chosen, normal_axis("scatter_add_rows", axis, len(shape)), shape):
        place = flat(named, shape)
        y.cells[place] = y.cells[place] + x.cells[flat(read, x.shape)]
    return y.stored()


def scatter_rows(x: TensorLike, indices: TensorLike, rows: TensorLike, axis: int = 0) -> Tensor:
    """``x`` with each of ``rows`` in the place that its index names; of several for one place, the last stays.

    >>> scatter_rows([0, 0, 7], [1, 0, 1], [5, 6, 8]).tolist()
    [6, 8, 7]
    """
    x, chosen, rows = tensor(x), tensor(indices), tensor(rows)
    at = normal_axis("scatter_rows", axis, x.ndim)
    require_shape("the rows", rows, gathered_shape(x.shape, chosen.shape, at))
    y = Tensor(x.shape, x.cells)
    for named, read in _pairs(chosen, at, x.shape):
        y.cells[flat(named, x.shape)] = rows.cells[flat(read, rows.shape)]
    return y


def _pairs(chosen: Tensor, axis: int, shape: Index) -> Iterator[tuple[Index, Index]]:
    """The cells of the rows that are named, in a tensor of ``shape``, and where they stand among the rows."""
    for i, k in zip(places_of(chosen.shape), chosen.cells, strict=True):
        row = _row(k, shape[axis])
        for r in places_of(shape[axis + 1 :]):
            yield (*i[:axis], row, *r), (*i, *r)


def _row(index: Scalar, size: int) -> int:
    if isinstance(index, bool) or not isinstance(index, Integral):
        raise DTypeError(f"the index {index!r} is a {type(index).__name__}; indices are integers")
    number = int(index)
    if not 0 <= number < size:
        raise index_outside(number, size)
    return number


def index_outside(index: int, size: int) -> ValueError:
    return ValueError(
        f"the index {index} names none of the {size} rows; indices go from 0 to {size - 1}"
        if size
        else f"the index {index} cannot name one of 0 rows"
    )


def gathered_shape(x: Index, indices: Index, axis: int) -> Index:
    """The shape of the rows: that of the indices, then that of one row."""
    if indices[:axis] != x[:axis]:
        raise ShapeError(
            f"indices of shape {indices} do not fit {x}: the axes before axis {axis} are shared, so their sizes must "
            f"begin with {x[:axis]}"
        )
    return indices + x[axis + 1 :]


def scattered_shape(x: Index, indices: Index, axis: int, size: int) -> Index:
    """The shape that rows of shape ``x`` are added up in."""
    lead = whole_number("axis", axis, least=0)
    if lead > len(indices) or x[: len(indices)] != indices:
        raise ShapeError(
            f"rows of shape {x} do not fit indices of shape {indices} and axis {axis}: give one row for each index, "
            "so that the shape begins with that of the indices"
        )
    return (*indices[:lead], whole_number("the number of rows", size, least=0), *x[len(indices) :])


# --- order ------------------------------------------------------------------------------------------------------------
#
# One cell comes before another if it exceeds it, or if neither exceeds the other and it stands first. A NaN exceeds
# every number; −0.0 and 0.0 do not exceed each other. Enclosures must decide every comparison: no list of places
# encloses two.


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
