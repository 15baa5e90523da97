"""The steps of a timed call, each asked for by itself: run where the function is, by `gradspec.referee.timing`.

The process of a kernel is sent this as a text, so that it imports nothing of ours.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType
from typing import Any

import numpy as np

SLOTS = 4
"""Calls whose inputs are kept, so that the next ones lie in other memory."""
FLUSHED = 256 << 20
"""Bytes that are written on a GPU before each call, so that no cache holds what it reads."""


class TimedSteps:
    """Makes a call of given arrays; or, on a GPU, loads numbers, makes a call and gives its results, one by one.

    It names the clocks that are others than they were.
    """

    def __init__(self, function: Callable[..., Any], library: str, device: str) -> None:
        self._function, self._library, self._device = function, library, device
        self._loaded: deque[list[Any]] = deque(maxlen=SLOTS)
        self._kept = list[Any]()

    def __call__(self, do: str, *arrays: Any) -> Any:
        return {"load": self._load, "call": self._call, "fetch": self._fetch, "replaced": self._replaced}[do](*arrays)

    def _load(self, *arrays: Any) -> None:
        import torch

        self._kept = []
        self._loaded.append([a.clone() for a in arrays])
        torch.empty(FLUSHED, dtype=torch.uint8, device=self._device).fill_(1)
        torch.cuda.synchronize()

    def _call(self, *arrays: Any) -> Any:
        """The results; of numbers that were loaded copies are kept, which are finished when this returns."""
        if self._library != "torch":
            return self._function(*arrays)
        import torch

        with torch.no_grad():
            results = self._function(*(arrays or self._loaded[-1]))
            if arrays:
                return results
            given = results if isinstance(results, list | tuple) else [results]
            self._kept = [r.clone() if type(r) in (torch.Tensor, torch.nn.Parameter) else None for r in given]
        torch.cuda.synchronize()
        return None

    def _fetch(self) -> tuple[Any, ...]:
        return tuple(self._kept)

    def _replaced(self) -> Any:
        return np.frombuffer(", ".join(_replaced_clocks()).encode(), np.uint8)


def _replaced_clocks() -> Iterator[str]:
    """The functions that harnesses tell time by, and wait for devices with, that are none of their own modules."""
    for name in ("time", "perf_counter", "perf_counter_ns", "monotonic"):
        function = getattr(time, name)
        if type(function) is not BuiltinFunctionType or (function.__module__, function.__name__) != ("time", name):
            yield f"time.{name}"
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    for name in ("synchronize", "Event", "Stream", "Event.elapsed_time", "Event.record") if cuda is not None else ():
        part: Any = cuda
        for attribute in name.split("."):
            part = getattr(part, attribute, None)
        file = part.__code__.co_filename if inspect.isfunction(part) else "torch/"
        if "torch/" not in file.replace("\\", "/") or not str(getattr(part, "__module__", "")).startswith("torch"):
            yield f"torch.cuda.{name}"
