"""Pooling operators against the oracle, PyTorch and hand-made cases: rounding, special values, ties, kinks, errors."""

from functools import partial
from math import inf, nan
from random import Random

import numpy as np
import pytest
import torch

import gradspec as gs
from cases import CASES
from conformance.test_oracle import DTYPES, MODES, arguments, attributes
from gradspec.backends.numpy import namespace as kernels
from gradspec.conformance import meaning
from gradspec.graph.graph import check
from gradspec.graph.types import type_of
from graph.op_cases import dyadics
from peers.test_torch import BINS, DILATED, WINDOWS, cut, torch_operator, windows

POOLS = {
    "max_pool",
    "avg_pool",
    "smooth_max_pool",
    "adaptive_max_pool",
    "adaptive_avg_pool",
    "global_max_pool",
    "global_avg_pool",
    "max_unpool",
    "max_gather",
}
POOL_CASES = [case for case in CASES if case.operator in POOLS]
RANKS = pytest.mark.parametrize("rank", [1, 2, 3])
SIZES = (7, 6, 5)


def graph_of(case, arrays):
    inputs = arrays[: len(case.shapes)]
    function = partial(getattr(gs, case.operator), **attributes(case))
    types = [type_of(a) for a in inputs]
    return gs.trace(lambda *xs: function(*xs), *types)


def in_mode(graph, mode):
    return check({"": lambda: graph, "_jvp": graph.jvp, "_vjp": graph.vjp}[mode]())


@pytest.mark.rows(2)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", POOL_CASES, ids=lambda case: case.id)
def test_kernels_stay_within_the_certified_tolerance(case, mode):
    """Value, JVP and VJP of every case, on full significands, on special values and on ties."""
    for name, kind in (("f32", "plain"), ("f64", "special"), ("f16", "small integers")):
        arrays = arguments(case, mode, DTYPES[name], kind)
        results = in_mode(graph_of(case, arrays), mode)(*arrays)
        judged = results[-1] if mode else results
        judgement = meaning(case.operator + mode, *arrays, **attributes(case)).judge(judged)
        assert judgement.passed, (name, kind, judgement.failures())


# --- PyTorch ----------------------------------------------------------------------------------------------------------


def cells(x, window):
    return windows(x, window).flatten(-len(window["kernel_size"]))


FORMULAS = {
    "smooth_max_pool": lambda x, beta, **window: torch.logsumexp(beta * cells(x, window), -1) / beta,
    # What ceil_mode reads past the input is 0 and adds nothing.
    "lp_pool": lambda x, p, **window: torch.linalg.vector_norm(cells(x, window), p, dim=-1),
}


def theirs(operator, rank):
    return FORMULAS.get(operator) or torch_operator(operator, rank)


AGREEMENTS = {
    f"{operator}: {name} {extra or ''}": (operator, options | extra)
    for operator, table, extras in (
        ("max_pool", WINDOWS | DILATED, [{}]),
        ("avg_pool", WINDOWS, [{}]),
        ("adaptive_max_pool", BINS, [{}]),
        ("adaptive_avg_pool", BINS, [{}]),
        ("smooth_max_pool", {k: o for k, o in (WINDOWS | DILATED).items() if "ceil_mode" not in o}, [{"beta": 1.5}]),
        ("lp_pool", {k: o for k, o in WINDOWS.items() if "padding" not in o}, [{"p": p} for p in (1, 2, 3, 1.5, inf)]),
    )
    for name, options in table.items()
    for extra in extras
}


@pytest.mark.rows(2)
@RANKS
@pytest.mark.parametrize(("operator", "options"), AGREEMENTS.values(), ids=AGREEMENTS)
def test_values_gradients_and_hessian_products_are_pytorchs(operator, options, rank, rng):
    settings = cut(options, rank)
    x, v = (rng.permutation(2 * int(np.prod(SIZES[:rank]))).reshape(2, *SIZES[:rank]) / 8 + 0.25 for _ in range(2))
    x = np.where(rng.random(x.shape) < 0.5, -x, x)
    ours, peer = partial(getattr(gs, f"{operator}{rank}d"), **settings), partial(theirs(operator, rank), **settings)
    value = ours(x)
    w = rng.normal(size=value.shape)

    def loss(x):
        y = ours(x)
        return gs.sum(y * y * w)

    def torch_loss(x):
        y = peer(x)
        return (y * y * torch.from_numpy(w)).sum()

    t, tv = torch.from_numpy(x), torch.from_numpy(v)
    _, gradient = torch.autograd.functional.vjp(torch_loss, t)
    _, product = torch.autograd.functional.hvp(torch_loss, t, tv)
    close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-9)
    close(value, peer(t))
    close(gs.grad(loss)(x), gradient)
    close(gs.hvp(loss, x, v), product)


@RANKS
@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, 2.5])
def test_lp_pool_is_pytorchs_where_cells_are_positive_and_windows_whole(p, rank, rng):
    x = rng.uniform(0.5, 2, (2, *SIZES[:rank]))
    theirs = getattr(torch.nn.functional, f"lp_pool{rank}d")(torch.from_numpy(x), p, 2, 1)
    np.testing.assert_allclose(getattr(gs, f"lp_pool{rank}d")(x, p, 2, 1), theirs, rtol=1e-12)


def test_where_lp_pool_is_not_pytorchs():
    """Powers of the cells themselves, windows cut short scaled as if they were whole, and NaN where p < 1 meets 0."""
    theirs, x = torch.nn.functional.lp_pool1d, np.float64([[-3, 1, 2]])
    assert gs.lp_pool1d(x, 1, 2, ceil_mode=True).tolist() == [[4, 2]]
    assert theirs(torch.from_numpy(x), 1, 2, ceil_mode=True).tolist() == [[-2, 4]]
    zeros = torch.zeros(1, 2, requires_grad=True)
    theirs(zeros, 0.5, 2).sum().backward()
    assert zeros.grad.isnan().all()


@RANKS
def test_unpooling_is_pytorchs_where_windows_do_not_overlap(rank, rng):
    x = rng.normal(size=(1, 2, *SIZES[:rank]))
    y, places = getattr(gs, f"max_pool{rank}d")(x, 2, return_indices=True)
    ours = getattr(gs, f"max_unpool{rank}d")(y, places, SIZES[:rank])
    theirs = getattr(torch.nn.functional, f"max_unpool{rank}d")(
        *map(torch.from_numpy, (y, places)), 2, output_size=SIZES[:rank]
    )
    assert np.array_equal(ours, theirs)


@pytest.fixture
def rng(request):
    return np.random.default_rng(sum(map(ord, request.node.name)))


# --- special values, ties, kinks --------------------------------------------------------------------------------------

SPECIAL = [
    # x, kernel, padding, value, index
    ([1, nan, 3, nan], 4, 0, nan, 1),
    ([-inf, -inf], 2, 0, -inf, 0),
    ([-inf, 5], 2, 2, -inf, 0),
    ([-0.0, 0.0], 2, 0, -0.0, 0),
    ([inf, nan], 2, 0, nan, 1),
    ([3, 3], 2, 0, 3, 0),
]


@pytest.mark.parametrize(("x", "kernel", "padding", "value", "index"), SPECIAL)
def test_winners_of_special_windows(x, kernel, padding, value, index):
    values, indices = gs.max_pool1d(np.float64(x), kernel, 1, padding, return_indices=True)
    window = {0: 0, 2: 1}[padding]  # with two cells of padding the second window reads one of them and the first cell
    assert np.array_equal(values[window], value, equal_nan=True)
    assert np.signbit(values[window]) == np.signbit(value) or np.isnan(value)
    assert indices[window] == index


def test_windows_of_padding_alone():
    x = np.float64([[1.0, 2.0]])
    values, indices = gs.max_pool1d(x, 1, 1, 1, return_indices=True)
    assert values.tolist() == [[0, 1, 2, 0]]
    assert indices.tolist() == [[-1, 0, 1, -1]]
    _, pullback = gs.vjp(lambda x: gs.max_pool1d(x, 1, 1, 1), x)
    assert pullback(np.float64([[10, 20, 30, 40]]))[0].tolist() == [[20, 30]]
    averages = gs.avg_pool1d(x, 1, 1, 1, divisor_override=-2)
    assert averages.tolist() == [[0, -0.5, -1, 0]]
    assert not np.signbit(averages[0, 0])


@pytest.mark.rows(1)
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64])
def test_integers_have_maxima_and_indices(dtype):
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    values, indices = gs.max_pool1d(np.array([low, low, high, high - 1], dtype), 2, 2, 1, return_indices=True)
    assert values.dtype == dtype
    assert values.tolist() == [low, high, high - 1]
    assert indices.tolist() == [0, 2, 3]


@pytest.mark.parametrize(
    ("ties", "tangent", "cotangent"),
    [("first", 1, [8, 0, 0, 0]), ("all", 13, [8, 0, 8, 8]), ("split", 13 / 3, [8 / 3, 0, 8 / 3, 8 / 3])],
)
def test_tie_rules(ties, tangent, cotangent):
    x, dx = np.float64([3, 1, 3, 3]), np.float64([1, 2, 4, 8])
    pooled = partial(gs.global_max_pool1d, ties=ties)
    assert gs.jvp(pooled, (x,), (dx,))[1] == tangent
    assert gs.vjp(pooled, x)[1](np.float64([8]))[0].tolist() == cotangent


def test_derivatives_on_intervals_enclose_every_winner():
    graph = gs.trace(lambda x: gs.max_pool1d(x, 3), gs.f64[3])
    x = gs.spec.Tensor((3,), [gs.interval.scalar(1), gs.interval.scalar(0), gs.interval.scalar(1)])
    x.cells[0] = type(x.cells[0])(0.0, 2.0)
    _, pushed = gs.evaluate(graph.jvp(), x, gs.interval.tensor([10, 20, 30]), domain=gs.interval)
    assert (pushed.cells[0].lo, pushed.cells[0].hi) == (10, 30)
    _, pulled = gs.evaluate(graph.vjp(), x, gs.interval.tensor([5]), domain=gs.interval)
    assert [(c.lo, c.hi) for c in pulled.cells] == [(0, 5), (0, 0), (0, 5)]


@pytest.mark.parametrize("p", [0.5, 1, 1.5, 2, 3, inf])
def test_lp_pool_has_derivative_zero_at_zero(p):
    """In a window of zeros, and at a zero cell of any window; the value there is the norm of the rest."""
    x = np.float64([0, -0.0, 0, -4])
    y, pullback = gs.vjp(lambda x: gs.lp_pool1d(x, p, 2), x)
    assert y.tolist() == pytest.approx([0, 4], rel=1e-14)
    assert pullback(np.ones(2))[0].tolist() == pytest.approx([0, 0, 0, -1], rel=1e-14, abs=0)
    graph, dual = gs.trace(lambda x: gs.lp_pool1d(x, p, 2), gs.f64[4]), gs.dual(gs.ball(64))
    tangents = [c.tangent for c in gs.evaluate(graph, dual.tensor(x, [1, 2, 4, 8]), domain=dual).cells]
    assert all(t.contains(right) and t.rad() < 1e-15 for t, right in zip(tangents, [0, -8], strict=True))


@pytest.mark.parametrize("p", [0.5, 1, 2, 3, inf])
def test_lp_pool_neither_overflows_nor_vanishes(p):
    for scale in (1e300, 1e-300):
        assert gs.lp_pool1d(np.float64([3 * scale, -4 * scale]), p, 2) == pytest.approx(
            np.float64(scale) * gs.lp_pool1d(np.float64([3, 4]), p, 2), rel=1e-14
        )


@pytest.mark.parametrize(
    ("x", "p", "value"), [([nan, 1], 2, nan), ([-inf, 1], 2, inf), ([-inf, nan], inf, nan), ([0, inf], 0.5, inf)]
)
def test_lp_pool_of_special_values(x, p, value):
    assert np.array_equal(gs.lp_pool1d(np.float64(x), p, 2), [value], equal_nan=True)


def test_written_second_derivatives_of_smooth_pooling(rng):
    x, u, v = rng.normal(size=(3, 2, 4, 3))
    options = {"kernel_size": (2, 2), "stride": 1, "padding": 1, "beta": 0.75}
    graph = gs.trace(lambda x: gs.smooth_max_pool(x, **options), gs.f64[2, 4, 3])
    second = graph.jvp().jvp(["x"])(x, u, v)[-1]
    written = gs.spec.smooth_max_pool_jvp_jvp(x, u, v, **options)
    np.testing.assert_allclose(second, written.tolist(), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("x", "beta", "value"),
    [
        # x − c overflows: c + log(1 + e^(−2)) / β by hand.
        ([1e308, -1e308], 1e-308, 1e308 + np.log1p(np.exp(-2)) * 1e308),
        ([-1e308, 1e308], -1e-308, -1e308 - np.log1p(np.exp(-2)) * 1e308),
        ([inf, 3], 1.0, inf),
        ([-inf, -inf], 1.0, -inf),
        ([-inf, 3], 1.0, 3),
        ([inf, inf], -1.0, inf),
        ([nan, inf], 1.0, nan),
    ],
)
def test_smooth_pooling_of_extreme_values(x, beta, value):
    pooled = partial(gs.smooth_max_pool1d, kernel_size=2, beta=beta)
    result = pooled(np.float64(x))
    assert np.array_equal(result, [value], equal_nan=True) or result[0] == pytest.approx(value, rel=1e-15)
    if x[0] == x[1]:
        assert gs.jvp(pooled, (np.float64(x),), (np.float64([2, 4]),))[1].tolist() == [3]


def test_beta_is_rounded_where_it_is_used():
    (node,) = gs.trace(lambda x: gs.smooth_max_pool1d(x, 2, beta=0.1), gs.f32[2]).nodes
    assert node.attrs.beta == float(np.float32(0.1))


# --- blocks, files, errors --------------------------------------------------------------------------------------------


@pytest.mark.rows(1)
@pytest.mark.parametrize("block", [1, 7, 50])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: gs.max_pool2d(x, 3, 1, 1, return_indices=True)[0],
        lambda x: gs.max_pool2d(x, 3, 1, 1, ties="split"),
        lambda x: gs.avg_pool2d(x, 3, 2, 1),
        lambda x: gs.adaptive_avg_pool2d(x, (7, 2)),
        lambda x: gs.smooth_max_pool2d(x, 2, 1, 1, beta=2.0),
        lambda x: gs.lp_pool2d(x, 2, 2, 1),
    ],
)
def test_the_size_of_blocks_does_not_matter(function, block, monkeypatch, rng):
    x = rng.integers(-2, 3, (3, 5, 4)).astype(np.float32)
    run = gs.trace(function, gs.f32[x.shape]).vjp()
    g = rng.normal(size=run.outputs[0].shape).astype(np.float32)
    expected = run(x, g)
    monkeypatch.setattr(kernels, "BLOCK", block)
    for a, b in zip(run(x, g), expected, strict=True):
        assert np.array_equal(a, b)


@pytest.mark.rows(2)
def test_pooling_survives_a_file(tmp_path, rng):
    def network(x):
        y, places = gs.max_pool2d(x, 2, 1, "same", return_indices=True)
        z = gs.max_unpool2d(gs.avg_pool2d(y, 1, divisor_override=0.5), places, (4, 4))
        z = gs.smooth_max_pool2d(z, 3, 1, beta=0.5) + gs.global_avg_pool2d(x) + gs.lp_pool2d(x, inf, 3, 1)
        return gs.adaptive_max_pool2d(z, (1, None), ties="split") + gs.lp_pool2d(z, 1.5, (2, 1), 1)

    graph = gs.trace(network, gs.f64[2, 4, 4]).vjp()
    graph.save(tmp_path / "pools.gradspec")
    arrays = [dyadics(v.shape, Random(str(v)), "distinct") for v in graph.inputs]
    for a, b in zip(gs.load(tmp_path / "pools.gradspec")(*arrays), graph(*arrays), strict=True):
        assert np.array_equal(a, b)


X = np.zeros((2, 4, 4), np.float32)
MISTAKES = {
    "stride 0": (lambda x: gs.max_pool2d(x, 2, 0), gs.ShapeError, "stride on spatial axis 0 is 0"),
    "a bool": (lambda x: gs.avg_pool2d(x, True), gs.ShapeError, "a bool"),
    "kernel without rank": (lambda x: gs.max_pool(x, 2), gs.ShapeError, "1d, 2d or 3d name"),
    "kernel too wide": (lambda x: gs.max_pool2d(x, 5), gs.ShapeError, "wider than the padded axis"),
    "too few axes": (lambda x: gs.avg_pool(x, (1, 1, 1, 1)), gs.ShapeError, "spatial axes need at least 4"),
    "no bins": (lambda x: gs.adaptive_avg_pool2d(x, 0), gs.ShapeError, "output_size on spatial axis 0 is 0"),
    "rank": (lambda x: gs.global_max_pool(x, -1), gs.ShapeError, "rank is -1"),
    "ties": (lambda x: gs.max_pool2d(x, 2, ties="last"), ValueError, "ties='last' is not known"),
    "divisor": (lambda x: gs.avg_pool2d(x, 2, divisor_override=0), gs.ShapeError, "divisor_override=0"),
    "tiny divisor": (lambda x: gs.avg_pool2d(x, 2, divisor_override=1e-60), gs.ShapeError, "divisor_override"),
    "beta": (lambda x: gs.smooth_max_pool2d(x, 2, beta=0), ValueError, "beta=0"),
    "large beta": (lambda x: gs.smooth_max_pool2d(x, 2, beta=1e60), ValueError, "becomes inf"),
    "padding mode": (lambda x: gs.smooth_max_pool2d(x, 2, beta=1, padding_mode="x"), ValueError, "padding_mode='x'"),
    "p": (lambda x: gs.lp_pool2d(x, 0, 2), ValueError, "p=0"),
    "p NaN": (lambda x: gs.lp_pool2d(x, nan, 2), ValueError, "p=nan"),
    "float indices": (lambda x: gs.max_unpool2d(x, x, 8), gs.DTypeError, "give integers"),
    "indices of another shape": (
        lambda x: gs.max_unpool2d(x, np.zeros((2, 4, 3), int), 8),
        gs.ShapeError,
        "one index per cell",
    ),
    "indices of another batch": (
        lambda x: gs.max_gather(x, np.zeros((3, 4, 4), int), 2),
        gs.ShapeError,
        "all axes but the last 2",
    ),
}


@pytest.mark.parametrize(("call", "error", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_named_at_once(call, error, message):
    with pytest.raises(error, match=message):
        call(X)
    with pytest.raises(error, match=message) as raised:
        gs.trace(call, gs.f32[X.shape])
    assert error is ValueError or "x: f32[2, 4, 4]" in str(raised.value)


@pytest.mark.parametrize("index", [-2, 16])
@pytest.mark.parametrize("call", [lambda x, i: gs.max_unpool2d(x, i, 4), lambda x, i: gs.max_gather(x, i, 2)])
def test_indices_outside_the_plane_are_refused_when_run(call, index):
    places = np.zeros(X.shape, int)
    places[1, 2, 3] = index
    with pytest.raises(gs.ShapeError, match=f"index {index} lies outside"):
        call(X, places)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: gs.avg_pool2d(x, 2),
        lambda x: gs.adaptive_avg_pool2d(x, 2),
        lambda x: gs.global_avg_pool2d(x),
        lambda x: gs.smooth_max_pool2d(x, 2, beta=1.0),
        lambda x: gs.lp_pool2d(x, 1, 2),
    ],
)
def test_averages_of_integers_are_refused(call):
    with pytest.raises(gs.DTypeError, match="floating-point"):
        call(X.astype(np.int32))
