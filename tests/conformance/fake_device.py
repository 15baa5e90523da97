"""A device that is none: memory apart from the host's, errors that come late, and a context that they end.

Kernels of NumPy arrays find theirs in one block of memory, PyTorch's tensors lie on the CPU. `FakeDevice.begin` is the
launch of something that fails: nothing shows before the next synchronisation, and nothing works after it. As with
CUDA, no copy of a process that has used it can use it.
"""

import os
from typing import Any, ClassVar

import numpy as np

from gradspec.conformance.model.device import Device, HostMemory, PackedMemory
from gradspec.conformance.targets.devices import TorchMemory


class LaunchError(RuntimeError):
    pass


class FakeMemory(PackedMemory):
    """Arrays of NumPy in a block of their own."""

    def upload(self, memory):
        FakeDevice.require_context()
        FakeDevice.transfers += 1
        FakeDevice.full_beyond(memory.nbytes)
        return memory.copy()

    def download(self, buffer):
        self.synchronise()
        FakeDevice.transfers += 1
        return buffer.copy()

    def view(self, buffer, place):
        return place.within(buffer)

    def copy(self, buffer):
        return buffer.copy()

    def same(self, one, other):
        return bool((one == other).all())

    def join(self, arrays):
        return np.concatenate([np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays])

    def is_own(self, array):
        return isinstance(array, np.ndarray)

    def dtype(self, array):
        return array.dtype

    def synchronise(self):
        FakeDevice.require_context(now=True)


class FakeDevice(Device):
    name, is_host, count = "fake", False, 1
    user: ClassVar[int] = 0
    """The process that has brought it into use, or the one that this is a copy of."""
    pending: ClassVar[str] = ""
    lost: ClassVar[str] = ""
    transfers: ClassVar[int] = 0
    room: ClassVar[int] = 1 << 30
    tf32: ClassVar[bool] = False

    @classmethod
    def use(cls) -> None:
        if cls.user not in (0, os.getpid()):
            raise RuntimeError("Cannot re-initialize FAKE in forked subprocess")
        cls.user = os.getpid()

    def is_in_use(self) -> bool:
        return self.user != 0

    @classmethod
    def begin(cls, failing: str) -> None:
        cls.pending = failing

    @classmethod
    def require_context(cls, now: bool = False) -> None:
        if now and cls.pending:
            cls.lost, cls.pending = cls.pending, ""
        if cls.lost:
            raise LaunchError(f"FAKE error: {cls.lost}")

    @classmethod
    def full_beyond(cls, size: int) -> None:
        if size > cls.room:
            raise LaunchError("FAKE error: out of memory")

    def facts(self, library: str) -> dict[str, str]:
        self.use()
        return {"GPU": "Fake One", "driver": "1.5", "TF32": "convolutions" if self.tf32 else "off"}

    def missing(self, library: str) -> str:
        return "" if library in ("numpy", "torch") else f"it has no arrays of {library}"

    def memory(self, library: str) -> Any:
        self.use()
        return {"numpy": FakeMemory, "torch": lambda: TorchMemory("cpu")}.get(library, lambda: HostMemory(library))()

    def is_lost_to(self, error: Exception) -> bool:
        return "illegal" in str(error)

    def is_full(self, error: Exception) -> bool:
        return "out of memory" in str(error)


class FarDevice(Device):
    """PyTorch's CPU as a device apart, for hosts: arrays are copied there and back."""

    name, is_host, count, in_host = "far", False, 1, "cpu:0"

    def facts(self, library: str) -> dict[str, str]:
        return {"GPU": "Far One"}

    def missing(self, library: str) -> str:
        return ""

    def memory(self, library: str) -> Any:
        raise AssertionError("arrays are put there by hosts alone")


# --- kernels with a mistake each -----------------------------------------------------------------------------------


BLOCK = 4


def beyond(array, count, before=0):
    """The cells of an array and further ones, as a pointer reaches them."""
    start = array.__array_interface__["data"][0] - before * array.itemsize
    view = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * (count * array.itemsize)).from_address(start))
    return view.view(array.dtype)


class Right:
    """Max pooling of pairs along one axis."""

    dtypes, ranks, layouts, kernel_size, stride = ("f32",), (1,), ("contiguous",), 2, 2

    def max_pool1d(self, x, kernel_size, stride):
        y = np.zeros((*x.shape[:-1], x.shape[-1] // 2), x.dtype)
        self.write(x, y)
        return y

    def write(self, x, y):
        y[...] = np.maximum(x[..., 0 : 2 * y.shape[-1] : 2], x[..., 1 : 2 * y.shape[-1] : 2])


class NoMaskAtTheTail(Right):
    """The last block is read whole: what lies behind the last cell takes part."""

    def write(self, x, y):
        super().write(x, y)
        if y.size and x.size % BLOCK:
            y[(-1,) * y.ndim] = np.max([y[(-1,) * y.ndim], beyond(x, x.size + 1)[-1]])


class WritesOneBeyond(Right):
    """One cell behind its output, which it is given."""

    def max_pool1d(self, x, kernel_size, stride, out=None):
        y = super().max_pool1d(x, kernel_size, stride)
        if out is None:
            return y
        out[...] = y
        if out.flags.c_contiguous and out.size:
            beyond(out, out.size + 1)[-1] = 0
        return out


class WritesIntoItsInput(Right):
    def write(self, x, y):
        super().write(x, y)
        if x.size > 5:
            x[..., 0] = 7


def is_deadly(x):
    return x.size > 4 and x.flat[0] < 0


class Lost(Right):
    """A wild pointer where the first cell is negative; it shows at the next synchronisation."""

    def write(self, x, y):
        super().write(x, y)
        if is_deadly(x):
            FakeDevice.begin("an illegal memory access was encountered")


class Unsteady:
    """Averages of three cells, of which now the first two are added first, now the last two."""

    dtypes, ranks, layouts, kernel_size, stride = ("f32",), (1,), ("contiguous",), 3, 3
    runs = 0

    def avg_pool1d(self, x, kernel_size, stride):
        places = x.shape[-1] // 3
        cells = x[..., : 3 * places].reshape(*x.shape[:-1], places, 3)
        type(self).runs += 1
        order = (0, 1, 2) if self.runs % 2 else (2, 1, 0)
        first, second, third = (cells[..., place] for place in order)
        return (first + second + third) / np.float32(3)


class UnsteadyAsDeclared(Unsteady):
    repeatable = False
