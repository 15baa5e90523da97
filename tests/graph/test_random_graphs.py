"""Random programs: branching, sharing, repeated variables, several outputs, under every law, exactly in rationals."""

from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradspec as gs
from gradspec.graph.graph import check
from gradspec.transforms.simplify import rewrite
from graph.op_cases import dyadics
from graph.test_simplify import drop_zeros, fold_constants, merge_equal_nodes

SHAPE = (1, 3, 3)
KERNEL = np.array([[[[0.5, -1.0, 0.0], [2.0, 1.0, -0.5], [0.0, 1.5, -2.0]]]])
RAMP = np.arange(9.0).reshape(SHAPE) / 4

UNARY = [
    lambda x: -x,
    lambda x: x * 0.5 + 1.0,
    gs.relu,
    gs.abs,
    gs.detach,
    lambda x: gs.leaky_relu(x, 0.25),
    lambda x: gs.clamp(x, -1.0, 1.5),
    lambda x: gs.max_pool2d(x, 3, stride=1, padding=1),
    lambda x: gs.max_pool2d(x, 2, stride=1, padding=((1, 0), (0, 1)), ties="split"),
    lambda x: gs.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False),
    lambda x: gs.conv2d(x, KERNEL, padding=1),
    lambda x: gs.conv_transpose2d(x, KERNEL, padding=1),
    lambda x: gs.transpose(x, (0, 2, 1)),
    lambda x: gs.reshape(gs.flatten(x), SHAPE),
    lambda x: gs.broadcast_to(gs.sum(x, axis=2, keepdims=True), SHAPE),
    lambda x: gs.pad(x[:, 1:, :], ((0, 0), (0, 1), (0, 0))),
    lambda x: gs.broadcast_to(gs.mean(x, axis=(1, 2), keepdims=True), SHAPE),
    lambda x: gs.conv2d(x, np.zeros((1, 1, 1, 1))),
]
BINARY = [
    lambda x, y: x + y,
    lambda x, y: x - y,
    lambda x, y: x * y,
    gs.maximum,
    gs.minimum,
    lambda x, y: gs.concat([x, y], 1)[:, 1:4, :],
    lambda x, y: gs.conv2d(x, gs.reshape(y, (1, 1, 3, 3)), padding=1),
    lambda x, y: x @ y,
    lambda x, y: x + RAMP * y,
]

steps = st.lists(
    st.tuples(st.integers(0, len(UNARY) + len(BINARY) - 1), st.integers(0, 9), st.integers(0, 9)),
    min_size=1,
    max_size=6,
)
programs = st.tuples(steps, st.integers(1, 2), st.integers(1, 3))


def built(program):
    """The graph of a program: each step applies an operator to earlier values, chosen anywhere among them."""
    chosen, inputs, outputs = program

    def function(*xs):
        values = list(xs)
        for operator, i, j in chosen:
            a, b = values[i % len(values)], values[j % len(values)]
            values.append(UNARY[operator](a) if operator < len(UNARY) else BINARY[operator - len(UNARY)](a, b))
        return tuple(values[-outputs:])

    return gs.trace(function, *[gs.f64[SHAPE]] * inputs, allow_unused=True)


def data(count, seed):
    random = Random(seed)
    return [dyadics(SHAPE, random, "tied") for _ in range(count)]


def exactly(graph, arguments):
    results = gs.evaluate(graph, *arguments, domain=gs.exact)
    return [t.cells for t in (results if isinstance(results, tuple) else (results,))]


def dot(left, right):
    return sum((p * q for a, b in zip(left, right, strict=True) for p, q in zip(a, b, strict=True)), gs.exact.scalar(0))


def rational(arrays):
    return [gs.exact.tensor(a).cells for a in arrays]


@settings(max_examples=60, deadline=None)
@given(programs)
def test_derivatives_are_adjoint_at_ties_too(program):
    graph = check(built(program))
    n, m = len(graph.inputs), len(graph.outputs)
    x, dx, g = data(n, "x"), data(n, "dx"), data(m, "g")
    forward, reverse = check(graph.jvp()), check(graph.vjp())
    pushed, pulled = exactly(forward, x + dx), exactly(reverse, x + g)
    assert pushed[:m] == pulled[:m] == exactly(graph, x)
    assert dot(rational(g), pushed[m:]) == dot(pulled[m:], rational(dx))


@settings(max_examples=30, deadline=None)
@given(programs)
def test_forward_over_reverse_is_reverse_over_forward(program):
    graph = built(program)
    n, m = len(graph.inputs), len(graph.outputs)
    names = [v.name for v in graph.inputs]
    x, u, g = data(n, "x"), data(n, "u"), data(m, "g")
    a = exactly(check(graph.vjp().jvp(names)), [*x, *g, *u])[-n:]
    b = exactly(check(graph.jvp().vjp(names)), [*x, *u, *[np.zeros(SHAPE)] * m, *g])[2 * m :]
    assert a == b


@pytest.mark.parametrize("modes", list(product(("jvp", "vjp"), repeat=3)), ids="-".join)
def test_every_composition_exists(modes):
    """With a variable returned twice and every input differentiated, names would clash were they not made new."""
    graph = gs.trace(lambda x, y: (x, x, x * y), gs.f64[2], gs.f64[2])
    for mode in modes:
        n, m = len(graph.inputs), len(graph.outputs)
        graph = check(getattr(graph, mode)())
        assert (len(graph.inputs), len(graph.outputs)) == ((2 * n, 2 * m) if mode == "jvp" else (n + m, m + n))


@settings(max_examples=15, deadline=None)
@given(programs)
def test_third_derivatives_are_symmetric(program):
    """D³f[u, v, w] does not depend on the order of its directions."""
    graph = built((program[0][:4], 1, 1))
    x, u, v, w = (data(1, name)[0] for name in "xuvw")
    third = check(graph.jvp().jvp([0]).jvp([0]))
    a, b = (exactly(third, [x, p, q, r])[-1] for p, q, r in ((u, v, w), (w, u, v)))
    assert a == b


@settings(max_examples=40, deadline=None)
@given(programs, st.sampled_from([rewrite, fold_constants, drop_zeros, merge_equal_nodes, None]))
def test_simplification_keeps_the_meaning(program, transformation):
    graph = built(program)
    derived = graph.vjp()
    smaller = check(derived.simplify() if transformation is None else transformation(derived))
    arguments = data(len(derived.inputs), "x")
    assert len(smaller.nodes) <= len(derived.nodes)
    assert exactly(smaller, arguments) == exactly(derived, arguments)


@settings(max_examples=25, deadline=None)
@given(programs)
def test_batching_is_a_loop(program):
    graph = built(program)
    n = len(graph.inputs)
    samples = [data(n, f"sample {i}") for i in range(2)]
    together = exactly(check(graph.batch(2)), [np.stack([s[i] for s in samples]) for i in range(n)])
    one_by_one = [exactly(graph, s) for s in samples]
    assert together == [[c for one in column for c in one] for column in zip(*one_by_one, strict=True)]


@settings(max_examples=20, deadline=None)
@given(programs)
def test_numpy_runs_what_the_specification_means(program):
    """Dyadic data and short programs: float64 is exact wherever nothing is divided, and close where it is."""
    graph = built(program)
    x = data(len(graph.inputs), "x")
    results = graph(*x)
    for got, exact in zip(results if isinstance(results, tuple) else (results,), exactly(graph, x), strict=True):
        right = np.array([float(v) for v in exact]).reshape(got.shape)
        assert np.abs(got - right).max() <= 1e-12 * (1 + np.abs(right).max())


def test_the_programs_reach_every_operator():
    """The strategy's table is not idle: each entry builds, runs and differentiates."""
    for i in range(len(UNARY) + len(BINARY)):
        check(built(([(i, 0, 1)], 2, 1)).vjp())
    with pytest.raises(gs.ShapeError):
        gs.conv2d(np.ones(SHAPE), np.ones((1, 2, 1, 1)))
