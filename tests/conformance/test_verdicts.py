"""Verdicts on kernels as people write them: right ones are not accused, and wrong ones of what is wrong with them."""

from typing import Any

import torch

from gradspec.conformance.campaign.check import check
from gradspec.conformance.model.run import Run


DEVICE = "conformance.fake_device:FakeDevice"


def verdict(kernel: Any, spec: Any, inputs: Any, **options: Any) -> Run:
    return check(kernel, spec=spec, inputs=inputs, **{"cases": 40, "seed": 0, **options})


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
    assert (defect.result, defect.reproduced) == ("grad_g", True)
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
    assert (defect.title, defect.mode, defect.reproduced) == ("It raises RuntimeError", "vjp", True)


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
