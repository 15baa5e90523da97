"""Every operator of the graph, under every law."""

import importlib
import pkgutil
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random

import numpy as np
import pytest

import gradspec as gs
from gradspec.domains import Ball, Dual
from gradspec.graph.graph import check
from gradspec.transforms.copy import with_floats
from graph.op_cases import GraphCase, dyadics

ROWS = Path(__file__).parent / "rows"
CASES = [
    row
    for module in sorted(m.name for m in pkgutil.iter_modules([str(ROWS)]))
    for row in importlib.import_module(f"graph.rows.{module}").ROWS
]


def several(results):
    return results if isinstance(results, tuple) else (results,)


def evaluated(graph, args, domain):
    return [t.cells for t in several(gs.evaluate(graph, *args, domain=domain))]


def same(a, b) -> bool:
    """Equal; of balls: they share a number and are too narrow for that to be luck."""
    if isinstance(a, Ball) or isinstance(b, Ball):
        difference = a - b
        return difference.contains(0) and difference.rad() < 1e-40
    return bool(a == b)


def assert_same(left, right):
    for a, b in zip(left, right, strict=True):
        assert len(a) == len(b)
        assert all(map(same, a, b)), next((p, q) for p, q in zip(a, b, strict=True) if not same(p, q))


def dot(left, right, zero):
    total = zero
    for a, b in zip(left, right, strict=True):
        for p, q in zip(a, b, strict=True):
            total = total + p * q
    return total


def float_outputs(graph):
    return [v for v in graph.outputs if v.type.is_float]


def tangents_for(graph, seed):
    random = Random(f"tangents {seed}")
    return [dyadics(v.shape, random, "distinct") for v in graph]


@pytest.fixture(params=CASES, ids=lambda case: case.id)
def case(request) -> GraphCase:
    return request.param


def test_numpy_agrees_with_the_specification(case):
    """Float64 against exact results: the error is far below anything but rounding."""
    graph, arrays = check(case.graph()), case.arrays()
    for got, exact in zip(
        several(graph(*arrays)), several(gs.evaluate(graph, *arrays, domain=case.domain)), strict=True
    ):
        right = np.array([float(v) for v in exact.cells]).reshape(exact.shape)
        assert got.shape == right.shape
        assert np.all(np.abs(got - right) <= 1e-11 * (1 + np.abs(right).max(initial=0)))


def test_eager_is_traced(case):
    graph, arrays = case.graph(), case.arrays()
    for eager, traced in zip(several(case.function(*arrays)), several(graph(*arrays)), strict=True):
        assert eager.dtype == traced.dtype
        assert np.array_equal(eager, traced, equal_nan=True)


@pytest.mark.parametrize("dtype", [gs.f16, gs.bf16, gs.f32], ids=str)
def test_every_float_type_runs(case, dtype):
    graph = case.graph(dtype)
    arrays = [a.astype(v.dtype.numpy) for a, v in zip(case.arrays(), graph.inputs, strict=True)]
    for result, var in zip(several(graph(*arrays)), graph.outputs, strict=True):
        assert result.dtype == var.dtype.numpy
        assert result.shape == var.shape


def test_jvp_is_the_dual_part(case):
    graph, arrays = case.graph(), case.arrays()
    inputs = [graph.inputs[i] for i in case.floats]
    tangents = tangents_for(inputs, case.id)
    lifted = list(arrays)
    for i, t in zip(case.floats, tangents, strict=True):
        lifted[i] = gs.dual(case.domain).tensor(arrays[i], t)
    duals = [
        cells
        for cells, v in zip(evaluated(graph, lifted, gs.dual(case.domain)), graph.outputs, strict=True)
        if v.type.is_float
    ]
    expected = [[c.tangent if isinstance(c, Dual) else case.domain.scalar(0) for c in cells] for cells in duals]
    pushed = evaluated(check(graph.jvp()), [*arrays, *tangents], case.domain)
    assert_same(pushed[len(graph.outputs) :], expected)


def test_vjp_is_adjoint_to_jvp(case):
    graph, arrays = case.graph(), case.arrays()
    tangents = tangents_for([graph.inputs[i] for i in case.floats], case.id)
    cotangents = tangents_for(float_outputs(graph), f"{case.id} cotangents")
    count, zero = len(graph.outputs), case.domain.scalar(0)
    pushed = evaluated(graph.jvp(), [*arrays, *tangents], case.domain)
    pulled = evaluated(check(graph.vjp()), [*arrays, *cotangents], case.domain)
    assert_same(pushed[:count], pulled[:count])
    domain = lambda arrays: [case.domain.tensor(a).cells for a in arrays]  # noqa: E731
    forward = dot(domain(cotangents), pushed[count:], zero)
    reverse = dot(pulled[count:], domain(tangents), zero)
    assert same(forward, reverse)


def test_second_derivatives_agree(case):
    """Forward over reverse and reverse over forward give one Hessian-vector product."""
    graph, arrays = case.graph(), case.arrays()
    inputs = [graph.inputs[i] for i in case.floats]
    u = tangents_for(inputs, f"{case.id} u")
    g = tangents_for(float_outputs(graph), f"{case.id} g")
    names = [v.name for v in inputs]
    forward_over_reverse = check(graph.vjp().jvp(names))
    reverse_over_forward = check(graph.jvp().vjp(names))
    outputs, floats = len(graph.outputs), len(g)
    a = evaluated(forward_over_reverse, [*arrays, *g, *u], case.domain)[-len(inputs) :]
    seeds = [np.zeros_like(t) for t in g] + g
    b = evaluated(reverse_over_forward, [*arrays, *u, *seeds], case.domain)[outputs + floats :]
    assert_same(a, b)


def test_second_derivatives_are_those_of_nested_duals(case):
    """``D²f[u, v]`` as the JVP of the JVP, and as the coefficient of ε₁ε₂."""
    graph, arrays, domain = case.graph(), case.arrays(), case.domain
    inputs = [graph.inputs[i] for i in case.floats]
    u, v = (tangents_for(inputs, f"{case.id} {name}") for name in "uv")
    twice = evaluated(check(graph.jvp().jvp([x.name for x in inputs])), [*arrays, *u, *v], domain)
    lifted = list(arrays)
    for i, p, q in zip(case.floats, u, v, strict=True):
        inner = gs.dual(domain).tensor(arrays[i], p)
        lifted[i] = gs.spec.Tensor(inner.shape, map(Dual, inner.cells, gs.dual(domain).tensor(q).cells))
    values = evaluated(graph, lifted, gs.dual(gs.dual(domain)))
    nested = [cells for cells, o in zip(values, graph.outputs, strict=True) if o.type.is_float]
    zero = domain.scalar(0)
    expected = [[c.tangent.tangent if isinstance(c, Dual) else zero for c in cells] for cells in nested]
    assert_same(twice[-len(nested) :], expected)


def test_batch_is_a_loop(case):
    graph = case.graph()
    samples = [case.arrays(f"sample {i}") for i in range(2)]
    for axes in product((0, None), repeat=len(case.inputs)):
        if all(axis is None for axis in axes):
            continue
        batched = check(graph.batch(2, list(axes)))
        args = [np.stack([s[i] for s in samples]) if axis == 0 else samples[0][i] for i, axis in enumerate(axes)]
        loop = [
            evaluated(graph, [s[i] if axis == 0 else samples[0][i] for i, axis in enumerate(axes)], case.domain)
            for s in samples
        ]
        together = evaluated(batched, args, case.domain)
        assert_same(together, [[c for one in column for c in one] for column in zip(*loop, strict=True)])


@pytest.mark.parametrize("case", [c for c in CASES if not c.id.startswith("convert")], ids=lambda case: case.id)
def test_another_float_type_is_as_if_traced_so(case):
    """The derivatives too: variables, operators and types are those of a graph that was traced in the other type."""
    for changed, traced in zip(*((g := case.graph(dtype), g.vjp()) for dtype in (gs.f32, gs.f64)), strict=True):
        converted = check(with_floats(changed, gs.f64))
        assert [repr(v) for v in converted.inputs] == [repr(v) for v in traced.inputs]
        assert [(n.op, n.inputs, n.outputs) for n in _named(converted)] == [
            (n.op, n.inputs, n.outputs) for n in _named(traced)
        ]


def _named(graph):
    return [replace(n, inputs=repr(n.inputs), outputs=repr(n.outputs)) for n in graph.nodes]
