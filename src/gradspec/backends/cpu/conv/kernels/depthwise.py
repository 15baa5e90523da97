"""The weight gradient of a depthwise convolution: window cells times the other factor, over all positions."""

from __future__ import annotations

from dataclasses import dataclass

from gradspec.backends.cpu.conv.arguments import ConvUnit
from gradspec.backends.cpu.conv.kernels.staging import locate, stage_channels
from gradspec.backends.cpu.matmul.kernels.tiles import words_at
from gradspec.codegen.intrinsics import address_of, load, multiply_add, store
from gradspec.codegen.language import Type, inlined, outlined, pointer, total, unrolled
from gradspec.codegen.processor import Processor

SUMS_AT_ONCE = 8

unit_at = pointer(ConvUnit)


@dataclass(frozen=True)
class Dots:
    """``Σ g·x`` for shifted ``x``, in lanes that are not yet added up: one vector of sums for each of some taps."""

    number: Type
    processor: Processor
    taps: int = SUMS_AT_ONCE

    @property
    def vector(self) -> Type:
        return self.number.of(self.processor.lanes(self.number.bytes))

    @property
    def one(self) -> Dots:
        return Dots(self.number, self.processor, 1)

    @outlined
    def add_vectors(self, g, x, offsets, vectors, sums):
        """``offsets`` is the table of the bytes behind ``x`` at which the cells of each tap begin."""
        width = self.processor.register_bytes
        rows = tuple(x + words_at(offsets)[t] for t in range(self.taps))
        held = tuple(load(self.vector)(sums + t * width) for t in range(self.taps))
        for step in range(vectors):
            at = step * width
            factor = load(self.vector)(g + at)
            held = tuple(multiply_add(load(self.vector)(rows[t] + at), factor, held[t]) for t in range(self.taps))
        for t in unrolled(self.taps):
            store(held[t], sums + t * width)


@outlined
def add_dots(dots, g, x, offsets, taps, n, sums):
    """All taps, over ``n`` neighbours."""
    vectors, width, t = n // dots.vector.lanes, dots.processor.register_bytes, 0
    if vectors > 0:
        while t + dots.taps <= taps:
            dots.add_vectors(g, x, offsets + 8 * t, vectors, sums + t * width)
            t += dots.taps
        while t < taps:
            dots.one.add_vectors(g, x, offsets + 8 * t, vectors, sums + t * width)
            t += 1
    if vectors * dots.vector.lanes < n:
        add_rest(dots, g, x, offsets, taps, vectors * dots.vector.lanes, n, sums)


@inlined
def add_rest(dots, g, x, offsets, taps, first, n, sums):
    """What does not fill a vector, each cell in a lane of its own."""
    cells_at, width = pointer(dots.number), dots.processor.register_bytes
    factors = cells_at(g)
    for t in range(taps):
        cells, sum = cells_at(x + words_at(offsets)[t]), cells_at(sums + t * width)
        for j in range(first, n):
            sum[j - first] = multiply_add(cells[j], factors[j], sum[j - first])


# --- one channel after another ----------------------------------------------------------------------------------------


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
