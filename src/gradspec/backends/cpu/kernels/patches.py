"""Staging: what a block of outputs reads, copied so that every tap is one stretch of neighbouring columns.

The columns of a block are flat positions along the **running** axis and all axes behind it. Along the running axis,
taps are shifts: one staged row serves all the taps that meet it. For each tap of the other axes there is a copy of its
own, shifted already and with zeros for padding, so that rows join without gaps and the columns of any ``(channel, taps)``
are contiguous. A stride along the running axis splits its cells into planes, one for each phase.
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

    def walk(args, frame, axis, at, strides, src, to, is_real):
        """The cells of axis number ``axis``, described at word ``at``, and of all behind it."""
        first, count = frame[2 * axis], frame[2 * axis + 1]
        taps, step, stride = args[at + f.STAGED_TAPS], args[at + f.TAP_STEP], args[at + f.STRIDE]
        cell, cells = first * stride + args[at + f.FIRST], args[at + f.SIZE]
        between_taps, apart = args[at + f.TAP_PITCH] * size, args[strides]
        if axis == args[f.AXES] - 1:
            for u in range(taps):
                if is_real:
                    run(to + u * between_taps, src, apart, cell + u * step, stride, count, cells)
                else:
                    clear(to + u * between_taps, count)
        else:
            pitch = args[at + f.PITCH_OF] * size
            for u in range(taps):
                for i in range(count):
                    here = cell + u * step + i * stride
                    inside = is_real & (here >= 0) & (here < cells)
                    place = src + choose(inside, here, 0) * apart * width
                    walk(
                        args,
                        frame,
                        axis + 1,
                        at + f.AXIS_WORDS,
                        strides + 1,
                        place,
                        to + u * between_taps + i * pitch,
                        inside,
                    )

    @outlined
    def stage(args, frame, case, source, src, to):
        walk(args, frame, 0, case + f.CASE_AXES, source + f.STRIDES, src, to, True)

    return stage
