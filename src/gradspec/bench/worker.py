"""The process of one contender: ``python -m gradspec.bench.worker MODULE:FACTORY THREADS``.

It reads one JSON request per line and answers each with one JSON line:

    (greeting)                                         {"versions": {name: version}}
    {"do": "prepare", "cell", "op", "mode", "results"}   {"variant", "seconds": {variant: a call}, "notes"}
    {"do": "time", "calls", "repeats"}                 {"seconds": [per call, …]}
    anything that fails                                {"failed": reason} or {"not_offered": reason}

``results`` is a file for what the kept variant gives. The end of its input ends a worker, and so does, on Linux, the
death of its parent, even while it is stopped.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np

from gradspec.bench.contenders import Call, Contender
from gradspec.bench.grid import problem
from gradspec.conformance.model.target import NotOfferedError
from gradspec.system.processes import to_parent

Message: TypeAlias = dict[str, Any]
CLEARLY_SLOWER = 4  # times the best so far: such a variant is not tried again
TRIAL = 0.02  # seconds to try a variant for


class Worker:
    """Answers requests; between them it keeps the problem it was last asked to prepare."""

    def __init__(self, contender: Contender) -> None:
        self.contender = contender
        self.call: Call = lambda: None

    def answer(self, request: Message) -> Message:
        try:
            actions: dict[str, Callable[..., Message]] = {"prepare": self.prepare, "time": self.time}
            return actions[request.pop("do")](**request)
        except NotOfferedError as refusal:
            return {"not_offered": str(refusal)}
        except Exception as error:
            return {"failed": f"{type(error).__name__}: {error}"}

    def prepare(self, cell: str, op: str, mode: str, results: str) -> Message:
        """Keep the fastest way to write the problem, and store what it returns."""
        self.call = lambda: None  # frees the last problem's memory
        times, notes, calls = dict[str, float](), list[str](), self.contender.variants(problem(cell, op, mode))
        for name, call in calls.items():
            try:
                times[name] = self.trial(call, CLEARLY_SLOWER * min(times.values(), default=float("inf")))
            except Exception as error:
                notes.append(f"{name}: {type(error).__name__}: {error}")
        if not times:
            return {"failed": "; ".join(notes)}
        best = min(times, key=times.__getitem__)
        self.call = calls[best]
        np.savez(results, *(array.astype(np.float32, copy=False) for array in self.contender.arrays(self.call())))
        return {"variant": best, "seconds": times, "notes": notes}

    def time(self, calls: int, repeats: int) -> Message:
        """Seconds per call; the first call of a turn warms up threads and caches and is not counted."""
        self.call()
        gc.disable()
        try:
            return {"seconds": [self.contender.seconds(self.call, calls) for _ in range(repeats)]}
        finally:
            gc.enable()

    def trial(self, call: Call, hopeless: float) -> float:
        """The best of two calls or more in ``TRIAL`` seconds, after one that may compile; of one if far too slow."""
        call()
        times = [self.contender.seconds(call, 1)]
        while times[0] < hopeless and (len(times) < 2 or sum(times) < TRIAL):
            times.append(self.contender.seconds(call, 1))
        return min(times)


def main(factory: str, threads: int) -> None:
    say = to_parent()
    module, _, name = factory.partition(":")
    try:
        contender = getattr(import_module(module), name)(threads)
        say({"versions": contender.versions()})
    except Exception as error:
        say({"failed": f"{type(error).__name__}: {error}"})
        return
    worker = Worker(contender)
    for line in sys.stdin:
        say(worker.answer(json.loads(line)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
