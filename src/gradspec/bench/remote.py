"""The parent's end of a worker: a process that runs while it is asked something and is stopped otherwise."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from gradspec.bench.contenders import Participant
from gradspec.bench.worker import Message
from gradspec.system.machine import processors
from gradspec.system.processes import Child, ProcessLostError, environment, module_child


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
