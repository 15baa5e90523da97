"""Shrinking and grouping: planted bugs come down to the smallest case that shows them, and are told once."""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from time import monotonic, sleep

import numpy as np
import pytest

from conformance.target_calls import call_of
from gradspec.conformance.cases.features import tags_of_call
from gradspec.conformance.judge.verdicts import judge_call
from gradspec.conformance.model.changes import Changes
from gradspec.conformance.model.codec import decode, encode
from gradspec.conformance.model.problem import FLOATS, INPUTS, MODES, Call, Problem, Results
from gradspec.conformance.model.verdict import FINDINGS, RULES, Failure, Finding, Verdict
from gradspec.conformance.oracle.expected import expected
from gradspec.conformance.shrink import search as shrinking
from gradspec.conformance.shrink.causes import explain_group, finding, groups, merge_findings, pick_varied, unexplained
from gradspec.conformance.shrink.search import manner, shrink, size
from gradspec.conformance.targets.native.target import NativeTarget
from gradspec.spec.errors import ShapeError
from gradspec.system.forking import CAN_FORK, fate
from patience import PATIENCE

ENOUGH = PATIENCE


class Planted(NativeTarget):
    """Our kernels with a bug: a function that changes the results of a call."""

    def __init__(self, bug: Callable[[Call, Results], None]) -> None:
        super().__init__()
        self.bug, self.calls = bug, 0

    def run(self, call: Call) -> Results:
        self.calls += 1
        results = super().run(call)
        self.bug(call, results)
        return results


def largest(call: Call, name: str) -> int:
    return max(np.ravel(call.problem.attributes.get(name, 1)))


def dropped_bias_gradient(call: Call, results: Results) -> None:
    if "grad_bias" in results:
        results["grad_bias"][...] = 0


def missing_dilation(call: Call, results: Results) -> None:
    if "dy" in results and largest(call, "dilation") > 1:
        results["dy"][...] = 0


def turned_groups(call: Call, results: Results) -> None:
    if call.mode == "value" and largest(call, "groups") > 1:
        channel = -call.problem.rank - 1
        results["y"][...] = np.roll(results["y"], results["y"].shape[channel] // largest(call, "groups"), channel)


def second_sample_is_the_first(call: Call, results: Results) -> None:
    if call.problem.op == "avg_pool" and len(results["y"]) > 1 and results["y"].ndim > call.problem.rank:
        results["y"][1] = results["y"][0]


def nan_is_lost(call: Call, results: Results) -> None:
    if call.mode == "value":
        results["y"][np.isnan(results["y"])] = 0


def index_of_the_row(call: Call, results: Results) -> None:
    if "indices" in results and call.problem.rank > 1:
        results["indices"] //= call.inputs[0].shape[-1]


def wide_strides_slip(call: Call, results: Results) -> None:
    if call.mode == "value" and largest(call, "stride") > 2:
        results["y"][...] += 1


def half_sums(call: Call, results: Results) -> None:
    """Float16 keeps nothing that is less than one."""
    if call.problem.dtype == "f16" and "y" in results:
        results["y"][...] = np.trunc(results["y"])


def eager_is_shifted(call: Call, results: Results) -> None:
    if call.variant == "eager" and call.layout == "channels_last":
        results["grad_x"][...] += 1


WINDOW = {"stride": (3, 1), "padding": ((1, 0), (0, 2)), "dilation": (1, 2)}
POOL = {"kernel_size": (3, 2), **WINDOW}
CONV = Problem("conv", 2, ((2, 4, 8, 6), (4, 2, 3, 2), (4,)), {**WINDOW, "groups": 2})

STARTS = {
    dropped_bias_gradient: call_of(CONV, "vjp"),
    missing_dilation: call_of(CONV, "jvp"),
    turned_groups: call_of(CONV),
    second_sample_is_the_first: call_of(Problem("avg_pool", 2, ((3, 2, 5, 6),), {**POOL, "count_include_pad": False})),
    nan_is_lost: call_of(Problem("max_pool", 3, ((2, 3, 4, 5),), {"kernel_size": (2, 2, 1), "ties": "all"})),
    index_of_the_row: call_of(Problem("max_pool", 2, ((2, 2, 6, 5),), POOL)),
    wide_strides_slip: call_of(Problem("unfold", 2, ((2, 2, 8, 6),), POOL)),
    half_sums: call_of(replace(CONV, dtype="f16")),
    eager_is_shifted: call_of(Problem("max_pool", 2, ((2, 4, 3),), {"kernel_size": (2, 2)}), "vjp", variant="eager"),
}
STARTS[nan_is_lost].inputs[0][1, 1, 2, 3] = np.nan
STARTS[half_sums] = replace(
    STARTS[half_sums], inputs=tuple(array * np.float16(0.75) for array in STARTS[half_sums].inputs)
)
STARTS[eager_is_shifted] = replace(STARTS[eager_is_shifted], layout="channels_last").in_layout()

SMALLEST = {
    dropped_bias_gradient: (((1, 1), (1, 1, 1), (1,)), {}),
    missing_dilation: (((1, 1), (1, 1, 1), None), {"dilation": (2,)}),
    turned_groups: (((2, 1), (2, 1, 1), None), {"groups": 2}),
    second_sample_is_the_first: (((2, 1),), {"kernel_size": (1,)}),
    nan_is_lost: (((1,),), {"kernel_size": (1,)}),
    index_of_the_row: (((1, 2),), {"kernel_size": (1, 1)}),
    wide_strides_slip: (((1, 1),), {"kernel_size": (1,), "stride": (3,)}),
    half_sums: (((1, 1), (1, 1, 1), None), {}),
    eager_is_shifted: (((1,),), {"kernel_size": (1,)}),
}


def findings(target: NativeTarget, failures: list[Failure], seconds: float) -> list[Finding]:
    """All findings of failures, worst first, each group of them shrunk for so many seconds."""
    return merge_findings(found for group in groups(failures) for found in explain_group(target, group, seconds))


def failures_of(target: NativeTarget, *calls: Call) -> list[Failure]:
    found = [(call, verdict) for call in calls for verdict in judge_call(target, call) if verdict.kind in FINDINGS]
    return [Failure(call, v, tuple(sorted(tags_of_call(call))), f"{i}.0") for i, (call, v) in enumerate(found)]


@pytest.fixture(scope="module", params=STARTS, ids=lambda bug: bug.__name__)
def planted(request):
    """A target with one bug, a failure that shows it, and the same shrunk."""
    target = Planted(request.param)
    (failure, *_) = failures_of(target, STARTS[request.param])
    return target, failure, shrink(target, failure, ENOUGH)


# --- shrinking --------------------------------------------------------------------------------------------------------


def test_all_axes_of_what_is_empty_become_small():
    def rounded_down(call: Call, results: Results) -> None:
        if call.problem.attributes.get("ceil_mode"):
            results["y"] = results["y"][..., :-1]

    start = call_of(Problem("max_pool", 1, ((0, 4, 9),), {"kernel_size": (2,), "ceil_mode": True}))
    target = Planted(rounded_down)
    shrunk = shrink(target, failures_of(target, start)[0], ENOUGH)
    assert max(shrunk.call.inputs[0].shape) == 1


def test_what_was_allowed_is_allowed_while_shrinking():
    """One channel has factors of 11 bits, as TF32 permits; the sum of more is wrong by any measure."""

    def short_factors(call: Call, results: Results) -> None:
        x, weight, _ = call.inputs
        short = np.round(x[0] * 2**10) / 2**10
        results["y"][...] = np.correlate(short, weight[0, 0], "valid") if len(x) == 1 else 99

    class Documented(Planted):
        def reduced(self) -> dict[str, str]:
            return {"tf32": "its manual"}

    target, allow = Documented(short_factors), frozenset({"tf32"})
    x = np.float32([[1 + 2.0**-12, 1], [0, 0]])
    weight = np.float32([[[1, -1], [0, 0]]])
    call = Call(Problem("conv", 1, (x.shape, weight.shape, None), {}), "value", (x, weight, None), output=(1, 1))
    (verdict,) = judge_call(target, call, allow)
    failure = Failure(call, verdict, (), "0.0")
    shrunk = shrink(target, failure, ENOUGH, allow)
    assert [v.kind for v in judge_call(target, shrunk.call, allow)] == ["defect"]
    assert shrunk.call.inputs[0].shape == (2, 1)
    one = replace(
        call, problem=replace(call.problem, shapes=((1, 2), (1, 1, 2), None)), inputs=(x[:1], weight[:, :1], None)
    )
    (verdict,) = judge_call(target, one, allow)
    assert shrink(target, Failure(one, verdict, (), "0.0"), ENOUGH, allow).verdict.kind == "reduced"


def test_the_smallest_case_is_found(planted):
    target, _, shrunk = planted
    problem = shrunk.call.problem
    assert (problem.shapes, dict(problem.attributes)) == SMALLEST[target.bug]
    assert problem.dtype == ("f16" if target.bug is half_sums else "f32")


def test_it_fails_as_before(planted):
    target, failure, shrunk = planted
    again = [verdict for verdict in judge_call(target, shrunk.call) if manner(verdict) == manner(failure.verdict)]
    assert again[:1] == [shrunk.verdict]
    assert shrunk.case == failure.case


def test_it_never_grows(planted):
    _, failure, shrunk = planted
    assert size(shrunk.call) < size(failure.call)
    assert all(new.size <= old.size for new, old in zip(arrays(shrunk.call), arrays(failure.call), strict=False))


def arrays(call: Call) -> list[np.ndarray]:
    return [*call.named().values()]


def test_it_cannot_be_shrunk_again(planted):
    target, _, shrunk = planted
    assert encode(shrink(target, shrunk, ENOUGH)) == encode(shrunk)


def test_it_ends_in_the_same_place():
    target = Planted(missing_dilation)
    (failure, *_) = failures_of(target, STARTS[missing_dilation])
    assert encode(shrink(target, failure, ENOUGH)) == encode(shrink(Planted(missing_dilation), failure, ENOUGH))


def test_features_are_those_of_the_shrunk_call(planted):
    *_, shrunk = planted
    assert {*shrunk.features} == tags_of_call(shrunk.call)


def test_a_variant_and_a_layout_stay_only_where_they_matter():
    start, bugs = STARTS[eager_is_shifted], (eager_is_shifted, lambda call, results: results["grad_x"].fill(1))
    for bug, left in zip(bugs, (("eager", "channels_last"), ("plain", "contiguous")), strict=True):
        target = Planted(bug)
        shrunk = shrink(target, failures_of(target, start)[0], ENOUGH)
        assert (shrunk.call.variant, shrunk.call.layout) == left


def test_numbers_become_simple():
    target = Planted(turned_groups)
    shrunk = shrink(target, failures_of(target, STARTS[turned_groups])[0], ENOUGH)
    assert sorted(cell for array in arrays(shrunk.call) for cell in array.ravel()) == [0, 1, 1, 1]


def test_ones_are_simpler_than_zeros_but_not_as_places():
    def lost(call: Call, results: Results) -> None:
        results["y"][...] = 0

    problem = Problem("max_unpool", 1, ((2, 3), (2, 3)), {"output_size": (6,)})
    target = Planted(lost)
    shrunk = shrink(target, failures_of(target, call_of(problem))[0], ENOUGH)
    assert [array.tolist() for array in shrunk.call.inputs] == [[1.0], [0]]
    assert (shrunk.verdict.got, shrunk.verdict.expected) == ("0.0", "1.0")


def test_only_what_the_target_offers_is_tried():
    class Batched(Planted):
        refused = 0

        def refusal(self, problem, mode):
            return None if len(problem.shapes[0]) == problem.rank + 2 else "it needs a batch and channels"

        def run(self, call):
            self.refused += self.refusal(call.problem, call.mode) is not None
            return super().run(call)

    target = Batched(missing_dilation)
    shrunk = shrink(target, failures_of(target, STARTS[missing_dilation])[0], ENOUGH)
    assert shrunk.call.problem.shapes == ((1, 1, 1), (1, 1, 1), None)
    assert target.refused == 0


def test_only_what_is_simpler_is_taken():
    target = Planted(missing_dilation)
    (failure, *_) = failures_of(target, STARTS[missing_dilation])
    search = shrinking.Search(target, shrink(target, failure, ENOUGH), monotonic() + ENOUGH)
    assert not search.attempt(failure.call)
    assert not search.attempt(search.call)


@pytest.mark.exhaustive
def test_what_does_not_fail_again_stays_as_it_is():
    target = Planted(missing_dilation)
    (failure, *_) = failures_of(target, STARTS[missing_dilation])
    assert shrink(NativeTarget(), failure, ENOUGH) is failure
    assert shrink(target, failure, 0.0) is failure
    deadly, before = replace(failure, verdict=Verdict("defect", "crash")), target.calls
    assert shrink(target, deadly, ENOUGH) is deadly
    assert target.calls == before


def test_runs_are_bounded(monkeypatch):
    monkeypatch.setattr(shrinking, "MOST_RUNS", 5)
    target = Planted(missing_dilation)
    (failure, *_) = failures_of(target, STARTS[missing_dilation])
    before = target.calls
    shrunk = shrink(target, failure, ENOUGH)
    assert target.calls - before == 5
    assert size(shrunk.call) < size(failure.call)


def test_checks_are_made_again():
    """A rule that no single result can break: the bits of the first run differ from those of the next."""

    def drifting(call, results):
        results["y"].ravel()[:1] += np.float32(target.calls % 2) * np.spacing(results["y"].ravel()[:1])

    target = Planted(drifting)
    call = call_of(Problem("smooth_max_pool", 1, ((2, 9),), {"kernel_size": (3,), "beta": 1.0}))
    verdict = Verdict("defect", "not_repeatable", "y", detail="run again, 1 of 6 cells have other bits")
    shrunk = shrink(target, Failure(call, verdict, (), "0.0"), ENOUGH)
    assert shrunk.call.inputs[0].size <= 3
    assert shrunk.verdict.rule == "not_repeatable"


def test_numbers_too_large_for_float32_are_no_obstacle():
    target = Planted(lambda call, results: results["y"].fill(0))
    call = call_of(Problem("avg_pool", 1, ((4,),), {"kernel_size": (2,)}, "f64"))
    call.inputs[0][...] = 1e300
    shrunk = shrink(target, failures_of(target, call)[0], ENOUGH)
    assert shrunk.call.inputs[0].tolist() == [1.0]


# --- every step is a legal call --------------------------------------------------------------------------------------

EVERY = [
    CONV,
    Problem("conv_transpose", 1, ((2, 4, 5), (4, 3, 3), (6,)), {"stride": (3,), "groups": 2, "output_padding": (2,)}),
    Problem("max_pool", 2, ((2, 6, 5),), {**POOL, "ceil_mode": True}, "f64"),
    Problem("avg_pool", 1, ((2, 6),), {"kernel_size": (3,), "divisor_override": 5, "padding": ((1, 2),)}),
    Problem("smooth_max_pool", 1, ((6,),), {"kernel_size": (3,), "beta": -3.5, "padding_mode": "ignore"}),
    Problem("adaptive_max_pool", 2, ((2, 6, 5),), {"output_size": (4, None)}),
    Problem("adaptive_avg_pool", 3, ((4, 3, 5),), {"output_size": (2, 3, 4)}),
    Problem("global_max_pool", 2, ((0, 4, 3),), {}),
    Problem("global_avg_pool", 2, ((2, 4, 3),), {"keepdims": False}),
    Problem("max_unpool", 2, ((2, 3, 2), (2, 3, 2)), {"output_size": (4, 5)}),
    Problem("unfold", 2, ((2, 3, 4, 5),), POOL | {"stride": (1, 1)}),
    Problem("fold", 2, ((6, 9),), {"output_size": (4, 5), "kernel_size": (2, 3)}),
]


def test_the_table_has_every_operator():
    assert {problem.op for problem in EVERY} == {*INPUTS}


@pytest.mark.parametrize("problem", EVERY, ids=lambda problem: problem.op)
def test_every_step_is_a_legal_call(problem):
    call = call_of(problem, "second")
    call = replace(call, directions=call.directions[: len(problem.differentiable)])
    taken = 0
    for step in Changes.of(call).smaller(None):
        try:
            small = step.call(call)
        except ShapeError:  # the geometry says that there is no such problem
            continue
        taken += 1
        assert [None if a is None else a.shape for a in small.inputs] == [*small.problem.shapes]
        assert [a.shape for a in small.directions] == [small.named()[n].shape for n in small.problem.differentiable]
        assert expected(replace(small, mode="value"))["y"].shape == small.output == small.cotangent.shape
        assert all(array.dtype == small.cotangent.dtype for array in small.directions)
    assert taken > 2


# --- causes -----------------------------------------------------------------------------------------------------------


def test_two_causes_of_one_rule_are_two_findings():
    def two(call, results):
        if largest(call, "dilation") > 1:
            results["y"][...] = 0
        elif largest(call, "stride") > 1:
            results["y"][...] += 1

    target = Planted(two)
    calls = [
        call_of(replace(CONV, attributes={**CONV.attributes, "stride": (s, 1), "dilation": (1, d)}), seed=seed)
        for s, d, seed in ((1, 2, 0), (2, 1, 1), (1, 2, 2), (1, 1, 3), (2, 2, 4), (2, 1, 5))
    ]
    failures = failures_of(target, *calls)
    assert len(groups(failures)) == 1
    found = findings(target, failures, ENOUGH)
    assert sorted(sorted(one.case["problem"]["attributes"]) for one in found) == [["dilation"], ["stride"]]
    assert sum(one.count for one in found) == len(failures) == 5


def test_one_cause_in_many_places_is_one_finding():
    def lost(call, results):
        if call.problem.op.endswith("max_pool"):
            nan_is_lost(call, results)

    target, calls = Planted(lost), []
    for op, attributes in (
        ("max_pool", {"kernel_size": (2, 2)}),
        ("adaptive_max_pool", {"output_size": (2, 1)}),
        ("global_max_pool", {}),
    ):
        for dtype in FLOATS:
            call = call_of(Problem(op, 2, ((2, 4, 4),), attributes, dtype))
            call.inputs[0][0, 1, 1] = np.nan
            calls.append(call)
    failures = failures_of(target, *calls)
    assert len(groups(failures)) == 3
    (one,) = findings(target, failures, ENOUGH)
    assert one.count == len(failures) == 12
    everywhere = {f"{call.problem.op} value {call.problem.dtype}" for call in calls}
    assert {*one.seen} == everywhere - {f"{one.op} value f32"}
    assert one.dtype == "f32"
    assert one.features == ("nan", "one_cell_axis")


def test_an_error_is_one_finding_in_every_mode_and_another_error_is_another():
    def refuses(call, results):
        if largest(call, "dilation") > 1:
            raise RuntimeError(f"dilation {call.problem.attributes['dilation']} is not supported")
        if largest(call, "stride") > 2:
            raise RuntimeError("the stride is not supported")

    target = Planted(refuses)
    modes = [call_of(replace(CONV, attributes={"dilation": (1, 2), "groups": 2}), mode) for mode in MODES]
    strided = call_of(replace(CONV, attributes={"stride": (3, 1), "groups": 2}))
    found = findings(target, failures_of(target, *modes, call_of(CONV), strided), ENOUGH)
    assert [(one.rule, one.count) for one in found] == [("raised", 5), ("raised", 1)]
    assert [len(one.seen) for one in found] == [3, 0]
    assert all(one.case["problem"]["shapes"] == [[1, 1], [1, 1, 1], None] for one in found)


def test_a_finding_says_what_it_gives_what_is_right_and_why():
    target = Planted(missing_dilation)
    failures = failures_of(target, STARTS[missing_dilation])
    (one,) = findings(target, failures, ENOUGH)
    *program, gives, right, rule = one.reproducer.splitlines()
    assert program[:2] == ["import numpy as np", "import gradspec as gs"]
    assert (gives, right) == (f"# gives: dy[0, 0] = {one.got}", f"# right: {one.expected}")
    assert rule == f"# rule: {RULES[one.rule]}"
    assert (one.op, one.mode, one.kind, one.result, one.place) == ("conv", "jvp", "defect", "dy", (0, 0))
    assert one.explanation.startswith("dy at [0, 0] is 0.0, expected 2.0")
    assert decode(Finding, encode(one)) == one
    assert encode(decode(Call, one.case)) == one.case


def test_the_worst_come_first_and_modes_stay_apart():
    def everywhere(call, results):
        for array in results.values():
            array[...] = 0

    target, problem = Planted(everywhere), Problem("conv", 1, ((1, 3), (1, 1, 2), (1,)), {})
    failures = failures_of(target, *(call_of(problem, mode) for mode in ("value", "vjp")))
    found = findings(target, failures, ENOUGH)
    assert [one.kind for one in found] == ["defect"] * len(found)
    assert {(one.mode, one.result) for one in found} == {(f.call.mode, f.verdict.result) for f in failures}
    assert merge_findings(found) == found == merge_findings(reversed(found))


def reversed_weight_gradient(call: Call, results: Results) -> None:
    if "grad_weight" in results and largest(call, "stride") > 1:
        results["grad_weight"][...] = results["grad_weight"][..., ::-1].copy()


def special_calls(mode: str) -> list[Call]:
    """A strided convolution on ordinary numbers, and with one special number each."""
    calls = [
        call_of(replace(CONV, attributes=WINDOW, shapes=((2, 2, 8, 6), (1, 2, 3, 2), None)), mode, seed=seed)
        for seed in range(4)
    ]
    for call, number in zip(calls[1:], (np.nan, np.inf, 3e38), strict=True):
        call.inputs[0][0, 0, 2, 0] = number  # which only the first tap reads
    return calls


def test_special_numbers_do_not_hide_a_plain_mistake():
    target = Planted(reversed_weight_gradient)
    failures = failures_of(target, *special_calls("vjp"))
    assert len(groups(failures)) > 1
    for met in (failures, [failure for failure in failures if "nan" in failure.features]):
        (one,) = findings(target, met, ENOUGH)
        assert (one.rule, one.count, one.seen) == ("vjp.exact_sum", len(met), ())
        assert {"nan", "infinity", "huge"}.isdisjoint(one.features)


def test_a_mistake_with_nans_alone_stays_one_beside_a_plain_one():
    def two(call: Call, results: Results) -> None:
        if largest(call, "stride") > 1:
            results["y"][...] += 1
        else:
            nan_is_lost(call, results)

    target = Planted(two)
    alone = call_of(replace(CONV, attributes={}, shapes=((2, 2, 8, 6), (1, 2, 3, 2), None)))
    alone.inputs[0][0, 1, 1, 2] = np.nan
    found = findings(target, failures_of(target, *special_calls("value"), alone), ENOUGH)
    assert [(one.rule, "nan" in one.features) for one in found] == [("value.exact_sum", False), ("special", True)]


def test_what_goes_wrong_without_channels_is_one_finding():
    def unprepared(call: Call, results: Results) -> None:
        if call.problem.shapes[1][1] == 0 and call.mode in ("value", "jvp"):
            name = "y" if call.mode == "value" else "dy"
            results[name] = results[name][:0]
        elif call.problem.shapes[1][1] == 0:
            raise RuntimeError(f"{call.mode}: nothing to do")

    target = Planted(unprepared)
    problem = Problem("conv", 1, ((2, 0, 3), (1, 0, 2), None), {})
    (one,) = findings(target, failures_of(target, *(call_of(problem, mode) for mode in MODES)), ENOUGH)
    assert {one.mode, *(where.split()[1] for where in one.seen)} == {*MODES}
    assert f"{one.op} {one.mode} {one.dtype}" not in one.seen


# --- what ends the process -------------------------------------------------------------------------------------------


class Killing(Planted):
    """Wide strides end the process, or are never done with."""

    def __init__(self, die: Callable[[], None], variant: str = "plain") -> None:
        def bug(call: Call, results: Results) -> None:
            if call.mode == "value" and largest(call, "stride") > 2 and variant in (call.variant, "plain"):
                die()

        super().__init__(bug)


def deadly(rule: str) -> Failure:
    call = STARTS[wide_strides_slip]
    return Failure(call, Verdict("defect", rule, got="the process was ended"), tuple(tags_of_call(call)), "0.0")


@pytest.mark.rows(1)
@pytest.mark.skipif(not CAN_FORK, reason="nothing is tried again where a process cannot be copied")
@pytest.mark.parametrize("die", [os.abort, lambda: os._exit(3), sys.exit], ids=["abort", "_exit", "exit"])
def test_a_crash_is_shrunk_and_this_process_lives_on(die):
    shrunk = shrink(Killing(die), deadly("crash"), ENOUGH)
    problem = shrunk.call.problem
    assert (problem.shapes, dict(problem.attributes)) == SMALLEST[wide_strides_slip]
    assert shrunk.call.inputs[0].tolist() == [[1.0]]
    assert shrunk.verdict == deadly("crash").verdict


@pytest.mark.exhaustive
@pytest.mark.skipif(not CAN_FORK, reason="nothing is tried again where a process cannot be copied")
def test_a_crash_in_one_of_several_ways_names_it():
    call = deadly("crash").call
    way = Killing(os.abort).variants(call.problem, call.mode)[-1]
    shrunk = shrink(Killing(os.abort, way), deadly("crash"), ENOUGH)
    assert shrunk.call.variant == shrunk.verdict.variant == way
    assert shrunk.call.inputs[0].size == 1


class Slept(BaseException):
    """So many seconds, by a clock that no load on the machine disturbs."""


def asleep(seconds):
    raise Slept(seconds)


def fate_by_that_clock(action, seconds):
    try:
        action()
    except Slept as slept:
        return "hang" if slept.args[0] > seconds else ""
    return ""


def test_a_hang_is_shrunk_if_it_is_one(monkeypatch):
    monkeypatch.setattr(shrinking, "fate", fate_by_that_clock)
    shrunk = shrink(Killing(lambda: asleep(60)), deadly("hang"), ENOUGH)
    assert size(shrunk.call) < size(deadly("hang").call)
    assert largest(shrunk.call, "stride") == 3
    slow = deadly("hang")
    assert shrink(Killing(lambda: asleep(1.5 * shrinking.AN_ATTEMPT)), slow, ENOUGH) is slow
    assert shrink(Killing(lambda: asleep(0)), slow, ENOUGH) is slow


@pytest.mark.exhaustive
@pytest.mark.skipif(not CAN_FORK, reason="nothing is tried again where a process cannot be copied")
def test_a_process_that_does_not_end_hangs():
    assert fate(lambda: sleep(60), 0.1) == "hang"
    assert shrink(Killing(os.abort), slow := deadly("hang"), ENOUGH) is slow


def test_few_failures_of_a_group_are_of_every_sort():
    target = Planted(missing_dilation)
    strides = [
        call_of(
            replace(CONV, attributes={"dilation": (1, 2), "stride": (s, 1)}, shapes=((2, 2, 8, 6), *CONV.shapes[1:])),
            "jvp",
        )
        for s in (1, 1, 1, 2)
    ]
    failures = failures_of(target, *strides)
    (group,) = groups(failures)
    two = pick_varied(group, 2)
    assert [failure.call.problem.attributes["stride"] for failure in two] in ([(1, 1), (2, 1)], [(2, 1), (1, 1)])
    assert {id(failure) for failure in pick_varied(group, 9)} == {id(failure) for failure in group}


@pytest.mark.exhaustive
def test_what_lacks_the_cause_is_left_over():
    target = Planted(missing_dilation)
    (failure, *_) = failures_of(target, STARTS[missing_dilation])
    other = replace(failure, call=call_of(replace(CONV, attributes={"groups": 2}), "jvp"), features=("grouped",))
    one = finding(target, [failure, other], shrink(target, failure, ENOUGH))
    assert unexplained([failure, other], one) in ([other], [])
    assert sum(part.count for part in explain_group(target, [failure, other], ENOUGH)) == 2
    crashes = [replace(each, verdict=Verdict("defect", "crash")) for each in (failure, other)]
    assert [part.count for part in explain_group(target, crashes, ENOUGH)] == [2]
