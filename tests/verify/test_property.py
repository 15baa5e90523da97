"""Properties: their floats are on the safe side of the exact numbers, and the constructors say what they promise."""

import pickle
from fractions import Fraction
from itertools import product

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradspec as gs
from gradspec.verify.property import Conjunction, Inequality, InputBox, Property, round_down, round_up

DTYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]
EDGES = [
    *(Fraction(value) for value in (0, 1, -1, 0.1, 65504, 65505, 2.0**-24, -(2.0**-1074))),
    *(Fraction(text) for text in ("1/3", "-1/10", "1e-400", "-1e-400", "1e39", "-1e300", "16777217", "65519.999")),
]
RATIONALS = st.fractions(max_denominator=10**9) | st.floats(allow_nan=False, allow_infinity=False).map(Fraction)


def exactly(x):
    """A float as a rational, which the infinities are far beyond."""
    return Fraction(float(x)) if np.isfinite(float(x)) else Fraction(10) ** 400 * int(np.sign(float(x)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", EDGES, ids=lambda number: f"{float(number)}")
def test_rounding_is_directed_and_to_the_next_float(number, dtype):
    (low,), (high,) = round_down([number], dtype), round_up([number], dtype)
    assert low.dtype == high.dtype == dtype
    assert exactly(low) <= number <= exactly(high)
    with np.errstate(over="ignore"):
        assert exactly(np.nextafter(high, dtype(-np.inf))) < number < exactly(np.nextafter(low, dtype(np.inf)))
    assert not (number == 0 and np.signbit(high))


@given(RATIONALS, RATIONALS)
def test_boxes_of_floats_lie_around_and_within(one, other):
    box = InputBox((min(one, other),), (max(one, other),))
    for dtype in (np.float64, np.float32):
        (low, high), (inner_low, inner_high) = box.outer(dtype), box.inner(dtype)
        assert exactly(low[0]) <= box.lower[0] <= exactly(inner_low[0])
        assert exactly(inner_high[0]) <= box.upper[0] <= exactly(high[0])


def test_a_point_that_is_no_float_has_no_float_within():
    low, high = InputBox((Fraction(1, 10),), (Fraction(1, 10),)).inner(np.float32)
    assert low[0] > high[0]


@given(st.lists(RATIONALS, min_size=1, max_size=3), RATIONALS)
def test_coefficients_are_nearest_and_errors_are_not_below_the_error(numbers, bound):
    coefficients = tuple((place, number) for place, number in enumerate(numbers) if number)
    row = Conjunction((Inequality(coefficients, coefficients, bound, True),), 3, 4)
    assert row.C.shape == row.C_error.shape == (1, 4)
    assert row.D.tolist() == row.C[:, :3].tolist()
    assert row.D_error.tolist() == row.C_error[:, :3].tolist()
    assert exactly(row.b[0]) >= bound
    for place, number in coefficients:
        assert row.C[0, place] == float(number)
        error = abs(exactly(row.C[0, place]) - number)
        assert (
            error <= exactly(row.C_error[0, place]) <= error * 2
            or error == 0 == row.C_error[0, place]
            or error < 1e-300
        )


# --- constructors -----------------------------------------------------------------------------------------------------


def test_robustness_in_pixels():
    x = np.float32([[[0.0, 0.5]], [[1.0, 0.25]]])  # two channels of one row
    found = Property.robust(x, "1/10", 1, 3, mean=[0.5, 0], std=["1/2", 2])
    tenth, half = Fraction(1, 10), Fraction(1, 2)
    (case,) = found.cases
    assert case.box.lower == ((0 - half) * 2, (half - tenth - half) * 2, (1 - tenth) / 2, (Fraction(1, 4) - tenth) / 2)
    assert case.box.upper == ((tenth - half) * 2, (half + tenth - half) * 2, half, (Fraction(1, 4) + tenth) / 2)
    assert [port.shape for port in (*found.inputs, *found.outputs)] == [(2, 1, 2), (3,)]
    assert [conjunction.C.tolist() for conjunction in case.unsafe] == [[[-1, 1, 0]], [[0, 1, -1]]]
    assert all(conjunction.b.tolist() == [0] and not conjunction.strict.any() for conjunction in case.unsafe)


@pytest.mark.parametrize("label", range(3))
def test_a_class_that_is_as_large_is_a_counterexample(label):
    found = Property.robust([0.5], 0, label, 3)
    for y in product(range(3), repeat=3):
        wins = all(y[label] > other for place, other in enumerate(y) if place != label)
        assert found.is_counterexample([0.5], y) != wins
    assert not found.is_counterexample([0.25], [0, 0, 0])


def test_pixels_without_a_range():
    (case,) = Property.robust([0, 300], 10, 0, 2, clip=None).cases
    assert (case.box.lower, case.box.upper) == ((-10, 290), (10, 310))
    (case,) = Property.robust([0, 250], 10, 0, 2, clip=(0, 255)).cases
    assert (case.box.lower, case.box.upper) == ((0, 240), (10, 255))


@pytest.mark.parametrize("y", [*product([0, 1, "1/3"], repeat=2)])
def test_what_always_holds_and_what_never_does(y):
    rows = [[1, "-1/3"], [0, 1]], [Fraction(1, 3), "1/3"]
    first, second = map(Fraction, y)
    holds = [first - second / 3 <= Fraction(1, 3), second <= Fraction(1, 3)]
    assert Property.never([0], [1], *rows).is_counterexample([1], y) == all(holds)
    assert Property.always([0], [1], *rows).is_counterexample([1], y) != all(holds)
    assert not Property.always([0], [1], *rows).is_counterexample([2], y)


def test_numbers_of_every_kind_are_exact():
    found = Property.never(np.float32([0.1]), [gs.exact.scalar("1/5")], [[np.float16(0.1), 1]], np.array([1]))
    (case,) = found.cases
    assert (case.box.lower, case.box.upper) == ((Fraction(float(np.float32(0.1))),), (Fraction(1, 5),))
    assert case.unsafe[0].inequalities[0].outputs[0] == (0, Fraction(float(np.float16(0.1))))
    assert found.is_counterexample([gs.exact.scalar("1/5")], gs.exact.tensor([1, "-1/3"]).cells)


def test_a_property_can_be_sent_to_another_process():
    found = Property.robust([[0.5, 0.25]], "1/255", 1, 3)
    assert found.cases[0].unsafe[0].C.any()
    assert pickle.loads(pickle.dumps(found)) == found
    assert str(found) == "1 case: 2 inputs, 3 outputs"


WRONG = {
    "label": (
        lambda: Property.robust([0], 0, 3, 3),
        ValueError,
        "label is 3, and there are 3 classes; give one of 0 to 2",
    ),
    "label of letters": (lambda: Property.robust([0], 0, "1", 3), TypeError, "label is '1', a str; give an int"),
    "one class": (lambda: Property.robust([0], 0, 0, 1), ValueError, "no other class .* Property.always"),
    "eps": (lambda: Property.robust([0], -1, 0, 3), ValueError, "eps is -1; give 0 or more"),
    "range": (lambda: Property.robust([2], 0, 0, 3), ValueError, r"a pixel 2.0, outside of 0.0 to 1.0; .* clip="),
    "NaN": (lambda: Property.robust([np.nan], 0, 0, 3), ValueError, "x holds something that is not a finite number"),
    "std": (lambda: Property.robust([0], 0, 0, 3, std=0), ValueError, "std has a number that is not positive"),
    "channels": (
        lambda: Property.robust(np.zeros((3, 2, 2)), 0, 0, 3, mean=[0, 0]),
        gs.ShapeError,
        r"mean has shape \(2,\), and the input \(3, 2, 2\); give a number, or one per index of axis -3",
    ),
    "no channels": (lambda: Property.robust([0], 0, 0, 3, mean=[0]), gs.ShapeError, "axis -3"),
    "crossed": (lambda: Property.never([0, 2], [1, 1], [[1]], [0]), ValueError, "lower is 2.0 above upper, 1.0, at 1"),
    "infinite": (lambda: Property.never([0], [np.inf], [[1]], [0]), ValueError, "upper holds something that is not"),
    "shapes": (
        lambda: Property.never([0], [1, 1], [[1]], [0]),
        gs.ShapeError,
        r"lower has shape \(1,\) and upper \(2,\)",
    ),
    "a vector": (lambda: Property.never([0], [1], [1], [0]), gs.ShapeError, r"C has shape \(1,\); give a matrix"),
    "too few bounds": (lambda: Property.never([0], [1], [[1], [2]], [0]), gs.ShapeError, "b has shape .* 2 are needed"),
    "no number": (lambda: Property.never([0], ["a"], [[1]], [0]), ValueError, "upper holds something that is not"),
    "no text of a number": (lambda: Property.never([0], [None], [[1]], [0]), ValueError, "upper holds something"),
    "outputs": (
        lambda: Property.robust([0], 0, 0, 3).is_counterexample([0], [1, 2]),
        gs.ShapeError,
        "y has .* 3 are needed",
    ),
}


@pytest.mark.parametrize(("made", "error", "what"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_said(made, error, what):
    with pytest.raises(error, match=what):
        made()
