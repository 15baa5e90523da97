"""Raw memory: pointers from addresses, and numbers that are stored in one format and computed in another.

float16 and bfloat16 travel as 16-bit integers, are widened to float32 when read and rounded once, to nearest and ties
to even, when written.
"""

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from gradspec.backends.cpu.kernels.compiler import (
    Intrinsic,
    Type,
    Value,
    f16,
    f32,
    f64,
    i8,
    i32,
    i64,
    inlined,
    pointer,
    u8,
    u16,
    u32,
)


def pointer_to(element: Type) -> Intrinsic:
    """The function that makes a pointer to ``element`` of an address."""
    kind = pointer(element)
    return Intrinsic(lambda builder, address: Value(kind, builder.inttoptr(address.llvm, kind.llvm)))


address_of = Intrinsic(lambda builder, p: Value(i64, builder.ptrtoint(p.llvm, i64.llvm)))
"""The address that a pointer holds."""


def same_bits(target: Type) -> Intrinsic:
    """The function that reads the bits of a number as a ``target`` of the same width."""

    def emit(builder: Any, value: Value) -> Value:
        kind = target.of(value.type.lanes)
        return Value(kind, builder.bitcast(value.llvm, kind.llvm))

    return Intrinsic(emit)


def float_function(name: str) -> Intrinsic:
    """LLVM's function of floats, ``llvm.name``."""

    def emit(builder: Any, *values: Value) -> Value:
        kind = values[0].type
        signature = ir.FunctionType(kind.llvm, [kind.llvm] * len(values))
        full = f"llvm.{name}.{kind.name}" if kind.lanes == 1 else f"llvm.{name}.v{kind.lanes}{kind.name}"
        function = builder.module.globals.get(full) or ir.Function(builder.module, signature, full)
        return Value(kind, builder.call(function, [v.llvm for v in values]))

    return Intrinsic(emit)


def _prefetch(builder: Any, p: Value, at: Value) -> None:
    i32_type = ir.IntType(32)
    signature = ir.FunctionType(ir.VoidType(), [ir.PointerType(), i32_type, i32_type, i32_type])
    name = "llvm.prefetch.p0"
    function = builder.module.globals.get(name) or ir.Function(builder.module, signature, name)
    assert p.type.element is not None
    place = builder.gep(p.llvm, [at.llvm], source_etype=p.type.element.llvm)
    builder.call(function, [place, *(ir.Constant(i32_type, n) for n in (0, 3, 1))])


prefetch = Intrinsic(_prefetch)
"""``prefetch(p, at)``: have the memory around ``p[at]`` fetched; an address that does not exist does no harm."""


def _call(builder: Any, function: Value, *arguments: Value) -> None:
    word = ir.IntType(64)
    kind = ir.FunctionType(ir.VoidType(), [word] * len(arguments))
    builder.call(builder.inttoptr(function.llvm, kind.as_pointer()), [v.llvm for v in arguments])


call = Intrinsic(_call)
"""``call(function, args, lo, hi, workspace)``: another kernel, by its address."""

float_of_bits = same_bits(f64)
maximum = float_function("maximum")
"""The larger of two floats; a NaN if either is one."""
multiply_add = float_function("fma")
"""``a·b + c``, rounded once."""
_f32_bits, _f32_of_bits, _half, _bits_of_half = same_bits(u32), same_bits(f32), same_bits(f16), same_bits(u16)


@inlined
def _f16_to_f32(bits):
    return f32(_half(bits))


@inlined
def _f32_to_f16(value):
    return _bits_of_half(f16(value))


@inlined
def _bf16_to_f32(bits):
    return _f32_of_bits(u32(bits) << 16)


@inlined
def _f32_to_bf16(value):
    bits = _f32_bits(value)
    # Half of the last kept place, less one where that place is even, carries exactly when rounding goes up.
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return u16((bits | 0x400000 if value != value else rounded) >> 16)


@dataclass(frozen=True)
class Format:
    """How numbers are stored, computed with, and loaded and stored between the two."""

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

    def functions(self) -> tuple[Any, Any]:
        """``widen(stored) → computed`` and ``narrow(computed) → stored``."""
        if self.name == "f16":
            return _f16_to_f32, _f32_to_f16
        if self.name == "bf16":
            return _bf16_to_f32, _f32_to_bf16
        return self.computed, self.stored


FORMATS = {
    form.name: form
    for form in (
        Format("f16", u16, f32, i32),
        Format("bf16", u16, f32, i32),
        Format("f32", f32, f32, i32),
        Format("f64", f64, f64, i64),
        Format("i8", i8, i32, i32),
        Format("u8", u8, i32, i32),
        Format("i32", i32, i32, i32),
        Format("i64", i64, i64, i64),
    )
}
