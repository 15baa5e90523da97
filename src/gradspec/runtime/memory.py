"""Memory of a call: one arena in which buffers that are not live together share their place, and the workspace."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Lock
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from weakref import WeakSet

import numpy as np

from gradspec.codegen.records import address
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array, Op, Var
from gradspec.graph.types import TensorType
from gradspec.system.machine import machine_bytes

ALIGNMENT = 64


class Lifetime(NamedTuple):
    """A buffer of ``size`` bytes that is live from step ``first`` to step ``last``, both included."""

    first: int
    last: int
    size: int


def aligned(size: int) -> int:
    """The next multiple of 64.

    >>> [aligned(n) for n in (0, 1, 64, 65)]
    [0, 64, 64, 128]
    """
    return -(-size // ALIGNMENT) * ALIGNMENT


def nbytes(type: TensorType) -> int:
    return type.size * type.dtype.numpy.itemsize


def offsets(intervals: Sequence[Lifetime]) -> list[int]:
    """A place for each buffer, so that buffers which are live together do not overlap.

    The largest come first, each at the lowest place that is free as long as it lives.

    >>> offsets([Lifetime(0, 1, 64), Lifetime(1, 2, 128), Lifetime(2, 3, 64)])
    [128, 0, 128]
    """
    placed, found = np.empty((4, len(intervals)), np.int64), [0] * len(intervals)
    for n, i in enumerate(sorted(range(len(intervals)), key=lambda i: (-intervals[i].size, intervals[i].first))):
        first, last, size = intervals[i]
        begins, ends, low, high = placed[:, :n]
        busy = ((begins <= last) & (ends >= first)).nonzero()
        found[i] = _lowest_gap(sorted(zip(low[busy].tolist(), high[busy].tolist(), strict=True)), aligned(size))
        placed[:, n] = first, last, found[i], found[i] + aligned(size)
    return found


def _lowest_gap(busy: Sequence[tuple[int, int]], size: int) -> int:
    start = 0
    for first, end in busy:
        if first - start >= size:
            break
        start = max(start, end)
    return start


# --- frames -----------------------------------------------------------------------------------------------------------


_NO_BYTES = np.empty(0, np.uint8)


def allocated(size: int) -> int:
    """What ``aligned_bytes`` allocates for so many bytes.

    >>> allocated(100), allocated(0)
    (164, 0)
    """
    return size + ALIGNMENT if size else 0


def aligned_bytes(size: int) -> Array:
    """Bytes that begin at a multiple of 64."""
    if not size:
        return _NO_BYTES
    whole = np.empty(allocated(size), np.uint8)
    start = -address(whole) % ALIGNMENT
    return whole[start : start + size]


def aligned_array(type: TensorType) -> Array:
    """An array that begins at a multiple of 64 bytes."""
    return aligned_bytes(nbytes(type)).view(type.dtype.numpy).reshape(type.shape)


class Idle(Protocol):
    """What is kept between calls."""

    @property
    def nbytes(self) -> int: ...


Kept = TypeVar("Kept", bound=Idle)

KEPT_FRAMES = 8
KEPT_BYTES = 512 * 2**20
"""Idle memory that all frames together may hold."""
SMALL = 2**20
"""Frames of at most this many bytes are not counted."""

_all: WeakSet[Frames[Any]] = WeakSet()
_lock = Lock()


def _unlock_in_child() -> None:
    global _lock
    _lock = Lock()  # a thread that the child does not have may hold the other one


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_in_child)


class Frames(Generic[Kept]):
    """Idle frames of one plan. Any number of threads may take and give back frames at once."""

    def __init__(self, make: Callable[[], Kept]) -> None:
        self._make = make
        self._idle: list[Kept] = []
        with _lock:
            _all.add(self)

    def take(self) -> Kept:
        try:
            return self._idle.pop()
        except IndexError:
            return self._make()

    def give_back(self, frame: Kept) -> None:
        """Keep a frame for the next call, unless there are enough."""
        size = frame.nbytes
        if len(self._idle) < KEPT_FRAMES and (size <= SMALL or self._is_room_for(size)):
            self._idle.append(frame)

    def _is_room_for(self, size: int) -> bool:
        with _lock:
            return size + sum(frames.idle_bytes for frames in _all) <= KEPT_BYTES

    @property
    def idle_bytes(self) -> int:
        return sum(frame.nbytes for frame in list(self._idle))


# --- what there is ----------------------------------------------------------------------------------------------------

MUCH_MEMORY = 1 << 30
"""Bytes from which on it is asked how many there are."""


def held_results(graph: Graph) -> Iterator[tuple[Op, Var]]:
    """What a graph makes, and by which operator. Views take no memory, unless they are given to the caller."""
    given = {*graph.outputs}
    return ((n.op, v) for n in graph.nodes for v in n.outputs if not n.op.is_data_movement or v in given)


def require_memory(results: Iterable[tuple[Op, Var]]) -> None:
    """What cannot be held is refused before any work is done."""
    for op, v in results:
        size = nbytes(v.type)
        if size > MUCH_MEMORY and size > (there := machine_bytes()):
            raise MemoryError(
                f"{op}: the result, {v.type}, needs {size:,} bytes of memory, and there are {there:,}; "
                "give smaller shapes"
            )
