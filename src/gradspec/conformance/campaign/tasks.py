"""What an executor runs: functions of plain data, each with a process for the target that its thread keeps."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from time import monotonic
from typing import Any

from gradspec.conformance.campaign.isolated import Cases, Isolated, TargetError
from gradspec.conformance.model.case import CampaignSettings
from gradspec.conformance.model.codec import decode, encode
from gradspec.conformance.model.verdict import Failure, Finding, Probe
from gradspec.system.task_queue import ProcessPerThread

_processes = ProcessPerThread[CampaignSettings, Isolated](Isolated)

TASK_SECONDS = 2.0
"""A task begins no further batch after so long, so that an abandoned one ends soon."""


def judge_batches(
    settings: Mapping[str, Any], batches: Mapping[int, Cases], seconds: float = inf, attempt: int = 0
) -> list[dict[str, Any]]:
    """The outcomes of batches, as JSON, with who judged them; a batch that is missing is to be asked for again.

    ``seconds`` is what is left of the campaign's time: no case begins after it, so the last batch may lack its last
    cases. ``attempt`` tells calls apart for executors that give the same answer to the same call.
    """
    start, outcomes = monotonic(), list[dict[str, Any]]()
    target = _processes.get(decode(CampaignSettings, settings, "settings"))
    for number, cases in batches.items():
        if outcomes and monotonic() > start + min(TASK_SECONDS, seconds):
            break
        outcomes.append(encode(replace(target.batch(number, cases, start + seconds), worker=worker())))
    return outcomes


def worker() -> str:
    """A name for this thread that no other thread of a cluster has."""
    return f"{platform.node()} {os.getpid()} {threading.get_ident()}"


def warm_up(settings: Mapping[str, Any]) -> None:
    """Start this thread's process; if that fails, the first request to it says so."""
    with suppress(TargetError):
        _processes.get(decode(CampaignSettings, settings, "settings")).versions()


def measured(settings: CampaignSettings, seconds: float) -> tuple[list[Probe], list[Finding]]:
    """What probes of so many seconds measure, and the documented errors that are missing."""
    target = _processes.get(settings)
    return target.probes(seconds), target.missing_errors()


def explain(settings: CampaignSettings, failures: Sequence[Failure], seconds: float, deadline: float) -> list[Finding]:
    """The findings of one group, shrunk for so many seconds, and not after the deadline."""
    return _processes.get(settings).findings(failures, max(0.0, min(seconds, deadline - monotonic())))


def close(token: str) -> None:
    """End all processes that tasks of one campaign have in this process."""
    _processes.close(lambda settings: settings.token == token)
