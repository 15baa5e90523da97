"""Jobs: the steps of a call in the words that the machine code of ``native.sequence`` reads."""

from __future__ import annotations

from struct import Struct

import numpy as np

from gradspec.graph.ir import Array
from gradspec.runtime.native import sequence as words

SOURCE = words.__name__

SHORT = 5_000
"""Nanoseconds that a chunk takes at least, as far as costs are known: taking one costs some hundred."""
LONG = 10_000_000
"""Nanoseconds that it takes at most, so that Ctrl-C is answered soon."""


_put = Struct("=5q").pack_into


class Steps:
    """The steps of a plan. Those that are known are kept from call to call; every job is a copy of its own."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._words = np.zeros(words.HEADER + words.STEP * count, np.int64)
        self._bytes = memoryview(self._words).cast("B") if count else memoryview(b"")

    def put(self, i: int, function: int, args: int, units: int, cost: float) -> None:
        """Step ``i``: a kernel by its address, the address of its arguments, units of work that cost nanoseconds."""
        least, most = _units_in(SHORT, units, cost), _units_in(LONG, units, cost)
        _put(self._bytes, 8 * (words.HEADER + words.STEP * i), function, args, units, least, most)

    def job(self, first: int = 0, end: int | None = None, threads: int = 1) -> Array:
        """The steps from ``first`` to before ``end``, to be carried out once. What is left of a step is cut in so many
        chunks that each thread can take two.
        """
        end = self._count if end is None else end
        job = self._words[: words.HEADER + words.STEP * end].copy()
        job[: words.REACHED + 1] = end, 2 * threads if threads > 1 else 1, first
        return job


def _units_in(time: float, units: int, cost: float) -> int:
    """How many units fill the time, at least one.

    >>> _units_in(100, 40, 800.0), _units_in(100, 40, 0.0), _units_in(100, 40, 1e9)
    (5, 40, 1)
    """
    return max(1, int(units * time / cost)) if cost > time else max(1, units)


def is_unfinished(job: Array) -> bool:
    """Whether steps are left, and the job has not been halted."""
    return bool(job[words.REACHED] < job[words.STEPS] and not job[words.HALTED])
