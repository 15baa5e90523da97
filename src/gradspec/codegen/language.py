"""The words that kernels are written in, beyond Python's own: loops over vectors, inlining, what is known before.

A kernel is Python that ``translation`` turns into LLVM's code, so nothing here is ever called with numbers: the
functions say what they mean and are known to the translation by name. Kernels import everything from here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from gradspec.codegen.types import (
    Affine,
    ExactIntrinsic,
    Intrinsic,
    KernelError,
    Type,
    Value,
    at_build,
    bf16,
    boolean,
    copied,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    pointer,
    u8,
    u16,
    u32,
    u64,
)

__all__ = [
    "Affine",
    "ExactIntrinsic",
    "Intrinsic",
    "KernelError",
    "Type",
    "Value",
    "at_build",
    "beyond",
    "bf16",
    "boolean",
    "choose",
    "copied",
    "f16",
    "f32",
    "f64",
    "first",
    "following",
    "i8",
    "i16",
    "i32",
    "i64",
    "inlined",
    "lanes",
    "lanes_once",
    "moved_on",
    "number_of",
    "outlined",
    "parts",
    "place_of",
    "pointer",
    "preceding",
    "put_strided",
    "stretch",
    "strided",
    "total",
    "u8",
    "u16",
    "u32",
    "u64",
    "unrolled",
]

Function = TypeVar("Function", bound=Callable[..., Any])


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
    """The same for writing as many, which are a power of two."""
    return _in_kernels_only(p, at, values)


def following(p: Any, at: Any, step: int, values: Any) -> Any:
    """What ``values``, read at ``at = base + step·i``, are for ``i + 1``: one more number is read."""
    return _in_kernels_only(p, at, step, values)


def preceding(p: Any, at: Any, step: int, values: Any) -> Any:
    """The same for ``i − 1``."""
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
    """``p[at] ⊕ … ⊕ p[at + n − 1]`` in an order that depends on ``n`` alone. Parts are as the neutral number is; what
    joins them converts numbers of ``p`` that are not."""
    return _in_kernels_only(combine, neutral, p, at, n)


def first(test: Any, value: Any, p: Any, at: Any, n: Any) -> Any:
    """The first ``i`` below ``n`` for which ``test(p[at + i], value)`` holds, or ``n``."""
    return _in_kernels_only(test, value, p, at, n)


def place_of(entry: Any) -> Any:
    """``place_of(record.field)``, ``place_of(record.entries[i])``: a pointer to a word of a record."""
    return _in_kernels_only(entry)


def number_of(value: Any) -> Any:
    """The type of one of the numbers of a value, which is known when the kernel is built."""
    return _in_kernels_only(value)


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
