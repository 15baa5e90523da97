"""Windows as passes over one to three axes, and tensors as the five axes that kernels see."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import gcd, prod
from typing import NamedTuple, TypeAlias

from gradspec.backends.tables import counted_taps, real_cells
from gradspec.spec.window import Adaptive, AxisWindow, Window

Shape: TypeAlias = tuple[int, ...]


# --- numbers of a launch ----------------------------------------------------------------------------------------------


class LaneArguments(NamedTuple):
    """The places of a launch, one for each lane, and the strides of tensors along its five axes."""

    total: int
    cuts: tuple[tuple[int, int, int], ...]
    """For every axis but the first: its size n, ⌈2^shift / n⌉ and shift; see ``pool_kernels.divide_index``."""
    x: Shape
    """The strides of a tensor of cells."""
    y: Shape
    """The strides of a tensor of outputs."""
    t: Shape = ()
    """The strides of a table of numbers, one for each output of a plane."""


class AxisSizes(NamedTuple):
    """The cells and the outputs of an axis."""

    size: int
    outputs: int
    lo: int
    """The padding before."""


# --- constants --------------------------------------------------------------------------------------------------------


class LaneBlock(NamedTuple):
    """The lanes of a program."""

    size: int
    axes: int
    """A bit for every axis but the first that has more than one index."""
    wide: bool
    """Whether offsets need 64 bits."""
    side: int = 1
    """Numbers of a lane beside each other along the inner axis."""


class AxisWindows(NamedTuple):
    """The windows along an axis."""

    taps: int = 1
    stride: int = 1
    dilation: int = 1
    bins: int = 0
    """1 for bins of different widths, 2 if there are few of them; see ``pool_kernels.scale_index``."""
    edges: bool = False
    """Whether windows have taps without cells, or some have fewer taps than others."""
    readers: int = 1
    """By how many outputs a cell is read, at most."""
    padding: int = 0
    """The padding before, where vectors are read by it."""


class AxisTile(NamedTuple):
    """Neighbouring cells along an axis, whole strides or a period of its bins, and the outputs that read them; see
    ``pool_kernels.cover_tiles``."""

    taps: int
    stride: int
    bins: bool
    cells: int
    outputs: int
    """Strides or bins of a tile."""
    left: int
    """What is left of the padding when whole strides are taken away."""
    first: int
    """The first of the outputs, counted from the one that begins where the tile does without padding."""
    readers: int
    padding: int = 0
    """The padding before, where vectors are read by it."""


class Operation(NamedTuple):
    """What a pass computes. Kinds are those of ``pool_kernels``."""

    kind: int
    lowest: float | int = 0
    factor: float = 1
    """What cells are multiplied by first; 0: their absolute values are taken."""
    p: float = 0.0
    """β, or the exponent of a norm."""
    split: bool = False
    """Whether cells that tie share a derivative."""
    places: bool = False
    """Whether winners are told by their places in the plane."""
    inverse: bool = False
    """Whether sums are multiplied by the numbers of outputs, and not divided by them."""
    states: bool = False
    """Whether cells are states of an earlier pass."""
    moves: bool = False
    """Whether tangents are given."""
    last: bool = True
    """Whether no pass comes after this one."""
    gives: int = 0
    """Bits for what is stored: a value, the state's w, its tangent; and that the value is v, not what it stands for."""
    none: int = -1
    """What stands for no winner."""
    hollow: bool = False
    """Whether a window has no cell."""
    only: float | None = None
    """The one number of all outputs, or None if a table has one for each."""


# --- passes -----------------------------------------------------------------------------------------------------------


FEW_TAPS, DEEP_TAPS = 25, 27
"""Windows of at most so many taps are reduced along two axes at once, and along three."""
FAR = 2**31 - 2**24
"""Offsets below this have 32 bits."""


class PassAxis(NamedTuple):
    """One axis of a pass."""

    dim: int | None
    """Which axis of the tensor; None for one of a single cell, which no tensor has."""
    size: int = 1
    outputs: int = 1
    lo: int = 0
    taps: int = 1
    stride: int = 1
    dilation: int = 1
    bins: int = 0
    """1 for bins of different widths, 2 if there are few of them; see ``pool_kernels.scale_index``."""
    readers: int = 1
    """By how many outputs a cell is read, at most."""
    hollow: bool = False
    """Whether an output reads no cell."""
    also: Shape = ()
    """Axes of the tensor before that one which are part of this one, and lie in memory as one with it."""

    @property
    def sizes(self) -> AxisSizes:
        return AxisSizes(self.size, self.outputs, self.lo)

    @property
    def windows(self) -> AxisWindows:
        return AxisWindows(self.taps, self.stride, self.dilation, self.bins)

    def reduced(self, strip: int = 1) -> AxisWindows:
        """The windows when so many at once are reduced."""
        return self.windows._replace(edges=self.has_edges or self.outputs % strip > 0)

    @property
    def has_edges(self) -> bool:
        """Whether windows have taps without cells, or some have fewer taps than others."""
        end = (self.outputs - 1) * self.stride + (self.taps - 1) * self.dilation - self.lo
        return self.bins > 0 or self.lo > 0 or end >= self.size

    @property
    def is_whole(self) -> bool:
        """Whether all cells are one window."""
        return self.outputs == 1 and self.taps == self.size and self.dilation == 1 and not self.lo

    def has_whole_blocks(self, cells: int) -> bool:
        """Whether no two outputs read any of every so many cells."""
        is_disjoint = self.taps == self.stride and self.dilation == 1 and not self.bins
        return is_disjoint and self.stride % cells == 0 and self.lo % cells == 0

    @property
    def dims(self) -> Shape:
        return () if self.dim is None else (*self.also, self.dim)

    @property
    def does_nothing(self) -> bool:
        return self.taps == 1 and self.size == self.outputs and not self.lo and (self.stride == 1 or self.size <= 1)


NO_AXIS = PassAxis(None)


def _axis(dim: int, axis: AxisWindow) -> PassAxis:
    n, m = axis.size, axis.outputs
    if isinstance(axis, Adaptive):
        if n % m == 0:
            return PassAxis(dim, n, m, 0, n // m, n // m)
        # Cell i is read by the bins from ⌊i·m/n⌋ to ⌊((i+1)·m − 1)/n⌋.
        readers = max(((i + 1) * m - 1) // n - i * m // n + 1 for i in range(n))
        return PassAxis(dim, n, m, 0, int(counted_taps(axis).max()), 1, 1, 2 if n * m < 2**20 else 1, readers)
    taps, stride, dilation = axis.kernel, axis.stride, axis.dilation
    readers = -(-taps // stride) if dilation == 1 else taps
    hollow = bool((real_cells(axis) == 0).any())
    return PassAxis(dim, n, m, axis.lo, taps, stride, dilation, 0, readers, hollow)


def tile(axis: PassAxis, strides: int) -> AxisTile:
    """A tile of so many strides, or of as many cells as bins begin anew after; the axis has no dilation.

    >>> tile(PassAxis(0, size=9, outputs=5, lo=1, taps=3, stride=2), 1)[3:8]  # cells, outputs, left, first, readers
    (2, 1, 1, 0, 2)
    >>> tile(PassAxis(0, size=14, outputs=4, taps=4, bins=2), 1)[3:8]
    (7, 2, 0, 0, 2)
    """
    if axis.bins:
        common = gcd(axis.size, axis.outputs)
        cells, outputs = axis.size // common, axis.outputs // common
        return AxisTile(axis.taps, axis.stride, True, cells, outputs, 0, 0, outputs)
    cells, left = strides * axis.stride, axis.lo % axis.stride
    first, last = -((axis.taps - 1 - left) // axis.stride), (left + cells - 1) // axis.stride
    return AxisTile(axis.taps, axis.stride, False, cells, strides, left, first, last - first + 1)


class Pass(NamedTuple):
    """Windows along one to three axes of a tensor."""

    row: PassAxis
    col: PassAxis
    inner: int
    """How many cells of the plane the axes have that were reduced before."""
    deep: PassAxis = NO_AXIS
    """The axis before rows."""

    @property
    def axes(self) -> tuple[PassAxis, PassAxis, PassAxis]:
        return self.deep, self.row, self.col

    @property
    def taps(self) -> int:
        return prod(axis.taps for axis in self.axes)

    @property
    def is_hollow(self) -> bool:
        """Whether a window has no cell."""
        return any(axis.hollow for axis in self.axes)

    def output_shape(self, shape: Shape) -> Shape:
        sizes = list(shape)
        for axis in self.axes:
            for d in axis.dims:
                sizes[d] = axis.outputs
        return tuple(sizes)


def passes(
    window: Window, ndim: int, few: int = FEW_TAPS, places: bool = False, deep: bool = False
) -> tuple[Pass, ...]:
    """The passes that reduce a window of a tensor of ``ndim`` axes: the last axes first, so that of cells that tie the
    first in row-major order is met first. Windows of at most ``few`` taps take two axes in a pass, or ``deep`` ones
    three, and windows of all cells are one axis. With ``places``, axes take part along which nothing is pooled, but
    which tell places apart.

    >>> from gradspec.spec.window import regular
    >>> [(step.row.taps, step.col.taps) for step in passes(regular((9, 9, 9), (3, 3, 3)), 4)]
    [(3, 3), (3, 1)]
    >>> [[axis.taps for axis in step.axes] for step in passes(regular((9, 9, 9), (3, 3, 3)), 4, deep=True)]
    [[3, 3, 3]]
    >>> [(step.row.taps, step.col.taps) for step in passes(regular((9, 9), (7, 7)), 4)]
    [(7, 1), (7, 1)]
    >>> [(step.row.taps, step.col.taps) for step in passes(regular((9, 9), (9, 9)), 4)]
    [(81, 1)]
    """
    first = ndim - window.rank
    axes = [_axis(first + i, axis) for i, axis in enumerate(window.trimmed().axes)]
    waiting = [axis for axis in axes if not axis.does_nothing or (places and axis.size > 1)]
    if not waiting:
        return (Pass(axes[-1] if axes else NO_AXIS, NO_AXIS, 1),)
    found = []
    while waiting:
        last = waiting.pop()
        inner = prod(window.sizes[last.dims[-1] - first + 1 :])
        while waiting and _are_one(waiting[-1], last):
            last = _merge(waiting.pop(), last)
        is_next = waiting and waiting[-1].dim == last.dims[0] - 1
        if is_next and waiting[-1].taps * last.taps <= few:
            row = waiting.pop()
            is_deep = deep and waiting and _may_be_deep(waiting[-1], row, last)
            found.append(Pass(row, last, inner, waiting.pop() if is_deep else NO_AXIS))
        else:
            found.append(Pass(last, NO_AXIS, inner))
    return tuple(found)


def _may_be_deep(axis: PassAxis, row: PassAxis, col: PassAxis) -> bool:
    is_next = axis.dim is not None and row.dim == axis.dim + 1
    return is_next and not axis.bins and 1 < axis.taps <= DEEP_TAPS // (row.taps * col.taps)


def _are_one(axis: PassAxis, after: PassAxis) -> bool:
    """Whether two axes are one window of many cells."""
    is_next = axis.dim == after.dims[0] - 1
    return is_next and axis.is_whole and after.is_whole and axis.taps * after.taps > FEW_TAPS


def _merge(axis: PassAxis, after: PassAxis) -> PassAxis:
    n = axis.size * after.size
    return PassAxis(after.dim, n, 1, 0, n, n, also=(*axis.dims, *after.also))


def fit_strides(shape: Shape, like: Shape, steps: Sequence[Pass]) -> Shape:
    """Strides of a tensor without gaps, in the order of others, in which what is one axis for a pass lies as one.

    >>> from gradspec.spec.window import regular
    >>> shape, steps = (2, 5, 6, 7), passes(regular((6, 7), (6, 7)), 4)
    >>> fit_strides(shape, (210, 1, 35, 5), steps), fit_strides(shape, (210, 7, 35, 1), steps)
    ((210, 1, 35, 5), (210, 42, 7, 1))
    """
    strides = dense_strides(shape, like)
    runs = [step.row.dims for step in steps]
    lie_as_one = all(strides[a] == shape[b] * strides[b] for dims in runs for a, b in pairwise(dims))
    return strides if lie_as_one else dense_strides(shape, range(len(shape), 0, -1))


# --- tensors as five axes ---------------------------------------------------------------------------------------------


class Lanes(NamedTuple):
    """The lanes of a launch: ``(outer, outer, row, column, inner)`` of tensors, each with strides of its own."""

    arguments: LaneArguments
    axes: int
    """A bit for every axis but the first that has more than one index."""
    wide: bool
    """Whether offsets need 64 bits."""


def _cut(n: int) -> tuple[int, int, int]:
    """What lanes are divided by: ``n``, and the number that a product takes its place with; see ``divide_index``."""
    shift = 31 + max(n - 1, 0).bit_length()
    return n, -(-(1 << shift) // max(n, 1)), shift


def lanes(
    shape: Shape,
    strides: Sequence[Shape],
    row: PassAxis,
    col: PassAxis,
    rows: int,
    cols: int,
    each: int = 1,
    deep: PassAxis = NO_AXIS,
) -> Lanes:
    """Lanes for ``rows`` × ``cols`` places and all indices of the other axes of ``shape``, ``each`` of the inner one.

    ``strides`` are those of several tensors whose axes lie in one order: what lies beside a row and a column is then at
    most two axes outside or between them, and one inside. The second outside is the ``deep`` one if there is any.
    """
    none: Group = (1, (0,) * len(strides))
    outer, inside = _beside(shape, strides, row, col, deep)
    inner = inside or none
    if deep.dim is not None:
        outer = [*(outer or [none]), (shape[deep.dim], tuple(s[deep.dim] for s in strides))]
    if len(outer) > 2:
        raise ValueError(
            f"axes of sizes {shape} with strides {strides} beside {row} and {col} are more than lanes have"
        )
    outer = [none] * (2 - len(outer)) + outer
    sides = [tuple(s[axis.dim] if axis.dim is not None else 0 for s in strides) for axis in (row, col)]
    counts = (outer[0][0], outer[1][0], rows, cols, inner[0] // each)
    found = tuple(zip(outer[0][1], outer[1][1], *sides, inner[1], strict=True))
    sizes = [max(n, *(axis.size for axis in (row, col, deep) if axis.dim == d), n) for d, n in enumerate(shape)]
    farthest = max(sum((n - 1) * step for n, step in zip(sizes, s, strict=True)) for s in strides)
    reach = max((axis.outputs - 1) * axis.stride + axis.taps * axis.dilation for axis in (row, col, deep))
    bits = sum(1 << i for i, n in enumerate(counts[1:]) if n > 1)
    arguments = LaneArguments(prod(counts), tuple(map(_cut, counts[1:])), *found)
    return Lanes(arguments, bits, max(prod(counts), farthest, reach) >= FAR)


def have_lanes(shape: Shape, strides: Sequence[Shape], step: Pass) -> bool:
    """Whether the axes beside those of a pass are few enough."""
    outer, _ = _beside(shape, strides, step.row, step.col, step.deep)
    return len(outer) <= (2 if step.deep.dim is None else 1)


Group: TypeAlias = tuple[int, Shape]
"""Axes that lie as one in all tensors: size, and strides in every tensor."""


def _beside(
    shape: Shape, strides: Sequence[Shape], row: PassAxis, col: PassAxis, deep: PassAxis
) -> tuple[list[Group], Group | None]:
    """What lies outside or between the axes of a pass, outermost first, and what lies inside all of them."""
    groups = _merge_axes(shape, strides, (*row.dims, *col.dims, *deep.dims))
    steps = [strides[0][axis.dim] for axis in (row, col, deep) if axis.dim is not None]
    is_inside = groups and all(groups[-1][1][0] < step for step in steps)
    return (groups[:-1], groups[-1]) if is_inside else (groups, None)


def _merge_axes(shape: Shape, strides: Sequence[Shape], without: Shape) -> list[Group]:
    """The other axes, as few as they can be, outermost first: sizes, and strides in every tensor."""
    others = [d for d in range(len(shape)) if d not in without and shape[d] > 1]
    groups: list[Group] = []
    for d in sorted(others, key=lambda d: -strides[0][d]):
        steps = tuple(s[d] for s in strides)
        if groups and groups[-1][1] == tuple(shape[d] * step for step in steps):
            groups[-1] = groups[-1][0] * shape[d], steps
        else:
            groups.append((shape[d], steps))
    return groups


def dense_strides(shape: Sequence[int], like: Sequence[int]) -> Shape:
    """Strides of a tensor without gaps whose axes lie in the order of those with the strides ``like``.

    >>> dense_strides((2, 3, 4), (12, 1, 3))
    (12, 1, 3)
    """
    strides, step = [0] * len(shape), 1
    for d in sorted(range(len(shape)), key=lambda d: -like[d])[::-1]:
        strides[d], step = step, step * max(shape[d], 1)
    return tuple(strides)
