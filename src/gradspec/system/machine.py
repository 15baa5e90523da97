"""The machine this runs on, as a person would name it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """What figures depend on and no version says.

    >>> sorted(machine())
    ['architecture', 'cores', 'processor', 'system']
    """
    return {
        "processor": _processor(),
        "architecture": platform.machine(),
        "cores": processors(),
        "system": f"{platform.system()} {platform.release()}",
    }


def processors() -> int:
    """How many processors this process may run on; where the system does not say, as on macOS, all that there are.

    >>> processors() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine_bytes() -> int:
    """The memory that this machine has, or that this process may use of it."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")] if hasattr(os, "sysconf") else []
    if find_spec("resource") is not None:
        import resource

        found += [n for n in resource.getrlimit(resource.RLIMIT_AS) if n != resource.RLIM_INFINITY]
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # there is no such file, or it says "max"
            found.append(int(Path(limit).read_text()))
    return min(found, default=sys.maxsize)


def _processor() -> str:
    """The model's name; Arm kernels give only numbers, which ``lscpu`` knows the names of."""
    try:
        printed = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return platform.processor() or platform.machine()
    fields = dict(line.split(":", 1) for line in printed.splitlines() if ":" in line)
    return fields.get("Model name", platform.machine()).strip()
