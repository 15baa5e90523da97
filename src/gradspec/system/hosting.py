"""Kernels in a process of their own, `gradspec.system.host`, called from here. What they say is a claim about outputs.

Inputs are written to memory that both processes have, with all that lies around them, and what a call changed there is
copied back: whoever watches an array here sees what became of it there. Outputs are copied. Packets are numbered, of
known length and fields, and from one process; anything else raises `ChannelError`.
"""

from __future__ import annotations

import builtins
import ctypes
import marshal
import mmap
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, cached_property, lru_cache
from importlib import import_module
from inspect import Parameter, Signature
from math import prod
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import gettempdir
from time import monotonic, sleep
from types import ModuleType, SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray

from gradspec.system import containment, host
from gradspec.system.forking import forked
from gradspec.system.host import LONGEST, packet, unpacked
from gradspec.system.machine import machine_bytes
from gradspec.system.processes import ProcessLostError, describe

CAN_HOST = sys.platform == "linux"
"""Elsewhere processes share no memory without a name, nor say who sent a packet."""
ALIGNED, ALLOCATED, APART = 64, 16, 256
"""To how many bytes arrays are aligned, but for what an allocator would not give them, and the bytes between two."""
MOST_BYTES = 1 << 32
"""Of all outputs of a call, if their numbers were the widest."""
STAYING, STOPPING = 0.2, 5.0
"""Seconds in which a process that a call has started may still end, and in which one stops that is told to."""
F_ADD_SEALS, F_SEAL_SEAL, F_SEAL_SHRINK = 1033, 1, 2
CUT_OFF = int(getattr(socket, "MSG_TRUNC", 0)) | int(getattr(socket, "MSG_CTRUNC", 0))
SEARCHED = 16
"""Calls after which all threads of a process are asked what they have started; of the first it is asked after each."""
CACHES = (
    *("TMPDIR", "TRITON_CACHE_DIR", "TRITON_HOME", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR"),
    *("NUMBA_CACHE_DIR", "CUPY_CACHE_DIR", "CUDA_CACHE_PATH", "MPLCONFIGDIR", "JAX_COMPILATION_CACHE_DIR"),
)
"""Variables that name folders into which compilers of kernels write."""
OWN = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
"""What compilers of kernels are told: processes that they start stay behind after the call."""
OF_DEVICES = re.compile("CUDA error|cudaError|CUDA_ERROR")
"""Errors of CUDA, in the words of PyTorch, CuPy and JAX."""
HIDDEN = re.compile("GRADSPEC_.*|PYTEST_CURRENT_TEST|PYTHONPATH|PWD|OLDPWD")
"""Variables that tell of the judge, or of where it was started."""

FACTS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("name", "library"), (str,)),
    **dict.fromkeys(("names", "mentioned"), (list,)),
    **dict.fromkeys(("signature", "parameters"), (dict, type(None))),
    "versions": (dict,),
}
"""What a host says of its kernel, and of which types it is."""
KINDS = (
    *(Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.VAR_POSITIONAL),
    *(Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD),
)

Array: TypeAlias = NDArray[Any]
Answer: TypeAlias = Any
"""What a call gives: an array or None, or a tuple of them."""
Claim: TypeAlias = tuple[int, int, int, tuple[int, ...], tuple[int, ...]]
"""What is said of an output: the number of its dtype, where it is, its first byte, its shape, its strides."""


class HostLostError(BaseException):
    """The process of the kernel has ended, with a status as ``waitpid`` has it, or gave no answer for some seconds.

    No ``except Exception`` may keep it.
    """

    def __init__(self, status: int, silence: float = 0.0) -> None:
        said = ProcessLostError(f"gave no answer in {silence:g} s" if silence else "ended")
        said.status = None if silence else os.waitstatus_to_exitcode(status)
        super().__init__(describe(said))
        self.status, self.silence = status, silence


class ChannelError(Exception):
    """The process of the kernel said what no host says."""


class ImportFailedError(ValueError):
    """The kernel cannot be imported, or its process says of it what no host says."""


class LeftBehindError(Exception):
    """A call has started processes that did not end with it."""


class GuardedMap(mmap.mmap):
    """Memory whose first and last page may not be touched, or read alone."""

    is_readable: bool = False


# --- arrays in shared memory ------------------------------------------------------------------------------------------


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


_dtype_name = cache(lambda dtype: dtype.name)


@cache
def _memcmp() -> Any:
    compare = ctypes.CDLL(None).memcmp
    compare.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    return compare


class _Segment:
    """The memory that an array is a view of, and where it lies in shared memory: ``size`` bytes from ``address``."""

    def __init__(self, root: Array, end: int) -> None:
        self.root = root
        owner = None if root.base is None else getattr(root.base, "obj", None)
        self.guard = owner if isinstance(owner, GuardedMap) else None
        self.whole: Array | None = root
        self.address, self.size = _address(root), root.nbytes
        if not root.flags.c_contiguous and root.size:
            self.whole = None  # its first cell need not be its first byte
            self.address, end_of_root = byte_bounds(root)
            self.size = end_of_root - self.address
        aligned, offset = (mmap.PAGESIZE, 0) if self.guard is not None else (ALIGNED, self.address % ALLOCATED)
        self.start = -(-(end + APART) // aligned) * aligned + offset
        self.end = self.start + self.size

        page = 0 if self.guard is None else mmap.PAGESIZE
        self.inner = page, self.size - 2 * page
        """Of what is sent, the first byte and the size: no page that may not be touched."""

    def send(self, memory: int) -> None:
        skipped, size = self.inner
        ctypes.memmove(memory + self.start + skipped, self.address + skipped, size)

    def take_back(self, memory: int) -> None:
        skipped, size = self.inner
        here, there = self.address + skipped, memory + self.start + skipped
        if _memcmp()(here, there, size):
            ctypes.memmove(here, there, size)

    def fences(self) -> list[tuple[int, int, int]]:
        page, protection = mmap.PAGESIZE, mmap.PROT_READ * (self.guard is not None and self.guard.is_readable)
        return [(start, page, protection) for start in (self.start, self.end - page)]


class _Packing:
    """The arrays of calls as they will lie in shared memory: views of one array share memory there, too."""

    def __init__(self, start: int = 0) -> None:
        self.segments: dict[int, _Segment] = {}
        self.end = start

    def place(self, array: Array) -> list[Any]:
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        segment = self.segments.get(id(root))
        if segment is None:
            self.segments[id(root)] = segment = _Segment(root, self.end)
            self.end = segment.end
        start = segment.start + (0 if array is segment.whole else _address(array) - segment.address)
        return [start, array.shape, array.strides, _dtype_name(array.dtype)]

    def encoded(
        self, function: HostedFunction, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> dict[str, Any]:
        arrays = list[list[Any]]()

        def argument(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                arrays.append(self.place(value))
                return {"array": len(arrays) - 1}
            return tuple(map(argument, value)) if isinstance(value, tuple | list) else value

        return {
            "arguments": list(map(argument, arguments)),
            "keywords": {name: argument(value) for name, value in keywords.items()},
            "function": function.number,
            "arrays": arrays,
            "library": function.host.library,
            "device": function.host.device,
            "fill": function.host.fill,
            "extent": self.extent(),
        }

    def extent(self) -> tuple[int, int]:
        """Where the memory of all arrays begins, aligned as on a device, and ends."""
        return min((segment.start for segment in self.segments.values()), default=0) // APART * APART, self.end

    def fences(self) -> list[tuple[int, int, int]]:
        guarded = (segment for segment in self.segments.values() if segment.guard is not None)
        return [fence for segment in guarded for fence in segment.fences()]


class _View:
    """Memory of another array under another form."""

    def __init__(self, root: Array, address: int, dtype: np.dtype[Any], shape: Sequence[int], strides: Sequence[int]):
        kind = f"V{dtype.itemsize}" if dtype.kind == "V" else dtype.str
        where = {"data": (address, False), "shape": tuple(shape), "strides": tuple(strides)}
        self.root, self.__array_interface__ = root, {**where, "typestr": kind, "version": 3}


# --- one process ------------------------------------------------------------------------------------------------------


class _Session:
    """A copy of the host that serves calls, at the other end of a channel."""

    def __init__(
        self,
        ask: Callable[[list[int], list[int]], None],
        status_otherwise: Callable[[], int],
        limit: float | None = None,
    ) -> None:
        """``ask`` is given the files of the other process, and those of this one."""
        self.owner, self.number, self._status_otherwise = os.getpid(), 0, status_otherwise
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._inputs, self._outputs = (_shared_memory(name) for name in ("inputs", "outputs"))
        self.status, told = os.pipe()
        self._mapped: mmap.mmap | None = None
        self.grow(1 << 20)
        self.close = weakref.finalize(self, _close_all, self.channel, (self.status, self._inputs, self._outputs))
        ask([theirs.fileno(), self._inputs, self._outputs, told], [self.channel.fileno(), self.status])
        theirs.close()
        os.close(told)
        self._place = memoryview(bytearray(LONGEST))
        self._limit = limit
        self.channel.settimeout(limit)
        self._known: list[tuple[int, int, bytes]] | None = None
        self.pid = 0
        self._received()
        self._keeper = int(_stat(self.pid)[2])  # a process may start others beside itself, as children of this one
        self._children = dict[int, bytes]()
        for parent in (self.pid, self._keeper):
            with suppress(OSError):
                children = os.open(f"/proc/{parent}/task/{parent}/children", os.O_RDONLY | os.O_CLOEXEC)
                weakref.finalize(self, os.close, children)
                self._children[children] = os.pread(children, 64, 0)

    def grow(self, size: int) -> None:
        if self._mapped is None or size > len(self._mapped):
            size = max(size, 2 * len(self._mapped)) if self._mapped is not None else size
            os.ftruncate(self._inputs, size)
            self._mapped = mmap.mmap(self._inputs, size)
            self.memory = np.frombuffer(self._mapped, np.uint8).ctypes.data

    @property
    def size(self) -> int:
        return 0 if self._mapped is None else len(self._mapped)

    def send(self, packing: _Packing) -> None:
        """Write arrays to shared memory, where the next request finds them."""
        self.grow(packing.end + APART)
        for segment in packing.segments.values():
            segment.send(self.memory)

    def ask(self, limit: float | None = None, **request: Any) -> dict[str, Any] | bytes:
        """The answer to a request; whatever came before is read in its place, and refused."""
        self.number += 1
        do = f"do_{request.pop('do')}"
        if self._limit != limit:
            self.channel.settimeout(limit)
            self._limit = limit
        try:
            self.channel.send(marshal.dumps((self.number, do, request)))
        except (BrokenPipeError, ConnectionResetError):
            raise self._lost() from None
        return self._received()

    def _received(self) -> dict[str, Any] | bytes:
        try:
            length, extra, flags, _ = self.channel.recvmsg_into([self._place], 64)
        except ConnectionResetError:
            raise self._lost() from None
        except TimeoutError:
            raise HostLostError(signal.SIGKILL, self._limit or 0.0) from None
        if extra != self._known:
            self._require_first(extra)
        if not length:
            raise self._lost()
        if flags & CUT_OFF:
            raise ChannelError("a packet that is too long, or with files in it")
        try:
            number, message = unpacked(self._place[:length].tobytes())
        except ValueError as why:
            raise ChannelError(str(why)) from None
        if number != self.number:
            raise ChannelError("it answered what was not asked")
        return message

    def _require_first(self, extra: list[tuple[int, int, bytes]]) -> None:
        """Linux says who sent a packet: all must be of the process that sent the first, with nothing else."""
        sender = _sender(extra)
        if extra and sender is None:
            raise ChannelError("a packet that is too long, or with files in it")
        if self.pid and extra:
            raise ChannelError("another process spoke in its place")
        self.pid, self._known = sender or 0, extra

    def _lost(self) -> HostLostError:
        """What the process ended with, as the one says that watched it; where nothing is said, that was killed."""
        return HostLostError(_told_status(self.status, 5.0, self._status_otherwise))

    def require_nothing_left(self, everywhere: bool = False) -> None:
        is_usual = all(os.pread(children, 64, 0) == usual for children, usual in self._children.items())
        if self._children and is_usual and self.number % SEARCHED and not everywhere:
            return
        deadline = monotonic() + STAYING
        parents = (self.pid, self._keeper)
        while names := [_stat(one)[0] for parent in parents for one in _children(parent) if one != self.pid]:
            if monotonic() > deadline:
                told = ", ".join(f"{name} ({n})" if n > 1 else name for name, n in Counter(names).most_common(8))
                raise LeftBehindError(f"after the call, processes go on that it has started: {told}")
            sleep(0.01)

    def taken(self, claim: Claim, packing: _Packing) -> Array | None:
        """The array that a part of an answer says there is."""
        _, where, start, shape, strides = claim
        if where == host.NOTHING:
            return None
        dtype = _checked(claim)
        if where == host.NOWHERE:
            return np.zeros(shape, "V16")  # wider than any number
        size = prod(shape) * dtype.itemsize
        if where == host.OUTPUTS:
            found = np.empty(size, np.uint8)
            if size and os.preadv(self._outputs, [found.data], start) != size:
                raise ChannelError("an output that is not there")
            return found.view(dtype).reshape(shape)
        low, high = _extent(start, shape, strides, dtype.itemsize)
        for segment in packing.segments.values():
            skipped, inner = segment.inner
            if segment.start + skipped <= low and high <= segment.start + skipped + inner:
                segment.take_back(self.memory)
                view = _View(segment.root, segment.address + start - segment.start, dtype, shape, strides)
                return np.asarray(view).view(dtype)
        raise ChannelError("an output where no input is")


def _shared_memory(name: str) -> int:
    import fcntl

    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fcntl.fcntl(descriptor, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK)  # what is mapped here stays, and may grow
    return descriptor


def _close_all(channel: socket.socket, descriptors: Sequence[int]) -> None:
    channel.close()
    for descriptor in descriptors:
        os.close(descriptor)


def _sender(extra: Sequence[tuple[int, int, bytes]]) -> int | None:
    """The process that a packet is from, as Linux says; None where anything else came along, which is closed."""
    found = None
    for level, kind, data in extra:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            found = struct.unpack("3i", data[:12])[0]
            continue
        for (descriptor,) in struct.iter_unpack("i", data[: len(data) // 4 * 4]):
            os.close(descriptor)
        return None
    return found


def _stat(process: int | str) -> tuple[str, ...]:
    """The name of a process or thread, its state, and its parent; it is dead where there is none."""
    with suppress(OSError):
        name, _, rest = Path(f"/proc/{process}/stat").read_text().partition("(")[2].rpartition(")")
        return (name, *rest.split()[:2])
    return "", "X", "0"


def _children(process: int) -> Iterator[int]:
    """The processes that a process, or one that it started and that has ended, has started."""
    with suppress(OSError):
        for task in os.listdir(f"/proc/{process}/task"):
            for child in Path(f"/proc/{process}/task/{task}/children").read_text().split():
                if _stat(child)[1] not in "ZX":
                    yield int(child)


def _descendants(process: int) -> list[int]:
    processes = [process]
    for parent in processes:
        processes += _children(parent)
    return processes[1:]


def _is_moving(process: int) -> bool:
    """Whether a thread of a process is not stopped."""
    with suppress(OSError):
        return any(_stat(f"{process}/task/{task}")[1] not in "TtZX" for task in os.listdir(f"/proc/{process}/task"))
    return False


def _claims(answer: bytes) -> list[Claim]:
    """The arrays that an answer tells, or `ChannelError`."""
    claims, place, end = list[Claim](), 1, len(answer)
    try:
        while place < end:
            number, where, rank, start = host.ARRAY.unpack_from(answer, place)
            sizes = struct.unpack_from(f"<{2 * rank}q", answer, place + host.ARRAY.size)
            claims.append((number, where, start, sizes[:rank], sizes[rank:]))
            place += host.ARRAY.size + 16 * rank
    except struct.error:
        raise ChannelError("an output that is cut off") from None
    return claims


def _checked(claim: Claim) -> np.dtype[Any]:
    """The dtype of a claim that can be true, or `ChannelError`."""
    number, where, start, shape, _ = claim
    if start < 0 or min(shape, default=0) < 0 or len(shape) > 32:
        raise ChannelError("an output of no shape")
    if (
        number >= len(host.DTYPES)
        or where > host.OUTPUTS
        or (host.DTYPES[number] == "object") != (where == host.NOWHERE)
    ):
        raise ChannelError("an output of no dtype")
    return _dtype_numbered(number)


@cache
def _dtype_numbered(number: int) -> np.dtype[Any]:
    name = host.DTYPES[number]
    return np.dtype(import_module("ml_dtypes").bfloat16 if name == "bfloat16" else name)


def _extent(start: int, shape: Sequence[int], strides: Sequence[int], item: int) -> tuple[int, int]:
    spans = [step * (size - 1) for size, step in zip(shape, strides, strict=True) if size]
    return start + sum(s for s in spans if s < 0), start + sum(s for s in spans if s > 0) + item


# --- kernels ----------------------------------------------------------------------------------------------------------


class HostServer:
    """A process that has imported libraries and no kernel: copies of it are hosts. It ends with this object."""

    def __init__(self, libraries: Sequence[str] = ()) -> None:
        self._libraries = [*libraries]
        self._begin()

    def _begin(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        scratch = dict.fromkeys(CACHES, _scratch_folder())
        own = {k: v for k, v in os.environ.items() if not HIDDEN.fullmatch(k)}
        with Path(containment.__file__).open("rb") as source:
            command = [sys.executable, "-P", "-"]
            process = subprocess.Popen(
                command, stdin=source, stdout=theirs.fileno(), env=own | scratch | OWN, start_new_session=True
            )
        theirs.close()
        self.close = weakref.finalize(self, _end_server, os.getpid(), process, self._control)
        text = Path(host.__file__).read_text(encoding="utf-8")
        self._control.send(marshal.dumps({"program": text, "libraries": self._libraries, **_surroundings()}))

    def start(self, config: dict[str, Any]) -> tuple[socket.socket, int]:
        """The socket of a new host, and a pipe that tells the status that it ends with."""
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ending, told = os.pipe()
        asked = [marshal.dumps(config)], [theirs.fileno(), told]
        try:
            socket.send_fds(self._control, *asked)
        except (BrokenPipeError, ConnectionResetError):  # a kernel that nothing contains can end this, too
            self.close()
            self._begin()
            socket.send_fds(self._control, *asked)
        theirs.close()
        os.close(told)
        return control, ending


def _surroundings() -> dict[str, Any]:
    """Where a process finds modules, and the folder that it may write to."""
    return {"path": [entry or os.getcwd() for entry in sys.path], "scratch": _scratch_folder()}


def _end_server(owner: int, process: subprocess.Popen[bytes], control: socket.socket) -> None:
    if os.getpid() != owner:
        return
    control.close()
    try:
        process.wait(1.0)
    except subprocess.TimeoutExpired:  # it imports, or a copy of this process keeps the socket
        process.kill()
        process.wait()


class KernelHost:
    """The process that holds the kernel of a name, and copies of it that serve calls; it ends with this object."""

    library = "numpy"
    """Whose arrays the kernel takes."""

    device = "cpu"
    """Where the kernel finds them; results come back by the memory that both processes have."""
    fill: int | None = None
    """What lies around all that PyTorch allocates on a device during a call, which is watched there."""
    limit: float | None = None
    """Seconds that it may take to import the kernel, or to answer a call."""

    def __init__(
        self,
        name: str,
        memory: int | None = None,
        call: Mapping[str, Any] | None = None,
        server: HostServer | None = None,
    ) -> None:
        """``call`` says how a `gradspec.system.host.Solution` of this name is called."""
        self.name = name
        self._memory = _memory_for_all() if memory is None else memory
        self._call, self._server, self._has_server = call, server, server is not None
        self._session: _Session | None = None
        self._modules: dict[str, dict[str, Any]] = {}
        self._functions: list[dict[str, Any]] = []
        self._threads: int | None = None
        self._keeps = False
        self._script: Callable[..., Any] | None = None
        self.kept: tuple[Array | None, ...] = ()
        """What the last call gave."""
        self._begin()

    def _begin(self) -> None:
        limits = {"memory": self._memory, "total": self._memory or _memory_for_all()}
        config = {"name": self.name, "call": self._call, **limits, **_surroundings()}
        self._server = self._server or HostServer()
        self._control, self._ending = self._server.start(config)
        self._owner, self._number, self._is_used = os.getpid(), 0, False
        self._end = weakref.finalize(self, _end, os.getpid(), self._control, self._ending)

    def close(self) -> None:
        self.drop_session()
        self._end()
        if self._server is not None and not self._has_server:
            self._server.close()

    # --- what it says of the kernel

    @property
    def spoke(self) -> str:
        return f"importing {self.name.partition(':')[0]!r} failed: it wrote to the channel of the judge"

    @cached_property
    def contained(self) -> tuple[str, ...]:
        """What it is contained by; said before the kernel is imported."""
        return tuple(map(str, self._told(0)["contained"]))

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What is said of the kernel: `gradspec.system.host.facts_of`, and what kind of object it is."""
        assert self.contained is not None  # which comes first
        facts = self._told(1)
        if "failed" in facts:
            raise ImportFailedError(str(facts["failed"]))
        if not {"kind", "can_fork"} <= facts.keys() or not all(isinstance(facts.get(f), FACTS[f]) for f in FACTS):
            raise ImportFailedError(self.spoke)
        self._number = 1
        return facts

    def members(self, names: Sequence[str]) -> dict[str, Any]:
        """Members of the kernel by name, of those that it has: values, and functions that can be called."""
        wanted = [name for name in names if name in self.facts["names"]]
        self._number += 1
        try:
            self._control.send(packet(self._number, {"names": wanted}))
        except (BrokenPipeError, ConnectionResetError):
            raise HostLostError(self._status()) from None
        told = self._told(self._number)["members"]
        return {name: self._member(name, told[name]) for name in wanted if name in told}

    def _member(self, name: str, told: Any) -> Any:
        if isinstance(told, dict) and "callable" in told:
            return HostedFunction(self, name, signature_of(told))
        return _value(told)

    def _told(self, number: int) -> dict[str, Any]:
        self._control.settimeout(self.limit)
        try:
            data = self._control.recv(LONGEST)
        except ConnectionResetError:
            data = b""
        except TimeoutError:
            raise HostLostError(signal.SIGKILL, self.limit or 0.0) from None
        if not data:
            raise HostLostError(self._status())
        try:
            said, message = unpacked(data)
        except ValueError:
            said, message = -1, {}
        if said != number or isinstance(message, bytes):
            raise ImportFailedError(self.spoke)
        return message

    def _status(self) -> int:
        """As ``waitpid`` has it; that of a process that was killed, where this one is still there."""
        return _told_status(self._ending, 0.1 if "facts" in vars(self) and self.facts["can_fork"] else 5.0)

    # --- calls

    def call(self, function: HostedFunction, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Answer:
        """What a function gives, or what it raises."""
        if self._script is not None:
            return self._script(function, arguments, keywords)
        packing = _Packing()
        call = packing.encoded(function, arguments, keywords)
        given = self._asked(packing, do="call", call=call, fences=packing.fences(), keep=self._keeps)
        self.kept = given if isinstance(given, tuple) else (given,)
        return given

    def prepared(self, function: HostedFunction, arguments: Sequence[Any], slot: int) -> Callable[[], Answer]:
        """A call that is made later, of arrays that lie in shared memory already, in one of several places."""
        size = sum(value.nbytes + ALIGNED + APART for value in arguments if isinstance(value, np.ndarray))
        packing = _Packing(slot * size)
        call = packing.encoded(function, arguments, {})
        self._serving().send(packing)
        return lambda: self._answered(packing, False, do="call", call=call, fences=[], keep=False)

    def _asked(self, packing: _Packing, **request: Any) -> Answer:
        self._serving().send(packing)
        return self._answered(packing, True, **request)

    def _answered(self, packing: _Packing, takes_back: bool, **request: Any) -> Answer:
        """The results of a call; inputs are taken back, too, and processes looked for, unless that takes time."""
        session = self._serving()
        try:
            answer = session.ask(self.limit, **request, size=session.size)
            if takes_back:
                for segment in packing.segments.values():
                    segment.take_back(session.memory)
                session.require_nothing_left()
            return _given(answer, lambda claim: session.taken(claim, packing))
        except (ChannelError, LeftBehindError, HostLostError):
            self.drop_session()
            raise
        except Exception as error:
            if self.device != "cpu" and OF_DEVICES.search(str(error)):  # which is lost to that process, perhaps
                self.drop_session()
            raise

    def fate(self, action: Callable[[], object], seconds: float) -> str:
        """``crash`` if an action ends the process of the kernel, ``hang`` if a call of it takes longer, or nothing."""
        limit, self.limit = self.limit, seconds
        try:
            with suppress(Exception):
                action()
            return ""
        except HostLostError as loss:
            return "hang" if loss.silence else "crash"
        finally:
            self.limit = limit

    @property
    def pid(self) -> int:
        """Of the process that serves calls."""
        return self._serving().pid

    def stop(self) -> list[int]:
        """Have all processes of the kernel stand still, so that none works before it is asked; those processes."""
        root = self.pid
        for _ in range(3):  # the one that serves, the one that waits for it, the host, and the one that waits for that
            parent = int(_stat(root)[2])
            root = root if parent == os.getpid() else parent
        deadline = monotonic() + STOPPING
        while moving := list(filter(_is_moving, _descendants(root))):
            if monotonic() > deadline:
                raise LeftBehindError("it does not stand still when it is stopped")
            for process in moving:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGSTOP)
            sleep(0)
        return _descendants(root)

    def require_nothing_left(self) -> None:
        self._serving().require_nothing_left(everywhere=True)

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Have the results of calls kept there, for `held`."""
        self._keeps = True
        try:
            yield
        finally:
            self._keeps = False

    def held(self, fill: int | None = None) -> list[Array | None]:
        """The results of the last call that were kept, as they are now, or after ``fill`` was written into them."""
        session = self._serving()
        return list(_given(session.ask(do="held", fill=fill), lambda claim: session.taken(claim, _Packing())))

    @contextmanager
    def scripted(self, script: Callable[..., Any]) -> Iterator[None]:
        """Have calls answered by a function here."""
        self._script = script
        try:
            yield
        finally:
            self._script = None

    def race(
        self, calls: Sequence[tuple[Any, ...]], callers: int, seconds: float, yields: bool
    ) -> tuple[int, Any] | None:
        """The first of calls from several threads at once that gives, or raises, something else than alone."""
        packing, session = _Packing(), self._serving()
        told = [packing.encoded(*call) for call in calls]
        session.send(packing)
        options = {"callers": callers, "seconds": seconds, "yields": yields}
        answer = session.ask(do="race", calls=told, size=session.size, **options)
        index = answer.pop("index", None) if isinstance(answer, dict) else None
        if type(index) is not int or not 0 <= index < len(calls):
            return None
        try:
            return index, _given(answer, lambda _: None) if answer else tuple(self.held())
        except ChannelError:
            raise
        except Exception as error:
            return index, error

    def number_of(self, made: dict[str, Any]) -> int:
        """The number of a function, which the host is told when it is first met."""
        if made not in self._functions:
            self._functions.append(made)
            if self._session is not None and self._session.owner == os.getpid():
                self._send_function(self._session, len(self._functions) - 1)
        return self._functions.index(made)

    def _send_function(self, session: _Session, number: int) -> None:
        _given(session.ask(do="function", number=number, made=self._functions[number]), lambda _: None)

    def launched(self) -> Sequence[Any]:
        """What the process says its kernels of Triton were launched with: whatever it likes."""
        answer: Any = self._serving().ask(self.limit, do="launched")
        numbers = answer.get("numbers") if isinstance(answer, dict) else ()
        return numbers if isinstance(numbers, list) else ()

    def set_threads(self, count: int) -> None:
        """Of PyTorch."""
        self._threads = count
        if self._session is not None:
            self._serving().ask(do="threads", count=count)

    def make_module(self, name: str, dtype: str, state: Mapping[str, Array]) -> None:
        """Have a copy of the kernel, a module of PyTorch, made in a dtype and with the numbers of a state."""
        self._modules[name] = {"dtype": dtype, "state": state}
        if self._session is not None and self._session.owner == os.getpid():
            self._send_module(self._session, name)

    def _send_module(self, session: _Session, name: str) -> None:
        packing, made = _Packing(), self._modules[name]
        state = {key: packing.place(array) for key, array in made["state"].items()}
        session.send(packing)
        _given(session.ask(do="module", name=name, dtype=made["dtype"], state=state, size=session.size), lambda _: None)

    def _serving(self) -> _Session:
        """The process that serves calls of this one: a copy of this process has another."""
        session = self._session
        if session is None or session.owner != os.getpid():
            is_taken = (self._is_used or self._owner != os.getpid()) and not self.facts["can_fork"]
            if is_taken or self._has_ended():
                self._end()
                self.__dict__.pop("facts"), self.__dict__.pop("contained")
                self._begin()
            assert self.facts
            self._is_used = True
            self._session = session = _Session(self._send_files, self._status, self.limit)
            for name in self._modules:
                self._send_module(session, name)
            for number in range(len(self._functions)):
                self._send_function(session, number)
            if self._threads is not None:
                session.ask(do="threads", count=self._threads)
        return session

    def _has_ended(self) -> bool:
        """Whether calls have ended the host itself, from which no process can be had any longer."""
        return bool(select.select([self._ending], [], [], 0)[0])

    def _send_files(self, descriptors: list[int], _: list[int]) -> None:
        try:
            socket.send_fds(self._control, [b"serve"], descriptors)
        except (BrokenPipeError, ConnectionResetError):
            raise HostLostError(self._status()) from None

    def drop_session(self) -> None:
        """Have the next call made in a process in which none was made before."""
        session, self._session = self._session, None
        if session is not None:
            session.close()


class CopyHost(KernelHost):
    """Copies of this process that call an object of its own: they are told the same, and contained by nothing."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        super().__init__("")

    def _begin(self) -> None:
        self._owner, self._is_used, self._copies = os.getpid(), False, list[BaseProcess]()
        self.__dict__ |= {"contained": (), "facts": {"can_fork": True, "name": "kernel"}}

    def close(self) -> None:
        self.drop_session()
        for copy in self._copies:
            copy.kill()  # a later copy of this process may keep the channel open
            copy.join()

    def _send_files(self, descriptors: list[int], ours: list[int]) -> None:
        def keep() -> None:
            for descriptor in ours:
                os.close(descriptor)
            host.keep(self._kernel, None, containment.wait_or_kill, *descriptors)

        self._copies.append(forked(keep))

    def _status(self) -> int:
        return signal.SIGKILL

    def _has_ended(self) -> bool:
        return False


def _end(owner: int, control: socket.socket, ending: int) -> None:
    """Let the host end, for a second; it is killed when nobody waits for its status any longer."""
    if os.getpid() == owner:
        control.close()
        select.select([ending], [], [], 1.0)
        os.close(ending)


def _told_status(pipe: int, seconds: float, otherwise: Callable[[], int] = lambda: signal.SIGKILL) -> int:
    """The status that a pipe tells within so many seconds."""
    with suppress(OSError):
        if select.select([pipe], [], [], seconds)[0] and len(told := os.read(pipe, 4)) == 4:
            return int(struct.unpack("i", told)[0])
    return otherwise()


@cache
def _memory_for_all() -> int:
    """Bytes that the processes of a kernel may hold together: three quarters of what there is here."""
    return machine_bytes() * 3 // 4


def _scratch_folder() -> str:
    """A folder on which each process mounts one of its own, where it can."""
    folder = Path(gettempdir()) / f"kernels-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise ValueError(f"{folder} belongs to somebody else; remove it, or set TMPDIR")
    return str(folder)


class HostedFunction:
    """A function of a kernel in its host. ``made`` says which, and what is put around it there."""

    def __init__(self, host: KernelHost, member: str, signature: Signature | None, **made: Any) -> None:
        self.host, self.__name__, self.__signature__ = host, member or str(host.facts["name"]), signature
        nothing = {"member": member, "lines": [], "name": "", "modules": [], "module": "", "shared": []}
        self.made = {**nothing, **made}

    @cached_property
    def number(self) -> int:
        """By which the host knows it."""
        return self.host.number_of(self.made)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self.host.call(self, arguments, keywords)

    def within(self, **made: Any) -> HostedFunction:
        """The same function with something around it."""
        own = {key: value for key, value in self.made.items() if key != "member"}
        return HostedFunction(self.host, self.made["member"], self.__signature__, **{**own, **made})


def signature_of(told: Mapping[str, Any]) -> Signature:
    """The signature that a host describes; that of a function which takes everything, where it has none."""
    everything = [["arrays", int(Parameter.VAR_POSITIONAL), False], ["attributes", int(Parameter.VAR_KEYWORD), False]]
    given: list[list[Any]] = everything if told["callable"] is None else told["callable"]
    kinds = {int(kind): kind for kind in KINDS}
    return Signature([Parameter(n, kinds[k], default=None if has else Parameter.empty) for n, k, has in given])


def stand_in(host: KernelHost, names: Callable[[str], bool]) -> Any:
    """An object like the kernel: of the same kind, with those of its members that are asked for."""
    try:
        return _stand_in(host, host.facts, names)
    except (AttributeError, KeyError, TypeError) as error:  # of facts that are not those of a host
        raise ImportFailedError(f"{host.spoke}: {type(error).__name__}: {error}") from None


def _stand_in(host: KernelHost, facts: Mapping[str, Any], names: Callable[[str], bool]) -> Any:
    members = host.members([name for name in facts["names"] if names(name)])
    kind, is_made = facts["kind"]["kind"], facts["kind"]["is_made"]
    if kind == "mapping":
        return members
    if kind == "module":
        module = ModuleType(str(facts["name"]))
        vars(module).update(members)
        return module
    found: Any = SimpleNamespace()
    if facts["kind"]["is_callable"]:
        found = HostedFunction(host, "", signature_of(facts["signature"]))
    vars(found).update({name: value for name, value in members.items() if name not in ("host", "made")})
    return type(str(facts["name"]), (), {"__new__": lambda _: found}) if is_made else found


# --- claims as values -------------------------------------------------------------------------------------------------


def _given(answer: dict[str, Any] | bytes, taken: Callable[[Claim], Any]) -> Any:
    """What an answer says, or the exception that it says was raised."""
    if isinstance(answer, bytes):
        claims = _claims(answer)
        if sum(16 * abs(prod(claim[3])) for claim in claims) > MOST_BYTES:
            raise ChannelError("outputs that are too large")
        parts = tuple(map(taken, claims))
        if answer.startswith(host.ONE) and len(parts) != 1:
            raise ChannelError("an answer of several parts that is one")
        return parts[0] if answer.startswith(host.ONE) else parts
    if set(answer) == {"error"}:
        raise _exception(answer["error"])
    if answer:
        raise ChannelError("an answer with other fields")
    return None


def _exception(told: Any) -> Exception:
    if not isinstance(told, dict) or set(told) != {"type", "bases", "text"} or not isinstance(told["bases"], list):
        raise ChannelError("an error with other fields")
    name, text = told["type"], told["text"]
    if not (isinstance(name, str) and isinstance(text, str) and name.isidentifier() and len(name) < 200):
        raise ChannelError("an error without a name")
    if name == host.OverrunError.__name__:
        return host.OverrunError(text)
    known = (getattr(builtins, base, None) for base in told["bases"] if isinstance(base, str))
    base = next((kind for kind in known if isinstance(kind, type) and issubclass(kind, Exception)), Exception)
    return _exception_class(name, base.__name__)(text)


@lru_cache(maxsize=64)
def _exception_class(name: str, base: str) -> type[Exception]:
    """A class of this name whose exceptions say what they were made of, and no more."""

    def begin(self: Exception, text: str) -> None:
        self.args = (text,)

    return type(
        name,
        (getattr(builtins, base),),
        {"__init__": begin, "__str__": lambda self: self.args[0], "__module__": "kernel"},
    )


def _value(told: Any) -> Any:
    """A value that `gradspec.system.host.described` tells; None of an object."""
    if not isinstance(told, dict):
        return told
    ((kind, parts),) = told.items()
    if kind == "range":
        return range(*parts)
    if kind == "dict":
        return {_value(key): _value(part) for key, part in parts}
    kinds = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
    return kinds[kind](map(_value, parts)) if kind in kinds else None
