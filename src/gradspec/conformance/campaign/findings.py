"""From failures to findings: grouped by cause, one of each cause shrunk and explained, the worst first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import replace
from time import monotonic

from gradspec.conformance.campaign.drive import Ledger, explain
from gradspec.conformance.campaign.isolated import Isolated
from gradspec.conformance.campaign.local import InProcess
from gradspec.conformance.model.case import CampaignSettings
from gradspec.conformance.model.verdict import Failure, Finding
from gradspec.conformance.shrink.causes import groups, merge_findings, pick_varied, smallest
from gradspec.conformance.shrink.titles import rank, title

A_CAUSE = 5.0
"""Seconds that one cause may be shrunk for, where there are few."""
GRACE = 3.0
"""Seconds after the deadline in which shrinking may still end; then a failure is reported unshrunk."""
MEMBERS = 40
"""Failures of a group that are sent along to be explained."""


def shrink_failures(
    ledger: Ledger,
    settings: CampaignSettings,
    executor: Executor,
    jobs: int,
    seconds: float,
    watch: Callable[[int, int], None] = lambda done, of: None,
) -> list[Finding]:
    """What the failures in the ledger come to, shrunk for so many seconds by ``jobs`` threads of this process."""
    causes, deadline = groups(ledger.in_order()), monotonic() + seconds
    each = min(A_CAUSE, seconds * jobs / max(1, len(causes)))
    tasks = [executor.submit(explain, settings, pick_varied(cause, MEMBERS), each, deadline) for cause in causes]
    try:
        waiting = set(tasks)
        while waiting and monotonic() < deadline + GRACE:
            _, waiting = wait(waiting, 0.2)
            watch(len(tasks) - len(waiting), len(tasks))
    except KeyboardInterrupt:
        for task in tasks:
            task.cancel()
    pairs = zip(tasks, causes, strict=True)
    return merge_findings(f for task, cause in pairs for f in count_cases(_result(task, cause), cause, ledger))


def shrink_failures_by(
    judge: InProcess | Isolated,
    ledger: Ledger,
    seconds: float,
    watch: Callable[[int, int], None] = lambda done, of: None,
) -> list[Finding]:
    """The same by one judge."""
    causes, findings = groups(ledger.in_order()), list[Finding]()
    try:
        for number, cause in enumerate(causes):
            watch(number, len(causes))
            told = judge.findings(pick_varied(cause, MEMBERS), min(A_CAUSE, seconds / len(causes)))
            findings += count_cases(told, cause, ledger)
    except KeyboardInterrupt:
        for cause in causes[number:]:
            findings += count_cases([unshrunk_finding(smallest(cause))], cause, ledger)
    return merge_findings(findings)


def count_cases(findings: Sequence[Finding], group: Sequence[Failure], ledger: Ledger) -> list[Finding]:
    """The findings of one group; the first stands for all its cases that no other finding has."""
    first, *others = findings
    rest = ledger.counted(group) - sum(finding.count for finding in others)
    return [replace(first, count=max(rest, first.count)), *others]


def sort_worst_first(findings: Sequence[Finding]) -> list[Finding]:
    """All findings with their titles: memory before results, results before precision, precision before conventions."""
    titled = (replace(finding, title=title(finding)) for finding in findings)
    return sorted(titled, key=lambda f: (*rank(f), -f.count, f.op, f.mode, f.dtype, f.rule))


def _result(task: Future[list[Finding]], cause: Sequence[Failure]) -> list[Finding]:
    """The findings as explained; as they were met if that could not be done."""
    if task.done() and not task.cancelled() and task.exception() is None:
        return task.result()
    return [unshrunk_finding(smallest(cause))]


def unshrunk_finding(failure: Failure) -> Finding:
    """A failure that could not be shrunk, as a finding."""
    return Finding.about(failure, explanation=failure.verdict.detail)
