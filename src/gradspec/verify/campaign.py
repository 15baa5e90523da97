"""``gs.verify.campaign``: many properties side by side, on processes of this machine or on any executor.

They come from ``instances.csv``, as benchmarks of the verification competition have it, among others.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
import secrets
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any

from gradspec.runtime.threads import get_num_threads
from gradspec.saving.files import read_bounded, read_lines, regular_file
from gradspec.saving.strict_json import brief
from gradspec.spec.errors import FormatError, UnsupportedError
from gradspec.system.task_queue import TICK, TRIES, ProcessPerThread, RetryQueue
from gradspec.verify.solving import Answer, Question, Solver, SolverSettings, VerifyError

SECONDS = 60.0
"""For an instance of which no list says how many."""
OUTSTANDING = 64
"""Instances that an executor is given at once."""

_processes = ProcessPerThread[SolverSettings, Solver](Solver)


@dataclass(frozen=True)
class InstanceAnswer:
    """An instance, and what was answered; ``expected`` is the answer that its list states, or nothing."""

    network: str
    property: str
    limit: float
    expected: str
    answer: Answer

    @cached_property
    def disagrees(self) -> bool:
        """Whether a list states the contrary; not to know is no contradiction."""
        return {self.answer.answer, self.expected} == {"sat", "unsat"}

    def as_json(self) -> dict[str, object]:
        stated = {"network": self.network, "property": self.property, "limit": self.limit, "expected": self.expected}
        return stated | self.answer.as_json()


@dataclass
class Standing:
    """How far a campaign is: outcomes as they came, and what runs, as far as this process knows."""

    instances: int
    outcomes: list[InstanceAnswer] = field(default_factory=list)
    running: dict[int, tuple[Instance, Mapping[str, Any]]] = field(default_factory=dict)
    """By number: what is asked, and the latest progress."""


CampaignWatch = Callable[[Standing], None]


def campaign(
    instances: str | os.PathLike[str] | Iterable[Instance | tuple[Any, Any]],
    *,
    executor: Executor | None = None,
    jobs: int | None = None,
    timeout: float | None = None,
    kernels: str = "any",
    seed: int = 0,
    output: str | os.PathLike[str] | None = None,
    progress: CampaignWatch | None = None,
    device: str = "cpu",
) -> list[InstanceAnswer]:
    """Verify many instances, and return the outcomes in order.

    ``instances`` is a list in a file, a folder, or pairs of a network and a property. Each is answered in a process
    that is stopped when its time is up: ``timeout`` seconds, or what the list says. If a process dies, only its own
    instance is lost: the answer is "unknown", with an error. An ``executor`` (a ``ProcessPoolExecutor``, that of a Dask
    client, …) runs the instances wherever it likes, if it finds their files there; ``jobs`` says how many at once.
    ``output`` is a file of JSON lines, to which every outcome is appended as soon as it is known. Instances that it
    already answers, for the same files and options, are skipped.
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs is {jobs}; use at least one")
    listed = [i if timeout is None else replace(i, seconds=timeout) for i in _list_instances(instances)]
    watch = progress or (lambda _: None)
    return VerifyCampaign(listed, output, watch, kernels=kernels, seed=seed, device=device).run(executor, jobs)


class VerifyCampaign:
    """One run. Ctrl-C ends it, and what was answered is in the file."""

    def __init__(
        self, listed: list[Instance], output: object, watch: CampaignWatch, *, kernels: str, seed: int, device: str
    ) -> None:
        self._listed, self._watch = listed, watch
        self._options: dict[str, Any] = {"kernels": kernels, "seed": seed, "device": device}
        self._kept = AnswerFile(output, kernels, seed) if output is not None else None
        self._token = secrets.token_hex(8)
        self._outcomes: dict[int, InstanceAnswer] = {}
        self._losses = Counter[int]()
        self.standing = Standing(len(listed))

    def run(self, executor: Executor | None, jobs: int | None) -> list[InstanceAnswer]:
        workers = jobs or get_num_threads()
        settings = SolverSettings(max(1, get_num_threads() // workers), self._token)
        waiting = deque(number for number in range(len(self._listed)) if not self._is_kept(number))
        at_once = (jobs or OUTSTANDING) if executor else workers
        with _processes.threads(workers, "gradspec-verify", lambda settings: settings.token == self._token) as here:
            tasks = RetryQueue[int](executor or here, here)
            while waiting or tasks:
                while waiting and len(tasks) < at_once:
                    number = waiting.popleft()
                    told = () if executor else (self._progress(number),)
                    arguments = asdict(self._question(number)), asdict(settings), self._losses[number], *told
                    tasks.submit(number, self._losses[number], solve, *arguments)
                for number, found, error in tasks.done(TICK):
                    if error is None:
                        self._enter(number, Answer.read(found))
                    elif not self._lose(number, error):
                        waiting.append(number)
                self._watch(self.standing)
        return [self._outcomes[number] for number in range(len(self._listed))]

    def _lose(self, number: int, error: BaseException) -> bool:
        """A worker, a pool or a network has lost an instance; whether that is final."""
        self._losses[number] += 1
        is_final = self._losses[number] > TRIES  # here as well
        if is_final:
            why = f"{type(error).__name__}: {error}"
            self._enter(number, Answer("unknown", kernels=self._options["kernels"], error=why))
        return is_final

    def _question(self, number: int) -> Question:
        instance = self._listed[number]
        network, property = (os.path.abspath(path) for path in (instance.network, instance.property))
        return Question(network, property, instance.seconds, **self._options)

    def _progress(self, number: int) -> Callable[[Mapping[str, Any]], None]:
        def tell(message: Mapping[str, Any]) -> None:
            self.standing.running[number] = self._listed[number], message.get("progress", {})

        return tell

    def _is_kept(self, number: int) -> bool:
        answer = self._kept.answer(self._listed[number]) if self._kept else None
        if answer is not None:
            self._enter(number, answer, new=False)
        return answer is not None

    def _enter(self, number: int, answer: Answer, new: bool = True) -> None:
        instance = self._listed[number]
        expected = instance.more[0].strip().lower() if instance.more else ""
        names = os.fspath(instance.network), os.fspath(instance.property)
        outcome = self._outcomes[number] = InstanceAnswer(*names, instance.seconds, expected, answer)
        if new and self._kept:
            self._kept.add(instance, outcome)
        self.standing.running.pop(number, None)
        self.standing.outcomes.append(outcome)
        self._watch(self.standing)


def solve(
    question: Mapping[str, Any],
    settings: Mapping[str, Any],
    attempt: int = 0,
    watch: Callable[[Mapping[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """What an executor runs: a question to its answer, as plain data, in a process that the thread keeps.

    ``attempt`` tells calls apart for executors that give the same answer to the same call.
    """
    asked = Question(**question)
    watch({})
    try:
        return _processes.get(SolverSettings(**settings)).answer(asked, watch).as_json()
    except VerifyError as error:
        return Answer("unknown", kernels=asked.kernels, error=str(error)).as_json()


# --- what is asked ----------------------------------------------------------------------------------------------------


def _list_instances(instances: Any) -> list[Instance]:
    if isinstance(instances, str | os.PathLike):
        return instances_in_folder(Path(instances)) if os.path.isdir(instances) else read_instances(instances)
    given = (i if isinstance(i, Instance) else Instance(Path(i[0]), Path(i[1]), SECONDS) for i in instances)
    return list(given)


def instances_in_folder(folder: Path) -> list[Instance]:
    """The list of a folder; without one, each of its properties of its one network."""
    if (folder / "instances.csv").is_file():
        return read_instances(folder / "instances.csv")
    files = sorted(path for path in folder.iterdir() if path.is_file())
    properties = [path for path in files if path.name.removesuffix(".gz").endswith(".vnnlib")]
    networks = [path for path in files if path.name.removesuffix(".gz").endswith((".onnx", ".gs", ".safetensors"))]
    if len(networks) != 1 or not properties:
        raise FormatError(
            f"{brief(os.fspath(folder))} has no instances.csv, {len(networks)} networks and {len(properties)} "
            "properties; give it one network and its properties, or a list network,property,seconds"
        )
    return [Instance(networks[0], path, SECONDS) for path in properties]


# --- what is kept -----------------------------------------------------------------------------------------------------


class AnswerFile:
    """Outcomes in a file of JSON lines, each with what its network and property were, known by their contents."""

    def __init__(self, path: Any, kernels: str, seed: int) -> None:
        self._path, self._options = Path(path), {"kernels": kernels, "seed": seed}
        self._lines = dict[str, dict[str, Any]]()
        self._digests = dict[str, str]()
        if self._path.exists():
            self._read()

    def answer(self, instance: Instance) -> Answer | None:
        """What is known of an instance: an answer, or that there is none in as much time."""
        if not self._lines or not (line := self._lines.get(self._key(instance))):
            return None
        known = line["answer"] in ("sat", "unsat") or (line["limit"] >= instance.seconds and not line["error"])
        return Answer.read(line) if known else None

    def add(self, instance: Instance, outcome: InstanceAnswer) -> None:
        line = outcome.as_json() | self._options | {"key": self._key(instance)}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")

    def _read(self) -> None:
        for number, text in enumerate(read_lines(self._path), 1):
            try:
                line = json.loads(text)
                Answer.read(line)
                self._lines[line["key"]] = line | {"limit": float(line["limit"]), "error": str(line["error"])}
            except (ValueError, TypeError, KeyError, AttributeError):
                raise FormatError(
                    f"{self._path}, line {number} is none that gradspec verify wrote; give another file for --output"
                ) from None

    def _key(self, instance: Instance) -> str:
        digests = [self._digest(os.fspath(path)) for path in (instance.network, instance.property)]
        return " ".join([*digests, str(self._options["kernels"]), str(self._options["seed"])])

    def _digest(self, path: str) -> str:
        if path not in self._digests:
            try:
                with regular_file(path) as file:
                    self._digests[path] = hashlib.sha256(file.read()).hexdigest()[:32]
            except (OSError, FormatError):
                return f"unreadable {path}"
        return self._digests[path]


# --- lists of problems ------------------------------------------------------------------------------------------------


MOST_BYTES = 1 << 24


@dataclass(frozen=True)
class Instance:
    """A network, a property, the seconds that are allowed, and what else the line says."""

    network: Path
    property: Path
    seconds: float
    more: tuple[str, ...] = ()


def read_instances(path: str | os.PathLike[str]) -> list[Instance]:
    """The lines ``network,property,seconds`` of a file; its first line may say what the columns are.

    Names are relative to the folder of the list. Where a file is not there and the same name with ``.gz`` is, that is
    taken; neither is opened.
    """
    name, folder = os.fspath(path), Path(path).parent
    try:
        text = read_bounded(path, MOST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(f"{name}: byte {error.start} is not UTF-8") from None
    found = []
    for number, (line, row) in enumerate(_rows(text, name)):
        if number == 0 and len(row) >= 3 and ".onnx" not in row[0] and _number(row[2]) is None:  # a heading
            continue
        try:
            found.append(_instance(row, folder))
        except (FormatError, UnsupportedError) as error:
            raise type(error)(f"{name}, line {line}: {error}") from None
    return found


def _rows(text: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """The lines that are not empty, with their numbers."""
    reader = csv.reader(StringIO(text, newline=""), strict=True, skipinitialspace=True)
    try:
        yield from ((reader.line_num, [cell.strip() for cell in row]) for row in reader if any(row))
    except csv.Error as error:
        raise FormatError(f"{name}, line {reader.line_num}: {error}") from None


def _instance(row: list[str], folder: Path) -> Instance:
    if row[0].startswith("["):
        raise UnsupportedError(f"{brief(row[0])}: several networks are not supported; join them to one model")
    seconds = _number(row[2]) if len(row) >= 3 else None
    if seconds is None or not 0 < seconds < math.inf or not all(row[:2]):
        raise FormatError(f"{brief(','.join(row))} was found; expected network,property,seconds")
    return Instance(_there(folder, row[0]), _there(folder, row[1]), seconds, tuple(row[3:]))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _there(folder: Path, name: str) -> Path:
    for found in (folder / name, folder / f"{name}.gz"):
        if os.path.isfile(found):  # which a name that no file can have does not offend
            return found
    raise FormatError(f"{brief(name)} is not in the folder {brief(os.fspath(folder))}, packed by gzip or not")
