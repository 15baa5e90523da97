"""Tiles side by side: panels of rows times a stretch of columns, whatever its length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from gradspec.backends.cpu.matmul.kernels.tiles import Factors, Tile, TileSums, words_at
from gradspec.codegen.intrinsics import load, store
from gradspec.codegen.language import Type, inlined, lanes, outlined, pointer, unrolled
from gradspec.codegen.processor import Processor

SEVERAL = 3
"""Panels that gathering a strip pays for."""
STRETCH_BYTES = 144
"""Of columns that are multiplied by one panel after the other: what they read stays in the first cache."""


class Room(NamedTuple):
    """Memory for one tile, which the last one of each row goes through (0: rows have room for whole vectors behind
    them), and for one gathered strip (0: none), with the table of its offsets."""

    edge: Any
    strip: Any
    even: Any


@outlined
def blank(number, address, n):
    """Zeros."""
    cells = pointer(number)(address)
    for i in lanes(number, n):
        cells[i] = number(0)


@dataclass(frozen=True)
class Strips:
    """Products of numbers of a type on a processor."""

    number: Type
    processor: Processor

    @property
    def heights(self) -> tuple[int, ...]:
        """Of panels: the most rows that a tile can have, and, for what is left, the powers of two below."""
        return tuple(self.processor.tiles)

    def tiles(self, rows: int) -> tuple[Tile, ...]:
        """Of a height, the widest first."""
        return tuple(Tile(self.number, rows, vectors, self.processor) for vectors in self.processor.tiles[rows])

    @property
    def by_height(self) -> tuple[tuple[Tile, ...], ...]:
        return tuple(self.tiles(rows) for rows in self.heights)

    @outlined
    def multiply(self, factors, rows, sums, n, room):
        """Rows in panels, times ``n`` columns."""
        done = 0
        for tiles in self.by_height:
            height = tiles[0].rows
            count = (rows - done) // height
            if count > 0:
                a, c = factors.a + done * factors.k * self.number.bytes, sums.c + done * sums.pitch
                here = TileSums(c, sums.pitch, sums.also, sums.bias + done * self.number.bytes)
                multiply_panels(tiles, Factors(a, factors.b, factors.offsets, factors.k), count, here, n, room)
            done += count * height


@outlined
def multiply_panels(tiles, factors, count, sums, n, room):
    """``count`` panels of one height.

    Each is multiplied by a stretch of columns, which stay in the cache for the next. If there are several, and room for
    it, a strip at a time is gathered instead, since its pieces may lie on more pages than a processor remembers.
    """
    widest, size, done = tiles[0], tiles[0].number.bytes, 0
    gathers = widest.processor.gathers_strips and widest.rows == widest.processor.most_rows
    gathers = gathers and count >= SEVERAL and room.strip != 0
    stretch = widest.columns if gathers else max(1, STRETCH_BYTES // widest.row_bytes) * widest.columns
    while done < n:
        columns = min(stretch, n - done)
        b, offsets = factors.b + done * size, factors.offsets
        if gathers and columns > widest.columns - widest.lanes:
            gather(widest, b, offsets, factors.k, room.strip)
            b, offsets = room.strip, room.even
        for p in range(count):
            first = p * widest.rows
            panel = Factors(factors.a + first * factors.k * size, b, offsets, factors.k)
            c, bias = sums.c + first * sums.pitch + done * size, sums.bias + first * size
            multiply_stretch(tiles, panel, TileSums(c, sums.pitch, sums.also, bias), columns, room.edge)
        done += columns


@inlined
def multiply_stretch(tiles, panel, sums, n, edge):
    """One panel times ``n`` columns."""
    size, width, done = tiles[0].number.bytes, tiles[0].lanes, 0
    while done < n:
        left = n - done
        here = Factors(panel.a, panel.b + done * size, panel.offsets, panel.k)
        there = TileSums(sums.c + done * size, sums.pitch, sums.also, sums.bias)
        done += multiply_tile(tiles, (left + width - 1) // width, here, there, left, edge)


@inlined
def multiply_tile(tiles, needed, panel, sums, n, edge):
    """Columns of the widest tile that is needed in full and leaves no single vector, or of the last; how many it has.

    A tile of one vector has too few sums to hide the time that an addition takes.
    """
    for tile in tiles:
        if tile.vectors == 1 or (needed >= tile.vectors and needed != tile.vectors + 1):
            if edge != 0 and n < tile.columns:
                tile.multiply_partly(panel, sums, tile.rows, n, edge)
            else:
                tile.multiply(panel, sums)
            return tile.columns
    return 0


@outlined
def gather(tile, b, offsets, k, to):
    """The vectors of a tile for each ``k``, put side by side."""
    place = to
    for step in range(k):
        row = b + words_at(offsets)[step]
        for j in unrolled(tile.vectors):
            at = j * tile.processor.register_bytes
            store(load(tile.vector)(row + at), place + at)
        place += tile.row_bytes
