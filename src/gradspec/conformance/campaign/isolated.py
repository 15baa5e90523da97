"""A target in a process of its own, so that its crash or hang is something said about it, and no more."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Any

from gradspec.conformance.cases.data import drawn
from gradspec.conformance.model.case import CampaignSettings, CheckCase
from gradspec.conformance.model.codec import decode, encode
from gradspec.conformance.model.run import Batch, Judged
from gradspec.conformance.model.verdict import Failure, Finding, Probe, Verdict
from gradspec.system.processes import Child, ProcessLostError, environment

STARTING = 180.0
"""Seconds that importing a framework may take, on a busy machine."""
FIRST = 10.0
"""Seconds that the first case of a process may take longer than others: much is done then for the first time."""
LIFETIME = 1000
"""Batches after which a process is replaced: compilers keep all that they ever compiled."""
PATIENCE = 3
"""How often a process may be lost before it has begun a case."""
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS, signal.SIGTRAP)
"""Signals that a process brings on itself; others may come from anybody."""
SIGNALS = {known.value: known.name for known in signal.Signals}

Cases = list[dict[str, Any]]
"""The cases of one batch, as JSON."""


class TargetError(Exception):
    """The target cannot be judged: it cannot be started, or it cannot be told what it offers."""


class Isolated:
    """Close it, or use it in ``with closing(...)``. The process starts when it is first asked something."""

    def __init__(self, settings: CampaignSettings) -> None:
        self.settings = settings
        self.is_closed = False
        self._child: Child | None = None
        self._batches = 0
        self._in_use = threading.Lock()

    def close(self) -> None:
        """End the process, now and for good, from any thread; a thread that waits for it is told that it is lost."""
        self.is_closed = True
        while not self._in_use.acquire(timeout=0.05):
            if (child := self._child) is not None:
                with suppress(ProcessLookupError):
                    child.signal(signal.SIGKILL)
        self._end()
        self._in_use.release()

    # --- what can be asked ----------------------------------------------------------------------------------------

    def versions(self) -> dict[str, str]:
        """Starts the process, or says why the target cannot be judged."""
        try:
            with self._in_use:
                return self._start()
        except ProcessLostError as loss:
            raise TargetError(f"{self.settings.target} could not be started: {describe(loss)}") from None

    def probes(self) -> list[Probe]:
        """A target that dies of being probed has shown something too."""
        try:
            with self._in_use:
                return [decode(Probe, probe, "probe") for probe in self._ask(do="probes")["probes"]]
        except ProcessLostError as loss:
            return [Probe("probes", "", "", describe(loss), normal=False)]

    def broken_promises(self) -> list[Finding]:
        try:
            with self._in_use:
                return [decode(Finding, finding, "finding") for finding in self._ask(do="promises")["findings"]]
        except ProcessLostError as loss:
            lost = Verdict("defect", rule_of(loss), got=describe(loss), expected="the promised error")
            return [Finding.of(lost, "", "value")]

    def findings(self, failures: Sequence[Failure], seconds: float) -> list[Finding]:
        """The findings of one group, shrunk for at most so long; as they were met if shrinking kills the process."""
        request = {"do": "findings", "failures": list(map(encode, failures))}
        with self._in_use:
            try:
                answer = self._ask(seconds, **request, seconds=seconds)
            except ProcessLostError:
                answer = self._ask(**request, seconds=0)
        return [decode(Finding, finding, "finding") for finding in answer["findings"]]

    def plan(self, first: int, count: int) -> list[Cases]:
        """The cases of so many batches."""
        with self._in_use:
            for _ in range(PATIENCE):
                try:
                    return self._ask(STARTING, do="plan", first=first, count=count)["batches"]  # type: ignore[no-any-return]
                except ProcessLostError as loss:
                    self._refuse_if_closed()
                    why = describe(loss)
        raise TargetError(f"cases could not be planned: {why}")

    def batch(self, number: int, cases: Cases, deadline: float = inf) -> Batch:
        """Judge a batch. A case that ends the process or keeps it silent is a failure, and the others go on.

        No case begins after the deadline, nor when this is closed: the batch then has its first cases only.
        """
        judged = list[Judged]()
        with self._in_use:
            while len(judged) < len(cases) and monotonic() < deadline:
                try:
                    self._judge_more(judged, cases, deadline)
                except TargetError:
                    if not self.is_closed:
                        raise
                    break
        return Batch(number, tuple(judged))

    # --- cases ----------------------------------------------------------------------------------------------------

    def _judge_more(self, judged: list[Judged], cases: Cases, deadline: float) -> None:
        """The cases that are left, up to one at which the process is lost."""
        try:
            for case in self._judged(cases[len(judged) :], deadline):
                judged.append(case)  # noqa: PERF402  (those before a loss stay)
        except ProcessLostError as loss:
            self._refuse_if_closed()
            judged.append(self._alone(cases[len(judged)], loss))

    def _judged(self, cases: Cases, deadline: float = inf) -> Iterator[Judged]:
        self._batches += 1
        if self._batches > LIFETIME:
            self._end()
        seconds = None if deadline == inf else deadline - monotonic()
        answer = self._ask(FIRST, do="judge", cases=cases, seconds=seconds)
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
        try:
            (judged,) = self._judged([case])
        except ProcessLostError as again:
            self._refuse_if_closed()
            return self._deadly(case, again)
        if loss.status is not None and -loss.status in CRASHES:
            return self._deadly(case, loss, "alone in a new process the case does not crash")
        return judged

    def _deadly(self, case: dict[str, Any], loss: ProcessLostError, detail: str = "") -> Judged:
        about = decode(CheckCase, case, "case")
        call, features = drawn(about), tuple(sorted(about.features))
        expected = f"an answer within {self.settings.timeout:g} s" if loss.status is None else "results or an exception"
        verdict = Verdict("defect", rule_of(loss), got=describe(loss), expected=expected, detail=detail)
        failure = Failure(call, verdict, features, about.name)
        return Judged(call.problem.op, call.mode, features, "defect", failures=(failure,))

    # --- the process ----------------------------------------------------------------------------------------------

    def _ask(self, more_seconds: float = 0.0, /, **request: Any) -> dict[str, Any]:
        """The first answer to a request. A process that had ended by itself while idle is replaced first."""
        if self._child is None or self._child.has_ended():
            self._start()
        assert self._child is not None
        seconds = self.settings.timeout + more_seconds
        try:
            self._child.send(request, seconds)
        except ProcessLostError:
            self._child = None
            raise
        return self._receive(seconds)

    def _receive(self, seconds: float) -> dict[str, Any]:
        if self._child is None:
            raise ProcessLostError("was closed")
        try:
            answer = self._child.receive(seconds)
        except ProcessLostError:
            self._child = None
            raise
        if "failed" in answer:
            raise TargetError(answer["failed"])
        return answer

    def _start(self) -> dict[str, str]:
        self._refuse_if_closed()
        self._end()
        command = [sys.executable, "-m", __name__.replace("isolated", "worker"), json.dumps(encode(self.settings))]
        self._child, self._batches = Child(command, self._environment()), 0
        return self._receive(max(STARTING, self.settings.timeout))["versions"]  # type: ignore[no-any-return]

    def _environment(self) -> dict[str, str]:
        """The process finds modules where this one does, and where the campaign was begun."""
        here = [entry or os.getcwd() for entry in sys.path]
        path = dict.fromkeys([*self.settings.path, *here])
        return environment(self.settings.threads) | {"PYTHONPATH": os.pathsep.join(path)}

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()

    def _refuse_if_closed(self) -> None:
        if self.is_closed:
            raise TargetError("the campaign is over")


def rule_of(loss: ProcessLostError) -> str:
    return "hang" if loss.status is None else "crash"


def describe(loss: ProcessLostError) -> str:
    """``the process was ended by SIGSEGV``.

    >>> describe(ProcessLostError("ended", -11)), describe(ProcessLostError("ended", 3, "bye"))
    ('the process was ended by SIGSEGV', 'the process ended with status 3: bye')
    """
    if loss.status is None:
        return str(loss)
    said = f": {loss.printed}" if loss.printed else ""
    if loss.status < 0:
        return f"the process was ended by {SIGNALS.get(-loss.status, f'signal {-loss.status}')}{said}"
    return f"the process ended with status {loss.status}{said}"
