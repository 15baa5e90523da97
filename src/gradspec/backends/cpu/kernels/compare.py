"""The weight gradient of a convolution: ``w[m, c, t] = Σ g[m, o] · x̃[c, o·s − lo + d·t]`` over samples and outputs.

Sums run over positions, so the columns of the tiles are channels and taps. The cells that a block of positions reads
are staged with the channels of a cell side by side: for every tap, the columns of a position are then one stretch, and
the taps of the last axis, if their cells are neighbours, lie in one stretch together. The other factor is packed into
panels. A unit of work is some rows and some channels of the weights.
"""

from __future__ import annotations

from typing import Any

from gradspec.backends.cpu.kernels import compare_fields as f
from gradspec.backends.cpu.kernels.compiler import choose, i64, inlined, lanes, lanes_once, outlined
from gradspec.backends.cpu.kernels.memory import FORMATS, Format, address_of, pointer_to
from gradspec.backends.cpu.kernels.registers import Registers, machine
from gradspec.backends.cpu.kernels.strips import EDGE, EVEN, STRIP, all_strips, blanking
from gradspec.backends.cpu.kernels.target import kernel_code
from gradspec.backends.cpu.kernels.tiles import ADDS
from gradspec.backends.cpu.kernels.turned import turning

words_at = pointer_to(i64)

ROW, ROWS, CHANNEL, CHANNELS, COUNT, ROOM = range(48, 54)
"""Words of a unit's frame, behind the first positions of every axis."""


def build(name: str) -> str:
    """The code of the kernel called ``"compare:f32"`` or ``"join:f32"``, and so for every float format."""
    kind, form = name.split(":")
    return kernel_code({"compare": comparison, "join": joining}[kind](FORMATS[form], machine()))


def joining(form: Format, machine: Registers) -> Any:
    """The sum of all pieces, in their order."""
    number, narrow = form.computed, form.functions()[1]
    stored_at, cells_at = pointer_to(form.stored), pointer_to(number)
    width, size = form.stored.bytes, number.bytes

    def kernel(args, lo, hi, workspace):
        for unit in range(lo, hi):
            first = unit * args[f.STRETCH]
            n = min(args[f.STRETCH], args[f.LENGTH] - first)
            sums, y = cells_at(address_of(workspace)), stored_at(args[f.RESULT] + first * width)
            for piece in range(args[f.COUNT]):
                x = cells_at(args[f.PARTIAL] + (piece * args[f.LENGTH] + first) * size)
                for i in lanes_once(number, n):
                    sums[i] = x[i] if piece == 0 else sums[i] + x[i]
            for i in lanes(number, n):
                y[i] = narrow(sums[i])

    return kernel


def comparison(form: Format, machine: Registers) -> Any:
    number, narrow = form.computed, form.functions()[1]
    stored_at, cells_at = pointer_to(form.stored), pointer_to(number)
    width, size, most = form.stored.bytes, number.bytes, machine.most_rows
    turn, multiply, blank = turning(form), all_strips(number, machine), blanking(number)

    @inlined
    def clear(to, n):
        y = cells_at(to)
        for i in lanes(number, n):
            y[i] = number(0)

    # --- x ------------------------------------------------------------------------------------------------------------

    @outlined
    def stretch(args, frame, at, first, cells, src, to, is_real):
        """``cells`` cells of the last axis from cell ``first`` on, for all channels of the unit."""
        pitch = args[f.PART_CHANNELS]
        begin = min(max(0, -first), cells)
        end = min(max(args[at + f.SIZE] - first, begin), cells) if is_real else begin
        apart = args[at + f.X_STRIDE]
        if begin > 0:
            clear(to, begin * pitch)
        if end > begin:
            place = src + (first + begin) * apart * width
            here = to + begin * pitch * size
            turn(place, args[f.X_CHANNEL], apart, frame[CHANNELS], end - begin, here, pitch)
        if end < cells:
            clear(to + end * pitch * size, (cells - end) * pitch)

    def stage(args, frame, axis, at, src, to, is_real):
        run, taps = args[f.RUN], args[at + f.TAPS]
        step = args[at + f.TAP_STEP] if axis < run else 1
        first = frame[axis] * args[at + f.STRIDE] + args[at + f.FIRST]
        count = taps if axis < run else args[at + f.CELLS]
        if axis == run:
            count -= (args[f.BLOCK] - frame[COUNT]) * args[at + f.STRIDE]
        if axis == args[f.AXES] - 1:
            stretch(args, frame, at, first, count, src, to, is_real)
        else:
            for i in range(count):
                cell = first + i * step
                inside = is_real & (cell >= 0) & (cell < args[at + f.SIZE])
                place = src + choose(inside, cell, 0) * args[at + f.X_STRIDE] * width
                stage(args, frame, axis + 1, at + f.AXIS_WORDS, place, to + i * args[at + f.CELL_PITCH], inside)

    # --- g ------------------------------------------------------------------------------------------------------------

    def pack(args, frame, axis, at, src, rows, to):
        """One panel of rows, for the positions of the block."""
        run, apart = args[f.RUN], args[at + f.G_STRIDE]
        count = 1 if axis < run else frame[COUNT] if axis == run else args[at + f.POSITIONS]
        first = frame[axis] if axis <= run else 0
        here = src + first * apart * width
        if axis == args[f.AXES] - 1:
            turn(here, args[f.G_CHANNEL], apart, rows, count, to, rows)
        else:
            pitch = args[at + f.BEHIND] * rows * size
            for i in range(count):
                pack(args, frame, axis + 1, at + f.AXIS_WORDS, here + i * apart * width, rows, to + i * pitch)

    @outlined
    def panels(args, frame, src, to):
        rows, done, height, k = frame[ROWS], 0, most, frame[COUNT] * args[f.INNER]
        while done < rows:
            while height > rows - done:
                height //= 2
            pack(args, frame, 0, f.AXIS, src + done * args[f.G_CHANNEL] * width, height, to + done * k * size)
            done += height

    # --- the sums -----------------------------------------------------------------------------------------------------

    @outlined
    def add_block(args, frame, x, g, is_first, workspace):
        k = frame[COUNT] * args[f.INNER]
        staged, packed = workspace + args[f.STAGED], workspace + args[f.PANELS]
        stage(args, frame, 0, f.AXIS, x, staged, True)
        panels(args, frame, g, packed)
        sets, room = words_at(args[f.SET_TABLE]), words_at(workspace + 8 * ROOM)
        room[EDGE], room[STRIP], room[EVEN] = 0, workspace + args[f.STRIP], args[f.EVEN]
        columns = args[f.SET_TAPS] * args[f.PART_CHANNELS]
        for s in range(args[f.SETS]):
            multiply(
                packed,
                frame[ROWS],
                staged + sets[s],
                args[f.TABLE],
                k,
                workspace + args[f.SUMS] + s * args[f.SET_PITCH],
                args[f.PITCH],
                columns,
                0 if is_first else ADDS,
                0,
                room,
            )

    def writing(element_at: Any, bytes_of: int, rounded: Any) -> Any:
        @outlined
        def write(args, frame, to, workspace):
            """The sums in their place, channel by channel."""
            taps, pitch = words_at(args[f.TAP_TABLE]), args[f.PART_CHANNELS]
            for i in range(frame[ROWS]):
                row = workspace + args[f.SUMS] + i * args[f.PITCH]
                for s in range(args[f.SETS]):
                    sums = cells_at(row + s * args[f.SET_PITCH])
                    for t in range(args[f.SET_TAPS]):
                        place = taps[s * args[f.SET_TAPS] + t]
                        y = element_at(to + (i * args[f.W_ROW] + place) * bytes_of)
                        for c in range(frame[CHANNELS]):
                            y[c * args[f.W_CHANNEL]] = rounded(sums[t * pitch + c])

        return write

    write, write_piece = writing(stored_at, width, narrow), writing(cells_at, size, number)

    @outlined
    def unit_of(args, unit, workspace):
        frame, run = words_at(workspace), args[f.RUN]
        part, rest = unit % args[f.CHANNEL_PARTS], unit // args[f.CHANNEL_PARTS]
        row_part, rest = rest % args[f.PARTS], rest // args[f.PARTS]
        group, piece = rest % args[f.GROUPS], rest // args[f.GROUPS]
        frame[CHANNEL], frame[ROW] = part * args[f.PART_CHANNELS], row_part * args[f.PART_ROWS]
        frame[CHANNELS] = min(args[f.PART_CHANNELS], args[f.CHANNELS] - frame[CHANNEL])
        frame[ROWS] = min(args[f.PART_ROWS], args[f.ROWS] - frame[ROW])
        x = args[f.X] + (group * args[f.X_GROUP] + frame[CHANNEL] * args[f.X_CHANNEL]) * width
        g = args[f.G] + (group * args[f.G_GROUP] + frame[ROW] * args[f.G_CHANNEL]) * width
        positions = args[f.AXIS + run * f.AXIS_WORDS + f.POSITIONS]
        for axis in range(run, args[f.AXES]):
            frame[axis] = 0
        blocks = args[f.OUTER] * args[f.BLOCKS]
        first = piece * blocks // args[f.PIECES]
        for block in range(first, (piece + 1) * blocks // args[f.PIECES]):
            rest = block // args[f.BLOCKS]
            for axis in range(run - 1, -1, -1):
                count = args[f.AXIS + axis * f.AXIS_WORDS + f.POSITIONS]
                frame[axis], rest = rest % count, rest // count
            frame[run] = block % args[f.BLOCKS] * args[f.BLOCK]
            frame[COUNT] = min(args[f.BLOCK], positions - frame[run])
            add_block(args, frame, x, g, block == first, workspace)
        place = group * args[f.W_GROUP] + frame[ROW] * args[f.W_ROW] + frame[CHANNEL] * args[f.W_CHANNEL]
        if args[f.PIECES] == 1:
            write(args, frame, args[f.W] + place * width, workspace)
        else:
            write_piece(args, frame, args[f.W] + (piece * args[f.W_SIZE] + place) * size, workspace)

    def kernel(args, lo, hi, workspace):
        blank(cells_at(address_of(workspace) + args[f.STAGED]), args[f.STAGED_CELLS])
        for unit in range(lo, hi):
            unit_of(args, unit, address_of(workspace))

    return kernel
