"""The theorem, attacked: random summation trees in a five-bit format, where every bound is tight enough to break."""

import math
from dataclasses import replace
from fractions import Fraction
from functools import partial
from random import Random

import numpy as np
import pytest
from flint import fmpq

import gradspec as gs
from gradspec.conformance import Arithmetic, Facts, Permitted, meaning, permitted
from gradspec.conformance.oracle.sums import lowest_bits
from gradspec.conformance.oracle.tolerance import adjoint_tolerance, error_of, gamma, parts_error, stored_error
from gradspec.domains import Format, rational

FIVE = Format("five bits", 5, 7)
THREE = Format("three bits", 3, 5)
PLAIN = Arithmetic(FIVE, FIVE)

Leaf = tuple[Fraction, ...]  # one number, or the two factors of a product


def nearest(x: Fraction, format: Format = FIVE) -> Fraction:
    rounded = format.nearest_ratio(x.numerator, x.denominator)
    if math.isinf(rounded):
        raise OverflowError
    return Fraction(rounded)


def truncated(x: Fraction) -> Fraction:
    """Toward zero."""
    nearest(x)  # overflow is judged elsewhere
    size = abs(x)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > size
    spacing = Fraction(2) ** max(exponent - FIVE.precision + 1, FIVE.lowest_bit)
    return (1 if x > 0 else -1) * (size // spacing) * spacing


def flushed(x: Fraction) -> Fraction:
    rounded = nearest(x)
    return rounded if abs(rounded) >= FIVE.normal else Fraction(0)


def numbers(random: Random, lowest: int = -10, highest: int = 2) -> Fraction:
    """A non-zero number of the format, subnormals among them."""
    while True:
        x = nearest(Fraction(random.randint(-31, 31)) * Fraction(2) ** random.randint(lowest, highest - 5))
        if x:
            return x


def leaves(random: Random, products: int, singles: int, draw=numbers) -> list[Leaf]:
    return [(draw(random), draw(random)) for _ in range(products)] + [(draw(random),) for _ in range(singles)]


def term(leaf: Leaf) -> Fraction:
    return math.prod(leaf, start=Fraction(1))


def tree_sum(terms: list[Leaf], random: Random, rounding=nearest) -> Fraction:
    """Any tree over any order of the leaves; a product is rounded, or fused into the addition that takes it."""
    if len(terms) == 1:
        return rounding(term(terms[0])) if len(terms[0]) == 2 else terms[0][0]
    shuffled = random.sample(terms, len(terms))
    cut = random.randint(1, len(terms) - 1)
    left, right = shuffled[:cut], shuffled[cut:]
    total = tree_sum(right, random, rounding)
    fuse = len(left) == 1 and random.random() < 0.5
    return rounding(total + (term(left[0]) if fuse else tree_sum(left, random, rounding)))


def facts(terms: list[Leaf], **more) -> Facts:
    values = [term(leaf) for leaf in terms]
    positive, negative = (sum((v * s for v in values if v * s > 0), Fraction(0)) for s in (1, -1))
    products = sum(len(leaf) == 2 for leaf in terms)
    described = Facts(
        *map(rational, (positive - negative, positive + negative)),
        len(terms),
        products,
        rational(positive),
        rational(negative),
    )
    return replace(described, **more)


def worst(bound, cases: int, make, rounding=nearest, seed: str = "attack") -> Fraction:
    """The largest ``|ŷ − y| / bound`` seen (a positive error over a zero bound counts as 10⁶)."""
    random, most = Random(seed), Fraction(0)
    for _ in range(cases):
        terms = make(random)
        try:
            got = tree_sum(terms, random, rounding)
        except OverflowError:
            continue
        error, allowed = abs(got - sum(map(term, terms), Fraction(0))), bound(terms)
        most = max(most, error / allowed if allowed else Fraction(10**6) * (error > 0))
    return most


def theorem(terms: list[Leaf], arithmetic: Arithmetic = PLAIN, **more) -> Fraction:
    return fraction(error_of(facts(terms, **more), arithmetic))


def fraction(x: fmpq) -> Fraction:
    return Fraction(int(x.p), int(x.q))


MIXTURES = {
    "one product": lambda r: leaves(r, 1, 0),
    "two products": lambda r: leaves(r, 2, 0),
    "products and a bias": lambda r: leaves(r, r.randint(1, 4), 1),
    "sums only": lambda r: leaves(r, 0, r.randint(2, 6)),
    "many": lambda r: leaves(r, r.randint(5, 12), r.randint(0, 4)),
    "tiny": lambda r: leaves(r, r.randint(1, 4), 1, partial(numbers, lowest=-10, highest=-3)),
}


@pytest.mark.parametrize("mixture", MIXTURES)
def test_no_tree_breaks_the_theorem(mixture):
    assert worst(theorem, 3000, MIXTURES[mixture]) <= 1


@pytest.mark.parametrize("mixture", MIXTURES)
def test_the_theorem_is_not_idle(mixture):
    """Some tree comes within a factor of the bound, so the test above would notice a looser arithmetic."""
    assert worst(theorem, 3000, MIXTURES[mixture]) > Fraction(1, 6)


def without_the_bias(terms: list[Leaf]) -> Fraction:
    return theorem([leaf for leaf in terms if len(leaf) == 2])


def with_one_rounding_less(terms: list[Leaf]) -> Fraction:
    rounding = FIVE.unit * (1 + FIVE.unit) ** (len(terms) - 1 - all(len(leaf) == 1 for leaf in terms))
    return theorem(terms) - fraction(facts(terms).mass) * rounding


def without_underflow(terms: list[Leaf]) -> Fraction:
    return theorem(terms, products=0)


@pytest.mark.parametrize(
    ("bound", "mixture"),
    [
        (without_the_bias, "products and a bias"),
        (with_one_rounding_less, "one product"),
        (with_one_rounding_less, "two products"),
        (with_one_rounding_less, "sums only"),
        (without_underflow, "tiny"),
    ],
)
def test_tolerances_made_too_small_are_violated(bound, mixture):
    assert worst(bound, 3000, MIXTURES[mixture]) > 1


# --- the liberties a kernel may declare ------------------------------------------------------------------------------


@pytest.mark.parametrize("mixture", MIXTURES)
def test_truncation_doubles_the_unit(mixture):
    truncating = replace(PLAIN, truncating=True)
    make = MIXTURES[mixture]
    assert worst(partial(theorem, arithmetic=truncating), 1000, make, truncated) <= 1


def test_truncation_breaks_the_plain_bound():
    assert worst(theorem, 1000, MIXTURES["one product"], truncated) > 1


def flushed_inputs(terms: list[Leaf]) -> list[Leaf]:
    return [tuple(x if abs(x) >= FIVE.normal else Fraction(0) for x in leaf) for leaf in terms]


@pytest.mark.parametrize("mixture", MIXTURES)
def test_flushing_to_zero_has_its_own_bound(mixture):
    """Inputs and results below the normal range become zero."""
    flushing, random = replace(PLAIN, flush_to_zero=True), Random(mixture)
    broke_plain = False
    for _ in range(1000):
        terms = MIXTURES[mixture](random)
        small = [leaf for leaf in terms if any(abs(x) < FIVE.normal for x in leaf)]
        try:
            got = tree_sum(flushed_inputs(terms), random, flushed)
        except OverflowError:
            continue
        error = abs(got - sum(map(term, terms), Fraction(0)))
        mass = rational(sum((abs(term(leaf)) for leaf in small), Fraction(0)))
        assert error <= theorem(terms, flushing, subnormal_mass=mass)
        broke_plain |= error > theorem(terms)
    assert broke_plain or mixture not in ("tiny", "many")


def test_rounded_inputs_have_their_own_bound():
    """Inputs cut to three bits first: relative error 2^−3 each."""
    reduced, random, broke_plain = replace(PLAIN, input_error=fmpq(1, 8)), Random("reduced"), False
    for _ in range(1000):
        terms = leaves(random, random.randint(1, 5), 1, partial(numbers, lowest=-4))
        cut = [tuple(nearest(x, replace(THREE, emax=20)) for x in leaf) for leaf in terms]
        try:
            got = tree_sum(cut, random)
        except OverflowError:
            continue
        error = abs(got - sum(map(term, terms), Fraction(0)))
        assert error <= theorem(terms, reduced)
        broke_plain |= error > theorem(terms)
    assert broke_plain


def test_storing_rounds_once_more():
    random, narrow, worst_ratio = Random("storage"), replace(PLAIN, storage=THREE), Fraction(0)
    for _ in range(2000):
        terms = leaves(random, random.randint(1, 5), 1)
        try:
            got = nearest(tree_sum(terms, random), THREE)
        except OverflowError:
            continue
        described = facts(terms)
        assert permitted(described, narrow).allows(float(got))
        total = stored_error(described.value, error_of(described, narrow), THREE)
        difference = abs(got - sum(map(term, terms), Fraction(0)))
        assert difference <= fraction(total)
        worst_ratio = max(worst_ratio, difference / theorem(terms))
    assert worst_ratio > 1  # without the storage term the bound would be wrong


def test_parts_stored_one_by_one():
    """Partial sums that are each stored and then added in the storage format."""
    random = Random("parts")
    for _ in range(1000):
        parts = [
            leaves(random, random.randint(1, 3), 0, partial(numbers, highest=0)) for _ in range(random.randint(2, 4))
        ]
        try:
            stored = [(nearest(tree_sum(part, random), THREE),) for part in parts]
            got = tree_sum(stored, random, partial(nearest, format=THREE))
        except OverflowError:
            continue
        bound = parts_error([(facts(part).value, error_of(facts(part), PLAIN)) for part in parts], THREE)
        error = abs(got - sum((sum(map(term, part), Fraction(0)) for part in parts), Fraction(0)))
        assert error <= fraction(bound)


def dividing_last(cells, divisor, random):
    return nearest(tree_sum([(x,) for x in cells], random) / nearest(divisor))


def reciprocal_after(cells, divisor, random):
    return nearest(tree_sum([(x,) for x in cells], random) * nearest(1 / nearest(divisor)))


def reciprocal_before(cells, divisor, random):
    return tree_sum([(nearest(x * nearest(1 / nearest(divisor))),) for x in cells], random)


@pytest.mark.parametrize("way", [dividing_last, reciprocal_after, reciprocal_before])
@pytest.mark.parametrize("divisor", [3, 7, 9, 33, 70])
def test_averages_divide_in_any_way(way, divisor):
    """Also by divisors of more bits than the format has, which are rounded first."""
    random = Random(f"{way.__name__} {divisor}")
    for _ in range(1000):
        cells = [numbers(random) for _ in range(random.randint(1, 6))]
        try:
            got = way(cells, Fraction(divisor), random)
        except OverflowError:
            continue
        described = facts([(x / divisor,) for x in cells], divided=True, large_divisor=divisor > 32)
        error = error_of(described, PLAIN)
        difference = abs(got - sum(cells, Fraction(0)) / divisor)
        assert difference <= fraction(error)


# --- exact sums and overflow -----------------------------------------------------------------------------------------


def test_sums_that_fit_are_exact_and_equality_is_demanded():
    random = Random("exact sums")
    for _ in range(2000):
        terms = [
            (Fraction(random.randint(-3, 3) or 1), Fraction(random.choice((-2, -1, 1, 2))))
            for _ in range(random.randint(1, 5))
        ]
        described = facts(terms, grain=0)
        if not described.is_exact_sum(PLAIN):
            continue
        got = tree_sum(terms, random)
        allowed = permitted(described, PLAIN)
        assert allowed.allows(float(got))
        assert not allowed.allows(float(got) + 1.0)


@pytest.mark.parametrize("grain", [-11, 0])
def test_sums_that_do_not_fit_are_not_exact(grain):
    """Too fine a grain for the format, or too large a mass for the grain."""
    assert not facts([(Fraction(33),)], grain=grain).is_exact_sum(PLAIN)
    assert facts([(Fraction(32),)], grain=0).is_exact_sum(PLAIN)


def special_tree(terms, random) -> float:
    """A tree in floats, where overflow gives an infinity and infinities meet."""
    if len(terms) == 1:
        value = term(terms[0])
        return FIVE.nearest_ratio(value.numerator, value.denominator)
    shuffled = random.sample(terms, len(terms))
    cut = random.randint(1, len(terms) - 1)
    a, b = special_tree(shuffled[:cut], random), special_tree(shuffled[cut:], random)
    if not (math.isfinite(a) and math.isfinite(b)):
        return a + b
    total = Fraction(a) + Fraction(b)
    return FIVE.nearest_ratio(total.numerator, total.denominator)


def test_overflow_is_permitted_where_it_can_happen():
    random, seen = Random("overflow"), set()
    for _ in range(5000):
        terms = leaves(random, random.randint(0, 3), random.randint(1, 3), partial(numbers, lowest=-1, highest=8))
        got = special_tree(terms, random)
        assert permitted(facts(terms), PLAIN).allows(got), (terms, got)
        seen.add("nan" if got != got else "inf" if got == math.inf else "-inf" if got == -math.inf else "finite")
    assert seen == {"nan", "inf", "-inf", "finite"}


@pytest.mark.parametrize(
    ("terms", "verdicts"),
    [
        ([(Fraction(1),), (Fraction(2),)], {3.0: True, math.inf: False, -math.inf: False, math.nan: False}),
        ([(Fraction(248),), (Fraction(248),)], {math.inf: True, -math.inf: False, math.nan: False, 248.0: False}),
        (
            [(Fraction(128),), (Fraction(128),), (Fraction(-128),)],
            {math.inf: True, -math.inf: False, 128.0: True, math.nan: False},
        ),
        ([(Fraction(s * 248),) for s in (1, 1, -1, -1)], {math.inf: True, -math.inf: True, math.nan: True, 0.0: True}),
    ],
)
def test_what_overflow_allows(terms, verdicts):
    allowed = permitted(facts(terms), PLAIN)
    assert {got: allowed.allows(got) for got in verdicts} == verdicts


@pytest.mark.parametrize("terms", [(248,), (128, 120)])
def test_an_exact_sum_does_not_overflow(terms):
    """The largest number of the format comes out as itself: nothing rounds, so nothing rounds up to infinity."""
    leaves = [(Fraction(t),) for t in terms]
    assert permitted(facts(leaves), PLAIN).allows(math.inf)
    assert str(permitted(facts(leaves, grain=3), PLAIN)) == "248.0"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"nan": True}, (False, False, True, False)),
        ({"plus_infinity": True, "minus_infinity": True}, (False, False, True, False)),
        ({"plus_infinity": True}, (True, False, False, False)),
        ({"minus_infinity": True}, (False, True, False, False)),
        ({"plus_infinity": True, "negative": fmpq(400)}, (True, False, True, False)),
        ({"nan_from_padding": True}, (False, False, True, True)),
        ({"nan_from_padding": True, "plus_infinity": True}, (True, False, True, False)),
    ],
)
def test_special_leaves(flags, expected):
    allowed = permitted(facts([(Fraction(1),)], **flags), PLAIN)
    assert tuple(map(allowed.allows, (math.inf, -math.inf, math.nan, 1.0))) == expected


def test_gamma_encloses_the_power_it_stands_for():
    u = fmpq(1, 32)
    for k in (0, 1, 5, 40):
        exact = (1 + u) ** k - 1
        assert exact <= gamma(u, k) <= exact * (1 + fmpq(1, 2**150))
    assert gamma(u, -1) == 0


# --- whole kernels in float32 ----------------------------------------------------------------------------------------


def columns(x, w):
    """The leaves of a convolution ``[output, channel, term]``, as float32 products."""
    patches = np.asarray(gs.spec.unfold(x.astype(object), w.shape[2:]).tolist(), np.float64).astype(np.float32).T
    return patches[:, None, :] * w.reshape(len(w), -1)[None]


def pairwise(t):
    while t.shape[-1] > 1:
        t = np.concatenate([t, np.zeros((*t.shape[:-1], t.shape[-1] % 2), np.float32)], -1)
        t = t[..., ::2] + t[..., 1::2]
    return t[..., 0]


def blocked(t, size=7):
    parts = [one_by_one(t[..., i : i + size]) for i in range(0, t.shape[-1], size)]
    return one_by_one(np.stack(parts, -1))


def one_by_one(t):
    total = np.zeros(t.shape[:-1], t.dtype)
    for i in range(t.shape[-1]):
        total = total + t[..., i]
    return total


KERNELS = {
    "forwards": one_by_one,
    "backwards": lambda t: one_by_one(t[..., ::-1]),
    "pairwise": pairwise,
    "blocked": blocked,
    "in float64": lambda t: one_by_one(t.astype(np.float64)).astype(np.float32),
}


@pytest.fixture(scope="module")
def convolution():
    random = np.random.default_rng(7)
    x = random.standard_normal((6, 9, 9)).astype(np.float32)
    w = random.standard_normal((5, 6, 3, 3)).astype(np.float32)
    return x, w, meaning("conv", x, w)


@pytest.mark.parametrize("order", KERNELS)
def test_no_false_alarm_in_any_order(order, convolution):
    x, w, exact = convolution
    got = KERNELS[order](columns(x, w)).T.reshape(exact.shape)
    assert exact.judge(got).passed
    assert exact.judge(got.astype(np.float16)).passed


def test_wrong_results_are_seen_and_explained(convolution):
    exact = convolution[-1]
    got = exact.rounded("f32").astype(np.float32)
    got[2, 3, 4] *= 1 + 2.0**-12
    judgement = exact.judge(got)
    assert not judgement.passed
    assert np.argwhere(~judgement.ok).tolist() == [[2, 3, 4]]
    assert judgement.failures()[0].startswith(f"[2, 3, 4]: got {float(got[2, 3, 4])!r}, permitted [")


def test_a_dropped_term_is_seen_where_sums_are_exact():
    """On data whose sums fit the accumulator equality is demanded, however many terms there are."""
    random = np.random.default_rng(3)
    x = random.integers(-8, 9, (40, 6, 6)).astype(np.float32)
    w = random.integers(-8, 9, (3, 40, 3, 3)).astype(np.float32)
    terms = columns(x, w)
    exact = meaning("conv", x, w)
    whole = one_by_one(terms).T.reshape(exact.shape)
    dropped = one_by_one(terms[..., :-1]).T.reshape(exact.shape)
    assert exact.judge(whole).passed
    assert np.array_equal(exact.judge(dropped).ok, whole == dropped)


def test_an_impulse_demands_equality():
    """One factor ±2^k per output against full significands: the product is exact, and so must the result be."""
    random = np.random.default_rng(5)
    x = random.standard_normal((4, 5, 5)).astype(np.float32)
    w = np.zeros((2, 4, 2, 2), np.float32)
    w[0, 1, 0, 1], w[1, 3, 1, 0] = -0.25, 8
    exact = meaning("conv", x, w)
    right = exact.rounded("f32").astype(np.float32)
    assert exact.judge(right).passed
    assert not exact.judge(np.nextafter(right, np.float32(np.inf))).ok.any()


@pytest.mark.parametrize("accumulate", ["f32", "f64"])
def test_the_exact_path_decides_at_the_very_edge(accumulate):
    """Results a float64 apart on either side of the tolerance, where the filter cannot tell."""
    random = np.random.default_rng(11)
    x = (random.standard_normal((3, 4, 4)) * 2.0 ** random.integers(-8, 8, (3, 4, 4))).astype(np.float32)
    w = random.standard_normal((2, 3, 2, 2)).astype(np.float32)
    exact, arithmetic = meaning("conv", x, w), Arithmetic.of(accumulate)
    edges = [exact.permitted_at(place, arithmetic) for place in range(math.prod(exact.shape))]
    for inside, towards in ((True, -np.inf), (False, np.inf)):
        got = np.asarray([np.nextafter(float(edge.high), towards) for edge in edges])
        judgement = exact.judge(got.reshape(exact.shape), arithmetic)
        assert judgement.exact == got.size
        assert (judgement.ok == inside).all()


@pytest.mark.parametrize(
    ("terms", "verdicts"),
    [
        (1, {0.0: True, 5e-324: False}),
        (3, {0.0: True, 5e-324: True, -5e-324: True, 1e-323: False}),
    ],
)
def test_products_far_below_every_float(terms, verdicts):
    """10⁻⁴⁰⁰ is zero in float64, which the filter computes in; K products may each be off by half a subnormal."""
    x, w = np.full((terms, 1), 1e-200), np.full((1, terms, 1), 1e-200)
    exact = meaning("conv", x, w)
    assert {y: exact.judge(np.array([[y]])).passed for y in verdicts} == verdicts


def test_the_facts_of_an_output():
    """Zero leaves do not count, the bias does, and a JVP has both products of every tap."""
    x, w, b = np.array([[1.0, 0.0, -3.0]]), np.array([[[2.0, 5.0]]]), np.array([7.0])
    values = [meaning("conv", x, w, b).facts_at(place, PLAIN) for place in range(2)]
    assert [(f.value, f.mass, f.leaves, f.products, f.grain) for f in values] == [(9, 9, 2, 1, 0), (-8, 22, 2, 1, 0)]
    (first, _) = (meaning("conv_jvp", x, w, b, x, w, b).facts_at(place, PLAIN) for place in range(2))
    assert (first.value, first.leaves, first.products) == (11, 3, 2)
    dw = meaning("conv_vjp", x, w, b, np.array([[1.0, 1.0]]))[1].facts_at(1, PLAIN)
    assert (dw.value, dw.mass, dw.leaves, dw.products, dw.positive, dw.negative) == (-3, 3, 1, 1, 0, 3)


def test_float64_results_are_judged_by_exact_distance():
    """No float64 estimate is trusted here: wrong by one unit in an exact sum fails, a huge sum does not overflow."""
    x, w = np.array([[2.0**52, 1.0, 3e300]]), np.array([[[1.0, 1.0, 0.0]]])
    exact = meaning("conv", x, w)
    assert exact.judge(np.array([[2.0**52 + 1]])).passed
    assert not exact.judge(np.array([[2.0**52]])).passed
    huge = meaning("conv", x, np.array([[[0.0, 0.0, 1e7]]]))
    assert huge.judge(np.array([[3e307]])).passed
    assert not huge.judge(np.array([[3.1e307]])).passed


def test_ranked_names_mean_the_same():
    random = np.random.default_rng(1)
    x, w = random.standard_normal((1, 4, 4)), random.standard_normal((2, 1, 3, 3))
    assert np.array_equal(meaning("conv2d", x, w).rounded("f64"), meaning("conv", x, w).rounded("f64"))
    pooled = meaning("max_pool2d_vjp", x, np.ones((1, 2, 2)), 2).rounded("f64")
    assert np.array_equal(pooled, meaning("max_pool_vjp", x, np.ones((1, 2, 2)), (2, 2)).rounded("f64"))


@pytest.mark.parametrize("liberty", [{"flush_to_zero": True}, {"input_error": 2.0**-11}])
def test_smooth_max_has_no_bound_for_liberties(liberty):
    exact = meaning("smooth_max_pool", np.ones(2, np.float32), (2,), beta=1.0)
    with pytest.raises(gs.UnsupportedError, match="no error bound is known"):
        exact.judge(np.ones(1, np.float32), Arithmetic.of("f32", **liberty))


def test_leaves_of_both_signs_may_cancel_at_the_top():
    """240 + 8 − 8: each side fits, so every partial sum does, although their sizes add up to more than the largest."""
    described = facts([(Fraction(240),), (Fraction(8),), (Fraction(-8),)], grain=3)
    assert described.is_exact_sum(PLAIN)
    assert str(permitted(described, PLAIN)) == "240.0"


def test_float16_accumulation_is_not_float32_accumulation():
    """A sum that stalls in float16 is outside what accumulating in float32 allows."""
    x = np.full((1, 4096), 0.1, np.float16)
    exact = meaning("avg_pool", x, (4096,))
    stalled = gs.spec.avg_pool(gs.ieee("f16").tensor(x), (4096,)).map(float)
    kept = gs.spec.avg_pool(gs.ieee("f16", accumulate="f32").tensor(x), (4096,)).map(float)
    assert exact.judge(np.asarray(kept.tolist(), np.float16)).passed
    assert not exact.judge(np.asarray(stalled.tolist(), np.float16)).passed
    assert exact.judge(np.asarray(stalled.tolist(), np.float16), Arithmetic.of("f16", "f16")).passed


def test_padding_times_infinity_may_be_nan_or_skipped():
    x, w = np.ones((1, 2), np.float32), np.full((1, 1, 2), np.inf, np.float32)
    exact = meaning("conv", x, w, padding=1)
    assert exact.judge(np.array([[np.nan, np.inf, np.nan]], np.float32)).passed
    assert exact.judge(np.array([[np.inf, np.inf, np.inf]], np.float32)).passed
    assert not exact.judge(np.array([[np.nan, np.nan, np.nan]], np.float32)).passed
    assert np.isnan(exact.rounded("f32")).tolist() == [[True, False, True]]


@pytest.mark.parametrize("padding_mode", ["zeros", "ignore"])
@pytest.mark.parametrize("beta", [1.0, -0.5, 30.0, 1e-3])
@pytest.mark.parametrize("mode", ["", "_jvp", "_vjp"])
def test_smooth_max_accepts_correct_arithmetic_and_nothing_else(mode, beta, padding_mode):
    random = np.random.default_rng(2)
    x = (random.standard_normal((2, 5, 5)) * 10).astype(np.float32)
    settings = {"kernel_size": (3, 3), "stride": 2, "padding": 1, "beta": beta, "padding_mode": padding_mode}
    shape = {"": None, "_jvp": x.shape, "_vjp": (2, 3, 3)}[mode]
    other = () if shape is None else (random.standard_normal(shape).astype(np.float32),)
    exact = meaning("smooth_max_pool" + mode, x, *other, **settings)
    domain, arithmetic = gs.ieee("f32"), Arithmetic.of("f32", exp_error=2.0**-24, log_error=2.0**-24)
    result = getattr(gs.spec, "smooth_max_pool" + mode)(*map(domain.tensor, (x, *other)), **settings)
    got = np.asarray(result.map(float).tolist(), np.float32)
    judgement = exact.judge(got, arithmetic)
    assert judgement.passed, judgement.failures()
    off = got + np.float32(1e-3) * (1 + abs(got))
    assert not exact.judge(off, arithmetic).ok.any()


NUMPY = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
SMOOTH = {"kernel_size": (3, 3), "stride": 2, "padding": 1, "padding_mode": "ignore"}


def smooth_arrays(mode, dtype, scale, specials=()):
    """Cells, and tangents or cotangents if the mode has any, with special numbers among both."""
    random = np.random.default_rng(3)
    shapes = [(2, 5, 6), *{"": [], "_jvp": [(2, 5, 6)], "_vjp": [(2, 3, 3)]}[mode]]
    arrays = [(random.standard_normal(shape) * scale).astype(dtype) for shape in shapes]
    for n, number in enumerate(specials):
        for m, array in enumerate(arrays):
            array.flat[(7 * n + 11 * m) % array.size] = number
    return arrays


@pytest.mark.parametrize(
    ("format", "scale", "specials"),
    [
        ("f16", 3.0, ()),
        ("f32", 10.0, (0.0, -0.0, 1e-40, 80.0)),
        ("f32", 1.0, (-np.inf, np.inf, np.nan, 3e38)),
        ("f32", 1e-42, ()),
        ("f64", 1.0, ()),
        ("f64", 1e300, ()),
    ],
)
@pytest.mark.parametrize("beta", [1.5, -30.0])
@pytest.mark.parametrize("mode", ["", "_jvp", "_vjp"])
def test_smooth_max_is_decided_as_one_cell_after_the_other(mode, beta, format, scale, specials):
    """At the very ends of what is permitted, beside them, and at special numbers."""
    exact = meaning("smooth_max_pool" + mode, *smooth_arrays(mode, NUMPY[format], scale, specials), beta=beta, **SMOOTH)
    arithmetic = Arithmetic.of(format)
    allowed = [exact.permitted_at(place, arithmetic) for place in range(math.prod(exact.shape))]
    lows, highs = (
        np.asarray([0.0 if end is None else float(end) for end in ends])
        for ends in zip(*((a.low, a.high) for a in allowed), strict=True)
    )
    steps = [np.nextafter(end, to) for end in (lows, highs) for to in (-np.inf, np.inf)]
    for got in (lows, highs, *steps, (lows + highs) / 2, *(np.full_like(lows, x) for x in (0.0, np.inf, np.nan))):
        expected = [a.allows(float(y)) for a, y in zip(allowed, got, strict=True)]
        assert exact.judge(got.reshape(exact.shape), arithmetic).ok.ravel().tolist() == expected


@pytest.mark.parametrize("mode", ["", "_jvp", "_vjp"])
def test_smooth_max_of_nothing_is_judged(mode):
    exact = meaning(
        "smooth_max_pool" + mode, *(a[:0] for a in smooth_arrays(mode, np.float32, 1.0)), beta=1.0, **SMOOTH
    )
    assert exact.judge(np.zeros(exact.shape, np.float32)).passed


@pytest.mark.parametrize("format", ["f16", "f32"])
@pytest.mark.parametrize("mode", ["", "_jvp", "_vjp"])
def test_right_smooth_maxima_of_small_formats_need_no_balls(mode, format, monkeypatch):
    exact = meaning("smooth_max_pool" + mode, *smooth_arrays(mode, NUMPY[format], 3.0), beta=2.0, **SMOOTH)
    right = exact.rounded(format)
    monkeypatch.delattr(type(exact), "permitted_at")
    assert exact.judge(right, Arithmetic.of(format)).passed


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ([3e38, -3e38], 3e38),
        ([np.nan, 1.0], np.nan),
        ([np.inf, 1.0], np.inf),
        ([-np.inf, -np.inf], -np.inf),
        ([-np.inf, 2.0], 2.0),
    ],
)
def test_smooth_max_of_special_values(x, expected):
    exact = meaning("smooth_max_pool", np.asarray(x, np.float32), (2,), beta=1.0)
    assert np.array_equal(exact.rounded("f32"), np.asarray([expected], np.float32), equal_nan=True)
    assert exact.judge(np.asarray([expected], np.float32)).passed
    assert not exact.judge(np.asarray([7.0], np.float32)).passed


def test_smooth_max_derivatives_may_overflow_on_the_way():
    """All three windows send nearly their whole cotangent to the middle cell: 3e38 + 3e38 overflows, −3e38 is late."""
    x = np.array([0, 0, 100, 0, 0], np.float32)
    for g, verdicts in [
        ([3e38, 3e38, -3e38], {3e38: True, np.inf: True, -np.inf: False, np.nan: False}),
        ([-3e38, -3e38, 3e38], {-3e38: True, np.inf: False, -np.inf: True, np.nan: False}),
        ([1e38, 1e38, -1e38], {1e38: True, np.inf: False, -np.inf: False, np.nan: False}),
    ]:
        exact = meaning("smooth_max_pool_vjp", x, np.array(g, np.float32), (3,), 1, beta=1.0)
        allowed = exact.permitted_at(2, Arithmetic.of("f32"))
        assert {got: allowed.allows(float(np.float32(got))) for got in verdicts} == verdicts


def test_computed_derivatives_are_adjoint_within_their_tolerance():
    random, arithmetic, f32 = np.random.default_rng(9), Arithmetic.of("f32"), gs.ieee("f32")
    draw = lambda *shape: random.standard_normal(shape).astype(np.float32)  # noqa: E731
    x, w, dx, dw, g = draw(2, 6), draw(3, 2, 3), draw(2, 6), draw(3, 2, 3), draw(3, 4)
    jvp = gs.spec.conv_jvp(*map(f32.tensor, (x, w)), None, *map(f32.tensor, (dx, dw)), None)
    vjp = gs.spec.conv_vjp(*map(f32.tensor, (x, w)), None, f32.tensor(g))[:2]
    means = [meaning("conv_jvp", x, w, None, dx, dw, None), *meaning("conv_vjp", x, w, None, g)[:2]]
    errors = [[half_width(m.permitted_at(i, arithmetic)) for i in range(math.prod(m.shape))] for m in means]
    exactly = lambda t: [rational(float(v)) for v in (t.cells if isinstance(t, gs.spec.Tensor) else t.ravel())]  # noqa: E731
    inner = lambda a, b: sum((p * q for p, q in zip(a, b, strict=True)), fmpq(0))  # noqa: E731
    cotangent, tangent = exactly(g), exactly(dx) + exactly(dw)
    forward, reverse = inner(cotangent, exactly(jvp)), inner([v for t in vjp for v in exactly(t)], tangent)
    bound = adjoint_tolerance(cotangent, errors[0], tangent, errors[1] + errors[2])
    assert 0 < abs(forward - reverse) <= bound


def half_width(allowed: Permitted) -> fmpq:
    return (allowed.high - allowed.low) / 2


def test_lowest_bits():
    values = np.array([1.0, 6.0, 0.375, -40.0, 5e-324, 2.0**-1022, 1.7976931348623157e308])
    expected = [
        (lambda n, d: (n & -n).bit_length() - d.bit_length())(*map(abs, v.as_integer_ratio())) for v in values.tolist()
    ]
    assert lowest_bits(values).tolist() == expected


ONES, KERNEL = np.ones((1, 3)), np.ones((1, 1, 1))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: meaning("max_pol", np.ones(3)), ValueError, "'max_pol' is not an operator"),
        (lambda: meaning("conv", np.ones((1, 3), int), KERNEL), gs.DTypeError, "int64"),
        (lambda: meaning("avg_pool", np.ones(4), (2,)).judge(np.ones(3)), gs.ShapeError, r"\(3,\).*\(2,\)"),
        (lambda: meaning("avg_pool", np.ones(4), (2,)).judge(np.ones(2, int)), gs.DTypeError, "no rounding to judge"),
        (lambda: meaning("avg_pool_vjp", np.ones(4), np.ones(3), (2,)), gs.ShapeError, "cotangent"),
        (lambda: meaning("conv_jvp", ONES, KERNEL, None, ONES[:, 1:], KERNEL, None), gs.ShapeError, "tangent of x"),
        (lambda: meaning("conv_jvp", ONES, KERNEL, None, ONES, None, None), gs.DTypeError, "object is not judged"),
        (lambda: meaning("conv_jvp", ONES, KERNEL, np.ones(1), ONES, KERNEL, None), gs.ShapeError, "go together"),
        (lambda: meaning("avg_pool", np.ones(4), (2,), divisor_override=0), gs.ShapeError, "divisor_override=0"),
        (lambda: meaning("max_pool_jvp", np.ones(4), np.ones(4), (2,), ties="last"), ValueError, "ties='last'"),
        (lambda: meaning("max_pool", np.ones(4), (2,), ties="last"), ValueError, "ties='last'"),
        (lambda: meaning("conv", ONES), TypeError, r"^conv\(\) missing a required argument: 'weight'"),
    ],
)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()
