"""Matrices turned over: rows become columns, a few at a time in registers."""

from __future__ import annotations

from typing import Any, NamedTuple

from gradspec.backends.cpu.layout.kernels.transpose import transposed
from gradspec.backends.cpu.matmul.kernels.panels import widened
from gradspec.codegen.intrinsics import store
from gradspec.codegen.language import inlined, lanes, outlined, unrolled

SQUARE = 4


class Strided(NamedTuple):
    """A matrix in an array: where it begins, and the elements between rows and between columns."""

    source: Any
    row_step: Any
    column_step: Any


@outlined
def turn(form, matrix, rows, columns, to, pitch):
    """Cell ``i, j`` to ``to[j·pitch + i]``, counted in elements."""
    if matrix.row_step == 1:
        for j in range(columns):
            x, y = column_of(form, matrix, j), form.computed_at(to + j * pitch * form.computed.bytes)
            for i in lanes(form.computed, rows):
                y[i] = form.widen(x[i])
    elif matrix.column_step == 1 and rows >= SQUARE and columns >= SQUARE:
        turn_squares(form, matrix, rows, columns, to, pitch)
    else:
        turn_cells(form, matrix, rows, columns, to, pitch)


@inlined
def column_of(form, matrix, j):
    return form.stored_at(matrix.source + j * matrix.column_step * form.stored.bytes)


@outlined
def turn_cells(form, matrix, rows, columns, to, pitch):
    for j in range(columns):
        x, y = column_of(form, matrix, j), form.computed_at(to + j * pitch * form.computed.bytes)
        for i in range(rows):
            y[i] = form.widen(x[i * matrix.row_step])


@outlined
def turn_squares(form, matrix, rows, columns, to, pitch):
    """Neighbouring columns lie side by side; the last square of a row reaches back over the one before."""
    width, size, rest = form.stored.bytes, form.computed.bytes, columns % SQUARE
    step, jump = matrix.row_step * width, pitch * size
    for i in range(0, rows, SQUARE):
        top = min(i, rows - SQUARE)
        source, target = matrix.source + top * step, to + top * size
        for _ in range(columns // SQUARE):
            turn_square(form, source, step, target, jump)
            source, target = source + SQUARE * width, target + SQUARE * jump
        if rest > 0:
            turn_square(form, source - (SQUARE - rest) * width, step, target - (SQUARE - rest) * jump, jump)


@inlined
def turn_square(form, source, step, target, jump):
    read = tuple(widened(form, form.stored.of(SQUARE), source + step * i) for i in range(SQUARE))
    columns = transposed(read)
    for i in unrolled(SQUARE):
        store(columns[i], target + jump * i)
