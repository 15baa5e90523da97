"""The last axis: runs of cells read from memory, and finished rows written to it."""

from typing import Any

from gradspec.backends.cpu.kernels import fields as f
from gradspec.backends.cpu.kernels.compiler import inlined, lanes, lanes_once
from gradspec.backends.cpu.kernels.memory import Format, float_of_bits, pointer_to, prefetch
from gradspec.backends.cpu.kernels.windows import BASES, NEIGHBOURS, PLACE, pointer_i64, real_taps


def reader(form: Format) -> Any:
    """``read(args, a, array, x_at, count, begin, end, t, at)``: cells begin … end−1 of a row, one after another.

    They are copied to ``t[at …]`` unless they can be used where they are; the result is a pointer and the offset of
    cell 0. Where the input is to be divided, it is divided here.
    """
    stored_pointer, number, divides = pointer_to(form.stored), form.computed, form.is_float
    widen, _ = form.functions()

    def copied(args, a, array, x_at, count, begin, end, t, at):
        x, step = stored_pointer(args[array]), args[a + f.STRIDES + array]
        if step == 1:
            for i in lanes(number, end - begin):
                t[at + i] = widen(x[x_at + begin + i])
        else:
            for i in range(end - begin):
                t[at + i] = widen(x[x_at + (begin + i) * step])
        if divides and args[f.SCALED] != 0:
            counts = pointer_i64(args[a + f.COUNTED])
            divisor = number(float_of_bits(args[f.DIVISOR]))
            if divisor != number(0):
                for i in lanes_once(number, end - begin):
                    t[at + i] = t[at + i] / divisor
            else:
                for i in range(end - begin):
                    t[at + i] = t[at + i] / number(count * counts[begin + i])
        return t, at - begin

    if form.converts:
        return copied

    def read(args, a, array, x_at, count, begin, end, t, at):
        if args[a + f.STRIDES + array] == 1 and args[f.SCALED] == 0:
            return stored_pointer(args[array]), x_at
        return copied(args, a, array, x_at, count, begin, end, t, at)

    return read


def prefetcher(form: Format) -> Any:
    """``fetch(args, array, at, n)``: have ``n`` cells of an array fetched that will be read soon."""
    stored_pointer, line = pointer_to(form.stored), 64 // form.stored.bytes

    @inlined
    def fetch(args, array, at, n):
        p = stored_pointer(args[array])
        for i in range(0, n, line):
            prefetch(p, at + i)

    return fetch


def neighbours_reader(form: Format) -> Any:
    """``read(args, array, x_at, count, t, at, n)``: neighbours of the inner run, copied to ``t[at …]``."""
    stored_pointer, number, divides = pointer_to(form.stored), form.computed, form.is_float
    widen, _ = form.functions()

    def read(args, array, x_at, count, t, at, n):
        x, step = stored_pointer(args[array]), args[f.INNER_STRIDE + array]
        if step == 1:
            for i in lanes(number, n):
                t[at + i] = widen(x[x_at + i])
        else:
            for i in range(n):
                t[at + i] = widen(x[x_at + i * step])
        if divides and args[f.SCALED] != 0:
            divisor = number(float_of_bits(args[f.DIVISOR]))
            scale = divisor if divisor != number(0) else number(count)
            for i in lanes_once(number, n):
                t[at + i] = t[at + i] / scale

    return read


def writer(form: Format) -> Any:
    """``write(args, frame, array, first, end, v, at)``: outputs first … end−1 of a row (and their neighbours)."""
    stored_pointer, number = pointer_to(form.stored), form.computed
    _, narrow = form.functions()

    def write(args, frame, array, first, end, v, at):
        y, n = stored_pointer(args[array]), frame[NEIGHBOURS]
        a = args[f.AXES] + (args[f.RANK] - 1) * f.AXIS
        step, inner_step = args[a + f.STRIDES + array], args[f.INNER_STRIDE + array]
        to = output_at(args, frame, array) + first * step
        if n == 1 and step == 1:
            for i in lanes(number, end - first):
                y[to + i] = narrow(v[at + i])
        elif n == 1:
            for i in range(end - first):
                y[to + i * step] = narrow(v[at + i])
        else:
            for o in range(end - first):
                for i in range(n):
                    y[to + o * step + i * inner_step] = narrow(v[at + o * n + i])

    return write


def output_at(args, frame, array):
    """Where the output row at hand begins in an array of outputs."""
    at = frame[BASES + array]
    for axis in range(args[f.RANK] - 1):
        at += frame[PLACE + axis] * args[args[f.AXES] + axis * f.AXIS + f.STRIDES + array]
    return at


def origin_at(args, frame, array):
    """Where the windows of the output row at hand begin in an array of cells, but for the last axis."""
    at = frame[BASES + array]
    for axis in range(args[f.RANK] - 1):
        a = args[f.AXES] + axis * f.AXIS
        at += real_taps(args, a, frame[PLACE + axis])[0] * args[a + f.STRIDES + array]
    return at


def rows_have_cells(args, frame):
    """Whether the windows of the output row at hand have real cells on every axis but the last."""
    for axis in range(args[f.RANK] - 1):
        _, first, end = real_taps(args, args[f.AXES] + axis * f.AXIS, frame[PLACE + axis])
        if first >= end:
            return False
    return True


def count_before_last(args, frame, field):
    """The product of the tables in ``field`` over every axis but the last, for the output row at hand."""
    count = 1
    for axis in range(args[f.RANK] - 1):
        count *= pointer_i64(args[args[f.AXES] + axis * f.AXIS + field])[frame[PLACE + axis]]
    return count


def emit_by_rows(emit_row: Any) -> Any:
    """``emit`` of a reduction from ``emit_row(args, frame, first, end, v, w, z, at)``."""

    def emit(args, frame, first, end, v, w, z, at):
        rank = args[f.RANK]
        if rank == 1:
            emit_row(args, frame, first, end, v, w, z, at)
            return
        last = args[f.AXES] + (rank - 1) * f.AXIS
        outputs = args[last + f.OUTPUTS]
        for r in range(args[f.ROWS]):
            rest = r
            for axis in range(rank - 2, 0, -1):
                size = args[args[f.AXES] + axis * f.AXIS + f.OUTPUTS]
                frame[PLACE + axis], rest = rest % size, rest // size
            emit_row(args, frame, 0, outputs, v, w, z, at + r * outputs * frame[NEIGHBOURS])

    return emit


def nothing_to_do(args, frame):
    return
