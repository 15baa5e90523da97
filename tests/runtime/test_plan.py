"""Plans: which nodes share a task, what is kept for later, where buffers lie, and how it reads."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradspec as gs
from gradspec.graph.types import u8
from gradspec.runtime.compiled import Executable, Program
from gradspec.runtime.memory import nbytes
from gradspec.runtime.plan import make_plan
from graph.test_random_graphs import SHAPE, built, programs
from runtime.toys import Toy, Viewing, negated, planned, program, toy_backend

X = gs.f32[2, 4, 4]
MAX = ("max_pool", "max_pool_gather", "max_pool_scatter")
POINTWISE = ("add", "sub", "mul", "neg", "relu", "abs", "scale")
VIEWS = ("reshape", "transpose", "broadcast_to", "slice")


def pooled(x):
    return gs.max_pool2d(x, 2)


def groups(graph, lowerings):
    """The operators of each step; those that NumPy carries out in parentheses, views in angles, others in brackets."""
    return [described(step) for step in planned(graph, lowerings)[0].steps]


def described(step):
    names = "+".join(node.op.name for node in step.nodes)
    if step.view:
        return f"<{names}>"
    return f"({names})" if not step.task else names or f"[{step.task.kernel}]"


def lowered(*names, **settings):
    return dict.fromkeys(names, Toy(**settings))


def views():
    return dict.fromkeys(VIEWS, Viewing())


def late_pull(x):
    """A pull whose cotangent is not there yet when its pooling runs."""
    return gs.max_pool2d(x, 2) * 2.0


@pytest.mark.parametrize(
    ("graph", "lowerings", "expected"),
    [
        (gs.trace(pooled, X), {}, ["(max_pool)"]),
        (gs.trace(pooled, X).jvp(), lowered(*MAX), ["max_pool_gather", "max_pool"]),
        (gs.trace(pooled, X).jvp(), lowered(*MAX, keyed=True), ["max_pool_gather+max_pool"]),
        (gs.trace(pooled, X).vjp(), lowered(*MAX, keyed=True), ["max_pool+max_pool_scatter"]),
        (gs.trace(pooled, X).jvp(), lowered("max_pool", keyed=True), ["(max_pool_gather)", "max_pool"]),
        (gs.trace(late_pull, X).vjp(), lowered(*MAX, keyed=True), ["max_pool", "(mul)", "(mul)", "max_pool_scatter"]),
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


def conv_jvp(x, dx, w, dw):
    return gs.relu(gs.conv2d(x, w)), gs.relu(gs.conv2d(dx, w) + gs.conv2d(x, dw))


W = gs.f32[2, 2, 3, 3]


class Convolution(Toy):
    """Convolutions of one shape in one step, at most ``together`` of them, with at most ``epilogue`` further nodes.

    A pooling may come at the end.
    """

    def __init__(self, *, together=9, epilogue=9):
        super().__init__(pointwise=True)
        self.together, self.epilogue = together, epilogue

    def ends(self, nodes, node):
        return node.op.name == "max_pool"

    def key(self, node):
        return repr(node.attrs)

    def task(self, work):
        convolutions = sum(node.op.name == "conv" for node in work.nodes)
        if convolutions > self.together or len(work.nodes) - convolutions > self.epilogue:
            return None
        return super().task(work)


@pytest.mark.parametrize(
    ("function", "types", "convolution", "expected"),
    [
        (conv_jvp, (X, X, W, W), Convolution(), ["conv+relu+conv+conv+add+relu"]),
        (conv_jvp, (X, X, W, W), Convolution(epilogue=0), ["conv+conv+conv", "relu", "add+relu"]),
        (conv_jvp, (X, X, W, W), Convolution(epilogue=1), ["conv+conv+conv+relu", "add+relu"]),
        (conv_jvp, (X, X, W, W), Convolution(together=1), ["conv+relu", "conv", "conv+add+relu"]),
        (conv_jvp, (X, X, W, W), Convolution(together=1, epilogue=1), ["conv+relu", "conv", "conv+add", "relu"]),
        (conv_jvp, (X, X, W, W), Convolution(together=0), ["(conv)", "relu", "(conv)", "(conv)", "add+relu"]),
        (
            lambda x, w, b: gs.relu(gs.conv2d(x, w) + gs.reshape(b, (2, 1, 1))),
            (X, W, gs.f32[2]),
            Convolution(),
            ["<reshape>", "<broadcast_to>", "conv+add+relu"],
        ),
        (
            lambda x, w, s: gs.reshape(-s, (2, 2, 2)) * gs.relu(gs.conv2d(x, w)),  # a view of an earlier step
            (X, W, gs.f32[8]),
            Convolution(),
            ["neg", "<reshape>", "conv+relu+mul"],
        ),
        (
            lambda x, w: (y := gs.conv2d(x, w)) + gs.transpose(y, (0, 2, 1)),  # a view of the step itself
            (X, W),
            Convolution(),
            ["conv", "<transpose>", "add"],
        ),
        (
            lambda x, w: (y := gs.relu(gs.conv2d(x, w)), gs.reshape(y, (8,)), y * y),
            (X, W),
            Convolution(),
            ["conv+relu+mul", "<reshape>"],
        ),
        (lambda x, w: gs.conv2d(gs.conv2d(x, w), w, padding=1), (X, W), Convolution(), ["conv", "conv"]),
        (lambda x, w: -pooled(gs.relu(gs.conv2d(x, w))), (X, W), Convolution(), ["conv+relu+max_pool", "neg"]),
        (lambda x, w: pooled(gs.relu(gs.conv2d(x, w))), (X, W), Convolution(epilogue=1), ["conv+relu", "max_pool"]),
        (lambda x, w: (y := gs.conv2d(x, w), pooled(y)), (X, W), Convolution(), ["conv", "max_pool"]),
        (
            lambda x, w: (pooled(y := gs.conv2d(x, w)), gs.reshape(y, (8,))),
            (X, W),
            Convolution(),
            ["conv", "max_pool", "<reshape>"],
        ),
        (
            lambda x, v, w: gs.concat(
                [pooled(gs.conv2d(x, v)), gs.conv2d(x, w)[:, 1:, 1:]], 0
            ),  # nothing after the end
            (X, W, W),
            Convolution(),
            ["conv+max_pool", "conv", "<slice>", "(concat)"],
        ),
    ],
)
def test_nodes_join_the_step_that_makes_their_last_operand(function, types, convolution, expected):
    lowerings = lowered(*POINTWISE, pointwise=True) | lowered("max_pool") | views() | {"conv": convolution}
    graph = gs.trace(function, *types).simplify()
    assert sorted(groups(graph, lowerings)) == sorted(expected)
    arrays = [np.random.default_rng(i).integers(-4, 5, v.shape).astype(np.float32) for i, v in enumerate(graph.inputs)]
    require_equal(program(graph, lowerings).call(arrays), reference(graph, arrays))


def require_equal(results, right):
    for a, b in zip(_all(results), _all(right), strict=True):
        np.testing.assert_array_equal(a, b)


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


# --- what is prepared -------------------------------------------------------------------------------------------------


def two_products(x, w):
    return gs.max_pool2d(x * w, 1) - (x + w)


@pytest.mark.parametrize(
    ("packs", "expected", "once"),
    [
        (None, ["mul", "(max_pool)", "add", "(sub)"], []),
        ("alone", ["[pack]", "mul", "(max_pool)", "[pack]", "add", "(sub)"], ["[pack]", "[pack]"]),
        ("shared", ["[pack]", "mul", "(max_pool)", "add", "(sub)"], ["[pack]"]),
        ("twice", ["[flatten]", "[negate]", "mul", "(max_pool)", "add", "(sub)"], ["[flatten]", "[negate]"]),
    ],
)
def test_operands_are_prepared_once_in_front_of_those_who_read_them(packs, expected, once):
    lowerings = lowered("mul", "add", packs=packs)
    graph = gs.trace(two_products, X, X)
    assert groups(graph, lowerings) == expected
    x, w = np.random.default_rng(0).normal(size=(2, *X.shape)).astype(np.float32)
    require_equal(program(graph, lowerings).call((x, w)), two_products(x, w))
    found = make_plan(graph, 1, toy_backend(lowerings))
    assert [described(step) for step in found.prologue] == once
    assert [described(step) for step in found.steps] == ["mul", "(max_pool)", "add", "(sub)"]
    run = Program(Executable(found), [w])
    for _ in range(2):
        require_equal(run.call((x,)), two_products(x, w))


def test_constants_are_prepared_when_they_are_attached():
    toy = Toy(packs="twice")
    graph = gs.trace(lambda x: x * np.float32([1, 2, 4]), gs.f32[3])
    found, operands = planned(graph.simplify(), {"mul": toy})
    executable = Executable(found)
    for factor in (1, 3):
        run = Program(executable, [np.float32(factor) * operands[0]])
        assert run.call((np.float32([1, 1, 2]),)).tolist() == [factor, 2 * factor, 8 * factor]
    first, second = (Program(executable, [n * operands[0]]) for n in (np.float32(5), np.float32(7)))
    x, y = np.float32([1, 0, 0]), np.empty(3, np.float32)
    for _ in range(3):  # frames are shared, arguments are not
        assert first.call((x,), y).tolist() == [5, 0, 0]
        assert second.call((x,), y).tolist() == [7, 0, 0]
    assert found.arena_bytes == 0


def test_what_is_prepared_for_different_operands_is_not_shared():
    graph = gs.trace(lambda x, v, w: (x * v, x * w), *[X] * 3)
    assert groups(graph, lowered("mul", packs="shared")) == ["[pack]", "mul", "[pack]", "mul"]


def test_what_is_prepared_lives_until_the_last_who_reads_it():
    graph = gs.trace(lambda x, w: (gs.max_pool2d(x * w, 1) + 1.0) * w, X, X)
    found, _ = planned(graph.simplify(), lowered("mul", "add", "max_pool", packs="shared"))
    require_disjoint(found)
    packed = found.steps[0].outputs[0]
    assert [packed in step.inputs for step in found.steps] == [False, True, False, False, True]


# --- views ------------------------------------------------------------------------------------------------------------


def test_a_view_is_a_step_that_moves_nothing():
    found, _ = planned(gs.trace(lambda x: -gs.transpose(-x, (0, 2, 1)), X), lowered("neg") | views())
    assert [described(step) for step in found.steps] == ["neg", "<transpose>", "neg"]
    assert [" ".join(line.split()) for line in str(found).splitlines()[1:]] == [
        "1 neg toy x:f32[2,4,4] -> neg:f32[2,4,4] 256 0..128",
        "2 transpose view neg:f32[2,4,4] -> 0 view",
        "transpose:f32[2,4,4]",
        "3 neg toy transpose:f32[2,4,4] -> 256 output",
        "neg_1:f32[2,4,4]",
        "arena 128 bytes (128 without reuse), workspace 64 bytes per thread, results 128 bytes",
    ]


@pytest.mark.parametrize("given", [X, gs.f32[4, 4, 2]])
@pytest.mark.parametrize("keeps", [True, False])
def test_a_view_that_must_copy_waits_for_what_it_copies(given, keeps):
    """Of the arena, of results in arrays of their own, of inputs in any layout, again and again in one frame."""

    def function(x):
        y = -x
        columns = gs.reshape(gs.transpose(y, (2, 1, 0)), (32,))  # a copy
        z = gs.reshape(-columns, given.shape)
        t = -z
        return gs.reshape(t, (32,)), t, -gs.reshape(gs.transpose(x, (2, 0, 1)), (32,)) + gs.reshape(t, (32,))

    graph = gs.trace(function, given)
    run = program(graph, lowered("neg", "add", keeps_layout=keeps) | views())
    assert not any(described(step).startswith("(") for step in run.plan.steps)
    rng = np.random.default_rng(0)
    for axes in ((0, 1, 2), (2, 0, 1), (0, 1, 2), (1, 0, 2)):
        shape = [given.shape[i] for i in axes]
        x = rng.normal(size=shape).astype(np.float32).transpose(np.argsort(axes))
        for _ in range(2):
            require_equal(run.call((x,)), reference(graph, (x,)))


# --- any graph, any lowerings -----------------------------------------------------------------------------------------

LOWERED = (*MAX, *POINTWISE, "avg_pool", "conv", "matmul", "reshape", "transpose", "concat", "slice", "sum", "pad")
choices = st.fixed_dictionaries(
    {
        "plain": st.sets(st.sampled_from(LOWERED)),
        "chained": st.sets(st.sampled_from(POINTWISE)),
        "views": st.sets(st.sampled_from(VIEWS)),
        "keyed": st.booleans(),
        "longest": st.sampled_from([1, 2, 10**9]),
        "together": st.integers(0, 3),
        "packs": st.sampled_from([None, "alone", "shared", "twice"]),
    }
)


def chosen(choice):
    chain, keyed = Toy(pointwise=True, longest=choice["longest"]), Toy(keyed=choice["keyed"], tape=u8[64])
    names = dict.fromkeys(choice["plain"] - set(MAX), Toy(packs=choice["packs"], keeps_layout=True))
    names |= dict.fromkeys(choice["chained"], chain) | dict.fromkeys(choice["plain"] & set(MAX), keyed)
    names |= {"conv": Convolution(together=choice["together"])} if choice["keyed"] and "conv" in names else {}
    return names | dict.fromkeys(choice["views"], Viewing())


def live_until(found, var, at):
    """The last step that needs a buffer: whatever may be a view of it is followed."""
    aliases, last = {var}, at
    for i, step in enumerate(found.steps[at + 1 :], at + 1):
        if aliases.intersection(step.inputs):
            last = i
            aliases.update(step.outputs if step.may_alias else ())
    return len(found.steps) if aliases.intersection(found.outputs) else last


@settings(max_examples=80, deadline=None)
@given(programs, choices, st.booleans())
def test_any_graph_with_any_lowerings_means_the_same(steps, choice, derived):
    graph = built(steps)
    graph = (graph.vjp() if derived else graph).simplify()
    arrays = [np.random.default_rng(i).integers(-4, 5, v.shape) / 4 for i, v in enumerate(graph.inputs)]
    run = program(graph, chosen(choice))
    for _ in range(2):  # the second time in a frame that is no longer clean
        results = run.call(arrays)
        require_equal(results, reference(graph, arrays))
        assert not any(np.shares_memory(got, a) for got in _all(results) for a in arrays)
    for a, b in combinations(_all(results), 2):
        assert not np.shares_memory(a, b)
    require_disjoint(run.plan)


def reference(graph, arrays):
    return gs.compile(graph, backend="numpy")(*arrays)


def _all(results):
    return results if isinstance(results, tuple) else (results,)


def require_disjoint(found):
    spans = [
        (found.arena[v], found.arena[v] + nbytes(v.type), i, live_until(found, v, i))
        for i, step in enumerate(found.steps)
        for v in step.outputs
        if v in found.arena
    ]
    for (a, b, first, last), (c, d, second, end) in combinations(spans, 2):
        assert b <= c or d <= a or last < second or end < first
    assert all(start % 64 == 0 for start, *_ in spans)
    assert found.arena_bytes <= found.bytes_without_reuse
    assert not set(found.arena).intersection(found.outputs)
    busiest = max(
        (sum(b - a for a, b, first, last in spans if first <= i <= last) for i in range(len(found.steps))), default=0
    )
    assert found.arena_bytes >= busiest


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
        "arena 256 bytes (256 without reuse), workspace 192 bytes per thread, results 4 bytes",
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


# --- nodes that wait for their reader ---------------------------------------------------------------------------------


def rectified(x, w):
    y = gs.relu(gs.conv(x, w, padding=1))
    return gs.sum(gs.conv(y, w, padding=1))


def test_a_mask_whose_operand_is_kept_is_made_where_it_is_read():
    gradient = gs.trace(rectified, gs.f32[2, 3, 6, 5], gs.f32[3, 3, 3, 3]).vjp()
    plan = gs.compile(gradient).plan
    assert "step" not in {v.name for v in plan.arena}
    assert sum({"conv_transpose", "step", "gate"} <= {n.op.name for n in step.nodes} for step in plan.steps) == 1


def test_a_mask_whose_operand_would_be_kept_for_it_alone_is_not():
    """The maximum reads the rectified values early, and its derivative reads winners: a kept mask costs no more."""
    pooled = gs.trace(lambda x, w: gs.max_pool2d(gs.relu(gs.conv(x, w)), 2), gs.f32[1, 2, 6, 6], gs.f32[2, 2, 3, 3])
    assert "step" in {v.name for v in gs.compile(pooled.vjp()).plan.arena}


def test_a_node_that_waits_is_not_carried_out_before_a_view_that_it_reads():
    def turned(x, w):
        y = gs.conv(x, w, padding=1)
        across = gs.transpose(y, (0, 1, 3, 2))
        return -across + y, gs.sum(across * across)

    plan = gs.compile(turned, gs.f32[1, 2, 5, 5], gs.f32[2, 2, 3, 3]).plan
    there = {*plan.inputs, *plan.operands, *plan.constants}
    for step in plan.steps:
        assert there.issuperset(step.inputs), plan
        there.update(step.outputs)


def before_the_convolution(x, w):
    return gs.conv(gs.relu(x), w, padding=1) + x


def before_the_product(x, w):
    return gs.matmul(gs.relu(x), w) + x


@pytest.mark.parametrize(
    ("function", "shapes"),
    [(before_the_convolution, ((1, 3, 6, 6), (3, 3, 3, 3))), (before_the_product, ((4, 4), (4, 4)))],
)
@pytest.mark.parametrize("derive", [lambda g: g, lambda g: g.jvp(), lambda g: g.vjp()])
def test_what_a_product_reads_is_made_before_it(function, shapes, derive):
    """An operand whose own operand is kept, as in residual blocks that rectify first, does not wait for the product."""
    graph = derive(gs.trace(function, *(gs.f64[shape] for shape in shapes)))
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-4, 5, v.shape).astype(np.float64) for v in graph.inputs]
    found, wanted = (gs.compile(graph, backend=name)(*arrays) for name in ("cpu", "numpy"))
    for got, right in _pairs(found, wanted):
        np.testing.assert_array_equal(got, right)


def _pairs(found, wanted):
    several = isinstance(found, tuple)
    return zip(found if several else (found,), wanted if several else (wanted,), strict=True)
