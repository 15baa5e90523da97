"""Every operator as a function of JAX arrays: value and derivatives of both modes and orders, against the meaning."""

import re
import warnings
from dataclasses import replace
from itertools import product
from random import Random

import numpy as np
import pytest

import gradspec as gs
from graph.op_cases import GraphCase
from graph.test_op_laws import CASES

jax = pytest.importorskip("jax")
from interop.quick_jax import QUICK  # noqa: E402

KINKS = (
    "max_pool",
    "adaptive_max",
    "global_max",
    "relu",
    "leaky",
    "abs",
    "clamp",
    "maximum",
    "minimum",
    "lp_pool p=inf",
)
REDUNDANT = re.compile(r"lp_pool p=(3|1\.5) |lp_pool p=(1|0\.5|inf) [03]d|cross_entropy (mean|sum) of \(2")
SQUARED = {case.id.removesuffix(", squared") for case in CASES if case.id.endswith(", squared")}


def chosen(case: GraphCase) -> GraphCase | None:
    """The row as it is tried: with ties where there is a kink; None for what another row says as well."""
    if case.id in SQUARED or REDUNDANT.match(case.id):
        return None
    return replace(case, data="tied") if case.id.startswith(KINKS) else case


ROWS = list(filter(None, map(chosen, CASES)))


def several(results):
    return results if isinstance(results, list | tuple) else (results,)


def quickly(function, *args):
    """What a function gives under jit, as NumPy arrays."""
    return jax.tree.map(np.asarray, jax.jit(function, compiler_options=QUICK)(*args))


def pulled_back(function, cotangent):
    """A function's value and what it makes of a cotangent."""

    def both(*xs):
        y, pull = jax.vjp(function, *xs)
        return y, pull(cotangent)

    return both


def drawn(variables, seed):
    """Small whole numbers, ties and zeros among them."""
    random = Random(seed)
    return [
        np.array([random.randint(-3, 3) for _ in range(v.type.size)], v.dtype.numpy).reshape(v.shape) for v in variables
    ]


def derivatives(graph, arrays, tangents, cotangents, run=quickly):
    """Values, cotangents of the float inputs, and the tangents of both: forward over reverse mode."""
    function = gs.to_jax(graph)
    floats = [i for i, v in enumerate(graph.inputs) if v.type.is_float]

    def of_floats(*xs):
        given = list(arrays)
        for i, x in zip(floats, xs, strict=True):
            given[i] = x
        results = several(function(*given))
        return [y for y, v in zip(results, graph.outputs, strict=True) if v.type.is_float], results

    def pulled(*xs):
        values, pull, results = jax.vjp(of_floats, *xs, has_aux=True)
        return (*values, *pull(cotangents)), results

    def everything(xs, dxs):
        firsts, seconds, results = jax.jvp(pulled, xs, dxs, has_aux=True)
        return *results, *firsts[len(cotangents) :], *seconds

    return run(everything, tuple(arrays[i] for i in floats), tuple(tangents))


def exact(graph, arrays, tangents, cotangents, domain):
    """The same by the graph's own derivatives, in exact arithmetic."""
    floats = [i for i, v in enumerate(graph.inputs) if v.type.is_float]
    results = gs.evaluate(graph.vjp().jvp(floats), *arrays, *cotangents, *tangents, domain=domain)
    return [np.array([float(c) for c in t.cells]).reshape(t.shape) for t in results]


def draw_all(graph, case):
    arrays = case.arrays()
    floats = [v for v in graph.inputs if v.type.is_float]
    return arrays, drawn(floats, f"tangents {case.id}"), drawn([v for v in graph.outputs if v.type.is_float], case.id)


@pytest.mark.parametrize("case", ROWS, ids=lambda case: case.id)
def test_values_and_derivatives_are_the_specification_s(case: GraphCase):
    graph = case.graph()
    data = draw_all(graph, case)
    with jax.enable_x64(True):
        found = derivatives(graph, *data)
    for got, right in zip(found, exact(graph, *data, case.domain), strict=True):
        assert got.shape == right.shape
        assert np.all(np.abs(got - right) <= 1e-11 * (1 + np.abs(right).max(initial=0)))


# --- special values ---------------------------------------------------------------------------------------------------

INF, NAN = np.inf, np.nan
SPECIAL = np.array([-INF, 1, NAN, INF, -INF, 0, -0.0, 2, -INF, -INF, INF, INF, -1, 3, NAN, NAN])

AT_SPECIAL_VALUES = {
    "max_pool": lambda x: gs.max_pool(x, (2,), 1, 2, return_indices=True),
    "max_pool all": lambda x: gs.max_pool(x, (2,), 2, ties="all"),
    "max_pool split": lambda x: gs.max_pool(x, (3,), 2, ties="split"),
    "avg_pool": lambda x: gs.avg_pool(x, (2,), 1, 1),
    "smooth_max_pool": lambda x: gs.smooth_max_pool(x, (2,), 1, beta=2.0),
    "smooth_max_pool below": lambda x: gs.smooth_max_pool(x, (3,), 2, 1, beta=-1.0, padding_mode="ignore"),
    "lp_pool": lambda x: gs.lp_pool(x, 2, (2,), 1),
    "pointwise": lambda x: (
        *(gs.relu(x), gs.leaky_relu(x), gs.abs(x), gs.clamp(x, -1, 2), gs.maximum(x, 0.0), gs.minimum(x, 1.0)),
        *(gs.floor(x), gs.round(x * 0.5), gs.sin(x), gs.cos(x)),
        *(gs.exp(x), gs.log(x), gs.sqrt(x), gs.tanh(x), gs.sigmoid(x), gs.softplus(x), gs.silu(x), gs.gelu(x)),
    ),
    "softmax": lambda x: (gs.softmax(gs.reshape(x, (8, 2))), gs.log_softmax(gs.reshape(x, (8, 2)))),
    "resize": lambda x: gs.resize(x, (24,), "linear"),
    "detach": lambda x: x * gs.detach(x),
    "unfold": lambda x: gs.unfold(gs.reshape(x, (1, 16)), (3,), padding=2),
}


@pytest.mark.parametrize("name", AT_SPECIAL_VALUES)
def test_special_values_and_their_derivatives(name):
    """NaN and infinities, ones as tangents and cotangents, against the specification's own floating-point steps."""
    graph = gs.trace(AT_SPECIAL_VALUES[name], gs.f64[16])
    ones = [np.ones(v.shape) for v in graph.outputs if v.type.is_float]
    function = gs.to_jax(graph)

    def pushed(x):
        return several(function(x)), [t for t in several(jax.jvp(function, (x,), (np.ones(16),))[1]) if t.dtype == "f8"]

    def pulled(x):
        return jax.vjp(lambda x: [y for y in several(function(x)) if y.dtype == "f8"], x)[1](ones)

    with jax.enable_x64(True):
        (values, tangents), cotangents = quickly(lambda x: (pushed(x), pulled(x)), SPECIAL)
    domain = gs.ieee("f64")
    right = [*gs.evaluate(graph.jvp(), SPECIAL, np.ones(16), domain=domain)]
    right += gs.evaluate(graph.vjp(), SPECIAL, *ones, domain=domain)[len(graph.outputs) :]
    for got, wanted in zip([*values, *tangents, *cotangents], right, strict=True):
        cells = np.array([float(c) for c in wanted.cells]).reshape(wanted.shape)
        np.testing.assert_allclose(np.asarray(got), cells, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize(("rank", "stride", "groups"), [(1, 1, 1), (1, 2, 2), (2, 1, 1), (3, 2, 1)])
def test_a_padding_zero_times_an_infinite_weight_is_nan(rank, stride, groups):
    types = gs.f32[(2, *(3,) * rank)], gs.f32[(2, 2 // groups, *(2,) * rank)]
    graph = gs.trace(lambda x, w: gs.conv(x, w, stride=stride, padding=1, groups=groups), *types)
    x, w = (np.ones(v.shape, np.float32) for v in graph.inputs)
    w.flat[0] = INF
    right = gs.evaluate(graph, x, w, domain=gs.ieee("f32"))
    assert np.array_equal(quickly(gs.to_jax(graph), x, w).ravel(), list(map(float, right.cells)), equal_nan=True)


def test_a_derivative_that_is_zero_is_not_multiplied():
    """Who wins does not change, so the tangent of the winner's tangent is no zero times ∞, which would be NaN."""
    push = gs.to_jax(gs.trace(lambda x: gs.max_pool(x, (2,)), gs.f32[2]).jvp())
    x, dx = np.float32([[1, 2], [3, 4]])
    _, tangent = quickly(lambda x: jax.jvp(lambda x: push(x, dx)[1] * np.float32(INF), (x,), (dx,)), x)
    assert tangent.tolist() == [0.0]


def test_what_a_kink_holds_back_may_be_infinite():
    """relu passes nothing below 0, of an infinite tangent or cotangent either."""
    relu = gs.to_jax(gs.trace(gs.relu, gs.f32[2]))
    x, t = np.float32([-1, 2]), np.float32([INF, INF])
    _, tangent = quickly(lambda x: jax.jvp(relu, (x,), (t,)), x)
    _, (cotangent,) = quickly(pulled_back(relu, t), x)
    assert tangent.tolist() == cotangent.tolist() == [0, INF]


# --- certified accuracy -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [gs.f32, gs.f16, gs.bf16], ids=str)
def test_sums_are_within_the_certified_tolerance(dtype):
    random = np.random.default_rng(0)
    graph = gs.trace(lambda x, w: gs.conv(x, w, padding=1), dtype[2, 4, 5, 5], dtype[3, 4, 3, 3])
    x, w, g = (random.standard_normal(s).astype(dtype.numpy) for s in ((2, 4, 5, 5), (3, 4, 3, 3), (2, 3, 5, 5)))
    y, cotangents = quickly(pulled_back(gs.to_jax(graph), g), x, w)
    assert gs.conformance.meaning("conv", x, w, padding=1).judge(np.asarray(y)).passed
    meaning = gs.conformance.meaning("conv_vjp", x, w, None, g, padding=1)
    for wanted, got in zip(meaning, cotangents, strict=False):
        assert wanted.judge(np.asarray(got)).passed


@pytest.mark.parametrize(("dtype", "large"), [(gs.f16, 2048), (gs.bf16, 256)], ids=str)
def test_small_formats_round_after_every_operator_under_jit_too(dtype, large):
    """``large + 1`` is ``large``; a compiler that kept more digits between operators would have 2 left."""
    x, y = np.array([large], dtype.numpy), np.array([1], dtype.numpy)
    graph = gs.trace(lambda x, y: (x + y) + y - x, dtype[1], dtype[1])
    assert jax.jit(gs.to_jax(graph))(x, y).tolist() == [0.0]


def test_small_formats_add_up_in_float32():
    """2048 and four ones, of which float16 could add none to 2048."""
    x = np.float16([[2048, 1, 1, 1, 1]])
    graph = gs.trace(lambda x: (gs.sum(x), gs.avg_pool(x, (5,), divisor_override=1)[0, 0]), gs.f16[1, 5])
    assert [y.tolist() for y in quickly(gs.to_jax(graph), x)] == [2052.0, 2052.0]


# --- integers ---------------------------------------------------------------------------------------------------------

FRACTIONS = np.array(
    [0.5, -0.5, 127.5, 128, -129, 255.9, 256, -1, 2.0**31, -(2.0**31) - 1, 2.0**63, 1e30, -INF, INF, NAN]
)
WHOLE = np.array([-(2**63), -1, 0, 1, 2, 255, 256, 2049, 2**24 + 1, 2**31, 2**63 - 1])  # eleven: XLA's int8 needs care


def test_conversions_are_the_specification_s():
    names = ("i8", "u8", "i16", "u32", "i32", "u64")
    types = [getattr(gs, name) for name in names]
    graph = gs.trace(lambda x, n: [gs.convert(v, t) for v in (x, n) for t in types], gs.f64[15], gs.i64[11])
    with jax.enable_x64(True):
        found = quickly(gs.to_jax(graph), FRACTIONS, WHOLE)
    for got, (x, name) in zip(found, product((FRACTIONS, WHOLE), names), strict=True):
        assert got.tolist() == gs.spec.convert(x.tolist(), name).tolist()


def test_integers_wrap_around_as_numpy_s_do():
    a, b = np.repeat(np.int8([-128, -7, 0, 7, 127]), 5), np.tile(np.int8([-128, -2, -1, 3, 127]), 5)
    graph = gs.trace(lambda a, b: (a + b, a - b, a * b, -a, gs.abs(a), gs.sum(a * b), gs.relu(a)), gs.i8[25], gs.i8[25])
    with np.errstate(over="ignore"):
        right = (a + b, a - b, a * b, -a, np.abs(a), (a * b).sum(dtype=np.int8), np.maximum(a, 0))
    for got, wanted in zip(quickly(gs.to_jax(graph), a, b), right, strict=True):
        assert got.dtype == np.int8
        assert np.array_equal(got, wanted)


def test_attributes_that_are_equal_and_not_the_same_are_told_apart():
    def sign_of_padding(value):
        padded = gs.to_jax(gs.trace(lambda x: gs.pad(x, [(1, 0)], value), gs.f32[1]))
        return bool(np.signbit(padded(np.ones(1, np.float32)))[0])

    assert [sign_of_padding(0.0), sign_of_padding(-0.0)] == [False, True]


def test_quotients_of_integers_drop_their_fraction():
    a, b = np.repeat(np.int32([-7, 0, 7]), 4), np.tile(np.int32([-2, 0, 2, 9]), 3)
    found = quickly(gs.to_jax(gs.trace(gs.trunc_divide, gs.i32[12], gs.i32[12])), a, b)
    assert found.tolist() == gs.spec.trunc_divide(a.tolist(), b.tolist()).tolist()


# --- the table, and what is refused -----------------------------------------------------------------------------------


def test_every_operator_has_a_lowering():
    from gradspec.interop.jax.lower import LOWERINGS
    from gradspec.ops.core import operators

    assert set(LOWERINGS) == {name for name, op in operators().items() if not op.is_composite}


def test_what_is_missing_is_listed_at_once(monkeypatch):
    from gradspec.interop.jax.lower import LOWERINGS

    for name in ("relu", "exp"):
        monkeypatch.delitem(LOWERINGS, name)
    with pytest.raises(gs.UnsupportedError, match=r"relu \(relu: f32\[2\]\); exp \(exp: f32\[2\]\)"):
        gs.to_jax(gs.trace(lambda x: gs.exp(gs.relu(x)) + x, gs.f32[2]))


REFUSED = {
    "too few": ((np.zeros(2, np.float32),), TypeError, "takes 2 arrays"),
    "another shape": ((np.zeros(3, np.float32), 1.0), gs.ShapeError, r"x: f32\[2\] was given an array of shape \(3,\)"),
    "a batch": ((np.zeros((5, 2), np.float32), 1.0), gs.ShapeError, "jax.vmap"),
    "another dtype": ((np.zeros(2), 1.0), gs.DTypeError, "float64 numbers; x.astype..float32"),
    "a list": (([1.0, 2.0], 1.0), TypeError, "was given list"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_inputs_are_checked(name):
    arguments, error, text = REFUSED[name]
    function = gs.to_jax(gs.trace(lambda x, y: x * y, gs.f32[2], gs.f32[()]))
    with pytest.raises(error, match=text):
        function(*arguments)


def test_tracers_are_checked():
    function = gs.to_jax(gs.trace(lambda x: x * x, gs.f32[2]))
    with pytest.raises(gs.ShapeError, match=r"x: f32\[2\] was given an array of shape \(3,\)"):
        jax.eval_shape(jax.jit(function), np.zeros(3, np.float32))


def test_64_bits_are_asked_for_by_name():
    double = gs.to_jax(gs.trace(lambda x: x + x, gs.f64[2]))
    whole = gs.to_jax(gs.trace(lambda x: x + x, gs.i64[2]))
    bounded = gs.to_jax(gs.trace(lambda x: gs.minimum(x, 2**40), gs.i64[2]))
    for function, x in ((double, np.ones(2)), (whole, np.ones(2, np.int64)), (bounded, np.ones(2, np.int64))):
        with pytest.raises(gs.DTypeError, match="jax_enable_x64"):
            function(x)
        with jax.enable_x64(True):
            assert function(x).dtype == x.dtype


def test_places_and_labels_need_no_64_bits():
    pool = gs.to_jax(gs.trace(lambda x: gs.max_pool(x, (2,), return_indices=True), gs.f32[4]))
    assert [y.dtype.name for y in quickly(pool, np.float32([1, 2, 4, 3]))] == ["float32", "int32"]
    loss = gs.to_jax(gs.trace(gs.cross_entropy, gs.f32[2, 3], gs.i64[2]))
    logits = np.zeros((2, 3), np.float32)
    for labels in (np.array([0, 2]), np.array([0, 2], np.int32)):
        assert jax.eval_shape(loss, logits, labels).shape == ()
    with pytest.raises(gs.DTypeError, match="beyond 32 bits"):
        loss(logits, np.array([0, 2**40]))
    moved = gs.to_jax(gs.trace(lambda x: gs.reshape(x, (1,)), gs.i64[()]))
    for number in (2**40, np.int64(2**40), np.array(2**40)):
        with pytest.raises(gs.DTypeError, match="beyond 32 bits"):
            moved(number)


def test_a_label_that_does_not_exist_gives_nan_in_value_and_derivatives():
    graph = gs.trace(lambda x, labels: gs.cross_entropy(x, labels, "none"), gs.f32[2, 3], gs.i64[2])
    x, labels, function = np.zeros((2, 3), np.float32), np.array([0, 3]), gs.to_jax(graph)
    value, (cotangent,) = quickly(pulled_back(lambda x: function(x, labels), np.ones(2, np.float32)), x)
    assert np.isnan(value).tolist() == [False, True]
    assert np.isnan(cotangent).any(axis=1).tolist() == [False, True]


def test_nothing_warns_and_constants_are_not_spread_out():
    """A repeated zero is a scalar in the program, whatever the shape it is repeated to."""
    graph = gs.trace(lambda x: gs.detach(x), gs.f32[64, 64]).vjp()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        closed = jax.make_jaxpr(gs.to_jax(graph))(*(np.zeros(v.shape, np.float32) for v in graph.inputs))
    assert all(np.size(c) <= 1 for c in closed.consts)
