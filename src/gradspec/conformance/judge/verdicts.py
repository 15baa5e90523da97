"""Running a target on a call, and the verdict on each of its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradspec.conformance.cases.reference_numbers import meets_a_kink
from gradspec.conformance.judge.conventions import (
    NEEDS_DOCUMENTATION,
    Explanation,
    chooses_a_tied_cell,
    contradiction,
    explanations,
    padding_only,
)
from gradspec.conformance.judge.reduced import ARITHMETICS, all_together, is_explained_by_flushing, judge_reduced
from gradspec.conformance.model.device import ExhaustedError, InputChangedError
from gradspec.conformance.model.problem import SELECTIONS, Array, Call, Results, Shape
from gradspec.conformance.model.target import Answer, NotOfferedError, Target
from gradspec.conformance.model.verdict import Verdict
from gradspec.conformance.oracle import Judgement, Meaning
from gradspec.conformance.oracle.enclosed import largest
from gradspec.conformance.oracle.expected import EnclosedMeaning, GraphResults, expected
from gradspec.conformance.oracle.meaning import Bools, Selected
from gradspec.domains.formats import format_named
from gradspec.graph.builder import dependents
from gradspec.graph.lru import LRUCache
from gradspec.spec.errors import UnsupportedError
from gradspec.system.host import OverrunError
from gradspec.system.hosting import ChannelError, LeftBehindError


class Snapshot:
    """The numbers of a call, to be put back where a target has written into them."""

    def __init__(self, call: Call) -> None:
        self.call, self.before = call, {name: array.copy() for name, array in call.arrays().items()}

    def restore(self) -> list[str]:
        """The arrays, in words, that were no longer what they had been, and now are again."""
        arrays = self.call.arrays()
        changed = [name for name, array in arrays.items() if not same_bits(array, self.before[name])]
        for name in changed:
            arrays[name][...] = self.before[name]
        return [argument_label(name, self.call) for name in changed]


def argument_label(name: str, call: Call) -> str:
    """The name of one of a call's arrays as people know it: an input's own, ``direction of x``, ``cotangent``."""
    if name in call.named():
        return name
    directions = {call.problem.direction(of): f"direction of {of}" for of in call.problem.differentiable}
    return directions.get(name, "cotangent")


def labelled_argument(label: str, call: Call) -> str:
    """The name of the array that `argument_label` labels so."""
    return next(name for name in call.arrays() if argument_label(name, call) == label)


def same_bits(a: Array, b: Array) -> bool:
    """Equal shapes, dtypes and bits; any NaN is like any other, for no rule says what is in one."""
    return a.shape == b.shape and a.dtype == b.dtype and not differing(a, b).any()


def differing(a: Array, b: Array) -> NDArray[np.bool_]:
    """Where two arrays of one shape and dtype have other bits.

    >>> differing(np.float32([0.0, np.nan, 1.0]), np.float32([-0.0, -np.nan, 1.0])).tolist()
    [True, False, False]
    """
    if a.dtype.hasobject or a.itemsize > 8:  # no number of ours
        return np.asarray(a != b, np.bool_)
    bits = np.dtype(f"u{a.itemsize}")
    other = np.ascontiguousarray(a).view(bits) != np.ascontiguousarray(b).view(bits)
    same_nan = np.False_ if a.dtype.kind in "iu" else np.isnan(a) & np.isnan(b)
    return np.asarray(other.reshape(a.shape) & ~same_nan, np.bool_)


# --- one call ---------------------------------------------------------------------------------------------------------

NOTHING_ALLOWED: frozenset[str] = frozenset()
NO_ANSWERS: Mapping[str, Answer] = MappingProxyType({})
FORMULAS = 16.0
"""Roundings of a cotangent that one formula of a derivative may lose and another not."""
MANY_UNITS = 10_000
"""Units in the last place beyond which an error is told in percent."""
A_KINK = 1e-3
"""How much derivatives on either side of a kink differ, in proportion, so that it is one."""
UNUSUAL = ("reversed", "broadcast")
"""Layouts with strides that are not positive."""
_WEAKENING = LRUCache[str](64)
_CHOICE_RULES = {"zero_sign": "zero_sign", "padding_is_skipped": "special", "algorithm_spreads": "special"}


def judge_call(target: Target, call: Call, allow: AbstractSet[str] = NOTHING_ALLOWED) -> list[Verdict]:
    """Run one call and judge each of its results."""
    return Judge(target, call, allow).verdicts(call.variant)


class Judge:
    """Judges one call in each of the target's ways to make it; what it means is worked out once."""

    def __init__(
        self, target: Target, call: Call, allow: AbstractSet[str], answers: Mapping[str, Answer] = NO_ANSWERS
    ) -> None:
        """``answers`` are those of variants that were called before."""
        self.target, self.call, self.allow, self.answers = target, call, allow | target.liberties, answers
        self.meanings, self.snapshot = expected(call), Snapshot(call)
        self._judged: dict[str, list[tuple[Array, Verdict]]] = {}

    def verdicts(self, variant: str) -> list[Verdict]:
        """Run one variant of the call and judge each of its results; what the target leaves out is not judged."""
        call = replace(self.call, variant=variant)
        try:
            results = self._results(call)
        except NotOfferedError as why:
            return [self._declined(call, why)]
        except ExhaustedError as why:
            return [Verdict("undecided", variant=variant, detail=f"no room on the device: {why}")]
        except OverrunError as why:
            beside = f"the call wrote beside {'the array it was given' if str(why) else 'an array that it allocated'}"
            return [Verdict("defect", "guard", str(why), variant, detail=beside)]
        except (ChannelError, LeftBehindError) as why:
            return [judge_conduct(why, variant)]
        except InputChangedError as why:
            return [_report_changed(argument_label(str(why), call), variant)]
        except Exception as error:  # whatever the target raises is its own doing
            raised = f"{type(error).__name__}: {error}"
            is_enclosed = any(isinstance(meaning, EnclosedMeaning) for meaning in self.meanings.values())
            is_empty = is_enclosed and any(array.size == 0 for array in call.named().values())
            if call.layout in UNUSUAL or is_empty:  # those that refuse such arrays say so, and users copy, or ask
                sort = "empty" if is_empty else call.layout
                return [Verdict("not_offered", variant=variant, detail=f"of arrays that are {sort}: {raised}")]
            return [Verdict("defect", "raised", variant=variant, got=raised)]
        if changed := self.snapshot.restore():
            return [_report_changed(name, variant) for name in changed]
        given = [name for name in self.meanings if name in results]
        if not given:
            nothing = f"it gives none of {', '.join(self.meanings)}"
            return [Verdict("not_offered", variant=variant, detail=nothing)]
        return [self._verdict(call, name, results) for name in given]

    def _declined(self, call: Call, why: NotOfferedError) -> Verdict:
        """What a user's kernel declines is not offered, unless it takes other numbers of the same shapes."""
        cause = why.__cause__
        if isinstance(cause, NotImplementedError) and self.target.is_own and not self.target.may_decline(call):
            self.snapshot.restore()
            if _takes_other_numbers(self.target, call):
                got, otherwise = f"{type(cause).__name__}: {cause}", "results, as on other numbers of the same shapes"
                return Verdict("defect", "declined_numbers", variant=call.variant, got=got, expected=otherwise)
        return Verdict("not_offered", variant=call.variant, detail=str(why))

    def _results(self, call: Call) -> Results:
        answer = self.answers.get(call.variant)
        if isinstance(answer, Exception):
            raise answer
        return self.target.run(call) if answer is None else answer

    def _verdict(self, call: Call, name: str, results: Results) -> Verdict:
        """The verdict on one result: that on the same bits, if another variant gave them."""
        got = np.asarray(results[name])
        known = self._judged.setdefault(f"{name} {'indices' in results}", [])
        for bits, verdict in known:
            if same_bits(bits, got):
                return replace(verdict, variant=call.variant)
        kind = _EnclosedResult if isinstance(self.meanings[name], EnclosedMeaning) else _Result
        result = kind(self.target, call, name, got, "indices" in results, self.allow)
        verdict = result.malformed(self.meanings[name]) or result.judged(self.meanings[name])
        known.append((got.copy(), verdict))
        return verdict


def _takes_other_numbers(target: Target, call: Call) -> bool:
    """Whether a call gives results on zeros, ones or numbers of both signs; integers, which may be places, stay."""

    def with_cells(cells: Callable[[int], Array]) -> Call:
        def changed(array: Array) -> Array:
            return (
                array if array.dtype.kind in "iub" else np.asarray(cells(array.size), array.dtype).reshape(array.shape)
            )

        return call.mapped(changed).in_layout()

    for cells in (np.zeros, np.ones, lambda size: np.arange(size) % 7 / 4 - 0.5):
        try:
            target.run(with_cells(cells))
        except Exception:  # which says nothing of these numbers
            continue
        return True
    return False


def judge_conduct(why: ChannelError | LeftBehindError, variant: str) -> Verdict:
    """What a call did to the process that it is made in."""
    return Verdict(
        "defect", "channel" if isinstance(why, ChannelError) else "left_behind", variant=variant, got=str(why)
    )


def _report_changed(name: str, variant: str) -> Verdict:
    return Verdict("defect", "input_changed", name, variant, detail=f"the call wrote into its {name}")


@dataclass(frozen=True)
class _Result:
    """One result of a call, under judgement."""

    target: Target
    call: Call
    name: str
    got: Array
    with_index: bool
    """Whether the target says who won."""
    allow: AbstractSet[str]

    def verdict(self, kind: str, rule: str = "", **more: Any) -> Verdict:
        return Verdict(kind, rule, self.name, self.call.variant, **more)

    def verdict_at(self, kind: str, rule: str, where: Bools, wanted: str, detail: str = "") -> Verdict:
        """A verdict on the first place of ``where``."""
        place = tuple(int(i) for i in np.argwhere(where)[0])
        wanted = wanted.removesuffix(".0") if self.got.dtype.kind in "iu" else wanted  # a place is a whole number
        return self.verdict(kind, rule, place=place, got=repr(self.got[place].item()), expected=wanted, detail=detail)

    def malformed(self, meaning: Meaning | None) -> Verdict | None:
        """A result of the wrong shape or dtype, or an index that names no cell."""
        named, dtype = self.call.named(), self.got.dtype
        shape = named[self.name.partition("_")[2]].shape if meaning is None else meaning.shape
        if self.got.shape != shape:
            return self._misshapen(shape)
        if self.name != "indices":
            own = named["x"].dtype
            return None if dtype == own else self.verdict("defect", "dtype", got=str(dtype), expected=str(own))
        if dtype.kind not in "iu":
            return self.verdict("defect", "dtype", got=str(dtype), expected="an integer dtype")
        cells, places = prod(self.call.problem.spatial), self.got.astype(np.int64)
        outside = (places < -1) | (places >= cells)
        return self.verdict_at("defect", "index_range", outside, f"-1 to {cells - 1}") if outside.any() else None

    def _misshapen(self, shape: Shape) -> Verdict:
        return self.verdict("defect", "shape", got=f"of shape {self.got.shape}", expected=f"shape {shape}")

    def judged(self, meaning: Meaning | None) -> Verdict:
        if meaning is None:
            return self.verdict("undecided", detail="no theorem bounds the error of this result")
        try:
            judgement = meaning.judge(self.got, self.target.arithmetic(self.call.problem))
            return self._passed(judgement) if judgement.passed else self._failed(judgement)
        except UnsupportedError as why:  # of this arithmetic, or of one that the target may use instead
            return self.verdict("undecided", detail=str(why))

    # --- permitted everywhere

    def _passed(self, judgement: Judgement) -> Verdict:
        """It passes, unless that says nothing, or it shows a choice that is not ours."""
        if judgement.spread.any():
            place = int(np.flatnonzero(judgement.spread.ravel())[0])
            plain = replace(judgement.arithmetic, algorithm=None)
            wanted = str(judgement.meaning.permitted_at(place, plain))
            return self._chosen(judgement, judgement.spread, Explanation(("algorithm_spreads",)), wanted)
        if judgement.skipped.any():
            return self._chosen(judgement, judgement.skipped, Explanation(("padding_is_skipped",)), "nan")
        signs = self._other_zeros(judgement)
        if signs.any():
            return self._chosen(judgement, signs, Explanation(("zero_sign",)), "the winner's zero")
        return self._wide(judgement) if judgement.wide.any() else self.verdict("pass")

    def _other_zeros(self, judgement: Judgement) -> Bools:
        """Zeros of a selection that do not have the winner's sign, which is free where no index says who won."""
        meaning, is_told = judgement.meaning, self.name == "dy" or (self.name == "y" and self.with_index)
        if not is_told or not isinstance(meaning, Selected) or meaning.values.dtype.kind != "f":
            return np.zeros(judgement.ok.shape, np.bool_)
        got, meant = judgement.got.astype(np.float64), meaning.values.reshape(meaning.shape)
        return np.asarray((meant == 0) & (np.signbit(got) != np.signbit(meant)))

    def _wide(self, judgement: Judgement) -> Verdict:
        count = f"{int(judgement.wide.sum())} of {judgement.wide.size}"
        return self.verdict("undecided", detail=f"the tolerance of {count} says nothing")

    # --- not permitted somewhere

    def _failed(self, judgement: Judgement) -> Verdict:
        """A result that breaks our rules: by convention, in a mode of reduced precision, or as a defect."""
        call, wrong = self.call, ~judgement.ok
        place = int(np.flatnonzero(wrong.ravel())[0])
        wanted, found = str(judgement.permitted(place)), self._likeliest(judgement)
        if found is not None:
            return self._chosen(judgement, wrong, found, wanted)
        is_gradient = call.problem.op in SELECTIONS and self.name == "grad_x"
        if is_gradient and chooses_a_tied_cell(self.target, call):
            return self._chosen(judgement, wrong, Explanation(("another_tie",)), wanted)
        rule = self.broken_rule(judgement, place)
        own = self.target.composed(call.problem, call.mode)
        mode = judge_reduced(judgement.meaning, judgement.got, judgement.arithmetic, own)
        if mode is not None:
            return self._composed(judgement, mode)
        modes = (self.allow & self.target.reduced().keys()) | own
        mode = judge_reduced(judgement.meaning, judgement.got, judgement.arithmetic, modes)
        if mode is None and "ftz" in modes and is_explained_by_flushing(call, self.name, judgement):
            mode = "ftz"
        if mode is not None:
            return self.verdict_at("reduced", rule, wrong, wanted, f"within the tolerance of {mode}")
        return self._defect(judgement, wrong, modes)

    def _defect(self, judgement: Judgement, wrong: Bools, modes: AbstractSet[str]) -> Verdict:
        """A defect, told where nothing that is allowed permits the result."""
        if modes:
            wide = judgement.meaning.judge(judgement.got, all_together(judgement.arithmetic, modes))
            judgement, wrong = (wide, wrong & ~wide.ok) if (wrong & ~wide.ok).any() else (judgement, wrong)
        place = int(np.flatnonzero(wrong.ravel())[0])
        rule, wanted = self.broken_rule(judgement, place), str(judgement.permitted(place))
        return self.verdict_at("defect", rule, wrong, wanted, self._count_wrong(judgement, wrong))

    def _count_wrong(self, judgement: Judgement, wrong: Bools) -> str:
        """``3 of 4 wrong, the first by 12 units in the last place, 1.5 times what is permitted``."""
        place, told = int(np.flatnonzero(wrong.ravel())[0]), f"{int(wrong.sum())} of {wrong.size} wrong"
        allowed, got = judgement.permitted(place), float(judgement.got.ravel()[place])
        if allowed.low is None or allowed.high is None or not np.isfinite(got) or judgement.got.dtype.kind != "f":
            return told
        centre, radius = float((allowed.low + allowed.high) / 2), float((allowed.high - allowed.low) / 2)
        if not centre:
            return told
        units = round(abs(got - centre) / float(np.spacing(np.abs(judgement.got.dtype.type(centre)))))
        size = f"{units:,} unit{'' if units == 1 else 's'} in the last place"
        told += f", the first by {size if units <= MANY_UNITS else f'{100 * abs(got / centre - 1):.3g} %'}"
        times = abs(got - centre) / radius if radius else 0.0
        return f"{told}, {times:,.3g} times what is permitted" if times > 1 else told

    def _composed(self, judgement: Judgement, mode: str) -> Verdict:
        """A result that the target's interface composes of stored ones: the tolerance of that arithmetic is its own."""
        if mode in ARITHMETICS:
            own = judgement.meaning.judge(judgement.got, ARITHMETICS[mode](judgement.arithmetic))
            if own.wide.any():
                return self._wide(own)
        return self.verdict("pass", detail=f"within the tolerance of {mode}, of which it is composed")

    def broken_rule(self, judgement: Judgement, place: int) -> str:
        """The rule that a wrong result breaks at a flat place."""
        call, empty = self.call, padding_only(self.call, self.name)
        if empty is not None and empty.ravel()[place]:
            return "padding_only"
        if self.name == "indices":
            return "indices"
        allowed, got = judgement.permitted(place), float(judgement.got.ravel()[place])
        if allowed.low is None or not np.isfinite(got):
            return "special"
        if call.mode == "second":
            return "second"
        if call.mode == "vjp" and call.problem.op in SELECTIONS:
            return "vjp.hits"
        if isinstance(judgement.meaning, Selected):
            return f"{call.mode}.selection"
        if call.mode == "value" and call.problem.op == "smooth_max_pool":
            return "value.smooth"
        return f"{call.mode}.{'exact_sum' if allowed.low == allowed.high else 'sum'}"

    def _likeliest(self, judgement: Judgement) -> Explanation | None:
        """The first explanation that the target documents, or that nothing it does speaks against; or the first."""
        first = None
        for option in explanations(self.call, self.name, judgement):
            first = first or option
            is_free = not self.target.strict and NEEDS_DOCUMENTATION.isdisjoint(option.names)
            if set(option.names) <= self.target.conventions() or (is_free and self._against(option) is None):
                return option
        return first

    def _against(self, found: Explanation) -> str | None:
        return None if found.choice is None else contradiction(self.target, self.call, found.choice)

    def _chosen(self, judgement: Judgement, where: Bools, found: Explanation, wanted: str) -> Verdict:
        """A choice that is not ours: a convention if the target documents it, or nothing it does speaks against it."""
        kind, detail = "convention", f"{found.words} ({', '.join(found.names)})"
        place = int(np.flatnonzero(where.ravel())[0])
        rule = _CHOICE_RULES.get(found.names[0]) or self.broken_rule(judgement, place)
        if not set(found.names) <= self.target.conventions():
            if self.target.strict:
                kind, detail = "defect", f"{detail}, {self.target.undeclared(found.names)}"
            elif not NEEDS_DOCUMENTATION.isdisjoint(found.names):
                kind, detail = "defect", f"{detail}, which it does not document"
            elif (against := self._against(found)) is not None:
                kind, rule, detail = "defect", "adjoint", f"{detail}; {against}"
        return self.verdict_at(kind, rule, where, wanted, detail)


def weakening_operator(judgement: Judgement) -> str:
    """The first operator of a reference that has a weak result of operands that are not; found once for each graph."""
    meaning = judgement.meaning
    assert isinstance(meaning, EnclosedMeaning)
    graph = meaning.results.graph

    def find() -> str:
        inner = replace(graph, outputs=tuple(v for node in graph.nodes for v in node.outputs if v.type.is_float))
        enclosed = GraphResults(inner, meaning.results.arrays).enclosed(judgement.arithmetic)
        weak = {v for v, one in zip(inner.outputs, enclosed, strict=True) if one.weak.mean() > 1 / 3}
        first = (n.op.name for n in graph.nodes if not weak.isdisjoint(n.outputs) and weak.isdisjoint(n.inputs))
        return next(first, "")

    return _WEAKENING.get_or_make(graph, find)


class _EnclosedResult(_Result):
    """One result of a call of a reference, whose graph says what it is."""

    def malformed(self, meaning: Meaning | None) -> Verdict | None:
        assert isinstance(meaning, EnclosedMeaning)
        own, dtype = meaning.type.dtype.numpy, self.got.dtype
        if self.got.shape != meaning.shape:
            return self._misshapen(meaning.shape)
        is_like = dtype == own or (own.kind in "iu" and dtype.kind in "iu")
        return None if is_like else self.verdict("defect", "dtype", got=str(dtype), expected=str(own))

    def _passed(self, judgement: Judgement) -> Verdict:
        return self._with_weak(judgement, judgement.wide)

    def _with_weak(self, judgement: Judgement, weak: Bools) -> Verdict:
        """Cells whose enclosure says little are counted; a result that has no others says nothing."""
        found = self._wide(judgement) if weak.size and weak.all() else self.verdict("pass")
        by = weakening_operator(judgement) if weak.sum() > weak.size / 3 else ""
        return replace(found, cells=weak.size, weak=int(weak.sum()), weak_by=by)

    def _failed(self, judgement: Judgement) -> Verdict:
        wrong = ~judgement.ok & ~self._is_lost_beside_the_rest(judgement)
        if not wrong.any():
            return self._with_weak(judgement, ~judgement.ok | judgement.wide)
        place = int(np.flatnonzero(wrong.ravel())[0])
        wanted = str(judgement.permitted(place))
        if self.call.mode != "value" and self._is_between(judgement, wrong):
            return self._chosen(judgement, wrong, Explanation(("another_subgradient",)), wanted)
        rule = self.broken_rule(judgement, place)
        if self._is_of_infinities(judgement, wrong):
            return self.verdict("undecided", detail="what comes of infinities depends on the formula")
        modes = {*self.allow, "ftz"} if self._has_subnormals() else self.allow
        mode = judge_reduced(judgement.meaning, judgement.got, judgement.arithmetic, modes)
        if mode is not None:
            return self.verdict_at("reduced", rule, wrong, wanted, f"within the tolerance of {mode}")
        return self._defect(judgement, wrong, modes)

    def broken_rule(self, judgement: Judgement, place: int) -> str:
        allowed, got = judgement.permitted(place), float(judgement.got.ravel()[place])
        if allowed.low is None or not np.isfinite(got):
            return "special"
        return f"spec.{'exact_sum' if allowed.low == allowed.high else 'sum'}"

    def _has_subnormals(self) -> bool:
        """Whether subnormal numbers are among the inputs: which of them a product loses depends on the formula."""
        least = float(format_named(self.call.problem.dtype).normal)
        floats = (a.astype(np.float64) for a in self.call.arrays().values() if a.dtype.kind not in "iub")
        return any(bool(((a != 0) & (np.abs(a) < least)).any()) for a in floats)

    def _is_lost_beside_the_rest(self, judgement: Judgement) -> Bools:
        """Where a derivative is off by a few roundings of the largest one on the way to it.

        Formulas differ: ``s·(1 − s)`` loses what is small beside 1, and ``s(x)·s(−x)`` does not.
        """
        assert isinstance(judgement.meaning, EnclosedMeaning)
        graph, arrays = judgement.meaning.results.graph, judgement.meaning.results.arrays
        how, scale = judgement.arithmetic, 0.0
        if along := [*zip(graph.inputs, arrays, strict=True)][len(self.call.named()) :]:
            on_the_way = dependents(graph, (v for v, _ in along)) - set(graph.outputs)
            inner = replace(graph, outputs=tuple(v for v in on_the_way if v.type.is_float))
            sizes = (largest(np.abs(e.finite)) for e in GraphResults(inner, arrays).enclosed(None))
            scale = max(prod(largest(np.abs(array)) for _, array in along), *sizes)
        slack = FORMULAS * scale * float((how.accumulate if how.wide_intermediates else how.storage).unit)
        low, high = judgement.meaning.enclosed(how).ends
        got = judgement.got.astype(np.float64)
        with np.errstate(invalid="ignore"):
            return np.asarray((low - slack <= got) & (got <= high + slack) & np.isfinite(slack))

    def _is_of_infinities(self, judgement: Judgement, wrong: Bools) -> bool:
        """Whether nothing is wrong but which numbers are not finite, and infinities are among the inputs.

        A scale folded into another operand makes a NaN of what is infinite without it, and the other way round.
        """
        assert isinstance(judgement.meaning, EnclosedMeaning)
        if not any(
            np.isinf(a.astype(np.float64)).any() for a in self.call.arrays().values() if a.dtype.kind not in "iub"
        ):
            return False
        centre = np.asarray(judgement.meaning.enclosed(judgement.arithmetic).centre, np.float64)[wrong]
        return bool((~np.isfinite(centre) | ~np.isfinite(judgement.got.astype(np.float64)[wrong])).all())

    def _is_between(self, judgement: Judgement, wrong: Bools) -> bool:
        """Whether a kink is met, and wrong derivatives are all between those on either side."""
        assert isinstance(judgement.meaning, EnclosedMeaning)
        if not meets_a_kink(self.call):
            return False
        low, high = (end[wrong] for end in judgement.meaning.hull)
        got = judgement.got.astype(np.float64)[wrong]
        with np.errstate(invalid="ignore"):
            is_kink = high - low > A_KINK * np.maximum(np.abs(low), np.abs(high))
            return bool((is_kink & np.isfinite(low) & np.isfinite(high) & (low <= got) & (got <= high)).all())
