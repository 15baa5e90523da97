"""The machine this runs on, as a person would name it."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
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


@cache
def memory() -> int:
    """Bytes of physical memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def readable(size: int) -> str:
    """Bytes as a person would say them.

    >>> readable(100), readable(3 << 31), readable(1 << 90)
    ('100 bytes', '6.0 GiB', '1073741824.0 EiB')
    """
    units = "bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"
    exponent = min(size.bit_length() // 10, len(units) - 1)
    return f"{size / (1 << 10 * exponent):.{min(exponent, 1)}f} {units[exponent]}"


def _processor() -> str:
    """The model's name; Arm kernels give only numbers, which ``lscpu`` knows the names of."""
    try:
        printed = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return platform.processor() or platform.machine()
    fields = dict(line.split(":", 1) for line in printed.splitlines() if ":" in line)
    return fields.get("Model name", platform.machine()).strip()
