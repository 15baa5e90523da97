"""Reduced precision that a target may document, and that ``--allow`` lets it use.

Each mode says what more it permits. Those of ``ARITHMETICS`` are arithmetics for which ``tolerance`` has a theorem;
partial sums that are stored on the way are none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from flint import fmpq

from gradspec.conformance.judge.conventions import NEEDS_DOCUMENTATION, explanations
from gradspec.conformance.model.arithmetic import Arithmetic
from gradspec.conformance.model.problem import FLOATS, Array, Call
from gradspec.conformance.oracle import Judgement, Meaning
from gradspec.conformance.oracle.expected import expected
from gradspec.conformance.oracle.meaning import Bools
from gradspec.conformance.oracle.sums import SumMeaning
from gradspec.conformance.oracle.tolerance import Facts, error_of, gamma, permitted
from gradspec.domains.exact import rational
from gradspec.domains.formats import F32

REDUCED: dict[str, str] = {
    "cuda_functions": "Elementary functions of a reference may err by 4 units in the last place, as CUDA's do.",
    "fast_math": "Elementary functions of a reference may have the errors of CUDA's intrinsics.",
    "variance_by_moments": "A reference's variance may be the mean of squares less the square of the mean.",
    "online_softmax": "A reference's softmax may be rescaled after every cell.",
    "reassociated": "Coefficients of a reference may be multiplied with each other first.",
    "ftz": "Inputs, products and sums below the smallest normal number of the accumulator may count as zero.",
    "truncate": "Sums may be rounded toward zero instead of to nearest.",
    "tf32": "Factors of float32 may be rounded to 11 significand bits first, as TF32 does.",
    "truncated_tf32": "Factors of float32 may be cut after 11 significand bits, as tensor cores do.",
    "bf16_inputs": "Factors of float32 may be rounded to bfloat16 first.",
    "low_precision_accumulate": "Sums of float16 and bfloat16 may be rounded to that format after every addition.",
    "parts": "Partial sums of float16 and bfloat16, at most 16 to a result, may be stored and added in that format.",
}
"""The names of ``--allow``, with what each permits. The first that permits a result is named: those that let exact
sums round stand behind those of functions, and wide ones are last."""

PROFILES: dict[str, tuple[str, ...]] = {
    "triton": (
        *("ftz", "fast_math", "cuda_functions", "variance_by_moments", "online_softmax", "reassociated"),
        *("tf32", "truncated_tf32"),
    ),
    "cuda": ("ftz", "cuda_functions", "variance_by_moments", "online_softmax", "reassociated"),
    "cuda_fast_math": ("ftz", "fast_math", "cuda_functions", "variance_by_moments", "online_softmax", "reassociated"),
}
"""The liberties that kernels of a kind take: Triton has products in TF32 by default, of factors that tensor cores cut
where it does not round them, ``ex2.approx``, ``div.full`` and ``sqrt.approx``, whose errors are those of CUDA's
intrinsics; atomic additions of float32 flush to zero on any. What is reassociated may be a variance by moments, too,
which has a name of its own."""

MOST_PARTS = 16


def _rounded_to(bits: int) -> Callable[[Arithmetic], Arithmetic]:
    """Factors of float32 rounded to nearest with so many bits; narrower ones have no more, wider ones are not meant."""
    error = fmpq(1, 2**bits)

    def of(arithmetic: Arithmetic) -> Arithmetic:
        if arithmetic.storage != F32:
            return arithmetic
        return replace(arithmetic, input_error=max(arithmetic.input_error, error))

    return of


ARITHMETICS: dict[str, Callable[[Arithmetic], Arithmetic]] = {
    "ftz": lambda own: replace(own, flush_to_zero=True),
    "tf32": _rounded_to(11),
    "truncated_tf32": _rounded_to(10),
    "bf16_inputs": _rounded_to(8),
    "truncate": lambda own: replace(own, truncating=True),
    "low_precision_accumulate": lambda own: replace(own, accumulate=own.storage),
    "fast_math": lambda own: replace(own, fast_math=True),
    "cuda_functions": lambda own: replace(own, function_error=8 * own.u),
    "variance_by_moments": lambda own: replace(own, variance_by_moments=True),
    "online_softmax": lambda own: replace(own, online_softmax=1),
    "reassociated": lambda own: replace(own, reassociated=True),
}
"""The modes that are an arithmetic, as what they make of the target's own."""


def check_modes(names: Iterable[str]) -> tuple[str, ...]:
    """The names of modes as given, in the order of ``REDUCED``.

    >>> check_modes(["tf32", "ftz"])
    ('ftz', 'tf32')
    >>> check_modes(["fp8"])
    Traceback (most recent call last):
        ...
    ValueError: 'fp8' is not a mode of reduced precision; allow some of cuda_functions, fast_math, ...
    """
    given = tuple(names)
    for name in given:
        if name not in REDUCED:
            raise ValueError(f"{name!r} is not a mode of reduced precision; allow some of {', '.join(REDUCED)}")
    return tuple(name for name in REDUCED if name in given)


def judge_reduced(meaning: Meaning, got: Array, arithmetic: Arithmetic, names: Iterable[str]) -> str | None:
    """The first of the modes under which a result is permitted: alone, or else all that have an arithmetic together.

    >>> from gradspec.conformance import meaning
    >>> total = meaning("conv", np.float32([[1 + 2**-12, 1.0]]), np.float32([[[1, -1]]]))
    >>> judge_reduced(total, np.float32([[0.0]]), Arithmetic.of("f32"), ["ftz", "tf32"])
    'tf32'
    """
    modes = check_modes(names)
    left = ~meaning.judge(got, arithmetic).ok
    for name in modes:
        if not _outside(meaning, got, arithmetic, name, left).any():
            return name
    together = [name for name in modes if name in ARITHMETICS]
    if len(together) > 1 and meaning.judge(got, all_together(arithmetic, together)).passed:
        return "+".join(together)
    return None


def all_together(arithmetic: Arithmetic, names: Iterable[str]) -> Arithmetic:
    """The arithmetic with all liberties of modes that are one."""
    for name in check_modes(names):
        arithmetic = ARITHMETICS[name](arithmetic) if name in ARITHMETICS else arithmetic
    return arithmetic


def _outside(meaning: Meaning, got: Array, arithmetic: Arithmetic, name: str, left: Bools) -> Bools:
    """Which of the cells that are left the mode does not permit either."""
    if name in ARITHMETICS:
        return np.logical_not(meaning.judge(got, ARITHMETICS[name](arithmetic)).ok)
    if not isinstance(meaning, SumMeaning) or not left.any():  # copies and smooth maxima are not sums of leaves
        return left
    permits = _in_parts(arithmetic)
    numbers, outside = got.astype(np.float64).ravel(), left.ravel().copy()
    for place, facts in meaning.facts_of(np.flatnonzero(left), arithmetic):
        outside[place] = not permits(facts, float(numbers[place]))
    return outside.reshape(left.shape)


Permits: TypeAlias = Callable[[Facts, float], bool]


def _in_parts(arithmetic: Arithmetic) -> Permits:
    """At most J partial sums ``A_j``, each within ``E_j``, stored and added, however the leaves were divided.

    ``Σ|A_j| ≤ S`` and ``Σ E_j ≤ E``, so what is stored errs by ``F = E + u_T(S + E) + J·η_T/2`` in all, and the sum by
    ``F + Γ^T_{J−1}(S + F)``. It overflows only where adding in the storage format throughout might.
    """
    storage, narrow = arithmetic.storage, ARITHMETICS["low_precision_accumulate"](arithmetic)
    u, tiniest = rational(storage.unit), rational(storage.tiniest)

    def permits(facts: Facts, got: float) -> bool:
        special = facts.nan or facts.nan_from_padding or facts.plus_infinity or facts.minus_infinity
        if special or not math.isfinite(got):
            return permitted(facts, narrow).allows(got)
        parts = min(facts.leaves, MOST_PARTS)
        error = error_of(facts, arithmetic)
        stored = error + u * (facts.mass + error) + parts * tiniest / 2
        return bool(abs(rational(got) - facts.value) <= stored + gamma(u, parts - 1) * (facts.mass + stored))

    return permits if storage.precision < arithmetic.accumulate.precision else lambda facts, got: False


# --- selections of flushed numbers ------------------------------------------------------------------------------------


def is_explained_by_flushing(call: Call, name: str, judgement: Judgement) -> bool:
    """Whether a result is right, or right by convention, where numbers below the smallest normal one are zero.

    The tolerance has a term for sums. A selection has none: zeros tie, and the winner, its tangent and its index are
    those of the flushed numbers.
    """
    if call.problem.dtype not in FLOATS:
        return False
    arithmetic = replace(judgement.arithmetic, flush_to_zero=True)
    smallest = float(arithmetic.accumulate.normal)
    seen = call.mapped(lambda array: array if array.dtype.kind in "iu" else flush(array, smallest))
    meaning = expected(seen)[name]
    if meaning is None:
        return False
    again = meaning.judge(flush(judgement.got, smallest), arithmetic)
    return again.passed or any(NEEDS_DOCUMENTATION.isdisjoint(e.names) for e in explanations(seen, name, again))


def flush(array: Array, smallest: float) -> Array:
    """Numbers below the smallest normal one of the accumulator as zeros of their sign.

    >>> flush(np.float32([1e-40, -1.0]), 2.0**-126).tolist()
    [0.0, -1.0]
    """
    return np.where(np.abs(array) < smallest, np.copysign(array.dtype.type(0), array), array)
