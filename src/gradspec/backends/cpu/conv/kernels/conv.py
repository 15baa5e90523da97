"""Convolution and transposed convolution: staged patches times packed weights, tile by tile.

A unit of work is one block of columns (outputs) of one group and case, for some of its rows (output channels). What the
block reads is staged for as many channels as fit the cache at a time, and multiplied by their panels of weights, for
all products that read the same source. Results go to their place at once where the columns lie side by side there, and
otherwise through the workspace, where an epilogue may also work on finished rows, and a pooling on all of a block.
"""

from __future__ import annotations

from dataclasses import dataclass

from gradspec.backends.cpu.conv.arguments import ConvArguments, ConvUnit, PackArguments
from gradspec.backends.cpu.conv.kernels.depthwise import Dots, depthwise_gradient
from gradspec.backends.cpu.conv.kernels.packing import pack_weights
from gradspec.backends.cpu.conv.kernels.squares import Squares, lay_rows, multiply_squares
from gradspec.backends.cpu.conv.kernels.staging import locate, stage_channels
from gradspec.backends.cpu.conv.kernels.strips import Room, Strips, blank
from gradspec.backends.cpu.matmul.kernels.tiles import Also, Factors, TileSums, words_at
from gradspec.backends.cpu.pool.arguments import PoolArguments, Role
from gradspec.codegen.formats import FORMATS, NumberFormat
from gradspec.codegen.intrinsics import address_of, call, multiply_add
from gradspec.codegen.language import choose, copied, inlined, lanes, outlined, pointer
from gradspec.codegen.processor import Processor, processor
from gradspec.codegen.translation import kernel_code

ROWS_AT_ONCE = 4
"""Whose results are written: each lies on a page of its own."""

unit_at, own_pooling_at = pointer(ConvUnit), copied(PoolArguments)


def build(name: str) -> str:
    """The code of the kernel called ``"conv:f32"``, ``"pack:f32"`` or ``"dots:f32"``, and so for every float format."""
    operation, form = name.split(":")
    function, arguments = {
        "conv": (convolution, ConvArguments),
        "pack": (pack_weights, PackArguments),
        "dots": (depthwise_gradient, ConvArguments),
    }[operation]
    return kernel_code(function, arguments, Convolutions(FORMATS[form], processor()))


@dataclass(frozen=True)
class Convolutions:
    """What is known of convolutions when their kernels are built."""

    form: NumberFormat
    processor: Processor

    @property
    def strips(self) -> Strips:
        return Strips(self.form.computed, self.processor)

    @property
    def squares(self) -> Squares:
        return Squares(self.form.computed, self.processor)

    @property
    def dots(self) -> Dots:
        return Dots(self.form.computed, self.processor)


def convolution(conv, args, lo, hi, workspace_pointer):
    workspace = address_of(workspace_pointer)
    blank(conv.form.computed, workspace + args.zeros_at, args.zero_cells)
    finishes = args.epilogue_function != 0
    for i in range(len(args.products)):
        finishes = finishes | (args.products[i].scratch >= 0)
    number = 0
    for unit in range(lo, hi):
        while number < len(args.cases) - 1 and unit >= args.cases[number + 1].unit:
            number += 1
        case = args.cases[number]
        run_unit(conv, args, case, unit - case.unit, workspace, finishes)


@outlined
def run_unit(conv, args, case, number, workspace, finishes):
    unit, first = unit_at(workspace), 0
    locate(args, unit, case, number)
    while first == 0 or first < args.channels:
        channels = min(args.chunk, args.channels - first)
        for s in range(len(args.sources)):
            if address_of(case.order) != 0:
                lay_rows(conv, args, unit, case, args.sources[s], workspace)
            elif channels * case.taps > 0:
                to = workspace + args.staged_at
                stage_channels(conv.form, args, unit, case, args.sources[s], first, channels, to)
            for i in range(len(args.products)):
                if args.products[i].source == s:
                    multiply(conv, args, unit, case, args.products[i], first, channels, workspace)
        first += args.chunk
    for i in range(len(args.products)):
        if args.flags > 0 and not is_finite(args, args.products[i]):
            sum_slowly(conv, args, unit, case, args.products[i], workspace)
    if finishes:
        finish(conv.form, args, unit, case, workspace)
    if args.pool_function != 0:
        pool(conv.form, args, unit, case, workspace)


# --- products ---------------------------------------------------------------------------------------------------------


@inlined
def bias_of(form, product, row):
    return form.widen(form.stored_at(product.bias)[row * product.bias_step])


@outlined
def multiply(conv, args, unit, case, product, first, channels, workspace):
    """One product over some channels; the first ones begin its sums, and the last ones add the bias."""
    form, size, k = conv.form, conv.form.computed.bytes, channels * case.taps
    group_rows, also = unit.group * args.rows, Also.OLD_SUMS if first > 0 else Also.NOTHING
    before = case.panels + (group_rows * args.channels + first * args.rows) * case.taps + unit.row * k
    panels, bias = product.weights + args.panels_at + before * size, workspace + args.biases_at
    if first + channels >= args.channels and product.bias != 0:
        for i in range(unit.rows):
            form.computed_at(bias)[i] = bias_of(form, product, group_rows + unit.row + i)
        also += Also.ROW_BIAS
    in_place = product.scratch < 0
    pitch, to, edge = args.pitch, workspace + product.scratch, 0
    if in_place:
        pitch, to = args.out_channel * size, product.result + (unit.out + unit.column) * size
        edge = workspace + args.edge_at
    b = workspace + args.staged_at + unit.skipped * size
    sums = TileSums(to, pitch, also, bias)
    if address_of(case.order) != 0:
        multiply_squares(conv, args, unit, case, args.sources[product.source], panels, sums, workspace)
    else:
        multiply_rows(conv, args, unit, case, Factors(panels, b, address_of(case.table), k), sums, edge, workspace)


@inlined
def multiply_rows(conv, args, unit, case, factors, sums, edge, workspace):
    """All columns at once, or a row of them at a time where staged rows have gaps between them."""
    size, columns, done, b = conv.form.computed.bytes, case.row_columns, 0, factors.b
    even = address_of(args.even)
    if columns == 0:
        columns = unit.columns
    else:
        edge = workspace + args.edge_at
    room = Room(edge, workspace + args.strip_at if even != 0 else 0, even)
    while done < unit.columns:
        for row in range(0, unit.rows, args.row_block):
            here = Factors(factors.a + row * factors.k * size, b, factors.offsets, factors.k)
            there = TileSums(sums.c + row * sums.pitch + done * size, sums.pitch, sums.also, sums.bias + row * size)
            conv.strips.multiply(here, min(args.row_block, unit.rows - row), there, columns, room)
        b += case.staged_row * size
        done += columns


# --- finished rows ----------------------------------------------------------------------------------------------------


@outlined
def segment_offset(args, case, segment):
    """The elements between the block's first segment and this one."""
    offset, rest = 0, segment
    for i in range(case.segment_axis - 1, args.run - 1, -1):
        axis = case.axes[i]
        offset += rest % axis.positions * axis.out_pitch
        rest //= axis.positions
    return offset


@outlined
def put(form, to, source, step, n):
    """``n`` sums, rounded to the format of the result, ``step`` elements apart."""
    y, x = form.stored_at(to), form.computed_at(source)
    if step == 1:
        for i in lanes(form.computed, n):
            y[i] = form.narrow(x[i])
    else:
        for i in range(n):
            y[i * step] = form.narrow(x[i])


@outlined
def finish_stretch(form, args, row, at, out, step, n, workspace):
    """The cells ``at … at + n − 1`` of a row of the block, which lie ``step`` elements apart in the results."""
    width, size, given = form.stored.bytes, form.computed.bytes, words_at(workspace + args.epilogue_at)
    for i in range(len(args.products)):
        product = args.products[i]
        source = workspace + product.scratch + row * args.pitch + at * size
        place = product.result + out * width
        if product.scratch >= 0 and product.result != 0:
            put(form, place, source, step, n)
        if product.given >= 0:
            if product.result == 0:
                place = source
                if form.converts:
                    place = workspace + args.rows_at + product.given * args.pitch
                    put(form, place, source, 1, n)
            given[product.given] = place
    if args.pool_function != 0:
        pooled_row = workspace + args.pool_rows_at + row * args.pitch + at * width
        if args.epilogue_function != 0:
            given[args.pool_given] = pooled_row
        elif form.converts:
            put(form, pooled_row, workspace + args.products[0].scratch + row * args.pitch + at * size, 1, n)
    if args.epilogue_function != 0:
        space = workspace + args.epilogue_at
        call(args.epilogue_function, address_of(args.epilogue[0]), out, n, space)


@outlined
def finish(form, args, unit, case, workspace):
    """Some rows at a time: divisions tell where a stretch of them belongs."""
    for first in range(0, unit.rows, ROWS_AT_ONCE):
        at = 0
        while at < unit.columns:
            column = unit.column + at
            segment, within = column // case.segment, column % case.segment
            n = min(min(case.segment - within, unit.columns - at), args.epilogue_cells)
            out = unit.out + segment_offset(args, case, segment) + within * case.out_step
            for row in range(first, min(first + ROWS_AT_ONCE, unit.rows)):
                finish_stretch(form, args, row, at, out + row * args.out_channel, case.out_step, n, workspace)
            at += n


@outlined
def pool(form, args, unit, case, workspace):
    """The rows of a block, by another kernel. Two of its addresses are the block's own, in a copy of its arguments."""
    pooling = args.poolings[0]
    if unit.columns < case.block:
        pooling = args.poolings[1]
    if pooling.units == 0:
        return
    own, words = workspace + args.pool_arguments_at, words_at(address_of(pooling.arguments[0]))
    for i in range(pooling.size // 8):
        words_at(own)[i] = words[i]
    channel, block = unit.out // args.out_channel, unit.column // case.block
    place = channel * args.pooled_channel + block * args.pooled_block
    own_pooling_at(own).arrays[Role.X] = workspace + args.pool_rows_at
    own_pooling_at(own).arrays[Role.Y] = args.pooled + place * form.stored.bytes
    call(args.pool_function, own, 0, pooling.units * unit.rows, workspace + args.pool_at)


# --- weights that are not finite: padding takes no part in transposed convolutions, not even times infinity -----------


@outlined
def is_finite(args, product):
    flags, found = words_at(product.weights), True
    for i in range(args.flags):
        found = found & (flags[i] == 0)
    return found


@outlined
def panel_of(conv, args, row, k):
    """Where a row's numbers begin in the panels of ``k`` terms, and how far apart they are."""
    done, height = 0, conv.processor.most_rows
    while row - done >= height or height > args.rows - done:
        if height > args.rows - done:
            height //= 2
        else:
            done += height
    return done * k + row - done, height


NO_CELL = -(1 << 62)
"""No offset, not even one backwards in memory."""


@outlined
def cell_of(args, unit, case, source, column, tap):
    """The element that a tap of a column meets, counted from the channel's first one; ``NO_CELL`` if there is none."""
    offset, place, rest, inside = 0, column, tap, True
    for i in range(len(case.axes) - 1, -1, -1):
        axis, position = case.axes[i], unit.first[i]
        if i >= args.run:
            position, place = place % axis.positions, place // axis.positions
        cell = position * axis.stride + axis.first + axis.least + rest % axis.taps * axis.tap_step
        rest //= axis.taps
        inside = inside & (cell >= 0) & (cell < axis.size)
        offset += cell * source.strides[i]
    return choose(inside, offset, NO_CELL)


@outlined
def sum_pairs(conv, args, unit, case, product, row, column):
    """One sum over the pairs that exist."""
    form, taps, channels, source = conv.form, case.taps, args.channels, args.sources[product.source]
    width, size, result = form.stored.bytes, form.computed.bytes, form.computed(0)
    x = source.address + unit.group * source.group_stride * width
    for c in range(channels):
        first = c // args.chunk * args.chunk
        k = min(args.chunk, channels - first) * taps
        begin, apart = panel_of(conv, args, row, k)
        before = case.panels + (unit.group * channels + first) * args.rows * taps + begin
        panel = form.computed_at(product.weights + args.panels_at + before * size)
        for t in range(taps):
            cell = cell_of(args, unit, case, source, column, t)
            if cell != NO_CELL:
                value = form.stored_at(x + (c * source.channel_stride + cell) * width)
                result = multiply_add(form.widen(value[0]), panel[((c - first) * taps + t) * apart], result)
    if product.bias != 0:
        result += bias_of(form, product, unit.group * args.rows + row)
    return result


@outlined
def sum_slowly(conv, args, unit, case, product, workspace):
    size = conv.form.computed.bytes
    for row in range(unit.rows):
        to = workspace + product.scratch + row * args.pitch
        if product.scratch < 0:
            to = product.result + (unit.out + row * args.out_channel + unit.column) * size
        y = conv.form.computed_at(to)
        for j in range(unit.columns):
            y[j] = sum_pairs(conv, args, unit, case, product, unit.row + row, unit.column + j)
