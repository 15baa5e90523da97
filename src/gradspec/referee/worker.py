"""The process of a problem: ``python -m gradspec.referee.worker SOURCE``.

It runs the code of the problem, says ``{"types", "notes"}`` or ``{"failed"}``, and answers each request ``{"solution",
"settings"}`` with ``{"score"}``. Solutions run in hosts of their own. What anybody prints goes to standard error.
"""

from __future__ import annotations

import json
import sys

from gradspec.conformance.model.codec import decode, encode
from gradspec.referee.formats import ProblemSource, load_problem, write_types
from gradspec.referee.scoring import Score, ScoreSettings, judge_solution, warm_up
from gradspec.system.hosting import CAN_HOST, HostServer
from gradspec.system.processes import Lines, to_parent

IDLE = 600.0
"""Seconds without a request after which the process ends."""


def serve(source: ProblemSource) -> None:
    """Answer what is asked on standard input, until it ends."""
    say = to_parent()
    try:
        loaded = load_problem(source)
        server = HostServer(["numpy", loaded.call.array]) if CAN_HOST else None
        warm_up(loaded)
        say({"types": write_types(loaded.types), "notes": loaded.notes})
    except BaseException as error:  # whatever the code of a problem raises
        say({"failed": f"{type(error).__name__}: {error}"})
        return
    requests = Lines(sys.stdin.fileno())
    try:
        while (line := requests.next(IDLE)) is not None:
            request = json.loads(line)
            settings = decode(ScoreSettings, request["settings"], "settings")
            try:
                score = judge_solution(request["solution"], loaded, settings, server)
            except Exception as error:  # of the judge
                score = Score("undecided", error=f"{type(error).__name__}: {error}")
            say({"score": encode(score)})
    except EOFError:
        return


if __name__ == "__main__":
    serve(decode(ProblemSource, json.loads(sys.argv[1]), "source"))
