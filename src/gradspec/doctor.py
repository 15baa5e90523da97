"""``gradspec doctor``: what is installed, where gradspec stores things, what limits it, and what is missing."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import gradspec as gs
from gradspec.codegen.cache import cache_directory
from gradspec.system.machine import machine

EXTRAS = {
    "": "gradspec itself",
    "torch": "gs.from_torch, gs.to_torch, gradspec.torch, check torch",
    "jax": "gs.from_jax, gs.to_jax, check jax",
    "onnx": "gs.from_onnx, gs.to_onnx, check onnxruntime",
    "gpu": "kernels for GPUs",
    "bench": "pictures of gradspec bench",
}
"""What an extra is for."""
LEAST = {"open files": 256, "address space": 8 << 30, "shared memory": 64 << 20, "temporary files": 256 << 20}
"""Limits below which something may fail."""


@dataclass
class Examination:
    """What was found; ``problems`` prevent something that everybody needs, ``missing`` what some want."""

    gradspec: str = gs.__version__
    python: str = platform.python_version()
    folder: str = os.path.dirname(gs.__file__)
    machine: dict[str, Any] = field(default_factory=machine)
    extras: dict[str, dict[str, str | None]] = field(default_factory=dict)
    """The versions of the packages of each extra, or None."""
    devices: list[str] = field(default_factory=list)
    caches: dict[str, str] = field(default_factory=dict)
    limits: dict[str, int | None] = field(default_factory=dict)
    """In bytes or numbers; None where there is none."""
    problems: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> Iterator[str]:
        """For a terminal."""
        yield f"gradspec {self.gradspec}, Python {self.python}, {self.folder}"
        yield ", ".join(f"{name} {value}" for name, value in self.machine.items())
        for extra, packages in self.extras.items():
            shown = ", ".join(f"{name} {found or 'missing'}" for name, found in packages.items())
            yield f"{extra or 'required'}: {shown}"
        yield f"GPUs: {', '.join(self.devices) or 'none'}"
        yield from (f"{name}: {text}" for name, text in self.caches.items())
        yield from (f"{name}: {'no limit' if most is None else f'{most:,}'}" for name, most in self.limits.items())
        yield from (f"Missing: {text}" for text in self.missing)
        yield from (f"PROBLEM: {text}" for text in self.problems)
        if not self.problems:
            yield "Nothing is wrong."


def examine() -> Examination:
    """Look at everything; it loads PyTorch if that is installed, and compiles one kernel if none is stored."""
    found = Examination()
    _examine_packages(found)
    _examine_devices(found)
    _examine_caches(found)
    _examine_limits(found)
    _run_kernel(found)
    return found


def _examine_packages(found: Examination) -> None:
    try:
        entries = requires("gradspec") or ()
    except PackageNotFoundError:
        found.missing.append("what pip knows of gradspec, which it has not installed: pip install gradspec")
        return
    for entry in entries:
        stated = re.fullmatch(r"([\w-]+)(?:\[[^\]]*\])?([^;]*)(?:;.*?extra == ['\"](\w+)['\"])?.*", entry)
        if stated is None or (extra := stated[3] or "") not in EXTRAS:
            continue  # of another extra, or a reference to one
        name, wanted = stated[1], stated[2].strip()
        try:
            there: str | None = version(name)
        except PackageNotFoundError:
            there = None
        found.extras.setdefault(extra, {})[name] = there
        if there is None or not _satisfies(there, wanted):
            command = f'pip install "gradspec[{extra}]"' if extra else f'pip install "{name}{wanted}"'
            text = f"{name}{wanted} (there is {there or 'none'}), for {EXTRAS[extra]}: {command}"
            (found.missing if extra else found.problems).append(text)


def _satisfies(there: str, wanted: str) -> bool:
    """Whether a version is in a range of >=, < and ==.

    >>> _satisfies("2.13.0+cpu", "<2.14,>=2.13"), _satisfies("0.12.1", "<0.12")
    (True, False)
    """

    def parts(written: str) -> list[int]:
        return [int(n) for n in re.findall(r"\d+", written.partition("+")[0])][:3]

    tests = {">=": lambda a, b: a >= b, "<": lambda a, b: a < b, "==": lambda a, b: a == b}
    return all(tests[how](parts(there), parts(than)) for how, than in re.findall(r"(>=|==|<)([\w.]+)", wanted))


def _examine_devices(found: Examination) -> None:
    if not found.extras.get("torch", {}).get("torch"):
        return
    try:
        import torch

        found.devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    except (ImportError, OSError, RuntimeError) as error:
        found.problems.append(f"PyTorch is installed and cannot be loaded: {error}")


def _examine_caches(found: Examination) -> None:
    folder = cache_directory()
    if folder is None:
        found.caches["kernel cache"] = "off: each process compiles its kernels (GRADSPEC_CACHE_DIR)"
        return
    files = [file.stat().st_size for file in folder.glob("*") if file.is_file()] if folder.is_dir() else []
    found.caches["kernel cache"] = f"{folder}: {len(files)} kernels, {sum(files):,} bytes"
    writable = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not os.access(writable, os.W_OK):
        text = (
            f"{writable} cannot be written: each process compiles its kernels; set GRADSPEC_CACHE_DIR to another folder"
        )
        found.missing.append(text)


def _examine_limits(found: Examination) -> None:
    if sys.platform != "win32":
        import resource

        for name, number in (("open files", resource.RLIMIT_NOFILE), ("address space", resource.RLIMIT_AS)):
            soft = resource.getrlimit(number)[0]
            found.limits[name] = None if soft == resource.RLIM_INFINITY else soft
    for name, folder in (("shared memory", "/dev/shm"), ("temporary files", tempfile.gettempdir())):
        found.limits[name] = shutil.disk_usage(folder).free if Path(folder).is_dir() else 0
    for name, most in found.limits.items():
        if most is not None and most < LEAST[name]:
            found.missing.append(f"{name}: {most:,} are available, and large runs need {LEAST[name]:,} (ulimit, df)")


def _run_kernel(found: Examination) -> None:
    """Compile and run one, as everything else does."""
    try:
        if gs.max_pool2d([[1.0, 2.0], [4.0, 3.0]], 2).tolist() != [[4.0]]:
            found.problems.append("a compiled kernel gives a wrong result; please report it")
    except (ImportError, OSError, RuntimeError, MemoryError) as error:
        found.problems.append(f"no kernel could be compiled: {error}")
