"""A proof in a process of its own: the time limit is kept whatever it does, and its death costs no more than it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from math import inf, isfinite
from time import monotonic
from typing import Any

from gradspec.system.processes import KeptProcess, ProcessLostError, describe, environment, module_child, module_path
from gradspec.verify.answers import Answer

STARTING = 180.0
"""Seconds that a process may take to start, if the time limit allows."""

Watch = Callable[[dict[str, Any]], None]
"""Told of progress, and of warnings."""


class VerifyError(ValueError):
    """The files or the request are wrong; the message says with what."""


@dataclass(frozen=True)
class Question:
    """One question, as plain data: files, seconds in all, and how to answer."""

    network: str
    property: str
    seconds: float = 60.0
    kernels: str = "any"
    seed: int = 0
    explain: bool = False
    certificate: str | None = None
    """The file that a proof is saved to."""


@dataclass(frozen=True)
class SolverSettings:
    """What a process is started for; ``token`` is that of a campaign, with which it ends."""

    threads: int
    token: str = ""


class Solver(KeptProcess):
    """Close it, or use it in ``with closing(...)``."""

    def __init__(self, settings: SolverSettings) -> None:
        found = environment(settings.threads) | module_path()
        super().__init__(partial(module_child, "gradspec.verify.worker", [], found), STARTING)

    def refusal(self, why: str) -> Exception:
        return VerifyError(why)

    def answer(self, question: Question, watch: Watch = lambda _: None) -> Answer:
        """The answer, in time: "unknown" where there is none. ``VerifyError`` where a file is wrong."""
        begun, latest = monotonic(), dict[str, Any]()

        def left() -> float:
            return max(0.0, begun + question.seconds - monotonic())

        def unknown(error: str = "") -> Answer:
            parts, margin = latest.get("proved", 0) + latest.get("waiting", 0), latest.get("margin", inf)
            known = margin if isfinite(margin) else None
            return Answer("unknown", monotonic() - begun, parts, known, question.kernels, error=error)

        if question.seconds <= 0:
            return unknown()
        with self._in_use, self._ended_unless_answered():
            try:
                for message in self._messages(question, left):
                    if "answer" in message:
                        return Answer.read(message["answer"] | {"seconds": monotonic() - begun})
                    latest.update(message.get("progress", {}))
                    watch(message)
            except ProcessLostError as loss:
                return unknown("" if loss.status is None and left() == 0 else describe(loss))
        raise AssertionError("messages end with an answer")

    def explanation(self, seconds: float) -> tuple[list[dict[str, Any]] | None, str]:
        """After an answer that is to be explained: views of the roots, or why there are none."""
        if self._child is None:
            return None, "the process had to be stopped before"
        until = monotonic() + seconds
        with self._in_use, self._ended_unless_answered():
            try:
                message = self._receive(seconds)
                while "explained" not in message:
                    message = self._receive(max(0.0, until - monotonic()))
                return message["explained"], message.get("why", "")
            except ProcessLostError as loss:
                return None, describe(loss)

    def _messages(self, question: Question, left: Callable[[], float]) -> Iterator[dict[str, Any]]:
        if self._child is None or self._child.has_ended():
            self._starting = left()
            self._start()
        message = self._ask(left(), **asdict(question) | {"seconds": left()})
        while True:
            if "wrong" in message:
                raise VerifyError(message["wrong"])
            yield message
            message = self._receive(left())

    @contextmanager
    def _ended_unless_answered(self) -> Iterator[None]:
        """Ctrl-C leaves no process behind that still works on something."""
        try:
            yield
        except VerifyError:
            raise
        except BaseException:
            self._end()
            raise
