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


class Room(NamedTuple):
    """Memory for one tile, which the last one of each row goes through (0: rows have room for whole vectors behind
    them), and for one gathered strip (0: none), with the table of its offsets."""

    edge: Any
    strip: Any
    even: Any


@outlined
def blank(number, address, n):
    """Zeros. Tiles read more columns than there are, and what they find there is not used.

    It must not be just anything: some processors take a hundred times as long for a product with a subnormal number.
    """
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

    Columns come first and panels second, so that a stretch of ``b`` is read from the cache by all panels; if there are
    several, some processors gather it first.
    """
    size, width, done = tiles[0].number.bytes, tiles[0].lanes, 0
    while done < n:
        left = n - done
        here = Factors(factors.a, factors.b + done * size, factors.offsets, factors.k)
        there = TileSums(sums.c + done * size, sums.pitch, sums.also, sums.bias)
        done += multiply_strip(tiles, (left + width - 1) // width, here, count, there, left, room)


@inlined
def multiply_strip(tiles, needed, factors, count, sums, n, room):
    """All panels times columns of the widest tile that is needed in full, or of the last; how many columns it has."""
    for tile in tiles:
        if tile.vectors == 1 or needed >= tile.vectors:
            multiply_columns(tile, factors, count, sums, n, room)
            return tile.columns
    return 0


@inlined
def multiply_columns(tile, factors, count, sums, n, room):
    b, offsets, processor = factors.b, factors.offsets, tile.processor
    is_widest = tile.vectors == processor.strip_vectors and tile.rows == processor.most_rows
    if processor.gathers_strips and is_widest and count >= SEVERAL and room.strip != 0:
        gather(tile, b, offsets, factors.k, room.strip)
        b, offsets = room.strip, room.even
    for p in range(count):
        first = p * tile.rows
        panel = Factors(factors.a + first * factors.k * tile.number.bytes, b, offsets, factors.k)
        there = TileSums(sums.c + first * sums.pitch, sums.pitch, sums.also, sums.bias + first * tile.number.bytes)
        if room.edge != 0 and n < tile.columns:
            tile.multiply_partly(panel, there, tile.rows, n, room.edge)
        else:
            tile.multiply(panel, there)


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
