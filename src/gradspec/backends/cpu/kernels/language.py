"""The words that kernels are written in, beyond Python's own: types of numbers, loops over vectors, inlining.

A kernel is Python that ``compiler`` translates, so nothing here is ever called with numbers: types also make constants
while a kernel is built, and the functions say what they mean and are known to the translation by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, TypeVar

from llvmlite import ir

Function = TypeVar("Function", bound=Callable[..., Any])


class KernelError(TypeError):
    """A kernel that is not in the language: a mistake in this package. It says where and what."""


class Refusal(Exception):  # noqa: N818  (it never leaves the translation)
    """What is wrong with the expression at hand; whoever knows its place makes a ``KernelError`` of it."""


# --- types and values -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Type:
    """A number of fixed width, a vector of them, or a pointer, which has an element.

    Calling a type makes a constant while a kernel is built, and converts inside one.
    """

    name: str
    bits: int
    is_float: bool = False
    is_signed: bool = True
    element: Type | None = None
    lanes: int = 1

    @cached_property
    def llvm(self) -> Any:
        if self.element is not None:
            return ir.PointerType()
        floats = {16: ir.HalfType(), 32: ir.FloatType(), 64: ir.DoubleType()}
        one = floats[self.bits] if self.is_float else ir.IntType(self.bits)
        return one if self.lanes == 1 else ir.VectorType(one, self.lanes)

    @property
    def bytes(self) -> int:
        return self.bits // 8

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


@cache
def pointer(element: Type) -> Type:
    return Type(f"{element.name}*", 64, is_signed=False, element=element)


boolean = Type("bool", 1, is_signed=False)
i8, i16, i32, i64 = (Type(f"i{n}", n) for n in (8, 16, 32, 64))
u8, u16, u32, u64 = (Type(f"u{n}", n, is_signed=False) for n in (8, 16, 32, 64))
f16, f32, f64 = (Type(f"f{n}", n, is_float=True) for n in (16, 32, 64))


@dataclass(frozen=True)
class Value:
    """Something that a kernel computes."""

    type: Type
    llvm: Any


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
    def llvm(self) -> Any:
        return self.base.llvm


@dataclass(frozen=True)
class AffineType:
    """The type of such an index as an argument: its base is passed, the rest is known."""

    step: int
    lanes: int
    llvm = ir.IntType(64)


@dataclass(frozen=True)
class Intrinsic:
    """A function that writes LLVM code itself: ``emit(builder, *values)`` gives a value or nothing."""

    emit: Callable[..., Value | None]


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


def _in_kernels_only(*_: Any) -> Any:
    raise NotImplementedError("this is a word for kernels, which are translated and not called")


def strided(p: Any, at: Any, step: int) -> Any:
    """``p[at], …, p[at + step − 1]``; with ``at = base + step·i`` whole vectors of each, from one read."""
    return _in_kernels_only(p, at, step)


def put_strided(p: Any, at: Any, values: Any) -> Any:
    """The same for writing two."""
    return _in_kernels_only(p, at, values)


def following(p: Any, at: Any, step: int, values: Any) -> Any:
    """What ``values``, read at ``at = base + step·i``, are for ``i + 1``: one more number is read."""
    return _in_kernels_only(p, at, step, values)


def stretch(p: Any, at: Any, step: int) -> Any:
    """``p[at], …, p[at + step − 1]`` for every iteration of ``at = base + step·i``, as one vector."""
    return _in_kernels_only(p, at, step)


def parts(values: Any, step: int) -> Any:
    """A stretch, or what was made of some, as ``strided`` gives it."""
    return _in_kernels_only(values, step)


def beyond(at: Any, step: int) -> Any:
    """The index ``base + step·i`` of the first iteration after those that are carried out at once."""
    return _in_kernels_only(at, step)


def moved_on(values: Any, number: Any) -> Any:
    """What ``values`` are for the next iteration; ``number`` is the one that comes after them."""
    return _in_kernels_only(values, number)


def choose(test: Any, a: Any, b: Any) -> Any:
    """``a if test else b``, both computed."""
    return _in_kernels_only(test, a, b)


def total(combine: Any, neutral: Any, p: Any, at: Any, n: Any) -> Any:
    """``p[at] ⊕ … ⊕ p[at + n − 1]`` in an order that depends on ``n`` alone."""
    return _in_kernels_only(combine, neutral, p, at, n)


# --- inlining ---------------------------------------------------------------------------------------------------------


def inlined(function: Function) -> Function:
    """Mark a function whose body always takes the place of its call."""
    function.inlining = "alwaysinline"  # type: ignore[attr-defined]
    return function


def outlined(function: Function) -> Function:
    """Mark a function that is never copied into its callers: a loop that many of them use."""
    function.inlining = "noinline"  # type: ignore[attr-defined]
    return function
