"""The weight gradient of a depthwise convolution: window cells times the other factor, over all positions."""

from __future__ import annotations

from gradspec.backends.cpu.conv.arguments import ConvUnit
from gradspec.backends.cpu.conv.kernels.dots import add_dots
from gradspec.backends.cpu.conv.kernels.staging import locate, stage_channels
from gradspec.codegen.intrinsics import address_of
from gradspec.codegen.language import inlined, outlined, pointer, total

unit_at = pointer(ConvUnit)


def depthwise_gradient(conv, args, lo, hi, workspace):
    """A unit of work is one channel; the other factor is the second source."""
    for group in range(lo, hi):
        sum_channel(conv, args, args.cases[0], group, address_of(workspace))


@inlined
def add(a, b):
    return a + b


@outlined
def sum_channel(conv, args, case, group, workspace):
    form, unit, sums, lanes = conv.form, unit_at(workspace), workspace + args.sums_at, conv.dots.vector.lanes
    held = form.computed_at(sums)
    for i in range(case.taps * lanes):
        held[i] = form.computed(0)
    for outer in range(args.outer):
        for block in range(case.blocks):
            locate(args, unit, case, (outer * args.groups + group) * case.blocks + block)
            add_block(conv, args, unit, case, sums, workspace)
    y = form.stored_at(args.products[0].result + group * case.taps * form.stored.bytes)
    for t in range(case.taps):
        y[t] = form.narrow(total(add, form.computed(0), held, t * lanes, lanes))


@outlined
def add_block(conv, args, unit, case, sums, workspace):
    form, other, done, size = conv.form, args.sources[1], 0, conv.form.computed.bytes
    stage_channels(form, args, unit, case, args.sources[0], 0, 1, workspace + args.staged_at)
    x, step = workspace + args.staged_at + unit.skipped * size, other.strides[len(case.axes) - 1]
    while done < unit.columns:
        n = min(case.row_columns, unit.columns - done)
        row = row_at(form, args, unit, case, other, done)
        g = gathered(form, row, step, n, workspace + args.rows_at)
        add_dots(conv.dots, g, x, address_of(case.table), case.taps, n, sums)
        x += case.staged_row * size
        done += n


@outlined
def row_at(form, args, unit, case, source, column):
    """The address of the second source's row that begins with a column of the block."""
    place, rest = unit.group * source.group_stride, unit.column + column
    for i in range(len(case.axes) - 1, -1, -1):
        position, axis = unit.first[i], case.axes[i]
        if i >= args.run:
            position, rest = rest % axis.positions, rest // axis.positions
        place += position * source.strides[i]
    return source.address + place * form.stored.bytes


@outlined
def gathered(form, src, step, n, to):
    """A row with its neighbours side by side, as numbers."""
    if step == 1 and not form.converts:
        return src
    y, x = form.computed_at(to), form.stored_at(src)
    for i in range(n):
        y[i] = form.widen(x[i * step])
    return to
