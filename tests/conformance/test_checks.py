"""Probes, repeatability, guards, expected errors, reduced modes: each finds its defects, and none in a plain kernel."""

import re
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import cycle

import ml_dtypes
import numpy as np
import pytest

import gradspec as gs
from conformance import fake_targets as fake
from conformance.fake_targets import ExpectingErrors, Fake, Threaded, Writing, convolution, rounded_to
from gradspec.conformance import Arithmetic, meaning
from gradspec.conformance.checks import CHECKS, check_again, guards, memory, missing_errors, repeat
from gradspec.conformance.checks.probes import probe
from gradspec.conformance.judge.reduced import ARITHMETICS, check_modes, judge_reduced
from gradspec.conformance.judge.reduced import REDUCED as MODES
from gradspec.conformance.judge.verdicts import same_bits
from gradspec.conformance.model.case import CheckCase, Selection
from gradspec.conformance.model.problem import FLOATS, LAYOUTS, Call, Problem, lay_out
from gradspec.conformance.model.target import ExpectedError
from gradspec.conformance.model.verdict import RULES
from gradspec.conformance.oracle.expected import EnclosedMeaning, GraphResults
from gradspec.conformance.targets import target_named
from gradspec.conformance.targets.native.target import ERROR_IMPORTS, ERROR_ROWS
from gradspec.domains.formats import BF16

# --- probes -----------------------------------------------------------------------------------------------------------


def with_weight(call, change):
    return replace(call, inputs=(call.inputs[0], change(call.inputs[1]), None))


ALL_FLUSHED = "flushed: subnormal inputs, sums, products"
ODD_ARITHMETIC = {
    "tf32": (Fake(convolution(rounded_to(fake.TF32))), {"significand bits kept": "11 of 24"}),
    "tf32 weights": (
        Fake(lambda call: convolution()(with_weight(call, rounded_to(fake.TF32)))),
        {"significand bits kept": "24 of 24, of weights 11"},
    ),
    "bf16 inputs": (Fake(convolution(rounded_to(BF16))), {"significand bits kept": "8 of 24"}),
    "f16 sums": (
        Fake(convolution(sums=fake.rounded_to_half), dtypes="f16"),
        {"accumulator": "11 bits, rounded to nearest", "storage roundings": "after every addition"},
    ),
    "four parts": (
        Fake(fake.in_parts, dtypes="f16"),
        {"accumulator": "11 bits, .*", "storage roundings": "4 times, in parts"},
    ),
    "truncating": (Fake(fake.truncating), {"accumulator": "24 bits, rounded toward zero"}),
    "flushed": (Fake(convolution(fake.flushed, fake.flushed)), {"flush to zero": ALL_FLUSHED}),
    "flushed inputs": (Fake(convolution(fake.flushed)), {"flush to zero": "flushed: subnormal inputs"}),
    "winograd": (
        Fake(fake.by_winograd),
        {"normwise leakage": r"outputs that .* off by 2\^-2\d of it, near it; .* declare algorithm='winograd'"},
    ),
}


@pytest.mark.parametrize("name", ODD_ARITHMETIC)
def test_probes_see_what_is_odd_and_nothing_else(name):
    target, words = ODD_ARITHMETIC[name]
    odd = {p.name: p.result for p in probe(target) if not p.normal}
    assert odd.keys() == words.keys()
    assert all(re.fullmatch(words[what], odd[what]) for what in odd), odd


@pytest.mark.parametrize(("sums", "words"), [(np.float32, "once"), (np.float16, "16 times, in parts")])
def test_probes_see_how_a_weight_gradient_adds_up_its_samples(sums, words):
    found = {p.name: p for p in probe(fake.Gradients(sums)) if p.op == "conv grad_weight"}
    assert found["storage roundings"].result == words
    assert found["storage roundings"].normal == (words == "once")
    assert found["accumulator"].normal == (words == "once")


def test_leakage_of_an_fft_is_seen():
    odd = {p.name: p.result for p in probe(Fake(fake.by_fft)) if not p.normal}
    words = r"off by 2\^-2\d of it, in its whole sample; if it is meant to, declare algorithm='fft'"
    assert re.search(words, odd["normwise leakage"])


@pytest.mark.parametrize("ops", [("conv",), ("avg_pool",), ("max_pool",)])
def test_plain_kernels_have_nothing_odd(ops):
    def run(call):
        x = call.inputs[0]
        return {"y": np.asarray(getattr(gs.spec, call.problem.op)(x, **call.problem.attributes).tolist(), x.dtype)}

    dtypes = "f32 f64 f16" if ops == ("conv",) else "f32"
    found = probe(Fake(convolution() if ops == ("conv",) else run, ops, dtypes))
    odd = [p for p in found if not p.normal]
    assert not odd
    assert {p.dtype for p in found} == set(dtypes.split())


def test_what_is_not_selected_is_not_measured():
    target = Fake(convolution(), dtypes="f32 f64 f16")
    assert {(p.op, p.dtype) for p in probe(target, selection=Selection(dtypes=("f64",)))} == {("conv", "f64")}
    assert probe(target, selection=Selection(ops=("avg_pool",))) == []


def test_declared_arithmetic_is_normal():
    class Declared(Fake):
        def arithmetic(self, problem):
            return Arithmetic.of(problem.dtype, "f16" if problem.dtype == "f16" else None, input_error=2**-11)

    kernel = convolution(rounded_to(fake.TF32), fake.rounded_to_half)
    assert all(p.normal for p in probe(Declared(kernel, dtypes="f16")))


def test_a_probe_of_a_target_that_raises_says_so():
    def fail(call):
        raise RuntimeError("no kernel")

    (found,) = probe(Fake(fail))
    assert (found.dtype, found.result, found.normal) == ("f32", "raised RuntimeError: no kernel", False)
    assert probe(Fake(fake.refuse)) == []
    assert {p.result for p in probe(Fake(convolution()), seconds=-1.0)} == {"not measured: no time left"}


# --- repeatability ----------------------------------------------------------------------------------------------------


def conv_call(seed=0, scale=1.0, dtype=np.float32, channels=6, size=6):
    random = np.random.default_rng(seed)
    shapes = ((2, channels, size, size), (3, channels, 3, 3), None)
    name = "f16" if dtype == np.float16 else "f32"
    arrays = tuple(None if s is None else (scale * random.standard_normal(s)).astype(dtype) for s in shapes)
    return Call(Problem("conv", 2, shapes, {}, name), "value", arrays, output=(2, 3, size - 2, size - 2))


def pairs_call(layout="contiguous"):
    x = lay_out(np.arange(24, dtype=np.float32).reshape(2, 3, 4) ** 2, layout, 1)
    problem = Problem("avg_pool", 1, ((2, 3, 4),), {"kernel_size": (2,), "stride": (1,)})
    return Call(problem, "value", (x,), layout=layout, output=(2, 3, 3))


def summary(verdicts):
    return [(v.kind, v.rule) for v in verdicts]


def drop_the_first(n):
    return range(1, n)


@pytest.mark.parametrize(("repeatable", "kind"), [(True, "defect"), (False, "convention")])
def test_a_sum_in_random_order_is_not_repeatable(repeatable, kind):
    target = Fake(convolution(order=fake.random_order()))
    target.repeatable = repeatable
    assert summary(repeat.repeatability(target, conv_call())) == [(kind, "not_repeatable")]


def test_a_result_that_changes_is_a_defect_if_no_kernel_may_give_it():
    orders = iter([range, drop_the_first])
    target = Fake(convolution(order=lambda n: next(orders, range)(n)))
    target.repeatable = False
    assert summary(repeat.repeatability(target, conv_call())) == [("defect", "not_repeatable")]


def test_other_bits_of_a_result_that_was_wrong_before_are_no_second_defect():
    """By another rule of choosing, say: the rule is judged where results are."""
    target = Fake(convolution(order=fake.random_order()))
    run, target.repeatable = target.run, False
    target.run = lambda call: {"y": 2 * run(call)["y"]}
    assert summary(repeat.repeatability(target, conv_call())) == [("convention", "not_repeatable")]


def test_a_second_result_in_parts_is_no_defect_of_a_target_that_composes_it():
    """The order of float16 sums that are stored on the way, in sixteen parts at most, is free as any other is."""
    call = Call(
        Problem("conv", 1, ((1, 3), (1, 1, 3), None), {}, "f16"),
        "value",
        (np.float16([[1, 2.0**-11, 2.0**-11]]), np.ones((1, 1, 3), np.float16), None),
        output=(1, 1),
    )
    sums = cycle([np.float16([[1 + 2.0**-10]]), np.float16([[1]])])
    target = Fake(lambda call: {"y": next(sums)}, dtypes="f16")
    target.repeatable = False
    assert summary(repeat.repeatability(target, call)) == [("defect", "not_repeatable")]
    sums, target.composed = cycle([np.float16([[1 + 2.0**-10]]), np.float16([[1]])]), lambda *_: frozenset({"parts"})
    assert summary(repeat.repeatability(target, call)) == [("convention", "not_repeatable")]


@pytest.mark.parametrize(
    ("order", "repeatable", "kind"),
    [
        (lambda n: reversed(range(n)), True, "defect"),
        (lambda n: reversed(range(n)), False, "convention"),
        (drop_the_first, False, "defect"),
    ],
)
def test_the_number_of_threads_shows(order, repeatable, kind):
    target = Threaded(convolution(order=order), repeatable)
    assert summary(repeat.threads(target, conv_call())) == [(kind, "threads")]
    assert target.threads == 1


def test_a_state_that_survives_a_call_shows():
    seen = []

    def run(call):
        seen.append(call.named()["x"].ravel()[0])
        return {"y": fake.averages(call.named()["x"]) + np.float32(len(set(seen)))}

    (verdict,) = repeat.repeatability(
        Fake(run, ("avg_pool",)), replace(pairs_call(), inputs=(pairs_call().inputs[0] + 1,))
    )
    assert "after a call on other numbers" in verdict.detail


def test_a_second_call_that_raises_is_a_defect():
    calls = iter([convolution()])

    def run(call):
        return next(calls)(call)

    (verdict,) = repeat.repeatability(Fake(run), conv_call())
    assert (verdict.kind, verdict.rule, verdict.got) == ("defect", "not_repeatable", "StopIteration: ")


def test_results_in_one_buffer_show():
    verdicts = repeat.repeatability(Fake(fake.OneBuffer(), ("avg_pool",)), pairs_call())
    assert summary(verdicts) == [("defect", "guard")]


# --- memory -----------------------------------------------------------------------------------------------------------

BAD_WRITERS = {
    fake.write_too_far: ("guard", "beside"),
    fake.write_too_early: ("guard", "beside"),
    fake.leave_one_out: ("guard", "not written"),
    fake.add_to: ("guard", "full of"),
    fake.change_input: ("input_changed", "wrote into"),
}


@pytest.mark.parametrize("writer", BAD_WRITERS, ids=lambda writer: writer.__name__)
def test_a_kernel_that_writes_wrongly_is_seen(writer):
    rule, words = BAD_WRITERS[writer]
    call = pairs_call()
    verdict, *_ = guards.outputs(Writing(writer), call)
    assert same_bits(call.inputs[0], pairs_call().inputs[0])
    assert (verdict.kind, verdict.rule) == ("defect", rule)
    assert words in verdict.detail


def test_the_cell_that_is_not_written_is_named():
    (verdict,) = guards.outputs(Writing(fake.leave_one_out), pairs_call())
    assert verdict.place == (0, 0, 0)
    assert verdict.expected == "0.5"
    assert "6 of 18 cells" in verdict.detail


def test_a_kernel_that_reads_beyond_its_input_is_seen():
    (verdict,) = guards.inputs(Fake(fake.read_too_far, ("avg_pool",)), pairs_call())
    assert (verdict.kind, verdict.rule, verdict.got) == ("defect", "guard", "nan")


def test_a_kernel_that_ignores_gaps_is_seen():
    def as_if_dense(call):
        x = call.named()["x"]
        dense = np.lib.stride_tricks.as_strided(x, (x.size,), (x.itemsize,))
        return {"y": fake.averages(dense.reshape(x.shape))}

    assert summary(guards.inputs(Fake(as_if_dense, ("avg_pool",)), pairs_call("non_contiguous"))) == [
        ("defect", "guard")
    ]


@pytest.mark.parametrize("fresh", [True, False])
def test_a_result_in_its_inputs_memory_is_a_defect_where_fresh_ones_are_promised(fresh):
    problem = Problem("max_pool", 1, ((4,),), {"kernel_size": (1,)})
    target = Fake(lambda call: {"y": call.named()["x"]}, ("max_pool",))
    target.fresh_results = fresh
    verdicts = guards.inputs(target, Call(problem, "value", (np.ones(4, np.float32),)))
    assert summary(verdicts) == ([("defect", "guard")] if fresh else [])


def test_another_order_of_summation_is_no_matter_of_memory():
    target = Fake(convolution(order=fake.random_order()))
    assert guards.inputs(target, conv_call()) == []


def test_a_kernel_whose_out_raises_is_a_defect():
    def fail(x, out):
        raise TypeError("no out")

    (verdict,) = guards.outputs(Writing(fail), pairs_call())
    assert (verdict.rule, verdict.got) == ("raised", "TypeError: no out")


@pytest.mark.skipif(sys.platform != "linux", reason="pages are protected as Linux does it")
@pytest.mark.parametrize(("at_end", "place"), [(True, 3), (False, -1)])
def test_a_step_over_the_fence_ends_the_process(at_end, place):
    program = f"""
import ctypes, numpy as np
from gradspec.conformance.checks.memory import fenced
x = fenced(np.ones(3), at_end={at_end})
print(ctypes.c_double.from_address(x.ctypes.data + 8 * (0 if {at_end} else 2)).value, flush=True)
ctypes.c_double.from_address(x.ctypes.data + 8 * {place}).value
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (-signal.SIGSEGV, "1.0\n")


PLACINGS = {
    "beside": memory.beside,
    "between": lambda array: memory.between(array, 0xFF)[0],
    "fenced at its end": memory.fenced,
    "fenced at its beginning": lambda array: memory.fenced(array, at_end=False),
}


@pytest.mark.parametrize("name", PLACINGS)
def test_arrays_keep_their_numbers_and_strides_wherever_they_are_put(name):
    for dtype in (np.float32, ml_dtypes.bfloat16, np.int64):
        for shape in ((2, 3, 4), (0, 3, 4), (2, 0), ()):
            for layout in LAYOUTS:
                array = lay_out(np.arange(np.prod(shape)).reshape(shape).astype(dtype), layout, 1)
                put = PLACINGS[name](array)
                assert same_bits(put, array)
                assert put.strides == array.strides
                assert not np.shares_memory(put, array)
                assert put.flags.writeable


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.look.__name__)
def test_plain_kernels_pass_every_check(check, layout):
    assert check.look(Writing(fake.write), pairs_call(layout)) == []
    assert check.look(Threaded(convolution(), True), conv_call()) == []


def test_checks_of_a_call_that_is_refused_or_fails_say_nothing():
    for check in CHECKS:
        assert check.look(Fake(fake.refuse), conv_call()) == []


def case(batch, index, *features):
    problem = conv_call().problem
    return CheckCase(batch, index, problem, "value", "rounding", None, "contiguous", 0, frozenset(features))


@pytest.mark.parametrize("features", [(), ("large", "rank4")])
def test_every_place_in_a_batch_meets_every_check_in_turn(features):
    for check in CHECKS:
        period = check.every_costly if features else check.every
        for batch in range(period):
            assert sum(check.applies(case(batch, index, *features)) for index in range(period)) == 1
        assert all(any(check.applies(case(b, i, *features)) for b in range(period)) for i in range(period))


def test_checks_are_made_on_their_cases_and_again_by_rule():
    target = Writing(fake.write_too_far)
    made = [
        check.look.__name__
        for check in CHECKS
        for i in range(5)
        if check.applies(case(0, i)) and check.look(target, pairs_call())
    ]
    assert made == ["outputs"]
    assert summary(check_again(target, pairs_call(), "guard"))[0] == ("defect", "guard")
    assert check_again(target, pairs_call(), "threads") == []
    assert all(rule in RULES for check in CHECKS for rule in check.rules)


# --- expected errors --------------------------------------------------------------------------------------------------


def expected(call, raises=(ValueError,)):
    return ExpectedError("conv", call, raises, "", "it says so")


def test_expected_errors_that_are_missing():
    def wrong():
        raise KeyError("x")

    def right():
        raise gs.ShapeError("no")

    target = ExpectingErrors(expected(right), expected(wrong), expected(lambda: (np.ones((2, 3)), 5)))
    found = [(v.kind, v.rule, v.got, v.expected) for _, v in missing_errors(target)]
    assert found == [
        ("defect", "promised_error", "KeyError: 'x'", "ValueError"),
        ("defect", "promised_error", "(an array of shape (2, 3), 5)", "ValueError"),
    ]


@pytest.mark.parametrize("functions", [gs.spec, gs], ids=["spec", "eager"])
def test_the_specification_raises_the_expected_errors(functions):
    errors = [row.expected(ERROR_IMPORTS, lambda: {"gs": functions, "np": np}) for row in ERROR_ROWS]
    assert len(errors) == 40
    assert missing_errors(ExpectingErrors(*errors)) == []


def test_an_expected_error_reads_as_a_program():
    sources = [error.source for error in target_named("native").expected_errors()]
    for source in sources:
        compile(source, "error", "exec")
    assert "gs.max_pool(np.zeros((1, 2, 4, 5), np.float32), kernel_size=(2, 0))" in sources[0]


# --- reduced modes ----------------------------------------------------------------------------------------------------


REDUCED = {
    "tf32": (convolution(rounded_to(fake.TF32)), conv_call()),
    "truncated_tf32": (convolution(lambda x: (x.view(np.int32) & -(1 << 13)).view(np.float32)), conv_call()),
    "bf16_inputs": (convolution(rounded_to(BF16)), conv_call()),
    "ftz": (convolution(fake.flushed, fake.flushed), conv_call(scale=2.0**-66)),
    "low_precision_accumulate": (convolution(sums=fake.rounded_to_half), conv_call(dtype=np.float16, channels=32)),
    "parts": (fake.in_parts, conv_call(dtype=np.float16, channels=32)),
}


def judged(kernel, call, names):
    exact = meaning("conv", *call.inputs)
    return judge_reduced(exact, kernel(call)["y"], Arithmetic.of(call.problem.dtype), names)


@pytest.mark.parametrize("mode", REDUCED)
def test_a_reduced_result_is_permitted_by_its_mode_alone(mode):
    kernel, call = REDUCED[mode]
    exact = meaning("conv", *call.inputs)
    assert not exact.judge(kernel(call)["y"], Arithmetic.of(call.problem.dtype)).passed
    assert judged(kernel, call, [mode]) == mode
    assert judged(kernel, call, []) is None
    narrower = {"tf32": ["ftz", "truncate"], "truncated_tf32": ["ftz"], "ftz": ["tf32", "truncate"]}
    assert judged(kernel, call, narrower.get(mode, ["ftz", "tf32"])) is None


def test_a_truncating_sum_is_permitted_where_truncation_is():
    ones = np.float32([[[1.0, *[2.0**-24 * 1.75] * 63]]])
    call = Call(
        Problem("conv", 1, (ones.shape, (1, 1, 64), None), {}), "value", (ones, np.ones((1, 1, 64), np.float32), None)
    )
    assert judged(fake.truncating, call, ["truncate"]) == "truncate"


@pytest.mark.parametrize(("mode", "bits"), [("tf32", 11), ("truncated_tf32", 10), ("bf16_inputs", 8)])
def test_factors_may_be_rounded_to_nearest_and_no_further(mode, bits):
    almost_half = np.float32(1 + 2.0**-bits - 2.0**-23)  # rounds down to 1, losing nearly a unit roundoff
    too_much = np.float32(1 + 2.0 ** (1 - bits) - 2.0**-23)
    for x, words in ((almost_half, mode), (too_much, None)):
        exact = meaning("conv", np.full((1, 1), x), np.full((1, 1, 1), x))
        assert judge_reduced(exact, np.float32([[1.0]]), Arithmetic.of("f32"), [mode]) == words


def test_two_liberties_at_once():
    call = conv_call()
    tiny = 2.0**-66 * call.inputs[0][1]  # one sample whose products underflow, one whose factors are rounded
    x = np.stack([call.inputs[0][0], tiny]).astype(np.float32)
    weight = call.inputs[1].copy()
    weight[1] *= np.float32(2.0**-66)
    call = replace(call, inputs=(x, weight, None))
    kernel = convolution(lambda a: fake.flushed(rounded_to(fake.TF32)(a)), fake.flushed)
    assert judged(kernel, call, ["ftz"]) is None
    assert judged(kernel, call, ["tf32"]) is None
    assert judged(kernel, call, ["tf32", "ftz"]) == "ftz+tf32"


@pytest.mark.parametrize("mode", MODES)
def test_no_mode_permits_a_wrong_result(mode):
    for dtype in (np.float32, np.float16):
        call = conv_call(dtype=dtype)
        assert judged(lambda call: {"y": -convolution()(call)["y"]}, call, [mode]) is None


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_permits_what_is_permitted_anyway_and_no_copies(mode):
    call = conv_call(dtype=np.float16)
    assert judged(convolution(), call, [mode]) == mode
    chosen = meaning("max_pool", np.float32([1, 2]), (2,))
    assert judge_reduced(chosen, np.float32([1]), Arithmetic.of("f32"), [mode]) is None


def test_special_results_stay_special():
    exact = meaning("conv", np.float16([[np.nan, 1.0]]), np.float16([[[1, 1]]]))
    for got in (0.0, np.inf):
        assert judge_reduced(exact, np.float16([[got]]), Arithmetic.of("f16"), ["parts"]) is None


def test_names_of_modes():
    assert set(ARITHMETICS) < set(MODES)
    assert check_modes([]) == ()
    assert check_modes(("tf32", "ftz")) == ("ftz", "tf32")
    with pytest.raises(ValueError, match=r"'tf16' is not a mode .* cuda_functions, fast_math"):
        check_modes(["ftz", "tf16"])


def test_liberties_of_functions_are_named_before_flushing():
    """Which lets exact sums round, and so permits some of what functions do."""
    x, y = np.random.default_rng(0).normal(size=(2, 64)).astype(np.float32)
    graph = gs.trace(lambda x, y: x * y + gs.exp(x), gs.f32[64], gs.f32[64])
    asked = EnclosedMeaning(GraphResults(graph, [x, y]), 0)
    near = (x.astype(np.float64) * y + np.exp(x.astype(np.float64))).astype(np.float32)
    got = np.nextafter(np.nextafter(near, np.float32(np.inf)), np.float32(np.inf))
    assert judge_reduced(asked, got, Arithmetic.of("f32"), ["ftz"]) == "ftz"
    assert judge_reduced(asked, got, Arithmetic.of("f32"), ["ftz", "cuda_functions"]) == "cuda_functions"


def test_rounding_inputs_is_of_float32_alone():
    for dtype in ("f16", "bf16", "f64"):
        assert ARITHMETICS["tf32"](Arithmetic.of(dtype)) == Arithmetic.of(dtype)


# --- our own kernels --------------------------------------------------------------------------------------------------


def test_our_kernels_are_clean():
    native = target_named("native")
    found = probe(native)
    assert {(p.op, p.dtype) for p in found} == {(op, t) for op in ("conv", "conv grad_weight") for t in FLOATS}
    assert all(p.normal and not p.result.startswith("not") for p in found)
    for layout in LAYOUTS:
        for check in CHECKS:
            assert check.look(native, pairs_call(layout)) == []
            assert check.look(native, conv_call()) == []
    assert missing_errors(native) == []
