"""The cases of the judge: what their tags mean, that every three meet, and that their numbers are as promised."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from math import prod
from pathlib import Path

import numpy as np
import pytest

from gradspec.backends.tables import table, take
from gradspec.conformance.cases.axes import BLOCKS
from gradspec.conformance.cases.combinations import (
    PLACE,
    RANK_NAMES,
    VALUES,
    CaseSpace,
    RankedOperator,
    can_be_drawn,
    clash,
    values_of,
)
from gradspec.conformance.cases.cover import PLAIN_BATCHES
from gradspec.conformance.cases.data import drawn
from gradspec.conformance.cases.features import PREDICATES, tags, tags_of_call
from gradspec.conformance.cases.stream import SWEEP_EVERY, Stream
from gradspec.conformance.cases.sweep import SMOOTH_LEAVES
from gradspec.conformance.model.arithmetic import Arithmetic
from gradspec.conformance.model.case import FEATURES, MASKING, REGIMES, CheckCase, Selection
from gradspec.conformance.model.geometry import geometry_of
from gradspec.conformance.model.problem import (
    CONVOLUTIONS,
    DTYPES,
    FLOATS,
    INPUTS,
    MODES,
    RANKS,
    SELECTIONS,
    Array,
    Call,
    Problem,
)
from gradspec.conformance.oracle import meaning
from gradspec.conformance.oracle.expected import expected
from gradspec.conformance.oracle.sums import NO_GRAIN, Estimates, SumMeaning
from gradspec.domains.formats import format_named

EVERYTHING = CaseSpace(tuple(RankedOperator(op, rank, values_of(op, rank)) for op in INPUTS for rank in RANKS))


def takes_all(problem: Problem, mode: str) -> None:
    return None


@cache
def whole_stream() -> Stream:
    return Stream(7, Selection(), takes_all)


@cache
def batch_of_all(number: int) -> list[CheckCase]:
    """One of the batches between those of quick cases."""
    return whole_stream().batch(number + number // (SWEEP_EVERY - 1))


def planned_batches() -> int:
    covering = whole_stream().covering
    return covering - covering // SWEEP_EVERY


def first_cases(batches: int, stream: Stream | None = None) -> list[CheckCase]:
    batch = stream.batch if stream else batch_of_all
    return [case for number in range(batches) for case in batch(number)]


# --- tags ------------------------------------------------------------------------------------------------------------

POOL = {"kernel_size": (2,), "stride": (2,), "padding": ((0, 0),), "dilation": (1,), "ceil_mode": False}


def pool(size: int = 4, op: str = "max_pool", lead: tuple[int, ...] = (2, 3), **attributes: object) -> Problem:
    return Problem(op, 1, ((*lead, size),), {**POOL, **attributes})


def conv(x: tuple[int, ...], weight: tuple[int, ...], op: str = "conv", **attributes: object) -> Problem:
    return Problem(op, len(weight) - 2, (x, weight, None), attributes)


def bins(size: int, count: int) -> Problem:
    return Problem("adaptive_avg_pool", 1, ((size,),), {"output_size": (count,)})


def average(**attributes: object) -> Problem:
    return pool(op="avg_pool", **attributes)


def everywhere(op: str, *sizes: int) -> Problem:
    return Problem(op, len(sizes), (sizes,), {})


def transposed(**attributes: object) -> Problem:
    return conv((1, 2, 5), (2, 1, 3), "conv_transpose", stride=(2,), **attributes)


WIDE = {"kernel_size": (12,), "stride": (1,)}

MEANS = [
    ("asymmetric", pool(padding=((0, 1),)), pool(padding=((1, 1),))),
    ("asymmetric", everywhere("global_max_pool", 3, 4), everywhere("global_max_pool", 4, 4)),
    ("overlapping", pool(5, stride=(1,)), pool()),
    ("overlapping", bins(5, 2), bins(6, 2)),
    ("non_divisible", pool(5), pool(4)),
    ("non_divisible", bins(2, 3), bins(2, 1)),
    ("dilated", pool(5, dilation=(2,)), pool(5, kernel_size=(1,), dilation=(2,))),
    ("padding_only_window", pool(padding=((2, 2),)), pool(padding=((1, 1),))),
    ("ceil_mode", pool(5, ceil_mode=True), pool(4, ceil_mode=True)),
    ("count_exclude_pad", average(padding=((1, 1),), count_include_pad=False), average(count_include_pad=False)),
    ("divisor_override", average(divisor_override=3), average(divisor_override=None)),
    ("grouped", conv((1, 4, 5), (2, 2, 3), groups=2), conv((1, 2, 5), (2, 1, 3), groups=2)),
    ("depthwise", conv((1, 2, 5), (4, 1, 3), groups=2), conv((1, 4, 5), (4, 2, 3), groups=2)),
    ("output_padding", transposed(output_padding=(1,)), transposed(output_padding=(0,))),
    ("empty_batch", pool(lead=(0, 3)), pool(lead=(2, 0))),
    ("zero_channels", pool(lead=(2, 0)), pool(lead=(0, 3))),
    ("zero_channels", conv((1, 2, 5), (0, 2, 3)), conv((0, 2, 5), (1, 2, 3))),
    ("one_cell_axis", pool(1, padding=((1, 1),)), pool(2)),
    ("low_precision", replace(pool(), dtype="bf16"), pool()),
    ("integer", replace(pool(), dtype="u8"), pool()),
    ("rank4", everywhere("global_max_pool", 2, 2, 2, 2), everywhere("global_max_pool", 2, 2, 2)),
    ("large", everywhere("global_max_pool", 1 << 15), everywhere("global_max_pool", 1 << 14)),
    ("long_sum", everywhere("global_avg_pool", 40, 25), everywhere("global_avg_pool", 40, 24)),
    ("many_hits_one_cell", pool(12, **WIDE, padding=((11, 11),)), pool(12, **WIDE, padding=((5, 5),))),
    ("block_width", pool(62, stride=(2,)), pool(30)),
    ("block_width", conv((1, 1, 16), (1, 1, 1), "conv_transpose", stride=(2,)), conv((1, 1, 16), (1, 1, 1))),
    ("block_height", everywhere("global_max_pool", 31, 2), everywhere("global_max_pool", 2, 31)),
    ("block_channels", pool(lead=(2, 31)), pool(lead=(31, 2))),
    ("block_channels", conv((1, 31, 5), (2, 31, 1)), conv((1, 2, 5), (31, 2, 1))),
    ("block_out_channels", conv((1, 2, 5), (31, 2, 1)), conv((1, 31, 5), (2, 31, 1))),
    (
        "block_out_channels",
        conv((1, 2, 5), (2, 31, 1), "conv_transpose"),
        conv((1, 31, 5), (31, 2, 1), "conv_transpose"),
    ),
    ("block_groups", conv((1, 31, 5), (31, 1, 1), groups=31), conv((1, 31, 5), (31, 31, 1))),
    ("block_batch", pool(lead=(31, 2)), pool(lead=(2, 31))),
]


@pytest.mark.parametrize(("name", "has", "lacks"), MEANS)
def test_a_tag_of_geometry_says_what_the_problem_is(name: str, has: Problem, lacks: Problem) -> None:
    assert name in tags(has)
    assert name not in tags(lacks)


NUMBERS = [
    ("ties", [1, 1, 0, 2], [1, 0, 1, 2]),
    ("ties", [np.nan, np.nan, 0, 2], [np.nan, 1, 0, 2]),
    ("nan", [np.nan, 0, 1, 2], [np.inf, 0, 1, 2]),
    ("infinity", [-np.inf, 0, 1, 2], [np.nan, 0, 1, 2]),
    ("signed_zero", [0.0, -0.0, 1, 2], [0.0, 1, 0.0, 2]),
    ("subnormal", [1e-40, 0, 1, 2], [2e-38, 0, 1, 2]),
    ("huge", [3e38, 0, 1, 2], [1e37, 0, np.inf, 2]),
]


@pytest.mark.parametrize(("name", "has", "lacks"), NUMBERS)
def test_a_tag_of_numbers_says_what_they_are(name: str, has: list[float], lacks: list[float]) -> None:
    problem = pool(lead=(1, 1))
    for numbers, expected_tag in ((has, True), (lacks, False)):
        call = Call(problem, "value", (np.float32(numbers).reshape(1, 1, 4),))
        assert (name in tags_of_call(call)) == expected_tag


def test_every_feature_has_a_predicate() -> None:
    assert set(PREDICATES) == set(FEATURES)


def test_unpooling_is_tagged_by_its_indices() -> None:
    problem = Problem("max_unpool", 1, ((13,), (13,)), {"output_size": (20,)})
    x, places = np.ones(13, np.float32), np.arange(13)
    assert not {"many_hits_one_cell", "padding_only_window"} & tags_of_call(Call(problem, "value", (x, places)))
    assert "many_hits_one_cell" in tags_of_call(Call(problem, "value", (x, 0 * places)))
    assert "padding_only_window" in tags_of_call(Call(problem, "value", (x, places - 1)))


# --- the cover -------------------------------------------------------------------------------------------------------


def parameters(case: CheckCase) -> list[str]:
    return [case.problem.op, RANK_NAMES[case.problem.rank], case.mode, case.problem.dtype]


def values_of_case(case: CheckCase) -> list[str]:
    """What a case brings together, by its actual numbers; of large arrays, by what was meant."""
    return [*parameters(case), *(case.features if "large" in case.features else tags_of_call(drawn(case)))]


def all_threes(values: Sequence[str]) -> tuple[Array, ...]:
    places = [PLACE[name] for name in values]
    return np.ix_(places, places, places)


@pytest.mark.exhaustive
def test_every_three_values_that_go_together_meet_in_a_case() -> None:
    missing = EVERYTHING.triples()
    assert missing.sum() // 6 > 12_000
    for case in first_cases(planned_batches()):
        if missing[all_threes([*parameters(case), *case.features])].any():
            missing[all_threes(values_of_case(case))] = False
    assert [[VALUES[i] for i in three] for three in np.argwhere(missing)] == []


@pytest.mark.exhaustive
def test_the_cover_is_small() -> None:
    assert planned_batches() <= 1200
    assert len(first_cases(planned_batches())) <= 8000


GROUPS = {"operator": INPUTS, "rank": RANK_NAMES.values(), "mode": MODES, "dtype": DTYPES, "long axis": BLOCKS}
PARAMETER = {name: group for group, names in GROUPS.items() for name in names}
"""The parameter that a value belongs to; a feature is its own."""


def reason_against(op: str, rank: int, values: tuple[str, ...]) -> str | None:
    """Why no case of an operator and rank has these values."""
    own = values_of(op, rank)
    for name in values:
        if name not in own:
            return f"{op} of rank {rank} is not {name}"
    for first, second in combinations(values, 2):
        if why := clash(op, rank, first, second):
            return why
    features = [name for name in values if name in FEATURES]
    return None if can_be_drawn(op, rank, features) else "no axes"


def test_threes_that_are_left_out_have_a_reason_for_every_operator_and_rank() -> None:
    feasible = EVERYTHING.triples()
    left_out = [
        three
        for three in combinations(VALUES, 3)
        if len({PARAMETER.get(name, name) for name in three}) == 3 and not feasible[tuple(PLACE[v] for v in three)]
    ]
    assert len(left_out) < 16_000
    rng = np.random.default_rng(0)
    for i in rng.choice(len(left_out), 60, replace=False):
        assert all(reason_against(op, rank, left_out[i]) for op in INPUTS for rank in RANKS)


def test_axes_that_cannot_be_drawn_do_not_exist() -> None:
    """One axis alone: a transposed convolution of one cell has one window."""
    assert not can_be_drawn("conv_transpose", 1, {"one_cell_axis", "overlapping"})
    for kernel, stride, dilation in np.ndindex(4, 3, 3):
        attributes = {"stride": (stride + 1,), "dilation": (dilation + 1,)}
        assert "overlapping" not in tags(conv((1, 1, 1), (1, 1, kernel + 1), "conv_transpose", **attributes))


@pytest.mark.exhaustive
def test_any_beginning_is_varied() -> None:
    assert {case.problem.op for case in first_cases(3 * PLAIN_BATCHES)} == set(INPUTS)
    assert {case.problem.dtype for case in first_cases(PLAIN_BATCHES)} == {"f32"}
    assert {name for case in first_cases(120) for name in case.features} == set(FEATURES)
    assert {(case.mode, case.problem.dtype) for case in first_cases(60)} >= {(m, d) for m in MODES for d in FLOATS}
    assert all(2 <= len(batch_of_all(number)) <= 12 for number in range(60))
    assert len({repr(case.problem.shapes) for case in first_cases(64)}) > 55


def test_geometries_come_in_every_regime() -> None:
    """But for a few recipes, which need one, and long axes, for which two are enough."""
    batches = [batch_of_all(number) for number in range(90)]
    regimes = [{case.regime for case in batch} for batch in batches if len(batch) > 4]
    assert sum(some == set(REGIMES) for some in regimes) >= 50


def test_axes_differ_unless_there_is_one() -> None:
    for number in range(120):
        problem = batch_of_all(number)[0].problem
        assert problem.rank == 1 or "asymmetric" in tags(problem)


def kernels(case: CheckCase) -> tuple[int, ...]:
    return tuple(case.problem.attributes.get("kernel_size", ()))


def is_reached(what: str, case: CheckCase) -> bool:
    """Whether a case goes where kernels often change their way."""
    p, kernel = case.problem, kernels(case)
    x = p.shapes[0] or ()
    if what == "wide window":
        return p.op == "max_pool" and kernel[-1] >= 8 and case.mode == "vjp"
    if what == "three taps":
        return p.op == "max_pool" and p.rank > 1 and kernel[-1] == 3 != kernel[0]
    if what == "nothing read":
        return p.op == "max_pool" and geometry_of(p).reads == 0
    if what == "other ties":
        return p.attributes.get("ties") == "split" and case.special in ("ties", "nan", "infinity")
    if what == "beta":
        beta = p.attributes.get("beta", 0.0)
        return p.dtype == "f64" and beta != float(np.float32(beta))
    if what == "chunks":
        return p.op == "conv" and x[-1 - p.rank] >= 64 and p.shapes[2] is not None and case.mode == "value"
    if what == "pieces":
        return (
            p.op == "conv"
            and case.mode == "vjp"
            and prod(geometry_of(p).output) * prod((p.shapes[1] or ())[1:]) > 1 << 21
        )
    if what == "absent place":
        return p.op == "max_unpool" and case.mode == "vjp" and case.special == "padding_only_window"
    return (
        p.op == "max_unpool" and p.dtype == "f16" and (case.special, case.regime) == ("many_hits_one_cell", "rounding")
    )


REACHED = (
    "wide window",
    "three taps",
    "nothing read",
    "other ties",
    "beta",
    "chunks",
    "pieces",
    "absent place",
    "hits",
)


@pytest.mark.parametrize("what", REACHED)
def test_where_kernels_change_their_way_is_reached_early(what: str) -> None:
    assert any(is_reached(what, case) for case in first_cases(150))


def test_one_operator_is_seen_in_many_geometries() -> None:
    """Half of them have different paddings on both sides of an axis, and none but a few a window of nothing."""
    stream = Stream(1, Selection(ops=("max_pool",), ranks=(2,), modes=("value",)), takes_all)
    cases = [case for number in range(30) for case in stream.batch(number)]
    problems = [case.problem for case in cases if case.is_quick or not case.index]
    sided = [p for p in problems if any(lo != hi for lo, hi in p.attributes["padding"])]
    assert len(sided) >= 6
    simple = [p for p in problems if not tags(p) & {"one_cell_axis", "padding_only_window"}]
    assert len(simple) >= 10


# --- problems --------------------------------------------------------------------------------------------------------


@pytest.mark.rows(1)
@pytest.mark.parametrize("part", range(8))
def test_every_problem_is_legal(part: int) -> None:
    """The specification's own checks run when a meaning is made."""
    for number in range(part, whole_stream().covering, 8):
        case = batch_of_all(number)[0]
        parts = geometry_of(case.problem)
        if prod(parts.output) < 1000:
            arrays = [None if shape is None else np.zeros(shape, np.float32) for shape in case.problem.shapes]
            if case.problem.op == "max_unpool":
                arrays[1] = np.zeros(case.problem.shapes[1] or (), np.int64)
            rank = {"rank": case.problem.rank} if case.problem.op.startswith("global") else {}
            assert meaning(case.problem.op, *arrays, **rank, **case.problem.attributes).shape == parts.output


@pytest.mark.exhaustive
def test_smooth_maxima_are_few_and_small() -> None:
    stream = Stream(3, Selection(ops=("smooth_max_pool",)), takes_all)
    for number in range(stream.covering + 20):
        case = stream.batch(number)[0]
        problem, geometry = case.problem, geometry_of(case.problem)
        if case.is_quick:
            assert prod(geometry.output) * geometry.taps <= 16 * SMOOTH_LEAVES
        else:
            assert prod(geometry.output) <= (60 if max(problem.x_shape) < 15 else 400)
            assert geometry.taps <= 12


# --- numbers ---------------------------------------------------------------------------------------------------------


def small_cases(stream: Stream | None, batches: int) -> list[CheckCase]:
    return [case for case in first_cases(batches, stream) if "large" not in case.features]


def test_tags_are_those_of_the_numbers() -> None:
    for case in small_cases(None, 60):
        found = tags_of_call(drawn(case))
        assert case.features <= found
        # Zeros of both signs tie with each other, and few numbers of low precision fill a wide window.
        assert found - case.features <= {"ties"}


def share_of_windows(call: Call, name: str, marked: Array) -> float:
    """The share of windows that have to do with marked cells of ``x``, its tangent or the cotangent."""
    problem, parts = call.problem, geometry_of(call.problem)
    if name == "g" or parts.window is None:
        return float(marked.mean())
    if problem.op == "fold":
        return float(marked.reshape(-1, prod(problem.attributes["kernel_size"]), parts.windows).any(axis=1).mean())
    planes = marked.reshape(-1, prod(parts.window.sizes))
    read = take(planes, table(parts.window), False).any(axis=2)
    if problem.op in CONVOLUTIONS:
        read = read.reshape(parts.samples, -1, parts.windows).any(axis=1)
    return float(read.mean())


def weights_reach(call: Call, name: str) -> float:
    """The share of channels of a result that one weight, or one number of a bias, has to do with."""
    groups, (outer, inner) = call.problem.attributes["groups"], call.inputs[1].shape[:2]  # type: ignore[union-attr]
    ins, outs = (outer, inner * groups) if call.problem.op == "conv_transpose" else (inner * groups, outer)
    return 1 / {"vjp": ins, "second": min(ins, outs)}.get(call.mode, outs)


HIDING = ("nan", "infinity", "huge")


def marked_cells(case: CheckCase, call: Call) -> dict[str, Array]:
    """Where the numbers are that hide others, by the names of the arrays."""
    arrays = {**call.named(), "g": call.cotangent}
    arrays |= {f"d{name}": array for name, array in zip(case.problem.differentiable, call.directions, strict=False)}
    arrays.pop("indices", None)
    largest = float(format_named(case.problem.dtype).largest)
    marks = {"nan": np.isnan, "infinity": np.isinf, "huge": lambda a: np.isfinite(a) & (np.abs(a) >= largest / 16)}
    found = {name: marks[case.special or ""](a.astype(np.float64)) for name, a in arrays.items() if a is not None}
    return {name: cells for name, cells in found.items() if cells.any()}


@pytest.mark.exhaustive
def test_at_most_one_feature_hides_others_and_in_a_quarter_of_the_windows() -> None:
    cases = small_cases(Stream(12, Selection(features=tuple(HIDING), dtypes=FLOATS), takes_all), 40)
    assert len(cases) > 200
    carriers = set()
    for case in cases:
        assert len(case.features & set(MASKING)) == 1
        call = drawn(case)
        ((name, cells),) = marked_cells(case, call).items()
        carriers.add(name)
        if name.endswith(("weight", "bias")):
            assert cells.sum() == 1
            assert weights_reach(call, name) <= 0.25
        elif case.problem.op != "conv_transpose" or name == "g":
            assert share_of_windows(call, name, cells) <= 0.25
        else:
            assert cells.any(axis=tuple(range(-case.problem.rank - 1, 0))).mean() <= 0.25
    assert carriers >= {"x", "dx", "g", "weight", "dweight"}


def ordinary(regime: str) -> list[CheckCase]:
    """Cases of a regime without special numbers, of operators that add up."""
    found = [case for case in small_cases(None, 70) if case.regime == regime and case.special is None]
    return [case for case in found if case.problem.dtype in FLOATS and case.problem.op != "smooth_max_pool"]


@cache
def estimates_of(regime: str) -> list[tuple[CheckCase, list[tuple[str, Estimates]]]]:
    """The leaves of every result that is a sum, in ordinary cases of a regime."""
    return [(case, _estimates(case)) for case in ordinary(regime)]


def _estimates(case: CheckCase) -> list[tuple[str, Estimates]]:
    sums = [(name, found) for name, found in expected(drawn(case)).items() if isinstance(found, SumMeaning)]
    return [(name, chunk.estimates()) for name, found in sums for chunk in found.chunks()]


def test_impulses_leave_one_leaf_to_every_result() -> None:
    seen = set()
    for case, results in estimates_of("impulse"):
        for name, found in results:
            if name != "grad_bias":
                assert (found.leaves <= 1).all(), (case, name)
                seen.add((case.problem.op, case.mode))
    assert len(seen) > 20


def test_exact_sums_fit_the_storage_format() -> None:
    """All leaves are multiples of 2^e, and their absolute values add up to 2^(p+e) at most; averages by 2^k too."""
    seen = set()
    for case, results in estimates_of("exact_sum"):
        precision = Arithmetic.of(case.problem.dtype).storage.precision
        for name, found in results:
            divided = found.grain <= NO_GRAIN
            assert not divided.any() or "avg" in case.problem.op
            room = np.ldexp(1.0, np.clip(precision + found.grain, -1000, 1000))
            assert ((found.mass <= room) | (found.leaves == 0) | divided).all(), (case, name)
            seen.add((case.problem.op, case.mode))
    assert len(seen) > 20


def test_sparse_numbers_are_not_all_zero() -> None:
    """The gradients of the weights alone may vanish, if nothing else does."""
    for case, found in (*estimates_of("impulse"), *estimates_of("exact_sum")):
        if found and not case.features & {"empty_batch", "zero_channels"}:
            assert any((part.leaves > 0).any() for _, part in found) or geometry_of(case.problem).reads == 0, case


def test_cells_to_choose_from_differ_in_every_window() -> None:
    for case in small_cases(Stream(14, Selection(ops=SELECTIONS), takes_all), 40):
        if case.special is None and np.dtype(DTYPES[case.problem.dtype]).itemsize > 1:
            assert "ties" not in tags_of_call(drawn(case))


# --- the stream ------------------------------------------------------------------------------------------------------


def digest(order: Sequence[int]) -> str:
    """Of some batches, asked for in this order."""
    stream = Stream(7, Selection(ops=("max_pool", "conv"), ranks=(1, 2)), takes_all)
    batches = {number: stream.batch(number) for number in order}
    found = hashlib.sha256()
    for case in [case for number in sorted(batches) for case in batches[number]]:
        call = drawn(case)
        found.update(repr((case.name, case.problem, case.mode, sorted(case.features))).encode())
        for array in (*call.inputs, *call.directions, call.cotangent):
            found.update(b"" if array is None else array.tobytes())
    return found.hexdigest()


@pytest.mark.exhaustive
def test_cases_are_the_same_in_another_process() -> None:
    """With another seed of ``hash``, and batches asked for in another order."""
    program = "from conformance.test_cases import digest; print(digest([5000, 3, 20]))"
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    there = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": path}
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=there)
    assert other.stdout.strip() == digest([20, 3, 5000])


def test_another_seed_draws_other_numbers() -> None:
    other = Stream(8, Selection(), takes_all).batch(0)
    assert [case.problem for case in other] != [case.problem for case in whole_stream().batch(0)]


def picky(problem: Problem, mode: str) -> str | None:
    """A target of few problems: two axes, symmetric padding up to half the kernel, no float16, no second order."""
    if problem.rank != 2 or problem.op not in ("max_pool", "conv"):
        return "not there"
    if problem.dtype == "f16" or mode == "second":
        return "not in this mode or dtype"
    if problem.attributes.get("ties", "first") != "first":
        return "another rule"
    kernel = problem.attributes.get("kernel_size") or problem.shapes[1][2:]  # type: ignore[index]
    pads = problem.attributes["padding"]
    return "padding" if any(lo != hi or lo > k // 2 for (lo, hi), k in zip(pads, kernel, strict=True)) else None


@pytest.mark.exhaustive
def test_what_is_refused_is_drawn_again() -> None:
    stream = Stream(2, Selection(), picky)
    batches = [stream.batch(number) for number in range(stream.covering + 60)]
    taken = [batch for batch in batches if picky(batch[0].problem, batch[0].mode) is None]
    assert all(picky(case.problem, case.mode) is None for batch in taken for case in batch)
    assert len(taken) >= 80
    seen = {(case.problem.op, name) for batch in taken for case in batch for name in case.features}
    assert seen >= {("conv", "grouped"), ("conv", "dilated"), ("max_pool", "ceil_mode"), ("max_pool", "ties")}
    others = [batch for batch in batches if picky(batch[0].problem, batch[0].mode) is not None]
    assert len(others) == len(INPUTS) * len(RANKS) - 2
    assert all(len(batch) == 1 for batch in others)


def test_where_nothing_is_offered_a_batch_has_one_case() -> None:
    stream = Stream(2, Selection(ops=("fold",)), lambda problem, mode: "nothing is")
    assert stream.covering == len(RANKS)
    assert [len(stream.batch(number)) for number in (0, 3, 4, 1000)] == [1, 1, 1, 1]
    assert stream.why_nothing == ("nothing is",)
    assert Stream(2, Selection(), picky).why_nothing == ()


SELECTIONS_OF_A_FEATURE = ["dilated", "nan", "channels_last", "low_precision", "integer", "long_sum"]


@pytest.mark.parametrize("feature", SELECTIONS_OF_A_FEATURE)
def test_selected_features_are_in_every_case(feature: str) -> None:
    ops = ("max_pool", "avg_pool", "conv")
    stream = Stream(5, Selection(ops=ops, features=(feature,)), takes_all)
    batches = range(0, stream.covering + 12, max(stream.covering // 12, 1))
    assert all(feature in case.features for number in batches for case in stream.batch(number))


def test_a_selection_is_kept_to() -> None:
    selection = Selection(ops=("conv", "avg_pool"), modes=("vjp",), dtypes=("f64", "bf16"), ranks=(1, 3))
    cases = first_cases(30, Stream(5, selection, takes_all))
    assert {case.problem.op for case in cases} == {"conv", "avg_pool"}
    assert {(case.mode, case.problem.rank) for case in cases} == {("vjp", 1), ("vjp", 3)}
    assert {case.problem.dtype for case in cases} == {"f64", "bf16"}


IMPOSSIBLE = [
    (Selection(ops=("conv",), features=("ties",)), "no case of conv has one of the features ties"),
    (Selection(modes=("jvp",), dtypes=("i8",)), "integers are for the value of maxima"),
    (Selection(ops=("fold",), dtypes=("u8",)), "integers are for the value of maxima"),
    (Selection(features=("integer",), modes=("vjp",)), "no case of"),
]


@pytest.mark.parametrize(("selection", "message"), IMPOSSIBLE)
def test_impossible_selections_say_why(selection: Selection, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Stream(0, selection, takes_all)


def only_convolves(problem: Problem, mode: str) -> str | None:
    """A target whose transposed convolution lacks a mode that its convolution has."""
    there = mode == "value" if problem.op == "conv_transpose" else mode in ("value", "vjp")
    return None if there and problem.dtype == "f32" else "not there"


def test_operators_may_have_different_modes() -> None:
    stream = Stream(0, Selection(CONVOLUTIONS, (), ("value", "vjp"), ("f32",), ranks=(1,)), only_convolves)
    cases = [case for number in (0, stream.covering - 1, 10_000) for case in stream.batch(number)]
    assert all(only_convolves(case.problem, case.mode) is None for case in cases)


@pytest.mark.parametrize("mode", MODES)
def test_one_mode_alone_has_a_cover(mode: str) -> None:
    stream = Stream(5, Selection(ops=("conv", "avg_pool"), modes=(mode,), ranks=(2,)), takes_all)
    assert {case.mode for number in (0, stream.covering - 1, 10_000) for case in stream.batch(number)} == {mode}
