"""The process that a kernel is called in: it holds this module, the kernel and the libraries of its arrays, no more.

`gradspec.system.containment` is sent it as a text, and runs it in copies of itself; `gradspec.system.hosting` is at the
other end of their sockets. Neither ``sys.modules`` nor the command line names the judge, and nothing here imports a
module of ours. Whatever this process says is a claim about outputs: kernels share it, and can say the same.

It imports the kernel, and from then on makes copies of itself that serve calls: each is sent a channel, memory for
inputs, memory for outputs, and a pipe for the status that it ends with. Arrays are ``[offset, shape, strides, dtype]``
in the memory for inputs; what a call changes there shows at the other end.
"""

from __future__ import annotations

import ctypes
import importlib
import inspect
import json
import marshal
import math
import mmap
import os
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache, cached_property
from importlib.abc import MetaPathFinder
from importlib.util import module_from_spec, spec_from_file_location
from random import random
from types import FrameType, ModuleType
from typing import Any
from zlib import crc32

HEADER = struct.Struct("<4sQI")
"""Of a packet: who speaks, the number of the request, and the length of what comes after it: JSON, or arrays."""
ARRAY = struct.Struct("<BBBq")
"""Of an array: the number of its dtype, where it is, its rank, and its first byte; then its shape and its strides."""
ONE, SEVERAL = b"\1", b"\2"
"""What arrays begin with: whether a call gave one, or a tuple."""
DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16"),
    *("float32", "float64", "complex64", "complex128", "object"),
)
NUMBERED = {name: number for number, name in enumerate(DTYPES)}
NOWHERE, INPUTS, OUTPUTS, NOTHING = range(4)
"""Where an array is: it is of no numbers; in the memory for inputs; in that for outputs; there is none."""
MAGIC = b"host"
LONGEST = 1 << 17
"""Bytes of a packet."""
LONGEST_TEXT = 4000
"""Characters of an error."""
SWITCH = 1e-6
"""Seconds between two turns of Python's threads: a thread is stopped in the midst of most calls."""
YIELDS = 0.3
"""Of the lines of a kernel in Python, those after which another thread gets its turn."""
MARGIN = 256
"""Bytes that are watched on either side of an array."""
LIBRARIES = ("torch", "jax", "gradspec")
CLEARING = 5.0
"""Seconds in which all that a call has started is ended, before the next is made."""
SEED = 42
"""The seed before a module is made: a reference and a solution that make the same parameters have the same ones."""
TENSOR = "tensor"
"""``{"tensor": 2}`` stands for the third array in the pattern of a call."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


# --- packets ----------------------------------------------------------------------------------------------------------


def packet(number: int, message: Mapping[str, Any] | bytes) -> bytes:
    text = message if isinstance(message, bytes) else json.dumps(message).encode()
    return HEADER.pack(MAGIC, number, len(text)) + text


def unpacked(data: bytes) -> tuple[int, dict[str, Any] | bytes]:
    """The number and the message of a packet, or ``ValueError``; arrays are bytes."""
    if len(data) < HEADER.size:
        raise ValueError("a packet without a header")
    magic, number, length = HEADER.unpack_from(data)
    if magic != MAGIC or length != len(data) - HEADER.size:
        raise ValueError("a packet with a header of its own")
    if data[HEADER.size : HEADER.size + 1] in (ONE, SEVERAL):
        return number, data[HEADER.size :]
    try:
        message = json.loads(data[HEADER.size :])
    except RecursionError:
        message = None
    if not isinstance(message, dict):
        raise ValueError("a packet that is no message")
    return number, message


class OverrunError(Exception):
    """A call wrote beside the array of this name, or, without one, beside an array that it allocated."""


# --- objects ----------------------------------------------------------------------------------------------------------


def object_named(name: str) -> Any:
    """What ``module:object`` names, or ``module`` alone."""
    module, _, path = name.partition(":")
    found: Any = _imported(module)
    for part in path.split(".") if path else ():
        if not hasattr(found, part):
            described = f"module {found.__name__}" if isinstance(found, ModuleType) else repr(found)
            raise ValueError(f"{name!r}: {described} has no {part!r}; it has {_public(found)}")
        found = getattr(found, part)
    return found


LAUNCHED: dict[int, None] = {}
"""The numbers that Triton's kernels were compiled for in this process."""


@contextmanager
def launches_noted(numbers: dict[int, None]) -> Iterator[None]:
    """Note the numbers that Triton's kernels are compiled for when they are launched: their blocks are among them."""
    names = ("jit", "JITFunction"), ("interpreter", "InterpretedFunction")
    found = (getattr(sys.modules.get(f"triton.runtime.{module}"), name, None) for module, name in names)
    runs = [(kind, kind.run) for kind in found if kind is not None]

    def noted(run: Callable[..., Any]) -> Callable[..., Any]:
        def launch(self: Any, *args: Any, **kwargs: Any) -> Any:
            given = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
            for parameter in inspect.signature(self.fn).parameters.values():
                number = given.get(parameter.name, parameter.default)
                if type(number) is int and "constexpr" in str(parameter.annotation):
                    numbers[number] = None
            return run(self, *args, **kwargs)

        return launch

    for kind, run in runs:
        kind.run = noted(run)
    try:
        yield
    finally:
        for kind, run in runs:
            kind.run = run


@contextmanager
def tuned_in_turn(numbers: dict[int, None] = LAUNCHED) -> Iterator[None]:
    """Have Triton's autotuner take, for what it tunes by, one of the configurations that run, and none by its time.
    What kernels are launched with is noted among the numbers.

    Which one depends on that alone, so that each is judged on some sizes, in any process, and no others are compiled.
    A launch before the first stays: what a kernel adds to its results, it adds twice where it is tuned.
    """
    tuner = getattr(sys.modules.get("triton.runtime.autotuner"), "Autotuner", None)
    if tuner is None:
        yield
        return
    prune, bench, tuned = tuner.prune_configs, tuner._bench, list[tuple[dict[Any, Any], set[Any]]]()

    def prune_configs(self: Any, kwargs: dict[str, Any]) -> list[Any]:
        configs, given = list(prune(self, kwargs)), {**self.nargs, **kwargs}
        keys = [value for value in map(given.get, self.keys) if isinstance(value, int | float | str)]
        first = crc32(repr(keys).encode()) % len(configs)
        tuned.append((self.cache, set(self.cache)))
        self.cache_results = self.is_chosen = False  # no time of these is to be kept on a disk
        return configs[first:] + configs[:first]

    def launch(call: Callable[[], object], quantiles: Sequence[float]) -> list[float]:
        call()
        return [0.0] * len(quantiles)

    def bench_first(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.is_chosen:
            return [math.inf] * 3
        self.do_bench = launch
        try:
            times = bench(self, *args, **kwargs)
        finally:
            del self.do_bench
        self.is_chosen = times[0] == 0
        return times

    tuner.prune_configs, tuner._bench = prune_configs, bench_first
    try:
        with launches_noted(numbers):
            yield
    finally:
        tuner.prune_configs, tuner._bench = prune, bench
        for chosen, before in tuned:
            for key in chosen.keys() - before:
                del chosen[key]


class Solution:
    """A kernel as the format of its problem has it, in a file or by ``module:object``. It declares nothing of itself.

    ``entry`` is its name in the file, and ``init`` what the class of that name is made with. It is called with the
    ``pattern`` and the ``keywords``, in which arrays have places, or with the arrays as they are. ``modules`` are files
    that it may import by name.
    """

    def __init__(
        self,
        solution: str,
        entry: str,
        init: Sequence[Any] | None = None,
        pattern: Sequence[Any] | None = None,
        keywords: Mapping[str, Any] | None = None,
        modules: Mapping[str, str] | None = None,
    ) -> None:
        self.__name__ = os.path.basename(solution).removesuffix(".py")
        self._solution, self._entry, self._init = solution, entry, init
        self._pattern, self._keywords, self._modules = pattern, dict(keywords or {}), dict(modules or {})

    @cached_property
    def kernel(self) -> Callable[..., Any]:
        """What is called: the code of the solution runs when it is first asked for."""
        if not self._solution.endswith(".py"):
            found = object_named(self._solution)
            return found() if isinstance(found, type) else found  # type: ignore[no-any-return]
        found = getattr(run_file(self._solution, self._modules), self._entry, None)
        if found is None:
            raise AttributeError(f"{os.path.basename(self._solution)} has no {self._entry}")
        return found if self._init is None else made_module(found, self._init)  # type: ignore[no-any-return]

    def __call__(self, *arrays: Any) -> Any:
        if self._init is not None:
            follow(self.kernel, arrays)
        if self._pattern is None:
            return self.kernel(*arrays)
        return self.kernel(*fill_pattern(self._pattern, arrays), **fill_pattern(self._keywords, arrays))


def follow(module: Any, arrays: Sequence[Any]) -> None:
    """Have a module of PyTorch on the device of its arrays."""
    if arrays and hasattr(arrays[0], "is_cuda") and arrays[0].is_cuda and hasattr(module, "to"):
        module.to(arrays[0].device)


def made_module(kind: Callable[..., Any], init: Sequence[Any]) -> Any:
    """A module as KernelBench makes it; its parameters are constants."""
    import torch

    torch.manual_seed(SEED)
    module = kind(*init)
    for parameter in module.parameters() if isinstance(module, torch.nn.Module) else ():
        parameter.requires_grad_(False)
    return module


def run_file(file: str, modules: Mapping[str, str]) -> ModuleType:
    """The module that a file is, run under its own name; it finds modules in its folder, and others by their files."""
    where = os.path.abspath(file)
    if not os.path.isfile(where):
        raise FileNotFoundError(f"there is no file {file}")
    if os.path.dirname(where) not in sys.path:
        sys.path.insert(0, os.path.dirname(where))
    for name, path in modules.items():
        sys.meta_path.insert(0, FileFinder(name, path))
    name = os.path.basename(where).removesuffix(".py")
    spec = spec_from_file_location(name, where)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class FileFinder(MetaPathFinder):
    """Finds one module in one file."""

    def __init__(self, name: str, file: str) -> None:
        self._name, self._file = name, file

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        return spec_from_file_location(fullname, self._file) if fullname == self._name else None


def fill_pattern(pattern: Any, arrays: Sequence[Any]) -> Any:
    """The value of a pattern, with these arrays; lists become tuples, as problems pass them.

    >>> fill_pattern([{"tensor": 1}, [{"tensor": 0}, 2.5]], ["a", "b"])
    ('b', ('a', 2.5))
    """
    if isinstance(pattern, Mapping):
        if set(pattern) == {TENSOR}:
            return arrays[pattern[TENSOR]]
        if set(pattern) == {"buffer"}:
            return arrays[pattern["buffer"]].clone()
        inside = pattern["items"] if set(pattern) == {"items"} else pattern
        return {key: fill_pattern(part, arrays) for key, part in inside.items()}
    if isinstance(pattern, list | tuple):
        return tuple(fill_pattern(part, arrays) for part in pattern)
    return pattern


def _imported(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except Exception as error:  # whatever is wrong in it, down to its syntax
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            where = "run the check in its folder or install it"
            raise ValueError(f"there is no module {module!r} to take kernels from; {where}") from None
        raise ValueError(f"importing {module!r} failed: {type(error).__name__}: {error}") from error


def _public(found: Any) -> str:
    names = [name for name in dir(found) if not name.startswith("_")]
    return ", ".join(names[:12]) + (", …" if len(names) > 12 else "") if names else "no public names"


def library_of(spec: Any) -> str:
    """The library that a function or module is written in: of those that it names, the first; ours, if none.

    >>> library_of(lambda x: x)
    'gradspec'
    """
    for kind in type(spec).__mro__ if not inspect.isfunction(spec) else ():
        root = kind.__module__.partition(".")[0]
        if root in ("torch", "jax", "jaxlib"):
            return root.removesuffix("lib")
    names = mentioned(spec)
    return next((library for library in LIBRARIES if library in names), "gradspec")


def mentioned(spec: Any) -> frozenset[str]:
    """The packages of what a function names, and of what functions name that it calls."""
    return frozenset(_mentioned(spec))


def _mentioned(spec: Any, depth: int = 2) -> Iterator[str]:
    function = inspect.unwrap(getattr(spec, "func", spec))  # of a partial
    function = function if inspect.isfunction(function) else vars(type(function)).get("__call__")
    if not inspect.isfunction(function):
        return
    scope = inspect.getclosurevars(function)
    for value in (*scope.globals.values(), *scope.nonlocals.values()):
        kinds = value.__mro__ if isinstance(value, type) else ()  # an autograd.Function of one's own is PyTorch's
        own = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        homes = (own or type(value).__module__, *(kind.__module__ for kind in kinds))
        yield from (str(home).partition(".")[0] for home in homes)
        if _is_beside_triton(value):
            yield "triton"
        if depth and inspect.isfunction(value):
            yield from _mentioned(value, depth - 1)


def _is_beside_triton(value: Any) -> bool:
    """Whether what defines a function or class imports Triton."""
    module = sys.modules.get(str(getattr(value, "__module__", "")))
    if module is None or module.__name__.partition(".")[0] in ("torch", "builtins"):
        return False
    return any(isinstance(part, ModuleType) and part.__name__.startswith("triton") for part in vars(module).values())


def described(value: Any) -> Any:
    """A value as JSON: of a callable its signature, of what is no plain data nothing but that."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, range):
        return {"range": [value.start, value.stop, value.step]}
    if isinstance(value, list | tuple | set | frozenset):
        return {type(value).__name__: [described(part) for part in value]}
    if isinstance(value, Mapping):
        return {"dict": [[described(key), described(part)] for key, part in value.items()]}
    if isinstance(getattr(value, "shape", None), tuple) and not value.shape and hasattr(value, "item"):
        return value.item()
    if not callable(value):
        return {"object": type(value).__name__}
    try:
        given = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return {"callable": None}
    return {"callable": [[p.name, int(p.kind), p.default is not p.empty] for p in given]}


def facts_of(kernel: Any) -> dict[str, Any]:
    """What can be said of a kernel without calling it."""
    names = kernel.keys() if isinstance(kernel, Mapping) else dir(kernel)
    parameters = None
    if hasattr(kernel, "named_parameters"):
        parameters = {name: list(p.shape) for name, p in kernel.named_parameters()}
    versions = {name: str(sys.modules[name].__version__) for name in ("torch", "jax") if name in sys.modules}
    return {
        "name": str(getattr(kernel, "__name__", type(kernel).__name__)),
        "names": [name for name in map(str, names) if not name.startswith("__") or name == "__version__"][:2000],
        "signature": described(kernel) if callable(kernel) else None,
        "library": library_of(kernel),
        "mentioned": sorted(mentioned(kernel)),
        "parameters": parameters,
        "versions": versions,
    }


# --- arrays -----------------------------------------------------------------------------------------------------------


def enter(library: str, given: Any) -> Any:
    """An array of NumPy as one of the library, of the same memory where that can be."""
    if library == "torch":
        import torch

        if given.dtype.name == "bfloat16":
            return torch.from_numpy(given.view("int16")).view(torch.bfloat16)
        return torch.from_numpy(given)
    if library == "jax":
        import jax.numpy as jnp

        return jnp.asarray(given)
    return given


def leave(given: Any) -> Any:
    """What a kernel returned, as an array of NumPy."""
    import numpy as np

    if type(given) is np.ndarray:
        return given
    if hasattr(given, "get") and hasattr(given, "device") and not hasattr(given, "detach"):  # CuPy's
        return np.asarray(given.get())
    if not hasattr(given, "detach"):
        return np.asarray(given)
    found = given.detach().cpu()
    if found._is_zerotensor():  # zeros that autograd has not made yet
        found = found.new_zeros(found.shape)
    if str(found.dtype) == "torch.bfloat16":
        return np.asarray(found.view(sys.modules["torch"].int16).numpy().view(_dtype("bfloat16")))
    return np.asarray(found.numpy())


class DeviceBlock:
    """A copy on a device of a block of memory, with the arrays that lie in it."""

    def __init__(self, library: str, memory: Any, device: str) -> None:
        self._memory, self._library = memory, importlib.import_module(library)
        if library == "torch":
            self._buffer = self._library.from_numpy(memory).to(device, copy=True)
        else:
            self._library.cuda.Device(int(device.partition(":")[2] or 0)).use()
            self._buffer = self._library.asarray(memory)

    def array(self, start: int, shape: Sequence[int], strides: Sequence[int], dtype: str) -> Any:
        if self._library.__name__ == "cupy":
            return self._library.ndarray(shape, _dtype(dtype), self._buffer.data + start, strides)
        made, size = self._buffer.new_empty(0, dtype=getattr(self._library, dtype)), _dtype(dtype).itemsize
        if not math.prod(shape):
            return made.new_empty(tuple(shape))
        return made.set_(self._buffer.untyped_storage(), start // size, shape, [step // size for step in strides])

    def watched(self, fill: int | None) -> Any:
        """Watch what PyTorch allocates, between bytes of ``fill``, if there are any."""
        if fill is None or self._library.__name__ != "torch":
            return nullcontext()
        return watch_of_torch(self._buffer.device, fill)

    def fetch(self) -> None:
        """Put back what calls changed."""
        self._memory[...] = leave(self._buffer)


def watch_of_torch(device: Any, fill: int) -> Any:
    """Every tensor that is allocated lies between bytes that nobody may change, and an empty one is full of them."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    aten = torch.ops.aten
    empty = {aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided}
    filled = {aten.zeros, aten.zeros_like, aten.new_zeros, aten.ones, aten.ones_like, aten.new_ones}
    filled |= {aten.full, aten.full_like, aten.new_full}

    class WatchOfTorch(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.margins = list[Any]()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            kind = getattr(func, "overloadpacket", None)
            if kind not in empty | filled or made.device.type != device.type or not made.numel():
                return made
            cells = 1 + sum((n - 1) * step for n, step in zip(made.shape, made.stride(), strict=True))
            size = cells * made.element_size()
            buffer = torch.full((size + 2 * MARGIN,), fill, dtype=torch.uint8, device=made.device)
            self.margins += [buffer[:MARGIN], buffer[MARGIN + size :]]
            first = MARGIN // made.element_size()
            guarded = torch.empty(0, dtype=made.dtype, device=made.device)
            guarded = guarded.set_(buffer.untyped_storage(), first, made.shape, made.stride())
            return guarded.copy_(made) if kind in filled else guarded

        def is_whole(self) -> bool:
            return not self.margins or bool((torch.cat(self.margins) == fill).all())

    return WatchOfTorch()


def synchronize(library: str, device: str) -> None:
    """Wait for all that was begun on the device."""
    if library == "torch":
        getattr(importlib.import_module("torch"), device.partition(":")[0]).synchronize(device)
    elif library == "cupy":
        importlib.import_module("cupy").cuda.Device().synchronize()


@cache
def _dtype(name: str) -> Any:
    import numpy as np

    return np.dtype(getattr(importlib.import_module("ml_dtypes"), name) if name == "bfloat16" else name)


@cache
def _dtype_number(dtype: Any) -> int:
    return NUMBERED.get(str(dtype.name) * dtype.isnative, NUMBERED["object"])


def raced(
    calls: Sequence[Callable[[], Any]], is_like: Callable[[int, Any], bool], callers: int, seconds: float, yields: bool
) -> list[tuple[int, Any]]:
    """The first outcome of calls from several threads at once that is not like that of the call alone."""
    found: list[tuple[int, Any]] = []
    gate, deadline = threading.Barrier(callers), time.monotonic() + seconds

    def work(place: int) -> None:
        index = place % len(calls)
        gate.wait()
        sys.settrace(_yielding if yields else None)
        for turn in range(400):
            if found or (turn >= 2 and time.monotonic() > deadline):
                return
            outcome = calls[index]()
            if not is_like(index, outcome):
                found.append((index, outcome))

    interval = sys.getswitchinterval()
    threads = [threading.Thread(target=work, args=(place,)) for place in range(callers if len(calls) > 1 else 0)]
    try:
        sys.setswitchinterval(SWITCH)
        for thread in threads:
            thread.start()
    finally:
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    return found


def _yielding(frame: FrameType, event: str, _: object) -> Any:
    """Lets another thread have its turn after some lines of the kernel's own, so that lines of two calls alternate."""
    home = frame.f_globals.get("__name__", "").partition(".")[0]
    if event == "call" and home in ("gradspec", "numpy", "threading", "__main__"):
        return None
    if random() < YIELDS:
        time.sleep(SWITCH)
    return _yielding


# --- calls ------------------------------------------------------------------------------------------------------------


class Calls:
    """Serves calls of one kernel over a channel."""

    def __init__(self, kernel: Any, channel: socket.socket, inputs: int, outputs: int) -> None:
        import numpy as np

        self._np, self._kernel, self._channel, self._outputs, self._inputs = np, kernel, channel, outputs, inputs
        self._memory: Any = np.zeros(0, np.uint8)
        self._base, self._mprotect = 0, ctypes.CDLL(None).mprotect
        self._functions: dict[int, Callable[..., Any]] = {}
        self._modules: dict[str, Any] = {}
        self._held: list[Any] = []
        self._given: dict[str, Any] = {}
        self._end = 0

    def serve(self) -> None:
        self._channel.send(packet(0, {"ready": True}))
        place = memoryview(bytearray(LONGEST))
        while length := self._channel.recv_into(place):
            number, do, request = marshal.loads(place[:length])
            self._end = 0
            try:
                answer = getattr(self, do)(**request)
            except Exception as error:
                answer = {"error": _error(error)}
            self._channel.send(packet(number, answer))

    def do_call(self, call: Mapping[str, Any], fences: Sequence[Sequence[int]], size: int, keep: bool) -> Any:
        """The results of a call, which are kept for later questions about them if that is asked for."""
        self._map(size)
        made = self._prepared(call)
        for start, length, protection in fences:
            self._protect(start, length, protection)
        try:
            with self._np.errstate(all="ignore"):  # NaN and overflow are what some cases are about
                given = made()
        finally:
            for start, length, _ in fences:
                self._protect(start, length, mmap.PROT_READ | mmap.PROT_WRITE)
        parts = list(given) if isinstance(given, tuple | list) else [given]
        self._held = parts if keep else self._held
        return b"".join([SEVERAL if isinstance(given, tuple | list) else ONE, *map(self._told, parts)])

    def do_held(self, fill: int | None) -> Any:
        """The kept results as they are now, or after ``fill`` was written into them."""
        arrays = [None if part is None else leave(part) for part in self._held]
        for array in arrays if fill is not None else ():
            if array is not None and array.flags.writeable:
                array.fill(fill)
        return b"".join([SEVERAL, *(self._told(part, is_copied=True) for part in self._held)])

    def do_race(self, calls: Sequence[Any], size: int, callers: int, seconds: float, yields: bool) -> Any:
        """Of calls from several threads at once the first whose results are others than alone, which are kept."""
        self._map(size)
        made = [self._prepared(call) for call in calls]

        def outcome(call: Callable[[], Any]) -> Any:
            try:
                with self._np.errstate(all="ignore"):
                    given = call()
                parts = given if isinstance(given, tuple | list) else (given,)
                return [None if part is None else self._np.array(leave(part)) for part in parts]
            except Exception as error:
                return _error(error)

        def is_like(index: int, one: Any) -> bool:
            if isinstance(one, dict) or isinstance(alone[index], dict):
                return isinstance(one, dict) and "Warning" in one["bases"]
            pairs = zip(one, alone[index], strict=False)
            return all(a is None or (a.shape == b.shape and a.tobytes() == b.tobytes()) for a, b in pairs)

        alone = [outcome(call) for call in made]
        found = raced([lambda call=call: outcome(call) for call in made], is_like, callers, seconds, yields)  # type: ignore[misc]
        if not found:
            return {"index": None}
        index, other = found[0]
        if isinstance(other, dict):
            return {"index": index, "error": other}
        self._held = other
        return {"index": index}

    def do_module(self, name: str, dtype: str, state: Mapping[str, Any], size: int) -> Any:
        """A copy of the kernel, a module of PyTorch, in a dtype and with numbers of the reference, by a name."""
        from copy import deepcopy

        import torch

        self._map(size)
        self._modules[name] = module = deepcopy(self._kernel)
        ours = module.state_dict()
        found = {k: enter("torch", self._array(v)).clone() for k, v in state.items() if k in ours}
        module.load_state_dict({k: v for k, v in found.items() if v.shape == ours[k].shape}, strict=False)
        module.to(getattr(torch, dtype))
        return {}

    def do_function(self, number: int, made: Mapping[str, Any]) -> Any:
        """Know a member of the kernel, or the kernel, by a number; with ``lines`` around it what they define."""
        kernel = member(self._kernel, made["member"])
        if made["module"]:
            kernel = _functional(self._modules[made["module"]], made["shared"])
        if made["lines"]:
            modules = {name: importlib.import_module(module) for name, module in made["modules"]}
            scope = {"np": self._np, "kernel": kernel, **modules}
            exec("\n".join(made["lines"]), scope)
            kernel = scope[made["name"]]
        self._functions[number] = kernel
        return {}

    def do_launched(self) -> Any:
        return {"numbers": list(LAUNCHED)[:100]}

    def do_threads(self, count: int) -> Any:
        importlib.import_module("torch").set_num_threads(count)
        return {}

    # --- what calls are made of

    def _map(self, size: int) -> None:
        if size > len(self._memory):
            self._memory = self._np.frombuffer(mmap.mmap(self._inputs, size), self._np.uint8)
            self._base = self._memory.ctypes.data

    def _protect(self, start: int, length: int, protection: int) -> None:
        self._mprotect(ctypes.c_void_p(self._base + start), ctypes.c_size_t(length), protection)

    def _array(self, place: Sequence[Any]) -> Any:
        start, shape, strides, dtype = place
        return self._np.ndarray(shape, _dtype(dtype), self._memory, start, strides)

    def _prepared(self, call: Mapping[str, Any]) -> Callable[[], Any]:
        function, library, device = self._functions[call["function"]], call["library"], call["device"]
        first, end = call["extent"]
        is_there = device != "cpu" and library in ("torch", "cupy") and end
        block = DeviceBlock(library, self._memory[first:end], device) if is_there else None
        if block is not None:
            arrays = [block.array(start - first, *form) for start, *form in call["arrays"]]
        else:
            arrays = [enter(library, self._array(place)) for place in call["arrays"]]
            if library != "jax":
                arrays = self._given_again(list(map(repr, call["arrays"])), arrays)

        def argument(value: Any) -> Any:
            if isinstance(value, dict):
                return arrays[value["array"]]
            return tuple(map(argument, value)) if isinstance(value, tuple) else value

        given = [argument(value) for value in call["arguments"]]
        named = {name: argument(value) for name, value in call["keywords"].items()}
        if block is None:
            return lambda: function(*given, **named)

        def on_device() -> Any:
            """The call, finished, with what it changed in its inputs and around them."""
            with block.watched(call["fill"]) as watch:
                results = function(*given, **named)
                synchronize(library, device)
                if watch is not None and not watch.is_whole():
                    raise OverrunError("beside an array that it allocated")
            block.fetch()
            return results

        return on_device

    def _given_again(self, places: Sequence[str], arrays: Sequence[Any]) -> list[Any]:
        """The objects that the call before was given, where they are like these: a caller may change what is in one."""
        pairs = [(self._given.get(place, array), array) for place, array in zip(places, arrays, strict=True)]
        found = [before if _form(before) == _form(array) else array for before, array in pairs]
        self._given = dict(zip(places, found, strict=True))
        return found

    def _told(self, part: Any, is_copied: bool = False) -> bytes:
        """Where a result is found: in the memory for inputs, if it lies there, or in that for outputs."""
        if part is None:
            return ARRAY.pack(0, NOTHING, 0, 0)
        array = leave(part)
        number, shape = _dtype_number(array.dtype), array.shape
        first = array.__array_interface__["data"][0] - self._base
        where, start = OUTPUTS, self._end
        if number == NUMBERED["object"]:
            where, start = NOWHERE, 0
        elif array.size and 0 <= first < len(self._memory) and not is_copied:
            where, start = INPUTS, first
        else:
            self._end += array.nbytes
            os.pwrite(self._outputs, array.tobytes(), start)
        sizes = struct.pack(f"<{2 * len(shape)}q", *shape, *array.strides)
        return ARRAY.pack(number, where, len(shape), start) + sizes


def _form(array: Any) -> Any:
    """Of an array of NumPy or PyTorch all but its numbers."""
    if hasattr(array, "data_ptr"):
        return array.data_ptr(), array.shape, array.stride(), array.dtype, array.requires_grad
    return array.__array_interface__


def _functional(module: Any, shared: Sequence[str]) -> Callable[..., Any]:
    import torch

    def call(*arrays: Any) -> Any:
        given = len(arrays) - len(shared)
        return torch.func.functional_call(module, dict(zip(shared, arrays[given:], strict=True)), arrays[:given])

    return call


def member(kernel: Any, name: str) -> Any:
    if not name:
        return kernel
    return kernel[name] if isinstance(kernel, Mapping) else getattr(kernel, name)


def _error(error: BaseException) -> dict[str, Any]:
    try:
        text = str(error)
    except Exception:
        text = "an error whose text cannot be told"
    bases = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"]
    return {"type": type(error).__name__, "bases": bases, "text": text[:LONGEST_TEXT]}


# --- the program ------------------------------------------------------------------------------------------------------


def main(
    control: socket.socket, contained: Sequence[str], config: Mapping[str, Any], wait_or_kill: Callable[..., int]
) -> None:
    """Tell what the process is contained by, import the kernel, tell what it is, and serve."""
    control.send(packet(0, {"contained": contained}))
    try:
        kernel = Solution(config["name"], **config["call"]) if config["call"] else object_named(config["name"])
        is_made = isinstance(kernel, type)
        kernel = kernel() if is_made else kernel
        if isinstance(kernel, Solution):
            _ = kernel.kernel  # its code runs here, once for all copies
        control.send(packet(1, {"kind": _kind(kernel, is_made), "can_fork": can_fork(), **facts_of(kernel)}))
    except Exception as error:
        kind = "" if isinstance(error, ValueError) and str(error) else f"{type(error).__name__}: "
        control.send(packet(1, {"failed": f"{kind}{error}"}))
        return
    with nullcontext() if config["call"] else tuned_in_turn():  # a solution is timed, too
        _answer_questions(kernel, control, wait_or_kill)


def _kind(kernel: Any, is_made: bool) -> dict[str, Any]:
    kinds = ((Mapping, "mapping"), (ModuleType, "module"))
    kind = next((name for known, name in kinds if isinstance(kernel, known)), "object")
    return {"kind": kind, "is_made": is_made, "is_callable": callable(kernel)}


def can_fork() -> bool:
    """Whether a copy of this process can do what this one can: threads of XLA and contexts of GPUs are not copied."""
    if getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None):
        return False
    files = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return not any(os.path.exists(f) and os.readlink(f).startswith(("/dev/nvidia", "/dev/kfd")) for f in files)


def _answer_questions(kernel: Any, control: socket.socket, wait_or_kill: Callable[..., int]) -> None:
    """Describe members that are asked for, and serve calls, in copies of this process if it can be copied."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, LONGEST, 4)
        if descriptors and not can_fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _serve(kernel, control, *descriptors)
        if descriptors:
            pause_openmp()  # a copy would wait for its threads
            if fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                keep(kernel, control, wait_or_kill, *descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
        elif not data:
            return
        else:
            number, request = unpacked(data)
            assert isinstance(request, dict)
            members = {name: described(member(kernel, name)) for name in request["names"] if _has(kernel, name)}
            control.send(packet(number, {"members": members}))


def _has(kernel: Any, name: str) -> bool:
    return name in kernel if isinstance(kernel, Mapping) else hasattr(kernel, name)


def keep(
    kernel: Any,
    control: socket.socket | None,
    wait_or_kill: Callable[..., int],
    channel: int,
    inputs: int,
    outputs: int,
    status: int,
) -> None:
    """Serve in a child, tell what it ended with, and end it when nobody is there to be told, with all it started."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    printed, out = os.pipe()  # what a kernel prints fills no file of its judge
    child = fork()
    if child == 0:
        for descriptor in (1, 2):
            os.dup2(out, descriptor)
        os.close(out)
        os.close(printed)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        _serve(kernel, control, channel, inputs, outputs, status)
    if control is not None:
        control.close()
    os.close(channel)
    os.close(out)
    told = struct.pack("i", wait_or_kill(status, child, 0, printed))
    with suppress(BrokenPipeError):
        os.write(status, told)
    deadline = time.monotonic() + CLEARING
    with suppress(ChildProcessError, FileNotFoundError):
        while time.monotonic() < deadline:
            with open(f"/proc/self/task/{os.getpid()}/children") as children:
                for one in children.read().split():
                    os.kill(int(one), signal.SIGKILL)
            os.waitpid(-1, 0)
    os._exit(0)


def fork() -> int:
    """``os.fork``, when there is room for another process: those of the call before are being ended."""
    deadline = time.monotonic() + CLEARING
    while True:
        try:
            return os.fork()
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _serve(kernel: Any, control: socket.socket | None, channel: int, inputs: int, outputs: int, status: int) -> None:
    if control is not None:
        control.close()
    os.close(status)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    code = 1
    try:
        Calls(kernel, socket.socket(fileno=channel), inputs, outputs).serve()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except ConnectionError:  # nobody is there any longer
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code & 0xFF)


def pause_openmp() -> None:
    """GNU's OpenMP would wait for threads that a copy has not; paused, it starts new ones where they are needed."""
    with suppress(OSError), open("/proc/self/maps") as maps:
        for library in {line.split()[-1] for line in maps if "/libgomp" in line}:
            with suppress(AttributeError):  # before GCC 9
                ctypes.CDLL(library).omp_pause_resource_all(1)
