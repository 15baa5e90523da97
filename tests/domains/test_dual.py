"""Dual numbers: forward derivatives by arithmetic alone, over every number system and over each other."""

import pickle
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradspec as gs
from domains.calls import (
    CONVOLUTIONS,
    LINEAR,
    RATIONAL,
    SMOOTH,
    SMOOTH_SECOND,
    Call,
    cells,
    converted,
    each,
    patient,
)
from gradspec.domains import Ball, Domain, Dual, Interval
from gradspec.spec.tensor import Tensor

VALUES = [call for call in RATIONAL if not call.function.endswith(("_jvp", "_vjp"))]
FIRST = [call for call in VALUES if call.options.get("ties", "first") == "first"]
nonzero = st.fractions(max_denominator=50).filter(bool)


def with_tangents(values: dict[str, Tensor], tangents: dict[str, Tensor], domain: object) -> dict[str, Tensor]:
    return {name: gs.dual(domain).tensor(values[name], tangents[name]) for name in values}


def distinct_and_small(call: Call, rng: random.Random) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Values at least 1 apart, tangents at most 1/4: no step along them changes who wins."""
    numbers = iter(rng.sample(range(-200, 200), 200))
    return call.arguments(lambda: Fraction(next(numbers))), call.arguments(lambda: Fraction(rng.randint(-5, 5), 20))


def shifted(values: dict[str, Tensor], tangents: dict[str, Tensor], steps: int) -> dict[str, Tensor]:
    return {
        name: Tensor(
            t.shape, [gs.exact.scalar(v + steps * d) for v, d in zip(t.cells, tangents[name].cells, strict=True)]
        )
        for name, t in values.items()
    }


# --- one number -------------------------------------------------------------------------------------------------------


@patient
@given(a=nonzero, b=nonzero, c=nonzero, d=nonzero)
def test_arithmetic_follows_the_rules_of_calculus(a: Fraction, b: Fraction, c: Fraction, d: Fraction) -> None:
    x, y = Dual(a, b), Dual(c, d)
    for result, value, tangent in [
        (x + y, a + c, b + d),
        (x - y, a - c, b - d),
        (x * y, a * c, b * c + a * d),
        (x / y, a / c, (b * c - a * d) / c**2),
        (-x, -a, -b),
        (x + c, a + c, b),
        (c + x, a + c, b),
        (x - c, a - c, b),
        (c - x, c - a, -b),
        (x * c, a * c, b * c),
        (c * x, a * c, b * c),
        (x / c, a / c, b / c),
        (c / x, c / a, -c * b / a**2),
    ]:
        assert (result.value, result.tangent) == (value, tangent)


def test_order_looks_at_values_and_equality_at_both() -> None:
    assert Dual(1, 5) < Dual(2, 0)
    assert Dual(2, 0) > 1
    assert not Dual(1, 5) > Dual(1, 0)
    assert Dual(1, 5) != Dual(1, 0)
    assert Dual(1, 0) == 1


def test_names_and_pickles() -> None:
    assert repr(gs.dual(gs.dual(gs.ball(64)))) == "gs.dual(gs.dual(gs.ball(64)))"
    x = gs.dual(gs.exact).scalar(3)
    assert repr(x) == "3 + 0·ε"
    assert pickle.loads(pickle.dumps(Dual(1.5, 2.5))) == Dual(1.5, 2.5)


# --- rationals: a difference quotient is exact -----------------------------------------------------------------------


@pytest.mark.parametrize(**each(RATIONAL))
def test_the_tangent_is_the_central_difference(call: Call) -> None:
    """Every call is at most quadratic in its arguments while the winners stay: (f(a+v) − f(a−v))/2 is f′(a)·v."""
    values, tangents = distinct_and_small(call, random.Random(str(call)))
    duals = cells(call(with_tangents(values, tangents, gs.exact)))
    ahead, behind = (cells(call(shifted(values, tangents, step))) for step in (1, -1))
    assert [y.tangent for y in duals] == [(p - q) / 2 for p, q in zip(ahead, behind, strict=True)]
    assert [y.value for y in duals] == cells(call(shifted(values, tangents, 0)))


@pytest.mark.parametrize(**each(VALUES))
def test_the_tangent_of_the_value_is_the_jvp(call: Call) -> None:
    values, tangents = distinct_and_small(call, random.Random(str(call)))
    duals = cells(call(with_tangents(values, tangents, gs.exact)))
    exact = {f"d{name}": converted(tangents, gs.exact.scalar)[name] for name in tangents}
    jvp = Call(f"{call.function}_jvp", {}, call.options)({**converted(values, gs.exact.scalar), **exact})
    assert [y.tangent for y in duals] == cells(jvp)


@pytest.mark.parametrize(**each(LINEAR))
def test_nested_duals_give_the_second_difference(call: Call) -> None:
    """For a quadratic, f″(a)[v, v] = f(a+v) − 2·f(a) + f(a−v)."""
    values, tangents = distinct_and_small(call, random.Random(str(call)))
    twice = gs.dual(gs.dual(gs.exact))
    inner = with_tangents(values, tangents, gs.exact)
    directions = {name: gs.dual(gs.exact).tensor(tangents[name]) for name in tangents}
    nested = cells(call({name: twice.tensor(inner[name], directions[name]) for name in values}))
    ahead, here, behind = (cells(call(shifted(values, tangents, step))) for step in (1, 0, -1))
    second = [p - 2 * q + r for p, q, r in zip(ahead, here, behind, strict=True)]
    assert [y.tangent.tangent for y in nested] == second


def test_a_tie_takes_the_first_cells_tangent() -> None:
    x = gs.dual(gs.exact).tensor([3, 3, 1], [10, 20, 30])
    assert gs.spec.max_pool(x, (3,))[0].tangent == 10


# --- balls: the smooth maximum, first and second derivative ----------------------------------------------------------


def encloses_the_same_number(a: Ball, b: Ball) -> bool:
    return not (a < b or a > b) and max(a.rad(), b.rad()) < 1e-20


def random_balls(call: Call, rng: random.Random) -> dict[str, Tensor]:
    return call.arguments(lambda: gs.ball(120).scalar(Fraction(rng.randint(-20, 20), 8)))


@pytest.mark.parametrize(**each([call for call in SMOOTH if call.function.endswith("pool")]))
def test_dual_balls_differentiate_the_smooth_maximum(call: Call) -> None:
    rng = random.Random(str(call))
    values, tangents = random_balls(call, rng), random_balls(call, rng)
    duals = cells(call(with_tangents(values, tangents, gs.ball(120))))
    jvp = Call("smooth_max_pool_jvp", {}, call.options)({**values, "dx": tangents["x"]})
    assert all(encloses_the_same_number(y.tangent, d) for y, d in zip(duals, cells(jvp), strict=True))


def test_nested_dual_balls_give_the_second_derivative_of_the_smooth_maximum() -> None:
    rng = random.Random(0)
    call = SMOOTH_SECOND[0]
    arguments = random_balls(call, rng)
    along_dx = gs.dual(gs.ball(120))
    inner = along_dx.tensor(arguments["x"], arguments["dx"])
    nested = gs.dual(along_dx).tensor(inner, along_dx.tensor(arguments["ex"]))
    value = cells(Call("smooth_max_pool", {}, call.options)({"x": nested}))
    second = cells(call(arguments))
    assert all(encloses_the_same_number(y.tangent.tangent, d) for y, d in zip(value, second, strict=True))


def test_dual_balls_differentiate_the_vjp_of_the_smooth_maximum() -> None:
    rng = random.Random(1)
    call = SMOOTH_SECOND[1]
    arguments = random_balls(call, rng)
    x = gs.dual(gs.ball(120)).tensor(arguments["x"], arguments["dx"])
    vjp = Call("smooth_max_pool_vjp", {}, call.options)({"x": x, "g": gs.dual(gs.ball(120)).tensor(arguments["g"])})
    assert all(encloses_the_same_number(y.tangent, d) for y, d in zip(cells(vjp), cells(call(arguments)), strict=True))


# --- intervals: every derivative of every point ----------------------------------------------------------------------


@pytest.mark.parametrize(**each(FIRST))
def test_dual_intervals_contain_the_derivatives_of_every_sample(call: Call) -> None:
    rng = random.Random(str(call))

    def box() -> Interval:
        low = rng.randint(-8, 8) / 4
        return Interval(low, low + rng.choice([0, 1, 2]) / 4)

    values, tangents = call.arguments(box), call.arguments(box)
    enclosures = cells(call(with_tangents(values, tangents, gs.interval)))
    jvp = Call(f"{call.function}_jvp", {}, call.options)
    for _ in range(10):
        points = {
            name: t.map(lambda b: gs.exact.scalar(rng.choice([b.lo, b.hi, (b.lo + b.hi) / 2])))
            for name, t in (*values.items(), *((f"d{name}", t) for name, t in tangents.items()))
        }
        assert all(y.tangent.contains(d) for y, d in zip(enclosures, cells(jvp(points)), strict=True))
        here = cells(call({name: points[name] for name in values}))
        assert all(y.value.contains(v) for y, v in zip(enclosures, here, strict=True))


# --- floats: value and tangent are the operator's own, bit for bit ---------------------------------------------------


@pytest.mark.parametrize(
    "domain", [*map(gs.ieee, ("f16", "bf16", "f32", "f64")), gs.ieee("f16", accumulate="f32")], ids=repr
)
@pytest.mark.parametrize(**each([call for call in FIRST if "pool" in call.function]))
def test_dual_floats_of_a_pool_are_its_value_and_jvp(call: Call, domain: Domain) -> None:
    rng = random.Random(str(call))
    values, tangents = (call.arguments(lambda: domain.scalar(rng.gauss(0, 1))) for _ in range(2))
    duals = cells(call(with_tangents(values, tangents, domain)))
    jvp = Call(f"{call.function}_jvp", {}, call.options)({**values, "dx": tangents["x"]})
    assert [y.value for y in duals] == cells(call(values))
    assert [y.tangent for y in duals] == cells(jvp)


@pytest.mark.parametrize(**each([call for call in CONVOLUTIONS if call in VALUES]))
def test_dual_floats_of_a_convolution_are_exact_where_nothing_rounds(call: Call) -> None:
    """Whole numbers below 2¹¹ in float16, accumulated in float32: nothing rounds."""
    rng = random.Random(str(call))
    values, tangents = (call.arguments(lambda: rng.randint(-3, 3)) for _ in range(2))
    duals = cells(call(with_tangents(values, tangents, gs.ieee("f16", accumulate="f32"))))
    exact = cells(call(with_tangents(values, tangents, gs.exact)))
    assert [(Fraction(float(y.value)), Fraction(float(y.tangent))) for y in duals] == [
        (Fraction(str(y.value)), Fraction(str(y.tangent))) for y in exact
    ]


# --- bringing numbers in ---------------------------------------------------------------------------------------------


def test_a_number_has_no_tangent_and_a_dual_keeps_its_own() -> None:
    domain = gs.dual(gs.exact)
    assert repr(domain.scalar(0.5)) == "1/2 + 0·ε"
    assert repr(domain.scalar(Dual(0.5, "1/3"))) == "1/2 + 1/3·ε"
    assert repr(domain.tensor([1, 2]).tolist()) == "[1 + 0·ε, 2 + 0·ε]"
