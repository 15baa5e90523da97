"""Kernels of anything that a graph can say, judged by references: right ones pass, mistakes are found and told."""

import json
import math
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner

import gradspec as gs
from conformance.reference_kernels import (
    DENSE,
    RIGHT,
    WRONG,
    Biased,
    FusedLayer,
    Layer,
    Row,
    Unbiased,
    attention_weights,
    clipped,
    dense,
    gated,
    moments,
    np_dense,
    np_label_loss,
    np_softmax,
    seeing,
    standardised,
    zeros,
)
from gradspec.cli import main
from gradspec.conformance.campaign import reproduce
from gradspec.conformance.campaign.check import check
from gradspec.conformance.cases.data import drawn
from gradspec.conformance.cases.reference_numbers import at_kink, kinks
from gradspec.conformance.cases.target_stream import propose_types
from gradspec.conformance.model.case import CheckCase
from gradspec.conformance.model.codec import decode, encode
from gradspec.conformance.model.problem import Call
from gradspec.conformance.model.reference import Reference, array_types, free_axes
from gradspec.conformance.model.run import Run
from gradspec.conformance.report import html
from gradspec.conformance.report.exports import junit_text
from gradspec.conformance.report.words import weak_cells
from gradspec.conformance.shrink import suspects
from gradspec.conformance.targets.reference.loading import reference_from
from gradspec.testing import FewCasesWarning, check_kernel
from patience import PATIENCE

pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{FewCasesWarning.__module__}.{FewCasesWarning.__qualname__}"),
]


def judged(row: Row, **options: Any) -> Any:
    return check_kernel(
        row.made, spec=row.spec, inputs=row.inputs, isolate=False, **{"cases": 36, **row.options, **options}
    )


def found(row: Row, **options: Any) -> str:
    """What the error says of a wrong kernel."""
    with pytest.raises(AssertionError) as told:
        judged(row, **options)
    return str(told.value)


# --- the tables -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", RIGHT, ids=str)
def test_right_kernels_pass(row):
    run = judged(row)
    assert run.findings == []
    assert {mode for _, mode, _ in run.tally.modes} == set(row.modes)
    assert run.tally.cases["pass"] >= 0.7 * run.cases
    assert {mode for mode, what in run.tally.cells if what == "judged"} == set(row.modes)


def _entropy(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.binary_cross_entropy(x * 0.5 + 0.25, y)


def _huber(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.huber_loss(x, y, delta=0.3)


LOSSES = (
    *(getattr(torch.nn.functional, f"{name}_loss") for name in ("smooth_l1", "soft_margin", "mse", "l1")),
    _huber,
    _entropy,
)


@pytest.mark.parametrize("shape", [(3, 2), (1, 1)], ids=str)
@pytest.mark.parametrize("dtype", [gs.f16, gs.bf16], ids=str)
@pytest.mark.parametrize("loss", LOSSES, ids=lambda f: f.__name__)
def test_losses_may_be_stored_step_by_step(loss, dtype, shape):
    """As PyTorch's kernels do, whose decompositions into other operators keep all steps in float32."""

    def drawn(rng):
        return [rng.random(shape).astype(dtype.numpy) for _ in range(2)]

    check_kernel(loss, spec=loss, inputs=drawn, cases=12, seed=3, modes=["value"], isolate=False)


@pytest.mark.rows(3)
@pytest.mark.parametrize("row", WRONG, ids=str)
def test_mistakes_are_found_and_told(row, monkeypatch):
    monkeypatch.setattr(suspects, "A_GUESS", PATIENCE)
    told = found(row, cases=45 if row.modes == ("value",) else 20, modes=row.modes)
    titles = re.findall(r"^defect \d+ of \d+: (.*?) -*$", told, re.MULTILINE)
    assert any(re.search(row.title, title) for title in titles), titles


def test_a_file_of_onnx_is_a_reference(tmp_path):
    file = tmp_path / "dense.onnx"
    onnx.save(gs.to_onnx(gs.trace(dense, gs.f32[4, 6], gs.f32[6, 5], gs.f32[5])), file)
    assert judged(Row(np_dense, file, DENSE)).findings == []
    assert "Its input" in found(Row(WRONG[0].kernel, str(file), DENSE))


def test_parameters_are_constants_or_inputs():
    layer = Layer()

    def of_parameters(x, weight, bias, scale):
        return np.maximum(x @ weight.T + bias, 0) * scale

    scale, weight, bias = (p.detach().numpy() for p in layer.parameters())

    def of_constants(x):
        return of_parameters(x, *(p.astype(x.dtype) for p in (weight, bias, scale)))

    def of_all(x, scale, weight, bias):
        return of_parameters(x, weight, bias, scale)

    assert judged(Row(of_constants, layer, "f32[3,6]"), array="numpy", cases=14).findings == []
    assert judged(Row(of_all, layer, "f32[3,6]"), array="numpy", params="inputs", cases=14).findings == []


def test_a_module_with_other_numbers_in_its_parameters_is_given_those_of_the_reference():
    kernel = FusedLayer()
    with torch.no_grad():
        kernel.scale += 1
    assert judged(Row(kernel, Layer(), "f32[3,6]"), modes=["value"], cases=14).findings == []


def test_sums_that_are_rounded_further_pass_where_that_is_allowed():
    row = Row(lambda x: x.sum(-1, dtype=np.float16).astype(x.dtype), lambda x: gs.sum(x, axis=-1), "f32[4,40]")
    small = {"features": ["cancelling"], "array": "numpy"}  # numbers that do not overflow
    told = found(row, **small)
    assert "correct up to the accumulator: 11 bits" in told
    assert judged(row, arithmetic={"accumulate": "f16"}, **small).by_kind("defect") == []


# --- cases ------------------------------------------------------------------------------------------------------------


def axes(spec: Any, inputs: Any) -> set[tuple[frozenset[tuple[int, int]], int]]:
    reference = reference_from(spec, inputs)
    return {(free.axes, free.step) for free in free_axes(reference, reference.types[0])}


def joined(*groups: set[tuple[int, int]], step: int = 1) -> set[tuple[frozenset[tuple[int, int]], int]]:
    return {(frozenset(group), step) for group in groups}


@pytest.mark.parametrize(
    ("spec", "inputs", "free"),
    [
        (lambda a, b: a @ b, "f32[4,6],f32[6,5]", joined({(0, 0)}, {(0, 1), (1, 0)}, {(1, 1)})),
        (dense, DENSE, joined({(0, 0)}, {(0, 1), (1, 0)}, {(1, 1), (2, 0)})),
        (gated, "f32[3,6],f32[6,5],f32[6,5]", joined({(0, 0)}, {(0, 1), (1, 0), (2, 0)}, {(1, 1), (2, 1)})),
        (gated, "f32[3,4],f32[4,5],f32[4,5]", joined({(0, 0)}, {(1, 1), (2, 1)})),
        (Layer(), "f32[3,6]", joined({(0, 0)})),
        (lambda x: gs.reshape(x, (2, -1)), "f32[4]", joined({(0, 0)}, step=2)),
        (gs.trace(attention_weights, gs.f32[3, 9]), "f32[3,9]", set()),
    ],
    ids=["matmul", "dense", "gated", "few cells", "module", "pairs", "graph"],
)
def test_axes_that_belong_together_move_together_and_others_stay(spec, inputs, free):
    assert axes(spec, inputs) == free


def test_sizes_that_tests_skip_are_proposed():
    reference = reference_from(dense, DENSE)
    lists = [types for types, _ in zip(propose_types(reference, "f32", [12]), range(60), strict=False)]
    assert lists[0] == reference.types[0]
    assert len({*lists}) == len(lists)
    assert all(x.shape[1] == w.shape[0] and w.shape[1] == b.shape[0] for x, w, b in lists)
    met = {axis: {types[0].shape[axis] for types in lists} for axis in (0, 1)}
    assert all({0, 1, 11, 12, 13, 24, 33} <= sizes for sizes in met.values())


def test_kernels_are_called_with_them():
    kernel = seeing(np_softmax)
    judged(Row(kernel, attention_weights, "f32[3,9]"), cases=75, array="numpy")
    assert {(1, 9), (0, 9), (3, 33), (33, 2)} <= {shape for (shape,) in kernel.shapes}


@pytest.mark.parametrize(
    ("spec", "inputs", "words"),
    [
        (dense, DENSE, ["relu at 0"]),
        (clipped, "f32[3,8]", ["clamp at -1", "clamp at 2"]),
        (lambda x, w: gs.max_pool1d(x @ w, 2), "f32[1,3],f32[3,4]", ["max_pool at a tie"]),
        (lambda a, b: gs.maximum(a * 3, b - 1), "f32[4],f32[4]", ["maximum at a tie"]),
        (lambda x: gs.relu(x * 3 - 0.75), "f32[5]", ["relu at 0"]),
        (attention_weights, "f32[3,9]", []),
    ],
    ids=["relu", "clamp", "pool", "maximum", "between numbers", "none"],
)
def test_kinks_are_met_wherever_they_can_be(spec, inputs, words):
    reference = reference_from(spec, inputs)
    types = reference.types[0]
    assert [kink.words for kink in kinks(reference.graph(types))] == words
    problem = reference.problem(types)
    arrays = {name: np.zeros(t.shape, t.dtype.numpy) for name, t in array_types(problem, "value").items()}
    met = [at_kink(reference, problem, arrays, which, np.random.default_rng(which))[1] for which in range(len(words))]
    assert all(met)


def test_a_kink_that_cannot_be_met_is_said():
    run = judged(Row(lambda x: np.maximum(x * x + 1, 0), lambda x: gs.relu(x * x + 1), "f32[5]"), array="numpy")
    assert run.unmet == ("reference: relu at 0",)


def test_integers_name_cells_and_masks_hide_some():
    seen: list[Any] = []

    def watched(x, labels):
        seen.append((x.shape, labels))
        return np_label_loss(x, labels)

    judged(Row(watched, RIGHT[5].spec, "f32[4,7],i64[4]"), array="numpy")
    assert all((labels >= 0).all() and (labels < max(shape[1], 1)).all() for shape, labels in seen if 0 not in shape)
    assert len({int(label) for shape, labels in seen if shape == (4, 7) for label in labels}) > 3


@pytest.mark.parametrize(("sizes", "labels"), [(1, {0}), (2, {0, 1})])
def test_labels_that_are_all_the_same_name_cells_too(sizes, labels):
    reference = reference_from(RIGHT[5].spec, f"f32[4,{sizes}],i64[4]")
    problem = reference.problem(reference.types[0])
    calls = [
        drawn(CheckCase(0, 0, problem, "value", "normal", "masked", "contiguous", seed, frozenset())) for seed in (2, 3)
    ]
    assert {int(label) for call in calls for label in call.inputs[1]} == labels


# --- what is reported -------------------------------------------------------------------------------------------------


def failing(row: Row, cases: int = 24) -> Any:
    return gs.conformance.check(row.made, spec=row.spec, inputs=row.inputs, cases=cases, seed=0)


def test_the_smallest_case_is_small():
    (defect,) = failing(WRONG[0]).by_kind("defect")
    assert [array["shape"] for array in defect.case["inputs"]] == [[1, 1], [1, 1], [1]]
    assert "from conformance.reference_kernels import without_bias as kernel" in defect.reproducer
    assert "gives: y[0, 0] = 1.0" in defect.reproducer


def test_cells_that_say_little_are_counted():
    run = judged(Row(lambda x: np.exp(x) - 1, lambda x: gs.exp(x) - 1, "f32[5]"), array="numpy")
    assert 0 < run.tally.cells["value", "weak"] < run.tally.cells["value", "judged"]
    assert f"of {run.tally.cells['value', 'weak']} (" in weak_cells(run)


def test_reports_are_written():
    run = failing(WRONG[0])
    assert decode(type(run), json.loads(json.dumps(encode(run)))).findings == run.findings
    suite = ET.fromstring(junit_text(run))[0]
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
    assert "Its input b is ignored" in html.page(run)


def test_a_call_of_a_reference_survives_json():
    run = failing(Row(RIGHT[5].kernel, lambda x, labels: 2 * gs.cross_entropy(x, labels), "f32[4,7],i64[4]"))
    case = run.by_kind("defect")[0].case
    call = decode(Call, json.loads(json.dumps(case)))
    assert encode(call) == case
    assert [array.dtype for array in call.inputs] == [np.float32, np.int64]
    assert call.problem.signature.names == ("x", "labels")


KERNEL = """
import numpy as np

def doubled(x):
    return 2 * x

def zeros(x):
    return np.zeros_like(x)
"""


def test_the_command_judges_by_a_reference(tmp_path, monkeypatch):
    files = [word for option in ("--json", "--junit", "--report") for word in (option, str(tmp_path / option[2:]))]
    monkeypatch.chdir(tmp_path)
    Path("kernel_here.py").write_text(KERNEL)
    request = ["check", "kernel_here:zeros", "--spec", "kernel_here:doubled", "--inputs", "f32[4,3]"]
    result = CliRunner().invoke(main, [*request, "--cases", "20", "--seed", "1", "--jobs", "1", *files])
    assert result.exit_code == 1, result.output
    assert "The result is zeros" in result.output
    assert "gradspec check kernel_here:zeros --spec kernel_here:doubled" in result.output
    (told,) = json.loads((tmp_path / "json").read_text())["findings"]
    assert told["reproduced"]
    assert "zeros as kernel" in told["reproducer"]


# --- requests that cannot be carried out ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"spec": dense}, ValueError, "spec was given without inputs; give the types of its arguments"),
        ({"inputs": DENSE, "params": "inputs"}, ValueError, "inputs and params were given without spec"),
        ({"spec": dense, "inputs": "f32(4)"}, ValueError, r"'f32\(4\)' is not a type; write one such as f32\[8,64\]"),
        ({"spec": dense, "inputs": "f33[4]"}, ValueError, r"'f33\[4\]' is not a type; .* with a dtype of f16"),
        ({"spec": dense, "inputs": ""}, ValueError, "names no types"),
        ({"spec": dense, "inputs": []}, ValueError, "inputs is empty"),
        ({"spec": dense, "inputs": [3]}, TypeError, r"3 is not the type of an input; give one such as gs.f32\[8, 64\]"),
        ({"spec": dense, "inputs": "f32[4],f32[3]"}, ValueError, r"dense does not take f32\[4\], f32\[3\]"),
        (
            {"spec": dense, "inputs": DENSE, "array": "tensorflow"},
            ValueError,
            "'tensorflow'; a kernel takes arrays of one of numpy",
        ),
        (
            {"spec": dense, "inputs": DENSE, "array": "cupy"},
            ValueError,
            "arrays of cupy lie on a GPU; give device='cuda'",
        ),
        ({"spec": 7, "inputs": DENSE}, TypeError, "7 is not a specification; give a function of gs, PyTorch or JAX"),
        (
            {"spec": dense, "inputs": DENSE, "kernel_size": {3}},
            TypeError,
            "kernel_size: such is said of the specification's operators",
        ),
        ({"spec": dense, "inputs": DENSE, "algorithm": "fft"}, TypeError, "algorithm: such is said of"),
        ({"spec": dense, "inputs": DENSE, "conventions": ["odd"]}, ValueError, "conventions names 'odd'"),
        ({"spec": dense, "inputs": DENSE, "arithmetic": {"digits": 3}}, TypeError, "an arithmetic has no digits"),
        ({"spec": "none.onnx", "inputs": DENSE}, ValueError, "none does not take"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_meant_is_told(options, error, message):
    with pytest.raises(error, match=message):
        check_kernel(zeros, isolate=False, cases=5, **options)


def test_a_domain_is_one_of_operators():
    with pytest.raises(ValueError, match="give several inputs for a reference"):
        gs.conformance.check(zeros, spec=dense, inputs=DENSE, domain="kernel_size=3", cases=5)


def test_a_reference_is_known_by_its_name_while_it_lives():
    def make() -> Reference:
        return reference_from(standardised, "f32[4,9],f32[9]")

    first = make()
    first.holder = [first]  # as a run that it took part in
    assert (first.name, make().name) == ("standardised", "standardised_2")
    del first
    assert make().name == "standardised"


@pytest.mark.exhaustive
def test_a_crash_on_a_reference_in_a_process_of_its_own_is_a_finding():
    kernel, spec = (f"conformance.kernel_doubles:{name}" for name in ("doubled_unless_one", "doubled"))
    run = check(kernel, spec=spec, inputs="f32[3,9]", cases=25, seed=0, modes=["value"], jobs=1)
    assert {finding.rule for finding in run.by_kind("defect")} == {"crash"}
    assert run.cases == 25
    assert run.errors == []


def test_a_mode_that_is_not_offered_is_named():
    with pytest.raises(ValueError, match="no case could be judged: it offers no vjp of dense"):
        judged(Row(np_dense, dense, DENSE), modes=["vjp"])


def test_what_several_results_are_is_told():
    told = found(Row(lambda x: x.mean(axis=-1), moments, "f32[4,6]"), array="numpy")
    assert "1 results were returned; 2 are meant: y0, y1" in told


# --- what a formula decides, and a reference does not -----------------------------------------------------------------


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x, dtype=x.dtype))


def sigmoid_vjp(x: Any, g: Any) -> Any:
    return g * sigmoid(x) * (1 - sigmoid(x))  # loses what is small beside 1


def gated(x: Any, y: Any) -> Any:
    return sigmoid(x) * y


def gated_vjp(x: Any, y: Any, g: Any) -> Any:
    return sigmoid_vjp(x, g) * y, g * sigmoid(x)


def product_of_finite(x: Any, a: Any) -> Any:
    return np.where(np.isinf(x), x - x, x * a)  # as a formula that meets ∞ − ∞ where the reference does not


def judged_with(special: str, kernel: Any, spec: Any, inputs: str, **options: Any) -> Run:
    return check(kernel, spec=spec, inputs=inputs, cases=40, seed=0, features=[special] * bool(special), **options)


def test_formulas_of_derivatives_and_infinities_are_no_defects() -> None:
    sigmoid.vjp = sigmoid_vjp
    gated.vjp = gated_vjp
    assert judged_with("large_numbers", sigmoid, gs.sigmoid, "f32[6,7]", modes=["vjp"]).by_kind("defect") == []
    run = judged_with("large_numbers", gated, lambda x, y: gs.sigmoid(x) * y, "f32[6,7],f32[6,7]", modes=["vjp"])
    assert run.by_kind("defect") == []
    run = judged_with("infinity", product_of_finite, lambda x, a: x * a, "f32[6],f32[6]")
    assert run.by_kind("defect") == []
    assert run.tally.cases["undecided"]


@pytest.mark.parametrize("special", ["ties", "nan"])
def test_special_numbers_are_put_into_single_numbers_too(special: str) -> None:
    seen = set[float]()

    def kernel(x: Any, b: Any) -> Any:
        seen.add(float(b))
        return x + b

    run = judged_with(special, kernel, lambda x, b: x + b, "f32[6],f32[]", modes=["value"], isolate=False)
    assert run.errors == []
    assert seen & {-1.0, 0.0, 1.0} if special == "ties" else any(map(math.isnan, seen))


def test_subnormal_numbers_that_a_formula_loses_are_of_reduced_precision() -> None:
    def flushing(x: Any, a: Any) -> Any:
        return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.float32(0), x) * a

    run = judged_with("subnormal", flushing, lambda x, a: x * a, "f32[6],f32[6]")
    assert run.by_kind("defect") == []
    assert run.by_kind("reduced")


@pytest.mark.exhaustive
@pytest.mark.parametrize(("mode", "dtype"), [("value", "f16"), ("jvp", "bf16"), ("vjp", "f16"), ("second", "bf16")])
def test_reproducers_of_modules_show_their_failures_in_small_formats(
    dtype: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduce, "A_FINDING", 600.0)  # however busy the machine
    monkeypatch.setattr("gradspec.conformance.campaign.check.SHRINKING", 1.0)  # a large case will do
    run = check(Unbiased, spec=Biased, inputs="f32[7,6]", cases=12, seed=0, dtypes=[dtype], modes=[mode], isolate=False)
    (shown,) = reproduce.verify_findings(run.findings[:1], reproduce.in_new_processes(sys.path), "a new process", 600)
    assert shown.reproduced, shown.verification
