"""What kernels are written in, beyond Python's own: types and values, vectors, inlining, what is known before.

A kernel is Python that ``translation`` turns into LLVM's code, so no word below is ever called with numbers: the
translation knows them by name. Kernels import everything from here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, NoReturn, TypeAlias, TypeVar

from llvmlite import ir

from gradspec.codegen.records import Entry, RecordLayout, WordKind, layout, size_of


class KernelError(TypeError):
    """A kernel that is not in the language: a mistake in this package. It says where and what."""


class Refusal(Exception):  # noqa: N818  (it never leaves the translation)
    """What is wrong with the expression at hand; whoever knows its place makes a ``KernelError`` of it."""


Function = TypeVar("Function", bound=Callable[..., Any])


def at_build(function: Function) -> Function:
    """Mark a function that is called, as Python, while a kernel is built: its arguments are known then."""
    function.at_build = True  # type: ignore[attr-defined]
    return function


class BrainType(ir.HalfType):  # type: ignore[misc]
    """LLVM's bfloat16, which llvmlite does not have."""

    intrinsic_name = "bf16"

    def __str__(self) -> str:
        return "bfloat"

    def format_constant(self, value: float) -> str:
        """Of a number that needs no rounding."""
        return f"0xR{struct.pack('>f', value)[:2].hex()}"


BrainType._create_instance()
FLOAT_TYPES = {"f16": ir.HalfType, "bf16": BrainType, "f32": ir.FloatType, "f64": ir.DoubleType}


@dataclass(frozen=True)
class Type:
    """A number of fixed width, a vector of them, a record, or a pointer, which has an element.

    Calling a type makes a constant while a kernel is built, and converts inside one: an integer to a pointer, too.
    """

    name: str
    bits: int
    is_float: bool = False
    is_signed: bool = True
    element: Type | None = None
    lanes: int = 1
    layout: RecordLayout | None = None

    @cached_property
    def llvm(self) -> ir.Type:
        if self.element is not None:
            return ir.PointerType()
        one = FLOAT_TYPES[self.name]() if self.is_float else ir.IntType(self.bits)
        return one if self.lanes == 1 else ir.VectorType(one, self.lanes)

    @property
    def bytes(self) -> int:
        return self.bits // 8

    @at_build
    def of(self, lanes: int) -> Type:
        """A vector of that many of these numbers."""
        return self if lanes == self.lanes else _vector(self, lanes)

    def __call__(self, value: float) -> Value:
        number = float(value) if self.is_float else int(value)
        return Value(self, ir.Constant(self.llvm, number if self.lanes == 1 else [number] * self.lanes))

    def __str__(self) -> str:
        return self.name if self.lanes == 1 else f"{self.lanes} × {self.name}"


@cache
def _vector(kind: Type, lanes: int) -> Type:
    return replace(kind, lanes=lanes)


@at_build
@cache
def pointer(element: Type | type) -> Type:
    """To numbers, or to records of a class."""
    kind = element if isinstance(element, Type) else record(layout(element))
    return Type(f"{kind.name}*", 64, is_signed=False, element=kind)


def copied(cls: type) -> Type:
    """To a copy of a record that a kernel has made, and may change."""
    return pointer(record(replace(layout(cls), is_scratch=True)))


@cache
def record(described: RecordLayout) -> Type:
    return Type(described.name, 8 * described.size, layout=described)


boolean = Type("bool", 1, is_signed=False)
i8, i16, i32, i64 = (Type(f"i{n}", n) for n in (8, 16, 32, 64))
u8, u16, u32, u64 = (Type(f"u{n}", n, is_signed=False) for n in (8, 16, 32, 64))
f16, f32, f64 = (Type(f"f{n}", n, is_float=True) for n in (16, 32, 64))
bf16 = Type("bf16", 16, is_float=True)

WORD_TYPES = {kind: f64 if kind is WordKind.FLOAT else i64 for kind in WordKind if kind is not WordKind.TABLE}
"""What a word of a record is in memory. A table is a pointer to integers."""


Expression: TypeAlias = object
"""A ``Value``, an ``Affine`` index, ``Entries``, a tuple of them, or any Python object known when a kernel is built."""


@dataclass(frozen=True)
class Value:
    """Something that a kernel computes."""

    type: Type
    llvm: ir.Value


@dataclass(frozen=True)
class Affine:
    """``base + step·i`` for the iterations ``i = 0 … lanes−1`` that are carried out at once."""

    base: Value
    step: int
    lanes: int

    @property
    def type(self) -> AffineType:
        return AffineType(self.step, self.lanes)

    @property
    def llvm(self) -> ir.Type:
        return self.base.llvm


@dataclass(frozen=True)
class AffineType:
    """The type of such an index as an argument: its base is passed, the rest is known."""

    step: int
    lanes: int
    llvm = ir.IntType(64)


@dataclass(frozen=True)
class Entries:
    """Entries of a record, one after another from ``base`` on; ``count`` is known or computed."""

    entry: Entry
    base: Value
    count: int | Value
    is_scratch: bool

    @property
    def step(self) -> int:
        return size_of(self.entry)


@dataclass(frozen=True)
class Intrinsic:
    """A function that writes LLVM code itself: ``emit(builder, *values)`` gives a value, a tuple of them or nothing."""

    emit: Callable[..., Any]


@dataclass(frozen=True)
class ExactIntrinsic(Intrinsic):
    """The same for values as they are; those of others are made equally wide first."""


# --- vectors ----------------------------------------------------------------------------------------------------------


class lanes:  # noqa: N801  (it stands where ``range`` does)
    """``for i in lanes(number, n)``: like ``range(n)``, several iterations at once.

    The body reads memory and writes elsewhere, so iterations may be carried out twice: a last vector that would reach
    beyond the end begins earlier instead. ``i`` appears in indices only, as ``base + step·i`` with a known step.
    """

    again = True


class lanes_once(lanes):  # noqa: N801
    """The same for a body that changes what it reads: each iteration is carried out once."""

    again = False


class KernelWord:
    """What the translation knows by name, and writes where it is called."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *_: object) -> NoReturn:
        raise NotImplementedError(f"{self.__name__} is a word for kernels, which are translated and not called")


strided = KernelWord("strided")
"""``strided(p, at, step)``: ``p[at], …, p[at + step − 1]``; whole vectors of ``at = base + step·i`` from one read."""
put_strided = KernelWord("put_strided")
"""``put_strided(p, at, values)`` writes as many, which are a power of two."""
following, preceding = KernelWord("following"), KernelWord("preceding")
"""``following(p, at, step, values)``: what ``values``, read at ``at = base + step·i``, are for ``i + 1``, or for
``i − 1``: one more number is read."""
stretch = KernelWord("stretch")
"""``stretch(p, at, step)``: what ``strided`` reads, as one vector."""
parts = KernelWord("parts")
"""``parts(values, step)``: a stretch, or what was made of some, as ``strided`` gives it."""
beyond = KernelWord("beyond")
"""``beyond(at, step)``: the index ``base + step·i`` of the first iteration after those that are carried out at once."""
moved_on = KernelWord("moved_on")
"""``moved_on(values, number)``: ``values`` for the next iteration; ``number`` is the one that comes after them."""
choose = KernelWord("choose")
"""``choose(test, a, b)``: ``a if test else b``, both computed."""
total = KernelWord("total")
"""``total(combine, neutral, p, at, n)``: ``p[at] ⊕ … ⊕ p[at + n − 1]`` in an order that depends on ``n`` alone. Parts
are as the neutral number is; what joins them converts numbers of ``p`` that are not."""
first = KernelWord("first")
"""``first(test, value, p, at, n)``: the first ``i`` below ``n`` for which ``test(p[at + i], value)``, or ``n``."""
place_of = KernelWord("place_of")
"""``place_of(record.field)``, ``place_of(record.entries[i])``: a pointer to a word of a record."""
number_of = KernelWord("number_of")
"""``number_of(value)``: the type of one of the numbers of a value, which is known when the kernel is built."""


# --- what becomes of functions ----------------------------------------------------------------------------------------


def inlined(function: Function) -> Function:
    """Mark a function whose body always takes the place of its call."""
    function.inlining = "alwaysinline"  # type: ignore[attr-defined]
    return function


def outlined(function: Function) -> Function:
    """Mark a function that is never copied into its callers: a loop that many of them use."""
    function.inlining = "noinline"  # type: ignore[attr-defined]
    return function


@at_build
def unrolled(n: int) -> range:
    """``for i in unrolled(n)``: the body is written out for each known ``i``."""
    return range(n)
