"""A run beside an earlier one of the same grid: which cells moved, and which only seem to.

Two runs cannot be compared as they are: the machine may be slower today. But the peers are the same programs in both.
What all of them moved by is the machine's doing and is taken off; how far single cells of theirs still lie from that is
the noise, which a change must exceed to count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

from gradspec.bench.contenders import OURS, PEERS
from gradspec.bench.grid import BenchProblem
from gradspec.bench.measure import BenchRun
from gradspec.saving.strict_json import strict_json
from gradspec.spec.errors import FormatError
from gradspec.system.machine import machine

FORMAT = 2
"""Of the files that ``--json`` writes."""

FEWEST_CONTROLS = 10
"""Timings of peers in both runs, below which they tell no noise."""

LEAST_NOISE = 0.02
"""A change in two runs of a machine that is less than this means nothing, however still it seemed."""

Key = tuple[str, str, str]
"""Cell, operator and mode."""


@dataclass(frozen=True)
class MeasuredSpan:
    """The median of a contender's times and their quartiles, in seconds."""

    median: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """Half the distance of the quartiles, as a part of the median."""
        return (self.high - self.low) / 2 / self.median


@dataclass(frozen=True)
class EarlierRun:
    """What is kept of a file that ``--json`` wrote."""

    file: str
    versions: Mapping[str, str]
    times: Mapping[Key, Mapping[str, MeasuredSpan]]


@dataclass(frozen=True)
class Change:
    """One problem in both runs; ``speedup`` is how many times as fast gradspec has become on an unchanged machine."""

    problem: BenchProblem
    before: float
    now: float
    speedup: float
    noise: float

    @property
    def is_real(self) -> bool:
        return abs(log(self.speedup)) > self.noise


@dataclass(frozen=True)
class Comparison:
    """All changes, what the machine's was, how far single cells of peers lay from that, and how many were looked at."""

    file: str
    changes: list[Change]
    drift: float
    noise: float
    controls: int


# --- the earlier run --------------------------------------------------------------------------------------------------


def read_run(file: str, suite: str, threads: int, gpu: str = "none") -> EarlierRun:
    """An earlier run of this suite on this machine, or this GPU, with as many threads, or a FormatError."""
    try:
        data = strict_json(Path(file).read_text(encoding="utf-8"), file)
        where = data["machine"]
        found = data["format"], data["suite"], where["processor"], data["settings"]["threads"], where.get("GPU", "none")
        wanted = FORMAT, suite, machine()["processor"], threads, gpu
        if found != wanted:
            raise FormatError(
                f"{file} is of (format, suite, processor, threads, GPU) {found}, and this run of {wanted}; such times "
                "cannot be compared: measure both runs alike"
            )
        times = {(row["cell"], row["op"], row["mode"]): _spans(row["contenders"]) for row in data["results"]}
        return EarlierRun(file, {str(k): str(v) for k, v in data["versions"].items()}, times)
    except FormatError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"{file} was not written by gradspec bench --json ({error!r})") from None


def _spans(contenders: Mapping[str, Any]) -> dict[str, MeasuredSpan]:
    timed = {name: timing for name, timing in contenders.items() if timing.get("median", 0) > 0}
    return {name: MeasuredSpan(timing["median"], *timing["quartiles"]) for name, timing in timed.items()}


# --- the comparison ---------------------------------------------------------------------------------------------------


def compare(run: BenchRun, earlier: EarlierRun) -> Comparison:
    """What became of every problem that was timed in both runs."""
    both = [*_in_both(run, earlier)]
    same = {p.name for p in PEERS if all(run.versions.get(n) == earlier.versions.get(n) for n in p.needs)}
    controls = [log(now.median / before.median) for _, name, before, now in both if name in same]
    drift = median(controls) if controls else 0.0
    noise = _noise([change - drift for change in controls])
    changes = [
        Change(
            problem,
            before.median,
            now.median,
            exp(log(before.median / now.median) + drift),
            max(noise, before.spread + now.spread),
        )
        for problem, name, before, now in both
        if name == OURS.name
    ]
    return Comparison(earlier.file, changes, exp(drift), noise, len(controls))


def _in_both(run: BenchRun, earlier: EarlierRun) -> Iterator[tuple[BenchProblem, str, MeasuredSpan, MeasuredSpan]]:
    for result in run.results:
        problem = result.problem
        before = earlier.times.get((problem.cell.name, problem.op, problem.mode), {})
        for name, timing in result.timings.items():
            if result.is_complete and timing.samples and name in before:
                yield problem, name, before[name], MeasuredSpan(timing.median, *timing.quartiles)


def _noise(residuals: list[float]) -> float:
    """What nine of ten timings of unchanged programs stay below; of too few timings, the least that noise may be.

    >>> round(_noise([0.01 * i for i in range(-10, 11)]), 3)
    0.098
    """
    if len(residuals) < FEWEST_CONTROLS:
        return LEAST_NOISE
    return max(LEAST_NOISE, quantiles(map(abs, residuals), n=10)[-1])


def mean_speedup(comparison: Comparison) -> float:
    """The geometric mean."""
    return exp(fmean(log(change.speedup) for change in comparison.changes))
