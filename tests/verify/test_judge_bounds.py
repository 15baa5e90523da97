"""The judge of bounds finds planted mistakes, each by what it takes to show, and nothing in bounds that are true."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from click.testing import CliRunner

from gradspec.cli import main
from gradspec.conformance.command import exit_code
from gradspec.conformance.model.codec import decode
from gradspec.conformance.model.problem import Problem
from gradspec.conformance.model.target import NotOfferedError
from gradspec.conformance.report.html import page
from gradspec.conformance.targets.program import scope_of
from gradspec.verify.judge.cases import BOXES, BoundsCase, box_of, cases, connect
from gradspec.verify.judge.judging import AS_ROUNDING, RULES, Truth
from gradspec.verify.judge.run import check_bounds
from gradspec.verify.judge.targets import EXACT, KERNEL, MODULES, OurBounds, network

Ends = tuple[np.ndarray, np.ndarray]


class PlainIntervals(OurBounds):
    """Poolings at both ends of the box, in plain floats: true of maxima, and of averages but for rounding."""

    name = "plain"
    packages = ()
    methods: ClassVar = {"boxes any": (EXACT, KERNEL)}

    def __init__(self, mistake: Callable[[BoundsCase, Ends], tuple[BoundsCase, Ends]] = lambda *given: given) -> None:
        self.mistake = mistake

    def refusal(self, case: BoundsCase) -> str | None:
        return None if case.ops in (("max_pool",), ("avg_pool",)) else "poolings alone"

    def bounds(self, case: BoundsCase, method: str, box: Ends) -> Ends:
        if box[0].shape != case.shape:
            raise ValueError("another shape")
        if not np.all(box[0] <= box[1]):
            raise ValueError("lower ends above upper ones, or NaN")
        shape = Truth(case).shape
        changed, ends = self.mistake(case, box)
        graph = scope_of(network(changed), MODULES)["graph"]
        found = [graph(end)[tuple(map(slice, shape))] for end in ends]
        return (found[0], found[1]) if changed.name != "swapped" else (found[1], found[0])


def with_attribute(case: BoundsCase, name: str, value: object, shape: tuple[int, ...] | None = None) -> BoundsCase:
    (step,) = case.steps
    changed = replace(step, attributes={**step.attributes, name: value})
    return replace(case, steps=connect(shape or case.shape, [changed]))


def zero_padding(case: BoundsCase, box: Ends) -> tuple[BoundsCase, Ends]:
    (step,) = case.steps
    sides = [(0, 0), (0, 0), *step.attributes.get("padding", ((0, 0),) * step.rank)]
    ends = tuple(np.pad(end, sides) for end in box)
    return with_attribute(case, "padding", 0, ends[0].shape), ends


def attribute(name: str, value: object) -> Callable[[BoundsCase, Ends], tuple[BoundsCase, Ends]]:
    return lambda case, box: (with_attribute(case, name, value), box)


MISTAKES = {
    "padding counted as 0": (zero_padding, "max_pool", "padding"),
    "ceil_mode ignored": (attribute("ceil_mode", False), "max_pool", "ceil_mode"),
    "dilation ignored": (attribute("dilation", 1), "max_pool", "dilation"),
    "lower and upper swapped": (lambda case, box: (replace(case, name="swapped"), box), "max_pool", None),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_found(name):
    mistake, op, needed = MISTAKES[name]
    run = check_bounds(PlainIntervals(mistake), cases=60, seed=1, ops=[op], ranks=[1], fail_fast=True)
    wrong = [finding for finding in run.findings if finding.result != AS_ROUNDING]
    assert wrong, name
    assert exit_code(run) == 1
    smallest = wrong[0]
    assert decode(BoundsCase, smallest.case).cells <= 12
    assert needed is None or all(needed in finding.causes for finding in wrong)
    assert "right: " in smallest.reproducer


def test_the_page_shows_what_a_finding_needs_and_speaks_of_no_regime():
    run = check_bounds(PlainIntervals(MISTAKES["dilation ignored"][0]), cases=10, seed=1, ops=["max_pool"], ranks=[1])
    text = page(run)
    assert 'data-op="boxes any" data-mode="value" data-feature="dilation"' in text
    assert "regime" not in text
    assert ">kink<" not in text


def test_rounding_left_out_is_found_and_called_so():
    run = check_bounds(PlainIntervals(), cases=12, seed=1, ops=["avg_pool"], ranks=[1])
    assert {finding.result for finding in run.findings} == {AS_ROUNDING}
    (tightness,) = run.probes
    assert tightness.op == "boxes any"
    assert float(tightness.result.partition(",")[0]) == pytest.approx(1, abs=1e-3)


def test_bounds_that_are_true_pass():
    run = check_bounds(PlainIntervals(), cases=16, seed=1, ops=["max_pool"], ranks=[1, 2])
    assert run.findings == []
    assert run.tally.modes["boxes any", "value", "pass"] > 8
    assert exit_code(run) == 0


@pytest.mark.exhaustive
def test_our_bounds_are_clean():
    run = check_bounds("bounds", cases=12, seed=3)
    assert [finding.reproducer for finding in run.findings] == []
    assert run.tally.modes["crown any", "value", "pass"] > 8


class Careless(OurBounds):
    """Takes every box as it is."""

    methods: ClassVar = {"boxes any": (EXACT,)}

    def bounds(self, case: BoundsCase, method: str, box: Ends) -> Ends:
        whole = np.full(Truth(case).shape, np.inf, np.float32)
        return -whole, whole


def test_boxes_that_are_none_must_be_errors():
    run = check_bounds(Careless(), cases=1, seed=0)
    assert [finding.rule for finding in run.findings] == [RULES["bad box"]] * 3
    assert "nan" in run.findings[1].reproducer


class Refusing(OurBounds):
    def bounds(self, case: BoundsCase, method: str, box: Ends) -> Ends:
        raise NotOfferedError("nothing is offered")


class Raising(OurBounds):
    def bounds(self, case: BoundsCase, method: str, box: Ends) -> Ends:
        raise KeyError("lost")


def test_a_refusal_is_no_defect_and_another_error_is_one():
    refused = check_bounds(Refusing(), cases=2, seed=0)
    assert refused.findings == []
    assert refused.tally.not_offered["nothing is offered"] == 2 * len(OurBounds.methods)
    assert exit_code(refused) == 2
    assert {finding.rule for finding in check_bounds(Raising(), cases=1, seed=0).findings} >= {RULES["error"]}


@pytest.mark.parametrize("box", BOXES)
def test_boxes_have_points_in_them(box):
    case = replace(next(cases(0, lambda case: None)), box=box)
    low, high = box_of(case)
    assert low.dtype == high.dtype == np.float32
    assert np.all(low <= high)
    assert all(np.all(low <= x) and np.all(x <= high) for x in Truth(case).points)
    assert box == "degenerate" or np.any(low < high)


def test_the_command(tmp_path):
    file = tmp_path / "bounds.json"
    result = CliRunner().invoke(main, ["check", "bounds", "--cases", "1", "--seed", "0", "--json", str(file)])
    assert result.exit_code == 0, result.output
    assert "No defect" in result.output
    assert "gradspec check bounds --seed 0 --cases 1" in result.output
    assert ["crown any", "value", "pass", 1] in json.loads(file.read_text())["tally"]["modes"]


@pytest.mark.parametrize("option", [["--modes", "vjp"], ["--ops", "fold"], ["--ranks", "4"], ["--dtypes", "f16"]])
def test_what_bounds_do_not_have_is_said(option):
    result = CliRunner().invoke(main, ["check", "bounds", *option])
    assert result.exit_code == 2
    assert "Error" in result.output


def test_auto_lirpa_loses_roundings():
    pytest.importorskip("torch")
    pytest.importorskip("auto_LiRPA")
    run = check_bounds("auto_lirpa", cases=6, seed=0, ops=["conv"], ranks=[2])
    assert any(finding.result == AS_ROUNDING for finding in run.findings)


def test_what_a_case_needs_is_read_off_every_step():
    conv = Problem("conv", 1, ((1, 1, 4), (1, 1, 3), None), {"padding": ((1, 1),)})
    pool = Problem("max_pool", 1, ((1, 1, 4),), {"kernel_size": (2,), "padding": ((0, 0),), "stride": (1,)})
    assert BoundsCase("", connect((1, 1, 4), (conv, pool)), "wide", "full", 0).needs == ("padding", "stride")
