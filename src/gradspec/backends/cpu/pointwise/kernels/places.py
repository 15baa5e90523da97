"""Where blocks lie, and how views are copied to blocks of the workspace and from there, cells of other formats too."""

from __future__ import annotations

from typing import Any, NamedTuple

from gradspec.backends.cpu.pointwise.arguments import BLOCK_BYTES, SCRATCH_BYTES, CellFormat, PlaceKind, ProgramScratch
from gradspec.codegen.formats import FORMATS, NumberFormat
from gradspec.codegen.intrinsics import absolute, same_bits, saturated
from gradspec.codegen.language import (
    at_build,
    choose,
    f32,
    f64,
    i32,
    i64,
    inlined,
    lanes,
    number_of,
    outlined,
    pointer,
    u8,
    u32,
    u64,
)

TRUTHS = NumberFormat("bool", u8, i32, i32)
BY_CODE = {code: FORMATS.get(code.name.lower(), TRUTHS) for code in CellFormat}

_bits, _of_bits = same_bits(u32), same_bits(f32)
LARGEST = 3.4028234663852886e38
"""Of float32."""

scratch_at = pointer(ProgramScratch)


# --- cells of other formats: numbers that a program converts, and truth values, which are bytes in arrays -------------


@at_build
def foreign(form: NumberFormat) -> list[tuple[CellFormat, NumberFormat]]:
    """The formats whose cells are other bytes than those of ``form``: truth values are bytes themselves."""
    own = (form, TRUTHS) if form.stored == u8 else (form,)
    return [(code, other) for code, other in BY_CODE.items() if other not in own]


@inlined
def converted(form, other, value):
    """A stored number of ``other`` as one of ``form``."""
    number = other.widen(value)
    if form.is_float:
        return form.narrow(rounded(form, number))
    if other.is_float:
        return saturated(form.stored)(number)
    return form.stored(number)


@inlined
def rounded(form, number):
    """A number as ``form`` computes with it, or so near that rounding it once more rounds ``number``."""
    if form.converts and number_of(number) == f64:
        return cut_to_odd(number)
    if form.converts and number_of(number) == i64:
        return cut_to_odd(double_of(number))
    if form.converts and number_of(number) == i32:
        return cut_to_odd(f64(number))
    return form.computed(number)


@inlined
def cut_to_odd(wide):
    """A double as float32. What does not fit is cut off, and then the last bit is set.

    It tells numbers beside the middle of two 16-bit ones from the middle itself, where ties go to even.
    """
    near = f32(wide)
    is_kept = (f64(near) == wide) | (not absolute(near) <= LARGEST)
    bits = _bits(near)
    cut = choose(absolute(f64(near)) > absolute(wide), bits - 1, bits)
    return choose(is_kept, near, _of_bits(cut | 1))


@inlined
def double_of(whole):
    """Integers, of which those that doubles do not hold are cut off and marked in the same way."""
    rest = choose((whole & 2047) == 0, i64(0), i64(1))
    marked = f64((whole >> 11) | rest) * 2048.0
    is_small = (whole > -(1 << 53)) & (whole < (1 << 53))
    return choose(is_small, f64(whole), marked)


# --- blocks and views -------------------------------------------------------------------------------------------------


class CellRange(NamedTuple):
    """The cells ``start … start + n − 1``, and the address of the workspace."""

    start: Any
    n: Any
    workspace: Any


class StridedCells(NamedTuple):
    """Cells from ``p[at]`` on, ``stride`` apart."""

    p: Any
    at: Any
    stride: Any


@inlined
def block_at(form, cells, number):
    """A block of the workspace."""
    return form.stored_at(cells.workspace + SCRATCH_BYTES + number * BLOCK_BYTES)


@inlined
def cells_at(form, place, cells):
    """A pointer to the first of the cells at a place."""
    if place.kind == PlaceKind.ARRAY:
        return form.stored_at(place.array + cells.start * form.stored.bytes)
    if place.kind == PlaceKind.GIVEN:
        return form.stored_at(scratch_at(cells.workspace).given[place.number])
    return block_at(form, cells, place.number)


# --- views ------------------------------------------------------------------------------------------------------------


@outlined
def transfer(form, view, cells, gathers):
    """The cells of a view to its block, or from there, row by row."""
    block = block_at(form, cells, view.block)
    position, last = scratch_at(cells.workspace).position, len(view.axes) - 1
    row, rest, done = 0, cells.start, 0
    for i in range(last, -1, -1):
        axis = view.axes[i]
        position[i], rest = rest % axis.size, rest // axis.size
        if i < last:
            row += position[i] * axis.stride
    size, stride, first = view.axes[last].size, view.axes[last].stride, position[last]
    while done < cells.n:
        count = min(cells.n - done, size - first)
        if gathers:
            gather(form, view, block, done, row + first * stride, stride, count)
        else:
            scatter(form, view, block, done, row + first * stride, stride, count)
        done, first = done + count, 0
        for i in range(last - 1, -1, -1):
            axis = view.axes[i]
            row += axis.stride
            position[i] += 1
            if position[i] < axis.size:
                break
            row -= axis.size * axis.stride
            position[i] = 0


def gather(form, view, block, to, at, stride, n):
    for code, other in foreign(form):
        if view.format == code:
            convert(form, other, block, to, StridedCells(other.stored_at(view.array), at, stride), n)
            return
    copy(form, StridedCells(block, to, 1), StridedCells(form.stored_at(view.array), at, stride), n)


def scatter(form, view, block, at, to, stride, n):
    """Truth values are all that a program writes in another format."""
    if view.format == CellFormat.BOOL and form.stored != u8:
        put_truths(form, StridedCells(TRUTHS.stored_at(view.array), to, stride), block, at, n)
    else:
        copy(form, StridedCells(form.stored_at(view.array), to, stride), StridedCells(block, at, 1), n)


@outlined
def convert(form, other, y, to, source, n):
    x, at, stride = source
    if stride == 1:
        for i in lanes(form.computed, n):
            y[to + i] = converted(form, other, x[at + i])
    else:
        for i in range(n):
            y[to + i] = converted(form, other, x[at + i * stride])


@outlined
def put_truths(form, target, x, at, n):
    y, to, stride = target
    if stride == 1:
        for i in lanes(form.computed, n):
            y[to + i] = choose(form.widen(x[at + i]) != 0, u8(1), u8(0))
    else:
        for i in range(n):
            y[to + i * stride] = choose(form.widen(x[at + i]) != 0, u8(1), u8(0))


@outlined
def copy(form, target, source, n):
    (y, to, y_stride), (x, at, x_stride) = target, source
    if y_stride == 1 and x_stride == 1:
        for i in lanes(form.stored, n):
            y[to + i] = x[at + i]
    elif y_stride == 1 and x_stride == 0:
        repeated = x[at]
        for i in lanes(form.stored, n):
            y[to + i] = repeated
    else:
        for i in range(n):
            y[to + i * y_stride] = x[at + i * x_stride]


@inlined
def repeated_at(view, start):
    """Where the number of the cell ``start`` lies in a view whose last stride is 0, and how many cells it is for."""
    at, last = 0, len(view.axes) - 1
    size = view.axes[last].size
    if last == 0:
        return at, size
    rest = u64(start) // u64(size)
    left = size - (start - i64(rest) * size)
    for i in range(last - 1, -1, -1):
        further = rest // u64(view.axes[i].size)
        at += i64(rest - further * u64(view.axes[i].size)) * view.axes[i].stride
        rest = further
    return at, left
