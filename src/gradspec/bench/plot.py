"""A picture of a run: one panel per operator and mode, a row per cell, a dot per contender, time on a log scale."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradspec.bench.contenders import OURS, label
from gradspec.bench.grid import MODES
from gradspec.bench.measure import SMALLEST_LIMIT, BenchRun, Measured, ratio_to_peer
from gradspec.bench.report import gpu_name
from gradspec.system.machine import machine

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by everyone; shapes say the same on paper.
LOOKS = {
    OURS.name: ("#D55E00", "o"),
    "torch-eager": ("#0072B2", "s"),
    "torch-channels-last": ("#56B4E9", "D"),
    "torch-compile": ("#009E73", "^"),
    "torch-compile-channels-last": ("#F0E442", "h"),
    "jax": ("#CC79A7", "v"),
    "onnxruntime": ("#E69F00", "p"),
}
OTHER = ("#666666", "X")
TITLES = {"pool": "Pooling", "conv": "Convolution", "net": "Networks"}
OPS = {"max": "max", "avg": "average", "smooth": "smooth max", "conv": "convolution", "net": "network"}
COPY_LIMIT, PRODUCT_LIMIT = "copy of the same bytes", "best matrix product"
INK = "#333333"
LIMIT_MARK: dict[str, Any] = {
    "color": "black",
    "marker": "|",
    "markersize": 20,
    "markeredgewidth": 2.5,
    "linestyle": "none",
}


def draw(run: BenchRun, file: Path) -> None:
    """Write the picture; the suffix says in which format (png, pdf, svg)."""
    matplotlib = import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot = import_module("matplotlib.pyplot")
    grouped = groupby(run.results, key=lambda result: (result.problem.mode, result.problem.op))
    panels = [(mode, op, [*group]) for (mode, op), group in grouped]
    modes, ops = (list(dict.fromkeys(names)) for names in ([p[0] for p in panels], [p[1] for p in panels]))
    most = max((len(results) for *_, results in panels), default=1)
    size = (max(10.5, 1.5 + 5.2 * len(ops)), 1.9 + len(modes) * (0.9 + 0.42 * most))
    style = {
        "font.size": 13,
        "axes.titlesize": 14,
        "axes.titleweight": "bold",
        "text.color": INK,
        "font.family": "sans",
    }
    with matplotlib.rc_context(style):
        figure, axes = pyplot.subplots(len(modes) or 1, len(ops) or 1, figsize=size, squeeze=False, sharex="col")
        for axis in axes.flat:
            axis.set_visible(False)
        for mode, op, results in panels:
            axis = axes[modes.index(mode)][ops.index(op)]
            axis.set_visible(True)
            _draw_panel(axis, results, run)
            axis.set_title(f"{OPS[op]}, {MODES[mode]}", loc="left")
            axis.tick_params(labelbottom=True)
            if mode == modes[-1]:
                axis.set_xlabel("milliseconds per call (less is better)")
        _head(figure, run, axes.flat)
        figure.savefig(file, dpi=150, facecolor="white")
        pyplot.close(figure)


def _limit(result: Measured, run: BenchRun) -> tuple[str, float] | None:
    """A limit of the machine and its seconds: of arithmetic where that is counted, of memory elsewhere."""
    if best := run.best_product():
        return PRODUCT_LIMIT, result.problem.flops / best[1]
    if result.copy_limit and result.problem.bytes >= SMALLEST_LIMIT:
        return COPY_LIMIT, result.copy_limit
    return None


def _draw_panel(axis: Axes, results: list[Measured], run: BenchRun) -> None:
    for row, result in enumerate(results):
        axis.axhline(row, color="#EEEEEE", linewidth=9, zorder=0)
        if limit := _limit(result, run):
            axis.plot(1e3 * limit[1], row, **LIMIT_MARK, zorder=2, label=limit[0])
        if ratio := ratio_to_peer(result):
            _annotate(axis, row, f"{ratio:.{1 if ratio >= 1 else 2}f}×", "bold" if ratio >= 1 else "normal")
        for name in reversed(run.contenders):
            timing = result.timings.get(name)
            if timing and timing.samples:
                _draw_timing(axis, row, name, 1e3 * timing.median, [1e3 * edge for edge in timing.quartiles])
    axis.set_xscale("log")
    axis.set_yticks(range(len(results)), [result.problem.cell.name for result in results])
    axis.set_ylim(len(results) - 0.4, -0.6)
    axis.grid(axis="x", which="major", color="#DDDDDD", zorder=0)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.tick_params(axis="both", which="both", length=0, colors=INK)
    _annotate(axis, -0.95, "vs fastest peer", "normal")
    for side in axis.spines.values():
        side.set_visible(False)


def _annotate(axis: Axes, row: float, text: str, weight: str) -> None:
    """To the right of a row."""
    place = axis.get_yaxis_transform()  # x as a part of the panel, y as a row
    axis.text(1.1, row, text, transform=place, ha="right", va="center", color=LOOKS[OURS.name][0], weight=weight)


def _draw_timing(axis: Axes, row: int, name: str, median: float, quartiles: list[float]) -> None:
    colour, marker = LOOKS.get(name, OTHER)
    ours = name == OURS.name
    axis.plot(quartiles, [row, row], color=colour, linewidth=3, solid_capstyle="round", alpha=0.5, zorder=3)
    style: dict[str, Any] = {
        "color": colour,
        "marker": marker,
        "linestyle": "none",
        "markeredgecolor": "white",
        "zorder": 5 if ours else 4,
    }
    axis.plot(median, row, markersize=12 if ours else 9, markeredgewidth=0.8, label=label(name), **style)


def _head(figure: Figure, run: BenchRun, axes: Iterable[Axes]) -> None:
    """Title, machine and one legend, at a fixed distance from the top whatever the figure's height."""
    height = figure.get_figheight()
    where, threads = machine(), run.settings.threads
    processor = f"{where['processor']} ({where['architecture']}), {threads} thread{'s' * (threads > 1)}, float32"
    about = f"{gpu_name(run.gpu) if run.gpu else processor}, medians and quartiles"
    figure.text(
        0.02, 1 - 0.12 / height, f"{TITLES[run.suite]}: gradspec and its peers", fontsize=20, weight="bold", va="top"
    )
    figure.text(0.02, 1 - 0.55 / height, about, fontsize=13, va="top", color="#666666")
    marks: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        marks |= dict(zip(labels, handles, strict=True))
    order = [*map(label, run.contenders), COPY_LIMIT, PRODUCT_LIMIT]
    shown = [name for name in order if name in marks]
    figure.legend(
        [marks[name] for name in shown],
        shown,
        loc="upper left",
        bbox_to_anchor=(0.01, 1 - 0.82 / height),
        ncols=len(shown) if figure.get_figwidth() > 12 else 4,
        frameon=False,
        borderaxespad=0,
        handletextpad=0.3,
        columnspacing=1.2,
    )
    figure.tight_layout(rect=(0.01, 0, 1, 1 - 1.35 / height), h_pad=1.5, w_pad=2.0)
