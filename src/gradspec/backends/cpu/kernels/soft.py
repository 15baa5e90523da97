"""Smooth maxima: log-sum-exp over windows as a semigroup, with the tangents and cotangents of its weights.

A part of a window is reduced to its largest number ``m`` and ``s = Σ exp(b(x − m))``, with a tangent also
``t = Σ exp(b(x − m))·u``. Two parts are joined around the larger ``m``; the sums of the other shrink by
``d = exp(−b|m₁ − m₂|)``, 1 where both are equal, be it infinite. The smooth maximum is ``m + log(s)/b``, the mean of
``u`` is ``t/s``, and a cell receives ``g/s·exp(b(x − m))``. No exponent is positive and ``s ≥ 1``: nothing overflows.

Numbers are multiplied by a unit when they are read: −1 for β < 0, which makes the smooth minimum a maximum, and a half
of that where β is so small that a difference of two numbers may overflow and still matter.

Padding is read as −∞ and counts nothing beside a number. A window whose largest number is −∞ has only such cells, or
none, and is given the count of its real cells. Padding that takes part joins at the end, as that many zeros.

**Error.** Where a window is put together directly, an ``exp(b(x − m))`` is a product of at most one exponential per
axis, and otherwise of one per join. Gaps to larger and larger ``m`` add up to the gap to the last, so that errors of
exponents are those of a single exponential. A factor errs by 1.6u, and to be multiplied and added costs u more. With
the n − 1 additions that the certified tolerance allows anyway, an exponential of error 8u, which it assumes unless
told otherwise, is never exceeded: runs for k ≥ 8 taps take at most 3⌈log₂ k⌉/2 joins, and prefixes, which may be
joined k times, are used only where the other axes make n ≥ 4k.
"""

import math
from typing import Any

from gradspec.backends.cpu.kernels import fields as f
from gradspec.backends.cpu.kernels.compiler import choose, i8, inlined, lanes, lanes_once, outlined, strided, total
from gradspec.backends.cpu.kernels.elementary import exp_of, log_of
from gradspec.backends.cpu.kernels.memory import (
    Format,
    float_function,
    float_of_bits,
    maximum,
    multiply_add,
    pointer_to,
)
from gradspec.backends.cpu.kernels.rows import count_before_last, emit_by_rows, neighbours_reader, nothing_to_do, writer
from gradspec.backends.cpu.kernels.staging import outputs_reader, sender, span, stager, tap_offsets, tap_row, tap_rows
from gradspec.backends.cpu.kernels.windows import NEIGHBOURS, Reduction, kernel_of, pointer_i64, real_taps
from gradspec.backends.cpu.kernels.winners import pulling

minimum = float_function("minimum")


class Soft:
    """The functions of one format that smooth pooling is made of; ``b`` is the softness."""

    def __init__(self, form: Format) -> None:
        number, exp = form.computed, exp_of(form.computed)

        @inlined
        def softness(args):
            return number(float_of_bits(args[f.SOFTNESS]))

        @inlined
        def power(b, x, m):
            """``exp(b(x − m))`` for ``x ≤ m``."""
            return exp(choose(x == m, number(0), b * (x - m)))

        @inlined
        def ordered(m1, m2):
            """The larger and the smaller of two pivots, and whether the second is the larger."""
            return maximum(m1, m2), minimum(m1, m2), m2 > m1

        @inlined
        def meeting(b, m1, m2):
            """The larger of two pivots, whether it is the second, and what the sums of the other are multiplied by."""
            m, low, is_second = ordered(m1, m2)
            return m, is_second, power(b, low, m)

        @inlined
        def together(is_second, d, s1, s2):
            return multiply_add(choose(is_second, s1, s2), d, choose(is_second, s2, s1))

        @inlined
        def together3(is_second, is_third, d_low, d_middle, s1, s2, s3):
            """The same of a third with the larger of two, and what the smaller one adds."""
            both = together(is_third, d_middle, choose(is_second, s2, s1), s3)
            return multiply_add(choose(is_second, s1, s2), d_low, both)

        self.softness, self.power, self.ordered, self.meeting = softness, power, ordered, meeting
        self.together, self.together3 = together, together3


def joining(form: Format, soft: Soft, has_tangent: bool) -> Any:
    """``join(b, v, w, z, to, first, second, n)``: the results of two parts; they may take the place of either."""
    number, meeting, together = form.computed, soft.meeting, soft.together

    @outlined
    def join(b, v, w, z, to, first, second, n):
        for i in lanes_once(number, n):
            m, is_second, d = meeting(b, v[first + i], v[second + i])
            v[to + i] = m
            w[to + i] = together(is_second, d, w[first + i], w[second + i])
            if has_tangent:
                z[to + i] = together(is_second, d, z[first + i], z[second + i])

    return join


def soft_rows(form: Format, soft: Soft, has_tangent: bool, join: Any, emit: Any) -> Any:
    """``row`` of the reduction. Results always go to the workspace: ``dv`` is ``v``."""
    number, lowest, zero = form.computed, form.computed(-math.inf), form.computed(0)
    power, ordered, softness = soft.power, soft.ordered, soft.softness
    together, together3 = soft.together, soft.together3
    stage, stage_tangent = stager(form, lowest, True), stager(form, zero, False)

    @outlined
    def direct(b, offsets, kernel, p, at, q, q_at, v, w, z, to, n):
        """Taps at their offsets, the largest first and then the sums."""
        for i in lanes(number, n):
            m = p[at + i]
            for k in range(1, kernel):
                m = maximum(m, p[at + offsets[k] + i])
            e = power(b, p[at + i], m)
            s = e
            if has_tangent:
                t = e * q[q_at + i]
            for k in range(1, kernel):
                e = power(b, p[at + offsets[k] + i], m)
                s = s + e
                if has_tangent:
                    t = multiply_add(e, q[q_at + offsets[k] + i], t)
            v[to + i] = m
            w[to + i] = s
            if has_tangent:
                z[to + i] = t

    @outlined
    def direct2(b, offset, p, at, q, q_at, v, w, z, to, n):
        """Two taps: one exponential."""
        for i in lanes(number, n):
            m, low, is_second = ordered(p[at + i], p[at + offset + i])
            e = power(b, low, m)
            v[to + i] = m
            w[to + i] = e + 1
            if has_tangent:
                z[to + i] = together(is_second, e, q[q_at + i], q[q_at + offset + i])

    @outlined
    def pairs(b, p, at, v, w, to, n):
        """Two taps at a stride of two, as they are in memory."""
        for i in lanes(number, n):
            left, right = strided(p, at + 2 * i, 2)
            m, low, _ = ordered(left, right)
            v[to + i] = m
            w[to + i] = power(b, low, m) + 1

    @outlined
    def direct3(b, second, third, p, at, q, q_at, v, w, z, to, n):
        """Three taps: two exponentials."""
        for i in lanes(number, n):
            larger, low, is_second = ordered(p[at + i], p[at + second + i])
            m, middle, is_third = ordered(larger, p[at + third + i])
            e, d = power(b, low, m), power(b, middle, m)
            v[to + i] = m
            w[to + i] = e + d + 1
            if has_tangent:
                u1, u2, u3 = q[q_at + i], q[q_at + second + i], q[q_at + third + i]
                z[to + i] = together3(is_second, is_third, e, d, u1, u2, u3)

    def copied(v, to, at, n):
        for i in lanes(number, n):
            v[to + i] = v[at + i]

    def picked(v, to, at, n, stride):
        if stride == 1:
            copied(v, to, at, n)
        else:
            for i in range(n):
                v[to + i] = v[at + i * stride]

    @outlined
    def all_picked(v, w, z, to, at, n, stride):
        picked(v, to, at, n, stride)
        picked(w, to, at, n, stride)
        if has_tangent:
            picked(z, to, at, n, stride)

    @outlined
    def doubled(args, a, v, w, z, to, length, n):
        """Windows from runs of neighbouring cells that are doubled and lengthened by 1 or 3.

        The binary digits of the window's length are read from the front, two ones at a time.
        """
        b, room, kernel, dilation = softness(args), args[f.TILE_ROOM], args[a + f.KERNEL], args[a + f.DILATION]
        one_cell = args[f.TILE_AT]
        three_cells, run = one_cell + room, one_cell + 2 * room
        for i in lanes(number, length):
            w[one_cell + i] = number(1)
        join(b, v, w, z, run, one_cell, one_cell + dilation, length - dilation)
        if kernel & (kernel >> 1) != 0:
            join(b, v, w, z, three_cells, run, one_cell + 2 * dilation, length - 2 * dilation)
        bit, width = 1, 2
        while 4 * bit <= kernel:
            bit *= 2
        if kernel & bit != 0:
            width = 3
            all_picked(v, w, z, run, three_cells, length - 2 * dilation, 1)
        bit = bit // 2
        while bit != 0:
            is_one = kernel & bit != 0
            are_two = is_one and kernel & (bit // 2) != 0
            for _ in range(2 if are_two else 1):
                join(b, v, w, z, run, run, run + width * dilation, length - (2 * width - 1) * dilation)
                width, bit = 2 * width, bit // 2
            if are_two:
                join(b, v, w, z, run, run, three_cells + width * dilation, length - (width + 2) * dilation)
                width += 3
            elif is_one:
                join(b, v, w, z, run, run, one_cell + width * dilation, length - width * dilation)
                width += 1
        all_picked(v, w, z, to, run, n, args[a + f.STRIDE])

    @outlined
    def row(args, frame, a, x_at, u_at, count, v, dv, w, z, to, first_output, end_output):
        kernel, stride, at, scans = args[a + f.KERNEL], args[a + f.STRIDE], to, args[a + f.SCANS]
        are_pairs = (not has_tangent) and kernel == 2 and stride == 2 and args[a + f.DILATION] == 1
        phases = 1 if scans != 0 or are_pairs else stride
        for first in range(first_output, end_output, args[f.TILE]):
            end = min(first + args[f.TILE], end_output)
            p, p_at = stage(args, a, f.X, x_at, first, end, phases, scans, v)
            q, q_at = p, p_at
            if has_tangent:
                q, q_at = stage_tangent(args, a, f.U, u_at, first, end, phases, scans, z)
            if are_pairs:
                pairs(softness(args), p, p_at, v, w, at, end - first)
            elif scans == 0:
                offsets = tap_offsets(args, frame, a, first, end)
                b, n = softness(args), end - first
                if kernel == 2:
                    direct2(b, offsets[1], p, p_at, q, q_at, v, w, z, at, n)
                elif kernel == 3:
                    direct3(b, offsets[1], offsets[2], p, p_at, q, q_at, v, w, z, at, n)
                else:
                    direct(b, offsets, kernel, p, p_at, q, q_at, v, w, z, at, n)
            else:
                begin, stop, _, _ = span(args, a, first, end)
                doubled(args, a, v, w, z, at, stop - begin, end - first)
            if args[f.RANK] == 1:
                emit(args, frame, first, end, v, w, z, to)
            else:
                at += end - first

    return row


def soft_reduction(form: Format, soft: Soft, has_tangent: bool, emit: Any, prepare: Any, finish: Any) -> Reduction:
    number, lowest, zero = form.computed, form.computed(-math.inf), form.computed(0)
    power, ordered, together3, softness = soft.power, soft.ordered, soft.together3, soft.softness
    read_neighbours, join = neighbours_reader(form), joining(form, soft, has_tangent)

    @outlined
    def load(args, frame, a, x_at, u_at, count, v, w, z, at, n):
        read_neighbours(args, f.X, x_at, 1, v, at, n)
        unit = number(float_of_bits(args[f.UNIT]))
        for i in lanes_once(number, n):
            m = v[at + i] * unit
            v[at + i] = m
            w[at + i] = choose(m == m, number(1), m)  # the weight of a NaN that stays alone is NaN
        if has_tangent:
            read_neighbours(args, f.U, u_at, 1, z, at, n)

    @outlined
    def blank(dv, w, z, to, n):
        for i in lanes(number, n):
            dv[to + i] = lowest
            w[to + i] = zero
            if has_tangent:
                z[to + i] = zero

    @outlined
    def copy(dv, to, v, w, z, a, shift, n):
        for i in lanes(number, n):
            dv[to + i] = v[a + i]
            w[to + i] = w[a + i]
            if has_tangent:
                z[to + i] = z[a + i]

    @inlined
    def join_rows(args, dv, to, v, w, z, a, shift_a, b, shift_b, n):
        join(softness(args), v, w, z, to, a, b, n)

    @outlined
    def join3(b, v, w, z, to, first, second, third, n):
        """Of three pivots the two smaller ones take exponentials, which do not wait for each other."""
        for i in lanes(number, n):
            larger, low, is_second = ordered(v[first + i], v[second + i])
            m, middle, is_third = ordered(larger, v[third + i])
            d_low, d_middle = power(b, low, m), power(b, middle, m)
            v[to + i] = m
            w[to + i] = together3(is_second, is_third, d_low, d_middle, w[first + i], w[second + i], w[third + i])
            if has_tangent:
                z[to + i] = together3(is_second, is_third, d_low, d_middle, z[first + i], z[second + i], z[third + i])

    @outlined
    def put_together(args, ring, ring_end, slab, at, shift, rows, volume, dv, to, v, w, z):
        """A window of some rows of the ring: the largest pivot first, and then the sums around it."""
        softly = softness(args)
        if rows == 1:
            copy(dv, to, v, w, z, at, 0, slab)
            return
        if rows == 2:
            second = at + slab if at + slab < ring_end else ring
            join(softly, v, w, z, to, at, second, slab)
            return
        if rows == 3:
            second = at + slab if at + slab < ring_end else ring
            join3(softly, v, w, z, to, at, second, second + slab if second + slab < ring_end else ring, slab)
            return
        for i in lanes(number, slab):
            m, here = v[at + i], at
            for _ in range(1, rows):
                here = here + slab if here + slab < ring_end else ring
                m = maximum(m, v[here + i])
            e = power(softly, v[at + i], m)
            s = e * w[at + i]
            if has_tangent:
                t = e * z[at + i]
            here = at
            for _ in range(1, rows):
                here = here + slab if here + slab < ring_end else ring
                e = power(softly, v[here + i], m)
                s = multiply_add(e, w[here + i], s)
                if has_tangent:
                    t = multiply_add(e, z[here + i], t)
            dv[to + i] = m
            w[to + i] = s
            if has_tangent:
                z[to + i] = t

    row = soft_rows(form, soft, has_tangent, join, emit)
    return Reduction(
        load, row, blank, copy, None, None, join_rows, None, emit, prepare, finish, put_together=put_together
    )


def soft_emission(form: Format, soft: Soft, derivative: str | None) -> Any:
    """``emit_row``: the value, and the mean of a tangent or what a cotangent sends to the cells."""
    number, lowest, zero, one = form.computed, form.computed(-math.inf), form.computed(0), form.computed(1)
    power, meeting, together, softness = soft.power, soft.meeting, soft.together, soft.softness
    has_mean, has_spread = derivative == "mean", derivative == "spread"
    stored_pointer, write, log, read = pointer_to(form.stored), writer(form), log_of(number), outputs_reader(form)
    widen, _ = form.functions()

    @inlined
    def contribution(args, x, m, q):
        return q * power(softness(args), x, m)

    send = sender(form, True, lowest, contribution)

    @inlined
    def unless_finite(a, b):
        """0 as long as nothing but finite numbers comes, and then NaN."""
        return a + (b - b)

    @outlined
    def count_lowest(args, frame, first, end, v, w, at):
        last, n = args[f.AXES] + (args[f.RANK] - 1) * f.AXIS, frame[NEIGHBOURS]
        count, counts = count_before_last(args, frame, f.REAL), pointer_i64(args[last + f.REAL])
        for o in range(first, end):
            for i in range(at + (o - first) * n, at + (o - first + 1) * n):
                if v[i] == lowest:
                    w[i] = number(count * counts[o])
                    if w[i] == zero and args[f.PADDED] == 0:
                        v[i] = zero
                        w[i] = one

    @outlined
    def join_padding(args, frame, first, end, v, w, z, at):
        last, n, b = args[f.AXES] + (args[f.RANK] - 1) * f.AXIS, frame[NEIGHBOURS], softness(args)
        count, counts = count_before_last(args, frame, f.COUNTED), pointer_i64(args[last + f.COUNTED])
        real, reals = count_before_last(args, frame, f.REAL), pointer_i64(args[last + f.REAL])
        for o in range(first, end):
            zeros = count * counts[o] - real * reals[o]
            if zeros > 0:
                for i in range(at + (o - first) * n, at + (o - first + 1) * n):
                    m, is_second, d = meeting(b, v[i], zero)
                    v[i] = m
                    w[i] = together(is_second, d, w[i], number(zeros))
                    if has_mean:
                        z[i] = together(is_second, d, z[i], zero)

    @outlined
    def mean_by_weights(args, frame, o, i, m, s):
        """``Σ exp(b(x − m))/s·u``, whose parts are no larger than the mean: for tangents whose sum overflows."""
        last, b, unit = args[f.AXES] + (args[f.RANK] - 1) * f.AXIS, softness(args), number(float_of_bits(args[f.UNIT]))
        x, u, mean = stored_pointer(args[f.X]), stored_pointer(args[f.U]), zero
        start, k_first, k_end = real_taps(args, last, o)
        for r in range(tap_rows(args, frame)):
            (x_row, _), (u_row, _) = tap_row(args, frame, r, f.X), tap_row(args, frame, r, f.U)
            for k in range(k_first, k_end):
                cell = start + k * args[last + f.DILATION]
                here = x_row + cell * args[last + f.STRIDES + f.X] + i * args[f.INNER_STRIDE + f.X]
                there = u_row + cell * args[last + f.STRIDES + f.U] + i * args[f.INNER_STRIDE + f.U]
                mean = mean + power(b, widen(x[here]) * unit, m) / s * widen(u[there])
        return mean

    @outlined
    def means(args, frame, first, end, v, w, z, at):
        n = frame[NEIGHBOURS]
        for i in lanes_once(number, (end - first) * n):
            z[at + i] = z[at + i] / w[at + i]
        if total(unless_finite, zero, z, at, (end - first) * n) != zero:
            for o in range(first, end):
                for i in range(n):
                    here = at + (o - first) * n + i
                    if z[here] - z[here] != zero and v[here] == v[here]:
                        z[here] = mean_by_weights(args, frame, o, i, v[here], w[here])
        write(args, frame, f.V, first, end, z, at)

    @outlined
    def spread(args, frame, first, end, v, w, z, at):
        read(args, frame, f.U, first, end, z, at)
        for i in lanes_once(number, (end - first) * frame[NEIGHBOURS]):
            z[at + i] = z[at + i] / w[at + i]
        send(args, frame, first, end, v, z, w, at)

    @outlined
    def values(args, frame, first, end, v, w, at):
        unit = number(float_of_bits(args[f.UNIT]))
        beta, back = softness(args) * unit, one / unit
        for i in lanes_once(number, (end - first) * frame[NEIGHBOURS]):
            v[at + i] = v[at + i] * back + log(w[at + i]) / beta
        write(args, frame, f.Y, first, end, v, at)

    def emit_row(args, frame, first, end, v, w, z, at):
        if total(unless_finite, zero, v, at, (end - first) * frame[NEIGHBOURS]) != zero:
            count_lowest(args, frame, first, end, v, w, at)
        if args[f.PADDED] != 0:
            join_padding(args, frame, first, end, v, w, z, at)
        if has_mean:
            means(args, frame, first, end, v, w, z, at)
        if has_spread:
            spread(args, frame, first, end, v, w, z, at)
        if args[f.Y] != 0:
            values(args, frame, first, end, v, w, at)

    return emit_row


def soft_kernel(derivative: str | None) -> Any:
    """The kernel of the smooth maximum, alone or with what comes of a tangent (``mean``) or cotangent (``spread``)."""

    def build(form: Format) -> Any:
        soft, number = Soft(form), form.computed
        emit = emit_by_rows(soft_emission(form, soft, derivative))
        prepare, finish = pulling(form) if derivative == "spread" else (nothing_to_do, nothing_to_do)
        do = soft_reduction(form, soft, derivative == "mean", emit, prepare, finish)
        return kernel_of(do, number, number, i8 if derivative is None else number)

    return build


soft_value, soft_mean, soft_spread = soft_kernel(None), soft_kernel("mean"), soft_kernel("spread")
