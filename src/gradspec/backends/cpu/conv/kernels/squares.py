"""Windows of three by three cells, one channel at a time: depthwise convolutions, where there is nothing to pack.

A register tile would read each cell once for every tap. Here several rows of outputs are summed up at once: a cell is
read once for each of the three columns of taps, and serves all the rows of outputs that it lies under.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from gradspec.codegen.intrinsics import load, multiply_add, spread, store
from gradspec.codegen.language import Type, at_build, inlined, outlined, unrolled
from gradspec.codegen.processor import Processor

SIDE = 3
WIDE = 4
"""Vectors of outputs that are made at once."""


class Cells(NamedTuple):
    """Where staged cells begin, the bytes between their rows and between the cells of a row that neighbouring taps
    meet, and the nine factors, row by row."""

    x: Any
    pitch: Any
    step: Any
    factors: Any


class Outputs(NamedTuple):
    """Where outputs go, the bytes between their rows, and the number that is added to all."""

    y: Any
    pitch: Any
    bias: Any


@at_build
def rows_over(i: int, rows: int) -> range:
    """The rows of outputs that row ``i`` of cells lies under."""
    return range(max(0, i - SIDE + 1), min(rows, i + 1))


@dataclass(frozen=True)
class Square:
    """So many rows and vectors of outputs."""

    number: Type
    rows: int
    vectors: int
    processor: Processor

    @property
    def vector(self) -> Type:
        return self.number.of(self.processor.lanes(self.number.bytes))

    @property
    def columns(self) -> int:
        return self.vectors * self.processor.lanes(self.number.bytes)

    @outlined
    def run(self, cells, outputs):
        register, size = self.processor.register_bytes, self.number.bytes
        factors = tuple(spread(self.vector)(load(self.number)(cells.factors + i * size)) for i in range(SIDE * SIDE))
        sums = tuple(tuple(self.vector(0) for _ in range(self.vectors)) for _ in range(self.rows))
        for i in unrolled(self.rows + SIDE - 1):
            for t in unrolled(SIDE):
                row = cells.x + cells.pitch * i + cells.step * t
                read = tuple(load(self.vector)(row + j * register) for j in range(self.vectors))
                sums = tuple(
                    tuple(
                        multiply_add(read[j], factors[(i - r) * SIDE + t], sums[r][j])
                        if r in rows_over(i, self.rows)
                        else sums[r][j]
                        for j in range(self.vectors)
                    )
                    for r in range(self.rows)
                )
        bias = spread(self.vector)(load(self.number)(outputs.bias))
        for r in unrolled(self.rows):
            for j in unrolled(self.vectors):
                store(sums[r][j] + bias, outputs.y + outputs.pitch * r + j * register)


@dataclass(frozen=True)
class Squares:
    """Rows of outputs of numbers of a type."""

    number: Type
    processor: Processor

    def square(self, rows: int, vectors: int) -> Square:
        return Square(self.number, rows, vectors, self.processor)

    @property
    def bands(self) -> tuple[tuple[Square, Square], ...]:
        """Several rows at once, or one; wide squares, and narrow ones for what is left of a row."""
        heights = (self.processor.most_rows // 2, 1)
        return tuple((self.square(rows, WIDE), self.square(rows, 1)) for rows in heights)

    @outlined
    def run(self, cells, outputs, rows, n):
        """Rows of ``n`` outputs, at least one vector each."""
        done = 0
        for wide, narrow in self.bands:
            while done + wide.rows <= rows:
                here = Cells(cells.x + done * cells.pitch, cells.pitch, cells.step, cells.factors)
                run_band(wide, narrow, here, Outputs(outputs.y + done * outputs.pitch, outputs.pitch, outputs.bias), n)
                done += wide.rows


@inlined
def run_band(wide, narrow, cells, outputs, n):
    """The last vectors of a row begin earlier where they would reach beyond its end: outputs may be written twice."""
    done, size = 0, wide.number.bytes
    while done + wide.columns <= n:
        wide.run(moved(cells, done * size), Outputs(outputs.y + done * size, outputs.pitch, outputs.bias))
        done += wide.columns
    while done < n:
        at = min(done, n - narrow.columns)
        narrow.run(moved(cells, at * size), Outputs(outputs.y + at * size, outputs.pitch, outputs.bias))
        done += narrow.columns


@inlined
def moved(cells, by):
    return Cells(cells.x + by, cells.pitch, cells.step, cells.factors)
