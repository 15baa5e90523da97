"""Arrays put where they can be watched: copies in given memory, and many of them packed into one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray

from gradspec.conformance.model.problem import Array

Bytes: TypeAlias = NDArray[np.uint8]
MARGIN = 256
"""Bytes that are watched on either side of an array."""
NANS, NUMBERS = 0xFF, 0x3F
"""Bytes that make a NaN of every float format, or -1, and bytes that make a number of each, of a size met often."""
ALIGNED, ALLOCATED = 256, 16
"""To how many bytes a device aligns what it allocates, and at least every allocator on the host."""


def placed(array: Array, memory: Bytes) -> Array:
    """A copy in given memory, as far apart as its cells are now."""
    low, _ = byte_bounds(array)
    copy: Array = np.ndarray(array.shape, array.dtype, memory, array.ctypes.data - low, array.strides)
    copy[...] = array
    return copy


@dataclass(frozen=True)
class PackedPlace:
    """The bytes of an array in packed memory: from ``start`` to ``end``, with its first cell at ``first``."""

    array: Array
    start: int
    end: int
    first: int

    def within(self, memory: Bytes) -> Array:
        """What lies there, as an array like this one."""
        return np.ndarray(self.array.shape, self.array.dtype, memory, self.first, self.array.strides)


def packed(arrays: Iterable[Array], fill: int) -> tuple[Bytes, list[PackedPlace]]:
    """All arrays in one piece of memory, as they lie now, with ``MARGIN`` bytes of ``fill`` around each and in gaps.

    An array that is not aligned, as one beside another is not, keeps its offset.

    >>> memory, (place, _) = packed([np.ones((2, 3), np.float32), np.zeros(4)], NANS)
    >>> place.within(memory).tolist(), place.end - place.start, memory[place.end]
    ([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]], 24, np.uint8(255))
    """
    places, end = list[PackedPlace](), 0
    for array in arrays:
        low, high = byte_bounds(array) if array.size else (array.ctypes.data,) * 2
        start = -(-(end + MARGIN) // ALIGNED) * ALIGNED + low % ALLOCATED
        end = start + high - low
        places.append(PackedPlace(array, start, end, start + array.ctypes.data - low))
    memory = np.full(end + MARGIN, fill, np.uint8)
    for place in places:
        place.within(memory)[...] = place.array
    return memory, places
