"""Matrix products: packed panels of rows times packed columns, tile by tile.

A unit of work is a block of rows times a block of columns. For each block of products it packs the columns, if they
are not packed yet, which then stay in a core's own cache, and goes through its rows, a group at a time: packs them in
panels, and multiplies all panels by one strip of columns after another, which stays in the nearest cache. Results are
put together where they stay or, if they must be rounded to another format or a program works on them, in the workspace.
"""

from __future__ import annotations

from typing import Any

from gradspec.backends.cpu.kernels import matmul_fields as f
from gradspec.backends.cpu.kernels.compiler import Type, i64, inlined, lanes, lanes_once, outlined
from gradspec.backends.cpu.kernels.memory import FORMATS, Format, address_of, call, pointer_to
from gradspec.backends.cpu.kernels.panels import panels
from gradspec.backends.cpu.kernels.registers import Registers, machine
from gradspec.backends.cpu.kernels.strips import widest
from gradspec.backends.cpu.kernels.target import kernel_code
from gradspec.backends.cpu.kernels.tiles import ADDS, COLUMN_BIAS, tile

words_at = pointer_to(i64)


def build(name: str) -> str:
    """The code of the kernels called ``"matmul:f32"``, ``"pack:f32"`` and ``"join:f32"``, and so for all formats."""
    kind, form = name.split(":")
    return kernel_code({"matmul": _product, "pack": _packing, "join": _joining}[kind](FORMATS[form], machine()))


# --- stripes ----------------------------------------------------------------------------------------------------------


def _stripe(number: Type, rows: int, registers: Registers) -> Any:
    """``run(a, high, b, block, apart, offsets, k, c, pitch, n, flags, bias, edge)``: rows times ``n`` columns.

    There are ``high`` rows, in panels of ``rows``, the last of which may not be full. Columns come in blocks of
    ``block`` that are ``apart`` bytes from each other. Tiles of which not all rows and columns are wanted are put
    together at ``edge``.
    """
    width, size = registers.lanes(number.bytes), number.bytes
    step = widest([(vectors, _strip(number, rows, vectors, registers)) for vectors in registers.shapes[rows]])

    @outlined
    def run(a, high, b, block, apart, offsets, k, c, pitch, n, flags, bias, edge):
        here = b
        for first in range(0, n, block):
            count, done = min(block, n - first), 0
            while done < count:
                left, at = count - done, (first + done) * size
                needed, x = (left + width - 1) // width, here + done * size
                done += step(needed, a, high, x, offsets, k, c + at, pitch, left, flags, bias + at, edge)
            here += apart

    return run


def _strip(number: Type, rows: int, vectors: int, registers: Registers) -> Any:
    """``go(a, high, b, …)``: all panels times one tile's width of columns, which is the result."""
    multiply, copy, columns = (
        tile(number, rows, vectors, registers),
        _copy(number),
        vectors * registers.lanes(number.bytes),
    )
    size, edge_pitch = number.bytes, columns * number.bytes

    @outlined
    def partial(a, b, offsets, k, c, pitch, valid, n, flags, bias, edge):
        if flags & ADDS:
            copy(edge, edge_pitch, c, pitch, valid, n)
        multiply(a, b, offsets, k, edge, edge_pitch, flags, bias)
        copy(c, pitch, edge, edge_pitch, valid, n)

    @inlined
    def go(a, high, b, offsets, k, c, pitch, n, flags, bias, edge):
        panel, to = a, c
        for row in range(0, high, rows):
            if n >= columns and row + rows <= high:
                multiply(panel, b, offsets, k, to, pitch, flags, bias)
            else:
                partial(panel, b, offsets, k, to, pitch, min(rows, high - row), min(n, columns), flags, bias, edge)
            panel += k * rows * size
            to += rows * pitch
        return columns

    return go


def _copy(number: Type) -> Any:
    """``copy(to, to_pitch, source, source_pitch, rows, n)``"""
    cells_at = pointer_to(number)

    @outlined
    def copy(to, to_pitch, source, source_pitch, rows, n):
        for i in range(rows):
            y, x = cells_at(to + i * to_pitch), cells_at(source + i * source_pitch)
            for j in lanes(number, n):
                y[j] = x[j]

    return copy


def _stripes(number: Type, registers: Registers) -> tuple[Any, Any]:
    """``height(rows)`` of the lowest panel for so many rows, or the highest of all; ``run(height, …)``, its stripe."""
    most = registers.most_rows

    @inlined
    def highest(rows):
        return most

    @inlined
    def nothing(height, a, high, b, block, apart, offsets, k, c, pitch, n, flags, bias, edge):
        return

    height, run = highest, nothing
    for rows in sorted(registers.shapes, reverse=True):
        height, run = _lower(rows, height), _one_of(rows, _stripe(number, rows, registers), run)
    return height, run


def _lower(rows: int, higher: Any) -> Any:
    @inlined
    def height(wanted):
        if wanted <= rows:
            return rows
        return higher(wanted)

    return height


def _one_of(rows: int, stripe: Any, others: Any) -> Any:
    @inlined
    def run(height, a, high, b, block, apart, offsets, k, c, pitch, n, flags, bias, edge):
        if height == rows:
            stripe(a, high, b, block, apart, offsets, k, c, pitch, n, flags, bias, edge)
        else:
            others(height, a, high, b, block, apart, offsets, k, c, pitch, n, flags, bias, edge)

    return run


# --- operands ---------------------------------------------------------------------------------------------------------


def _lead(args, lead, a, b, bias):
    """The addresses at an index of the leading axes."""
    rest = lead
    for axis in range(args[f.AXES] - 1, -1, -1):
        at = f.HEADER + axis * f.AXIS_WORDS
        place, rest = rest % args[at], rest // args[at]
        a += place * args[at + 1]
        b += place * args[at + 2]
        bias += place * args[at + 3]
    return a, b, bias


def _packed_columns(form: Format, registers: Registers) -> tuple[Any, Any]:
    """``pack(args, source, n, k, target)``, and ``place(args, lead, at, k, column)`` among columns that are all packed.

    Packed columns are in the order of leads, blocks of products, blocks of columns, and products.
    """
    size, lane_count = form.computed.bytes, registers.lanes(form.computed.bytes)
    widths = dict.fromkeys(lane_count * vectors[0] for vectors in registers.shapes.values())
    pack_panels = panels(form, registers, [*widths])

    @inlined
    def pack(args, source, n, k, target):
        pack_panels(source, args[f.B_COLUMN], args[f.B_STEP], n, lane_count, k, target, args[f.BLOCK])

    @inlined
    def place(args, lead, at, k, column):
        block = args[f.BLOCK]
        blocks = (args[f.COLUMNS] + block - 1) // block
        return ((lead * args[f.PRODUCTS] + at) * blocks + column // block * k) * block * size

    return pack, place


def _packing(form: Format, registers: Registers) -> Any:
    """All columns of ``b``, packed to ``c``: a unit is one block of products of one lead, for some of the columns."""
    pack, place = _packed_columns(form, registers)

    def kernel(args, lo, hi, workspace):
        products, longest, part = args[f.PRODUCTS], args[f.K_BLOCK], args[f.COLUMN_PART]
        parts, blocks = args[f.COLUMN_PARTS], (products + longest - 1) // longest
        for unit in range(lo, hi):
            column, rest = unit % parts * part, unit // parts
            at, lead = rest % blocks * longest, rest // blocks
            k, n = min(longest, products - at), min(part, args[f.COLUMNS] - column)
            _, b, _ = _lead(args, lead, 0, args[f.B], 0)
            source = b + at * args[f.B_STEP] + column * args[f.B_COLUMN]
            pack(args, source, n, k, args[f.C] + place(args, lead, at, k, column))

    return kernel


def _bias(form: Format) -> Any:
    """``pack(args, bias, column, n, to)``: the numbers of ``n`` columns."""
    widen, stored_at, cells_at = form.functions()[0], pointer_to(form.stored), pointer_to(form.computed)

    @outlined
    def pack(args, bias, column, n, to):
        step, y = args[f.BIAS_STEP], cells_at(to)
        for j in range(n):
            y[j] = widen(stored_at(bias + (column + j) * step)[0])

    return pack


# --- results ----------------------------------------------------------------------------------------------------------


def _add_piece(number: Type) -> Any:
    cells_at = pointer_to(number)

    @outlined
    def add(total, total_pitch, sums, pitch, rows, n, is_first, bias):
        """Sums of a piece, added to those before it; a bias (0: none) comes last."""
        for i in range(rows):
            y, x, z = cells_at(total + i * total_pitch), cells_at(sums + i * pitch), cells_at(bias)
            if is_first:
                for j in lanes(number, n):
                    y[j] = x[j]
            else:
                for j in lanes_once(number, n):
                    y[j] = y[j] + x[j]
            if bias != 0:
                for j in lanes_once(number, n):
                    y[j] = y[j] + z[j]

    return add


def _finish(form: Format) -> Any:
    number, narrow, converts = form.computed, form.functions()[1], form.converts
    stored_at, cells_at = pointer_to(form.stored), pointer_to(number)
    size, width = number.bytes, form.stored.bytes

    @outlined
    def put(to, source, n):
        y, x = stored_at(to), cells_at(source)
        for i in lanes(number, n):
            y[i] = narrow(x[i])

    @outlined
    def pass_on(args, cell, source, n, workspace):
        """Cells of the result to the program, as many at a time as it takes."""
        space, most = workspace + args[f.PROGRAM_AT], args[f.PROGRAM_BLOCK]
        for first in range(0, n, most):
            count, place = min(most, n - first), source + first * size
            if converts:
                put(workspace + args[f.ROW_AT], place, count)
                place = workspace + args[f.ROW_AT]
            words_at(space)[0] = place
            call(args[f.PROGRAM], address_of(args) + 8 * args[f.PROGRAM_WORD], cell + first, count, space)

    @inlined
    def finish_run(args, cell, source, n, workspace):
        if args[f.PROGRAM] == 0:
            put(args[f.C] + cell * width, source, n)
        else:
            pass_on(args, cell, source, n, workspace)

    @outlined
    def finish(args, cell, source, rows, n, workspace):
        """Sums at ``source``: rows of ``n`` cells, the first of which has the number ``cell``."""
        columns = args[f.COLUMNS]
        if n == columns:
            finish_run(args, cell, source, rows * n, workspace)
        else:
            for i in range(rows):
                finish_run(args, cell + i * columns, source + i * n * size, n, workspace)

    return finish


def _joining(form: Format, registers: Registers) -> Any:
    """The pieces of all sums added up: a unit is some of the rows of all leads."""
    size = form.computed.bytes
    add_piece, pack_bias, finish = _add_piece(form.computed), _bias(form), _finish(form)

    @outlined
    def join(args, row, column, n, workspace):
        sums, cell, added = workspace + args[f.SUMS_AT], row * args[f.COLUMNS] + column, 0
        if args[f.BIAS] != 0:
            added = workspace + args[f.BIAS_AT]
            _, _, bias = _lead(args, row // args[f.ROWS], 0, 0, args[f.BIAS])
            pack_bias(args, bias, column, n, added)
        for p in range(args[f.PIECES]):
            piece = args[f.A] + p * args[f.C_PIECE] + cell * size
            add_piece(sums, 0, piece, 0, 1, n, p == 0, added if p + 1 == args[f.PIECES] else 0)
        finish(args, cell, sums, 1, n, workspace)

    def kernel(args, lo, hi, workspace):
        columns, part = args[f.COLUMNS], args[f.COLUMN_PART]
        for row in range(lo * args[f.ROW_PART], min(hi * args[f.ROW_PART], args[f.ROW_PARTS])):
            for column in range(0, columns, part):
                join(args, row, column, min(part, columns - column), address_of(workspace))

    return kernel


# --- products ---------------------------------------------------------------------------------------------------------

(
    LEAD,
    ROW,
    HIGH,  # rows of the unit
    COLUMN,
    WIDE,  # and its columns
    FIRST_PIECE,
    END_PIECE,
    LEFT,  # where its rows of a begin
    RIGHT,  # and the matrix b
    SUMS,  # where the sums of a piece are made,
    SUMS_PITCH,
    SUMS_KEPT,  # whether they are still needed when the next rows' are made
    TOTALS,  # and those of all pieces
    TOTALS_PITCH,
) = range(14)
"""The frame of a unit."""


def _product(form: Format, registers: Registers) -> Any:
    size = form.computed.bytes
    locate, times_rows = _locating(form), _rows_times(form, registers)
    columns_of, add_piece, finish = _columns_of(form, registers), _add_piece(form.computed), _finish(form)

    @outlined
    def close_rows(args, frame, done, high, piece, workspace):
        """What follows when some rows' sums of a piece are complete."""
        sums, pitch = frame[SUMS] + done * frame[SUMS_KEPT] * frame[SUMS_PITCH], frame[SUMS_PITCH]
        is_last = piece + 1 == frame[END_PIECE]
        if frame[END_PIECE] - frame[FIRST_PIECE] > 1:
            total, bias = frame[TOTALS] + done * frame[TOTALS_PITCH], 0
            if is_last and args[f.BIAS] != 0:
                bias = workspace + args[f.BIAS_AT]
            is_first = piece == frame[FIRST_PIECE]
            add_piece(total, frame[TOTALS_PITCH], sums, pitch, high, frame[WIDE], is_first, bias)
            sums = total
        if is_last and args[f.IS_DIRECT] == 0:
            cell = (frame[LEAD] * args[f.ROWS] + frame[ROW] + done) * args[f.COLUMNS] + frame[COLUMN]
            finish(args, cell, sums, high, frame[WIDE], workspace)

    @outlined
    def add_block(args, frame, at, k, piece, flags, ends, workspace):
        """The products ``at …`` of all sums of the unit; whether they are the last of a piece."""
        right = columns_of(args, frame, at, k, workspace)
        for done in range(0, frame[HIGH], args[f.ROW_GROUP]):
            high = min(args[f.ROW_GROUP], frame[HIGH] - done)
            left = frame[LEFT] + done * args[f.A_ROW] + at * args[f.A_STEP]
            to = frame[SUMS] + done * frame[SUMS_KEPT] * frame[SUMS_PITCH]
            times_rows(args, frame, left, high, right, k, to, flags, workspace)
            if ends:
                close_rows(args, frame, done, high, piece, workspace)

    @outlined
    def add_pieces(args, frame, workspace):
        alone = frame[END_PIECE] - frame[FIRST_PIECE] == 1
        last_flags = COLUMN_BIAS if alone and args[f.BIAS] != 0 else 0
        for piece in range(frame[FIRST_PIECE], frame[END_PIECE]):
            begin = piece * args[f.PIECE]
            stop = min(begin + args[f.PIECE], args[f.PRODUCTS])
            at = begin
            while at == begin or at < stop:
                k = min(args[f.K_BLOCK], stop - at)
                ends = at + k >= stop
                flags = (ADDS if at > begin else 0) + (last_flags if ends else 0)
                add_block(args, frame, at, k, piece, flags, ends, workspace)
                at += args[f.K_BLOCK]

    @outlined
    def fill_tables(args, workspace):
        table, pitch = words_at(workspace + args[f.TABLES_AT]), args[f.BLOCK] * size
        for k in range(min(args[f.K_BLOCK], args[f.PRODUCTS])):
            table[k] = k * pitch
            table[k + f.K_MOST] = k * args[f.B_STEP]

    def kernel(args, lo, hi, workspace_pointer):
        workspace = address_of(workspace_pointer)
        fill_tables(args, workspace)
        for unit in range(lo, hi):
            locate(args, words_at(workspace), unit, workspace)
            add_pieces(args, words_at(workspace), workspace)

    return kernel


def _locating(form: Format) -> Any:
    size, pack_bias = form.computed.bytes, _bias(form)

    @outlined
    def locate(args, frame, unit, workspace):
        """The frame of a unit, and its bias."""
        pieces, rest = args[f.PIECES], unit
        frame[FIRST_PIECE], frame[END_PIECE] = 0, pieces
        if args[f.IS_SPLIT] != 0:
            frame[FIRST_PIECE], frame[END_PIECE], rest = unit % pieces, unit % pieces + 1, unit // pieces
        frame[ROW], rest = rest % args[f.ROW_PARTS] * args[f.ROW_PART], rest // args[f.ROW_PARTS]
        frame[COLUMN], frame[LEAD] = rest % args[f.COLUMN_PARTS] * args[f.COLUMN_PART], rest // args[f.COLUMN_PARTS]
        frame[HIGH] = min(args[f.ROW_PART], args[f.ROWS] - frame[ROW])
        frame[WIDE] = min(args[f.COLUMN_PART], args[f.COLUMNS] - frame[COLUMN])
        a, b, bias = _lead(args, frame[LEAD], args[f.A], args[f.B], args[f.BIAS])
        frame[LEFT], frame[RIGHT] = a + frame[ROW] * args[f.A_ROW], b
        locate_sums(args, frame, workspace)
        if args[f.BIAS] != 0:
            pack_bias(args, bias, frame[COLUMN], frame[WIDE], workspace + args[f.BIAS_AT])

    @inlined
    def locate_sums(args, frame, workspace):
        """Sums of one block are finished before the next rows' begin: they can all be made in the same place."""
        frame[SUMS], frame[SUMS_PITCH] = workspace + args[f.SUMS_AT], frame[WIDE] * size
        frame[TOTALS], frame[TOTALS_PITCH] = workspace + args[f.TOTALS_AT], frame[WIDE] * size
        frame[SUMS_KEPT] = 1 if args[f.PRODUCTS] > args[f.K_BLOCK] else 0
        if args[f.IS_DIRECT] != 0:
            cell = (frame[LEAD] * args[f.ROWS] + frame[ROW]) * args[f.COLUMNS] + frame[COLUMN]
            frame[TOTALS] = args[f.C] + frame[FIRST_PIECE] * args[f.C_PIECE] + cell * size
            frame[TOTALS_PITCH] = args[f.COLUMNS] * size
            if frame[END_PIECE] - frame[FIRST_PIECE] == 1:
                frame[SUMS], frame[SUMS_PITCH], frame[SUMS_KEPT] = frame[TOTALS], frame[TOTALS_PITCH], 1

    return locate


def _columns_of(form: Format, registers: Registers) -> Any:
    size, lane_count = form.computed.bytes, registers.lanes(form.computed.bytes)
    pack, place = _packed_columns(form, registers)

    @outlined
    def columns_of(args, frame, at, k, workspace):
        """The unit's columns of the products ``at …``: where they lie, or where they are packed now."""
        kind, n, here = args[f.B_KIND], frame[WIDE], workspace + args[f.B_AT]
        if kind == f.PACKED:
            return args[f.B] + place(args, frame[LEAD], at, k, frame[COLUMN])
        source = frame[RIGHT] + at * args[f.B_STEP] + frame[COLUMN] * args[f.B_COLUMN]
        if kind == f.IN_PLACE:
            whole = n // lane_count * lane_count
            if whole < n:
                pack(args, source + whole * size, n - whole, k, here)
            return source
        pack(args, source, n, k, here)
        return here

    return columns_of


def _rows_times(form: Format, registers: Registers) -> Any:
    number, size = form.computed, form.computed.bytes
    (height_of, multiply), lane_count = _stripes(number, registers), registers.lanes(size)
    pack_rows = panels(form, registers, [rows for rows in registers.shapes if rows >= f.LOW])

    @outlined
    def times(args, height, high, b, k, c, pitch, n, flags, workspace):
        """Packed rows times ``n`` columns, which are packed, or whole vectors of them in place and the rest packed."""
        a, edge, bias = workspace + args[f.A_AT], workspace + args[f.EDGE_AT], workspace + args[f.BIAS_AT]
        table, block, at, packed = workspace + args[f.TABLES_AT], args[f.BLOCK], 0, b
        if args[f.B_KIND] == f.IN_PLACE:
            whole, there = n // lane_count * lane_count, table + 8 * f.K_MOST
            multiply(height, a, high, b, block, block * size, there, k, c, pitch, whole, flags, bias, edge)
            at, packed = whole * size, workspace + args[f.B_AT]
            n -= whole
        multiply(height, a, high, packed, block, k * block * size, table, k, c + at, pitch, n, flags, bias + at, edge)

    @outlined
    def times_rows(args, frame, left, rows, right, k, to, flags, workspace):
        """Some rows, packed in panels as high as can be, and the last of them perhaps in a lower one."""
        least, step, done = f.LOW if args[f.ROWS] > f.LOW else 1, args[f.A_ROW], 0
        while done < rows:
            height = height_of(max(least, rows - done))
            count = (rows - done + min(f.LOW, height) - 1) // height
            high = min(rows - done, count * height)
            pack_rows(left + done * step, step, args[f.A_STEP], high, height, k, workspace + args[f.A_AT], height)
            c = to + done * frame[SUMS_PITCH]
            times(args, height, high, right, k, c, frame[SUMS_PITCH], frame[WIDE], flags, workspace)
            done += high

    return times_rows
