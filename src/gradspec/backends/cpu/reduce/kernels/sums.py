"""Sums of many terms in the tree that ``arguments`` describes: of one output, or of many columns side by side.

Columns are added up as ``total`` adds up a run: what is lane ``l`` of its vectors is row ``l`` of ``target`` here. But
``total`` begins with zeros, which makes a sum of zeros positive; columns do not, so that a zero is to be added at the
end.
"""

from __future__ import annotations

from operator import add
from typing import Any, NamedTuple

from gradspec.backends.cpu.layout.kernels.rows import write_row
from gradspec.backends.cpu.reduce.arguments import PIECE, ShareArguments, SumArguments, TermScratch
from gradspec.codegen.formats import FORMATS
from gradspec.codegen.intrinsics import address_of
from gradspec.codegen.language import Type, at_build, inlined, lanes, lanes_once, outlined, pointer, total
from gradspec.codegen.processor import processor
from gradspec.codegen.translation import SIDE_BY_SIDE, kernel_code


@at_build
def lane_count(number: Type) -> int:
    return processor().loop_lanes(number.bytes)


def block_of(args, rest, block):
    """Where a block of columns begins in X and Y, and how many there are; ``rest`` counts the other kept cells."""
    first, columns = block * args.block, args.columns
    x_at, y_at = first * columns.x_stride, first * columns.y_stride
    for i in range(len(args.kept) - 1, -1, -1):
        axis = args.kept[i]
        here, rest = rest % axis.size, rest // axis.size
        x_at += here * axis.x_stride
        y_at += here * axis.y_stride
    return x_at, y_at, min(args.block, columns.size - first)


def piece(pieces, j):
    """The first term of piece ``j``, and the number of its terms."""
    within = j % pieces.split * pieces.length
    start = j // pieces.split * pieces.run + within
    return start, min(pieces.length, min(pieces.run - within, pieces.terms - start))


# --- terms in memory --------------------------------------------------------------------------------------------------


class Terms(NamedTuple):
    """Those of an output: cells that are stored in a format, along the ``terms`` of ``args`` from ``x[at]`` on."""

    form: Any
    args: Any
    scratch: Any
    x: Any
    at: Any

    @inlined
    def stretch(self, start, n):
        """Where the terms start … start+n−1 begin, and whether they follow each other there."""
        axes, at, last = self.args.terms, self.at, len(self.args.terms) - 1
        is_stretch = axes[last].stride == 1
        if last > 0:
            is_stretch = is_stretch and start % axes[last].size + n <= axes[last].size
        for i in range(last, 0, -1):
            at += start % axes[i].size * axes[i].stride
            start //= axes[i].size
        return at + start * axes[0].stride, is_stretch

    @outlined
    def visit(self, start, n, done, visitor):
        """``visitor.take`` of every stretch of the terms start … start+n−1 along the last axis.

        ``done`` counts the terms before it, and those before ``start`` as given.
        """
        axes, position, at, last = self.args.terms, self.scratch.position, self.at, len(self.args.terms) - 1
        for i in range(last, -1, -1):
            position[i], start = start % axes[i].size, start // axes[i].size
            at += position[i] * axes[i].stride
        end = done + n
        while done < end:
            count = min(end - done, axes[last].size - position[last])
            visitor.take(self.form, self.x, at, axes[last].stride, count, done)
            done += count
            at += count * axes[last].stride
            position[last] += count
            i = last
            while i > 0 and position[i] == axes[i].size:
                position[i] = 0
                position[i - 1] += 1
                at += axes[i - 1].stride - axes[i].size * axes[i].stride
                i -= 1


class MatrixRows(NamedTuple):
    """The terms of the columns of a dense matrix."""

    form: Any
    x: Any
    width: Any

    @inlined
    def visit(self, start, n, done, visitor):
        visitor.take(self.form, self.x, start * self.width, self.width, n, done)


@outlined
def copy(form, target, to, x, at, stride, n):
    """Cells as the numbers that are computed with, one after another."""
    if stride == 1:
        for i in lanes(form.computed, n):
            target[to + i] = form.widen(x[at + i])
    elif stride == 0:
        repeated = form.widen(x[at])
        for i in lanes(form.computed, n):
            target[to + i] = repeated
    else:
        for i in range(n):
            target[to + i] = form.widen(x[at + i * stride])


# --- rows that are added to rows --------------------------------------------------------------------------------------


class Gather(NamedTuple):
    """Terms are copied, one after another."""

    target: Any

    @inlined
    def take(self, form, x, at, stride, count, done):
        copy(form, self.target, done, x, at, stride, count)


class AddInTurn(NamedTuple):
    """A term of ``width`` columns, which lie ``step`` apart, is a row. It is added to ``turn`` rows in turn, which is a
    power of two. Several rows that go to the same one are added at once."""

    target: Any
    width: Any
    step: Any
    turn: Any

    def take(self, form, x, at, stride, count, done):
        """``count`` rows, ``stride`` apart, after ``done`` of them."""
        turn = self.turn
        while count > 0:
            rounds = 4 if count >= 4 * turn else 2 if count >= 2 * turn else 1
            for r in range(min(turn, count)):
                to, is_fresh = ((done + r) & (turn - 1)) * self.width, done + r < turn
                self.add_rounds(form, to, x, at + r * stride, turn * stride, rounds, is_fresh)
            done += rounds * turn
            at += rounds * turn * stride
            count -= rounds * turn

    def add_rounds(self, form, to, x, at, far, rounds, is_fresh):
        if self.step != 1:
            for r in range(rounds):
                add_cells(form, self, to, x, at + r * far, is_fresh and r == 0)
        elif rounds == 4:
            add_rows(form, THREE_MORE, self.target, to, x, at, far, self.width, is_fresh)
        elif rounds == 2:
            add_rows(form, ONE_MORE, self.target, to, x, at, far, self.width, is_fresh)
        else:
            add_rows(form, NO_MORE, self.target, to, x, at, far, self.width, is_fresh)


NO_MORE, ONE_MORE, THREE_MORE = range(1, 1), range(1, 2), range(1, 4)


@outlined
def add_rows(form, further, target, to, x, at, far, width, is_fresh):
    """A row and further ones, ``far`` apart, to one, in their order. A fresh target has nothing in it yet."""
    if is_fresh:
        for i in lanes(form.computed, width):
            value = form.widen(x[at + i])
            for k in further:
                value = value + form.widen(x[at + k * far + i])
            target[to + i] = value
    else:
        for i in lanes_once(form.computed, width):
            value = target[to + i] + form.widen(x[at + i])
            for k in further:
                value = value + form.widen(x[at + k * far + i])
            target[to + i] = value


@inlined
def add_cells(form, rows, to, x, at, is_fresh):
    target, step = rows.target, rows.step
    for i in range(rows.width):
        value = form.widen(x[at + i * step])
        target[to + i] = value if is_fresh else target[to + i] + value


@outlined
def fold(form, target, width, turn):
    """The sum of ``turn`` rows, halves added to halves, two such steps at a time."""
    while turn >= 4:
        turn //= 4
        q = turn * width
        for i in lanes_once(form.computed, q):
            target[i] = (target[i] + target[2 * q + i]) + (target[q + i] + target[3 * q + i])
    if turn == 2:
        for i in lanes_once(form.computed, width):
            target[i] = target[i] + target[width + i]


# --- one sum ----------------------------------------------------------------------------------------------------------


@outlined
def sum_of_run(number, p, at, n):
    """Numbers that follow each other. Fewer than a vector are added up one by one, as ``total`` does."""
    if n < lane_count(number):
        few = number(0)
        for i in range(n):
            few = few + p[at + i]
        return few
    return total(add, number(0), p, at, n)


@outlined
def sum_of_terms(terms, start, n, cells):
    """The terms start … start+n−1; they are copied to ``cells`` unless they are a run of numbers."""
    if not terms.form.converts:
        here, is_run = terms.stretch(start, n)
        if is_run:
            return sum_of_run(terms.form.computed, terms.x, here, n)
    terms.visit(start, n, 0, Gather(cells))
    return sum_of_run(terms.form.computed, cells, 0, n)


@outlined
def sum_of_pieces(number, p, m):
    """``m`` sums of pieces, which are overwritten."""
    while m > 1:
        for start in range(0, m, PIECE):
            p[start // PIECE] = sum_of_run(number, p, start, min(PIECE, m - start))
        m = (m - 1) // PIECE + 1
    return p[0]


# --- columns ----------------------------------------------------------------------------------------------------------


@outlined
def sums_of_terms(terms, step, width, start, n, target):
    """The same for ``width`` columns, ``step`` apart, to the beginning of ``target``."""
    number = terms.form.computed
    vector = lane_count(number)
    turns = SIDE_BY_SIDE * vector
    whole = n // turns * turns
    more = (n - whole) // vector * vector
    rest = n - whole - more
    if n == 0:
        for i in lanes(number, width):
            target[i] = number(0)
    if whole > 0:
        terms.visit(start, whole, 0, AddInTurn(target, width, step, turns))
    if more > 0:
        terms.visit(start + whole, more, whole, AddInTurn(target, width, step, vector))
    fold(terms.form, target, width, turns if whole > 0 else vector if more > 0 else 1)
    if rest > 0:
        terms.visit(start + n - rest, rest, n - rest, AddInTurn(target, width, step, 1))


@outlined
def sums_of_pieces(form, p, m, width, target):
    """``m`` rows of sums of pieces, which are overwritten; the result is the first of them."""
    rows = MatrixRows(form.as_computed, p, width)
    while m > 1:
        for start in range(0, m, PIECE):
            sums_of_terms(rows, 1, width, start, min(PIECE, m - start), target)
            copy(form.as_computed, p, start // PIECE * width, target, 0, 1, width)
        m = (m - 1) // PIECE + 1


# --- the kernels of sums, means and what is shared out along axes -----------------------------------------------------

scratch_at = pointer(TermScratch)


def build(name: str) -> str:
    """The code of the kernel called ``"sum:f32"`` or ``"mean_transpose:f32"``, and the same for other floats."""
    operation, form = name.split(":")
    function, arguments = {
        "sum": (sum_kernel, SumArguments),
        "mean_transpose": (mean_transpose_kernel, ShareArguments),
    }[operation]
    return kernel_code(function, arguments, FORMATS[form])


def sum_kernel(form, args, lo, hi, workspace):
    if form.converts and not args.is_wide:
        units(form, form, args, lo, hi, address_of(workspace))
    else:
        units(form, form.as_computed, args, lo, hi, address_of(workspace))


@outlined
def units(form, source, args, lo, hi, workspace):
    """One is a block of columns of outputs; or, of these, the sums of one piece. ``source``: how X is stored."""
    number, sums, blocks = form.computed, form.computed_at(workspace + args.sums_at), args.blocks
    divisor, parts, y_stride = number(args.divisor), args.pieces.count if args.is_parted else 1, args.columns.y_stride
    for unit in range(lo, hi):
        rest = unit // blocks
        x_at, y_at, width = block_of(args, rest // parts, unit % blocks)
        terms = Terms(source, args, scratch_at(workspace), source.stored_at(args.x), x_at)
        if args.is_parted:
            part = rest % parts
            add_up(terms, width, part, 1, workspace)
            write_row(
                form.as_computed, form.computed_at(args.y), y_at + part * args.part_stride, y_stride, sums, 0, width
            )
        else:
            add_up(terms, width, 0, args.pieces.count, workspace)
            if divisor != number(1):
                for i in lanes_once(number, width):
                    sums[i] = sums[i] / divisor
            write_row(form, form.stored_at(args.y), y_at, y_stride, sums, 0, width)


def add_up(terms, width, first, count, workspace):
    """The sums of ``count`` pieces of each column, from ``first`` on."""
    if terms.args.is_side_by_side:
        side_by_side(terms, width, first, count, workspace)
    else:
        one_by_one(terms, width, first, count, workspace)


def one_by_one(terms, width, first, count, workspace):
    form, args = terms.form, terms.args
    sums, cells = form.computed_at(workspace + args.sums_at), form.computed_at(workspace + args.cells_at)
    pieces = form.computed_at(workspace + args.lanes_at)
    start, n = piece(args.pieces, first)
    for c in range(width):
        column = Terms(form, args, terms.scratch, terms.x, terms.at + c * args.columns.x_stride)
        if count == 1:
            sums[c] = sum_of_terms(column, start, n, cells)
        else:
            for j in range(count):
                start, n = piece(args.pieces, j)
                pieces[j] = sum_of_terms(column, start, n, cells)
            sums[c] = sum_of_pieces(form.computed, pieces, count)


def side_by_side(terms, width, first, count, workspace):
    form, args = terms.form, terms.args
    pieces, target = form.computed_at(workspace + args.sums_at), form.computed_at(workspace + args.lanes_at)
    for j in range(count):
        start, n = piece(args.pieces, first + j)
        sums_of_terms(terms, args.columns.x_stride, width, start, n, target)
        for i in lanes(form.computed, width):
            pieces[j * width + i] = target[i] + form.computed(0)
    sums_of_pieces(form, pieces, count, width, target)


def mean_transpose_kernel(form, args, lo, hi, workspace):
    """One unit is a stretch of a row of the result, in the order in which it lies in memory."""
    x, y, divisor = form.stored_at(args.x), form.stored_at(args.y), form.computed(args.divisor)
    x_step, y_step, blocks = args.columns.x_stride, args.columns.y_stride, args.blocks
    for unit in range(lo, hi):
        x_at, y_at, width = block_of(args, unit // blocks, unit % blocks)
        if x_step == 0 and y_step == 1:
            part = form.narrow(form.widen(x[x_at]) / divisor)
            for i in lanes(form.computed, width):
                y[y_at + i] = part
        elif x_step == 1 and y_step == 1:
            for i in lanes(form.computed, width):
                y[y_at + i] = form.narrow(form.widen(x[x_at + i]) / divisor)
        else:
            for i in range(width):
                y[y_at + i * y_step] = form.narrow(form.widen(x[x_at + i * x_step]) / divisor)
