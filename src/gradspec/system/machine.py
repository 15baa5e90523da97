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
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release()}",
    }


def _processor() -> str:
    """The model's name; Arm kernels give only numbers, which ``lscpu`` knows the names of."""
    try:
        printed = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return platform.processor() or platform.machine()
    fields = dict(line.split(":", 1) for line in printed.splitlines() if ":" in line)
    return fields.get("Model name", platform.machine()).strip()
