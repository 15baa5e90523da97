"""Regular windows as those kernels see them that read them tap by tap (``tap_fields``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from struct import pack

import numpy as np
from numpy.typing import NDArray

from gradspec.backends.cpu.axes import Axis, Strides, merged
from gradspec.backends.cpu.kernels import tap_fields as f
from gradspec.codegen.addresses import address
from gradspec.spec.window import Regular, Window

TILE = 2048
"""Numbers of a row that are made at a time, about."""
POINT = Regular(1, 1, 1, 0, 0, 1, 1)
"""What stands for no axis at all."""


def regular_axes(window: Window) -> tuple[Regular, ...]:
    """The axes of a regular window; one of a single cell where it has none.

    >>> regular_axes(Window(()))[0].size
    1
    """
    return tuple(axis for axis in window.axes if isinstance(axis, Regular)) or (POINT,)


def parts(sizes: Sequence[int], stride: int) -> Strides:
    """The strides of axes that are one axis, of this stride, in an array.

    >>> parts((2, 3, 4), 10)
    (120, 40, 10)
    """
    return tuple(stride * prod(sizes[i + 1 :]) for i in range(len(sizes)))


Table = NDArray[np.int64]


class Tables:
    """The tables of an axis, which kernels read as long as this lives."""

    def __init__(self, axis: Regular, has_readers: bool = False) -> None:
        self.ranges = _ranges(axis)
        self.readers = _readers(axis, self.ranges) if has_readers else self.ranges[:0]

    @property
    def addresses(self) -> tuple[int, int]:
        return address(self.ranges), address(self.readers)


def _ranges(axis: Regular) -> Table:
    """For each tap the cell of output 0, the first output whose cell is real, and the end of these.

    >>> _ranges(Regular(size=5, kernel=3, stride=2, lo=1, hi=1, dilation=1, outputs=3)).tolist()
    [[-1, 1, 3], [0, 0, 3], [1, 0, 2]]
    """
    start = np.arange(axis.kernel) * axis.dilation - axis.lo
    first = np.clip(-(start // axis.stride), 0, axis.outputs)
    end = np.clip(-((start - axis.size) // axis.stride), first, axis.outputs)
    return np.ascontiguousarray(np.stack([start, first, end], axis=1), np.int64)


def _readers(axis: Regular, ranges: Table) -> Table:
    """Where the readers of each cell begin, and then the readers, tap and output, in the order of the taps."""
    counts = ranges[:, f.END] - ranges[:, f.FIRST]
    taps = np.repeat(np.arange(axis.kernel), counts)
    outputs = np.concatenate([np.arange(first, end) for _, first, end in ranges])
    cells = ranges[taps, f.START] + outputs * axis.stride
    order = np.argsort(cells, kind="stable")
    starts = np.searchsorted(cells[order], np.arange(axis.size + 1))
    pairs = np.stack([taps[order], outputs[order]], axis=1)
    return np.concatenate([2 * starts, pairs.reshape(-1)]).astype(np.int64)


@dataclass(frozen=True)
class Windows:
    """Windows over arrays of known strides."""

    axes: Sequence[Regular]
    tables: Sequence[Tables]
    leads: Sequence[Axis]
    """Leading axes, with their strides in what is read and in what is written."""
    cells: Strides
    taps: Strides
    outputs: Strides

    def words(
        self, rows: int = 1, tile: int = 0, tiles: int = 1, sums_at: int = 0, numbers: Sequence[int] = ()
    ) -> bytes:
        """Everything behind the addresses."""
        leads = merged(self.leads)
        at = f.HEADER + f.LEAD * len(leads)
        words = [len(leads), at, len(self.axes), prod(axis.kernel for axis in self.axes), rows, tile, tiles, sums_at]
        words += [at + f.AXIS * len(self.axes), *(word for size, strides in leads for word in (size, *strides))]
        for axis, tables, *strides in zip(self.axes, self.tables, self.cells, self.taps, self.outputs, strict=True):
            words += [axis.size, axis.kernel, axis.outputs, axis.stride, *strides, *tables.addresses]
        words += numbers
        return pack(f"<{len(words)}q", *words)


def aligned(size: int) -> int:
    """Bytes that a part of a workspace takes.

    >>> aligned(65)
    128
    """
    return -(-size // 64) * 64
