"""Weights in panels: of each case, group and chunk, in that order, which are the units of work.

They begin with a flag for each unit, which says whether some of its numbers are not finite.
"""

from __future__ import annotations

from gradspec.backends.cpu.conv.kernels.turning import Strided, turn
from gradspec.backends.cpu.matmul.kernels.tiles import words_at
from gradspec.codegen.language import i64, inlined, outlined, total


@inlined
def doubt(a, b):
    """0 if both are finite, and otherwise NaN."""
    return (a - a) + (b - b)


@outlined
def pack_panel(conv, args, case, source, to, rows, channels):
    """One panel of ``rows`` rows; whether some of its numbers are not finite."""
    form, width, size = conv.form, conv.form.stored.bytes, conv.form.computed.bytes
    stretch = case.taps if case.are_neighbours else 1
    if case.are_neighbours and args.channel_step == stretch:
        stretch *= channels
    for k in range(0, channels * case.taps, stretch):
        place = k // case.taps * args.channel_step + case.table[k % case.taps]
        turn(form, Strided(source + place * width, args.row_step, 1), rows, stretch, to + k * rows * size, rows)
    return total(doubt, form.computed(0), form.computed_at(to), 0, rows * channels * case.taps) != form.computed(0)


@outlined
def pack_chunk(conv, args, case, group, first, channels, to):
    """All panels of a chunk of channels, the highest first."""
    width, size, rows, k = conv.form.stored.bytes, conv.form.computed.bytes, args.rows, channels * case.taps
    source = args.weights + (group * args.group_step + first * args.channel_step) * width
    done, height, found = 0, conv.processor.most_rows, False
    while done < rows:
        while height > rows - done:
            height //= 2
        place = source + done * args.row_step * width
        found = found | pack_panel(conv, args, case, place, to + done * k * size, height, channels)
        done += height
    return found


def pack_weights(conv, args, lo, hi, workspace):
    chunks, flags = (args.channels + args.chunk - 1) // args.chunk, words_at(args.target)
    for unit in range(lo, hi):
        piece, group = unit % chunks, unit // chunks % args.groups
        case, first = args.cases[unit // (chunks * args.groups)], piece * args.chunk
        place = case.first + (group * args.channels + first) * case.taps * args.rows
        here = args.target + args.panels_at + place * conv.form.computed.bytes
        flags[unit] = i64(pack_chunk(conv, args, case, group, first, min(args.chunk, args.channels - first), here))
