"""Outputs that are sums of leaves, judged: first in float64 with its own error bound, then, if need be, exactly.

A convolution, its derivatives and its transpose are matrix products: rows of gathered cells times columns of weights.
Pooling's sums are rows of leaves, some of them divided. For both, a *chunk* is a set of outputs that can give

- `Estimates`: value, mass and counts in float64. Inputs of at most 26 significand bits have exact products there, so
  the error of the value is that of one summation, which the theorem of ``tolerance`` bounds as it bounds a kernel's.
  Sums of float64 are carried in two float64 each (``doubled``);
- `Facts`: the same in integers and rationals (``fmpz_mat`` for the matrix products), rounded at most once, at the end.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from flint import fmpq, fmpz, fmpz_mat

from gradspec.conformance.model.arithmetic import Arithmetic
from gradspec.conformance.model.problem import Array
from gradspec.conformance.oracle.meaning import (
    Bools,
    Decision,
    Floats,
    Ints,
    Meaning,
    has_exact_products,
    round_array,
    stored_errors,
)
from gradspec.conformance.oracle.tolerance import Facts, Permitted, error_bound, permitted, power
from gradspec.domains.exact import rational
from gradspec.domains.formats import Format, format_named

SLACK = 2.0**-40
"""Relative room for the roundings of the filter's own comparisons: a handful of float64 operations."""

NO_GRAIN = -(1 << 20)
"""The grain of an output whose leaves have no common power of two, so that no sum is known to be exact."""

ZERO_GRAIN = 1 << 20
"""The grain of a zero: a multiple of every power of two."""

ENTRIES_AT_ONCE = 1 << 17
"""Matrix entries gathered at a time."""


class Specials(NamedTuple):
    """Outputs with a NaN leaf, with one through padding, with a +∞ leaf, with a −∞ leaf, or with something that is not
    finite mixed in: as `Facts` names them."""

    nan: Bools
    nan_from_padding: Bools
    plus_infinity: Bools
    minus_infinity: Bools
    spread: Bools

    @property
    def any(self) -> Bools:
        """Those with such a leaf of their own."""
        return np.asarray(np.logical_or.reduce(self[:4]))

    @staticmethod
    def none(count: int) -> Specials:
        return Specials(*np.zeros((5, count), np.bool_))

    def decided(self, got: Floats, far_from_overflow: Bools) -> tuple[Bools, Bools]:
        """``(passes, fails)`` where what is not finite decides alone: nothing finite overflows beside it."""
        must_be_nan = self.nan | (self.plus_infinity & self.minus_infinity)
        one_infinity = (self.plus_infinity ^ self.minus_infinity) & ~self.nan & far_from_overflow
        infinity = np.where(self.plus_infinity, np.inf, -np.inf)
        wild = self.spread & ~np.isfinite(got)
        either = (got == infinity) | (self.nan_from_padding & np.isnan(got)) | wild
        right = np.where(must_be_nan, np.isnan(got), either)
        known = must_be_nan | one_infinity | wild
        return known & right, known & ~right


class Mixture(NamedTuple):
    """What an algorithm mixes into outputs, in the place of their own leaves: the theorem's S, N and K (``mixing``)."""

    mass: Floats
    reach: Floats
    """What an intermediate result may come to."""
    roundings: Ints
    underflows: Ints
    grain: Ints
    wild: Bools
    """Where something that is not finite is mixed in."""

    def at(self, places: Ints) -> Mixture:
        return Mixture._make(part[places] for part in self)

    def sums(self, value: fmpq, place: int) -> ExactSums:
        mass, reach = (_above(float(part[place])) for part in (self.mass, self.reach))
        return ExactSums(value, mass, reach, reach, fmpq(0))


def _above(number: float) -> fmpq:
    """The number, or what no product of two norms of float64 exceeds."""
    return rational(number) if math.isfinite(number) else fmpq(2) ** 2200


@dataclass
class Estimates:
    """Float64 facts about the outputs of a chunk."""

    value: Floats
    rest: Floats
    """What is left of the value beyond one float64, where it was carried in two."""
    error: Floats
    """How far ``value + rest`` may be off; NaN or infinite where float64 says nothing."""
    mass: Floats
    reach: Floats
    """The sum of |leaves| before any division: what an accumulator may pass through."""
    leaves: Ints
    products: Ints
    grain: Ints
    specials: Specials
    mixture: Mixture | None = None

    def within(self, mixture: Mixture) -> Estimates:
        """The same values, as an algorithm computes them that mixes more into them."""
        mass, reach, leaves, products, grain, wild = mixture
        specials = self.specials._replace(spread=wild)
        return Estimates(self.value, self.rest, self.error, mass, reach, leaves, products, grain, specials, mixture)

    @cached_property
    def special(self) -> Bools:
        return self.specials.any

    @property
    def slack(self) -> Floats:
        """Relative room for the roundings in ``mass``, and in a handful of operations with it."""
        return np.asarray(SLACK + self.leaves * 2.0**-50, np.float64)


@dataclass
class Gap:
    """How far results are from the real ones: a distance and how far off that may be, and whether they are equal."""

    distance: Floats
    error: Floats
    equal: Bools
    known: Bools
    """Where ``equal`` can be relied on, if the sum is an exact one."""


class ExactSums(NamedTuple):
    """What is added up in one output, as `Facts` names it."""

    value: fmpq
    mass: fmpq
    positive: fmpq
    negative: fmpq
    subnormal_mass: fmpq


class Chunk(ABC):
    """A set of outputs, at flat ``places`` of the result."""

    places: Ints
    divided: bool = False

    @abstractmethod
    def estimates(self) -> Estimates:
        """Float64 facts about all outputs."""

    def divides_by_rounded(self, format: Format) -> Bools:
        """Outputs with a divisor that ``format`` must round."""
        return np.zeros(len(self.places), np.bool_)

    def different(self, chosen: Ints, got: Floats) -> tuple[Ints, Ints]:
        """One of each kind of the chosen outputs with their results, and for every one of them its kind."""
        return np.arange(len(chosen)), np.arange(len(chosen))

    @abstractmethod
    def values(self, chosen: Ints) -> Iterator[fmpq]:
        """The exact sums of the chosen outputs' finite leaves."""

    @abstractmethod
    def sums(self, chosen: Ints, normal: fmpq | None) -> Iterator[ExactSums]:
        """More of the same; ``normal`` asks for the mass of leaves with a factor below it."""


Mixes: TypeAlias = Callable[[Arithmetic], Mixture | None]


class SumMeaning(Meaning):
    """Outputs that are sums, given as chunks that can be made again and again.

    ``mixed`` says what a kernel of an arithmetic mixes into them; None where it adds up the outputs' own leaves.
    """

    def __init__(
        self, shape: tuple[int, ...], chunks: Callable[[], Iterable[Chunk]], mixed: Mixes = lambda arithmetic: None
    ) -> None:
        self.shape, self.chunks, self.mixed = shape, chunks, mixed

    def estimate_chunks(self, arithmetic: Arithmetic) -> Iterator[tuple[Chunk, Estimates, Estimates]]:
        """The chunks with what is known of their outputs: of their own leaves, and of what this arithmetic mixes."""
        mixture = self.mixed(arithmetic)
        for chunk in self.chunks():
            own = chunk.estimates()
            yield chunk, own, own if mixture is None else own.within(mixture.at(chunk.places))

    def _decide(self, got: Floats, arithmetic: Arithmetic) -> Decision:
        decided = Decision.of(np.zeros(got.shape, np.bool_))
        for chunk, own, e in self.estimate_chunks(arithmetic):
            results = got[chunk.places]
            limits = Limits.of(chunk, e, arithmetic)
            passes, fails = _filter(results, _estimated_gap(results, e, arithmetic), limits, e, arithmetic)
            left = np.flatnonzero(~passes & ~fails)
            decided.exact += len(left)
            if len(left):
                passes[left] = _decide_exactly(results, left, chunk, limits, e, arithmetic)
            decided.ok[chunk.places] = passes
            content = own.mass if e is own else own.mass.max(initial=0.0)
            decided.wide[chunk.places] = ~e.special & ~_exact_sums(e, arithmetic)[1] & (limits.tolerance >= content)
            decided.skipped[chunk.places] = e.specials.nan_from_padding & ~e.specials.nan & ~np.isnan(results)
            if e is not own:
                far = Limits.of(chunk, own, arithmetic).far_from_overflow
                alone = own.specials.decided(results, far)[1] | (~own.special & far & ~np.isfinite(results))
                decided.spread[chunk.places] = passes & alone
        return decided

    def summary(self, places: Ints, arithmetic: Arithmetic) -> tuple[Floats, Floats, Bools]:
        """Values of the outputs at flat places, how far an accumulator may be from them, and which must be exact."""
        values, errors, exact = np.zeros((3, prod(self.shape)))
        accumulated = replace(arithmetic, storage=arithmetic.accumulate)
        for chunk, _, e in self.estimate_chunks(arithmetic):
            values[chunk.places] = e.value
            errors[chunk.places] = Limits.of(chunk, e, accumulated).tolerance + e.error
            exact[chunk.places] = _exact_sums(e, arithmetic)[0]
        return values[places], errors[places], exact[places] > 0

    def rounded(self, format: str | Format) -> Floats:
        to, values = format_named(format), np.zeros(prod(self.shape))
        for chunk in self.chunks():
            e = chunk.estimates()
            with np.errstate(invalid="ignore"):
                low, high = (round_array(e.value + side * (e.error + np.abs(e.rest)), to) for side in (-2, 2))
            undecided = np.flatnonzero(e.special | (low != high))
            for i, facts in zip(undecided, _facts(chunk, undecided, e, Arithmetic.of(to)), strict=True):
                low[i] = _round_facts(facts, to)
            values[chunk.places] = low
        return values.reshape(self.shape)

    def facts_at(self, place: int, arithmetic: Arithmetic) -> Facts:
        """The exact facts of the output at a flat place."""
        return next(facts for _, facts in self.facts_of(np.array([place]), arithmetic))

    def facts_of(self, places: Ints, arithmetic: Arithmetic) -> Iterator[tuple[int, Facts]]:
        """The exact facts of the outputs at some flat places, with the place of each."""
        for chunk, _, e in self.estimate_chunks(arithmetic):
            (found,) = np.nonzero(np.isin(chunk.places, places))
            if len(found):
                yield from zip(chunk.places[found].tolist(), _facts(chunk, found, e, arithmetic), strict=True)

    def permitted_at(self, place: int, arithmetic: Arithmetic) -> Permitted:
        return permitted(self.facts_at(place, arithmetic), arithmetic)


def _facts(chunk: Chunk, chosen: Ints, e: Estimates, arithmetic: Arithmetic) -> Iterator[Facts]:
    normal = rational(arithmetic.accumulate.normal) if arithmetic.flush_to_zero else None
    counts = {
        "leaves": e.leaves,
        "products": e.products,
        "grain": e.grain,
        "large_divisor": chunk.divides_by_rounded(arithmetic.accumulate),
        **e.specials._asdict(),
    }
    rows = zip(*(numbers[chosen].tolist() for numbers in counts.values()), strict=True)
    for place, sums, row in zip(chosen.tolist(), chunk.sums(chosen, normal), rows, strict=True):
        given = sums if e.mixture is None else e.mixture.sums(sums.value, place)
        yield Facts(**given._asdict(), **dict(zip(counts, row, strict=True)), divided=chunk.divided)


def _round_facts(facts: Facts, format: Format) -> float:
    if facts.nan or facts.nan_from_padding or (facts.plus_infinity and facts.minus_infinity):
        return np.nan
    if facts.plus_infinity or facts.minus_infinity:
        return np.inf if facts.plus_infinity else -np.inf
    return format.nearest_ratio(int(facts.value.p), int(facts.value.q))


# --- the filter ------------------------------------------------------------------------------------------------------


def _estimated_gap(got: Floats, e: Estimates, arithmetic: Arithmetic) -> Gap:
    """The gap as float64 sees it. A sum that is exact in the accumulator is exact in float64 too."""
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs((got - e.value) - e.rest)
    known = np.isfinite(e.error) & np.isfinite(e.value)
    return Gap(distance, e.error, got == round_array(e.value, arithmetic.storage), known)


def _decide_exactly(
    got: Floats, left: Ints, chunk: Chunk, limits: Limits, e: Estimates, arithmetic: Arithmetic
) -> Bools:
    """Whether the results at ``left`` are permitted: by their exact distance, or at the very edge by exact facts."""
    finite = left[np.isfinite(got[left]) & ~e.special[left] & np.isfinite(e.mass[left])]
    distance = np.zeros(len(got))
    distance[finite] = list(map(_distance, chunk.values(finite), got[finite].tolist()))
    same_format = np.full(len(got), arithmetic.storage == arithmetic.accumulate)
    gap = Gap(distance, np.zeros(len(got)), distance == 0, same_format)
    passes, fails = _filter(got, gap, limits, e, arithmetic)
    decided = np.zeros(len(got), np.bool_)
    # Below this, products may have underflowed in float64, and the mass says too little.
    decided[finite] = (passes | fails)[finite] & (e.mass[finite] > 2.0**-900)
    edge = left[~decided[left]]
    different, which = chunk.different(edge, got[edge])
    facts = _facts(chunk, edge[different], e, arithmetic)
    allowed = [permitted(f, arithmetic).allows(y) for f, y in zip(facts, got[edge[different]].tolist(), strict=True)]
    passes[edge] = np.asarray(allowed, np.bool_)[which]
    return passes[left]


def _distance(value: fmpq, got: float) -> float:
    """``|got − value|``, rounded once; infinite beyond the largest number."""
    try:
        return float(abs(value - _ratio(got)))
    except OverflowError:
        return math.inf


@dataclass
class Limits:
    """How far each output of a chunk may be off, and whether its sums stay clear of overflow, in float64."""

    tolerance: Floats
    far_from_overflow: Bools

    @staticmethod
    def of(chunk: Chunk, e: Estimates, arithmetic: Arithmetic) -> Limits:
        per_mass, per_count, constant, growth = _coefficients(chunk, e, arithmetic)
        storage = arithmetic.storage
        with np.errstate(invalid="ignore", over="ignore"):
            tolerance = per_mass * e.mass + per_count * (e.leaves if chunk.divided else e.products) + constant
            if storage != arithmetic.accumulate:
                tolerance = stored_errors(e.value, tolerance, storage)
            in_accumulator = 2 * growth * e.reach < float(arithmetic.accumulate.largest)
            in_storage = 2 * (np.abs(e.value) + tolerance) < float(storage.largest)
        return Limits(tolerance, in_accumulator & in_storage)


def _filter(got: Floats, gap: Gap, limits: Limits, e: Estimates, arithmetic: Arithmetic) -> tuple[Bools, Bools]:
    """``(passes, fails)``; neither where float64 cannot tell."""
    slack = e.slack
    with np.errstate(invalid="ignore", over="ignore"):
        plain = ~e.special & np.isfinite(got) & limits.far_from_overflow
        passes = plain & (gap.distance * (1 + slack) + gap.error <= limits.tolerance * (1 - slack))
        fails = plain & (gap.distance * (1 - slack) - gap.error > limits.tolerance * (1 + slack))
    special_passes, special_fails = e.specials.decided(got, limits.far_from_overflow)
    passes, fails = passes | special_passes, fails | special_fails
    if arithmetic.flush_to_zero:  # the tolerance above leaves out the mass of subnormal leaves
        return passes, special_fails
    if not arithmetic.exact_sums_are_exact:
        return passes, fails
    exact, maybe = _exact_sums(e, arithmetic)
    told = plain & exact & gap.known
    return (passes & ~maybe) | (told & gap.equal), (fails & ~maybe) | (told & ~gap.equal)


def _exact_sums(e: Estimates, arithmetic: Arithmetic) -> tuple[Bools, Bools]:
    """Outputs whose sum must be exact, and outputs for which that may be so."""
    accumulate = arithmetic.accumulate
    with np.errstate(over="ignore"):
        limit = np.ldexp(1.0, np.clip(accumulate.precision + e.grain, -1074, 1023))
    maybe = (e.grain >= accumulate.lowest_bit) & (e.mass * (1 - e.slack) <= limit)
    exact = maybe & (e.mass * (1 + e.slack) <= limit)
    nothing = e.leaves == 0
    return exact | nothing, maybe | nothing


def _coefficients(chunk: Chunk, e: Estimates, arithmetic: Arithmetic) -> Floats:
    """The bound's coefficients for every output, looked up by what they depend on: ``[coefficient, output]``."""
    flags = chunk.divides_by_rounded(arithmetic.accumulate) if chunk.divided else e.products > 0
    distinct, which = np.unique(2 * e.leaves + flags, return_inverse=True)
    rows = [_coefficients_of(key // 2, bool(key % 2), chunk.divided, arithmetic) for key in distinct.tolist()]
    return np.asarray(np.asarray(rows).reshape(-1, 4).T[:, which.ravel()])


@lru_cache(maxsize=4096)
def _coefficients_of(n: int, flag: bool, divided: bool, arithmetic: Arithmetic) -> tuple[float, float, float, float]:
    bound = error_bound(n, flag, divided, arithmetic)
    growth = power(arithmetic.u, n + 2)
    return float(bound.per_mass), float(bound.per_count), float(bound.constant), float(growth)


# --- grains: the powers of two that divide floats ---------------------------------------------------------------------


def lowest_bits(x: Floats) -> Ints:
    """The exponent of the last set bit of every entry; ZERO_GRAIN for zeros.

    >>> lowest_bits(np.array([1.0, 6.0, 0.375, 0.0])).tolist()[:3]
    [0, 1, -3]
    """
    bits = np.ascontiguousarray(x, np.float64).view(np.int64)
    exponent, fraction = (bits >> 52) & 0x7FF, bits & ((1 << 52) - 1)
    # A subnormal number has the exponent of the smallest normal ones, and no hidden bit.
    whole = np.where(exponent == 0, fraction, fraction | (1 << 52))
    last = (whole & -whole).astype(np.float64).view(np.int64) >> 52
    return np.where(whole == 0, ZERO_GRAIN, np.maximum(exponent, 1) + last - (1075 + 1023))


def quotient_grains(bits: Ints, divisors: Floats) -> Ints:
    """Division by a power of two moves the lowest bit; by anything else, nothing is known to be exact.

    >>> quotient_grains(np.array([3, 3, ZERO_GRAIN]), np.array([4.0, 3.0, 3.0])).tolist() == [1, NO_GRAIN, ZERO_GRAIN]
    True
    """
    mantissa, exponent = np.frexp(divisors)
    known = np.where(np.abs(mantissa) == 0.5, bits - (exponent - 1), NO_GRAIN)
    return np.where(bits == ZERO_GRAIN, ZERO_GRAIN, known)


def least_sums(rows: Ints, columns: Ints, meet: Bools) -> Ints:
    """``min_k rows[i, k] + columns[k, j]`` over the k where neither is ZERO_GRAIN; ZERO_GRAIN where none ``meet``.

    Each number m becomes ``2^(-c·m)``, counted from the least of its row or column, with ``2^c`` more than the
    number of terms. A sum of products is then at least ``2^(-c·least)`` and less than ``2^c`` times that, so the
    least can be read off it. Numbers beyond ``reach`` are left out, on which a least within it does not depend;
    the others are looked for one by one.

    >>> least_sums(np.array([[3, 1], [0, 9]]), np.array([[5], [6]]), np.array([[True], [True]])).tolist()
    [[7], [5]]
    """
    c = rows.shape[1].bit_length() + 1
    reach = 480 // c
    starts = [part.min(axis=axis, keepdims=True, initial=ZERO_GRAIN // 2) for part, axis in ((rows, 1), (columns, 0))]
    powers = np.append(np.ldexp(1.0, -c * np.arange(reach + 1)), 0.0)
    left, right = (
        powers[np.minimum(part - start, reach + 1)] for part, start in zip((rows, columns), starts, strict=True)
    )
    found = left @ right
    above = -((np.frexp(found)[1].astype(np.int64) - 1) // c)
    least = starts[0] + starts[1] + above
    i, j = np.nonzero(meet & ((found == 0) | (above > reach)))
    for few in slices(len(i), rows.shape[1], 1 << 20):
        terms = rows[i[few]] + columns[:, j[few]].T
        least[i[few], j[few]] = terms.min(axis=1, initial=ZERO_GRAIN)
    return np.where(meet, least, ZERO_GRAIN)


def _integers(x: Floats) -> tuple[list[int], list[int]]:
    """The rows of ``x`` as integers times a power of two per row: flat integers, and the exponents."""
    grain = lowest_bits(x).min(axis=1, initial=ZERO_GRAIN)
    grain = np.where(grain == ZERO_GRAIN, 0, grain)
    with np.errstate(over="ignore"):
        scaled = np.ldexp(x, -grain[:, None])
    fits = np.abs(scaled).max(axis=1, initial=0.0) < 2.0**62
    whole = np.where(fits[:, None], scaled, 0.0).astype(np.int64)
    flat: list[int] = []
    for i, shift in enumerate(grain.tolist()):
        flat += whole[i].tolist() if fits[i] else [_whole(value, shift) for value in x[i].tolist()]
    return flat, grain.tolist()


def _whole(value: float, exponent: int) -> int:
    """``value / 2^exponent``, which is known to be an integer."""
    numerator, denominator = value.as_integer_ratio()
    return (numerator << max(-exponent, 0)) // (denominator << max(exponent, 0))


def _ratio(value: float) -> fmpq:
    """A finite float exactly."""
    return fmpq(*value.as_integer_ratio())


# --- float64 twice --------------------------------------------------------------------------------------------------


def _two_products(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """``a·b`` as the rounded product and what rounding lost, by Dekker: factors cut into halves of 26 bits.

    >>> high, low = _two_products(np.array([1 + 2.0**-30]), np.array([1 + 2.0**-40]))
    >>> high.item() - 1 == 2.0**-30 + 2.0**-40, low.item() == 2.0**-70
    (True, True)
    """
    product = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    lost = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, lost


def _halves(x: Floats) -> tuple[Floats, Floats]:
    large = x * (2.0**27 + 1)
    high = large - (large - x)
    return high, x - high


def doubled(high: Floats, low: Floats, added: Floats) -> tuple[Floats, Floats]:
    """``Σ (highᵢ + lowᵢ) + added`` over the last axis as two float64, added up in a tree.

    At each of L levels the sum of two numbers is kept with what its rounding lost, which joins what was lost
    before. The losses come to at most ``(L+1)·u·S`` and are rounded twice a level, so all errs by less than
    ``2L(L+1)u²S``, to first order.
    """
    high = np.concatenate([high, added[..., None]], axis=-1)
    low = np.concatenate([low, np.zeros((*added.shape, 1))], axis=-1)
    while high.shape[-1] > 1:
        if high.shape[-1] % 2:
            nothing = np.zeros((*high.shape[:-1], 1))
            high, low = np.concatenate([high, nothing], axis=-1), np.concatenate([low, nothing], axis=-1)
        high, lost = _two_sums(high[..., ::2], high[..., 1::2])
        low = (low[..., ::2] + low[..., 1::2]) + lost
    value, rest = _two_sums(high[..., 0], low[..., 0])
    return value, rest


def _two_sums(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """``a + b`` as the rounded sum and what rounding lost, by Knuth."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


def doubled_error(count: int, mass: Floats) -> Floats:
    """How far a sum of ``count`` doubled leaves may be off: twice the bound of `doubled`, with a leaf's own errors.

    A product whose lost part underflows, or a quotient's, is off by a few of the smallest subnormals.
    """
    levels = math.ceil(math.log2(max(count, 1)))
    return np.asarray(4 * (levels + 2) ** 2 * 2.0**-106 * mass + 16 * count * 2.0**-1074)


def slices(count: int, width: int, entries: int = ENTRIES_AT_ONCE) -> Iterator[slice]:
    """Rows, each of ``width``, so many at a time that there are about ``entries``."""
    step = max(entries // max(width, 1), 1)
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


# --- sums of products ------------------------------------------------------------------------------------------------

REAL, PADDED, MISSING = 0, 1, 2
"""A factor that is a cell, a padding zero (which takes part in the arithmetic), or no factor at all."""


class ProductChunk(Chunk):
    """``rows @ columns (+ added)``: outputs ``[row, column]``, flattened."""

    def __init__(
        self, places: Ints, rows: Floats, roles: Ints, columns: Floats, added: Floats | None, narrow: bool
    ) -> None:
        self.places = places.ravel()
        self.shape = (rows.shape[0], columns.shape[1])
        self.rows, self.roles, self.columns = rows, roles, columns
        self.added = np.zeros(self.shape) if added is None else np.broadcast_to(added, self.shape)
        self.narrow = narrow
        self.finite = bool(np.isfinite(rows).all() and np.isfinite(columns).all() and np.isfinite(self.added).all())

    def estimates(self) -> Estimates:
        rows, columns, added = (self._finite(part) for part in (self.rows, self.columns, self.added))
        products = ((rows != 0).astype(np.float64) @ (columns != 0)).astype(np.int64)
        leaves = products + (added != 0)
        with np.errstate(over="ignore", invalid="ignore"):
            mass = np.abs(rows) @ np.abs(columns) + np.abs(added)
            value, rest, error = self._evaluate(rows, columns, added, leaves, mass)
        least = least_sums(lowest_bits(rows), lowest_bits(columns), products > 0)
        grain = np.minimum(lowest_bits(added), least)
        parts: list[Any] = [p.ravel() for p in (value, rest, error, mass, mass, leaves, products, grain)]
        return Estimates(*[*parts, self._specials()])

    def _evaluate(
        self, rows: Floats, columns: Floats, added: Floats, leaves: Ints, mass: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """Values, what is left of them, and how far they may be off."""
        if self.narrow:
            return rows @ columns + added, np.zeros(self.shape), (leaves + 4) * 2.0**-53 * mass
        used = (rows != 0).any(axis=0) & (columns != 0).any(axis=1)
        rows, columns = rows[:, used], columns[used]
        parts = [
            doubled(*_two_products(rows[:, None, :], columns.T[part]), added[:, part])
            for part in slices(max(columns.shape[1], 1), rows.size, 1 << 20)
        ]
        value, rest = (np.concatenate(side, axis=1) for side in zip(*parts, strict=True))
        return value, rest, doubled_error(rows.shape[1] + 1, mass)

    def _finite(self, part: Floats) -> Floats:
        return part if self.finite else np.where(np.isfinite(part), part, 0.0)

    def _specials(self) -> Specials:
        if self.finite:
            return Specials.none(len(self.places))
        a, b, real = self.rows, self.columns, self.roles == REAL

        def meet(left: Bools, right: Bools) -> Bools:
            return (left.astype(np.float64) @ right.astype(np.float64)) > 0

        wild = np.isinf(b)
        nan = meet(real & np.isnan(a), np.ones_like(wild)) | meet(real, np.isnan(b))
        nan |= meet(np.isinf(a), b == 0) | meet(real & (a == 0), wild) | np.isnan(self.added)
        padded = meet(self.roles == PADDED, wild | np.isnan(b))

        def infinite(sign: int) -> Bools:
            up, down = sign * np.inf, -sign * np.inf
            found = meet(a == up, b > 0) | meet(a == down, b < 0) | meet(a > 0, b == up) | meet(a < 0, b == down)
            return np.asarray(found | (self.added == up))

        found = (nan, padded, infinite(1), infinite(-1), np.zeros_like(nan))
        return Specials(*(np.asarray(part).ravel() for part in found))

    def values(self, chosen: Ints) -> Iterator[fmpq]:
        exactly, each = self._exactly(chosen)
        return (exactly.value(row, column) + added for row, column, added in each)

    def _exactly(self, chosen: Ints) -> tuple[_ExactProducts, Iterator[tuple[int, int, fmpq]]]:
        """The rows and columns of the chosen outputs, multiplied exactly, and the place and the addend of each."""
        at_row, at_column = np.unravel_index(chosen, self.shape)
        rows, row_of = np.unique(at_row, return_inverse=True)
        columns, column_of = np.unique(at_column, return_inverse=True)
        added = map(_ratio, self._finite(self.added).ravel()[chosen].tolist())
        each = zip(row_of.tolist(), column_of.tolist(), added, strict=True)
        return _ExactProducts(self.rows[rows], self.columns[:, columns]), each

    def sums(self, chosen: Ints, normal: fmpq | None) -> Iterator[ExactSums]:
        exactly, each = self._exactly(chosen)
        for row, column, single in each:
            mass, flushed = exactly.mass(row, column), fmpq(0)
            if normal is not None:  # the products with a factor below it, and the addend
                flushed = mass - exactly.mass(row, column, float(normal))
                flushed += abs(single) if abs(single) < normal else 0
            value, mass = exactly.value(row, column) + single, mass + abs(single)
            yield ExactSums(value, mass, (mass + value) / 2, (mass - value) / 2, flushed)


class _ExactProducts:
    """A matrix product, its entries exact: of the products, or of their sizes."""

    def __init__(self, rows: Floats, columns: Floats) -> None:
        self.rows, self.columns = (np.where(np.isfinite(part), part, 0.0) for part in (rows, columns.T))
        self.left, self.row_exponents = _integers(self.rows)
        self.right, self.column_exponents = _integers(self.columns)

    def value(self, row: int, column: int) -> fmpq:
        return self._entry(self._values, row, column)

    def mass(self, row: int, column: int, least: float = 0.0) -> fmpq:
        """Of the products of factors that are ``least`` or more."""
        return self._entry(self._masses(least), row, column)

    def _entry(self, numbers: list[fmpz], row: int, column: int) -> fmpq:
        exponent = self.row_exponents[row] + self.column_exponents[column]
        number = int(numbers[row * len(self.columns) + column])
        return fmpq(number << max(exponent, 0), 1 << max(-exponent, 0))

    @cached_property
    def _values(self) -> list[fmpz]:
        return self._product(self.left, self.right)

    @cache  # noqa: B019  (one instance judges one chunk, and goes)
    def _masses(self, least: float) -> list[fmpz]:
        sides = ((self.left, self.rows), (self.right, self.columns))
        kept = (zip(numbers, (np.abs(part) >= least).ravel(), strict=True) for numbers, part in sides)
        return self._product(*([abs(v) if keep else 0 for v, keep in pairs] for pairs in kept))

    def _product(self, left: list[int], right: list[int]) -> list[fmpz]:
        m, k, n = len(self.rows), self.rows.shape[1], len(self.columns)
        if k == 0:
            return [fmpz(0)] * (m * n)
        entries: list[fmpz] = (fmpz_mat(m, k, left) * fmpz_mat(n, k, right).transpose()).entries()
        return entries


# --- sums of leaves --------------------------------------------------------------------------------------------------


class LeafChunk(Chunk):
    """Row sums of ``leaves``, each divided by its divisor if there are divisors; absent leaves are zeros."""

    def __init__(self, leaves: Floats, divisors: Floats | None, narrow: bool) -> None:
        self.places = np.arange(leaves.shape[0])
        self.leaves = leaves
        self.divided = divisors is not None
        self.few = np.ones((1, 1)) if divisors is None else _once(divisors)
        """The divisors, or one of them where they are all the same."""
        self.divisors = np.broadcast_to(self.few, leaves.shape)
        self.narrow = narrow

    def estimates(self) -> Estimates:
        finite = np.where(np.isfinite(self.leaves), self.leaves, 0.0)
        with np.errstate(over="ignore", invalid="ignore"):
            quotients = finite / self.divisors
            mass = np.abs(quotients).sum(axis=1)
            count = (finite != 0).sum(axis=1)
            value, rest, error = self._evaluate(finite, quotients, count, mass)
            reach = np.maximum(np.abs(finite).sum(axis=1), mass)
        grain, products = quotient_grains(lowest_bits(finite), self.few), np.zeros_like(count)
        least = np.asarray(grain.min(axis=1, initial=ZERO_GRAIN), np.int64)
        return Estimates(value, rest, error, mass, reach, count, products, least, self._specials())

    def _evaluate(self, finite: Floats, quotients: Floats, count: Ints, mass: Floats) -> tuple[Floats, Floats, Floats]:
        if self.narrow:
            return quotients.sum(axis=1), np.zeros(len(count)), (count + 4) * 2.0**-53 * mass
        back, more = _two_products(quotients, self.divisors)
        value, rest = doubled(quotients, ((finite - back) - more) / self.divisors, np.zeros(len(count)))
        return value, rest, doubled_error(self.leaves.shape[1] + 1, mass)

    def _specials(self) -> Specials:
        if np.isfinite(self.leaves).all():
            return Specials.none(len(self.leaves))
        signed = self.leaves * np.sign(self.divisors)
        nowhere = np.zeros_like(signed, np.bool_)
        found = (np.isnan(signed), nowhere, signed == np.inf, signed == -np.inf, nowhere)
        return Specials(*(np.asarray(part.any(axis=1)) for part in found))

    def divides_by_rounded(self, format: Format) -> Bools:
        inexact = (round_array(self.few, format) != self.few) | (np.abs(self.few) > 2.0**format.precision)
        return np.broadcast_to(inexact.any(axis=1), len(self.leaves))

    def different(self, chosen: Ints, got: Floats) -> tuple[Ints, Ints]:
        """A pooling's cotangent makes many sums alike."""
        rows = np.column_stack([self.leaves[chosen], self.divisors[chosen], got])
        _, first, which = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        return first, which.ravel()

    def values(self, chosen: Ints) -> Iterator[fmpq]:
        return (sum((v / d for v, d in self._pairs(row)), fmpq(0)) for row in chosen)

    def _pairs(self, row: int) -> list[tuple[fmpq, fmpq]]:
        """The leaves that are finite and not zero, with their divisors."""
        given = zip(self.leaves[row].tolist(), self.divisors[row].tolist(), strict=True)
        return [(_ratio(v), _ratio(d)) for v, d in given if v != 0 and math.isfinite(v)]

    def sums(self, chosen: Ints, normal: fmpq | None) -> Iterator[ExactSums]:
        for row in chosen:
            raw, quotients = [v for v, _ in self._pairs(row)], [v / d for v, d in self._pairs(row)]
            small = [abs(q) for v, q in zip(raw, quotients, strict=True) if normal is not None and abs(v) < normal]
            value, mass = sum(quotients, fmpq(0)), sum(map(abs, quotients), fmpq(0))
            positive, negative = (_side(raw, quotients, sign) for sign in (1, -1))
            yield ExactSums(value, mass, positive, negative, sum(small, fmpq(0)))


def _once(numbers: Floats) -> Floats:
    """``[[number]]`` where all are the same, else the numbers."""
    return numbers[:1, :1] if numbers.size and (numbers == numbers[0, 0]).all() else numbers


def _side(raw: list[fmpq], divided: list[fmpq], sign: int) -> fmpq:
    """The leaves of one sign added up, before or after division, whichever reaches further."""
    return max(sum((sign * v for v in leaves if sign * v > 0), fmpq(0)) for leaves in (raw, divided))


def leaf_sums(
    shape: tuple[int, ...], leaves: Floats, divisors: Floats | None, of: Array, mixed: Mixes = lambda arithmetic: None
) -> SumMeaning:
    """Sums of numbers of an array, each divided if there are divisors."""
    flat = leaves.reshape(int(np.prod(shape)), leaves.shape[-1])
    over = None if divisors is None else np.broadcast_to(divisors, leaves.shape).reshape(flat.shape)
    return SumMeaning(shape, lambda: [LeafChunk(flat, over, has_exact_products(of))], mixed)
