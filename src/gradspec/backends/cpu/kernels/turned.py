"""Matrices turned over: rows become columns, a few at a time in registers."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from gradspec.backends.cpu.kernels.compiler import Intrinsic, Type, Value, lanes, outlined
from gradspec.backends.cpu.kernels.memory import Format, pointer_to

SQUARE = 4


def _square(number: Type) -> Intrinsic:
    """``square(source, pitch, to, to_pitch)``: four by four numbers, addresses and bytes."""
    word, small = ir.IntType(64), ir.IntType(32)
    vector = number.of(SQUARE).llvm

    def emit(builder: Any, source: Value, pitch: Value, to: Value, to_pitch: Value) -> None:
        w = builder

        def place(base: Any, step: Any, i: int) -> Any:
            return w.inttoptr(w.add(base, w.mul(step, word(i))), ir.PointerType())

        def shuffled(a: Any, b: Any, order: list[int]) -> Any:
            return w.shuffle_vector(a, b, ir.Constant(ir.VectorType(small, SQUARE), order))

        rows = [w.load(place(source.llvm, pitch.llvm, i), typ=vector, align=number.bytes) for i in range(SQUARE)]
        low = [shuffled(rows[i], rows[i + 1], [0, 4, 2, 6]) for i in (0, 2)]
        high = [shuffled(rows[i], rows[i + 1], [1, 5, 3, 7]) for i in (0, 2)]
        turned = [shuffled(a, b, order) for order in ([0, 1, 4, 5], [2, 3, 6, 7]) for a, b in (low, high)]
        for i, value in enumerate(turned):
            w.store(value, place(to.llvm, to_pitch.llvm, i), align=number.bytes)

    return Intrinsic(emit)


def turning(form: Format) -> Any:
    """``turn(source, row_step, column_step, rows, columns, to, pitch)``: cell ``i, j`` to ``to[j·pitch + i]``.

    Steps and the pitch count elements.
    """
    number, widen = form.computed, form.functions()[0]
    stored_at, cells_at = pointer_to(form.stored), pointer_to(number)
    width, size, converts = form.stored.bytes, number.bytes, form.converts
    square = _square(number)

    @outlined
    def one_by_one(source, row_step, column_step, first, rows, start, columns, to, pitch):
        for j in range(start, columns):
            x, y = stored_at(source + j * column_step * width), cells_at(to + j * pitch * size)
            for i in range(first, rows):
                y[i] = widen(x[i * row_step])

    @outlined
    def squares(source, row_step, rows, columns, to, pitch):
        """Neighbouring columns lie side by side; the last square of a row reaches back over the one before."""
        for i in range(0, rows, SQUARE):
            top = min(i, rows - SQUARE)
            j = 0
            while j < columns:
                left = min(j, columns - SQUARE)
                square(
                    source + (top * row_step + left) * width,
                    row_step * width,
                    to + (left * pitch + top) * size,
                    pitch * size,
                )
                j += SQUARE

    @outlined
    def turn(source, row_step, column_step, rows, columns, to, pitch):
        if row_step == 1:
            for j in range(columns):
                x, y = stored_at(source + j * column_step * width), cells_at(to + j * pitch * size)
                for i in lanes(number, rows):
                    y[i] = widen(x[i])
        elif (not converts) and column_step == 1 and rows >= SQUARE and columns >= SQUARE:
            squares(source, row_step, rows, columns, to, pitch)
        else:
            one_by_one(source, row_step, column_step, 0, rows, 0, columns, to, pitch)

    return turn
