"""Products with few rows, or few products for each result: ``b`` is read where it lies, once, as memory gives it.

The order of additions is that of tiles: one product after another, each added by one fused instruction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from gradspec.backends.cpu.layout.kernels.layout import transposed
from gradspec.backends.cpu.matmul.kernels.panels import widened
from gradspec.backends.cpu.matmul.kernels.tiles import CACHE_LINE, Tile, bytes_at
from gradspec.codegen.formats import NumberFormat
from gradspec.codegen.intrinsics import in_all_lanes, load, multiply_add, prefetch, store
from gradspec.codegen.language import Type, Value, inlined, outlined, unrolled
from gradspec.codegen.processor import Processor

# --- columns that are neighbours --------------------------------------------------------------------------------------


class StreamedRows(NamedTuple):
    """Some rows of ``b``, ``step`` bytes apart, and the columns that are wanted of them."""

    b: Any
    step: Any
    n: Any


class StreamedSums(NamedTuple):
    """Rows of sums, ``pitch`` bytes apart, and whether they begin now."""

    c: Any
    pitch: Any
    is_first: Any


@dataclass(frozen=True)
class RowStep:
    """So many rows of ``b``, ``steps``, added to so many rows of sums, ``vectors`` of so many lanes at a time."""

    form: NumberFormat
    processor: Processor
    rows: int
    steps: int
    vectors: int
    lanes: int

    @property
    def vector(self) -> Type:
        return self.form.computed.of(self.lanes)

    @property
    def stored_vector(self) -> Type:
        return self.form.stored.of(self.lanes)

    @property
    def zero(self) -> Value:
        return self.vector(0)

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    @property
    def cache_lines(self) -> range:
        """Bytes of what is read of a row at a time that lie on all of its cache lines."""
        return range(0, self.columns * self.form.stored.bytes, CACHE_LINE)

    @property
    def reads_lanes(self) -> bool:
        return self.processor.lane_products and self.steps > 1 and self.lanes > 1

    @inlined
    def numbers(self, a, pitch):
        """Of ``a``, for every row and step."""
        number = self.form.computed
        if not self.reads_lanes:
            return tuple(
                tuple(load(number)(a + i * pitch + k * number.bytes) for k in range(self.steps))
                for i in range(self.rows)
            )
        read = tuple(load(number.of(self.steps))(a + i * pitch) for i in range(self.rows))
        return tuple(tuple(in_all_lanes(k, self.lanes)(read[i]) for k in range(self.steps)) for i in range(self.rows))

    @outlined
    def sweep(self, a, pitch, right, sums, first):
        """The columns from ``first`` on, as long as there are enough; where that ends."""
        left, at = self.numbers(a, pitch), first
        while at + self.columns <= right.n:
            self.add(left, right.b + at * self.form.stored.bytes, right.step, sums, at)
            at += self.columns
        return at

    @inlined
    def add(self, left, b, step, sums, at):
        stored, size = self.lanes * self.form.stored.bytes, self.lanes * self.form.computed.bytes
        here = sums.c + at * self.form.computed.bytes
        found = tuple(tuple(self.zero for _ in range(self.vectors)) for _ in range(self.rows))
        if not sums.is_first:
            found = tuple(
                tuple(load(self.vector)(here + i * sums.pitch + j * size) for j in range(self.vectors))
                for i in range(self.rows)
            )
        for k in unrolled(self.steps):
            for line in self.cache_lines:
                prefetch(bytes_at(b + (k + self.steps) * step), line)
            right = tuple(
                widened(self.form, self.stored_vector, b + k * step + j * stored) for j in range(self.vectors)
            )
            found = tuple(
                tuple(multiply_add(right[j], left[i][k], found[i][j]) for j in range(self.vectors))
                for i in range(self.rows)
            )
        for i in unrolled(self.rows):
            for j in unrolled(self.vectors):
                store(found[i][j], here + i * sums.pitch + j * size)


@dataclass(frozen=True)
class RowStream:
    """Rows of sums, and of ``b``, in the numbers that are worked on at once, the largest first.

    The more rows of ``b``, the less often sums are loaded and stored; but more of them may fall on the same lines of
    the first cache.
    """

    form: NumberFormat
    processor: Processor
    heights: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def kinds(self) -> list[tuple[RowStep, ...]]:
        """For every height and number of steps, those that do all columns, one after another."""
        lanes = self.processor.lanes(self.form.computed.bytes)
        wide = [
            RowStep(self.form, self.processor, rows, steps, max(2, 4 // rows), lanes)
            for rows in self.heights
            for steps in self.steps
        ]
        return [(kind, replace(kind, vectors=1), replace(kind, vectors=1, lanes=1)) for kind in wide]

    @outlined
    def run(self, a, rows, k, right, sums):
        """``k`` rows of ``b`` times the numbers of so many rows of ``a``, which lie one after another."""
        size, at = self.form.computed.bytes, 0
        while at < k:
            steps, row = largest(self.steps, k - at), 0
            here = StreamedRows(right.b + at * right.step, right.step, right.n)
            while row < rows:
                count = largest(self.heights, rows - row)
                there = StreamedSums(sums.c + row * sums.pitch, sums.pitch, at == 0)
                self.add(a + (row * k + at) * size, k * size, count, steps, here, there)
                row += count
            at += steps

    @inlined
    def add(self, a, pitch, rows, steps, right, sums):
        for kinds in self.kinds:
            if kinds[0].rows == rows and kinds[0].steps == steps:
                at = 0
                for kind in kinds:
                    at = kind.sweep(a, pitch, right, sums, at)


@inlined
def largest(numbers, most):
    """Of some numbers, the first that is not too large."""
    found = numbers[-1]
    for n in numbers:
        if found < n <= most:
            found = n
    return found


@outlined
def stream(matmul, a, rows, k, right, sums):
    """Rows of ``b`` times the numbers of all rows of ``a``."""
    form, processor, whole = matmul.form, matmul.processor, rows // 4 * 4
    left, rest = a + whole * k * form.computed.bytes, StreamedSums(sums.c + whole * sums.pitch, sums.pitch, True)
    RowStream(form, processor, (4,), (4, 1)).run(a, whole, k, right, sums)
    RowStream(form, processor, (2, 1), (2, 1)).run(left, rows - whole, k, right, rest)


# --- products that are neighbours -------------------------------------------------------------------------------------


class TurnedFactors(NamedTuple):
    """A panel of rows; the first of some columns, the bytes from one to the next, and the number of the last of them,
    which stands for those behind it; the number of products; and where what is needed next lies, as many bytes."""

    a: Any
    b: Any
    step: Any
    last: Any
    k: Any
    following: Any


@dataclass(frozen=True)
class TurnedTile(Tile):
    """A tile of one vector of columns that lie across: products are neighbours, and squares are turned in registers.

    Where products are no whole squares, the last one reaches back: the numbers before it, those of earlier products,
    are there, but take no part.
    """

    form: NumberFormat

    @property
    def square_lines(self) -> range:
        """The cache lines of as many bytes as a square has."""
        return range(0, self.lanes**2 * self.form.stored.bytes, CACHE_LINE)

    @inlined
    def products(self, factors):
        k, sums = factors.k, tuple((self.zero,) for _ in range(self.rows))
        columns = tuple(factors.b + min(i, factors.last) * factors.step for i in range(self.lanes))
        whole = k // self.lanes * self.lanes
        for at in range(0, whole, self.lanes):
            square = self.turned(columns, at)
            for line in self.square_lines:
                prefetch(bytes_at(factors.following + at * self.lanes * self.form.stored.bytes), line)
            for i in unrolled(self.lanes):
                sums = self.added(sums, square[i], factors.a, at + i)
        if whole < k:
            at = k - self.lanes
            square = self.turned(columns, at)
            for i in unrolled(self.lanes):
                if at + i >= whole:
                    sums = self.added(sums, square[i], factors.a, at + i)
        return sums

    @inlined
    def turned(self, columns, at):
        """For each of as many products as a vector has lanes, the numbers of all columns."""
        vector, place = self.form.stored.of(self.lanes), at * self.form.stored.bytes
        return transposed(tuple(widened(self.form, vector, column + place) for column in columns))

    @inlined
    def added(self, sums, right, a, k):
        """Sums with product ``k``."""
        left = self.panel_column(a + k * self.rows * self.number.bytes)
        return tuple((multiply_add(right, left[i], sums[i][0]),) for i in range(self.rows))
