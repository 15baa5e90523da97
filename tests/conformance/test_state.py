"""Kernels that keep something from call to call, or share it between threads: found early where that is wrong."""

from random import Random

import numpy as np
import pytest

import gradspec as gs
from conformance import stateful_kernels as kernels
from gradspec.conformance.cases.stream import Stream
from gradspec.conformance.checks import examine, state
from gradspec.conformance.checks.neighbours import neighbour, neighbours, others, reverse
from gradspec.conformance.judge.verdicts import judge_call
from gradspec.conformance.model.case import Selection
from gradspec.conformance.model.changes import ATTRIBUTES, OTHER_SIZES, Changes
from gradspec.conformance.model.geometry import default_attributes, with_defaults
from gradspec.conformance.model.problem import INPUTS, MODES, Call, Problem
from gradspec.conformance.model.reference import on_zeros
from gradspec.conformance.targets.reference.kernel import ReferenceKernel
from gradspec.conformance.targets.user.target import UserKernels

CASES = 300
"""As many as ``check_kernel`` makes."""
COSTLY = {"large", "long_sum"}


@pytest.fixture(scope="module")
def cases():
    """Those of convolutions and of averages, by the name of the operator."""

    def made(right, op):
        target = UserKernels(right)
        stream = Stream(0, Selection(ops=(op,), modes=("value",), ranks=target.ranks), target.refusal)
        found = [case for number in range(100) for case in stream.batch(number)][:CASES]
        return [case for case in found if not COSTLY & case.features]

    pools = type("Pools", (kernels.PoolKernels,), {"conv2d": None})
    return {"conv2d": made(kernels.Kernels, "conv"), "avg_pool1d": made(pools, "avg_pool")}


def defects(kernel, cases):
    target = UserKernels(kernel)
    op = "avg_pool1d" if issubclass(kernel, kernels.PoolKernels) else "conv2d"
    return (v for case in cases[op] for v in examine(target, case)[1] if v.kind == "defect")


@pytest.mark.parametrize("kernel", kernels.WRONG, ids=lambda kernel: kernel.__name__)
def test_a_planted_mistake_is_found(kernel, cases):
    """A race between threads may not show on a busy machine, where one waits for the other: it gets more chances."""
    attempts = 5 if kernel in (kernels.SharedScratch, kernels.SharedInC) else 1
    assert any(next(defects(kernel, cases), None) is not None for _ in range(attempts))


@pytest.mark.rows(1)
@pytest.mark.parametrize("kernel", kernels.RIGHT, ids=lambda kernel: kernel.__name__)
def test_right_kernels_may_keep_what_they_like(kernel, cases):
    few = {op: some[:120] for op, some in cases.items()}
    assert list(defects(kernel, few)) == []


# --- neighbours -------------------------------------------------------------------------------------------------------

X = (2, 4, 5, 6)
PROBLEMS = {
    "conv": Problem("conv", 2, (X, (6, 2, 2, 3), (6,)), {"groups": 2, "padding": ((1, 0), (0, 1)), "stride": (2, 1)}),
    "conv_transpose": Problem("conv_transpose", 2, (X, (4, 2, 2, 2), None), {"stride": (2, 2)}),
    "max_unpool": Problem("max_unpool", 2, (X, X), {"output_size": (9, 9)}),
    "fold": Problem("fold", 2, ((2, 8, 12),), {"kernel_size": (2, 2), "output_size": (4, 5)}),
    "unfold": Problem("unfold", 2, (X,), {"kernel_size": (2, 3)}),
    **{op: Problem(op, 2, (X,), {"output_size": (2, 3)}) for op in ("adaptive_max_pool", "adaptive_avg_pool")},
    **{op: Problem(op, 2, (X,), {}) for op in ("global_max_pool", "global_avg_pool")},
    **{
        op: Problem(op, 2, (X,), {"kernel_size": (3, 2), "stride": (2, 3), "padding": ((1, 0), (0, 1))})
        for op in ("max_pool", "avg_pool")
    },
    "smooth_max_pool": Problem(
        "smooth_max_pool", 2, (X,), {"beta": 2.0, "kernel_size": (3, 2), "padding": ((1, 0),) * 2}
    ),
}


def call_of(op, mode):
    zeros = on_zeros(PROBLEMS[op], mode)
    random = np.random.default_rng(3)
    filled = {name: random.integers(0, 9, array.shape).astype(array.dtype) for name, array in zeros.arrays().items()}
    return zeros.with_arrays(filled)


def things(call):
    """All that a call is, by name."""
    problem = call.problem
    return {
        **{f"attribute {n}": v for n, v in with_defaults(problem.op, problem.rank, problem.attributes).items()},
        **{f"shape of {name}": array.shape for name, array in call.arrays().items()},
        "dtype": problem.dtype,
        "layout": call.layout,
        "variant": call.variant,
    }


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("op", INPUTS)
def test_a_neighbour_is_a_legal_call_that_differs_in_what_is_named(op, mode):
    call = call_of(op, mode)
    there, kinds = things(call), set[str]()
    for difference in (*Changes.of(call).differences, *others(call, ("other",))):
        for other in neighbours(call, difference):
            kinds.add(difference)
            changed = {name for name, value in things(other).items() if value != there[name]}
            if difference.startswith("numbers of "):
                name = difference.removeprefix("numbers of ")
                same = {n: np.array_equal(a, call.arrays()[n]) for n, a in other.arrays().items()}
                assert not changed
                assert [n for n, is_same in same.items() if not is_same] == [name]
            elif difference in ATTRIBUTES:
                assert {n for n in changed if n.startswith("attribute")} == {f"attribute {difference}"}
            elif difference in OTHER_SIZES:
                assert all(n.startswith("shape") for n in changed) or op == "fold"
            else:
                assert changed == {difference.partition(" ")[0]}
    own = {name for name in default_attributes(op) if name in ATTRIBUTES} - {"ceil_mode", "count_include_pad"}
    missing = own - kinds - ({"ties"} if mode == "value" else set()) - {"output_size", "output_padding"}
    missing -= {"keepdims"} if mode in ("vjp", "second") else set()  # the cotangent would have another shape
    assert not missing
    assert {f"numbers of {name}" for name in call.arrays()} <= kinds


def test_a_neighbour_of_a_neighbour_may_be_the_call_again():
    call = call_of("max_pool", "value")
    for difference in ("ceil_mode", "numbers of x", "layout reversed", "dtype f16", "variant other"):
        other = neighbour(call, difference)
        assert other is None or things(neighbour(other, reverse(call, difference))) == things(call)


def test_a_verdict_on_a_neighbour_names_the_dtype_of_the_call_before_it():
    def avg_pool1d(x, kernel_size, stride):
        windows = np.lib.stride_tricks.sliding_window_view(x, kernel_size[0], -1)[..., :: stride[0], :]
        return windows.mean(-1) + (x.dtype == np.float16)

    problem, found = Problem("avg_pool", 1, ((6,),), {"kernel_size": (2,)}), set()
    for seed in range(60):
        call = Call(problem, "value", (np.random.default_rng(seed).random(6, np.float32),), output=(3,))
        verdicts = state.neighbouring(UserKernels(avg_pool1d), call)
        found |= {(verdict.about.problem.dtype, verdict.setting) for verdict in verdicts}
    assert found == {("f16", "after dtype f32")}


# --- threads ----------------------------------------------------------------------------------------------------------


def conv_call():
    random = np.random.default_rng(0)
    arrays = tuple(random.integers(-4, 5, shape).astype(np.float32) for shape in ((2, 3, 6, 6), (4, 3, 3, 3)))
    problem = Problem("conv", 2, (*(a.shape for a in arrays), None), {})
    return Call(problem, "value", (*arrays, None), output=(2, 4, 4, 4))


def test_threads_are_found_to_share_memory_and_their_number_is_left_as_it_was():
    import sys
    import threading

    interval, alive = sys.getswitchinterval(), threading.active_count()
    shared, call = UserKernels(kernels.SharedScratch), conv_call()
    found = [verdict for _ in range(20) for verdict in state.together(shared, call)]
    assert {(v.kind, v.rule, v.setting) for v in found} == {("defect", "concurrent", "together")}
    assert judge_call(shared, call)[0].kind == "pass"
    assert (sys.getswitchinterval(), threading.active_count()) == (interval, alive)


@pytest.mark.parametrize("kernel", [kernels.OneCaller, kernels.Locked])
def test_a_kernel_may_say_that_it_has_one_caller_or_see_to_it(kernel):
    target = UserKernels(kernel)
    assert [verdict for _ in range(3) for verdict in state.together(target, conv_call())] == []


# --- sizes of references ----------------------------------------------------------------------------------------------


def product(x, w):
    """It refuses 7 rows, which a trial does not tell here."""
    if x.shape[0] == 7:
        raise ValueError
    return gs.relu(x) @ w


@pytest.mark.parametrize("rows", [5, 8])
def test_only_the_neighbouring_size_that_is_chosen_is_read(rows, monkeypatch):
    target = ReferenceKernel(lambda x, w: np.maximum(x, 0) @ w, product, f"f32[{rows},9],f32[9,11]")
    call = on_zeros(target.reference.problem(target.reference.types[0]), "value")
    every = {name: list(neighbours(call, name)) for name in Changes.of(call).differences}
    seen, trace, own = [], target.reference._trace, target.reference.types[0]
    monkeypatch.setattr(target.reference, "_trace", lambda types: seen.append(types) or trace(types))
    monkeypatch.setattr(target.reference, "_trial", lambda types: None)
    for name, all_of_it in every.items():
        target.reference._graphs.clear()
        seen.clear()
        one = state._choose(target, call, name, Random(3))
        if rows == 5:
            assert one.problem == Random(3).choice(all_of_it).problem
            read = {types for types in seen if types != own}
            assert read == {target.reference.types_of(one.problem)}
        else:
            assert one.problem in [other.problem for other in all_of_it]
    assert len(every) == 3
