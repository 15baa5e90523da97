"""The maximum with its winner, and what follows from winners: indices, tangents, cotangents, a tape.

A winner is the number of its cell within the window, in row-major order; padding cells have numbers too. ``b`` takes
the place of an earlier ``a`` if it exceeds it, or is the first NaN: ``not b ≤ a`` and ``a`` is a number.

Padding is read as the lowest number with a negative winner. Only a window whose real cells are all that low can end
with a negative winner, and then its first real cell has won; or it has no real cell.
"""

import math
from typing import Any

from gradspec.backends.cpu.kernels import fields as f
from gradspec.backends.cpu.kernels.compiler import (
    choose,
    following,
    i8,
    i64,
    inlined,
    lanes,
    lanes_once,
    outlined,
    strided,
    total,
    u8,
    u16,
    u32,
)
from gradspec.backends.cpu.kernels.memory import Format, address_of, pointer_to
from gradspec.backends.cpu.kernels.rows import (
    emit_by_rows,
    neighbours_reader,
    origin_at,
    output_at,
    prefetcher,
    reader,
    writer,
)
from gradspec.backends.cpu.kernels.values import largest
from gradspec.backends.cpu.kernels.windows import (
    BASES,
    END_CELL,
    FIRST_CELL,
    NEIGHBOURS,
    PLACE,
    TABLED,
    WORKSPACE,
    Reduction,
    kernel_of,
    output_pointer,
    pointer_i64,
    real_taps,
    units_of,
)

NOBODY = -(1 << 30)


def exceeding(form: Format) -> Any:
    """``exceeds(b, a)``: whether a later cell ``b`` takes the place of ``a``."""
    if form.is_float:

        @inlined
        def exceeds(b, a):
            return (not (b <= a)) & (a == a)

    else:

        @inlined
        def exceeds(b, a):
            return b > a

    return exceeds


def lowest_of(form: Format) -> Any:
    return form.computed(-math.inf if form.is_float else -(2 ** (form.computed.bits - 1)))


def winner_taps(form: Format) -> Any:
    """``taps(t, w, to, p, at, n, kernel, stride, dilation, 0)``: windows from ``at + i·stride`` on, all inside."""
    exceeds, lane, number = exceeding(form), form.lane, form.computed

    @outlined
    def one_by_one(t, w, to, p, at, n, kernel, stride, dilation):
        for i in range(n):
            best, who = p[at + i * stride], lane(0)
            for k in range(1, kernel):
                b = p[at + i * stride + k * dilation]
                later = exceeds(b, best)
                best, who = choose(later, b, best), choose(later, lane(k), who)
            t[to + i] = best
            w[to + i] = who

    # The numbers of taps are made from ``zero``, which is 0 but not known to be: choosing between constants would be
    # compiled to arithmetic on masks of one bit per lane, which takes longer.

    @inlined
    def better(t, w, to, a, b, zero):
        later = exceeds(b, a)
        t[to] = choose(later, b, a)
        w[to] = choose(later, zero + 1, zero)

    @inlined
    def best(t, w, to, a, b, c, zero):
        later = exceeds(b, a)
        better, who = choose(later, b, a), choose(later, zero + 1, zero)
        last = exceeds(c, better)
        t[to] = choose(last, c, better)
        w[to] = choose(last, zero + 2, who)

    @inlined
    def still_better(t, w, to, b, k):
        a = t[to]
        later = exceeds(b, a)
        t[to] = choose(later, b, a)
        w[to] = choose(later, k, w[to])

    def two1(t, w, to, p, at, n, dilation, zero):
        for i in lanes(number, n):
            better(t, w, to + i, p[at + i], p[at + dilation + i], zero)

    def three1(t, w, to, p, at, n, dilation, zero):
        for i in lanes(number, n):
            best(t, w, to + i, p[at + i], p[at + dilation + i], p[at + 2 * dilation + i], zero)

    def more1(t, w, to, p, at, n, k):
        for i in lanes_once(number, n):
            still_better(t, w, to + i, p[at + i], lane(k))

    def two2(t, w, to, p, at, n, zero):
        for i in lanes(number, n):
            a, b = strided(p, at + 2 * i, 2)
            better(t, w, to + i, a, b, zero)

    def three2(t, w, to, p, at, n, zero):
        for i in lanes(number, n):
            a, b = strided(p, at + 2 * i, 2)
            best(t, w, to + i, a, b, following(p, at + 2 * i, 2, a), zero)

    def more2(t, w, to, p, at, n, k):
        for i in lanes_once(number, n - 1):
            b, _ = strided(p, at + 2 * i, 2)
            still_better(t, w, to + i, b, lane(k))
        still_better(t, w, to + n - 1, p[at + 2 * (n - 1)], lane(k))

    def four4(t, w, to, p, at, n, zero):
        for i in lanes(number, n):
            a, b, c, d = strided(p, at + 4 * i, 4)
            best(t, w, to + i, a, b, c, zero)
            still_better(t, w, to + i, d, zero + 3)

    def taps(t, w, to, p, at, n, kernel, stride, dilation, nought):
        zero = lane(nought)
        if n <= 0:
            return
        if stride == 1 and kernel > 1:
            if kernel == 2:
                two1(t, w, to, p, at, n, dilation, zero)
            else:
                three1(t, w, to, p, at, n, dilation, zero)
            for k in range(3, kernel):
                more1(t, w, to, p, at + k * dilation, n, k)
        elif stride == 2 and dilation == 1 and kernel > 1:
            if kernel == 2:
                two2(t, w, to, p, at, n, zero)
            else:
                three2(t, w, to, p, at, n, zero)
            for k in range(3, kernel):
                more2(t, w, to, p, at + k, n, k)
        elif stride == 4 and dilation == 1 and kernel == 4:
            four4(t, w, to, p, at, n, zero)
        else:
            one_by_one(t, w, to, p, at, n, kernel, stride, dilation)

    return taps


def winner_doubling(form: Format) -> Any:
    """``doubled(t, w, a, room, length, kernel, stride, dilation, dv, to, n)``: see ``values.doubling_of``."""
    exceeds, lane, number = exceeding(form), form.lane, form.computed

    def pairs(t, w, to, at, n, distance, width):
        shift = lane(width)
        for i in lanes(number, n):
            a, b = t[at + i], t[at + distance + i]
            later = exceeds(b, a)
            t[to + i] = choose(later, b, a)
            w[to + i] = choose(later, w[at + distance + i] + shift, w[at + i])

    def picked(dv, t, w, to, at, n, stride, distance, width):
        shift = lane(width)
        for i in range(n):
            a, b = t[at + i * stride], t[at + i * stride + distance]
            later = exceeds(b, a)
            dv[to + i] = choose(later, b, a)
            w[to + i] = choose(later, w[at + i * stride + distance] + shift, w[at + i * stride])

    def picked1(dv, t, w, to, at, n, distance, width):
        shift = lane(width)
        for i in lanes(number, n):
            a, b = t[at + i], t[at + distance + i]
            later = exceeds(b, a)
            dv[to + i] = choose(later, b, a)
            w[to + i] = choose(later, w[at + distance + i] + shift, w[at + i])

    @outlined
    def doubled(t, w, a, room, length, kernel, stride, dilation, dv, to, n):
        width, here, there = 1, a, a + room
        while 2 * width <= kernel:
            length -= width * dilation
            pairs(t, w, there, here, length, width * dilation, width)
            here, there, width = there, here, 2 * width
        if stride == 1:
            picked1(dv, t, w, to, here, n, (kernel - width) * dilation, kernel - width)
        else:
            picked(dv, t, w, to, here, n, stride, (kernel - width) * dilation, kernel - width)

    return doubled


def winner_rows(form: Format, emit: Any) -> Any:
    read, exceeds, lane, lowest = reader(form), exceeding(form), form.lane, lowest_of(form)
    larger = largest(form).combine
    number, fetch, pointer_x = form.computed, prefetcher(form), pointer_to(form.stored)
    taps, doubled, output = winner_taps(form), winner_doubling(form), output_pointer(form.computed)

    def some_taps(p, at, first, end, dilation, dv, w, to):
        """Taps first … end−1 of a window that begins at ``at``; the first of them is real."""
        best, who = lowest, lane(NOBODY)
        if first < end:
            best, who = p[at + first * dilation], lane(first)
        for k in range(first + 1, end):
            b = p[at + k * dilation]
            later = exceeds(b, best)
            best, who = choose(later, b, best), choose(later, lane(k), who)
        dv[to] = best
        w[to] = who

    @outlined
    def borders(args, a, p, at, dv, w, to, first, end):
        """Windows that are not all real."""
        size, kernel, dilation = args[a + f.SIZE], args[a + f.KERNEL], args[a + f.DILATION]
        for o in range(first, end):
            start = o * args[a + f.STRIDE] - args[a + f.LOW]
            if dilation == 1:
                some_taps(p, at + start, max(0, -start), min(kernel, size - start), 1, dv, w, to + o)
            else:
                _, k, k_end = real_taps(args, a, o)
                some_taps(p, at + start, k, k_end, dilation, dv, w, to + o)

    def sliding(args, a, x_at, t, dv, w, to, first, end):
        size, kernel, stride = args[a + f.SIZE], args[a + f.KERNEL], args[a + f.STRIDE]
        low, dilation, tile = args[a + f.LOW], args[a + f.DILATION], args[f.TILE_AT]
        reach = dilation * (kernel - 1)
        begin, stop = first * stride - low, (end - 1) * stride - low + reach + 1
        inside, outside = max(0, begin), max(min(size, stop), 0)
        if outside <= inside:
            for o in range(end - first):
                dv[to + o] = lowest
                w[to + o] = NOBODY
            return
        if args[a + f.SCANS] != 0:
            p, at = read(args, a, f.X, x_at, 1, inside, outside, t, tile + inside - begin)
            if address_of(p) != address_of(t):
                for i in lanes(number, outside - inside):
                    t[tile + inside - begin + i] = p[at + inside + i]
            for i in lanes(number, stop - begin):
                w[tile + i] = 0
            for i in range(inside - begin):
                t[tile + i] = lowest
                w[tile + i] = NOBODY
            for i in range(outside - begin, stop - begin):
                t[tile + i] = lowest
                w[tile + i] = NOBODY
            doubled(t, w, tile, args[f.TILE_ROOM], stop - begin, kernel, stride, dilation, dv, to, end - first)
            return
        p, at = read(args, a, f.X, x_at, 1, inside, outside, t, tile)
        left = min(max(args[a + f.INSIDE], first), end)
        right = min(max(args[a + f.BEYOND], left), end)
        if first < left:
            borders(args, a, p, at, dv, w, to - first, first, left)
        if right < end:
            borders(args, a, p, at, dv, w, to - first, right, end)
        taps(
            dv, w, to + left - first, p, at + left * stride - low, right - left, kernel, stride, dilation, args[f.ZERO]
        )

    @outlined
    def bins(args, a, x_at, t, dv, w, to, first, end):
        room = args[f.TILE_ROOM]
        for o in range(first, end):
            start, _, n = real_taps(args, a, o)
            best, who = lowest, lane(NOBODY)
            for begin in range(0, n, room):
                stop = min(begin + room, n)
                p, at = read(args, a, f.X, x_at, 1, start + begin, start + stop, t, args[f.TILE_AT])
                if begin == 0:
                    best, who = p[at + start], lane(0)
                if stop - begin >= 32:
                    # The maximum first, in vectors; then the first cell that is it, or the first NaN if it is one.
                    top, k = total(larger, lowest, p, at + start + begin, stop - begin), begin
                    if exceeds(top, best):
                        while not ((p[at + start + k] == top) | (p[at + start + k] != p[at + start + k])):
                            k += 1
                        best, who = p[at + start + k], lane(k)
                    continue
                for k in range(max(begin, 1), stop):
                    b = p[at + start + k]
                    later = exceeds(b, best)
                    best, who = choose(later, b, best), choose(later, lane(k), who)
            dv[to + o - first] = best
            w[to + o - first] = who

    @inlined
    def best_of_row(a, b, c, zero):
        later = exceeds(b, a)
        better, who = choose(later, b, a), choose(later, zero + 1, zero)
        last = exceeds(c, better)
        return choose(last, c, better), choose(last, zero + 2, who)

    @inlined
    def better_of(a, who_a, b, who_b):
        later = exceeds(b, a)
        return choose(later, b, a), choose(later, who_b, who_a)

    def below1(t, v, w, to, p, at, n, above, here, below, zero):
        """Windows of 3 rows at stride 1: ``above`` and ``here`` are known, ``below`` is found at ``at`` and kept."""
        for i in lanes(number, n):
            new, who = best_of_row(p[at + i], p[at + 1 + i], p[at + 2 + i], zero)
            v[below + i], w[below + i] = new, who
            best, who_best = better_of(v[above + i], w[above + i], v[here + i], w[here + i] + (zero + 3))
            t[to + i], w[to + i] = better_of(best, who_best, new, who + (zero + 6))

    def below2(t, v, w, to, p, at, width, n, above, below, zero):
        """The same at stride 2: ``above`` is known, two rows are found from ``at`` on, and the last is kept."""
        for i in lanes(number, n):
            (a, b), (c, d) = strided(p, at + 2 * i, 2), strided(p, at + width + 2 * i, 2)
            here, who_here = best_of_row(a, b, following(p, at + 2 * i, 2, a), zero + 3)
            new, who = best_of_row(c, d, following(p, at + width + 2 * i, 2, c), zero)
            v[below + i], w[below + i] = new, who
            best, who_best = better_of(v[above + i], w[above + i], here, who_here)
            t[to + i], w[to + i] = better_of(best, who_best, new, who + (zero + 6))

    def four2(t, w, to, p, at, width, n, zero):
        for i in lanes(number, n):
            (a, b), (c, d) = strided(p, at + 2 * i, 2), strided(p, at + width + 2 * i, 2)
            above, who_above = better_of(a, zero, b, zero + 1)
            below, who_below = better_of(c, zero + 2, d, zero + 3)
            t[to + i], w[to + i] = better_of(above, who_above, below, who_below)

    @inlined
    def edge(p, at, width, kernel, first, end, dv, w, to):
        """The taps first … end−1 of each row of a window that begins at ``at``."""
        best, who = lowest, lane(NOBODY)
        if first < end:
            best, who = p[at + first], lane(first)
        for r in range(kernel):
            for k in range(first, end):
                b = p[at + r * width + k]
                later = exceeds(b, best)
                best, who = choose(later, b, best), choose(later, lane(r * kernel + k), who)
        dv[to] = best
        w[to] = who

    @outlined
    def plane_rows(args, frame, axis, a, x_at, o, rows, v, dv, w, z, to):
        """Output rows of 3 × 3 windows at stride 1 or 2, or 2 × 2 at stride 2, whose rows are all real.

        Rows of cells that the next windows share are kept, in slots that take turns.
        """
        last, width, zero = a + f.AXIS, args[a + f.STRIDES + f.X], lane(args[f.ZERO])
        x, kernel, stride = pointer_x(args[f.X]), args[a + f.KERNEL], args[a + f.STRIDE]
        low, outputs, size = args[last + f.LOW], args[last + f.OUTPUTS], args[last + f.SIZE]
        inside, beyond = args[last + f.INSIDE], args[last + f.BEYOND]
        n, column = beyond - inside, inside * stride - low
        above = args[f.TILE_AT]
        here, below = above + args[f.TILE_ROOM], above + 2 * args[f.TILE_ROOM]
        if kernel == 3:
            taps(v, w, above, x, x_at + column, n, 3, stride, 1, args[f.ZERO])
            if stride == 1:
                taps(v, w, here, x, x_at + width + column, n, 3, 1, 1, args[f.ZERO])
        at = x_at
        for row in range(rows):
            out, there = dv, to + row * outputs
            if axis == 0:
                out, there = output(args, frame, dv, o + row, to), to
            for i in range(stride):
                fetch(args, f.X, at + (kernel + 2 * stride + i) * width, size)
            if kernel == 2:
                four2(out, w, there + inside, x, at + column, width, n, zero)
            elif stride == 2:
                below2(out, v, w, there + inside, x, at + width + column, width, n, above, below, zero)
                above, below = below, above
            else:
                below1(out, v, w, there + inside, x, at + 2 * width + column, n, above, here, below, zero)
                above, here, below = here, below, above
            for i in range(inside):
                first = low - stride * i
                edge(x, at - first, width, kernel, first, min(kernel, size + first), out, w, there + i)
            for i in range(beyond, outputs):
                first = low - stride * i
                edge(x, at - first, width, kernel, max(0, first), min(kernel, size + first), out, w, there + i)
            if axis == 0:
                frame[PLACE] = o + row
                emit(args, frame, o + row, o + row + 1, out, w, z, there)
            at += stride * width

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
                sliding(args, a, x_at, v, out, w, at, first, end)
            else:
                bins(args, a, x_at, v, out, w, at, first, end)
            if args[f.RANK] == 1:
                emit(args, frame, first, end, out, w, z, at)
            at += end - first

    return row, None if form.converts else plane_rows


# --- where cells lie --------------------------------------------------------------------------------------------------


def dense_stride(args, axis):
    """From one cell to the next along an axis, in a dense plane."""
    stride = 1
    for later in range(axis + 1, args[f.RANK]):
        stride *= args[args[f.AXES] + later * f.AXIS + f.SIZE]
    return stride


def is_dense(args, array):
    """Whether a plane of an array is dense, and so its first cells are a run."""
    for axis in range(args[f.RANK]):
        if args[args[f.AXES] + axis * f.AXIS + f.STRIDES + array] != dense_stride(args, axis):
            return False
    return True


@outlined
def place_in(args, array, winner):
    """How far the cell ``winner`` of a window lies from the window's first: in an array, or (−1) in a dense plane."""
    place, rest = 0, winner
    for axis in range(args[f.RANK]):
        a = args[f.AXES] + axis * f.AXIS
        tap, rest = rest // args[a + f.VOLUME], rest % args[a + f.VOLUME]
        stride = dense_stride(args, axis) if array < 0 else args[a + f.STRIDES + array]
        place += tap * args[a + f.DILATION] * stride
    return place


def dense_origin(args, frame):
    """``rows.origin_at`` in a dense plane that begins at 0."""
    at = 0
    for axis in range(args[f.RANK] - 1):
        a = args[f.AXES] + axis * f.AXIS
        at += real_taps(args, a, frame[PLACE + axis])[0] * dense_stride(args, axis)
    return at


@outlined
def first_real(args, frame, o):
    """The number of the first real cell of a window, or −1."""
    winner = 0
    for axis in range(args[f.RANK]):
        a = args[f.AXES] + axis * f.AXIS
        output = frame[PLACE + axis]
        if axis == args[f.RANK] - 1:
            output = o
        _, first, end = real_taps(args, a, output)
        if first >= end:
            return -1
        winner += first * args[a + f.VOLUME]
    return winner


# --- what winners are used for ----------------------------------------------------------------------------------------


def winner_emission(form: Format) -> Any:
    """``emit_row`` of the maximum with its winner."""
    number, nought = form.computed, form.lane(0)
    write, zero, stored_pointer = writer(form), form.computed(0), pointer_to(form.stored)
    widen, _ = form.functions()
    sum_pointer = pointer_to(form.computed)
    pointer_u8, pointer_u16, pointer_u32 = pointer_to(u8), pointer_to(u16), pointer_to(u32)
    converts = form.converts

    @outlined
    def make_tables(args, frame):
        """The places of a window's cells: for tangents or cotangents, then in a dense plane."""
        table = pointer_i64(frame[WORKSPACE] + args[f.TABLE_AT])
        room = args[f.TABLE_ROOM]
        pulled = -1 if converts else f.V
        for winner in range(room):
            moved = place_in(args, pulled, winner) if args[f.PULLS] != 0 else place_in(args, f.U, winner)
            table[winner] = moved
            table[room + winner] = place_in(args, -1, winner)
        frame[TABLED] = 1

    @outlined
    def settle(args, frame, first, end, v, w, at):
        n = frame[NEIGHBOURS]
        for o in range(first, end):
            for i in range(n):
                here = at + (o - first) * n + i
                if w[here] < 0:
                    w[here] = first_real(args, frame, o)
                    if w[here] < 0:
                        v[here] = zero

    @outlined
    def number_places(args, frame, first, end, w, at, table):
        last, n = args[f.AXES] + (args[f.RANK] - 1) * f.AXIS, frame[NEIGHBOURS]
        indices = pointer_i64(args[f.INDICES])
        to, step = output_at(args, frame, f.INDICES), args[last + f.STRIDES + f.INDICES]
        origin = dense_origin(args, frame)
        for o in range(first, end):
            start = origin + real_taps(args, last, o)[0]
            for i in range(n):
                winner = i64(w[at + (o - first) * n + i])
                place = -1
                if winner >= 0:
                    place = start + (table[winner] if args[f.TABLE_ROOM] > 0 else place_in(args, -1, winner))
                indices[to + o * step + i * args[f.INNER_STRIDE + f.INDICES]] = place

    @outlined
    def push(args, frame, first, end, w, at, table):
        last, n = args[f.AXES] + (args[f.RANK] - 1) * f.AXIS, frame[NEIGHBOURS]
        u, v = stored_pointer(args[f.U]), stored_pointer(args[f.V])
        to, step = output_at(args, frame, f.V), args[last + f.STRIDES + f.V]
        origin, along = origin_at(args, frame, f.U), args[last + f.STRIDES + f.U]
        inner_u, inner_v = args[f.INNER_STRIDE + f.U], args[f.INNER_STRIDE + f.V]
        if n == 1 and args[f.TABLE_ROOM] > 0 and args[last + f.KIND] == f.SLIDING:
            move = args[last + f.STRIDE] * along
            start = origin - args[last + f.LOW] * along
            for o in range(first, end):
                winner = i64(w[at + o - first])
                if winner >= 0:
                    v[to + o * step] = u[start + o * move + table[winner]]
                else:
                    v[to + o * step] = 0
            return
        for o in range(first, end):
            start = origin + real_taps(args, last, o)[0] * along
            for i in range(n):
                winner = i64(w[at + (o - first) * n + i])
                there = to + o * step + i * inner_v
                if winner >= 0:
                    place = table[winner] if args[f.TABLE_ROOM] > 0 else place_in(args, f.U, winner)
                    v[there] = u[start + place + i * inner_u]
                else:
                    v[there] = 0

    @outlined
    def pull(args, frame, first, end, w, at, table):
        last, n = args[f.AXES] + (args[f.RANK] - 1) * f.AXIS, frame[NEIGHBOURS]
        u = stored_pointer(args[f.U])
        to, step, inner_u = output_at(args, frame, f.U), args[last + f.STRIDES + f.U], args[f.INNER_STRIDE + f.U]
        if converts:
            sums, scale, inner_v = sum_pointer(frame[WORKSPACE] + args[f.PLANE_AT]), n, 1
            origin = (dense_origin(args, frame) - frame[FIRST_CELL] * dense_stride(args, 0)) * n
            along = n
        else:
            sums, scale, inner_v = sum_pointer(args[f.V]), 1, args[f.INNER_STRIDE + f.V]
            origin, along = origin_at(args, frame, f.V), args[last + f.STRIDES + f.V]
        tabled, all_mine = args[f.TABLE_ROOM] > 0, args[f.BANDS] == 1
        front_step = n * dense_stride(args, 0) if converts else args[args[f.AXES] + f.STRIDES + f.V]
        dense = converts or all_mine or is_dense(args, f.V)
        if n == 1 and tabled and dense and args[last + f.KIND] == f.SLIDING:
            # In a dense plane the cells of this unit are a run, which tells its cells from others.
            mine = 0 if converts else frame[BASES + f.V] + frame[FIRST_CELL] * front_step
            beyond = mine + (frame[END_CELL] - frame[FIRST_CELL]) * front_step
            move = args[last + f.STRIDE] * along
            start = origin - args[last + f.LOW] * along
            if args[f.APART] != 0 and all_mine:
                for o in range(first, end):
                    winner = i64(w[at + o - first])
                    if winner >= 0:
                        sums[start + o * move + table[winner]] = zero + widen(u[to + o * step])
                return
            for o in range(first, end):
                winner = i64(w[at + o - first])
                if winner >= 0:
                    there = start + o * move + table[winner]
                    if all_mine or (there >= mine and there < beyond):
                        sums[there] = sums[there] + widen(u[to + o * step])
            return
        front = args[f.AXES]
        for o in range(first, end):
            start = origin + real_taps(args, last, o)[0] * along
            first_output = frame[PLACE]
            if args[f.RANK] == 1:
                first_output = o
            front_start = real_taps(args, front, first_output)[0]
            for i in range(n):
                winner = i64(w[at + (o - first) * n + i])
                if winner >= 0:
                    cell = front_start + winner // args[front + f.VOLUME] * args[front + f.DILATION]
                    if all_mine or (cell >= frame[FIRST_CELL] and cell < frame[END_CELL]):
                        place = table[winner] if tabled else place_in(args, -1 if converts else f.V, winner)
                        there = start + place * scale + i * inner_v
                        sums[there] = sums[there] + widen(u[to + o * step + i * inner_u])

    @outlined
    def write_tape(args, frame, first, end, w, at):
        last, n = args[f.AXES] + (args[f.RANK] - 1) * f.AXIS, frame[NEIGHBOURS]
        to, step, inner = output_at(args, frame, f.TAPE), args[last + f.STRIDES + f.TAPE], args[f.INNER_STRIDE + f.TAPE]
        size = args[f.TAPE_BYTES]
        if size == 1 and n == 1:
            bytes = pointer_u8(args[f.TAPE])
            for i in lanes(number, end - first):
                bytes[to + first + i] = u8(w[at + i])
            return
        for o in range(first, end):
            for i in range(n):
                winner, there = w[at + (o - first) * n + i], to + o * step + i * inner
                if size == 1:
                    pointer_u8(args[f.TAPE])[there] = u8(winner)
                elif size == 2:
                    pointer_u16(args[f.TAPE])[there] = u16(winner)
                else:
                    pointer_u32(args[f.TAPE])[there] = u32(winner)

    def use(args, frame, first, end, w, at):
        """Everything but the value."""
        table = pointer_i64(frame[WORKSPACE] + args[f.TABLE_AT])
        if args[f.INDICES] != 0:
            number_places(args, frame, first, end, w, at, pointer_i64(address_of(table) + 8 * args[f.TABLE_ROOM]))
        if args[f.U] != 0:
            if args[f.PULLS] != 0:
                pull(args, frame, first, end, w, at, table)
            else:
                push(args, frame, first, end, w, at, table)

    @inlined
    def smaller(a, b):
        return choose(b < a, b, a)

    def emit_row(args, frame, first, end, v, w, z, at):
        if frame[TABLED] == 0:
            make_tables(args, frame)
        n = (end - first) * frame[NEIGHBOURS]
        if total(smaller, nought, w, at, n) < 0:
            settle(args, frame, first, end, v, w, at)
        if args[f.Y] != 0 and args[f.DIRECT] == 0:
            write(args, frame, f.Y, first, end, v, at)
        use(args, frame, first, end, w, at)
        if args[f.TAPE] != 0:
            write_tape(args, frame, first, end, w, at)

    return emit_row, use, make_tables


# --- the cells that receive cotangents --------------------------------------------------------------------------------


def pulling(form: Format) -> tuple[Any, Any]:
    """``prepare`` and ``finish`` of a unit that pulls: its cells begin at zero, and 16-bit ones are rounded once."""
    stored_pointer, sum_pointer, zero = pointer_to(form.stored), pointer_to(form.computed), form.computed(0)
    _, narrow = form.functions()
    converts, number = form.converts, form.computed

    def cells(args, frame):
        return (frame[END_CELL] - frame[FIRST_CELL]) * dense_stride(args, 0)

    def row_at(args, frame, r):
        """Where row ``r`` of the unit's cells begins in V."""
        rank = args[f.RANK]
        at, rest = frame[BASES + f.V], r
        for axis in range(rank - 2, 0, -1):
            a = args[f.AXES] + axis * f.AXIS
            at += rest % args[a + f.SIZE] * args[a + f.STRIDES + f.V]
            rest = rest // args[a + f.SIZE]
        return at + (frame[FIRST_CELL] + rest) * args[args[f.AXES] + f.STRIDES + f.V]

    def each_row(args, frame):
        """How many rows the unit's cells have, and how long they are; on one axis all of it is one row."""
        last = args[f.AXES] + (args[f.RANK] - 1) * f.AXIS
        length = frame[END_CELL] - frame[FIRST_CELL] if args[f.RANK] == 1 else args[last + f.SIZE]
        return cells(args, frame) // length, length

    def clear(args, frame):
        v, last, n = stored_pointer(args[f.V]), args[f.AXES] + (args[f.RANK] - 1) * f.AXIS, frame[NEIGHBOURS]
        along, inner = args[last + f.STRIDES + f.V], args[f.INNER_STRIDE + f.V]
        rows, length = each_row(args, frame)
        for r in range(rows):
            at = row_at(args, frame, r)
            if n == 1 and along == 1:
                for i in lanes(number, length):
                    v[at + i] = 0
            else:
                for i in range(length):
                    for j in range(n):
                        v[at + i * along + j * inner] = 0

    def prepare(args, frame):
        if args[f.PULLS] == 0:
            return
        if converts:
            sums = sum_pointer(frame[WORKSPACE] + args[f.PLANE_AT])
            for i in lanes(number, cells(args, frame) * frame[NEIGHBOURS]):
                sums[i] = zero
        else:
            clear(args, frame)

    def finish(args, frame):
        if converts and args[f.PULLS] != 0:
            v, sums = stored_pointer(args[f.V]), sum_pointer(frame[WORKSPACE] + args[f.PLANE_AT])
            last, n = args[f.AXES] + (args[f.RANK] - 1) * f.AXIS, frame[NEIGHBOURS]
            along, inner = args[last + f.STRIDES + f.V], args[f.INNER_STRIDE + f.V]
            rows, length = each_row(args, frame)
            for r in range(rows):
                at = row_at(args, frame, r)
                for i in range(length):
                    for j in range(n):
                        v[at + i * along + j * inner] = narrow(sums[(r * length + i) * n + j])

    return prepare, finish


def max_winners(form: Format) -> Any:
    """The kernel of the maximum with everything that its winners are wanted for."""
    exceeds, lane, lowest, number = exceeding(form), form.lane, lowest_of(form), form.computed
    read_neighbours = neighbours_reader(form)
    emit_row, _, _ = winner_emission(form)
    emit = emit_by_rows(emit_row)

    @outlined
    def load(args, frame, a, x_at, u_at, count, v, w, z, at, n):
        read_neighbours(args, f.X, x_at, count, v, at, n)
        for i in lanes(number, n):
            w[at + i] = 0

    @outlined
    def blank(dv, w, z, to, n):
        for i in lanes(number, n):
            dv[to + i] = lowest
            w[to + i] = NOBODY

    @outlined
    def copy(dv, to, v, w, z, a, shift, n):
        more = lane(shift)
        for i in lanes(number, n):
            dv[to + i] = v[a + i]
            w[to + i] = w[a + i] + more

    @outlined
    def fold(dv, to, v, w, z, a, shift, n):
        more = lane(shift)
        for i in lanes_once(number, n):
            x, y = dv[to + i], v[a + i]
            later = exceeds(y, x)
            dv[to + i] = choose(later, y, x)
            w[to + i] = choose(later, w[a + i] + more, w[to + i])

    @outlined
    def fold2(dv, to, v, w, z, a, shift_a, b, shift_b, n):
        more_a, more_b = lane(shift_a), lane(shift_b)
        for i in lanes_once(number, n):
            x, y, last = dv[to + i], v[a + i], v[b + i]
            later = exceeds(y, x)
            best, who = choose(later, y, x), choose(later, w[a + i] + more_a, w[to + i])
            latest = exceeds(last, best)
            dv[to + i] = choose(latest, last, best)
            w[to + i] = choose(latest, w[b + i] + more_b, who)

    @outlined
    def join(dv, to, v, w, z, a, shift_a, b, shift_b, n):
        more_a, more_b = lane(shift_a), lane(shift_b)
        for i in lanes_once(number, n):
            x, y = v[a + i], v[b + i]
            later = exceeds(y, x)
            dv[to + i] = choose(later, y, x)
            w[to + i] = choose(later, w[b + i] + more_b, w[a + i] + more_a)

    @outlined
    def join3(dv, to, v, w, z, a, shift_a, b, shift_b, c, shift_c, n):
        more_a, more_b, more_c = lane(shift_a), lane(shift_b), lane(shift_c)
        for i in lanes(number, n):
            x, y, last = v[a + i], v[b + i], v[c + i]
            later = exceeds(y, x)
            best, who = choose(later, y, x), choose(later, w[b + i] + more_b, w[a + i] + more_a)
            latest = exceeds(last, best)
            dv[to + i] = choose(latest, last, best)
            w[to + i] = choose(latest, w[c + i] + more_c, who)

    row, plane_rows = winner_rows(form, emit)
    prepare, finish = pulling(form)
    do = Reduction(load, row, blank, copy, fold, fold2, join, join3, emit, prepare, finish, kept_rows=plane_rows)
    return kernel_of(do, form.computed, lane, i8)


def recorded_winners(form: Format) -> Any:
    """The kernel that takes winners from the tape."""
    _, use, make_tables = winner_emission(form)
    pointer_u8, pointer_u16, pointer_u32 = pointer_to(u8), pointer_to(u16), pointer_to(u32)
    lane = form.lane

    def read_row(args, frame, first, end, w, at):
        last = args[f.AXES] + (args[f.RANK] - 1) * f.AXIS
        start, step, size = output_at(args, frame, f.TAPE), args[last + f.STRIDES + f.TAPE], args[f.TAPE_BYTES]
        for o in range(first, end):
            there = start + o * step
            if size == 1:
                number = i64(pointer_u8(args[f.TAPE])[there])
            elif size == 2:
                number = i64(pointer_u16(args[f.TAPE])[there])
            else:
                number = i64(pointer_u32(args[f.TAPE])[there])
            nobody = (1 << (8 * size)) - 1
            w[at + o - first] = lane(number if number != nobody else -1)

    def emit_row(args, frame, first, end, v, w, z, at):
        read_row(args, frame, first, end, w, 0)
        use(args, frame, first, end, w, 0)

    emit = emit_by_rows(emit_row)

    def body(args, frame, v, w, z, first, end):
        if frame[TABLED] == 0:
            make_tables(args, frame)
        if args[f.RANK] == 1:
            for o in range(first, end, args[f.TILE]):
                emit(args, frame, o, min(o + args[f.TILE], end), v, w, z, 0)
            return
        for o in range(first, end):
            frame[PLACE] = o
            emit(args, frame, o, o + 1, v, w, z, 0)

    prepare, finish = pulling(form)
    return units_of(body, prepare, finish, form.computed, lane, i8)
