"""What ``gradspec bench`` does with its options."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from gradspec.bench.contenders import MissingPeerError, Participant, Race, UnknownNameError, race_on
from gradspec.bench.contenders import peers as named_peers
from gradspec.bench.grid import MODES, BenchProblem, parts, problems
from gradspec.bench.measure import BenchRun, Settings, measure, product_problems
from gradspec.bench.report import EarlierRun, as_json, compare, read_run, show, show_comparison
from gradspec.runtime.threads import get_num_threads
from gradspec.saving.files import replacing
from gradspec.spec.errors import FormatError
from gradspec.system.processes import terminated_like_interrupted

GPU_TIMEOUT = 900.0  # seconds, in which compilers try many kernels
PICTURES = (".png", ".pdf", ".svg")


class BenchError(Exception):
    """The request cannot be carried out; the message says what to do."""


@dataclass(frozen=True)
class BenchRequest:
    """The options as given; ``None`` stands for the default."""

    suite: str = "pool"
    peers: list[str] | None = None
    cells: list[str] | None = None
    ops: list[str] | None = None
    modes: list[str] | None = None
    rounds: int | None = None
    threads: int | None = None
    timeout: float | None = None
    quick: bool = False
    json_file: str | None = None
    plot_file: str | None = None
    earlier_file: str | None = None
    device: str = "cpu"

    def race(self) -> Race:
        """Refused where there is no such device, or nothing to race on it."""
        try:
            race = race_on(self.device)
        except UnknownNameError as error:
            raise BenchError(str(error)) from error
        if missing := race.missing(race.ours):
            raise BenchError(missing)
        if self.suite not in race.grid:
            raise BenchError(f"there is no grid of {self.suite} for GPUs; choose from {', '.join(race.grid)}")
        return race

    def problems(self) -> list[BenchProblem]:
        grids = self.race().grid
        grid = grids[self.suite]
        words = dict.fromkeys(word for cell in grid for word in cell.name.split("-"))
        _require("cell", [word for name in self.cells or () for word in parts(name)], words)
        _require("operator", self.ops, {op: None for cell in grid for op in cell.ops})
        _require("mode", self.modes, MODES)
        chosen = problems(self.suite, self.cells or (), self.ops or (), self.modes or (), grids)
        if not chosen:
            raise BenchError("no problem of the grid has such a cell, operator and mode")
        return chosen

    def contenders(self) -> list[Participant]:
        try:
            chosen = named_peers(self.peers, self.suite, self.race())
        except (UnknownNameError, MissingPeerError) as error:
            raise BenchError(str(error)) from error
        left_out = {"torch-compile", "torch-compile-channels-last"}.difference(self.peers or ()) if self.quick else ()
        return [peer for peer in chosen if peer.name not in left_out]

    def settings(self) -> Settings:
        given = {"rounds": self.rounds, "timeout": self.timeout}
        quick: dict[str, Any] = {"rounds": 2, "turn": 0.05, "repeats": 5} if self.quick else {}
        patient = {} if self.device == "cpu" else {"timeout": GPU_TIMEOUT}
        changes = quick | patient | {name: value for name, value in given.items() if value is not None}
        return Settings(threads=self.threads or get_num_threads(), **changes)


def _require(what: str, given: Collection[str] | None, known: Collection[str]) -> None:
    for name in given or ():
        if name not in known:
            raise BenchError(f"there is no {what} {name!r}; choose from {', '.join(known)}")


def perform(request: BenchRequest, console: Console | None = None) -> BenchRun:
    """Measure, print the tables, and write what was asked for."""
    race, chosen, peers, settings = request.race(), request.problems(), request.contenders(), request.settings()
    _require_possible(request)
    earlier = _earlier(request, settings, race)
    console = console or Console(highlight=False, markup=False)
    with _progress(len(chosen) + 2 * len(product_problems(chosen))) as advance, terminated_like_interrupted():
        run = measure(request.suite, chosen, peers, settings, advance, race)
    show(run, console)
    if earlier:
        show_comparison(compare(run, earlier), console)
    if request.json_file:
        try:
            with replacing(request.json_file) as partial:
                partial.write_text(json.dumps(as_json(run), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise BenchError(f"{request.json_file} could not be written: {error.strerror}") from error
    if request.plot_file and any(timing.samples for result in run.results for timing in result.timings.values()):
        from gradspec.bench.plot import draw

        draw(run, Path(request.plot_file))
    return run


def _require_possible(request: BenchRequest) -> None:
    """Said before an hour of measuring, not after it."""
    if os.name != "posix":
        raise BenchError("workers are stopped and continued by POSIX signals, which this system does not have")
    if request.plot_file and find_spec("matplotlib") is None:
        raise BenchError("a plot needs matplotlib; pip install matplotlib")
    if request.plot_file and Path(request.plot_file).suffix not in PICTURES:
        raise BenchError(f"{request.plot_file} is to be drawn as one of {', '.join(PICTURES)}; give it that suffix")
    for file in (request.json_file, request.plot_file):
        if file and not Path(file).absolute().parent.is_dir():
            raise BenchError(f"there is no folder for {file}; create it first")


def _earlier(request: BenchRequest, settings: Settings, race: Race) -> EarlierRun | None:
    """Read before the measuring, too, and before ``--json`` may write over it."""
    if not request.earlier_file:
        return None
    try:
        return read_run(request.earlier_file, request.suite, settings.threads, race.facts().get("GPU", "none"))
    except (OSError, FormatError) as error:
        raise BenchError(str(error)) from error


@contextmanager
def _progress(total: int) -> Iterator[Callable[[str, float], None]]:
    """A bar on standard error, redrawn only between turns: a thread that redraws would be timed along."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True) as bar:
        task = bar.add_task("", total=total)

        def advance(doing: str, share: float) -> None:
            bar.update(task, description=doing, advance=share, refresh=True)

        yield advance
