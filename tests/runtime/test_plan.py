"""Plans: which nodes share a task, what is kept for later, where buffers lie, and how it reads."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradspec as gs
from gradspec.graph.types import u8
from gradspec.runtime.memory import nbytes
from graph.test_random_graphs import SHAPE, built, programs
from runtime.toys import Toy, negated, planned, program

X = gs.f32[2, 4, 4]
MAX = ("max_pool", "max_pool_push", "max_pool_pull")
POINTWISE = ("add", "sub", "mul", "neg", "relu", "abs", "scale")


def pooled(x):
    return gs.max_pool2d(x, 2)


def groups(graph, lowerings):
    """The operators of each step, those that NumPy carries out in parentheses."""
    found, _ = planned(graph, lowerings)
    names = ["+".join(node.op.name for node in step.nodes) for step in found.steps]
    return [name if step.task else f"({name})" for name, step in zip(names, found.steps, strict=True)]


def lowered(*names, **settings):
    return dict.fromkeys(names, Toy(**settings))


def late_pull(x):
    """A pull whose cotangent is not there yet when its pooling runs."""
    return gs.max_pool2d(x, 2) * 2.0


@pytest.mark.parametrize(
    ("graph", "lowerings", "expected"),
    [
        (gs.trace(pooled, X), {}, ["(max_pool)"]),
        (gs.trace(pooled, X).jvp(), lowered(*MAX), ["max_pool_push", "max_pool"]),
        (gs.trace(pooled, X).jvp(), lowered(*MAX, keyed=True), ["max_pool_push+max_pool"]),
        (gs.trace(pooled, X).vjp(), lowered(*MAX, keyed=True), ["max_pool+max_pool_pull"]),
        (gs.trace(pooled, X).jvp(), lowered("max_pool", keyed=True), ["(max_pool_push)", "max_pool"]),
        (gs.trace(late_pull, X).vjp(), lowered(*MAX, keyed=True), ["max_pool", "(mul)", "(mul)", "max_pool_pull"]),
        (gs.trace(lambda x: gs.relu(-x) + x, X), lowered(*POINTWISE, pointwise=True), ["neg+relu+add"]),
        (
            gs.trace(lambda x: gs.relu(-x) + x, X),
            lowered(*POINTWISE, pointwise=True, longest=1),
            ["neg", "relu", "add"],
        ),
        (gs.trace(lambda x: gs.relu(-x) + x, X), lowered("neg", "add", pointwise=True), ["neg", "(relu)", "add"]),
        (
            gs.trace(lambda x, b: -((-x) * gs.reshape(b, (2, 1, 1))), X, gs.f32[2]),
            lowered(*POINTWISE, pointwise=True),
            ["(reshape)", "(broadcast_to)", "neg+mul+neg"],
        ),
        (gs.trace(lambda x: -gs.sum(-x), X), lowered("neg", "sum", pointwise=True), ["neg", "sum+neg"]),
        (gs.trace(lambda x: (-x, -gs.sum(x)), X), lowered(*POINTWISE, pointwise=True), ["neg", "(sum)", "neg"]),
        (
            gs.trace(lambda x: -gs.max_pool2d(-x, 1), X),
            lowered(*POINTWISE, pointwise=True) | lowered(*MAX),
            ["neg", "max_pool", "neg"],
        ),
    ],
)
def test_nodes_that_share_a_step(graph, lowerings, expected):
    assert groups(graph.simplify(), lowerings) == expected


@pytest.mark.parametrize("kept", [None, u8[2, 2, 2]])
def test_later_nodes_read_what_the_first_kept(kept):
    toy = Toy(keyed=True, tape=kept)
    graph = gs.trace(late_pull, X).vjp().simplify()
    x, g = np.random.default_rng(0).normal(size=(2, *X.shape)).astype(np.float32)
    run = program(graph, dict.fromkeys(MAX, toy))
    for got, right in zip(
        run.call((x, g[:, :2, :2])), gs.compile(graph, backend="numpy")(x, g[:, :2, :2]), strict=True
    ):
        np.testing.assert_array_equal(got, right)
    tapes = [(None if work.tape is None else work.tape.type, work.reads_tape) for work in toy.works]
    assert tapes == ([(kept, False), (kept, True)] if kept else [(None, False), (None, False)])


def test_without_a_kernel_that_reads_the_tape_none_is_kept():
    class Forgetful(Toy):
        def task(self, work):
            return None if work.reads_tape else super().task(work)

    graph = gs.trace(late_pull, X).vjp().simplify()
    found, _ = planned(graph, dict.fromkeys(MAX, Forgetful(keyed=True, tape=u8[8])))
    assert [step.task is not None for step in found.steps] == [True, False, False, True]
    assert not any("tape" in v.name for step in found.steps for v in (*step.inputs, *step.outputs))


def test_the_outputs_of_a_chain_are_what_others_read():
    toy = Toy(pointwise=True)
    planned(gs.trace(lambda x: (gs.sum(-x), gs.relu(gs.abs(-x))), X).simplify(), dict.fromkeys(POINTWISE, toy))
    assert [v.name for v in toy.works[-1].outputs] == ["neg", "relu"]


# --- any graph, any lowerings -----------------------------------------------------------------------------------------

LOWERED = (*MAX, *POINTWISE, "avg_pool", "conv", "matmul", "reshape", "transpose", "concat", "slice", "sum", "pad")
choices = st.fixed_dictionaries(
    {
        "plain": st.sets(st.sampled_from(LOWERED)),
        "chained": st.sets(st.sampled_from(POINTWISE)),
        "keyed": st.booleans(),
        "longest": st.sampled_from([1, 2, 10**9]),
    }
)


def chosen(choice):
    chain, keyed = Toy(pointwise=True, longest=choice["longest"]), Toy(keyed=choice["keyed"], tape=u8[64])
    names = dict.fromkeys(choice["plain"] - set(MAX), Toy())
    return names | dict.fromkeys(choice["chained"], chain) | dict.fromkeys(choice["plain"] & set(MAX), keyed)


def live_until(plan, var, at):
    """The last step that needs a buffer: whatever may be a view of it is followed."""
    aliases, last = {var}, at
    for i, step in enumerate(plan.steps[at + 1 :], at + 1):
        if aliases.intersection(step.inputs):
            last = i
            aliases.update(step.outputs if step.may_alias else ())
    return len(plan.steps) if aliases.intersection(plan.outputs) else last


@settings(max_examples=80, deadline=None)
@given(programs, choices, st.booleans())
def test_any_graph_with_any_lowerings_means_the_same(steps, choice, derived):
    graph = built(steps)
    graph = (graph.vjp() if derived else graph).simplify()
    arrays = [np.random.default_rng(i).integers(-4, 5, v.shape) / 4 for i, v in enumerate(graph.inputs)]
    run = program(graph, chosen(choice))
    for _ in range(2):  # the second time in a frame that is no longer clean
        results = run.call(arrays)
        for got, right in zip(_all(results), _all(reference(graph, arrays)), strict=True):
            np.testing.assert_array_equal(got, right)
            assert not any(np.shares_memory(got, a) for a in arrays)
    for a, b in combinations(_all(results), 2):
        assert not np.shares_memory(a, b)
    require_disjoint(run.plan)


def reference(graph, arrays):
    return gs.compile(graph, backend="numpy")(*arrays)


def _all(results):
    return results if isinstance(results, tuple) else (results,)


def require_disjoint(plan):
    spans = [
        (plan.arena[v], plan.arena[v] + nbytes(v.type), i, live_until(plan, v, i))
        for i, step in enumerate(plan.steps)
        for v in step.outputs
        if v in plan.arena
    ]
    for (a, b, first, last), (c, d, second, end) in combinations(spans, 2):
        assert b <= c or d <= a or last < second or end < first
    assert all(start % 64 == 0 for start, *_ in spans)
    assert plan.arena_bytes <= plan.bytes_without_reuse
    assert not set(plan.arena).intersection(plan.outputs)
    busiest = max(
        (sum(b - a for a, b, first, last in spans if first <= i <= last) for i in range(len(plan.steps))), default=0
    )
    assert plan.arena_bytes >= busiest


def test_a_chain_of_equal_buffers_takes_the_room_of_two():
    graph = gs.trace(lambda x: gs.sum(negated(x, 5)), gs.f64[SHAPE])
    found, _ = planned(graph, lowered("neg", "sum"))
    assert len(found.arena) == 5
    assert (found.arena_bytes, found.bytes_without_reuse) == (2 * 128, 5 * 128)


# --- what it says -----------------------------------------------------------------------------------------------------


def test_a_plan_reads_line_by_line():
    graph = gs.trace(lambda x, w: gs.sum(gs.relu(-x) * w + 1.0), gs.f32[8, 8], gs.f32[8])
    found, _ = planned(graph, lowered(*POINTWISE, pointwise=True, workspace=192))
    lines = str(found).splitlines()
    assert lines[0].split() == ["step", "operators", "kernel", "reads", "->", "writes", "bytes", "buffer"]
    text = [" ".join(line.split()) for line in lines]
    assert text[1:] == [
        "once broadcast_to numpy: constants c:f32[()] -> constant",
        "broadcast_to_1:f32[8,8]",
        "1 broadcast_to numpy: no compiled kernel w:f32[8] -> 288 view or fresh",
        "broadcast_to:f32[8,8]",
        "2 neg, relu, mul, toy x:f32[8,8], 1,024 0..256",
        "add broadcast_to:f32[8,8],",
        "broadcast_to_1:f32[8,8] ->",
        "add:f32[8,8]",
        "3 sum numpy: no compiled kernel add:f32[8,8] -> sum:f32[()] 260 fresh",
        "arena 256 bytes (256 without reuse), workspace 192 bytes per thread",
    ]


def test_a_long_plan_fits_a_terminal():
    shape = (123456, 7, 11, 13, 1)
    graph = gs.trace(lambda first, second: (gs.relu(-first) * second, gs.abs(second)), gs.f32[shape], gs.f32[shape])
    found, _ = planned(graph, lowered(*POINTWISE, pointwise=True))
    assert max(map(len, str(found).splitlines())) <= 112
    assert "output" in str(found)


def test_plans_show_no_operator_of_another_backend():
    graph = gs.trace(lambda x: gs.relu(-x), gs.f32[4])
    assert "numpy" in str(gs.compile(graph, backend="numpy").plan)
    assert "no compiled kernel" not in str(gs.compile(graph, backend="numpy").plan)
