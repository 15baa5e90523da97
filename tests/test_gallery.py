"""The gallery: every reference is a graph, agrees with PyTorch, passes its own judgement, and finds mistakes."""

import inspect
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch.nn import functional

import gradspec.gallery
from gallery import right, wrong
from gradspec.cli import main
from gradspec.conformance.campaign.check import check
from gradspec.conformance.targets.reference.kernel import ReferenceKernel

ROOT = Path(__file__).parents[1]
REFERENCES = {name: f for name, f in vars(gradspec.gallery).items() if hasattr(f, "inputs")}
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # PyTorch's, about its own code


def drawn(name, seed=0):
    """Arrays that the judge draws for a reference: ordinary numbers, of its values."""
    from gradspec.conformance.cases.data import drawn as drawn_call
    from gradspec.conformance.model.case import CheckCase

    target = ReferenceKernel(REFERENCES[name], REFERENCES[name], None)
    problem = target.reference.problem(target.reference.types[0])
    case = CheckCase(0, 0, problem, "value", "normal", None, "contiguous", seed, frozenset())
    return target, [torch.from_numpy(array) for array in drawn_call(case).named().values()]


@pytest.mark.parametrize("name", REFERENCES)
def test_a_reference_is_a_graph_of_its_own_value(name):
    target, arrays = drawn(name)
    value = target.reference.graph(target.reference.types[0])(*(array.numpy() for array in arrays))
    np.testing.assert_allclose(value, REFERENCES[name](*arrays), rtol=1e-4, atol=1e-6)


def attention(q, k, v, **more):
    return functional.scaled_dot_product_attention(q, k, v, enable_gqa=True, **more)


THEIRS = {
    "rms_norm": lambda x, weight: functional.rms_norm(x, weight.shape, weight, 1e-6),
    "layer_norm": lambda x, weight, bias: functional.layer_norm(x, weight.shape, weight, bias, 1e-5),
    "group_norm": lambda x, weight, bias: functional.group_norm(x, 4, weight, bias, 1e-5),
    "swiglu": lambda gate, up: functional.glu(torch.cat([up, gate], -1), -1) * gate,
    "softmax": partial(functional.softmax, dim=-1),
    "embedding": functional.embedding,
    "cross_entropy": functional.cross_entropy,
    "cross_entropy_smoothed": partial(functional.cross_entropy, label_smoothing=0.1),
    "cross_entropy_softcapped": lambda logits, labels: functional.cross_entropy(30 * torch.tanh(logits / 30), labels),
    "linear_cross_entropy": lambda x, weight, labels: functional.cross_entropy(functional.linear(x, weight), labels),
    "kl_div": partial(functional.kl_div, reduction="batchmean", log_target=True),
    "attention": attention,
    "causal_attention": partial(attention, is_causal=True),
    "int8_matmul": lambda a, b, rows, columns: torch._int_mm(a, b) * rows[:, None] * columns,
}
"""What PyTorch itself has."""


@pytest.mark.rows(4)
@pytest.mark.parametrize("name", THEIRS)
def test_it_agrees_with_pytorch(name):
    _, arrays = drawn(name, 1)
    if name == "int8_matmul":  # which PyTorch has for more than 16 rows
        arrays = [arrays[0].repeat(4, 1), arrays[1], arrays[2].repeat(4), arrays[3]]
    torch.testing.assert_close(REFERENCES[name](*arrays), THEIRS[name](*arrays))


@pytest.mark.parametrize("name", REFERENCES)
def test_it_is_short_and_says_what_it_is(name):
    assert len(inspect.getsource(REFERENCES[name]).splitlines()) <= 20
    assert REFERENCES[name].__doc__
    assert f"`{name}`" in (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")


@pytest.mark.rows(3)
@pytest.mark.parametrize("name", REFERENCES)
def test_it_passes_its_own_judgement(name):
    run = check(ReferenceKernel(REFERENCES[name], REFERENCES[name], None), cases=12, seed=0)
    assert run.findings == []
    assert run.tally.judged >= 6


KERNELS = [name for name, f in vars(wrong).items() if inspect.isfunction(f) and f.__module__ == wrong.__name__]


@pytest.mark.rows(2)
@pytest.mark.parametrize("name", KERNELS)
def test_a_right_kernel_passes_and_a_wrong_one_fails(name):
    spec = REFERENCES[name]
    right_run = check(ReferenceKernel(getattr(right, name), spec, None), cases=16, seed=0)
    assert [finding.title for finding in right_run.findings] == []
    wrong_run = check(ReferenceKernel(getattr(wrong, name), spec, None), cases=60, seed=0, fail_fast=True)
    assert wrong_run.by_kind("defect")


@pytest.mark.exhaustive
def test_the_command_takes_a_reference_and_its_inputs_from_the_gallery(monkeypatch):
    monkeypatch.chdir(ROOT / "examples" / "gallery")
    request = ["check", "wrong:swiglu", "--spec", "gradspec.gallery:swiglu", "--cases", "12", "--jobs", "1"]
    result = CliRunner().invoke(main, [*request, "--modes", "value", "--seed", "0"])
    assert result.exit_code == 1, result.output
    assert "gradspec check wrong:swiglu --modes value --spec gradspec.gallery:swiglu" in result.output


def test_a_partial_keeps_what_its_function_declares():
    spec = partial(gradspec.gallery.rms_norm, eps=0.5)
    run = check(ReferenceKernel(partial(gradspec.gallery.rms_norm, eps=0.5), spec, None), cases=4, seed=0)
    assert run.findings == []
    assert check(ReferenceKernel(right.rms_norm, spec, None), cases=4, seed=0, fail_fast=True).findings
