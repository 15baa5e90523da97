"""The target ``native``: every way to make a call means the operator, and its programs make the call again."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.target_calls import call_of
from gradspec.conformance.checks import missing_errors
from gradspec.conformance.judge.verdicts import judge_call
from gradspec.conformance.model.problem import DTYPES, INPUTS, LAYOUTS, MODES, Call, Problem, lay_out
from gradspec.conformance.model.target import NotOfferedError
from gradspec.conformance.targets import target_named
from gradspec.conformance.targets.native.target import NativeTarget, other_kernels, sample, samples, ways_to
from gradspec.conformance.targets.program import literal

NATIVE = NativeTarget()
WINDOW = {"kernel_size": (3, 2), "stride": (2, 1), "padding": ((1, 0), (0, 2))}
PROBLEMS = {
    "max": Problem("max_pool", 2, ((2, 2, 5, 4),), WINDOW),
    "max, one sample": Problem("max_pool", 1, ((7,),), {"kernel_size": (3,), "dilation": (2,), "ties": "split"}),
    "average": Problem("avg_pool", 2, ((2, 5, 4),), {**WINDOW, "count_include_pad": False}, "f16"),
    "smooth": Problem("smooth_max_pool", 1, ((2, 5),), {"kernel_size": (2,), "beta": -0.5}),
    "adaptive max": Problem("adaptive_max_pool", 2, ((2, 5, 4),), {"output_size": (3, 2)}, "f64"),
    "adaptive average": Problem("adaptive_avg_pool", 1, ((2, 5),), {"output_size": (3,)}),
    "global max": Problem("global_max_pool", 3, ((2, 2, 2, 3),), {}),
    "global average": Problem("global_avg_pool", 2, ((2, 1, 2, 4),), {"keepdims": False}),
    "conv": Problem("conv", 1, ((2, 4, 7), (6, 2, 3), (6,)), {"stride": (2,), "padding": ((2, 1),), "groups": 2}),
    "transposed": Problem("conv_transpose", 2, ((2, 2, 2, 3), (2, 3, 2, 2), None), {"stride": (2, 1)}, "bf16"),
    "unpool": Problem("max_unpool", 1, ((2, 3), (2, 3)), {"output_size": (6,)}),
    "unfold": Problem("unfold", 2, ((2, 2, 4, 3),), {"kernel_size": (2, 3), "padding": ((1, 0), (0, 0))}),
    "fold": Problem("fold", 1, ((2, 4, 3),), {"output_size": (4,), "kernel_size": (2,)}),
}
CALLS = [(name, mode) for name in PROBLEMS for mode in MODES]


def every_way(target: NativeTarget, call: Call) -> list[Call]:
    """The call in every variant, also those whose turn it is not."""
    variants = ("plain", *other_kernels(call.problem, call.mode), *ways_to(call.problem))
    assert {*target.variants(call.problem, call.mode)} <= {*variants}
    return [replace(call, variant=variant) for variant in variants]


def in_layout(call: Call, layout: str) -> Call:
    def lay(array):
        return None if array is None else lay_out(array, layout, call.problem.rank)

    return replace(
        call,
        inputs=tuple(map(lay, call.inputs)),
        directions=tuple(map(lay, call.directions)),
        cotangent=lay(call.cotangent),
        layout=layout,
    )


@pytest.fixture(scope="module", params=CALLS, ids=" ".join)
def call(request):
    name, mode = request.param
    call = call_of(PROBLEMS[name], mode)
    moving = call.directions[: len(call.problem.differentiable)]
    return in_layout(replace(call, directions=moving), LAYOUTS[CALLS.index(request.param) % len(LAYOUTS)])


def test_the_table_has_every_operator():
    assert {problem.op for problem in PROBLEMS.values()} == {*INPUTS}


def test_every_way_passes(call):
    assert NATIVE.refusal(call.problem, call.mode) is None
    for way in every_way(NATIVE, call):
        kinds = {verdict.kind for verdict in judge_call(NATIVE, way)}
        assert kinds in ({"pass"}, {"pass", "undecided"}), way.variant


def test_plain_gives_every_result(call):
    given = {*NATIVE.run(call)}
    assert given == {*call.problem.results(call.mode)} - (
        {"indices"} if call.problem.op == "global_max_pool" else set()
    )


def test_results_go_into_given_arrays(call):
    results = NATIVE.run(call)
    outs = {name: np.full_like(array, 7) for name, array in results.items()}
    NATIVE.run_into(call, outs)
    assert all(np.array_equal(outs[name], array) for name, array in results.items())


def printed_by(program: str) -> list[np.ndarray]:
    """What a program prints. It is run here, with a print of ours: a process for each would take minutes."""
    printed = []
    exec(program, {"print": lambda *results, sep=None: printed.extend(results)})
    parts = [array for part in printed for array in (part if isinstance(part, tuple) else [part])]
    return [array for array in parts if array is not None]


def test_programs_make_the_call_again(call):
    _, *others = every_way(NATIVE, call)
    chosen = others[len(call.problem.op) % len(others)]
    for way in (call, chosen):
        results, printed = NATIVE.run(way), printed_by(NATIVE.reproducer(way))
        if way.variant == "one_by_one":  # its programs print one sample after the other, with what sums over them
            every = len(printed) // samples(call.problem)
            named = zip(call.problem.results(call.mode), range(every), strict=False)
            shown = {name: np.stack(printed[i::every]) for name, i in named}
        else:
            shown = dict(zip(results, printed, strict=True))
        assert all(np.array_equal(shown[name], array) for name, array in results.items()), way.variant


def test_samples_are_cut_from_all_that_has_them():
    call = call_of(PROBLEMS["conv"], "second")
    one = sample(call, 1)
    assert [array.shape for array in one.inputs] == [(4, 7), (6, 2, 3), (6,)]
    assert np.array_equal(one.cotangent, call.cotangent[1])
    assert np.array_equal(one.directions[0], call.directions[0][1])
    assert one.directions[1] is call.directions[1]


def test_a_problem_is_compiled_once():
    target, call = NativeTarget(), call_of(PROBLEMS["max"], "vjp")
    target.run(call)
    first = target._compiled(call)
    target.run(replace(call, inputs=(call.inputs[0] + 1,)))
    assert target._compiled(call) is first
    assert len(target._scopes) == 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["max", "conv", "fold"])
def test_empty_batches(name, mode):
    problem = PROBLEMS[name]
    empty = replace(problem, shapes=((0, *problem.shapes[0][1:]), *problem.shapes[1:]))
    for way in every_way(NATIVE, call_of(empty, mode)):
        assert {verdict.kind for verdict in judge_call(NATIVE, way)} <= {"pass"}, way.variant


@pytest.mark.parametrize("dtype", ["i8", "u8", "i32", "i64"])
def test_integers_have_maxima_and_no_averages(dtype):
    for name in ("max", "adaptive max", "global max"):
        for way in every_way(NATIVE, call_of(replace(PROBLEMS[name], dtype=dtype))):
            assert {verdict.kind for verdict in judge_call(NATIVE, way)} == {"pass"}
    assert "no integers" in NATIVE.refusal(replace(PROBLEMS["average"], dtype=dtype), "value")
    assert "no derivatives" in NATIVE.refusal(replace(PROBLEMS["max"], dtype=dtype), "vjp")


def test_it_raises_the_expected_errors_and_is_named():
    assert target_named("native").name == "native"
    assert len(NATIVE.expected_errors()) > 30
    assert missing_errors(NATIVE) == []
    assert NATIVE.set_threads(1)
    assert "gradspec" in NATIVE.versions()


@pytest.mark.parametrize("variant", ["eager", "one_by_one"])
def test_some_ways_make_their_own_arrays(variant):
    call = call_of(PROBLEMS["max"])
    with pytest.raises(NotOfferedError, match=variant):
        NATIVE.run_into(replace(call, variant=variant), NATIVE.run(call))


@pytest.mark.parametrize("dtype", DTYPES)
def test_literals_read_back_bit_by_bit(dtype):
    import ml_dtypes

    random = np.random.default_rng(3)
    bits = random.integers(0, 256, 60 * DTYPES[dtype].itemsize, np.uint8).view(DTYPES[dtype]).reshape(3, 4, 5)
    for array in (bits, bits[:0], bits[0, 0, 0], np.full((5,), bits[0, 0, 0])):
        again = eval(literal(np.asarray(array)), {"np": np, "ml_dtypes": ml_dtypes})
        assert again.dtype == array.dtype
        assert np.array_equal(again, array, equal_nan=dtype[0] not in "iu")
        if dtype[0] not in "iu":
            kept = ~np.isnan(array)
            assert np.array_equal(np.signbit(again)[kept], np.signbit(array)[kept])


def test_ways_take_turns():
    problems = [Problem("conv", 1, ((2, 1, n), (1, 1, 2), None), {}) for n in range(2, 40)]
    chosen = [NATIVE.variants(problem, "vjp") for problem in problems]
    assert all(len(variants) == 2 and variants[0] == "derivative_alone" for variants in chosen)
    assert {variants[1] for variants in chosen} == {*ways_to(problems[0])}
    assert chosen == [NativeTarget().variants(replace(problem), "vjp") for problem in problems]
