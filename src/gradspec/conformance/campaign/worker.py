"""The process of a target under judgement: ``python -m gradspec.conformance.campaign.worker SETTINGS``.

It reads one JSON request per line and answers with JSON lines:

    (greeting)                                  {"versions": {name: version}}
    {"do": "probes", "seconds"}                 {"probes": [Probe, …]}
    {"do": "promises"}                          {"findings": [Finding, …]}
    {"do": "plan", "first", "count"}            {"batches": [[Case, …], …]}
    {"do": "judge", "cases", "seconds"}         {"judged": Judged} for each, as soon as it is, and null when time is up
    {"do": "findings", "failures", "seconds"}   {"findings": [Finding, …]}
    anything that fails                         {"failed": reason}

The next case begins when one has been answered, so whoever listens knows which case a crash or a hang belongs to. The
end of its input ends the process, and so does a long time without a request: nobody may be left to close it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from math import inf
from time import monotonic
from typing import Any

from gradspec.conformance.campaign.local import batches, broken_promises, judged
from gradspec.conformance.cases.stream import Stream
from gradspec.conformance.checks.probes import probe
from gradspec.conformance.model.case import CampaignSettings, CheckCase
from gradspec.conformance.model.codec import decode, encode
from gradspec.conformance.model.target import Target
from gradspec.conformance.model.verdict import Failure
from gradspec.conformance.shrink.causes import explained
from gradspec.conformance.targets import target_named
from gradspec.system.processes import Lines, end_with_parent, private_output

IDLE = 120.0
"""Seconds without a request after which a worker ends."""


class TargetWorker:
    """Answers requests about one target."""

    def __init__(self, target: Target, settings: CampaignSettings) -> None:
        self.target, self.settings = target, settings

    @cached_property
    def stream(self) -> Stream:
        """Made when it is first needed: the cover takes a moment, and only who plans needs it."""
        return Stream(self.settings.seed, self.settings.selection, self.target.refusal)

    def answers(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        actions = (self.probes, self.promises, self.plan, self.judge, self.findings)
        named: dict[str, Callable[..., Iterator[dict[str, Any]]]] = {action.__name__: action for action in actions}
        try:
            yield from named[request.pop("do")](**request)
        except Exception as error:
            yield {"failed": f"{type(error).__name__}: {error}"}

    def probes(self, seconds: float) -> Iterator[dict[str, Any]]:
        yield {"probes": list(map(encode, probe(self.target, seconds)))}

    def promises(self) -> Iterator[dict[str, Any]]:
        yield {"findings": list(map(encode, broken_promises(self.target)))}

    def plan(self, first: int, count: int) -> Iterator[dict[str, Any]]:
        yield {"batches": [list(map(encode, cases)) for cases in batches(self.stream, first, count)]}

    def judge(self, cases: list[dict[str, Any]], seconds: float | None) -> Iterator[dict[str, Any]]:
        """No case begins after so many seconds."""
        deadline = inf if seconds is None else monotonic() + seconds
        decoded = (decode(CheckCase, case, "case") for case in cases)
        verdicts = judged(self.target, decoded, frozenset(self.settings.allow))
        for _ in cases:
            if monotonic() >= deadline:
                yield {"judged": None}
                return
            yield {"judged": encode(next(verdicts))}

    def findings(self, failures: list[dict[str, Any]], seconds: float) -> Iterator[dict[str, Any]]:
        group = [decode(Failure, failure, "failure") for failure in failures]
        found = explained(self.target, group, seconds, frozenset(self.settings.allow))
        yield {"findings": list(map(encode, found))}


def main(settings: CampaignSettings) -> None:
    end_with_parent()
    channel = private_output()

    def say(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=channel, flush=True)

    try:
        target = target_named(settings.target).declaring(algorithm=settings.algorithm)
        target.set_threads(settings.threads)
        worker = TargetWorker(target, settings)
        say({"versions": target.versions()})
    except Exception as error:
        say({"failed": str(error) or type(error).__name__})
        return
    requests = Lines(sys.stdin.fileno())
    try:
        while (line := requests.next(IDLE)) is not None:
            for answer in worker.answers(json.loads(line)):
                say(answer)
    except EOFError:
        return


if __name__ == "__main__":
    main(decode(CampaignSettings, json.loads(sys.argv[1]), "settings"))
