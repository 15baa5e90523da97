"""Verdicts on kernels as people write them: right ones are not accused, and wrong ones of what is wrong with them."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import gradspec as gs
from conformance.fake_device import FakeDevice, beyond
from gradspec import gallery
from gradspec.cli import main
from gradspec.conformance.campaign.check import check
from gradspec.conformance.campaign.reproduce import verify_findings
from gradspec.conformance.checks.guards import unwritten
from gradspec.conformance.command import exit_code
from gradspec.conformance.judge.verdicts import judge_call
from gradspec.conformance.model.problem import lay_out
from gradspec.conformance.model.reference import call_of
from gradspec.conformance.model.run import Run
from gradspec.conformance.model.verdict import Failure, Finding
from gradspec.conformance.report.exports import junit_text
from gradspec.conformance.report.words import summarize, too_few
from gradspec.conformance.shrink.search import shrink
from gradspec.conformance.targets.reference.kernel import ReferenceKernel
from gradspec.system.forking import unforkable
from patience import PATIENCE

DEVICE = "conformance.fake_device:FakeDevice"


@pytest.fixture(autouse=True)
def new_device(monkeypatch):
    """As in a process that has not used it."""
    monkeypatch.setattr(FakeDevice, "user", 0)
    for limit in ("check.VERIFYING", "check.SHRINKING", "reproduce.A_FINDING"):
        monkeypatch.setattr(f"gradspec.conformance.campaign.{limit}", PATIENCE)


def verdict(kernel: Any, spec: Any, inputs: Any, **options: Any) -> Run:
    return check(kernel, spec=spec, inputs=inputs, **{"cases": 40, "seed": 0, **options})


def is_shown(finding: Finding) -> bool:
    """Whether a program shows it: programs of kernels that no module has need a copy of this process."""
    return finding.reproduced is (None if unforkable() else True)


def titles(run: Run) -> list[str]:
    return [finding.title for finding in run.by_kind("defect")]


# --- names of inputs --------------------------------------------------------------------------------------------------


def gate(x, g):
    return torch.sigmoid(g) * x


def gate_of_names(x, dx, g):
    return x * dx + torch.tanh(g)


def test_inputs_may_have_the_names_of_cotangents_and_directions():
    for kernel, inputs in ((gate, "f32[3,4],f32[3,4]"), (gate_of_names, "f32[3],f32[3],f32[3]")):
        run = verdict(kernel, kernel, inputs, cases=48)
        assert titles(run) == []
        assert {mode for _, mode, kind in run.tally.modes if kind == "pass"} == {"value", "jvp", "vjp", "second"}


def test_findings_about_such_inputs_have_programs_that_show_them():
    def wrong(x, g):
        return torch.sigmoid(g.detach()) * x

    (defect,) = verdict(wrong, gate, "f32[3,4],f32[3,4]", modes=["vjp"]).by_kind("defect")
    assert defect.result == "grad_g"
    assert is_shown(defect)
    assert "g_ = np." in defect.reproducer


# --- modes that raise -------------------------------------------------------------------------------------------------


def doubled(x):
    return 2 * x


class RaisesBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        raise RuntimeError("expected a stride of 1")


class ChangesItsCotangent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return g.mul_(2)


def raising(x):
    return RaisesBackward.apply(x)


def changing(x):
    return ChangesItsCotangent.apply(x)


def test_a_backward_pass_that_always_raises_is_a_defect():
    (defect,) = verdict(raising, torch.nn.Identity(), "f32[3,4]", modes=["vjp"], cases=12).by_kind("defect")
    assert (defect.title, defect.mode) == ("It raises RuntimeError", "vjp")
    assert is_shown(defect)


def test_a_backward_pass_that_changes_its_cotangent_on_a_device_is_a_defect():
    run = verdict(changing, doubled, "f32[3,4]", modes=["vjp"], cases=12, device=DEVICE, array="torch")
    assert titles(run) == ["It changes its cotangent"]


# --- values and derivatives -------------------------------------------------------------------------------------------


def total(x):
    return torch.sum(x, -1)


class ImpreciseWithWrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.half().sum(-1).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        return 2 * g[..., None].expand(ctx.shape)


def imprecise_with_wrong_gradient(x):
    return ImpreciseWithWrongGradient.apply(x)


def test_an_imprecise_value_hides_no_wrong_gradient():
    run = verdict(imprecise_with_wrong_gradient, total, "f32[3,24]", modes=["value", "vjp"], cases=45)
    assert {finding.result for finding in run.by_kind("defect")} == {"y", "grad_x"}


def squares_but_the_last(x):
    """Wrong in the last column, and so are its derivatives."""
    return torch.where(torch.arange(x.shape[-1]) < x.shape[-1] - 1, x * x, x)


class WrongTwice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x + x

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0]


def wrong_twice(x):
    return WrongTwice.apply(x)


def square(x):
    return x * x


def test_derivatives_that_follow_from_a_wrong_value_are_no_findings_of_their_own():
    run = verdict(squares_but_the_last, square, "f32[3,5]", cases=60)
    (finding,) = run.by_kind("defect")
    assert finding.mode == "value"
    assert {where.split()[1] for where in finding.seen} >= {"jvp", "vjp", "second"}


def test_a_gradient_that_is_wrong_by_itself_is_a_finding_beside_a_wrong_value():
    run = verdict(wrong_twice, square, "f32[3,5]", modes=["value", "vjp"], cases=60)
    assert {finding.result for finding in run.by_kind("defect")} == {"y", "grad_x"}


# --- bits that vary ---------------------------------------------------------------------------------------------------

CHANCE = np.random.default_rng(0)


def in_any_order(x):
    """Twice the input, up to some units in the last place that no two calls have in common."""
    steps = CHANCE.integers(-2, 3, x.shape) * CHANCE.integers(0, 2)
    return (2 * x * (1 + steps * 2.0**-23)).astype(x.dtype)


in_any_order.repeatable = False


def test_bits_that_vary_accuse_neither_memory_nor_earlier_calls():
    run = verdict(in_any_order, doubled, "f32[3,9]", array="numpy", cases=120)
    assert {finding.rule for finding in run.by_kind("defect")} <= {"spec.sum", "spec.exact_sum", "not_repeatable"}
    assert run.by_kind("defect")


def reading_beyond(x):
    """Twice the input, of which the last cell is multiplied with what lies behind the input."""
    y = (2 * x * (1 + CHANCE.integers(-1, 2) * 2.0**-23)).astype(x.dtype)
    if x.flags.c_contiguous and x.size % 4:
        y.ravel()[-1] += 0 * beyond(x, x.size + 1)[-1]
    return y


reading_beyond.repeatable = False


def test_poison_that_shows_accuses_memory_though_bits_vary():
    """It may crash, and is judged in copies of this process even if JAX was used here: it does not use JAX."""
    run = verdict(reading_beyond, doubled, "f32[3,9]", array="numpy", cases=60, modes=["value"], isolate=True)
    assert "It reads memory outside its inputs" in titles(run)


def without_the_last(x):
    y = torch.empty_like(x)
    y[..., :-1] = 2 * x[..., :-1]
    return y


@pytest.mark.parametrize("device", ["cpu", DEVICE])
def test_cells_that_are_never_written_are_told(device):
    run = verdict(without_the_last, doubled, "f32[3,4]", modes=["value"], device=device, array="torch")
    defect = max(run.by_kind("defect"), key=lambda finding: finding.count)  # other cells may hold NaNs of their own
    assert defect.title == "It returns cells of torch.empty that it never wrote"
    assert "on_nans" in defect.reproducer
    assert is_shown(defect)


def without_strides(x):
    return 2 * x.as_strided(x.shape, torch.empty(x.shape).stride())


def test_gaps_on_a_device_are_not_taken_for_memory_of_the_kernel():
    target = ReferenceKernel(without_strides, doubled, "f32[3,4]", array="torch").on(FakeDevice())
    x = lay_out(np.ones((3, 4), np.float32), "non_contiguous", 2)
    call = call_of(target.reference.problem(target.reference.types[0]), "value", {"x": x}, "non_contiguous")
    assert np.isnan(target.run(call)["y"]).any()
    assert unwritten(target, call) == []


# --- causes -----------------------------------------------------------------------------------------------------------


def scaled(x):
    return x / 127


def off_by(relative):
    def kernel(x):
        return (x.astype(np.float64) / 127 * (1 + relative)).astype(x.dtype)

    return kernel


def by_reciprocal(x):
    return x * np.float32(1 / 127)


@pytest.mark.parametrize(
    ("kernel", "title", "size"),
    [
        (by_reciprocal, "The result is right only if arithmetic may be truncate", r"by 1 unit in the last place"),
        (off_by(10 * 2**-23), "The result is not as precise as f32 allows", r"by 1?\d units in the last place"),
        (off_by(0.015), "The result is off by 1.5 %", r"by 1.5 %, [\d,e+.]+ times what is permitted"),
    ],
    ids=["a unit", "ten units", "much"],
)
def test_no_larger_liberty_than_needed_is_named(kernel, title, size):
    (defect,) = verdict(kernel, scaled, "f32[3,9]", array="numpy", cases=60).by_kind("defect")
    assert defect.title == title
    assert re.search(size, defect.explanation)


class HalfOfTheZLoss(torch.autograd.Function):
    """Cross entropy and its z-loss, whose gradient lacks the factor of 2."""

    @staticmethod
    def forward(ctx, logits, labels):
        ctx.save_for_backward(logits, labels)
        return gallery.cross_entropy_z_loss(logits, labels)

    @staticmethod
    def backward(ctx, g):
        logits, labels = ctx.saved_tensors
        kept = labels != gallery.IGNORED
        shares = torch.softmax(logits, -1)
        picked = torch.nn.functional.one_hot(torch.where(kept, labels, 0), logits.shape[1])
        change = shares - picked + 1e-4 * torch.logsumexp(logits, -1, keepdim=True) * shares
        return g * change * kept[:, None] / kept.sum(), None


def test_no_liberty_is_named_that_leaves_no_sign():
    run = verdict(HalfOfTheZLoss.apply, gallery.cross_entropy_z_loss, None, modes=["vjp"], cases=20, seed=2)
    assert titles(run) == ["The gradient of logits is wrong"]


def flushing_exp(x):
    """As fast as CUDA's, and 0 far below 0."""
    return np.where(x < -60, np.float32(0), np.exp2(x * np.float32(1.4426950408889634)))


def fast_exp_of_either(x, y):
    return np.exp2(x * np.float32(1.4426950408889634)) * y


def of_small_exponents(rng):
    return [array.astype(np.float32) for array in (-40 * rng.random(16), rng.random(16))]


def variance(x):
    return gs.mean((x - gs.mean(x, 1, keepdims=True)) ** 2, 1)


def variance_by_moments(x):
    return (x * x).mean(1) - x.mean(1) ** 2


def far_from_zero(rng):
    return [(4096 + rng.standard_normal((3, 16))).astype(np.float32)]


fast_exp_of_either.arithmetic = variance_by_moments.arithmetic = "triton"


@pytest.mark.parametrize(
    ("kernel", "spec", "inputs", "liberty"),
    [
        (fast_exp_of_either, lambda x, y: gs.exp(x) * y, of_small_exponents, "fast_math"),
        (variance_by_moments, variance, far_from_zero, "variance_by_moments"),
    ],
    ids=["exp", "variance"],
)
def test_of_the_liberties_of_a_profile_the_narrowest_is_named(kernel, spec, inputs, liberty):
    run = verdict(kernel, spec, inputs, array="numpy", modes=["value"])
    assert [finding.title for finding in run.findings] == [f"The result has the precision of {liberty}"]


def test_a_defect_is_told_where_nothing_that_is_allowed_permits_it():
    target = ReferenceKernel(flushing_exp, gs.exp, "f32[2]")
    problem = target.reference.problem(target.reference.types[0])
    call = call_of(problem, "value", {"x": np.float32([49, -70])})
    (verdict,) = judge_call(target, call, frozenset({"fast_math"}))
    assert (verdict.kind, verdict.place) == ("defect", (1,))
    failure = Failure(call, verdict, (), "0.0")
    assert shrink(target, failure, 20.0, frozenset({"fast_math"})).call.named()["x"][-1] < -60


# --- references and inputs as people write them -----------------------------------------------------------------------


def rows_of_any_length(rng):
    return [rng.standard_normal((2, int(rng.integers(1, 9)))).astype(np.float32)]


def test_inputs_that_are_drawn_may_vary_in_size():
    sizes = set()

    def kernel(x):
        sizes.add(x.shape)
        return 2 * x

    run = verdict(kernel, doubled, rows_of_any_length, array="numpy", cases=60)
    assert titles(run) == []
    assert len(sizes) > 3


def by_methods(x):
    return x.softmax(-1).clamp_min(0.25)


def by_a_nested_function(x):
    def inner(x):
        return torch.relu(x)

    return inner(x) * 2


def by_a_generator(x):
    return sum(torch.tanh(x) * n for n in range(2))


@pytest.mark.parametrize("spec", [by_methods, by_a_nested_function, by_a_generator])
def test_references_of_pytorch_are_known_by_what_they_do(spec):
    run = verdict(spec, spec, "f32[3,4]", cases=24)
    assert titles(run) == []
    assert run.tally.cases["pass"] > 12


# --- programs that take long ------------------------------------------------------------------------------------------


def test_a_program_that_does_not_end_in_time_says_nothing_of_its_finding():
    late = {"arrays": [], "flags": [], "error": "", "signal": 9, "late": True}
    (defect,) = verdict(lambda x: 0 * x, doubled, "f32[3,4]", array="numpy", cases=12).by_kind("defect")
    defect = replace(defect, reproduced=None)
    (told,) = verify_findings([defect], lambda programs, _: iter([late] * len(programs)), "a new process", 60.0)
    assert (told.reproduced, told.verification) == (None, "not run: it did not end within 60 s")


def test_programs_have_the_time_that_starting_takes():
    given = []
    (defect,) = verdict(lambda x: 0 * x, doubled, "f32[3,4]", array="numpy", cases=12).by_kind("defect")
    verify_findings(
        [defect], lambda _, seconds: iter(given.append(seconds) or []), "a new process", 200.0, starting=40.0
    )
    assert given[0] > 40


# --- what was not judged ----------------------------------------------------------------------------------------------


def detached(x):
    return 2 * x.detach()


def test_a_mode_that_was_asked_for_and_not_judged_is_told_and_is_no_success():
    run = verdict(detached, doubled, "f32[3,4]", modes=["value", "vjp"], array="torch", cases=24)
    assert "Not judged: VJP, because its result does not carry derivatives." in summarize(run)
    assert exit_code(run) == 3
    assert "Not judged: VJP" in junit_text(run)


def test_a_mode_that_nobody_asked_for_is_told_only():
    run = verdict(lambda x: 2 * x, doubled, "f32[3,4]", array="numpy", cases=24)
    assert "Not judged: JVP, because it has no jvp; VJP, because it has no vjp;" in summarize(run)
    assert exit_code(run) == 0


def test_modes_take_turns_from_the_first_case_on():
    run = verdict(doubled, doubled, "f32[3,4]", array="torch", cases=8)
    assert {mode for _, mode, _ in run.tally.modes} == {"value", "jvp", "vjp", "second"}


def test_at_least_is_asked_of_each_mode():
    run = verdict(doubled, doubled, "f32[3,4]", array="torch", cases=12, at_least=3)
    assert (run.lacks, exit_code(run)) == (0, 0)
    run = verdict(doubled, doubled, "f32[3,4]", array="torch", cases=12, at_least=5)
    assert run.lacks
    assert "and at least 5 of each mode were asked for" in too_few(run)


def cancelled(x):
    return gs.exp(x) - gs.exp(x + 2**-20)


def test_cells_of_which_the_enclosure_says_little_are_told_with_the_operator():
    def kernel(x):
        return np.exp(x) - np.exp(x + np.float32(2**-20))

    run = verdict(kernel, cancelled, "f32[5]", array="numpy", cases=30)
    assert re.search(r"of \d+ % of the cells of values the enclosure says little, mostly by sub", summarize(run))


# --- findings as issues -----------------------------------------------------------------------------------------------

KERNEL = """
def doubled(x):
    return 2 * x

def tripled(x):
    return 3 * x
"""


def test_a_finding_can_be_filed_as_an_issue(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("kernel_filed.py").write_text(KERNEL)
    request = ["check", "kernel_filed:tripled", "--spec", "kernel_filed:doubled", "--inputs", "f32[8,6]"]
    limits = ["--cases", "20", "--seed", "1", "--jobs", "1", "--format", "github"]
    result = CliRunner().invoke(main, [*request, *limits])
    assert result.exit_code == 1, result.output
    text = result.stdout
    assert text.startswith("## The result is wrong\n")
    assert "`doubled` value f32: y at [0, 0] is 3.0, expected 2.0. 1 of 1 wrong, the first by 50 %" in text
    assert "**Smallest case:** x 1×1" in text
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert "from kernel_filed import tripled as kernel" in program
    assert "gradspec check kernel_filed:tripled --spec kernel_filed:doubled" in text
