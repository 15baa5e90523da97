"""Jobs: the steps of a call, as the machine code of ``kernels.scheduler`` carries them out."""

from __future__ import annotations

from struct import Struct

import numpy as np

from gradspec.codegen.records import Block, layout
from gradspec.graph.ir import Array
from gradspec.runtime.job import TAKEN, Job, JobStep

SOURCE = "gradspec.runtime.kernels.scheduler"

SHORT = 5_000
"""Nanoseconds that a chunk takes at least, as far as costs are known: taking one costs some hundred."""
LONG = 10_000_000
"""Nanoseconds that it takes at most, so that Ctrl-C is answered soon."""
LINE = 8
"""Words that processors pass to each other together: no two steps have counters in one line."""

_step = Struct(f"={layout(JobStep).size // 8}q")
_JOB = layout(Job)
REACHED, HALTED, DESKS, WORKERS, HELPERS, WORKSPACE, STRIDE, STEPS = (
    _JOB.fields[name].offset // 8
    for name in ("reached", "halted", "desks", "workers", "helpers", "workspace", "stride", "steps")
)
COUNT = STEPS + 1
"""Words of a job, the last two of them where its steps lie, in bytes, and how many there are."""


def encoded(function: int, arguments: int, units: int, cost: float) -> bytes:
    """A step: the address of a kernel, that of its arguments, and units of work that cost nanoseconds."""
    return _step.pack(function, arguments, units, _units_in(SHORT, units, cost), _units_in(LONG, units, cost))


class Steps:
    """The steps of a plan. They are kept from call to call, ready to be copied; every job is a copy of its own."""

    def __init__(self, count: int) -> None:
        self._steps = [encoded(0, 0, 0, 0.0)] * count
        self._ready: dict[tuple[int, int, int], Array] = {}

    def put(self, i: int, described: bytes) -> None:
        """Let step ``i`` be one that is encoded."""
        self._steps[i] = described
        for (first, end, _), job in self._ready.items():
            if first <= i < end:
                _put(job, i, described)

    def job(self, first: int = 0, end: int | None = None, threads: int = 1) -> Array:
        """The steps from ``first`` to before ``end``, to be carried out once by so many threads."""
        part = first, len(self._steps) if end is None else end, threads
        job = self._ready.get(part)
        if job is None:
            job = self._ready[part] = _job(*part)
            for i in range(*part[:2]):
                _put(job, i, self._steps[i])
        return job.copy()


def _job(first: int, end: int, threads: int) -> Array:
    counted = -(-(TAKEN + threads) // LINE) * LINE
    shares = min(threads, 2)  # a thread takes half of what is left of a range, one that is alone all of it
    job = Job(
        slots=threads,
        shares=shares,
        counted=counted,
        reached=first,
        halted=0,
        running=0,
        desks=0,
        workers=0,
        helpers=0,
        workspace=0,
        stride=0,
        hired=(0,) * (threads - 1),
        steps=(JobStep(0, 0, 0, 0, 0),) * end,
        counters=(0,) * (counted * end),
    )
    return np.frombuffer(Block(job).at([]), np.int64).copy()


def _put(job: Array, i: int, described: bytes) -> None:
    at = int(job[STEPS]) + _step.size * i
    job.data.cast("B")[at : at + _step.size] = described


def _units_in(time: float, units: int, cost: float) -> int:
    """How many units fill the time, at least one.

    >>> _units_in(100, 40, 800.0), _units_in(100, 40, 0.0), _units_in(100, 40, 1e9)
    (5, 40, 1)
    """
    return max(1, int(units * time / cost)) if cost > time else max(1, units)


def is_unfinished(job: Array) -> bool:
    """Whether steps are left, and the job has not been halted."""
    return bool(job[REACHED] < job[COUNT] and not job[HALTED])
