"""The machine this runs on, as a person would name it."""

from __future__ import annotations

import os
import platform
import subprocess
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


def _processor() -> str:
    """The model's name; Arm kernels give only numbers, which ``lscpu`` knows the names of."""
    try:
        printed = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return platform.processor() or platform.machine()
    fields = dict(line.split(":", 1) for line in printed.splitlines() if ":" in line)
    return fields.get("Model name", platform.machine()).strip()
