"""Records that kernels of several families are given: axes of two arrays, rows of results, windows seen from a tap.

The source is what a kernel reads, the target what it writes. Strides count elements, or bytes where numbers only move.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from gradspec.codegen.records import Record, Words

TILE = 2048
"""Results of a row that are made at a time, about."""
MOST_AXES = 64
"""Of an array, as NumPy has it."""
PLACE_BYTES = 8 * MOST_AXES
"""What a workspace begins with: a word for each axis that an array can have."""


@dataclass(frozen=True)
class StridedAxis(Record):
    """An axis that is walked in two arrays at once."""

    size: int
    source_stride: int
    target_stride: int


@dataclass(frozen=True)
class Grid(Record):
    """Places along several axes, the last one fastest."""

    axes: tuple[StridedAxis, ...]


@dataclass(frozen=True)
class RowPieces(Record):
    """Planes of results, of which each unit of work makes a piece of a row."""

    planes: Grid
    rows: int
    """Of a plane."""
    tile: int
    """Results of a piece."""
    tiles: int
    """Pieces of a row."""

    @property
    def units(self) -> int:
        return prod(axis.size for axis in self.planes.axes) * self.rows * self.tiles


@dataclass(frozen=True)
class TapAxis(StridedAxis):
    """Outputs of regular windows. The source's stride leads from the cells of an output to those of the next one."""

    kernel: int
    cell_stride: int
    tap_stride: int
    """Where taps have places of their own in the target."""
    ranges: Words
    """For each tap the cell of output 0, the first output whose cell is real, and the end of these."""
