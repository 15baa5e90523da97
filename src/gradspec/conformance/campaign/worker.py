"""The process of a target under judgement: ``python -m gradspec.conformance.campaign.worker SETTINGS``.

It reads one JSON request per line and answers with JSON lines:

    (greeting)                                    {"versions": {name: version}}
    {"do": "probes"}                              {"probes": [Probe, …]}
    {"do": "promises"}                            {"findings": [Finding, …]}
    {"do": "batch", "number", "first", "last"}    {"begins": first, "size"}, then {"judged": Judged} for each case
    {"do": "case", "number", "index"}             {"call", "features"}, without running it
    {"do": "finding", "failures", "seconds"}      {"finding": Finding}
    anything that fails                           {"failed": reason}

The next case begins when one has been answered, so whoever listens knows which case a crash or a hang belongs to. The
end of its input ends the process, and so does a long time without a request: nobody may be left to close it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

from gradspec.conformance.campaign.local import Judge, broken_promises, explained
from gradspec.conformance.campaign.settings import Settings
from gradspec.conformance.checks.probes import probe
from gradspec.conformance.run import Failure
from gradspec.conformance.targets import Target, target_named
from gradspec.runtime.processes import Lines, end_with_parent, private_output

IDLE = 120.0
"""Seconds without a request after which a worker ends."""


class Worker:
    """Answers requests about one target."""

    def __init__(self, target: Target, settings: Settings) -> None:
        self.target, self.settings = target, settings
        self._judge: Judge | None = None

    @property
    def judge(self) -> Judge:
        """Made when it is first needed: the cover takes a moment, and probes do without it."""
        if self._judge is None:
            self._judge = Judge(self.target, self.settings.seed, self.settings.selection, self.settings.allow)
        return self._judge

    def answers(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        actions: dict[str, Callable[..., Iterator[dict[str, Any]]]] = {
            "probes": self.probes,
            "promises": self.promises,
            "batch": self.batch,
            "case": self.case,
            "finding": self.finding,
        }
        try:
            yield from actions[request.pop("do")](**request)
        except Exception as error:
            yield {"failed": f"{type(error).__name__}: {error}"}

    def probes(self) -> Iterator[dict[str, Any]]:
        yield {"probes": [vars(result) for result in probe(self.target)]}

    def promises(self) -> Iterator[dict[str, Any]]:
        yield {"findings": [finding.to_json() for finding in broken_promises(self.target)]}

    def batch(self, number: int, first: int = 0, last: int | None = None) -> Iterator[dict[str, Any]]:
        cases = self.judge.cases(number)
        yield {"begins": first, "size": len(cases)}
        for judged in self.judge.judged(cases[first:last]):
            yield {"judged": judged.to_json()}

    def case(self, number: int, index: int) -> Iterator[dict[str, Any]]:
        case = self.judge.cases(number)[index]
        yield {"call": case.call().to_json(), "features": sorted(case.features)}

    def finding(self, failures: list[dict[str, Any]], seconds: float) -> Iterator[dict[str, Any]]:
        cause = list(map(Failure.from_json, failures))
        yield {"finding": explained(self.target, cause, seconds).to_json()}


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
