"""The same specification code on the numbers Python and NumPy already have."""

import math
import random
from collections.abc import Callable
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import gradspec as gs
from domains.calls import CONVOLUTIONS, MAXIMA, RATIONAL, REARRANGEMENTS, TRANSCENDENTAL, Call, cells, converted, each

KINDS = [int, float, Fraction, np.float32, np.float64, np.longdouble]


def whole_numbers(call: Call) -> dict:
    """Distinct multiples of 12 whose sums of products stay below 2²⁴: exact in every kind, ties broken."""
    numbers = iter(random.Random(str(call)).sample(range(-80, 80), 160))
    return call.arguments(lambda: 12 * next(numbers))


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
@pytest.mark.parametrize(**each(RATIONAL))
def test_every_kind_of_number_gives_the_exact_result(call: Call, kind: Callable) -> None:
    numbers = whole_numbers(call)
    exact = [Fraction(str(y)) for y in cells(call(converted(numbers, gs.exact.scalar)))]
    results = cells(call(converted(numbers, kind)))
    assert [Fraction(*y.as_integer_ratio()) for y in results] == exact
    assert {type(y) for y in results} <= ({int, float} if kind is int else {kind})


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint8, ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize(**each([c for c in (*MAXIMA, *REARRANGEMENTS) if c.options.get("ties") != "split"]))
def test_arrays_of_any_dtype_select_and_keep_their_dtype(call: Call, dtype: type) -> None:
    rng = random.Random(str(call))
    numbers = call.arguments(lambda: rng.randint(0, 9))
    arrays = {name: np.array(t.tolist(), dtype) for name, t in numbers.items()}
    results = cells(call(arrays))
    assert list(map(int, results)) == cells(call(numbers))
    assert {type(y) for y in results} == {dtype}


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(**each(CONVOLUTIONS))
def test_convolutions_of_integer_arrays_are_integers(call: Call, dtype: type) -> None:
    numbers = whole_numbers(call)
    results = cells(call({name: np.array(t.tolist(), dtype) for name, t in numbers.items()}))
    assert results == cells(call(numbers))
    assert {type(y) for y in results} == {dtype}


@pytest.mark.parametrize(("kind", "relative"), [(float, 1e-13), (np.float64, 1e-13), (np.float32, 1e-5)])
@pytest.mark.parametrize(**each(TRANSCENDENTAL))
def test_smooth_pooling_runs_on_plain_floats(call: Call, kind: Callable, relative: float) -> None:
    rng = random.Random(str(call))
    numbers = call.arguments(lambda: rng.randint(-24, 24) / 8)
    results = cells(call(converted(numbers, kind)))
    balls = cells(call(converted(numbers, gs.ball(100).scalar)))
    assert {type(y) for y in results} == {kind}
    assert all(
        math.isclose(y, float(b), rel_tol=relative, abs_tol=relative) for y, b in zip(results, balls, strict=True)
    )


def test_smooth_pooling_of_integers_is_a_float() -> None:
    assert gs.spec.smooth_max_pool([0, 0], (2,), beta=1).tolist() == [math.log(2)]


def test_the_exact_system_reaches_exp_and_log_where_they_are_rational() -> None:
    """One cell: exp(0) = 1 and log(1) = 0."""
    assert gs.spec.smooth_max_pool(gs.exact.tensor([3]), (1,), beta=2) == [3]
