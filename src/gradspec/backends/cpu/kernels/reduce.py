"""Sums and means over axes, and what is shared out along axes."""

from typing import Any

from gradspec.backends.cpu.kernels import terms as t
from gradspec.backends.cpu.kernels.compiler import inlined, lanes, lanes_once, outlined
from gradspec.backends.cpu.kernels.memory import FORMATS, Format, address_of, float_of_bits, pointer_to
from gradspec.backends.cpu.kernels.sums import Sums, block_of, piece, reduced_axes, same, words_at
from gradspec.backends.cpu.kernels.target import kernel_code


def build(name: str) -> str:
    """The code of the kernel called ``"sum:f32"`` or ``"share:f32"``, and the same for other floats."""
    operation, _, form = name.partition(":")
    return kernel_code({"sum": _sum, "share": _share}[operation](FORMATS[form]))


def _sum(form: Format) -> Any:
    """One unit is an output or a block of columns of outputs; or, of these, the sum of one piece."""
    number, zero, converts, sums = form.computed, form.computed(0), form.converts, Sums(form)
    number_pointer, stored_pointer = pointer_to(number), pointer_to(form.stored)
    widen, narrow = form.functions()

    def one_by_one(args, x, load, x_at, width, first, count, workspace):
        """The sums of ``count`` pieces of each column."""
        axes, place, found = reduced_axes(args), words_at(workspace), number_pointer(workspace + args[t.SUMS_AT])
        pieces, cells = number_pointer(workspace + args[t.LANES_AT]), number_pointer(workspace + args[t.CELLS_AT])
        start, n = piece(args, first)
        for c in range(width):
            at = x_at + c * args[t.COLUMN_X]
            if count == 1:
                found[c] = sums.terms(axes, x, load, at, start, n, place, cells)
            else:
                for j in range(count):
                    start, n = piece(args, j)
                    pieces[j] = sums.terms(axes, x, load, at, start, n, place, cells)
                found[c] = sums.joined(pieces, count)

    def side_by_side(args, x, load, x_at, width, first, count, workspace):
        """The same for all columns together."""
        axes, place, pieces = reduced_axes(args), words_at(workspace), number_pointer(workspace + args[t.SUMS_AT])
        target, step = number_pointer(workspace + args[t.LANES_AT]), args[t.COLUMN_X]
        for j in range(count):
            start, n = piece(args, first + j)
            sums.columns(axes, x, load, x_at, step, width, start, n, place, target)
            for i in lanes(number, width):
                pieces[j * width + i] = target[i] + zero
        sums.joined_columns(pieces, count, width, place, target)

    def add_up(args, x, load, x_at, width, first, count, workspace):
        if args[t.SIDE_BY_SIDE] != 0:
            side_by_side(args, x, load, x_at, width, first, count, workspace)
        else:
            one_by_one(args, x, load, x_at, width, first, count, workspace)

    @inlined
    def rounded(value):
        return narrow(value)

    def write(y, y_at, step, found, store, width):
        if step == 1:
            for i in lanes(number, width):
                y[y_at + i] = store(found[i])
        else:
            for i in range(width):
                y[y_at + i * step] = store(found[i])

    def divide(found, divisor, width):
        for i in lanes_once(number, width):
            found[i] = found[i] / divisor

    @outlined
    def units(args, lo, hi, x, load, workspace):
        found, divisor = number_pointer(workspace + args[t.SUMS_AT]), number(float_of_bits(args[t.DIVISOR]))
        parts = args[t.PIECES] if args[t.PARTED] != 0 else 1
        for unit in range(lo, hi):
            rest = unit // args[t.BLOCKS]
            x_at, y_at, width = block_of(args, rest // parts, unit % args[t.BLOCKS])
            if args[t.PARTED] != 0:
                part = rest % parts
                add_up(args, x, load, x_at, width, part, 1, workspace)
                write(number_pointer(args[t.Y]), y_at + part * args[t.PART_Y], args[t.COLUMN_Y], found, same, width)
            else:
                add_up(args, x, load, x_at, width, 0, args[t.PIECES], workspace)
                if divisor != number(1):
                    divide(found, divisor, width)
                write(stored_pointer(args[t.Y]), y_at, args[t.COLUMN_Y], found, rounded, width)

    def kernel(args, lo, hi, workspace_pointer):
        workspace = address_of(workspace_pointer)
        if not converts or args[t.WIDE] != 0:
            units(args, lo, hi, number_pointer(args[t.X]), same, workspace)
        else:
            units(args, lo, hi, stored_pointer(args[t.X]), widen, workspace)

    return kernel


def _share(form: Format) -> Any:
    """One unit is a stretch of a row of the result, in the order in which it lies in memory."""
    number, stored_pointer = form.computed, pointer_to(form.stored)
    widen, narrow = form.functions()

    def kernel(args, lo, hi, workspace):
        x, y, divisor = stored_pointer(args[t.X]), stored_pointer(args[t.Y]), number(float_of_bits(args[t.DIVISOR]))
        x_step, y_step = args[t.COLUMN_X], args[t.COLUMN_Y]
        for unit in range(lo, hi):
            x_at, y_at, width = block_of(args, unit // args[t.BLOCKS], unit % args[t.BLOCKS])
            if x_step == 0 and y_step == 1:
                part = narrow(widen(x[x_at]) / divisor)
                for i in lanes(number, width):
                    y[y_at + i] = part
            elif x_step == 1 and y_step == 1:
                for i in lanes(number, width):
                    y[y_at + i] = narrow(widen(x[x_at + i]) / divisor)
            else:
                for i in range(width):
                    y[y_at + i * y_step] = narrow(widen(x[x_at + i * x_step]) / divisor)

    return kernel
