"""Sums of many terms in a fixed tree (``terms`` says which): of one output, or of many columns side by side.

Cells are given by a pointer ``x`` and a function ``load`` that makes them the numbers that are computed with; their
reduced axes by ``axes``, a pointer to their description as in ``terms``.
"""

from typing import Any

import llvmlite.binding as llvm

from gradspec.backends.cpu.kernels import terms as t
from gradspec.backends.cpu.kernels.compiler import SIDE_BY_SIDE, i64, inlined, lanes, lanes_once, outlined, total
from gradspec.backends.cpu.kernels.memory import Format, address_of, pointer_to
from gradspec.backends.cpu.kernels.target import vector_bytes

words_at = pointer_to(i64)


@inlined
def same(value):
    return value


@inlined
def add(a, b):
    return a + b


def piece(args, j):
    """The first term of piece ``j``, and the number of its terms."""
    within = j % args[t.SPLIT] * args[t.LENGTH]
    start = j // args[t.SPLIT] * args[t.RUN] + within
    return start, min(args[t.LENGTH], min(args[t.RUN] - within, args[t.TERMS] - start))


def block_of(args, rest, block):
    """Where a block of columns begins in X and Y, and how many there are; ``rest`` counts the other kept cells."""
    first = block * args[t.BLOCK]
    x_at, y_at = first * args[t.COLUMN_X], first * args[t.COLUMN_Y]
    for axis in range(args[t.KEPT] - 1, -1, -1):
        at = t.HEADER + axis * t.KEPT_AXIS
        here = rest % args[at]
        rest //= args[at]
        x_at += here * args[at + 1]
        y_at += here * args[at + 2]
    return x_at, y_at, min(args[t.BLOCK], args[t.COLUMNS] - first)


# --- terms in memory --------------------------------------------------------------------------------------------------


@inlined
def size_of(axes, axis):
    return axes[1 + axis * t.REDUCED_AXIS]


@inlined
def stride_of(axes, axis):
    return axes[2 + axis * t.REDUCED_AXIS]


def reduced_axes(args):
    return words_at(address_of(args) + 8 * args[t.REDUCED])


@inlined
def stretch_at(axes, at, start, n):
    """Where the terms start … start+n−1 begin, and whether they follow each other there."""
    last = axes[0] - 1
    is_stretch = stride_of(axes, last) == 1
    if last > 0:
        is_stretch = is_stretch and start % size_of(axes, last) + n <= size_of(axes, last)
    for axis in range(last, 0, -1):
        at += start % size_of(axes, axis) * stride_of(axes, axis)
        start //= size_of(axes, axis)
    return at + start * stride_of(axes, 0), is_stretch


def walker(visit: Any) -> Any:
    """``walk(axes, x, load, at, start, n, place, target, width, step, turn, done)``: terms start … start+n−1.

    ``visit(target, width, step, turn, done, x, load, at, stride, count)`` is called for every stretch of them along the
    last axis; ``done`` counts the terms before it, and those before ``start`` as given. ``place`` has room for a place
    on every axis.
    """

    @outlined
    def walk(axes, x, load, at, start, n, place, target, width, step, turn, done):
        last = axes[0] - 1
        for axis in range(last, -1, -1):
            place[axis] = start % size_of(axes, axis)
            start //= size_of(axes, axis)
            at += place[axis] * stride_of(axes, axis)
        end = done + n
        while done < end:
            count = min(end - done, size_of(axes, last) - place[last])
            visit(target, width, step, turn, done, x, load, at, stride_of(axes, last), count)
            done += count
            at += count * stride_of(axes, last)
            place[last] += count
            axis = last
            while axis > 0 and place[axis] == size_of(axes, axis):
                place[axis] = 0
                place[axis - 1] += 1
                at += stride_of(axes, axis - 1) - size_of(axes, axis) * stride_of(axes, axis)
                axis -= 1

    return walk


def copier(form: Format) -> Any:
    """``copy(target, to, x, load, at, stride, n)``: cells as the numbers that are computed with, one after another."""
    number = form.computed

    @outlined
    def copy(target, to, x, load, at, stride, n):
        if stride == 1:
            for i in lanes(number, n):
                target[to + i] = load(x[at + i])
        elif stride == 0:
            repeated = load(x[at])
            for i in lanes(number, n):
                target[to + i] = repeated
        else:
            for i in range(n):
                target[to + i] = load(x[at + i * stride])

    return copy


# --- rows that are added to rows --------------------------------------------------------------------------------------


def adder(form: Format, count: int) -> Any:
    """``add(target, to, x, load, at, far, width, is_fresh)``: ``count`` rows, ``far`` apart, to one, in their order.

    A fresh target has nothing in it yet.
    """
    number = form.computed

    @outlined
    def add_rows(target, to, x, load, at, far, width, is_fresh):
        if is_fresh:
            for i in lanes(number, width):
                value = load(x[at + i])
                for k in range(1, count):
                    value = value + load(x[at + k * far + i])
                target[to + i] = value
        else:
            for i in lanes_once(number, width):
                value = target[to + i] + load(x[at + i])
                for k in range(1, count):
                    value = value + load(x[at + k * far + i])
                target[to + i] = value

    return add_rows


@inlined
def add_cells(target, to, x, load, at, step, width, is_fresh):
    for i in range(width):
        target[to + i] = load(x[at + i * step]) if is_fresh else target[to + i] + load(x[at + i * step])


def turning_adder(form: Format) -> Any:
    """``add(target, width, step, turn, done, x, load, at, stride, count)``: ``count`` rows to ``turn`` rows in turn.

    ``turn`` is a power of two, and ``done`` the number of rows that were added before. Several rows that go to the same
    one are added at once.
    """
    one_row, two_rows, four_rows = (adder(form, count) for count in (1, 2, 4))

    def add_rounds(target, to, x, load, at, far, rounds, step, width, is_fresh):
        if step != 1:
            for r in range(rounds):
                add_cells(target, to, x, load, at + r * far, step, width, is_fresh and r == 0)
        elif rounds == 4:
            four_rows(target, to, x, load, at, far, width, is_fresh)
        elif rounds == 2:
            two_rows(target, to, x, load, at, far, width, is_fresh)
        else:
            one_row(target, to, x, load, at, far, width, is_fresh)

    def add_in_turn(target, width, step, turn, done, x, load, at, stride, count):
        while count > 0:
            rounds = 4 if count >= 4 * turn else 2 if count >= 2 * turn else 1
            for r in range(min(turn, count)):
                to, far = ((done + r) & (turn - 1)) * width, turn * stride
                add_rounds(target, to, x, load, at + r * stride, far, rounds, step, width, done + r < turn)
            done += rounds * turn
            at += rounds * turn * stride
            count -= rounds * turn

    return add_in_turn


def folder(form: Format) -> Any:
    """``fold(target, width, turn)``: the sum of ``turn`` rows, halves added to halves, two such steps at a time."""
    number = form.computed

    @outlined
    def fold(target, width, turn):
        while turn >= 4:
            turn //= 4
            q = turn * width
            for i in lanes_once(number, q):
                target[i] = (target[i] + target[2 * q + i]) + (target[q + i] + target[3 * q + i])
        if turn == 2:
            for i in lanes_once(number, width):
                target[i] = target[i] + target[width + i]

    return fold


# --- sums -------------------------------------------------------------------------------------------------------------


class Sums:
    """The functions of one format that sums are made of.

    Columns are added up as ``total`` adds up a run: what is lane ``l`` of its vectors is row ``l`` here. But ``total``
    begins with zeros, which makes a sum of zeros positive; columns do not, so that a zero is to be added at the end.
    """

    def __init__(self, form: Format) -> None:
        number, zero = form.computed, form.computed(0)
        lane_count = max(1, vector_bytes(llvm.get_host_cpu_features()) // number.bytes)
        turns = SIDE_BY_SIDE * lane_count
        copy, fold = copier(form), folder(form)

        @outlined
        def run(p, at, n):
            """Numbers that follow each other. Fewer than a vector are added up one by one, as ``total`` does."""
            if n < lane_count:
                few = zero
                for i in range(n):
                    few = few + p[at + i]
                return few
            return total(add, zero, p, at, n)

        @outlined
        def joined(p, m):
            """``m`` sums of pieces, which are overwritten."""
            while m > 1:
                count = 0
                for start in range(0, m, t.PIECE):
                    p[count] = run(p, start, min(t.PIECE, m - start))
                    count += 1
                m = count
            return p[0]

        def gather_run(target, width, step, turn, done, x, load, at, stride, count):
            copy(target, done, x, load, at, stride, count)

        gather, add_terms = walker(gather_run), walker(turning_adder(form))

        @outlined
        def terms(axes, x, load, at, start, n, place, cells):
            """The terms start … start+n−1; they are copied to ``cells`` unless they are a run of numbers."""
            if load is same:
                here, is_run = stretch_at(axes, at, start, n)
                if is_run:
                    return run(x, here, n)
            gather(axes, x, load, at, start, n, place, cells, 1, 1, 1, 0)
            return run(cells, 0, n)

        @outlined
        def columns(axes, x, load, at, step, width, start, n, place, target):
            """The same for ``width`` columns, ``step`` apart, to the beginning of ``target``."""
            whole = n // turns * turns
            more = (n - whole) // lane_count * lane_count
            rest = n - whole - more
            if n == 0:
                for i in lanes(number, width):
                    target[i] = zero
            if whole > 0:
                add_terms(axes, x, load, at, start, whole, place, target, width, step, turns, 0)
            if more > 0:
                add_terms(axes, x, load, at, start + whole, more, place, target, width, step, lane_count, whole)
            fold(target, width, turns if whole > 0 else lane_count if more > 0 else 1)
            if rest > 0:
                add_terms(axes, x, load, at, start + n - rest, rest, place, target, width, step, 1, n - rest)

        def dense_columns(p, start, n, width, place, target):
            """The same for rows start … start+n−1 of a matrix of ``width`` columns; ``place`` is a whole frame."""
            axes = words_at(address_of(place) + 8 * t.PLACES)
            axes[0] = 1
            axes[1] = start + n
            axes[2] = width
            columns(axes, p, same, 0, 1, width, start, n, place, target)

        @outlined
        def joined_columns(p, m, width, place, target):
            """``m`` rows of sums of pieces, which are overwritten; the result is the first of them."""
            while m > 1:
                count = 0
                for start in range(0, m, t.PIECE):
                    dense_columns(p, start, min(t.PIECE, m - start), width, place, target)
                    copy(p, count * width, target, same, 0, 1, width)
                    count += 1
                m = count

        self.copy, self.run, self.joined, self.terms = copy, run, joined, terms
        self.columns, self.dense_columns, self.joined_columns = columns, dense_columns, joined_columns
