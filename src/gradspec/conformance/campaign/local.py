"""Judging in this process: the cases of a batch, one after the other."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet

from gradspec.conformance.cases.stream import Stream
from gradspec.conformance.checks import examine
from gradspec.conformance.checks.promises import broken
from gradspec.conformance.model.case import CheckCase
from gradspec.conformance.model.run import Judged
from gradspec.conformance.model.target import Target
from gradspec.conformance.model.verdict import FINDINGS, KINDS, Failure, Finding
from gradspec.conformance.shrink.search import manner

KEPT = 3
"""Failures of one kind that are kept from a batch: more would tell nothing new."""

Signature = tuple[str, ...]


def signature(failure: Failure) -> Signature:
    """Failures of the same signature in one batch are most likely of one cause."""
    problem = failure.call.problem
    return (problem.op, failure.call.mode, problem.dtype, failure.verdict.variant, *manner(failure.verdict))


def batches(stream: Stream, first: int, count: int) -> list[list[CheckCase]]:
    """So many batches. Where nothing is offered the stream ends when that has been said once."""
    last = min(first + count, stream.covering) if stream.why_nothing else first + count
    return [stream.batch(number) for number in range(first, last)]


def judged(target: Target, cases: Iterable[CheckCase], allow: AbstractSet[str] = frozenset()) -> Iterator[Judged]:
    """The cases of one batch, each judged when it is asked for.

    >>> from gradspec.conformance.model.case import Selection
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


def _judged(target: Target, case: CheckCase, allow: AbstractSet[str], seen: Counter[Signature]) -> Judged:
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


def mistaken(case: CheckCase, error: Exception) -> Judged:
    """A case that the judge itself could not judge."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{where.filename.rpartition('gradspec/')[2]}:{where.lineno}"
    return unjudged(case, f"{type(error).__name__}: {error} at {place}")


def unjudged(case: CheckCase, why: str) -> Judged:
    """Undecided through no fault of the target's."""
    error = f"case {case.name} ({case.problem.op} {case.mode}): {why}"
    return Judged(case.problem.op, case.mode, tuple(sorted(case.features)), "undecided", error=error)


def broken_promises(target: Target) -> list[Finding]:
    """Calls for which the target's documentation promises an error, and which gave none."""
    found = ((p, {"reproducer": p.source, "explanation": p.documented}, verdict) for p, verdict in broken(target))
    return [Finding.of(verdict, promise.op, "value", result="", **more) for promise, more, verdict in found]
