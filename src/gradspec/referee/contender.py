"""What a kernel is timed beside, each in a process of its own that reads the problem anew.

Where the process of a problem cannot be copied, because reading it opened the driver of a GPU, a host runs this file
as if it were a kernel's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from gradspec.conformance.model.codec import decode
from gradspec.referee.formats import ProblemSource, load_problem
from gradspec.referee.timing import compiled_reference
from gradspec.system.host import follow


class TimedReference:
    """The reference of a problem, as it is or compiled."""

    def __init__(self, source: str, name: str) -> None:
        loaded = load_problem(decode(ProblemSource, json.loads(source), "source"))
        self._function = compiled_reference(loaded) if name == "compiled" else loaded.eager

    def __call__(self, *arrays: Any) -> Any:
        follow(self._function, arrays)
        return self._function(*arrays)


class DeviceRates:
    """Bytes a second of the fastest copy on a GPU, and operations a second of its fastest product."""

    def __init__(self, device: str) -> None:
        self._device = device

    def __call__(self) -> np.ndarray[Any, Any]:
        import torch

        def best(action: Callable[[], object]) -> float:
            return min(_seconds(action) for _ in range(10))

        block = torch.ones(1 << 26, device=self._device)
        square = torch.ones(8192, 8192, device=self._device, dtype=torch.float16)
        other = torch.empty_like(block)
        copying, product = best(lambda: other.copy_(block)), best(lambda: square @ square)
        # What fits into the cache of a GPU moves several times as fast as what does not.
        return np.array([8 * 2 * 4 * block.numel() / copying, 2 * 8192**3 / product])


def _seconds(action: Callable[[], object]) -> float:
    import torch

    start = perf_counter()
    action()
    torch.cuda.synchronize()
    return perf_counter() - start
