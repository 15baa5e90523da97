"""Staging: what a block of outputs reads, copied so that every tap is one stretch of neighbouring columns.

The columns of a block are flat positions along the **running** axis and all axes behind it. Along the running axis,
taps are shifts: one staged row serves all the taps that meet it. For each tap of the other axes there is a copy of its
own, shifted already and with zeros for padding, so that rows join without gaps and the columns of any channel and taps
are contiguous. Where rows are long, taps of the last axis are shifts as well, and rows are taken one by one. A stride
splits the cells of an axis that is shifted along into planes, one for each phase.
"""

from __future__ import annotations

from typing import Any

from gradspec.backends.cpu.kernels import conv_fields as f
from gradspec.backends.cpu.kernels.compiler import choose, inlined, lanes, outlined, strided
from gradspec.backends.cpu.kernels.memory import Format, pointer_to


def staging(form: Format) -> Any:
    """``stage(args, frame, case, source, src, staged)``: the cells of one channel.

    ``frame`` has the first position and the number of positions for each axis; ``src`` is the address of the channel.
    """
    number, widen = form.computed, form.functions()[0]
    stored_at, cells_at = pointer_to(form.stored), pointer_to(number)
    width, size = form.stored.bytes, number.bytes

    @inlined
    def clear(to, n):
        y = cells_at(to)
        for i in lanes(number, n):
            y[i] = number(0)

    @outlined
    def copy(to, src, step, n):
        """``n`` cells that are ``step`` elements apart."""
        y, x = cells_at(to), stored_at(src)
        if step == 1:
            for i in lanes(number, n):
                y[i] = widen(x[i])
        elif step == 2:
            for i in lanes(number, n - 1):
                even, _ = strided(x, 2 * i, 2)
                y[i] = widen(even)
            y[n - 1] = widen(x[2 * (n - 1)])
        elif step == 0:
            one = widen(x[0])
            for i in lanes(number, n):
                y[i] = one
        else:
            for i in range(n):
                y[i] = widen(x[i * step])

    @inlined
    def run(to, src, stride, first, step, n, cells):
        """``n`` positions from cell ``first`` on, ``step`` cells apart; zeros where there is no cell."""
        begin = max(0, -first if step == 1 else (step - 1 - first) // step)
        end = cells - first if step == 1 else (cells - first + step - 1) // step
        begin = min(begin, n)
        end = min(max(end, begin), n)
        if begin > 0:
            clear(to, begin)
        if end > begin:
            copy(to + begin * size, src + (first + begin * step) * stride * width, step * stride, end - begin)
        if end < n:
            clear(to + end * size, n - end)

    @outlined
    def rows(args, frame, axis, at, strides, src, to, is_real):
        """The last axis, number ``axis``, alone; or for every cell and tap of the one before, if that is ``axis``."""
        count, taps, step = 1, 1, 0
        cell, stride, cells, apart, pitch, between = 0, 0, 1, 0, 0, 0
        last, along, strides_last = at, axis, strides
        if axis < args[f.AXES] - 1:
            count, taps, step = frame[2 * axis + 1], args[at + f.STAGED_TAPS], args[at + f.TAP_STEP]
            stride, cells, apart = args[at + f.STRIDE], args[at + f.SIZE], args[strides] * width
            cell = frame[2 * axis] * stride + args[at + f.FIRST]
            pitch, between = args[at + f.PITCH_OF] * size, args[at + f.TAP_PITCH] * size
            last, along, strides_last = at + f.AXIS_WORDS, axis + 1, strides + 1
        n, last_stride, last_cells = frame[2 * along + 1], args[last + f.STRIDE], args[last + f.SIZE]
        first = frame[2 * along] * last_stride + args[last + f.FIRST]
        last_taps, last_step = args[last + f.STAGED_TAPS], args[last + f.TAP_STEP]
        last_apart, last_between = args[strides_last], args[last + f.TAP_PITCH] * size
        for u in range(taps):
            for i in range(count):
                here, place = cell + u * step + i * stride, to + u * between + i * pitch
                if is_real and here >= 0 and here < cells:
                    source = src + here * apart
                    for t in range(last_taps):
                        run(
                            place + t * last_between,
                            source,
                            last_apart,
                            first + t * last_step,
                            last_stride,
                            n,
                            last_cells,
                        )
                else:
                    for t in range(last_taps):
                        clear(place + t * last_between, n)

    def walk(args, frame, axis, at, strides, src, to, is_real):
        """The cells of axis number ``axis``, described at word ``at``, and of all behind it."""
        if axis >= args[f.AXES] - 2:
            rows(args, frame, axis, at, strides, src, to, is_real)
        else:
            first, count = frame[2 * axis], frame[2 * axis + 1]
            taps, step, stride = args[at + f.STAGED_TAPS], args[at + f.TAP_STEP], args[at + f.STRIDE]
            cell, cells, apart = first * stride + args[at + f.FIRST], args[at + f.SIZE], args[strides] * width
            pitch, between = args[at + f.PITCH_OF] * size, args[at + f.TAP_PITCH] * size
            for u in range(taps):
                for i in range(count):
                    here = cell + u * step + i * stride
                    inside = is_real & (here >= 0) & (here < cells)
                    place, source = to + u * between + i * pitch, src + choose(inside, here, 0) * apart
                    walk(args, frame, axis + 1, at + f.AXIS_WORDS, strides + 1, source, place, inside)

    @outlined
    def stage(args, frame, case, source, src, to):
        walk(args, frame, 0, case + f.CASE_AXES, source + f.STRIDES, src, to, True)

    return stage
