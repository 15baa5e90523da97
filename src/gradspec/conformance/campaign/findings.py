"""From failures to findings: grouped by cause, one of each cause shrunk and explained, the worst first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Executor, Future, wait
from dataclasses import replace
from time import monotonic

from gradspec.conformance.campaign.ledger import Ledger, number_of
from gradspec.conformance.campaign.settings import Settings
from gradspec.conformance.campaign.tasks import explain
from gradspec.conformance.causes import explained, groups, least, merged, varied
from gradspec.conformance.run import Failure
from gradspec.conformance.targets import Target
from gradspec.conformance.verdict import KINDS, Finding

A_CAUSE = 5.0
"""Seconds that one cause may be shrunk for, where there are few."""
MEMBERS = 40
"""Failures of a group that are sent along to be explained."""


def found(
    ledger: Ledger,
    settings: Settings,
    executor: Executor,
    jobs: int,
    seconds: float,
    watch: Callable[[int, int], None] = lambda done, of: None,
) -> list[Finding]:
    """What the failures in the ledger come to, shrunk for so many seconds by ``jobs`` threads of this process."""
    causes, deadline = groups(in_order(ledger)), monotonic() + seconds
    each = min(A_CAUSE, seconds * jobs / max(1, len(causes)))
    tasks = [executor.submit(explain, settings, varied(cause, MEMBERS), each, deadline) for cause in causes]
    try:
        waiting = set(tasks)
        while waiting:
            _, waiting = wait(waiting, 0.2)
            watch(len(tasks) - len(waiting), len(tasks))
    except KeyboardInterrupt:
        for task in tasks:
            task.cancel()
    results = [_result(task, cause) for task, cause in zip(tasks, causes, strict=True)]
    return merged(f for found, cause in zip(results, causes, strict=True) for f in counted(found, cause, ledger))


def found_here(
    ledger: Ledger,
    target: Target,
    allow: AbstractSet[str],
    seconds: float,
    watch: Callable[[int, int], None] = lambda done, of: None,
) -> list[Finding]:
    """The same in this process."""
    causes, findings = groups(in_order(ledger)), list[Finding]()
    try:
        for number, cause in enumerate(causes):
            watch(number, len(causes))
            told = explained(target, cause, min(A_CAUSE, seconds / len(causes)), allow)
            findings += counted(told, cause, ledger)
    except KeyboardInterrupt:
        for cause in causes[number:]:
            findings += counted([as_met(least(cause))], cause, ledger)
    return merged(findings)


def counted(findings: Sequence[Finding], group: Sequence[Failure], ledger: Ledger) -> list[Finding]:
    """The findings of one group; the first stands for all its cases that no other finding has."""
    first, *others = findings
    rest = ledger.counted(group) - sum(finding.count for finding in others)
    return [replace(first, count=max(rest, first.count)), *others]


def in_order(ledger: Ledger) -> list[Failure]:
    """All kept failures in the order of their cases, so that they group alike however they arrived."""
    kept = [failure for failures in ledger.failures.values() for failure in failures]
    return sorted(kept, key=number_of)


def worst_first(findings: Sequence[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda f: (KINDS.index(f.kind), -f.count, f.op, f.mode, f.dtype, f.rule))


def _result(task: Future[list[Finding]], cause: Sequence[Failure]) -> list[Finding]:
    """The findings as explained; as they were met if that could not be done."""
    if task.done() and not task.cancelled() and task.exception() is None:
        return task.result()
    return [as_met(least(cause))]


def as_met(failure: Failure) -> Finding:
    """A failure that nobody could explain."""
    call, verdict = failure.call, failure.verdict
    return Finding(
        *(call.problem.op, call.mode, verdict.kind, failure.features, call.problem.dtype, call.to_json()),
        *(verdict.got, verdict.expected, verdict.rule, ""),
        explanation=verdict.detail,
        result=verdict.result,
        variant=verdict.variant,
        place=verdict.place,
    )
