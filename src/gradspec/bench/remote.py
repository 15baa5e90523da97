"""The parent's end of a worker: a process that runs while it is asked something and is stopped otherwise."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any

from gradspec.bench.contenders import Entry


class WorkerLostError(Exception):
    """The process ended or did not answer in time; it has been killed and is started again when next asked."""


def environment(threads: int) -> dict[str, str]:
    """What makes every library use this number of threads and start no helper processes."""
    names = ("OMP", "MKL", "OPENBLAS", "GRADSPEC")
    counts = dict.fromkeys((*(f"{name}_NUM_THREADS" for name in names), "PJRT_NPROC", "NPROC"), str(threads))
    return os.environ | counts | {"TORCHINDUCTOR_COMPILE_THREADS": "1", "JAX_PLATFORMS": "cpu"}


@dataclass
class Remote:
    """Use it in a ``with`` statement: nothing is left running after it."""

    entry: Entry
    threads: int
    folder: Path
    timeout: float
    versions: dict[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None
    _unread: bytes = b""

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Raises ``WorkerLostError`` with the reason if the contender cannot be started."""
        command = [sys.executable, "-m", "gradspec.bench.worker", self.entry.factory, str(self.threads)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment(self.threads),
                process_group=0,  # Ctrl-C reaches the parent alone, and a signal reaches the worker's own children
            )
        self._unread = b""
        if self.threads < len(os.sched_getaffinity(0)):
            os.sched_setaffinity(self._process.pid, sorted(os.sched_getaffinity(0))[: self.threads])
        greeting = self._reply(self.timeout)
        if "failed" in greeting:
            self.kill()
            raise WorkerLostError(greeting["failed"])
        self.versions = greeting["versions"]
        self._stop()

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer to one request; the process runs from here until it has answered."""
        if self._process is None:
            self.start()
        assert self._process is not None
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._lost("ended") from None
        answer = self._reply(self.timeout)
        self._stop()
        return answer

    def kill(self) -> None:
        """End the process, whatever it is doing, and its children."""
        if self._process is None:
            return
        process, self._process = self._process, None
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue  # a request was still unread

    @property
    def _log(self) -> Path:
        return self.folder / f"{self.entry.name}.log"

    def _signal(self, number: int) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def _stop(self) -> None:
        """Returns when the process has stopped, so that the next one runs alone."""
        assert self._process is not None
        self._signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def _reply(self, timeout: float) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        pipe, deadline = self._process.stdout.fileno(), monotonic() + timeout
        while b"\n" not in self._unread:
            if not select.select([pipe], [], [], max(0.0, deadline - monotonic()))[0]:
                raise self._lost(f"gave no answer in {timeout:g} s")
            received = os.read(pipe, 1 << 16)
            if not received:
                raise self._lost("ended")
            self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)  # type: ignore[no-any-return]

    def _lost(self, what: str) -> WorkerLostError:
        self.kill()
        printed = self._log.read_text(errors="replace").strip().splitlines()
        return WorkerLostError(f"the process {what}" + (f": {printed[-1]}" if printed and what == "ended" else ""))
