"""Copies of this process: what they do to themselves is nothing to it. They need nothing that can be imported."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import multiprocessing.connection
import multiprocessing.process
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, TypeAlias

from gradspec.system.host import pause_openmp
from gradspec.system.processes import Child, Lines, ProcessLostError, end_with_parent

CAN_FORK = sys.platform == "linux"
"""Elsewhere there is no such thing, or libraries do not survive it."""
ENDING = 1.0
"""Seconds in which a copy that is not needed any longer may end in order."""
DEVICES = ("/dev/nvidia", "/dev/kfd")
DOUBT = (
    "either it hangs, or it needs threads that it has started before, which a copy of a process has not: "
    "isolate=False tells which"
)

Answers: TypeAlias = Callable[[dict[str, Any]], Iterator[dict[str, Any]]]
"""What is said to a request."""


def unforkable() -> str:
    """Why a copy of this process could not do what this one can; nothing where it could."""
    if not CAN_FORK:
        return "a process cannot be copied on this system"
    if holds_gpu():
        return "a GPU is in use here, which a copy of the process cannot use"
    if any("XLA" in name for name in _threads()):
        return "JAX is in use here, and waits for its threads for ever in a copy of the process"
    return ""


def holds_gpu() -> bool:
    """Whether this process has a GPU's file open, as it has from its first call of a driver on."""
    return any(file.startswith(DEVICES) for file in _open_files())


def _open_files() -> Iterator[str]:
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            yield os.readlink(entry)


def _threads() -> list[str]:
    """The names of all threads, Python's and others."""
    names = []
    for entry in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            names.append((entry / "comm").read_text())
    return names


def forked(action: Callable[[], object]) -> multiprocessing.process.BaseProcess:
    """A copy of this process that acts and ends."""
    pause_openmp()
    quiet = warnings.catch_warnings(action="ignore")  # that the copy has no other threads

    def act() -> None:
        quiet.__exit__(None, None, None)
        action()

    process = multiprocessing.get_context("fork").Process(target=act)
    with quiet:
        process.start()
    return process


def fate(action: Callable[[], object], seconds: float) -> str:
    """``crash`` if an action ends its process, ``hang`` if it has not ended within so many seconds, or nothing.

    >>> fate(lambda: 1 / 0, 5), fate(os.abort, 5) if CAN_FORK else "crash"
    ('', 'crash')
    """
    if not CAN_FORK:
        return ""
    child = forked(partial(_act, action, seconds))
    child.join(seconds)
    if child.exitcode is None:
        child.kill()
        child.join()
        return "hang"
    return "crash" if child.exitcode else ""


def _act(action: Callable[[], object], seconds: float) -> None:
    """Act in silence and end; by a clock of its own too, for nobody may be left to wait for the child."""
    status = 1
    try:
        silence = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silence, stream)
        faulthandler.disable()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, 2 * seconds + 1)
        with suppress(Exception):
            action()
        status = 0
    finally:
        os._exit(status)


# --- copies that are asked and answer ---------------------------------------------------------------------------------


class ForkedProcess:
    """What `Child` needs of a process, of one that is forked."""

    def __init__(self, serve: Callable[[int, int], None], log: BinaryIO) -> None:
        (requests, stdin), (stdout, answers) = os.pipe(), os.pipe()

        def act() -> None:
            os.setpgid(0, 0)
            os.close(stdin)
            os.close(stdout)
            _print_into(log)
            serve(requests, answers)

        self._process = forked(act)
        self.has_company = len(_threads()) > 1
        """Whether this process had threads that the other has not: OpenBLAS has ended its own before the fork."""
        os.close(requests)
        os.close(answers)
        self.stdin, self.stdout = os.fdopen(stdin, "wb", 0), os.fdopen(stdout, "rb", 0)

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("fork", timeout or 0.0)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def has_ended_within(self, seconds: float) -> bool:
        return bool(multiprocessing.connection.wait([self._process.sentinel], seconds))


def _print_into(log: BinaryIO) -> None:
    """All that is printed, by Python or by C, goes to one file."""
    faulthandler.disable()
    for stream in (1, 2):
        os.dup2(log.fileno(), stream)
    sys.stdout, sys.stderr = (open(stream, "w", buffering=1, closefd=False) for stream in (1, 2))  # noqa: SIM115


class ForkedChild(Child):
    """A copy of this process. What it prints is printed here when it ends; its warnings are given here."""

    def __init__(self, answers: Answers, greeting: dict[str, Any]) -> None:
        self._answers, self._greeting = answers, greeting
        log = TemporaryFile()  # noqa: SIM115  (`kill` closes it)
        self._forked = ForkedProcess(self._serve, log)
        super().__init__(self._forked, log)

    def _silent(self, seconds: float) -> ProcessLostError:
        loss = super()._silent(seconds)
        loss.doubt = DOUBT if self._forked.has_company else ""
        return loss

    def _ended(self) -> ProcessLostError:
        loss = super()._ended()
        loss.doubt = DOUBT if "fork()" in loss.printed else ""  # as Numba says before it ends itself
        return loss

    def receive(self, seconds: float) -> dict[str, Any]:
        message = super().receive(seconds)
        for text, module, name, file, line in message.pop("warnings", ()):
            kind = getattr(sys.modules.get(module), name, None)
            is_one = isinstance(kind, type) and issubclass(kind, Warning)
            warnings.warn_explicit(text, kind if is_one else UserWarning, file, line)
        return message

    def kill(self) -> None:
        """Let it end in order if it can, so that whoever measures coverage there may save it."""
        if self._log.closed:
            return
        self._forked.stdin.close()
        self._forked.has_ended_within(ENDING)
        self._log.seek(0)
        printed = self._log.read().decode(errors="replace")
        super().kill()
        if printed:
            print(printed, end="")

    def _serve(self, requests: int, answers: int) -> None:
        end_with_parent()
        lines, told, libc = Lines(requests), set[tuple[Any, ...]](), ctypes.CDLL(None)
        with os.fdopen(answers, "w") as channel, warnings.catch_warnings(record=True) as caught, suppress(EOFError):

            def say(message: dict[str, Any]) -> None:
                new = dict.fromkeys(w for w in map(_described, caught) if w not in told)
                told.update(new)
                caught.clear()
                libc.fflush(None)
                print(json.dumps(message | {"warnings": list(new)}), file=channel, flush=True)

            say(self._greeting)
            while (line := lines.next(1e6)) is not None:
                for answer in self._answers(json.loads(line)):
                    say(answer)


def _described(caught: warnings.WarningMessage) -> tuple[Any, ...]:
    kind = caught.category
    return str(caught.message), kind.__module__, kind.__name__, caught.filename, caught.lineno
