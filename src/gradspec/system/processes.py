"""Processes that are asked and answer, one JSON value per line, and that may crash or hang at any moment."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from tempfile import TemporaryFile
from time import monotonic
from typing import IO, Any, Protocol

from gradspec.spec.errors import UnsupportedError

PR_SET_PDEATHSIG = 1
LOOKING = 1.0
"""Seconds between two looks at how long processes had no processor: each takes longer than a small case."""
LONGEST_LINE = 4096
"""Bytes of a last line that are told."""
SIGNALS = {known.value: known.name for known in signal.Signals}


class ProcessLostError(Exception):
    """The process ended or did not answer in time; it has been killed.

    ``status`` is what it ended with, the negative of a signal's number if one ended it, and None where it was silent;
    ``printed`` is the last line of its standard error; ``doubt`` says why the loss may not be of its own doing.
    """

    def __init__(self, what: str, status: int | None = None, printed: str = "", doubt: str = "") -> None:
        super().__init__(f"the process {what}" + (f": {printed}" if printed else ""))
        self.what, self.status, self.printed, self.doubt = what, status, printed, doubt


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


def processor_delay() -> float:
    """Seconds that the processes which this one has started, and theirs, could have run and had no processor."""
    processes, nanoseconds = [str(os.getpid())], 0
    for process in processes:
        for task in Path(f"/proc/{process}/task").glob("*"):
            with suppress(OSError):  # it has ended
                processes += (task / "children").read_text().split()
                nanoseconds += int((task / "schedstat").read_text().split()[1]) * (process != processes[0])
    return nanoseconds / 1e9


class Lines:
    """Lines from a pipe, each awaited for a limited time."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe
        self._unread = b""

    def next(self, seconds: float) -> bytes | None:
        """The next line; ``EOFError`` at the end of the pipe, None when there was no line for so many seconds."""
        deadline = monotonic() + seconds
        while b"\n" not in self._unread:
            if not _is_ready(self.pipe, select.POLLIN, deadline):
                return None
            received = os.read(self.pipe, 1 << 16)
            if not received:
                raise EOFError
            self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        return line


def _is_ready(pipe: int, event: int, deadline: float) -> bool:
    """Whether a pipe can be read or written before the deadline; one that is broken can, and says so then."""
    poll = select.poll()  # unlike ``select.select``, it takes descriptors of any size
    poll.register(pipe, event)
    return bool(poll.poll(1000 * max(0.0, deadline - monotonic())))


class Process(Protocol):
    """What is needed of a process with pipes, as ``subprocess.Popen`` has it."""

    @property
    def pid(self) -> int: ...
    @property
    def stdin(self) -> IO[bytes] | None: ...
    @property
    def stdout(self) -> IO[bytes] | None: ...

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...


class Child:
    """A process of our own, in a group of its own, at the other end of two pipes, with a file for what it prints."""

    patience: float = 0.0
    """By how many times its limit an answer may be late for want of a processor, as it is on a busy machine."""

    def __init__(self, process: Process, log: IO[bytes]) -> None:
        self._process, self._log = process, log
        self._looked, self._delay = -inf, 0.0
        assert process.stdout is not None
        self._lines = Lines(process.stdout.fileno())

    @property
    def pid(self) -> int:
        return self._process.pid

    def has_ended(self) -> bool:
        """Whether the process has ended by itself."""
        return self._process.poll() is not None

    def send(self, message: Mapping[str, Any], seconds: float) -> None:
        """``ProcessLostError`` where the process does not read it all in time: a pipe holds only so much."""
        assert self._process.stdin is not None
        pipe, deadline = self._process.stdin.fileno(), monotonic() + seconds
        unsent = json.dumps(message).encode() + b"\n"
        try:
            for start in range(0, len(unsent), select.PIPE_BUF):  # what a pipe takes whole if it takes anything
                if not _is_ready(pipe, select.POLLOUT, deadline):
                    raise self._silent(seconds)
                os.write(pipe, unsent[start : start + select.PIPE_BUF])
        except BrokenPipeError:
            raise self._ended() from None

    def receive(self, seconds: float) -> dict[str, Any]:
        """The next message; ``ProcessLostError`` where none comes in time."""
        start, left = monotonic(), seconds
        if self.patience and start > self._looked + LOOKING:
            self._looked, self._delay = start, processor_delay()
        try:
            while (line := self._lines.next(left)) is None and self.patience:
                delay = min(processor_delay() - self._delay, self.patience * seconds)
                if (left := start + seconds + delay - monotonic()) <= 0:
                    break
        except EOFError:
            raise self._ended() from None
        if line is None:
            raise self._silent(seconds)
        return json.loads(line)  # type: ignore[no-any-return]

    def signal(self, number: int) -> None:
        """Send a signal to the process and its children."""
        os.killpg(self.pid, number)

    def kill(self) -> None:
        """End the process, whatever it is doing, and its children."""
        process = self._process
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            process.kill()
        process.wait()
        self._log.close()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue  # a request was still unread

    def _silent(self, seconds: float) -> ProcessLostError:
        self.kill()
        return ProcessLostError(f"gave no answer in {seconds:g} s")

    def _ended(self) -> ProcessLostError:
        """Its pipe is closed: wait for what it ends with, which a process that lives on never says."""
        try:
            status = self._process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            status = None
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - LONGEST_LINE))
        printed = self._log.read().decode(errors="replace").strip().splitlines()
        self.kill()
        return ProcessLostError("ended", status, printed[-1] if printed else "")


def module_child(module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> Child:
    """``python -m module arguments``; what it prints on standard error goes to a nameless file."""
    if sys.platform == "win32":
        raise UnsupportedError(
            "processes that may crash are started and stopped as Linux and macOS do it, and this system is Windows; "
            "judge a kernel in this process instead, by gs.conformance.check(kernel) on the function itself"
        )
    log = TemporaryFile()  # noqa: SIM115  (`Child.kill` closes it)
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env=environment,
        process_group=0,  # Ctrl-C reaches the parent alone, and a signal reaches the child's own children
    )
    return Child(process, log)


class KeptProcess:
    """A process that starts when it is first asked something, and again when it was lost; to be closed."""

    patience: float = 0.0
    """That of its `Child`."""

    def __init__(self, begin: Callable[[], Child], starting: float) -> None:
        self.is_closed = False
        self._begin, self._starting = begin, starting
        self._child: Child | None = None
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

    def refusal(self, why: str) -> Exception:
        """What is raised where the process says that it failed, or is asked after it was closed."""
        return RuntimeError(why)

    def _ask(self, seconds: float, /, **request: Any) -> dict[str, Any]:
        """The first answer to a request. A process that had ended by itself while idle is replaced first."""
        if self._child is None or self._child.has_ended():
            self._start()
        assert self._child is not None
        try:
            self._child.send(request, seconds)
        except ProcessLostError:
            self._lost()
            raise
        return self._receive(seconds)

    def _receive(self, seconds: float) -> dict[str, Any]:
        if self._child is None:
            raise ProcessLostError("was closed")
        try:
            answer = self._child.receive(seconds)
        except ProcessLostError:
            self._lost()
            raise
        if "failed" in answer:
            raise self.refusal(answer["failed"])
        return answer

    def _start(self) -> dict[str, Any]:
        """What the process says when it has started."""
        self._refuse_if_closed()
        self._end()
        self._child = self._begin()
        self._child.patience = self.patience
        return self._receive(self._starting)

    def _lost(self) -> None:
        self._child = None

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()

    def _refuse_if_closed(self) -> None:
        if self.is_closed:
            raise self.refusal("the campaign is over")


def environment(threads: int) -> dict[str, str]:
    """What makes every library use this number of threads and start no helper processes."""
    names = ("OMP", "MKL", "OPENBLAS", "GRADSPEC")
    counts = dict.fromkeys((*(f"{name}_NUM_THREADS" for name in names), "PJRT_NPROC", "NPROC"), str(threads))
    return os.environ | counts | {"TORCHINDUCTOR_COMPILE_THREADS": "1", "JAX_PLATFORMS": "cpu"}


def module_path(first: Sequence[str] = ()) -> dict[str, str]:
    """What makes a process of Python find modules in ``first``, and where this one does."""
    here = [entry or os.getcwd() for entry in sys.path]
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys([*first, *here]))}


def to_parent() -> Callable[[Mapping[str, Any]], None]:
    """What says messages to the parent, lines of JSON, for a process that ends with it. Whatever a library prints goes
    to standard error instead.
    """
    end_with_parent()
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return lambda message: print(json.dumps(message), file=channel, flush=True)


def end_with_parent() -> None:
    """A stopped process reads no end of input. Its parent's death wakes it with a hangup, but not where both end up in
    the session of a container's first process; Linux can be asked for more.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """What ``timeout`` or a scheduler sends ends the run as Ctrl-C does: with what there is."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
