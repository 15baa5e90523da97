"""Judging in this process: the cases of a batch, one after the other."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from gradspec.conformance.call import Problem
from gradspec.conformance.cases import Case
from gradspec.conformance.cases.stream import Stream
from gradspec.conformance.checks.promises import broken
from gradspec.conformance.judge.examine import examine
from gradspec.conformance.run import Failure, Tally
from gradspec.conformance.shrink import manner
from gradspec.conformance.targets import Target
from gradspec.conformance.verdict import FINDINGS, KINDS, Finding, Verdict

KEPT = 3
"""Failures of one kind that are kept from a batch: more would tell nothing new."""

Signature = tuple[str, ...]


@dataclass(frozen=True)
class Judged:
    """One case after judgement: what is counted of it, and what is wrong with it.

    ``reason`` says why it was not offered; ``unkept`` counts the failures that are like ones already kept; ``error`` is
    a mistake of the judge itself, which leaves the case undecided.
    """

    op: str
    mode: str
    features: tuple[str, ...]
    kind: str
    reason: str = ""
    failures: tuple[Failure, ...] = ()
    unkept: tuple[Signature, ...] = ()
    error: str = ""

    def count(self, tally: Tally) -> None:
        tally.count(self.op, self.mode, self.features, [Verdict(self.kind, detail=self.reason)])

    def to_json(self) -> dict[str, Any]:
        failures = [failure.to_json() for failure in self.failures]
        return {**vars(self), "failures": failures}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Judged:
        failures = tuple(map(Failure.from_json, data["failures"]))
        unkept = tuple(map(tuple, data["unkept"]))
        return Judged(**{**data, "features": tuple(data["features"]), "failures": failures, "unkept": unkept})


@dataclass(frozen=True)
class Batch:
    """The judged cases of one batch."""

    number: int
    cases: tuple[Judged, ...]

    def to_json(self) -> dict[str, Any]:
        return {"number": self.number, "cases": [case.to_json() for case in self.cases]}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Batch:
        return Batch(data["number"], tuple(map(Judged.from_json, data["cases"])))


def signature(failure: Failure) -> Signature:
    """Failures of the same signature in one batch are most likely of one cause."""
    problem = failure.call.problem
    return (problem.op, failure.call.mode, problem.dtype, failure.verdict.variant, *manner(failure.verdict))


def case_to_json(case: Case) -> dict[str, Any]:
    return {**vars(case), "problem": case.problem.to_json(), "features": sorted(case.features)}


def case_from_json(data: Mapping[str, Any]) -> Case:
    return Case(**{**data, "problem": Problem.from_json(data["problem"]), "features": frozenset(data["features"])})


def batches(stream: Stream, first: int, count: int) -> list[list[Case]]:
    """So many batches. Where nothing is offered the stream ends when that has been said once."""
    last = min(first + count, stream.covering) if stream.why_nothing else first + count
    return [stream.batch(number) for number in range(first, last)]


def judged(target: Target, cases: Iterable[Case], allow: AbstractSet[str] = frozenset()) -> Iterator[Judged]:
    """The cases of one batch, each judged when it is asked for.

    >>> from gradspec.conformance.cases import Selection
    >>> from gradspec.conformance.cases.stream import Stream
    >>> from gradspec.conformance.targets import target_named
    >>> native = target_named("native")
    >>> cases = Stream(0, Selection(ops=("max_pool",), modes=("value",)), native.refusal).batch(0)
    >>> {case.kind for case in judged(native, cases)}
    {'pass'}
    """
    seen: Counter[Signature] = Counter()
    for case in cases:
        yield _judged(target, case, allow, seen)


def _judged(target: Target, case: Case, allow: AbstractSet[str], seen: Counter[Signature]) -> Judged:
    features = tuple(sorted(case.features))
    try:
        call, verdicts = examine(target, case, allow)
    except Exception as error:
        return mistaken(case, error)
    worst = min(verdicts, key=lambda verdict: KINDS.index(verdict.kind))
    failures = [Failure(call, v, features, case.name) for v in verdicts if v.kind in FINDINGS]
    kept, unkept = few_of_each(failures, seen)
    reason = worst.detail if worst.kind == "not_offered" else ""
    return Judged(case.problem.op, case.mode, features, worst.kind, reason, kept, unkept)


def few_of_each(
    failures: Collection[Failure], seen: Counter[Signature]
) -> tuple[tuple[Failure, ...], tuple[Signature, ...]]:
    """The failures to keep, and the signatures of the others. ``seen`` counts all of them."""
    kept, unkept = list[Failure](), list[Signature]()
    for failure in failures:
        mark = signature(failure)
        seen[mark] += 1
        if seen[mark] <= KEPT:
            kept.append(failure)
        else:
            unkept.append(mark)
    return tuple(kept), tuple(unkept)


def mistaken(case: Case, error: Exception) -> Judged:
    """A case that the judge itself could not judge."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{where.filename.rpartition('gradspec/')[2]}:{where.lineno}"
    return unjudged(case, f"{type(error).__name__}: {error} at {place}")


def unjudged(case: Case, why: str) -> Judged:
    """Undecided through no fault of the target's."""
    error = f"case {case.name} ({case.problem.op} {case.mode}): {why}"
    return Judged(case.problem.op, case.mode, tuple(sorted(case.features)), "undecided", error=error)


def broken_promises(target: Target) -> list[Finding]:
    """Calls for which the target's documentation promises an error, and which gave none."""
    return [
        Finding(
            *(promise.op, "value", verdict.kind, (), "", {}, verdict.got, verdict.expected, verdict.rule),
            reproducer=promise.source,
            explanation=promise.documented,
        )
        for promise, verdict in broken(target)
    ]
