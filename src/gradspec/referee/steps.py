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
FLUSHED = 64 << 20
"""Bytes that are written before each call, so that no cache holds what it reads."""


class TimedSteps:
    """Loads numbers, makes a call, gives its results, and names the clocks that are others than they were."""

    def __init__(self, function: Callable[..., Any], library: str, device: str) -> None:
        self._function, self._library, self._device = function, library, device
        self._loaded: deque[list[Any]] = deque(maxlen=SLOTS)
        self._kept = list[Any]()
        self._flush: Any = None

    def __call__(self, do: str, *arrays: Any) -> Any:
        return {"load": self._load, "call": self._call, "fetch": self._fetch, "replaced": self._replaced}[do](*arrays)

    def _load(self, *arrays: Any) -> None:
        self._kept = []
        self._loaded.append([a.clone() if self._library == "torch" else np.array(a) for a in arrays])
        self._flush = np.empty(FLUSHED, np.uint8) if self._flush is None else self._flush
        self._flush += np.uint8(1)
        if self._device != "cpu":
            import torch

            torch.empty(4 * FLUSHED, dtype=torch.uint8, device=self._device).fill_(1)
            torch.cuda.synchronize()

    def _call(self) -> None:
        """The call, and copies of its results, which are finished when this returns."""
        if self._library == "torch":
            import torch

            with torch.no_grad():
                results = _as_list(self._function(*self._loaded[-1]))
                self._kept = [r.clone() if type(r) in (torch.Tensor, torch.nn.Parameter) else None for r in results]
            if self._device != "cpu":
                torch.cuda.synchronize()
        else:
            results = _as_list(self._function(*self._loaded[-1]))
            self._kept = [np.array(r) if _is_plain(r) else None for r in results]

    def _fetch(self) -> tuple[Any, ...]:
        return tuple(self._kept)

    def _replaced(self) -> Any:
        return np.frombuffer(", ".join(_replaced_clocks()).encode(), np.uint8)


def _as_list(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list | tuple) else [given]


def _is_plain(result: Any) -> bool:
    """Whether a result is an array as it stands, and not one that is still to be computed."""
    return type(result) is np.ndarray or type(result).__module__.partition(".")[0] in ("jax", "jaxlib")


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
