"""What the judge says of targets that are right, wrong, or merely different."""

from dataclasses import replace

import numpy as np
import pytest

from gradspec import spec
from gradspec.conformance import checks
from gradspec.conformance.checks import examine
from gradspec.conformance.judge.conventions import (
    CONVENTIONS,
    ChoiceRule,
    choices,
    chosen_meaning,
    is_transposed,
    partners,
)
from gradspec.conformance.judge.verdicts import judge_call
from gradspec.conformance.model.case import CheckCase
from gradspec.conformance.model.problem import MODES, SELECTIONS, Call, Problem
from gradspec.conformance.model.target import NotOfferedError, Target
from gradspec.conformance.model.verdict import RULES, Verdict, explain
from gradspec.conformance.oracle.expected import expected

nan, inf = np.nan, np.inf


def correct(call):
    """The oracle's own results, rounded once."""
    x = call.named()["x"]
    return {
        name: meaning.rounded("f64").astype(np.int64 if name == "indices" else x.dtype)
        for name, meaning in expected(call).items()
        if meaning is not None
    }


class Fake(Target):
    """Right, but for what ``change`` makes of the results of a call."""

    name = "fake"

    def __init__(self, change=None, offers=MODES, documents=(), strict=False, ways=(), reduced=()):
        self.change, self.offers, self.documents, self.strict = change, offers, documents, strict
        self.ways, self.modes = ways, reduced

    def versions(self):
        return {}

    def refusal(self, problem, mode):
        return None if mode in self.offers else f"no {mode}"

    def run(self, call):
        results = correct(call)
        return results if self.change is None else self.change(call, results) or results

    def reproducer(self, call):
        return ""

    def variants(self, problem, mode):
        return self.ways

    def conventions(self):
        return frozenset(self.documents)

    def reduced(self):
        return dict.fromkeys(self.modes, "its manual")


def call_of(op, mode, *inputs, directions=(), cotangent=None, **attributes):
    arrays = tuple(None if array is None else np.asarray(array) for array in inputs)
    shapes = tuple(None if array is None else array.shape for array in arrays)
    rank = arrays[0].ndim if op in SELECTIONS or "pool" in op else arrays[0].ndim - 2
    dtype = {"float32": "f32", "float16": "f16", "float64": "f64"}.get(arrays[0].dtype.name, "i64")
    problem = Problem(op, rank, shapes, attributes, dtype)
    tangents = tuple(np.asarray(d) for d in directions)
    return Call(problem, mode, arrays, tangents, None if cotangent is None else np.asarray(cotangent))


def max_call(mode, x, **attributes):
    """Max pooling of one axis, with tangents and cotangents that tell the cells apart."""
    x = np.float32(x)
    attributes = {"kernel_size": (len(x),)} | attributes
    outputs = np.shape(spec.max_pool(x.tolist(), **attributes).tolist())
    directions = (np.arange(1, x.size + 1, dtype=np.float32),) if mode in ("jvp", "second") else ()
    cotangent = 10 * np.arange(1, 1 + int(np.prod(outputs)), dtype=np.float32) if mode in ("vjp", "second") else None
    return call_of("max_pool", mode, x, directions=directions, cotangent=cotangent, **attributes)


def only(verdicts):
    """The one verdict that is no pass."""
    (found,) = [verdict for verdict in verdicts if verdict.kind != "pass"]
    assert found.rule in RULES or found.kind in ("undecided", "not_offered")
    return found


def conv_call(mode, dtype=np.float32, special=None):
    """Small integers, so that all sums are exact."""
    rng = np.random.default_rng(3)

    def draw(*shape):
        return rng.integers(1, 4, shape).astype(dtype)

    x, weight, bias = draw(2, 2, 5), draw(3, 2, 2), draw(3)
    if special is not None:
        weight[0, 0, 0] = special
    directions = (draw(2, 2, 5), draw(3, 2, 2), draw(3)) if mode in ("jvp", "second") else ()
    cotangent = draw(2, 3, 6) if mode in ("vjp", "second") else None
    options = {"padding": ((1, 1),)}
    return call_of("conv", mode, x, weight, bias, directions=directions, cotangent=cotangent, **options)


# --- what a call means -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["conv", "conv_transpose"])
def test_second_derivatives_of_convolution_are_those_of_its_specification(op):
    call = conv_call("second")
    if op == "conv_transpose":
        x, weight, bias = call.inputs
        flipped = (x.reshape(2, 2, 5), weight.transpose(1, 0, 2).copy(), bias)
        call = call_of(
            op, "second", *flipped, directions=flipped, cotangent=np.float32(np.arange(24) % 3).reshape(2, 3, 4),
            padding=((1, 1),),
        )  # fmt: skip
    x, weight, bias = call.inputs
    v, g, step = call.directions, call.cotangent, 2.0**-3

    def paired(x, weight, bias, g):
        gradients = getattr(spec, f"{op}_vjp")(x, weight, bias, g, padding=((1, 1),))
        return sum(float((np.array(d.tolist()) * u).sum()) for d, u in zip(gradients, v, strict=True))

    meanings = expected(call)
    for name, at in {"x": 0, "weight": 1, "bias": 2, "g": 3}.items():
        found = meanings[f"second_{name}"].rounded("f64")
        arguments = [np.array(a, np.float64) for a in (x, weight, bias, g)]
        direction = np.arange(arguments[at].size).reshape(arguments[at].shape) % 3 - 1.0
        ends = []
        for sign in (1, -1):
            moved = list(arguments)
            moved[at] = moved[at] + sign * step * direction
            ends.append(paired(*moved))
        assert (ends[0] - ends[1]) / (2 * step) == float((found * direction).sum())


def test_large_integers_are_not_taken_for_their_neighbours():
    call = call_of("max_pool", "value", np.array([2**60, 2**60 + 1]), kernel_size=(2,))
    assert {v.kind for v in judge_call(Fake(lambda call, r: {"y": np.array([2**60 + 1]), "indices": [1]}), call)} == {
        "pass"
    }
    wrong = judge_call(Fake(lambda call, r: {"y": np.array([2**60]), "indices": np.array([0])}), call)
    assert [v.rule for v in wrong] == ["value.selection", "indices"]


@pytest.mark.parametrize("op", SELECTIONS)
def test_every_maximum_has_indices(op):
    options = {"max_pool": {"kernel_size": (3,)}, "adaptive_max_pool": {"output_size": (1,)}}.get(
        op, {"keepdims": False}
    )
    call = call_of(op, "value", np.float32([1, 7, 7]), **options)
    y, indices = expected(call)["y"], expected(call)["indices"]
    assert (y.shape, indices.shape) == (((), ()) if op == "global_max_pool" else ((1,), (1,)))
    assert indices.rounded("f64").ravel().tolist() == [1]


# --- right and wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_correct_results_pass(mode):
    for call in (conv_call(mode), conv_call(mode, np.float16), max_call(mode, [1, 5, 5, 2, 9, nan], kernel_size=(3,))):
        assert {verdict.kind for verdict in judge_call(Fake(), call)} == {"pass"}


def spoilt(name, place=0, to=None):
    def change(call, results):
        array = results[name].copy()
        flat = array.reshape(-1)
        flat[place] = np.nextafter(flat[place], array.dtype.type(inf)) if to is None else to
        return results | {name: array}

    return change


WRONG = {
    "value.selection": (max_call("value", [1, 5, 2]), spoilt("y")),
    "value.sum": (call_of("avg_pool", "value", np.float32([0.1, 0.7, 0.3]), kernel_size=(3,)), spoilt("y", to=0.366)),
    "value.exact_sum": (conv_call("value"), spoilt("y")),
    "value.smooth": (
        call_of("smooth_max_pool", "value", np.float32([1, 2]), kernel_size=(2,), beta=1.0),
        spoilt("y", to=2.0),
    ),
    "indices": (max_call("value", [1, 5, 2]), spoilt("indices", to=2)),
    "index_range": (max_call("value", [1, 5, 2]), spoilt("indices", to=3)),
    "jvp.selection": (max_call("jvp", [1, 5, 2]), spoilt("dy")),
    "jvp.exact_sum": (conv_call("jvp"), spoilt("dy")),
    "vjp.hits": (max_call("vjp", [1, 5, 2]), spoilt("grad_x", 1)),
    "vjp.exact_sum": (conv_call("vjp"), spoilt("grad_bias")),
    "second": (conv_call("second"), spoilt("second_weight")),
    "special": (max_call("value", [1, 5, 2]), spoilt("y", to=nan)),
    "shape": (conv_call("value"), lambda call, r: {"y": r["y"][..., 1:]}),
    "dtype": (conv_call("value"), lambda call, r: {"y": r["y"].astype(np.float64)}),
}


@pytest.mark.parametrize("rule", WRONG)
def test_what_is_wrong_names_the_rule(rule):
    call, change = WRONG[rule]
    verdict = only(judge_call(Fake(change), call))
    assert (verdict.kind, verdict.rule) == ("defect", rule)
    assert explain(verdict).endswith(RULES[rule])


def test_padding_only_windows_that_differ_among_themselves_are_wrong():
    call = max_call("value", [1, 2, 3], kernel_size=(1,), padding=((2, 2),), stride=(1,))
    verdict = only(judge_call(Fake(spoilt("y", 0, 9)), call))
    assert (verdict.kind, verdict.rule, verdict.place) == ("defect", "padding_only", (0,))


def test_what_a_target_raises_is_its_defect_and_what_it_does_not_offer_is_not():
    def refuses(call, results):
        raise NotOfferedError("no such rank")

    def fails(call, results):
        raise RuntimeError("out of luck")

    call = conv_call("value")
    assert only(judge_call(Fake(refuses), call)) == Verdict("not_offered", detail="no such rank")
    assert only(judge_call(Fake(fails), call)).got == "RuntimeError: out of luck"
    assert only(judge_call(Fake(lambda call, r: {"other": r["y"]}), call)).kind == "not_offered"


def test_a_call_that_writes_into_its_inputs_is_found_and_undone():
    def writes(call, results):
        call.inputs[1][0, 0, 0] = 77

    call = conv_call("value")
    before = call.inputs[1].copy()
    verdict = only(judge_call(Fake(writes), call))
    assert (verdict.kind, verdict.rule, verdict.result) == ("defect", "input_changed", "weight")
    assert (call.inputs[1] == before).all()


def test_a_tolerance_that_proves_nothing_is_undecided():
    tiny = np.float32([2.0**-100])
    call = call_of(
        "conv", "value", tiny.reshape(1, 1, 1) * np.float32(1.5), tiny.reshape(1, 1, 1) * np.float32(1.7), None
    )
    verdict = only(judge_call(Fake(), call))
    assert (verdict.kind, verdict.detail) == ("undecided", "the tolerance of 1 of 1 says nothing")


def test_smooth_maxima_of_second_order_are_undecided():
    call = call_of(
        "smooth_max_pool", "second", np.float32([1, 2]), directions=[np.float32([1, 1])], cotangent=np.float32([1]),
        kernel_size=(2,), beta=1.0,
    )  # fmt: skip
    target = Fake(lambda call, r: r | {"second_x": np.zeros(2, np.float32)})
    assert only(judge_call(target, call)).result == "second_x"


# --- conventions -----------------------------------------------------------------------------------------------------

TIED, NANS, LOWEST = [1, 5, 5, 2], [nan, 5, nan, 2], [-inf, -inf]
DATA = {
    ChoiceRule(ties="last"): TIED,
    ChoiceRule(ties="all"): TIED,
    ChoiceRule(ties="split"): TIED,
    ChoiceRule(nans="last"): NANS,
    ChoiceRule(nans="all"): NANS,
    ChoiceRule(nans="split"): NANS,
    ChoiceRule(padding="lowest"): LOWEST,
}


def choosing(choice, modes=MODES):
    """Another rule of choosing, in some modes."""

    def change(call, results):
        if call.mode not in modes:
            return None
        names = [name for name in results if name in ("indices", "dy", "grad_x", "second_g")]
        found = {name: chosen_meaning(call, name, choice).rounded("f64").astype(results[name].dtype) for name in names}
        return results | found

    return change


def tied_call(choice, mode):
    return max_call(
        mode, DATA[choice], **({"padding": ((1, 0),), "kernel_size": (3,)} if choice.padding != "absent" else {})
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("choice", DATA, ids=lambda choice: choice.names[0])
def test_another_rule_kept_everywhere_is_a_convention(choice, mode):
    verdicts = judge_call(Fake(choosing(choice)), tied_call(choice, mode))
    if mode == "value" and choice.share != "first":
        assert {verdict.kind for verdict in verdicts} == {"pass"}
        return
    verdict = only(verdicts)
    assert (verdict.kind, choice.names[0] in verdict.detail) == ("convention", True)
    assert only(judge_call(Fake(choosing(choice), strict=True), tied_call(choice, mode))).kind == "defect"


@pytest.mark.parametrize("mode", ["jvp", "vjp"])
@pytest.mark.parametrize("choice", DATA, ids=lambda choice: choice.names[0])
def test_another_rule_in_one_derivative_only_is_a_defect(choice, mode):
    verdict = only(judge_call(Fake(choosing(choice, (mode,))), tied_call(choice, mode)))
    assert (verdict.kind, verdict.rule) == ("defect", "adjoint")
    documented = Fake(choosing(choice, (mode,)), documents=choice.names)
    assert only(judge_call(documented, tied_call(choice, mode))).kind == "convention"


def test_the_whole_gradient_to_all_is_no_subgradient():
    for choice, kind in ((ChoiceRule(ties="all"), "defect"), (ChoiceRule(ties="split"), "convention")):
        assert only(judge_call(Fake(choosing(choice), offers=("vjp",)), tied_call(choice, "vjp"))).kind == kind


def test_a_rule_that_was_asked_for_has_no_alternative():
    call = max_call("vjp", TIED)
    asked = replace(call, problem=replace(call.problem, attributes=call.problem.attributes | {"ties": "split"}))
    assert only(judge_call(Fake(choosing(ChoiceRule(ties="last"))), asked)).rule == "vjp.hits"


def test_a_lost_nan_is_a_defect_unless_documented():
    call = max_call("value", NANS)

    def passes_over(call, results):
        return results | {"y": np.float32([5]), "indices": np.array([1])}

    assert {v.kind for v in judge_call(Fake(passes_over), call)} == {"defect"}
    assert {v.kind for v in judge_call(Fake(passes_over, documents=["nan_ignored"]), call)} == {"convention"}


def test_any_tied_cell_is_a_convention_if_the_vjp_is_the_transpose_of_the_jvp():
    x, middle = [5, 5, 5, 5], [0, 1, 0, 0]

    def in_the_middle(call, results):
        named = {"dy": np.float32([2]), "grad_x": np.float32(middle) * 10, "indices": np.array([1])}
        if call.mode == "jvp":
            named["dy"] = call.directions[0][1:2]
        if call.mode == "vjp":
            named["grad_x"] = np.float32(middle) * call.cotangent
        return {name: named.get(name, results[name]) for name in results}

    for mode in ("value", "jvp", "vjp"):
        verdict = only(judge_call(Fake(in_the_middle), max_call(mode, x)))
        assert (verdict.kind, "another_tie" in verdict.detail) == ("convention", True)
    broken = Fake(
        lambda call, r: in_the_middle(call, r) if call.mode == "jvp" else {"grad_x": np.float32([3, 3, 3, 1])}
    )
    assert only(judge_call(broken, max_call("vjp", x))).kind == "defect"


PADDED = {"kernel_size": (1,), "padding": ((1, 1),), "stride": (1,)}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("padding_only_minus_inf", -inf),
        ("padding_only_nan", nan),
        ("padding_only_lowest", np.finfo(np.float32).min),
    ],
)
def test_windows_without_a_cell_may_all_have_another_value(name, value):
    call = max_call("value", [1, 2], **PADDED)

    def change(call, results):
        y = results["y"].copy()
        y[[0, -1]] = value
        return results | {"y": y}

    verdict = only(judge_call(Fake(change), call))
    assert (verdict.kind, verdict.rule, verdict.place) == ("convention", "padding_only", (0,))
    assert name in verdict.detail
    assert only(judge_call(Fake(spoilt("y", 1, value)), call)).kind == "defect"


def test_windows_without_a_cell_have_any_other_number_only_where_that_is_documented():
    call = max_call("value", [1, 2], **PADDED)

    def change(call, results):
        return results | {"y": np.where(results["indices"] < 0, np.float32(7), results["y"])}

    assert only(judge_call(Fake(change), call)).kind == "defect"
    assert only(judge_call(Fake(change, documents=["padding_only_value"]), call)).kind == "convention"


def test_windows_without_a_cell_may_have_the_least_integer():
    problem = Problem("max_pool", 1, ((2,),), PADDED, "i8")
    call = Call(problem, "value", (np.int8([1, 2]),), output=(4,))
    target = Fake(lambda call, r: r | {"y": np.where(r["indices"] < 0, np.int8(-128), r["y"])})
    verdict = only(judge_call(target, call))
    assert (verdict.kind, "padding_only_lowest" in verdict.detail) == ("convention", True)


def test_windows_without_a_cell_may_name_one_but_none_outside():
    call = max_call("value", [1, 2], **PADDED)
    inside = Fake(lambda call, r: r | {"indices": np.maximum(r["indices"], 0)})
    assert "padding_only_index" in only(judge_call(inside, call)).detail
    outside = Fake(lambda call, r: r | {"indices": np.where(r["indices"] < 0, 2, r["indices"])})
    assert (only(judge_call(outside, call)).kind, only(judge_call(outside, call)).rule) == ("defect", "index_range")


@pytest.mark.parametrize(("include", "kind"), [(False, "convention"), (True, "defect")])
def test_an_average_of_nothing_may_be_nan_only_where_nothing_is_counted(include, kind):
    call = call_of("avg_pool", "value", np.float32([1, 2]), **PADDED, count_include_pad=include)

    def change(call, results):
        y = results["y"].copy()
        y[[0, -1]] = nan
        return {"y": y}

    assert only(judge_call(Fake(change), call)).kind == kind


def test_padding_that_is_skipped_is_a_convention():
    call = conv_call("value", special=inf)

    def skips(call, results):
        return {"y": np.where(np.isnan(results["y"]), np.float32(inf), results["y"])}

    ours = expected(call)["y"].rounded("f32")
    assert np.isnan(ours).any()
    finite = conv_call("value", special=0)
    at_border = correct(finite)["y"]
    verdict = only(judge_call(Fake(lambda call, r: {"y": np.where(np.isnan(r["y"]), at_border, r["y"])}), call))
    assert (verdict.kind, verdict.rule, "padding_is_skipped" in verdict.detail) == ("convention", "special", True)
    assert only(judge_call(Fake(skips), call)).kind == "defect"


def test_the_sign_of_a_zero_is_the_winners_where_an_index_names_it():
    call = max_call("value", [-0.0, 0.0])
    flipped = Fake(lambda call, r: r | {"y": -r["y"]})
    verdict = only(judge_call(flipped, call))
    assert (verdict.kind, verdict.rule, "zero_sign" in verdict.detail) == ("convention", "zero_sign", True)
    assert only(judge_call(Fake(lambda call, r: r | {"y": -r["y"]}, strict=True), call)).kind == "defect"
    unnamed = Fake(lambda call, r: {"y": -r["y"]})
    assert [v.kind for v in judge_call(unnamed, call)] == ["pass"]


def test_unpooling_that_keeps_one_cell_must_be_documented():
    x, indices = np.float32([[3, 4, 5]]), np.array([[1, 1, 0]])
    call = Call(Problem("max_unpool", 1, (x.shape, indices.shape), {"output_size": (3,)}), "value", (x, indices))
    keeps = Fake(lambda call, r: {"y": np.float32([[5, 4, 0]])})
    assert only(judge_call(keeps, call)).kind == "defect"
    keeps.documents = ("unpool_overwrites",)
    assert only(judge_call(keeps, call)).kind == "convention"
    neither = Fake(lambda call, r: {"y": np.float32([[5, 6, 0]])}, documents=keeps.documents)
    assert only(judge_call(neither, call)).kind == "defect"


def test_choices_have_names_that_are_explained():
    assert {name for choice in choices() for name in choice.names} <= set(CONVENTIONS)


@pytest.mark.parametrize(
    "choice", [ChoiceRule("all"), ChoiceRule("split"), ChoiceRule("last", "last"), ChoiceRule("last", "all")], ids=str
)
def test_a_consistent_rule_is_a_convention_where_the_data_tell_it_from_no_other(choice):
    """Derivatives that are 0 at most cells, as an impulse has, follow several rules; the target's own is among them."""

    def follows(call, results):
        named = {name: chosen_meaning(call, name, choice) for name in results if name in ("dy", "grad_x")}
        return {name: meaning.rounded("f32").astype(np.float32) for name, meaning in named.items()}

    x = np.float32([np.nan, 1, np.nan, 1, 1, 0])
    jvps = [call_of("max_pool", "jvp", x, directions=(d,), kernel_size=(3,)) for d in np.eye(6, dtype=np.float32)]
    vjps = [call_of("max_pool", "vjp", x, cotangent=g, kernel_size=(3,)) for g in np.eye(2, dtype=np.float32)]
    target = Fake(follows, offers=("jvp", "vjp"))
    kinds = {verdict.kind for call in (*jvps, *vjps) for verdict in judge_call(target, call)}
    assert kinds == {"pass", "convention"}


# --- reduced precision, variants, cases ------------------------------------------------------------------------------


def test_a_mode_without_a_bound_leaves_a_wrong_result_undecided():
    call = call_of("smooth_max_pool", "value", np.float32([1, 2, 3]), kernel_size=(2,), beta=1.0)
    wrong = Fake(lambda call, r: {"y": r["y"] + 1}, reduced=["ftz"])
    assert only(judge_call(wrong, call)).kind == "defect"
    verdict = only(judge_call(wrong, call, frozenset({"ftz"})))
    assert verdict.kind == "undecided"
    assert "no error bound is known" in verdict.detail


def test_reduced_precision_must_be_documented_and_allowed():
    x = np.float32([1 + 2.0**-12, 1]).reshape(1, 1, 2)
    call = call_of("conv", "value", x, np.float32([1, -1]).reshape(1, 1, 2), None)
    rounds = Fake(lambda call, r: {"y": np.float32([[[0]]])}, reduced=["tf32"])
    assert only(judge_call(rounds, call)).kind == "defect"
    assert only(judge_call(rounds, call, frozenset({"tf32"}))).kind == "reduced"
    assert only(judge_call(Fake(rounds.change), call, frozenset({"tf32"}))).kind == "defect"


def test_what_the_interface_composes_of_stored_results_passes_and_needs_no_permission():
    """1 and twice half of what float16 holds next to it: added one by one and stored each time, they are 1."""
    x = np.float16([1, 2.0**-11, 2.0**-11]).reshape(1, 1, 3)
    call = call_of("conv", "value", x, np.ones((1, 1, 3), np.float16), None)
    in_parts = Fake(lambda call, r: {"y": np.float16([[[1]]])}, reduced=["parts"])
    assert only(judge_call(in_parts, call)).kind == "defect"
    in_parts.composed = lambda problem, mode: frozenset({"parts"})
    (verdict,) = judge_call(in_parts, call)
    assert (verdict.kind, "parts" in verdict.detail) == ("pass", True)
    twice = Fake(lambda call, r: {"y": np.float16([[[2]]])}, reduced=["parts"])
    twice.composed = in_parts.composed
    assert only(judge_call(twice, call)).kind == "defect"


class Fixed(CheckCase):
    """A case with given numbers."""

    def __init__(self, call):
        super().__init__(0, 4, call.problem, call.mode, "exact_sum", None, "contiguous", 0)
        object.__setattr__(self, "given", call)


@pytest.fixture(autouse=True)
def numbers_as_given(monkeypatch):
    monkeypatch.setattr(checks, "drawn", lambda case: case.given)


def test_a_call_that_writes_into_its_inputs_is_said_once_and_leaves_the_case_as_it_was():
    def writes(call, results):
        call.inputs[0].flat[0] = 77

    for index in range(5):  # each of the checks has its turn
        call = conv_call("value")
        before = call.inputs[0].copy()
        case = Fixed(call)
        object.__setattr__(case, "index", index)
        examined, verdicts = examine(Fake(writes), case)
        assert [verdict.rule for verdict in verdicts] == ["input_changed"]
        assert (examined.inputs[0] == before).all()


def test_every_variant_is_judged_and_named():
    change = spoilt("y")
    target = Fake(lambda call, r: change(call, r) if call.variant == "odd" else r, ways=("even", "odd"))
    call, verdicts = examine(target, Fixed(conv_call("value")))
    assert [(v.variant, v.kind) for v in verdicts] == [("plain", "pass"), ("even", "pass"), ("odd", "defect")]
    assert call.variant == "plain"


def test_what_is_not_offered_is_not_run():
    target = Fake(lambda call, results: 1 / 0, offers=("value",))
    assert examine(target, Fixed(conv_call("jvp")))[1] == [Verdict("not_offered", detail="no jvp")]


# --- adjointness -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_transposes_are_told_from_neighbours(dtype):
    x = np.arange(12).reshape(2, 6).astype(np.float16 if dtype == "f16" else np.float32) % 5
    problem = Problem("max_pool", 1, (x.shape,), {"kernel_size": (3,), "stride": (1,)}, dtype)
    both = partners(Call(problem, "jvp", (x,)))
    dy, grad = correct(both["jvp"])["dy"], correct(both["vjp"])["grad_x"]
    pair = both["jvp"].directions[0], both["vjp"].cotangent
    assert is_transposed(dy, grad, *pair, dtype)
    grad[0, 0] += 1
    assert not is_transposed(dy, grad, *pair, dtype)
