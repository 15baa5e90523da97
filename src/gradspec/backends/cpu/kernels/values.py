"""Reductions to one number: the maximum without its winner, and the sum."""

import math
from dataclasses import dataclass, replace
from typing import Any

from gradspec.backends.cpu.kernels import fields as f
from gradspec.backends.cpu.kernels.compiler import (
    Type,
    beyond,
    choose,
    f16,
    f32,
    following,
    i8,
    inlined,
    lanes,
    lanes_once,
    moved_on,
    outlined,
    parts,
    put_strided,
    stretch,
    strided,
    total,
)
from gradspec.backends.cpu.kernels.memory import Format, address_of, float_of_bits, maximum, multiply_add, pointer_to
from gradspec.backends.cpu.kernels.rows import (
    count_before_last,
    emit_by_rows,
    neighbours_reader,
    nothing_to_do,
    prefetcher,
    reader,
    rows_have_cells,
    writer,
)
from gradspec.backends.cpu.kernels.windows import (
    BASES,
    NEIGHBOURS,
    Reduction,
    floor_div,
    kernel_of,
    output_pointer,
    pointer_i64,
    real_taps,
)


@dataclass(frozen=True)
class Semigroup:
    combine: Any
    neutral: Any
    idempotent: bool
    finish: Any  # (value, inverse, divisor): what a value becomes in the end


@inlined
def as_it_is(value, inverse, divisor):
    return value


@inlined
def divided(value, inverse, divisor):
    """``value / divisor``, from the rounded inverse ``r``.

    The remainder of the quotient ``q = value·r`` is exact in one operation, and ``q + remainder·r`` is the rounded
    quotient: the same as a division, in less time. Where ``q`` is infinite there is no remainder.
    """
    quotient = value * inverse
    remainder = multiply_add(-quotient, divisor, value)
    return choose(remainder == remainder, multiply_add(remainder, inverse, quotient), quotient)


def largest(form: Format) -> Semigroup:
    number = form.computed
    if not form.is_float:
        lowest = number(-(2 ** (number.bits - 1)))

        @inlined
        def larger(a, b):
            return choose(b > a, b, a)

    else:
        lowest = number(-math.inf)

        @inlined
        def larger(a, b):
            return maximum(a, b)

    return Semigroup(larger, lowest, True, as_it_is)


def summed(form: Format) -> Semigroup:
    @inlined
    def plus(a, b):
        return a + b

    return Semigroup(plus, form.computed(0), False, divided)


def taps_of(number: Type, combine: Any) -> Any:
    """``taps(t, to, p, at, n, kernel, stride, dilation)``: the windows that start at ``at + i·stride``, all inside.

    Strides and kernels that vectors are good at have loops of their own. A loop that reads pairs and needs only their
    first numbers leaves the last one out, because its pair may end beyond the row.
    """

    @outlined
    def one_by_one(t, to, p, at, n, kernel, stride, dilation):
        for i in range(n):
            value = p[at + i * stride]
            for k in range(1, kernel):
                value = combine(value, p[at + i * stride + k * dilation])
            t[to + i] = value

    def two1(t, to, p, at, n, dilation):
        for i in lanes(number, n):
            t[to + i] = combine(p[at + i], p[at + dilation + i])

    def three1(t, to, p, at, n, dilation):
        for i in lanes(number, n):
            t[to + i] = combine(combine(p[at + i], p[at + dilation + i]), p[at + 2 * dilation + i])

    def five1(t, to, p, at, n, dilation):
        for i in lanes(number, n):
            three = combine(combine(p[at + i], p[at + dilation + i]), p[at + 2 * dilation + i])
            t[to + i] = combine(combine(three, p[at + 3 * dilation + i]), p[at + 4 * dilation + i])

    def more1(t, to, p, at, n):
        for i in lanes_once(number, n):
            t[to + i] = combine(t[to + i], p[at + i])

    def two2(t, to, p, at, n):
        for i in lanes(number, n):
            a, b = strided(p, at + 2 * i, 2)
            t[to + i] = combine(a, b)

    def three2(t, to, p, at, n):
        for i in lanes(number, n):
            a, b = strided(p, at + 2 * i, 2)
            t[to + i] = combine(combine(a, b), following(p, at + 2 * i, 2, a))

    def more2(t, to, p, at, n):
        for i in lanes_once(number, n - 1):
            a, _ = strided(p, at + 2 * i, 2)
            t[to + i] = combine(t[to + i], a)
        t[to + n - 1] = combine(t[to + n - 1], p[at + 2 * (n - 1)])

    def four4(t, to, p, at, n):
        for i in lanes(number, n):
            a, b, c, d = strided(p, at + 4 * i, 4)
            t[to + i] = combine(combine(a, b), combine(c, d))

    def taps(t, to, p, at, n, kernel, stride, dilation):
        if n <= 0:
            return
        if stride == 1 and kernel > 1:
            done = min(kernel, 3)
            if kernel == 2:
                two1(t, to, p, at, n, dilation)
            elif kernel < 5:
                three1(t, to, p, at, n, dilation)
            else:
                five1(t, to, p, at, n, dilation)
                done = 5
            for k in range(done, kernel):
                more1(t, to, p, at + k * dilation, n)
        elif stride == 2 and dilation == 1 and kernel > 1:
            if kernel == 2:
                two2(t, to, p, at, n)
            else:
                three2(t, to, p, at, n)
            for k in range(3, kernel):
                more2(t, to, p, at + k, n)
        elif stride == 4 and dilation == 1 and kernel == 4:
            four4(t, to, p, at, n)
        else:
            one_by_one(t, to, p, at, n, kernel, stride, dilation)

    return taps


def doubling_of(number: Type, group: Semigroup) -> Any:
    """``doubled(t, a, room, length, kernel, stride, dilation, dv, to, n)``: windows from runs of 1, 2, 4, … cells.

    The runs of twice the width are ``run[i] ⊕ run[i + width]``. If ``x ⊕ x = x``, two overlapping runs of the largest
    power of two make the window; otherwise the runs of its binary digits do.
    """
    combine, idempotent = group.combine, group.idempotent

    def pairs(t, to, at, n, distance):
        for i in lanes(number, n):
            t[to + i] = combine(t[at + i], t[at + distance + i])

    def picked(dv, to, t, at, n, stride):
        if stride == 1:
            for i in lanes(number, n):
                dv[to + i] = t[at + i]
        else:
            for i in range(n):
                dv[to + i] = t[at + i * stride]

    def added(dv, to, t, at, n, stride):
        if stride == 1:
            for i in lanes_once(number, n):
                dv[to + i] = combine(dv[to + i], t[at + i])
        else:
            for i in range(n):
                dv[to + i] = combine(dv[to + i], t[at + i * stride])

    @outlined
    def doubled(t, a, room, length, kernel, stride, dilation, dv, to, n):
        width, here, there, offset = 1, a, a + room, 0
        while True:
            if (not idempotent) and kernel & width:
                if offset == 0:
                    picked(dv, to, t, here, n, stride)
                else:
                    added(dv, to, t, here + offset * dilation, n, stride)
                offset += width
            if 2 * width > kernel:
                break
            length -= width * dilation
            pairs(t, there, here, length, width * dilation)
            here, there, width = there, here, 2 * width
        if idempotent:
            picked(dv, to, t, here, n, stride)
            if width < kernel:
                added(dv, to, t, here + (kernel - width) * dilation, n, stride)

    return doubled


def value_rows(form: Format, group: Semigroup, emit: Any) -> Any:
    """``row`` of a reduction to one number."""
    read, combine, neutral, number = reader(form), group.combine, group.neutral, form.computed
    finish = group.finish
    pointer_x, fetch = pointer_to(form.stored), prefetcher(form)
    half_as_wide = f32 if number.bytes == 8 else f16  # so that vectors have twice as many lanes
    taps, doubled, output = taps_of(number, combine), doubling_of(number, group), output_pointer(form.computed)

    def some_taps(p, at, start, first, end, dilation):
        value = neutral
        for k in range(first, end):
            value = combine(value, p[at + start + k * dilation])
        return value

    def span(args, a, first, end):
        """The cells that outputs first … end−1 read: from where to where, and the real ones among them."""
        begin = first * args[a + f.STRIDE] - args[a + f.LOW]
        stop = (end - 1) * args[a + f.STRIDE] - args[a + f.LOW] + args[a + f.DILATION] * (args[a + f.KERNEL] - 1) + 1
        inside = max(0, begin)
        return begin, stop, inside, max(min(args[a + f.SIZE], stop), inside)

    @outlined
    def scanned(args, a, p, at, t, dv, to, first, end):
        begin, stop, inside, outside = span(args, a, first, end)
        tile = args[f.TILE_AT]
        for i in lanes(number, outside - inside):
            t[tile + inside - begin + i] = p[at + inside + i]
        for i in range(inside - begin):
            t[tile + i] = neutral
        for i in range(outside - begin, stop - begin):
            t[tile + i] = neutral
        kernel, stride, dilation = args[a + f.KERNEL], args[a + f.STRIDE], args[a + f.DILATION]
        doubled(t, tile, args[f.TILE_ROOM], stop - begin, kernel, stride, dilation, dv, to, end - first)

    @outlined
    def borders(args, a, p, at, dv, to, first, end):
        """Windows that are not all real."""
        size, kernel, dilation = args[a + f.SIZE], args[a + f.KERNEL], args[a + f.DILATION]
        if dilation == 1:
            for o in range(first, end):
                start = o * args[a + f.STRIDE] - args[a + f.LOW]
                value = neutral
                for cell in range(max(start, 0), min(start + kernel, size)):
                    value = combine(value, p[at + cell])
                dv[to + o] = value
            return
        for o in range(first, end):
            start, k, k_end = real_taps(args, a, o)
            dv[to + o] = some_taps(p, at, start, k, k_end, dilation)

    def sliding(args, a, p, at, t, dv, to, first, end):
        """Outputs first … end−1 from a row whose cell 0 is ``p[at]``."""
        if args[a + f.SCANS] != 0:
            scanned(args, a, p, at, t, dv, to, first, end)
            return
        kernel, stride, dilation = args[a + f.KERNEL], args[a + f.STRIDE], args[a + f.DILATION]
        left = min(max(args[a + f.INSIDE], first), end)
        right = min(max(args[a + f.BEYOND], left), end)
        if first < left:
            borders(args, a, p, at, dv, to - first, first, left)
        if right < end:
            borders(args, a, p, at, dv, to - first, right, end)
        begin = at + left * stride - args[a + f.LOW]
        if dilation == 1 and stride >= 8 and kernel >= 8:
            for o in range(right - left):
                dv[to + left - first + o] = total(combine, neutral, p, begin + o * stride, kernel)
        else:
            taps(dv, to + left - first, p, begin, right - left, kernel, stride, dilation)

    @outlined
    def bins(args, a, x_at, count, t, dv, to, first, end):
        room = args[f.TILE_ROOM]
        for o in range(first, end):
            start, _, n = real_taps(args, a, o)
            value = neutral
            for begin in range(0, n, room):
                m = min(room, n - begin)
                p, at = read(args, a, f.X, x_at, count, start + begin, start + begin + m, t, args[f.TILE_AT])
                if m >= 16:
                    value = combine(value, total(combine, neutral, p, at + start + begin, m))
                else:
                    value = combine(value, some_taps(p, at, start + begin, 0, m, 1))
            dv[to + o - first] = value

    @outlined
    def expanding(args, a, x_at, count, t, dv, to, first, end):
        """Cells first … end−1 from the windows that cover them: those whose tap has the cell's remainder."""
        windows, kernel, stride = args[a + f.SIZE], args[a + f.KERNEL], args[a + f.STRIDE]
        low, dilation, tile = args[a + f.LOW], args[a + f.DILATION], args[f.TILE_AT]
        reach = dilation * (kernel - 1)
        begin, stop = floor_div(first + low - reach, stride), floor_div(end - 1 + low, stride) + 1
        inside, outside = max(0, begin), min(windows, stop)
        for i in range(stop - begin):
            t[tile + i] = neutral
        if outside > inside:
            p, at = read(args, a, f.X, x_at, count, inside, outside, t, tile + inside - begin)
            if address_of(p) != address_of(t):
                for i in lanes(number, outside - inside):
                    t[tile + inside - begin + i] = p[at + inside + i]
        at = tile - begin
        if dilation == 1 and stride == 2 and kernel <= 3 and end - first >= 4:
            even = first + (first + low) % 2
            if even > first:
                dv[to] = t[at + (first + low) // 2]
            q, n = (even + low) // 2, (end - even) // 2
            at, to = at + q, to + even - first
            if kernel == 3:
                for i in lanes(number, n):
                    put_strided(dv, to + 2 * i, (combine(t[at + i], t[at - 1 + i]), t[at + i]))
            elif kernel == 2:
                for i in lanes(number, n):
                    put_strided(dv, to + 2 * i, (t[at + i], t[at + i]))
            else:
                for i in lanes(number, n):
                    put_strided(dv, to + 2 * i, (t[at + i], neutral))
                if even > first:
                    dv[to - 1] = neutral
            if even + 2 * n < end:
                dv[to + 2 * n] = combine(t[at + n], t[at + n - 1]) if kernel == 3 else t[at + n]
            return
        if dilation > 1:
            for cell in range(first, end):
                value = neutral
                for k in range(kernel - 1, -1, -1):
                    if (cell + low - k * dilation) % stride == 0:
                        value = combine(value, t[at + (cell + low - k * dilation) // stride])
                dv[to + cell - first] = value
            return
        for remainder in range(stride):
            cell = first + (remainder - first - low) % stride
            o, taps_here = (cell + low) // stride, max(0, (kernel - remainder + stride - 1) // stride)
            for i in range((end - cell + stride - 1) // stride):
                value = neutral
                for k in range(taps_here):
                    value = combine(value, t[at + o + i - k])
                dv[to + cell - first + i * stride] = value

    @outlined
    def row(args, frame, a, x_at, u_at, count, v, dv, w, z, to, first_output, end_output):
        step, at = args[f.TILE], to
        if args[f.RANK] > 1:
            fetch(args, f.X, x_at + 2 * args[a - f.AXIS + f.STRIDES + f.X], args[a + f.SIZE])
        for first in range(first_output, end_output, step):
            end = min(first + step, end_output)
            out = dv
            if args[f.RANK] == 1:
                out, at = output(args, frame, dv, first, to), to
            if args[a + f.KIND] == f.SLIDING:
                _, _, inside, outside = span(args, a, first, end)
                p, p_at = read(args, a, f.X, x_at, count, inside, outside, v, args[f.TILE_AT] + 2 * args[f.TILE_ROOM])
                sliding(args, a, p, p_at, v, out, at, first, end)
            elif args[a + f.KIND] == f.BINS:
                bins(args, a, x_at, count, v, out, at, first, end)
            else:
                expanding(args, a, x_at, count, v, out, at, first, end)
            if args[f.RANK] == 1 and args[f.QUIET] < 2:
                emit(args, frame, first, end, out, w, z, at)
            at += end - first

    def cells_of(args, a, first, end):
        """The real cells that outputs first … end−1 read: from where to where."""
        if args[a + f.KIND] == f.BINS:
            start, _, n = real_taps(args, a, end - 1)
            return real_taps(args, a, first)[0], start + n
        _, _, inside, outside = span(args, a, first, end)
        return inside, outside

    def along(args, a, p, at, t, dv, to, first, end):
        """Outputs first … end−1 from a row whose cell 0 is ``p[at]``."""
        if args[a + f.KIND] == f.BINS:
            spans = pointer_i64(args[a + f.SPANS])
            for o in range(first, end):
                start, n = at + spans[2 * o], spans[2 * o + 1]
                value = combine(neutral, p[start])
                for i in range(1, n):
                    value = combine(value, p[start + i])
                dv[to + o - first] = value
        else:
            sliding(args, a, p, at, t, dv, to, first, end)

    def plane_row(args, frame, a, x_at, row_first, row_end, v, dv, w, z, to, join, join3, fold, fold2):
        """One output row of the last two axes: rows of cells first, which lie in memory as they are, then along them.

        Which of equal cells comes first does not matter to a value.
        """
        last, step = a + f.AXIS, args[a + f.STRIDES + f.X]
        x = pointer_x(args[f.X])
        buffer = args[f.TILE_AT] + 2 * args[f.TILE_ROOM]
        outputs, tile = args[last + f.OUTPUTS], args[f.TILE]
        for i in range(args[a + f.STRIDE]):
            fetch(args, f.X, x_at + (row_end + i) * step, args[last + f.SIZE])
        for first in range(0, outputs, tile):
            end = min(first + tile, outputs)
            inside, outside = cells_of(args, last, first, end)
            at, n = x_at + row_first * step + inside, outside - inside
            rows = row_end - row_first
            if rows == 1 or n <= 0:
                along(args, last, x, at - inside, v, dv, to + first, first, end)
                continue
            if rows == 2:
                join(v, buffer, x, w, z, at, 0, at + step, 0, n)
            else:
                join3(v, buffer, x, w, z, at, 0, at + step, 0, at + 2 * step, 0, n)
            i = 3
            while i + 1 < rows:
                fold2(v, buffer, x, w, z, at + i * step, 0, at + (i + 1) * step, 0, n)
                i += 2
            if i < rows:
                fold(v, buffer, x, w, z, at + i * step, 0, n)
            along(args, last, v, buffer - inside, v, dv, to + first, first, end)

    def of_bits(bits):
        if form.is_float:
            return number(float_of_bits(bits))
        return number(1)

    @inlined
    def column(p, at, width):
        """Three cells below each other, for every lane."""
        return combine(combine(p[at], p[at + width]), p[at + 2 * width])

    def nine(dv, to, p, at, width, n, inverse, divisor):
        for i in lanes(half_as_wide, n):
            here, after = column(p, at + i, width), beyond(at + i, 1)
            second = moved_on(here, column(p, after, width))
            value = combine(combine(here, second), moved_on(second, column(p, after + 1, width)))
            dv[to + i] = finish(value, inverse, divisor)

    def nine2(dv, to, p, at, width, n, inverse, divisor):
        for i in lanes(number, n):
            upper = combine(stretch(p, at + 2 * i, 2), stretch(p, at + width + 2 * i, 2))
            left, middle = parts(combine(upper, stretch(p, at + 2 * width + 2 * i, 2)), 2)
            value = combine(combine(left, middle), moved_on(left, column(p, beyond(at + 2 * i, 2), width)))
            dv[to + i] = finish(value, inverse, divisor)

    def four2(dv, to, p, at, width, n, inverse, divisor):
        for i in lanes(number, n):
            left, right = parts(combine(stretch(p, at + 2 * i, 2), stretch(p, at + width + 2 * i, 2)), 2)
            dv[to + i] = finish(combine(left, right), inverse, divisor)

    @inlined
    def edge(p, at, width, rows, first, end):
        """The cells first … end−1 of some rows."""
        value = neutral
        if rows == 3 and end - first == 2:
            at += first
            above, here = combine(p[at], p[at + 1]), combine(p[at + width], p[at + width + 1])
            return combine(combine(above, here), combine(p[at + 2 * width], p[at + 2 * width + 1]))
        for cell in range(first, end):
            value = combine(value, combine(p[at + cell], p[at + width + cell]))
            if rows == 3:
                value = combine(value, p[at + 2 * width + cell])
        return value

    @outlined
    def plane_rows(args, axis, a, x_at, first_row, rows, dv, to):
        """Output rows of 3 × 3 or 2 × 2 windows at stride 2, or of 3 × 3 at stride 1 that are as wide as the input.

        In the last case output and input move on together, from row to row too, so that one run makes all of them.
        What it makes of cells beyond the ends of a row is then made again from real cells.
        """
        last = a + f.AXIS
        x, width, kernel, stride = (
            pointer_x(args[f.X]),
            args[a + f.STRIDES + f.X],
            args[a + f.KERNEL],
            args[a + f.STRIDE],
        )
        low, outputs, size = args[last + f.LOW], args[last + f.OUTPUTS], args[last + f.SIZE]
        inside, beyond_all = args[last + f.INSIDE], args[last + f.BEYOND]
        here, there = x_at + first_row * width, to
        inverse, divisor = number(1), number(1)
        if axis == 0 and args[f.QUIET] == 1 and args[f.INVERSE] != 0:
            inverse, divisor = of_bits(args[f.INVERSE]), of_bits(args[f.DIVISOR])
        if stride == 1:
            nine(dv, to + low, x, here, width, rows * width - 2, inverse, divisor)
        for _ in range(rows):
            begin, n = here + inside * stride - low, beyond_all - inside
            if stride == 2 and kernel == 3:
                nine2(dv, there + inside, x, begin, width, n, inverse, divisor)
            elif stride == 2:
                four2(dv, there + inside, x, begin, width, n, inverse, divisor)
            for o in range(inside):
                value = edge(x, here, width, kernel, 0, min(o * stride - low + kernel, size))
                dv[there + o] = finish(value, inverse, divisor)
            for o in range(beyond_all, outputs):
                value = edge(x, here, width, kernel, max(o * stride - low, 0), size)
                dv[there + o] = finish(value, inverse, divisor)
            here, there = here + stride * width, there + outputs

    return row, None if form.converts else plane_row, None if form.converts else plane_rows


def whole_planes(form: Format, group: Semigroup, divides: bool) -> Any:
    """``whole(args, lo, hi)`` of a reduction to one number, of planes that are evenly spaced."""
    number, combine, neutral, stored_pointer = form.computed, group.combine, group.neutral, pointer_to(form.stored)

    def whole(args, lo, hi):
        x, y, n = stored_pointer(args[f.X]), stored_pointer(args[f.Y]), args[args[f.AXES] + f.SIZE]
        x_step, y_step = args[f.HEADER + 1 + f.X], args[f.HEADER + 1 + f.Y]
        for unit in range(lo, hi):
            value = total(combine, neutral, x, unit * x_step, n)
            if divides:
                value = value / number(float_of_bits(args[f.DIVISOR]))
            y[unit * y_step] = value

    return None if form.converts else whole


def value_reduction(form: Format, group: Semigroup, emit: Any, divides: bool = False) -> Reduction:
    combine, neutral, number = group.combine, group.neutral, form.computed
    read_neighbours = neighbours_reader(form)

    @outlined
    def load(args, frame, a, x_at, u_at, count, v, w, z, at, n):
        read_neighbours(args, f.X, x_at, count, v, at, n)

    @outlined
    def blank(dv, w, z, to, n):
        for i in lanes(number, n):
            dv[to + i] = neutral

    @outlined
    def copy(dv, to, v, w, z, a, shift, n):
        for i in lanes(number, n):
            dv[to + i] = v[a + i]

    @outlined
    def fold(dv, to, v, w, z, a, shift, n):
        for i in lanes_once(number, n):
            dv[to + i] = combine(dv[to + i], v[a + i])

    @outlined
    def join(dv, to, v, w, z, a, shift_a, b, shift_b, n):
        for i in lanes_once(number, n):  # the result may replace a
            dv[to + i] = combine(v[a + i], v[b + i])

    @outlined
    def join3(dv, to, v, w, z, a, shift_a, b, shift_b, c, shift_c, n):
        for i in lanes(number, n):
            dv[to + i] = combine(combine(v[a + i], v[b + i]), v[c + i])

    @outlined
    def fold2(dv, to, v, w, z, a, shift_a, b, shift_b, n):
        for i in lanes_once(number, n):
            dv[to + i] = combine(combine(dv[to + i], v[a + i]), v[b + i])

    row, plane_row, plane_rows = value_rows(form, group, emit)
    return Reduction(
        *(load, row, blank, copy, fold, fold2, join, join3, emit, nothing_to_do, nothing_to_do),
        plane_row=plane_row,
        plane_rows=plane_rows,
        whole=whole_planes(form, group, divides),
    )


def hole_filler(form: Format) -> Any:
    """``fill(args, frame, first, end, v, at)``: 0 for the outputs of a row that have no real cell."""
    zero = form.computed(0)

    @outlined
    def fill(args, frame, first, end, v, at):
        last, n = args[f.AXES] + (args[f.RANK] - 1) * f.AXIS, frame[NEIGHBOURS]
        rows = rows_have_cells(args, frame)
        for o in range(first, end):
            _, k, k_end = real_taps(args, last, o)
            if k >= k_end or not rows:
                for i in range(n):
                    v[at + (o - first) * n + i] = zero

    return fill


def max_value(form: Format) -> Any:
    """The kernel of the maximum alone: the sign of a zero and a NaN's payload are free."""
    fill, write = hole_filler(form), writer(form)

    def emit_row(args, frame, first, end, v, w, z, at):
        if args[f.HOLES] != 0:
            fill(args, frame, first, end, v, at)
        if args[f.DIRECT] == 0:
            write(args, frame, f.Y, first, end, v, at)

    emit = emit_by_rows(emit_row)
    return kernel_of(value_reduction(form, largest(form), emit), form.computed, i8, i8)


def sum_value(form: Format) -> Any:
    """The kernel of averages, forwards and backwards."""
    number, fill, write = form.computed, hole_filler(form), writer(form)
    number_pointer = pointer_to(form.computed)

    @outlined
    def scale(args, v, at, n):
        """Divide by the one divisor of all windows."""
        divisor, inverse = number(float_of_bits(args[f.DIVISOR])), number(float_of_bits(args[f.INVERSE]))
        if args[f.EXACT] != 0:
            for i in lanes_once(number, n):
                v[at + i] = v[at + i] * inverse
        elif inverse != number(0):
            for i in lanes_once(number, n):
                v[at + i] = divided(v[at + i], inverse, divisor)
        else:
            for i in lanes_once(number, n):
                v[at + i] = v[at + i] / divisor

    def emit_row(args, frame, first, end, v, w, z, at):
        last = args[f.AXES] + (args[f.RANK] - 1) * f.AXIS
        n = frame[NEIGHBOURS]
        if args[f.SCALED] == 0:
            if float_of_bits(args[f.DIVISOR]) != 0.0:
                scale(args, v, at, (end - first) * n)
            else:
                count, counts = count_before_last(args, frame, f.COUNTED), pointer_i64(args[last + f.COUNTED])
                for o in range(first, end):
                    share = number(count * counts[o])
                    for i in range(n):
                        v[at + (o - first) * n + i] = v[at + (o - first) * n + i] / share
        if args[f.HOLES] != 0:
            fill(args, frame, first, end, v, at)
        if args[f.DIRECT] == 0:
            write(args, frame, f.Y, first, end, v, at)

    def share_out(args, frame):
        """Divide the outputs of a small plane, each by its own divisor."""
        if args[f.SHARES] != 0:
            y, shares, at = number_pointer(args[f.Y]), number_pointer(args[f.SHARES]), frame[BASES + f.Y]
            for i in lanes_once(number, args[args[f.AXES] + f.OUTPUTS] * args[args[f.AXES] + f.SLAB]):
                y[at + i] = y[at + i] / shares[i]

    do = value_reduction(form, summed(form), emit_by_rows(emit_row), divides=True)
    return kernel_of(replace(do, scale=scale, finish=share_out), number, i8, i8)
