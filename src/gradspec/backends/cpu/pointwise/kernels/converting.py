"""Cells of other formats: numbers that a program converts, and truth values, which are bytes in arrays."""

from __future__ import annotations

from gradspec.backends.cpu.pointwise.arguments import CellFormat
from gradspec.codegen.formats import FORMATS, NumberFormat
from gradspec.codegen.intrinsics import absolute, same_bits, saturated
from gradspec.codegen.language import at_build, choose, f32, f64, i32, i64, inlined, number_of, u8, u32

TRUTHS = NumberFormat("bool", u8, i32, i32)
BY_CODE = {code: FORMATS.get(code.name.lower(), TRUTHS) for code in CellFormat}

_bits, _of_bits = same_bits(u32), same_bits(f32)
LARGEST = 3.4028234663852886e38
"""Of float32."""


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
