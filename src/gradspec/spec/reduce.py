"""Sums, running sums and means over axes, and the softmax.

``softmax(x)ᵢ = exp xᵢ / Σ exp xⱼ`` is written around a pivot ``c``, the largest ``xⱼ``:

    zᵢ = xᵢ − c,   eᵢ = exp zᵢ,   A = Σ eⱼ,   softmax = eᵢ / A,   log_softmax = zᵢ − log A.

Every ``eᵢ`` is at most 1 and the pivot's is 1, so nothing overflows and ``A ≥ 1``. A −∞ next to a finite number has
weight 0; where the pivot is infinite, the arithmetic of infinities says NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import accumulate
from math import prod

from gradspec.spec.errors import ShapeError
from gradspec.spec.layout import broadcast_to, normal_axes, normal_axis
from gradspec.spec.scalar import Scalar, add_up, embed, exp, larger, log, pivot, refuse_fixed_width_integers
from gradspec.spec.tensor import Index, Tensor, TensorLike, flat, indices, tensor

Axes = int | Sequence[int] | None


def _groups(x: Tensor, axes: Index) -> dict[Index, list[int]]:
    """The cells that share their place on all axes but ``axes``, in row-major order, by that place."""
    kept = [a for a in range(x.ndim) if a not in axes]
    groups: dict[Index, list[int]] = {i: [] for i in indices([x.shape[a] for a in kept])}
    for index in indices(x.shape):
        groups[tuple(index[a] for a in kept)].append(flat(index, x.shape))
    return groups


def _reduced(x: Tensor, axes: Index, keepdims: bool, formula: Callable[[Scalar], Scalar]) -> Tensor:
    """``formula`` of the sum over ``axes``."""
    sums = (add_up((x.cells[i] for i in group), x.zero) for group in _groups(x, axes).values())
    return Tensor(reduced_sizes(x.shape, axes, keepdims), map(formula, sums)).stored()


def reduced_sizes(shape: Index, axes: Index, keepdims: bool = False) -> Index:
    """The shape without ``axes``, or with 1 in their place."""
    return tuple(1 if a in axes else n for a, n in enumerate(shape) if keepdims or a not in axes)


def sum(x: TensorLike, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The sum over ``axis`` (one, several, or None for all), which stays as a 1 with ``keepdims``.

    >>> sum([[1, 2], [3, 4]], 0).tolist()
    [4, 6]
    """
    x = tensor(x)
    return _reduced(x, normal_axes("sum", axis, x.ndim), keepdims, lambda total: total)


def cumsum(x: TensorLike, axis: int, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """Each cell added to all before it along ``axis``, one after the other: ``yᵢ = yᵢ₋₁ + xᵢ``, from 0 on.

    With ``exclusive`` a cell's own number is not among its terms, so that the first is 0. With ``reverse`` sums begin
    at the end of the axis.

    >>> cumsum([1, 2, 4], 0).tolist(), cumsum([1, 2, 4], 0, exclusive=True, reverse=True).tolist()
    ([1, 3, 7], [6, 4, 0])
    """
    x = tensor(x)
    cells = list(x.cells)
    for group in _groups(x, (normal_axis("cumsum", axis, x.ndim),)).values() if cells else ():
        places = group[::-1] if reverse else group
        totals = list(accumulate((x.cells[i] for i in places), initial=x.zero))
        for i, total in zip(places, totals[:-1] if exclusive else totals[1:], strict=True):
            cells[i] = total
    return Tensor(x.shape, cells).stored()


def mean(x: TensorLike, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The sum over ``axis`` divided by the number of its terms, of which there is at least one.

    >>> mean([[1.0, 2.0], [3.0, 4.0]], 0).tolist()
    [2.0, 3.0]
    """
    x = tensor(x)
    refuse_fixed_width_integers("mean", x.zero)
    axes = normal_axes("mean", axis, x.ndim)
    count = terms_of_mean(x.shape, axes)
    return _reduced(x, axes, keepdims, lambda total: total / count)


def terms_of_mean(shape: Index, axes: Index) -> int:
    count = prod(shape[a] for a in axes)
    if not count:
        raise ShapeError(f"mean: the axes {axes} of the shape {shape} hold no numbers, and nothing has no mean")
    return count


def mean_transpose(x: TensorLike, axes: Index, shape: Index) -> Tensor:
    """The transpose of the mean over ``axes`` of a tensor of ``shape``: equal parts of ``x`` along them.

    >>> mean_transpose([6.0], (1,), (1, 2)).tolist()
    [[3.0, 3.0]]
    """
    x, count = tensor(x), terms_of_mean(shape, axes)
    whole = Tensor(reduced_sizes(shape, axes, keepdims=True), x.cells)
    return broadcast_to(whole, shape).map(lambda cell: cell / count).stored()


def softmax(x: TensorLike, axis: int = -1) -> Tensor:
    """``exp xᵢ / Σ exp xⱼ`` along ``axis``.

    >>> softmax([1000.0, 1000.0]).tolist()
    [0.5, 0.5]
    """
    return _along(x, "softmax", axis, lambda row: [power / row.total for power in row.powers])


def log_softmax(x: TensorLike, axis: int = -1) -> Tensor:
    """``log(exp xᵢ / Σ exp xⱼ)`` along ``axis``.

    >>> log_softmax([1000.0, 0.0]).tolist()
    [0.0, -1000.0]
    """
    return _along(x, "log_softmax", axis, lambda row: [z - log(row.total) for z in row.exponents])


class _Row:
    """Cells around their pivot."""

    def __init__(self, cells: list[Scalar]) -> None:
        center = pivot(reduce(larger, cells))
        self.exponents = [cell - center for cell in cells]
        self.powers = [exp(z) for z in self.exponents]
        self.total = add_up(self.powers, embed(self.powers[0], 0))


def _along(x: TensorLike, name: str, axis: int, formula: Callable[[_Row], list[Scalar]]) -> Tensor:
    x = tensor(x)
    refuse_fixed_width_integers(name, x.zero)
    cells = list(x.cells)
    for group in _groups(x, (normal_axis(name, axis, x.ndim),)).values() if cells else ():
        results = formula(_Row([x.cells[i] for i in group]))
        for i, result in zip(group, results, strict=True):
            cells[i] = result
    return Tensor(x.shape, cells).stored()
