"""Balls: every result contains the real one, at the width that the precision promises."""

import copy
import math
import operator
import pickle
import random
from fractions import Fraction

import pytest
from flint import arb, ctx, fmpq
from hypothesis import given
from hypothesis import strategies as st

import gradspec as gs
from domains.calls import LINEAR, MAXIMA, RATIONAL, TRANSCENDENTAL, Call, cells, converted, each, patient
from domains.reals import real_exp, real_log
from gradspec.domains import Ball
from gradspec.domains.ball import endpoints
from gradspec.spec.scalar import exp, larger, log

INF = math.inf
BITS = 40
fractions = st.fractions(max_denominator=10**6) | st.floats(-1e30, 1e30).map(Fraction)


def around(middle: Fraction, radius: Fraction, bits: int = BITS) -> Ball:
    """A ball that contains everything from ``middle − radius`` to ``middle + radius``."""
    return gs.spec.scalar.hull(gs.ball(bits).scalar(middle - radius), gs.ball(bits).scalar(middle + radius))


def bounds(x: Ball) -> tuple[Fraction, Fraction]:
    return tuple(Fraction(int(end.p), int(end.q)) for end in endpoints(x.arb))


# --- one number -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("symbol", ["add", "sub", "mul", "truediv"])
@patient
@given(a=fractions, b=fractions, radius=fractions.map(abs), bits=st.integers(2, 200))
def test_arithmetic_contains_the_exact_result(
    symbol: str, a: Fraction, b: Fraction, radius: Fraction, bits: int
) -> None:
    operation = getattr(operator, symbol)
    x, y = around(a, radius, bits), gs.ball(bits).scalar(b)
    if symbol == "truediv" and y.contains(0):
        with pytest.raises(ValueError, match="NaN"):
            operation(x, y)
        return
    for point in (a - radius, a, a + radius):
        assert operation(x, y).contains(operation(point, b))
        assert operation(x, b).contains(operation(point, b))
    if symbol != "truediv" or not x.contains(0):
        assert operation(b, x).contains(operation(b, a))


@patient
@given(value=fractions, bits=st.integers(2, 200))
def test_a_rational_is_enclosed_within_its_precision(value: Fraction, bits: int) -> None:
    low, high = bounds(gs.ball(bits).scalar(value))
    assert low <= value <= high
    assert high - low <= abs(value) * Fraction(4, 2**bits)


@patient
@given(x=st.floats(-700, 700), bits=st.integers(2, 150))
def test_exp_contains_the_real_result(x: float, bits: int) -> None:
    (low, high), (real_low, real_high) = bounds(exp(gs.ball(bits).scalar(x))), real_exp(x)
    assert low <= real_high
    assert real_low <= high


@patient
@given(x=st.floats(5e-324, 1e308), bits=st.integers(2, 150))
def test_log_contains_the_real_result(x: float, bits: int) -> None:
    (low, high), (real_low, real_high) = bounds(log(gs.ball(bits).scalar(x))), real_log(x)
    assert low <= real_high
    assert real_low <= high


@patient
@given(middle=fractions, radius=fractions.map(abs), offset=fractions)
def test_contains_compares_a_rational_with_the_exact_ends(middle: Fraction, radius: Fraction, offset: Fraction) -> None:
    box = around(middle, radius)
    low, high = bounds(box)
    for value in (low, high, low - offset**2, high + offset**2, middle + offset):
        assert box.contains(value) == (low <= value <= high)


def test_contains_sees_the_smallest_distance() -> None:
    third = gs.ball(64).scalar(Fraction(1, 3))
    low, high = bounds(third)
    smallest = Fraction(1, 10**400)
    assert third.contains(Fraction(1, 3))
    assert third.contains(low)
    assert not third.contains(low - smallest)
    assert not third.contains(high + smallest)
    assert not gs.ball(64).scalar(1).contains(1 + smallest)


def test_infinite_balls_contain_what_they_should() -> None:
    everything = gs.spec.scalar.hull(gs.ball(64).scalar(-INF), gs.ball(64).scalar(INF))
    assert everything.contains(10**400)
    assert everything.contains(-INF)
    assert gs.ball(64).scalar(INF).contains(INF)
    assert not gs.ball(64).scalar(INF).contains(1)
    assert not gs.ball(64).scalar(1).contains(INF)


@patient
@given(a=fractions, b=fractions, radius=fractions.map(abs))
def test_comparisons_are_true_only_when_certain(a: Fraction, b: Fraction, radius: Fraction) -> None:
    x, y = around(a, radius), around(b, radius)
    (x_low, x_high), (y_low, y_high) = bounds(x), bounds(y)
    assert (x > y) == (x_low > y_high)
    assert (x < y) == (x_high < y_low)
    assert (x == y) == (x_low == x_high == y_low == y_high)


@patient
@given(a=fractions, b=fractions, p=fractions.map(abs), q=fractions.map(abs))
def test_the_larger_of_overlapping_balls_contains_every_maximum(
    a: Fraction, b: Fraction, p: Fraction, q: Fraction
) -> None:
    box = larger(around(a, p), around(b, q))
    for x in (a - p, a, a + p):
        for y in (b - q, b, b + q):
            assert box.contains(max(x, y))


# --- pickles ----------------------------------------------------------------------------------------------------------


def identical(x: Ball, y: Ball) -> bool:
    parts = [(part.is_finite() and part.man_exp(), str(part)) for b in (x, y) for part in (b.arb.mid(), b.arb.rad())]
    return x.bits == y.bits and parts[:2] == parts[2:]


@patient
@given(value=fractions, radius=fractions.map(abs), bits=st.integers(2, 300))
def test_pickles_round_trip_exactly(value: Fraction, radius: Fraction, bits: int) -> None:
    for x in (gs.ball(bits).scalar(value), around(value, radius, bits), exp(gs.ball(bits).scalar(value / 10**29))):
        assert identical(pickle.loads(pickle.dumps(x)), x)


@pytest.mark.parametrize("value", [arb("inf"), arb("-inf"), arb(0, INF), arb(1, 2**-3000), arb(10) ** -5000], ids=str)
def test_extreme_balls_pickle_and_copy(value: arb) -> None:
    x = Ball(value, 64)
    assert identical(pickle.loads(pickle.dumps(x)), x)
    assert identical(copy.deepcopy(x), x)


# --- the working precision --------------------------------------------------------------------------------------------


def test_the_precision_of_others_is_left_alone() -> None:
    before = ctx.prec
    gs.spec.avg_pool(gs.ball(500).tensor([1, 2]), (2,))
    assert ctx.prec == before


def test_two_precisions_meet_at_the_lower_one() -> None:
    assert (gs.ball(30).scalar(1) / gs.ball(90).scalar(3)).bits == 30


@pytest.mark.parametrize("bits", [24, 64])
def test_numbers_longer_than_the_precision_still_compare_exactly(bits: int) -> None:
    longer = [10**30, 10**30 + 1, 10**30 + 1]
    x = gs.ball(bits).tensor(longer)
    assert gs.spec.max_pool(x, (3,), return_indices=True)[1].tolist() == [1]
    assert gs.spec.max_pool_jvp(x, [1, 2, 4], (3,), ties="all", strict=True).tolist() == [6]


# --- whole operators --------------------------------------------------------------------------------------------------


def random_ball(rng: random.Random) -> Ball:
    return around(Fraction(rng.randint(-30, 30), 7), rng.choice([Fraction(0), Fraction(rng.randint(1, 30), 11)]))


def sample(box: Ball, rng: random.Random) -> Fraction:
    low, high = bounds(box)
    return low + rng.choice([Fraction(0), Fraction(1), Fraction(rng.randint(1, 99), 100)]) * (high - low)


@pytest.mark.parametrize(**each(RATIONAL))
def test_every_sampled_result_is_inside(call: Call) -> None:
    rng = random.Random(str(call))
    balls = call.arguments(lambda: random_ball(rng))
    enclosures = cells(call(balls))
    for _ in range(12):
        results = cells(call(converted(balls, lambda box: gs.exact.scalar(sample(box, rng)))))
        assert all(box.contains(y) for box, y in zip(enclosures, results, strict=True))


@pytest.mark.parametrize(**each(TRANSCENDENTAL))
def test_every_sampled_smooth_result_is_inside(call: Call) -> None:
    rng = random.Random(str(call))
    balls = call.arguments(lambda: random_ball(rng))
    enclosures = cells(call(balls))
    for _ in range(6):
        results = cells(call(converted(balls, lambda box: gs.ball(300).scalar(sample(box, rng)))))
        assert all(box.contains(y) for box, y in zip(enclosures, results, strict=True))


@pytest.mark.parametrize("bits", [24, 53, 128])
@pytest.mark.parametrize(**each(LINEAR))
def test_sums_and_products_are_as_narrow_as_the_precision(call: Call, bits: int) -> None:
    """Each operation adds at most two units in the last place of a partial result no larger than Σ|terms|."""
    rng = random.Random(str(call))
    points = call.arguments(lambda: Fraction(rng.randint(-999, 999), 256))
    mass = cells(call(converted(points, abs)))
    operations = 2 * sum(len(t.cells) for t in points.values()) + 1
    for box, terms in zip(cells(call(converted(points, gs.ball(bits).scalar))), mass, strict=True):
        low, high = bounds(box)
        assert high - low <= operations * 2 * terms * Fraction(2, 2**bits)


@pytest.mark.parametrize(**each(TRANSCENDENTAL))
def test_smooth_results_narrow_with_the_precision(call: Call) -> None:
    rng = random.Random(str(call))
    points = call.arguments(lambda: Fraction(rng.randint(-999, 999), 256))
    for bits in (53, 128, 500):
        results = cells(call(converted(points, gs.ball(bits).scalar)))
        assert all(box.arb.rad() < arb(2) ** (14 - bits) for box in results)


@pytest.mark.parametrize(**each([call for call in MAXIMA if call.function.endswith("pool")]))
def test_the_maximum_of_numbers_is_exact(call: Call) -> None:
    rng = random.Random(str(call))
    points = call.arguments(lambda: Fraction(rng.randint(-9, 9), 8))
    results = cells(call(converted(points, gs.ball(BITS).scalar)))
    exact = cells(call(converted(points, gs.exact.scalar)))
    assert [endpoints(box.arb) for box in results] == [(y, y) for y in exact]


@pytest.mark.parametrize(
    ("ties", "jvp", "vjp"),
    [("first", (1, 100), (0, 8)), ("all", (0, 101), (0, 8)), ("split", (1, 100), (0, 8))],
)
def test_overlapping_balls_enclose_every_possible_winner(ties: str, jvp: tuple, vjp: tuple) -> None:
    x = gs.spec.Tensor(
        (3,), [around(Fraction(0), Fraction(2)), around(Fraction(-9), Fraction(1)), around(Fraction(1), Fraction(2))]
    )
    tangent = gs.spec.max_pool_jvp(x, gs.ball(BITS).tensor([1, 10, 100]), (3,), ties=ties)[0]
    received = gs.spec.max_pool_vjp(x, gs.ball(BITS).tensor([8]), (3,), ties=ties).cells
    close = Fraction(1, 2**20)  # the radius of a ball has about thirty bits
    for box, (low, high) in zip([tangent, *received], [jvp, vjp, (0, 0), vjp], strict=True):
        assert low - close <= bounds(box)[0] <= low
        assert high <= bounds(box)[1] <= high + close
    with pytest.raises(gs.AmbiguityError, match="0, 2"):
        gs.spec.max_pool_jvp(x, gs.ball(BITS).tensor([1, 10, 100]), (3,), ties=ties, strict=True)


def test_tied_numbers_are_decided_and_tied_enclosures_are_not() -> None:
    exactly, nearly = gs.ball(64).tensor([2, 2]), gs.ball(64).tensor([Fraction(1, 3)] * 2)
    assert gs.spec.max_pool(exactly, (2,), return_indices=True)[1].tolist() == [0]
    with pytest.raises(gs.AmbiguityError):
        gs.spec.max_pool(nearly, (2,), return_indices=True)


def test_a_rational_beyond_the_precision_is_not_rounded_by_contains() -> None:
    assert gs.ball(10).scalar(fmpq(1, 3)).contains("1/3")
    assert not gs.ball(53).scalar(0.1).contains("0.1")
