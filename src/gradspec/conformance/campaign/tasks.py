"""What an executor runs: functions of plain data, each with a process for the target that its thread keeps."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any
from weakref import WeakSet

from gradspec.conformance.campaign.isolated import Cases, Isolated, TargetError
from gradspec.conformance.campaign.settings import Settings
from gradspec.conformance.run import Failure

_thread = threading.local()
_open: WeakSet[Isolated] = WeakSet()
_lock = threading.Lock()


def judge_batches(
    settings: Mapping[str, Any], batches: Mapping[int, Cases], seconds: float, attempt: int = 0
) -> list[dict[str, Any]]:
    """The outcomes of batches, as JSON: of all of them, or of as many as were begun within so many seconds.

    A task that nobody waits for any longer thus ends soon, and a batch that is missing is asked for again. ``attempt``
    tells calls apart for executors that give the same answer to the same call.
    """
    target, deadline, outcomes = kept(Settings.from_json(settings)), monotonic() + seconds, list[dict[str, Any]]()
    for number, cases in batches.items():
        if outcomes and monotonic() > deadline:
            break
        outcomes.append(target.batch(number, cases).to_json())
    return outcomes


def warm_up(settings: Mapping[str, Any]) -> None:
    """Start this thread's process; who asks it first will hear if that fails."""
    with suppress(TargetError):
        kept(Settings.from_json(settings)).versions()


def explain(settings: Mapping[str, Any], failures: Sequence[Mapping[str, Any]], seconds: float) -> list[dict[str, Any]]:
    """The findings, as JSON, of failures of one group."""
    target = kept(Settings.from_json(settings))
    found = target.findings([Failure.from_json(failure) for failure in failures], seconds)
    return [finding.to_json() for finding in found]


def kept(settings: Settings) -> Isolated:
    """This thread's process for these settings; one for others ends."""
    current: Isolated | None = getattr(_thread, "isolated", None)
    if current is None or current.is_closed or current.settings != settings:
        if current is not None:
            current.close()
        current = _thread.isolated = Isolated(settings)
        with _lock:
            _open.add(current)
    return current


def close(token: str) -> None:
    """End all processes that tasks of one campaign have in this process."""
    with _lock:
        ours = [isolated for isolated in _open if isolated.settings.token == token]
    for isolated in ours:
        isolated.close()
