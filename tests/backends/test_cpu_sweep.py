"""Compiled kernels on the judge's sweep: any three of what decides which path a kernel takes, and special numbers."""

from dataclasses import replace
from functools import cache

import pytest

from gradspec.conformance.cases.data import drawn
from gradspec.conformance.cases.stream import SWEEP_EVERY, Stream
from gradspec.conformance.cases.sweep import SWEPT
from gradspec.conformance.judge.verdicts import Judge
from gradspec.conformance.model.case import Selection
from gradspec.conformance.model.problem import FLOATS, SELECTIONS
from gradspec.conformance.targets.native.target import NativeTarget, other_kernels

BATCHES, PARTS = 90, 4
"""Of an operator; a part of them is one test. The last two wait for the exhaustive run, the last one of all dtypes."""
USUAL = ("f32", "f16", "i8")
"""Of each kind one: every further format is another kernel to compile, of the same source."""


@cache
def stream(op, dtypes):
    return Stream(7, Selection(ops=(op,), dtypes=dtypes), lambda problem, mode: None)


def cases(op, part):
    """Every second case of a maximum has NaNs, or ties, among its numbers."""
    batch = stream(op, USUAL if part < PARTS - 1 else ()).batch
    for turn in range(part, BATCHES, PARTS):
        for i, case in enumerate(batch(turn * SWEEP_EVERY + SWEEP_EVERY - 1)):
            is_special = op in SELECTIONS and (turn + i) % 2 == 0
            special = ("nan" if case.problem.dtype in FLOATS else "ties", "ties")[turn // 2 % 2] if is_special else None
            yield replace(case, special=special, regime="rounding" if special else case.regime)


@pytest.mark.rows(len(SWEPT) * PARTS)
@pytest.mark.parametrize("part", [0, 1, *(pytest.param(part, marks=pytest.mark.exhaustive) for part in (2, 3))])
@pytest.mark.parametrize("op", SWEPT)
def test_every_way_to_a_kernel_is_right(op, part):
    target = NativeTarget()
    for case in cases(op, part):
        judge = Judge(target, drawn(case), frozenset())
        for way in ("plain", *other_kernels(case.problem, case.mode)):
            wrong = [verdict for verdict in judge.verdicts(way) if verdict.kind not in ("pass", "undecided")]
            assert wrong == [], (case, wrong)
