"""Max and average pooling: sliding, adaptive and global windows in one record.

A maximum is differentiated by a pair of operators that are linear in their second operand and each other's transpose:
``max_pool_gather(x, dx)`` takes the tangents of the winners, ``max_pool_scatter(x, g)`` sends cotangents to them. Who
wins is a constant of differentiation, so neither has a derivative in ``x``. They are given ``x`` and not the winners'
places: on intervals and balls several cells may win, and the derivatives enclose all of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from math import inf, prod
from numbers import Integral
from typing import Any, TypeVar

import numpy as np

from gradspec.graph.builder import apply, apply_all, operands
from gradspec.graph.ir import Array, Attributes, Crop, JvpResult, Op, Operand, Sums, Var, usual
from gradspec.graph.lru import LRUCache
from gradspec.graph.types import DType, TensorType, f32, f64, i64, require_floats, require_numbers
from gradspec.ops.box import BoundedNode, Box, Lines
from gradspec.ops.convert import convert
from gradspec.ops.gather import GATHER_ROWS, moved
from gradspec.ops.layout import AlongAxis, concat
from gradspec.ops.pointwise import abs as absolute
from gradspec.ops.pointwise import detach, exact_number, gate, maximum, minimum
from gradspec.ops.rules import applying, common_count, division, increasing, inverse_bit, most_cells, most_windows
from gradspec.ops.select import equal, less, where
from gradspec.ops.shape import broadcast_to, leading_batch, reshape
from gradspec.ops.shape import sum as sum_over
from gradspec.ops.unpool import max_gather, max_unpool
from gradspec.ops.windows import (
    are_cells,
    gather_competitors,
    gather_windows,
    mask,
    scatter_windows,
    spread_windows,
    sum_windows,
)
from gradspec.spec import pool as spec
from gradspec.spec.errors import ShapeError
from gradspec.spec.tensor import Index, Shaped, Tensor, split_shape
from gradspec.spec.window import AxisWindow, Ints, Padding, Regular, Window

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Windows:
    """Sliding windows or, if ``output_size`` is given, that many bins per axis (one: global pooling)."""

    kernel_size: Index = ()
    stride: Index = ()
    padding: Pairs = field(default=(), metadata=usual((0, 0)))
    dilation: Index = field(default=(), metadata=usual(1))
    ceil_mode: bool = False
    output_size: Index | None = None

    def window(self, x: Shaped) -> Window:
        """The windows over the last axes of ``x``, a type, a tensor or an array: made, and checked, once."""
        rank = len(self.kernel_size if self.output_size is None else self.output_size)
        key = (*self._written, x.shape[-rank:] if rank else ())
        return _windows.get_or_make(key, lambda: self._made(x))

    @property
    def _written(self) -> tuple[Hashable, ...]:
        return self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.output_size

    def _made(self, x: Shaped) -> Window:
        if self.output_size is not None:
            return spec.bins(x, self.output_size)
        return spec.sliding(x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)

    def crop(self, types: Sequence[TensorType], sizes: Index) -> Crop:
        """A patch of windows that never meet padding, nor are cut short; elsewhere patches are not alike."""
        axes = [axis for axis in self.window(types[0]).axes if isinstance(axis, Regular)]
        lasts = [(a.outputs - 1) * a.stride + (a.kernel - 1) * a.dilation for a in axes]
        if len(axes) != len(sizes) or any(a.lo or last >= a.size for a, last in zip(axes, lasts, strict=True)):
            return None
        pairs = zip(axes, sizes, strict=True)
        needed = [(a.stride, 0, (n - 1) * a.stride + (a.kernel - 1) * a.dilation + 1) for a, n in pairs]
        return replace(self, padding=((0, 0),) * len(axes), ceil_mode=False), [needed for _ in types]

    def pooled(self, x: TensorType) -> TensorType:
        window = self.window(x)
        return TensorType(x.dtype, split_shape(x.shape, window.rank)[0] + window.outputs)


MOST_WINDOWS = 1024
_windows = LRUCache[Window](MOST_WINDOWS)


def _written(window: Window, **fields: Any) -> dict[str, Any]:
    """The fields of ``Windows`` that say what the window is, which it will be known by."""
    _windows.put((*Windows(**fields)._written, window.sizes), window)
    return fields


def sliding_windows(
    name: str,
    x: Var,
    kernel_size: Sequence[int],
    stride: Ints | None,
    padding: Padding,
    dilation: Ints,
    ceil_mode: bool,
) -> dict[str, Any]:
    """The fields of ``Windows``, with every default and ``"same"`` settled for ``x``."""
    with applying(name, x):
        window = spec.sliding(x, kernel_size, stride, padding, dilation, ceil_mode)
    axes = [axis for axis in window.axes if isinstance(axis, Regular)]
    return _written(
        window,
        kernel_size=tuple(a.kernel for a in axes),
        stride=tuple(a.stride for a in axes),
        padding=tuple((a.lo, a.hi) for a in axes),
        dilation=tuple(a.dilation for a in axes),
        ceil_mode=bool(ceil_mode),
    )


def adaptive_windows(name: str, x: Var, output_size: Sequence[int | None]) -> dict[str, Any]:
    with applying(name, x):
        window = spec.bins(x, output_size)
    return _written(window, output_size=window.outputs)


def global_windows(name: str, x: Var, rank: int) -> dict[str, Any]:
    with applying(name, x):
        window = spec.everything(x, rank)
    return _written(window, output_size=window.outputs)


def _flattened(y: Var, rank: int, keepdims: bool) -> Var:
    return y if keepdims else reshape(y, split_shape(y.shape, rank)[0])


# --- the maximum ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MaxPool(Windows):
    ties: str = "first"
    return_indices: bool = False


def _max_types(attrs: MaxPool, x: TensorType) -> tuple[TensorType, ...]:
    spec.require_ties(attrs.ties)
    require_numbers("max_pool", x)
    y = attrs.pooled(x)
    return (y, TensorType(i64, y.shape)) if attrs.return_indices else (y,)


def _max_spec(attrs: MaxPool, x: Tensor) -> tuple[Tensor, ...]:
    window = attrs.window(x)
    value = spec.max_over(window, x)
    return (value, spec.winners_over(window, x)) if attrs.return_indices else (value,)


def _max_jvp(attrs: MaxPool, primals: Sequence[Var], tangents: Sequence[Var]) -> JvpResult:
    (x,), (dx,) = primals, tangents
    moved = apply(MAX_POOL_GATHER, replace(attrs, return_indices=False), x, dx)
    return apply_all(MAX_POOL, attrs, x), [moved, None][: 1 + attrs.return_indices]


@dataclass(frozen=True)
class Gathered:
    """The linear map that takes, for each window, the cell at a place, times a slope."""

    slope: Var
    places: Var
    sizes: Index
    roundings: int

    def push(self, x: Var) -> Var:
        return self.slope * max_gather(x, self.places, len(self.sizes))

    def pull(self, g: Var) -> Var:
        return max_unpool(self.slope * g, self.places, self.sizes)

    def absolute(self, x: Var) -> Var:
        return gate(absolute(self.slope), max_gather(x, self.places, len(self.sizes)))


def _max_lines(node: BoundedNode, boxes: Sequence[Box], share: Var | None) -> Lines:
    """Below, the cell with the largest lower end. Above, ``max(z, m)`` of the cell with the largest upper end and of
    the largest upper end ``m`` of the others, which is raised to ``z``'s lower end, where it makes no difference.
    """
    (box,), attrs = boxes, replace(node.attrs, return_indices=True)
    window = attrs.window(box.lower)
    low, first = apply_all(MAX_POOL, attrs, box.lower)
    ones = broadcast_to(node.number(1.0, low), low.shape)
    slope, last, intercept = above_max(node, attrs, box.ends)
    return (
        node.line(node.zeros(low), (0, gathered(window, ones, first))),
        node.line(intercept, (0, gathered(window, slope, last))),
    )


def above_max(node: BoundedNode, attrs: MaxPool, ends: tuple[Var, Var], least: Operand = -inf) -> tuple[Var, Var, Var]:
    """The slope, the place and the intercept of a line above the largest cell, or ``least`` if that is larger."""
    window, attrs = attrs.window(ends[0]), replace(attrs, return_indices=True)
    high, last = apply_all(MAX_POOL, attrs, ends[1])
    cell = node.between(max_gather(ends[0], last, window.rank), high)
    rest = maximum(maximum(_others(window, ends[1], last), cell.lower), least)
    slope = maximum(high - rest, 0.0) / maximum(high - cell.lower, node.tiny)
    return slope, last, node.above_convex(cell, slope, lambda z: maximum(z, rest))


def gathered(window: Window, slope: Var, places: Var) -> Gathered:
    return Gathered(slope, places, window.sizes, most_windows(window) + 1)


def _others(window: Window, x: Var, places: Var) -> Var:
    """The largest cell of each window but for the one at ``places``; minus infinity if there is none."""
    lead = x.shape[: x.ndim - window.rank]
    most = max((len(taps) for taps in window.table()), default=0)
    cells = ([-1 if cell is None else cell for cell in taps] for taps in window.table())
    table = np.array([taps + [-1] * (most - len(taps)) for taps in cells]).reshape(-1, most)
    taps = broadcast_to(x.owner.share(table, "taps"), (*lead, *table.shape))
    read = max_gather(reshape(x, (*lead, prod(window.sizes))), reshape(taps, (*lead, table.size)), 1)
    left_out = maximum(equal(taps, reshape(places, (*lead, len(table), 1))), equal(taps, -1))
    others = where(left_out, -inf, reshape(read, taps.shape))
    return reshape(global_max_pool(others, 1, keepdims=False), places.shape)


class _Contest:
    """The taps of all windows and which of them win, as constants of differentiation; made of operators of the core."""

    def __init__(self, attrs: MaxPool, x: Var) -> None:
        self.ties, self.window = attrs.ties, attrs.window(x).trimmed()
        counted = [are_cells(axis) for axis in self.window.axes]
        self.cells = cells = gather_competitors(x, self.window, counted)
        top, cell = _largest_of_last(cells), mask(x, counted)
        tied = maximum(equal(cells, top), equal(equal(cells, cells), False))  # with a NaN, all NaNs tie
        self.tied = tied if cell is None else minimum(tied, cell)
        kind, count = x.dtype if x.type.is_float else f32, cells.shape[-1]
        order = x.owner.share(np.arange(count, 0, -1).astype(kind.numpy), "order")
        standing = where(self.tied, order, 0.0)
        best = _largest_of_last(standing)
        place = where(equal(best, 0.0), 0.0, count + 0.5 - best)  # between integers, of which roundings reach none
        self.first = convert(reshape(place, place.shape[:-1]), i64)

    def take(self, cells: Var) -> Var:
        """What the first winner's tap has in each window, its first tap if none wins: that of padding."""
        return apply(GATHER_ROWS, AlongAxis(cells.ndim - 1), cells, self.first)

    def shared(self, amounts: Var) -> Var:
        """``amounts`` at the taps that take part in derivatives, in equal parts if they split them; 0 elsewhere."""
        if self.ties == "first":
            numbers = amounts.owner.share(np.arange(self.tied.shape[-1]), "taps")
            return where(minimum(self.tied, equal(numbers, self.first[..., None])), amounts, 0.0)
        if self.ties == "split":
            ones = where(self.tied, exact_number(1.0, amounts), 0.0)
            amounts = amounts / maximum(sum_over(ones, -1, keepdims=True), 1.0)
        return where(self.tied, amounts, 0.0)


def _largest_of_last(x: Var) -> Var:
    """The largest cell of the last axis, which stays as a 1: in halves, along the first axis, where they are whole."""
    cells = moved(x, -1, 0)
    while (n := cells.shape[0]) > 1:
        joined = maximum(cells[: n // 2], cells[n // 2 : n // 2 * 2])
        cells = concat([joined, cells[n // 2 * 2 :]]) if n % 2 else joined
    return reshape(cells, (*x.shape[:-1], 1))


def _decompose_max(attrs: MaxPool, x: Var) -> tuple[Var, ...]:
    """The first winner, which is moved by the tangents of all that take part."""
    contest = _Contest(attrs, x)
    window, cells = contest.window, contest.cells
    value = contest.take(cells)
    if attrs.ties != "first":
        moves = cells - detach(cells)
        moves = where(equal(moves, moves), moves, 0.0)  # but for the infinities, of which the value is all
        value = detach(value) + sum_over(contest.shared(moves), -1)
    if not attrs.return_indices:
        return (value,)
    numbers = x.owner.share(np.arange(prod(window.sizes)).reshape(window.sizes), "places")
    places = gather_windows(numbers, window, -1)
    return value, contest.take(broadcast_to(places, cells.shape))


def _decompose_gather(attrs: MaxPool, x: Var, dx: Var) -> tuple[Var]:
    contest = _Contest(attrs, x)
    tangents = gather_windows(dx, contest.window)
    first = attrs.ties == "first"
    return (contest.take(tangents) if first else sum_over(contest.shared(tangents), -1),)


def _decompose_scatter(attrs: MaxPool, x: Var, g: Var) -> tuple[Var]:
    contest = _Contest(attrs, x)
    return (scatter_windows(contest.shared(reshape(g, (*g.shape, 1))), contest.window),)


def _max_box(node: BoundedNode, box: Box) -> list[Box]:
    """The value increases with every cell; a winner lies from the first to the last cell that none is surely above."""
    if not node.attrs.return_indices or not box.varies:
        return increasing(node, box)
    window = node.attrs.window(box.lower).trimmed()
    counted = [are_cells(axis) for axis in window.axes]
    numbers = box.lower.owner.share(np.arange(prod(window.sizes)).reshape(window.sizes), "places")
    lows, highs, places = (gather_competitors(v, window, counted) for v in (*box.ends, numbers))
    beaten, cell = less(highs, broadcast_to(_largest_of_last(lows), lows.shape)), mask(box.lower, counted)
    if cell is not None:
        beaten = maximum(beaten, equal(cell, False))
    places = broadcast_to(places, lows.shape)
    last = _largest_of_last(where(beaten, -1, places))
    first = minimum(-_largest_of_last(where(beaten, -prod(window.sizes), -places)), last)  # -1 where there is no cell
    return [increasing(node, box)[0], node.between(*(reshape(v, v.shape[:-1]) for v in (first, last)))]


MAX_POOL = Op(
    "max_pool",
    MaxPool,
    types=_max_types,
    spec=_max_spec,
    batch=leading_batch,
    jvp=_max_jvp,
    decompose=_decompose_max,
    crop=MaxPool.crop,
    enclosure=_max_box,
    relaxation=_max_lines,
    selects=True,
)


def _gather_types(attrs: MaxPool, x: TensorType, dx: TensorType) -> tuple[TensorType]:
    spec.require_ties(attrs.ties)
    require_floats("max_pool_gather", x, dx)
    if dx.shape != x.shape:
        raise ShapeError(f"the tangent is {dx}, and {x} is pooled; give it the same shape")
    return (attrs.pooled(x),)


def _scatter_types(attrs: MaxPool, x: TensorType, g: TensorType) -> tuple[TensorType]:
    spec.require_ties(attrs.ties)
    require_floats("max_pool_scatter", x, g)
    if g.shape != attrs.pooled(x).shape:
        raise ShapeError(f"the cotangent is {g}, and {x} is pooled to {attrs.pooled(x)}; give it that shape")
    return (x,)


def linear_in_second(op: Op, attrs: Attributes, primals: Sequence[Var], tangents: Sequence[Var | None]) -> JvpResult:
    """The JVP of an operator that is linear in its second operand and constant in its first."""
    (x, u), (_, du) = primals, tangents
    return [apply(op, attrs, x, u)], [None if du is None else apply(op, attrs, x, du)]


def _tied(attrs: MaxPool, x: TensorType, dx: TensorType) -> int:
    return 0 if attrs.ties == "first" else most_cells(attrs.window(x)) + 2


def _scattered(attrs: MaxPool, x: TensorType, g: TensorType) -> int:
    return most_windows(attrs.window(x)) + (2 if attrs.ties == "split" else 0)


def _certain_winner(node: BoundedNode, x: Box) -> tuple[Var, Var]:
    """The place of the largest upper end of each window, and whether that cell wins, whatever the cells are.

    Of equal cells the first wins, which it is: the upper ends of cells before it are less.
    """
    attrs = replace(node.attrs, return_indices=True)
    window = attrs.window(x.lower)
    _, places = apply_all(MAX_POOL, attrs, x.upper)
    least, others = max_gather(x.lower, places, window.rank), _others(window, x.upper, places)
    wins = node.at_least if attrs.ties == "first" else node.greater
    return places, wins(least, others)


def _gathered_box(node: BoundedNode, x: Box, dx: Box) -> Box:
    """The winner's tangent where that is certain, and anything between all of them elsewhere."""
    any_cell = _any_gathered(node, x, dx)
    if not x.varies:
        return any_cell
    places, certain = _certain_winner(node, x)
    taken = [max_gather(end, places, len(node.attrs.window(end).sizes)) for end in dx.ends]
    return node.between(*(where(certain, one, other) for one, other in zip(taken, any_cell.ends, strict=True)))


def _any_gathered(node: BoundedNode, x: Box, dx: Box) -> Box:
    """If any cell may win: the hull of all tangents, which contains their mean; of all that tie, any of them."""
    hull = over_windows(node, dx)
    if node.attrs.ties == "first":
        return hull
    if node.attrs.ties == "split":
        return node.around(hull.ends, _tied(node.attrs, x.lower.type, dx.lower.type))
    total = AvgPool(**windows_of(node.attrs), divisor_override=1)
    ends = minimum(dx.lower, 0.0), maximum(dx.upper, 0.0)
    sums = [apply(AVG_POOL, total, end) for end in ends]
    return node.around(sums, most_cells(node.attrs.window(x.lower)))


def over_windows(node: BoundedNode, u: Box) -> Box:
    """From the least to the largest cell of each window; 0 of one without cells."""
    largest = MaxPool(**windows_of(node.attrs))
    return node.between(-apply(MAX_POOL, largest, -u.lower), apply(MAX_POOL, largest, u.upper))


def _unless_split(attrs: MaxPool, *types: TensorType) -> float:
    return 0.0 if attrs.ties == "split" else 1.0


def _scattered_box(node: BoundedNode, x: Box, g: Box) -> Box:
    """Certain winners receive what they should, and any cell any part of what belongs to uncertain ones."""
    roundings = _scattered(node.attrs, x.lower.type, g.lower.type)
    if not x.varies:
        return parts_of(node, x.lower, g, roundings)
    places, certain = _certain_winner(node, x)
    window = node.attrs.window(x.lower)
    sent = [max_unpool(where(certain, end, 0.0), places, window.sizes) for end in g.ends]
    rest = node.between(*(where(certain, 0.0, end) for end in g.ends))
    parts = parts_of(node, x.lower, rest, roundings)
    return node.around([one + other for one, other in zip(sent, parts.ends, strict=True)], roundings + 1)


def parts_of(node: BoundedNode, x: Var, g: Box, roundings: int) -> Box:
    """The sum, over the windows that read a cell, of any part of ``g``."""
    sizes = node.attrs.window(x).sizes
    spread = AvgTranspose(**windows_of(node.attrs), divisor_override=1, sizes=sizes)
    ends = minimum(g.lower, 0.0), maximum(g.upper, 0.0)
    return node.around([apply(AVG_POOL_TRANSPOSE, spread, end) for end in ends], roundings)


def windows_of(attrs: Windows) -> dict[str, Any]:
    """The fields that say which windows there are."""
    return {f.name: getattr(attrs, f.name) for f in fields(Windows)}


MAX_POOL_GATHER: Op = Op(
    "max_pool_gather",
    MaxPool,
    types=_gather_types,
    spec=lambda attrs, x, dx: (spec.max_over_jvp(attrs.window(x), x, dx, attrs.ties, strict=False),),
    batch=leading_batch,
    sums=Sums(max_roundings=_tied, factors=(1,), fixed=(0,), coefficient_quantum=_unless_split),
    enclosure=_gathered_box,
    jvp=lambda attrs, primals, tangents: linear_in_second(MAX_POOL_GATHER, attrs, primals, tangents),
    decompose=_decompose_gather,
    transpose=lambda attrs, cotangents, operands, i: apply(MAX_POOL_SCATTER, attrs, operands[0], cotangents[0]),
)

MAX_POOL_SCATTER: Op = Op(
    "max_pool_scatter",
    MaxPool,
    types=_scatter_types,
    spec=lambda attrs, x, g: (spec.max_over_vjp(attrs.window(x), x, g, attrs.ties, strict=False),),
    batch=leading_batch,
    sums=Sums(max_roundings=_scattered, factors=(1,), fixed=(0,), coefficient_quantum=_unless_split),
    enclosure=_scattered_box,
    jvp=lambda attrs, primals, tangents: linear_in_second(MAX_POOL_SCATTER, attrs, primals, tangents),
    decompose=_decompose_scatter,
    transpose=lambda attrs, cotangents, operands, i: apply(MAX_POOL_GATHER, attrs, operands[0], cotangents[0]),
)


def max_pool(
    x: Operand,
    kernel_size: Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    ties: str = "first",
) -> Any:
    """The largest real cell of each window, and with ``return_indices`` the winner's position in its spatial plane.

    ``ties`` says which of several equal cells take part in derivatives: ``"first"``, ``"all"`` of them, or ``"split"``.

    >>> max_pool(np.float32([[1, 2, 3], [4, 5, 6], [7, 8, 9]]), (2, 2), 1).tolist()
    [[5.0, 6.0], [8.0, 9.0]]
    """
    (x,) = operands(x)
    spec.require_ties(ties)
    windows = sliding_windows("max_pool", x, kernel_size, stride, padding, dilation, ceil_mode)
    return _largest(windows, return_indices, ties, x)


def adaptive_max_pool(
    x: Operand, output_size: Sequence[int | None], return_indices: bool = False, *, ties: str = "first"
) -> Any:
    """The largest cell of each of ``output_size`` bins per axis; None keeps an axis as it is.

    >>> adaptive_max_pool(np.float32([0, 4, 1, 3, 2]), (3,)).tolist()
    [4.0, 4.0, 3.0]
    """
    (x,) = operands(x)
    spec.require_ties(ties)
    windows = adaptive_windows("adaptive_max_pool", x, output_size)
    return _largest(windows, return_indices, ties, x)


def _largest(windows: dict[str, Any], return_indices: bool, ties: str, x: Var) -> Any:
    results = apply_all(MAX_POOL, MaxPool(**windows, ties=ties, return_indices=bool(return_indices)), x)
    return results if return_indices else results[0]


def global_max_pool(x: Operand, rank: int = 2, keepdims: bool = True, *, ties: str = "first") -> Var:
    """The largest cell over the last ``rank`` axes, which become ones or, without ``keepdims``, are removed.

    >>> global_max_pool(np.float32([[[1, 3], [3, 2]]])).tolist()
    [[[3.0]]]
    """
    (x,) = operands(x)
    spec.require_ties(ties)
    y = apply(MAX_POOL, MaxPool(**global_windows("global_max_pool", x, rank), ties=ties), x)
    return _flattened(y, rank, keepdims)


# --- the average ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AvgPool(Windows):
    count_include_pad: bool = False
    divisor_override: int | float | None = None

    def divisor(self, like: Tensor) -> spec.Divisor:
        return spec.divisor_rule(like, self.count_include_pad, self.divisor_override)


@dataclass(frozen=True)
class AvgTranspose(AvgPool):
    """Average pooling read backwards, onto spatial axes of ``sizes``."""

    sizes: Index = ()

    @property
    def forward(self) -> AvgPool:
        return AvgPool(**{name: value for name, value in vars(self).items() if name != "sizes"})


def zero_of(dtype: DType) -> np.floating[Any]:
    """Zero as kernels compute with it: the small formats in float32."""
    return np.float64(0) if dtype == f64 else np.float32(0)


def _avg_types(attrs: AvgPool, x: TensorType) -> tuple[TensorType]:
    require_floats("avg_pool", x)
    with np.errstate(over="ignore"):
        attrs.divisor(Tensor((1,), [zero_of(x.dtype)]))
    return (attrs.pooled(x),)


def _transpose_types(attrs: AvgTranspose, g: TensorType) -> tuple[TensorType]:
    rank = len(attrs.sizes)
    x = TensorType(g.dtype, split_shape(g.shape, rank)[0] + attrs.sizes)
    (y,) = _avg_types(attrs, x)
    if y != g or g.ndim < rank:
        raise ShapeError(f"the cotangent is {g}, and windows over {attrs.sizes} need {y}")
    return (x,)


def _transpose_spec(attrs: AvgTranspose, g: Tensor) -> tuple[Tensor]:
    shape = split_shape(g.shape, len(attrs.sizes))[0] + attrs.sizes
    x = Tensor(shape, [g.zero] * int(np.prod(shape)))
    return (spec.mean_over_vjp(attrs.window(x), x, g, attrs.divisor(g)),)


Average = TypeVar("Average", bound=AvgPool)


def _positive(attrs: Average) -> Average:
    """The same windows with a positive divisor."""
    return attrs if attrs.divisor_override is None else replace(attrs, divisor_override=abs(attrs.divisor_override))


def _undivided(attrs: Average) -> Average:
    return replace(attrs, divisor_override=1)


def _averaged(attrs: AvgPool, x: TensorType) -> int:
    """The cells of the largest window, and the division of each or of their sum."""
    return most_cells(attrs.window(x)) + _divided(attrs, x)


def _divided(attrs: AvgPool, x: TensorType) -> int:
    if attrs.divisor_override is not None:
        return division(attrs.divisor_override, x.dtype)
    return division(prod(getattr(axis, "kernel", axis.size) for axis in attrs.window(x).axes), x.dtype)


def _average_quantum(attrs: AvgPool, x: TensorType) -> float:
    divisor = attrs.divisor_override
    return inverse_bit(common_count(attrs.window(x)) if divisor is None else divisor)


def _shared(attrs: AvgTranspose, g: TensorType) -> int:
    x = TensorType(g.dtype, attrs.sizes)
    return most_windows(attrs.window(x)) + _divided(attrs, x)


def _avg_transpose(attrs: AvgPool, cotangents: Sequence[Var], types: Sequence[TensorType], i: int) -> Var:
    sizes = split_shape(types[0].shape, attrs.window(types[0]).rank)[1]
    return apply(AVG_POOL_TRANSPOSE, AvgTranspose(**vars(attrs), sizes=sizes), cotangents[0])


def _count_taps(axis: AxisWindow, with_padding: bool) -> Array:
    """The taps, or the cells alone, of each window along an axis."""
    spans = [axis.positions(o) for o in range(axis.outputs)]
    return np.array([len(s) if with_padding else len(s[bisect_left(s, 0) : bisect_left(s, axis.size)]) for s in spans])


def _divisors(attrs: AvgPool, window: Window, like: Var) -> Var:
    """One for each window, or for all; a window without cells, whose sum is 0, has 1."""
    if attrs.divisor_override is not None:
        return exact_number(float(attrs.divisor_override), like)
    along = (_count_taps(axis, attrs.count_include_pad) for axis in window.axes)
    counts: Array = reduce(np.multiply.outer, along, np.asarray(1))
    most = int(counts.max())
    if (counts == most).all():
        return exact_number(float(max(most, 1)), like)
    return like.owner.share(np.maximum(counts, 1).astype(like.dtype.numpy), "counts")  # type: ignore[no-any-return]


def _decompose_average(attrs: AvgPool, x: Var) -> tuple[Var]:
    window = attrs.window(x)
    return (sum_windows(x, window.trimmed()) / _divisors(attrs, window, x),)


def _decompose_transpose(attrs: AvgTranspose, g: Var) -> tuple[Var]:
    window = attrs.window(TensorType(g.dtype, attrs.sizes))
    return (spread_windows(g / _divisors(attrs, window, g), window.trimmed()),)


AVG_POOL: Op = Op(
    "avg_pool",
    AvgPool,
    types=_avg_types,
    spec=lambda attrs, x: (spec.mean_over(attrs.window(x), x, attrs.divisor(x)),),
    batch=leading_batch,
    linear="jointly",
    crop=AvgPool.crop,
    sums=Sums(
        max_roundings=_averaged,
        absolute=lambda attrs, x: apply(AVG_POOL, _positive(attrs), x),
        coefficient_quantum=_average_quantum,
        unscaled=_undivided,
    ),
    transpose=_avg_transpose,
    decompose=_decompose_average,
)

AVG_POOL_TRANSPOSE: Op = Op(
    "avg_pool_transpose",
    AvgTranspose,
    types=_transpose_types,
    spec=_transpose_spec,
    batch=leading_batch,
    linear="jointly",
    sums=Sums(
        max_roundings=_shared,
        absolute=lambda attrs, g: apply(AVG_POOL_TRANSPOSE, _positive(attrs), g),
        unscaled=_undivided,
    ),
    transpose=lambda attrs, cotangents, types, i: apply(AVG_POOL, attrs.forward, cotangents[0]),
    decompose=_decompose_transpose,
)


def avg_pool(
    x: Operand,
    kernel_size: Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | float | None = None,
    *,
    dilation: Ints = 1,
) -> Var:
    """The sum of each window's real cells over its number of taps, of real cells, or ``divisor_override``.

    >>> avg_pool(np.ones((2, 2), np.float32), (2, 2), 1, 1).tolist()
    [[0.25, 0.5, 0.25], [0.5, 1.0, 0.5], [0.25, 0.5, 0.25]]
    """
    (x,) = operands(x)
    windows = sliding_windows("avg_pool", x, kernel_size, stride, padding, dilation, ceil_mode)
    attrs = AvgPool(
        **windows, count_include_pad=bool(count_include_pad), divisor_override=plain_number(divisor_override)
    )
    return apply(AVG_POOL, attrs, x)


def adaptive_avg_pool(x: Operand, output_size: Sequence[int | None]) -> Var:
    """The mean of each of ``output_size`` bins per axis; None keeps an axis as it is.

    >>> adaptive_avg_pool(np.float32([0, 1, 2, 3, 4]), (3,)).tolist()
    [0.5, 2.0, 3.5]
    """
    (x,) = operands(x)
    return apply(AVG_POOL, AvgPool(**adaptive_windows("adaptive_avg_pool", x, output_size)), x)


def global_avg_pool(x: Operand, rank: int = 2, keepdims: bool = True) -> Var:
    """The mean over the last ``rank`` axes, which become ones or, without ``keepdims``, are removed.

    >>> global_avg_pool(np.float32([[[1, 3], [3, 2]]])).tolist()
    [[[2.25]]]
    """
    (x,) = operands(x)
    return _flattened(apply(AVG_POOL, AvgPool(**global_windows("global_avg_pool", x, rank)), x), rank, keepdims)


def plain_number(value: Any) -> Any:
    """A number of any kind as an int or a float, which attributes may hold; anything else as it is."""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        return value
    return int(value) if isinstance(value, Integral) else float(value)
