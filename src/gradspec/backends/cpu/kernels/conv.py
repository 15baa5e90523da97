"""Convolution and transposed convolution: staged patches times packed weights, tile by tile.

A unit of work is one block of columns (outputs) of one group and case, for some of its rows (output channels). What the
block reads is staged for as many channels as fit the cache at a time, and multiplied by their panels of weights, for
all products that read the same source. Results go to their place at once where the columns lie side by side there, and
otherwise through the workspace, where a program may also work on finished rows, and a pooling on all of a block.
"""

from __future__ import annotations

from typing import Any

from gradspec.backends.cpu.kernels import conv_fields as f
from gradspec.backends.cpu.kernels import fields as pooling
from gradspec.backends.cpu.kernels.compiler import choose, i64, inlined, lanes, outlined, total
from gradspec.backends.cpu.kernels.dots import dots
from gradspec.backends.cpu.kernels.memory import FORMATS, Format, address_of, call, multiply_add, pointer_to
from gradspec.backends.cpu.kernels.patches import staging
from gradspec.backends.cpu.kernels.registers import Registers, machine
from gradspec.backends.cpu.kernels.squares import SIDE, squares
from gradspec.backends.cpu.kernels.strips import EDGE, EVEN, STRIP, all_strips, blanking
from gradspec.backends.cpu.kernels.target import kernel_code
from gradspec.backends.cpu.kernels.tiles import ADDS, ROW_BIAS

words_at = pointer_to(i64)


def build(name: str) -> str:
    """The code of the kernel called ``"conv:f32"``, ``"pack:f32"`` or ``"dots:f32"``, and so for every float format."""
    kind, form = name.split(":")
    kernels = {"conv": convolution, "pack": packing, "dots": depthwise_gradient}
    return kernel_code(kernels[kind](FORMATS[form], machine()))


# --- packed weights ---------------------------------------------------------------------------------------------------


def packing(form: Format, machine: Registers) -> Any:
    """Weights in panels: of each case, group and chunk, in that order, which are the units of work."""
    number, widen, most = form.computed, form.functions()[0], machine.most_rows
    stored_at, cells_at = pointer_to(form.stored), pointer_to(number)
    width, size = form.stored.bytes, number.bytes

    @outlined
    def panel(args, case, source, to, rows, channels):
        """One panel of ``rows`` rows; whether some of its numbers are not finite."""
        taps, table, y = args[case + f.PACK_TAPS], words_at(args[case + f.PACK_TABLE]), cells_at(to)
        row_step, channel_step = args[f.PACK_ROW], args[f.PACK_CHANNEL]
        at, found = 0, False
        for c in range(channels):
            for t in range(taps):
                x = stored_at(source + (c * channel_step + table[t]) * width)
                for i in range(rows):
                    value = widen(x[i * row_step])
                    found = found | (value - value != number(0))
                    y[at + i] = value
                at += rows
        return found

    @outlined
    def chunk(args, case, group, first, channels, to):
        rows, k = args[f.PACK_ROWS], channels * args[case + f.PACK_TAPS]
        source = args[f.PACK_SOURCE] + (group * args[f.PACK_GROUP] + first * args[f.PACK_CHANNEL]) * width
        done, height, found = 0, most, False
        while done < rows:
            while height > rows - done:
                height //= 2
            place = source + done * args[f.PACK_ROW] * width
            found = found | panel(args, case, place, to + done * k * size, height, channels)
            done += height
        return found

    def kernel(args, lo, hi, workspace):
        rows, groups, target = args[f.PACK_ROWS], args[f.PACK_GROUPS], args[f.PACK_TARGET]
        channels, most_channels = args[f.PACK_CHANNELS], args[f.PACK_CHUNK]
        chunks = (channels + most_channels - 1) // most_channels
        flags = words_at(target)
        for unit in range(lo, hi):
            piece, group = unit % chunks, unit // chunks % groups
            case = f.PACK_HEADER + unit // (chunks * groups) * f.PACK_CASE_WORDS
            first = piece * most_channels
            place = args[case + f.PACK_FIRST] + (group * channels + first) * args[case + f.PACK_TAPS] * rows
            here = target + args[f.PACK_PANELS] + place * size
            flags[unit] = i64(chunk(args, case, group, first, min(most_channels, channels - first), here))

    return kernel


# --- blocks of columns ------------------------------------------------------------------------------------------------

GROUP, ROW, ROWS, COLUMN, COLUMNS, SKIPPED, OUT, ROOM = range(48, 56)
"""Words of a unit's frame, behind the positions of every axis."""


def blocks(form: Format) -> Any:
    """``locate(args, frame, case, unit)`` and ``staged(args, frame, case, source, first, channels, to)``."""
    width, size, stage = form.stored.bytes, form.computed.bytes, staging(form)

    @outlined
    def locate(args, frame, case, unit):
        """The frame of a unit of this case."""
        run, inner = args[f.RUN], args[case + f.INNER]
        blocks, parts = args[case + f.BLOCKS], args[f.PARTS]
        block, rest = unit % blocks, unit // blocks
        part, rest = rest % parts, rest // parts
        group, outer = rest % args[f.GROUPS], rest // args[f.GROUPS]
        column = block * args[case + f.BLOCK]
        columns = min(args[case + f.BLOCK], args[case + f.TOTAL] - column)
        first = column // inner
        frame[GROUP], frame[ROW] = group, part * args[f.PART_ROWS]
        frame[ROWS] = min(args[f.PART_ROWS], args[f.ROWS] - frame[ROW])
        frame[COLUMN], frame[COLUMNS], frame[SKIPPED] = column, columns, column - first * inner
        out = args[case + f.OUT] + group * args[f.OUT_GROUP] + frame[ROW] * args[f.OUT_CHANNEL]
        for axis in range(args[f.AXES] - 1, run, -1):
            at = case + f.CASE_AXES + axis * f.AXIS_WORDS
            frame[2 * axis], frame[2 * axis + 1] = 0, args[at + f.STAGED_POSITIONS]
        frame[2 * run] = first
        frame[2 * run + 1] = (column + columns - 1) // inner + 1 - first + args[case + f.HALO]
        for axis in range(run - 1, -1, -1):
            at = case + f.CASE_AXES + axis * f.AXIS_WORDS
            position, outer = outer % args[at + f.POSITIONS], outer // args[at + f.POSITIONS]
            frame[2 * axis], frame[2 * axis + 1] = position, 1
            out += position * args[at + f.OUT_PITCH]
        frame[OUT] = out

    @outlined
    def staged(args, frame, case, source, first, channels, to):
        src = args[source + f.ADDRESS] + frame[GROUP] * args[source + f.GROUP_STRIDE] * width
        step, pitch = args[source + f.CHANNEL_STRIDE] * width, args[case + f.CHANNEL_PITCH] * size
        for c in range(channels):
            stage(args, frame, case, source, src + (first + c) * step, to + c * pitch)

    return locate, staged


# --- convolution ------------------------------------------------------------------------------------------------------


def convolution(form: Format, machine: Registers) -> Any:
    number, (widen, narrow), most = form.computed, form.functions(), machine.most_rows
    stored_at, cells_at = pointer_to(form.stored), pointer_to(number)
    width, size, converts = form.stored.bytes, number.bytes, form.converts
    multiply, square, blank = all_strips(number, machine), squares(number, machine), blanking(number)
    locate, staged = blocks(form)

    @inlined
    def bias_of(args, product, row):
        return widen(stored_at(args[product + f.BIAS])[row * args[product + f.BIAS_STEP]])

    @outlined
    def multiplied(args, frame, case, product, first, channels, workspace):
        """One product over some channels; the first ones begin its sums, and the last ones add the bias."""
        rows, k = frame[ROWS], channels * args[case + f.TAPS]
        weights, group_rows = args[product + f.WEIGHTS], frame[GROUP] * args[f.ROWS]
        before = args[case + f.PANELS] + (group_rows * args[f.CHANNELS] + first * args[f.ROWS]) * args[case + f.TAPS]
        panels = weights + args[f.PANELS_AT] + (before + frame[ROW] * k) * size
        bias, flags = workspace + args[f.BIASES], ADDS if first > 0 else 0
        if first + channels >= args[f.CHANNELS] and args[product + f.BIAS] != 0:
            for i in range(rows):
                cells_at(bias)[i] = bias_of(args, product, group_rows + frame[ROW] + i)
            flags += ROW_BIAS
        in_place = args[product + f.SCRATCH] < 0
        pitch = args[f.OUT_CHANNEL] * size if in_place else args[f.PITCH]
        to = workspace + args[product + f.SCRATCH]
        room = words_at(workspace + 8 * ROOM)
        room[EDGE], room[STRIP], room[EVEN] = 0, workspace + args[f.STRIP], args[f.EVEN]
        if in_place:
            to = args[product + f.RESULT] + (frame[OUT] + frame[COLUMN]) * size
            room[EDGE] = workspace + args[f.EDGE]
        b = workspace + args[f.STAGED] + frame[SKIPPED] * size
        table, columns, done = args[case + f.TABLE], args[case + f.ROW_COLUMNS], 0
        if args[case + f.ORDER] != 0:
            windows(args, case, panels, b, to, bias, flags, frame[COLUMNS])
            return
        if columns == 0:
            columns = frame[COLUMNS]
        else:
            room[EDGE], room[STRIP] = workspace + args[f.EDGE], 0
        while done < frame[COLUMNS]:
            for row in range(0, rows, args[f.ROW_BLOCK]):
                here, height = to + row * pitch + done * size, min(args[f.ROW_BLOCK], rows - row)
                multiply(
                    panels + row * k * size, height, b, table, k, here, pitch, columns, flags, bias + row * size, room
                )
            b += args[case + f.STAGED_ROW] * size
            done += columns

    @outlined
    def windows(args, case, panel, x, to, bias, flags, n):
        """Windows of three by three: ``factors`` are their taps in the order of cells."""
        order, columns = words_at(args[case + f.ORDER]), args[case + f.ROW_COLUMNS]
        factors, first = cells_at(bias + size), number(0)
        if flags & ROW_BIAS:
            first = cells_at(bias)[0]
        cells_at(bias)[0] = first
        for i in range(SIDE * SIDE):
            factors[i] = cells_at(panel)[order[i]]
        pitch = args[case + f.STAGED_ROW] * size
        square(x, pitch, args[case + f.STEP], bias + size, to, columns * size, bias, n // columns, columns)

    @outlined
    def segment_offset(args, case, segment):
        """The elements between the block's first segment and this one."""
        offset, rest = 0, segment
        for axis in range(args[case + f.SEGMENT_AXIS] - 1, args[f.RUN] - 1, -1):
            at = case + f.CASE_AXES + axis * f.AXIS_WORDS
            offset += rest % args[at + f.POSITIONS] * args[at + f.OUT_PITCH]
            rest //= args[at + f.POSITIONS]
        return offset

    @outlined
    def put(to, source, step, n):
        """``n`` sums, rounded to the format of the result, ``step`` elements apart."""
        y, x = stored_at(to), cells_at(source)
        if step == 1:
            for i in lanes(number, n):
                y[i] = narrow(x[i])
        else:
            for i in range(n):
                y[i * step] = narrow(x[i])

    @outlined
    def finish_stretch(args, products, row, at, out, step, n, workspace):
        """The cells ``at … at + n − 1`` of a row of the block, which lie ``step`` elements apart in the results."""
        program = workspace + args[f.PROGRAM_SPACE]
        given = words_at(program)
        for i in range(args[f.PRODUCTS]):
            product = products + i * f.PRODUCT_WORDS
            result, number_given = args[product + f.RESULT], args[product + f.GIVEN]
            source = workspace + args[product + f.SCRATCH] + row * args[f.PITCH] + at * size
            place = result + out * width
            if args[product + f.SCRATCH] >= 0 and result != 0:
                put(place, source, step, n)
            if number_given >= 0:
                if result == 0:
                    place = source
                    if converts:
                        place = workspace + args[f.ROW_SPACE] + number_given * args[f.PITCH]
                        put(place, source, 1, n)
                given[number_given] = place
        if args[f.POOL] != 0:
            row_to_pool = workspace + args[f.POOL_ROWS] + row * args[f.PITCH] + at * width
            if args[f.PROGRAM] != 0:
                given[args[f.POOL_GIVEN]] = row_to_pool
            elif converts:
                put(row_to_pool, workspace + args[products + f.SCRATCH] + row * args[f.PITCH] + at * size, 1, n)
        if args[f.PROGRAM] != 0:
            call(args[f.PROGRAM], address_of(args) + args[f.PROGRAM_WORDS] * 8, out, n, program)

    @outlined
    def finish(args, frame, case, products, workspace):
        length, step = args[case + f.SEGMENT], args[case + f.OUT_STEP]
        for row in range(frame[ROWS]):
            at = 0
            while at < frame[COLUMNS]:
                column = frame[COLUMN] + at
                segment, within = column // length, column % length
                n = min(min(length - within, frame[COLUMNS] - at), args[f.PROGRAM_CELLS])
                out = frame[OUT] + row * args[f.OUT_CHANNEL] + segment_offset(args, case, segment) + within * step
                finish_stretch(args, products, row, at, out, step, n, workspace)
                at += n

    @outlined
    def pool(args, frame, case, workspace):
        """The rows of a block, by another kernel. Two of its words are the block's own, in a copy of the others."""
        record, words = words_at(args[f.POOL_WORDS]), words_at(workspace + args[f.POOL_ROOM])
        if frame[COLUMNS] < args[case + f.BLOCK]:
            record = words_at(args[f.POOL_LAST])
        for i in range(record[f.POOL_COUNT]):
            words[i] = record[f.POOL_RECORD + i]
        channel, block = frame[OUT] // args[f.OUT_CHANNEL], frame[COLUMN] // args[case + f.BLOCK]
        words[pooling.X] = workspace + args[f.POOL_ROWS]
        words[pooling.Y] = args[f.POOLED] + (channel * args[f.POOLED_CHANNEL] + block * args[f.POOLED_BLOCK]) * width
        units = record[f.POOL_UNITS] * frame[ROWS]
        if units > 0:
            call(args[f.POOL], workspace + args[f.POOL_ROOM], 0, units, workspace + args[f.POOL_SPACE])

    # --- weights that are not finite: padding takes no part in transposed convolutions, not even times infinity -------

    @outlined
    def is_finite(args, product):
        flags, found = words_at(args[product + f.WEIGHTS]), True
        for i in range(args[f.FLAG_COUNT]):
            found = found & (flags[i] == 0)
        return found

    @outlined
    def panel_of(args, row, k):
        """Where a row's numbers begin in the panels of ``k`` terms, and how far apart they are."""
        done, height = 0, most
        while row - done >= height or height > args[f.ROWS] - done:
            if height > args[f.ROWS] - done:
                height //= 2
            else:
                done += height
        return done * k + row - done, height

    @outlined
    def cell_of(args, frame, case, source, column, tap):
        """The element that a tap of a column meets, counted from the channel's first one; −1 if there is none."""
        offset, place, rest, inside = 0, column, tap, True
        for axis in range(args[f.AXES] - 1, -1, -1):
            at = case + f.CASE_AXES + axis * f.AXIS_WORDS
            position, positions, taps = frame[2 * axis], args[at + f.POSITIONS], args[at + f.ALL_TAPS]
            if axis >= args[f.RUN]:
                position, place = place % positions, place // positions
            first = args[at + f.FIRST] + args[at + f.LEAST]
            cell = position * args[at + f.STRIDE] + first + rest % taps * args[at + f.TAP_STEP]
            rest //= taps
            inside = inside & (cell >= 0) & (cell < args[at + f.SIZE])
            offset += cell * args[source + f.STRIDES + axis]
        return choose(inside, offset, -1)

    @outlined
    def one_by_one(args, frame, case, source, product, row, column):
        """One sum over the pairs that exist."""
        weights, taps, channels = args[product + f.WEIGHTS], args[case + f.TAPS], args[f.CHANNELS]
        group, result = frame[GROUP], number(0)
        x = args[source + f.ADDRESS] + group * args[source + f.GROUP_STRIDE] * width
        for c in range(channels):
            first = c // args[f.CHUNK] * args[f.CHUNK]
            k = min(args[f.CHUNK], channels - first) * taps
            begin, apart = panel_of(args, row, k)
            before = args[case + f.PANELS] + (group * channels + first) * args[f.ROWS] * taps + begin
            panel = cells_at(weights + args[f.PANELS_AT] + before * size)
            for t in range(taps):
                cell = cell_of(args, frame, case, source, column, t)
                if cell >= 0:
                    value = stored_at(x + (c * args[source + f.CHANNEL_STRIDE] + cell) * width)
                    result = multiply_add(widen(value[0]), panel[((c - first) * taps + t) * apart], result)
        if args[product + f.BIAS] != 0:
            result += bias_of(args, product, group * args[f.ROWS] + row)
        return result

    @outlined
    def slowly(args, frame, case, source, product, workspace):
        for row in range(frame[ROWS]):
            to = workspace + args[product + f.SCRATCH] + row * args[f.PITCH]
            if args[product + f.SCRATCH] < 0:
                to = args[product + f.RESULT] + (frame[OUT] + row * args[f.OUT_CHANNEL] + frame[COLUMN]) * size
            y = cells_at(to)
            for j in range(frame[COLUMNS]):
                y[j] = one_by_one(args, frame, case, source, product, frame[ROW] + row, frame[COLUMN] + j)

    # --- units --------------------------------------------------------------------------------------------------------

    @outlined
    def unit_of(args, case, unit, sources, products, workspace, finishes):
        frame = words_at(workspace)
        locate(args, frame, case, unit)
        channels, most, taps = args[f.CHANNELS], args[f.CHUNK], args[case + f.TAPS]
        first = 0
        while first == 0 or first < channels:
            here = min(most, channels - first)
            for s in range(args[f.SOURCES]):
                source = sources + s * args[f.SOURCE_WORDS]
                if here * taps > 0:
                    staged(args, frame, case, source, first, here, workspace + args[f.STAGED])
                for i in range(args[f.PRODUCTS]):
                    product = products + i * f.PRODUCT_WORDS
                    if args[product + f.SOURCE] == s:
                        multiplied(args, frame, case, product, first, here, workspace)
            first += most
        for i in range(args[f.PRODUCTS]):
            product = products + i * f.PRODUCT_WORDS
            if args[f.FLAG_COUNT] > 0 and not is_finite(args, product):
                source = sources + args[product + f.SOURCE] * args[f.SOURCE_WORDS]
                slowly(args, frame, case, source, product, workspace)
        if finishes:
            finish(args, frame, case, products, workspace)
        if args[f.POOL] != 0:
            pool(args, frame, case, workspace)

    def kernel(args, lo, hi, workspace_pointer):
        workspace = address_of(workspace_pointer)
        blank(cells_at(workspace + args[f.STAGED]), args[f.STAGED_CELLS])
        sources = f.HEADER + args[f.CASES] * args[f.CASE_WORDS]
        products = sources + args[f.SOURCES] * args[f.SOURCE_WORDS]
        finishes = args[f.PROGRAM] != 0
        for i in range(args[f.PRODUCTS]):
            finishes = finishes | (args[products + i * f.PRODUCT_WORDS + f.SCRATCH] >= 0)
        case = f.HEADER
        end = sources - args[f.CASE_WORDS]
        for unit in range(lo, hi):
            while case < end and unit >= args[case + args[f.CASE_WORDS] + f.UNIT]:
                case += args[f.CASE_WORDS]
            unit_of(args, case, unit - args[case + f.UNIT], sources, products, workspace, finishes)

    return kernel


# --- the weight gradient of a depthwise convolution -------------------------------------------------------------------


def depthwise_gradient(form: Format, machine: Registers) -> Any:
    """A unit of work is one channel: its window cells times the other factor, the second source, over all positions."""
    number, (widen, narrow) = form.computed, form.functions()
    stored_at, cells_at = pointer_to(form.stored), pointer_to(number)
    width, size, lanes_of, converts = form.stored.bytes, number.bytes, machine.lanes(number.bytes), form.converts
    add_dots, (locate, staged) = dots(number, machine), blocks(form)

    @outlined
    def gathered(src, step, n, to):
        """A row with its neighbours side by side, as numbers."""
        if step == 1 and not converts:
            return src
        y, x = cells_at(to), stored_at(src)
        for i in range(n):
            y[i] = widen(x[i * step])
        return to

    @outlined
    def row_of(args, frame, case, source, column):
        """The address of the second source's row that begins with a column of the block."""
        place, rest = frame[GROUP] * args[source + f.GROUP_STRIDE], frame[COLUMN] + column
        for axis in range(args[f.AXES] - 1, -1, -1):
            position, at = frame[2 * axis], case + f.CASE_AXES + axis * f.AXIS_WORDS
            if axis >= args[f.RUN]:
                position, rest = rest % args[at + f.POSITIONS], rest // args[at + f.POSITIONS]
            place += position * args[source + f.STRIDES + axis]
        return args[source + f.ADDRESS] + place * width

    @outlined
    def add_block(args, frame, case, sources, sums, workspace):
        staged(args, frame, case, sources, 0, 1, workspace + args[f.STAGED])
        other = sources + args[f.SOURCE_WORDS]
        columns, step = args[case + f.ROW_COLUMNS], args[other + f.STRIDES + args[f.AXES] - 1]
        x, done = workspace + args[f.STAGED] + frame[SKIPPED] * size, 0
        while done < frame[COLUMNS]:
            n = min(columns, frame[COLUMNS] - done)
            g = gathered(row_of(args, frame, case, other, done), step, n, workspace + args[f.ROW_SPACE])
            add_dots(g, x, args[case + f.TABLE], args[case + f.TAPS], n, sums)
            x += args[case + f.STAGED_ROW] * size
            done += n

    @outlined
    def channel(args, case, sources, group, result, workspace):
        frame, sums, taps = words_at(workspace), workspace + args[f.STRIP], args[case + f.TAPS]
        held = cells_at(sums)
        for i in range(taps * lanes_of):
            held[i] = number(0)
        blocks_here, groups = args[case + f.BLOCKS], args[f.GROUPS]
        for outer in range(args[f.OUTER]):
            for block in range(blocks_here):
                locate(args, frame, case, (outer * groups + group) * blocks_here + block)
                add_block(args, frame, case, sources, sums, workspace)
        y = stored_at(result + group * taps * width)
        for t in range(taps):
            y[t] = narrow(total(add, number(0), held, t * lanes_of, lanes_of))

    @inlined
    def add(a, b):
        return a + b

    def kernel(args, lo, hi, workspace):
        sources = f.HEADER + args[f.CASE_WORDS]
        result = args[sources + args[f.SOURCES] * args[f.SOURCE_WORDS] + f.RESULT]
        for unit in range(lo, hi):
            channel(args, f.HEADER, sources, unit, result, address_of(workspace))

    return kernel
