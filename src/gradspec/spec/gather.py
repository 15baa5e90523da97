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

from collections.abc import Iterator
from numbers import Integral

from gradspec.spec.errors import DTypeError, ShapeError
from gradspec.spec.layout import normal_axis
from gradspec.spec.scalar import Scalar
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
