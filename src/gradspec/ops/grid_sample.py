"""Sampling at computed places between cells: arithmetic on the places, and gathers of the cells around them.

So it has derivatives in the cells and in the places. A place on the seam of two pieces, where it has none, takes that
of the piece above it; at the border and beyond it, where places are moved to the border, it is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

from gradspec.graph.builder import apply, operands
from gradspec.graph.ir import Operand, Var
from gradspec.graph.types import bf16, f16, f32, i64, require_floats, type_of
from gradspec.ops.convert import convert
from gradspec.ops.gather import GATHER_ROWS, moved
from gradspec.ops.layout import AlongAxis, getitem
from gradspec.ops.pointwise import floor, minimum, round
from gradspec.ops.rules import applying
from gradspec.ops.select import equal, greater, less, where
from gradspec.ops.shape import reshape
from gradspec.spec.errors import ShapeError, UnsupportedError

MODES, BORDERS = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")

CUBIC = -0.75
"""The slope of the cubic at 1, as PyTorch and ONNX have it."""


def grid_sample(
    x: Operand, grid: Operand, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool = False
) -> Var:
    """Cells of ``x (N, C, d₁, …, dᵣ)`` at the positions ``grid (N, …, r)``, from −1 to 1, last axis first.

    −1 and 1 are the outer edges of the first and last cell, or with ``align_corners`` their middles. Between cells the
    value is interpolated (``"bilinear"``, for any number of axes; ``"bicubic"``) or that of the ``"nearest"`` one, ties
    to even. Beyond the border there are ``"zeros"``, the cells of the ``"border"``, or the image mirrored
    (``"reflection"``): at the outer edges, or with ``align_corners`` at the middles of the outer cells.

    >>> grid_sample(np.float32([[[0, 10, 20]]]), np.float32([[[-1], [0.5], [3]]]), align_corners=True).tolist()
    [[[0.0, 15.0, 0.0]]]
    """
    x, grid = operands(x, grid)
    with applying("grid_sample", x, grid):
        kind = require_floats("grid_sample", *(v.type if isinstance(v, Var) else type_of(v) for v in (x, grid)))
        _require_fit(x.shape, grid.shape, mode, padding_mode)
    if kind in (f16, bf16):  # which do not tell neighbours apart in a wide picture
        return convert(grid_sample(convert(x, f32), convert(grid, f32), mode, padding_mode, align_corners), kind)
    sizes, rank = x.shape[2:], len(x.shape) - 2
    axes = []
    for axis, n in enumerate(sizes):
        place = _unnormalised(getitem(grid, (..., rank - 1 - axis)), n, align_corners)
        axes.append(_taps(place, n, mode, padding_mode, align_corners))
    cells = reshape(moved(x, 1, -1), (x.shape[0], prod(sizes), x.shape[1]))
    first, *others = (_corner(cells, corner, sizes) for corner in product(*axes))
    for term in others:
        first = first + term
    return moved(first, -1, 1)


def _require_fit(x: Sequence[int], grid: Sequence[int], mode: str, padding_mode: str) -> None:
    rank = len(x) - 2
    if rank < 1 or len(grid) != rank + 2 or grid[0] != x[0] or grid[-1] != rank:
        raise ShapeError(
            f"a grid of shape {tuple(grid)} does not sample {tuple(x)}; for (N, C, and r sizes) it is (N, r sizes, r)"
        )
    if 0 in x[2:]:
        raise ShapeError(f"there is no cell to sample in {tuple(x)}")
    if mode not in MODES or padding_mode not in BORDERS:
        raise UnsupportedError(f"mode {mode!r} with {padding_mode!r}; give one of {MODES}, and one of {BORDERS}")


# --- one axis ---------------------------------------------------------------------------------------------------------


class Tap(NamedTuple):
    """A cell of one axis for every place: its number, a float; and its weight, None for 1."""

    cell: Any
    weight: Any


def _unnormalised(u: Var, n: int, align_corners: bool) -> Var:
    """Places counted in cells, 0 the middle of the first one."""
    return (u + 1.0) * ((n - 1) / 2) if align_corners else ((u + 1.0) * float(n) - 1.0) * 0.5


def _taps(place: Var, n: int, mode: str, padding_mode: str, align_corners: bool) -> list[Tap]:
    """The cells that a place is interpolated from. A cubic reaches over the border, so that cells are moved, not it."""
    if mode == "bicubic":
        first = floor(place)
        t = place - first
        cells = [_inside(first + float(k), n, padding_mode, align_corners) for k in (-1, 0, 1, 2)]
        return [*map(Tap, cells, (_far(t + 1.0), _near(t), _near(1.0 - t), _far(2.0 - t)))]
    place = _inside(place, n, padding_mode, align_corners)
    if mode == "nearest":
        return [Tap(round(place), None)]
    first = floor(place)
    t = place - first
    return [Tap(first, 1.0 - t), Tap(first + 1.0, t)]


def _near(t: Var) -> Var:
    """The cubic from 0 to 1."""
    return ((CUBIC + 2.0) * t - (CUBIC + 3.0)) * t * t + 1.0


def _far(t: Var) -> Var:
    """The cubic from 1 to 2."""
    return ((t - 5.0) * t + 8.0) * t * CUBIC - 4.0 * CUBIC


def _inside(place: Var, n: int, padding_mode: str, align_corners: bool) -> Var:
    if padding_mode == "zeros":
        return place
    if padding_mode == "reflection":
        place = _reflected(place, 0.0, n - 1.0) if align_corners else _reflected(place, -0.5, n - 0.5)
    return where(greater(place, 0.0), where(less(place, n - 1.0), place, n - 1.0), 0.0)


def _reflected(place: Var, low: float, high: float) -> Var:
    """Mirrored at both ends, as often as it takes."""
    span = high - low
    if span == 0:
        return place * 0.0
    distance = place - low
    distance = where(less(distance, 0.0), -distance, distance)
    turns = floor(distance / span)
    rest = distance - turns * span
    is_even = equal(turns * 0.5, floor(turns * 0.5))
    return where(is_even, rest, span - rest) + low


# --- all axes ---------------------------------------------------------------------------------------------------------


def _corner(cells: Var, corner: Sequence[Tap], sizes: Sequence[int]) -> Var:
    """What one cell for each axis adds: its row of channels times the weights; nothing where there is no cell."""
    places: Any = None
    weight: Any = None
    is_cell: Any = None
    for tap, n in zip(corner, sizes, strict=True):
        here = minimum(greater(tap.cell, -1.0), less(tap.cell, float(n)))
        index = convert(where(here, tap.cell, 0.0), i64)
        places = index if places is None else places * n + index
        is_cell = here if is_cell is None else minimum(is_cell, here)
        weight = tap.weight if weight is None else weight * tap.weight
    row = apply(GATHER_ROWS, AlongAxis(1), cells, places)
    found = where(reshape(is_cell, (*is_cell.shape, 1)), row, 0.0)
    return found if weight is None else found * reshape(weight, (*weight.shape, 1))
