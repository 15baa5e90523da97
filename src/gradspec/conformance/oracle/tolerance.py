"""The certified tolerance: how far a floating-point result may lie from the real one, and not a bit further.

**Theorem.** Let ``y = Σ tᵢ`` have N non-zero leaves, K of them products of two inputs, and ``S = Σ|tᵢ|``. For any order
and tree of summation, products rounded or fused, absent overflow,

    |ŷ − y| ≤ Γ_N·S + K·(η/2)·(1+u)^(N−1),    Γ_k = (1+u)^k − 1,    and Γ_{N−1}·S if K = 0,

``u`` the unit roundoff and ``η`` the smallest subnormal of the accumulator. A leaf meets at most one product rounding
and N−1 addition roundings, each a factor within 1 ± u; a product that underflows errs by at most η/2 more, which the
additions amplify; an addition never underflows inexactly.

Every bound below is linear in S and K with coefficients that depend on N alone (`ErrorBound`), so the same definition
serves a single output in rationals and whole arrays in floats. docs/tolerance.md derives the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from flint import arb, fmpq

from gradspec.conformance.model.arithmetic import Arithmetic
from gradspec.domains.ball import endpoints, working
from gradspec.domains.exact import rational
from gradspec.domains.formats import Format


@lru_cache(maxsize=4096)
def power(u: fmpq, k: int) -> fmpq:
    """``(1+u)^k`` from above, to within 2^−180 of itself: exact powers would have thousands of digits."""
    with working(200):
        return endpoints(arb(1 + u) ** max(k, 0))[1]


def gamma(u: fmpq, k: int) -> fmpq:
    """``Γ_k = (1+u)^k − 1`` from above; Γ_0 = 0.

    >>> round(float(gamma(fmpq(1, 2**24), 600)) * 2**24, 4)
    600.0107
    """
    return power(u, k) - 1 if k > 0 else fmpq(0)


@dataclass(frozen=True, slots=True)
class ErrorBound:
    """``error = per_mass·S + per_count·K + constant + flushed·Z``, Z the mass of leaves with a subnormal factor."""

    per_mass: fmpq
    per_count: fmpq
    constant: fmpq
    flushed: int

    def error(self, mass: fmpq, count: int, subnormal_mass: fmpq) -> fmpq:
        return self.per_mass * mass + self.per_count * count + self.constant + self.flushed * subnormal_mass


NO_ERROR = ErrorBound(fmpq(0), fmpq(0), fmpq(0), 0)


@lru_cache(maxsize=4096)
def error_bound(n: int, flag: bool, divided: bool, arithmetic: Arithmetic) -> ErrorBound:
    """The theorem, for n non-zero leaves, of which the ``flag`` says that some are products.

    A ``divided`` sum has a division, or a rounded reciprocal before or after it: one more rounding, and another for the
    divisor itself if it has more than p bits, which is what the flag says then.
    """
    if not n:
        return NO_ERROR
    u, roundings, additions = arithmetic.u, n + 1 + flag if divided else n - 1 + flag, n if divided else n - 1
    bound = ErrorBound(gamma(u, roundings), arithmetic.underflow * power(u, additions), fmpq(0), 0)
    return _with_liberties(bound, roundings if divided else n, arithmetic)


def _with_liberties(bound: ErrorBound, n: int, arithmetic: Arithmetic) -> ErrorBound:
    u, v = arithmetic.u, arithmetic.input_error
    per_mass = bound.per_mass + ((1 + v) * (1 + v) - 1) * (1 + gamma(u, n))
    if not arithmetic.flush_to_zero:
        return ErrorBound(per_mass, bound.per_count, bound.constant, 0)
    # Flushing loses up to ν where rounding lost η/2, in every product and every sum, and all of a subnormal input.
    return ErrorBound(per_mass, fmpq(0), 2 * n * rational(arithmetic.accumulate.normal) * power(u, n), 1)


def stored_error(y: fmpq, error: fmpq, storage: Format) -> fmpq:
    """The error after one more rounding, into the storage format."""
    return error + max(rational(storage.unit) * (abs(y) + error), rational(storage.tiniest) / 2)


def parts_error(parts: Sequence[tuple[fmpq, fmpq]], storage: Format) -> fmpq:
    """The error of partial sums ``(A_j, E_j)`` that are each stored and then added in the storage format."""
    rounded = sum((stored_error(a, e, storage) for a, e in parts), fmpq(0))
    mass = sum((abs(a) for a, _ in parts), fmpq(0))
    return rounded + gamma(rational(storage.unit), len(parts) - 1) * (mass + rounded)


def adjoint_tolerance(
    cotangent: Sequence[fmpq], jvp_errors: Sequence[fmpq], tangent: Sequence[fmpq], vjp_errors: Sequence[fmpq]
) -> fmpq:
    """How far ⟨ȳ, Jv⟩ and ⟨Jᵀȳ, v⟩ of computed derivatives may differ, inner products exact.

    >>> adjoint_tolerance([fmpq(2)], [fmpq(1, 4)], [fmpq(-1)], [fmpq(1, 8)])
    5/8
    """
    forward = sum((abs(c) * e for c, e in zip(cotangent, jvp_errors, strict=True)), fmpq(0))
    return sum((abs(t) * e for t, e in zip(tangent, vjp_errors, strict=True)), forward)


# --- what a result may be --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Facts:
    """One output in exact arithmetic: the sum of its finite leaves, and what is not finite about the others."""

    value: fmpq
    mass: fmpq
    leaves: int
    products: int
    positive: fmpq
    """The positive leaves added up, before any division: what an accumulator may reach."""
    negative: fmpq
    """The absolute values of the negative ones."""
    grain: int | None = None
    """All leaves are multiples of 2^grain."""
    subnormal_mass: fmpq = fmpq(0)  # noqa: RUF009
    divided: bool = False
    large_divisor: bool = False
    nan: bool = False
    nan_from_padding: bool = False
    plus_infinity: bool = False
    minus_infinity: bool = False
    spread: bool = False
    """Something that is not finite lies where the kernel's algorithm mixes it in."""

    def is_exact_sum(self, arithmetic: Arithmetic) -> bool:
        """Leaves that are multiples of 2^e ≥ η with S ≤ 2^(p+e): every partial sum is a number of the accumulator."""
        if self.leaves == 0:
            return True
        if self.grain is None or not arithmetic.exact_sums_are_exact:
            return False
        accumulate = arithmetic.accumulate
        if self.grain < accumulate.lowest_bit or max(self.positive, self.negative) > arithmetic.accumulator_limits[0]:
            return False
        return bool(self.mass <= fmpq(2) ** (accumulate.precision + self.grain))


@dataclass(frozen=True, slots=True)
class Permitted:
    """The results an output may have: finite ones from ``low`` to ``high`` (None: no finite one), and special ones."""

    low: fmpq | None
    high: fmpq | None
    plus_infinity: bool
    minus_infinity: bool
    nan: bool

    def allows(self, got: float) -> bool:
        if got != got:
            return self.nan
        if got in (float("inf"), float("-inf")):
            return self.plus_infinity if got > 0 else self.minus_infinity
        return self.low is not None and self.high is not None and bool(self.low <= rational(got) <= self.high)

    def __str__(self) -> str:
        words = []
        if self.low is not None and self.high is not None:
            low, high = float(self.low), float(self.high)
            words.append(repr(low) if self.low == self.high else f"[{low!r}, {high!r}]")
        specials = {"inf": self.plus_infinity, "-inf": self.minus_infinity, "nan": self.nan}
        return " or ".join([*words, *(word for word, allowed in specials.items() if allowed)])


def permitted(facts: Facts, arithmetic: Arithmetic) -> Permitted:
    """What any correct kernel of this arithmetic may return.

    >>> facts = Facts(fmpq(3), fmpq(3), 2, 0, fmpq(3), fmpq(0), grain=0)
    >>> str(permitted(facts, Arithmetic.of("f32")))
    '3.0'
    """
    plus, minus = (_may_overflow(side, facts, arithmetic) for side in (facts.positive, facts.negative))
    if facts.nan or (facts.plus_infinity and facts.minus_infinity):
        return Permitted(None, None, False, False, True)
    if facts.spread:
        own = permitted(replace(facts, spread=False), arithmetic)
        return replace(own, plus_infinity=True, minus_infinity=True, nan=True)
    if facts.plus_infinity or facts.minus_infinity:
        opposite = minus if facts.plus_infinity else plus
        nan = facts.nan_from_padding or opposite
        return Permitted(None, None, facts.plus_infinity, facts.minus_infinity, nan)
    low, high, above, below = _finite_results(facts, arithmetic)
    nan = facts.nan_from_padding or (plus and minus)
    return Permitted(low, high, plus or above, minus or below, nan)


def _may_overflow(side: fmpq, facts: Facts, arithmetic: Arithmetic) -> bool:
    """Whether a partial sum of leaves of one sign can round to infinity."""
    n, u, (largest, edge) = facts.leaves, arithmetic.u, arithmetic.accumulator_limits
    # For n < 2^(p−1) the growth (1+u)^n is less than e, and underflowing products add nothing to speak of.
    if n < 2 ** (arithmetic.accumulate.precision - 1) and 4 * side < edge:
        return False
    if facts.is_exact_sum(arithmetic):  # nothing rounds, so nothing rounds up to infinity
        return bool(side > largest)
    growth = power(u, n + facts.divided)  # a reciprocal may be rounded before anything is added
    return bool(growth * side + facts.products * arithmetic.underflow * power(u, n - 1) >= edge)


def _finite_results(facts: Facts, arithmetic: Arithmetic) -> tuple[fmpq | None, fmpq | None, bool, bool]:
    """The finite results allowed, and whether storing may overflow upward and downward."""
    y, storage, accumulate = facts.value, arithmetic.storage, arithmetic.accumulate
    if facts.is_exact_sum(arithmetic):
        rounded = storage.nearest_ratio(int(y.p), int(y.q))
        if rounded in (float("inf"), float("-inf")):
            return None, None, rounded > 0, rounded < 0
        return rational(rounded), rational(rounded), False, False
    error = error_of(facts, arithmetic)
    if storage == accumulate:
        finite = abs(y) - error <= arithmetic.accumulator_limits[0]
        return (y - error, y + error, False, False) if finite else (None, None, False, False)
    edge = rational(storage.overflow)
    total = stored_error(y, error, storage)
    finite = abs(y) - error < edge and abs(y) - error <= arithmetic.accumulator_limits[0]
    above, below = bool(y + error >= edge), bool(-y + error >= edge)
    return (y - total, y + total, above, below) if finite else (None, None, above, below)


def error_of(facts: Facts, arithmetic: Arithmetic) -> fmpq:
    """``E`` of the theorem: the accumulated error before storing."""
    count, flag = (facts.leaves, facts.large_divisor) if facts.divided else (facts.products, facts.products > 0)
    bound = error_bound(facts.leaves, flag, facts.divided, arithmetic)
    return bound.error(facts.mass, count, facts.subnormal_mass)
