"""Tiles side by side: panels of rows times a stretch of columns, whatever its length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradspec.backends.cpu.kernels.compiler import Type, inlined, lanes, outlined
from gradspec.backends.cpu.kernels.memory import pointer_to
from gradspec.backends.cpu.kernels.registers import Registers
from gradspec.backends.cpu.kernels.tiles import ADDS, gathered, tile

EDGE, STRIP, EVEN = range(3)
"""What ``room`` tells: memory for one tile, which the last one of each row goes through (0: rows have room for whole
vectors behind them), and for one gathered strip (0: none), with the table of its offsets."""
SEVERAL = 3
"""Panels that gathering a strip pays for."""


def blanking(number: Type) -> Any:
    """``blank(cells, n)``: zeros. Tiles read more columns than there are, and what they find there is not used.

    It must not be just anything: some processors take a hundred times as long for a product with a subnormal number.
    """

    @outlined
    def blank(cells, n):
        for i in lanes(number, n):
            cells[i] = number(0)

    return blank


def strips(number: Type, rows: int, machine: Registers) -> Any:
    """``run(a, count, b, offsets, k, c, pitch, n, flags, bias, room)``: ``count`` panels of ``rows`` rows.

    Columns come first and panels second, so that a stretch of ``b`` is read from the cache by all panels; if there are
    several, it is gathered first, since its pieces lie on more pages than a processor remembers.
    """
    lanes_of, size = machine.lanes(number.bytes), number.bytes
    cells_at = pointer_to(number)

    @inlined
    def copy(to, source, n):
        y, x = cells_at(to), cells_at(source)
        for i in lanes(number, n):
            y[i] = x[i]

    def wide(vectors: int) -> Any:
        multiply, columns = tile(number, rows, vectors, machine), vectors * lanes_of
        edge_pitch = columns * size
        is_widest = vectors == machine.strip_vectors and rows == machine.most_rows
        gather = gathered(number, vectors, machine)

        @outlined
        def partial(a, b, offsets, k, c, pitch, n, flags, bias, edge):
            if flags & ADDS:
                for i in range(rows):
                    copy(edge + i * edge_pitch, c + i * pitch, n)
            multiply(a, b, offsets, k, edge, edge_pitch, flags, bias)
            for i in range(rows):
                copy(c + i * pitch, edge + i * edge_pitch, n)

        @inlined
        def go(a, count, b, offsets, k, c, pitch, n, flags, bias, room):
            edge = room[EDGE]
            if is_widest and count >= SEVERAL and room[STRIP] != 0:
                gather(b, offsets, k, room[STRIP])
                b, offsets = room[STRIP], room[EVEN]
            for p in range(count):
                panel, to, above = a + p * k * rows * size, c + p * rows * pitch, bias + p * rows * size
                if edge != 0 and n < columns:
                    partial(panel, b, offsets, k, to, pitch, n, flags, above, edge)
                else:
                    multiply(panel, b, offsets, k, to, pitch, flags, above)
            return columns

        return go

    step = widest([(vectors, wide(vectors)) for vectors in machine.shapes[rows]])

    @outlined
    def run(a, count, b, offsets, k, c, pitch, n, flags, bias, room):
        done = 0
        while done < n:
            left = n - done
            needed = (left + lanes_of - 1) // lanes_of
            done += step(needed, a, count, b + done * size, offsets, k, c + done * size, pitch, left, flags, bias, room)

    return run


def widest(choices: Sequence[tuple[int, Any]]) -> Any:
    """The widest of the choices that is needed in full, or the last."""
    (vectors, go), *narrower = choices
    if not narrower:

        @inlined
        def last(needed, a, count, b, offsets, k, c, pitch, n, flags, bias, room):
            return go(a, count, b, offsets, k, c, pitch, n, flags, bias, room)

        return last
    others = widest(narrower)

    @inlined
    def step(needed, a, count, b, offsets, k, c, pitch, n, flags, bias, room):
        if needed >= vectors:
            return go(a, count, b, offsets, k, c, pitch, n, flags, bias, room)
        return others(needed, a, count, b, offsets, k, c, pitch, n, flags, bias, room)

    return step


def all_strips(number: Type, machine: Registers) -> Any:
    """``run(a, rows, b, offsets, k, c, pitch, n, flags, bias, room)``: rows in panels.

    A panel has as many rows as a tile can have; what is left is a sum of powers of two.
    """
    most, size = machine.most_rows, number.bytes
    full = strips(number, most, machine)
    rest = _rest([(rows, strips(number, rows, machine)) for rows in machine.shapes if rows < most], size)

    @outlined
    def run(a, rows, b, offsets, k, c, pitch, n, flags, bias, room):
        count = rows // most
        if count > 0:
            full(a, count, b, offsets, k, c, pitch, n, flags, bias, room)
        done = count * most
        if done < rows:
            rest(
                a + done * k * size,
                rows - done,
                b,
                offsets,
                k,
                c + done * pitch,
                pitch,
                n,
                flags,
                bias + done * size,
                room,
            )

    return run


def _rest(choices: Sequence[tuple[int, Any]], size: int) -> Any:
    """Fewer rows than a full panel, as a sum of powers of two."""
    if not choices:

        @inlined
        def nothing(a, rows, b, offsets, k, c, pitch, n, flags, bias, room):
            return

        return nothing
    (rows_here, one), *fewer = choices
    others = _rest(fewer, size)

    @inlined
    def run(a, rows, b, offsets, k, c, pitch, n, flags, bias, room):
        if rows & rows_here:
            one(a, 1, b, offsets, k, c, pitch, n, flags, bias, room)
        done = rows & rows_here
        others(
            a + done * k * size, rows - done, b, offsets, k, c + done * pitch, pitch, n, flags, bias + done * size, room
        )

    return run
