"""Running a campaign: batches handed to an executor, a bounded number at a time, until there are enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from math import ceil, inf
from time import monotonic
from typing import Any

from gradspec.conformance.campaign.ledger import Ledger
from gradspec.conformance.campaign.local import Batch
from gradspec.conformance.campaign.settings import Settings
from gradspec.conformance.campaign.tasks import judge_batches

TICK = 0.2
"""Seconds between two looks at the clock."""
TASK_SECONDS = 2.0
"""A task begins no further batch after so long, so that a campaign ends soon after its time."""
TRIES = 3
"""How often an executor may lose a batch before it is run here."""
WINDOW = 20_000
"""Batches that may be ahead of one that is late."""
TYPICAL = 15.0
"""Cases in a batch, as long as none is known."""

Task = Future[list[dict[str, Any]]]


@dataclass
class Drive:
    """Keeps an executor busy with tasks of a few batches, and enters what comes back.

    ``here`` runs, in processes of this machine, what the executor lost too often, and everything if it breaks.
    """

    settings: Settings
    executor: Executor
    here: ThreadPoolExecutor
    ledger: Ledger
    deadline: float = inf
    outstanding: int = 2
    batches_per_task: int = 1
    watch: Callable[[], None] = lambda: None
    _next: int = 0
    _again: list[int] = field(default_factory=list)
    _losses: Counter[int] = field(default_factory=Counter)
    _tasks: dict[Task, list[int]] = field(default_factory=dict)

    def run(self) -> None:
        """Until the ledger is full or time is up; what runs then is waited for, what has not begun is dropped."""
        while not self.ledger.is_full and monotonic() < self.deadline:
            self._submit()
            self._collect(min(TICK, max(0.0, self.deadline - monotonic())))
        self._drop()
        while self._tasks and not self.ledger.is_full:
            self._collect(TICK)
        self.ledger.close()

    def _submit(self) -> None:
        while len(self._tasks) < self.outstanding and (numbers := self._numbers()):
            losses = max(self._losses[number] for number in numbers)
            executor = self.here if losses >= TRIES else self.executor
            arguments = (self.settings.to_json(), numbers, TASK_SECONDS, losses)
            try:
                task = executor.submit(judge_batches, *arguments)
            except RuntimeError:  # broken or shut down: it will take nothing any more
                self.executor = self.here
                task = self.here.submit(judge_batches, *arguments)
            self._tasks[task] = numbers

    def _numbers(self) -> list[int]:
        """The batches of the next task: lost ones alone and first, else new ones, as many as are likely needed."""
        if self._again:
            return [self._again.pop(0)]
        room = self.ledger.entered + WINDOW - self._next
        numbers = list(range(self._next, self._next + min(self.batches_per_task, self._missing(), room)))
        self._next += len(numbers)
        return numbers

    def _missing(self) -> int:
        """How many batches to begin beside those under way, if others are as large as those that arrived."""
        under_way = sum(len(numbers) for numbers in self._tasks.values())
        if self.ledger.most is None:
            return self.batches_per_task
        arrived = self._next - under_way
        size = max(1.0, self.ledger.arrived / arrived) if arrived else TYPICAL
        return max(ceil((self.ledger.most - self.ledger.arrived) / size) - under_way, 0 if self._tasks else 1)

    def _collect(self, seconds: float) -> None:
        done, _ = wait(self._tasks, seconds, FIRST_COMPLETED)
        for task in done:
            self._enter(task, self._tasks.pop(task))
        self.watch()

    def _enter(self, task: Task, numbers: list[int]) -> None:
        """Whatever of its batches a task does not give is asked for again."""
        error = CancelledError() if task.cancelled() else task.exception()
        if error is not None:  # of a worker, a pool or a network, as the executor words it
            self._lost(numbers, error)
        else:
            for outcome in task.result():
                self.ledger.take(Batch.from_json(outcome))
        self._again += [number for number in numbers if not self.ledger.has(number) and number not in self._again]

    def _lost(self, numbers: list[int], error: BaseException) -> None:
        for number in numbers:
            self._losses[number] += 1
            if self._losses[number] > TRIES:  # here as well
                self.ledger.errors.append(f"batch {number} could not be judged: {error}")
                self.ledger.take(Batch(number, ()))

    def _drop(self) -> None:
        for task in list(self._tasks):
            if task.cancel():
                del self._tasks[task]
