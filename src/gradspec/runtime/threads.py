"""One pool of threads for the process, and the work that is split over it.

A job is a range of units. The calling thread and as many idle workers as it may have take chunks of it until none is
left; where no worker is idle the caller does all of it, so callers never wait for each other. The caller leaves only
when no worker touches the job any more, whatever went wrong: its buffers are free to go.
"""

from __future__ import annotations

import atexit
import operator
import os
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from time import monotonic, perf_counter
from typing import Any

Function = Callable[[int, int, int, int], Any]

VARIABLE = "GRADSPEC_NUM_THREADS"
MOST_THREADS = 1024
LONG = 0.02  # seconds: chunks are kept shorter, so that Ctrl-C is answered soon
SHORT = 3e-5  # seconds: chunks are kept longer, since threads that meet between them cost each other some 40 µs
EXIT = 5.0  # seconds the end of the process waits for chunks that still run

_chosen: int | None = None


def set_num_threads(n: int | None) -> None:
    """How many threads compiled graphs use, the calling one included; None goes back to what the machine offers.

    >>> before = get_num_threads()
    >>> set_num_threads(3)
    >>> get_num_threads()
    3
    >>> set_num_threads(before)
    """
    global _chosen
    _chosen = None if n is None else _checked(n, "set_num_threads")
    _pool.shrink(get_num_threads() - 1)


def get_num_threads() -> int:
    """The number last set, else ``GRADSPEC_NUM_THREADS``, else the processors this process may use.

    Those are counted once, with the processor affinity and the limits of the control group.

    >>> get_num_threads() >= 1
    True
    """
    return _chosen or _default()


def run(function: Function, args: int, units: int, workspace: int = 0, stride: int = 0, threads: int = 1) -> None:
    """Call ``function(args, lo, hi, workspace + slot * stride)`` for chunks that cover ``range(units)`` exactly.

    Up to ``threads`` threads share the chunks, the calling one included, and each has a slot of its own below
    ``threads``. An exception ends the job after the chunks that are running.

    >>> from threading import Lock
    >>> done, lock = [], Lock()
    >>> def square(args, lo, hi, workspace):
    ...     with lock:
    ...         done.extend(i * i for i in range(lo, hi))
    >>> run(square, 0, 5, threads=2)
    >>> sorted(done)
    [0, 1, 4, 9, 16]
    """
    threads = min(threads, units, MOST_THREADS)
    if threads > 1:
        _run_shared(_Job(function, args, units, workspace, stride, threads), threads - 1)
    else:
        _run_alone(function, args, units, workspace)


def _run_shared(job: _Job, helpers: int) -> None:
    """Work on the job until it is over for everybody."""
    failure: BaseException | None = None
    try:
        job.pool.offer(job, helpers)
        job.work(0)
    except BaseException as error:
        failure = error
    while True:  # a second Ctrl-C must not leave the wait either
        try:
            job.finish()
            break
        except BaseException as error:
            failure = failure or error
    failure = failure or job.failure
    if failure is not None:
        try:
            raise failure
        finally:
            del failure, job  # they refer to this frame


def _run_alone(function: Function, args: int, units: int, workspace: int) -> None:
    """A short chunk tells how long the others may be."""
    lo, size = 0, -(-units // 16)
    while lo < units:
        hi = min(lo + size, units)
        start = perf_counter()
        function(args, lo, hi, workspace)
        size = _units_in(LONG, hi - lo, perf_counter() - start)
        lo = hi


def _units_in(time: float, units: int, seconds: float) -> int:
    """How many units fill the time, when ``units`` took ``seconds``; at least one."""
    return max(1, int(units * time / (seconds + 1e-9)))


class _Job:
    """A range of units that is handed out in chunks."""

    __slots__ = (
        "args",
        "done",
        "failure",
        "function",
        "helpers",
        "least",
        "limit",
        "lock",
        "next",
        "parts",
        "pool",
        "slots",
        "stride",
        "units",
        "workspace",
    )

    def __init__(self, function: Function, args: int, units: int, workspace: int, stride: int, threads: int) -> None:
        self.function, self.args, self.units = function, args, units
        self.workspace, self.stride, self.pool = workspace, stride, _pool
        self.lock = threading.Lock()
        self.next = 0  # the first unit nobody has taken
        # Chunks shrink with what is left, so that all threads end together. The first one, which is short, tells how
        # many units a chunk may have at least and at most.
        self.parts = threads
        self.least = self.limit = -(-units // (16 * threads))
        self.slots = 1  # handed out so far: the caller has slot 0
        self.helpers = 0  # workers on the job now
        self.done: Any = None  # what the caller waits for
        self.failure: BaseException | None = None

    def work(self, slot: int) -> None:
        """Take chunks until none is left."""
        function, args, workspace = self.function, self.args, self.workspace + slot * self.stride
        while True:
            with self.lock:
                lo = self.next
                left = self.units - lo
                if left <= 0 or (slot and self.pool.closed):
                    return
                self.next = hi = lo + min(left, self.limit, max(self.least, left // self.parts))
            start = perf_counter()
            function(args, lo, hi, workspace)
            seconds = perf_counter() - start
            if lo == 0:
                self.least = max(self.least, _units_in(SHORT, hi - lo, seconds))
            if lo == 0 or seconds > LONG:
                self.limit = _units_in(LONG, hi - lo, seconds)

    def help(self) -> None:
        """Work on the job as one more thread, unless it is over."""
        with self.lock:
            if self.next >= self.units:
                return
            slot, self.slots, self.helpers = self.slots, self.slots + 1, self.helpers + 1
        try:
            self.work(slot)
        except BaseException as error:
            self.failure = error
        finally:
            with self.lock:
                if self.failure is not None:
                    self.next = self.units
                self.helpers -= 1
                if self.helpers == 0 and self.done is not None:
                    self.done.release()

    def finish(self) -> None:
        """Hand out nothing more, and wait for the chunks that are running."""
        with self.lock:
            self.next = self.units
            if self.helpers == 0:
                return
            if self.done is None:
                self.done = threading.Lock()
                self.done.acquire()
        self.done.acquire()


class _Pool:
    """Worker threads, started when they are first needed, that wait for jobs."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a signal handler may want the pool while its thread holds this
        self.jobs: SimpleQueue[_Job | None] = SimpleQueue()  # None sends a worker home
        self.workers: list[threading.Thread] = []
        self.closed = False

    def offer(self, job: _Job, seats: int) -> None:
        """Tell up to ``seats`` workers of a job; those that are busy look at it when they are free."""
        if len(self.workers) < seats:
            self.grow(seats)
        waiting, put = self.jobs.qsize(), self.jobs.put
        for _ in range(min(seats, 4 * len(self.workers) - waiting)):
            put(job)

    def grow(self, size: int) -> None:
        with self.lock:
            while len(self.workers) < size and not self.closed:
                worker = threading.Thread(target=_serve, args=(self.jobs,), name="gradspec", daemon=True)
                try:
                    worker.start()
                except RuntimeError:  # the system allows no more threads: fewer do the work
                    return
                self.workers.append(worker)

    def shrink(self, size: int) -> None:
        with self.lock:
            while len(self.workers) > size:
                self.jobs.put(None)
                self.workers.pop()

    def close(self) -> None:
        """Send every worker home and wait for it; what is left of a job, and later ones, their callers do."""
        self.closed = True
        workers = list(self.workers)
        self.shrink(0)
        deadline = monotonic() + EXIT
        for worker in workers:
            worker.join(max(0.0, deadline - monotonic()))


def _serve(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job.help()
        del job


_pool = _Pool()


def _after_fork() -> None:
    """The child has none of its parent's threads."""
    global _pool
    _pool = _Pool()
    _default.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(lambda: _pool.close())


# --- how many --------------------------------------------------------------------------------------------------------


def _checked(n: Any, where: str) -> int:
    try:
        number = operator.index(n)
    except TypeError:
        number = None
    if number is None or isinstance(n, bool):
        raise TypeError(f"{where}: the number of threads is {n!r}; give a whole number")
    if not 1 <= number <= MOST_THREADS:
        raise ValueError(f"{where}: the number of threads is {number}; give 1 to {MOST_THREADS}")
    return number


@cache
def _default() -> int:
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return max(1, min(_processors(), cgroup_limit() or MOST_THREADS))
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{VARIABLE} is {text!r}; give a whole number from 1 to {MOST_THREADS}, or unset it")
    return _checked(int(text), VARIABLE)


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cgroup_limit(root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> int | None:
    """The processor time that this process's control groups allow it, in whole processors rounded up."""
    quotas = [_quota(folder) for folder in _groups(root, membership)]
    return min((-(-quota // period) for quota, period in filter(None, quotas)), default=None)


def _groups(root: Path, membership: Path) -> list[Path]:
    """The folders of the control groups this process is in, with all above them: each one limits."""
    folders = [root, root / "cpu", root / "cpu,cpuacct"]
    for line in (_text(membership) or "").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if not controllers or "cpu" in controllers.split(","):
            group = (root / controllers if controllers else root) / path.lstrip("/")
            folders += [folder for folder in (group, *group.parents) if root in folder.parents]
    return folders


def _quota(folder: Path) -> tuple[int, int] | None:
    """Quota and period, in microseconds: in one file (version 2) or two (version 1); no limit is 'max' or -1."""
    text = _text(folder / "cpu.max")
    if text is None:
        text = f"{_text(folder / 'cpu.cfs_quota_us')} {_text(folder / 'cpu.cfs_period_us')}"
    numbers = [int(word) for word in text.split() if word.isdigit()]
    return (numbers[0], numbers[1]) if len(numbers) == 2 and min(numbers) > 0 else None


def _text(file: Path) -> str | None:
    try:
        return file.read_text()
    except OSError:
        return None
