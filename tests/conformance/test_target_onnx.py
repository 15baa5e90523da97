"""The targets ``onnxruntime`` and ``onnx.reference``: a call is a model of one node."""

import re
from dataclasses import replace

import numpy as np
import onnx
import pytest

from conformance.target_calls import call_of, every_way, printed_by, same, wrong
from gradspec.conformance.checks import missing_errors
from gradspec.conformance.model.problem import Problem
from gradspec.conformance.model.target import NotOfferedError
from gradspec.conformance.targets import target_named
from gradspec.conformance.targets.onnx.model import model_of, node_of, over_the_tensor, within_planes

RUNTIME, REFERENCE = target_named("onnxruntime"), target_named("onnx.reference")
TARGETS = {"onnxruntime": RUNTIME, "onnx.reference": REFERENCE}

POOL = {"kernel_size": (3, 2), "stride": (2, 1), "padding": ((1, 2), (0, 1))}
PROBLEMS = {
    "max": Problem("max_pool", 2, ((2, 3, 5, 4),), POOL | {"dilation": (1, 2)}),
    "max, rounded up": Problem(
        "max_pool", 2, ((1, 2, 7, 5),), {"kernel_size": (2, 2), "stride": (3, 3), "ceil_mode": True}
    ),
    "max, integers": Problem("max_pool", 1, ((2, 3, 7),), {"kernel_size": (3,)}, "u8"),
    "average": Problem("avg_pool", 2, ((2, 3, 5, 4),), POOL | {"kernel_size": (3, 4)}),
    "average, real cells": Problem(
        "avg_pool", 1, ((1, 2, 7),), {"kernel_size": (2,), "padding": ((1, 1),), "count_include_pad": False}
    ),
    "global max": Problem("global_max_pool", 2, ((2, 3, 3, 4),), {}),
    "global average": Problem("global_avg_pool", 2, ((2, 3, 2, 4),), {}),
    "conv": Problem("conv", 1, ((2, 4, 7), (6, 2, 3), (6,)), {"stride": (2,), "padding": ((2, 1),), "groups": 2}),
    "conv, dilated": Problem("conv", 3, ((1, 2, 3, 4, 3), (3, 2, 2, 2, 1), None), {"dilation": (2, 1, 1)}),
    "max, float64": Problem("max_pool", 1, ((2, 3, 7),), {"kernel_size": (3,)}, "f64"),
    "transposed": Problem(
        "conv_transpose",
        2,
        ((2, 4, 3, 2), (4, 3, 2, 2), (3,)),
        {"stride": (2, 3), "padding": ((1, 0), (0, 0)), "output_padding": (0, 2)},
    ),
    "unpool": Problem("max_unpool", 2, ((2, 3, 2, 2), (2, 3, 2, 2)), {"output_size": (4, 5)}),
    "fold": Problem("fold", 2, ((2, 8, 9),), {"output_size": (4, 4), "kernel_size": (2, 2)}),
}
CALLS = {name: call_of(problem) for name, problem in PROBLEMS.items()}
each_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@each_target
@each_call
def test_every_way_to_call_means_the_operator(target, call):
    assert target.refusal(call.problem, "value") is None
    assert [(way.variant, found) for way in every_way(target, call) if (found := wrong(target, way))] == []


@each_target
def test_programs_print_what_was_run(target, tmp_path):
    calls = [CALLS[name] for name in ("max, integers", "average, real cells", "conv", "transposed", "unpool", "fold")]
    ways = [way for call in calls for way in every_way(target, call) if way.variant != "one_by_one"]
    printed = printed_by([target.reproducer(way) for way in ways], tmp_path)
    for way, lines in zip(ways, printed, strict=True):
        if len(lines) == 2:  # programs print indices as ONNX counts them
            lines[1] = within_planes(lines[1], 7, 1)
        assert same(target.run(way), lines), way.variant


def test_programs_of_single_samples(tmp_path):
    call = replace(CALLS["conv"], variant="one_by_one")
    (printed,) = printed_by([RUNTIME.reproducer(call)], tmp_path)
    assert same(RUNTIME.run(call), [np.concatenate(printed)])


@each_call
def test_models_are_valid(call):
    node = node_of(call.problem)
    onnx.checker.check_model(model_of(call, node), full_check=True)


def test_indices_are_counted_in_planes():
    indices = np.array([[[0, 3], [4, 7]]])
    assert within_planes(indices, 4, 1).tolist() == [[[0, 3], [0, 3]]]
    assert over_the_tensor(within_planes(indices, 4, 1), 4, 1).tolist() == indices.tolist()


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (Problem("unfold", 1, ((1, 1, 5),), {"kernel_size": (2,)}), "no operator"),
        (Problem("smooth_max_pool", 1, ((1, 1, 5),), {"kernel_size": (2,), "beta": 1.0}), "no operator"),
        (Problem("max_pool", 1, ((1, 5),), {"kernel_size": (2,)}), "one batch axis"),
        (Problem("max_pool", 1, ((1, 1, 5),), {"kernel_size": (2,)}, "i32"), "not defined for i32"),
        (Problem("avg_pool", 1, ((1, 1, 5),), {"kernel_size": (2,), "divisor_override": 3}), "divisor"),
        (Problem("fold", 1, ((1, 2, 4),), {"output_size": (5,), "kernel_size": (2,)}), "two axes"),
        (Problem("global_max_pool", 1, ((1, 1, 5),), {"keepdims": False}), "keep their axes"),
        (Problem("max_unpool", 1, ((1, 1, 5), (1, 1, 5)), {"output_size": (3,)}), "output sizes"),
    ],
)
@each_target
def test_what_the_standard_has_not_is_not_offered(target, problem, reason):
    assert reason in target.refusal(problem, "value")
    assert "values only" in target.refusal(PROBLEMS["max"], "vjp")


DECLINED = {
    "wide padding": Problem("max_pool", 1, ((1, 1, 5),), {"kernel_size": (2,), "padding": ((2, 0),)}),
    "four axes": Problem("max_pool", 4, ((1, 1, 2, 2, 2, 2),), {"kernel_size": (1, 2, 1, 1)}),
    "no channels": Problem("avg_pool", 1, ((1, 0, 5),), {"kernel_size": (2,)}),
    "bfloat16": Problem("conv", 1, ((1, 1, 5), (1, 1, 2), None), {}, "bf16"),
    "long output padding": Problem(
        "conv_transpose", 1, ((1, 1, 3), (1, 1, 2), None), {"dilation": (2,), "output_padding": (1,)}
    ),
}


@pytest.mark.parametrize("problem", DECLINED.values(), ids=DECLINED)
def test_what_the_runtime_declines_it_really_declines(problem):
    """Its own words stand in the refusal."""
    words = RUNTIME.refusal(problem, "value").rpartition(": ")[2]
    assert REFERENCE.refusal(problem, "value") is None
    with pytest.raises(Exception, match=re.escape(words)):
        RUNTIME.run(call_of(problem))


@each_target
def test_unpooling_inverts_nothing_that_stands_twice(target):
    call = CALLS["unpool"]
    for places in (np.zeros_like(call.inputs[1]), call.inputs[1] * 0 - 1):
        with pytest.raises(NotOfferedError, match="stands twice"):
            target.run(replace(call, inputs=(call.inputs[0], places)))


def test_the_number_of_threads_is_the_sessions():
    call = CALLS["conv"]
    assert RUNTIME.set_threads(2)
    assert wrong(RUNTIME, call) == {}
    assert RUNTIME.set_threads(1)
    assert wrong(RUNTIME, call) == {}
    assert not REFERENCE.set_threads(1)


def test_what_would_take_the_reference_minutes_is_left_out():
    problem = Problem("max_pool", 2, ((4, 64, 64, 64),), {"kernel_size": (3, 3)})
    assert "save time" in REFERENCE.refusal(problem, "value")
    assert RUNTIME.refusal(problem, "value") is None


def test_models_that_the_standard_rules_out_are_turned_down():
    assert missing_errors(RUNTIME) == []


def test_an_output_that_is_asked_for_and_missing_is_an_error(monkeypatch):
    monkeypatch.setattr(RUNTIME, "_outputs", lambda call, node: [np.zeros((2, 3, 3, 3)), None])
    with pytest.raises(RuntimeError, match="'indices' was asked for"):
        RUNTIME.run(CALLS["max"])
