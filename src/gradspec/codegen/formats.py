"""Numbers that are stored in one format and computed in another.

float16 and bfloat16 travel as 16-bit integers, are widened to float32 when read and rounded once, to nearest and ties
to even, when written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gradspec.codegen.intrinsics import same_bits
from gradspec.codegen.language import Type, bf16, f16, f32, f64, i8, i16, i32, i64, inlined, pointer, u8, u16, u32

_f32_bits, _f32_of_bits, _half, _bits_of_half = same_bits(u32), same_bits(f32), same_bits(f16), same_bits(u16)


@dataclass(frozen=True)
class NumberFormat:
    """How numbers are stored and computed with, and how kernels load and store them between the two."""

    name: str
    stored: Type
    computed: Type
    lane: Type
    """The integer as wide as a computed number: winners travel in it, so that vectors of both have equal lanes."""

    @property
    def is_float(self) -> bool:
        return self.computed.is_float

    @property
    def converts(self) -> bool:
        return self.stored != self.computed

    @property
    def as_computed(self) -> NumberFormat:
        """The format in which numbers are stored as they are computed with."""
        return replace(self, name=self.computed.name, stored=self.computed)

    @property
    def as_stored(self) -> NumberFormat:
        """The format in which numbers are computed with as they are stored, by what does not round."""
        kind = {"f16": f16, "bf16": bf16}.get(self.name, self.stored)
        lane = i16 if kind.is_float and kind.bits == 16 else self.lane
        return replace(self, name=f"stored {self.name}", stored=kind, computed=kind, lane=lane)

    @property
    def as_selected(self) -> NumberFormat:
        """The format in which numbers are written that were read: they are not rounded."""
        return replace(self, name="selected bf16") if self.name == "bf16" else self

    @property
    def stored_at(self) -> Type:
        """Makes a pointer to stored numbers of an address."""
        return pointer(self.stored)

    @property
    def computed_at(self) -> Type:
        """Makes a pointer to computed numbers of an address."""
        return pointer(self.computed)

    @property
    def lane_at(self) -> Type:
        """Makes a pointer to winners of an address."""
        return pointer(self.lane)

    @inlined
    def widen(self, value):
        """A stored number as it is computed with."""
        if self.name == "f16":
            return f32(_half(value))
        if self.name in ("bf16", "selected bf16"):
            return _f32_of_bits(u32(value) << 16)
        return self.computed(value)

    @inlined
    def narrow(self, value):
        """A computed number as it is stored."""
        if self.name == "f16":
            return _bits_of_half(f16(value))
        if self.name == "bf16":
            return _round_to_bf16(value)
        if self.name == "selected bf16":
            return u16(_f32_bits(value) >> 16)
        return self.stored(value)


@inlined
def _round_to_bf16(value):
    bits = _f32_bits(value)
    # Half of the last kept place, less one where that place is even, carries exactly when rounding goes up.
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return u16((bits | 0x400000 if value != value else rounded) >> 16)


FORMATS = {
    form.name: form
    for form in (
        NumberFormat("f16", u16, f32, i32),
        NumberFormat("bf16", u16, f32, i32),
        NumberFormat("f32", f32, f32, i32),
        NumberFormat("f64", f64, f64, i64),
        NumberFormat("i8", i8, i32, i32),
        NumberFormat("u8", u8, i32, i32),
        NumberFormat("i32", i32, i32, i32),
        NumberFormat("i64", i64, i64, i64),
    )
}
