"""Power pooling: one kernel for each float format, for windows of any rank.

A unit is a piece of a row of outputs. For p > 1 cells are divided by the largest one of their window, ``m``, so that
their powers neither overflow nor vanish: with ``z = |x|/m``, the norm is ``m·(Σ z^p)^(1/p)``, and the sum lies between
1 and the number of cells. A relative error of ``z`` is multiplied by p and then divided by it, and so it stays one
rounding. For p ≤ 1 no power leaves the range of its format, and 1 takes the place of ``m``.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from gradspec.backends.cpu.arguments import PLACE_BYTES
from gradspec.backends.cpu.layout.kernels.rows import clear, last_axis, piece_of, tap_range, words_at, write_row
from gradspec.backends.cpu.pool.arguments import LpPoolArguments
from gradspec.codegen.formats import FORMATS
from gradspec.codegen.intrinsics import absolute, address_of, maximum, square_root
from gradspec.codegen.kernels.elementary import power
from gradspec.codegen.language import choose, inlined, lanes, lanes_once, outlined, strided
from gradspec.codegen.translation import kernel_code


def build(name: str) -> str:
    """The code of the kernel called ``"lp_pool:f32"``."""
    return kernel_code(lp_pool, LpPoolArguments, FORMATS[name.removeprefix("lp_pool:")])


class Norms(NamedTuple):
    """Numbers of each output of a piece: the size of the cell at hand, that of the largest cell, what sizes are divided
    by, and the sum of their powers."""

    cells: Any
    largest: Any
    scale: Any
    total: Any


@inlined
def norms_of(form, args, workspace):
    """They lie behind the place of the row at hand."""
    sums, room = workspace + PLACE_BYTES, args.pieces.tile * form.computed.bytes
    cells, largest, scale, total = tuple(form.computed_at(sums + i * room) for i in range(4))
    return Norms(cells, largest, scale, total)


@inlined
def is_exactly(exponent, n):
    return (exponent.head == n) & (exponent.rest == 0.0)


@outlined
def read_cells(form, cells, x, at, step, n):
    """The sizes of cells ``step`` apart, as neighbours."""
    if step == 1:
        for i in lanes(form.computed, n):
            cells[i] = absolute(form.widen(x[at + i]))
    elif step == 2 and n > 0:
        for i in lanes(form.computed, n - 1):  # the last pair may end beyond the array
            even, _ = strided(x, at + 2 * i, 2)
            cells[i] = absolute(form.widen(even))
        cells[n - 1] = absolute(form.widen(x[at + 2 * (n - 1)]))
    else:
        for i in range(n):
            cells[i] = absolute(form.widen(x[at + i * step]))


# --- what is done with the cells of a tap -----------------------------------------------------------------------------


@outlined
def keep_largest(form, args, norms, at, n):
    cells, largest = norms.cells, norms.largest
    for i in lanes_once(form.computed, n):
        largest[at + i] = maximum(largest[at + i], cells[i])


@outlined
def add_powers(form, args, norms, at, n):
    number, cells, scale, total = form.computed, norms.cells, norms.scale, norms.total
    zero, p, p_rest = number(0), number(args.p.head), number(args.p.rest)
    if is_exactly(args.p, 1.0):
        for i in lanes_once(number, n):
            total[at + i] = total[at + i] + cells[i]
    elif is_exactly(args.p, 2.0):
        for i in lanes_once(number, n):
            z = cells[i] / scale[at + i]
            total[at + i] = total[at + i] + z * z
    else:
        for i in lanes_once(number, n):
            z = cells[i] / scale[at + i]
            total[at + i] = total[at + i] + choose(z == zero, zero, power(z, p, p_rest))


@inlined
def over_row(form, step, args, workspace, x_at, first_output, end_output):
    """``step(form, args, norms, at, n)`` for the real cells of outputs along the last axis, tap by tap."""
    axis, norms, x = last_axis(args), norms_of(form, args, workspace), form.stored_at(args.x)
    cell, stride = axis.cell_stride, axis.source_stride
    for k in range(axis.kernel):
        start, first, end = tap_range(axis, k)
        first, end = max(first, first_output), min(end, end_output)
        if first < end:
            read_cells(form, norms.cells, x, x_at + start * cell + first * stride, stride, end - first)
            step(form, args, norms, first - first_output, end - first)


def over_taps(form, step, args, workspace, a, x_at, first_output, end_output):
    """The same along all axes from number ``a`` on."""
    if a == len(args.axes) - 1:
        over_row(form, step, args, workspace, x_at, first_output, end_output)
        return
    axis, o = args.axes[a], words_at(workspace)[a]
    for k in range(axis.kernel):
        start, first, end = tap_range(axis, k)
        if first <= o < end:
            at = x_at + start * axis.cell_stride + o * axis.source_stride
            over_taps(form, step, args, workspace, a + 1, at, first_output, end_output)


# --- from sums to norms -----------------------------------------------------------------------------------------------


@outlined
def prepare(form, norms, n):
    """Before powers are added up."""
    number, largest, scale, total = form.computed, norms.largest, norms.scale, norms.total
    for i in lanes(number, n):
        m = largest[i]
        scale[i] = choose((m > number(0)) & (m < number(math.inf)), m, number(1))
        total[i] = number(0)


@outlined
def finish(form, args, norms, n):
    number, largest, scale, total = form.computed, norms.largest, norms.scale, norms.total
    zero, q, q_rest = number(0), number(args.inverse.head), number(args.inverse.rest)
    if is_exactly(args.p, 1.0):
        return
    if is_exactly(args.p, 2.0):
        for i in lanes_once(number, n):
            total[i] = square_root(total[i])
    else:
        for i in lanes_once(number, n):
            total[i] = choose(total[i] == zero, zero, power(total[i], q, q_rest))
    for i in lanes_once(number, n):
        total[i] = choose(largest[i] < number(math.inf), total[i] * scale[i], largest[i])


def lp_pool(form, args, lo, hi, workspace):
    base, y, jump = address_of(workspace), form.stored_at(args.y), last_axis(args).target_stride
    norms = norms_of(form, args, base)
    for unit in range(lo, hi):
        piece = piece_of(args, unit, words_at(base))
        n = piece.end - piece.first
        clear(form, norms.largest, n)
        if args.p.head > 1.0:
            over_taps(form, keep_largest, args, base, 0, piece.source, piece.first, piece.end)
        if args.p.head == math.inf:
            write_row(form, y, piece.target, jump, norms.largest, 0, n)
        else:
            prepare(form, norms, n)
            over_taps(form, add_powers, args, base, 0, piece.source, piece.first, piece.end)
            finish(form, args, norms, n)
            write_row(form, y, piece.target, jump, norms.total, 0, n)
