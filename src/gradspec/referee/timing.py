"""A time that is true: the clock is the judge's, and so are the numbers, the memory and the last word on results."""

from __future__ import annotations

import os
import random
import secrets
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from gradspec.referee import steps
from gradspec.referee.formats import MOST_CELLS, LoadedProblem, count_cells, write_types
from gradspec.referee.own_work import draw_arrays
from gradspec.referee.recording import record
from gradspec.system.host import enter
from gradspec.system.hosting import ChannelError, HostedFunction, HostLostError, KernelHost, LeftBehindError

STEPS = Path(steps.__file__).read_text(encoding="utf-8")
CONTENDER = str(Path(steps.__file__).with_name("contender.py"))
LOSSES = (HostLostError, ChannelError, LeftBehindError)
WARM_UPS = 3
"""Calls that are not counted, and places in memory in which inputs lie in turn."""
FLUSHED = 64 << 20
"""Bytes that are written before each call, so that no cache holds what it reads."""
JUDGED = 3
"""Timed calls whose results are judged, picked when all have been made; of large ones, one."""
COMPILING = 180.0
"""Seconds that the first call of a contender may take: compilers run then."""
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


def time_kernel(functions: Mapping[str, HostedFunction], loaded: LoadedProblem, settings: TimingSettings) -> Times:
    """Time a kernel and its reference in turns, each in a process of its own."""
    types, contenders = timed_types(loaded), dict[str, TimedHost]()
    notes = [f"timed on {write_types([types])}"]
    with ExitStack() as stack:
        for name, function in functions.items():
            host = TimedHost(function, loaded, settings.timeout)
            stack.callback(host.go_on)
            try:
                host.warm_up(draw_arrays(types, secrets.randbits(32)))
                contenders[name] = host
            except (*LOSSES, Exception) as loss:
                notes.append(f"{name}: {loss}")
                if name == "kernel":
                    return Times(findings=(("time.lost", "It cannot be timed", str(loss)),))
        return time_calls(contenders, loaded, settings, notes=notes)


def contender_host(entry: str, *init: str) -> KernelHost:
    """The process of a class in the file of contenders, which may use a GPU."""
    return KernelHost(CONTENDER, 0, {"entry": entry, "init": init})


def timed_types(loaded: LoadedProblem) -> Types:
    return loaded.timed or loaded.types[0]


def compiled_reference(loaded: LoadedProblem) -> Callable[..., Any]:
    import torch

    compiled: Callable[..., Any] = torch.compile(loaded.eager)
    return compiled


def time_calls(
    contenders: dict[str, TimedHost],
    loaded: LoadedProblem,
    settings: TimingSettings,
    clock: Callable[[], float] = perf_counter,
    floor: float | None = None,
    notes: Sequence[str] = (),
) -> Times:
    """Time calls in turns, on other numbers each, and judge the results of some of the kernel's."""
    types, seconds, late = timed_types(loaded), {name: list[float]() for name in contenders}, list[float]()
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
        replaced = contenders["kernel"].replaced()
    except (*LOSSES, Exception) as loss:
        return Times(findings=(("time.lost", "It cannot be timed", str(loss)),), notes=tuple(notes))
    found = [*_late_findings(late, seconds["kernel"]), *_wrong_results(kept, loaded, settings)]
    if replaced:
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
    types = timed_types(loaded)
    target = ReferenceKernel(_unused, spec, write_types([types]), array=loaded.call.array)
    problem = target.reference.problem(types)
    names, most = problem.results("value"), JUDGED if count_cells(types) <= MOST_CELLS else 1
    for arrays, results in random.Random(secrets.randbits(64)).sample(kept, min(most, len(kept))):
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
    types = timed_types(loaded)
    moved = sum(_bytes(types)) + sum(_bytes(tuple(v.type for v in loaded.reference.graph(types).outputs)))
    work = dict[str, float]()
    if loaded.call.array == "torch":
        tensors = [enter("torch", array) for array in draw_arrays(types, 0)]
        work = record(loaded.eager, "torch", "cpu", tensors)["arithmetic"]
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
    """The same of a GPU, measured in a process that uses one."""
    host = contender_host("DeviceRates", device)
    try:
        copied, multiplied = HostedFunction(host, "", None)()
        return float(copied), float(multiplied)
    finally:
        host.close()


# --- the process of a contender ---------------------------------------------------------------------------------------

_flushed = cache(lambda: np.zeros(FLUSHED, np.uint8))


class TimedHost:
    """A function in its process, which stands still while it is not called.

    Its inputs lie in shared memory before it goes on, and its results have arrived here before the clock stops: no
    thread of its own can begin early or end late. On a GPU its process loads them, and gives them, as it is told.
    """

    def __init__(self, function: HostedFunction, loaded: LoadedProblem, seconds: float) -> None:
        made = f"steps = TimedSteps(kernel, {loaded.call.array!r}, {function.host.device!r})"
        self._host, self._steps = function.host, function.within(lines=[STEPS, made], name="steps")
        self._outputs = [v.type for v in loaded.reference.graph(timed_types(loaded)).outputs]
        self._seconds, self._is_here = seconds, function.host.device == "cpu"
        self._stopped, self._slot = list[int](), 0
        self._begin: Callable[[], Any] = lambda: None
        self._given: Any = ()

    def warm_up(self, arrays: Sequence[Array]) -> None:
        self._host.limit = COMPILING
        for _ in range(WARM_UPS):
            self.load(arrays)
            self.call()
            self.settle()
        self._host.limit = self._seconds

    def load(self, arrays: Sequence[Array]) -> None:
        if not self._is_here:
            self._steps("load", *arrays)
            self._begin = lambda: self._steps("call")
            return
        _flushed().__iadd__(1)
        copies = [array.copy() for array in arrays]  # into which the call may write
        self._slot = (self._slot + 1) % WARM_UPS
        self._begin = self._host.prepared(self._steps, ("call", *copies), self._slot)

    def call(self) -> None:
        self.go_on()
        self._given = self._begin()

    def settle(self) -> float:
        """Wait until none of its threads has run for a moment, and have it stand still; the seconds of work."""
        start = last = monotonic()
        while monotonic() < min(last + QUIET, start + SETTLING):
            sleep(QUIET / 4)
            if self._is_working():
                last = monotonic()
        if self._is_here:
            self._host.require_nothing_left()
            self._stopped = self._host.stop()
        return last - start

    def go_on(self) -> None:
        for process in self._stopped:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)
        self._stopped = []

    def _is_working(self) -> bool:
        """Whether a thread runs, or would if it had a core."""
        for thread in Path(f"/proc/{self._host.pid}/task").glob("*/stat"):
            with suppress(OSError, IndexError):
                if thread.read_text().rpartition(")")[2].split()[0] == "R":
                    return True
        return False

    def results(self) -> list[Array]:
        """Nothing where they are not as many as the reference's, of these types."""
        given = self._given if self._is_here else self._steps("fetch")
        parts = given if isinstance(given, tuple) else (given,)
        is_right = len(parts) == len(self._outputs) and all(
            part is not None and (part.shape, part.dtype) == (t.shape, t.dtype.numpy)
            for part, t in zip(parts, self._outputs, strict=True)
        )
        return list(parts) if is_right else []

    def replaced(self) -> list[str]:
        """Functions of clocks and devices that are no longer what they were."""
        self.go_on()
        return [name for name in self._steps("replaced").tobytes().decode(errors="replace").split(", ") if name]
