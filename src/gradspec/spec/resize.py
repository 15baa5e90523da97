"""Resizing the last axes: every output cell is a weighted mean of input cells, the weights of the axes multiplied.

Along an axis output ``o`` lies at the position ``start + o·step`` among the cells. An axis of ``n`` cells resized to
``m`` has, unless they are given,

    step = n/m,              start = 0               nearest
    step = n/m,              start = (step − 1)/2    linear: the cells' centres keep their places
    step = (n − 1)/(m − 1),  start = 0               linear, align_corners: the centres of the end cells keep theirs

Nearest rounds the position, down unless told otherwise, and takes the cell there, or the end cell if there is none.
Linear moves a position beyond the end cells to these, and shares the output between the two cells around it. All of it
is rational, so nothing is rounded before the cells come in. A cell whose weight is zero takes no part: an infinity
there changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import ceil, floor, isfinite, prod
from numbers import Rational, Real
from typing import TypeAlias

from gradspec.spec.errors import ShapeError
from gradspec.spec.scalar import Scalar, add_up
from gradspec.spec.tensor import Index, Tensor, TensorLike, flat, indices, split_shape, tensor
from gradspec.spec.window import per_axis, spatial_rank, spatial_sizes

Taps: TypeAlias = list[tuple[int, Fraction]]
"""Cells and their weights."""

Place: TypeAlias = int | float | Fraction
"""A number that says where something lies, exactly."""

MODES = ("nearest", "linear")
HALF = Fraction(1, 2)

ROUNDINGS: dict[str, Callable[[Fraction], int]] = {
    "floor": floor,
    "ceil": ceil,
    "half_down": lambda position: ceil(position - HALF),
    "half_up": lambda position: floor(position + HALF),
}
"""The cell that a position is taken to; of the last two, the nearest cell, and halfway the lower or the upper one."""


@dataclass(frozen=True)
class Axis:
    """``outputs`` positions among ``size`` cells, at ``start + o·step``; rounded, or None: linear between cells."""

    size: int
    outputs: int
    step: Fraction
    start: Fraction
    rounding: str | None


def axis_taps(axis: Axis) -> list[Taps]:
    """The cells that each output reads, with weights that add up to 1.

    >>> axis_taps(Axis(2, 3, Fraction(1, 2), Fraction(0), None))
    [[(0, Fraction(1, 1))], [(0, Fraction(1, 2)), (1, Fraction(1, 2))], [(1, Fraction(1, 1))]]
    """
    positions = [axis.start + o * axis.step for o in range(axis.outputs)]
    if axis.rounding is None:
        return [_around(_within(position, axis.size)) for position in positions]
    return [[(int(_within(ROUNDINGS[axis.rounding](p), axis.size)), Fraction(1))] for p in positions]


def _within(position: Fraction | int, n: int) -> Fraction:
    return min(max(Fraction(position), Fraction(0)), Fraction(n - 1))


def _around(position: Fraction) -> Taps:
    """The cells before and after a position, or the one at it."""
    before = int(position)
    share = position - before
    return [(before, 1 - share), (before + 1, share)] if share else [(before, Fraction(1))]


def table(axes: Sequence[Axis]) -> list[Taps]:
    """The taps of every output cell, flat positions, outputs in row-major order."""
    sizes, outputs = tuple(axis.size for axis in axes), tuple(axis.outputs for axis in axes)
    along = [axis_taps(axis) for axis in axes]
    rows = (product(*(taps[o] for taps, o in zip(along, output, strict=True))) for output in indices(outputs))
    return [[_combined(one_per_axis, sizes) for one_per_axis in row] for row in rows]


def _combined(taps: Sequence[tuple[int, Fraction]], sizes: Index) -> tuple[int, Fraction]:
    """One tap per axis as a tap of the plane."""
    return flat([i for i, _ in taps], sizes), prod((w for _, w in taps), start=Fraction(1))


def resize(
    x: TensorLike,
    size: Sequence[int],
    mode: str = "nearest",
    align_corners: bool = False,
    *,
    step: Place | Sequence[Place] | None = None,
    start: Place | Sequence[Place] | None = None,
    rounding: str = "floor",
) -> Tensor:
    """The last ``len(size)`` axes resized to ``size``.

    >>> from fractions import Fraction
    >>> resize([Fraction(0), Fraction(1)], (4,), "linear").tolist()
    [Fraction(0, 1), Fraction(1, 4), Fraction(3, 4), Fraction(1, 1)]
    >>> resize([10, 20, 30], (3,), step=Fraction(4, 5), rounding="half_up").tolist()
    [10, 20, 30]
    """
    x = tensor(x)
    rank = spatial_rank("size", size)
    sizes, outputs = spatial_sizes(x.shape, rank), per_axis("size", size, rank, least=1)
    axes = resized_axes(sizes, outputs, mode, align_corners, step, start, rounding)
    return gathered(x, table(axes), outputs)


def resized_axes(
    sizes: Index,
    outputs: Index,
    mode: str,
    align_corners: bool,
    step: Place | Sequence[Place] | None = None,
    start: Place | Sequence[Place] | None = None,
    rounding: str = "floor",
) -> list[Axis]:
    """Where the outputs lie along each axis, given or from the sizes; a ShapeError if that has no meaning."""
    _require_mode(sizes, mode, align_corners, rounding)
    if align_corners and not step is start is None:
        raise ShapeError("align_corners=True says where the outputs lie, and so do step and start; give one of them")
    pairs, rank = list(zip(sizes, outputs, strict=True)), len(sizes)
    centred = mode == "linear" and not align_corners
    steps = [_usual_step(n, m, align_corners) for n, m in pairs] if step is None else _places("step", step, rank)
    starts = [_usual_start(s, centred) for s in steps] if start is None else _places("start", start, rank)
    taken = rounding if mode == "nearest" else None
    return [Axis(n, m, s, t, taken) for (n, m), s, t in zip(pairs, steps, starts, strict=True)]


def _usual_step(n: int, m: int, align_corners: bool) -> Fraction:
    if align_corners:
        return Fraction(n - 1, m - 1) if m > 1 else Fraction(0)
    return Fraction(n, m)


def _usual_start(step: Fraction, centred: bool) -> Fraction:
    return (step - 1) / 2 if centred else Fraction(0)


def _places(name: str, value: Place | Sequence[Place], rank: int) -> list[Fraction]:
    """One rational per axis, from one for all of them or a sequence."""
    values = list(value) if isinstance(value, list | tuple) else [value] * rank
    if len(values) != rank:
        raise ShapeError(f"{name} has {len(values)} numbers for {rank} axes; give one for each, or one for all")
    return [_rational(f"{name} on axis {axis}", v) for axis, v in enumerate(values)]


def _rational(what: str, value: object) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, Real) or not isfinite(value):
        raise ShapeError(f"{what} is {value!r}; give a finite number: an int, a float or a Fraction")
    if isinstance(value, Rational):
        return Fraction(int(value.numerator), int(value.denominator))
    return Fraction(float(value))


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


def _require_mode(sizes: Index, mode: str, align_corners: bool, rounding: str) -> None:
    if mode not in MODES:
        raise ShapeError(f'mode={mode!r} is not known; give "nearest" or "linear"')
    if align_corners and mode == "nearest":
        raise ShapeError('align_corners=True has a meaning for mode="linear" only')
    if rounding not in ROUNDINGS:
        raise ShapeError(f"rounding={rounding!r} is not known; give one of {', '.join(ROUNDINGS)}")
    if rounding != "floor" and mode != "nearest":
        raise ShapeError(f'rounding={rounding!r} has a meaning for mode="nearest" only')
    if 0 in sizes:
        raise ShapeError(f"the axes to resize have sizes {sizes}; each needs at least one cell")
