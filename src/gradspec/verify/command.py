"""What ``gradspec verify`` does with its options."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gradspec.runtime.threads import get_num_threads
from gradspec.saving.files import regular_file, replacing
from gradspec.system.pages import TerminalPage
from gradspec.system.processes import terminated_like_interrupted
from gradspec.system.terminal import printable
from gradspec.verify.campaign import SECONDS, CampaignWatch, InstanceAnswer, Standing, campaign
from gradspec.verify.checker import check_files
from gradspec.verify.solving import Answer, Question, Solver, SolverSettings, Watch

ANSWERED, WRONG, INCOMPLETE = 0, 1, 3
"""Exit codes: 1 is a file that cannot be read, a certificate refused, or an answer contrary to the one expected."""


class MisuseError(Exception):
    """Options that do not go together; the message says which."""


@dataclass(frozen=True)
class VerifyRequest:
    """The options as given; None where one was not."""

    model: str
    property: str | None = None
    timeout: float | None = None
    as_json: bool = False
    report: str | None = None
    kernels: str = "any"
    seed: int = 0
    certificate: str | None = None
    check: str | None = None
    jobs: int | None = None
    output: str | None = None
    device: str = "cpu"
    begun: float | None = None
    """When the command began, by ``time.monotonic``: one property has its seconds from then on."""


def perform(request: VerifyRequest) -> int:
    """Answer, and give the exit code."""
    _require_sense(request)
    with terminated_like_interrupted():
        if request.check is not None:
            return _check_certificate(request)
        return _many(request) if request.property is None else _one(request, request.property)


def _require_sense(request: VerifyRequest) -> None:
    alone = {"--jobs": request.jobs}
    is_many = request.property is None
    many = {"--report": request.report, "--certificate": request.certificate, "--check": request.check}
    for option, value in (many if is_many else alone).items():
        if value is not None:
            wanted = "a network and a property" if is_many else "a list of instances, or a folder"
            raise MisuseError(f"{option} is for {wanted}")
    if is_many and not os.path.isdir(request.model) and not request.model.lower().endswith(".csv"):
        raise MisuseError(f"{request.model} is no folder and no .csv file; give a property beside the network")
    files = {"--report": request.report, "--certificate": request.certificate, "--output": request.output}
    for option, file in files.items():
        if file is not None and not Path(file).absolute().parent.is_dir():
            raise MisuseError(f"{option}: there is no folder for {file}; create it first")
        if file is not None and Path(file).is_dir():
            raise MisuseError(f"{option}: {file} is a folder; give the name of a file")


# --- one property -----------------------------------------------------------------------------------------------------


def _one(request: VerifyRequest, property: str) -> int:
    for file in (request.model, property):
        with regular_file(file):
            pass  # it is there, and may be read
    seconds = SECONDS if request.timeout is None else request.timeout
    asked = Question(
        os.path.abspath(request.model),
        os.path.abspath(property),
        seconds,
        request.kernels,
        request.seed,
        explain=request.report is not None,
        certificate=None if request.certificate is None else os.path.abspath(request.certificate),
        device=request.device,
    )
    with closing(Solver(SolverSettings(get_num_threads()))) as solver:
        try:
            with _one_line(request) as watch:
                answer = solver.answer(asked, watch, request.begun)
        except KeyboardInterrupt:
            answer = Answer("unknown", kernels=request.kernels, error="interrupted")
        print(json.dumps(answer.as_json(), allow_nan=False) if request.as_json else answer.text(), flush=True)
        _say(answer.error or answer.sentence())
        if request.output is not None:
            with replacing(request.output) as partial:
                partial.write_text(answer.text() + "\n", encoding="utf-8")
        if request.certificate is not None and answer.answer != "unsat":
            _say(f"no certificate: {answer.answer} has none")
        if request.report is not None:
            _write_report(request.report, asked, answer, solver)
    return INCOMPLETE if answer.error else ANSWERED


def _write_report(file: str, asked: Question, answer: Answer, solver: Solver) -> None:
    from gradspec.verify.report import page

    views, why = solver.explanation(max(asked.seconds, SECONDS))
    with replacing(file) as partial:
        partial.write_text(page(asked, answer, views, why), encoding="utf-8")
    _say(f"written: {file}")


def _check_certificate(request: VerifyRequest) -> int:
    """Whether a certificate proves the property of the network, as the checker finds."""
    assert request.check is not None
    assert request.property is not None
    verdict = check_files(request.check, request.model, request.property)
    print(verdict)
    return ANSWERED if verdict else WRONG


def _say(text: str) -> None:
    """On standard error: what no program reads."""
    print(printable(text), file=sys.stderr)


@contextmanager
def _one_line(request: VerifyRequest) -> Iterator[Watch]:
    """Progress on standard error, if that is a terminal."""
    with Console(stderr=True).status(printable(f"{Path(request.model).name}: starting")) as status:

        def watch(message: Mapping[str, Any]) -> None:
            if "warning" in message:
                _say(f"Warning: {message['warning']}")
            if "progress" in message:
                status.update(printable(f"{Path(request.model).name}: {_parts(message['progress'])}"))

        yield watch


def _parts(progress: Mapping[str, Any]) -> str:
    if not progress:
        return "..."
    return f"{progress['proved']:,} proved, {progress['waiting']:,} wait, margin {progress['margin']:.3g}"


# --- many -------------------------------------------------------------------------------------------------------------


def _many(request: VerifyRequest) -> int:
    console = Console(highlight=False, markup=False, emoji=False)
    standing = Standing(0)
    interrupted = False

    with _live(console, quiet=request.as_json) as show:

        def watch(latest: Standing) -> None:
            nonlocal standing
            standing = latest
            show(latest)

        try:
            outcomes = campaign(
                request.model,
                jobs=request.jobs,
                timeout=request.timeout,
                kernels=request.kernels,
                seed=request.seed,
                output=request.output,
                device=request.device,
                progress=watch,
            )
        except KeyboardInterrupt:
            outcomes, interrupted = standing.outcomes, True
    if request.as_json:
        print(json.dumps([outcome.as_json() for outcome in outcomes], indent=1, allow_nan=False))
    else:
        _show_summary(console, outcomes, standing.instances)
    if any(outcome.disagrees for outcome in outcomes):
        return WRONG
    return INCOMPLETE if interrupted or any(outcome.answer.error for outcome in outcomes) else ANSWERED


@contextmanager
def _live(console: Console, quiet: bool) -> Iterator[CampaignWatch]:
    """A line for each outcome, and below, on a terminal, a table of what runs."""
    page, told = TerminalPage(console), 0
    on_screen = Console(stderr=True, highlight=False, markup=False, emoji=False)
    with Live(console=on_screen, transient=True, redirect_stdout=sys.stdout.isatty(), refresh_per_second=4) as live:

        def watch(standing: Standing) -> None:
            nonlocal told
            for outcome in standing.outcomes[told:]:
                told += 1
                if not quiet:
                    page.verbatim(_line(outcome, told, standing.instances))
            live.update(_running(page, standing))

        yield watch


def _line(outcome: InstanceAnswer, number: int, count: int) -> str:
    answer = outcome.answer
    loud = f"  DISAGREES: {outcome.expected} is expected" if outcome.disagrees else ""
    why = f"  {answer.error}" if answer.error else ""
    names = f"{Path(outcome.network).name}  {Path(outcome.property).name}"
    parts = f"{answer.parts:,} part{'s' * (answer.parts != 1)}"
    place = f"{number:>{len(str(count))}}/{count}"
    return f"{place}  {answer.answer:<7}  {answer.seconds:7.1f} s  {parts:>10}  {names}{loud}{why}"


def _running(page: TerminalPage, standing: Standing) -> Table:
    table = Table("running", "", "", box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for instance, progress in list(standing.running.values()):
        table.add_row(*(Text(page.clean(t)) for t in (instance.network.name, instance.property.name, _parts(progress))))
    return table


def _show_summary(console: Console, outcomes: Sequence[InstanceAnswer], instances: int) -> None:
    """A row for each network, then all; what disagrees stands last, where it is seen."""
    page = TerminalPage(console)
    page.heading("answers")
    by_network: dict[str, list[InstanceAnswer]] = {}
    for outcome in outcomes:
        by_network.setdefault(Path(outcome.network).name, []).append(outcome)
    rows = [_summary_row(name, some) for name, some in by_network.items()]
    header = ("network", "unsat", "sat", "unknown", "agree", "parts", "seconds", "longest")
    page.table(header, [*rows, _summary_row("all", outcomes)] if len(rows) != 1 else rows, right=range(1, 8))
    if len(outcomes) < instances:
        page.say(f"Interrupted: {instances - len(outcomes)} of {instances} instances have no answer.", "bold yellow")
    for outcome in outcomes:
        if outcome.answer.error:
            page.say(f"{outcome.network} {outcome.property}: {outcome.answer.error}", "yellow")
    for outcome in outcomes:
        if outcome.disagrees:
            said = f"{outcome.answer.answer} where {outcome.expected} is expected"
            page.say(f"DISAGREEMENT: {outcome.network} {outcome.property}: {said}", "bold red")


def _summary_row(name: str, outcomes: Sequence[InstanceAnswer]) -> tuple[str, ...]:
    counts = Counter(outcome.answer.answer for outcome in outcomes)
    stated = [outcome for outcome in outcomes if outcome.expected in ("sat", "unsat")]
    agreeing = sum(outcome.answer.answer == outcome.expected for outcome in stated)
    seconds = [outcome.answer.seconds for outcome in outcomes]
    answers = (f"{counts[word]:,}" for word in ("unsat", "sat", "unknown"))
    parts = sum(outcome.answer.parts for outcome in outcomes)
    agree = f"{agreeing} of {len(stated)}" if stated else ""
    return (name, *answers, agree, f"{parts:,}", f"{sum(seconds):,.1f}", f"{max(seconds, default=0.0):.1f}")
