"""The thread pool of the process.

The calling thread and the idle workers that it may claim carry out a job together, in machine code from the first step
to the last. Callers never wait for each other: without an idle worker the caller does all of it. Workers wait for jobs
in machine code as well, so that none needs Python to begin. The caller returns only when no chunk is running, also
after an error, so that its buffers can be freed.
"""

from __future__ import annotations

import atexit
import ctypes
import math
import operator
import os
import threading
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from gradspec.codegen.cache import Kernel, kernel
from gradspec.codegen.records import address, function_address, layout
from gradspec.graph.ir import Array
from gradspec.runtime.job import (
    HELPERS,
    LINE,
    SOURCE,
    STRIDE,
    WORKER_SLOTS,
    WORKERS,
    WORKSPACE,
    Steps,
    WorkerSlot,
    encode_step,
    is_unfinished,
)
from gradspec.system.machine import processors

VARIABLE = "GRADSPEC_NUM_THREADS"
MOST_THREADS = 1024
BUDGET = 20_000_000  # nanoseconds after which threads come back to Python, so that Ctrl-C is answered
HALT = -1  # a slot that halts the job
EXIT = 5.0  # seconds that the process waits at its end for chunks that still run

_chosen: int | None = None


def set_num_threads(n: int | None) -> None:
    """How many threads compiled graphs use, including the calling one; None restores the default.

    >>> before = get_num_threads()
    >>> set_num_threads(3)
    >>> get_num_threads()
    3
    >>> set_num_threads(before)
    """
    global _chosen
    _chosen = None if n is None else _require_count(n, "set_num_threads")
    _pool.shrink(get_num_threads() - 1)


def get_num_threads() -> int:
    """The number last set, else ``GRADSPEC_NUM_THREADS``, else the processors this process may use.

    Those are counted once, with the processor affinity and the limits of the control group.

    >>> get_num_threads() >= 1
    True
    """
    return _chosen or _default()


def run(
    function: Kernel,
    args: int,
    units: int,
    workspace: int = 0,
    stride: int = 0,
    threads: int = 1,
    cost: float = math.inf,
) -> None:
    """Call ``function(args, lo, hi, workspace + slot * stride)`` for chunks that cover ``range(units)`` exactly.

    Up to ``threads`` threads share the chunks, the calling one included, and each has a slot of its own below
    ``threads``. ``cost`` is what all units take, in nanoseconds.

    >>> from gradspec.codegen.cache import KERNEL_TYPE
    >>> done = []
    >>> square = KERNEL_TYPE(lambda args, lo, hi, workspace: done.extend(i * i for i in range(lo, hi)))
    >>> run(square, 0, 5, threads=2)
    >>> sorted(done)
    [0, 1, 4, 9, 16]
    """
    threads = max(1, min(threads, units, MOST_THREADS))
    steps = Steps(1)
    steps.put(0, encode_step(function_address(function), args, units, cost))
    carry_out(steps.job(threads=threads), workspace, stride, threads)


def carry_out(job: Array, workspace: int = 0, stride: int = 0, threads: int = 1) -> None:
    """Carry out the steps of a job, one after the other, their units shared by up to ``threads`` threads.

    The calling thread is one of them, and each has ``stride`` bytes of the workspace for itself. Ctrl-C ends the job:
    the chunks that are running end, and no more are begun.
    """
    work, at = kernel(SOURCE, "job"), address(job)
    failure: BaseException | None = None
    try:
        job[WORKSPACE], job[STRIDE] = workspace, stride
        if threads > 1:
            _pool.offer(job, threads - 1)
        work(at, 0, BUDGET, 0)
        while is_unfinished(job):
            work(at, 0, BUDGET, 0)
        if job[HELPERS]:
            _pool.keep(job)
        return
    except BaseException as error:
        failure = error
    while True:  # a second Ctrl-C must not leave the wait either
        try:
            work(at, HALT, 0, 0)
            _pool.keep(job)
            break
        except BaseException:
            continue
    try:
        raise failure
    finally:
        del failure  # it refers to this frame


@cache
def _c() -> ctypes.CDLL:
    """The C library, which Windows does not have in this way, nor a pool."""
    return ctypes.CDLL(None)


class _Worker:
    """A thread and its parking slot."""

    def __init__(self) -> None:
        memory = np.zeros(_SLOT.size // 8 + 2 * LINE, np.int64)
        self.slot = memory[-address(memory) // 8 % LINE :]  # shares no cache line
        self.at = address(self.slot)
        self.mutex, self.wakeup = (ctypes.c_void_p(self.at + _SLOT.fields[n].offset) for n in ("mutex", "wakeup"))
        _c().pthread_mutex_init(self.mutex, None)
        _c().pthread_cond_init(self.wakeup, None)

    def begin(self) -> None:
        self.slot[[_JOB, _IS_STOPPED]] = 0
        self.thread = threading.Thread(target=self._serve, name="gradspec", daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        kernel(SOURCE, "serve")(self.at, 0, BUDGET, 0)

    def stop(self) -> None:
        self.slot[_IS_STOPPED] = 1
        _c().pthread_mutex_lock(self.mutex)
        _c().pthread_cond_signal(self.wakeup)
        _c().pthread_mutex_unlock(self.mutex)


_SLOT = layout(WorkerSlot)
_JOB, _IS_STOPPED = (_SLOT.fields[name].offset // 8 for name in ("job", "is_stopped"))


class _Pool:
    """Workers, started when they are first needed."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a signal handler may want the pool while its thread holds this
        self.workers: list[_Worker] = []
        self.slots = np.zeros(MOST_THREADS, np.int64)  # addresses, which callers may read at any time
        self.stopped: list[_Worker] = []  # callers may still read their slots
        self.kept: list[Array] = []
        self.closed = False

    def offer(self, job: Array, count: int) -> None:
        """Give a job the addresses of the worker slots, at least ``count`` of them where threads can be started."""
        if len(self.workers) < count:
            self.grow(count)
        job[WORKER_SLOTS], job[WORKERS] = address(self.slots), len(self.workers)

    def keep(self, job: Array) -> None:
        """Keep a finished or halted job while workers still refer to it."""
        with self.lock:
            self.kept = [j for j in (*self.kept, job) if _has_helpers(j)]

    def grow(self, size: int) -> None:
        with self.lock:
            while len(self.workers) < size and not self.closed:
                worker = next((w for w in self.stopped if not w.thread.is_alive()), None) or _Worker()
                try:
                    worker.begin()
                except RuntimeError:  # the system allows no more threads, so fewer do the work
                    return
                if worker in self.stopped:
                    self.stopped.remove(worker)
                self.slots[len(self.workers)] = worker.at
                self.workers.append(worker)

    def shrink(self, size: int) -> None:
        with self.lock:
            while len(self.workers) > size:
                self.stopped.append(self.workers.pop())
                self.stopped[-1].stop()

    def close(self) -> None:
        """Stop every worker and wait for it; callers carry out what is left of their jobs, and later jobs, alone."""
        self.closed = True
        self.shrink(0)
        deadline = monotonic() + EXIT
        for worker in self.stopped:
            worker.thread.join(max(0.0, deadline - monotonic()))


def _has_helpers(job: Array) -> bool:
    kernel(SOURCE, "job")(address(job), HALT, 0, 0)
    return bool(job[HELPERS])


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


def _require_count(n: Any, where: str) -> int:
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
        return max(1, min(processors(), cgroup_limit() or MOST_THREADS))
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{VARIABLE} is {text!r}; give a whole number from 1 to {MOST_THREADS}, or unset it")
    return _require_count(int(text), VARIABLE)


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
