"""Pooling as launches: value, push (JVP) and pull (VJP) of every pooling operator.

A window is reduced pass by pass. Derivatives go back the same way: the winners, or the states, that each pass found are
its tape. No two lanes write to one cell and sums have a fixed order, so that every run gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np
import torch

from gradspec.backends.tables import counted_taps, real_cells
from gradspec.backends.triton import pool_kernels as kernels
from gradspec.backends.triton.geometry import (
    FEW_TAPS,
    NO_AXIS,
    AxisTile,
    Lanes,
    Operation,
    Pass,
    PassAxis,
    Shape,
    dense_strides,
    fit_strides,
    have_lanes,
    lanes,
    passes,
    tile,
)
from gradspec.backends.triton.plans import Operator, Planner, Rule, Slot, operator
from gradspec.graph.types import TensorType, f32
from gradspec.ops.pool import AvgPool, AvgTranspose, MaxPool, Windows
from gradspec.ops.smooth_pool import SmoothPool
from gradspec.spec.window import Window

LANES, FOLDED, IN_VECTORS = 128, 1024, 4
"""Lanes of a program, numbers of a block that is folded, and how many times as many of one that is read in vectors."""
MOST_CELLS = 64
"""Cells that a lane reads for outputs above each other, which have rows in common, at most."""
INNER_BYTES = 8
"""What a lane reads at once of 8 or 16 bits each, along an axis inside those that are pooled."""
SIDE: int = kernels.SIDE.value
MOST_VECTORS, APART_VECTORS, BESIDE_TAPS = 128, 8, 256
"""Outputs side by side of a lane; vectors of as many cells that it reads, also where windows share no row, and taps of
windows, at most."""
MOST_PAIRS, TILE_CELLS, BIN_PAIRS, BIN_READERS = 400, 64, 256, 32
"""Pairs of a cell of a tile and a tap that reads it, at most, and its cells, as many as ``join_vector`` joins; pairs of
a cell and one of the tile's bins, and its bins, since every number of bins is another kernel."""

VALUE, STATE, TANGENT, RAW = 1, 2, 4, 8
"""What a pass writes; RAW: the state's v in the place of the value that it stands for."""

Slots = tuple[Slot, ...]


def computed(dtype: torch.dtype) -> torch.dtype:
    """The format that numbers of ``dtype`` are added up in."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


class PoolKind(Operation):
    """What is reduced, the same for all passes."""

    def operation(self, **of_pass: Any) -> Operation:
        return Operation(*self)._replace(**of_pass)

    @property
    def is_heavy(self) -> bool:
        """Whether states are joined by functions that are long when compiled."""
        return self.kind in (kernels.SOFT.value, kernels.NORM.value)

    @property
    def is_plain(self) -> bool:
        """Whether a state is one number, with its place at most."""
        return self.kind in (kernels.MAX.value, kernels.WINNER.value, kernels.SUM.value)

    @property
    def few_taps(self) -> int:
        """Taps of a window that is reduced along two axes at once, at most."""
        return 16 if self.is_heavy else FEW_TAPS

    @property
    def is_exact(self) -> bool:
        """Whether v is one of the cells."""
        return self.kind in (kernels.MAX.value, kernels.WINNER.value, kernels.TIED.value)

    @property
    def carried(self) -> int:
        """What one pass leaves for the next."""
        return VALUE if self.kind in (kernels.MAX.value, kernels.SUM.value) else VALUE | STATE

    def state_dtype(self, step: Pass, dtype: torch.dtype) -> torch.dtype:
        if self.kind == kernels.TIED.value:
            return torch.int32
        if self.kind != kernels.WINNER.value:
            return computed(dtype)
        return torch.int64 if self.places else torch.uint8 if step.taps <= NONE else torch.int32


NONE = 255
"""Stands for no winner in one byte; elsewhere −1 does."""


def _max(dtype: torch.dtype, **settings: Any) -> PoolKind:
    return PoolKind(kernels.MAX.value, _lowest(dtype), **settings)


def _winner(dtype: torch.dtype, **settings: Any) -> PoolKind:
    return PoolKind(kernels.WINNER.value, _lowest(dtype), **settings)


def _lowest(dtype: torch.dtype) -> float | int:
    return -inf if dtype.is_floating_point else torch.iinfo(dtype).min


class PassState(NamedTuple):
    """What a pass reads, or has found: v, and w and u where the kind has them."""

    v: Slot | None = None
    w: Slot | None = None
    u: Slot | None = None

    @property
    def written(self) -> Slots:
        return tuple(slot for slot in self if slot is not None)

    @property
    def any(self) -> Slot:
        return self.written[0]


# --- windows reduced --------------------------------------------------------------------------------------------------


def _forward(
    p: Planner, kind: PoolKind, window: Window, x: Slot, u: Slot | None = None, gives: int = VALUE, table: Any = 0.0
) -> list[PassState]:
    """What each pass finds; of the last, what ``gives`` asks for. ``table``: a number for each output of a plane."""
    steps = _steps(kind, window, x, table)
    x = p.lay_out(x, _operand_strides(x, steps, table))
    states = [PassState(x, None, None if u is None else p.lay_out(u, x.strides))]
    for step in steps:
        is_last = step is steps[-1]
        asked = gives if is_last else kind.carried | (TANGENT if u is not None else 0)
        given = _allocate(p, kind, step, states[-1].any, x.dtype, asked, is_last)
        if not given.any.is_empty:
            numbers = _numbers(p, table if is_last else 0.0, given.any, x.dtype)
            _reduce(p, kind, step, states[-1], given, numbers, len(states) == 1, is_last, asked)
        states.append(given)
    return states


def _steps(kind: PoolKind, window: Window, x: Slot, table: Any) -> tuple[Pass, ...]:
    """Where nothing but values is found, one pass if windows lie side by side, or passes over three axes at once if
    cells lie so that lanes go on like that."""
    if kind.carried == VALUE:
        steps = passes(window, len(x.shape), BESIDE_TAPS)
        laid = x._replace(strides=_operand_strides(x, steps, table))
        outputs = dense_strides(steps[0].output_shape(x.shape), laid.strides)
        if len(steps) == 1 and _beside(kind, steps[0], laid, outputs):
            return steps
    steps = passes(window, len(x.shape), kind.few_taps, kind.places, kind.carried == VALUE and np.ndim(table) <= 3)
    order = (dense_strides(x.shape, x.strides),)
    is_deep = all(have_lanes(x.shape, order, step) for step in steps if step.deep.dim is not None)
    return steps if is_deep else passes(window, len(x.shape), kind.few_taps, kind.places)


def _operand_strides(x: Slot, steps: Sequence[Pass], table: Any) -> Shape:
    """Strides of the cells when they are pooled."""
    outputs = reduce(lambda shape, step: step.output_shape(shape), steps, x.shape)
    return fit_strides(x.shape, _order(outputs, x.strides, steps, table), steps)


def _order(outputs: Shape, strides: Shape, steps: Sequence[Pass], table: Any) -> Shape:
    """The order of memory in which cells are pooled: that of ``strides``, or row by row where outputs have numbers and,
    among axes in that order, these make more of them than lanes have."""
    rank, lying = np.ndim(table), dense_strides(outputs, strides)
    first = len(outputs) - rank
    numbers = (0,) * first + dense_strides(outputs[first:], lying[first:])
    is_free = not rank or have_lanes(outputs, (lying, numbers), steps[-1])
    return strides if is_free else tuple(range(len(outputs), 0, -1))


def _allocate(
    p: Planner, kind: PoolKind, step: Pass, before: Slot, dtype: torch.dtype, asked: int, is_last: bool
) -> PassState:
    shape = step.output_shape(before.shape)
    strides = dense_strides(shape, before.strides)
    stored = dtype if kind.is_exact or (is_last and not asked & RAW) else computed(dtype)
    dtypes = stored, kind.state_dtype(step, dtype), dtype if is_last else computed(dtype)
    return PassState(
        *[p.empty(shape, strides, d) if asked & bit else None for bit, d in zip((1, 2, 4), dtypes, strict=True)]
    )


class NumbersOf(NamedTuple):
    """A number for each output of a plane, or only one."""

    table: Slot
    only: float | None


def _numbers(p: Planner, numbers: Any, y: Slot, dtype: torch.dtype) -> NumbersOf:
    """In the order in which outputs lie in ``y``."""
    rank = np.ndim(numbers)
    if not rank:
        return NumbersOf(y._replace(strides=(0,) * len(y.shape)), float(numbers))
    order = dense_strides(np.shape(numbers), y.strides[-rank:])
    array = torch.empty_strided(np.shape(numbers), order, dtype=computed(dtype)).copy_(torch.as_tensor(numbers))
    return NumbersOf(p.constant(array, y.shape, (0,) * (len(y.shape) - rank) + order), None)


def _reduce(
    p: Planner, kind: PoolKind, step: Pass, before: PassState, given: PassState, numbers: NumbersOf, is_first: bool,
    is_last: bool, gives: int,
) -> None:  # fmt: skip
    """One pass from ``before`` to ``given``, whose tensors are written. Winners' taps are those of this pass alone."""
    x, y, (row, col, inner, deep) = before.any, given.any, step
    strides = x.strides, y.strides, numbers.table.strides
    beside = _beside(kind, step, x, *strides[1:])
    is_plain_winner = kind.kind == kernels.WINNER.value and not kind.places
    operation = kind.operation(
        states=not is_first and not is_plain_winner and beside is None, moves=before.u is not None, last=is_last,
        gives=gives, none=_none(given.w), hollow=step.is_hollow, only=numbers.only,
    )  # fmt: skip
    written = [*(y if s is None else s for s in given), numbers.table]
    if beside is not None:
        (row, col), strip = beside, beside.strip
        slots = [p.align(x, SIDE), before.u or x, *written]
        places = lanes(y.shape, strides, row, col, -(-row.outputs // strip), col.outputs // SIDE)
        constants = operation, row.reduced(strip), col.reduced()._replace(padding=col.lo), strip
        p.launch(kernels.reduce_vectors, places, LANES, slots, [row.sizes, col.sizes], *constants)
        return
    slots = [*(x if s is None else s for s in before), *written]
    is_long = row.taps * col.taps > FEW_TAPS
    strip = 1 if is_long else _strip(kind, step, x)
    places = lanes(y.shape, strides, row, col, -(-row.outputs // strip), col.outputs, deep=deep)
    if is_long:
        assert col.dim is None, "fold reduces rows alone"
        whole = row.taps if row.is_whole and _are_vectors(row, row.size, _outside(row, x)) else 0
        if whole:
            p.align(x, SIDE)
        block, across = _folding(kind, row, x, whole)
        windows = row.windows._replace(taps=1)
        p.launch(kernels.fold, places, block, slots, [row.sizes, inner, row.taps], operation, windows, whole, across)
    else:
        block, arguments = LANES if strip > 1 else 2 * LANES, [row.sizes, col.sizes, inner, deep.sizes]
        side = _side(step, x, places)
        if side > 1:
            places, block = lanes(y.shape, strides, row, col, row.outputs, col.outputs, side, deep), LANES
            for slot in dict.fromkeys(slots[:3]):
                p.align(slot, side)
        windows_of_axes = row.reduced(strip), col.reduced(), deep.reduced()
        p.launch(kernels.reduce, places, block, slots, arguments, operation, *windows_of_axes, strip, side=side)


def _side(step: Pass, x: Slot, places: Lanes) -> int:
    """How many numbers beside each other, along the axis inside those of a pass, a lane reads at once: where windows
    share cells, lanes for single numbers that share rows take less time, and more than 16 bits fill a warp's reads."""
    n, ((_, *cuts), given, found) = INNER_BYTES // x.dtype.itemsize, places.arguments[1:4]
    are_apart = all(axis.stride >= axis.taps and not axis.bins for axis in step.axes)
    are_vectors = given[4] == found[4] == 1 and _are_multiples(n, cuts[-1][0], (*given[:4], *found[:4]))
    return n if x.dtype.itemsize < 4 and are_apart and are_vectors else 1


class Beside(NamedTuple):
    """Rows, and columns that lie side by side, of a pass whose outputs are found some at once."""

    row: PassAxis
    col: PassAxis

    @property
    def vectors(self) -> int:
        """What a lane reads of a row."""
        col = self.col
        return -(-col.lo // SIDE) + ((SIDE - 1) * col.stride + col.taps - 1 - col.lo) // SIDE + 1

    @property
    def strip(self) -> int:
        """How many outputs above each other share what they read."""
        row = self.row
        most = (MOST_VECTORS if row.stride < row.taps else APART_VECTORS) // self.vectors
        strips = (8, 4, 2) if row.stride == 1 else (4, 2)
        rows = {n: (n - 1) * row.stride + row.taps for n in strips if n <= row.outputs}
        return next((n for n, read in rows.items() if read <= most), 1)


def _beside(kind: PoolKind, step: Pass, x: Slot, y: Shape, *others: Shape) -> Beside | None:
    """The axes of a pass as ``reduce_vectors`` takes them, if it does. ``y``: the outputs' strides."""
    row, col = _across(step, x, y, *others)
    if not kind.is_plain or kind.factor == 0 or kind.places or step.deep.dim is not None or not _is_fastest(col, x):
        return None
    is_regular = not any(axis.bins or axis.dilation > 1 or axis.also for axis in (row, col))
    are_whole = _are_vectors(col, col.size, x.strides) and _are_vectors(col, col.outputs, y)
    found = Beside(row, col)
    return found if is_regular and are_whole and row.taps * found.vectors <= MOST_VECTORS else None


def _across(step: Pass, x: Slot, *others: Shape) -> tuple[PassAxis, PassAxis]:
    """Rows and columns of a pass over one or two axes. Columns of one over a single axis lie side by side: they are
    that axis, or one along which nothing is pooled, if lanes have room for it. ``others``: strides beside those of
    ``x``."""
    row, col = step.row, step.col
    if col.dim is not None:
        return row, col
    if _is_fastest(row, x):
        return NO_AXIS, row
    sizes = enumerate(zip(x.shape, x.strides, strict=True))
    col = next((PassAxis(d, n, n) for d, (n, step) in sizes if n > 1 == step), NO_AXIS)
    return row, col if have_lanes(x.shape, (x.strides, *others), Pass(row, col, 1)) else NO_AXIS


def _none(winners: Slot | None) -> int:
    return NONE if winners is not None and winners.dtype is torch.uint8 else -1


def _strip(kind: PoolKind, step: Pass, x: Slot) -> int:
    """How many outputs above each other share what they read; not if they lie side by side in memory."""
    row, col, _, deep = step
    if row.dilation > 1 or row.bins or row.stride >= row.taps or _is_fastest(row, x):
        return 1
    most = FEW_TAPS if x.dtype is torch.float64 and kind.is_heavy else MOST_CELLS // (1 + kind.is_heavy)
    strips = (8, 4, 2, 1) if row.stride == 1 else (4, 2, 1)
    across = col.taps * deep.taps
    return next((n for n in strips if row.outputs >= n and ((n - 1) * row.stride + row.taps) * across <= most), 1)


def _folding(kind: PoolKind, row: PassAxis, x: Slot, whole: int) -> tuple[int, int]:
    """Outputs and taps of a block: as many taps as there are if these lie side by side, else more outputs. Registers
    hold more of them where rows are read in vectors."""
    across = 1 << (row.taps - 1).bit_length()
    if whole and kind.is_plain and x.dtype is not torch.float64:
        across = min(across, FOLDED)
        return IN_VECTORS * FOLDED // across, across
    across = min(across, 256 if row.dim is not None and x.strides[row.dim] == min(x.strides) else 32)
    return FOLDED // across, across


# --- windows read backwards -------------------------------------------------------------------------------------------


def _backward(
    p: Planner, kind: PoolKind, window: Window, g: Slot, states: Sequence[PassState], shape: Shape, table: Any = 0.0
) -> Slot:
    """Cotangents of the cells, from those of the outputs: the passes in reverse. ``states``: what cells are read by."""
    steps, dtype, shapes = passes(window, len(shape), kind.few_taps), g.dtype, [shape]
    for step in steps:
        shapes.append(step.output_shape(shapes[-1]))
    for n, step in reversed([*enumerate(steps)]):
        is_last, before, after = step is steps[-1], states[n], states[n + 1]
        order = _order(g.shape, g.strides, steps, table) if is_last else g.strides
        order = after.any.strides if any(after) else dense_strides(g.shape, order)
        cells = fit_strides(shapes[n], order if before.v is None else before.v.strides, steps)
        g = p.lay_out(g, order if any(after) else dense_strides(g.shape, cells))
        dx = p.empty(shapes[n], cells, computed(dtype) if n else dtype)
        if not dx.is_empty:
            numbers = _numbers(p, table if is_last else 0.0, g, dtype)
            _cover(p, kind, step, g, before, after, dx, numbers, n == 0, is_last)
        g = dx
    return g


def _cover(
    p: Planner, kind: PoolKind, step: Pass, g: Slot, before: PassState, after: PassState, dx: Slot, numbers: NumbersOf,
    is_first: bool, is_last: bool,
) -> None:  # fmt: skip
    row, col = _across(step, dx, g.strides, numbers.table.strides)
    tiles = _tiles(kind, row, col, dx, g)
    if tiles is not None and tiles.beside:
        g, after = p.align(g, SIDE), after._replace(w=None if after.w is None else p.align(after.w, SIDE))
    slots = [g, after.v or g, after.w or g, before.v or dx, before.w or dx, dx, numbers.table]
    operation = kind.operation(split=kind.split and is_last, states=not is_first, last=is_last, only=numbers.only)
    strides = dx.strides, g.strides, numbers.table.strides
    if tiles is None:
        wide = _side_by_side(lanes(dx.shape, strides, row, col, row.size, col.size), col, dx)
        is_inner = not _is_fastest(col, dx)
        across, inner = (1, wide) if is_inner else (wide, 1)
        places = lanes(dx.shape, strides, row, col, row.size, col.size // across, inner)
        are_alike = not is_inner and col.has_whole_blocks(wide)
        windows = (axis.windows._replace(readers=axis.readers) for axis in (row, col))
        p.launch(
            kernels.cover, places, LANES, slots, [row.sizes, col.sizes], operation, *windows, wide, is_inner, are_alike
        )
        return
    down, right, beside = tiles
    joint = _joint(row, col, tiles, dx)
    places = lanes(dx.shape, strides, row, col, -(-row.size // down.cells), -(-col.size // right.cells))
    constants = operation, down, right._replace(padding=col.lo if beside else 0), beside, *joint
    p.launch(kernels.cover_tiles, places, LANES, slots, [row.sizes, col.sizes], *constants)


def _side_by_side(places: Lanes, col: PassAxis, dx: Slot) -> int:
    """How many cells of a lane lie side by side, along columns or the last axis, where those of all lanes begin at a
    multiple of as many."""
    numbers = places.arguments
    fastest = [cut[0] for cut, step in zip(numbers.cuts[2:], numbers.x[3:], strict=True) if step == 1 < cut[0]]
    widths = [n for n in (8, 4, 2) if fastest and n * dx.dtype.itemsize <= 16]
    return next((n for n in widths if _are_multiples(n, fastest[-1], _outside(col, dx))), 1)


class Tiles(NamedTuple):
    down: AxisTile
    across: AxisTile
    beside: bool
    """Whether outputs are read side by side."""


def _tiles(kind: PoolKind, row: PassAxis, col: PassAxis, dx: Slot, g: Slot) -> Tiles | None:
    """Tiles of a few cells along an axis whose cells lie side by side; along others, some rows if windows overlap by
    more than half. None where which tap reads which cell is not known beforehand, or there are many."""
    is_fastest = _is_fastest(col, dx)
    are_vectors = is_fastest and kind.is_plain and col.stride in (1, 2, 4) and _are_vectors(col, col.size, dx.strides)
    wide = 2 if is_fastest and not are_vectors else 4
    if any(axis.dilation > 1 or axis.stride > wide for axis in (row, col)) or _is_fastest(row, dx):
        return None
    most = FEW_TAPS if dx.dtype is torch.float64 and kind.is_heavy else MOST_PAIRS // (1 + 4 * kind.is_heavy)
    across_cells = 2 * SIDE if col.stride == SIDE and _are_multiples(2 * SIDE, col.size, dx.strides) else SIDE
    across = tile(col, across_cells // col.stride if are_vectors else 2 if col.stride == 1 < col.taps else 1)
    if row.bins or col.bins:
        down = tile(row, 1)
        cells, readers = down.cells * across.cells, down.readers * across.readers
        is_small = cells <= TILE_CELLS and readers <= BIN_READERS and cells * readers <= BIN_PAIRS
        return Tiles(down, across, False) if kind.is_plain and is_small else None
    for strides in (4, 2, 1):
        down = tile(row, strides)
        cells = down.cells * across.cells
        is_small = cells <= TILE_CELLS and cells * row.readers * col.readers <= most
        if is_small and down.cells <= max(row.size, row.stride):
            return Tiles(down, across, are_vectors and col.stride == 1 and _are_vectors(col, col.outputs, g.strides))
    return None


def _joint(row: PassAxis, col: PassAxis, tiles: Tiles, dx: Slot) -> tuple[int, bool]:
    """Whether the cells of a tile are written side by side: a number that those of a row begin at a multiple of, and
    whether its rows follow each other."""
    down, across, _ = tiles
    apart = _apart(across.cells, col.size, dx.strides)
    if not _is_fastest(col, dx) or not (col.bins or 1 < apart == across.cells):
        return 0, False
    others = tuple(step for d, step in enumerate(dx.strides) if d != row.dim)
    is_flat = col.size == across.cells and row.dim is not None and dx.strides[row.dim] == col.size
    if is_flat and row.size % down.cells == 0:
        return _apart(down.cells * across.cells, row.size * col.size, others), True
    return apart, False


def _apart(cells: int, size: int, strides: Shape) -> int:
    """Tiles of so many cells of a row begin at a multiple of this."""
    return next(n for n in (8, 4, 2, 1) if cells % n == 0 and _are_multiples(n, size, strides))


def _is_fastest(axis: PassAxis, of: Slot) -> bool:
    """Whether cells along an axis lie side by side."""
    return axis.dim is not None and of.strides[axis.dim] == 1 and of.shape[axis.dim] > 1


def _outside(axis: PassAxis, of: Slot) -> Shape:
    """Strides, but for those that an axis takes in itself."""
    return tuple(1 if d in axis.also else step for d, step in enumerate(of.strides))


def _are_multiples(n: int, size: int, strides: Shape) -> bool:
    """Whether all rows of so many cells, which lie side by side, begin and end at a multiple of ``n``."""
    return size % n == 0 and all(step % n == 0 for step in strides if step > 1)


def _are_vectors(axis: PassAxis, size: int, strides: Shape) -> bool:
    """Whether so many cells along an axis lie side by side, whole vectors of them."""
    return axis.dim is not None and strides[axis.dim] == 1 and _are_multiples(SIDE, size, strides)


# --- the maximum ------------------------------------------------------------------------------------------------------


def _max_pool(p: Planner, attrs: MaxPool, x: Slot) -> Slots:
    if not attrs.return_indices:
        return (_forward(p, _max(x.dtype), attrs.window(x), x)[-1].any,)
    last = _forward(p, _winner(x.dtype, places=True), attrs.window(x), x, gives=VALUE | STATE)[-1]
    return last.any, _present(last.w)


def _winners(p: Planner, window: Window, x: Slot) -> list[PassState]:
    return _forward(p, _winner(x.dtype), window, x, gives=VALUE | STATE)[1:]


def _max_with_tape(p: Planner, attrs: MaxPool, x: Slot) -> Slots:
    """The largest cells, and the winners of every pass: for each output which tap of its window won, in one byte if
    there are no more than 255."""
    found = _winners(p, attrs.window(x), x)
    return found[-1].any, *(_present(state.w) for state in found)


def _present(slot: Slot | None) -> Slot:
    assert slot is not None
    return slot


def _take_tangents(p: Planner, window: Window, tape: Sequence[Slot], u: Slot) -> Slot:
    """The tangents of the winners."""
    steps = passes(window, len(u.shape))
    for (row, col, _, _), winners in zip(steps, tape, strict=True):
        u = p.lay_out(u, fit_strides(u.shape, winners.strides, steps))
        y = p.empty(winners.shape, winners.strides, u.dtype)
        if not y.is_empty:
            places = lanes(y.shape, (u.strides, y.strides), row, col, row.outputs, col.outputs)
            windows = row.windows._replace(taps=1), col.windows
            arguments, none = [row.sizes, col.sizes], _none(winners)
            p.launch(kernels.take, places, 4 * LANES, [winners, u, y], arguments, none, *windows)
        u = y
    return u


def _scatter_to_winners(p: Planner, window: Window, tape: Sequence[Slot], g: Slot, shape: Shape) -> Slot:
    """The cotangents, sent to the winners among the cells of a tensor of this shape."""
    states = [PassState(), *(PassState(None, winners) for winners in tape)]
    return _backward(p, _winner(g.dtype), window, g, states, shape)


def _max_with_tangent(p: Planner, attrs: MaxPool, x: Slot, dx: Slot, gives: int = VALUE | TANGENT) -> Slots:
    """The largest cells and their tangents, or what ``gives`` asks for."""
    window = attrs.window(x)
    steps = passes(window, len(x.shape))
    if attrs.ties == "first" and (len(steps) > 1 or steps[0].taps > FEW_TAPS):
        found = _winners(p, window, x)
        tangents = _take_tangents(p, window, [_present(state.w) for state in found], dx)
        return (found[-1].any, tangents) if gives & VALUE else (tangents,)
    kind = _winner(x.dtype) if attrs.ties == "first" else _tied(attrs)
    return _forward(p, kind, window, x, dx, gives)[-1].written


def _max_pull(p: Planner, attrs: MaxPool, x: Slot, g: Slot) -> Slots:
    window = attrs.window(x)
    if attrs.ties == "first":
        return (_scatter_to_winners(p, window, [_present(state.w) for state in _winners(p, window, x)], g, x.shape),)
    states = _forward(p, _tied(attrs), window, x, gives=VALUE | STATE)
    return (_backward(p, _tied(attrs), window, g, states, x.shape),)


def _tied(attrs: MaxPool) -> PoolKind:
    return PoolKind(kernels.TIED.value, -inf, split=attrs.ties == "split")


class TapeSettings(NamedTuple):
    """Which windows a tape is of, and the shape of what they read."""

    attrs: MaxPool
    shape: Shape


def _scatter(p: Planner, settings: TapeSettings, g: Slot, *tape: Slot) -> Slots:
    window = settings.attrs.window(TensorType(f32, settings.shape))
    return (_scatter_to_winners(p, window, tape, g, settings.shape),)


# --- the average ------------------------------------------------------------------------------------------------------


def _counts(window: Window) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Taps and real cells of each output of a plane."""
    axes = [(counted_taps(axis), real_cells(axis)) for axis in window.axes]
    taps, cells = (np.asarray(prod(np.ix_(*(a[i] for a in axes)), start=np.float64(1))) for i in (0, 1))
    return taps, cells


def _collapse(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """One number if they are all alike."""
    return numbers.reshape(-1)[0] if numbers.size and (numbers == numbers.flat[0]).all() else numbers


def _divisors(attrs: AvgPool, window: Window) -> Any:
    """What the sums of the windows of a plane are divided by."""
    if attrs.divisor_override is not None:
        return float(attrs.divisor_override)
    taps, cells = _counts(window)
    return _collapse(taps if attrs.count_include_pad else np.maximum(cells, 1))


def _have_inverses(divisors: Any, dtype: torch.dtype) -> bool:
    """Whether inverses of divisors neither overflow nor lose bits below the least normal number."""
    limits = torch.finfo(computed(dtype))
    with np.errstate(over="ignore"):
        inverses = np.abs(np.reciprocal(divisors))
    return bool(((inverses >= limits.tiny) & (inverses <= limits.max)).all())


def _avg_pool(p: Planner, attrs: AvgPool, x: Slot) -> Slots:
    """Sums, divided; a multiplication by the inverse of a power of two gives the same bits."""
    window = attrs.window(x)
    divisors = _divisors(attrs, window)
    inverse = bool((np.abs(np.frexp(divisors)[0]) == 0.5).all()) and _have_inverses(divisors, x.dtype)
    kind = PoolKind(kernels.SUM.value, inverse=inverse)
    return (_forward(p, kind, window, x, table=np.reciprocal(divisors) if inverse else divisors)[-1].any,)


def _avg_spread(p: Planner, attrs: AvgTranspose, g: Slot) -> Slots:
    """The transpose: every cell receives ``g / divisor`` of the windows that read it. Those of many taps take one pass
    if it is the sum of a window of outputs."""
    shape = (*g.shape[: len(g.shape) - len(attrs.sizes)], *attrs.sizes)
    window = attrs.window(TensorType(f32, shape))
    divisors, steps, readers = _divisors(attrs, window), passes(window, len(shape)), window.trimmed().mirrored()
    kind = PoolKind(kernels.SUM.value, inverse=_have_inverses(divisors, g.dtype))
    if readers is not None and not np.ndim(divisors) and kind.inverse and len(steps) > 1:
        of_readers = kind._replace(factor=1 / float(divisors))
        if len(_steps(of_readers, readers, g, 1.0)) == 1:
            return (_forward(p, of_readers, readers, g, table=1.0)[-1].any,)
    states = [PassState()] * (1 + len(steps))
    factors = np.reciprocal(divisors) if kind.inverse else divisors
    return (_backward(p, kind, window, g, states, shape, factors),)


# --- the smooth maximum -----------------------------------------------------------------------------------------------


def _soft(attrs: SmoothPool) -> PoolKind:
    return PoolKind(kernels.SOFT.value, -inf, factor=1 if attrs.beta > 0 else -1, p=abs(attrs.beta))


def _zeros(attrs: SmoothPool, window: Window) -> Any:
    """How many zeros of padding take part, for each output of a plane."""
    taps, cells = _counts(window)
    return _collapse(taps - cells) if attrs.padding_mode == "zeros" else 0.0


def _smooth_max_pool(p: Planner, attrs: SmoothPool, x: Slot) -> Slots:
    window = attrs.window(x)
    return (_forward(p, _soft(attrs), window, x, table=_zeros(attrs, window))[-1].any,)


def _smooth_max_with_tangent(p: Planner, attrs: SmoothPool, x: Slot, dx: Slot, gives: int = VALUE | TANGENT) -> Slots:
    """The value and its tangent, the mean of tangents by the weights ``softmax(β·x)``; or what ``gives`` asks for."""
    window = attrs.window(x)
    return _forward(p, _soft(attrs), window, x, dx, gives, _zeros(attrs, window))[-1].written


def _smooth_max_spread(p: Planner, attrs: SmoothPool, x: Slot, g: Slot) -> Slots:
    """The transpose of the mean."""
    window = attrs.window(x)
    states = _forward(p, _soft(attrs), window, x, None, VALUE | STATE | RAW, _zeros(attrs, window))
    return (_backward(p, _soft(attrs), window, g, states, x.shape),)


# --- norms ------------------------------------------------------------------------------------------------------------


def _lp_pool(p: Planner, attrs: Any, x: Slot) -> Slots:
    kind = _max(x.dtype, factor=0) if attrs.p == inf else PoolKind(kernels.NORM.value, factor=0, p=attrs.p)
    return (_forward(p, kind, attrs.window(x), x)[-1].any,)


# --- operators --------------------------------------------------------------------------------------------------------

RULES: dict[str, Rule] = {
    "max_pool": _max_pool,
    "max_pool_gather": partial(_max_with_tangent, gives=TANGENT),
    "max_pool and max_pool_gather": _max_with_tangent,
    "max_pool_scatter": _max_pull,
    "avg_pool": _avg_pool,
    "avg_pool_transpose": _avg_spread,
    "smooth_max_pool": _smooth_max_pool,
    "smooth_max_mean": partial(_smooth_max_with_tangent, gives=TANGENT),
    "smooth_max_pool and smooth_max_mean": _smooth_max_with_tangent,
    "smooth_max_spread": _smooth_max_spread,
    "lp_pool": _lp_pool,
}
"""How the operators of graphs are carried out, some in one with their tangents."""


def kernel(name: str, attrs: Windows) -> Operator:
    """An operator of graphs, or two in one, as a function of tensors on a GPU."""
    return operator(RULES[name], attrs)


def taped(attrs: MaxPool) -> Operator:
    """The largest cells with a tape of winners, as a function of a tensor."""
    return operator(_max_with_tape, attrs)


def sent(attrs: MaxPool, shape: Shape) -> Operator:
    """Cotangents of a tensor of this shape, as a function of those of its largest cells and the tape."""
    return operator(_scatter, TapeSettings(attrs, shape))
