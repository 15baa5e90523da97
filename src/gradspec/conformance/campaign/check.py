"""``gs.conformance.check``: judge a target on many cases, on all cores or on any executor."""

from __future__ import annotations

import os
import secrets
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from math import inf
from time import monotonic

from gradspec.conformance.campaign import tasks
from gradspec.conformance.campaign.drive import BatchPlan, Drive
from gradspec.conformance.campaign.findings import found, found_here, worst_first
from gradspec.conformance.campaign.isolated import Isolated, TargetError
from gradspec.conformance.campaign.ledger import Ledger
from gradspec.conformance.campaign.local import batches, broken_promises, judged
from gradspec.conformance.campaign.request import CampaignBudget, Progress, Watch, allowed, known_target, selection_of
from gradspec.conformance.cases.stream import Stream
from gradspec.conformance.checks.probes import probe
from gradspec.conformance.model.case import DEFAULT_SECONDS, DEFAULT_TIMEOUT, CampaignSettings, CheckCase
from gradspec.conformance.model.codec import encode
from gradspec.conformance.model.run import Batch, Judged, Run
from gradspec.conformance.model.target import Target
from gradspec.conformance.model.verdict import Finding, Probe
from gradspec.conformance.targets.user.target import UserKernels
from gradspec.runtime.threads import get_num_threads
from gradspec.system.machine import machine

SHRINKING = 30.0
"""Seconds that findings are shrunk for in all, after the cases: half of what the cases had, if that is less."""
SHRINKING_LEAST = 5.0
OUTSTANDING = 64
"""Tasks that an executor is given at once: enough to keep a cluster busy, and few enough to be dropped."""
BATCHES_PER_TASK = 4


def check(
    target: object,
    *,
    cases: int | None = None,
    seconds: float | None = None,
    seed: int | None = None,
    ops: Iterable[str] = (),
    features: Iterable[str] = (),
    modes: Iterable[str] = (),
    dtypes: Iterable[str] = (),
    ranks: Iterable[int] = (),
    allow: Iterable[str] = (),
    jobs: int | None = None,
    executor: Executor | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    fail_fast: bool = False,
    progress: Watch | None = None,
) -> Run:
    """Judge a target, and give what was found.

    The target is a name (``"torch"``, ``"module:object"``), and then runs in processes of its own, so that a crash or a
    hang is a finding; or it is an object with kernels, and then runs here. ``cases`` and ``seconds`` end the run,
    whichever comes first; with neither it takes a minute. The same seed and number of cases give the same cases and the
    same verdicts, however many ``jobs`` share them. An ``executor`` (a ``ProcessPoolExecutor``, that of a Dask client,
    …) runs the cases where it will, and ``jobs`` then says how many tasks it is given at once. ``fail_fast`` ends the
    run at the first case with a defect.

    >>> run = check("native", cases=30, seed=1, ops=["max_pool"], jobs=1)
    >>> run.cases, run.by_kind("defect")
    (30, [])
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs is {jobs}; use at least one")
    settings = CampaignSettings(
        known_target(target) if isinstance(target, str) else "",
        secrets.randbelow(2**32) if seed is None else seed,
        selection_of(ops, features, modes, dtypes, ranks),
        allowed(allow),
        timeout=timeout,
        path=(os.getcwd(), *filter(None, sys.path)),
        token=secrets.token_hex(8),
    )
    budget = CampaignBudget(cases, DEFAULT_SECONDS if cases is None and seconds is None else seconds, fail_fast)
    watch = progress or (lambda _: None)
    if isinstance(target, str):
        return Campaign(settings, budget, watch).run(executor, jobs)
    kernels = target if isinstance(target, Target) else UserKernels(target)
    return Campaign(replace(settings, target=kernels.name), budget, watch).run_here(kernels)


class Campaign:
    """One run, from probes to findings. Ctrl-C ends it early with what it has."""

    def __init__(self, settings: CampaignSettings, budget: CampaignBudget, watch: Watch) -> None:
        self.settings, self.budget, self.watch = settings, budget, watch
        self.start = monotonic()
        self.deadline = budget.deadline(self.start)
        self.ledger = Ledger(budget.until_defect)
        self.report = Run(settings.target, "", machine_line(), settings.seed, allowed=settings.allow)
        self.report.tally, self.report.errors = self.ledger.tally, self.ledger.errors

    def run(self, executor: Executor | None, jobs: int | None) -> Run:
        """On an executor, or on ``jobs`` threads of this process, each with a process for the target.

        One more process is asked first and plans the cases: it alone needs to know all of them.
        """
        workers = get_num_threads() if executor else jobs or get_num_threads()
        self.settings = replace(self.settings, threads=max(1, get_num_threads() // workers))
        with self._threads(workers) as here, closing(Isolated(self.settings)) as planner:
            for _ in range(0 if executor else workers):  # while the target is probed
                here.submit(tasks.warm_up, encode(self.settings))
            plan = BatchPlan(planner.plan, self.budget.cases)
            try:
                self._tell("probing", 0.0)
                self._begin(planner.versions(), planner.probes(), planner.broken_promises())
                tasks_at_once, each = (jobs or OUTSTANDING, BATCHES_PER_TASK) if executor else (workers, 1)
                ends = (executor or here, here, plan, self.ledger, self.deadline)
                self._drive(Drive(self.settings, *ends, tasks_at_once, each, self._judging))
            except KeyboardInterrupt:
                self.report.interrupted = True
            self._end(lambda: found(self.ledger, self.settings, here, workers, self._shrinking, self._explaining))
        self.report.unreached = 0 if self.ledger.is_full else plan.cases - self.ledger.cases
        self.report.repeat = repeated(self.settings, self.ledger.cases + self.report.unreached)
        return self.report

    def _drive(self, drive: Drive) -> None:
        """Judge, and keep what was judged when that ends early."""
        try:
            drive.run()
        except (KeyboardInterrupt, TargetError) as stop:
            drive.interrupt()
            if isinstance(stop, KeyboardInterrupt) or not self.ledger.cases:
                raise
            self.ledger.errors.append(str(stop))

    def run_here(self, target: Target) -> Run:
        """In this process: a crash of the target is a crash of ours."""
        stream = Stream(self.settings.seed, self.settings.selection, target.refusal)
        try:
            self._begin(target.versions(), probe(target), broken_promises(target))
            plan = BatchPlan(lambda first, count: batches(stream, first, count), self.budget.cases)
            while not self.ledger.is_full and monotonic() < self.deadline and (batch := plan.next()):
                self._judge_here(target, *batch)
                self._judging()
        except KeyboardInterrupt:
            self.report.interrupted = True
        allow = frozenset(self.settings.allow)
        self._end(lambda: found_here(self.ledger, target, allow, self._shrinking, self._explaining))
        return self.report

    def _judge_here(self, target: Target, number: int, cases: list[CheckCase]) -> None:
        """A batch, or the first cases of the last one."""
        done = list[Judged]()
        try:
            for case in judged(target, cases, frozenset(self.settings.allow)):
                done.append(case)
                if monotonic() > self.deadline:
                    break
        finally:
            self.ledger.take(Batch(number, tuple(done)))

    @contextmanager
    def _threads(self, count: int) -> Iterator[ThreadPoolExecutor]:
        """Threads for tasks, and the end of everything that tasks started in this process."""
        pool = ThreadPoolExecutor(count, thread_name_prefix="gradspec-check")
        try:
            yield pool
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            tasks.close(self.settings.token)
            pool.shutdown()

    def _begin(self, versions: dict[str, str], probes: list[Probe], findings: list[Finding]) -> None:
        self.report.version = ", ".join(f"{name} {version}" for name, version in versions.items())
        self.report.probes, self.report.findings = probes, findings
        self._tell("judging", 0.0)

    @property
    def _shrinking(self) -> float:
        if self.report.interrupted:
            return SHRINKING_LEAST
        return max(SHRINKING_LEAST, min(SHRINKING, (self.budget.seconds or inf) / 2))

    def _end(self, shrink: Callable[[], list[Finding]]) -> None:
        before = monotonic()
        self.report.findings = worst_first([*self.report.findings, *shrink()])
        self.report.cases, self.report.unjudged = self.ledger.cases, self.ledger.unjudged
        self.report.shrinking, self.report.seconds = monotonic() - before, monotonic() - self.start

    # --- telling --------------------------------------------------------------------------------------------------

    def _tell(self, stage: str, share: float, doing: str = "") -> None:
        self.report.cases, self.report.seconds = self.ledger.cases, monotonic() - self.start
        self.watch(Progress(stage, self.report, share, doing))

    def _judging(self) -> None:
        self._tell("judging", self.budget.share(self.report, self.start))

    def _explaining(self, done: int, causes: int) -> None:
        words = "1 group" if causes == 1 else f"{causes} groups"
        self._tell("shrinking", done / causes, f"shrinking {words} of failures, for {self._shrinking:.0f} s at most")


def machine_line() -> str:
    """``Neoverse-N1, aarch64, 2 cores, Linux 6.1``."""
    parts = machine()
    return f"{parts['processor']}, {parts['architecture']}, {parts['cores']} cores, {parts['system']}"


def repeated(settings: CampaignSettings, cases: int) -> str:
    """The command that makes so many cases again.

    >>> from gradspec.conformance.model.case import Selection
    >>> repeated(CampaignSettings("native", 7, Selection(ops=("conv", "fold"))), 120)
    'gradspec check native --ops conv,fold --seed 7 --cases 120'
    """
    numbers = {"seed": (settings.seed,), "cases": (max(1, cases),)}
    chosen = {**vars(settings.selection), "allow": settings.allow, **numbers}
    options = [part for name, given in chosen.items() if given for part in (f"--{name}", ",".join(map(str, given)))]
    return shlex.join(["gradspec", "check", settings.target, *options])
