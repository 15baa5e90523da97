"""Regular windows read backwards: what cells receive from the windows that cover them."""

from __future__ import annotations

from gradspec.backends.cpu.pool.arguments import Role
from gradspec.backends.cpu.pool.kernels.rows import read_row
from gradspec.codegen.intrinsics import address_of
from gradspec.codegen.language import inlined, lanes, outlined, put_strided


@outlined
def expanding(reduction, work, axis, source, target, first, end):
    """Cells first … end−1 from the windows that cover them: those whose tap has the cell's remainder."""
    args, number, t, tile = work.args, reduction.form.computed, work.cells.value, work.args.tile_at
    begin = (first + axis.low - axis.dilation * (axis.kernel - 1)) // axis.stride
    stop = (end - 1 + axis.low) // axis.stride + 1
    inside, outside = max(0, begin), min(axis.size, stop)
    for i in range(stop - begin):
        t[tile + i] = number(0)
    if outside > inside:
        to = tile + inside - begin
        p, at = read_row(reduction.form, args, axis, Role.X, source.x, source.count, inside, outside, t, to)
        if address_of(p) != address_of(t):
            for i in lanes(number, outside - inside):
                t[to + i] = p[at + inside + i]
    windows, v = tile - begin, target.cells.value
    if axis.dilation == 1 and axis.stride == 2 and axis.kernel <= 3 and end - first >= 4:
        expand_pairs(number, axis, t, windows, v, target.at, first, end)
    elif axis.dilation > 1:
        expand_dilated(number, axis, t, windows, v, target.at, first, end)
    else:
        expand_by_remainders(number, axis, t, windows, v, target.at, first, end)


@inlined
def expand_pairs(number, axis, t, windows, v, to, first, end):
    """At a stride of two cells come in pairs: one under the middle tap, and one between two windows."""
    even = first + (first + axis.low) % 2
    if even > first:
        v[to] = t[windows + (first + axis.low) // 2]
    at, n = windows + (even + axis.low) // 2, (end - even) // 2
    to += even - first
    if axis.kernel == 3:
        for i in lanes(number, n):
            put_strided(v, to + 2 * i, (t[at + i] + t[at - 1 + i], t[at + i]))
    elif axis.kernel == 2:
        for i in lanes(number, n):
            put_strided(v, to + 2 * i, (t[at + i], t[at + i]))
    else:
        for i in lanes(number, n):
            put_strided(v, to + 2 * i, (t[at + i], number(0)))
        if even > first:
            v[to - 1] = number(0)
    if even + 2 * n < end:
        v[to + 2 * n] = t[at + n] + t[at + n - 1] if axis.kernel == 3 else t[at + n]


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
