"""The weight gradient of a convolution: ``w[m, c, t] = Σ g[m, o] · x̃[c, o·s − lo + d·t]`` over samples and outputs.

Sums run over positions, so the columns of the tiles are channels and taps. The cells that a block of positions reads
are staged with the channels of a cell side by side: for every tap, the columns of a position are then one stretch, and
the taps of the last axis, if their cells are neighbours, lie in one stretch together. The other factor is packed into
panels. A unit of work is some rows and some channels of the weights.
"""

from __future__ import annotations

from gradspec.backends.cpu.conv.arguments import GradientArguments, GradientUnit, JoinArguments
from gradspec.backends.cpu.conv.kernels.conv import Convolutions
from gradspec.backends.cpu.conv.kernels.packing import Strided, turn
from gradspec.backends.cpu.conv.kernels.staging import clear
from gradspec.backends.cpu.conv.kernels.strips import Room, blank
from gradspec.backends.cpu.matmul.kernels.tiles import Also, Factors, TileSums
from gradspec.codegen.formats import FORMATS
from gradspec.codegen.intrinsics import address_of
from gradspec.codegen.language import choose, lanes, lanes_once, outlined, pointer
from gradspec.codegen.processor import processor
from gradspec.codegen.translation import kernel_code

unit_at = pointer(GradientUnit)


def build(name: str) -> str:
    """The code of the kernel called ``"gradient:f32"`` or ``"join:f32"``, and so for every float format."""
    operation, form = name.split(":")
    function, arguments = {"gradient": (gradient, GradientArguments), "join": (join_pieces, JoinArguments)}[operation]
    return kernel_code(function, arguments, Convolutions(FORMATS[form], processor()))


def join_pieces(conv, args, lo, hi, workspace):
    """The sum of all pieces, in their order."""
    form, number = conv.form, conv.form.computed
    for unit in range(lo, hi):
        first = unit * args.stretch
        n = min(args.stretch, args.length - first)
        sums, y = form.computed_at(address_of(workspace)), form.stored_at(args.result + first * form.stored.bytes)
        for piece in range(args.count):
            x = form.computed_at(args.pieces + (piece * args.length + first) * number.bytes)
            for i in lanes_once(number, n):
                sums[i] = x[i] if piece == 0 else sums[i] + x[i]
        for i in lanes(number, n):
            y[i] = form.narrow(sums[i])


def gradient(conv, args, lo, hi, workspace):
    base = address_of(workspace)
    blank(conv.form.computed, base + args.staged_at, args.staged_cells)
    for number in range(lo, hi):
        run_unit(conv, args, number, base)


@outlined
def run_unit(conv, args, number, workspace):
    form, unit, run = conv.form, unit_at(workspace), args.run
    part, rest = number % args.channel_parts, number // args.channel_parts
    row_part, rest = rest % args.parts, rest // args.parts
    group, piece = rest % args.groups, rest // args.groups
    unit.channel, unit.row = part * args.part_channels, row_part * args.part_rows
    unit.channels = min(args.part_channels, args.channels - unit.channel)
    unit.rows = min(args.part_rows, args.rows - unit.row)
    x = args.x + (group * args.x_group + unit.channel * args.x_channel) * form.stored.bytes
    g = args.g + (group * args.g_group + unit.row * args.g_channel) * form.stored.bytes
    for i in range(run, len(args.axes)):
        unit.first[i] = 0
    blocks = args.outer * args.blocks
    first = piece * blocks // args.pieces
    for block in range(first, (piece + 1) * blocks // args.pieces):
        rest = block // args.blocks
        for i in range(run - 1, -1, -1):
            count = args.axes[i].positions
            unit.first[i], rest = rest % count, rest // count
        unit.first[run] = block % args.blocks * args.block
        unit.count = min(args.block, args.axes[run].positions - unit.first[run])
        add_block(conv, args, unit, x, g, block == first, workspace)
    place = group * args.w_group + unit.row * args.w_row + unit.channel * args.w_channel
    if args.pieces == 1:
        write(form, form, args, unit, args.w + place * form.stored.bytes, workspace)
    else:
        to = args.w + (piece * args.w_size + place) * form.computed.bytes
        write(form, form.as_computed, args, unit, to, workspace)


# --- x ----------------------------------------------------------------------------------------------------------------


@outlined
def stage_stretch(form, args, unit, axis, first, cells, src, to, is_real):
    """``cells`` cells of the last axis from cell ``first`` on, for all channels of the unit."""
    pitch, size = args.part_channels, form.computed.bytes
    begin = min(max(0, -first), cells)
    end = min(max(axis.size - first, begin), cells) if is_real else begin
    if begin > 0:
        clear(form, to, begin * pitch)
    if end > begin:
        matrix = Strided(src + (first + begin) * axis.x_stride * form.stored.bytes, args.x_channel, axis.x_stride)
        turn(form, matrix, unit.channels, end - begin, to + begin * pitch * size, pitch)
    if end < cells:
        clear(form, to + end * pitch * size, (cells - end) * pitch)


def stage(form, args, unit, number, src, to, is_real):
    """The cells of axis ``number`` and of all behind it."""
    axis = args.axes[number]
    step, count = 1, axis.cells
    if number < args.run:
        step, count = axis.tap_step, axis.taps
    if number == args.run:
        count -= (args.block - unit.count) * axis.stride
    first = unit.first[number] * axis.stride + axis.first
    if number == len(args.axes) - 1:
        stage_stretch(form, args, unit, axis, first, count, src, to, is_real)
        return
    for i in range(count):
        cell = first + i * step
        inside = is_real & (cell >= 0) & (cell < axis.size)
        place = src + choose(inside, cell, 0) * axis.x_stride * form.stored.bytes
        stage(form, args, unit, number + 1, place, to + i * axis.cell_pitch, inside)


# --- g ----------------------------------------------------------------------------------------------------------------


def pack(form, args, unit, number, src, rows, to):
    """One panel of rows, for the positions of the block along axis ``number`` and all behind it."""
    axis, width = args.axes[number], form.stored.bytes
    count = 1 if number < args.run else unit.count if number == args.run else axis.positions
    here = src + (unit.first[number] if number <= args.run else 0) * axis.g_stride * width
    if number == len(args.axes) - 1:
        turn(form, Strided(here, args.g_channel, axis.g_stride), rows, count, to, rows)
        return
    for i in range(count):
        place = to + i * axis.behind * rows * form.computed.bytes
        pack(form, args, unit, number + 1, here + i * axis.g_stride * width, rows, place)


@outlined
def pack_panels(conv, args, unit, src, to):
    form, rows, done, height = conv.form, unit.rows, 0, conv.processor.most_rows
    k = unit.count * args.inner
    while done < rows:
        while height > rows - done:
            height //= 2
        source = src + done * args.g_channel * form.stored.bytes
        pack(form, args, unit, 0, source, height, to + done * k * form.computed.bytes)
        done += height


# --- the sums ---------------------------------------------------------------------------------------------------------


@outlined
def add_block(conv, args, unit, x, g, is_first, workspace):
    staged, packed = workspace + args.staged_at, workspace + args.panels_at
    stage(conv.form, args, unit, 0, x, staged, True)
    pack_panels(conv, args, unit, g, packed)
    room = Room(0, workspace + args.strip_at, address_of(args.even))
    columns, also = args.set_taps * args.part_channels, Also.NOTHING if is_first else Also.OLD_SUMS
    for s in range(args.set_count):
        factors = Factors(packed, staged + args.sets[s], address_of(args.table), unit.count * args.inner)
        sums = TileSums(workspace + args.sums_at + s * args.set_pitch, args.sums_pitch, also, 0)
        conv.strips.multiply(factors, unit.rows, sums, columns, room)


@outlined
def write(form, out, args, unit, to, workspace):
    """The sums in their place and in the format ``out``, channel by channel."""
    for i in range(unit.rows):
        for s in range(args.set_count):
            sums = form.computed_at(workspace + args.sums_at + i * args.sums_pitch + s * args.set_pitch)
            for t in range(args.set_taps):
                y = out.stored_at(to + (i * args.w_row + s * args.set_taps + t) * out.stored.bytes)
                for c in range(unit.channels):
                    y[c * args.w_channel] = out.narrow(sums[t * args.part_channels + c])
