"""PyTorch as a target: calls that it is known to get right, calls it documents no result for, and programs that run."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from math import inf, nan, prod
from typing import Any

import numpy as np
import pytest

from gradspec import spec
from gradspec.conformance.cases.data import drawn
from gradspec.conformance.cases.target_stream import ReferenceStream
from gradspec.conformance.checks import missing_errors
from gradspec.conformance.judge.verdicts import judge_call
from gradspec.conformance.model.case import Selection
from gradspec.conformance.model.problem import DTYPES, LAYOUTS, MODES, Array, Call, Problem, lay_out
from gradspec.conformance.model.target import NotOfferedError
from gradspec.conformance.targets import target_named
from gradspec.conformance.targets.torch import target as torch_target
from gradspec.conformance.targets.torch.functions import function, undocumented
from gradspec.conformance.targets.torch.target import TorchWindows, in_channels_last
from gradspec.system.host import enter
from patience import PATIENCE

torch = pytest.importorskip("torch")

SIZES = (5, 4, 3)


def pairs(lo: int, hi: int, rank: int) -> tuple[tuple[int, int], ...]:
    return ((lo, hi),) * rank


def problems(rank: int) -> dict[str, Problem]:
    """One of each operator, with every setting that PyTorch has."""
    sizes, one, two = SIZES[:rank], (1,) * rank, (2,) * rank
    x, doubled = (2, 4, *sizes), tuple(2 * n for n in sizes)
    settings: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
        "max_pool": ("max_pool", (x,), {"kernel_size": two, "stride": one, "padding": pairs(1, 1, rank)}),
        "ceil": ("max_pool", (x,), {"kernel_size": two, "dilation": two, "ceil_mode": True}),
        "avg_pool": (
            "avg_pool",
            (x,),
            {"kernel_size": two, "padding": pairs(1, 1, rank), "ceil_mode": True, "count_include_pad": False},
        ),
        "adaptive_max_pool": ("adaptive_max_pool", (x,), {"output_size": two}),
        "adaptive_avg_pool": ("adaptive_avg_pool", (x,), {"output_size": two}),
        "global_max_pool": ("global_max_pool", (x,), {"rank": rank, "keepdims": False}),
        "split": ("global_max_pool", (x,), {"rank": rank, "ties": "split"}),
        "global_avg_pool": ("global_avg_pool", (x,), {"rank": rank}),
        "conv": ("conv", (x, (6, 2, *two), (6,)), {"stride": two, "padding": pairs(1, 1, rank), "groups": 2}),
        "same": ("conv", (x, (3, 4, *two), None), {"padding": pairs(1, 1, rank), "dilation": two}),
        "odd": ("conv", (x, (3, 4, *two), (3,)), {"padding": pairs(0, 1, rank)}),
        "conv_transpose": (
            "conv_transpose",
            (x, (4, 3, *two), (6,)),
            {"stride": two, "padding": pairs(1, 1, rank), "groups": 2, "output_padding": one, "dilation": one},
        ),
        "max_unpool": ("max_unpool", (x, x), {"output_size": doubled}),
    }
    if rank == 2:
        settings["unfold"] = ("unfold", (x,), {"kernel_size": two, "padding": pairs(1, 1, rank), "stride": two})
        settings["fold"] = ("fold", ((2, 8, 12),), {"output_size": (5, 4), "kernel_size": two})
        settings["divisor"] = ("avg_pool", (x,), {"kernel_size": two, "divisor_override": 3})
    return {name: Problem(op, rank, shapes, given) for name, (op, shapes, given) in settings.items()}


def numbers(generator: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    """Small multiples of 1/8: their sums of products are exact in float32."""
    return (generator.integers(-8, 9, shape) / (1 if dtype.startswith("i") else 8)).astype(DTYPES[dtype])


def places(generator: np.random.Generator, shape: tuple[int, ...], cells: int) -> Array:
    planes = [generator.permutation(cells)[: prod(shape[2:])] for _ in range(prod(shape[:2]))]
    return np.stack(planes).reshape(shape)


def made(problem: Problem, mode: str, layout: str = "contiguous", seed: int = 0) -> Call:
    generator = np.random.default_rng(seed)
    inputs = [None if shape is None else numbers(generator, shape, problem.dtype) for shape in problem.shapes]
    if problem.op == "max_unpool":
        inputs[1] = places(generator, problem.shapes[0], prod(problem.attributes["output_size"]))
    call = Call(problem, mode, tuple(None if a is None else lay_out(a, layout, problem.rank) for a in inputs))
    wide = [None if a is None else a.astype(np.int64 if a.dtype.kind in "iu" else np.float64) for a in inputs]
    output = np.shape(getattr(spec, problem.op)(*wide, **problem.attributes).tolist())
    along = tuple(numbers(generator, call.named()[name].shape, problem.dtype) for name in problem.differentiable)
    g = numbers(generator, output, problem.dtype)
    return replace(
        call,
        directions=along if mode in ("jvp", "second") else (),
        cotangent=g if mode in ("vjp", "second") else None,
        layout=layout,
        output=output,
    )


def calls(target_name: str, dtype: str, rank: int) -> Iterator[Call]:
    """Every problem in every mode and variant, the layouts by turns."""
    target, turn = target_named(target_name), 0
    for problem in problems(rank).values():
        for mode in MODES:
            typed = replace(problem, dtype=dtype)
            if target.refusal(typed, mode) is not None:
                continue
            turn += 1
            call = made(typed, mode, LAYOUTS[turn % 3])
            yield from (replace(call, variant=variant) for variant in ("plain", *target.variants(typed, mode)))


def is_known_to_fail(call: Call) -> bool:
    """max_unpool's gradient raises where indices are not contiguous in memory (PyTorch issue 154341)."""
    return (
        call.problem.op == "max_unpool"
        and call.layout != "contiguous"
        and (call.mode, call.variant)
        in (
            ("vjp", "plain"),
            ("second", "plain"),
            ("jvp", "double_backward"),
        )
    )


RIGHT = (
    ("torch", "f32", 1),
    ("torch", "f32", 2),
    ("torch", "f32", 3),
    ("torch", "f64", 2),
    ("torch:channels_last", "f32", 2),
    ("torch:channels_last", "f32", 3),
)


@pytest.mark.parametrize(("target", "dtype", "rank"), RIGHT)
def test_what_pytorch_is_known_to_get_right_passes(target: str, dtype: str, rank: int) -> None:
    judged = [call for call in calls(target, dtype, rank) if not is_known_to_fail(call)]
    verdicts = [(call.problem, call.mode, v) for call in judged for v in judge_call(target_named(target), call)]
    assert [entry for entry in verdicts if entry[2].kind != "pass"] == []
    assert len(verdicts) > 60


@pytest.mark.parametrize("name", ["max_pool", "avg_pool", "adaptive_max_pool", "global_max_pool", "conv"])
def test_modules_of_graphs_pass(name: str) -> None:
    target, problem = target_named("to_torch"), problems(1)[name]
    ways = [(mode, v) for mode in MODES for v in ("plain", *target.variants(problem, mode))]
    judged = [replace(made(problem, mode, LAYOUTS[i % 3]), variant=v) for i, (mode, v) in enumerate(ways)]
    assert {verdict.kind for call in judged for verdict in judge_call(target, call)} == {"pass"}


def test_a_wrong_module_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_target, "to_torch", lambda graph: lambda x: x[..., :2] * 0)
    call = made(Problem("max_pool", 1, ((1, 1, 4),), {"kernel_size": (2,)}), "value")
    assert {verdict.kind for verdict in judge_call(target_named("to_torch"), call)} == {"defect"}


@pytest.mark.exhaustive
def test_a_module_is_shown_by_a_program() -> None:
    problem = Problem("max_pool", 1, ((1, 3),), {"kernel_size": (2,), "stride": (1,)})
    call = Call(problem, "vjp", (np.float32([[1, 3, 2]]),), cotangent=np.float32([[1, 2]]))
    program = [sys.executable, "-c", target_named("to_torch").reproducer(call)]
    shown = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE)
    assert shown.stdout.splitlines() == ["grad_x (1, 3) [[0.0, 3.0, 0.0]]"], shown.stderr


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_values_in_sixteen_bits(dtype: str) -> None:
    target = target_named("torch")
    judged = [call for call in calls("torch", dtype, 2) if call.mode == "value"]
    assert {v.kind for call in judged for v in judge_call(target, call)} == {"pass"}
    assert len(judged) > 30


def test_derivatives_that_are_sums_of_tensors_are_stored_in_parts() -> None:
    """The transpose of ``g/3`` for every cell adds up thirds that were stored in float16, without a kernel for it."""
    problem = Problem("global_avg_pool", 1, ((1, 1, 3),), {"rank": 1}, "f16")
    x, g = np.float16([[[1, 2, -3]]]), np.ones((1, 1, 1), np.float16)
    verdicts = {v.result: v for v in judge_call(target_named("torch"), Call(problem, "second", (x,), (x,), g))}
    assert verdicts["second_x"].kind == "pass"
    assert (verdicts["second_g"].kind, "parts" in verdicts["second_g"].detail) == ("pass", True)


def test_a_gradient_added_up_in_sixteen_bits_is_a_defect() -> None:
    """One cell in 4096 windows: adding ones in float16 stops at 2048."""
    problem = Problem("adaptive_avg_pool", 1, ((1, 1, 1),), {"output_size": (4096,)}, "f16")
    x, g = np.zeros((1, 1, 1), np.float16), np.ones((1, 1, 4096), np.float16)
    (verdict,) = judge_call(target_named("torch"), Call(problem, "vjp", (x,), cotangent=g))
    assert (verdict.kind, verdict.got, verdict.expected) == ("defect", "2048.0", "4096.0")
    pooled = replace(problem, op="adaptive_max_pool")
    (verdict,) = judge_call(target_named("torch"), Call(pooled, "vjp", (x,), cotangent=g))
    assert (verdict.kind, verdict.rule) == ("defect", "vjp.hits")  # and no matter of ties, for there are none


@pytest.mark.parametrize("ties", ["first", "split"])
def test_the_last_nan_wins_by_convention(ties: str) -> None:
    problem = Problem("max_pool", 1, ((1, 1, 3),), {"kernel_size": (3,), "ties": ties})
    call = Call(problem, "value", (np.float32([[[nan, 1, nan]]]),), variant="with_indices")
    kinds = {verdict.result: verdict.kind for verdict in judge_call(target_named("torch"), call)}
    assert kinds == {"y": "pass", "indices": "convention"}


def test_padding_alone_is_minus_infinity_by_documented_convention() -> None:
    problem = Problem("max_pool", 1, ((1, 1, 1),), {"kernel_size": (2,), "padding": ((1, 1),), "dilation": (2,)})
    (verdict,) = judge_call(target_named("torch"), Call(problem, "value", (np.float32([[[1]]]),)))
    assert (verdict.kind, verdict.rule, verdict.got) == ("convention", "padding_only", "-inf")


def test_an_index_of_a_window_without_cells_lies_outside_the_plane() -> None:
    """PyTorch gives the place where the window would go on, and sends the cotangent there: to another channel."""
    problem = Problem("max_pool", 1, ((1, 2, 1),), {"kernel_size": (2,), "padding": ((1, 1),), "dilation": (2,)})
    target, x = target_named("torch"), np.ones((1, 2, 1), np.float32)
    verdicts = {v.result: v for v in judge_call(target, Call(problem, "value", (x,), variant="with_indices"))}
    assert (verdicts["indices"].kind, verdicts["indices"].rule) == ("defect", "index_range")
    g = np.float32([[[10], [0]]])
    (verdict,) = judge_call(target, Call(problem, "vjp", (x,), cotangent=g))
    assert (verdict.kind, verdict.place, verdict.got, verdict.expected) == ("defect", (0, 1, 0), "10.0", "0.0")


def test_integers_are_pooled_where_there_is_a_kernel() -> None:
    target, problem = target_named("torch"), replace(problems(2)["max_pool"], dtype="i32")
    call = replace(made(problem, "value"), variant="with_indices")
    given, expected = target.run(call), spec.max_pool(call.inputs[0], **problem.attributes, return_indices=True)
    assert [given["y"].tolist(), given["indices"].tolist()] == [part.tolist() for part in expected]
    adaptive = replace(problems(2)["adaptive_max_pool"], dtype="i32")
    assert "not implemented for 'Int'" in str(target.refusal(adaptive, "value"))


REFUSED = {
    "no smooth": (Problem("smooth_max_pool", 1, ((1, 1, 4),), {"kernel_size": (2,), "beta": 1.0}), "value"),
    "rank": (Problem("conv", 4, ((1, 1, 2, 2, 2, 2), (1, 1, 1, 1, 1, 1), None), {}), "value"),
    "uneven": (Problem("max_pool", 1, ((1, 1, 4),), {"kernel_size": (2,), "padding": ((0, 1),)}), "value"),
    "uneven conv": (Problem("conv", 1, ((1, 1, 4), (1, 1, 2), None), {"padding": ((1, 0),)}), "value"),
    "wide": (Problem("avg_pool", 1, ((1, 1, 4),), {"kernel_size": (2,), "padding": ((2, 2),)}), "value"),
    "wide plane": (
        Problem("max_pool", 2, ((1, 1, 4, 4),), {"kernel_size": (2, 2), "padding": ((2, 2), (0, 0))}),
        "value",
    ),
    "dilated": (Problem("avg_pool", 1, ((1, 1, 4),), {"kernel_size": (2,), "dilation": (2,)}), "value"),
    "divisor": (Problem("avg_pool", 1, ((1, 1, 4),), {"kernel_size": (2,), "divisor_override": 2}), "value"),
    "lead": (Problem("max_pool", 1, ((2, 1, 1, 4),), {"kernel_size": (2,)}), "value"),
    "no channel": (Problem("max_pool", 1, ((4,),), {"kernel_size": (2,)}), "value"),
    "zero channels": (Problem("max_pool", 1, ((2, 0, 4),), {"kernel_size": (2,)}), "value"),
    "ties": (Problem("max_pool", 1, ((1, 1, 4),), {"kernel_size": (2,), "ties": "split"}), "vjp"),
    "all": (Problem("global_max_pool", 1, ((1, 1, 4),), {"ties": "all"}), "jvp"),
    "no outputs": (Problem("conv_transpose", 1, ((1, 1, 4), (1, 0, 2), None), {}), "value"),
    "fold": (Problem("fold", 1, ((1, 2, 3),), {"output_size": (4,), "kernel_size": (2,)}), "value"),
    "one image": (Problem("unfold", 2, ((1, 4, 4),), {"kernel_size": (2, 2)}), "value"),
    "unpool": (Problem("max_unpool", 1, ((1, 1, 4), (1, 1, 4)), {"output_size": (3,)}), "value"),
    "dtype": (Problem("avg_pool", 3, ((1, 1, 2, 2, 2),), {"kernel_size": (2, 2, 2)}, "f16"), "value"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_pytorch_does_not_document_is_refused(name: str) -> None:
    assert target_named("torch").refusal(*REFUSED[name])


def test_ties_do_not_matter_to_a_value() -> None:
    problem = Problem("max_pool", 1, ((1, 1, 4),), {"kernel_size": (2,), "ties": "split"})
    assert undocumented(problem, "value") is None


def test_unpooling_keeps_one_of_several_cells_and_takes_no_index_of_no_cell() -> None:
    problem = Problem("max_unpool", 1, ((1, 1, 2), (1, 1, 2)), {"output_size": (4,)})
    x, target = np.float32([[[1, 2]]]), target_named("torch")
    assert target.run(Call(problem, "value", (x, np.array([[[3, 0]]]))))["y"].tolist() == [[[2, 0, 0, 1]]]
    (verdict,) = judge_call(target, Call(problem, "value", (x, np.array([[[1, 1]]]))))
    assert (verdict.kind, "unpool_overwrites" in verdict.detail) == ("convention", True)
    with pytest.raises(NotOfferedError, match="no cell"):
        target.run(Call(problem, "value", (x, np.array([[[-1, 0]]]))))


def test_a_shared_gradient_is_offered_among_numbers() -> None:
    problem, target = Problem("global_max_pool", 1, ((1, 1, 2),), {"rank": 1, "ties": "split"}), target_named("torch")
    g = np.ones((1, 1, 1), np.float32)
    assert target.run(Call(problem, "vjp", (np.float32([[[3, 3]]]),), cotangent=g))["grad_x"].tolist() == [[[0.5, 0.5]]]
    with pytest.raises(NotOfferedError, match="NaN"):
        target.run(Call(problem, "vjp", (np.float32([[[3, nan]]]),), cotangent=g))


def test_channels_last_is_a_format_of_planes_and_volumes() -> None:
    target = target_named("torch:channels_last")
    refused = [bool(target.refusal(problems(rank)["conv"], "value")) for rank in (1, 2, 3)]
    assert refused == [True, False, False]
    assert in_channels_last(torch.zeros(2, 3, 4, 5)).is_contiguous(memory_format=torch.channels_last)


def test_memory_layouts_reach_pytorch() -> None:
    target, call = TorchWindows(), made(problems(2)["max_pool"], "value").mapped(lambda _: np.zeros((1, 3, 4, 5)))
    staged = {layout: target.staged(replace(call, layout=layout)).named()["x"] for layout in LAYOUTS}
    assert {layout: enter("torch", array).stride() for layout, array in staged.items()} == {
        "contiguous": (60, 20, 5, 1),
        "channels_last": (60, 1, 15, 3),
        "non_contiguous": (7 * 9 * 11 * 2, 9 * 11 * 2, 22, 2),
        "broadcast": (0, 20, 5, 1),
        "reversed": (60, 20, 5, 1),  # PyTorch has no negative strides
        "cropped": (5 * 6 * 7, 6 * 7, 7, 1),
    }


def test_what_the_documentation_rules_out_raises() -> None:
    assert missing_errors(target_named("torch")) == []
    assert len(target_named("torch").expected_errors()) > 8


def test_threads_are_set() -> None:
    before = torch.get_num_threads()
    try:
        assert target_named("torch").set_threads(1)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


# --- programs --------------------------------------------------------------------------------------------------------


def printed(text: str) -> dict[str, tuple[tuple[int, ...], list[float]]]:
    """Results as a reproducer prints them: name, shape and cells."""
    found = re.findall(r"^(\w+) \(([\d, ]*)\) (.*)$", text, re.MULTILINE)
    return {
        name: (
            tuple(int(n) for n in re.findall(r"\d+", shape)),
            [float(cell) for cell in re.findall(r"-?(?:nan|inf|[\d.]+(?:e[-+]?\d+)?)", cells)],
        )
        for name, shape, cells in found
    }


def same(results: dict[str, Array], text: str) -> bool:
    shown = printed(text)
    return set(shown) == set(results) and all(
        shown[name][0] == array.shape and np.array_equal(shown[name][1], array.ravel().astype(float), equal_nan=True)
        for name, array in results.items()
    )


def reproducible() -> list[tuple[str, Call]]:
    """Every kind of operator, half of the ways to ask for it, in different dtypes and layouts."""
    chosen = [("torch", call) for call in islice(calls("torch", "f32", 2), 0, None, 2)]
    chosen += [("torch", call) for call in islice(calls("torch", "bf16", 2), 0, None, 2) if call.mode == "vjp"]
    chosen += [("torch:channels_last", call) for call in calls("torch:channels_last", "f32", 2) if call.mode == "vjp"]
    integers = made(replace(problems(2)["max_pool"], dtype="i32"), "value")
    special = np.array([[[nan, -inf, 0.1, -0.0, 1e-45]]], np.float32)
    pool = Problem("max_pool", 1, ((1, 1, 5),), {"kernel_size": (2,), "stride": (1,)})
    empty = Problem("max_pool", 1, ((0, 1, 5),), {"kernel_size": (2,)})
    chosen += [("torch", integers), ("torch", Call(pool, "value", (special,), variant="with_indices"))]
    chosen += [("torch", Call(empty, "value", (np.zeros((0, 1, 5), np.float32),)))]
    return [(name, call) for name, call in chosen if not is_known_to_fail(call)]


@pytest.mark.exhaustive
def test_reproducers_print_what_a_run_gives() -> None:
    """Each is a whole program; they run one after another in one other process, to import PyTorch once."""
    entries = reproducible()
    programs = [target_named(name).reproducer(call) for name, call in entries]
    mark = "=== next ==="
    runner = (
        "import sys\nfor part in sys.stdin.read().split(sys.argv[1]):\n    exec(part, {})\n    print(sys.argv[1])\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", runner, mark]
    done = subprocess.run(command, input=mark.join(programs), capture_output=True, text=True, timeout=PATIENCE)
    outputs = done.stdout.split(mark)
    assert done.stderr == "", programs[len(outputs) - 1]
    wrong = [
        program
        for (name, call), program, output in zip(entries, programs, outputs, strict=False)
        if not same(target_named(name).run(call), output)
    ]
    assert wrong == []
    assert len(programs) > 50


def test_a_reproducer_is_short_and_readable() -> None:
    problem = Problem("conv", 1, ((1, 1, 3), (1, 1, 2), None), {"stride": (2,)})
    x, weight = np.float32([[[1, 0.1, -np.inf]]]), np.float32([[[1, 2]]])
    assert target_named("torch").reproducer(Call(problem, "value", (x, weight, None))).splitlines() == [
        "from math import inf",
        "",
        "import torch",
        "",
        "x = torch.tensor([[[1.0, 0.1, -inf]]])",
        "weight = torch.tensor([[[1.0, 2.0]]])",
        "y = torch.nn.functional.conv1d(x, weight, stride=(2,))",
        'print("y", tuple(y.shape), y.tolist())',
    ]


def test_a_global_pooling_of_four_axes_is_a_mean() -> None:
    problem = Problem("global_avg_pool", 4, ((3, 2, 2, 2, 2),), {"rank": 4, "keepdims": False})
    assert function(problem) == "torch.mean(x, dim=(-4, -3, -2, -1))"
    assert {v.kind for v in judge_call(target_named("torch"), made(problem, "vjp"))} == {"pass"}


# --- torch.compile ---------------------------------------------------------------------------------------------------


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The target without code generation, which takes seconds per problem: everything before it runs."""
    target = target_named("torch.compile")
    monkeypatch.setattr(target, "backend", "aot_eager")
    yield target
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["max_pool", "conv"])
def test_compiled_calls(compiled: Any, name: str) -> None:
    problem = problems(1)[name]
    for mode in ("value", "jvp", "vjp"):
        assert compiled.refusal(problem, mode) is None
        for variant in ("plain", *compiled.variants(problem, mode)):
            call = replace(made(problem, mode), variant=variant)
            assert {v.kind for v in judge_call(compiled, call)} == {"pass"}, (mode, variant)


@pytest.mark.parametrize("mode", ["value", "jvp", "vjp"])
def test_compiled_layers(compiled: Any, mode: str) -> None:
    reference = next(r for r in compiled.references if r.name == "layer_norm")
    stream = ReferenceStream(5, Selection(modes=(mode,), dtypes=("f32",)), [reference], compiled.refusal)
    call = drawn(next(case for case in stream.batch(0) if case.regime == "small"))
    assert {v.kind for v in judge_call(compiled, call)} == {"pass"}
    assert "torch.compile(dynamic=False" in compiled.reproducer(call)


def test_double_backward_is_not_offered_compiled(compiled: Any) -> None:
    assert "double backward" in compiled.refusal(problems(1)["conv"], "second")
