"""The target ``jax``: what it runs is what the specification means, what it prints is what it ran."""

import math
from dataclasses import replace

import jax
import numpy as np
import pytest

from conformance.target_calls import call_of, every_way, printed_by, same, wrong
from gradspec.conformance.checks import missing_errors
from gradspec.conformance.judge.conventions import CONVENTIONS
from gradspec.conformance.judge.reduced import check_modes
from gradspec.conformance.judge.verdicts import judge_call
from gradspec.conformance.model.problem import Call, Problem
from gradspec.conformance.model.target import NotOfferedError
from gradspec.conformance.targets import target_named
from gradspec.conformance.targets.program import Code, applied, function_of

JAX = target_named("jax")

POOL = {"kernel_size": (3, 2), "stride": (2, 1), "padding": ((1, 0), (0, 2))}
PROBLEMS = {
    "max": Problem("max_pool", 2, ((2, 1, 5, 4),), POOL),
    "max, dilated": Problem("max_pool", 1, ((2, 7),), {"kernel_size": (3,), "dilation": (2,), "padding": ((1, 0),)}),
    "max, integers": Problem("max_pool", 1, ((2, 7),), {"kernel_size": (3,)}, "u8"),
    "average": Problem("avg_pool", 2, ((2, 5, 4),), POOL | {"kernel_size": (2, 2)}),
    "average, real cells": Problem(
        "avg_pool", 1, ((2, 5),), {"kernel_size": (2,), "padding": ((1, 1),), "count_include_pad": False}, "bf16"
    ),
    "average, divisor": Problem("avg_pool", 1, ((2, 5),), {"kernel_size": (3,), "divisor_override": 2}, "f64"),
    "global max": Problem("global_max_pool", 3, ((2, 2, 2, 3),), {}),
    "global average": Problem("global_avg_pool", 2, ((2, 1, 2, 4),), {"keepdims": False}),
    "conv": Problem("conv", 1, ((2, 4, 7), (6, 2, 3), (6,)), {"stride": (2,), "padding": ((2, 1),), "groups": 2}),
    "conv, dilated": Problem("conv", 2, ((1, 2, 5, 4), (3, 2, 2, 2), None), {"dilation": (2, 1)}, "f64"),
    "transposed": Problem(
        "conv_transpose", 1, ((2, 4, 4), (4, 3, 3), (3,)), {"stride": (2,), "padding": ((2, 1),), "dilation": (2,)}
    ),
    "transposed, groups": Problem(
        "conv_transpose",
        2,
        ((1, 4, 2, 3), (4, 3, 2, 2), None),
        {"stride": (2, 1), "padding": ((1, 0), (0, 0)), "output_padding": (1, 0), "groups": 2},
    ),
    "unfold": Problem("unfold", 2, ((1, 2, 4, 3),), {"kernel_size": (2, 3), "padding": ((1, 0), (0, 0))}),
}
MODES = {
    "max": ("vjp", "second"),
    "max, dilated": ("jvp",),
    "max, integers": ("value",),
    "average": ("vjp",),
    "average, real cells": ("value",),
    "average, divisor": ("second",),
    "global max": ("vjp",),
    "global average": ("vjp",),
    "conv": ("second",),
    "conv, dilated": ("jvp",),
    "transposed": ("value", "vjp"),
    "transposed, groups": ("vjp",),
    "unfold": ("vjp",),
}
CALLS = {f"{name}, {mode}": call_of(PROBLEMS[name], mode) for name, modes in MODES.items() for mode in modes}
each = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@each
def test_every_way_to_call_means_the_operator(call):
    assert JAX.refusal(call.problem, call.mode) is None
    ways = every_way(JAX, call) if call.mode in ("value", "jvp") else [call]  # a way costs a compilation
    assert [(way.variant, found) for way in ways if (found := wrong(JAX, way))] == []


def test_programs_print_what_was_run(tmp_path):
    names = ("max, vjp", "average, divisor, second", "conv, dilated, jvp")
    ways = [CALLS[name] for name in names] + [every_way(JAX, CALLS["transposed, value"])[-1]]
    ways.append(replace(CALLS["global max, vjp"], variant="eager"))
    printed = printed_by([JAX.reproducer(way) for way in ways], tmp_path)
    assert [way for way, lines in zip(ways, printed, strict=True) if not same(JAX.run(way), lines)] == []


@pytest.mark.parametrize(
    ("problem", "mode", "reason"),
    [
        (Problem("fold", 2, ((1, 4, 4),), {"output_size": (3, 3), "kernel_size": (2, 2)}), "value", "no fold"),
        (Problem("max_pool", 1, ((1, 5),), {"kernel_size": (2,), "ceil_mode": True}), "value", "ceil_mode"),
        (PROBLEMS["max, dilated"], "vjp", "window dilation"),
        (PROBLEMS["max, integers"], "jvp", "no derivatives"),
        (Problem("max_pool", 1, ((1, 5),), {"kernel_size": (2,), "ties": "all"}), "jvp", "ties"),
        (Problem("avg_pool", 1, ((1, 5),), {"kernel_size": (2,)}, "i32"), "value", "integers"),
        (Problem("conv", 1, ((2, 5), (1, 2, 2), None), {}), "value", "one batch axis"),
    ],
)
def test_what_jax_does_not_document_is_not_offered(problem, mode, reason):
    assert reason in JAX.refusal(problem, mode)


def test_patches_of_what_is_not_finite_are_not_offered():
    call = call_of(PROBLEMS["unfold"])
    call.inputs[0][0, 0, 0, 0] = np.nan
    with pytest.raises(NotOfferedError, match="runs a convolution"):
        JAX.run(call)


def test_modes_of_reduced_precision_are_known_by_their_names():
    assert set(JAX.composed(PROBLEMS["average"], "value")) <= set(check_modes(JAX.reduced()))
    assert JAX.composed(PROBLEMS["conv"], "value") == {"parts"}
    assert JAX.composed(PROBLEMS["conv, dilated"], "value") == frozenset()
    assert JAX.conventions() <= CONVENTIONS.keys()


def test_subnormal_numbers_are_zeros_where_that_is_allowed():
    """The largest of two subnormal numbers is 0, and the first of them is chosen, also if the second is larger."""
    problem = Problem("max_pool", 1, ((1, 2),), {"kernel_size": (2,)})
    tangents = (np.float32([[1, 2]]),)
    for mode, directions in {"value": (), "jvp": tangents}.items():
        call = Call(problem, mode, (np.float32([[1e-41, 1e-40]]),), directions, output=(1, 1))
        assert [v.kind for v in judge_call(JAX, call)] == ["defect"]
        assert [v.kind for v in judge_call(JAX, call, {"ftz"})] == ["reduced"]
        normal = replace(call, inputs=(np.float32([[1, 2]]),))
        assert [v.kind for v in judge_call(JAX, normal, {"ftz"})] == ["pass"]


def test_a_problem_is_compiled_once_for_all_its_numbers(monkeypatch):
    calls = [call_of(Problem("max_pool", 1, ((3, 6),), {"kernel_size": (2,)}), seed=seed) for seed in (1, 2)]
    JAX.run(calls[0])
    monkeypatch.setattr(jax, "jit", None)
    assert wrong(JAX, calls[1]) == {}


def test_the_users_own_setting_of_x64_stays():
    before = jax.config.jax_enable_x64
    assert JAX.run(CALLS["conv, dilated, jvp"])["dy"].dtype == np.float64
    assert jax.config.jax_enable_x64 == before


def test_documented_errors_come():
    assert missing_errors(JAX) == []


def test_expressions_are_computed_as_they_are_written():
    terms = applied("math.floor", Code("-math.pi")), applied("max", 1, 2, key=Code("math.sin"))
    expression = " + ".join(terms)
    assert expression == "math.floor(-math.pi) + max(1, 2, key=math.sin)"
    assert function_of(expression, (), {"math": math})() == math.floor(-math.pi) + max(1, 2, key=math.sin)


def test_an_empty_batch():
    empty = call_of(Problem("conv", 1, ((0, 2, 4), (3, 2, 2), None), {}), "vjp")
    assert wrong(JAX, empty) == {}
