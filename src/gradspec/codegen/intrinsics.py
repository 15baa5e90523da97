"""Functions that kernels call and LLVM knows: memory by addresses, bits, floats, atomic accesses, the clock."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Sequence

from llvmlite import ir

from gradspec.codegen.language import ExactIntrinsic, Intrinsic, Type, Value, at_build, i64, pointer
from gradspec.codegen.processor import processor

# --- memory -----------------------------------------------------------------------------------------------------------


address_of = Intrinsic(lambda builder, p: Value(i64, builder.ptrtoint(p.llvm, i64.llvm)))
"""The address that a pointer holds."""


def _declare(builder: ir.IRBuilder, name: str, result: ir.Type, arguments: list[ir.Type]) -> ir.Function:
    """A function of LLVM or of the C library."""
    module = builder.module
    return module.globals.get(name) or ir.Function(module, ir.FunctionType(result, arguments), name)


def _place(builder: ir.IRBuilder, p: Value, at: Value) -> ir.Value:
    assert p.type.element is not None
    return builder.gep(p.llvm, [at.llvm], source_etype=p.type.element.llvm)


def _prefetch(is_written: int) -> Intrinsic:
    def emit(builder: ir.IRBuilder, p: Value, at: Value) -> None:
        small = ir.IntType(32)
        function = _declare(builder, "llvm.prefetch.p0", ir.VoidType(), [ir.PointerType(), small, small, small])
        builder.call(function, [_place(builder, p, at), *(ir.Constant(small, n) for n in (is_written, 3, 1))])

    return Intrinsic(emit)


prefetch, prefetch_to_write = _prefetch(0), _prefetch(1)
"""``prefetch(p, at)``: have the memory around ``p[at]`` fetched, to be read or to be written; an address that does not
exist does no harm."""


def _call(builder: ir.IRBuilder, function: Value, *arguments: Value) -> None:
    kind = ir.FunctionType(ir.VoidType(), [i64.llvm] * len(arguments))
    builder.call(builder.inttoptr(function.llvm, kind.as_pointer()), [v.llvm for v in arguments])


call = Intrinsic(_call)
"""``call(function, args, lo, hi, workspace)``: another kernel, by its address."""


def _clear(builder: ir.IRBuilder, address: Value, size: Value) -> None:
    byte, truth, p = ir.IntType(8), ir.IntType(1), ir.PointerType()
    function = _declare(builder, "llvm.memset.p0.i64", ir.VoidType(), [p, byte, i64.llvm, truth])
    place = builder.inttoptr(address.llvm, p)
    builder.call(function, [place, ir.Constant(byte, 0), size.llvm, ir.Constant(truth, 0)])


clear_bytes = Intrinsic(_clear)
"""``clear_bytes(address, size)``: memory of zeros, which need not be read before it is written."""


@at_build
def spaced(count: int) -> ExactIntrinsic:
    """``spaced(count)(start, step)``: the addresses ``start``, ``start + step`` and so on, each from the one before."""

    def emit(builder: ir.IRBuilder, start: Value, step: Value) -> tuple[Value, ...]:
        found = [start]
        while len(found) < count:
            found.append(Value(i64, builder.add(found[-1].llvm, step.llvm)))
        return tuple(found)

    return ExactIntrinsic(emit)


# --- vectors of a known length ----------------------------------------------------------------------------------------


@at_build
def load(kind: Type) -> Intrinsic:
    """``load(kind)(address)``: a number or a vector of them, which need not be aligned as a whole."""

    def emit(builder: ir.IRBuilder, address: Value) -> Value:
        place = builder.inttoptr(address.llvm, ir.PointerType())
        return Value(kind, builder.load(place, typ=kind.llvm, align=kind.bytes))

    return Intrinsic(emit)


def _store(builder: ir.IRBuilder, value: Value, address: Value) -> None:
    builder.store(value.llvm, builder.inttoptr(address.llvm, ir.PointerType()), align=value.type.bytes)


store = ExactIntrinsic(_store)
"""``store(value, address)``: a number or a vector of them."""


@at_build
def shuffled(order: Sequence[int]) -> ExactIntrinsic:
    """``shuffled(order)(a, b)``: the lanes of two vectors, one behind the other, with these numbers."""

    def emit(builder: ir.IRBuilder, a: Value, b: Value) -> Value:
        mask = ir.Constant(ir.VectorType(ir.IntType(32), len(order)), list(order))
        return Value(a.type.of(len(order)), builder.shuffle_vector(a.llvm, b.llvm, mask))

    return ExactIntrinsic(emit)


@at_build
def spread(kind: Type) -> ExactIntrinsic:
    """``spread(kind)(number)``: a number in every lane of a vector."""

    def emit(builder: ir.IRBuilder, number: Value) -> Value:
        nothing, first = ir.Constant(kind.llvm, ir.Undefined), ir.Constant(ir.IntType(32), 0)
        mask = ir.Constant(ir.VectorType(ir.IntType(32), kind.lanes), [0] * kind.lanes)
        one = builder.insert_element(nothing, number.llvm, first)
        return Value(kind, builder.shuffle_vector(one, nothing, mask))

    return ExactIntrinsic(emit)


@at_build
def in_all_lanes(lane: int, lanes: int) -> ExactIntrinsic:
    """``in_all_lanes(lane, lanes)(vector)``: one of its numbers in every lane."""

    def emit(builder: ir.IRBuilder, vector: Value) -> Value:
        nothing = ir.Constant(vector.llvm.type, ir.Undefined)
        mask = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [lane] * lanes)
        return Value(vector.type.of(lanes), builder.shuffle_vector(vector.llvm, nothing, mask))

    return ExactIntrinsic(emit)


# --- numbers ----------------------------------------------------------------------------------------------------------


def same_bits(target: Type) -> Intrinsic:
    """The function that reads the bits of a number as a ``target`` of the same width."""

    def emit(builder: ir.IRBuilder, value: Value) -> Value:
        kind = target.of(value.type.lanes)
        return Value(kind, builder.bitcast(value.llvm, kind.llvm))

    return Intrinsic(emit)


def float_function(name: str) -> Intrinsic:
    """LLVM's function of floats, ``llvm.name``."""

    def emit(builder: ir.IRBuilder, *values: Value) -> Value:
        kind = values[0].type
        full = f"llvm.{name}.{_overload(kind.name, kind.lanes)}"
        function = _declare(builder, full, kind.llvm, [kind.llvm] * len(values))
        return Value(kind, builder.call(function, [v.llvm for v in values]))

    return Intrinsic(emit)


def _extreme(name: str, operation: int) -> Intrinsic:
    """LLVM takes six instructions for either; x86 needs three, if it has one that orders zeros and skips NaN."""
    plain = float_function(name)

    def emit(builder: ir.IRBuilder, a: Value, b: Value) -> Value:
        if processor().orders_zeros and a.type.bits in SUFFIXES:
            return _in_registers(builder, a, b, lambda x, y: _range(builder, operation, x, y))
        found: Value = plain.emit(builder, a, b)
        return found

    return Intrinsic(emit)


REGISTER_BITS = 128, 256, 512
SUFFIXES = {32: "ps", 64: "pd"}
SMALLER, LARGER = 4, 5


def _range(builder: ir.IRBuilder, operation: int, a: ir.Value, b: ir.Value) -> ir.Value:
    """The smaller or larger of the numbers in two registers, or their sum where one of them is NaN."""
    kind, lanes, small = a.type, a.type.count, ir.IntType(32)
    bits, mask = 32 if kind.element == ir.FloatType() else 64, ir.IntType(max(8, lanes))
    rounding = [ir.Constant(small, 4)] if bits * lanes == REGISTER_BITS[-1] else []
    name, kinds = f"llvm.x86.avx512.mask.range.{SUFFIXES[bits]}.{bits * lanes}", [kind, kind, small, kind, mask]
    function = _declare(builder, name, kind, [*kinds, *(small for _ in rounding)])
    rest = ir.Constant(kind, ir.Undefined), ir.Constant(mask, -1), *rounding
    found = builder.call(function, [a, b, ir.Constant(small, operation), *rest])
    return builder.select(builder.fcmp_unordered("uno", a, b), builder.fadd(a, b), found)


def _in_registers(
    builder: ir.IRBuilder, a: Value, b: Value, function: Callable[[ir.Value, ir.Value], ir.Value]
) -> Value:
    """A function of whole registers, applied to numbers or vectors of any length: in the smallest that holds them."""
    kind, lanes = a.type, a.type.lanes
    full = next((n for n in REGISTER_BITS if n >= lanes * kind.bits), REGISTER_BITS[-1]) // kind.bits
    small, zero = ir.IntType(32), ir.Constant(ir.IntType(32), 0)

    def lanes_of(x: ir.Value, y: ir.Value, numbers: Iterable[int]) -> ir.Value:
        order = list(numbers)
        return builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(small, len(order)), order))

    def register(value: ir.Value, first: int) -> ir.Value:
        if lanes == 1:
            return builder.insert_element(ir.Constant(kind.of(full).llvm, ir.Undefined), value, zero)
        nothing = ir.Constant(value.type, ir.Undefined)
        return lanes_of(value, nothing, (min(first + i, lanes) for i in range(full)))

    found = [function(register(a.llvm, i), register(b.llvm, i)) for i in range(0, lanes, full)]
    while len(found) > 1:
        found = [lanes_of(x, y, range(2 * x.type.count)) for x, y in zip(found[::2], found[1::2], strict=True)]
    if lanes == 1:
        return Value(kind, builder.extract_element(found[0], zero))
    return Value(kind, lanes_of(found[0], found[0], range(lanes)))


maximum, minimum = _extreme("maximum", LARGER), _extreme("minimum", SMALLER)
"""The larger and the smaller of two floats, where +0 exceeds −0; a NaN if either is one."""


def _multiply_add(builder: ir.IRBuilder, a: Value, b: Value, c: Value) -> Value:
    if not a.type.is_float:
        return Value(a.type, builder.add(builder.mul(a.llvm, b.llvm), c.llvm))
    fused: Value = _fused.emit(builder, a, b, c)
    return fused


_fused, multiply_add = float_function("fma"), Intrinsic(_multiply_add)
"""``a·b + c``, rounded once; of integers it wraps around."""
absolute, square_root, with_sign_of = (float_function(name) for name in ("fabs", "sqrt", "copysign"))
"""``|a|``, ``√a``, and ``±|a|`` with the sign of ``b``."""


@at_build
def saturated(target: Type) -> Intrinsic:
    """``saturated(target)(x)``: a float without its fraction; the nearest integer of ``target`` there is, of NaN 0."""

    def emit(builder: ir.IRBuilder, x: Value) -> Value:
        kind, sign = target.of(x.type.lanes), "si" if target.is_signed else "ui"
        names = (_overload(f"i{kind.bits}", kind.lanes), _overload(x.type.name, x.type.lanes))
        function = _declare(builder, f"llvm.fpto{sign}.sat.{'.'.join(names)}", kind.llvm, [x.type.llvm])
        return Value(kind, builder.call(function, [x.llvm]))

    return Intrinsic(emit)


def _overload(name: str, lanes: int) -> str:
    return name if lanes == 1 else f"v{lanes}{name}"


# --- memory that threads share ----------------------------------------------------------------------------------------


def atomic_load(ordering: str) -> Intrinsic:
    """``load(p)`` of an integer."""

    def emit(builder: ir.IRBuilder, p: Value) -> Value:
        return Value(i64, builder.load_atomic(p.llvm, ordering, 8, typ=i64.llvm))

    return Intrinsic(emit)


def atomic_change(operation: str, ordering: str) -> Intrinsic:
    """``change(p, value)``: what was there before ``operation`` put something in its place."""

    def emit(builder: ir.IRBuilder, p: Value, value: Value) -> Value:
        return Value(i64, builder.atomic_rmw(operation, p.llvm, value.llvm, ordering))

    return Intrinsic(emit)


def compare_exchange(ordering: str, failure_ordering: str) -> Intrinsic:
    """``exchange(p, expected, value)``: what was there; ``value`` is now, if that was as expected."""

    def emit(builder: ir.IRBuilder, p: Value, expected: Value, value: Value) -> Value:
        found = builder.cmpxchg(p.llvm, expected.llvm, value.llvm, ordering, failure_ordering)
        return Value(i64, builder.extract_value(found, 0))

    return Intrinsic(emit)


# --- time -------------------------------------------------------------------------------------------------------------

PAUSES = {
    "aarch64": ("llvm.aarch64.isb", [15]),
    "arm64": ("llvm.aarch64.isb", [15]),
    "x86_64": ("llvm.x86.sse2.pause", []),
}
"""What makes a processor look less often: an instruction, and its arguments."""


def _pause(builder: ir.IRBuilder) -> None:
    small = ir.IntType(32)
    name, arguments = PAUSES.get(platform.machine(), ("llvm.donothing", []))
    function = _declare(builder, name, ir.VoidType(), [small] * len(arguments))
    builder.call(function, [ir.Constant(small, n) for n in arguments])


pause = Intrinsic(_pause)


def _read_clock(builder: ir.IRBuilder, time_spec: Value) -> None:
    small = ir.IntType(32)
    function = _declare(builder, "clock_gettime", small, [small, ir.PointerType()])
    builder.call(function, [ir.Constant(small, time.CLOCK_MONOTONIC), time_spec.llvm])


read_clock = Intrinsic(_read_clock)
"""``read_clock(p)``: seconds to ``p[0]``, and nanoseconds to ``p[1]``."""


def _give_way(builder: ir.IRBuilder) -> None:
    builder.call(_declare(builder, "sched_yield", ir.IntType(32), []), [])


give_way = Intrinsic(_give_way)
"""Let other threads run."""


def _sleep(builder: ir.IRBuilder, time_spec: Value) -> None:
    function = _declare(builder, "nanosleep", ir.IntType(32), [ir.PointerType()] * 2)
    builder.call(function, [time_spec.llvm, ir.Constant(ir.PointerType(), None)])


sleep = Intrinsic(_sleep)
"""``sleep(p)``: for ``p[0]`` seconds and ``p[1]`` nanoseconds."""


def thread_function(name: str) -> Intrinsic:
    """The function ``pthread_name`` of the C library, of pointers to what it works on."""

    def emit(builder: ir.IRBuilder, *places: Value) -> None:
        kinds = [ir.PointerType()] * len(places)
        builder.call(_declare(builder, f"pthread_{name}", ir.IntType(32), kinds), [p.llvm for p in places])

    return Intrinsic(emit)


def _local_words(builder: ir.IRBuilder, count: Value) -> Value:
    place = builder.alloca(i64.llvm, count.llvm.constant)
    return Value(pointer(i64), place)


local_words = Intrinsic(_local_words)
"""``local_words(n)``: memory of the function's own for ``n`` integers."""
