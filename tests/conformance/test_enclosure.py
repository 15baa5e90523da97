"""What every evaluation of a graph ends in: the real value, what kernels compute, and nothing but that where nothing
rounds."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import gradspec as gs
from gradspec.conformance import Arithmetic, enclosed_outputs, enclosure, meaning
from gradspec.conformance.oracle.enclosed import Enclosed, inverse_grain
from gradspec.domains.formats import format_named
from graph.op_cases import GraphCase
from graph.test_op_laws import CASES, several
from verify.test_bounds import inside

FORMATS = (gs.f32, gs.f16, gs.bf16, gs.f64)
ROTATED = [(case, FORMATS[i % 4]) for i, case in enumerate(CASES)]


def pairs(graph: Any, arrays: Any, **options: Any) -> list[tuple[Any, Any]]:
    ends = enclosure(graph, *arrays, **options)
    return list(zip(*([np.asarray(a, np.float64) for a in several(end)] for end in ends), strict=True))


def contains(low: Any, y: Any, high: Any) -> bool:
    got = np.asarray(y).astype(np.float64)
    return bool(np.all(((low <= got) & (got <= high)) | (np.isnan(got) & (np.isnan(low) | np.isinf(high - low)))))


def test_numbers_without_axes_keep_all_digits() -> None:
    """A NumPy scalar among the operands would be read as a number without a dtype, in single precision."""
    graph = gs.trace(lambda x: x * gs.broadcast_to(gs.sqrt(gs.sum(x * x)), x.shape), gs.f64[2])
    (found,) = enclosed_outputs(graph, np.float64([1, 1]))
    assert np.all(np.abs(found.centre - 2**0.5) <= found.radius)
    assert np.all(found.radius < 1e-14)


@pytest.mark.parametrize(("case", "dtype"), ROTATED, ids=lambda v: getattr(v, "id", str(v)))
@pytest.mark.parametrize("mode", ["value", "jvp", "vjp"])
def test_it_contains_the_real_value_and_the_computed_one(case: GraphCase, dtype: Any, mode: str) -> None:
    graph = case.graph(dtype)
    arrays = [a.astype(dtype.numpy) if a.dtype.kind == "f" else a for a in case.arrays()]
    if mode != "value":
        graph = graph.jvp() if mode == "jvp" else graph.vjp()
        rng = np.random.default_rng(len(case.id))
        arrays += [rng.integers(-8, 9, v.shape).astype(v.dtype.numpy) / 4 for v in graph.inputs[len(arrays) :]]
        arrays = [a.astype(v.dtype.numpy) for a, v in zip(arrays, graph.inputs, strict=True)]
    found = pairs(graph, arrays)
    exact = several(gs.evaluate(graph, *arrays, domain=case.domain))
    for (low, high), y, real in zip(found, several(graph(*arrays)), exact, strict=True):
        assert contains(low, y, high)
        assert inside(low, real.cells, high)


# --- where nothing rounds ---------------------------------------------------------------------------------------------

X, W, V = (2, 4, 6, 6), (5, 4, 3, 3), (3, 5, 2, 2)


def network(x: Any, w: Any, v: Any) -> Any:
    inner = gs.max_pool2d(gs.relu(gs.conv(x, w, padding=1)), 2, stride=1)
    return gs.avg_pool2d(gs.conv(inner, v) + 1, 2)


def integers(seed: int, *shapes: Any, dtype: Any = np.float32) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.integers(-3, 4, shape).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", [gs.f32, gs.f64], ids=str)
def test_a_chain_of_exact_sums_is_a_chain_of_points(dtype: Any) -> None:
    graph = gs.trace(network, *(dtype[s] for s in (X, W, V)))
    arrays = [a.astype(dtype.numpy) for a in integers(0, X, W, V)]
    low, high = enclosure(graph, *arrays)
    exact = np.array([float(c) for c in gs.evaluate(graph, *arrays, domain=gs.exact).cells]).reshape(low.shape)
    np.testing.assert_array_equal(low, exact)
    np.testing.assert_array_equal(high, exact)


def test_one_power_of_two_in_each_window_moves_numbers_through_a_convolution() -> None:
    rng = np.random.default_rng(3)
    x, w = rng.normal(size=X).astype(np.float32), np.zeros(W, np.float32)
    w[np.arange(5), np.arange(5) % 4, 1, 2] = 2.0 ** rng.integers(-9, 9, 5)
    low, high = enclosure(gs.trace(lambda x, w: gs.conv(x, w, padding=1), gs.f32[X], gs.f32[W]), x, w)
    np.testing.assert_array_equal(low, high)


@pytest.mark.parametrize("wrong", ["a sum beyond 2^24", "a third", "rounded inputs", "an input that is not certain"])
def test_what_rounds_is_no_point(wrong: str) -> None:
    x, how, function = np.float32([[4, 8, 4]]), None, lambda x: gs.linear(x, np.float32([[1, 1, 1]]))
    if wrong == "a sum beyond 2^24":
        x = np.float32([[2.0**24, 1, 1]])
    elif wrong == "a third":
        function = lambda x: gs.mean(x, axis=1)  # noqa: E731
    elif wrong == "rounded inputs":
        how = Arithmetic.of("f32", input_error=2.0**-11)
    else:
        function = lambda x: gs.sum(gs.exp(x), axis=1)  # noqa: E731
    low, high = enclosure(gs.trace(function, gs.f32[1, 3]), x, arithmetic=how)
    assert np.all(low < high)


def test_a_difference_of_two_numbers_is_rounded_by_itself() -> None:
    x = np.float32([0.7, 1 / 3])
    low, high = enclosure(gs.trace(lambda x, y: x - y, gs.f32[2], gs.f32[2]), x, np.float32([0.7, 0.333]))
    assert (low[0], high[0]) == (0, 0)
    assert high[1] - low[1] < 2**-22 * (x[1] - 0.333)


ONE_ROUNDING = {
    "sum": lambda a, b: a + b,
    "difference": lambda a, b: a - b,
    "product": lambda a, b: a * b,
    "scaled": lambda a, b: a * 0.375 + b * 0.0,
    "of what is certain in part": lambda a, b: gs.relu(a - b) * b,
}
EXPONENTS = (-70, -40, -30, -29, -28, -25, -24, -12, -8, -1, 0, 1, 3)


def numbers(dtype: Any, seed: int) -> tuple[Any, Any]:
    """Pairs near and far from each other, of few digits and of all: sums of them lose nothing, a bit, or a number."""
    rng, count = np.random.default_rng(seed), 40
    a = rng.choice([-1.0, 1.0], count) * (1 + rng.integers(0, 2**30, count) / 2.0 ** rng.integers(30, 60, count))
    b = (1 + rng.integers(0, 2**20, count) / 2.0 ** rng.integers(20, 50, count)) * 2.0 ** rng.choice(EXPONENTS, count)
    a[:2], b[:2] = (0.1, 1 / 3), (10, 3)  # 1 if float64 rounds their product
    a[2], b[2] = 1, 2.0 ** -format_named(dtype.name).precision  # the largest error that there is
    a[3:], b[3:] = (rng.permuted([v, np.round(v * 8) / 8], axis=0)[0] for v in (a[3:], b[3:]))
    return a.astype(dtype.numpy), b.astype(dtype.numpy)


@pytest.mark.parametrize("digits", ["of the type", "of float64"])
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("name", ONE_ROUNDING)
def test_what_is_rounded_once_is_certain_where_it_is_a_number_and_only_there(
    name: str, dtype: Any, digits: str
) -> None:
    for seed in range(12):
        arrays = numbers(dtype if digits == "of the type" else gs.f64, seed)
        graph = gs.trace(ONE_ROUNDING[name], dtype[40], dtype[40])
        low, high = enclosure(graph, *arrays)
        exact = gs.evaluate(graph, *(gs.exact.tensor([Fraction(float(x)) for x in a]) for a in arrays), domain=gs.exact)
        assert inside(low, exact.cells, high)
        is_number = [Fraction(float(dtype.numpy.type(float(y)))) == Fraction(str(y)) for y in exact.cells]
        is_certain = (low == high).tolist()
        assert not any(certain and not number for certain, number in zip(is_certain, is_number, strict=True))
        if digits == "of the type":
            assert contains(low, graph(*arrays), high)
            assert is_certain == is_number or name not in ("sum", "difference", "product")


def test_what_varies_around_a_number_is_rounded_too() -> None:
    b = np.random.default_rng(1).normal(size=200).astype(np.float32)
    graph = gs.trace(lambda x, b: gs.exp(x) * b, gs.f32[200], gs.f32[200])
    low, high = enclosure(graph, np.zeros(200, np.float32), b)
    for error in (-4, 4):  # of the exponential
        assert contains(low, np.float32(1 + error * 2.0**-24) * b, high)


def test_products_that_underflow_are_inside() -> None:
    a, b = (np.random.default_rng(i).normal(size=200).astype(np.float32) * np.float32(2.0**-73) for i in (1, 2))
    low, high = enclosure(gs.trace(lambda a, b: a * b, gs.f32[200], gs.f32[200]), a, b)
    assert contains(low, a * b, high)


@pytest.mark.parametrize("function", [lambda a, b: a * b, lambda a, b: a / b, lambda a, b: a + a * b])
@pytest.mark.parametrize("declared", [{}, {"flush_to_zero": True}, {"input_error": 2.0**-11}], ids=str)
def test_what_is_made_of_zeros_is_zero_in_any_arithmetic(function: Any, declared: Any) -> None:
    graph = gs.trace(function, gs.f32[2], gs.f32[2])
    how = Arithmetic.of("f32", **declared)
    low, high = enclosure(graph, np.zeros(2, np.float32), np.float32([3, 0.1]), arithmetic=how)
    assert not low.any()
    assert not high.any()


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_a_sum_of_two_may_be_stored_before_more_is_added(dtype: Any) -> None:
    x, y, z = (np.random.default_rng(i).normal(size=300).astype(dtype.numpy) for i in range(3))
    low, high = enclosure(gs.trace(lambda x, y, z: x + y - z, *[dtype[300]] * 3), x, y, z)
    wide = np.promote_types(dtype.numpy, np.float32) if dtype is not gs.bf16 else np.dtype(np.float32)
    for between in (dtype.numpy, wide):
        total = (x.astype(wide) + y.astype(wide)).astype(between).astype(wide) - z.astype(wide)
        assert contains(low, total.astype(dtype.numpy), high)


# --- one operator: the theorem ----------------------------------------------------------------------------------------

WINDOWS = {"stride": (2, 1), "padding": ((1, 0), (1, 2))}
OPERATORS = {
    "conv": (((2, 3, 7, 5), (4, 3, 3, 2)), WINDOWS | {"dilation": (1, 2)}),
    "avg_pool": (((2, 3, 7, 6),), WINDOWS | {"kernel_size": (3, 3)}),
    "max_pool": (((2, 3, 7, 6),), WINDOWS | {"kernel_size": (3, 3)}),
}
LOOSER = {"f32": Fraction(1001, 1000), "f16": Fraction(1001, 1000), "f64": 4}
"""How many times as wide as the theorem an enclosure may be: float64 has to make room for its own roundings."""


@pytest.mark.parametrize("kind", ["full", "sparse", "tiny"])
@pytest.mark.parametrize("dtype", LOOSER)
@pytest.mark.parametrize("name", OPERATORS)
def test_it_agrees_with_the_theorem_of_one_operator(name: str, dtype: str, kind: str) -> None:
    shapes, attributes = OPERATORS[name]
    rng, number = np.random.default_rng(7), getattr(gs, dtype)
    arrays = [rng.normal(size=s) * (rng.random(s) < (0.2 if kind == "sparse" else 1)) for s in shapes]
    arrays = [(a * (2.0**-13 if kind == "tiny" else 1)).astype(number.numpy) for a in arrays]
    graph = gs.trace(lambda *given: getattr(gs, name)(*given, **attributes), *(number[s] for s in shapes))
    low, high = enclosure(graph, *arrays)
    right, how = meaning(name, *arrays, **attributes), Arithmetic.of(dtype)
    for i, (a, b) in enumerate(zip(low.flat, high.flat, strict=True)):
        allowed = right.permitted_at(i, how)
        least, most = Fraction(str(allowed.low)), Fraction(str(allowed.high))
        assert a <= least <= most <= b
        if least < most:
            assert Fraction(b) - Fraction(a) <= LOOSER[dtype] * (most - least)
        else:  # of the numbers of the format, no other is inside, or one more if the real value lies halfway
            only = number.numpy.type(float(least))
            inside = [np.nextafter(only, number.numpy.type(far)) for far in (-np.inf, np.inf)]
            assert sum(a <= float(other) <= b for other in inside) <= 1


# --- kernels of other orders, formats and liberties -------------------------------------------------------------------


def chopped(x: Any, bits: int) -> Any:
    """Significands of fewer bits, toward zero."""
    m, e = np.frexp(np.asarray(x, np.float64))
    return np.ldexp(np.trunc(np.ldexp(m, bits)), e - bits)


@pytest.mark.parametrize("seed", range(6))
def test_kernels_that_fuse_reorder_or_store_are_inside(seed: int) -> None:
    """relu(x·w + b)·v in float16: stored after each step or never, summed forwards, backwards or in pairs."""
    rng = np.random.default_rng(seed)
    x, w, b, v = (rng.normal(size=s).astype(np.float16) for s in ((5, 33), (33, 7), (7,), (7, 3)))
    graph = gs.trace(lambda x, w, b, v: gs.relu(x @ w + b) @ v, *(gs.f16[a.shape] for a in (x, w, b, v)))
    low, high = enclosure(graph, x, w, b, v)
    orders = [slice(None), slice(None, None, -1), rng.permutation(33)]
    for order in orders:
        for store in (lambda y: y.astype(np.float16).astype(np.float32), lambda y: y):
            for early in (False, True):
                total = np.tile(b.astype(np.float32), (5, 1)) if early else np.zeros((5, 7), np.float32)
                for k in np.arange(33)[order]:
                    total = total + x[:, k, None].astype(np.float32) * w[None, k].astype(np.float32)
                total = store(store(total) + (0 if early else b.astype(np.float32)))
                result = store(np.maximum(total, 0)).astype(np.float32) @ v.astype(np.float32)
                assert contains(low, result.astype(np.float16), high)


def added_up(leaves: list[float], rng: Any, accumulate: Any) -> float:
    """The sum by a random tree, rounded to a format after each addition."""
    while len(leaves) > 1:
        i, j = rng.choice(len(leaves), 2, replace=False)
        rest = [v for k, v in enumerate(leaves) if k not in (i, j)]
        leaves = [*rest, float(accumulate(leaves[i] + leaves[j]))]
    return leaves[0]


@pytest.mark.parametrize(("storage", "accumulate"), [("bf16", "f16"), ("f16", "f16")])
def test_chains_of_sums_may_be_cut_and_stored_anywhere(storage: str, accumulate: str) -> None:
    """x·w + b + r − s: added up by random trees, finished and stored behind some links, with leaves left over."""
    rng, kind, narrow = np.random.default_rng(11), np.float16, getattr(gs, storage).numpy.type
    shapes = (1, 3), (3, 1), (1,), (1, 1), (1, 1)
    graph = gs.trace(lambda x, w, b, r, s: x @ w + b + r - s, *(getattr(gs, storage)[s] for s in shapes))
    for _ in range(40):
        x, w, *links = arrays = [(rng.random(s) + 0.5).astype(narrow) for s in shapes]
        low, high = enclosure(graph, *arrays, arithmetic=Arithmetic.of(storage, accumulate))
        for _ in range(8):
            leaves = [float(kind(float(a) * float(b))) for a, b in zip(x.flat, w.flat, strict=True)]
            for sign, link in zip((1, 1, -1), links, strict=True):
                leaves = [*leaves, sign * float(link.item())]
                if rng.random() < 0.6:
                    leaves = [float(narrow(added_up(leaves, rng, kind)))]
            assert contains(low, added_up(leaves, rng, kind), high)


@pytest.mark.parametrize("function", [lambda x, w, b: x @ w + b, lambda x, w, b: b - x @ w])
def test_a_bias_may_come_first_and_swallow_every_product(function: Any) -> None:
    x, w, b = np.full((1, 24), 0.015, np.float16), np.ones((24, 1), np.float16), np.float16([[64]])
    graph = gs.trace(function, *(gs.f16[a.shape] for a in (x, w, b)))
    low, high = enclosure(graph, x, w, b, arithmetic=Arithmetic.of("f16", "f16"))
    assert contains(low, b, high)


def test_tf32_and_truncation_are_arithmetics() -> None:
    rng = np.random.default_rng(5)
    x, w = rng.normal(size=(4, 64)).astype(np.float32), rng.normal(size=(64, 5)).astype(np.float32)
    graph = gs.trace(lambda x, w: x @ w, gs.f32[4, 64], gs.f32[64, 5])
    rounded = (chopped(x, 11) @ chopped(w, 11)).astype(np.float32)
    assert not contains(*_around(graph, x, w, rounded, None))
    assert contains(*_around(graph, x, w, rounded, Arithmetic.of("f32", input_error=2.0**-10)))
    total = np.zeros((4, 5))
    for k in range(64):
        total = chopped(total + x[:, k, None].astype(float) * w[None, k].astype(float), 20)
    coarse = Arithmetic.of("f32", accumulate="f16")
    assert not contains(*_around(graph, x, w, total, None))
    assert contains(*_around(graph, x, w, total, coarse))


def test_functions_are_rounded_as_the_arithmetic_says() -> None:
    graph, x = gs.trace(lambda x: gs.sigmoid(x), gs.f32[3]), np.float32([0.1, 1.7, -3.3])
    widths = [
        high - low for low, high in (enclosure(graph, x, arithmetic=how) for how in (None, Arithmetic.of("f32", "f16")))
    ]
    assert np.all(widths[1] > 1000 * widths[0])


def _around(graph: Any, x: Any, w: Any, y: Any, how: Any) -> tuple[Any, Any, Any]:
    low, high = enclosure(graph, x, w, arithmetic=how)
    return low, y, high


# --- what is not finite -----------------------------------------------------------------------------------------------


def test_nan_and_infinity_are_demanded_where_every_evaluation_gives_them() -> None:
    x = np.float32([[np.nan, 1, 2], [np.inf, 1, 2], [-np.inf, 1, 2], [np.inf, -np.inf, 2]])
    low, high = enclosure(gs.trace(lambda x: gs.sum(gs.relu(x) + 0.1, axis=1), gs.f32[4, 3]), x)
    np.testing.assert_array_equal(np.isnan(low), [True, False, False, False])
    assert low[1] == high[1] == np.inf
    assert low[2] < high[2] < 4
    assert low[3] == high[3] == np.inf


def test_a_comparison_that_rounding_may_decide_leaves_both_branches() -> None:
    graph = gs.trace(lambda x, y: gs.where(gs.greater(x * x, y * y), 1.0, 2.0), gs.f32[3], gs.f32[3])
    low, high = enclosure(graph, np.float32([0.1, 0.2, 0.3]), np.float32([0.1, 0.3, 0.2]))
    assert (low.tolist(), high.tolist()) == ([1, 2, 1], [2, 2, 1])


@pytest.mark.parametrize(
    ("function", "infinite"),
    [
        (lambda x, y: 1.0 / (x * x - y * y), "somewhere"),
        (lambda x, y: gs.log(x * x - y * y), "somewhere"),
        (lambda x, y: (x * x - y * y) * (1.0 / (x - y)), "somewhere"),
        (lambda x, y: (x * x) * (1.0 / (x - y)), "everywhere"),
        (lambda x, y: gs.log((x - y) * x), "everywhere"),
        (lambda x, y: (x * 1e308 + y * 1e308) * 100.0 - x * 1e308, "somewhere"),
    ],
)
def test_what_is_infinite_for_some_evaluations_only_is_not_demanded(function: Any, infinite: str) -> None:
    """0 ± r may be divided by, and is not 0; what overflows here may not do so in another order."""
    x = np.float64([0.1, 0.7])
    low, high = enclosure(gs.trace(function, gs.f64[2], gs.f64[2]), x, x)
    assert np.all(np.isinf(low) | np.isnan(low))
    same = (low == high) | (np.isnan(low) & np.isnan(high))
    assert np.all(same) if infinite == "everywhere" else not np.any(same)


def test_masked_softmax_is_bounded() -> None:
    x = np.float32([[0.5, -np.inf, 1.5, -np.inf]])
    graph = gs.trace(lambda x: gs.softmax(x, axis=1), gs.f32[1, 4])
    low, high = enclosure(graph, x)
    assert contains(low, graph(x), high)
    assert np.all(high - low < 1e-5)


def test_what_may_be_too_large_for_its_format_is_not_known() -> None:
    x = np.float32([3e38, 3e38])
    low, high = enclosure(gs.trace(lambda x: (x + x) * 0.25, gs.f32[2]), x)
    assert np.all(np.isinf(high - low))
    low, high = enclosure(gs.trace(lambda x: x * 0.25, gs.f32[2]), x)
    assert np.all(np.isfinite(high - low))
    graph, x = gs.trace(lambda x: x * x, gs.f32[2]), np.float32([100, 300])
    low, high = enclosure(graph, x, arithmetic=Arithmetic.of("f32", accumulate="f16"))
    assert np.isinf(high - low).tolist() == [False, True]


def test_partial_sums_of_a_mean_may_be_too_large() -> None:
    graph = gs.trace(lambda x: gs.mean(x, axis=-1), gs.f32[2, 3])
    low, high = enclosure(graph, np.float32([[3e38, 3e38, 3e38], [5e37, 5e37, 5e37]]))
    assert np.isinf(high - low).tolist() == [True, False]


def test_what_is_not_known_need_not_be_nan() -> None:
    """``x − x`` may overflow for all that is known, and then 0/0 is not demanded of what divides it."""
    graph = gs.trace(lambda x: (x - gs.mean(x)) / gs.sqrt(x - gs.mean(x)), gs.f32[1])
    low, high = enclosure(graph, np.float32([3.39e38]))
    assert np.all(np.isinf(high - low))


def test_what_is_not_known_may_be_nan() -> None:
    x = np.float32([np.nextafter(np.float32(np.inf), np.float32(0)), 1])
    for function in (lambda x, y: gs.maximum(x + x, y), lambda x, y: (x + x) / y, lambda x, y: (x + x) * (1.0 / y)):
        low, high = enclosure(gs.trace(function, gs.f32[2], gs.f32[2]), x, np.full(2, np.inf, np.float32))
        assert (low[0], high[0]) == (-np.inf, np.inf)
        assert low[1] == high[1]


def test_infinity_over_infinity_is_nan() -> None:
    low, high = enclosure(gs.trace(lambda x: x / x, gs.f32[2]), np.float32([np.inf, 3]))
    assert np.isnan(low).tolist() == np.isnan(high).tolist() == [True, False]


@pytest.mark.parametrize("poison", [np.nan, np.inf, "the largest"])
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x - gs.mean(y, axis=-1, keepdims=True),
        lambda x, y: (x + y) * x - y,
        lambda x, y: gs.avg_pool1d(x + x - y, 3, 1, 1) * y,
        lambda x, y: gs.maximum(x / y, gs.tanh(x) + y),
        lambda x, y: gs.softmax(x * y, axis=-1) - x,
    ],
)
def test_what_is_not_finite_in_one_sample_changes_no_other(function: Any, dtype: Any, poison: Any) -> None:
    graph, shape = gs.trace(function, dtype[3, 5], dtype[3, 5]), (3, 5)
    x, y = (np.random.default_rng(i).normal(size=shape).astype(dtype.numpy) for i in range(2))
    clean = enclosure(graph, x, y)
    for array in (x, y):
        array[1, 2] = float(format_named(dtype.name).largest) if poison == "the largest" else poison
    for before, after in zip(clean, enclosure(graph, x, y), strict=True):
        np.testing.assert_allclose(after[::2], before[::2], rtol=1e-13)
        assert not np.array_equal(after[1], before[1])


def test_numbers_are_rounded_to_the_accumulator_before_they_are_added() -> None:
    x = np.random.default_rng(4).standard_normal((200, 2)).astype(np.float32)
    low, high = enclosure(
        gs.trace(lambda x: gs.sum(x, axis=-1), gs.f32[200, 2]), x, arithmetic=Arithmetic.of("f32", "f16")
    )
    assert contains(low, x.sum(-1, dtype=np.float16), high)


# --- what all of it is made of ---------------------------------------------------------------------------------------

TINY = 5e-324
EXTREMES = np.array([0.0, TINY, 3 * TINY, 2.0**-1022, 2.0**-970 * 3, 0.1, 1.0, 1.5, 2.0**53 - 1, 1e300, 2.0**1023])


def test_a_grain_is_the_largest_power_of_two_that_divides_a_number() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate(
        [EXTREMES, -EXTREMES, np.ldexp(rng.integers(1, 2**53, 500).astype(float), rng.integers(-900, 900, 500))]
    )
    for array in (x, x[(np.abs(x) > 1e-280) & (np.abs(x) < 1e280)]):  # with and without what has no inverse
        for value, inverse in zip(array.tolist(), inverse_grain(array).tolist(), strict=True):
            if value == 0 or np.isinf(inverse):
                assert inverse == 0 if value == 0 else abs(value) < 2.0**-968
            elif abs(value) < 2.0**1023:
                assert (Fraction(value) * Fraction(inverse)) % 2 == 1
            else:
                assert inverse * value < 2


def test_ends_are_outside_of_the_ball_by_two_floats_at_most() -> None:
    centres, radii = (a.ravel() for a in np.meshgrid([*EXTREMES[:-1], *-EXTREMES[:-1]], EXTREMES[:-1]))
    found = Enclosed(centres, radii)
    for c, r, low, high in zip(centres.tolist(), radii.tolist(), *(end.tolist() for end in found.ends), strict=True):
        assert Fraction(low) <= Fraction(c) - Fraction(r)
        assert Fraction(c) + Fraction(r) <= Fraction(high)
        assert r > 0 or low == c == high
        for end, exact in ((low, c - r), (high, c + r)):
            assert abs(Fraction(end) - Fraction(exact)) <= Fraction(2.0**-51) * (abs(Fraction(c)) + Fraction(r))


# --- boxes, and what is too wide --------------------------------------------------------------------------------------


def test_boxes_of_inputs_contain_what_their_numbers_give() -> None:
    x, w = (np.random.default_rng(2).normal(size=s).astype(np.float32) for s in ((3, 8), (8, 4)))
    graph = gs.trace(lambda x, w: gs.softmax(gs.relu(x @ w), axis=1), gs.f32[3, 8], gs.f32[8, 4])
    (found,) = enclosed_outputs(graph, x, w, spread=1e-3)
    (narrow,) = enclosed_outputs(graph, x, w)
    assert np.all((found.lower < narrow.lower) & (narrow.upper < found.upper))
    for sign in (-1e-3, 1e-3):
        assert contains(found.lower, graph(x * np.float32(1 + sign), w * np.float32(1 - sign)), found.upper)


@pytest.mark.parametrize("kink", [gs.relu, gs.abs, lambda x: gs.maximum(x, 0.0), lambda x: gs.clamp(x, 0.0, 1.0)])
def test_a_spread_holds_every_derivative_at_a_kink(kink: Any) -> None:
    graph = gs.trace(kink, gs.f32[2]).vjp()
    slopes = enclosed_outputs(graph, np.float32([0, 0.5]), np.float32([1, 1]), spread=2.0**-20)[1]
    assert slopes.lower[0] <= 0 < 1 <= slopes.upper[0]
    assert slopes.upper[1] - slopes.lower[1] < 1e-5
    assert slopes.weak.tolist() == [True, False]


def test_cells_too_wide_to_judge_by_are_weak() -> None:
    x = np.float32([[0.1, 0.7, 0.3, 0.4]])

    def weak(function: Any) -> Any:
        return enclosed_outputs(gs.trace(function, gs.f32[1, 4]), x)[0].weak.tolist()

    assert weak(lambda x: gs.relu(gs.softmax(x * 3.0, axis=1))) == [[False] * 4]
    assert weak(lambda x: gs.exp(x) * 0.0) == [[False] * 4]
    assert weak(lambda x: (x * 1e20) * (x * 1e20)) == [[False, True, True, True]]  # may overflow
    assert weak(lambda x: ((x * 3.1 + 1e7) - x * 3.1 - 1e7 + x) * 3.1) == [[True] * 4]


def test_arrays_that_do_not_fit_are_refused() -> None:
    graph = gs.trace(gs.relu, gs.f32[3])
    with pytest.raises(TypeError, match="takes 1 arrays, and 2 were given"):
        enclosure(graph, np.zeros(3, np.float32), np.zeros(3, np.float32))
    with pytest.raises(gs.ShapeError, match=r"shape \(4,\); give one of shape \(3,\)"):
        enclosure(graph, np.zeros(4, np.float32))
