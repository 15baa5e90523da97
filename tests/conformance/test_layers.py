"""Layers of libraries beyond windows: each target on each of them, and mistakes that are found."""

import contextlib
import io
from dataclasses import replace

import pytest

from gradspec.conformance.campaign.local import InProcess
from gradspec.conformance.campaign.request import OPERATORS, selection_of
from gradspec.conformance.cases.data import drawn
from gradspec.conformance.cases.target_stream import ReferenceStream
from gradspec.conformance.judge.verdicts import Judge
from gradspec.conformance.model.case import CampaignSettings, Selection
from gradspec.conformance.targets import target_named
from gradspec.conformance.targets.layers import LAYER_NAMES, LAYERS
from gradspec.conformance.targets.user.target import UserKernels

NEEDS = {"native": (), "torch": ("torch",), "jax": ("jax",), "onnxruntime": ("onnxruntime", "onnx")}
USUAL = ("small", "rounding", "normal", "impulse")
"""Numbers on which libraries are right: there are findings about special and large ones, and about empty arrays."""


def loaded(name):
    for package in NEEDS[name]:
        pytest.importorskip(package)
    return target_named(name)


def cases_of(target, layer, modes=("value",), dtypes=("f32",)):
    (reference,) = [r for r in target.references if r.name == layer]
    stream = ReferenceStream(5, Selection(modes=modes, dtypes=dtypes), [reference], target.refusal)
    cases = [case for number in range(8 if stream.covering else 0) for case in stream.batch(number)]
    return [case for case in cases if case.regime in USUAL and not case.special and "empty" not in case.features][:24]


def kinds(target, cases):
    judged = [(c, v) for c in cases for v in Judge(target, drawn(c), frozenset()).verdicts("plain")]
    return {v.kind for _, v in judged}, [(c.problem.op, c.mode, v) for c, v in judged if v.kind == "defect"]


@pytest.mark.parametrize("layer", LAYERS)
def test_our_own_kernels_pass_in_every_mode_and_dtype(layer):
    native = target_named("native")
    found, wrong = kinds(native, cases_of(native, layer, ("value", "vjp", "jvp"), ("f32", "f16", "bf16")))
    assert wrong == []
    assert "pass" in found


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("name", ["torch", "jax", "onnxruntime"])
def test_a_library_passes_or_says_that_it_has_no_such_layer(name, layer):
    target = loaded(name)
    cases = cases_of(target, layer, ("value", "vjp") if name == "torch" else ("value",))
    if not cases:
        (reference,) = [r for r in target.references if r.name == layer]
        assert layer in target.refusal(reference.problem(reference.types[0]), "value")
        return
    found, wrong = kinds(target, cases)
    assert wrong == []
    assert found >= {"pass"}


MISTAKES = {
    "softmax": "torch.softmax(x, 0)",
    "logsumexp": "torch.log(torch.exp(x).sum(-1))",  # without a shift
    "layer_norm": "(x - x.mean(-1, keepdim=True)) / (x.std(-1, correction=0, keepdim=True) + 1e-5) * weight + bias",
    "group_norm": "torch.nn.functional.group_norm(x, 3, weight, bias, 1e-5)",
    "var": "torch.var(x, -1, correction=0)",
    "cross_entropy": 'torch.nn.functional.cross_entropy(x, labels, reduction="sum")',
    "matmul": "torch.matmul(a[:, :-1], b[:-1])",
    "gelu": 'torch.nn.functional.gelu(x, approximate="tanh")',
    "attention causal": "torch.nn.functional.scaled_dot_product_attention(query, key, value)",
}


@pytest.mark.parametrize("layer", MISTAKES)
def test_a_mistake_in_a_layer_is_found(layer):
    target = loaded("torch")
    (reference,) = [r for r in target.references if r.name == layer]
    target.expressions = {layer: MISTAKES[layer]}
    stream = ReferenceStream(5, Selection(modes=("value",), dtypes=("f32",)), [reference], target.refusal)
    assert kinds(target, stream.batch(0))[1]


@contextlib.contextmanager
def settings_of_jax_kept():
    """A program of 64-bit numbers sets them for the whole process."""
    jax = pytest.importorskip("jax")
    before = jax.config.jax_enable_x64
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.mark.parametrize("name", NEEDS)
@pytest.mark.parametrize("mode", ["value", "jvp", "vjp", "second"])
def test_a_reproducer_is_a_program_that_gives_the_result(name, mode):
    target = loaded(name)
    if name == "onnxruntime" and mode != "value":
        return
    for layer in ("layer_norm", "cross_entropy"):
        call = drawn(cases_of(target, layer, (mode,))[0])
        program, output = target.reproducer(call), io.StringIO()
        with contextlib.redirect_stdout(output), settings_of_jax_kept():
            exec(compile(program, "<reproducer>", "exec"), {})
        assert output.getvalue()
        target.run(call)


def planned(target, **selected):
    asked = dict.fromkeys(("ops", "features", "modes", "dtypes", "ranks"), ()) | {"domain": ""} | selected
    settings = CampaignSettings(target.name, 3, selection_of(**asked))
    return {case.problem.op for batch in InProcess(target, settings).plan(0, 8) for case in batch}


def test_windows_and_layers_take_turns_and_are_selected_by_name():
    native = target_named("native")
    assert planned(native, ops=["max_pool", "softmax"]) == {"max_pool", "softmax", "softmax axis=1"}
    assert planned(native, ops=["tanh"]) == {"tanh"}
    assert {*LAYER_NAMES} < {*OPERATORS}


def test_what_is_of_windows_alone_asks_for_no_layers():
    assert Selection().of_references == Selection().of_windows == Selection()
    assert Selection(ranks=(2,)).of_references is None
    assert Selection(features=("ceil_mode",)).of_references is None
    assert Selection(features=("nan",)).of_references is not None
    assert Selection(ops=("tanh",)).of_windows is None
    assert Selection(ops=("conv",)).of_references is None


def test_a_target_without_layers_says_so():
    with pytest.raises(ValueError, match="is not judged on softmax; choose from max_pool"):
        planned(UserKernels({"max_pool": lambda x: x}), ops=["softmax"])


def test_a_case_of_an_alternating_stream_has_the_number_of_its_batch():
    native = target_named("native")
    settings = CampaignSettings("native", 3, replace(Selection(), ops=("conv", "tanh")))
    batches = InProcess(native, settings).plan(0, 6)
    assert [{case.batch for case in batch} for batch in batches] == [{number} for number in range(6)]
