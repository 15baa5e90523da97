"""Running a campaign: batches handed to an executor, a bounded number at a time, until there are enough.

What comes back is entered in a ledger, each batch once and in order. What the executor runs are functions of plain
data, each with a process for the target that its thread keeps.
"""

from __future__ import annotations

import os
import platform
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from math import inf
from time import monotonic
from typing import Any, Generic, TypeVar

from gradspec.conformance.campaign.isolated import FIRST, Cases, Isolated, TargetError
from gradspec.conformance.campaign.local import InProcess, Signature, signature, undecided
from gradspec.conformance.model.case import CampaignSettings, CheckCase
from gradspec.conformance.model.codec import decode, encode
from gradspec.conformance.model.problem import MODES
from gradspec.conformance.model.run import Batch, Tally
from gradspec.conformance.model.verdict import Failure, Finding, Probe
from gradspec.conformance.shrink.causes import groups, merge_findings, pick_varied, smallest
from gradspec.conformance.shrink.titles import rank, title
from gradspec.system.processes import ProcessLostError
from gradspec.system.task_queue import TICK, TRIES, ProcessPerThread, RetryQueue

ENDING = 2.0
"""Seconds in which what an interrupted campaign has judged may still come in."""
WINDOW = 10_000
"""Batches that may be ahead of one that is late."""

Batches = dict[int, Cases]
T = TypeVar("T")


@dataclass
class BatchPlan(Generic[T]):
    """Batches in order, a few made at a time, while there are any; the last is cut where cases are enough.

    >>> plan = BatchPlan(lambda first, count: [[{}, {}]] * count, most=5)
    >>> [(number, len(cases)) for number, cases in iter(plan.next, None)]
    [(0, 2), (1, 2), (2, 1)]
    """

    make: Callable[[int, int], list[list[T]]]
    most: int | None = None
    number: int = 0
    cases: int = 0
    _made: deque[list[T]] = field(default_factory=deque)

    def next(self) -> tuple[int, list[T]] | None:
        left = None if self.most is None else self.most - self.cases
        if left == 0 or not self.is_ready():
            return None
        number, cases = self.number, self._made.popleft()[:left]
        self.number, self.cases = number + 1, self.cases + len(cases)
        return number, cases

    def is_ready(self) -> bool:
        """Make the next ones if they are not made; whether there are any."""
        if not self._made:
            self._made.extend(self.make(self.number, min(16, 1 + self.number)))  # the first ones are wanted soonest
        return bool(self._made)


@dataclass
class Drive:
    """Keeps an executor busy with tasks of a few batches, and enters what comes back."""

    settings: CampaignSettings
    executor: Executor
    here: Executor
    plan: BatchPlan[dict[str, Any]]
    ledger: Ledger
    time_left: Callable[[], float] = lambda: inf
    """Seconds in which further cases may begin."""
    outstanding: int = 2
    batches_per_task: int = 1
    watch: Callable[[], None] = lambda: None
    _again: Batches = field(default_factory=dict)
    _losses: Counter[int] = field(default_factory=Counter)
    _workers: set[str] = field(default_factory=set)
    """The workers that have answered: as many tasks run at once."""

    def __post_init__(self) -> None:
        self._tasks = RetryQueue[Batches](self.executor, self.here)

    def run(self) -> None:
        """Until nothing is left to do or time is up; what runs then is waited for, what has not begun is dropped."""
        self._submit()
        while self._tasks and (left := self.time_left()) > 0 and not self.ledger.is_full:
            self._collect(min(TICK, left))
            self._submit()
        self._tasks.drop(len(self._workers))
        last = monotonic() + 2 * (self.settings.timeout + FIRST)  # a hang is tried once more, alone
        while self._tasks and not self.ledger.is_full and monotonic() < last:
            self._collect(TICK)
        self._tasks.drop()
        self.ledger.close()

    def interrupt(self) -> None:
        """Drop what has not begun, end what runs on this machine, and enter what was judged."""
        self._tasks.drop()
        close(self.settings.token)
        for done in self._tasks.done(ENDING, all_of_them=True):
            self._enter(*done)
        self.ledger.close()

    def _submit(self) -> None:
        while len(self._tasks) < self.outstanding and self.time_left() > 0 and (batches := self._batches()):
            losses = max(self._losses[number] for number in batches)
            arguments = (encode(self.settings), batches, self.time_left(), losses)
            self._tasks.submit(batches, losses, judge_batches, *arguments)

    def _batches(self) -> Batches:
        """The next task: a batch that was lost, alone, or else new ones."""
        if self._again:
            number = min(self._again)
            return {number: self._again.pop(number)}
        room = min(self.batches_per_task, self.ledger.entered + WINDOW - self.plan.number)
        return dict(batch for _ in range(room) if (batch := self.plan.next()) is not None)

    def _collect(self, seconds: float) -> None:
        for done in self._tasks.done(seconds):
            self._enter(*done)
        self.watch()

    def _enter(self, batches: Batches, outcomes: list[dict[str, Any]], error: BaseException | None) -> None:
        """Whatever of its batches a task does not give is asked for again."""
        if error is not None:  # of a worker, a pool or a network, as the executor words it
            self._lose(batches, error)
        else:
            for outcome in outcomes:
                batch = decode(Batch, outcome, "batch")
                self._workers.add(batch.worker)
                self.ledger.take(batch)
        self._again |= {number: cases for number, cases in batches.items() if not self.ledger.has(number)}

    def _lose(self, batches: Batches, error: BaseException) -> None:
        for number, cases in batches.items():
            self._losses[number] += 1
            if self._losses[number] > TRIES:  # here as well
                why = f"{type(error).__name__}: {error}"
                judged = (undecided(decode(CheckCase, case, "case"), why) for case in cases)
                self.ledger.take(Batch(number, tuple(judged)))


# --- what came back ---------------------------------------------------------------------------------------------------


KEPT = 24
"""Failures of one signature that a campaign keeps; the others are counted."""
ERRORS = 20


@dataclass
class Ledger:
    """Batches may arrive in any order and more than once; what is entered depends on neither.

    >>> from gradspec.conformance.model.run import Judged
    >>> judged = Judged("max_pool", "value", (), "pass")
    >>> ledger = Ledger()
    >>> for number in (1, 0, 1, 0):
    ...     ledger.take(Batch(number, (judged, judged)))
    >>> ledger.cases, ledger.tally.cases["pass"]
    (4, 4)
    """

    until_defect: bool = False
    """Whether the first defect ends the book."""
    cases: int = 0
    entered: int = 0
    """Batches in the book: the number of the next one."""
    tally: Tally = field(default_factory=Tally)
    failures: dict[Signature, list[Failure]] = field(default_factory=dict)
    seen: dict[Signature, set[tuple[int, int]]] = field(default_factory=dict)
    """By signature, all cases that failed so, whether their failures were kept or not."""
    errors: list[str] = field(default_factory=list)
    unjudged: int = 0
    """Cases with an error, of which the first are kept."""
    _early: dict[int, Batch] = field(default_factory=dict)

    @property
    def is_full(self) -> bool:
        return self.until_defect and self.tally.cases["defect"] > 0

    def has(self, number: int) -> bool:
        return number < self.entered or number in self._early

    def take(self, batch: Batch) -> None:
        """Take a batch in when all before it are in; one that is known already is ignored."""
        if not self.has(batch.number):
            self._early[batch.number] = batch
        while self.entered in self._early:
            self._enter(self._early.pop(self.entered))
            self.entered += 1

    def close(self) -> None:
        """Take in what came, though batches before it never will."""
        for number in sorted(self._early):
            self._enter(self._early.pop(number))

    def _enter(self, batch: Batch) -> None:
        for index, case in enumerate(batch.cases):
            if self.is_full:
                return
            self.cases += 1
            case.count(self.tally)
            for failure in case.failures:
                kept = self.failures.setdefault(signature(failure), [])
                kept += [failure][: KEPT - len(kept)]
            for mark in (*map(signature, case.failures), *case.unkept):
                self.seen.setdefault(mark, set()).add((batch.number, index))
            if case.error:
                self.unjudged += 1
                self.errors += [case.error][: ERRORS - len(self.errors)]

    def in_order(self) -> list[Failure]:
        """All kept failures in the order of their cases, so that they group alike however they arrived."""
        return sorted((f for failures in self.failures.values() for f in failures), key=lambda failure: failure.number)

    def counted(self, group: Collection[Failure]) -> int:
        """How many cases failures of one cause stand for: their own, and those like them that were not kept."""
        members = {id(failure) for failure in group}
        ours = [mark for mark, kept in self.failures.items() if id(kept[0]) in members]
        return len(set().union(*(self.seen[mark] for mark in ours), (failure.number for failure in group)))


# --- what an executor runs --------------------------------------------------------------------------------------------


_processes = ProcessPerThread[CampaignSettings, Isolated](Isolated)

TASK_SECONDS = 2.0
"""A task begins no further batch after so long, so that an abandoned one ends soon."""


def judge_batches(
    settings: Mapping[str, Any], batches: Mapping[int, Cases], seconds: float = inf, attempt: int = 0
) -> list[dict[str, Any]]:
    """The outcomes of batches, as JSON, with who judged them; a batch that is missing is to be asked for again.

    ``seconds`` is what is left of the campaign's time: no case begins after it, so the last batch may lack its last
    cases. ``attempt`` tells calls apart for executors that give the same answer to the same call.
    """
    start, outcomes = monotonic(), list[dict[str, Any]]()
    target = _processes.get(decode(CampaignSettings, settings, "settings"))
    for number, cases in batches.items():
        if outcomes and monotonic() > start + min(TASK_SECONDS, seconds):
            break
        outcomes.append(encode(replace(target.batch(number, cases, start + seconds), worker=worker())))
    return outcomes


def worker() -> str:
    """A name for this thread that no other thread of a cluster has."""
    return f"{platform.node()} {os.getpid()} {threading.get_ident()}"


def warm_up(settings: Mapping[str, Any]) -> None:
    """Start this thread's process; if that fails, the first request to it says so."""
    with suppress(TargetError):
        _processes.get(decode(CampaignSettings, settings, "settings")).versions()


def measure(settings: CampaignSettings, seconds: float) -> tuple[list[Probe], list[Finding]]:
    """What probes of so many seconds measure, and the documented errors that are missing."""
    target = _processes.get(settings)
    return target.probes(seconds), target.missing_errors()


def explain(settings: CampaignSettings, failures: Sequence[Failure], seconds: float, deadline: float) -> list[Finding]:
    """The findings of one group, shrunk for so many seconds, and not after the deadline."""
    return _processes.get(settings).findings(failures, max(0.0, min(seconds, deadline - monotonic())))


def close(token: str) -> None:
    """End all processes that tasks of one campaign have in this process."""
    _processes.close(lambda settings: settings.token == token)


def threads(count: int, token: str) -> AbstractContextManager[ThreadPoolExecutor]:
    """Threads for the tasks of one campaign, with whose end its processes end."""
    return _processes.threads(count, "gradspec-check", lambda settings: settings.token == token)


# --- findings ---------------------------------------------------------------------------------------------------------
# Failures are grouped by cause; one of each cause is shrunk and explained, the worst first.

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
            try:
                told = judge.findings(pick_varied(cause, MEMBERS), min(A_CAUSE, seconds / len(causes)))
            except (ProcessLostError, TargetError):
                told = [unshrunk_finding(smallest(cause))]
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
    return sorted(titled, key=lambda f: (*rank(f), -f.count, f.op, (*MODES, f.mode).index(f.mode), f.dtype, f.rule))


def _result(task: Future[list[Finding]], cause: Sequence[Failure]) -> list[Finding]:
    """The findings as explained; as they were met if that could not be done."""
    if task.done() and not task.cancelled() and task.exception() is None:
        return task.result()
    return [unshrunk_finding(smallest(cause))]


def unshrunk_finding(failure: Failure) -> Finding:
    """A failure that could not be shrunk, as a finding."""
    return Finding.about(failure, explanation=failure.verdict.detail)
