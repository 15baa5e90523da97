"""Running a campaign: batches handed to an executor, a bounded number at a time, until there are enough."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Any, Generic, TypeVar

from gradspec.conformance.campaign.isolated import FIRST, Cases
from gradspec.conformance.campaign.ledger import Ledger
from gradspec.conformance.campaign.local import undecided
from gradspec.conformance.campaign.tasks import close, judge_batches
from gradspec.conformance.model.case import CampaignSettings, CheckCase
from gradspec.conformance.model.codec import decode, encode
from gradspec.conformance.model.run import Batch
from gradspec.system.task_queue import TICK, TRIES, RetryQueue

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
