"""The process of a target under judgement: ``python -m gradspec.conformance.campaign.worker SETTINGS``.

It reads one JSON request per line and answers with JSON lines:

    (greeting)                                  {"versions": {name: version}, "domain"}
    {"do": "device"}                            {"device": what to tell of it}
    {"do": "probes", "seconds"}                 {"probes": [Probe, …]}
    {"do": "missing_errors"}                    {"findings": [Finding, …]}
    {"do": "domain", "seconds"}                 {"domain"} that was found of a kernel which declares none
    {"do": "plan", "first", "count", "domain"}  {"batches": [[Case, …], …]}
    {"do": "lacking"}                           {"lacking": [[operator, mode], …], "unmet": [kink, …]}
    {"do": "triples", "batches"}                {"triples": [how many met in so many batches, how many can]}
    {"do": "judge", "cases", "seconds",         {"judged": Judged} for each, as soon as it is, and null when time is up
     "together"}
    {"do": "deadly", "case", "rule", "got", …}  {"judged": Judged} of a case at which an earlier process was lost
    {"do": "rounding"}                          {"modes": [mode of reduced precision that is in force, …]}
    {"do": "findings", "failures", "seconds"}   {"findings": [Finding, …]}
    anything that fails                         {"failed": reason}
    anything after which the device is lost     {"poisoned": error}

The next case begins when one has been answered, so whoever listens knows which case a crash or a hang belongs to; of
cases whose calls are made together that shows when they are judged again, one by one. The end of its input ends the
process, and so does a long time without a request: nobody may be left to close it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from math import inf
from time import monotonic
from typing import Any, Protocol

from gradspec.conformance.campaign.local import InProcess, deadly
from gradspec.conformance.model.case import CampaignSettings, CheckCase
from gradspec.conformance.model.codec import decode, encode
from gradspec.conformance.model.device import PoisonedError
from gradspec.conformance.model.target import Target
from gradspec.conformance.model.verdict import Failure
from gradspec.conformance.targets import target_of
from gradspec.system.processes import Lines, end_with_parent, private_output

IDLE = 120.0
"""Seconds without a request after which a worker ends."""


def greeting(target: Target) -> dict[str, Any]:
    return {"versions": target.versions(), "domain": str(target.domain)}


class TargetWorker:
    """Answers requests about one target."""

    def __init__(self, target: Target, settings: CampaignSettings) -> None:
        self._judge = InProcess(target, settings)

    def answers(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        actions = (
            self.device,
            self.probes,
            self.missing_errors,
            self.domain,
            self.plan,
            self.lacking,
            self.triples,
            self.rounding,
            self.judge,
            self.deadly,
            self.findings,
        )
        named: dict[str, Callable[..., Iterator[dict[str, Any]]]] = {action.__name__: action for action in actions}
        try:
            yield from named[request.pop("do")](**request)
        except Exception as error:
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            yield {"failed": f"{kind}{error}"}
        except PoisonedError as error:
            yield {"poisoned": str(error)}

    def device(self) -> Iterator[dict[str, Any]]:
        yield {"device": self._judge.device}

    def probes(self, seconds: float) -> Iterator[dict[str, Any]]:
        yield {"probes": list(map(encode, self._judge.probes(seconds)))}

    def missing_errors(self) -> Iterator[dict[str, Any]]:
        yield {"findings": list(map(encode, self._judge.missing_errors()))}

    def domain(self, seconds: float) -> Iterator[dict[str, Any]]:
        yield {"domain": self._judge.find_domain(seconds)}

    def plan(self, first: int, count: int, domain: str) -> Iterator[dict[str, Any]]:
        """In a domain that was found, perhaps by a process before this one."""
        self._judge.target.within(domain)
        yield {"batches": [list(map(encode, cases)) for cases in self._judge.plan(first, count)]}

    def lacking(self) -> Iterator[dict[str, Any]]:
        yield {"lacking": self._judge.lacking(), "unmet": self._judge.unmet()}

    def triples(self, batches: int) -> Iterator[dict[str, Any]]:
        yield {"triples": self._judge.triples(batches)}

    def rounding(self) -> Iterator[dict[str, Any]]:
        yield {"modes": sorted(self._judge.rounding())}

    def judge(
        self, cases: list[dict[str, Any]], seconds: float | None, together: bool = False
    ) -> Iterator[dict[str, Any]]:
        """No case begins after so many seconds."""
        deadline = inf if seconds is None else monotonic() + seconds
        decoded = [decode(CheckCase, case, "case") for case in cases]
        judged = 0
        for case in self._judge.judged(decoded, deadline, together):
            judged += 1
            yield {"judged": encode(case)}
        if judged < len(cases):
            yield {"judged": None}

    def deadly(self, case: dict[str, Any], **told: str) -> Iterator[dict[str, Any]]:
        yield {"judged": encode(deadly(decode(CheckCase, case, "case"), **told))}

    def findings(self, failures: list[dict[str, Any]], seconds: float) -> Iterator[dict[str, Any]]:
        group = [decode(Failure, failure, "failure") for failure in failures]
        yield {"findings": list(map(encode, self._judge.findings(group, seconds)))}


class Answering(Protocol):
    """Who answers requests."""

    def answers(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]: ...


def serve(settings: CampaignSettings, worker_of: Callable[[Target, CampaignSettings], Answering]) -> None:
    """Answer what is asked on standard input, until it ends."""
    end_with_parent()
    channel = private_output()

    def say(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=channel, flush=True)

    try:
        target = target_of(settings)
        target.set_threads(settings.threads)
        told = greeting(target)
        worker = worker_of(target, settings)
        say(told)
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
    serve(decode(CampaignSettings, json.loads(sys.argv[1]), "settings"), TargetWorker)
