"""What ``gradspec check`` does with its options."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from gradspec.conformance.campaign.check import check
from gradspec.conformance.campaign.isolated import TargetError
from gradspec.conformance.campaign.request import OPERATORS, Watch
from gradspec.conformance.campaign.request import Progress as Standing
from gradspec.conformance.judge.conventions import CONVENTIONS
from gradspec.conformance.judge.reduced import REDUCED
from gradspec.conformance.model.arithmetic import ALGORITHMS
from gradspec.conformance.model.case import FEATURES, REFERENCE_FEATURES
from gradspec.conformance.model.codec import encode
from gradspec.conformance.model.problem import DTYPES, MODES, RANKS
from gradspec.conformance.model.run import Run
from gradspec.conformance.report.exports import issue_text, junit_text
from gradspec.conformance.report.html import page
from gradspec.conformance.report.terminal import show, show_start
from gradspec.conformance.targets import TARGETS
from gradspec.saving.files import replacing
from gradspec.system.pages import TerminalPage
from gradspec.system.processes import terminated_like_interrupted

CLEAN, DEFECTS, MISUSED, INCOMPLETE = 0, 1, 2, 3
"""Exit codes."""
NOW_AND_THEN = 30.0
"""Seconds between two lines that tell a file how far a run is."""


class CheckError(Exception):
    """The request cannot be carried out; the message says what to do."""


@dataclass(frozen=True)
class CheckRequest:
    """The options as given; ``check`` holds those of ``gs.conformance.check``."""

    target: str
    check: dict[str, Any]
    json_file: str | None = None
    junit_file: str | None = None
    html_file: str | None = None
    strict: bool = False
    format: str = "text"
    """What is printed: ``text`` for people at a terminal, or an issue for ``github``."""

    @property
    def files(self) -> dict[str, str]:
        """What is written where, by the option's name."""
        given = {"--json": self.json_file, "--junit": self.junit_file, "--report": self.html_file}
        return {option: file for option, file in given.items() if file}

    @property
    def failing(self) -> tuple[str, ...]:
        return ("defect", "convention") if self.strict else ("defect",)


def perform(request: CheckRequest, console: Console | None = None, judge: Callable[..., Run] | None = None) -> int:
    """Judge the target, show what was found, write what was asked for; the exit code."""
    require_places(request)
    console = console or Console(highlight=False, markup=False, emoji=False)
    page = Console(quiet=True) if request.format == "github" else console
    try:
        with _live(page) as watch, terminated_like_interrupted():
            run = (judge or check)(request.target, progress=watch, **request.check)
    except (TargetError, ValueError, ImportError) as error:
        raise CheckError(str(error)) from error
    if request.strict and run.repeat:
        run.repeat += " --strict"
    show(run, page, request.failing)
    if request.format == "github":
        console.out(issue_text(run, request.failing), highlight=False, end="")
    code, is_written = exit_code(run, request.failing), _write(request, run, page)
    return code if is_written or code != CLEAN else INCOMPLETE


def exit_code(run: Run, failing: tuple[str, ...] = ("defect",)) -> int:
    """What continuous integration goes by.

    >>> exit_code(Run("native", "", "", seed=0))
    3
    """
    if any(run.by_kind(kind) for kind in failing):
        return DEFECTS
    if run.tally.cases and not run.tally.judged and not run.interrupted and not run.errors:
        return MISUSED
    return INCOMPLETE if run.interrupted or run.errors or run.lacks or run.owes or not run.tally.judged else CLEAN


# --- files ------------------------------------------------------------------------------------------------------------


def require_places(request: CheckRequest) -> None:
    """Said before an hour of judging, not after it."""
    files = list(map(Path, request.files.values()))
    for option, file in request.files.items():
        if not Path(file).absolute().parent.is_dir():
            raise CheckError(f"{option}: there is no folder for {file}; create it first")
        if Path(file).is_dir():
            raise CheckError(f"{option}: {file} is a folder; give the name of a file")
    if len({file.resolve() for file in files}) < len(files):
        raise CheckError("two reports cannot go to one file; give each its own")


def json_text(run: Run) -> str:
    """The fields of a run, in JSON that every reader takes: what is not finite is written as words.

    >>> json.loads(json_text(Run("native", "gradspec 0.1", "a machine", seed=7)))["seed"]
    7
    """
    return json.dumps(encode(run), indent=1, allow_nan=False) + "\n"


def _write(request: CheckRequest, run: Run, console: Console) -> bool:
    """Write every report that can be written; whether all could."""
    is_written = True
    texts = {
        "--json": lambda: json_text(run),
        "--junit": lambda: junit_text(run, request.failing),
        "--report": lambda: page(run, request.failing),
    }
    for option, file in request.files.items():
        try:
            with replacing(file) as partial:
                partial.write_text(texts[option](), encoding="utf-8")
        except OSError as error:
            is_written = False
            TerminalPage(console).say(f"{option}: {file} could not be written: {error.strerror}")
        else:
            TerminalPage(console).say(f"written: {file}")
    return is_written


# --- while it runs ----------------------------------------------------------------------------------------------------


@contextmanager
def _live(console: Console, clock: Callable[[], float] = monotonic) -> Iterator[Watch]:
    """The start on ``console`` as soon as it is known; on standard error a line that changes, or, in a file, a line now
    and then.
    """
    errors, said = Console(stderr=True, highlight=False), clock()
    columns = (TextColumn("{task.description}"), BarColumn(20), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True) as bar:
        line = bar.add_task("starting", total=1.0)
        told = set[str]()

        def watch(standing: Standing) -> None:
            nonlocal said
            if standing.stage == "judging" and standing.stage not in told:
                show_start(standing.run, console)
            if standing.doing and standing.stage not in told:
                TerminalPage(console).say(standing.doing)
            told.add(standing.stage)
            bar.update(line, description=describe_progress(standing), completed=standing.share)
            if not errors.is_terminal and clock() >= said + NOW_AND_THEN:
                said = clock()
                errors.print(describe_progress(standing), markup=False)

        yield watch


def describe_progress(standing: Standing) -> str:
    """One line: the stage, cases and their rate, and what is wrong with them so far."""
    run = standing.run
    if standing.stage == "starting":
        return f"{run.target}: starting"
    if standing.doing:
        return standing.doing
    cases = run.tally.cases
    wrong = [f"{cases[kind]} {kind}" for kind in ("defect", "convention", "reduced", "undecided") if cases[kind]]
    rate = 60 * run.cases / run.seconds if run.seconds else 0.0
    return "  ".join([f"{standing.stage} {run.cases:,} cases", f"{rate:,.0f}/min", *wrong])


# --- what there is to ask for -----------------------------------------------------------------------------------------


def show_choices(console: Console | None = None) -> None:
    """Everything that an option can name."""
    page = TerminalPage(console or Console(highlight=False, markup=False, emoji=False))
    page.heading("targets")
    others = [("bounds", "our own bounds of networks"), ("auto_lirpa", _needed(("auto_LiRPA", "torch")))]
    named = [(name, _needed(needs)) for name, (_, needs) in TARGETS.items()]
    page.fields([*named, ("module:object", "your own"), *others])
    lists = {
        "--features": FEATURES,
        "--features, with --spec": {
            name: REFERENCE_FEATURES[name] for name in REFERENCE_FEATURES if name not in FEATURES
        },
        "--allow": REDUCED,
        "--algorithm": {name: words for name, (words, _) in ALGORITHMS.items()},
        "conventions, which a kernel may declare": CONVENTIONS,
    }
    for title, meanings in lists.items():
        page.heading(title)
        page.fields(meanings.items())
    page.heading("names")
    names = {"--ops": OPERATORS, "--modes": MODES, "--dtypes": DTYPES, "--ranks": map(str, RANKS)}
    page.fields((option, ", ".join(given)) for option, given in names.items())


def _needed(packages: tuple[str, ...]) -> str:
    """Whether a target can be judged here, or what it takes."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        return f"not installed here: pip install {' '.join(missing)}"
    return f"installed: {' and '.join(packages)}" if packages else "our own kernels"
