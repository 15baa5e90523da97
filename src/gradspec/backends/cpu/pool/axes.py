"""Spatial axes as pooling kernels reduce them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from gradspec.backends.cpu.pool.arguments import AxisKind
from gradspec.backends.tables import Ints, bin_spans, real_cells
from gradspec.spec.window import Adaptive, AxisWindow, Window

FAR = 1024
"""Cells that kernels walk over at negligible cost."""


@dataclass(frozen=True)
class ReducedAxis:
    """An axis that is reduced from cells to outputs, or, transposed, from outputs to cells."""

    kind: AxisKind
    size: int
    outputs: int
    kernel: int
    window: AxisWindow
    """The window whose taps are counted; of a transposed axis, the outputs of the window are the inputs."""
    stride: int = 1
    low: int = 0
    dilation: int = 1

    @property
    def reach(self) -> int:
        return self.dilation * (self.kernel - 1)

    @property
    def is_one_bin(self) -> bool:
        return self.kind is AxisKind.BINS and self.outputs == 1

    @property
    def is_one_cell(self) -> bool:
        """Whether a transposed axis has one input."""
        return self.kind is AxisKind.BINS and self.size == 1

    @property
    def is_disjoint(self) -> bool:
        """Whether no two windows share a cell."""
        return self.is_one_bin or (self.kind is AxisKind.SLIDING and self.stride > self.reach)

    @property
    def ends_with_windows(self) -> bool:
        """Whether windows do not overlap, and the last stride ends where the axis does."""
        cells, windows = (self.outputs, self.size) if self.kind is AxisKind.EXPANDING else (self.size, self.outputs)
        is_regular = self.kind is not AxisKind.BINS and self.low == 0 and self.stride > self.reach
        return is_regular and cells == windows * self.stride

    @property
    def is_empty_somewhere(self) -> bool:
        """Whether a window has padding only."""
        if self.kind is not AxisKind.SLIDING:
            return False
        if self.dilation == 1 and self.size:  # without gaps, some windows miss the cells only if an outermost one does
            return self.low >= self.kernel or (self.outputs - 1) * self.stride - self.low >= self.size
        return not real_cells(self.window).all()

    @property
    def inside(self) -> tuple[int, int]:
        """The first output of sliding windows whose taps are all real, and the first after these."""
        first = min(-(-self.low // self.stride), self.outputs)
        end = (self.size - 1 - self.reach + self.low) // self.stride + 1
        return first, min(max(end, first), self.outputs)

    @property
    def spans(self) -> Ints:
        """Without dilation: the first cell that each output reads, and how many these are."""
        if self.kind is AxisKind.BINS:
            return bin_spans(Adaptive(self.size, self.outputs))
        o = np.arange(self.outputs)
        begin, end = o * self.stride - self.low, o * self.stride - self.low + self.kernel
        if self.kind is AxisKind.EXPANDING:
            begin, end = -((self.kernel - 1 - o - self.low) // self.stride), (o + self.low) // self.stride + 1
        begin = np.maximum(begin, 0)
        return np.stack([begin, np.minimum(end, self.size) - begin], axis=1)

    @property
    def slots(self) -> int:
        """The most rows that a window combines."""
        if self.kind is not AxisKind.EXPANDING:
            return self.kernel
        stride = self.stride // gcd(self.stride, self.dilation)  # among the windows of one residue class
        return -(-self.kernel // stride) + 1

    @property
    def scans(self) -> bool:
        """Whether prefixes and suffixes cost less than direct combination: three joins per row against one per tap."""
        return self.kind is AxisKind.SLIDING and self.kernel > 4 * self.stride + 3

    @property
    def doubles(self) -> bool:
        """The same along the last axis, where runs are doubled."""
        return self.kind is AxisKind.SLIDING and self.kernel >= (8 if self.stride <= 2 else 4 * self.stride)


def one_bin(size: int) -> ReducedAxis:
    """An axis that one window covers."""
    return ReducedAxis(AxisKind.BINS, size, 1, size, Adaptive(size, 1))


def as_bin(axis: ReducedAxis) -> ReducedAxis:
    """An axis as one bin, if one window covers it."""
    is_whole = axis.outputs == axis.dilation == 1 and axis.low == 0 and axis.kernel == axis.size
    return replace(one_bin(axis.size), window=axis.window) if is_whole else axis


def merge_axes(before: ReducedAxis, axis: ReducedAxis, has_transpose: bool) -> ReducedAxis | None:
    """Two neighbouring axes as one, if one bin covers both."""
    if not has_transpose and before.is_one_bin and axis.is_one_bin:
        return one_bin(before.size * axis.size)
    if has_transpose and before.is_one_cell and axis.is_one_cell:
        return transpose_axis(one_bin(before.outputs * axis.outputs))
    return None


def one_row() -> ReducedAxis:
    """An axis of one cell, which turns a row into a plane."""
    return ReducedAxis(AxisKind.SLIDING, 1, 1, 1, Adaptive(1, 1))


def reduced_axis(window: AxisWindow) -> ReducedAxis:
    if not isinstance(window, Adaptive):
        w = window.trimmed()
        return ReducedAxis(AxisKind.SLIDING, w.size, w.outputs, w.kernel, window, w.stride, w.lo, w.dilation)
    size, outputs = window.size, window.outputs
    if size % outputs == 0 and outputs > 1:
        return ReducedAxis(AxisKind.SLIDING, size, outputs, size // outputs, window, stride=size // outputs)
    # In lowest terms n/m, bin o has ⌈(r + n)/m⌉ cells, where r = o·n mod m is every remainder once, m − 1 too.
    cells, bins = size // gcd(size, outputs), outputs // gcd(size, outputs)
    return ReducedAxis(AxisKind.BINS, size, outputs, (cells - 2) // bins + 2, window)


def transpose_axis(axis: ReducedAxis) -> ReducedAxis:
    """The axis on which cells reduce the windows that cover them."""
    size, outputs = axis.outputs, axis.size
    if axis.kind is AxisKind.BINS:
        # Bin o of m reaches cell p of n exactly if cell p of n, as a bin, reaches bin o of m as a cell.
        return replace(reduced_axis(Adaptive(size, outputs)), window=axis.window)
    if axis.stride == 1:
        return replace(axis, size=size, outputs=outputs, low=axis.reach - axis.low)
    return replace(axis, kind=AxisKind.EXPANDING, size=size, outputs=outputs)


def reduced_axes(window: Window) -> tuple[ReducedAxis, ...]:
    """The axes of a window; one cell where it has none.

    >>> reduced_axes(Window(()))[0].size
    1
    """
    return tuple(map(reduced_axis, window.axes)) or (reduced_axis(Adaptive(1, 1)),)


def reaches_far(window: Window) -> bool:
    """Whether windows, or their taps, are so far apart that kernels would walk over padding, unlike NumPy."""
    return any(max(axis.stride, axis.dilation) > max(4 * axis.size, FAR) for axis in reduced_axes(window))
