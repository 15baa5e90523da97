"""Tasks submitted to an executor that may lose them, break, or be remote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock, local
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from gradspec.system.processes import KeptProcess

TICK = 0.2
"""Seconds between two checks of the clock."""
TRIES = 3
"""How often an executor may lose a task before it runs on this machine."""

K = TypeVar("K")
S = TypeVar("S")
P = TypeVar("P", bound=KeptProcess)


@dataclass
class RetryQueue(Generic[K]):
    """Submitted tasks, oldest first, so in the order in which they begin.

    ``here``, an executor on this machine, runs tasks that the other one lost too often, and all tasks if that breaks.
    """

    executor: Executor
    here: Executor
    _tasks: dict[Future[Any], K] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._tasks)

    def submit(self, key: K, losses: int, function: Callable[..., Any], *arguments: Any) -> None:
        """Submit a task that was lost ``losses`` times before."""
        try:
            task = (self.here if losses >= TRIES else self.executor).submit(function, *arguments)
        except Exception:  # broken, shut down or out of reach, as the executor words it
            self.executor = self.here
            task = self.here.submit(function, *arguments)
        self._tasks[task] = key

    def done(self, seconds: float, all_of_them: bool = False) -> Iterator[tuple[K, Any, BaseException | None]]:
        """The tasks that end within ``seconds``, each with its result or with the error that it was lost to."""
        ended, _ = wait(self._tasks, seconds, **({} if all_of_them else {"return_when": FIRST_COMPLETED}))
        for task in ended:
            key = self._tasks.pop(task)
            error = CancelledError() if task.cancelled() else task.exception()
            yield key, None if error else task.result(), error

    def drop(self, running: int = 0) -> None:
        """Cancel all but the ``running`` oldest tasks; not every executor tells which futures are running."""
        for task in list(self._tasks)[running:]:
            if task.cancel():
                del self._tasks[task]


class ProcessPerThread(Generic[S, P]):
    """One process per thread that runs tasks, with the settings of its last request."""

    def __init__(self, make: Callable[[S], P]) -> None:
        self._make, self._thread, self._lock = make, local(), Lock()
        self._open: WeakKeyDictionary[P, S] = WeakKeyDictionary()

    def get(self, settings: S) -> P:
        """This thread's process for these settings; its process for other settings ends."""
        current: tuple[S, P] | None = getattr(self._thread, "current", None)
        if current is None or current[1].is_closed or current[0] != settings:
            if current is not None:
                current[1].close()
            current = self._thread.current = settings, self._make(settings)
            with self._lock:
                self._open[current[1]] = settings
        return current[1]

    def close(self, is_over: Callable[[S], bool]) -> None:
        """End the processes of all threads whose settings are over."""
        with self._lock:
            ended = [process for process, settings in self._open.items() if is_over(settings)]
        for process in ended:
            process.close()

    @contextmanager
    def threads(self, count: int, name: str, is_over: Callable[[S], bool]) -> Iterator[ThreadPoolExecutor]:
        """Threads for tasks, and the end of every process that they leave whose settings are over."""
        pool = ThreadPoolExecutor(count, thread_name_prefix=name)
        try:
            yield pool
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            self.close(is_over)
            pool.shutdown()
