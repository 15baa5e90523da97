"""The functions beyond + − × ÷ in every number system, judged by the standard library's decimals."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from flint import arb

import gradspec as gs
from domains.floats import is_largest_float_at_most, same_bits
from gradspec.domains import FORMATS, Ball, Dual, Interval
from gradspec.domains.ball import endpoints
from gradspec.spec import scalar
from gradspec.spec.pointwise import logistic
from gradspec.spec.scalar import constant, maximum, order, power, sqrt

INF, NAN = math.inf, math.nan
CONTEXT = Context(prec=150, Emax=10**9, Emin=-(10**9))
SLACK = Fraction(1, 10**60)
"""Relative error of the references below, all of which lose far fewer than ninety of their digits."""


def decimal_pi() -> Decimal:
    """Machin's formula: π = 16·arctan(1/5) − 4·arctan(1/239)."""

    def arctan_inverse(n: int) -> Decimal:
        return sum((Decimal((-1) ** k) / ((2 * k + 1) * Decimal(n) ** (2 * k + 1)) for k in range(120)), Decimal(0))

    return 16 * arctan_inverse(5) - 4 * arctan_inverse(239)


def decimal_density(x: Decimal) -> Decimal:
    return (-x * x / 2).exp() / (2 * decimal_pi()).sqrt()


def decimal_cdf(x: Decimal) -> Decimal:
    """Φ(x) = ½ + φ(x)·(x + x³/3 + x⁵/(3·5) + …), whose terms all have the sign of x."""
    term, total, n = x, Decimal(0), 1
    while abs(term) > Decimal(10) ** -130:
        total += term
        n += 2
        term *= x * x / n
    return Decimal("0.5") + decimal_density(x) * total


def decimal_erf(x: Decimal) -> Decimal:
    """2·Φ(√2·x) − 1, which loses as many digits as ``x`` is small."""
    return 2 * decimal_cdf(Decimal(2).sqrt() * x) - 1


def decimal_sin(x: Decimal) -> Decimal:
    """x − x³/3! + x⁵/5! − …, of what π leaves of ``x``."""
    x = x.remainder_near(2 * decimal_pi())
    term, total, n = x, Decimal(0), 1
    while abs(term) > Decimal(10) ** -140:
        total += term
        n += 2
        term *= -x * x / (n * (n - 1))
    return total


def decimal_atan(x: Decimal) -> Decimal:
    """x − x³/3 + x⁵/5 − …, of an angle that is halved until its tangent is small."""
    for _ in range(8):
        x /= 1 + (1 + x * x).sqrt()
    return 256 * sum(((-1) ** k * x ** (2 * k + 1) / (2 * k + 1) for k in range(40)), Decimal(0))


def decimal_cos(x: Decimal) -> Decimal:
    return decimal_sin(decimal_pi() / 2 - x)


@dataclass(frozen=True)
class Function:
    """A function of the specification, its reference, and where it is tried."""

    id: str
    apply: Callable
    reference: Callable[[Decimal], Decimal]
    points: tuple[float, ...]

    def real(self, x: float | Fraction) -> tuple[Fraction, Fraction]:
        n, d = x.as_integer_ratio()
        with localcontext(CONTEXT):
            y = Fraction(self.reference(Decimal(n) / d))
        return y - abs(y) * SLACK, y + abs(y) * SLACK


ANYWHERE = (-7.5, -2.0, -1.0, -0.71, -1e-3, -1e-9, 1e-9, 1e-3, 0.3, 1.0, 1.5, 2.75, 7.0)
ABOVE = (1e-300, 1e-9, 0.1, 0.5, 1.0, 1.75, 3.0, 10.0, 1e9, 1e300)
ANGLES = (*ANYWHERE, -1e22, 1.5707963267948966, 3.141592653589793, 355.0)
"""Among them some that are very near multiples of π/2."""
FUNCTIONS = [
    Function("exp", scalar.exp, Decimal.exp, ANYWHERE),
    Function("log", scalar.log, Decimal.ln, ABOVE),
    Function("log1p", scalar.log1p, lambda x: (1 + x).ln(), tuple(x for x in (*ANYWHERE, *ABOVE[1:]) if x > -1)),
    Function("tanh", scalar.tanh, lambda x: ((2 * x).exp() - 1) / ((2 * x).exp() + 1), ANYWHERE),
    Function("sin", scalar.sin, decimal_sin, ANGLES),
    Function("cos", scalar.cos, decimal_cos, ANGLES),
    Function("atan", scalar.atan, decimal_atan, ANYWHERE),
    Function("erf", scalar.erf, decimal_erf, ANYWHERE),
    Function("normal_cdf", scalar.normal_cdf, decimal_cdf, ANYWHERE),
    Function("normal_density", scalar.normal_density, decimal_density, ANYWHERE),
    Function("sqrt", sqrt, Decimal.sqrt, ABOVE),
    Function("cube", lambda x: power(x, 3), lambda x: x * x * x, ANYWHERE),
    Function("inverse square", lambda x: power(x, -2), lambda x: 1 / (x * x), ANYWHERE),
    Function("power 2.5", lambda x: power(x, 2.5), lambda x: x * x * x.sqrt(), ABOVE[1:-1]),
    Function("power −0.3", lambda x: power(x, -0.3), lambda x: (Decimal.from_float(-0.3) * x.ln()).exp(), ABOVE),
    Function("cube root", lambda x: power(x, Fraction(1, 3)), lambda x: (x.ln() / 3).exp(), ABOVE),
]


@pytest.fixture(params=FUNCTIONS, ids=lambda f: f.id)
def function(request: pytest.FixtureRequest) -> Function:
    return request.param


def test_the_references_are_right() -> None:
    """Published digits: Φ(1), φ(0) and π."""
    with localcontext(CONTEXT):
        assert str(decimal_pi()).startswith("3.14159265358979323846264338327950288419716939937510")
        assert str(decimal_cdf(Decimal(1))).startswith("0.8413447460685429485852325456320379")
        assert str(decimal_density(Decimal(0))).startswith("0.3989422804014326779399460599343818")


# --- one number -------------------------------------------------------------------------------------------------------


def test_balls_contain_the_real_result_and_little_else(function: Function) -> None:
    for x in function.points:
        low, high = function.real(x)
        ball = function.apply(gs.ball(120).scalar(x))
        assert ball.arb.overlaps(gs.ball(400).scalar(low).arb.union(gs.ball(400).scalar(high).arb))
        is_wave = function.id in ("sin", "cos")  # near its zeros, what is left of the angle has fewer digits
        assert ball.rad() <= 1e-30 * (1 if is_wave else abs(ball.mid()))


def test_intervals_end_at_the_nearest_floats(function: Function) -> None:
    for x in function.points:
        low, high = function.real(x)
        result = function.apply(gs.interval.scalar(x))
        assert is_largest_float_at_most(result.lo, high)
        assert is_largest_float_at_most(-result.hi, -low)


@pytest.mark.parametrize("name", FORMATS)
def test_ieee_results_are_correctly_rounded(function: Function, name: str) -> None:
    random, format = Random(f"{function.id} {name}"), FORMATS[name]
    points = [format.nearest(x * random.uniform(0.5, 1.0)) for x in function.points for _ in range(3)]
    for x in points:
        if math.isfinite(x) and (x != 0 or function.id == "normal_cdf"):
            low, high = (format.nearest_ratio(y.numerator, y.denominator) for y in function.real(x))
            assert low == high
            assert same_bits(float(function.apply(gs.ieee(name).scalar(x))), low)


@pytest.mark.parametrize("kind", [float, np.float64, np.float32])
def test_plain_floats_are_accurate_and_keep_their_type(function: Function, kind: type) -> None:
    for x in function.points:
        if abs(x) > 1e30 or abs(x) < 1e-30:
            continue
        result, exact = function.apply(kind(x)), float(function.real(float(kind(x)))[0])
        assert type(result) is kind
        assert math.isclose(result, exact, rel_tol=1e-6 if kind is np.float32 else 1e-13)


SPECIAL = {
    "log1p": (scalar.log1p, [(-1.0, -INF), (-2.0, NAN), (INF, INF), (-INF, NAN), (0.0, 0.0), (-0.0, -0.0)]),
    "tanh": (scalar.tanh, [(INF, 1.0), (-INF, -1.0), (1e300, 1.0), (-1e300, -1.0), (0.0, 0.0), (-0.0, -0.0)]),
    "atan": (scalar.atan, [(INF, math.pi / 2), (-INF, -math.pi / 2), (0.0, 0.0), (-0.0, -0.0), (5e-324, 5e-324)]),
    "erf": (scalar.erf, [(INF, 1.0), (-INF, -1.0), (1e300, 1.0), (-1e300, -1.0), (0.0, 0.0), (-0.0, -0.0)]),
    "sin": (scalar.sin, [(INF, NAN), (-INF, NAN), (0.0, 0.0), (-0.0, -0.0), (5e-324, 5e-324)]),
    "cos": (scalar.cos, [(INF, NAN), (-INF, NAN), (0.0, 1.0), (-0.0, 1.0), (5e-324, 1.0)]),
    "normal_cdf": (scalar.normal_cdf, [(INF, 1.0), (-INF, 0.0), (1e300, 1.0), (-1e300, 0.0), (0.0, 0.5)]),
    "normal_density": (scalar.normal_density, [(INF, 0.0), (-INF, 0.0), (1e300, 0.0)]),
    "sqrt": (sqrt, [(INF, INF), (-INF, NAN), (-1.0, NAN), (0.0, 0.0), (-0.0, -0.0)]),
    "square": (lambda x: power(x, 2), [(INF, INF), (-INF, INF), (1e300, INF), (1e-300, 0.0), (-0.0, 0.0)]),
    "cube": (lambda x: power(x, 3), [(INF, INF), (-INF, -INF), (-1e300, -INF), (-1e-300, -0.0), (-0.0, -0.0)]),
    "inverse": (lambda x: power(x, -1), [(INF, 0.0), (-INF, -0.0), (0.0, INF), (-0.0, -INF)]),
    "floor": (scalar.floor, [(INF, INF), (-INF, -INF), (0.0, 0.0), (-0.0, -0.0), (-1e-300, -1.0), (1e300, 1e300)]),
    "round": (
        scalar.nearest_integer,
        [(INF, INF), (-INF, -INF), (0.5, 0.0), (-0.5, -0.0), (-0.0, -0.0), (1.5, 2.0), (2.5, 2.0), (-3.5, -4.0)],
    ),
    "power 0.5": (lambda x: power(x, 0.5), [(INF, INF), (-1.0, NAN), (0.0, 0.0)]),
}


@pytest.mark.parametrize("convert", [float, gs.ieee("f64").scalar], ids=["float", "ieee"])
@pytest.mark.parametrize(("apply", "table"), SPECIAL.values(), ids=SPECIAL)
def test_special_values(apply: Callable, table: list[tuple[float, float]], convert: Callable) -> None:
    for x, y in [*table, (NAN, NAN)]:
        assert same_bits(float(apply(convert(x))), y)
    assert float(power(convert(NAN), 0)) == 1


def test_a_power_halfway_between_two_floats_rounds_to_even() -> None:
    """31⁵ is odd and has 25 bits; no ball around it decides which float is nearer."""
    assert float(power(gs.ieee("f32").scalar(31.0**4), 1.25)) == 31**5 + 1
    assert float(power(gs.ieee("f64").scalar(16.0), Fraction(-1075, 4))) == 0.0
    assert math.isclose(float(power(gs.ieee("f64").scalar(1 + 2.0**-52), 1e15)), math.exp(1e15 * 2.0**-52))


def test_rationals_are_exact_where_the_result_is_rational() -> None:
    for x, p, y in [("9/4", 0.5, "3/2"), ("-2", -3, "-1/8"), ("8/27", Fraction(2, 3), "4/9"), (0, 0, 1), (0, 0.5, 0)]:
        assert power(gs.exact.scalar(x), p) == gs.exact.scalar(y)
        assert power(Fraction(x), p) == Fraction(y)
    assert sqrt(gs.exact.scalar("49/25")) == gs.exact.scalar("7/5")
    assert scalar.normal_cdf(gs.exact.scalar(0)) == gs.exact.scalar("1/2")
    assert scalar.tanh(gs.exact.scalar(0)) == scalar.log1p(gs.exact.scalar(0)) == 0


@pytest.mark.parametrize("x", [gs.exact.scalar("3/5"), Fraction(3, 5)], ids=["fmpq", "Fraction"])
def test_rationals_refuse_irrational_results_and_say_where_to_go(function: Function, x: object) -> None:
    if function.id in ("cube", "inverse square"):
        assert Fraction(str(function.apply(x))) == Fraction(3, 5) ** (3 if function.id == "cube" else -2)
        return
    with pytest.raises(gs.UnsupportedError, match=r"gs\.ball"):
        function.apply(x)


def test_other_things_have_no_functions(function: Function) -> None:
    with pytest.raises(gs.UnsupportedError, match="not defined on str"):
        function.apply("1")


OUTSIDE = {
    "root below 0": (lambda d: sqrt(d.scalar(-1)), ValueError),
    "fractional power below 0": (lambda d: power(d.scalar(-1), 0.3), ValueError),
    "logarithm below 0": (lambda d: scalar.log1p(d.scalar(-2)), ValueError),
    "power of 0": (lambda d: power(d.scalar(0), -1), (ValueError, ZeroDivisionError)),
}


@pytest.mark.parametrize("domain", [gs.interval, gs.ball(64)], ids=repr)
@pytest.mark.parametrize(("apply", "error"), OUTSIDE.values(), ids=OUTSIDE)
def test_enclosures_refuse_what_is_not_real(apply: Callable, error: type, domain: gs.domains.Domain) -> None:
    with pytest.raises(error):
        apply(domain)


def test_zero_has_no_inverse_power_in_rationals() -> None:
    for zero in (gs.exact.scalar(0), Fraction(0)):
        with pytest.raises(ZeroDivisionError):
            power(zero, -1)


ROUNDINGS = {"floor": (scalar.floor, math.floor), "round": (scalar.nearest_integer, round)}


@pytest.mark.parametrize(("function", "reference"), ROUNDINGS.values(), ids=ROUNDINGS)
def test_rounding_to_integers_is_exact_in_every_system(function: Callable, reference: Callable) -> None:
    """Python's own rounding of rationals, at halves and their neighbours, beyond 2⁵³, and at the smallest numbers."""
    halves = [Fraction(n, 2) for n in range(-7, 8)]
    points = [x + d for x in halves for d in (Fraction(-1, 2**40), 0, Fraction(1, 2**40))]
    points += [Fraction(s * x) for s in (-1, 1) for x in (2.0**53 + 2, 1e300, 5e-324, 0.49999999999999994)]
    for x in points:
        wanted = reference(x)
        assert function(x) == function(float(x)) == wanted
        assert type(function(np.float64(x))) is np.float64
        for domain in (gs.exact, gs.interval, gs.ball(1100), gs.ieee("f64")):
            assert function(domain.scalar(x)) == domain.scalar(wanted)
        dual = function(gs.dual(gs.exact).tensor([x], [1])[0])
        assert (dual.value, dual.tangent) == (wanted, 0)
    for mantissa in (-1, 3):  # times 2^−10⁹, which is no rational to write down
        assert function(Ball(arb((mantissa, -(10**9))), 64)) == reference(Fraction(mantissa, 2**9))


@pytest.mark.parametrize("make", [Interval, lambda a, b: Ball(arb(a).union(b), 64)], ids=["interval", "ball"])
@pytest.mark.parametrize(("function", "reference"), ROUNDINGS.values(), ids=ROUNDINGS)
def test_roundings_of_wide_enclosures_have_all_integers_between(
    function: Callable, reference: Callable, make: Callable
) -> None:
    for low, high in [(-1.75, 0.25), (0.5, 0.75), (2.25, 2.375), (-0.25, 1e9), (-3.5, -2.5)]:
        result = function(make(low, high))
        for x in (low, high, (low + high) / 2):
            assert result.contains(reference(x))
        assert not result.contains(reference(low) - 2)
        assert not result.contains(reference(high) + 2)


# --- wide enclosures --------------------------------------------------------------------------------------------------

WIDE = [
    *(f for f in FUNCTIONS if f.id not in ("sin", "cos")),
    Function("square", lambda x: power(x, 2), lambda x: x * x, ANYWHERE),
    Function("abs", abs, abs, ANYWHERE),
    Function("logistic", logistic, lambda x: 1 / (1 + (-x).exp()), ANYWHERE),
]


@pytest.mark.parametrize("function", WIDE, ids=lambda f: f.id)
@pytest.mark.parametrize("kind", ["interval", "ball"])
def test_wide_enclosures_contain_all_and_only_what_lies_between(function: Function, kind: str) -> None:
    """Every value at a point inside is contained, and both ends are values (of the points, 0 or the ends), nearly."""
    random = Random(f"{function.id} {kind}")
    for _ in range(12):
        low, high = map(Fraction, sorted(random.sample(function.points, 2)))
        near, far = sorted((abs(low), abs(high)))
        if function.id == "inverse square" and low < 0 < high:
            continue
        if kind == "ball" and low * high > 0 and far > 10**6 * near:  # a ball that wide reaches beyond 0
            continue
        if kind == "interval":
            result = function.apply(Interval(float(low), float(high)))
            ends = Fraction(result.lo), Fraction(result.hi)
        else:
            ball = Ball(arb(float(low)).union(float(high)), 100)
            low, high = rational_ends(ball)
            result = function.apply(ball)
            ends = rational_ends(result)
        inside = [low, high, *(Fraction(x) for x in (*function.points, 0.0) if low < x < high)]
        values = [sum(function.real(x)) / 2 for x in inside]
        slack = (max(values) - min(values)) * Fraction(1, 2**25)
        assert min(values) - slack <= ends[0] <= min(values)
        assert max(values) <= ends[1] <= max(values) + slack


@pytest.mark.parametrize("make", [Interval, lambda a, b: Ball(arb(a).union(b), 100)], ids=["interval", "ball"])
@pytest.mark.parametrize("name", ["sin", "cos"])
def test_sines_of_wide_enclosures_turn_where_they_turn(name: str, make: Callable) -> None:
    """What the platform's functions give at close points inside is contained, and nearly all of the rest is not."""
    random, function = Random(name), getattr(scalar, name)
    for width in (1e-6, 0.1, 1.0, 3.0, 4.0, 6.0, 7.0, 50.0):
        for start in (random.uniform(-9, 9), random.uniform(-1e6, 1e6)):
            low, high = start, start + width
            result = function(make(low, high))
            values = [getattr(math, name)(low + (high - low) * i / 4000) for i in range(4001)]
            lower, upper = (float(end) for end in gs.spec.scalar.ends(result))
            slack = 1e-15 + min(high - low, 2) * 1e-4
            assert min(values) - slack <= lower <= min(values) + 1e-15
            assert max(values) - 1e-15 <= upper <= max(values) + slack


def test_sines_of_what_is_not_bounded_lie_between_minus_one_and_one() -> None:
    for x in (Interval(-INF, 3.0), Interval(INF, INF), Ball(arb(1, INF), 64), Ball(arb(INF), 64)):
        for function in (scalar.sin, scalar.cos):
            assert function(x).contains(-1)
            assert function(x).contains(1)
    huge = Ball(arb((1, 10**9)).union(0), 64)  # no precision is taken to reduce it
    assert scalar.sin(huge).contains(1)


def test_the_double_nearest_to_a_multiple_of_half_pi() -> None:
    """cos(6381956970095103·2⁷⁹⁷) = −4.68716592425462761112·10⁻¹⁹, the hardest case of reducing doubles."""
    x, wanted = 6381956970095103 * 2.0**797, -4.68716592425462761112e-19
    assert float(scalar.cos(gs.ieee("f64").scalar(x))) == wanted
    tight = scalar.cos(gs.interval.scalar(x))
    assert tight.lo <= wanted <= tight.hi <= math.nextafter(tight.lo, 1.0)
    for platform in (scalar.cos(x), gs.cos(np.float64([x]))[0]):
        assert platform == pytest.approx(wanted, rel=1e-14)


def rational_ends(ball: Ball) -> tuple[Fraction, Fraction]:
    return tuple(Fraction(int(end.p), int(end.q)) for end in endpoints(ball.arb))


def test_a_ball_around_zero_has_a_root_of_its_upper_part() -> None:
    root = sqrt(Ball(arb(2, 2), 64))  # a radius of 2 is kept a little larger, so the ball reaches below 0
    assert root.contains(0)
    assert root.contains(2)
    assert root.arb.upper() < 2.001


@pytest.mark.parametrize("make", [Interval, lambda a, b: Ball(arb(a).union(b), 64)], ids=["interval", "ball"])
def test_order_encloses_the_answers(make: Callable) -> None:
    table = {
        ((1, 2), (3, 4)): {-1},
        ((3, 4), (1, 2)): {1},
        ((1, 3), (2, 4)): {-1, 0, 1},
        ((2, 2), (2, 2)): {0},
        ((2, 2), (1, 4)): {-1, 0, 1},
    }
    for (a, b), answers in table.items():
        assert set(order(make(*map(float, a)), make(*map(float, b)))) == answers
    assert order(Interval(1.0, 2.0), Interval(2.0, 3.0)) == (-1, 0)
    assert order(Interval(2.0, 3.0), Interval(1.0, 2.0)) == (0, 1)


def test_order_of_numbers() -> None:
    for convert in (float, gs.ieee("f32").scalar):
        for a, b, answer in [(1, 2, -1), (2, 1, 1), (0.0, -0.0, 0), (NAN, INF, 1), (INF, NAN, -1), (NAN, NAN, 0)]:
            assert order(convert(a), convert(b)) == (answer,)


# --- derivatives ------------------------------------------------------------------------------------------------------

STEP = Fraction(1, 2**80)


def test_duals_are_difference_quotients(function: Function) -> None:
    """First and second derivatives against symmetric differences over balls, whose error is of the order of STEP²."""
    bits = gs.ball(700)
    for x in function.points:
        if not 1e-3 < abs(x) < 1e3:
            continue
        f = {k: function.apply(bits.scalar(Fraction(x) + k * STEP)) for k in (-1, 0, 1)}
        inner = Dual(bits.scalar(x), bits.scalar(1))
        twice = function.apply(Dual(inner, Dual(bits.scalar(1), bits.scalar(0))))
        for got, quotient in [
            (twice.value.value, f[0]),
            (twice.value.tangent, (f[1] - f[-1]) / (2 * STEP)),
            (twice.tangent.value, (f[1] - f[-1]) / (2 * STEP)),
            (twice.tangent.tangent, (f[1] - f[0] * 2 + f[-1]) / STEP / STEP),
        ]:
            assert abs(float(got - quotient)) <= 1e-35 * max(1, abs(float(got)))


def test_duals_at_kinks() -> None:
    one, zero, half = Fraction(1), Fraction(0), Fraction(1, 2)
    assert abs(Dual(zero, one)) == Dual(zero, zero)
    assert abs(Dual(-one, one)) == Dual(one, -one)
    assert maximum(Dual(one, one), Dual(one, zero)) == Dual(one, half)
    assert maximum(Dual(zero, one), Dual(one, zero)) == Dual(one, zero)
    assert constant(Dual(Dual(one, one), Dual(one, one))) == Dual(Dual(one, zero), Dual(zero, zero))
    wide = abs(Dual(Interval(-1.0, 2.0), Interval(3.0, 3.0)))
    assert (wide.value.lo, wide.value.hi, wide.tangent.lo, wide.tangent.hi) == (0.0, 2.0, -3.0, 3.0)


def test_duals_follow_ieee_where_the_derivative_is_infinite() -> None:
    x = gs.dual(gs.ieee("f64")).tensor([0.0], [1.0])[0]
    assert float(sqrt(x).tangent) == INF
    assert float(scalar.log(x).tangent) == INF
    assert float(power(x, 0).tangent) == 0
    assert float(power(x, 1).tangent) == 1
