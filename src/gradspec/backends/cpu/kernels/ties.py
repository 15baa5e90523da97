"""Derivatives of the maximum where every cell that ties takes part: sums or means of tangents, shared cotangents.

Cells tie with the window's maximum if they equal it, or are NaN where it is. The maximum is found first, and then every
tap is compared with it. Padding reads as −∞, which counts only where the maximum is −∞; all real cells tie there, and
their number is known.
"""

import math
from dataclasses import replace
from typing import Any

from gradspec.backends.cpu.kernels import fields as f
from gradspec.backends.cpu.kernels.compiler import choose, inlined, lanes, lanes_once, outlined
from gradspec.backends.cpu.kernels.memory import Format, pointer_to
from gradspec.backends.cpu.kernels.rows import count_before_last, emit_by_rows, writer
from gradspec.backends.cpu.kernels.staging import outputs_reader, sender, stager, tap_offsets, tap_row, tap_rows
from gradspec.backends.cpu.kernels.values import largest, value_reduction
from gradspec.backends.cpu.kernels.windows import NEIGHBOURS, kernel_of, pointer_i64, real_taps
from gradspec.backends.cpu.kernels.winners import pulling


def counting(form: Format, ties: Any) -> Any:
    """``count(args, frame, first, end, v, w, z, at)``: tied cells to ``z`` and, for a tangent, their sum to ``w``."""
    number, lowest, zero, one = form.computed, form.computed(-math.inf), form.computed(0), form.computed(1)
    stage, stage_tangent, stored_pointer = (
        stager(form, lowest, False),
        stager(form, zero, False),
        pointer_to(form.stored),
    )
    widen, _ = form.functions()

    @outlined
    def count_taps(offsets, kernel, p, at, v, z, to, n):
        for i in lanes_once(number, n):
            count, top = z[to + i], v[to + i]
            for k in range(kernel):
                count = count + choose(ties(p[at + offsets[k] + i], top), one, zero)
            z[to + i] = count

    @outlined
    def add_taps(offsets, kernel, p, at, q, q_at, v, w, to, n):
        for i in lanes_once(number, n):
            tangent, top = w[to + i], v[to + i]
            for k in range(kernel):
                here = offsets[k]
                tangent = tangent + choose(ties(p[at + here + i], top), q[q_at + here + i], zero)
            w[to + i] = tangent

    @outlined
    def by_rows(args, frame, first, end, v, w, z, at):
        last = args[f.AXES] + (args[f.RANK] - 1) * f.AXIS
        kernel, stride = args[last + f.KERNEL], args[last + f.STRIDE]
        for part in range(first, end, args[f.TILE]):
            stop = min(part + args[f.TILE], end)
            offsets, to = tap_offsets(args, frame, last, part, stop), at + part - first
            for r in range(tap_rows(args, frame)):
                x_row, _ = tap_row(args, frame, r, f.X)
                p, p_at = stage(args, last, f.X, x_row, part, stop, stride, 0, v)
                count_taps(offsets, kernel, p, p_at, v, z, to, stop - part)
                if args[f.PULLS] == 0:
                    u_row, _ = tap_row(args, frame, r, f.U)
                    q, q_at = stage_tangent(args, last, f.U, u_row, part, stop, stride, 0, w)
                    add_taps(offsets, kernel, p, p_at, q, q_at, v, w, to, stop - part)

    @outlined
    def by_cells(args, frame, first, end, v, w, z, at):
        last, n, x = args[f.AXES] + (args[f.RANK] - 1) * f.AXIS, frame[NEIGHBOURS], stored_pointer(args[f.X])
        u = stored_pointer(args[f.U])
        along, along_u = args[last + f.STRIDES + f.X], args[last + f.STRIDES + f.U]
        step, step_u = args[f.INNER_STRIDE + f.X], args[f.INNER_STRIDE + f.U]
        for r in range(tap_rows(args, frame)):
            (x_row, _), (u_row, _) = tap_row(args, frame, r, f.X), tap_row(args, frame, r, f.U)
            for o in range(first, end):
                start, k_first, k_end = real_taps(args, last, o)
                for i in range(n):
                    here = at + (o - first) * n + i
                    top, count, tangent = v[here], z[here], w[here]
                    for k in range(k_first, k_end):
                        cell = start + k * args[last + f.DILATION]
                        if ties(widen(x[x_row + cell * along + i * step]), top):
                            count = count + one
                            if args[f.PULLS] == 0:
                                tangent = tangent + widen(u[u_row + cell * along_u + i * step_u])
                    z[here] = count
                    w[here] = tangent

    @outlined
    def all_of_the_lowest(args, frame, first, end, v, z, at):
        last, n = args[f.AXES] + (args[f.RANK] - 1) * f.AXIS, frame[NEIGHBOURS]
        count, counts = count_before_last(args, frame, f.REAL), pointer_i64(args[last + f.REAL])
        for o in range(first, end):
            for i in range(at + (o - first) * n, at + (o - first + 1) * n):
                if v[i] == lowest:
                    z[i] = number(max(count * counts[o], 1))  # of no cells: something to divide by

    def count(args, frame, first, end, v, w, z, at):
        last = args[f.AXES] + (args[f.RANK] - 1) * f.AXIS
        for i in lanes(number, (end - first) * frame[NEIGHBOURS]):
            w[at + i] = zero
            z[at + i] = zero
        if args[f.INNER_TOTAL] == 1 and args[last + f.KIND] == f.SLIDING:
            by_rows(args, frame, first, end, v, w, z, at)
        else:
            by_cells(args, frame, first, end, v, w, z, at)
        all_of_the_lowest(args, frame, first, end, v, z, at)

    return count


def tied_cells(form: Format) -> Any:
    """The kernel of the maximum with a tangent or cotangent of all cells that tie."""
    number, lowest, zero = form.computed, form.computed(-math.inf), form.computed(0)
    write, read = writer(form), outputs_reader(form)

    @inlined
    def ties(x, top):
        return (x == top) | (x != x)

    @inlined
    def contribution(args, x, top, share):
        return choose(ties(x, top), share, zero)

    count, send = counting(form, ties), sender(form, False, lowest, contribution)

    @outlined
    def divide(w, z, at, n):
        for i in lanes_once(number, n):
            w[at + i] = w[at + i] / z[at + i]

    @outlined
    def zero_without_cells(args, frame, first, end, v, at):
        last, n = args[f.AXES] + (args[f.RANK] - 1) * f.AXIS, frame[NEIGHBOURS]
        cells, counts = count_before_last(args, frame, f.REAL), pointer_i64(args[last + f.REAL])
        for o in range(first, end):
            if cells * counts[o] == 0:
                for i in range(n):
                    v[at + (o - first) * n + i] = zero

    def emit_row(args, frame, first, end, v, w, z, at):
        n, splits, pulls = (end - first) * frame[NEIGHBOURS], args[f.TIES] == f.SPLIT, args[f.PULLS] != 0
        if splits or not pulls:
            count(args, frame, first, end, v, w, z, at)
        if pulls:
            read(args, frame, f.U, first, end, w, at)
        if splits:
            divide(w, z, at, n)
        if pulls:
            send(args, frame, first, end, v, w, w, at)
        else:
            write(args, frame, f.V, first, end, w, at)
        if args[f.Y] != 0:
            if args[f.HOLES] != 0:
                zero_without_cells(args, frame, first, end, v, at)
            write(args, frame, f.Y, first, end, v, at)

    prepare, finish = pulling(form)
    do = value_reduction(form, largest(form), emit_by_rows(emit_row))
    do = replace(do, prepare=prepare, finish=finish, plane_row=None, plane_rows=None)
    return kernel_of(do, number, number, number)
