"""The process of a target under judgement: ``python -m gradspec.conformance.campaign.worker SETTINGS``.

It reads one JSON request per line and answers with JSON lines:

    (greeting)                                  {"versions": {name: version}}
    {"do": "probes"}                            {"probes": [Probe, …]}
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

from gradspec.conformance.campaign.local import batches, broken_promises, case_from_json, case_to_json, judged
from gradspec.conformance.campaign.settings import Settings
from gradspec.conformance.cases.stream import Stream
from gradspec.conformance.causes import explained
from gradspec.conformance.checks.probes import probe
from gradspec.conformance.run import Failure
from gradspec.conformance.targets import Target, target_named
from gradspec.system.processes import Lines, end_with_parent, private_output

IDLE = 120.0
"""Seconds without a request after which a worker ends."""


class Worker:
    """Answers requests about one target."""

    def __init__(self, target: Target, settings: Settings) -> None:
        self.target, self.settings = target, settings

    @cached_property
    def stream(self) -> Stream:
        """Made when it is first needed: the cover takes a moment, and only who plans needs it."""
        return Stream(self.settings.seed, self.settings.selection, self.target.refusal)

    def answers(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        actions: dict[str, Callable[..., Iterator[dict[str, Any]]]] = {
            "probes": self.probes,
            "promises": self.promises,
            "plan": self.plan,
            "judge": self.judge,
            "findings": self.findings,
        }
        try:
            yield from actions[request.pop("do")](**request)
        except Exception as error:
            yield {"failed": f"{type(error).__name__}: {error}"}

    def probes(self) -> Iterator[dict[str, Any]]:
        yield {"probes": [vars(result) for result in probe(self.target)]}

    def promises(self) -> Iterator[dict[str, Any]]:
        yield {"findings": [finding.to_json() for finding in broken_promises(self.target)]}

    def plan(self, first: int, count: int) -> Iterator[dict[str, Any]]:
        yield {"batches": [list(map(case_to_json, cases)) for cases in batches(self.stream, first, count)]}

    def judge(self, cases: list[dict[str, Any]], seconds: float | None) -> Iterator[dict[str, Any]]:
        """No case begins after so many seconds."""
        deadline = inf if seconds is None else monotonic() + seconds
        verdicts = judged(self.target, map(case_from_json, cases), frozenset(self.settings.allow))
        for _ in cases:
            if monotonic() >= deadline:
                yield {"judged": None}
                return
            yield {"judged": next(verdicts).to_json()}

    def findings(self, failures: list[dict[str, Any]], seconds: float) -> Iterator[dict[str, Any]]:
        group = list(map(Failure.from_json, failures))
        found = explained(self.target, group, seconds, frozenset(self.settings.allow))
        yield {"findings": [finding.to_json() for finding in found]}


def main(settings: Settings) -> None:
    end_with_parent()
    channel = private_output()

    def say(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=channel, flush=True)

    try:
        target = target_named(settings.target)
        target.set_threads(settings.threads)
        worker = Worker(target, settings)
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
    main(Settings.from_json(json.loads(sys.argv[1])))
