"""The softmax along an axis and its logarithm, around the largest cell of each row as in the specification:

    m = max x,   e = exp(x − m),   A = Σ e,   softmax = e/A,   log_softmax = (x − m) − log A.

A row is read piece by piece (``terms``): for its maximum, for its sum, and for its results. If it is one piece, it is
read once. Where rows are nearer to each other in memory than their cells are, or short, a block of them is worked on
side by side; ``A`` is added up in the same tree.
"""

import math
from typing import Any

from gradspec.backends.cpu.kernels import terms as t
from gradspec.backends.cpu.kernels.compiler import choose, inlined, lanes, outlined, total
from gradspec.backends.cpu.kernels.elementary import exp_of, log_of
from gradspec.backends.cpu.kernels.memory import FORMATS, Format, address_of, maximum, pointer_to
from gradspec.backends.cpu.kernels.sums import Sums, block_of, same, words_at
from gradspec.backends.cpu.kernels.target import kernel_code


def build(name: str) -> str:
    """The code of the kernel called ``"softmax:f32"``, and the same for other floats."""
    return kernel_code(_softmax(FORMATS[name.removeprefix("softmax:")]))


@inlined
def larger(a, b):
    return maximum(a, b)


def _softmax(form: Format) -> Any:
    """One unit is a block of rows. ``cells`` are a piece of them, ``powers`` its exponentials."""
    number, lowest, sums = form.computed, form.computed(-math.inf), Sums(form)
    number_pointer, stored_pointer = pointer_to(number), pointer_to(form.stored)
    exp, log = exp_of(number), log_of(number)
    widen, narrow = form.functions()

    @inlined
    def load(value):
        return widen(value)

    @inlined
    def log_of_sum(a):
        return choose(a == a, log(a), a)

    def length(args, j):
        """The cells of a row that its piece ``j`` has."""
        return min(t.PIECE, args[t.TERMS] - j * t.PIECE)

    @inlined
    def x_step(args):
        return args[args[t.REDUCED] + 2]

    @inlined
    def y_step(args):
        return args[args[t.REDUCED] + 3]

    @outlined
    def put(y, at, step, results, first, n):
        if step == 1:
            for i in lanes(number, n):
                y[at + i] = narrow(results[first + i])
        else:
            for i in range(n):
                y[at + i * step] = narrow(results[first + i])

    # --- one row ------------------------------------------------------------------------------------------------------

    def read_piece(args, x, at, j, cells):
        sums.copy(cells, 0, x, load, at + j * t.PIECE * x_step(args), x_step(args), length(args, j))

    @outlined
    def raise_piece(powers, cells, m, n):
        for i in lanes(number, n):
            powers[i] = exp(cells[i] - m)

    def row_maximum(args, x, at, cells):
        m = lowest
        for j in range(args[t.PIECES]):
            read_piece(args, x, at, j, cells)
            m = maximum(m, total(larger, lowest, cells, 0, length(args, j)))
        return m

    def row_sum(args, x, at, m, cells, powers, pieces):
        for j in range(args[t.PIECES]):
            if args[t.PIECES] > 1:
                read_piece(args, x, at, j, cells)
            raise_piece(powers, cells, m, length(args, j))
            pieces[j] = sums.run(powers, 0, length(args, j))
        return sums.joined(pieces, args[t.PIECES])

    def row_results(args, x, at, y, y_at, m, a, cells, powers):
        shift = log_of_sum(a)
        for j in range(args[t.PIECES]):
            n, to = length(args, j), y_at + j * t.PIECE * y_step(args)
            if args[t.PIECES] > 1:
                read_piece(args, x, at, j, cells)
            if args[t.LOG] != 0:
                for i in lanes(number, n):
                    powers[i] = cells[i] - m - shift
                put(y, to, y_step(args), powers, 0, n)
            else:
                if args[t.PIECES] > 1:
                    raise_piece(powers, cells, m, n)
                for i in lanes(number, n):
                    cells[i] = powers[i] / a
                put(y, to, y_step(args), cells, 0, n)

    def one_by_one(args, x, x_at, y, y_at, width, workspace):
        cells, powers = number_pointer(workspace + args[t.CELLS_AT]), number_pointer(workspace + args[t.POWERS_AT])
        pieces = number_pointer(workspace + args[t.SUMS_AT])
        for c in range(width):
            at, to = x_at + c * args[t.COLUMN_X], y_at + c * args[t.COLUMN_Y]
            m = row_maximum(args, x, at, cells)
            a = row_sum(args, x, at, m, cells, powers, pieces)
            row_results(args, x, at, y, to, m, a, cells, powers)

    # --- rows side by side: cell k of all of them, then the next; ``m`` and ``a`` are one number for each ------------

    def read_pieces(args, x, at, j, width, cells):
        for k in range(length(args, j)):
            here = at + (j * t.PIECE + k) * x_step(args)
            sums.copy(cells, k * width, x, load, here, args[t.COLUMN_X], width)

    @outlined
    def raise_pieces(powers, cells, m, width, n):
        for k in range(n):
            for i in lanes(number, width):
                powers[k * width + i] = exp(cells[k * width + i] - m[i])

    def maxima(args, x, at, width, m, cells):
        for i in lanes(number, width):
            m[i] = lowest
        for j in range(args[t.PIECES]):
            read_pieces(args, x, at, j, width, cells)
            for k in range(length(args, j)):
                for i in lanes(number, width):
                    m[i] = maximum(m[i], cells[k * width + i])

    def sums_of_rows(args, x, at, width, m, cells, powers, pieces, place, target):
        """They are left in the first row of ``pieces``."""
        for j in range(args[t.PIECES]):
            if args[t.PIECES] > 1:
                read_pieces(args, x, at, j, width, cells)
            n = length(args, j)
            raise_pieces(powers, cells, m, width, n)
            sums.dense_columns(powers, 0, n, width, place, target)
            sums.copy(pieces, j * width, target, same, 0, 1, width)
        sums.joined_columns(pieces, args[t.PIECES], width, place, target)

    def results_of_rows(args, x, at, y, y_at, width, m, a, shift, cells, powers):
        if args[t.LOG] != 0:
            for i in lanes(number, width):
                shift[i] = log_of_sum(a[i])
        for j in range(args[t.PIECES]):
            if args[t.PIECES] > 1:
                read_pieces(args, x, at, j, width, cells)
                if args[t.LOG] == 0:
                    raise_pieces(powers, cells, m, width, length(args, j))
            for k in range(length(args, j)):
                to, first = y_at + (j * t.PIECE + k) * y_step(args), k * width
                if args[t.LOG] != 0:
                    for i in lanes(number, width):
                        powers[first + i] = cells[first + i] - m[i] - shift[i]
                    put(y, to, args[t.COLUMN_Y], powers, first, width)
                else:
                    for i in lanes(number, width):
                        cells[first + i] = powers[first + i] / a[i]
                    put(y, to, args[t.COLUMN_Y], cells, first, width)

    def side_by_side(args, x, x_at, y, y_at, width, workspace):
        cells, powers = number_pointer(workspace + args[t.CELLS_AT]), number_pointer(workspace + args[t.POWERS_AT])
        pieces, target = number_pointer(workspace + args[t.SUMS_AT]), number_pointer(workspace + args[t.LANES_AT])
        m = number_pointer(workspace + args[t.LARGEST_AT])
        maxima(args, x, x_at, width, m, cells)
        sums_of_rows(args, x, x_at, width, m, cells, powers, pieces, words_at(workspace), target)
        results_of_rows(args, x, x_at, y, y_at, width, m, pieces, target, cells, powers)

    def kernel(args, lo, hi, workspace_pointer):
        x, y, workspace = stored_pointer(args[t.X]), stored_pointer(args[t.Y]), address_of(workspace_pointer)
        for unit in range(lo, hi):
            x_at, y_at, width = block_of(args, unit // args[t.BLOCKS], unit % args[t.BLOCKS])
            if args[t.SIDE_BY_SIDE] != 0:
                side_by_side(args, x, x_at, y, y_at, width, workspace)
            else:
                one_by_one(args, x, x_at, y, y_at, width, workspace)

    return kernel
