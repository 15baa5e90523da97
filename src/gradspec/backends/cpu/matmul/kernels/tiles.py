"""Register tiles: the innermost loop of every matrix product and convolution.

A tile is ``rows`` by ``vectors`` accumulators that stay in registers while

    c[i, j] = Σ_k a[k, i] · b[k, j]

runs over ``k``. ``a`` is a panel: the numbers of one ``k`` lie side by side, ``rows`` of them. ``b`` is read where it
lies: a table says how many bytes behind ``b`` the columns of each ``k`` begin, so that a convolution's patches are
never written down: overlapping windows are overlapping stretches of the same rows. Every product is added by one
fused instruction, in the order of ``k``, whatever the tile: a result does not depend on where its tile lies.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag
from typing import Any, NamedTuple

from gradspec.codegen.intrinsics import in_all_lanes, load, multiply_add, prefetch, store
from gradspec.codegen.language import Type, Value, i64, inlined, lanes, outlined, pointer, u8, unrolled
from gradspec.codegen.processor import Processor

PREFETCH_BYTES = 2048
"""Bytes of a panel that are asked for before they are needed: panels stream through the first cache."""
CACHE_LINE = 64

bytes_at, words_at = pointer(u8), pointer(i64)


class Also(IntFlag):
    """What is added to sums beside the products: what lies there, and then a number for each row or each column."""

    NOTHING, OLD_SUMS, ROW_BIAS, COLUMN_BIAS = 0, 1, 2, 4


class Factors(NamedTuple):
    """Addresses of panels and of columns, the table of the bytes behind ``b`` at which those of each ``k`` begin, and
    the number of products."""

    a: Any
    b: Any
    offsets: Any
    k: Any


class TileSums(NamedTuple):
    """Where sums lie, the bytes between their rows, what else is added (``Also``), and where the biases lie."""

    c: Any
    pitch: Any
    also: Any
    bias: Any


@dataclass(frozen=True)
class Tile:
    """So many rows and vectors of numbers."""

    number: Type
    rows: int
    vectors: int
    processor: Processor

    @property
    def lanes(self) -> int:
        return self.processor.lanes(self.number.bytes)

    @property
    def vector(self) -> Type:
        return self.number.of(self.lanes)

    @property
    def zero(self) -> Value:
        return self.vector(0)

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    @property
    def row_bytes(self) -> int:
        return self.vectors * self.processor.register_bytes

    @property
    def cache_lines(self) -> tuple[int, ...]:
        """Bytes of a row of sums that lie on all of its cache lines, wherever it begins."""
        return (*range(0, self.row_bytes, CACHE_LINE), self.row_bytes - 1)

    @property
    def column_bytes(self) -> int:
        """Of a panel."""
        return self.rows * self.number.bytes

    @property
    def steps(self) -> int:
        """Of an iteration. Where registers are few, a step takes more instructions beside its products than these are,
        and more of them than are decoded while these run."""
        return 4 if self.processor.registers < 32 and self.rows == self.processor.most_rows else 1

    @property
    def reads_lanes(self) -> bool:
        """Whether the numbers of a panel are read as vectors, whose lanes are multiplied by one instruction."""
        return self.processor.lane_products and self.rows >= self.lanes

    @inlined
    def cell(self, c, pitch, i, j):
        """The address of a vector of sums."""
        return c + pitch * i + j * self.processor.register_bytes

    @outlined
    def multiply(self, factors, sums):
        self.fetch(sums)
        found = self.products(factors)
        c, pitch, also, bias = sums
        if also & Also.OLD_SUMS:
            found = tuple(
                tuple(load(self.vector)(self.cell(c, pitch, i, j)) + found[i][j] for j in range(self.vectors))
                for i in range(self.rows)
            )
        if also & Also.ROW_BIAS:
            found = tuple(
                tuple(found[i][j] + load(self.number)(bias + i * self.number.bytes) for j in range(self.vectors))
                for i in range(self.rows)
            )
        if also & Also.COLUMN_BIAS:
            added = tuple(load(self.vector)(self.cell(bias, 0, 0, j)) for j in range(self.vectors))
            found = tuple(tuple(found[i][j] + added[j] for j in range(self.vectors)) for i in range(self.rows))
        for i in unrolled(self.rows):
            for j in unrolled(self.vectors):
                store(found[i][j], self.cell(c, pitch, i, j))

    @inlined
    def products(self, factors):
        """The sums of products, ``rows`` tuples of ``vectors`` vectors."""
        sums = tuple(tuple(self.zero for _ in range(self.vectors)) for _ in range(self.rows))
        row, last, whole = factors.b, factors.k - 1, factors.k // self.steps * self.steps
        if last >= 0:
            row += words_at(factors.offsets)[0]
        for step in range(0, whole, self.steps):
            for at in unrolled(self.steps - 1):
                row, sums = self.add(factors, row, step + at, step + at + 1, sums)
            row, sums = self.add(factors, row, step + self.steps - 1, min(step + self.steps, last), sums)
            for line in range(0, self.steps * self.column_bytes, CACHE_LINE):
                prefetch(bytes_at(factors.a + step * self.column_bytes), PREFETCH_BYTES + line)
        if self.steps > 1:
            for step in range(whole, factors.k):
                row, sums = self.add(factors, row, step, min(step + 1, last), sums)
        return sums

    @inlined
    def add(self, factors, row, step, following, sums):
        """The products of a step, whose columns begin at ``row``; where those of the following one begin."""
        right = tuple(load(self.vector)(row + j * self.processor.register_bytes) for j in range(self.vectors))
        left = self.panel_column(factors.a + step * self.column_bytes)
        sums = tuple(
            tuple(multiply_add(right[j], left[i], sums[i][j]) for j in range(self.vectors)) for i in range(self.rows)
        )
        return factors.b + words_at(factors.offsets)[following], sums

    @inlined
    def panel_column(self, place):
        """The numbers of a panel for one ``k``."""
        if not self.reads_lanes:
            return tuple(load(self.number)(place + i * self.number.bytes) for i in range(self.rows))
        size = self.processor.register_bytes
        vectors = tuple(load(self.vector)(place + i * size) for i in range(self.rows // self.lanes))
        return tuple(in_all_lanes(i % self.lanes, self.lanes)(vectors[i // self.lanes]) for i in range(self.rows))

    @inlined
    def fetch(self, sums):
        """Have the sums fetched while products are added up: to wait for them later takes as long."""
        for i in unrolled(self.rows):
            for at in self.cache_lines:
                prefetch(bytes_at(self.cell(sums.c, sums.pitch, i, 0)), at)

    @outlined
    def multiply_partly(self, factors, sums, rows, columns, edge):
        """A tile of which not all rows and columns are wanted: it is put together at ``edge``."""
        if sums.also & Also.OLD_SUMS:
            copy_rows(self.number, edge, self.row_bytes, sums.c, sums.pitch, rows, columns)
        self.multiply(factors, TileSums(edge, self.row_bytes, sums.also, sums.bias))
        copy_rows(self.number, sums.c, sums.pitch, edge, self.row_bytes, rows, columns)


@outlined
def copy_rows(number, to, to_pitch, source, pitch, rows, n):
    """Rows of ``n`` numbers, so many bytes apart."""
    for i in range(rows):
        y, x = pointer(number)(to + i * to_pitch), pointer(number)(source + i * pitch)
        for j in lanes(number, n):
            y[j] = x[j]
