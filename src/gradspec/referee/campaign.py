"""Many solutions: a folder of them is a campaign, with one line of JSON for each."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import get_ident
from typing import Any

from gradspec.conformance.model.codec import decode, encode
from gradspec.referee.formats import (
    ProblemSource,
    find_source,
    has_calls,
    operator_of_folder,
    solution_in_folder,
    top_names,
)
from gradspec.referee.scoring import Score, ScoreSettings, close_judges, score_solution
from gradspec.runtime.threads import get_num_threads
from gradspec.saving.files import read_lines
from gradspec.spec.errors import FormatError
from gradspec.system.task_queue import TICK, TRIES, RetryQueue

SAMPLE = re.compile(r"level_?(\d+)_problem_?(\d+)_")
"""How KernelBench names its samples: ``level_1_problem_23_sample_0_kernel.py``."""
OUTSTANDING = 64
"""Solutions that an executor is given at once."""


@dataclass(frozen=True)
class Submission:
    """A solution, and the problem that it is for."""

    source: ProblemSource
    solution: str

    @property
    def name(self) -> str:
        return f"{Path(self.source.path).name} {Path(self.solution).name}"


@dataclass(frozen=True)
class SolutionScore:
    """A solution with its score."""

    submission: Submission
    score: Score

    def as_json(self) -> dict[str, Any]:
        given = {"problem": self.submission.source.path, "solution": self.submission.solution}
        return given | {"score": self.score.score} | {"result": encode(self.score)}


Watch = Callable[[SolutionScore, int, int], None]
"""Told of each outcome, with how many there are and of how many."""


def list_submissions(problem: str, solution: str | None = None, **options: Any) -> list[Submission]:
    """The solutions that a command line names, each with its problem.

    One problem with a file or a folder of solutions; a folder of KernelBench's problems with a folder of samples; or a
    folder of BackendBench, whose operators are the problems, with files of traces beside them or none.
    """
    folder = Path(problem)
    if solution is None:
        if not folder.is_dir():
            raise FormatError(f"{problem} was given without a solution; give a file, or a folder of solutions")
        found = list(_operators(folder, options))
    elif folder.is_dir() and not (folder / "task.yml").is_file():
        found = list(_samples(folder, Path(solution), options))
    else:
        source = find_source(problem, **options)
        files = _files(Path(solution)) if os.path.isdir(solution) else [solution]
        found = [Submission(source, file) for file in files]
    if not found:
        raise FormatError(f"no solution was found in {solution or problem}")
    return found


def _files(folder: Path) -> list[str]:
    return sorted(str(file.absolute()) for file in folder.rglob("*.py"))


def _operators(folder: Path, options: Mapping[str, Any]) -> Iterator[Submission]:
    for one in sorted(path for path in (folder, *folder.iterdir()) if path.is_dir()):
        if (file := solution_in_folder(one.absolute())) is not None:
            operator = operator_of_folder(one.absolute().name)
            traces = (path for place in (one, folder) for path in sorted(place.glob("*.txt")))
            own = next((str(path.absolute()) for path in traces if has_calls(path, operator)), "")
            chosen = {**options, "inputs": options.get("inputs") or own}
            yield Submission(ProblemSource("backendbench", operator, **chosen), str(file))


def _samples(problems: Path, solutions: Path, options: Mapping[str, Any]) -> Iterator[Submission]:
    """Solutions of KernelBench with the problem of the same name, or of the same level and number."""
    known = {file.name: file for file in sorted(problems.rglob("*.py")) if "Model" in top_names(file)}
    numbered = {}
    for file in known.values():
        number, level = re.match(r"(\d+)_", file.name), re.search(r"level_?(\d+)", str(file.parent.name))
        if number:
            numbered[level[1] if level else "", number[1]] = file
    for solution in _files(solutions) if solutions.is_dir() else [str(solutions)]:
        name = Path(solution).name
        sample = SAMPLE.search(name)
        found = known.get(name) or (
            numbered.get((sample[1], sample[2])) or numbered.get(("", sample[2])) if sample else None
        )
        if found is None:
            raise FormatError(f"{solution} has no problem in {problems} of its name, or of its level and number")
        yield Submission(find_source(str(found), **options), solution)


def score_task(
    source: Mapping[str, Any], solution: str, settings: Mapping[str, Any], attempt: int = 0
) -> dict[str, Any]:
    """What an executor runs: plain data to plain data, by a process that its thread keeps for each problem.

    ``attempt`` tells calls apart for executors that give the same answer to the same call.
    """
    _threads.add(get_ident())
    asked = decode(ProblemSource, source, "source"), solution, decode(ScoreSettings, settings, "settings")
    return encode(score_solution(*asked))  # type: ignore[no-any-return]


_threads = set[int]()


def referee(
    submissions: Sequence[Submission],
    settings: ScoreSettings | None = None,
    *,
    jobs: int | None = None,
    executor: Executor | None = None,
    output: str | os.PathLike[str] | None = None,
    progress: Watch | None = None,
) -> list[SolutionScore]:
    """Score many solutions, and return the outcomes in order.

    ``output`` is a file of JSON lines, to which every outcome is appended as soon as it is known; solutions that it
    already has, with the same contents, problem and settings, are skipped. ``jobs`` are processes of this machine. An
    ``executor`` (a ``ProcessPoolExecutor``, that of a Dask client, …) runs solutions wherever it finds their files.
    """
    settings = settings or ScoreSettings()
    kept = OutcomeFile(Path(output), settings) if output is not None else None
    outcomes = {
        n: kept.scores[key] for n, one in enumerate(submissions) if kept and (key := kept.key(one)) in kept.scores
    }
    for place, number in enumerate(outcomes, 1):
        if progress:
            progress(SolutionScore(submissions[number], outcomes[number]), place, len(submissions))
    waiting, losses = deque(n for n in range(len(submissions)) if n not in outcomes), Counter[int]()
    pool = ThreadPoolExecutor(jobs or get_num_threads(), thread_name_prefix="gradspec-referee")
    at_once = (jobs or OUTSTANDING) if executor else jobs or get_num_threads()
    try:
        tasks = RetryQueue[int](executor or pool, pool)
        while waiting or tasks:
            while waiting and len(tasks) < at_once:
                number = waiting.popleft()
                one = submissions[number]
                plain = encode(one.source), one.solution, encode(settings), losses[number]
                tasks.submit(number, losses[number], score_task, *plain)
            for number, found, error in tasks.done(TICK):
                losses[number] += error is not None
                if error is not None and losses[number] <= TRIES:
                    waiting.append(number)
                    continue
                score = decode(Score, found, "score") if error is None else Score("error", error=f"lost: {error}")
                outcomes[number] = score
                if kept:
                    kept.add(submissions[number], score)
                if progress:
                    progress(SolutionScore(submissions[number], score), len(outcomes), len(submissions))
    finally:
        pool.shutdown(cancel_futures=True)
        close_judges({*_threads})
    return [SolutionScore(one, outcomes[n]) for n, one in enumerate(submissions)]


class OutcomeFile:
    """Outcomes in a file of JSON lines, each known by the contents of its solution and problem, and by the settings."""

    def __init__(self, path: Path, settings: ScoreSettings) -> None:
        self._path, self._settings = path, json.dumps(encode(settings), sort_keys=True)
        self.scores = dict[str, Score]()
        if path.exists():
            self._read()

    def _read(self) -> None:
        for number, text in enumerate(read_lines(self._path), 1):
            try:
                line = json.loads(text)
                self.scores[line["key"]] = decode(Score, line["result"], "result")
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                told = f"{self._path}, line {number} is none that gradspec referee wrote; give another --output"
                raise FormatError(told) from error

    def add(self, submission: Submission, score: Score) -> None:
        line = SolutionScore(submission, score).as_json() | {"key": self.key(submission)}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")

    def key(self, submission: Submission) -> str:
        digest = hashlib.sha256(f"{encode(submission)} {self._settings}".encode())
        for file in (submission.solution, submission.source.path, f"{submission.source.path}/reference.py"):
            if Path(file).is_file():
                digest.update(Path(file).read_bytes())
        return digest.hexdigest()[:32]
