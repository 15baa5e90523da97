"""A time that is true: the clock is the judge's, and so are the numbers, the memory and the last word on results."""

from __future__ import annotations

import mmap
import os
import random
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median, quantiles
from time import monotonic, perf_counter, sleep
from typing import Any, Protocol

import numpy as np

from gradspec.conformance.judge.verdicts import Judge
from gradspec.conformance.model.reference import Types, call_of
from gradspec.conformance.targets.reference.kernel import ReferenceKernel
from gradspec.referee.formats import LoadedProblem, write_types
from gradspec.referee.own_work import draw_arrays, record
from gradspec.system.forking import ForkedChild
from gradspec.system.host import enter, leave
from gradspec.system.processes import ProcessLostError, describe

SLOTS = 4
"""Places in memory that the inputs of calls alternate between."""
WARM_UPS = 2
JUDGED = 3
"""Timed calls whose results are judged, picked when all have been made."""
COMPILING = 180.0
"""Seconds that the first call of a contender may take: compilers run then."""
FLUSHED = 64 << 20
"""Bytes that are written before each call, so that no cache holds what it reads."""
LATE, LATE_SHARE = 2e-3, 0.25
"""Work after a call returned, in seconds and as a part of the call, from which on it is a finding."""
QUIET, SETTLING = 2e-3, 2.0
"""Seconds for which no thread may run so that a call has ended, and for how long that is waited for."""
MARGIN = 0.5
"""The part of the time that memory and arithmetic take at the very best below which a time is not believed."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class MeasuredTime:
    """Seconds of one call: the median, and the quartiles around it."""

    median: float
    low: float
    high: float
    calls: int


@dataclass(frozen=True)
class Times:
    """The times of a kernel and of its reference, and what is not to be believed of them."""

    kernel: MeasuredTime | None = None
    eager: MeasuredTime | None = None
    compiled: MeasuredTime | None = None
    floor: float = 0.0
    """Seconds that reading, writing and arithmetic take at least on this device."""
    findings: tuple[tuple[str, str, str], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def speedup(self) -> float:
        """How many times as fast as the faster reference the kernel is; 0 where that is not known."""
        references = [measured.median for measured in (self.eager, self.compiled) if measured is not None]
        return min(references) / self.kernel.median if references and self.kernel and self.kernel.median else 0.0


class TimedCall(Protocol):
    """Something that is timed: it takes numbers, makes a call, waits for what it left behind, gives its results."""

    def load(self, arrays: Sequence[Array]) -> None: ...
    def call(self) -> None: ...
    def settle(self) -> float:
        """Wait for work that goes on after the call; seconds."""
        ...

    def results(self) -> list[Array]: ...
    def replaced(self) -> list[str]:
        """Functions of clocks and devices that are no longer what they were."""
        ...


class TimingSettings(Protocol):
    """What is needed of the settings of a score."""

    @property
    def device(self) -> str: ...
    @property
    def timeout(self) -> float: ...
    @property
    def rounds(self) -> int: ...
    @property
    def allow(self) -> tuple[str, ...]: ...


def time_kernel(kernel: Any, loaded: LoadedProblem, settings: TimingSettings) -> Times:
    """Time a kernel and its reference in turns, each in a process of its own."""
    types, notes = loaded.types[0], list[str]()
    with ExitStack() as stack:
        hosts = dict[str, TimedCall]()
        functions = {"kernel": kernel, "eager": loaded.eager, "compiled": _compiled(loaded)}
        for name, function in functions.items():
            if function is None:
                continue
            host = TimedHost(function, loaded, settings)
            stack.callback(host.close)
            try:
                host.warm_up(draw_arrays(types, secrets.randbits(32)))
                hosts[name] = host
            except ProcessLostError as loss:
                notes.append(f"{name}: {describe(loss)}")
                if name == "kernel":
                    return Times(findings=(("time.lost", "It cannot be timed", describe(loss)),))
        return time_calls(hosts, loaded, settings, notes=notes)


def _compiled(loaded: LoadedProblem) -> Callable[..., Any] | None:
    if loaded.call.array != "torch":
        return None
    import torch

    compiled: Callable[..., Any] = torch.compile(loaded.eager)
    return compiled


def time_calls(
    contenders: dict[str, TimedCall],
    loaded: LoadedProblem,
    settings: TimingSettings,
    clock: Callable[[], float] = perf_counter,
    floor: float | None = None,
    notes: Sequence[str] = (),
) -> Times:
    """Time calls in turns, on other numbers each, and judge the results of some of the kernel's."""
    types, seconds, late = loaded.types[0], {name: list[float]() for name in contenders}, list[float]()
    kept = list[tuple[list[Array], list[Array]]]()
    try:
        for _ in range(settings.rounds):
            for name in random.sample(sorted(contenders), len(contenders)):
                arrays, host = draw_arrays(types, secrets.randbits(63)), contenders[name]
                host.load(arrays)
                start = clock()
                host.call()
                end = clock()
                after = host.settle()
                seconds[name].append(end - start + after)
                if name == "kernel":
                    late.append(after)
                    kept.append((arrays, host.results()))
    except ProcessLostError as loss:
        return Times(findings=(("time.lost", "It cannot be timed", describe(loss)),), notes=tuple(notes))
    found = [*_late_findings(late, seconds["kernel"]), *_wrong_results(kept, loaded, settings)]
    if replaced := contenders["kernel"].replaced():
        found.append(("time.replaced", "It replaces functions that tell time or wait", ", ".join(replaced)))
    least = lowest_time(loaded, settings.device) if floor is None else floor
    times = {name: summarize_times(some) for name, some in seconds.items()}
    if times["kernel"].median < MARGIN * least:
        said = f"{times['kernel'].median:.3g} s, where memory and arithmetic take {least:.3g} s at least"
        found.append(("time.floor", "Its time is not possible on this device", said))
    return Times(**times, floor=least, findings=tuple(found), notes=tuple(notes))


def summarize_times(seconds: Sequence[float]) -> MeasuredTime:
    """
    >>> summarize_times([3.0, 1.0, 2.0])
    MeasuredTime(median=2.0, low=1.0, high=3.0, calls=3)
    """
    low, _, high = quantiles(seconds, n=4) if len(seconds) > 1 else (seconds[0],) * 3
    return MeasuredTime(median(seconds), low, high, len(seconds))


def _late_findings(late: Sequence[float], seconds: Sequence[float]) -> Iterator[tuple[str, str, str]]:
    usual = median(late)
    if usual > max(LATE, LATE_SHARE * (median(seconds) - usual)):
        yield "time.late", "It works on after the call has returned", f"{usual:.3g} s, which are counted"


def _wrong_results(
    kept: Sequence[tuple[list[Array], list[Array]]], loaded: LoadedProblem, settings: TimingSettings
) -> Iterator[tuple[str, str, str]]:
    """What the one judge says of the results of timed calls that are picked now."""
    spec = loaded.reference if loaded.spec is None else loaded.spec
    target = ReferenceKernel(_unused, spec, write_types(loaded.types), array=loaded.call.array)
    problem = target.reference.problem(loaded.types[0])
    names = problem.results("value")
    for arrays, results in random.Random(secrets.randbits(64)).sample(kept, min(JUDGED, len(kept))):
        if len(results) != len(names):
            yield "time.result", "The result of a timed call is wrong", f"{len(results)} results, expected {len(names)}"
            return
        call = call_of(problem, "value", dict(zip(problem.inputs, arrays, strict=False)))
        answers = {call.variant: dict(zip(names, results, strict=True))}
        verdicts = Judge(target, call, frozenset(settings.allow), answers).verdicts(call.variant)
        for verdict in (verdict for verdict in verdicts if verdict.kind == "defect"):
            yield "time.result", "The result of a timed call is wrong", f"{verdict.got}, expected {verdict.expected}"
            return


def _unused(*arrays: Any) -> Any:
    raise AssertionError("results are given")


# --- what is possible -------------------------------------------------------------------------------------------------


def lowest_time(loaded: LoadedProblem, device: str) -> float:
    """Seconds that a call takes at least: its bytes by the fastest copy, its products by the fastest product."""
    types = loaded.types[0]
    moved = sum(_bytes(types)) + sum(_bytes(tuple(v.type for v in loaded.reference.graph(types).outputs)))
    work = record(loaded.eager, types, loaded.call.array).arithmetic if loaded.call.array == "torch" else {}
    products = sum(n for name, n in work.items() if name.partition(".")[2] in ("mm", "addmm", "bmm", "baddbmm"))
    copied, multiplied = device_rates(device)
    return max(moved / copied, products / multiplied)


def _bytes(types: Types) -> list[int]:
    return [int(np.prod(t.shape)) * np.dtype(t.dtype.numpy).itemsize for t in types]


@cache
def device_rates(device: str) -> tuple[float, float]:
    """Bytes per second of the fastest copy, and operations per second of the fastest product, on all cores."""
    if device != "cpu":
        return _gpu_rates(device)
    cores, small = os.cpu_count() or 1, np.ones(1 << 14, np.float32)
    other, square = small.copy(), np.ones((512, 512), np.float32)
    copying = min(_seconds(lambda: np.copyto(other, small)) for _ in range(50))
    product = min(_seconds(lambda: square @ square) for _ in range(10))
    return cores * 2 * small.nbytes / copying, cores * 2 * 512**3 / product


def _seconds(action: Callable[[], object]) -> float:
    start = perf_counter()
    action()
    return perf_counter() - start


def _gpu_rates(device: str) -> tuple[float, float]:
    """The same of a GPU, measured in a copy of this process, which may not use one itself."""

    def answers(_: dict[str, Any]) -> Iterator[dict[str, Any]]:
        import torch

        def finished(action: Callable[[], object]) -> None:
            action()
            torch.cuda.synchronize()

        def best(action: Callable[[], object]) -> float:
            return min(_seconds(lambda: finished(action)) for _ in range(10))

        block, square = torch.ones(1 << 26, device=device), torch.ones(8192, 8192, device=device, dtype=torch.float16)
        other = torch.empty_like(block)
        copying, product = best(lambda: other.copy_(block)), best(lambda: square @ square)
        # What fits into the cache of a GPU moves several times as fast as what does not.
        yield {"copied": 8 * 2 * 4 * block.numel() / copying, "multiplied": 2 * 8192**3 / product}

    child = ForkedChild(answers, {})
    try:
        child.receive(COMPILING)
        child.send({}, COMPILING)
        told = child.receive(COMPILING)
        return float(told["copied"]), float(told["multiplied"])
    finally:
        child.kill()


# --- the process of a contender ---------------------------------------------------------------------------------------


class TimedHost:
    """A process that calls one function on numbers in shared memory, when it is told to."""

    def __init__(self, function: Callable[..., Any], loaded: LoadedProblem, settings: TimingSettings) -> None:
        self._types, self._seconds, self._slot = loaded.types[0], settings.timeout, 0
        outputs = tuple(v.type for v in loaded.reference.graph(self._types).outputs)
        self._inputs = [_shared(self._types) for _ in range(SLOTS)]
        self._outputs = _shared(outputs)
        self._library, self._device = loaded.call.array, settings.device
        self._child = ForkedChild(HostedCall(function, self).answers, {})
        self._child.receive(COMPILING)

    def warm_up(self, arrays: Sequence[Array]) -> None:
        for _ in range(WARM_UPS):
            self.load(arrays)
            self._ask(COMPILING, do="call")

    def load(self, arrays: Sequence[Array]) -> None:
        self._slot = random.choice([slot for slot in range(SLOTS) if slot != self._slot])
        for place, array in zip(self._inputs[self._slot], arrays, strict=True):
            place[...] = array
        for place in self._outputs:
            place.view(np.uint8).reshape(-1)[:] = 0xFF  # NaN in every format
        self._ask(self._seconds, do="load", slot=self._slot)

    def call(self) -> None:
        self._ask(self._seconds, do="call")

    def settle(self) -> float:
        """Wait until none of its threads has run for a moment."""
        start = last = monotonic()
        while monotonic() < min(last + QUIET, start + SETTLING):
            sleep(QUIET / 4)
            if self._is_working():
                last = monotonic()
        return last - start

    def _is_working(self) -> bool:
        """Whether a thread runs, or would if it had a core."""
        for thread in Path(f"/proc/{self._child.pid}/task").glob("*/stat"):
            with suppress(OSError, IndexError):
                if thread.read_text().rpartition(")")[2].split()[0] == "R":
                    return True
        return False

    def results(self) -> list[Array]:
        told = self._ask(self._seconds, do="fetch")
        if told.get("wrong"):
            return []
        return [place.copy() for place in self._outputs]

    def replaced(self) -> list[str]:
        return [str(name) for name in self._ask(self._seconds, do="replaced").get("replaced", ())]

    def close(self) -> None:
        self._child.kill()

    def _ask(self, seconds: float, **request: Any) -> dict[str, Any]:
        self._child.send(request, seconds)
        return self._child.receive(seconds)


def _shared(types: Types) -> list[Array]:
    """Arrays in memory that copies of this process share with it."""
    found = list[Array]()
    for t, size in zip(types, _bytes(types), strict=True):
        memory = mmap.mmap(-1, max(1, size))
        found.append(np.frombuffer(memory, t.dtype.numpy, size // np.dtype(t.dtype.numpy).itemsize).reshape(t.shape))
    return found


class HostedCall:
    """What the process of a contender does; each step is asked for."""

    def __init__(self, function: Callable[..., Any], host: TimedHost) -> None:
        self._function, self._host = function, host
        self._arrays, self._kept = list[Any](), list[Any]()
        self._flush: Any = None
        self._clocks = _clocks()

    def answers(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        steps = {"load": self._load, "call": self._call, "fetch": self._fetch, "replaced": self._replaced}
        yield steps[request["do"]](request) or {}

    def _load(self, request: dict[str, Any]) -> None:
        host, self._kept = self._host, []
        arrays = host._inputs[request["slot"]]
        if host._library == "torch":
            tensors = [enter("torch", array) for array in arrays]
            self._arrays = tensors if host._device == "cpu" else [tensor.to(host._device) for tensor in tensors]
        else:
            self._arrays = arrays
        self._flush = np.empty(FLUSHED, np.uint8) if self._flush is None else self._flush
        self._flush += np.uint8(1)
        if host._device != "cpu":
            import torch

            torch.empty(4 * FLUSHED, dtype=torch.uint8, device=host._device).fill_(1)
            torch.cuda.synchronize()

    def _call(self, _: dict[str, Any]) -> None:
        """The call, and copies of its results, which are finished when this returns."""
        host = self._host
        if host._library == "torch":
            import torch

            with torch.no_grad():
                given = self._function(*self._arrays)
                results = given if isinstance(given, list | tuple) else [given]
                self._kept = [r.clone() if type(r) in (torch.Tensor, torch.nn.Parameter) else None for r in results]
            if host._device != "cpu":
                torch.cuda.synchronize()
        else:
            given = self._function(*self._arrays)
            results = given if isinstance(given, list | tuple) else [given]
            self._kept = [np.array(r) if _is_plain(r) else None for r in results]

    def _replaced(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"replaced": [name for name, function in _clocks().items() if function is not self._clocks.get(name)]}

    def _fetch(self, _: dict[str, Any]) -> dict[str, Any] | None:
        host = self._host
        if len(self._kept) != len(host._outputs):
            return {"wrong": "number of results"}
        for place, result in zip(host._outputs, self._kept, strict=True):
            array = None if result is None else leave(result)
            if array is None or array.shape != place.shape or array.dtype != place.dtype:
                return {"wrong": "type of a result"}
            place[...] = array
        return None


def _clocks() -> dict[str, Any]:
    """The functions that harnesses tell time by, and wait for devices with."""
    found = {f"time.{name}": getattr(time, name) for name in ("time", "perf_counter", "perf_counter_ns", "monotonic")}
    if (cuda := getattr(sys.modules.get("torch"), "cuda", None)) is not None:
        found |= {f"torch.cuda.{name}": getattr(cuda, name, None) for name in ("synchronize", "Event", "Stream")}
        found |= {f"torch.cuda.Event.{name}": getattr(cuda.Event, name, None) for name in ("elapsed_time", "record")}
    return found


def _is_plain(result: Any) -> bool:
    """Whether a result is an array as it stands, and not one that is still to be computed."""
    return type(result) is np.ndarray or type(result).__module__.partition(".")[0] in ("jax", "jaxlib")
