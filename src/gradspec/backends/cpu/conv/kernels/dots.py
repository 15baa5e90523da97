"""Products of one vector with several others that are summed up: the weight gradient of a depthwise convolution."""

from __future__ import annotations

from dataclasses import dataclass

from gradspec.backends.cpu.matmul.kernels.tiles import words_at
from gradspec.codegen.intrinsics import load, multiply_add, store
from gradspec.codegen.language import Type, inlined, outlined, pointer, unrolled
from gradspec.codegen.processor import Processor

SUMS_AT_ONCE = 8


@dataclass(frozen=True)
class Dots:
    """``Σ g·x`` for shifted ``x``, in lanes that are not yet added up: one vector of sums for each of some taps."""

    number: Type
    processor: Processor
    taps: int = SUMS_AT_ONCE

    @property
    def vector(self) -> Type:
        return self.number.of(self.processor.lanes(self.number.bytes))

    @property
    def one(self) -> Dots:
        return Dots(self.number, self.processor, 1)

    @outlined
    def add_vectors(self, g, x, offsets, vectors, sums):
        """``offsets`` is the table of the bytes behind ``x`` at which the cells of each tap begin."""
        width = self.processor.register_bytes
        rows = tuple(x + words_at(offsets)[t] for t in range(self.taps))
        held = tuple(load(self.vector)(sums + t * width) for t in range(self.taps))
        for step in range(vectors):
            at = step * width
            factor = load(self.vector)(g + at)
            held = tuple(multiply_add(load(self.vector)(rows[t] + at), factor, held[t]) for t in range(self.taps))
        for t in unrolled(self.taps):
            store(held[t], sums + t * width)


@outlined
def add_dots(dots, g, x, offsets, taps, n, sums):
    """All taps, over ``n`` neighbours."""
    vectors, width, t = n // dots.vector.lanes, dots.processor.register_bytes, 0
    if vectors > 0:
        while t + dots.taps <= taps:
            dots.add_vectors(g, x, offsets + 8 * t, vectors, sums + t * width)
            t += dots.taps
        while t < taps:
            dots.one.add_vectors(g, x, offsets + 8 * t, vectors, sums + t * width)
            t += 1
    if vectors * dots.vector.lanes < n:
        add_rest(dots, g, x, offsets, taps, vectors * dots.vector.lanes, n, sums)


@inlined
def add_rest(dots, g, x, offsets, taps, first, n, sums):
    """What does not fill a vector, each cell in a lane of its own."""
    cells_at, width = pointer(dots.number), dots.processor.register_bytes
    factors = cells_at(g)
    for t in range(taps):
        cells, sum = cells_at(x + words_at(offsets)[t]), cells_at(sums + t * width)
        for j in range(first, n):
            sum[j - first] = multiply_add(cells[j], factors[j], sum[j - first])
