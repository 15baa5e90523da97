"""The transpose of average pooling with regular windows: each cell sums the windows that cover it."""

from __future__ import annotations

from gradspec.backends.cpu.pool.arguments import Role
from gradspec.backends.cpu.pool.kernels.rows import copied_row, last_axis, quotient, read_row
from gradspec.backends.cpu.pool.kernels.walk import Destination
from gradspec.codegen.intrinsics import address_of
from gradspec.codegen.language import inlined, lanes, outlined, put_strided


@outlined
def reduce_expanding(reduction, work, axis, source, target, first, end):
    """Sum the windows that cover cells first … end−1 of the last axis."""
    args, number, t, tile = work.args, reduction.form.computed, work.cells.value, work.args.tile_at
    if not reduction.form.converts and has_fours(axis) and is_tiled(axis) and can_divide_directly(args, axis):
        x, scale = reduction.form.computed_at(args.arrays[Role.X]), reduction.scale_of(args, True)
        expand_fours(number, take_divided, axis, x, source.x, scale, target.cells.value, target.at, first, end)
        return
    begin = (first + axis.low - axis.dilation * (axis.kernel - 1)) // axis.stride
    stop = (end - 1 + axis.low) // axis.stride + 1
    inside, outside = max(0, begin), min(axis.size, stop)
    for i in lanes(number, stop - begin):
        t[tile + i] = number(0)
    if outside > inside:
        to = tile + inside - begin
        p, at = read_row(reduction.form, args, axis, Role.X, source.x, source.count, inside, outside, t, to)
        if address_of(p) != address_of(t):
            for i in lanes(number, outside - inside):
                t[to + i] = p[at + inside + i]
    expand(number, axis, t, tile - begin, target.cells.value, target.at, first, end)


@outlined
def transpose_rows(reduction, work, axis, source, target, first, end):
    """Write cells first … end−1 of an axis and all of the last one, each covered by at most two windows along an axis.

    Windows are divided a plane at a time, or as many rows as there is room for, and nothing else is written between
    rows of cells: a processor need not read cache lines that are written in full.
    """
    args, stride, low, last = work.args, axis.stride, axis.low, last_axis(work.args)
    margin = (last.kernel - 1 - last.low + last.stride - 1) // last.stride
    stop, to = (end - 1 + low) // stride + 1, target.at
    if not reduction.form.converts and can_read_pairs(args, axis, last):
        x, scale = reduction.form.computed_at(args.arrays[Role.X]), reduction.scale_of(args, True)
        for cell in range(first, end):
            at = source.x + cell // stride * axis.strides[Role.X]
            expand_pairs(
                reduction.form.computed, take_divided, last, x, at, scale, target.cells.value, to, 0, last.outputs
            )
            to += last.outputs
        return
    for begin in range((first + low) // stride, stop, args.staged_rows):
        until, here = min(begin + args.staged_rows, stop), args.staged_at + margin
        for j in range(begin - 1, until):
            stage_windows(reduction, work, axis, source, j, here, margin)
            here += args.tile_room
        here = args.staged_at + margin
        for j in range(begin, until):
            here += args.tile_room
            for r in range(max(0, first + low - j * stride), min(stride, end + low - j * stride)):
                transpose_row(reduction, work, axis, here, margin, r, Destination(target.cells, to))
                to += last.outputs


@inlined
def transpose_row(reduction, work, axis, here, margin, r, target):
    """Write a row of cells, covered by row ``r`` of windows and, if it reaches so far, by the windows before."""
    args, number, t, last = work.args, reduction.form.computed, work.cells.value, last_axis(work.args)
    v, to, outputs = target.cells.value, target.at, last.outputs
    if r >= axis.kernel:
        for i in lanes(number, outputs):
            v[to + i] = number(0)
    elif r + axis.stride >= axis.kernel:
        expand(number, last, t, here, v, to, 0, outputs)
    elif has_pairs(last, outputs):
        expand_pairs(number, take_two, last, t, here, args.tile_room, v, to, 0, outputs)
    else:
        both = args.tile_at
        for i in lanes(number, args.tile_room):
            t[both + i] = take_two(t, here - margin + i, args.tile_room)
        expand(number, last, t, both + margin, v, to, 0, outputs)


@outlined
def stage_windows(reduction, work, axis, source, j, to, margin):
    """Copy row ``j`` of windows, divided, between zeros; zeros alone if there is no such row."""
    args, number, t, last = work.args, reduction.form.computed, work.cells.value, last_axis(work.args)
    if j < 0 or j >= axis.size:
        for i in lanes(number, args.tile_room):
            t[to - margin + i] = number(0)
        return
    count = source.count
    if address_of(axis.counted) != 0:
        count *= axis.counted[j]
    for i in range(margin):
        t[to - margin + i] = number(0)
    at = source.x + j * axis.strides[Role.X]
    copied_row(reduction.form, args, last, Role.X, at, count, 0, last.size, t, to)
    for i in range(last.size, args.tile_room - margin):
        t[to + i] = number(0)


@outlined
def expand(number, axis, t, windows, v, to, first, end):
    """Write cells first … end−1 from windows between zeros, the first of which is ``t[windows]``."""
    if has_pairs(axis, end - first):
        expand_pairs(number, take_one, axis, t, windows, 0, v, to, first, end)
    elif has_fours(axis):
        expand_fours(number, take_one, axis, t, windows, 0, v, to, first, end)
    elif axis.dilation > 1:
        expand_dilated(number, axis, t, windows, v, to, first, end)
    else:
        expand_by_remainders(number, axis, t, windows, v, to, first, end)


@inlined
def has_pairs(axis, n):
    return axis.dilation == 1 and axis.stride == 2 and axis.kernel <= 3 and n >= 4


@inlined
def has_fours(axis):
    return axis.dilation == 1 and axis.stride == 4 and axis.kernel == 4


@inlined
def can_read_pairs(args, axis, last):
    """Whether every cell is covered once, windows have two cells along a row, and all have the same inverse."""
    is_plain = can_divide_directly(args, last) and last.stride == 2 and last.outputs >= 4
    return is_plain and is_tiled(axis) and is_tiled(last)


@inlined
def can_divide_directly(args, axis):
    """Whether adjacent windows are divided as they are read."""
    return axis.strides[Role.X] == 1 and args.inverse != 0.0


@inlined
def is_tiled(axis):
    return axis.kernel == axis.stride and axis.low == 0 and axis.outputs == axis.size * axis.stride


@inlined
def take_divided(x, at, scale):
    return quotient(x[at], scale.head, scale.rest)


@inlined
def take_one(t, at, before):
    return t[at]


@inlined
def take_two(t, at, before):
    """The sum of a window and the one ``before`` it."""
    return t[at - before] + t[at]


@outlined
def expand_pairs(number, take, axis, t, windows, before, v, to, first, end):
    """Write pairs of cells at stride 2: one under two windows (kernel 3), and one under the middle tap."""
    even = first + (first + axis.low) % 2
    if even > first:
        v[to] = take(t, windows + (first + axis.low) // 2, before)
    at, n = windows + (even + axis.low) // 2, (end - even) // 2
    to += even - first
    if axis.kernel == 3:
        for i in lanes(number, n):
            here = take(t, at + i, before)
            put_strided(v, to + 2 * i, (here + take(t, at - 1 + i, before), here))
    elif axis.kernel == 2:
        for i in lanes(number, n):
            here = take(t, at + i, before)
            put_strided(v, to + 2 * i, (here, here))
    else:
        for i in lanes(number, n):
            put_strided(v, to + 2 * i, (take(t, at + i, before), number(0)))
        if even > first:
            v[to - 1] = number(0)
    if even + 2 * n < end:
        last = take(t, at + n, before)
        v[to + 2 * n] = last + take(t, at + n - 1, before) if axis.kernel == 3 else last


@inlined
def expand_fours(number, take, axis, t, windows, before, v, to, first, end):
    """Write the four cells of each window, which share none; the windows at both ends may have fewer."""
    whole = min(first + (-first - axis.low) % 4, end)
    n, at = (end - whole) // 4, windows + (whole + axis.low) // 4
    earlier = windows + (first + axis.low) // 4
    to -= first
    for cell in range(first, whole):
        v[to + cell] = take(t, earlier, before) + number(0)  # a sum of one is never −0
    for i in lanes(number, n):
        here = take(t, at + i, before) + number(0)
        put_strided(v, to + whole + 4 * i, (here, here, here, here))
    for cell in range(whole + 4 * n, end):
        v[to + cell] = take(t, at + n, before) + number(0)


@inlined
def expand_dilated(number, axis, t, windows, v, to, first, end):
    for cell in range(first, end):
        value = number(0)
        for k in range(axis.kernel - 1, -1, -1):
            if (cell + axis.low - k * axis.dilation) % axis.stride == 0:
                value = value + t[windows + (cell + axis.low - k * axis.dilation) // axis.stride]
        v[to + cell - first] = value


@inlined
def expand_by_remainders(number, axis, t, windows, v, to, first, end):
    """The cells of one remainder are covered by the same taps of neighbouring windows."""
    stride = axis.stride
    for remainder in range(stride):
        cell = first + (remainder - first - axis.low) % stride
        o, taps_here = (cell + axis.low) // stride, max(0, (axis.kernel - remainder + stride - 1) // stride)
        n, there = (end - cell + stride - 1) // stride, to + cell - first
        if taps_here == 1:
            for i in range(n):
                v[there + i * stride] = t[windows + o + i] + number(0)  # a sum of one is never −0
            continue
        for i in range(n):
            value = number(0)
            for k in range(taps_here):
                value = value + t[windows + o + i - k]
            v[there + i * stride] = value
