"""Rounding to a binary format: against every number of small formats, and against NumPy's casts."""

import math
from bisect import bisect
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from domains.calls import patient
from domains.floats import DTYPES, is_largest_float_at_most, same_bits
from gradspec.domains import FORMATS, Format
from gradspec.domains.formats import float_above, float_below

TINY = [Format("p2", 2, 1), Format("p3", 3, 2), Format("p5", 5, 3), Format("p4", 4, 7)]
integers = st.integers(-(10**320), 10**320) | st.integers(-100, 100)


def finite_numbers(format: Format) -> list[Fraction]:
    """Every non-negative number of a format: significand times power of two, the exponents from the definition."""
    lowest = 1 - format.emax - (format.precision - 1)
    exponents = range(lowest, format.emax - format.precision + 2)
    return sorted({m * Fraction(2) ** e for e in exponents for m in range(2**format.precision)})


def nearest_by_search(x: Fraction, numbers: list[Fraction], format: Format) -> float:
    """The closest number; between two, the one with an even significand; infinity where that is the next power."""
    beyond = Fraction(2) ** (format.emax + 1)
    ladder = [*numbers, beyond]
    size = abs(x)
    if size >= beyond:
        nearest = beyond
    else:
        place = bisect(ladder, size)
        below, above = ladder[place - 1], ladder[place]
        # Consecutive numbers have significands of alternating parity, and zero, number 0 of the ladder, is even.
        even = below if (place - 1) % 2 == 0 else above
        nearest = even if size - below == above - size else min(below, above, key=lambda y: abs(y - size))
    return math.copysign(math.inf if nearest == beyond else float(nearest), x)


@pytest.mark.parametrize("format", TINY, ids=lambda f: f.name)
def test_every_rational_of_a_grid_goes_to_the_nearest_number(format: Format) -> None:
    numbers = finite_numbers(format)
    step = format.tiniest / 8
    last = int(3 * 2**format.emax / step)
    for k in range(0, last, max(last // 6000, 1)):
        for x in (k * step, -k * step):
            expected = nearest_by_search(x, numbers, format)
            assert format.nearest(float(x)) == expected
            assert format.nearest_ratio(x.numerator, x.denominator) == expected
        third = (3 * k + 1) * step / 3
        assert format.nearest_ratio(third.numerator, third.denominator) == nearest_by_search(third, numbers, format)


@pytest.mark.parametrize("format", TINY, ids=lambda f: f.name)
def test_numbers_midpoints_and_what_is_next_to_them(format: Format) -> None:
    numbers = finite_numbers(format)
    crumb = format.tiniest / 2**30
    for below, above in zip(numbers, [*numbers[1:], Fraction(2) ** (format.emax + 1)], strict=True):
        for x in (below, (below + above) / 2, (below + above) / 2 - crumb, (below + above) / 2 + crumb):
            expected = nearest_by_search(x, numbers, format)
            assert format.nearest(float(x)) == expected
            assert format.nearest_ratio(x.numerator, x.denominator) == expected


@pytest.mark.parametrize("name", DTYPES)
@patient
@given(bits=st.integers(0, 2**64 - 1) | st.integers(0, 100), half=st.booleans())
@example(bits=0x7FEFFFFFFFFFFFFF, half=False)
def test_nearest_is_the_cast(name: str, bits: int, half: bool) -> None:
    """On any double, and on the midpoint between two neighbours of the format."""
    dtype = DTYPES[name]
    x = float(np.array(bits, np.uint64).view(np.float64))
    with np.errstate(all="ignore"):
        if half:
            a = np.array(x).astype(dtype)
            x = (float(a) + float(np.nextafter(a, dtype(math.inf), dtype=dtype))) / 2
        if name == "bf16":  # from float64 the cast would go by way of float32 and round twice
            x = float(np.float32(x))
        expected = float(np.array(x).astype(dtype))
    assert same_bits(FORMATS[name].nearest(x), expected)


@patient
@given(numerator=integers, denominator=integers.filter(bool))
def test_a_ratio_in_float64_is_the_division_of_integers(numerator: int, denominator: int) -> None:
    numerator, denominator = (numerator, denominator) if denominator > 0 else (-numerator, -denominator)
    try:
        expected = numerator / denominator
    except OverflowError:
        expected = math.copysign(math.inf, 1 if numerator > 0 else -1)
    assert FORMATS["f64"].nearest_ratio(numerator, denominator) == expected


@pytest.mark.parametrize("name", DTYPES)
@patient
@given(x=st.floats(allow_nan=False, allow_infinity=False))
def test_a_ratio_and_its_float_round_alike(name: str, x: float) -> None:
    assert FORMATS[name].nearest_ratio(*x.as_integer_ratio()) == FORMATS[name].nearest(x)


@patient
@given(numerator=integers, denominator=integers.filter(lambda d: d > 0))
def test_floats_on_either_side_are_the_closest_ones(numerator: int, denominator: int) -> None:
    exact = Fraction(numerator, denominator)
    assert is_largest_float_at_most(float_below(numerator, denominator), exact)
    assert is_largest_float_at_most(-float_above(numerator, denominator), -exact)


@pytest.mark.parametrize("name", DTYPES)
def test_the_constants_are_those_of_the_dtype(name: str) -> None:
    target, info = FORMATS[name], ml_dtypes.finfo(DTYPES[name])
    assert float(target.largest) == float(info.max)
    assert float(target.normal) == float(info.smallest_normal)
    assert float(target.tiniest) == float(info.smallest_subnormal)
    assert float(target.unit) == float(info.eps) / 2
    assert target.overflow == target.largest + Fraction(2) ** (target.emax - target.precision)
    assert target.nearest_ratio(target.overflow.numerator, target.overflow.denominator) == math.inf
    just_below = target.overflow - target.tiniest / 4
    assert target.nearest_ratio(just_below.numerator, just_below.denominator) == target.largest
