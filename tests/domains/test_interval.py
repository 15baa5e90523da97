"""Intervals: every possible result is inside, and the result is no wider than it has to be."""

import math
import operator
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import gradspec as gs
from domains.calls import LINEAR, MAXIMA, RATIONAL, SMOOTH, TRANSCENDENTAL, Call, cells, converted, each, patient
from domains.floats import is_largest_float_at_most
from domains.reals import real_exp, real_log
from gradspec.domains import Interval
from gradspec.spec.scalar import add_up, dot, exp, log
from gradspec.spec.tensor import Tensor

INF = math.inf
ULP = Fraction(1, 2**52)  # rounding toward −∞ or +∞ moves a normal number by less than this part of it
TINIEST = Fraction(1, 2**1074)
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


def between(ends: tuple[float, float]) -> Interval:
    return Interval(min(ends), max(ends))


EXTREMES = [0.0, 5e-324, -5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, -1.7976931348623157e308]
finite = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(EXTREMES)
intervals = st.tuples(finite, finite).map(between)
unbounded = st.tuples(*[st.floats(allow_nan=False)] * 2).map(between)


# --- one operation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("symbol", OPERATIONS)
@patient
@given(a=intervals, b=intervals)
def test_arithmetic_gives_the_tightest_float_ends(symbol: str, a: Interval, b: Interval) -> None:
    assume(symbol != "/" or not b.contains(0))
    result = OPERATIONS[symbol](a, b)
    ends = [OPERATIONS[symbol](Fraction(p), Fraction(q)) for p in (a.lo, a.hi) for q in (b.lo, b.hi)]
    assert is_largest_float_at_most(result.lo, min(ends))
    assert is_largest_float_at_most(-result.hi, -max(ends))


EXPONENTS = [-1074, -1073, -1023, -1022, -1000, -969, -960, -537, -1, 0, 1, 26, 27, 53, 512, 995, 996, 997, 1023]
POWERS = [2.0**e for e in EXPONENTS]
AWKWARD = [
    float(sign * size)
    for power in POWERS
    for size in (power, math.nextafter(power, 0), math.nextafter(power, INF), 3 * (power / 2), power / 3)
    for sign in (1, -1)
] + [*EXTREMES, INF, -INF]


def awkward(rng: random.Random) -> float:
    """Numbers at which exponents run out or halves of numbers do, and ordinary ones with many bits or with few."""
    many, few = math.ldexp(rng.uniform(-1, 1), rng.choice([0, rng.randint(-1074, 1024)])), rng.randint(-99, 99) / 8
    return rng.choice([rng.choice(AWKWARD), many, few])


def near_miss(rng: random.Random) -> tuple[float, float]:
    """Numbers ``y`` and ``x`` of 53 bits whose product misses a float by one in 106 bits; or that float and ``x``."""
    x, sign, e, f = rng.randrange(2**52 + 1, 2**53, 2), rng.choice([1, -1]), rng.choice(EXPONENTS), rng.randint(-99, 99)
    y = pow(sign * x, -1, 2**53)  # x·y = sign modulo 2⁵³
    return rng.choice([(scaled(y, e - f - 106), scaled(-x, f)), (scaled(x * y - sign, e - 106), scaled(sign * x, f))])


def scaled(n: int, exponent: int) -> float:
    return math.ldexp(n, min(exponent, 1023 - n.bit_length()))


def awkward_pair(rng: random.Random) -> tuple[Interval, Interval]:
    a = awkward(rng)
    largest = scaled(1, 1024 - math.frexp(a)[1])  # the power of two by which a does not overflow yet
    a, b = rng.choice([(a, awkward(rng)), (a, largest), near_miss(rng), near_miss(rng)])
    ends = [(x, rng.choice([x, x, math.nextafter(x, INF), -x, awkward(rng)])) for x in (a, b)]
    return between(ends[0]), between(ends[1])


def extended(symbol: str, a: float, b: float) -> Fraction | float:
    """The exact result at a corner. An infinite end is a bound of real numbers: 0 · ∞ = 0 and a / ∞ = 0."""
    if math.isfinite(a) and math.isfinite(b):
        return OPERATIONS[symbol](Fraction(a), Fraction(b))
    if symbol in "+-":
        return a + b if symbol == "+" else a - b
    if 0 in (a, b) or (symbol == "/" and math.isinf(b)):
        return Fraction(0)
    return math.copysign(INF, a) * math.copysign(1, b)


def ends_of(symbol: str, a: Interval, b: Interval) -> tuple[Fraction | float, Fraction | float]:
    corners = {(i, j): extended(symbol, p, q) for i, p in enumerate((a.lo, a.hi)) for j, q in enumerate((b.lo, b.hi))}
    if symbol in "+-":  # of which some corners may be ∞ − ∞
        low, high = (corners[i, i if symbol == "+" else 1 - i] for i in range(2))
        return -INF if low != low else low, INF if high != high else high
    return min(corners.values()), max(corners.values())


def is_tightest(x: float, bound: Fraction | float) -> bool:
    return is_largest_float_at_most(x, bound) if isinstance(bound, Fraction) else x == bound


@pytest.mark.parametrize("symbol", OPERATIONS)
def test_arithmetic_gives_the_tightest_float_ends_where_exponents_run_out(symbol: str) -> None:
    rng = random.Random(symbol)
    for _ in range(1500):
        a, b = awkward_pair(rng)
        if symbol == "/" and b.lo <= 0 <= b.hi:
            continue
        result, (low, high) = OPERATIONS[symbol](a, b), ends_of(symbol, a, b)
        assert is_tightest(result.lo, low), (a, b)
        assert is_tightest(-result.hi, -high), (a, b)
        assert "-0.0" not in repr(result).removesuffix("]").replace("[", "").split(", "), (a, b)


ZERO = Interval(0.0, 0.0)


def ends_of_dot(left: Sequence[Interval], right: Sequence[Interval]) -> tuple[Fraction | float, ...]:
    """Rationals, or floats as soon as an end of a product is infinite."""
    ends = [ends_of("*", a, b) for a, b in zip(left, right, strict=True)]
    sides = [low for low, _ in ends], [high for _, high in ends]
    infinite = [[end for end in side if isinstance(end, float)] for side in sides]
    return tuple(sum(some or side, 0.0 if some else Fraction(0)) for some, side in zip(infinite, sides, strict=True))


def test_a_sum_of_products_by_numbers_is_rounded_once() -> None:
    rng = random.Random(0)
    for _ in range(400):
        boxes = [between((rng.uniform(-3, 3), rng.choice([0.0, rng.uniform(-3, 3)]))) for _ in range(rng.randint(0, 6))]
        points = [gs.interval.scalar(rng.choice([rng.uniform(-1, 1), rng.randint(-9, 9) / 8, 0.0])) for _ in boxes]
        boxes.append(gs.interval.scalar(float(rng.choice(ends_of_dot(boxes, points)))))
        points.append(gs.interval.scalar(-1))  # leaves of one sum what it has beyond a float
        low, high = ends_of_dot(boxes, points)
        for result in (dot(ZERO, boxes, points), dot(ZERO, [p.lo for p in points], boxes)):
            assert is_largest_float_at_most(result.lo, low)
            assert is_largest_float_at_most(-result.hi, -high)


def test_a_sum_of_awkward_products_is_between_the_exact_one_and_the_one_rounded_term_by_term() -> None:
    rng = random.Random(1)
    for _ in range(800):
        left, right = zip(*(awkward_pair(rng) for _ in range(rng.randint(1, 4))), strict=True)
        result, (low, high) = dot(ZERO, left, right), ends_of_dot(left, right)
        assert add_up(map(operator.mul, left, right), ZERO).contains(result)
        assert result.lo == -INF or result.lo <= low
        assert result.hi == INF or high <= result.hi


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.longdouble, Fraction])
def test_ends_of_other_types_are_enclosed(kind: type) -> None:
    low, high = (kind(1) / kind(3), kind(2) / kind(3))
    box = Interval(low, high)
    assert type(box.lo) is type(box.hi) is float
    assert box.contains(low)
    assert box.contains(high)
    assert (box * box).contains(Fraction(*low.as_integer_ratio()) ** 2)


@pytest.mark.parametrize("symbol", OPERATIONS)
@patient
@given(a=unbounded, b=unbounded, p=finite, q=finite)
def test_arithmetic_of_unbounded_intervals_contains_the_result(
    symbol: str, a: Interval, b: Interval, p: float, q: float
) -> None:
    p, q = (min(max(v, box.lo), box.hi) for v, box in ((p, a), (q, b)))
    assume(math.isfinite(p) and math.isfinite(q) and (symbol != "/" or not b.contains(0)))
    assert OPERATIONS[symbol](a, b).contains(OPERATIONS[symbol](Fraction(p), Fraction(q)))


@pytest.mark.parametrize(
    ("symbol", "a", "b", "expected"),
    [
        ("*", (0, 0), (-INF, INF), (0, 0)),
        ("*", (0, 0), (INF, INF), (0, 0)),
        ("*", (0, 1), (1, INF), (0, INF)),
        ("*", (-1, 0), (2, INF), (-INF, 0)),
        ("*", (2, 3), (4, INF), (8, INF)),
        ("*", (-2, 3), (-INF, 5), (-INF, INF)),
        ("+", (-INF, 1), (2, INF), (-INF, INF)),
        ("+", (1, INF), (2, 3), (3, INF)),
        ("-", (1, INF), (2, INF), (-INF, INF)),
        ("/", (1, 2), (4, INF), (0, 0.5)),
        ("/", (1, INF), (2, 4), (0.25, INF)),
        ("/", (-INF, 6), (-3, -2), (-3, INF)),
        ("/", (2, INF), (1, INF), (0, INF)),
        ("/", (0, 0), (1, INF), (0, 0)),
    ],
)
def test_infinite_ends_are_bounds_not_values(symbol: str, a: tuple, b: tuple, expected: tuple) -> None:
    result = OPERATIONS[symbol](Interval(*map(float, a)), Interval(*map(float, b)))
    assert (result.lo, result.hi) == expected


@patient
@given(a=intervals, b=intervals)
def test_comparisons_are_true_only_when_certain(a: Interval, b: Interval) -> None:
    assert (a > b) == (a.lo > b.hi)
    assert (a < b) == (a.hi < b.lo)
    assert (a == b) == (a.lo == a.hi == b.lo == b.hi)


@patient
@given(box=intervals, value=st.fractions() | finite.map(Fraction))
def test_contains_is_exact(box: Interval, value: Fraction) -> None:
    assert box.contains(value) == (Fraction(box.lo) <= value <= Fraction(box.hi))


def test_contains_sees_the_smallest_distance() -> None:
    point = Interval(1 / 3, 1 / 3)
    assert point.contains(Fraction(1 / 3))
    assert not point.contains(Fraction(1 / 3) + Fraction(1, 10**400))
    assert Interval(0.0, INF).contains(10**400)
    assert not Interval(-INF, 0.0).contains(Fraction(1, 10**400))
    assert Interval(1.0, 4.0).contains(Interval(1.0, 2.0))
    assert not Interval(1.0, 4.0).contains(Interval(0.0, 2.0))


@patient
@given(a=intervals)
def test_width_bounds_the_distance_of_the_ends(a: Interval) -> None:
    assert is_largest_float_at_most(-a.width, Fraction(a.lo) - Fraction(a.hi))


@pytest.mark.parametrize(
    ("function", "real", "domain"),
    [(exp, real_exp, st.floats(-760, 720)), (log, real_log, st.floats(min_value=5e-324, allow_infinity=False))],
    ids=["exp", "log"],
)
@patient
@given(data=st.data())
def test_exp_and_log_are_enclosed_within_two_floats(
    function: Callable, real: Callable, domain: st.SearchStrategy, data: st.DataObject
) -> None:
    x = data.draw(domain)
    box, (low, high) = function(Interval(x, x)), real(x)
    assert box.lo == -INF or Fraction(box.lo) <= high
    assert box.hi == INF or low <= Fraction(box.hi)
    assert math.nextafter(math.nextafter(box.lo, INF), INF) >= box.hi


@pytest.mark.parametrize(
    "x", [709.0, 709.5, 709.78, 709.79, 710.0, 710.5, -708.5, -745.0, -745.2, -746.0, -746.5, -800.0]
)
def test_exp_is_enclosed_where_floats_run_out(x: float) -> None:
    box, (low, high) = exp(Interval(x, x)), real_exp(x)
    assert is_largest_float_at_most(box.lo, low)
    assert is_largest_float_at_most(-box.hi, -high)


@pytest.mark.parametrize(
    ("function", "ends", "expected"),
    [
        (exp, (0.0, 0.0), (1.0, 1.0)),
        (exp, (-INF, 0.0), (0.0, 1.0)),
        (exp, (0.0, INF), (1.0, INF)),
        (exp, (-1e9, 1e9), (0.0, INF)),
        (log, (1.0, 1.0), (0.0, 0.0)),
        (log, (0.0, 1.0), (-INF, 0.0)),
        (log, (1.0, INF), (0.0, INF)),
    ],
)
def test_exp_and_log_at_their_ends(function: Callable, ends: tuple, expected: tuple) -> None:
    box = function(Interval(*ends))
    assert (box.lo, box.hi) == expected


# --- whole operators: containment -------------------------------------------------------------------------------------


def random_interval(rng: random.Random) -> Interval:
    """Ends on a coarse grid, so that intervals touch, nest and tie; two in three are single numbers."""
    low = rng.randint(-12, 12) / 4
    return Interval(low, low + rng.choice([0, 0, rng.randint(1, 12) / 8]))


def sample(box: Interval, rng: random.Random) -> Fraction:
    """A rational in ``box``; its ends are as likely as its inside, for extremes and ties sit there."""
    share = rng.choice([Fraction(0), Fraction(1), Fraction(1, 2), Fraction(rng.randint(1, 999), 1000)])
    return Fraction(box.lo) + share * (Fraction(box.hi) - Fraction(box.lo))


@pytest.mark.parametrize(**each(RATIONAL))
def test_every_sampled_result_is_inside(call: Call) -> None:
    rng = random.Random(str(call))
    for _ in range(4):
        boxes = call.arguments(lambda: random_interval(rng))
        enclosures = cells(call(boxes))
        for _ in range(12):
            results = cells(call(converted(boxes, lambda box: gs.exact.scalar(sample(box, rng)))))
            assert all(box.contains(y) for box, y in zip(enclosures, results, strict=True))


@pytest.mark.parametrize(**each(TRANSCENDENTAL))
def test_every_sampled_smooth_result_is_inside(call: Call) -> None:
    rng = random.Random(str(call))
    boxes = call.arguments(lambda: random_interval(rng))
    enclosures = cells(call(boxes))
    for _ in range(8):
        results = cells(call(converted(boxes, lambda box: gs.ball(200).scalar(sample(box, rng)))))
        # The sample's ball is 2^−190 wide: an enclosure it is not certainly outside of contains the sampled result.
        assert not any(y < box.lo or y > box.hi for box, y in zip(enclosures, results, strict=True))


# --- whole operators: width -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExactBox:
    """Interval arithmetic with rational ends and no rounding: the narrowest that enclosing term by term allows."""

    lo: Fraction
    hi: Fraction

    @classmethod
    def of(cls, value: Interval) -> "ExactBox":
        return cls(Fraction(value.lo), Fraction(value.hi))

    def __add__(self, other: "ExactBox") -> "ExactBox":
        return ExactBox(self.lo + other.lo, self.hi + other.hi)

    def __mul__(self, other: "ExactBox") -> "ExactBox":
        corners = [p * q for p in (self.lo, self.hi) for q in (other.lo, other.hi)]
        return ExactBox(min(corners), max(corners))

    def __truediv__(self, divisor: "int | ExactBox") -> "ExactBox":
        divisor = divisor if isinstance(divisor, int) else divisor.lo
        return ExactBox(self.lo / divisor, self.hi / divisor)


@gs.spec.scalar.embed.register
def _(like: ExactBox, value: int) -> ExactBox:
    return ExactBox(Fraction(value), Fraction(value))


@pytest.mark.parametrize(**each(LINEAR))
def test_sums_and_products_widen_by_a_few_ulps_per_operation_only(call: Call) -> None:
    """Each end passes at most N roundings, each of at most one ulp of a partial result no larger than Σ|terms|.

    N counts a product and an addition for every cell of the arguments, and a division.
    """
    rng = random.Random(str(call))
    boxes = call.arguments(lambda: between((rng.uniform(-3, 3), rng.uniform(-3, 3))))
    exact = cells(call(converted(boxes, ExactBox.of)))
    mass = cells(call(converted(boxes, lambda box: Fraction(max(-box.lo, box.hi)))))
    roundings = 2 * sum(len(box.cells) for box in boxes.values()) + 1
    for box, narrowest, terms in zip(cells(call(boxes)), exact, mass, strict=True):
        slack = roundings * (ULP * terms * Fraction(101, 100) + TINIEST)
        assert narrowest.lo - slack <= Fraction(box.lo) <= narrowest.lo
        assert narrowest.hi <= Fraction(box.hi) <= narrowest.hi + slack


@pytest.mark.parametrize(**each(RATIONAL))
def test_points_stay_points_where_every_operation_is_exact(call: Call) -> None:
    """Distinct multiples of 144: no tie, and every window size in the table divides them twice."""
    rng = random.Random(str(call))
    numbers = iter(rng.sample(range(-500, 500), 400))
    points = call.arguments(lambda: 144 * next(numbers))
    results = cells(call(converted(points, gs.interval.scalar)))
    exact = cells(call(converted(points, gs.exact.scalar)))
    assert [(box.lo, box.hi) for box in results] == [(float(y), float(y)) for y in exact]


@pytest.mark.parametrize(**each([call for call in MAXIMA if call.function.endswith("pool")]))
def test_the_maximum_is_the_interval_of_the_maxima_of_the_ends(call: Call) -> None:
    rng = random.Random(str(call))
    boxes = call.arguments(lambda: random_interval(rng))
    lows, highs = (cells(call(converted(boxes, operator.attrgetter(end)))) for end in ("lo", "hi"))
    assert [(box.lo, box.hi) for box in cells(call(boxes))] == list(zip(lows, highs, strict=True))


@pytest.mark.parametrize(**each([call for call in SMOOTH if call.function.endswith("pool")]))
@pytest.mark.parametrize("width", [0.0, 2.0**-30, 3.0])
def test_the_smooth_maximum_is_as_wide_as_its_range(call: Call, width: float) -> None:
    """It increases in every cell, and each cell occurs once around a fixed pivot: the range is [y(lo), y(hi)].

    What is added: with |z| ≤ Z for every exponent and n cells, two ulps of z in each exponent, n in the sum and one in
    the power, the logarithm, the division and the last addition.
    """
    rng = random.Random(str(call))
    lows = call.arguments(lambda: rng.uniform(-3, 3))
    boxes = converted(lows, lambda low: Interval(low, low + width))
    ends = [cells(call(converted(boxes, lambda b, e=e: gs.ball(200).scalar(getattr(b, e))))) for e in ("lo", "hi")]
    beta = abs(call.options["beta"])
    largest_exponent, largest_value = beta * 2 * (6 + width), 3 + width + math.log(4) / beta
    slack = float(ULP) * ((2 * largest_exponent + 4 + 4 + math.log(4)) / beta + largest_value)
    for box, low, high in zip(cells(call(boxes)), *ends, strict=True):
        assert abs(box.lo - low.mid()) <= slack
        assert abs(box.hi - high.mid()) <= slack


@pytest.mark.parametrize(**each([call for call in SMOOTH if not call.function.endswith("pool")]))
@pytest.mark.parametrize("width", [0.0, 2.0**-30, 2.0**-8])
def test_smooth_derivatives_widen_in_proportion(call: Call, width: float) -> None:
    """Cells of width δ make every power and the total grow by at most e^{|β|δ}, so every weight by e^{2|β|δ}.

    Weights add up to 1 in a window and a cell lies in at most four of these.
    """
    rng = random.Random(str(call))
    boxes = {
        name: tensor.map(lambda low, w=width if name == "x" else 0.0: Interval(low, low + w))
        for name, tensor in call.arguments(lambda: rng.uniform(-3, 3)).items()
    }
    growth = math.expm1(2 * abs(call.options["beta"]) * width)
    for box in cells(call(boxes)):
        assert box.width <= 4 * 3 * (growth + 200 * float(ULP))


# --- who may win (every box of three cells with ends in {0, 1, 2}) ----------------------------------------------------

ENDS = [(low, high) for low in range(3) for high in range(low, 3)]
BOXES = list(product(ENDS, repeat=3))
TANGENTS = (1.0, 10.0, 100.0)  # distinct, and distinct in every partial sum


def realised_outcomes(box: tuple[tuple[int, int], ...], ties: str) -> set[frozenset[int]]:
    """The cells that take part in the derivative, for the ends and middles of every cell.

    The ends suffice: a cell that can win wins at its upper end against the others' lower ends.
    """
    outcomes = set()
    for point in product(*(sorted({low, (low + high) / 2, high}) for low, high in box)):
        tied = [i for i, value in enumerate(point) if value == max(point)]
        outcomes.add(frozenset(tied[:1] if ties == "first" else tied))
    return outcomes


def as_intervals(box: tuple[tuple[int, int], ...]) -> Tensor:
    return gs.interval.tensor([low for low, _ in box], [high for _, high in box])


@pytest.mark.parametrize("ties", ["first", "all", "split"])
def test_the_cotangent_reaches_exactly_the_cells_that_may_win(ties: str) -> None:
    for box in BOXES:
        outcomes = realised_outcomes(box, ties)
        possible = frozenset.union(*outcomes)
        received = gs.spec.max_pool_vjp(as_intervals(box), gs.interval.tensor([8.0]), (3,), ties=ties).cells
        share = (8.0, 8.0) if len(possible) == 1 else (0.0, 8.0)
        assert [(r.lo, r.hi) for r in received] == [share if i in possible else (0.0, 0.0) for i in range(3)]


@pytest.mark.parametrize("ties", ["first", "all", "split"])
def test_the_tangent_is_the_stated_hull_of_the_cells_that_may_win(ties: str) -> None:
    for box in BOXES:
        outcomes = realised_outcomes(box, ties)
        possible, certain = frozenset.union(*outcomes), frozenset.intersection(*outcomes)
        seen = [TANGENTS[i] for i in sorted(possible)]
        stated = (sum(TANGENTS[i] for i in certain), sum(seen)) if ties == "all" else (min(seen), max(seen))
        tangent = gs.spec.max_pool_jvp(as_intervals(box), gs.interval.tensor(TANGENTS), (3,), ties=ties)[0]
        assert (tangent.lo, tangent.hi) == stated


@pytest.mark.parametrize("ties", ["first", "all", "split"])
@pytest.mark.parametrize("mode", ["jvp", "vjp"])
def test_strict_refuses_exactly_the_undecided_boxes(ties: str, mode: str) -> None:
    refused = {box for box in BOXES if isinstance(outcome_of_strict(box, ties, mode), gs.AmbiguityError)}
    assert refused == {box for box in BOXES if len(realised_outcomes(box, ties)) > 1}


def outcome_of_strict(box: tuple[tuple[int, int], ...], ties: str, mode: str) -> object:
    function = getattr(gs.spec, f"max_pool_{mode}")
    other = TANGENTS if mode == "jvp" else [1.0]
    try:
        return function(as_intervals(box), gs.interval.tensor(other), (3,), ties=ties, strict=True)
    except gs.AmbiguityError as error:
        return error


def test_indices_exist_exactly_where_the_first_winner_is_decided() -> None:
    for box in BOXES:
        outcomes = realised_outcomes(box, "first")
        if len(outcomes) > 1:
            with pytest.raises(gs.AmbiguityError):
                gs.spec.max_pool(as_intervals(box), (3,), return_indices=True)
        else:
            (winners,) = outcomes
            assert frozenset(gs.spec.max_pool(as_intervals(box), (3,), return_indices=True)[1].cells) == winners


def _whole_network(x):
    for _ in range(3):
        x = gs.relu(gs.conv2d(x, np.full((8, x.shape[-3], 3, 3), 0.125, np.float32), padding=1))
    return gs.mean(x, (-1, -2))


def test_intervals_of_a_network_come_from_compiled_boxes_and_say_so():
    graph = gs.trace(_whole_network, gs.f32[2, 13, 13])
    low = np.random.default_rng(0).standard_normal((2, 13, 13)).astype(np.float32)
    box = gs.interval.tensor(low, low + np.float32(0.125))
    boxes, scalar = (gs.evaluate(graph, box, domain=gs.interval, path=path) for path in ("boxes", "scalar"))
    assert (boxes.path, scalar.path) == ("boxes", "scalar")
    assert gs.evaluate(graph, box, domain=gs.interval).path == "boxes"  # of itself, where it is large
    for wide, narrow in zip(boxes.cells, scalar.cells, strict=True):
        assert wide.contains(narrow)
        assert wide.width <= narrow.width * (1 + 1e-9) + 1e-9


def test_what_has_no_boxes_goes_by_scalars_unless_told_otherwise():
    def places(x):
        return gs.greater(_whole_network(x), 0.0)

    graph = gs.trace(places, gs.f32[2, 13, 13])
    box = gs.interval.tensor(np.ones((2, 13, 13), np.float32))
    assert gs.evaluate(graph, box, domain=gs.interval).path == "scalar"
    with pytest.raises(gs.UnsupportedError, match="boxes are of floats"):
        gs.evaluate(graph, box, domain=gs.interval, path="boxes")
    with pytest.raises(ValueError, match="path='fast' is not known"):
        gs.evaluate(graph, box, domain=gs.interval, path="fast")
    with pytest.raises(ValueError, match=r"path='boxes' is for gs\.interval"):
        gs.evaluate(graph, box, domain=gs.exact, path="boxes")
