"""Running a target on a call, and the verdict on each of its results."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from gradspec.conformance.judge.adjoint import chooses_a_tied_cell, contradiction
from gradspec.conformance.judge.conventions import NEEDS_DOCUMENTATION, Explanation, explanations, padding_only
from gradspec.conformance.judge.reduced import ARITHMETICS, explained_by_flushing, judged_reduced
from gradspec.conformance.judge.snapshot import Snapshot, same_bits
from gradspec.conformance.model.problem import SELECTIONS, Array, Call, Results
from gradspec.conformance.model.target import NotOfferedError, Target
from gradspec.conformance.model.verdict import Verdict
from gradspec.conformance.oracle import Judgement, Meaning
from gradspec.conformance.oracle.expected import expected
from gradspec.conformance.oracle.meaning import Bools, Selected
from gradspec.spec.errors import UnsupportedError

NOTHING_ALLOWED: frozenset[str] = frozenset()


def judge_call(target: Target, call: Call, allow: AbstractSet[str] = NOTHING_ALLOWED) -> list[Verdict]:
    """Run one call and judge each of its results."""
    return Judge(target, call, allow).verdicts(call.variant)


class Judge:
    """Judges one call in each of the target's ways to make it; what it means is worked out once."""

    def __init__(self, target: Target, call: Call, allow: AbstractSet[str]) -> None:
        self.target, self.call, self.allow = target, call, allow
        self.meanings, self.snapshot = expected(call), Snapshot(call)
        self._judged: dict[str, list[tuple[Array, Verdict]]] = {}

    def verdicts(self, variant: str) -> list[Verdict]:
        """Run one variant of the call and judge each of its results."""
        call = replace(self.call, variant=variant)
        try:
            results = self.target.run(call)
        except NotOfferedError as why:
            return [Verdict("not_offered", variant=variant, detail=str(why))]
        except Exception as error:  # whatever the target raises is its own doing
            return [Verdict("defect", "raised", variant=variant, got=f"{type(error).__name__}: {error}")]
        changed = [(name, f"the call wrote into its {name}") for name in self.snapshot.restored()]
        wrote = [Verdict("defect", "input_changed", name, variant, detail=detail) for name, detail in changed]
        return wrote or self._results(call, results)

    def _results(self, call: Call, results: Results) -> list[Verdict]:
        """Results that the target leaves out are not judged."""
        given = [name for name in self.meanings if name in results]
        if not given:
            nothing = f"it gives none of {', '.join(self.meanings)}"
            return [Verdict("not_offered", variant=call.variant, detail=nothing)]
        return [self._result(call, name, results) for name in given]

    def _result(self, call: Call, name: str, results: Results) -> Verdict:
        """The verdict on one result: that on the same bits, if another variant gave them."""
        got = np.asarray(results[name])
        known = self._judged.setdefault(f"{name} {'indices' in results}", [])
        for bits, verdict in known:
            if same_bits(bits, got):
                return replace(verdict, variant=call.variant)
        verdict = _judge(self.target, call, name, self.meanings[name], results, self.allow)
        known.append((got.copy(), verdict))
        return verdict


def _judge(
    target: Target, call: Call, name: str, meaning: Meaning | None, results: Results, allow: AbstractSet[str]
) -> Verdict:
    got = np.asarray(results[name])
    malformed = _malformed(call, name, meaning, got)
    if malformed is not None:
        return malformed
    if meaning is None:
        return _verdict(call, "undecided", "", name, detail="no theorem bounds the error of this result")
    try:
        judgement = meaning.judge(got, target.arithmetic(call.problem))
    except UnsupportedError as why:
        return _verdict(call, "undecided", "", name, detail=str(why))
    if not judgement.passed:
        return _failed(target, call, name, judgement, allow)
    return _passed(target, call, name, judgement, with_index="indices" in results)


def _malformed(call: Call, name: str, meaning: Meaning | None, got: Array) -> Verdict | None:
    """A result of the wrong shape or dtype, or an index that names no cell."""
    shape = call.named()[name.partition("_")[2]].shape if meaning is None else meaning.shape
    if got.shape != shape:
        return _verdict(call, "defect", "shape", name, got=f"of shape {got.shape}", expected=f"shape {shape}")
    dtype = call.named()["x"].dtype
    if name != "indices":
        if got.dtype == dtype:
            return None
        return _verdict(call, "defect", "dtype", name, got=str(got.dtype), expected=str(dtype))
    if got.dtype.kind not in "iu":
        return _verdict(call, "defect", "dtype", name, got=str(got.dtype), expected="an integer dtype")
    cells = prod(call.problem.spatial)
    outside = (got.astype(np.int64) < -1) | (got.astype(np.int64) >= cells)
    return _at(call, "defect", "index_range", name, got, outside, f"-1 to {cells - 1}") if outside.any() else None


def _passed(target: Target, call: Call, name: str, judgement: Judgement, with_index: bool) -> Verdict:
    """Permitted everywhere: it passes, unless that says nothing, or it shows a choice that is not ours."""
    if judgement.skipped.any():
        return _chosen(target, call, name, judgement, judgement.skipped, Explanation(("padding_is_skipped",)), "nan")
    signs = _other_zeros(call, name, judgement, with_index)
    if signs.any():
        return _chosen(target, call, name, judgement, signs, Explanation(("zero_sign",)), "the winner's zero")
    return _wide(call, name, judgement) if judgement.wide.any() else _verdict(call, "pass", "", name)


def _other_zeros(call: Call, name: str, judgement: Judgement, with_index: bool) -> Bools:
    """Zeros of a selection that do not have the winner's sign, which is free where no index says who won."""
    meaning = judgement.meaning
    if not isinstance(meaning, Selected) or meaning.values.dtype.kind != "f" or name not in ("y", "dy"):
        return np.zeros(judgement.ok.shape, np.bool_)
    if name == "y" and not with_index:
        return np.zeros(judgement.ok.shape, np.bool_)
    got, meant = judgement.got.astype(np.float64), meaning.values.reshape(meaning.shape)
    return np.asarray((meant == 0) & (np.signbit(got) != np.signbit(meant)))


def _failed(target: Target, call: Call, name: str, judgement: Judgement, allow: AbstractSet[str]) -> Verdict:
    """A result that breaks our rules: by convention, in a mode of reduced precision, or as a defect."""
    wrong = ~judgement.ok
    place = int(np.flatnonzero(wrong.ravel())[0])
    wanted = str(judgement.permitted(place))
    found = _likeliest(target, call, explanations(call, name, judgement))
    if found is not None:
        return _chosen(target, call, name, judgement, wrong, found, wanted)
    if call.problem.op in SELECTIONS and name == "grad_x" and chooses_a_tied_cell(target, call):
        return _chosen(target, call, name, judgement, wrong, Explanation(("another_tie",)), wanted)
    rule = rule_of(call, name, judgement, place)
    own = target.composed(call.problem, call.mode)
    mode = judged_reduced(judgement.meaning, judgement.got, judgement.arithmetic, own)
    if mode is not None:
        return _composed(call, name, judgement, mode)
    modes = (allow & target.reduced().keys()) | own
    mode = judged_reduced(judgement.meaning, judgement.got, judgement.arithmetic, modes)
    if mode is None and "ftz" in modes and explained_by_flushing(call, name, judgement):
        mode = "ftz"
    if mode is not None:
        return _at(call, "reduced", rule, name, judgement.got, wrong, wanted, f"within the tolerance of {mode}")
    count = f"{int(wrong.sum())} of {wrong.size} wrong"
    return _at(call, "defect", rule, name, judgement.got, wrong, wanted, count)


def _composed(call: Call, name: str, judgement: Judgement, mode: str) -> Verdict:
    """A result that the target's interface composes of stored ones: the tolerance of that arithmetic is its own."""
    if mode in ARITHMETICS:
        own = judgement.meaning.judge(judgement.got, ARITHMETICS[mode](judgement.arithmetic))
        if own.wide.any():
            return _wide(call, name, own)
    return _verdict(call, "pass", "", name, detail=f"within the tolerance of {mode}, of which it is composed")


def _wide(call: Call, name: str, judgement: Judgement) -> Verdict:
    count = f"{int(judgement.wide.sum())} of {judgement.wide.size}"
    return _verdict(call, "undecided", "", name, detail=f"the tolerance of {count} says nothing")


def _likeliest(target: Target, call: Call, options: Iterator[Explanation]) -> Explanation | None:
    """The first explanation that the target documents, or that nothing else it does speaks against; or the first."""
    first = None
    for option in options:
        first = first or option
        if set(option.names) <= target.conventions():
            return option
        is_free = not target.strict and NEEDS_DOCUMENTATION.isdisjoint(option.names)
        if is_free and _against(target, call, option) is None:
            return option
    return first


def _against(target: Target, call: Call, found: Explanation) -> str | None:
    return None if found.choice is None else contradiction(target, call, found.choice)


def _chosen(
    target: Target, call: Call, name: str, judgement: Judgement, where: Bools, found: Explanation, wanted: str
) -> Verdict:
    """A choice that is not ours: a convention if the target documents it, or nothing else it does speaks against it."""
    kind, detail = "convention", f"{found.words} ({', '.join(found.names)})"
    place = int(np.flatnonzero(where.ravel())[0])
    rule = _CHOICE_RULES.get(found.names[0]) or rule_of(call, name, judgement, place)
    if not set(found.names) <= target.conventions():
        if target.strict:
            kind, detail = "defect", f"{detail}, {target.undeclared(found.names)}"
        elif not NEEDS_DOCUMENTATION.isdisjoint(found.names):
            kind, detail = "defect", f"{detail}, which it does not document"
        elif (against := _against(target, call, found)) is not None:
            kind, rule, detail = "defect", "adjoint", f"{detail}; {against}"
    return _at(call, kind, rule, name, judgement.got, where, wanted, detail)


_CHOICE_RULES = {"zero_sign": "zero_sign", "padding_is_skipped": "special"}


def rule_of(call: Call, name: str, judgement: Judgement, place: int) -> str:
    """The rule that a wrong result breaks at a flat place."""
    empty = padding_only(call, name)
    if empty is not None and empty.ravel()[place]:
        return "padding_only"
    if name == "indices":
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


def _at(
    call: Call, kind: str, rule: str, name: str, got: Array, where: Bools, wanted: str, detail: str = ""
) -> Verdict:
    """A verdict on the first place of ``where``."""
    place = tuple(int(i) for i in np.argwhere(where)[0])
    return _verdict(call, kind, rule, name, place=place, got=repr(got[place].item()), expected=wanted, detail=detail)


def _verdict(call: Call, kind: str, rule: str, result: str, **more: Any) -> Verdict:
    return Verdict(kind, rule, result, call.variant, **more)
