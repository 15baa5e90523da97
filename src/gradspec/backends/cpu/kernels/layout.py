"""Copies between arrays of any strides, and fills: one kernel for every size of a number, whatever its bits mean.

The words of ``args`` are
- the number of groups and the word where they begin; a unit is one lead, an index of an axis that all boxes have, of
  one group;
- addresses of arrays, and the bits that cells are filled with;
- the groups: the word of the first box of each, and how many boxes follow each other there;
- the boxes, as ``copy_fields`` describes them. Strides and places are in bytes.

A box is copied two axes at a time. Rows that are contiguous in both arrays are copied by vectors. Where one array is
contiguous along one of the two axes and the other along the other, squares that fit into vector registers are
transposed there, in an order in which a cache line of the target is written at once and those of the source are read
again while they are near.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from llvmlite import ir

from gradspec.backends.cpu.kernels import copy_fields as f
from gradspec.backends.cpu.kernels.compiler import (
    Intrinsic,
    Type,
    Value,
    i64,
    inlined,
    lanes,
    outlined,
    strided,
    u8,
    u16,
    u32,
    u64,
)
from gradspec.backends.cpu.kernels.memory import address_of, pointer_to
from gradspec.backends.cpu.kernels.target import kernel_code

NUMBERS = {number.bytes: number for number in (u8, u16, u32, u64)}
LINE = 64
BAND = 256
"""Bytes of the source's rows that are transposed before the next ones: each may lie on another page."""

words_at = pointer_to(i64)


def build(name: str) -> str:
    """The code of the kernel called ``"copy:4"`` for numbers of four bytes."""
    return kernel_code(_kernel(NUMBERS[int(name.removeprefix("copy:"))]))


# --- squares ----------------------------------------------------------------------------------------------------------


def square(number: Type) -> int:
    """How many rows and columns of numbers fit into the registers that they are transposed in."""
    return f.SQUARE_BYTES // number.bytes


def _zipped(builder: Any, number: Type, rows: list[Any]) -> list[Any]:
    """The columns of a square.

    Neighbouring rows are put together like the teeth of a zip: numbers first, then pairs of numbers, which are columns
    of two rows, then pairs of these, and so on.
    """
    count, half = len(rows), 1
    while half < count:
        width = count // half
        kind = ir.VectorType(ir.IntType(number.bits * half), width)
        order = [[width * (i % 2) + (start + i) // 2 for i in range(width)] for start in (0, width)]
        low, high = (ir.Constant(ir.VectorType(ir.IntType(32), width), places) for places in order)
        rows = [builder.bitcast(row, kind) for row in rows]
        pairs = [(rows[at + i], rows[at + half + i]) for at in range(0, count, 2 * half) for i in range(half)]
        rows = [builder.shuffle_vector(a, b, places) for a, b in pairs for places in (low, high)]
        half *= 2
    return rows


def _transposed(number: Type, down: int, across: int) -> Intrinsic:
    """``transpose(source, step, target, jump)``: rows ``step`` bytes apart become columns of rows ``jump`` apart.

    They are ``down`` times ``across`` squares.
    """
    size, kind = square(number), number.of(square(number)).llvm

    def emit(builder: Any, source: Value, step: Value, target: Value, jump: Value) -> None:
        def rows(start: Value, stride: Value, count: int) -> list[Any]:
            at = [start.llvm]
            while len(at) < count:
                at.append(builder.add(at[-1], stride.llvm))
            return at

        def place(row: Any, squares: int) -> Any:
            return builder.inttoptr(builder.add(row, i64(f.SQUARE_BYTES * squares).llvm), ir.PointerType())

        reads, writes = rows(source, step, down * size), rows(target, jump, across * size)
        for i, j in product(range(down), range(across)):
            band = reads[i * size : (i + 1) * size]
            numbers = [builder.load(place(row, j), typ=kind, align=number.bytes) for row in band]
            for row, column in zip(writes[j * size : (j + 1) * size], _zipped(builder, number, numbers), strict=True):
                builder.store(column, place(row, i), align=number.bytes)

    return Intrinsic(emit)


def _squares(number: Type) -> Any:
    """``copy(source, step, target, jump, rows, columns)``: both at least as many as a square has.

    The last squares begin earlier where they would reach beyond the end.
    """
    size, width = square(number), number.bytes
    line, band, pair = LINE // width, BAND // width, 2 * size
    one, many = _transposed(number, 1, 1), _transposed(number, line // size, 2)

    @inlined
    def at_the_end(source, step, target, jump, top, bottom, left, right, rows, columns):
        for up in range(top, bottom, size):
            for first in range(left, right, size):
                row, column = min(up, rows - size), min(first, columns - size)
                one(source + row * step + column * width, step, target + column * jump + row * width, jump)

    @outlined
    def copy(source, step, target, jump, rows, columns):
        for left in range(0, columns, band):
            right = min(left + band, columns)
            for top in range(0, rows, line):
                first = left
                if top + line <= rows:
                    while first + pair <= right:
                        many(source + top * step + first * width, step, target + first * jump + top * width, jump)
                        first += pair
                at_the_end(source, step, target, jump, top, min(top + line, rows), first, right, rows, columns)

    return copy


# --- rows -------------------------------------------------------------------------------------------------------------


def row_functions(number: Type) -> tuple[Any, Any]:
    """``copy_row(target, jump, source, step, n)`` and ``fill_row(target, jump, bits, n)``; strides are in bytes."""
    cells_at, width = pointer_to(number), number.bytes

    @outlined
    def copy_row(target, jump, source, step, n):
        y, x = cells_at(target), cells_at(source)
        if jump == width and step == width:
            for i in lanes(number, n):
                y[i] = x[i]
        elif jump == width and step == 2 * width and n > 0:
            for i in lanes(number, n - 1):  # the last pair may end beyond the array
                even, _ = strided(x, 2 * i, 2)
                y[i] = even
            y[n - 1] = x[2 * (n - 1)]
        else:
            for i in range(n):
                cells_at(target + i * jump)[0] = cells_at(source + i * step)[0]

    @outlined
    def fill_row(target, jump, bits, n):
        y = cells_at(target)
        if jump == width:
            for i in lanes(number, n):
                y[i] = bits
        else:
            for i in range(n):
                cells_at(target + i * jump)[0] = bits

    return copy_row, fill_row


# --- boxes ------------------------------------------------------------------------------------------------------------


def _planes(number: Type) -> Any:
    """``copy(args, box, source, target)``: the last two axes of a box."""
    cells_at, squares = pointer_to(number), _squares(number)
    copy_row, fill_row = row_functions(number)

    @inlined
    def copy(args, box, source, target):
        kind = args[box + f.KIND]
        rows, row_step, row_jump = args[box + f.ROWS], args[box + f.ROW_STEP], args[box + f.ROW_JUMP]
        n, step, jump = args[box + f.CELLS], args[box + f.CELL_STEP], args[box + f.CELL_JUMP]
        if kind == f.SQUARES:
            squares(source, step, target, row_jump, n, rows)
            return
        for i in range(rows):
            x, y = source + i * row_step, target + i * row_jump
            if kind == f.REPEATED:
                fill_row(y, jump, cells_at(x)[0], n)
            else:
                copy_row(y, jump, x, step, n)

    return copy


def _kernel(number: Type) -> Any:
    copy_plane = _planes(number)

    @inlined
    def copy_box(args, box, source, target, position):
        """The planes of a box one after another; ``position`` has room for the place along every other axis."""
        rank, axes = args[box + f.RANK], box + f.BOX
        for axis in range(rank):
            position[axis] = 0
        while True:
            copy_plane(args, box, source, target)
            axis = rank - 1
            while axis >= 0:
                at = axes + axis * f.BOX_AXIS
                source += args[at + 1]
                target += args[at + 2]
                position[axis] += 1
                if position[axis] < args[at]:
                    break
                source -= args[at] * args[at + 1]
                target -= args[at] * args[at + 2]
                position[axis] = 0
                axis -= 1
            if axis < 0:
                return

    def kernel(args, lo, hi, workspace):
        groups, position = args[f.GROUPS], words_at(address_of(workspace))
        base = address_of(args)
        for unit in range(lo, hi):
            lead, group = unit // groups, args[f.GROUPS_AT] + 2 * (unit % groups)
            box = args[group]
            for _ in range(args[group + 1]):
                array = args[box + f.SOURCE]
                source = args[array] if args[box + f.IS_VALUE] == 0 else base + 8 * array
                source += args[box + f.SOURCE_AT] + lead * args[box + f.LEAD_STEP]
                target = args[args[box + f.TARGET]] + args[box + f.TARGET_AT] + lead * args[box + f.LEAD_JUMP]
                copy_box(args, box, source, target, position)
                box += f.BOX + f.BOX_AXIS * args[box + f.RANK]

    return kernel
