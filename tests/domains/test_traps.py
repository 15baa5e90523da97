"""Traps of the number types that the systems are built from: each shown raw, then shown avoided."""

import math
import pickle
import sys
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from flint import arb, fmpq

import gradspec as gs
from domains.reals import real_exp
from gradspec.domains import FORMATS, Ball
from gradspec.domains.ieee import rounded_exp, rounded_log
from gradspec.spec.scalar import add_up


def test_builtin_max_of_overlapping_balls_is_unsound() -> None:
    wide, narrow = arb(0, 3), arb(1)  # anything in [−3, 3], and 1: the maximum may be 1 or 3
    assert any(not max(pair).contains(point) for pair in ((wide, narrow), (narrow, wide)) for point in (1, 3))
    pooled = gs.spec.max_pool(gs.spec.Tensor((2,), [Ball(wide, 53), Ball(narrow, 53)]), (2,))[0]
    assert pooled.contains(1)
    assert pooled.contains(3)
    assert not pooled.contains(-2)


def test_a_nan_ball_contains_everything() -> None:
    nothing = arb("nan")
    assert nothing.contains(arb(1))
    assert nothing.contains(arb(-7))
    for make_nan in (
        lambda: Ball(nothing, 53),
        lambda: gs.ball(53).scalar(1) / 0,
        lambda: gs.ball(53).scalar(math.nan),
    ):
        with pytest.raises(ValueError, match="NaN"):
            make_nan()


def test_arb_does_not_pickle() -> None:
    with pytest.raises(TypeError):
        pickle.dumps(arb(1))
    third = gs.ball(53).scalar("1/3")
    assert pickle.loads(pickle.dumps(third)).contains("1/3")


def test_a_rational_never_equals_a_float() -> None:
    assert fmpq(1, 2) != 0.5
    assert fmpq(1, 2) != Fraction(1, 2)
    halves = gs.spec.avg_pool(gs.exact.tensor([0, 1]), (2,))
    assert halves == [0.5]
    assert halves == [Fraction(1, 2)]
    assert halves == np.array([0.5], np.float32)
    assert halves != [0.25]
    assert gs.exact.scalar(0.5) == fmpq(1, 2)


def test_builtin_sum_of_floats_is_compensated_from_python_3_12() -> None:
    terms = [1e16, 1.0, -1e16]
    assert sum(terms) == (1.0 if sys.version_info >= (3, 12) else 0.0)
    assert add_up(terms, 0.0) == 0.0
    assert gs.spec.avg_pool(terms, (3,), divisor_override=1).tolist() == [0.0]
    assert gs.spec.conv([terms], [[[1.0, 1.0, 1.0]]]).tolist() == [[0.0]]
    assert gs.spec.conv_vjp([terms], [[[1.0, 1.0, 1.0]]], [0.0], [[1.0]])[2].tolist() == [1.0]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_small_float_divided_by_an_int64_is_a_float64(dtype: type) -> None:
    assert type(dtype(1) / np.int64(3)) is np.float64
    x = np.ones(3, dtype)
    for result in (
        gs.spec.avg_pool(x, (3,)),
        gs.spec.avg_pool(x, (3,), divisor_override=np.int64(3)),
        gs.spec.avg_pool_jvp(x, x, (3,), divisor_override=np.int64(3)),
        gs.spec.avg_pool_vjp(x, x[:1], (3,), divisor_override=np.int64(3)),
        gs.spec.max_pool_jvp(x, x, (3,), ties="split"),
        gs.spec.max_pool_vjp(x, x[:1], (3,), ties="split"),
    ):
        assert {type(cell) for cell in result.cells} == {dtype}
    assert repr(gs.spec.avg_pool(gs.ieee("f32").tensor([1]), (1,), divisor_override=np.int64(3))[0]) == repr(
        float(np.float32(1) / np.float32(3))
    )


def test_numpy_exp_and_log_are_not_correctly_rounded() -> None:
    rng = np.random.default_rng(0)
    wrong = []
    for name, dtype in (("f32", np.float32), ("f64", np.float64)):
        for numpy_function, ours, inputs in (
            (np.exp, rounded_exp, rng.uniform(-10, 10, 3000).astype(dtype)),
            (np.log, rounded_log, rng.uniform(0.01, 100, 3000).astype(dtype)),
        ):
            right = [ours(float(x), FORMATS[name]) for x in inputs]
            wrong += [(name, x) for x, y, z in zip(inputs, numpy_function(inputs), right, strict=True) if float(y) != z]
    assert wrong


def test_an_input_that_libraries_round_the_wrong_way() -> None:
    """exp of this float32 lies 0.4997 of a unit above one float32: single-precision kernels tend to return the next."""
    x = 5.1296067237854
    low, high = real_exp(x)
    below, above = (Fraction(float(y)) for y in (np.float32(168.95065), np.float32(168.95067)))
    assert below < low < high < (below + above) / 2
    assert rounded_exp(x, FORMATS["f32"]) == float(below)
    y = gs.spec.scalar.exp(gs.ieee("f32").scalar(x))
    assert float(y) == float(below)


def test_a_nan_is_unequal_to_itself_yet_wins_and_ties() -> None:
    nan = math.nan
    assert max(1.0, nan) == 1.0  # the builtin keeps whichever comes first
    assert gs.spec.max_pool([1.0, nan, nan, 2.0], (4,), return_indices=True)[1].tolist() == [1]
    assert gs.spec.max_pool_vjp([1.0, nan, nan, 2.0], [6.0], (4,), ties="split").tolist() == [0.0, 3.0, 3.0, 0.0]


def test_bfloat16_is_no_number_to_the_standard_library() -> None:
    half = ml_dtypes.bfloat16(0.5)
    assert not hasattr(half, "as_integer_ratio")
    assert gs.exact.scalar(half) == fmpq(1, 2)
    assert gs.spec.max_pool(np.array([0.5, 2], ml_dtypes.bfloat16), (2,)).tolist() == [2]


@pytest.mark.parametrize("scalar", [gs.interval.scalar(1), gs.ball(64).scalar(1)], ids=["interval", "ball"])
@pytest.mark.parametrize("other", [None, "one", object(), [1]], ids=["None", "str", "object", "list"])
def test_an_enclosure_differs_from_what_is_no_number(scalar, other):
    assert (scalar == other) is False
    assert (scalar != other) is True
