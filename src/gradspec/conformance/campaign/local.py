"""Judging in this process: what can be asked about a target, and the cases of a batch, one after the other."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from math import inf
from time import monotonic

from gradspec.conformance.cases.stream import Stream
from gradspec.conformance.checks import examine
from gradspec.conformance.checks.probes import probe
from gradspec.conformance.checks.promises import broken
from gradspec.conformance.model.case import CampaignSettings, CheckCase
from gradspec.conformance.model.run import Judged
from gradspec.conformance.model.target import Target
from gradspec.conformance.model.verdict import FINDINGS, KINDS, Failure, Finding, Probe
from gradspec.conformance.shrink.causes import explained
from gradspec.conformance.shrink.search import manner

KEPT = 3
"""Failures of one kind that are kept from a batch: more would tell nothing new."""

Signature = tuple[str, ...]


def signature(failure: Failure) -> Signature:
    """Failures of the same signature in one batch are most likely of one cause."""
    problem = failure.call.problem
    return (problem.op, failure.call.mode, problem.dtype, failure.verdict.variant, *manner(failure.verdict))


class InProcess:
    """What can be asked about a target, answered here: `Isolated` asks the same of another process."""

    def __init__(self, target: Target, settings: CampaignSettings, clock: Callable[[], float] = monotonic) -> None:
        self.target, self.settings, self.clock, self.allow = target, settings, clock, frozenset(settings.allow)

    @cached_property
    def _stream(self) -> Stream:
        """Made when it is first needed: the cover takes a moment, and only who plans needs it."""
        return Stream(self.settings.seed, self.settings.selection, self.target.refusal, self.target.domain)

    @property
    def domain(self) -> str:
        return str(self.target.domain)

    def versions(self) -> dict[str, str]:
        return self.target.versions()

    def probes(self, seconds: float) -> list[Probe]:
        return probe(self.target, seconds, self.clock)

    def broken_promises(self) -> list[Finding]:
        """Calls for which the target's documentation promises an error, and which gave none."""
        found = ((p, {"reproducer": p.source, "explanation": p.documented}, v) for p, v in broken(self.target))
        return [Finding.of(verdict, promise.op, "value", result="", **more) for promise, more, verdict in found]

    def plan(self, first: int, count: int) -> list[list[CheckCase]]:
        """The cases of so many batches. Where nothing is offered they end when that has been said once."""
        last = min(first + count, self._stream.covering) if self._stream.why_nothing else first + count
        return [self._stream.batch(number) for number in range(first, last)]

    def judged(self, cases: Iterable[CheckCase], deadline: float = inf) -> Iterator[Judged]:
        """The cases of a batch, each judged when it is asked for; none begins after the deadline."""
        seen: Counter[Signature] = Counter()
        for case in cases:
            if self.clock() >= deadline:
                return
            yield _judged(self.target, case, self.allow, seen)

    def findings(self, failures: Sequence[Failure], seconds: float) -> list[Finding]:
        """What the failures of one group come to, shrunk for so long."""
        return explained(self.target, failures, seconds, self.allow)

    def close(self) -> None:
        """There is nothing to close."""


def _judged(target: Target, case: CheckCase, allow: AbstractSet[str], seen: Counter[Signature]) -> Judged:
    features = tuple(sorted(case.features))
    try:
        call, verdicts = examine(target, case, allow)
    except Exception as error:
        return mistaken(case, error)
    worst = min(verdicts, key=lambda verdict: KINDS.index(verdict.kind))
    failures = [Failure.told(v, call, features, case.name) for v in verdicts if v.kind in FINDINGS]
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


def mistaken(case: CheckCase, error: Exception) -> Judged:
    """A case that the judge itself could not judge."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{where.filename.rpartition('gradspec/')[2]}:{where.lineno}"
    return unjudged(case, f"{type(error).__name__}: {error} at {place}")


def unjudged(case: CheckCase, why: str) -> Judged:
    """Undecided through no fault of the target's."""
    error = f"case {case.name} ({case.problem.op} {case.mode}): {why}"
    return Judged(case.problem.op, case.mode, tuple(sorted(case.features)), "undecided", error=error)
