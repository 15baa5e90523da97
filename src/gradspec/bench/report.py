"""What was measured: beside an earlier run of the same grid, as tables for the terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import groupby
from math import exp, log
from pathlib import Path
from statistics import fmean, geometric_mean, median, quantiles
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradspec.bench.contenders import FIXED, GIVEN, OURS, PEERS, label
from gradspec.bench.grid import BETA, MODES, BenchProblem
from gradspec.bench.measure import (
    BenchRun,
    Measured,
    Timing,
    rate,
    rate_of_peer,
    ratio_to_peer,
    share_of_copy,
    share_of_product,
)
from gradspec.saving.strict_json import strict_json
from gradspec.spec.errors import FormatError
from gradspec.system.machine import machine
from gradspec.system.terminal import ascii_text

# --- beside an earlier run --------------------------------------------------------------------------------------------
#
# Two runs cannot be compared as they are: the machine may be slower today. But the peers are the same programs in both.
# What all of them moved by is the machine's doing and is taken off; how far single cells of theirs still lie from that
# is the noise, which a change must exceed to count.

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


NOTHING, DISAGREES, FAILED = "-", " !=", "failed"
NUMBER = 7  # characters of a time


# --- tables -----------------------------------------------------------------------------------------------------------


def show(run: BenchRun, console: Console) -> None:
    """One table per mode, then everything a reader should know about the figures.

    On a GPU it is named first.
    """
    if run.gpu:
        console.print(Text(gpu_name(run.gpu)))
    for mode, results in groupby(run.results, key=lambda result: result.problem.mode):
        _print_whole(console, _table(run, mode, [*results]))
    for line in remarks(run):
        console.print(Text(ascii_text(line)))


def gpu_name(facts: Mapping[str, str]) -> str:
    """A GPU, and what drives it.

    >>> gpu_name({"GPU": "NVIDIA H200", "driver": "570.86", "CUDA": "12.8", "cuDNN": "91002"})
    'NVIDIA H200, driver 570.86, CUDA 12.8, cuDNN 91002'
    """
    (_, name), *rest = facts.items()
    return ", ".join([name, *map(" ".join, rest)])


def _print_whole(console: Console, table: Table) -> None:
    """Headings are broken between words to fit; where that is not enough, lines are too long rather than cut off."""
    console.print("", table, sep="\n", crop=False)


def _table(run: BenchRun, mode: str, results: list[Measured]) -> Table:
    table = _plain_table(f"{MODES[mode]}, milliseconds")
    table.add_column("", no_wrap=True)
    for name in run.contenders:
        width = max(NUMBER, *map(len, label(name).split()))
        table.add_column(label(name), justify="right", min_width=width, style="green" if name == OURS.name else "")
    columns = _columns(run)
    for name in columns:
        table.add_column(name, justify="right", min_width=NUMBER)
    for op, group in groupby(results, key=lambda result: result.problem.op):
        rows = [*group]
        for result in rows:
            times = [_time(result.timings.get(name)) for name in run.contenders]
            table.add_row(_name(result.problem), *times, *(shown(f(result)) for f, shown in columns.values()))
        means = [shown(_mean([*_known(map(f, rows))])) for f, shown in columns.values()]
        table.add_row(f"mean of {op}", *[""] * len(run.contenders), *means, style="bold", end_section=True)
    return table


def _plain_table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)


Figure = Callable[[Measured], float | None]


def _columns(run: BenchRun) -> dict[str, tuple[Figure, Callable[[float | None], str]]]:
    """What stands beside the times: limits of memory for pooling, of arithmetic for the others."""
    ratio: dict[str, tuple[Figure, Callable[[float | None], str]]] = {"vs fastest peer": (ratio_to_peer, _times)}
    if not run.products:
        return ratio | {"of copy limit": (share_of_copy, _percent)}
    return ratio | {
        "GFLOP/s": (lambda result: rate(result, result.median(OURS.name)), _giga),
        "peer's GFLOP/s": (rate_of_peer, _giga),
        "of best product": (lambda result: share_of_product(result, run), _percent),
    }


def _known(values: Iterable[float | None]) -> Iterator[float]:
    return (value for value in values if value is not None)


def _mean(values: list[float]) -> float | None:
    return geometric_mean(values) if values else None


def _name(problem: BenchProblem) -> str:
    return f"{problem.cell.name} {problem.op}"


def _time(timing: Timing | None) -> str:
    if timing is None or not timing.samples:
        return FAILED if timing and timing.offered and timing.reason else NOTHING
    return milliseconds(timing.median) + (DISAGREES if timing.disagrees else "")


def milliseconds(seconds: float) -> str:
    """Three digits.

    >>> milliseconds(0.0123456), milliseconds(0.00000789), milliseconds(3.21)
    ('12.3', '0.00789', '3210')
    """
    value = 1e3 * seconds
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _times(ratio: float | None) -> str:
    return NOTHING if ratio is None else f"{ratio:.2f}x"


def _percent(share: float | None) -> str:
    return NOTHING if share is None else f"{100 * share:.0f} %"


def _giga(rate: float | None) -> str:
    return NOTHING if rate is None else f"{rate / 1e9:.1f}"


def remarks(run: BenchRun) -> list[str]:
    """Sentences below the tables: limits, spread, and who failed, disagreed or is missing, and why."""
    lines = ["", "Means are geometric.", *_limits(run), *_fixing(run), *_spread(run)]
    lines += [f"{name} could not be started: {reason}" for name, reason in run.unavailable.items()]
    for result in run.results:
        for name, timing in result.timings.items():
            if timing.reason and timing.offered:
                lines.append(f"{result.problem}: {name} failed: {timing.reason.splitlines()[0][:200]}")
            lines += [f"{result.problem}: {name} {timing.disagrees}"] if timing.disagrees else []
    if run.interrupted:
        lines.append("Interrupted: this is what had been measured.")
    return lines


def _limits(run: BenchRun) -> list[str]:
    copies = [result.copied / sample for result in run.results for sample in result.copy.samples]
    lines = []
    if copies:
        rate = median(copies)
        by = "" if run.gpu else f", {run.settings.threads} threads"
        lines.append(f"Memory copy: {rate / 1e9:.1f} GB/s read and written{by}.")
    if best := run.best_product():
        lines.append(f"Best matrix product: {best[1] / 1e9:.1f} GFLOP/s, by {best[0]}.")
    return lines


def _fixing(run: BenchRun) -> list[str]:
    """What weights that are known before the calls are worth to each contender, by the trials of both ways."""
    lines = []
    for name in run.contenders:
        tried = [result.timings[name].tried for result in run.results if name in result.timings]
        gains = [t[GIVEN] / t[FIXED] for t in tried if GIVEN in t and FIXED in t]
        if gains:
            gain = geometric_mean(gains)
            lines.append(f"With weights given in each call instead of before, {name} takes {gain:.2f} times as long.")
    return lines


def _spread(run: BenchRun) -> list[str]:
    spreads = sorted(
        ((high - low) / timing.median, f"{result.problem}, {name}")
        for result in run.results
        for name, timing in result.timings.items()
        if timing.samples
        for low, high in [timing.quartiles]
    )
    if not spreads:
        return []
    middle, (worst, where) = spreads[len(spreads) // 2][0], spreads[-1]
    return [f"Quartiles lie {100 * middle:.0f} % of the median apart, at worst {100 * worst:.0f} % ({where})."]


# --- the comparison as a table ----------------------------------------------------------------------------------------


def show_comparison(comparison: Comparison, console: Console) -> None:
    """The cells that moved beyond the noise, and what was taken for noise."""
    moved = sorted((c for c in comparison.changes if c.is_real), key=lambda change: change.speedup)
    if moved:
        _print_whole(console, _change_table(f"Moved since {comparison.file}", moved))
    for line in _judgement(comparison, len(moved)):
        console.print(Text(ascii_text(line)))


def _change_table(title: str, changes: list[Change]) -> Table:
    table = _plain_table(title)
    table.add_column("", no_wrap=True)
    for name in ("before, ms", "now, ms", "as fast", "noise"):
        table.add_column(name, justify="right", min_width=NUMBER)
    for change in changes:
        times = milliseconds(change.before), milliseconds(change.now)
        style = "green" if change.speedup > 1 else "bold red"
        table.add_row(str(change.problem), *times, Text(_times(change.speedup), style=style), _percent(change.noise))
    return table


def _judgement(comparison: Comparison, moved: int) -> list[str]:
    if not comparison.changes:
        return ["", f"{comparison.file} has no problem of this run: nothing can be compared."]
    controls = (
        f"By {comparison.controls} timings of unchanged peers the machine takes {comparison.drift:.3f} times as long "
        f"as then, which is taken off, and a change below {_percent(comparison.noise)} is noise."
        if comparison.controls
        else "No unchanged peer was timed in both runs, so a slower machine looks like slower code; give --peers."
    )
    mean = f"{mean_speedup(comparison):.3f} times as fast in geometric mean"
    return ["", f"{moved} of {len(comparison.changes)} problems moved beyond the noise; {mean}.", controls]


# --- JSON -------------------------------------------------------------------------------------------------------------


def as_json(run: BenchRun) -> dict[str, object]:
    """The whole run, seconds throughout."""
    product = run.best_product()
    return {
        "format": FORMAT,
        "suite": run.suite,
        "machine": machine() | run.gpu,
        "versions": run.versions,
        "settings": {**asdict(run.settings), "beta": BETA},
        "contenders": run.contenders,
        "unavailable": run.unavailable,
        "interrupted": run.interrupted,
        "best_matrix_product": None if product is None else {"by": product[0], "flops_per_second": product[1]},
        "matrix_products": [_limit(result) for result in run.products],
        "results": [_result(result, run) for result in run.results],
    }


def _result(result: Measured, run: BenchRun) -> dict[str, object]:
    problem, peer = result.problem, result.fastest_peer()
    return {
        "cell": problem.cell.name,
        "geometry": problem.cell.text,
        "dtype": problem.cell.dtype,
        "channels_last": problem.cell.channels_last,
        "op": problem.op,
        "mode": problem.mode,
        "bytes": problem.bytes,
        "flops": problem.flops,
        "copy": _timing(result.copy),
        "copy_limit": result.copy_limit,
        "fastest_peer": None if peer is None else peer[0],
        "is_complete": result.is_complete,
        "flops_per_second": rate(result, result.median(OURS.name)),
        "fastest_peer_flops_per_second": rate_of_peer(result),
        "times_fastest_peer": ratio_to_peer(result),
        "share_of_copy_limit": share_of_copy(result),
        "share_of_best_product": share_of_product(result, run),
        "contenders": {name: _timing(timing) for name, timing in result.timings.items()},
    }


def _limit(result: Measured) -> dict[str, object]:
    timed = {name: _timing(timing) for name, timing in result.timings.items()}
    return {"side": result.problem.cell.output()[0], "flops": result.problem.flops, "contenders": timed}


def _timing(timing: Timing) -> dict[str, object]:
    details = {"offered": timing.offered, "reason": timing.reason, "variant": timing.variant}
    details |= {"tried": timing.tried if len(timing.tried) > 1 else ""}
    details |= {"disagrees": timing.disagrees, "notes": timing.notes}
    kept = {name: value for name, value in details.items() if value not in ("", [])}
    if not timing.samples:
        return kept
    return {"median": timing.median, "quartiles": timing.quartiles, "samples": len(timing.samples), **kept}
