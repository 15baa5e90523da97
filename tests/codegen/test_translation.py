"""The compiler of kernels: what is translated does what the same function does in Python, or NumPy on arrays."""

import ctypes
import operator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import llvmlite.binding as llvm
import numpy as np
import pytest

from gradspec.backends.cpu import planning
from gradspec.backends.cpu.layout.kernels import layout, unfold
from gradspec.backends.cpu.pointwise.kernels import program
from gradspec.backends.cpu.pool.kernels import lp_pool, pool
from gradspec.codegen import cache as kernel_cache
from gradspec.codegen import intrinsics, objects, processor, translation
from gradspec.codegen.intrinsics import maximum, minimum
from gradspec.codegen.language import (
    KernelError,
    at_build,
    beyond,
    choose,
    f16,
    f32,
    f64,
    first,
    following,
    i8,
    i16,
    i32,
    i64,
    inlined,
    lanes,
    lanes_once,
    moved_on,
    number_of,
    outlined,
    parts,
    pointer,
    preceding,
    put_strided,
    stretch,
    strided,
    total,
    u8,
    u16,
    u32,
    u64,
    unrolled,
)
from gradspec.codegen.translation import Module

SIGNED, UNSIGNED, FLOATS = (i8, i16, i32, i64), (u8, u16, u32, u64), (f16, f32, f64)
NUMBERS = SIGNED + UNSIGNED + FLOATS
DTYPES = {kind: np.dtype(f"{kind.name[0]}{kind.bytes}") for kind in NUMBERS}
GUARD = 8
ENGINES = []


def compiled(functions, vector_bytes=32):
    """Functions by name, with the types of their arguments, as functions of arrays and numbers."""
    module = Module(vector_bytes)
    for name, (function, types) in functions.items():
        module.entry(name, function, types)
    engine = kernel_cache._engine()
    code = objects.object_code(str(module))
    assert kernel_cache._provide(kernel_cache.undefined_symbols(code))
    engine.add_object_file(kernel_cache._llvm().ObjectFileRef.from_data(code))
    engine.finalize_object()
    ENGINES.append(engine)
    return {name: called(engine.get_function_address(name), types) for name, (_, types) in functions.items()}


def called(address, types):
    kinds = [ctypes.c_void_p if kind.element else ctypes.c_int64 for kind in types]
    function = ctypes.CFUNCTYPE(None, *kinds)(address)
    return lambda *args: function(*(a.ctypes.data if isinstance(a, np.ndarray) else a for a in args))


def guarded(n, dtype):
    """Room for ``n`` results with cells on both sides that must not change, and the room itself."""
    parent = np.full(n + 2 * GUARD, 77, dtype)
    return parent, parent[GUARD : GUARD + n]


def assert_wrote(parent, wanted):
    room = np.full(len(parent), 77, parent.dtype)
    room[GUARD : GUARD + len(wanted)] = wanted
    np.testing.assert_array_equal(parent, room)


def some(kind, n, seed=0):
    """Numbers of both signs, equal ones and the ends of the range among them; NaN, infinities and zeros."""
    rng, dtype = np.random.default_rng(seed), DTYPES[kind]
    if kind.is_float:
        special = [0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, np.finfo(dtype).tiny]
        return np.where(rng.random(n) < 0.4, rng.choice(special, n), rng.standard_normal(n)).astype(dtype)
    ends = np.iinfo(dtype)
    few = rng.integers(max(-5, ends.min), 6, n)
    any = rng.integers(ends.min, ends.max, n, dtype=dtype, endpoint=True)
    return np.where(rng.random(n) < 0.5, few.astype(dtype), any)


# --- arithmetic -------------------------------------------------------------------------------------------------------


def plus(a, b):
    return a + b


def minus(a, b):
    return a - b


def times(a, b):
    return a * b


def over(a, b):
    return a / b


def negative(a, b):
    return -a


def floored(a, b):
    return a // b


def modulo(a, b):
    return a % b


def halved(a, b):
    return a // 2


def both_bits(a, b):
    return a & b


def either_bit(a, b):
    return a | b


def other_bits(a, b):
    return a ^ b


def left(a, b):
    return a << 3


def right(a, b):
    return a >> 3


def less(a, b):
    return a < b


def at_most(a, b):
    return a <= b


def greater(a, b):
    return a > b


def at_least(a, b):
    return a >= b


def equal(a, b):
    return a == b


def different(a, b):
    return a != b


ARITHMETIC = [plus, minus, times, negative]
INTEGER = [floored, modulo, halved, both_bits, either_bit, other_bits, left, right]
COMPARISONS = [less, at_most, greater, at_least, equal, different]
OPERATIONS = [
    *product(NUMBERS, ARITHMETIC + COMPARISONS),
    *product(SIGNED + UNSIGNED, INTEGER),
    *product(FLOATS, [over]),
]


def elementwise(kind, operation):
    def run(out, a, b, n):
        for i in lanes(kind, n):
            out[i] = operation(a[i], b[i])

    return run


def comparing(kind, operation):
    def run(out, a, b, n):
        for i in lanes(kind, n):
            out[i] = choose(operation(a[i], b[i]), kind(1), kind(0))

    return run


@cache
def operations():
    functions = {}
    for kind, operation in OPERATIONS:
        make = comparing if operation in COMPARISONS else elementwise
        p = pointer(kind)
        functions[f"{operation.__name__}.{kind}"] = make(kind, operation), (p, p, p, i64)
    return compiled(functions)


@pytest.mark.parametrize(("kind", "operation"), OPERATIONS, ids=lambda x: getattr(x, "__name__", str(x)))
@np.errstate(all="ignore")
def test_operators(kind, operation):
    n, run = 83, operations()[f"{operation.__name__}.{kind}"]
    a, b = some(kind, n, 1), some(kind, n, 2)
    if operation in (floored, modulo):
        b[b == 0] = 3
        b[(a == np.iinfo(b.dtype).min) & (b.astype(float) == -1)] = 2  # the quotient would overflow
    elif kind == i64 and operation in ARITHMETIC:
        a, b = a >> 33, b >> 33  # indices do not overflow
    parent, out = guarded(n, a.dtype)
    run(out, a, b, n)
    assert_wrote(parent, operation(a, b).astype(a.dtype))


CASTS = [(old, new) for old, new in product(NUMBERS, NUMBERS) if new.is_float or not old.is_float]


def casting(old, new):
    def run(out, a, n):
        for i in lanes(old, n):
            out[i] = new(a[i])

    return run


@cache
def casts():
    return compiled({f"{a}.{b}": (casting(a, b), (pointer(b), pointer(a), i64)) for a, b in CASTS})


@pytest.mark.parametrize(("old", "new"), CASTS, ids=str)
@np.errstate(all="ignore")
def test_conversions(old, new):
    a = some(old, 37)
    parent, out = guarded(37, DTYPES[new])
    casts()[f"{old}.{new}"](out, a, 37)
    assert_wrote(parent, a.astype(out.dtype))


# --- control ----------------------------------------------------------------------------------------------------------

KNOWN, UNKNOWN_FUNCTION = 3, None


def branches(out, a, n):
    for i in range(n):
        x = a[i]
        if x < -2:
            out[i] = 1
        elif x < 0:
            out[i] = 2
        elif x == 0:
            pass
        else:
            out[i] = 4 if x > 3 else 5


def loops(out, a, n):
    steps, x = 0, 27
    while x != 1:
        x = x // 2 if x % 2 == 0 else 3 * x + 1
        steps += 1
    out[0] = steps
    for i in range(n - 1, 0, -2):
        out[i] = i
    for i in range(2, n, a[0] * a[0] + 3):
        out[i] -= 100
    last = -1
    for i in range(0):
        last = i
    out[1] = last


def jumps(out, a, n):
    for i in range(n):
        if a[i] == 0:
            continue
        for j in range(10):
            if j * j > a[i]:
                break
            if j % 2 == 1:
                continue
            out[i] += j
        out[i] += 1
    k = 0
    while True:
        k += 1
        if k == 7:
            break
    out[n - 1] = k


def the_variable_of_a_loop_is_its_own(out, a, n):
    for i in range(n):
        at = i
        i = 5
        out[at] = i


def short_circuit(out, a, n):
    for i in range(n):
        out[i] = 1 if i > 0 and a[i - 1] > 0 else 0
        if i == n - 1 or a[i + 1] < 0:
            out[i] += 10
        if not (a[i] > 0 or a[i] < -1):
            out[i] += 100
        if a[i] and i:
            out[i] += 1000


def swapped(a, b):
    return b, a


def signed(x):
    if x < 0:
        return -1, x
    if x == 0:
        return 0, 0
    return 1, x


def tuples(out, a, n):
    x, y = 1, 2
    for i in range(n):
        x, y = y, x + y
        p, q = swapped(a[i], x)
        sign, size = signed(p)
        out[i] = 100 * p + 10 * q + signed(y)[0] + sign * size


def descend(out, i, n):
    if i < n:
        out[i] = out[i - 1] + i
        descend(out, i + 1, n)


def recursion(out, a, n):
    out[0] = 5
    descend(out, 1, n)


def static_conditions(out, a, n):
    if KNOWN == 3 and UNKNOWN_FUNCTION is None:
        out[0] = KNOWN * 2 + (1 if KNOWN > 5 else 2)
    else:
        UNKNOWN_FUNCTION(out)
    if KNOWN is not None or UNKNOWN_FUNCTION(out):
        out[1] = -KNOWN
    while not KNOWN:
        out[2] = 9


def extremes(out, a, n):
    for i in range(1, n):
        out[i] = 10 * min(a[i], a[i - 1]) + max(a[i], 2)


def applied(function, x):
    return function(x)


@inlined
def double(x):
    return 2 * x


@outlined
def square(x):
    return x * x


def functions_as_arguments(out, a, n):
    for i in range(n):
        out[i] = applied(double, a[i]) + applied(square, a[i])


def chained(out, a, n):
    for i in range(n):
        out[i] = 1 if -2 <= a[i] < 4 else 0
        if 0 < a[i] != 3:
            out[i] += 10


def by_name(out, a, n):
    for i in range(n):
        out[i] = weighed(a[i], other=i, weight=3)


def weighed(x, weight, other):
    return x * weight - other


# --- tuples, and what is known when a kernel is built -----------------------------------------------------------------


class Span(NamedTuple):
    first: Any
    end: Any


class Box(NamedTuple):
    span: Span
    name: str


def widened(box, by):
    return Box(Span(box.span.first - by, box.span.end + by), box.name)


@outlined
def larger_of(a, b):
    return a if a.end - a.first >= b.end - b.first else b


def named_tuples(out, a, n):
    box = Box(Span(0, 1), "known")
    for i in range(n):
        if a[i] > 0:
            box = widened(box, a[i])
        found = larger_of(box.span, Span(i, 3 * i))
        first, end = choose(a[i] == 0, Span(7, 8), found)
        out[i] = 100 * first + end + found.end


class Sum(NamedTuple):
    a: Any
    b: Any

    def value(self):
        return self.a + self.b


class Difference(NamedTuple):
    a: Any
    b: Any

    def value(self):
        return self.a - self.b


def twice(term):
    return 2 * term.value()


def tuples_of_two_kinds(out, a, n):
    for i in range(n):
        out[i] = twice(Sum(a[i], i)) * 1000 + twice(Difference(a[i], i))


def operators_by_name(out, a, n):
    for i in range(n):
        for combine in (operator.add, operator.sub, operator.mul):
            out[i] = 10 * out[i] + combine(operator.neg(a[i]), 3)


class Way(Enum):
    UP, DOWN = range(2)


@dataclass(frozen=True)
class Scale:
    """A known object with methods, properties and attributes of its class."""

    factor: int
    way: Way
    is_shifted = True

    @property
    def half(self):
        return Scale(self.factor // 2, self.way)

    @inlined
    def applied(self, x):
        scaled = x * self.factor if self.way is Way.UP else x - self.factor
        return scaled + 1 if self.is_shifted else scaled


def of_scale(scale, x):
    return scale.applied(x) + scale.half.applied(x=x)


@at_build
def divisors(n):
    return tuple(d for d in range(1, n + 1) if n % d == 0)


def known_objects(out, a, n):
    for i in range(n):
        out[i] = of_scale(Scale(6, Way.UP), a[i]) - 3 * of_scale(Scale(10, Way.DOWN), a[i])


def written_out(out, a, n):
    for i in range(n):
        for d in divisors(12):
            out[i] += d * a[i]
            if d in (3, 4):
                out[i] -= 1
        for place, (weight, sign) in enumerate(((5, 1), (6, -1))):
            out[i] += weight * sign * place
        for j in unrolled(3):
            out[i] += (7, 11, 13)[j]
        for j in range(a[i]):
            out[i] += j
        rows = tuple(tuple(a[i] * j + k for k in range(2)) for j in range(3))
        out[i] += rows[2][1] * 1000 + sum_of(rows[1])


def sum_of(row):
    return row[0] + row[1]


def set_in_one_branch(out, a, n):
    for i in range(n):
        if a[i] > 0:
            found = a[i]
        if a[i] > 0:
            out[i] = found


CONTROL = [
    branches,
    loops,
    jumps,
    the_variable_of_a_loop_is_its_own,
    short_circuit,
    tuples,
    recursion,
    static_conditions,
    extremes,
    functions_as_arguments,
    chained,
    by_name,
    named_tuples,
    tuples_of_two_kinds,
    operators_by_name,
    known_objects,
    written_out,
    set_in_one_branch,
]


@cache
def control():
    return compiled({f.__name__: (f, (pointer(i64), pointer(i64), i64)) for f in CONTROL})


@pytest.mark.parametrize("function", CONTROL, ids=lambda f: f.__name__)
def test_control(function):
    a = np.array([3, 0, -1, -7, 12, 1, 0, 90, -2, 4], np.int64)
    parent, out = guarded(len(a), np.int64)
    out[:] = 0
    control()[function.__name__](out, a, len(a))
    wanted = [0] * len(a)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(function.__globals__, "choose", lambda test, yes, no: yes if test else no)
        function(wanted, a.tolist(), len(a))
    assert_wrote(parent, wanted)


# --- vectors ----------------------------------------------------------------------------------------------------------

VECTOR_KINDS = [i32, f32, f64, i64]


def _stretched(a, n):
    both = a[: 3 * n + 1] + a[1 : 3 * n + 2]
    return both[: 3 * n : 3] + 2 * both[1 : 3 * n : 3] - both[3 : 3 * n + 1 : 3] + both[2 : 3 * n : 3]


def vector_functions(kind):
    """Kernels ``(out, a, n)``, each with what it makes of the array and how many results there are."""
    two, zero = kind(2), kind(0)

    @inlined
    def add(x, y):
        return x + y

    @inlined
    def doubled_into(out, at, x):
        out[at] = two * x

    def pairs(out, a, n):
        for i in lanes(kind, n):
            x, y = strided(a, 2 * i, 2)
            out[i] = x - y

    def fours(out, a, n):
        for i in lanes(kind, n):
            w, x, y, z = strided(a, 4 * i + 1, 4)
            out[i] = (w - x) + two * (y - z)

    def threes(out, a, n):
        for i in lanes(kind, n):
            x, y = strided(a, 2 * i, 2)
            out[i] = x + two * y - following(a, 2 * i, 2, x)

    def neighbours(out, a, n):
        for i in lanes(kind, n):
            x = a[i]
            out[i] = following(a, i, 1, x) - x

    def earlier(out, a, n):
        for i in lanes(kind, n):
            x, y = strided(a, 2 * i + 1, 2)
            out[i] = preceding(a, 2 * i + 2, 2, y) - two * x + y

    def stretches(out, a, n):
        for i in lanes(kind, n):
            x, y, z = parts(stretch(a, 3 * i, 3) + stretch(a, 1 + 3 * i, 3), 3)
            out[i] = x + two * y - moved_on(x, a[beyond(3 * i, 3)] + a[1 + beyond(3 * i, 3)]) + z

    def spread_out(out, a, n):
        for i in lanes(kind, n):
            put_strided(out, 2 * i, (a[i], zero))

    def spread_in_fours(out, a, n):
        for i in lanes(kind, n):
            put_strided(out, 4 * i, (a[i], zero, a[i] + two, two))

    def chosen(out, a, n):
        for i in lanes(kind, n):
            positive = (a[i] > 0) & (not a[i] <= 1)
            out[i] = choose(positive, a[i] + 1, -5)

    def helped(out, a, n):
        for i in lanes(kind, n):
            doubled_into(out, i, a[n - n + i])

    def in_place(out, a, n):
        for i in lanes(kind, n):
            out[i] = a[i]
        for i in lanes_once(kind, n):
            out[i] = out[i] + a[i]

    def summed(out, a, n):
        out[0] = total(add, zero, a, 0, n)

    def summed_by_name(out, a, n):
        out[0] = total(operator.add, zero, a, 0, n)

    return {
        "pairs": (pairs, lambda a, n: a[: 2 * n : 2] - a[1 : 2 * n : 2]),
        "fours": (fours, lambda a, n: a[1::4][:n] - a[2::4][:n] + 2 * (a[3::4][:n] - a[4::4][:n])),
        "threes": (threes, lambda a, n: a[: 2 * n : 2] + 2 * a[1 : 2 * n : 2] - a[2 : 2 * n + 2 : 2]),
        "neighbours": (neighbours, lambda a, n: a[1 : n + 1] - a[:n]),
        "earlier": (earlier, lambda a, n: a[: 2 * n : 2] - 2 * a[1 : 2 * n : 2] + a[2 : 2 * n + 2 : 2]),
        "stretches": (stretches, _stretched),
        "spread_out": (spread_out, lambda a, n: np.stack([a[:n], 0 * a[:n]], 1).ravel()),
        "spread_in_fours": (
            spread_in_fours,
            lambda a, n: np.stack([a[:n], 0 * a[:n], a[:n] + 2, 0 * a[:n] + 2], 1).ravel(),
        ),
        "chosen": (chosen, lambda a, n: np.where((a[:n] > 0) & ~(a[:n] <= 1), a[:n] + 1, -5)),
        "helped": (helped, lambda a, n: 2 * a[:n]),
        "in_place": (in_place, lambda a, n: 2 * a[:n]),
        "summed": (summed, lambda a, n: a[:n].sum(keepdims=True)),
        "summed_by_name": (summed_by_name, lambda a, n: a[:n].sum(keepdims=True)),
    }


WORDS = list(vector_functions(f32))


@cache
def vectors(vector_bytes):
    functions = {
        f"{word}.{kind}": (function, (pointer(kind), pointer(kind), i64))
        for kind in VECTOR_KINDS
        for word, (function, _) in vector_functions(kind).items()
    }
    return compiled(functions, vector_bytes)


@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@pytest.mark.parametrize("kind", VECTOR_KINDS, ids=str)
@pytest.mark.parametrize("word", WORDS)
def test_vectors(word, kind, vector_bytes):
    """Every length up to three vectors and one. Numbers are small, so that nothing is rounded."""
    run, wanted = vectors(vector_bytes)[f"{word}.{kind}"], vector_functions(kind)[word][1]
    lengths = [*range(3 * vector_bytes // kind.bytes + 2), 9 * vector_bytes // kind.bytes + 1]
    for n in lengths:
        a = np.random.default_rng(n).integers(-9, 9, 4 * n + 2).astype(DTYPES[kind])
        results = wanted(a, n).astype(a.dtype)
        parent, out = guarded(len(results), a.dtype)
        run(out, a, n)
        assert_wrote(parent, results)


@inlined
def is_same(x, y):
    return x == y


@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@pytest.mark.parametrize("kind", VECTOR_KINDS, ids=str)
def test_the_first_of_some_cells(kind, vector_bytes):
    """Every length up to five vectors and one, and every place there; later cells are the same, also beyond the end."""

    def place(out, a, n):
        out[0] = first(is_same, kind(1), a, 1, n)

    run = compiled({"place": (place, (pointer(i64), pointer(kind), i64))}, vector_bytes)["place"]
    lanes_of_five = 5 * vector_bytes // kind.bytes
    out, a = np.empty(1, np.int64), np.empty(lanes_of_five + 3, DTYPES[kind])
    for n in range(lanes_of_five + 2):
        for k in range(n + 1):
            a[: k + 1], a[k + 1 :] = 0, 1
            run(out, a, n)
            assert out[0] == k


@pytest.mark.parametrize(
    ("features", "size"),
    [({"neon": True}, 32), ({"avx2": True}, 32), ({"avx2": True, "avx512f": True}, 64), ({"sse4.2": True}, 16)],
    ids=str,
)
def test_vectors_are_as_wide_as_the_processor_likes(features, size):
    assert processor.described(features).loop_bytes == size


# --- the larger and the smaller ---------------------------------------------------------------------------------------

EXTREMES = {"maximum": (maximum, np.maximum), "minimum": (minimum, np.minimum)}


def extreme(function):
    def each(y, a, b, n):
        for i in lanes(number_of(a[0]), n):
            y[i] = function(a[i], b[i])

    return each


def extreme_entries(kind):
    p = pointer(kind)
    return {name: (extreme(function), (p, p, p, i64)) for name, (function, _) in EXTREMES.items()}


@pytest.mark.parametrize("vector_bytes", [16, 64, 128])
@pytest.mark.parametrize("kind", FLOATS, ids=str)
def test_extremes_order_zeros_and_pass_on_nan(kind, vector_bytes):
    functions = compiled(extreme_entries(kind), vector_bytes)
    for (name, (_, wanted)), n in product(EXTREMES.items(), (1, 3, 5, 17, 40, 200)):
        a, b = some(kind, n, n), some(kind, n, n + 1)
        results, zeros = wanted(a, b), (a == 0) & (b == 0)
        sign = {"maximum": np.logical_and, "minimum": np.logical_or}[name](np.signbit(a), np.signbit(b))
        parent, out = guarded(n, a.dtype)
        functions[name](out, a, b, n)
        assert_wrote(parent, results)
        np.testing.assert_array_equal(np.signbit(out)[zeros], sign[zeros])


@pytest.mark.parametrize("vector_bytes", [16, 64, 128])
@pytest.mark.parametrize(("kind", "instruction"), [(f32, "range.ps."), (f64, "range.pd."), (f16, "maximum")])
def test_extremes_are_one_instruction_where_there_is_one(monkeypatch, kind, instruction, vector_bytes):
    able = processor.Processor(register_bytes=64, registers=32, loop_bytes=64, orders_zeros=True)
    monkeypatch.setattr(intrinsics, "processor", lambda: able)
    module = Module(vector_bytes)
    for name, (function, types) in extreme_entries(kind).items():
        module.entry(name, function, types)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple("x86_64-unknown-linux-gnu")
    code = objects.compiled(str(module), machine, "sapphirerapids")
    assert instruction in str(module)
    assert not kernel_cache.undefined_symbols(code)


@pytest.mark.rows(1)
@pytest.mark.parametrize("operation", ["max", "winners"])
def test_subnormal_numbers_of_bfloat16_are_kept(monkeypatch, operation):
    """AVX-512's conversion to bfloat16 takes them for 0, so nothing is left to LLVM that it would convert by it."""
    able = processor.Processor(
        register_bytes=64, registers=32, loop_bytes=64, half_arithmetic=True, keeps_bfloat16=False, orders_zeros=True
    )
    monkeypatch.setattr(intrinsics, "processor", lambda: able)
    monkeypatch.setattr(planning, "processor", lambda: able)
    assert planning.has_short_winners("f16")
    assert not planning.has_short_winners("bf16")
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple("x86_64-unknown-linux-gnu").create_target_machine(cpu="sapphirerapids", jit=True)
    for form, converts in (("bf16", False), ("stored bf16", True)):
        module = llvm.parse_assembly(pool.build(f"{operation}:{form}"))
        module.triple, module.data_layout = machine.triple, str(machine.target_data)
        assert ("vcvtneps2bf16" in machine.emit_assembly(module)) == converts


# --- other processors -------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("source", "name"),
    [
        (pool, "winners:f16"),
        (program, "program:f64"),
        (layout, "copy:2"),
        (unfold, "fold:f16"),
        (lp_pool, "lp_pool:f32"),
    ],
)
def test_kernels_for_x86_call_nothing_but_the_c_library(monkeypatch, source, name):
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple("x86_64-unknown-linux-gnu")
    monkeypatch.setattr(translation, "processor", lambda: processor.PROCESSORS["avx512f"])
    code = objects.compiled(source.build(name), machine, "skylake-avx512")
    assert kernel_cache.undefined_symbols(code) <= {"memset", "memcpy", "memmove"}


# --- what is refused --------------------------------------------------------------------------------------------------


def refused_kernels():
    """Kernels ``(p, n)`` on int64, each with the line that is wrong and why."""

    def unknown_name(p, n):
        p[0] = nobody  # noqa: F821

    def unset_name(p, n):
        p[0] = later  # noqa: F821
        later = 1  # noqa: F841

    def statement(p, n):
        with n:
            pass

    def expression(p, n):
        p[0] = [n]

    def inverted(p, n):
        p[0] = ~n

    def membership(p, n):
        p[0] = n in p

    def float_modulo(p, n):
        p[0] = f32(n) % f32(2)

    def integer_division(p, n):
        p[0] = n / 2

    def float_to_integer(p, n):
        p[0] = f64(n)

    def constant_to_integer(p, n):
        p[0] = 0.5

    def pointer_arithmetic(p, n):
        q = p + 1
        q[0] = 1

    def pointer_truth(p, n):
        if p:
            p[0] = 1

    def not_a_pointer(p, n):
        n[0] = 1

    def not_a_number(p, n):
        p[0] = print

    def wrong_tuple(p, n):
        a, b = n
        p[0] = a + b

    def keyword(p, n):
        p[0] = min(n, b=2)

    def arity(p, n):
        p[0] = min(n, 1, 2)

    def too_few(p, n):
        p[0] = plus(n)

    def not_a_kernel(p, n):
        print(n)

    def iteration(p, n):
        for i in p:
            p[i] = 0

    def no_step(p, n):
        for i in range(0, n, 0):
            p[i] = 0

    def loop_else(p, n):
        for i in range(n):
            p[i] = 0
        else:
            p[0] = 1

    def lane_break(p, n):
        for i in lanes(i64, n):
            p[i] = 1
            break

    def lane_return(p, n):
        for i in lanes(i64, n):
            p[i] = 1
            return

    def lane_condition(p, n):
        for i in lanes(i64, n):
            if p[i] > 0:
                p[i] = 1

    def lane_index(p, n):
        for i in lanes(i64, n):
            p[i] = i

    def lane_product(p, n):
        for i in lanes(i64, n):
            p[i * n] = 1

    def lane_step(p, n):
        for i in lanes(i64, n):
            p[2 * i] = 1

    def other_step(p, n):
        for i in lanes(i64, n):
            a, b = strided(p, 3 * i, 2)
            p[i] = a + b

    def three_vectors(p, n):
        for i in lanes(i64, n):
            put_strided(p, 3 * i, (1, 2, 3))

    def narrowed(p, n):
        x = 0
        for i in lanes(i64, n):
            x = p[i]
        p[0] = x

    def lanes_of_nothing(p, n):
        for i in lanes(n, n):
            p[i] = 1

    def returns(p, n):
        return n

    def changing_known(p, n):
        scale = Scale(1, Way.UP)
        if n > 3:
            scale = Scale(2, Way.UP)
        p[0] = scale.applied(n)

    def unknown_index(p, n):
        p[0] = Span(n, n)[n]

    def other_tuple(p, n):
        span = Span(n, n)
        for _ in range(n):
            span = (n, n, n)
        p[0] = span[0]

    def filtered(p, n):
        p[0] = tuple(i for i in range(3) if i)[0]  # noqa: RUF015

    return [
        (unknown_name, "`nobody`: nobody knows this name"),
        (unset_name, "`later`: nothing was assigned to this name yet"),
        (statement, "`with n:`: With is not in the language of kernels"),
        (expression, "`\\[n\\]`: List is not in the language"),
        (inverted, "`~n`: Invert is not in the language"),
        (membership, "`n in p`: numbers are compared by"),
        (float_modulo, "Mod of floats"),
        (integer_division, "`n / 2`: Div of integers"),
        (float_to_integer, "f64 does not turn into i64"),
        (constant_to_integer, "0.5 does not turn into i64"),
        (pointer_arithmetic, "turn into i64\\*|arithmetic on pointers"),
        (pointer_truth, "a pointer is neither true nor false"),
        (not_a_pointer, "i64 is not a pointer"),
        (not_a_number, "print> is no number|print> does not turn"),
        (wrong_tuple, "there are not 2 values to assign"),
        (keyword, "arguments are given one by one and by position"),
        (arity, "min takes 2 arguments here, not 3"),
        (too_few, "plus takes 2 arguments, not 1"),
        (not_a_kernel, "print> is no function of kernels"),
        (iteration, "loops are over range, lanes or lanes_once"),
        (no_step, "a step of 0"),
        (loop_else, "a loop has no else"),
        (lane_break, "`break`: a loop over lanes is left at its end"),
        (lane_return, "`return`: a loop over lanes is left at its end"),
        (lane_condition, "4 × bool where one number is wanted"),
        (lane_index, "the index of a vector can only be"),
        (lane_product, "base \\+ step·i with a known step"),
        (lane_step, "an index with a step of 2; use strided"),
        (other_step, "an index with a step of 3 where one of 2 is wanted"),
        (three_vectors, "put_strided writes two vectors, four or eight, not 3"),
        (narrowed, "4 × i64 does not turn into i64"),
        (lanes_of_nothing, "lanes are of a type of numbers"),
        (returns, "returns something, and nobody would see it"),
        (changing_known, "scale is known when the kernel is built, and cannot change"),
        (unknown_index, "`n` is not known before the kernel runs"),
        (other_tuple, "a name of 2 values is given something else"),
        (filtered, "what is written out has no conditions"),
    ]


@pytest.mark.parametrize(("function", "message"), refused_kernels(), ids=lambda x: getattr(x, "__name__", ""))
def test_what_is_not_in_the_language_is_refused(function, message):
    with pytest.raises(KernelError, match=message) as raised:
        Module().entry("kernel", function, (pointer(i64), i64))
    if function.__name__ not in ("returns", "too_few"):
        first = function.__code__.co_firstlineno
        assert f"{__file__}, line " in str(raised.value)
        line = int(str(raised.value).split(", line ")[1].split(",")[0])
        assert first < line <= first + 5
        assert f"in {function.__name__}: " in str(raised.value)


def refused_functions():
    """Functions of one number that a kernel calls, each with what is wrong."""

    def some_paths(x):  # noqa: RET503
        if x > 0:
            return x

    def two_kinds(x):
        if x > 0:
            return x, x
        return x

    def two_sizes(x):
        if x > 0:
            return x, x
        return x, x, x

    def nothing_first(x):
        if x > 0:
            return  # noqa: RET502
        return x

    def recursive_value(x):
        if x > 0:
            recursive_value(x - 1)
        return x

    def with_default(x, y=1):
        return x

    return [
        (some_paths, "some paths return a value and others end without one"),
        (two_kinds, "some paths return something else"),
        (two_sizes, "3 values where other paths return 2"),
        (nothing_first, "some paths return something else"),
        (recursive_value, "a function that calls itself returns nothing"),
        (with_default, "parameters are plain names"),
        (lambda x: x, "is not a plain function"),
    ]


@pytest.mark.parametrize(("function", "message"), refused_functions(), ids=lambda x: getattr(x, "__name__", ""))
def test_functions_that_kernels_cannot_call_are_refused(function, message):
    def kernel(p, n):
        function(p[0])

    with pytest.raises(KernelError, match=message):
        Module().entry("kernel", kernel, (pointer(i64), i64))


@pytest.mark.parametrize(
    "word",
    [strided, put_strided, following, preceding, stretch, parts, beyond, moved_on, choose, total, first],
    ids=lambda f: f.__name__,
)
def test_words_of_kernels_are_not_called(word):
    with pytest.raises(NotImplementedError, match="translated and not called"):
        word()


@pytest.mark.parametrize("kind", NUMBERS, ids=str)
def test_a_function_knows_the_numbers_it_is_given(kind):
    def kernel(p, n):
        for i in lanes(kind, n):
            p[i] = kind(1 if number_of(p[i]) == kind else 0)

    parent, out = guarded(9, DTYPES[kind])
    compiled({"kernel": (kernel, (pointer(kind), i64))})["kernel"](out, 9)
    assert_wrote(parent, np.ones(9, out.dtype))
