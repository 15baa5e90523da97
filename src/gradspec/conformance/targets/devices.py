"""Devices by name: the CPU, and NVIDIA's GPUs through PyTorch, CuPy and JAX. Nothing here imports one of them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from itertools import chain
from typing import Any

import numpy as np

from gradspec.conformance.model.device import (
    HOST,
    Bytes,
    Cargo,
    Device,
    Given,
    HostMemory,
    Memory,
    PackedMemory,
    PackedPlace,
    Watch,
)
from gradspec.conformance.model.problem import DTYPES, Array, Results
from gradspec.conformance.targets.objects import object_named
from gradspec.system.forking import holds_gpu
from gradspec.system.host import watch_of_torch

LOST = re.compile(
    r"illegal (memory access|address|instruction)|ILLEGAL_(ADDRESS|INSTRUCTION)|misaligned address|MISALIGNED_ADDRESS"
    r"|device-side assert|ERROR_ASSERT|unspecified launch failure|LAUNCH_(FAILED|TIMEOUT)|hardware stack error"
    r"|HARDWARE_STACK_ERROR|invalid (program counter|address space)|INVALID_(PC|ADDRESS_SPACE)|uncorrectable ECC",
    re.IGNORECASE,
)
"""Errors of CUDA that stay, in the words of its two interfaces."""
FULL = re.compile(r"out of memory|OUT_OF_MEMORY|RESOURCE_EXHAUSTED|cudaErrorMemoryAllocation|Failed to allocate memory")
A_PROCESS = 4096
"""MiB of a GPU for each process that uses it: its context, the code of its library and the largest cases."""
INSTALL = {
    "torch": "install a build of PyTorch with CUDA, see https://pytorch.org/get-started/locally",
    "jax": 'run: pip install "jax[cuda12]"',
    "cupy": "run: pip install cupy-cuda12x",
    "onnxruntime": "run: pip install onnxruntime-gpu",
}


def device_named(name: str) -> Device:
    """The device of a name: ``cpu``, ``cuda``, ``cuda:1``, or ``module:object`` for another.

    >>> device_named("cuda:1").name
    'cuda:1'
    >>> device_named("gpu")
    Traceback (most recent call last):
        ...
    ValueError: there is no device 'gpu'; use cpu, cuda, one of several such as cuda:1, or module:object
    """
    if name == "cpu":
        return HOST
    if re.fullmatch(r"cuda(:\d+)?", name):
        return CudaDevice(name)
    if ":" not in name:
        raise ValueError(f"there is no device {name!r}; use cpu, cuda, one of several such as cuda:1, or module:object")
    found = object_named(name)
    return found() if isinstance(found, type) else found  # type: ignore[no-any-return]


# --- CUDA -------------------------------------------------------------------------------------------------------------


class CudaDevice(Device):
    """An NVIDIA GPU, or all of them."""

    is_host = False
    provider = "CUDAExecutionProvider"
    starting = 30.0

    def __init__(self, name: str = "cuda") -> None:
        self.name = self.in_host = name
        self._index = int(name.partition(":")[2] or 0)

    @property
    def count(self) -> int:  # type: ignore[override]
        """Judging takes longer than calling, so that processes share a GPU; as many for each."""
        own = gpus()[self._index : self._index + 1] if ":" in self.name else gpus()
        memories = [gpu["memory"].split()[0] for gpu in own]
        return max(1, len(own) * min((max(1, int(m) // A_PROCESS) if m.isdigit() else 1 for m in memories), default=0))

    def missing(self, library: str) -> str:
        if len(gpus()) <= self._index:
            there = "nvidia-smi lists none" if shutil.which("nvidia-smi") else "nvidia-smi is not on the path"
            return f"there is no GPU {self._index} here" if gpus() else f"there is no NVIDIA GPU here: {there}"
        return "" if library == "numpy" or _has_cuda(library) else f"{library} has no CUDA here; {INSTALL[library]}"

    def facts(self, library: str) -> dict[str, str]:
        return {**(gpus()[self._index] if gpus() else {}), **_facts_of(library)}

    def is_in_use(self) -> bool:
        torch = sys.modules.get("torch")
        return holds_gpu() or (torch is not None and torch.cuda.is_initialized())

    def environment(self, number: int) -> dict[str, str]:
        shown = [part for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part]
        every = shown or [str(index) for index in range(len(gpus()))]
        own = {} if ":" in self.name or not every else {"CUDA_VISIBLE_DEVICES": every[number % len(every)]}
        return {"JAX_PLATFORMS": "cuda,cpu", "XLA_PYTHON_CLIENT_PREALLOCATE": "false", **own}

    def rounding(self, library: str) -> frozenset[str]:
        return frozenset({"tf32"} if _tf32(library) else ())

    def memory(self, library: str) -> Memory:
        if library == "torch":
            return TorchMemory(self.name)
        if library == "cupy":
            return CupyMemory(self._index)
        return JaxMemory(self._index) if library == "jax" else HostMemory(library)

    def entered(self, expression: str, library: str) -> str:
        index = self._index if ":" in self.name else ""
        return f"{expression}.cuda({index})" if library == "torch" else expression

    def is_lost_to(self, error: Exception) -> bool:
        return LOST.search(str(error)) is not None

    def is_full(self, error: Exception) -> bool:
        return type(error).__name__ == "OutOfMemoryError" or FULL.search(str(error)) is not None


@cache
def gpus() -> tuple[dict[str, str], ...]:
    """Name, driver and memory of every GPU that this process may use, as ``nvidia-smi`` tells them, which uses none."""
    asked = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        told = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    rows = [line.split(", ") for line in told.splitlines() if line.count(", ") == 2]
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    chosen = [int(part) for part in shown.split(",") if part.isdigit()] if shown is not None else range(len(rows))
    is_by_number = shown is None or not shown or bool(chosen)
    kept = [rows[i] for i in chosen if i < len(rows)] if is_by_number else rows  # by UUID: whichever they are
    return tuple({"GPU": name, "driver": driver, "memory": memory} for name, driver, memory in kept)


def _has_cuda(library: str) -> bool:
    if library == "torch":
        import torch

        return torch.version.cuda is not None
    if library == "onnxruntime":
        from importlib import import_module

        return "CUDAExecutionProvider" in import_module("onnxruntime").get_available_providers()
    names = {"jax": ("jax_cuda12_plugin", "jax_cuda13_plugin"), "cupy": ("cupy",)}[library]
    return any(find_spec(name) for name in names)


def _facts_of(library: str) -> dict[str, str]:
    """What a library has of CUDA, and what it does to factors of float32."""
    facts = dict[str, str]()
    if library == "torch":
        import torch

        facts["CUDA"] = str(torch.version.cuda)
        with suppress(RuntimeError):
            facts["cuDNN"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    uses = _tf32(library)
    return {**facts, "TF32": ", ".join(uses) or "off"} if library != "numpy" and uses is not None else facts


def _tf32(library: str) -> list[str] | None:
    """What a library's settings compute in TF32; None of a library that has none."""
    if library == "torch":
        import torch

        backends: Any = torch.backends
        named = {"convolutions": backends.cudnn, "matrix products": backends.cuda.matmul}
        return [what for what, settings in named.items() if settings.allow_tf32]
    if library == "jax":
        import jax

        chosen = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
        return [] if chosen in ("highest", "float32", "F32_F32_F32") else ["convolutions and matrix products"]
    return ["convolutions and matrix products (use_tf32)"] if library == "onnxruntime" else None


# --- PyTorch ----------------------------------------------------------------------------------------------------------


class TorchMemory(PackedMemory):
    """Tensors on a device of PyTorch's."""

    def __init__(self, device: str) -> None:
        import torch

        self._torch, self._device = torch, torch.device(device)

    def upload(self, memory: Bytes) -> Any:
        return self._torch.from_numpy(memory).to(self._device, copy=True)

    def download(self, buffer: Any) -> Bytes:
        return np.asarray(buffer.cpu().numpy())

    def view(self, buffer: Any, place: PackedPlace) -> Any:
        """A tensor of its own on the buffer's memory, and no view: those would share one count of changes."""
        array = place.array
        tensor = self._torch.empty(0, dtype=getattr(self._torch, array.dtype.name), device=self._device)
        if not array.size:
            return tensor.new_empty(array.shape)
        strides = [step // array.itemsize for step in array.strides]
        return tensor.set_(buffer.untyped_storage(), place.first // array.itemsize, array.shape, strides)

    def copy(self, buffer: Any) -> Any:
        return buffer.clone()

    def same(self, one: Any, other: Any) -> bool:
        return bool(self._torch.equal(one, other))

    def join(self, arrays: Sequence[Any]) -> Any:
        return self._torch.cat([self._bytes(array) for array in arrays])

    def _bytes(self, array: Any) -> Any:
        whole = array.detach()
        whole = whole.new_zeros(whole.shape) if whole._is_zerotensor() else whole.resolve_conj().resolve_neg()
        return whole.contiguous().reshape(-1).view(self._torch.uint8)

    def is_own(self, array: Any) -> bool:
        return isinstance(array, self._torch.Tensor) and array.device.type == self._device.type

    def dtype(self, array: Any) -> np.dtype[Any]:
        name = str(array.dtype).removeprefix("torch.")
        return DTYPES["bf16"] if name == "bfloat16" else np.dtype(name)

    def synchronise(self) -> None:
        if self._device.type == "cuda":
            self._torch.cuda.synchronize(self._device)

    @contextmanager
    def watched(self, fill: int) -> Iterator[Watch]:
        with watch_of_torch(self._device, fill) as watch:
            yield watch


# --- CuPy and JAX -----------------------------------------------------------------------------------------------------


class CupyMemory(PackedMemory):
    """Arrays of CuPy."""

    def __init__(self, index: int) -> None:
        from importlib import import_module

        self._cupy = import_module("cupy")
        self._cupy.cuda.Device(index).use()

    def upload(self, memory: Bytes) -> Any:
        return self._cupy.asarray(memory)

    def download(self, buffer: Any) -> Bytes:
        return np.asarray(self._cupy.asnumpy(buffer))

    def view(self, buffer: Any, place: PackedPlace) -> Any:
        array = place.array
        return self._cupy.ndarray(array.shape, array.dtype, buffer.data + place.first, array.strides)

    def copy(self, buffer: Any) -> Any:
        return buffer.copy()

    def same(self, one: Any, other: Any) -> bool:
        return bool(self._cupy.array_equal(one, other))

    def join(self, arrays: Sequence[Any]) -> Any:
        flat = [self._cupy.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
        return self._cupy.concatenate(flat)

    def is_own(self, array: Any) -> bool:
        return isinstance(array, self._cupy.ndarray)

    def dtype(self, array: Any) -> np.dtype[Any]:
        found: np.dtype[Any] = np.dtype(array.dtype)
        return found

    def synchronise(self) -> None:
        self._cupy.cuda.get_current_stream().synchronize()


class JaxMemory(Memory):
    """Arrays of JAX, which XLA places itself: all are sent before any is waited for, and nothing lies around them."""

    def __init__(self, index: int = 0, platform: str = "cuda") -> None:
        import jax

        self._jax, self._device = jax, jax.devices(platform)[index]

    def put(self, calls: Sequence[Mapping[str, Array]], fill: int) -> Cargo:
        sent = iter(self._jax.device_put([*chain.from_iterable(call.values() for call in calls)], self._device))
        return Cargo([{name: next(sent) for name in call} for call in calls])

    def get(self, calls: Sequence[Given]) -> list[Results]:
        found: list[dict[str, Any]] = self._jax.device_get([dict(call) for call in calls])
        return [{name: np.asarray(array) for name, array in call.items()} for call in found]
