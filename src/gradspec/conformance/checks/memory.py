"""Arrays put where they can be watched: at another place in memory, between known bytes, at the edge of a page."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray

from gradspec.conformance.call import Array, Call, Results

Bytes: TypeAlias = NDArray[np.uint8]
MARGIN = 256
"""Bytes that are watched on either side of an array."""


def arrays_of(call: Call) -> dict[str, Array]:
    """Everything that a target is given, by name."""
    names = call.problem.differentiable
    directions = {f"direction of {name}": array for name, array in zip(names, call.directions, strict=False)}
    cotangent = {} if call.cotangent is None else {"cotangent": call.cotangent}
    return {**call.named(), **directions, **cotangent}


def copies(call: Call) -> Results:
    """The numbers of a call, to be put back by `put_right`."""
    return {name: array.copy() for name, array in arrays_of(call).items()}


def put_right(call: Call, before: Results) -> list[str]:
    """The arrays of a call that are no longer what they were, and now are again."""
    changed = [name for name, array in arrays_of(call).items() if not same_bits(array, before[name])]
    for name in changed:
        arrays_of(call)[name][...] = before[name]
    return changed


def with_arrays(call: Call, change: Callable[[Array], Array]) -> Call:
    """The same call on changed arrays."""
    return replace(
        call,
        inputs=tuple(None if array is None else change(array) for array in call.inputs),
        directions=tuple(map(change, call.directions)),
        cotangent=None if call.cotangent is None else change(call.cotangent),
    )


def same_bits(a: Array, b: Array) -> bool:
    """Equal shapes, dtypes and bits; any NaN is like any other, for no rule says what is in one."""
    return a.shape == b.shape and a.dtype == b.dtype and not differing(a, b).any()


def differing(a: Array, b: Array) -> NDArray[np.bool_]:
    """Where two arrays of one shape and dtype have other bits.

    >>> differing(np.float32([0.0, np.nan, 1.0]), np.float32([-0.0, -np.nan, 1.0])).tolist()
    [True, False, False]
    """
    if a.dtype.hasobject or a.itemsize > 8:  # no number of ours
        return np.asarray(a != b, np.bool_)
    bits = np.dtype(f"u{a.itemsize}")
    other = np.ascontiguousarray(a).view(bits) != np.ascontiguousarray(b).view(bits)
    same_nan = np.False_ if a.dtype.kind in "iu" else np.isnan(a) & np.isnan(b)
    return np.asarray(other.reshape(a.shape) & ~same_nan, np.bool_)


def beside(array: Array) -> Array:
    """A copy one cell further than an allocator would put it."""
    low, high = byte_bounds(array)
    return placed(array, np.zeros(high - low + array.itemsize, np.uint8)[array.itemsize :])


def between(array: Array, fill: int) -> tuple[Array, Bytes]:
    """A copy with ``MARGIN`` bytes of ``fill`` on both sides and in its gaps, and all of that memory."""
    low, high = byte_bounds(array)
    memory = np.full(high - low + 2 * MARGIN, fill, np.uint8)
    return placed(array, memory[MARGIN : MARGIN + high - low]), memory


def margins_hold(memory: Bytes, fill: int) -> bool:
    """Whether nobody wrote on either side."""
    return bool((memory[:MARGIN] == fill).all() and (memory[len(memory) - MARGIN :] == fill).all())


def fenced(array: Array, at_end: bool = True, fill: int = 0xFF) -> Array:
    """A copy that ends, or begins, where a page does that may be neither read nor written."""
    low, high = byte_bounds(array)
    return placed(array, fenced_bytes(high - low, at_end, fill))


def fenced_bytes(size: int, at_end: bool, fill: int) -> Bytes:
    """Memory between two forbidden pages; where pages cannot be protected, memory like any other."""
    page = mmap.PAGESIZE
    room = max(1, -(-size // page)) * page
    memory = np.frombuffer(mmap.mmap(-1, room + 2 * page), np.uint8)
    memory[page : page + room] = fill
    for fence in (memory[:page], memory[page + room :]):
        _forbid(fence)
    first = page + (room - size if at_end else 0)
    return memory[first : first + size]


def _forbid(page: Bytes) -> None:
    if os.name == "posix":
        ctypes.CDLL(None).mprotect(ctypes.c_void_p(page.ctypes.data), ctypes.c_size_t(page.nbytes), 0)


def placed(array: Array, memory: Bytes) -> Array:
    """A copy in given memory, as far apart as its cells are now."""
    low, _ = byte_bounds(array)
    copy: Array = np.ndarray(array.shape, array.dtype, memory, array.ctypes.data - low, array.strides)
    copy[...] = array
    return copy
