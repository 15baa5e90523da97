"""The process of a target under judgement: ``python -m gradspec.conformance.campaign.worker``.

It reads its settings, which a command line would show to everybody, then one JSON request per line, and answers with
JSON lines:

    (greeting)                                  {"versions": {name: version}, "domain", "containment"}
    {"do": "judge", "cases", "seconds",         {"judged": Judged} for each, as soon as it is, and null when time is up
     "together"}
    {"do": name of a method of InProcess,       {"result": what it returns}
     **its arguments}
    anything that fails                         {"failed": reason}
    anything after which the device is lost     {"poisoned": error}

The next case begins when one has been answered, so whoever listens knows which case a crash or a hang belongs to; of
cases whose calls are made together that shows when they are judged again, one by one. The end of its input ends the
process, and so does a long time without a request: nobody may be left to close it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from math import inf
from time import monotonic
from typing import Any, Protocol, get_type_hints

from gradspec.conformance.campaign.local import InProcess
from gradspec.conformance.model.case import CampaignSettings, CheckCase
from gradspec.conformance.model.codec import decode, encode
from gradspec.conformance.model.device import PoisonedError
from gradspec.conformance.model.target import Target
from gradspec.conformance.targets import target_of
from gradspec.system.containment import end_like
from gradspec.system.hosting import HostLostError
from gradspec.system.processes import Lines, to_parent

IDLE = 120.0
"""Seconds without a request after which a worker ends."""


def greeting(target: Target) -> dict[str, Any]:
    return {"versions": target.versions(), "domain": str(target.domain), "containment": target.containment()}


class TargetWorker:
    """Answers requests about one target."""

    def __init__(self, target: Target, settings: CampaignSettings) -> None:
        self._judge = InProcess(target, settings)

    def answers(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        name = request.pop("do")
        try:
            if name == "judge":
                decoded = decode(list[CheckCase], request.pop("cases"), "cases")
                yield from judged_messages(self._judge, decoded, **request)
            else:
                hints = get_type_hints(getattr(InProcess, name))
                arguments = {key: decode(hints[key], value, key) for key, value in request.items()}
                yield {"result": encode(getattr(self._judge, name)(**arguments), hints["return"])}
        except Exception as error:
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            yield {"failed": f"{kind}{error}"}
        except PoisonedError as error:
            yield {"poisoned": str(error)}
        except HostLostError as loss:
            end_like(loss.status)


def judged_messages(
    judge: Any, cases: Sequence[Any], seconds: float | None, together: bool = False
) -> Iterator[dict[str, Any]]:
    """The cases as they are judged, by `InProcess` or `Isolated`; none begins after so many seconds."""
    judged = 0
    for case in judge.judged(cases, inf if seconds is None else monotonic() + seconds, together):
        judged += 1
        yield {"judged": encode(case)}
    if judged < len(cases):
        yield {"judged": None}


class Answering(Protocol):
    """Answers requests."""

    def answers(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]: ...


def serve(worker_of: Callable[[Target, CampaignSettings], Answering]) -> None:
    """Answer what is asked on standard input after the settings, until it ends."""
    say, requests = to_parent(), Lines(sys.stdin.fileno())
    settings = decode(CampaignSettings, json.loads(requests.next(IDLE) or "{}"), "settings")
    try:
        target = target_of(settings)
        target.set_threads(settings.threads)
        told = greeting(target)
        worker = worker_of(target, settings)
        say(told)
    except Exception as error:
        say({"failed": str(error) or type(error).__name__})
        return
    except HostLostError as loss:
        end_like(loss.status)
    try:
        while (line := requests.next(IDLE)) is not None:
            for answer in worker.answers(json.loads(line)):
                say(answer)
    except EOFError:
        return


if __name__ == "__main__":
    serve(TargetWorker)
