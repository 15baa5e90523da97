"""What was measured: as tables for the terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import groupby
from statistics import geometric_mean
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradspec.bench.contenders import OURS, label
from gradspec.bench.grid import BETA, MODES, Problem
from gradspec.bench.measure import COPY_PROBLEM, Result, Run, Timing, machine
from gradspec.graph.show import ascii_only

FORMAT = 1
NOTHING, DISAGREES, FAILED = "-", " !=", "failed"
SMALLEST_LIMIT = 1 << 20  # bytes: calls on less are not about memory


# --- ratios -----------------------------------------------------------------------------------------------------------


def ratio_to_peer(result: Result) -> float | None:
    """How many times faster gradspec is than the fastest peer."""
    ours, peer = result.median(OURS.name), result.fastest_peer()
    return peer[1] / ours if ours and peer else None


def share_of_copy(result: Result) -> float | None:
    """Which part of gradspec's time a copy of the same bytes takes."""
    ours, limit = result.median(OURS.name), result.copy_limit
    return limit / ours if ours and limit and result.problem.bytes >= SMALLEST_LIMIT else None


def share_of_product(result: Result, run: Run) -> float | None:
    """gradspec's operations per second, as a part of the best matrix product's."""
    ours, best = result.median(OURS.name), run.best_product()
    return result.problem.flops / ours / best[1] if ours and best and result.problem.flops else None


# --- tables -----------------------------------------------------------------------------------------------------------


def show(run: Run, console: Console) -> None:
    """One table per mode, then everything a reader should know about the figures."""
    for mode, results in groupby(run.results, key=lambda result: result.problem.mode):
        console.print("", _table(run, mode, [*results]), sep="\n")
    for line in remarks(run):
        console.print(Text(ascii_only(line)))


def _table(run: Run, mode: str, results: list[Result]) -> Table:
    title = f"{MODES[mode]}, milliseconds"
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in run.contenders:
        table.add_column(label(name), justify="right", style="green" if name == OURS.name else "")
    products = run.matmul is not None
    for name in ("vs fastest peer", "of copy limit", *(["of best product"] if products else [])):
        table.add_column(name, justify="right", min_width=7)
    for op, group in groupby(results, key=lambda result: result.problem.op):
        rows = [*group]
        for result in rows:
            shares = [share_of_copy(result), *([share_of_product(result, run)] if products else [])]
            times = [_time(result.timings.get(name)) for name in run.contenders]
            table.add_row(_name(result.problem), *times, _times(ratio_to_peer(result)), *map(_percent, shares))
        table.add_row(*_mean_row(op, rows, len(run.contenders)), style="bold", end_section=True)
    return table


def _mean_row(op: str, rows: list[Result], contenders: int) -> list[str]:
    ratios, shares = ([*_known(map(f, rows))] for f in (ratio_to_peer, share_of_copy))
    means = [_times(_mean(ratios)), _percent(_mean(shares))]
    return [f"mean of {op}", *[""] * contenders, *means]


def _known(values: Iterable[float | None]) -> Iterator[float]:
    return (value for value in values if value is not None)


def _mean(values: list[float]) -> float | None:
    return geometric_mean(values) if values else None


def _name(problem: Problem) -> str:
    return f"{problem.cell.name} {problem.op}"


def _time(timing: Timing | None) -> str:
    if timing is None or not timing.samples:
        return FAILED if timing and timing.offered else NOTHING
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


def remarks(run: Run) -> list[str]:
    """Sentences below the tables: limits, spread, and who failed, disagreed or is missing, and why."""
    lines = ["", "Means are geometric.", *_limits(run), *_spread(run)]
    lines += [f"{name} could not be started: {reason}" for name, reason in run.unavailable.items()]
    for result in run.results:
        for name, timing in result.timings.items():
            if timing.reason and timing.offered:
                lines.append(f"{result.problem}: {name} failed: {_first_line(timing.reason)}")
            lines += [f"{result.problem}: {name} {timing.disagrees}"] if timing.disagrees else []
    if run.interrupted:
        lines.append("Interrupted: this is what had been measured.")
    return lines


def _first_line(text: str) -> str:
    return text.splitlines()[0][:200]


def _limits(run: Run) -> list[str]:
    copies = [sample for result in run.results for sample in result.copy.samples]
    lines = []
    if copies:
        rate = COPY_PROBLEM.bytes / sorted(copies)[len(copies) // 2]
        lines.append(f"Memory copy: {rate / 1e9:.1f} GB/s read and written, {run.settings.threads} threads.")
    if best := run.best_product():
        lines.append(f"Best matrix product: {best[1] / 1e9:.1f} GFLOP/s, by {best[0]}.")
    return lines


def _spread(run: Run) -> list[str]:
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


# --- JSON -------------------------------------------------------------------------------------------------------------


def as_json(run: Run) -> dict[str, Any]:
    """The whole run, seconds throughout."""
    product = run.best_product()
    return {
        "format": FORMAT,
        "suite": run.suite,
        "machine": machine(),
        "versions": run.versions,
        "settings": {**asdict(run.settings), "dtype": "float32", "beta": BETA},
        "contenders": run.contenders,
        "unavailable": run.unavailable,
        "interrupted": run.interrupted,
        "best_matrix_product": None if product is None else {"by": product[0], "flops_per_second": product[1]},
        "results": [_result(result, run) for result in run.results],
    }


def _result(result: Result, run: Run) -> dict[str, Any]:
    problem, peer = result.problem, result.fastest_peer()
    return {
        "cell": problem.cell.name,
        "geometry": problem.cell.text,
        "op": problem.op,
        "mode": problem.mode,
        "bytes": problem.bytes,
        "flops": problem.flops,
        "copy": _timing(result.copy),
        "copy_limit": result.copy_limit,
        "fastest_peer": None if peer is None else peer[0],
        "times_fastest_peer": ratio_to_peer(result),
        "share_of_copy_limit": share_of_copy(result),
        "share_of_best_product": share_of_product(result, run),
        "contenders": {name: _timing(timing) for name, timing in result.timings.items()},
    }


def _timing(timing: Timing) -> dict[str, Any]:
    details = {"offered": timing.offered, "reason": timing.reason, "variant": timing.variant}
    details |= {"disagrees": timing.disagrees, "notes": timing.notes}
    kept = {name: value for name, value in details.items() if value not in ("", [])}
    if not timing.samples:
        return kept
    return {"median": timing.median, "quartiles": timing.quartiles, "samples": len(timing.samples), **kept}
