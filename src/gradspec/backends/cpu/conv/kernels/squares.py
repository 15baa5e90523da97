"""Windows of three by three cells, one channel at a time: depthwise convolutions, where there is nothing to pack.

A register tile would read each cell once for every tap. Here several rows of outputs are summed up at once: a cell is
read once for each of the three columns of taps, and serves all the rows of outputs that it lies under.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from gradspec.backends.cpu.matmul.kernels.tiles import bytes_at, words_at
from gradspec.codegen.intrinsics import load, multiply_add, prefetch, spread, store
from gradspec.codegen.language import Type, at_build, inlined, outlined, unrolled
from gradspec.codegen.processor import Processor

SIDE = 3
SUMS, MOST_VECTORS = 8, 4
"""Vectors of sums that run at once, which hides the time that an addition takes, and how many of a row."""


class Cells(NamedTuple):
    """The table of the addresses of rows, how many bytes behind these the first cells are, the bytes between the cells
    of a row that neighbouring taps meet, and the nine factors, row by row."""

    rows: Any
    at: Any
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
    def run(self, cells, outputs, n):
        """Rows of ``n`` outputs, at least so many as there are columns. The last ones begin earlier where they would
        reach beyond the end: outputs may be written twice."""
        size = self.number.bytes
        factors = tuple(spread(self.vector)(load(self.number)(cells.factors + i * size)) for i in range(SIDE * SIDE))
        bias = spread(self.vector)(load(self.number)(outputs.bias))
        rows = tuple(words_at(cells.rows)[i] + cells.at for i in range(self.rows + SIDE - 1))
        for done in range(0, n, self.columns):
            at = min(done, n - self.columns) * size
            self.put(self.sums(rows, at, cells.step, factors), bias, outputs.y + at, outputs.pitch)

    @inlined
    def sums(self, rows, at, step, factors):
        register = self.processor.register_bytes
        sums = tuple(tuple(self.vector(0) for _ in range(self.vectors)) for _ in range(self.rows))
        for i in unrolled(self.rows + SIDE - 1):
            for t in unrolled(SIDE):
                row = rows[i] + at + step * t
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
        return sums

    @inlined
    def put(self, sums, bias, y, pitch):
        """Write outputs, and have the place of those below them fetched."""
        for r in unrolled(self.rows):
            prefetch(bytes_at(y + pitch * (r + self.rows)), 0)
            for j in unrolled(self.vectors):
                store(sums[r][j] + bias, y + pitch * r + j * self.processor.register_bytes)


@dataclass(frozen=True)
class Squares:
    """Rows of outputs of numbers of a type."""

    number: Type
    processor: Processor

    @property
    def lanes(self) -> int:
        return self.processor.lanes(self.number.bytes)

    @property
    def vector(self) -> Type:
        return self.number.of(self.lanes)

    def square(self, rows: int, vectors: int) -> Square:
        return Square(self.number, rows, vectors, self.processor)

    @property
    def bands(self) -> tuple[tuple[Square, Square], ...]:
        """Several rows at once, or one; wide squares, and narrow ones for what is left of a row."""
        heights = (self.processor.most_rows // 2, 1)
        return tuple((self.square(rows, min(SUMS // rows, MOST_VECTORS)), self.square(rows, 1)) for rows in heights)
