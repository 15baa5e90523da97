"""From failures to findings: what fails in the same way, for the same reason, is told once, by its smallest case.

Failures are grouped by what can be seen of them (`groups`). The smallest of a group is shrunk; what is left in it names
the cause, and the failures that do not have all of that are another's (`unexplained`). Findings that differ by nothing
but the operator, rank or dtype are one (`merge_findings`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import groupby
from math import inf
from time import monotonic
from typing import Any

import numpy as np

from gradspec.conformance.cases.features import tags_of_call
from gradspec.conformance.judge.verdicts import NOTHING_ALLOWED, judge_call, labelled_argument
from gradspec.conformance.model.geometry import is_usual
from gradspec.conformance.model.problem import AVERAGES, MODES, SELECTIONS, Array, Call
from gradspec.conformance.model.target import Target
from gradspec.conformance.model.verdict import KINDS, RULES, Failure, Finding, explain
from gradspec.conformance.shrink.programs import programs
from gradspec.conformance.shrink.search import conventions, error, manner, shrink, size
from gradspec.conformance.shrink.suspects import suspicion
from gradspec.conformance.shrink.titles import rank

MOST_CAUSES = 6
"""Causes that are looked for in one group."""
GUESSED = 0.5
"""Of the time for a kernel of a reference, what shrinking may take: guesses at what it does take the rest."""
LOOKED_AT = 4
"""Failures of a derivative for which the value is looked at."""
MADE_SMALL = frozenset({"one_cell_axis"})
"""Features that shrinking itself brings about."""
EMPTY = frozenset({"empty_batch", "zero_channels"})
"""Features of arrays without cells."""
MASKS = EMPTY | {"nan", "infinity", "huge"}
"""Features under which a wrong sum shows as something else: a NaN that is lost, say."""
NUMERIC = frozenset(
    {"special", "second", "vjp.hits", "spec.sum", "spec.exact_sum"}
    | {f"{mode}.{sort}" for mode in MODES for sort in ("selection", "sum", "exact_sum")}
)
"""Rules that say which number stands somewhere."""
ORDINARY = 1000.0
"""Numbers below this in magnitude hide nothing."""
FAMILIES = dict.fromkeys(SELECTIONS, "maximum") | dict.fromkeys(AVERAGES, "average")
"""Operators that are one reduction over different windows."""


def explain_group(
    target: Target, group: Sequence[Failure], seconds: float, allow: AbstractSet[str] = NOTHING_ALLOWED
) -> list[Finding]:
    """The findings of one group: one for each cause in it, shrunk for so many seconds in all."""
    found: list[Finding] = []
    deadline = monotonic() + seconds
    while group:
        first = smallest(group)
        if monotonic() < deadline:
            first = on_ordinary_numbers(target, first, allow)
        share = GUESSED if first.call.problem.is_reference else 1.0
        shrunk = shrink(target, first, share * max(0.0, deadline - monotonic()), allow)
        one = finding(target, group, shrunk, deadline)
        tells = shrunk is not first and len(found) + 1 < MOST_CAUSES  # of the cause: what was not shrunk tells nothing
        rest = unexplained(group, one) if tells and monotonic() < deadline else []
        found.append(narrow(one, group, rest))
        group = rest
    return found


def on_ordinary_numbers(target: Target, failure: Failure, allow: AbstractSet[str] = NOTHING_ALLOWED) -> Failure:
    """The failure without its special numbers, if the same result is wrong without them: it is plainer then."""
    if failure.verdict.kind != "defect" or failure.verdict.rule not in NUMERIC or MASKS.isdisjoint(failure.features):
        return failure
    call = failure.judged_call.mapped(_ordinary).in_layout()
    wrong = (v for v in judge_call(target, call, allow) if v.kind == "defect" and v.rule in NUMERIC)
    verdict = next((v for v in wrong if v.result == failure.verdict.result), None)
    if verdict is None:
        return failure
    return replace(failure, call=call, verdict=verdict, features=tuple(sorted(tags_of_call(call))))


def _ordinary(array: Array) -> Array:
    """Small whole numbers in the place of those that are not finite, or large."""
    with np.errstate(invalid="ignore"):
        is_small = np.abs(array.astype(np.float64)) < ORDINARY
    return np.where(is_small, array, (np.arange(array.size).reshape(array.shape) % 5 + 1).astype(array.dtype))


# --- groups -----------------------------------------------------------------------------------------------------------


def groups(failures: Iterable[Failure]) -> list[list[Failure]]:
    """Failures of one operator and mode that break one rule in one result, in the order in which they were met."""
    found: dict[tuple[str, ...], list[Failure]] = {}
    for failure in failures:
        key = (failure.call.problem.op, failure.call.mode, *manner(failure.verdict))
        found.setdefault(key, []).append(failure)
    return list(found.values())


def smallest(group: Sequence[Failure]) -> Failure:
    """The failure that shrinking starts from."""
    return min(group, key=lambda failure: (not MASKS.isdisjoint(failure.features), *size(failure.judged_call)))


def pick_varied(group: Sequence[Failure], most: int) -> list[Failure]:
    """At most so many failures of a group: the smallest of each that is special in another way, then the others."""
    first: dict[frozenset[str], Failure] = {}
    ordered = sorted(group, key=lambda failure: size(failure.judged_call))
    for failure in ordered:
        first.setdefault(_signature(failure.judged_call, failure.features), failure)
    taken = {id(failure) for failure in first.values()}
    return [*first.values(), *(failure for failure in ordered if id(failure) not in taken)][:most]


def unexplained(group: Sequence[Failure], finding: Finding) -> list[Failure]:
    """The failures of a group that lack something without which the shrunk case of the finding does not fail."""
    first = smallest(group)
    needed = _finding_signature(finding) & _signature(first.judged_call, first.features)
    return [f for f in group if f is not first and not needed <= _signature(f.judged_call, f.features)]


def narrow(finding: Finding, group: Sequence[Failure], rest: Sequence[Failure]) -> Finding:
    """A finding of a group that stands for all of it but the rest."""
    others = {id(failure) for failure in rest}
    mine = [failure for failure in group if id(failure) not in others]
    return replace(
        finding, count=len(mine), seen=_elsewhere(finding, _list_places(mine)), causes=_causes(finding, mine)
    )


def _causes(finding: Finding, failures: Sequence[Failure]) -> tuple[str, ...]:
    """The features of the smallest case that all cases have: the others shrinking has left, or brought about."""
    left = {*finding.features}
    for failure in failures:
        if left - {*failure.features}:  # numbers may tie in a case without the feature
            left &= {*failure.features} | tags_of_call(failure.judged_call)
    return tuple(name for name in finding.features if name in left)


def _signature(call: Call, features: Iterable[str]) -> frozenset[str]:
    """What is special about a call: features, attributes that are not left at their defaults, dtype and variant."""
    problem = call.problem
    given = problem.attributes
    found = {f"attribute {name}" for name in given if not is_usual(problem.op, problem.rank, given, name)}
    found |= {*features} - MADE_SMALL
    if call.problem.dtype != "f32":
        found.add(f"dtype {call.problem.dtype}")
    if call.variant != "plain":
        found.add(f"variant {call.variant}")
    return frozenset(found)


# --- findings ---------------------------------------------------------------------------------------------------------


def finding(target: Target, group: Sequence[Failure], shrunk: Failure, deadline: float = inf) -> Finding:
    """The finding of a group, by its shrunk failure; no guess at its cause begins after the deadline."""
    texts = programs(target, shrunk.judged_call.in_layout(), shrunk.verdict)
    told: dict[str, Any] = {
        "reproducer": _reproducer(texts, shrunk),
        "explanation": explain(shrunk.verdict),
        "programs": texts,
    }
    if shrunk.verdict.rule == "input_changed":  # which the reproducer prints, too
        told["programs"] = {}
    is_defect = shrunk.verdict.kind == "defect" and shrunk.verdict.rule in NUMERIC
    if shrunk.call.problem.is_reference and is_defect:
        alike = [f for f in group if f.judged_call.problem.dtype == shrunk.judged_call.problem.dtype]
        told["suspicion"] = suspicion(target, [shrunk, *alike], deadline)
        told["follows"] = all(_leader_is_wrong(target, f.judged_call) for f in [shrunk, *alike][:LOOKED_AT])
    found = Finding.about(shrunk, **told, count=len(group))
    return replace(found, seen=_elsewhere(found, _list_places(group)))


def _leader_is_wrong(target: Target, call: Call) -> bool:
    """On the same inputs, or on others of the same shapes: in small cases it may be right by chance."""
    value = replace(call, mode="value", directions=(), cotangent=None, variant="plain")
    other = value.mapped(lambda array: 2 * array + 1 if array.dtype.kind not in "iub" else array)
    gradient = replace(call, mode="vjp", directions=(), variant="plain")
    leaders = {"value": (), "second": (value, other, gradient)}.get(call.mode, (value, other))
    verdicts = (verdict for one in leaders for verdict in judge_call(target, one.in_layout()))
    return any(verdict.kind == "defect" and verdict.rule in NUMERIC for verdict in verdicts)


def _reproducer(texts: Mapping[str, str], shrunk: Failure) -> str:
    """The program, with what it gives, what is right and the rule in comments."""
    verdict = shrunk.verdict
    where = "" if verdict.place is None else str(list(verdict.place))
    told = {
        "gives": f"{verdict.result}{where} = {verdict.got}" if verdict.result and verdict.got else verdict.got,
        "right": verdict.expected,
        "rule": RULES.get(verdict.rule, verdict.rule),
    }
    comments = [f"# {word}: {' '.join(text.split())}" for word, text in told.items() if text]
    lines = [texts.get(verdict.setting, texts.get("", "")).rstrip()]
    if verdict.rule == "input_changed":
        lines.append(f"print({labelled_argument(verdict.result, shrunk.call)})  # as the call has left it")
    return "\n".join([*lines, *comments]) + "\n"


def _list_places(group: Iterable[Failure]) -> set[str]:
    return {f"{f.call.problem.op} {f.call.mode} {f.call.problem.dtype}" for f in group}


def _elsewhere(finding: Finding, seen: set[str]) -> tuple[str, ...]:
    return tuple(sorted(seen - {finding.where}))


# --- findings that are one -------------------------------------------------------------------------------------------


def merge_findings(found: Iterable[Finding]) -> list[Finding]:
    """Findings of the same cause as one, the simplest; worst kinds first, then those that show most often."""
    by_manner = sorted(found, key=_manner)
    causes = list[Finding]()
    for _, same in groupby(by_manner, key=_manner):  # each joins the first, simpler one that needs nothing else
        simplest = sorted(same, key=lambda f: (len(_finding_signature(f)), *size(f.call), f.op))
        causes += _join_causes([], simplest, _needs_no_more)
    return sorted(
        _join_alike(_join_masked(causes)),
        key=lambda f: (KINDS.index(f.kind), -f.count, f.op, f.mode, f.rule, f.result),
    )


def _manner(finding: Finding) -> tuple[object, ...]:
    family, empty = FAMILIES.get(finding.op, finding.op), EMPTY & {*finding.features}
    if finding.rule in ("raised", "shape"):  # neither asks for the mode
        if empty:
            return family, "", finding.kind, "empty", "", tuple(sorted(empty))
        return family, "", finding.kind, finding.rule, error(finding.got) if finding.rule == "raised" else "", ()
    if finding.rule == "state":
        return family, "", finding.kind, "state", finding.setting.strip(), ()
    rule = finding.rule.replace("exact_sum", "sum")
    return family, finding.mode, finding.kind, rule, finding.result, conventions(finding.explanation)


def _join_masked(causes: list[Finding]) -> list[Finding]:
    """Findings joined to one of the same result that needs nothing else, and that neither NaN nor emptiness hides."""

    def result(finding: Finding) -> tuple[str, ...]:
        return FAMILIES.get(finding.op, finding.op), finding.mode, finding.kind, finding.result

    def shows_plainly(cause: Finding, one: Finding) -> bool:
        return MASKS.isdisjoint(cause.features) and result(cause) == result(one) and _needs_no_more(cause, one)

    plain = [cause for cause in causes if MASKS.isdisjoint(cause.features)]
    return _join_causes(plain, [cause for cause in causes if not MASKS.isdisjoint(cause.features)], shows_plainly)


def _join_alike(causes: list[Finding]) -> list[Finding]:
    """Wrong results joined to one that is as bad and wrong for the same reason, or of lower order where they are wrong
    with it alone. What a derivative does by itself, as leaving its cotangent out, stays a finding."""

    def is_one(cause: Finding, one: Finding) -> bool:
        if cause.op != one.op or not cause.kind == one.kind == "defect" or rank(cause) > rank(one):
            return False
        if cause.suspicion and cause.suspicion == one.suspicion:
            return True
        is_lower = MODES.index(cause.mode) < MODES.index(one.mode) and cause.rule in NUMERIC
        return one.follows and is_lower and not _is_of_itself(one)

    return _join_causes([], sorted(causes, key=lambda one: (rank(one), MODES.index(one.mode))), is_one)


def _is_of_itself(one: Finding) -> bool:
    """Whether what is suspected of a derivative is of what it alone is given, or gives."""
    added = one.call.arrays().keys() - one.call.named().keys()
    is_plain = re.match("the result (is (zeros|one|its)|stays)", one.suspicion)
    return bool(is_plain or added & {*re.findall(r"\w+", one.suspicion)})


def _join_causes(
    causes: list[Finding], more: list[Finding], may_join: Callable[[Finding, Finding], bool]
) -> list[Finding]:
    """Causes, and more findings, each joined to the first cause that it may join."""
    for one in more:
        place = next((i for i, cause in enumerate(causes) if may_join(cause, one)), None)
        if place is None:
            causes.append(one)
        else:
            cause = causes[place]
            seen = _elsewhere(cause, {*cause.seen, *one.seen, one.where})
            causes[place] = replace(cause, count=cause.count + one.count, seen=seen)
    return causes


def _needs_no_more(cause: Finding, one: Finding) -> bool:
    return _finding_signature(cause) <= _finding_signature(one)


def _finding_signature(finding: Finding) -> frozenset[str]:
    if finding.rule == "state":  # what differed says it all
        return frozenset()
    return _signature(finding.call, finding.features)
