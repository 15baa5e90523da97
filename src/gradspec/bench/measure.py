"""Taking turns: every contender prepares a problem, all results are compared, then each is timed round by round.

Where arithmetic is counted, matrix products are timed before the first problem and after the last.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType

import numpy as np

from gradspec.bench.contenders import LIMITS, ON_CPU, OURS, Participant, Race
from gradspec.bench.grid import COPY, MATMULS, Array, BenchProblem
from gradspec.bench.worker import Message
from gradspec.system.machine import processors
from gradspec.system.processes import Child, ProcessLostError, environment, module_child

SHORTEST = 2e-3  # seconds that a timing lasts at least: short calls are repeated inside it
LOOSE = {"f32": 1e-3, "f16": 1e-2, "bf16": 8e-2}
"""Of the largest number, by format: enough for any order of summation, too little for another operator."""
MULTIPLIERS = {LIMITS.name: "NumPy"}
SMALLEST_LIMIT = 1 << 20  # bytes: calls on less are not about memory
FAR_BEHIND = 4  # times the best: where such a contender stands exactly matters to nobody
COPY_PROBLEM = BenchProblem(COPY, "copy", "forward")
PRODUCT_PROBLEMS = [BenchProblem(cell, "matmul", "forward") for cell in MATMULS]


@dataclass(frozen=True)
class Settings:
    threads: int
    rounds: int = 7
    turn: float = 0.15  # seconds of timings in one turn
    repeats: int = 10  # timings in one turn, at most
    patience: float = 8.0  # seconds that one contender may spend on one problem's rounds; a quarter if far behind
    timeout: float = 180.0  # seconds after which a worker is given up

    def plan(self, seconds: float, is_far_behind: bool = False) -> tuple[int, int, int]:
        """Calls per timing, timings per turn, and rounds, for a call that takes so long.

        >>> Settings(threads=2).plan(10e-6), Settings(threads=2).plan(5.0)
        ((200, 10, 7), (1, 1, 1))
        """
        patience = self.patience / 4 if is_far_behind else self.patience
        calls = max(1, ceil(SHORTEST / max(seconds, 1e-9)))
        repeats = min(self.repeats, max(1, int(self.turn / (calls * seconds))))
        warm_and_timed = seconds * (1 + calls * repeats)
        return calls, repeats, min(self.rounds, max(1, int(patience / warm_and_timed)))


@dataclass
class Timing:
    """What one contender did on one problem; ``reason`` says why there are no samples, or no more."""

    samples: list[float] = field(default_factory=list)
    offered: bool = True
    reason: str = ""
    variant: str = ""
    tried: dict[str, float] = field(default_factory=dict)  # seconds of every variant, from the trial that chose one
    disagrees: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def median(self) -> float:
        return float(np.median(self.samples))

    @property
    def quartiles(self) -> tuple[float, float]:
        low, high = np.quantile(self.samples, (0.25, 0.75))
        return float(low), float(high)


@dataclass
class Measured:
    """One problem: a timing by contender, and the copy measured in the same rounds."""

    problem: BenchProblem
    timings: dict[str, Timing]
    copy: Timing = field(default_factory=Timing)
    is_complete: bool = True
    copied: int = COPY_PROBLEM.bytes  # read and written by that copy

    @property
    def copy_limit(self) -> float | None:
        """Seconds to read and write the problem's bytes and do nothing else."""
        if not self.copy.samples:
            return None
        return self.problem.bytes * self.copy.median / self.copied

    def median(self, name: str) -> float | None:
        timing = self.timings.get(name)
        return timing.median if timing and timing.samples else None

    def fastest_peer(self) -> tuple[str, float] | None:
        """Its name and its seconds. A peer whose results are wrong is nobody's measure, and neither is half a race."""
        if not self.is_complete:
            return None
        rivals = {name: timing for name, timing in self.timings.items() if name != OURS.name}
        timed = {name: t.median for name, t in rivals.items() if t.samples and not t.disagrees}
        return min(timed.items(), key=lambda peer: peer[1], default=None)


@dataclass
class BenchRun:
    """Everything measured, and on what."""

    suite: str
    settings: Settings
    contenders: list[str]
    results: list[Measured] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)
    products: list[Measured] = field(default_factory=list)
    interrupted: bool = False
    gpu: dict[str, str] = field(default_factory=dict)  # its name and driver, CUDA and cuDNN; nothing on the CPU

    def best_product(self) -> tuple[str, float] | None:
        """Who multiplied matrices of some size fastest, and at how many operations per second."""
        rates = [
            (f"{MULTIPLIERS.get(name, name)}, {result.problem.cell.text}", result.problem.flops / timing.median)
            for result in self.products
            for name, timing in result.timings.items()
            if timing.samples and not timing.disagrees
        ]
        return max(rates, key=lambda rate: rate[1], default=None)


# --- ratios to peers and to the machine's limits, and rates, of medians -----------------------------------------------


def ratio_to_peer(result: Measured) -> float | None:
    """How many times faster gradspec is than the fastest peer."""
    ours, peer = result.median(OURS.name), result.fastest_peer()
    return peer[1] / ours if ours and peer else None


def share_of_copy(result: Measured) -> float | None:
    """Which part of gradspec's time a copy of the same bytes takes."""
    ours, limit = result.median(OURS.name), result.copy_limit
    return limit / ours if ours and limit and result.problem.bytes >= SMALLEST_LIMIT else None


def share_of_product(result: Measured, run: BenchRun) -> float | None:
    """gradspec's operations per second, as a part of the best matrix product's."""
    ours, best = rate(result, result.median(OURS.name)), run.best_product()
    return ours / best[1] if ours and best else None


def rate(result: Measured, seconds: float | None) -> float | None:
    """Operations per second of a call that takes so long."""
    return result.problem.flops / seconds if seconds and result.problem.flops else None


def rate_of_peer(result: Measured) -> float | None:
    """Operations per second of the fastest peer."""
    peer = result.fastest_peer()
    return rate(result, peer[1]) if peer else None


# --- measuring --------------------------------------------------------------------------------------------------------


def product_problems(problems: Sequence[BenchProblem]) -> list[BenchProblem]:
    """The matrix products that a run of these problems is measured by, once before and once after them."""
    return PRODUCT_PROBLEMS if any(problem.flops for problem in problems) else []


def measure(
    suite: str,
    problems: Sequence[BenchProblem],
    peers: Sequence[Participant],
    settings: Settings,
    progress: Callable[[str, float], None] = lambda doing, share: None,
    race: Race = ON_CPU,
) -> BenchRun:
    """Time the problems for gradspec and the peers; Ctrl-C ends it early with what there is.

    ``progress`` is told what is being done, and which part of the problem that completes.
    """
    run = BenchRun(suite, settings, [OURS.name, *(peer.name for peer in peers)], gpu=race.facts())
    try:
        with workers([race.limits, race.ours, *peers], settings, race.environment()) as remotes:
            started = {remote.entry.name: remote for remote in remotes if _started(remote, run, progress)}
            limits, contenders = started.pop(LIMITS.name), started
            multipliers = {**contenders, LIMITS.name: limits}
            _measure_all(run.products, product_problems(problems), multipliers, None, settings, progress)
            if race.device.is_host:
                _prepare(limits, COPY_PROBLEM, Timing())
            _measure_all(run.results, problems, contenders, limits, settings, progress, not race.device.is_host)
            _measure_all(run.products, product_problems(problems), multipliers, None, settings, progress)
    except KeyboardInterrupt:
        run.interrupted = True
    for result in run.results:
        result.timings |= {name: Timing(offered=False) for name in run.unavailable}
    return run


def _measure_all(
    results: list[Measured],
    problems: Sequence[BenchProblem],
    contenders: dict[str, Remote],
    limits: Remote | None,
    settings: Settings,
    progress: Callable[[str, float], None],
    copies_each: bool = False,
) -> None:
    """Every problem's result is in the list before it is complete: an interrupted one is shown as far as it came.

    ``copies_each``: the bytes that are copied are each problem's own, not as many for all.
    """
    for problem in problems:
        results.append(Measured(problem, {}, is_complete=False))
        if limits is not None and copies_each:
            results[-1].copied = problem.bytes
            _prepare(limits, problem, Timing())
        _measure(results[-1], contenders, limits, settings, progress)
        results[-1].is_complete = True


@contextmanager
def workers(entries: Sequence[Participant], settings: Settings, variables: Mapping[str, str]) -> Iterator[list[Remote]]:
    """Handles of the contenders' processes; all are gone at the end."""
    with TemporaryDirectory(prefix="gradspec-bench-") as folder, ExitStack() as stack:
        how = settings.threads, Path(folder), settings.timeout, variables
        yield [stack.enter_context(Remote(entry, *how)) for entry in entries]


def _started(remote: Remote, run: BenchRun, progress: Callable[[str, float], None]) -> bool:
    progress(f"starting {remote.entry.name}", 0.0)
    try:
        remote.start()
    except WorkerLostError as loss:
        run.unavailable[remote.entry.name] = str(loss)
        return False
    run.versions |= remote.versions
    return True


def _measure(
    result: Measured,
    contenders: dict[str, Remote],
    limits: Remote | None,
    settings: Settings,
    progress: Callable[[str, float], None],
) -> None:
    """Prepare, compare with ours, and go round; a contender that is lost on the way keeps the samples it has."""
    turns = len(contenders) * (1 + settings.rounds)
    seconds = {}
    for name, remote in contenders.items():
        progress(f"{result.problem}: {name} prepares", 1 / turns)
        timing = result.timings[name] = Timing()
        if _prepare(remote, result.problem, timing):
            seconds[name] = timing.tried[timing.variant]
    loose = LOOSE[result.problem.cell.dtype]
    for name, text in disagreements({name: _stored(contenders[name]) for name in seconds}, loose).items():
        result.timings[name].disagrees = text
    slow = FAR_BEHIND * min(seconds.values(), default=0.0)
    plans = {name: settings.plan(each, each > slow and name != OURS.name) for name, each in seconds.items()}
    for done in range(settings.rounds):
        for name, (calls, repeats, rounds) in plans.items():
            progress(f"{result.problem}: {name}", 1 / turns)
            if done < rounds and not result.timings[name].reason:
                _time(contenders[name], result.timings[name], calls, repeats)
        if limits is not None:
            _time(limits, result.copy, 1, 3)


def _results_file(remote: Remote) -> Path:
    return remote.folder / f"{remote.entry.name}.npz"


def _prepare(remote: Remote, problem: BenchProblem, timing: Timing) -> bool:
    """Whether it can be timed; what was tried, or the reason, is in ``timing``."""
    names = {"cell": problem.cell.name, "op": problem.op, "mode": problem.mode}
    try:
        answer = remote.ask(do="prepare", **names, results=str(_results_file(remote)))
    except WorkerLostError as loss:
        answer = {"failed": str(loss)}
    timing.offered = "not_offered" not in answer
    timing.reason = answer.get("not_offered") or answer.get("failed") or ""
    timing.variant, timing.tried = answer.get("variant", ""), answer.get("seconds", {})
    timing.notes = [*answer.get("notes", ())]
    return bool(timing.tried)


def _time(remote: Remote, timing: Timing, calls: int, repeats: int) -> None:
    try:
        answer = remote.ask(do="time", calls=calls, repeats=repeats)
    except WorkerLostError as loss:
        answer = {"failed": str(loss)}
    timing.samples += answer.get("seconds", [])
    timing.reason = answer.get("failed", "")


def _stored(remote: Remote) -> list[Array]:
    with np.load(_results_file(remote), allow_pickle=False) as file:
        return [file[name] for name in file.files]


Results = Sequence[Array]


def disagreements(found: dict[str, Results], loose: float = LOOSE["f32"]) -> dict[str, str]:
    """What is wrong with each contender's results, or nothing; right is what most of them found, or else the first.

    >>> disagreements({"a": [np.zeros(2)], "b": [np.ones(2)], "c": [np.ones(2)]})
    {'a': 'differs from b by 1 in result 1 of 1', 'b': '', 'c': ''}
    """
    if not found:
        return {}
    told = _against(next(iter(found)), found, loose)
    if any(told.values()):
        supporters = Counter({name: [*_against(name, found, loose).values()].count("") for name in found})
        told = _against(supporters.most_common(1)[0][0], found, loose)  # the first of those with the most
    return told


def _against(name: str, found: dict[str, Results], loose: float) -> dict[str, str]:
    return {other: disagreement(results, found[name], name, loose) for other, results in found.items()}


def disagreement(found: Results, expected: Results, by: str = OURS.name, loose: float = LOOSE["f32"]) -> str:
    """What two contenders' results differ in, or nothing.

    >>> disagreement([np.ones(3)], [np.ones(3)]), disagreement([np.ones(3)], [np.zeros(3)])
    ('', 'differs from gradspec by 1 in result 1 of 1')
    """
    shapes = [a.shape for a in found], [a.shape for a in expected]
    if shapes[0] != shapes[1]:
        return f"has results of shape {shapes[0]}, {by} {shapes[1]}"
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        difference = np.max(np.abs(a - b), initial=0.0)
        if not difference <= loose * np.max(np.abs(b), initial=1e-30):
            return f"differs from {by} by {difference:.3g} in result {i + 1} of {len(found)}"
    return ""


# --- workers ----------------------------------------------------------------------------------------------------------


class WorkerLostError(Exception):
    """The process ended or did not answer in time; it has been killed and is started again when next asked."""


@dataclass
class Remote:
    """Use it in a ``with`` statement: nothing is left running after it."""

    entry: Participant
    threads: int
    folder: Path
    timeout: float
    more: Mapping[str, str] = field(default_factory=dict)  # variables of the process
    versions: dict[str, str] = field(default_factory=dict)
    _child: Child | None = None

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    def start(self) -> None:
        """Raises ``WorkerLostError`` with the reason if the contender cannot be started."""
        arguments, variables = [self.entry.factory, str(self.threads)], {**environment(self.threads), **self.more}
        child = self._child = module_child("gradspec.bench.worker", arguments, variables)
        if self.threads < processors() and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(child.pid, sorted(os.sched_getaffinity(0))[: self.threads])
        greeting = self._reply(child)
        if "failed" in greeting:
            self.kill()
            raise WorkerLostError(greeting["failed"])
        self.versions = greeting["versions"]
        self._stop(child)

    def ask(self, **request: object) -> Message:
        """The answer to one request; the process runs from here until it has answered."""
        if self._child is None:
            self.start()
        child = self._child
        assert child is not None
        child.signal(signal.SIGCONT)
        answer = self._reply(child, request)
        self._stop(child)
        return answer

    def kill(self) -> None:
        """End the process, whatever it is doing, and its children."""
        if self._child is not None:
            child, self._child = self._child, None
            child.kill()

    def _reply(self, child: Child, request: dict[str, object] | None = None) -> Message:
        try:
            if request is not None:
                child.send(request, self.timeout)
            return child.receive(self.timeout)
        except ProcessLostError as loss:
            self._child = None
            raise WorkerLostError(str(loss)) from None

    @staticmethod
    def _stop(child: Child) -> None:
        """Returns when the process has stopped, so that the next one runs alone."""
        child.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
