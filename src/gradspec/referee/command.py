"""What ``gradspec referee`` does with its options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from gradspec.conformance.report.templates import render_page
from gradspec.referee.campaign import SolutionScore, list_submissions, referee
from gradspec.referee.scoring import Score, ScoreSettings
from gradspec.referee.timing import MeasuredTime
from gradspec.saving.files import replacing
from gradspec.system.pages import TerminalPage
from gradspec.system.processes import terminated_like_interrupted

PASSED, FAILED, INCOMPLETE = 0, 1, 3
"""Exit codes: 1 if a kernel failed, 3 if a problem could not be loaded or something could not be judged."""
KINDS = {"pass": "pass", "fail": "defect", "undecided": "undecided", "error": "not_offered"}
"""The colours of verdicts are those of the judge's kinds."""


@dataclass(frozen=True)
class RefereeRequest:
    """The options as given."""

    problem: str
    solution: str | None
    settings: ScoreSettings
    spec: str | None = None
    inputs: str = ""
    array: str = ""
    fixed: bool = False
    most_cells: int | None = None
    sizes: str = ""
    jobs: int | None = None
    output: str | None = None
    html: str | None = None


def perform(request: RefereeRequest, console: Console | None = None) -> int:
    """Score what is asked for, show it, and give the exit code."""
    page = TerminalPage(console or Console(highlight=False, markup=False, emoji=False))
    for file in filter(None, (request.output, request.html)):
        if not Path(file).absolute().parent.is_dir():
            raise FileNotFoundError(f"there is no folder for {file}; create it first")
    more: dict[str, Any] = {} if request.most_cells is None else {"most_cells": request.most_cells}
    options = {name: getattr(request, name) for name in ("inputs", "array", "fixed", "sizes")} | more
    names = (request.problem, request.solution) if request.spec is None else (request.spec, request.problem)
    submissions = list_submissions(*names, **options)

    told = set[str]()

    def show(outcome: SolutionScore, number: int, count: int) -> None:
        page.say(line_of(outcome, number, count), "" if outcome.score.verdict == "pass" else "bold")
        for finding in outcome.score.findings:
            page.say(f"    {finding.rule}: {finding.title}" + (f" ({finding.detail})" if finding.detail else ""))
        for words in describe_rest(outcome.score):
            page.say(f"    {words}")
        if outcome.score.containment not in (*told, ""):
            told.add(outcome.score.containment)
            page.say(f"    contained by: {outcome.score.containment}")

    try:
        with terminated_like_interrupted():
            outcomes = referee(submissions, request.settings, jobs=request.jobs, output=request.output, progress=show)
    except KeyboardInterrupt:
        page.say("Interrupted: solutions without a line have no score.", "bold")
        return INCOMPLETE
    if request.html:
        with replacing(request.html) as partial:
            partial.write_text(outcome_page(outcomes), encoding="utf-8")
        page.say(f"written: {request.html}")
    verdicts = {outcome.score.verdict for outcome in outcomes}
    return FAILED if "fail" in verdicts else INCOMPLETE if verdicts - {"pass"} else PASSED


def line_of(outcome: SolutionScore, number: int = 1, count: int = 1) -> str:
    """One outcome in one line.

    >>> from gradspec.referee import ProblemSource, Submission
    >>> line_of(SolutionScore(Submission(ProblemSource("own", "m:f"), "k.py"), Score("pass", cases=40, seconds=1.5)))
    '1/1  pass  score 1.00  40 cases  1.5 s  m:f k.py'
    """
    score = outcome.score
    place = f"{number:>{len(str(count))}}/{count}"
    numbers = f"score {score.score:.2f}  {score.cases} cases  {score.seconds:.1f} s"
    return f"{place}  {score.verdict}  {numbers}  {outcome.submission.name}" + (
        f"  {score.error}" if score.error else ""
    )


def describe_rest(score: Score) -> list[str]:
    """Sentences about own work, times and what was left out."""
    said = list(score.notes)
    if score.own_work is not None:
        own = score.own_work
        share = "" if own.share is None else f", {own.share:.0%} of the reference's arithmetic"
        names = ", ".join(f"{name} × {count}" for name, count in own.operators.items()) or "none"
        said.append(f"library operators ({own.how}): {names}{share}")
        said += [f"an exception is answered with a library's operator, {place}" for place in own.fallbacks]
    if score.times is not None:
        times = {"kernel": score.times.kernel, "eager": score.times.eager, "compiled": score.times.compiled}
        said += [f"{name} {write_time(time)}" for name, time in times.items() if time is not None]
        said += score.times.notes
    return said


def write_time(time: MeasuredTime) -> str:
    """
    >>> write_time(MeasuredTime(0.0012, 0.0011, 0.0015, 20))
    '1.2 ms (1.1 to 1.5, 20 calls)'
    """
    return f"{1e3 * time.median:.3g} ms ({1e3 * time.low:.3g} to {1e3 * time.high:.3g}, {time.calls} calls)"


def outcome_page(outcomes: Sequence[SolutionScore]) -> str:
    """The table of a campaign as one HTML page.

    >>> text = outcome_page([])
    >>> "0 solutions" in text, "https://" in text
    (True, False)
    """
    counts = {verdict: sum(outcome.score.verdict == verdict for outcome in outcomes) for verdict in KINDS}
    ranked = sorted(outcomes, key=lambda outcome: -outcome.score.score)
    return render_page(
        "referee/page/referee.html",
        "gradspec referee",
        outcomes=ranked,
        counts={verdict: count for verdict, count in counts.items() if count},
        kinds=KINDS,
        describe=describe_rest,
    )
