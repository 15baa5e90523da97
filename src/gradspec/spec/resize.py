"""Resizing the last axes: every output cell is a weighted mean of input cells, the weights of the axes multiplied.

An axis of ``n`` cells resized to ``m`` puts output ``o`` at the position

    o·n/m rounded down                        nearest
    max((o + ½)·n/m − ½, 0)                   linear: the cells' centres keep their places
    o·(n − 1)/(m − 1)                         linear, align_corners: the centres of the end cells keep theirs

and linear shares it between the two cells around that position. All of it is rational, so nothing is rounded before the
cells come in. A cell whose weight is zero takes no part: an infinity there changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from math import prod
from typing import TypeAlias

from gradspec.spec.errors import ShapeError
from gradspec.spec.scalar import Scalar, add_up
from gradspec.spec.tensor import Index, Tensor, TensorLike, flat, indices, split_shape, tensor
from gradspec.spec.window import per_axis, spatial_rank, spatial_sizes

Taps: TypeAlias = list[tuple[int, Fraction]]
"""Cells and their weights."""

MODES = ("nearest", "linear")


def axis_taps(n: int, m: int, mode: str, align_corners: bool) -> list[Taps]:
    """The cells that each of ``m`` outputs reads from an axis of ``n``, with weights that add up to 1.

    >>> axis_taps(2, 3, "linear", False)
    [[(0, Fraction(1, 1))], [(0, Fraction(1, 2)), (1, Fraction(1, 2))], [(1, Fraction(1, 1))]]
    """
    if mode == "nearest":
        return [[(o * n // m, Fraction(1))] for o in range(m)]
    return [_around(_position(o, n, m, align_corners), n) for o in range(m)]


def _position(o: int, n: int, m: int, align_corners: bool) -> Fraction:
    if align_corners:
        return Fraction(o * (n - 1), m - 1) if m > 1 else Fraction(0)
    return max(Fraction((2 * o + 1) * n, 2 * m) - Fraction(1, 2), Fraction(0))


def _around(position: Fraction, n: int) -> Taps:
    """The cells before and after a position; beyond the last cell there is only that."""
    before = int(position)
    share = position - before
    if share == 0 or before == n - 1:
        return [(before, Fraction(1))]
    return [(before, 1 - share), (before + 1, share)]


def table(sizes: Index, outputs: Index, mode: str, align_corners: bool) -> list[Taps]:
    """The taps of every output cell, flat positions, outputs in row-major order."""
    axes = [axis_taps(n, m, mode, align_corners) for n, m in zip(sizes, outputs, strict=True)]
    rows = (product(*(taps[o] for taps, o in zip(axes, output, strict=True))) for output in indices(outputs))
    return [[_combined(taps, sizes) for taps in row] for row in rows]


def _combined(taps: Sequence[tuple[int, Fraction]], sizes: Index) -> tuple[int, Fraction]:
    """One tap per axis as a tap of the plane."""
    return flat([i for i, _ in taps], sizes), prod((w for _, w in taps), start=Fraction(1))


def resize(x: TensorLike, size: Sequence[int], mode: str = "nearest", align_corners: bool = False) -> Tensor:
    """The last ``len(size)`` axes resized to ``size``.

    >>> from fractions import Fraction
    >>> resize([Fraction(0), Fraction(1)], (4,), "linear").tolist()
    [Fraction(0, 1), Fraction(1, 4), Fraction(3, 4), Fraction(1, 1)]
    """
    x = tensor(x)
    rank = spatial_rank("size", size)
    sizes, outputs = spatial_sizes(x.shape, rank), per_axis("size", size, rank, least=1)
    require_mode(sizes, mode, align_corners)
    return gathered(x, table(sizes, outputs, mode, align_corners), outputs)


def gathered(x: Tensor, taps: list[Taps], outputs: Index) -> Tensor:
    """``y[o] = Σ w·x[i]`` over the taps ``(i, w)`` of ``o``."""
    planes = x.planes(len(outputs))
    sums = (_mean([(plane[i], w) for i, w in row], x.zero) for plane in planes for row in taps)
    return Tensor(split_shape(x.shape, len(outputs))[0] + outputs, sums).stored()


def scattered(g: Tensor, taps: list[Taps], sizes: Index) -> Tensor:
    """The transpose: ``x[i] = Σ w·g[o]`` over the outputs ``o`` that read ``i`` with weight ``w``."""
    readers: list[Taps] = [[] for _ in range(prod(sizes))]
    for o, row in enumerate(taps):
        for i, w in row:
            readers[i].append((o, w))
    return gathered(g, readers, sizes)


def _mean(cells: list[tuple[Scalar, Fraction]], zero: Scalar) -> Scalar:
    """``Σ w·cell``, each weight as a product and a quotient of whole numbers, which every scalar has."""
    return add_up((cell if w == 1 else cell * w.numerator / w.denominator for cell, w in cells), zero)


def require_mode(sizes: Index, mode: str, align_corners: bool) -> None:
    if mode not in MODES:
        raise ShapeError(f'mode={mode!r} is not known; give "nearest" or "linear"')
    if align_corners and mode == "nearest":
        raise ShapeError('align_corners=True has a meaning for mode="linear" only')
    if 0 in sizes:
        raise ShapeError(f"the axes to resize have sizes {sizes}; each needs at least one cell")
