"""How far beyond an argument a deadly call reaches: the forbidden page is moved away until the call survives."""

from __future__ import annotations

import mmap
from functools import partial

from gradspec.conformance.checks.memory import fenced
from gradspec.conformance.model.problem import Call
from gradspec.conformance.model.target import Target
from gradspec.system.forking import fate

A_TRIAL = 1.0
"""Seconds for one call."""


def reach(target: Target, call: Call, setting: str) -> str:
    """``it reads 4 bytes beyond the end of x``; nothing where no argument by itself is read or written beyond."""
    at_end = setting == "fence_end"
    for name, array in call.arrays().items():
        dies = partial(_dies, target, call, name, at_end)
        if not dies(0):
            continue
        step, none = array.itemsize, 0
        most = mmap.PAGESIZE // step
        if dies(most * step):
            far = f"more than {mmap.PAGESIZE} bytes"
        else:
            while most - none > 1:  # it dies with a page ``none`` cells away, and survives one ``most`` cells away
                middle = (none + most) // 2
                none, most = (middle, most) if dies(middle * step) else (none, middle)
            far = f"{most * step} bytes"
        verb = "writes" if dies(0, readable=True) else "reads"
        return f"it {verb} {far} {'beyond the end' if at_end else 'before the beginning'} of {name}"
    return ""


def _dies(target: Target, call: Call, name: str, at_end: bool, gap: int, readable: bool = False) -> bool:
    arrays = call.arrays()
    moved = call.with_arrays({**arrays, name: fenced(arrays[name], at_end, gap=gap, readable=readable)})
    return fate(lambda: target.run(moved), A_TRIAL) == "crash"
