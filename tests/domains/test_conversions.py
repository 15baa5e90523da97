"""Bringing ordinary numbers into each number system: exactly, or rounded and enclosed as the system says."""

import math
import pickle
from decimal import Decimal
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from flint import arb, fmpq, fmpz

import gradspec as gs
from gradspec.domains import Domain, rational
from gradspec.domains.ball import endpoints

TENTH_F32 = Fraction(13421773, 2**27)
TENTH_BF16 = Fraction(205, 2**11)

NUMBERS = [
    (7, Fraction(7)),
    (-(10**40) - 1, Fraction(-(10**40) - 1)),
    (True, Fraction(1)),
    (0.1, Fraction(3602879701896397, 2**55)),
    (5e-324, Fraction(1, 2**1074)),
    ("1/3", Fraction(1, 3)),
    ("0.1", Fraction(1, 10)),
    ("-2.5e-3", Fraction(-1, 400)),
    (Fraction(22, 7), Fraction(22, 7)),
    (Decimal("0.1"), Fraction(1, 10)),
    (np.float16(0.1), Fraction(1638, 2**14)),
    (np.float32(0.1), TENTH_F32),
    (np.float64(0.1), Fraction(0.1)),
    (np.longdouble(1) + np.finfo(np.longdouble).eps, 1 + Fraction(*np.finfo(np.longdouble).eps.as_integer_ratio())),
    (ml_dtypes.bfloat16(0.1), TENTH_BF16),
    (np.int8(-5), Fraction(-5)),
    (np.uint64(2**64 - 1), Fraction(2**64 - 1)),
    (np.int64(2**62 + 1), Fraction(2**62 + 1)),
    (fmpz(12), Fraction(12)),
    (fmpq(-1, 6), Fraction(-1, 6)),
    (gs.ieee("f32").scalar(0.1), TENTH_F32),
    (gs.interval.scalar(0.25), Fraction(1, 4)),
    (gs.ball(64).scalar(0.25), Fraction(1, 4)),
]
each_number = pytest.mark.parametrize(("value", "exact"), NUMBERS, ids=lambda v: f"{type(v).__name__} {v}"[:40])


@each_number
def test_a_rational_is_the_number_itself(value: object, exact: Fraction) -> None:
    assert str(rational(value)) == str(gs.exact.scalar(value)) == str(exact)


@each_number
def test_a_ball_contains_the_number(value: object, exact: Fraction) -> None:
    low, high = endpoints(gs.ball(53).scalar(value).arb)
    assert low <= rational(exact) <= high
    assert high - low <= abs(rational(exact)) / 2**51


@each_number
def test_an_interval_is_the_closest_floats_around_the_number(value: object, exact: Fraction) -> None:
    box = gs.interval.scalar(value)
    assert Fraction(box.lo) <= exact <= Fraction(box.hi)
    assert box.lo == box.hi == exact or math.nextafter(box.lo, math.inf) == box.hi


@each_number
@pytest.mark.parametrize(("name", "cast"), [("f64", np.float64), ("f32", np.float32)])
def test_a_float_is_the_nearest_to_the_number(name: str, cast: type, value: object, exact: Fraction) -> None:
    here = cast(float(gs.ieee(name).scalar(value)))
    if np.isinf(here):
        assert abs(exact) > Fraction(float(np.finfo(cast).max))
        return
    got = Fraction(float(here))
    neighbours = [Fraction(float(np.nextafter(here, cast(side)))) for side in (-math.inf, math.inf)]
    assert all(abs(got - exact) <= abs(other - exact) for other in neighbours)


@each_number
def test_a_dual_number_converts_both_parts(value: object, exact: Fraction) -> None:
    assert repr(gs.dual(gs.exact).tensor([value], [value])[0]) == f"{exact} + {exact}·ε"


SPECIALS = ["nan", "inf", "-inf"]


@pytest.mark.parametrize("kind", [float, np.float16, np.float32, np.float64, ml_dtypes.bfloat16, Decimal, str])
@pytest.mark.parametrize("numeral", SPECIALS)
def test_specials_go_where_they_exist_and_are_refused_elsewhere(numeral: str, kind: type) -> None:
    value, number = kind(numeral), float(numeral)
    got = float(gs.ieee("f32").scalar(value))
    assert got == number or (math.isnan(got) and math.isnan(number))
    with pytest.raises(gs.UnsupportedError, match=r"no NaN or infinity; use gs\.ieee"):
        gs.exact.scalar(value)
    for domain in (gs.interval, gs.ball(64)):
        if math.isnan(number):
            with pytest.raises(ValueError, match="NaN"):
                domain.scalar(value)
        else:
            assert domain.scalar(value).contains(number)


@pytest.mark.parametrize("kind", [float, np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", ["f16", "bf16", "f32", "f64"])
def test_a_zero_keeps_its_sign_in_a_float_format(name: str, kind: type) -> None:
    assert math.copysign(1, float(gs.ieee(name).scalar(kind(-0.0)))) == -1
    assert math.copysign(1, float(gs.ieee(name).scalar(kind(0.0)))) == 1


def test_arrays_and_nested_lists_convert_alike() -> None:
    nested = [[1, 2], [3, 4]]
    for data in (nested, tuple(map(tuple, nested)), np.array(nested), np.array(nested, ml_dtypes.bfloat16)):
        assert gs.exact.tensor(data).tolist() == nested
    assert gs.exact.tensor(np.float32(3)).tolist() == 3


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "g", ml_dtypes.bfloat16, ">f4", "i1"], ids=str)
@pytest.mark.parametrize("domain", [gs.exact, gs.ball(53), gs.interval, gs.ieee("f32"), gs.ieee("bf16")], ids=repr)
def test_an_array_converts_as_its_numbers_do(domain: Domain, dtype: type | str) -> None:
    array = np.array([[0.1, -0.0, 2.0], [3.7, -5.5, 1e-7]]).astype(dtype).T
    assert repr(domain.tensor(array).cells) == repr([domain.scalar(number) for number in array.flat])
    assert domain.tensor(array[:0]).shape == (0, 2)


@pytest.mark.parametrize(
    "number",
    [gs.interval.scalar("1/3"), gs.ieee("f16", accumulate="f32").scalar(0.1), gs.dual(gs.interval).scalar(2)],
    ids=repr,
)
def test_numbers_pickle(number: object) -> None:
    assert repr(pickle.loads(pickle.dumps(number))) == repr(number)


def test_arb_values_enter_balls_as_they_are() -> None:
    third = arb(1) / 3
    assert gs.ball(200).scalar(third).arb.rad() == third.rad()
    assert gs.ball(200).scalar(gs.ball(53).scalar("1/3")).contains("1/3")
