"""Jobs: the steps of a call, in the memory that the host and the machine code of ``kernels.scheduler`` share."""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Annotated, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gradspec.codegen.records import Block, Scratch, layout

SOURCE = "gradspec.runtime.kernels.scheduler"


@dataclass
class JobStep(Scratch):
    """A kernel, its arguments and its units of work; a chunk holds ``least`` to ``most`` of them."""

    function: int
    arguments: int
    units: int
    least: int
    most: int


@dataclass
class Job(Scratch):
    slots: int
    """The most threads that take part, the caller included."""
    shares: int
    """A chunk is what is left of a range, divided by this."""
    counted: int
    """The number of counters per step."""
    reached: int
    """The first step that is not known to be done."""
    halted: int
    """Whether the job is halted."""
    running: int
    """How many threads are carrying out a chunk."""
    worker_slots: int
    """The address of an array with the addresses of all worker slots."""
    workers: int
    """The number of worker slots."""
    helpers: int
    """How many workers are claimed."""
    workspace: int
    """The address of the workspace of slot 0."""
    stride: int
    """The bytes between the workspaces of two slots."""
    claimed: tuple[int, ...]
    """The worker slots of the helpers; the first helper has slot 1."""
    steps: tuple[JobStep, ...]
    counters: tuple[int, ...]
    """For each step, the number of units that are done, and for each of its ranges the number that are taken."""


DONE, TAKEN = range(2)
"""Places among the counters of a step."""


PTHREAD_WORDS = 8
"""The most words that a system needs for a mutex, or for a condition variable."""


@dataclass
class WorkerSlot(Scratch):
    """Per-worker parking slot."""

    job: int
    """0 if the worker is free, and ``CLAIMED`` while a caller claims it. Then it is the address of the caller's job, a
    multiple of 8, plus 1 from when the worker begins until it has left the job."""
    slot: int
    """The worker's slot in the job."""
    is_asleep: int
    is_stopped: int
    """Whether the worker's thread is to end."""
    mutex: Annotated[tuple[int, ...], PTHREAD_WORDS]
    wakeup: Annotated[tuple[int, ...], PTHREAD_WORDS]
    """The condition variable that wakes the worker."""


CLAIMED = 2


# --- the host's side --------------------------------------------------------------------------------------------------

Words: TypeAlias = NDArray[np.int64]
"""A job in memory."""

SHORT = 5_000
"""The least nanoseconds per chunk, as far as costs are known: taking a chunk costs a few hundred."""
LONG = 10_000_000
"""The most nanoseconds per chunk, so that Ctrl-C is answered soon."""
LINE = 8
"""The words of a cache line: no two steps have counters in one line."""

_step = Struct(f"={layout(JobStep).size // 8}q")
_JOB = layout(Job)
REACHED, HALTED, WORKER_SLOTS, WORKERS, HELPERS, WORKSPACE, STRIDE, STEPS = (
    _JOB.fields[name].offset // 8
    for name in ("reached", "halted", "worker_slots", "workers", "helpers", "workspace", "stride", "steps")
)
COUNT = STEPS + 1
"""Word offsets of fields of a job; ``STEPS`` holds the byte offset of its steps and ``COUNT`` their number."""


def encode_step(function: int, arguments: int, units: int, cost: float) -> bytes:
    """A JobStep in bytes, from the addresses of a kernel and of its arguments; ``cost`` is in nanoseconds."""
    return _step.pack(function, arguments, units, _units_in(SHORT, units, cost), _units_in(LONG, units, cost))


class Steps:
    """The encoded steps of a plan, and jobs of them that are kept as templates; each call copies one."""

    def __init__(self, count: int) -> None:
        self._steps = [encode_step(0, 0, 0, 0.0)] * count
        self._templates: dict[tuple[int, int, int], Words] = {}

    def put(self, i: int, code: bytes) -> None:
        """Replace step ``i``."""
        self._steps[i] = code
        for (first, end, _), job in self._templates.items():
            if first <= i < end:
                _put(job, i, code)

    def job(self, first: int = 0, end: int | None = None, threads: int = 1) -> Words:
        """The steps from ``first`` to before ``end``, for up to ``threads`` threads; a job is carried out once."""
        part = first, len(self._steps) if end is None else end, threads
        job = self._templates.get(part)
        if job is None:
            job = self._templates[part] = _job(*part)
            for i in range(*part[:2]):
                _put(job, i, self._steps[i])
        return job.copy()


def _job(first: int, end: int, threads: int) -> Words:
    counted = -(-(TAKEN + threads) // LINE) * LINE
    shares = min(threads, 2)  # several threads take half of what is left of a range, a single one all of it
    job = Job(
        slots=threads,
        shares=shares,
        counted=counted,
        reached=first,
        halted=0,
        running=0,
        worker_slots=0,
        workers=0,
        helpers=0,
        workspace=0,
        stride=0,
        claimed=(0,) * (threads - 1),
        steps=(JobStep(0, 0, 0, 0, 0),) * end,
        counters=(0,) * (counted * end),
    )
    return np.frombuffer(Block(job).at([]), np.int64).copy()


def _put(job: Words, i: int, code: bytes) -> None:
    at = int(job[STEPS]) + _step.size * i
    job.data.cast("B")[at : at + _step.size] = code


def _units_in(time: float, units: int, cost: float) -> int:
    """How many units fill the time, at least one.

    >>> _units_in(100, 40, 800.0), _units_in(100, 40, 0.0), _units_in(100, 40, 1e9)
    (5, 40, 1)
    """
    return max(1, int(units * time / cost)) if cost > time else max(1, units)


def is_unfinished(job: Words) -> bool:
    """Whether steps are left, and the job has not been halted."""
    return bool(job[REACHED] < job[COUNT] and not job[HALTED])
