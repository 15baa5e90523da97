"""Arrays put where they can be watched: at another place in memory, between known bytes, at the edge of a page."""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np
from numpy.lib.array_utils import byte_bounds

from gradspec.conformance.model.device import Bytes, copy_into
from gradspec.conformance.model.problem import Array
from gradspec.system.host import MARGIN
from gradspec.system.hosting import GuardedMap


def beside(array: Array) -> Array:
    """A copy one cell further than an allocator would put it."""
    low, high = byte_bounds(array)
    return copy_into(array, np.zeros(high - low + array.itemsize, np.uint8)[array.itemsize :])


def between(array: Array, fill: int) -> tuple[Array, Bytes]:
    """A copy with ``MARGIN`` bytes of ``fill`` on both sides and in its gaps, and all of that memory."""
    low, high = byte_bounds(array)
    memory = np.full(high - low + 2 * MARGIN, fill, np.uint8)
    return copy_into(array, memory[MARGIN : MARGIN + high - low]), memory


def margins_hold(memory: Bytes, fill: int) -> bool:
    """Whether nothing was written on either side."""
    return bool((memory[:MARGIN] == fill).all() and (memory[len(memory) - MARGIN :] == fill).all())


def fenced(array: Array, at_end: bool = True, fill: int = 0xFF, gap: int = 0, readable: bool = False) -> Array:
    """A copy that ends, or begins, where a page does that may be neither read nor written; or ``gap`` bytes from it."""
    low, high = byte_bounds(array)
    memory = fenced_bytes(high - low + gap, at_end, fill, readable)
    return copy_into(array, memory[: high - low] if at_end else memory[gap:])


def fenced_bytes(size: int, at_end: bool, fill: int, readable: bool = False) -> Bytes:
    """Memory between two forbidden pages; where pages cannot be protected, memory like any other."""
    page = mmap.PAGESIZE
    room = max(1, -(-size // page)) * page
    mapped = GuardedMap(-1, room + 2 * page)
    mapped.is_readable = readable
    memory = np.frombuffer(mapped, np.uint8)
    memory[page : page + room] = fill
    for fence in (memory[:page], memory[page + room :]) if os.name == "posix" else ():
        ctypes.CDLL(None).mprotect(
            ctypes.c_void_p(fence.ctypes.data), ctypes.c_size_t(fence.nbytes), mmap.PROT_READ * readable
        )
    first = page + (room - size if at_end else 0)
    return memory[first : first + size]
