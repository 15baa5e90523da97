"""A target in a process of its own, so that its crash or hang is something said about it, and no more."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from math import inf
from time import monotonic
from typing import Any, TypeVar, get_type_hints

from gradspec.conformance.campaign.local import InProcess
from gradspec.conformance.campaign.worker import TargetWorker, greeting
from gradspec.conformance.cases.stream import Stream
from gradspec.conformance.model.case import CampaignSettings
from gradspec.conformance.model.codec import decode, encode
from gradspec.conformance.model.run import Batch, Coverage, Judged
from gradspec.conformance.model.target import Target
from gradspec.conformance.model.verdict import Failure, Finding, Probe, Verdict
from gradspec.conformance.shrink.search import DEADLY
from gradspec.conformance.targets.devices import device_named
from gradspec.system.forking import ForkedChild
from gradspec.system.processes import (
    Child,
    KeptProcess,
    ProcessLostError,
    describe,
    environment,
    module_child,
    module_path,
)

EXPLAINING = 20.0
"""Seconds in which a finding is put into words, and its programs are written."""
STARTING = 180.0
"""Seconds that importing a framework may take, on a busy machine."""
FIRST, FIRST_TIMES = 10.0, 4.0
"""Seconds that the first case of a process may take longer than others, since much is done then for the first time; at
most so many times as long."""
LIFETIME = 1000
"""Batches after which a process is replaced: compilers keep all that they ever compiled."""
BUSY = 5.0
"""By how many times its limit an answer may be late because other processes had the processors."""
FOREVER = 1e6
"""No limit of its own: the caller has one."""
PATIENCE = 3
"""How often a process may be lost before it has begun a case."""
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS, signal.SIGTRAP)
"""Signals that a process brings on itself; others may come from any process."""

Cases = list[dict[str, Any]]
"""The cases of one batch, as JSON."""
T = TypeVar("T")


class TargetError(RuntimeError):
    """The target cannot be judged: it cannot be started, or its cases not planned. Its cause may be a lost process."""


class DeviceLostError(ProcessLostError):
    """The process lives, and its device is lost to it; it has been killed."""


_numbers = count()


class Isolated(KeptProcess):
    """Close it, or use it in ``with closing(...)``. The process starts when it is first asked something."""

    patience = BUSY

    def __init__(self, settings: CampaignSettings, target: Target | None = None, goes_on: bool = False) -> None:
        """A target that is given is judged in copies of this process, so that it need not have a name.

        ``goes_on`` says that somebody else ends a run of calls that hang.
        """
        if target is not None and not target.references:  # what each copy would work out anew is worked out here
            Stream(settings.seed, settings.selection, lambda problem, mode: None, target.domain).batch(0)
        self.settings, self._target, number = settings, target, next(_numbers)

        def begin() -> Child:
            if target is None:
                return _worker(self.settings, number)
            return ForkedChild(TargetWorker(target, self.settings).answers, greeting(target))

        super().__init__(begin, max(STARTING, settings.timeout))
        self.domain = ""
        """Of the target, when it has started."""
        self.containment = ""
        """What its kernels are contained by, likewise."""
        self._versions = dict[str, str]()
        self._batches, self._hangs, self._found, self._goes_on = 0, 0, "", goes_on or target is None

    def refusal(self, why: str) -> Exception:
        return TargetError(why)

    # --- what can be asked ----------------------------------------------------------------------------------------

    def versions(self) -> dict[str, str]:
        """Of the target, from its process, or why it cannot be judged."""
        try:
            with self._in_use:
                if self._child is None or self._child.has_ended():
                    self._start()
                return self._versions
        except ProcessLostError as loss:
            raise TargetError(f"{self.settings.target} could not be started: {describe(loss)}") from loss

    def describe_device(self) -> str:
        """The facts of the target's device; nothing of the CPU."""
        with suppress(ProcessLostError), self._in_use:
            return self._result(InProcess.describe_device, STARTING) if self._has_device else ""
        return ""

    def probes(self, seconds: float) -> list[Probe]:
        """As many as there are in so many seconds. A target that dies of being probed has shown something too."""
        try:
            with self._in_use:
                return self._result(InProcess.probes, seconds, seconds=seconds)
        except ProcessLostError as loss:
            return [Probe("probes", "", "", describe(loss), normal=False)]

    def missing_errors(self) -> list[Finding]:
        try:
            with self._in_use:
                return self._result(InProcess.missing_errors)
        except ProcessLostError as loss:
            lost = Verdict("defect", rule_of(loss), got=describe(loss), expected="the documented error")
            return [Finding.of(lost, "", "value")]

    def allowing(self, modes: Iterable[str]) -> None:
        """Permit further modes of reduced precision, from the next process on."""
        self.settings = replace(self.settings, allow=(*self.settings.allow, *modes))
        with self._in_use:
            self._end()

    def rounding(self) -> frozenset[str]:
        """Modes of reduced precision that are in force on the device."""
        with suppress(ProcessLostError), self._in_use:
            return self._result(InProcess.rounding, STARTING)
        return frozenset()

    def findings(self, failures: Sequence[Failure], seconds: float) -> list[Finding]:
        """The findings of one group, shrunk for at most so long; as they were met if shrinking kills the process."""
        told = list(map(encode, failures))
        with self._in_use:
            self._renew_for(told)
            try:  # what was shrunk is explained after its time
                return self._result(InProcess.findings, seconds + EXPLAINING, failures=told, seconds=seconds)
            except ProcessLostError:
                return self._result(InProcess.findings, EXPLAINING, failures=told, seconds=0)

    def find_domain(self, seconds: float) -> str:
        """What a kernel takes that declares nothing; nothing where trying it ends the process."""
        try:
            with self._in_use:
                self._found = self._result(InProcess.find_domain, seconds, seconds=seconds)
        except ProcessLostError:
            self._refuse_if_closed()
        return self._found

    def plan(self, first: int, count: int) -> list[Cases]:
        """The cases of so many batches."""
        with self._in_use:
            for _ in range(PATIENCE):
                careless = self._target is not None and not self._target.is_careful  # a call may be what takes so long
                try:
                    more = 0.0 if careless else STARTING
                    return self._asked(more, do="plan", first=first, count=count, domain=self._found)["result"]  # type: ignore[no-any-return]
                except ProcessLostError as loss:
                    self._refuse_if_closed()
                    why = loss
        raise TargetError(f"cases could not be planned: {describe(why)}") from why

    def coverage(self, batches: int) -> Coverage:
        """How far the cases of the first batches went; nothing is known of it if the process is lost."""
        with suppress(ProcessLostError, TargetError), self._in_use:
            return self._result(InProcess.coverage, STARTING, batches=batches)
        return Coverage()

    def _result(self, method: Callable[..., T], more_seconds: float = 0.0, /, **arguments: Any) -> T:
        """What a method of `InProcess` returns in the process; arguments are plain data."""
        answer = self._asked(more_seconds, do=method.__name__, **arguments)
        kind: type[T] = get_type_hints(method)["return"]
        return decode(kind, answer["result"], method.__name__)

    def batch(self, number: int, cases: Cases, deadline: float = inf) -> Batch:
        return Batch(number, tuple(self.judged(cases, deadline)))

    def forwarded(self, request: dict[str, Any]) -> dict[str, Any]:
        """Forward a request of another process, and wait for the answer without a limit."""
        with self._in_use:
            self._renew_for(request.get("failures", ()))
            return self._ask(FOREVER, **request)

    def judged(self, cases: Cases, deadline: float = inf, together: bool = True) -> Iterator[Judged]:
        """The cases of a batch. One that ends the process or keeps it silent is a failure, and the others go on.

        On a device the calls of cases are made together if that is asked for, and until one of them fails.

        No case begins after the deadline, nor when this is closed: the batch then has its first cases only.
        """
        done = 0
        with self._in_use:
            try:
                while done < len(cases) and monotonic() < deadline:
                    for case in self._judged_or_lost(cases[done:], deadline, together and self._has_device):
                        done += 1
                        yield case
            except TargetError:
                if not self.is_closed:
                    raise
            except BaseException:  # The caller is gone; discard the remaining answers.
                self._end()
                raise

    # --- cases ----------------------------------------------------------------------------------------------------

    def _judged_or_lost(self, cases: Cases, deadline: float, together: bool) -> Iterator[Judged]:
        """The cases up to one at which the process is lost, that one included."""
        done = 0
        try:
            for case in self._judged(cases, deadline, together):
                done += 1
                yield case
        except ProcessLostError as loss:
            self._refuse_if_closed()
            if together:  # which of them it was shows when their calls are made one by one
                yield from self._judged_or_lost(cases[done:], deadline, together=False)
                return
            yield self._alone(cases[done], loss)
            if self._hangs and not self._goes_on:  # no time limit ends a run of hanging calls
                raise TargetError(f"{self.settings.target} hangs: the cases after that one were not tried") from None

    def _judged(self, cases: Cases, deadline: float = inf, together: bool = False) -> Iterator[Judged]:
        self._batches += 1
        if self._batches > LIFETIME:
            self._end()
        seconds = None if deadline == inf else deadline - monotonic()
        more = min(FIRST, FIRST_TIMES * self.settings.timeout)
        answer = self._asked(more, do="judge", cases=cases, seconds=seconds, together=together)
        for index in range(len(cases)):
            if index:
                answer = self._receive(self.settings.timeout)
            if answer["judged"] is None:
                return
            yield decode(Judged, answer["judged"], "judged")

    def _alone(self, case: dict[str, Any], loss: ProcessLostError) -> Judged:
        """A case again, alone in a new process: what somebody else did to the process, or to the machine, is not held
        against the target.
        """
        if loss.doubt:  # it may be of our own doing
            raise TargetError(f"{self.settings.target} was called, and {describe(loss)}; {loss.doubt}")
        try:
            (judged,) = self._judged([case])
        except ProcessLostError as again:
            self._refuse_if_closed()
            self._hangs += rule_of(again) == "hang"
            return self._crash_result(case, again)
        if isinstance(loss, DeviceLostError) or (loss.status is not None and -loss.status in CRASHES):
            return self._crash_result(case, loss, "alone in a new process the case does not crash")
        return judged

    def _crash_result(self, case: dict[str, Any], loss: ProcessLostError, detail: str = "") -> Judged:
        rule = rule_of(loss)
        expected = f"an answer within {self.settings.timeout:g} s" if rule == "hang" else "results or an exception"
        got = loss.what if rule == "poisoned" else describe(loss)
        return self._result(InProcess.crash_result, case=case, rule=rule, got=got, expected=expected, detail=detail)

    # --- the process ----------------------------------------------------------------------------------------------

    def _renew_for(self, failures: Iterable[dict[str, Any]]) -> None:
        """Deadly calls are tried in copies of the process, which must not have used a device before."""
        if self._has_device and any(failure["verdict"]["rule"] in DEADLY for failure in failures):
            self._end()

    @property
    def _has_device(self) -> bool:
        return self.settings.device != "cpu"

    def _receive(self, seconds: float) -> dict[str, Any]:
        answer = super()._receive(seconds)
        if "poisoned" in answer:
            self._end()
            self._lost()
            raise DeviceLostError(answer["poisoned"])
        return answer

    def _asked(self, more_seconds: float = 0.0, /, **request: Any) -> dict[str, Any]:
        return self._ask(self.settings.timeout + more_seconds, **request)

    def _start(self) -> dict[str, Any]:
        self._batches = 0
        greeting = super()._start()
        self.domain, self._versions, self.containment = (greeting[k] for k in ("domain", "versions", "containment"))
        return greeting

    def _lost(self) -> None:
        """Copies that come after one that was lost expect the like."""
        super()._lost()
        if self._target is not None:
            self._target.is_careful = True


def _worker(settings: CampaignSettings, number: int) -> Child:
    """A process that finds modules where this one does, and where the campaign was begun, with a device of its own."""
    found = environment(settings.threads) | module_path(settings.path)
    found |= device_named(settings.device).environment(number)
    name = "worker" if settings.device == "cpu" else "template"
    child = module_child(__name__.replace("isolated", name), [], found)
    child.send(encode(settings), STARTING)
    return child


def rule_of(loss: ProcessLostError) -> str:
    if isinstance(loss, DeviceLostError):
        return "poisoned"
    return "hang" if loss.status is None else "crash"
