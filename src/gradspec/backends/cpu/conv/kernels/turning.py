"""Matrices turned over: rows become columns, a few at a time in registers."""

from __future__ import annotations

from typing import Any, NamedTuple

from gradspec.backends.cpu.layout.kernels.transpose import transposed
from gradspec.backends.cpu.matmul.kernels.panels import widened
from gradspec.codegen.intrinsics import store
from gradspec.codegen.language import inlined, lanes, outlined, unrolled

SIDES = 8, 4
"""Of squares, the first that fits, and of numbers of 64 bits the last: larger ones take fewer instructions for each
number, and more registers."""


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
    elif matrix.column_step != 1 or min(rows, columns) < SIDES[-1]:
        turn_cells(form, matrix, rows, columns, to, pitch)
    elif min(rows, columns) < SIDES[0] or form.computed.bytes > 4:
        turn_squares(form, form.stored.of(SIDES[1]), matrix, rows, columns, to, pitch)
    else:
        turn_squares(form, form.stored.of(SIDES[0]), matrix, rows, columns, to, pitch)


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
def turn_squares(form, vector, matrix, rows, columns, to, pitch):
    """Neighbouring columns lie side by side; the last square of a row reaches back over the one before."""
    width, size, side = form.stored.bytes, form.computed.bytes, vector.lanes
    step, jump, rest = matrix.row_step * width, pitch * size, columns % side
    for i in range(0, rows, side):
        top = min(i, rows - side)
        source, target = matrix.source + top * step, to + top * size
        for _ in range(columns // side):
            turn_square(form, vector, source, step, target, jump)
            source, target = source + side * width, target + side * jump
        if rest > 0:
            turn_square(form, vector, source - (side - rest) * width, step, target - (side - rest) * jump, jump)


@inlined
def turn_square(form, vector, source, step, target, jump):
    read = tuple(widened(form, vector, source + step * i) for i in range(vector.lanes))
    columns = transposed(read)
    for i in unrolled(vector.lanes):
        store(columns[i], target + jump * i)
