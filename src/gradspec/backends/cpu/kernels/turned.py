"""Matrices turned over: rows become columns, a few at a time in registers."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from gradspec.backends.cpu.kernels.compiler import Intrinsic, Value, lanes, outlined
from gradspec.backends.cpu.kernels.memory import Format, pointer_to
from gradspec.backends.cpu.kernels.panels import loaded, store, transposed

SQUARE = 4


def _square(form: Format) -> Intrinsic:
    """``square(source, pitch, to, to_pitch)``: four by four numbers, addresses and bytes."""
    word = ir.IntType(64)

    def emit(builder: Any, source: Value, pitch: Value, to: Value, to_pitch: Value) -> None:
        def place(base: Value, step: Value, i: int) -> Any:
            return builder.add(base.llvm, builder.mul(step.llvm, word(i)))

        rows = [loaded(builder, form, SQUARE, place(source, pitch, i)) for i in range(SQUARE)]
        for i, column in enumerate(transposed(builder, rows)):
            store(builder, column, place(to, to_pitch, i), form.computed.bytes)

    return Intrinsic(emit)


def turning(form: Format) -> Any:
    """``turn(source, row_step, column_step, rows, columns, to, pitch)``: cell ``i, j`` to ``to[j·pitch + i]``.

    Steps and the pitch count elements.
    """
    number, widen = form.computed, form.functions()[0]
    stored_at, cells_at = pointer_to(form.stored), pointer_to(number)
    width, size, square = form.stored.bytes, number.bytes, _square(form)

    @outlined
    def one_by_one(source, row_step, column_step, rows, columns, to, pitch):
        for j in range(columns):
            x, y = stored_at(source + j * column_step * width), cells_at(to + j * pitch * size)
            for i in range(rows):
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
        elif column_step == 1 and rows >= SQUARE and columns >= SQUARE:
            squares(source, row_step, rows, columns, to, pitch)
        else:
            one_by_one(source, row_step, column_step, rows, columns, to, pitch)

    return turn
