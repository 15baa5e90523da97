"""Where kernels run: how arrays get there and back, what lies around them, and which errors end it all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray

from gradspec.conformance.model.problem import Array, Results
from gradspec.system.host import MARGIN, OverrunError, enter, leave

Bytes: TypeAlias = NDArray[np.uint8]
NANS, NUMBERS = 0xFF, 0x3F
"""Bytes that make a NaN of every float format, or -1, and bytes that make a number of each, of a size met often."""
ALIGNED, ALLOCATED = 256, 16
"""To how many bytes a device aligns what it allocates, and at least every allocator on the host."""


def copy_into(array: Array, memory: Bytes) -> Array:
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


def pack_arrays(arrays: Iterable[Array], fill: int) -> tuple[Bytes, list[PackedPlace]]:
    """All arrays in one piece of memory, as they lie now, with ``MARGIN`` bytes of ``fill`` around each and in gaps.

    An array that is not aligned, as one beside another is not, keeps its offset.

    >>> memory, (place, _) = pack_arrays([np.ones((2, 3), np.float32), np.zeros(4)], NANS)
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


Foreign: TypeAlias = Any
"""An array, or a buffer, of whatever library."""
Given: TypeAlias = Mapping[str, Foreign]
"""Arrays of one call by name, of whatever library."""


class PoisonedError(BaseException):
    """The device is lost to this process: whatever is called next fails, too. No ``except Exception`` may keep it."""


class InputChangedError(Exception):
    """A call wrote into the array of this name, one of its inputs."""


class ExhaustedError(Exception):
    """There was no room on the device, which says nothing of the kernel."""


# --- memory -----------------------------------------------------------------------------------------------------------


class Cargo:
    """Arrays of calls, where kernels find them: as they are."""

    def __init__(self, calls: Sequence[Given]) -> None:
        self.calls = calls

    def is_whole(self) -> bool:
        """Whether arrays and what lies around them are as they were sent."""
        return True

    def require_whole(self, outs: Container[str] = ()) -> None:
        """``OverrunError`` where something was written beside an array, ``InputChangedError`` where into one."""
        return


class Memory(ABC):
    """The arrays of one library on one device."""

    @abstractmethod
    def put(self, calls: Sequence[Mapping[str, Array]], fill: int) -> Cargo:
        """The arrays of several calls, with ``fill`` around each."""

    def get(self, calls: Sequence[Given]) -> list[Results]:
        """The results of several calls."""
        return [{name: leave(array) for name, array in call.items()} for call in calls]

    def synchronise(self) -> None:
        """Wait for all that was begun; errors come here at the latest."""
        return

    def watched(self, fill: int) -> AbstractContextManager[Watch]:
        """Put ``fill`` in and around all that is allocated meanwhile."""
        return nullcontext(Watch())


class Watch:
    """Allocations that are watched; here, none is known."""

    def is_whole(self) -> bool:
        """Whether nothing was written beside them."""
        return True


class HostMemory(Memory):
    """Arrays of a library on memory of NumPy's, without a copy."""

    def __init__(self, library: str) -> None:
        self.library = library

    def put(self, calls: Sequence[Mapping[str, Array]], fill: int) -> Cargo:
        return Cargo([{name: enter(self.library, array) for name, array in call.items()} for call in calls])


class BlockMemory(Memory):
    """Arrays of calls in one block of memory: here of NumPy's, which a host sends to its device as a whole."""

    def put(self, calls: Sequence[Mapping[str, Array]], fill: int) -> Cargo:
        return _PackedCargo(self, calls, fill)

    def upload(self, memory: Bytes) -> Foreign:
        """Bytes of the host where kernels find them."""
        return memory.copy()

    def download(self, buffer: Foreign) -> Bytes:
        """And back."""
        return np.array(buffer)

    def view(self, buffer: Foreign, place: PackedPlace) -> Foreign:
        """The array that lies in a place."""
        return place.within(buffer)

    def copy(self, buffer: Foreign) -> Foreign:
        return buffer.copy()

    def same(self, one: Foreign, other: Foreign) -> bool:
        """Whether two buffers hold the same bytes."""
        return bool((one == other).all())


class PackedMemory(BlockMemory):
    """Memory behind a bus: the arrays of many calls are one transfer, and so are their results."""

    @abstractmethod
    def join(self, arrays: Sequence[Foreign]) -> Foreign:
        """The bytes of arrays one after the other."""

    @abstractmethod
    def is_own(self, array: Foreign) -> bool:
        """Whether an array is the library's, and on the device."""

    @abstractmethod
    def dtype(self, array: Foreign) -> np.dtype[Any]: ...

    def get(self, calls: Sequence[Given]) -> list[Results]:
        here = [array for call in calls for array in call.values() if self.is_own(array)]
        memory = self.download(self.join(here)) if here else np.zeros(0, np.uint8)
        end, found = 0, list[Results]()
        for call in calls:
            found.append({})
            for name, array in call.items():
                if not self.is_own(array):
                    found[-1][name] = leave(array)
                    continue
                dtype, shape = self.dtype(array), tuple(array.shape)
                start, end = end, end + int(np.prod(shape)) * dtype.itemsize
                found[-1][name] = memory[start:end].view(dtype).reshape(shape)
        return found


class _PackedCargo(Cargo):
    def __init__(self, memory: BlockMemory, calls: Sequence[Mapping[str, Array]], fill: int) -> None:
        self._memory = memory
        self._named = [name for call in calls for name in call]
        self._sent, self._places = pack_arrays([array for call in calls for array in call.values()], fill)
        self._buffer = memory.upload(self._sent)
        self._twin = memory.copy(self._buffer)
        views = iter([memory.view(self._buffer, place) for place in self._places])
        super().__init__([{name: next(views) for name in call} for call in calls])

    def is_whole(self) -> bool:
        return self._memory.same(self._buffer, self._twin)

    def require_whole(self, outs: Container[str] = ()) -> None:
        if self.is_whole():
            return
        now, before = self._memory.download(self._buffer), self._sent.copy()
        named = list(zip(self._named, self._places, strict=True))
        changed = [name for name, p in named if p.within(now).tobytes() != p.within(before).tobytes()]
        for _, place in named:  # leaves margins, and gaps between cells
            place.within(before)[...] = place.within(now)
        for name, place in named:
            around = slice(place.start - MARGIN, place.end + MARGIN)
            if (before[around] != now[around]).any():
                raise OverrunError(name)
        if wrong := [name for name in changed if name not in outs]:
            raise InputChangedError(wrong[0])


# --- devices ----------------------------------------------------------------------------------------------------------


class Device:
    """Where kernels run. This one is the CPU: arrays stay where they are, and nothing is waited for.

    Another is named ``module:object``, and answers the same questions.
    """

    name = "cpu"
    is_host = True
    """Whether kernels read and write the memory of the host's arrays themselves."""
    provider = "CPUExecutionProvider"
    """What ONNX Runtime calls it."""
    starting = 0.0
    """Seconds that a new process may take until it can use the device."""
    count = 0
    """How many processes there is room for; 0 where there is no limit."""
    in_host = ""
    """By which name a host (`gradspec.system.host`) knows it; nothing where kernels must be called in this process."""
    fill = NANS
    """What lies around arrays."""

    def missing(self, library: str) -> str:
        """Why arrays of a library cannot be there; nothing where they can."""
        return "arrays of cupy lie on a GPU; give device='cuda'" if library == "cupy" else ""

    def facts(self, library: str) -> dict[str, str]:
        """Its facts, for reports; asking may bring it into use."""
        return {}

    def is_in_use(self) -> bool:
        """Whether this process has brought it into use, so that no copy of the process could use it."""
        return False

    def environment(self, number: int) -> dict[str, str]:
        """The variables that give one of them to a process, by its number."""
        return {}

    def rounding(self, library: str) -> frozenset[str]:
        """Modes of reduced precision that a library's settings switch on there, by the names of ``judge.reduced``."""
        return frozenset()

    def memory(self, library: str) -> Memory:
        return HostMemory(library)

    def entered(self, expression: str, library: str) -> str:
        """The expression that makes an array on the device of one of the library's on the host, for programs."""
        return expression

    def is_lost_to(self, error: Exception) -> bool:
        """Whether nothing can be called any longer after an error."""
        return False

    def is_full(self, error: Exception) -> bool:
        """Whether an error says that there was no room."""
        return False

    @contextmanager
    def told(self) -> Iterator[None]:
        """Errors that are the device's own, as such."""
        try:
            yield
        except Exception as error:
            words = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            if self.is_lost_to(error):
                raise PoisonedError(words) from error
            if self.is_full(error):
                raise ExhaustedError(words) from None
            raise

    @contextmanager
    def filled(self, fill: int) -> Iterator[None]:
        """With other bytes around arrays, for a while."""
        before, self.fill = self.fill, fill
        try:
            yield
        finally:
            self.fill = before


HOST = Device()
HOST.in_host = HOST.name
