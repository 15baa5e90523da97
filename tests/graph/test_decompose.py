"""Every operator is of the core or made of it, and what it is made of means the same: in value, derivatives, bounds."""

from functools import lru_cache
from math import inf, nan

import numpy as np
import pytest

import gradspec as gs
from gradspec.graph.builder import apply
from gradspec.graph.graph import check
from gradspec.ops.core import CORE, decomposed, operators
from gradspec.ops.pointwise import MAX_SHARE, NONE, WITHIN, ClampRange, gate, step
from gradspec.transforms.copy import Copier
from gradspec.transforms.simplify import decompose
from graph.op_cases import GraphCase, Integers
from graph.test_op_laws import CASES, assert_same, evaluated, float_outputs, several, tangents_for

DECOMPOSING = {name: op for name, op in operators().items() if op.decompose is not None}


def pooled(name, shape, *args, **options):
    return GraphCase(
        f"{name} {shape} {args} {options}", lambda x: getattr(gs, name)(x, *args, **options), (shape,), "tied"
    )


AWKWARD = ((1, 2), (0, 1))
HARD = [
    *(
        pooled("max_pool", (2, 5, 4), (3, 2), (2, 1), AWKWARD, (1, 2), True, indices, ties=ties)
        for ties, indices in (("first", True), ("all", False), ("split", False))
    ),
    *(pooled("max_pool", (3, 4), (1, 1), 2, 2, ties=ties) for ties in ("first", "all", "split")),
    *(pooled("adaptive_max_pool", (2, 5, 4), (3, 3), ties=ties) for ties in ("first", "all", "split")),
    pooled("global_max_pool", (0, 2, 2)),
    pooled("avg_pool", (2, 5, 4), (3, 2), (2, 1), AWKWARD, True, divisor_override=0.1),
    *(GraphCase(f"{f.__name__} at 0", f, ((25,),), "tied") for f in (gs.relu, gs.abs, gs.leaky_relu, gs.floor)),
    GraphCase("clamp at its ends", lambda x: gs.clamp(x, -0.5, 0.5), ((25,),), "tied"),
    GraphCase("clamp to what no float is", lambda x: gs.clamp(x, max=0.1), ((25,),), "tied"),
    GraphCase("minimum and its share", lambda x, y: gs.minimum(x, y) * x, ((25,), (25,)), "tied"),
    GraphCase("step", lambda x: step(x, -0.1, 0.5, 3.0), ((25,),), "tied"),
    GraphCase("within", lambda x: apply(WITHIN, ClampRange(-0.5, 1.0), x), ((25,),), "tied"),
    GraphCase("within no bounds", lambda x: apply(WITHIN, ClampRange(None, None), x) * x, ((3,),), "tied"),
    GraphCase("max_share", lambda x, y: apply(MAX_SHARE, NONE, x, y), ((25,), (25,)), "tied"),
    GraphCase("gate", lambda w, t: gate(w, t) * w, ((25,), (25,)), "tied"),
    GraphCase("softplus at 0", lambda x: gs.softplus(x, 0.1), ((25,),), "tied", irrational=True),
    GraphCase(
        "smooth_max_pool of equal cells", lambda x: gs.smooth_max_pool(x, (2,), 1, beta=0.1), ((6,),), "tied", True
    ),
    GraphCase("lp_pool of zeros", lambda x: gs.lp_pool(x * 0.0, 3, (2,)), ((4,),), "tied", irrational=True),
    GraphCase("conv of no channels", lambda x, w: gs.conv(x, w), ((2, 0, 3), (4, 0, 2)), "tied"),
    GraphCase("conv of no samples", lambda x, w: gs.conv(x, w, padding=1), ((0, 2, 3), (4, 2, 2)), "tied"),
    GraphCase("conv of integers", lambda x, i: (x, gs.conv(i, i[:1, None])), ((1,), Integers((1, 3), -3, 3)), "tied"),
]
TABLE = [case for case in (*CASES, *HARD) if any(n.op.name in DECOMPOSING for n in case.graph().vjp().nodes)]

table = pytest.mark.parametrize("case", TABLE, ids=lambda case: case.id)


def with_derivatives(case):
    """The graph with its JVP and its VJP, and the arrays for each of them."""
    graph, arrays = case.graph(), case.arrays()
    tangents = tangents_for([graph.inputs[i] for i in case.floats], case.id)
    cotangents = tangents_for(float_outputs(graph), f"{case.id} cotangents")
    return [(graph, arrays), (graph.jvp(), [*arrays, *tangents]), (graph.vjp(), [*arrays, *cotangents])]


# --- the core ---------------------------------------------------------------------------------------------------------


def test_every_operator_is_of_the_core_or_decomposes():
    assert len(set(CORE)) == len(CORE)
    assert {*CORE} | DECOMPOSING.keys() == operators().keys()
    assert not {*CORE} & DECOMPOSING.keys()
    with pytest.raises(gs.UnsupportedError, match="exp has no decomposition rule"):
        gs.trace(lambda x: decomposed(operators()["exp"], NONE, [x])[0], gs.f32[1])


def test_decompositions_of_all_operators_end():
    """No operator is, by whatever way, made of itself; and the table has all of them.

    A scan is made of what its body has, which may be other scans, but of fewer within these.
    """
    parts = {}
    for case in TABLE:
        for graph, _ in with_derivatives(case):
            for node in graph.nodes:
                if node.op.name in DECOMPOSING and not node.op.is_composite:
                    copy = Copier(type(graph)(graph.inputs, (), (), graph.constants))
                    operands = [copy.builder.input(v.type) for v in node.inputs]
                    decomposed(node.op, node.attrs, operands)
                    parts.setdefault(node.op.name, set()).update(made.op.name for made in copy.builder.nodes)
    heights = dict.fromkeys(CORE, 0)
    while ready := [name for name, made in parts.items() if name not in heights and made <= heights.keys()]:
        heights |= {name: 1 + max((heights[part] for part in parts[name]), default=0) for name in ready}
    assert heights.keys() == {name for name, op in operators().items() if not op.is_composite}


# --- laws -------------------------------------------------------------------------------------------------------------


@table
def test_values_are_those_of_the_operator(case):
    """Exactly, of the operator and of the operators that its derivatives are made of."""
    for graph, arrays in with_derivatives(case):
        made = check(decompose(graph))
        assert {node.op.name for node in made.nodes} <= {*CORE}
        assert_same(evaluated(graph, arrays, case.domain), evaluated(made, arrays, case.domain))


@table
def test_derivatives_are_those_of_the_operator(case):
    (graph, _), (jvp, moving), (vjp, pulled) = with_derivatives(case)
    made = decompose(graph)
    assert_same(evaluated(jvp, moving, case.domain), evaluated(made.jvp(), moving, case.domain))
    assert_same(evaluated(vjp, pulled, case.domain), evaluated(made.vjp(), pulled, case.domain))


@lru_cache(maxsize=1)
def graphs_to_bound(case):
    """The same for every radius, as bounds are compiled once for each graph."""
    return [(graph, decompose(graph), arrays) for graph, arrays in with_derivatives(case)[:2]]


@pytest.mark.parametrize("radius", [0.0, 0.25])
@table
def test_bounds_contain_what_the_operator_may_be(case, radius):
    """Over a box, or a point: its ends and points inside, for the operator and for its JVP."""
    for graph, made, arrays in graphs_to_bound(case):
        floats = [i for i, v in enumerate(graph.inputs) if v.type.is_float]
        if floats != list(range(len(floats))):
            return  # boxes are for the first inputs
        boxes, others = arrays[: len(floats)], arrays[len(floats) :]
        lower, upper = (tuple(a + end for a in boxes) for end in (-radius, radius))
        try:
            gs.bounds(graph, lower, upper, *others, method="boxes")
        except gs.UnsupportedError:
            return  # what the operator has no bounds for
        found = gs.bounds(made, lower, upper, *others, method="boxes")
        random = np.random.default_rng(len(case.id))
        inside = tuple(a + radius * random.integers(-2, 3, a.shape) / 2 for a in boxes)
        for point in (lower, upper, boxes, inside):
            try:
                exact = several(gs.evaluate(graph, *point, *others, domain=case.domain))
            except ValueError as error:
                if "became NaN" in str(error):  # of a negative variance, say
                    continue
                raise
            for low, high, tensor in zip(several(found.lower), several(found.upper), exact, strict=True):
                cells = np.array([float(c) for c in tensor.cells]).reshape(low.shape)
                rounding = 1e-15 * np.abs(cells)
                assert (low - rounding <= cells).all()
                assert (cells <= high + rounding).all()


# --- floats -----------------------------------------------------------------------------------------------------------

SPECIAL = np.array([nan, inf, -inf, 0.0, -0.0, 1.0, 1.0, -2.0, -inf, 3.0, 5e-324, 1e100])
SPECIALS = {
    "relu": gs.relu,
    "leaky_relu": gs.leaky_relu,
    "abs": gs.abs,
    "clamp": lambda x: gs.clamp(x, -1.0, 2.0),
    "minimum": lambda x: gs.minimum(x, x[::-1]),
    "floor": gs.floor,
    "step": lambda x: step(x, -1.0, 0.0, 1.0),
    "within": lambda x: apply(WITHIN, ClampRange(-1.0, 2.0), x),
    "max_share": lambda x: apply(MAX_SHARE, NONE, x, x[::-1]),
    "gate": lambda x: gate(step(x, 0.0, 0.0, 1.0), x),
    "sigmoid": gs.sigmoid,
    "softplus": gs.softplus,
    "softmax": gs.softmax,
    "log_softmax": gs.log_softmax,
    "max_pool": lambda x: gs.max_pool(x, (2, 2), 1, 1, return_indices=True),
    "max_pool of padding": lambda x: gs.max_pool(x, (2, 2), 2, 2, return_indices=True),
    "max_pool all": lambda x: gs.max_pool(x, (2, 2), 1, ties="all"),
    "avg_pool": lambda x: gs.avg_pool(x, (2, 2), 1, 1),
    "smooth_max_pool": lambda x: gs.smooth_max_pool(x, (2, 2), 1, 1, beta=1.0),
    "smooth minimum": lambda x: gs.smooth_max_pool(x, (2, 2), 2, 1, beta=-2.0, padding_mode="ignore"),
    "lp_pool": lambda x: gs.lp_pool(x, 2, (2, 2)),
    "lp_pool inf": lambda x: gs.lp_pool(x, inf, (2, 2)),
    "unfold": lambda x: gs.unfold(x[None], (2, 2), padding=1),
}


@pytest.mark.parametrize("name", SPECIALS)
def test_special_values_come_out_as_those_of_the_operator(name):
    x = np.random.default_rng(1).choice(SPECIAL, (6, 6))
    graph = gs.trace(SPECIALS[name], gs.f64[x.shape])
    for expected, got in zip(several(graph(x)), several(decompose(graph)(x)), strict=True):
        kinds = [np.where(np.isfinite(y), 0, y) for y in (expected, got)]
        np.testing.assert_array_equal(*kinds)


@pytest.mark.parametrize("mode", ["jvp", "vjp"])
def test_the_winner_is_the_same_of_special_values(mode):
    x = np.random.default_rng(2).choice(SPECIAL, (6, 6))
    graph = getattr(gs.trace(lambda x: gs.max_pool(x, (3, 2), (2, 1), 1), gs.f64[x.shape]), mode)()
    moved = np.arange(graph.inputs[1].type.size, dtype=np.float64).reshape(graph.inputs[1].shape)
    for expected, got in zip(graph(x, moved), decompose(graph)(x, moved), strict=True):
        np.testing.assert_array_equal(expected, got)


@pytest.mark.parametrize("dtype", [gs.f16, gs.bf16], ids=str)
def test_small_formats_are_rounded_once(dtype):
    """Neither the sum of 70,000 ones nor their count is a number of float16."""
    mean = decompose(gs.trace(lambda x: gs.global_avg_pool(x, 1), dtype[70_000]))
    assert mean(np.ones(70_000, dtype.numpy)).astype(float).tolist() == [1.0]


@pytest.mark.parametrize("name", ["max_pool", "avg_pool"])
def test_windows_that_are_padding_almost_everywhere(name):
    for graph in ((g := gs.trace(lambda x: getattr(gs, name)(x, (2**40,), 1, 2**39), gs.f64[7])), g.vjp()):
        arrays = [np.arange(v.type.size, dtype=np.float64) for v in graph.inputs]
        for expected, got in zip(several(graph(*arrays)), several(decompose(graph)(*arrays)), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-15)


def test_what_is_kept_is_not_decomposed():
    graph = gs.trace(lambda x: gs.max_pool2d(gs.gelu(x), 2), gs.f32[4, 4])
    assert [n.op.name for n in decompose(graph, keep={"gelu", "max_pool"}).nodes] == ["gelu", "max_pool"]
    assert "normal_cdf" in {n.op.name for n in decompose(graph, keep={"normal_cdf"}).nodes}
    assert decompose(graph, keep=operators().keys()) is graph
