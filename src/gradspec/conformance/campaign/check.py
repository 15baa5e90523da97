"""``gs.conformance.check``: judge a target on many cases, on all cores or on any executor."""

from __future__ import annotations

import os
import secrets
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import closing
from dataclasses import replace
from math import inf
from time import monotonic
from typing import Any

from gradspec.conformance.campaign import drive, reproduce
from gradspec.conformance.campaign.isolated import Isolated, TargetError
from gradspec.conformance.campaign.local import InProcess
from gradspec.conformance.campaign.request import (
    CampaignBudget,
    Progress,
    Watch,
    check_names,
    check_target,
    require_spec,
    selection_of,
)
from gradspec.conformance.checks.probes import NO_TIME
from gradspec.conformance.judge.reduced import REDUCED
from gradspec.conformance.model.case import (
    DEFAULT_SECONDS,
    DEFAULT_TIMEOUT,
    FEATURES,
    REFERENCE_FEATURES,
    CampaignSettings,
    ReferenceRequest,
)
from gradspec.conformance.model.codec import encode
from gradspec.conformance.model.device import PoisonedError
from gradspec.conformance.model.domain import KernelDomain
from gradspec.conformance.model.run import Batch, Judged, Run
from gradspec.conformance.model.target import Target
from gradspec.conformance.model.verdict import Finding, Probe
from gradspec.conformance.shrink.causes import merge_findings
from gradspec.conformance.targets.devices import device_named
from gradspec.conformance.targets.reference.kernel import ReferenceKernel
from gradspec.conformance.targets.user.target import UserKernels
from gradspec.runtime.threads import get_num_threads
from gradspec.system.forking import unforkable
from gradspec.system.machine import machine

SHRINKING, SHRINKING_LEAST, SHRINKING_SHARE = 30.0, 5.0, 0.25
"""Seconds that findings are shrunk for where time is not limited or the run was interrupted, and the part of a limited
time that is kept for it."""
VERIFYING, VERIFYING_SHARE = 20.0, 0.4
"""The most seconds for running the programs of findings where time is not limited, and the part of the time for
shrinking that is kept for it."""
SANITIZING = 300.0
"""The most seconds for programs under ``compute-sanitizer``, which come on top."""
PROBING, PROBING_SHARE = 20.0, 0.1
"""The most seconds for probes, and the most of a limited time."""
FIRST_SHARE = 0.1
"""What the first cases have of a limited time, however long it took to start."""
OUTSTANDING = 64
"""Tasks that an executor is given at once: enough to keep a cluster busy, and few enough to be dropped."""
BATCHES_PER_TASK = 4


def check(
    target: object,
    *,
    spec: object = None,
    inputs: Any = None,
    params: str | None = None,
    array: str | None = None,
    cases: int | None = None,
    seconds: float | None = None,
    seed: int | None = None,
    ops: Iterable[str] = (),
    features: Iterable[str] = (),
    modes: Iterable[str] = (),
    dtypes: Iterable[str] = (),
    ranks: Iterable[int] = (),
    domain: str | Mapping[str, Any] = "",
    sizes: Iterable[int] = (),
    allow: Iterable[str] = (),
    algorithm: str | None = None,
    jobs: int | None = None,
    executor: Executor | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    at_least: int = 0,
    device: str = "cpu",
    sanitize: bool = False,
    isolate: bool = False,
    fail_fast: bool = False,
    progress: Watch | None = None,
) -> Run:
    """Judge a target and return the findings.

    The target is a name (``"torch"``, ``"module:object"``), and then runs in separate processes, so that a crash or a
    hang is a finding; or it is an object with kernels, and then runs in this process, or, with ``isolate``, in a copy
    of it (`gradspec.system.forking.unforkable` says where that is impossible). ``cases`` and ``seconds`` end the run,
    whichever comes first; with neither it takes a minute. The seconds cover the whole run, including probes and
    shrinking. With fewer than ``at_least`` judged cases of a mode it is incomplete, and ``run.lacks`` says how many are
    missing; ``run.not_judged`` names modes without any. The same seed and number of cases give the same cases and
    verdicts, with any number of ``jobs``. An ``executor`` (a ``ProcessPoolExecutor``, that of a Dask client, …) runs
    the cases wherever it likes, ``jobs`` tasks at once. ``fail_fast`` ends the run at the first case with a defect.
    ``algorithm`` says how your kernel computes its sums; ``sizes`` are its blocks, and cases have sizes around them.

    ``device="cuda"`` runs kernels on a GPU, your own on arrays of the library that ``array`` names. With ``sanitize``,
    the programs of defects also run under NVIDIA's ``compute-sanitizer``, and quote its report.

    With ``spec``, the target is any single kernel, judged by that reference on ``inputs`` (see
    `gradspec.testing.check_kernel`); both may be names.

    >>> run = check("native", cases=30, seed=1, ops=["avg_pool"], dtypes=["f32"], modes=["value"], jobs=1)
    >>> run.cases, run.by_kind("defect")
    (30, [])
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs is {jobs}; use at least one")
    require_spec(spec, inputs=inputs, params=params)
    by_spec = spec is not None or isinstance(target, ReferenceKernel)
    by_name = isinstance(target, str) and (spec is None or (isinstance(spec, str) and isinstance(inputs, str | None)))
    settings = CampaignSettings(
        check_target(target) if by_name and isinstance(target, str) else "",
        secrets.randbelow(2**32) if seed is None else seed,
        selection_of(ops, features, modes, dtypes, ranks, domain, sizes, REFERENCE_FEATURES if by_spec else FEATURES),
        check_names("mode of reduced precision", allow, REDUCED),
        algorithm,
        ReferenceRequest(str(spec), inputs, params, array) if spec is not None and by_name else None,
        timeout=timeout,
        path=(os.getcwd(), *filter(None, sys.path)),
        token=secrets.token_hex(8),
        device=device,
        array=array,
        sanitize=sanitize,
    )
    reproduce.require_sanitizer(device, sanitize)
    limit = DEFAULT_SECONDS if cases is None and seconds is None else seconds
    campaign = Campaign(settings, CampaignBudget(cases, limit, fail_fast, at_least), progress or (lambda _: None))
    if by_name:
        return campaign.run(executor, jobs)
    if spec is not None:
        kernels: Target = ReferenceKernel(target, spec, inputs, params=params, array=array)
    else:
        kernels = (target if isinstance(target, Target) else UserKernels(target)).declaring(array=array)
    return campaign.run_here(kernels.declaring(algorithm=algorithm), isolate)


class Campaign:
    """One run, from the first case to findings. Ctrl-C ends it early with what it has."""

    def __init__(
        self, settings: CampaignSettings, budget: CampaignBudget, watch: Watch, clock: Callable[[], float] = monotonic
    ) -> None:
        self.settings, self.budget, self.watch, self.clock = settings, budget, watch, clock
        self.start = self.clock()
        self.deadline = inf if budget.seconds is None else self.start + budget.seconds
        self.workers, self.repeated = 1, settings.selection
        self.ledger = drive.Ledger(budget.until_defect)
        self.report = Run(settings.target, "", machine_line(), settings.seed, allowed=settings.allow)
        self.report.tally, self.report.errors = self.ledger.tally, self.ledger.errors
        self.report.asked = settings.selection.modes
        self.report.at_least, self.report.wanted = budget.at_least, budget.cases or 0
        self._probing: Future[tuple[list[Probe], list[Finding]]] | None = None

    def run_here(self, kernels: Target, isolate: bool) -> Run:
        """An object with kernels, in this process or in copies of it."""
        kernels.within(self.settings.selection.domain).on(device_named(self.settings.device))
        self.settings = settings = replace(self.settings, target=kernels.name)
        self.report.target = kernels.name
        judge = Isolated(settings, kernels) if isolate else InProcess(kernels, settings)
        planner = Isolated(settings, kernels) if isolate else judge  # what is planned outlives those who judge
        return self.run_one(judge, planner, None if getattr(kernels, "host", None) else kernels.named())

    def run(self, executor: Executor | None, jobs: int | None) -> Run:
        """On an executor, or on ``jobs`` threads of this process, each with a process for the target.

        One more process is asked first and plans the cases: it alone needs to know all of them.
        """
        most = min(device_named(self.settings.device).count or get_num_threads(), get_num_threads())
        self.workers = workers = get_num_threads() if executor else jobs or most
        self.settings = replace(self.settings, threads=max(1, get_num_threads() // workers))
        with drive.threads(workers, self.settings.token) as here, closing(Isolated(self.settings)) as planner:
            self._tell("starting", 0.0)
            self._allow_what_is_in_force(planner)
            others = [here.submit(drive.warm_up, encode(self.settings)) for _ in range(0 if executor else workers)]
            plan = drive.BatchPlan(planner.plan, self.budget.cases)
            try:
                versions = planner.versions()
                self._find_domain(planner, planner.domain)
                plan.is_ready()
                wait(others, return_when=FIRST_COMPLETED)
                self._begin(versions, planner.describe_device(), planner.containment)
                tasks_at_once, each = (jobs or OUTSTANDING, BATCHES_PER_TASK) if executor else (workers, 1)
                parts = (executor or here, here, plan, self.ledger, self._time_left)
                self._judge_by(drive.Drive(self.settings, *parts, tasks_at_once, each, lambda: self._judging_on(here)))
                self._take_coverage(planner)
                self._take_probes()
            except KeyboardInterrupt:
                self.report.interrupted = True
            runner = reproduce.in_new_processes(self.settings.path), "a new process"
            failed = (self.ledger, self.settings, here, workers)
            self._end(lambda seconds: drive.shrink_failures(*failed, seconds, self._explaining), runner)
        self.report.unreached = 0 if self.ledger.is_full else plan.cases - self.ledger.cases
        self.report.repeat = repeat_command(
            replace(self.settings, selection=self.repeated), self.ledger.cases + self.report.unreached
        )
        return self.report

    def _judge_by(self, driver: drive.Drive) -> None:
        """Judge, and keep what was judged when that ends early."""
        try:
            driver.run()
        except (KeyboardInterrupt, TargetError) as stop:
            driver.interrupt()
            if isinstance(stop, KeyboardInterrupt) or not self.ledger.cases:
                raise
            self.ledger.errors.append(str(stop))

    def run_one(
        self, judge: InProcess | Isolated, planner: InProcess | Isolated, names: Mapping[str, Any] | None = None
    ) -> Run:
        """By one judge, of cases that another may plan; both are closed then.

        ``names`` are those that programs use; None where no program here can have the kernel.
        """
        with closing(judge), closing(planner):
            try:
                plan = drive.BatchPlan[Any](planner.plan, self.budget.cases)
                versions = judge.versions()
                self._allow_what_is_in_force(planner, judge)
                self._find_domain(planner, judge.domain)
                plan.is_ready()
                self._begin(versions, judge.describe_device(), judge.containment)
                self._judge_all(judge, plan)
                self._take_coverage(planner)
            except KeyboardInterrupt:
                self.report.interrupted = True
            runner = None if names is None or unforkable() else (reproduce.in_copies(names), "a copy of the process")
            self._end(lambda seconds: drive.shrink_failures_by(judge, self.ledger, seconds, self._explaining), runner)
        return self.report

    def _take_coverage(self, planner: InProcess | Isolated) -> None:
        for name, value in vars(planner.coverage(self.ledger.entered)).items():
            setattr(self.report, name, value)

    def _judge_all(self, judge: InProcess | Isolated, plan: drive.BatchPlan[Any]) -> None:
        try:
            while not self.ledger.is_full and (not plan.number or self._time_left() > 0) and (batch := plan.next()):
                self._judge_batch(judge, *batch)
                if batch[0] == 0:
                    self._measured(judge.probes(self._probes_for), judge.missing_errors())
                self._judging()
        except TargetError as stop:
            if not self.ledger.cases:
                raise
            self.ledger.errors.append(str(stop))

    def _judge_batch(self, judge: InProcess | Isolated, number: int, cases: list[Any]) -> None:
        """Judge a batch, or its first cases where time or an interrupt ends it."""
        done = list[Judged]()
        try:
            for case in judge.judged(cases):
                done.append(case)
                if self._time_left() <= 0:
                    break
        except PoisonedError as lost:  # in this process
            done.append(InProcess.crash_result(cases[len(done)], "poisoned", str(lost)))
            raise TargetError(f"the device is lost to this process: {lost}; no more cases were tried") from None
        finally:
            self.ledger.take(Batch(number, tuple(done)))

    def _find_domain(self, planner: InProcess | Isolated, declared: str) -> None:
        """What cases are drawn from: what is declared, or what is found of a kernel that declares nothing."""
        found = KernelDomain.read(planner.find_domain(self._probes_for))
        self.report.domain = str(found.over(KernelDomain.read(declared)))
        # Repeated with it, the same cases are made however much would be found in the time.
        self.repeated = replace(self.repeated, domain=str(found.over(KernelDomain.read(self.repeated.domain))))

    def _allow_what_is_in_force(self, planner: InProcess | Isolated, judge: InProcess | Isolated | None = None) -> None:
        """Report reduced precision that is documented and in force on the device, and apply its tolerance."""
        new = [] if self.settings.device == "cpu" else sorted(planner.rounding() - {*self.settings.allow})
        self.settings = replace(self.settings, allow=(*self.settings.allow, *new))
        self.report.allowed = self.settings.allow
        if judge is not None and new:
            judge.allowing(new)

    def _begin(self, versions: dict[str, str], device: str, containment: str) -> None:
        self.report.containment = containment
        self.report.machine += f"; {device}" if device else ""
        self.report.version = ", ".join(f"{name} {version}" for name, version in versions.items())
        self._tell("judging", 0.0)
        self.report.starting = self.report.seconds

    def _end(self, shrink: Callable[[float], list[Finding]], runner: tuple[reproduce.Runner, str] | None) -> None:
        """Shrink what failed, and run the programs that show it."""
        before, given = self.clock(), self._shrinks_for
        self._shrinking = (1 - VERIFYING_SHARE) * given
        findings = shrink(self._shrinking)
        if findings and runner is not None:
            most = VERIFYING if self.budget.seconds is None else inf
            left = 0.0 if self.report.interrupted else min(most, before + given - self.clock())
            findings = merge_findings(reproduce.verify_findings(findings, *runner, left, self.report.starting))
        if self.settings.sanitize and not self.report.interrupted:
            findings = reproduce.sanitize_findings(findings, self.settings.path, SANITIZING)
        self.report.findings = drive.sort_worst_first([*self.report.findings, *findings])
        self.report.cases, self.report.unjudged = self.ledger.cases, self.ledger.unjudged
        self.report.shrinking, self.report.seconds = self.clock() - before, self.clock() - self.start

    # --- time -----------------------------------------------------------------------------------------------------

    def _time_left(self) -> float:
        """Seconds in which cases may begin: what shrinking will need of the limit is not theirs, the beginning is."""
        if self.budget.seconds is None:
            return inf
        kept = min(SHRINKING_SHARE * self.budget.seconds, drive.A_CAUSE * len(self.ledger.failures) / self.workers)
        begun = self.start + self.report.starting
        least = begun + FIRST_SHARE * self.budget.seconds if not self.ledger.cases else -inf
        return max(self.deadline - kept, least) - self.clock()

    @property
    def _shrinks_for(self) -> float:
        if self.report.interrupted:
            return SHRINKING_LEAST
        if self.budget.seconds is None:
            return SHRINKING
        return max(self.deadline - self.clock(), min(SHRINKING_LEAST, FIRST_SHARE * self.budget.seconds))

    @property
    def _probes_for(self) -> float:
        return min(PROBING, PROBING_SHARE * (self.budget.seconds or inf))

    # --- probes ---------------------------------------------------------------------------------------------------

    def _judging_on(self, here: Executor) -> None:
        """When the first cases have been judged, one of the processes that judge is probed for a while."""
        if self._probing is None and self.ledger.cases:
            self._probing = here.submit(drive.measure, self.settings, self._probes_for)
        self._judging()

    def _take_probes(self) -> None:
        """What probes gave; those that have not ended in time are done without."""
        if self._probing is None:
            return
        seconds = min(max(0.0, self.deadline - self.clock()), self._probes_for + self.settings.timeout)
        wait([self._probing], seconds)
        if self._probing.done():
            self._measured(*self._probing.result())
        else:
            self._probing.cancel()
            self._measured([Probe("probes", "", "", NO_TIME)], [])

    def _measured(self, probes: list[Probe], findings: list[Finding]) -> None:
        self.report.probes, self.report.findings = probes, findings

    # --- telling --------------------------------------------------------------------------------------------------

    def _tell(self, stage: str, share: float, doing: str = "") -> None:
        self.report.cases, self.report.seconds = self.ledger.cases, self.clock() - self.start
        self.watch(Progress(stage, self.report, share, doing))

    def _judging(self) -> None:
        self._tell("judging", self.budget.share(self.report))

    def _explaining(self, done: int, causes: int) -> None:
        words = "1 group" if causes == 1 else f"{causes} groups"
        self._tell("shrinking", done / causes, f"shrinking {words} of failures, for {self._shrinking:.0f} s at most")


def machine_line() -> str:
    """``Neoverse-N1, aarch64, 2 cores, Linux 6.1``."""
    parts = machine()
    return f"{parts['processor']}, {parts['architecture']}, {parts['cores']} cores, {parts['system']}"


def repeat_command(settings: CampaignSettings, cases: int) -> str:
    """The command that makes so many cases again.

    >>> from gradspec.conformance.model.case import Selection
    >>> repeat_command(CampaignSettings("native", 7, Selection(ops=("conv", "fold"))), 120)
    'gradspec check native --ops conv,fold --seed 7 --cases 120'
    """
    numbers = {"seed": (settings.seed,), "cases": (max(1, cases),)}
    words = {"domain": settings.selection.domain, "algorithm": settings.algorithm, "array": settings.array}
    words |= {} if settings.device == "cpu" else {"device": settings.device}
    words |= {} if settings.reference is None else vars(settings.reference)
    single = {name: (word,) if word else () for name, word in words.items()}
    chosen = {**vars(settings.selection), **single, "allow": settings.allow, **numbers}
    options = [part for name, given in chosen.items() if given for part in (f"--{name}", ",".join(map(str, given)))]
    return shlex.join(["gradspec", "check", settings.target, *options])
