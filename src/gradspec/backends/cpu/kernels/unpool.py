"""Gathering at places, for every size of a number, and scattering to places, for every format.

A unit of gathering is a run of places of one plane. A unit of scattering is a band of cells of one plane: it goes over
all places of the plane, in order, and adds up what is for its band.

Places have been checked. But another thread may write to them, so what lies outside the plane is passed over here.
"""

from __future__ import annotations

from typing import Any

from gradspec.backends.cpu.kernels import place_fields as f
from gradspec.backends.cpu.kernels.compiler import Type, i8, i32, i64, inlined, lanes, outlined, u8
from gradspec.backends.cpu.kernels.layout import NUMBERS
from gradspec.backends.cpu.kernels.memory import FORMATS, Format, address_of, pointer_to
from gradspec.backends.cpu.kernels.target import kernel_code

longs_at, ints_at, shorts_at, bytes_at = map(pointer_to, (i64, i32, i8, u8))

# --- the start of the workspace ---------------------------------------------------------------------------------------

X_AT, PLACES_AT, Y_AT = range(3)  # where the plane begins in each array
FIRST, END = 3, 4  # the cells of the unit
SUMS = 5  # the address of the sums


def build(name: str) -> str:
    """The code of the kernel called ``"gather:4"`` for numbers of four bytes, or ``"scatter:f32"``."""
    operation, _, format = name.partition(":")
    return kernel_code(_gather(NUMBERS[int(format)]) if operation == "gather" else _scatter(FORMATS[format]))


@inlined
def place(args, at):
    """In the order of ``KINDS``."""
    kind, places = args[f.KIND], args[f.PLACES]
    if kind == 0:
        return longs_at(places)[at]
    if kind == 1:
        return ints_at(places)[at]
    if kind == 2:
        return shorts_at(places)[at]
    return bytes_at(places)[at]


@outlined
def find_plane(args, frame, plane):
    for array in range(3):
        frame[X_AT + array] = 0
    rest = plane
    for lead in range(args[f.LEADS] - 1, -1, -1):
        at = f.HEADER + lead * f.LEAD
        i = rest % args[at]
        rest //= args[at]
        for array in range(3):
            frame[X_AT + array] += i * args[at + 1 + array]


@outlined
def start_of(args, axes, cell, array):
    """Where a cell of a list of axes lies in one of its two arrays."""
    at, rest = 0, cell
    for i in range(args[axes] - 1, -1, -1):
        axis = axes + 2 + i * f.AXIS
        at += rest % args[axis] * args[axis + 1 + array]
        rest //= args[axis]
    return at


def over_rows(row: Any) -> Any:
    """``walk(args, frame, axes, first, end)``: ``row(args, frame, a, a_step, b, b_step, n)`` for stretches of cells.

    They are the cells ``first … end−1`` of a list of axes, in order, as they lie in its two arrays.
    """

    @outlined
    def walk(args, frame, axes, first, end):
        last = axes + 2 + (args[axes] - 1) * f.AXIS
        size, a_step, b_step = args[last], args[last + 1], args[last + 2]
        while first < end:
            n = min(size - first % size, end - first)
            row(args, frame, start_of(args, axes, first, 0), a_step, start_of(args, axes, first, 1), b_step, n)
            first += n

    return walk


def _gather(number: Type) -> Any:
    cells_at, zero = pointer_to(number), number(0)

    @inlined
    def gather_row(args, frame, to, step, from_, place_step, n):
        x, y, plane, cells = cells_at(args[f.X]), cells_at(args[f.Y]), args[f.PLANE], args[f.CELLS]
        x_at, y_at, places_at = frame[X_AT], frame[Y_AT] + to, frame[PLACES_AT] + from_
        for i in range(n):
            chosen = place(args, places_at + i * place_step)
            value = zero
            if chosen >= 0 and chosen < cells:
                if args[plane] == 1:
                    value = x[x_at + chosen * args[plane + 3]]
                else:
                    value = x[x_at + start_of(args, plane, chosen, 0)]
            y[y_at + i * step] = value

    gather = over_rows(gather_row)

    def kernel(args, lo, hi, workspace):
        frame, bands, moved = longs_at(address_of(workspace)), args[f.BANDS], args[f.MOVED]
        for unit in range(lo, hi):
            find_plane(args, frame, unit // bands)
            first = unit % bands * args[f.BAND]
            gather(args, frame, moved, first, min(first + args[f.BAND], args[moved + 1]))

    return kernel


def _scatter(form: Format) -> Any:
    number, stored_at, sums_at = form.computed, pointer_to(form.stored), pointer_to(form.computed)
    widen, narrow = form.functions()
    zero = number(0)

    @inlined
    def add_row(args, frame, from_, step, place_from, place_step, n):
        x, t, first, end = stored_at(args[f.X]), sums_at(frame[SUMS]), frame[FIRST], frame[END]
        x_at, places_at = frame[X_AT] + from_, frame[PLACES_AT] + place_from
        for i in range(n):
            chosen = place(args, places_at + i * place_step)
            if chosen >= first and chosen < end:
                t[chosen - first] = t[chosen - first] + widen(x[x_at + i * step])

    @inlined
    def write_row(args, frame, to, step, cell, one, n):
        y, t, y_at = stored_at(args[f.Y]), sums_at(frame[SUMS]), frame[Y_AT] + to
        at = cell - frame[FIRST]
        if step == 1:
            for i in lanes(number, n):
                y[y_at + i] = narrow(t[at + i])
        else:
            for i in range(n):
                y[y_at + i * step] = narrow(t[at + i])

    add, write = over_rows(add_row), over_rows(write_row)

    def kernel(args, lo, hi, workspace):
        base = address_of(workspace)
        frame, bands, moved = longs_at(base), args[f.BANDS], args[f.MOVED]
        t = sums_at(base + f.FRAME_BYTES)
        for unit in range(lo, hi):
            find_plane(args, frame, unit // bands)
            first = unit % bands * args[f.BAND]
            end = min(first + args[f.BAND], args[f.CELLS])
            frame[FIRST], frame[END], frame[SUMS] = first, end, base + f.FRAME_BYTES
            for i in lanes(number, end - first):
                t[i] = zero
            add(args, frame, moved, 0, args[moved + 1])
            write(args, frame, args[f.PLANE], first, end)

    return kernel
