"""Quick cases: any three levels of an operator's factors meet in them, and with the cover any three features do."""

from itertools import combinations
from math import prod

import numpy as np
import pytest

from gradspec.conformance.cases.combinations import RankedOperator, values_of
from gradspec.conformance.cases.cover import values_of_case
from gradspec.conformance.cases.features import tags
from gradspec.conformance.cases.stream import SWEEP_EVERY, Stream
from gradspec.conformance.cases.sweep import COMMON, SWEPT, CoveringArray, factors_of, near_common, problem_of
from gradspec.conformance.cases.target_stream import TargetStream
from gradspec.conformance.checks import examine
from gradspec.conformance.model.case import Selection
from gradspec.conformance.model.domain import KernelDomain
from gradspec.conformance.model.geometry import geometry_of
from gradspec.conformance.model.problem import INPUTS, RANKS
from gradspec.conformance.targets.native.target import NativeTarget

WITHIN = 3_000
"""Cases of one operator, among which any three features have met."""


def takes_all(problem, mode):
    return None


def array(op, seed=0):
    entries = tuple(RankedOperator(op, rank, values_of(op, rank)) for rank in RANKS)
    return CoveringArray(factors_of(op, entries), np.random.default_rng(seed))


@pytest.mark.rows(1)
@pytest.mark.parametrize("op", SWEPT)
def test_any_three_levels_meet(op):
    levels = array(op)
    rows = [levels.row(i) for i in range(1_600)]
    for three in combinations(levels.factors, 3):
        wanted = prod(len(levels.factors[name]) for name in three)
        assert len({tuple(row[name] for name in three) for row in rows}) == wanted


@pytest.mark.parametrize("op", SWEPT)
def test_every_row_is_a_legal_problem_with_its_levels(op):
    rows, rng = array(op), np.random.default_rng(0)
    for i in range(200):
        row = rows.row(i)
        parts = geometry_of(problem_of(op, row, rng))
        assert prod(parts.output) > 0
        assert prod(parts.output) * parts.taps < 1 << 24
        if row.get("step") == "equal":
            assert parts.each("stride")[-1] == parts.each("dilation")[-1] == 2


@pytest.mark.rows(1)
@pytest.mark.parametrize("op", ["conv", "max_pool", *(op for op in INPUTS if op not in ("conv", "max_pool"))])
def test_any_three_features_meet_within_a_few_thousand_cases(op):
    stream = Stream(1, Selection(ops=(op,)), takes_all)
    cases, number = [], 0
    while len(cases) < WITHIN:
        cases += stream.batch(number)
        number += 1
    met, total = stream.space.count_triples(map(values_of_case, cases[:WITHIN]))
    assert total > 2_500
    assert met == total
    assert stream.space.count_triples(map(values_of_case, cases[:100]))[0] < 0.8 * total


def test_two_of_three_rows_are_one_change_away_from_common_windows():
    rows, near = array("max_pool"), near_common(("jvp", "value", "vjp"))
    turns = [rows.row(i) for i in range(len(near) * 3 // 2) if i % 3 < 2]
    common = {name: [windows.get(name) for windows in COMMON] for name in COMMON[0]}
    plain = {"strided": "all", "dilation": "none", "rest": "none"}
    for row in turns:
        windows = [sum(row[name] != levels[i] for name, levels in common.items()) for i in range(len(COMMON))]
        others = sum(row[name] != level for name, level in plain.items())
        assert min(windows) + others + (row["layout"] not in ("contiguous", "channels_last")) <= 1
    names = [*common, *plain, "layout", "mode"]
    assert {tuple(row[name] for name in names) for row in turns} == {tuple(row[name] for name in names) for row in near}


def test_what_was_missed_comes_early():
    """Windows of 3 × 3 cells of one channel, whose stride and dilation have a common factor: the quick cases that one
    minute has time for meet them with every seed."""
    for seed in range(2):
        stream = Stream(seed, Selection(ops=("max_pool", "avg_pool", "conv", "conv_transpose")), takes_all)
        batches = (stream.batch(turn * SWEEP_EVERY + SWEEP_EVERY - 1) for turn in range(30))
        assert any(_has_shared_cells(case) for batch in batches for case in batch)


POOLINGS = ("max_pool", "avg_pool", "smooth_max_pool", "adaptive_max_pool", "adaptive_avg_pool")


def test_what_fast_paths_ask_for_comes_in_the_first_quick_batch():
    """Of kernels of several poolings that compile each geometry, a minute has time for little more than that batch."""
    for seed in range(3):
        stream = TargetStream([Stream(seed, Selection(ops=POOLINGS), takes_all)], seed, compiled=True)
        cases = stream.batch(SWEEP_EVERY - 1)
        assert len({(repr(case.problem), case.mode, case.layout) for case in cases}) > 0.9 * len(cases)  # each once
        assert {case.problem.op for case in cases} == {*POOLINGS}
        met = [{name for name, asks in PATHS.items() if asks(case, geometry_of(case.problem))} for case in cases]
        assert set().union(*met) == {*PATHS}


def _is_uneven(axis):
    return axis.size % axis.outputs > 0


PATHS = {
    "vectors of bins": lambda case, parts: (
        not parts.sliding and _is_uneven(parts.axes[-1]) and parts.axes[-1].size % 4 == parts.axes[-1].outputs % 4 == 0
    ),
    "strips of bins": lambda case, parts: (
        not parts.sliding and any(_is_uneven(axis) and axis.outputs > 3 for axis in parts.axes[:-1])
    ),
    "one window of odd many cells": lambda case, parts: (
        bool(parts.sliding) and parts.taps > 25 and parts.taps % 4 > 0 and prod(parts.spatial) == parts.taps
    ),
    "tangents of many taps": lambda case, parts: (
        case.problem.op == "max_pool" and case.mode == "jvp" and parts.taps > 25 and case.problem.dtype == "f32"
    ),
    "patches cut off": lambda case, parts: (
        case.mode == "vjp" and bool(parts.sliding) and parts.sliding[-1].kernel == parts.sliding[-1].stride > 4
    ),
}
"""Geometries that the conditions of fast paths decide about."""


def _has_shared_cells(case):
    if case.problem.op != "conv" or case.mode == "vjp" or case.problem.rank < 2:
        return False
    outer, inner, *_ = case.problem.shapes[1]
    *_, above, last = geometry_of(case.problem).sliding
    steps = above.stride == above.dilation and last.dilation % last.stride == 0 and last.stride * above.stride > 1
    return inner == 1 and outer == case.problem.attributes["groups"] and above.kernel == last.kernel == 3 and steps


def test_quick_cases_are_one_call():
    calls = []

    class Counting(NativeTarget):
        def run(self, call):
            calls.append(call.variant)
            return super().run(call)

    stream = Stream(0, Selection(ops=("max_pool",)), takes_all)
    cases = stream.batch(SWEEP_EVERY - 1)[:12]
    for case in cases:
        assert case.is_quick
        assert case.features == tags(case.problem, case.mode, case.layout)
        _, verdicts = examine(Counting(), case)
        assert {verdict.kind for verdict in verdicts} == {"pass"}
    assert len([name for name in calls if name != "plain"]) > 0
    assert len(calls) < 3 * len(cases)  # one by one, samples are calls of their own


def test_only_what_is_offered_is_swept():
    def refusal(problem, mode):
        return "no" if problem.dtype != "f32" or mode == "jvp" or problem.rank == 3 else None

    stream = Stream(0, Selection(ops=("conv", "fold")), refusal)
    for turn in range(4):
        for case in stream.batch(turn * SWEEP_EVERY + SWEEP_EVERY - 1):
            assert refusal(case.problem, case.mode) is None
    asked = Stream(0, Selection(ops=("conv",), features=("nan",)), takes_all)
    restricted = Stream(0, Selection(ops=("conv",)), takes_all, KernelDomain.read("kernel_size=3x3"))
    for stream in (asked, restricted):
        assert not any(case.is_quick for number in range(6) for case in stream.batch(number))


def test_arrays_are_the_same_for_a_seed():
    rows = [array("conv", 3).row(i) for i in (5, 0, 40)]
    again = array("conv", 3)
    assert [again.row(i) for i in (5, 0, 40)] == rows
    assert array("conv", 4).row(0) != rows[1]
