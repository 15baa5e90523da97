"""Matrix products: packed panels of rows times packed columns, tile by tile.

A unit of work is a block of rows times a block of columns. For each block of products it packs the columns, if they
are not packed yet, which then stay in a core's own cache, and goes through its rows, a group at a time: packs them in
panels, and multiplies all panels by one strip of columns after another, which stays in the nearest cache. Results are
put together where they stay or, if they must be rounded to another format or an epilogue works on them, in the
workspace.

Where rows or products are few, columns are read where they lie: to pack them takes longer than to multiply. The order
of additions is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from gradspec.backends.cpu.matmul.arguments import (
    FEW_ROWS,
    LONGEST_BLOCK,
    SUMS_GAP,
    ColumnKind,
    MatmulArguments,
    MatmulUnit,
)
from gradspec.backends.cpu.matmul.kernels.few import StreamedRows, StreamedSums, TurnedFactors, TurnedTile, stream
from gradspec.backends.cpu.matmul.kernels.panels import Matrix, Panels
from gradspec.backends.cpu.matmul.kernels.tiles import Also, Factors, Tile, TileSums, words_at
from gradspec.codegen.formats import FORMATS, NumberFormat
from gradspec.codegen.intrinsics import address_of, call
from gradspec.codegen.language import inlined, lanes, lanes_once, outlined, pointer
from gradspec.codegen.processor import Processor, processor
from gradspec.codegen.translation import kernel_code

unit_at = pointer(MatmulUnit)


def build(name: str) -> str:
    """The code of the kernels called ``"matmul:f32"``, ``"thin:f32"``, ``"pack:f32"`` and ``"join:f32"``, and so for
    all formats."""
    operation, form = name.split(":")
    kernels = {"matmul": product, "thin": product, "pack": pack_all_columns, "join": join_pieces}
    return kernel_code(kernels[operation], MatmulArguments, Matmul(FORMATS[form], processor(), operation == "thin"))


@dataclass(frozen=True)
class Matmul:
    """What is known of products when their kernels are built."""

    form: NumberFormat
    processor: Processor
    is_thin: bool
    """Whether columns may be streamed or turned."""

    @property
    def lanes(self) -> int:
        return self.processor.lanes(self.form.computed.bytes)

    @property
    def row_panels(self) -> Panels:
        return Panels(self.form, self.processor, tuple(rows for rows in self.processor.tiles if rows >= FEW_ROWS))

    @property
    def column_panels(self) -> Panels:
        widths = dict.fromkeys(self.lanes * vectors[0] for vectors in self.processor.tiles.values())
        return Panels(self.form, self.processor, (*widths,))

    @property
    def heights(self) -> tuple[int, ...]:
        """Of panels, the lowest first."""
        return tuple(sorted(self.processor.tiles))

    def tile(self, rows: int, vectors: int) -> Tile:
        return Tile(self.form.computed, rows, vectors, self.processor)

    @property
    def stripes(self) -> tuple[tuple[Tile, ...], ...]:
        """The tiles of each height, the widest first."""
        return tuple(tuple(self.tile(n, v) for v in self.processor.tiles[n]) for n in self.heights)

    @property
    def turned_tiles(self) -> tuple[TurnedTile, ...]:
        return tuple(TurnedTile(self.form.computed, n, 1, self.processor, self.form) for n in self.heights)


# --- stripes: panels of rows times columns ----------------------------------------------------------------------------


class Columns(NamedTuple):
    """Columns in blocks of ``block`` that are ``apart`` bytes from each other, and where each product's begin."""

    b: Any
    block: Any
    apart: Any
    offsets: Any


@inlined
def panel_height(matmul, rows):
    """Of the lowest panel for so many rows, or the highest of all."""
    for height in matmul.heights:
        if rows <= height:
            return height
    return matmul.processor.most_rows


@inlined
def multiply_stripe(matmul, height, a, rows, columns, k, sums, n, edge):
    """So many rows, in panels of ``height``, times ``n`` columns."""
    for tiles in matmul.stripes:
        if height == tiles[0].rows:
            stripe(tiles, a, rows, columns, k, sums, n, edge)


@outlined
def stripe(tiles, a, rows, columns, k, sums, n, edge):
    size, width, here = tiles[0].number.bytes, tiles[0].lanes, columns.b
    for first in range(0, n, columns.block):
        count, done = min(columns.block, n - first), 0
        while done < count:
            left, at = count - done, (first + done) * size
            factors = Factors(a, here + done * size, columns.offsets, k)
            there = TileSums(sums.c + at, sums.pitch, sums.also, sums.bias + at)
            done += strip(tiles, (left + width - 1) // width, factors, rows, there, left, edge)
        here += columns.apart


@inlined
def strip(tiles, needed, factors, rows, sums, n, edge):
    """All panels times columns of the widest tile that is needed in full, or of the last; how many columns it has."""
    for tile in tiles:
        if tile.vectors == 1 or needed >= tile.vectors:
            multiply_panels(tile, factors, rows, sums, n, edge)
            return tile.columns
    return 0


@inlined
def multiply_panels(tile, factors, rows, sums, n, edge):
    panel, to = factors.a, sums.c
    for row in range(0, rows, tile.rows):
        here = Factors(panel, factors.b, factors.offsets, factors.k)
        there = TileSums(to, sums.pitch, sums.also, sums.bias)
        if n >= tile.columns and row + tile.rows <= rows:
            tile.multiply(here, there)
        else:
            tile.multiply_partly(here, there, min(tile.rows, rows - row), min(n, tile.columns), edge)
        panel += factors.k * tile.rows * tile.number.bytes
        to += tile.rows * sums.pitch


# --- operands ---------------------------------------------------------------------------------------------------------


class Operands(NamedTuple):
    """Addresses at an index of the leading axes."""

    a: Any
    b: Any
    bias: Any


def operands_at(args, lead):
    a, b, bias, rest = args.a, args.b, args.bias, lead
    for i in range(len(args.leads) - 1, -1, -1):
        axis = args.leads[i]
        place, rest = rest % axis.size, rest // axis.size
        a += place * axis.a_step
        b += place * axis.b_step
        bias += place * axis.bias_step
    return Operands(a, b, bias)


@inlined
def pack_columns(matmul, args, source, n, k, target):
    matrix = Matrix(source, args.b_column, args.b_step)
    matmul.column_panels.pack(matrix, n, matmul.lanes, k, target, args.block)


@inlined
def packed_place(matmul, args, lead, at, k, column):
    """Among columns that are all packed, in the order of leads, blocks of products, blocks of columns, and products."""
    blocks = (args.columns + args.block - 1) // args.block
    cells = ((lead * args.products + at) * blocks + column // args.block * k) * args.block
    return cells * matmul.form.computed.bytes


@outlined
def pack_bias(form, args, bias, column, n, to):
    """The numbers of ``n`` columns."""
    y = form.computed_at(to)
    for j in range(n):
        y[j] = form.widen(form.stored_at(bias + (column + j) * args.bias_step)[0])


def pack_all_columns(matmul, args, lo, hi, workspace):
    """All columns of ``b``, packed to ``c``: a unit is one block of products of one lead, for some of the columns."""
    blocks = (args.products + args.k_block - 1) // args.k_block
    for unit in range(lo, hi):
        column, rest = unit % args.column_parts * args.column_part, unit // args.column_parts
        at, lead = rest % blocks * args.k_block, rest // blocks
        k, n = min(args.k_block, args.products - at), min(args.column_part, args.columns - column)
        source = operands_at(args, lead).b + at * args.b_step + column * args.b_column
        pack_columns(matmul, args, source, n, k, args.c + packed_place(matmul, args, lead, at, k, column))


# --- results ----------------------------------------------------------------------------------------------------------


@outlined
def add_piece(number, total, total_pitch, sums, pitch, rows, n, is_first, bias):
    """Sums of a piece, added to those before it; a bias (0: none) comes last."""
    for i in range(rows):
        y, x, z = pointer(number)(total + i * total_pitch), pointer(number)(sums + i * pitch), pointer(number)(bias)
        if is_first:
            for j in lanes(number, n):
                y[j] = x[j]
        else:
            for j in lanes_once(number, n):
                y[j] = y[j] + x[j]
        if bias != 0:
            for j in lanes_once(number, n):
                y[j] = y[j] + z[j]


@outlined
def put(form, to, source, n):
    """Numbers in the format of the result."""
    y, x = form.stored_at(to), form.computed_at(source)
    for i in lanes(form.computed, n):
        y[i] = form.narrow(x[i])


@outlined
def pass_on(form, args, cell, source, n, workspace):
    """Cells of the result to the epilogue, as many at a time as it takes."""
    space = workspace + args.epilogue_at
    for first in range(0, n, args.epilogue_block):
        count, place = min(args.epilogue_block, n - first), source + first * form.computed.bytes
        if form.converts:
            put(form, workspace + args.row_at, place, count)
            place = workspace + args.row_at
        words_at(space)[0] = place
        call(args.epilogue_function, address_of(args.epilogue[0]), cell + first, count, space)


@inlined
def finish_run(form, args, cell, source, n, workspace):
    if args.epilogue_function == 0:
        put(form, args.c + cell * form.stored.bytes, source, n)
    else:
        pass_on(form, args, cell, source, n, workspace)


@outlined
def finish(form, args, cell, source, rows, n, workspace):
    """Sums at ``source``: rows of ``n`` cells, the first of which has the number ``cell``."""
    if n == args.columns:
        finish_run(form, args, cell, source, rows * n, workspace)
    else:
        for i in range(rows):
            finish_run(form, args, cell + i * args.columns, source + i * n * form.computed.bytes, n, workspace)


@outlined
def join_row(form, args, row, column, n, workspace):
    """The pieces of some sums of a row, added up."""
    sums, cell, added, number = workspace + args.sums_at, row * args.columns + column, 0, form.computed
    if args.bias != 0:
        added = workspace + args.bias_at
        pack_bias(form, args, operands_at(args, row // args.rows).bias, column, n, added)
    for p in range(args.pieces):
        piece = args.a + p * args.c_piece + cell * number.bytes
        add_piece(number, sums, 0, piece, 0, 1, n, p == 0, added if p + 1 == args.pieces else 0)
    finish(form, args, cell, sums, 1, n, workspace)


def join_pieces(matmul, args, lo, hi, workspace):
    """The pieces of all sums added up: a unit is some of the rows of all leads."""
    for row in range(lo * args.row_part, min(hi * args.row_part, args.row_parts)):
        for column in range(0, args.columns, args.column_part):
            n = min(args.column_part, args.columns - column)
            join_row(matmul.form, args, row, column, n, address_of(workspace))


# --- products ---------------------------------------------------------------------------------------------------------


def product(matmul, args, lo, hi, workspace):
    base = address_of(workspace)
    fill_tables(matmul, args, base)
    for number in range(lo, hi):
        locate(matmul, args, unit_at(base), number, base)
        if matmul.is_thin and args.column_kind == ColumnKind.TURNED:
            add_turned(matmul, args, unit_at(base), base)
        else:
            add_pieces(matmul, args, unit_at(base), base)


@outlined
def fill_tables(matmul, args, workspace):
    table, pitch = words_at(workspace + args.tables_at), args.block * matmul.form.computed.bytes
    for k in range(min(args.k_block, args.products)):
        table[k] = k * pitch
        table[k + LONGEST_BLOCK] = k * args.b_step


@outlined
def locate(matmul, args, unit, number, workspace):
    """Unit of work ``number``, and its bias."""
    unit.first_piece, unit.end_piece, rest = 0, args.pieces, number
    if args.is_split:
        unit.first_piece, unit.end_piece, rest = number % args.pieces, number % args.pieces + 1, number // args.pieces
    unit.row, rest = rest % args.row_parts * args.row_part, rest // args.row_parts
    unit.column, unit.lead = rest % args.column_parts * args.column_part, rest // args.column_parts
    unit.rows = min(args.row_part, args.rows - unit.row)
    unit.columns = min(args.column_part, args.columns - unit.column)
    operands = operands_at(args, unit.lead)
    unit.left, unit.right = operands.a + unit.row * args.a_row, operands.b
    locate_sums(matmul.form.computed.bytes, args, unit, workspace)
    if args.bias != 0:
        pack_bias(matmul.form, args, operands.bias, unit.column, unit.columns, workspace + args.bias_at)


@inlined
def locate_sums(size, args, unit, workspace):
    """Sums of one block are finished before the next rows' begin: they can all be made in the same place."""
    unit.sums, unit.sums_pitch = workspace + args.sums_at, unit.columns * size
    unit.totals, unit.totals_pitch = workspace + args.totals_at, unit.columns * size
    unit.sums_kept = 1 if args.products > args.k_block else 0
    if args.is_direct:
        cell = (unit.lead * args.rows + unit.row) * args.columns + unit.column
        unit.totals = args.c + unit.first_piece * args.c_piece + cell * size
        unit.totals_pitch = args.columns * size
        if unit.end_piece - unit.first_piece == 1:
            unit.sums, unit.sums_pitch, unit.sums_kept = unit.totals, unit.totals_pitch, 1


@inlined
def has_one_piece(unit):
    return unit.end_piece - unit.first_piece == 1


@inlined
def also_added(args, unit, at, begin, stop):
    """To the sums of the block at ``at`` of a piece; the bias is added to its last, unless there are more pieces."""
    is_biased = at + args.k_block >= stop and has_one_piece(unit) and args.bias != 0
    return (Also.OLD_SUMS if at > begin else Also.NOTHING) + (Also.COLUMN_BIAS if is_biased else Also.NOTHING)


@outlined
def add_pieces(matmul, args, unit, workspace):
    for piece in range(unit.first_piece, unit.end_piece):
        begin = piece * args.piece
        stop = min(begin + args.piece, args.products)
        at = begin
        while at == begin or at < stop:
            also, k = also_added(args, unit, at, begin, stop), min(args.k_block, stop - at)
            add_block(matmul, args, unit, at, k, piece, also, at + k >= stop, workspace)
            at += args.k_block


@outlined
def add_block(matmul, args, unit, at, k, piece, also, ends, workspace):
    """The products ``at …`` of all sums of the unit; whether they are the last of a piece."""
    right = columns_of(matmul, args, unit, at, k, workspace)
    for done in range(0, unit.rows, args.row_group):
        rows = min(args.row_group, unit.rows - done)
        left = unit.left + done * args.a_row + at * args.a_step
        to = unit.sums + done * unit.sums_kept * unit.sums_pitch
        if matmul.is_thin and args.column_kind == ColumnKind.STREAMED:
            stream_rows(matmul, args, unit, left, rows, right, k, to, also, workspace)
        else:
            multiply_rows(matmul, args, unit, left, rows, right, k, to, also, workspace)
        if ends:
            close_rows(matmul, args, unit, done, rows, piece, workspace)


@outlined
def columns_of(matmul, args, unit, at, k, workspace):
    """The unit's columns of the products ``at …``: where they lie, or where they are packed now."""
    n, here, size = unit.columns, workspace + args.b_at, matmul.form.computed.bytes
    if args.column_kind == ColumnKind.PACKED:
        return args.b + packed_place(matmul, args, unit.lead, at, k, unit.column)
    source = unit.right + at * args.b_step + unit.column * args.b_column
    if args.column_kind == ColumnKind.IN_PLACE:
        whole = n // matmul.lanes * matmul.lanes
        if whole < n:
            pack_columns(matmul, args, source + whole * size, n - whole, k, here)
        return source
    if args.column_kind == ColumnKind.STREAMED:
        return source
    pack_columns(matmul, args, source, n, k, here)
    return here


@outlined
def multiply_rows(matmul, args, unit, left, rows, right, k, to, also, workspace):
    """Some rows, packed in panels as high as can be, and the last of them perhaps in a lower one."""
    least, step, done = FEW_ROWS if args.rows > FEW_ROWS else 1, args.a_row, 0
    while done < rows:
        height = panel_height(matmul, max(least, rows - done))
        count = (rows - done + min(FEW_ROWS, height) - 1) // height
        here, packed = min(rows - done, count * height), workspace + args.a_at
        matrix = Matrix(left + done * step, step, args.a_step)
        matmul.row_panels.pack(matrix, here, height, k, packed, height)
        sums = TileSums(to + done * unit.sums_pitch, unit.sums_pitch, also, workspace + args.bias_at)
        multiply_packed(matmul, args, height, here, right, k, sums, unit.columns, workspace)
        done += here


@outlined
def multiply_packed(matmul, args, height, rows, b, k, sums, n, workspace):
    """Packed rows times ``n`` columns, which are packed, or whole vectors of them in place and the rest packed."""
    size, a, edge = matmul.form.computed.bytes, workspace + args.a_at, workspace + args.edge_at
    table, at, packed = workspace + args.tables_at, 0, b
    if args.column_kind == ColumnKind.IN_PLACE:
        whole = n // matmul.lanes * matmul.lanes
        columns = Columns(b, args.block, args.block * size, table + 8 * LONGEST_BLOCK)
        multiply_stripe(matmul, height, a, rows, columns, k, sums, whole, edge)
        at, packed = whole * size, workspace + args.b_at
        n -= whole
    columns = Columns(packed, args.block, k * args.block * size, table)
    rest = TileSums(sums.c + at, sums.pitch, sums.also, sums.bias + at)
    multiply_stripe(matmul, height, a, rows, columns, k, rest, n, edge)


@outlined
def stream_rows(matmul, args, unit, left, rows, right, k, to, also, workspace):
    """Rows of ``b``, added to rows of sums one after another; old sums and a bias are added last."""
    number, n, a, sums, pitch = matmul.form.computed, unit.columns, workspace + args.a_at, to, unit.sums_pitch
    if also & Also.OLD_SUMS:
        sums, pitch = workspace + args.b_at, n * number.bytes + SUMS_GAP
    matmul.row_panels.pack(Matrix(left, args.a_row, args.a_step), rows, 1, k, a, 1)
    here = StreamedRows(right, args.b_step, n)
    stream(matmul, a, rows, k, here, StreamedSums(sums, pitch, True))
    if also != Also.NOTHING:
        bias = workspace + args.bias_at if also & Also.COLUMN_BIAS else 0
        add_piece(number, to, unit.sums_pitch, sums, pitch, rows, n, (also & Also.OLD_SUMS) == 0, bias)


@outlined
def close_rows(matmul, args, unit, done, rows, piece, workspace):
    """What follows when some rows' sums of a piece are complete."""
    sums = unit.sums + done * unit.sums_kept * unit.sums_pitch
    if not has_one_piece(unit):
        sums = unit.totals + done * unit.totals_pitch
        join_sums(matmul.form.computed, args, unit, done, rows, 0, unit.columns, piece, workspace)
    if piece + 1 == unit.end_piece and not args.is_direct:
        cell = (unit.lead * args.rows + unit.row + done) * args.columns + unit.column
        finish(matmul.form, args, cell, sums, rows, unit.columns, workspace)


@outlined
def join_sums(number, args, unit, row, rows, column, columns, piece, workspace):
    """The sums of a piece, added to those of the pieces before it."""
    at, bias = column * number.bytes, 0
    if piece + 1 == unit.end_piece and args.bias != 0:
        bias = workspace + args.bias_at + at
    total = unit.totals + row * unit.totals_pitch + at
    sums = unit.sums + row * unit.sums_kept * unit.sums_pitch + at
    is_first = piece == unit.first_piece
    add_piece(number, total, unit.totals_pitch, sums, unit.sums_pitch, rows, columns, is_first, bias)


# --- columns that lie across ------------------------------------------------------------------------------------------


@outlined
def add_turned(matmul, args, unit, workspace):
    """Some pieces at a time, and of these some columns after another, so that each is read from end to end."""
    a, height, size = workspace + args.a_at, panel_height(matmul, unit.rows), matmul.form.computed.bytes
    for first in range(unit.first_piece, unit.end_piece, args.piece_group):
        begin, end = first * args.piece, min(first + args.piece_group, unit.end_piece)
        k = min(end * args.piece, args.products) - begin
        matrix = Matrix(unit.left + begin * args.a_step, args.a_row, args.a_step)
        matmul.row_panels.pack(matrix, unit.rows, height, k, a, height)
        for column in range(0, unit.columns, matmul.lanes):
            for row in range(0, unit.rows, height):
                run = ProductRun(a + row * k * size, begin, k, row, column)
                for tile in matmul.turned_tiles:
                    if height == tile.rows:
                        turned_pieces(tile, args, unit, run, first, end, workspace)
    if not args.is_direct:
        sums = unit.sums if has_one_piece(unit) else unit.totals
        cell = (unit.lead * args.rows + unit.row) * args.columns + unit.column
        finish(matmul.form, args, cell, sums, unit.rows, unit.columns, workspace)


class ProductRun(NamedTuple):
    """A panel, the products that it is packed for, and its place among the sums of a unit."""

    panel: Any
    begin: Any
    k: Any
    row: Any
    column: Any


@outlined
def turned_pieces(tile, args, unit, run, first, end, workspace):
    """A panel of rows times as many columns as a tile has."""
    rows, columns = min(tile.rows, unit.rows - run.row), min(tile.columns, unit.columns - run.column)
    for piece in range(first, end):
        begin = piece * args.piece
        stop = min(begin + args.piece, args.products)
        for at in range(begin, stop, args.k_block):
            k, also = min(args.k_block, stop - at), also_added(args, unit, at, begin, stop)
            turned_block(tile, args, unit, run, at, k, rows, columns, also, workspace)
        if not has_one_piece(unit):
            join_sums(tile.number, args, unit, run.row, rows, run.column, columns, piece, workspace)


@inlined
def turned_block(tile, args, unit, run, at, k, rows, columns, also, workspace):
    """The products ``at …``. The columns that follow are fetched meanwhile, as many of them, one after another."""
    size, place = tile.number.bytes, at - run.begin
    b = unit.right + (unit.column + run.column) * args.b_column + run.begin * args.b_step
    ahead, length = place * tile.columns * args.b_step, run.k * args.b_step
    following = b + (tile.columns + ahead // length) * args.b_column + ahead % length
    left, right = run.panel + place * tile.rows * size, b + place * args.b_step
    factors = TurnedFactors(left, right, args.b_column, columns - 1, k, following)
    to, bias = unit.sums + run.row * unit.sums_pitch + run.column * size, workspace + args.bias_at + run.column * size
    sums = TileSums(to, unit.sums_pitch, also, bias)
    if rows == tile.rows and columns == tile.columns:
        tile.multiply(factors, sums)
    else:
        tile.multiply_partly(factors, sums, rows, columns, workspace + args.edge_at)
