"""The measured part of ``docs/benchmarks.md`` and its picture, from files that ``gradspec bench --json`` wrote.

python benchmarks/benchmarks_page.py pool.json conv.json net.json [those of other machines]

Files of one machine and number of threads are put together; of what several have measured, the last one counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from math import log
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any
from xml.sax.saxutils import escape

from gradspec.bench.grid import MODES
from gradspec.bench.measure import COPY_PROBLEM
from gradspec.bench.report import FORMAT, milliseconds
from gradspec.saving.strict_json import strict_json

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- measured: benchmarks/benchmarks_page.py -->\n", "<!-- end of measured -->\n"
OPERATORS = {
    "max": "Maximum pooling",
    "avg": "Average pooling",
    "smooth": "Smooth maximum pooling",
    "conv": "Convolution",
    "net": "Networks",
}
NAMED = {"gradspec": "gradspec", "torch": "PyTorch", "jax": "JAX", "onnxruntime": "ONNX Runtime"}
NONE = "–"


# --- what was measured ------------------------------------------------------------------------------------------------


@dataclass
class Measured:
    """All that files have of one machine, with so many threads."""

    processor: str
    architecture: str
    threads: int
    versions: dict[str, str] = field(default_factory=dict)
    products: list[float] = field(default_factory=list)
    """Operations per second of the best matrix product, in each file that has one."""
    results: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.processor} ({self.architecture}), {self.threads} thread{'s' * (self.threads > 1)}"

    def add(self, run: dict[str, Any]) -> None:
        self.versions |= run["versions"]
        if best := run["best_matrix_product"]:
            self.products.append(best["flops_per_second"])
        whole = (row for row in run["results"] if row["is_complete"])
        self.results |= {(row["op"], row["cell"], row["mode"]): row for row in whole}

    def rows(self, op: str) -> Iterator[tuple[str, dict[str, dict[str, Any]]]]:
        """The cells of an operator in the order of their numbers, and what was measured of each in every mode."""
        keys = sorted((int(cell[1:]), cell, mode) for each, cell, mode in self.results if each == op)
        for cell, group in groupby(keys, key=lambda key: key[1]):
            yield cell, {mode: self.results[op, cell, mode] for *_, mode in group}

    def ratios(self, op: str, mode: str) -> dict[str, float]:
        """How many times as fast as the fastest peer gradspec is, by cell."""
        found = {cell: rows[mode]["times_fastest_peer"] for cell, rows in self.rows(op) if mode in rows}
        return {cell: ratio for cell, ratio in found.items() if ratio is not None}


def read(files: Iterable[Path]) -> list[Measured]:
    machines: dict[tuple[str, str, int], Measured] = {}
    for file in files:
        run = strict_json(file.read_text(encoding="utf-8"), str(file))
        if run.get("format") != FORMAT:
            raise SystemExit(f"{file} was not written by this version of gradspec bench --json")
        if "GPU" in run["machine"]:
            raise SystemExit(f"{file} is of a GPU; the page has figures of processors")
        key = run["machine"]["processor"], run["machine"]["architecture"], run["settings"]["threads"]
        machines.setdefault(key, Measured(*key)).add(run)
    return [*machines.values()]


# --- tables -----------------------------------------------------------------------------------------------------------


def table(machine: Measured) -> str:
    """One table of all problems, with what bounds the figures in front and how many a peer solves faster behind."""
    lines = [["", *MODES.values()], ["---"] * (1 + len(MODES))]
    for op in OPERATORS:
        for cell, rows in machine.rows(op):
            lines.append([cell if op in ("conv", "net") else f"{cell} {op}", *(_figure(rows.get(m)) for m in MODES)])
    drawn = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return "\n\n".join([f"### {machine.name}", _limits(machine), drawn, _where_slower(machine)]) + "\n"


def _limits(machine: Measured) -> str:
    versions = ", ".join(f"{name} {machine.versions[key]}" for key, name in NAMED.items() if key in machine.versions)
    copies = [row["copy"]["median"] for row in machine.results.values() if "median" in row["copy"]]
    known = [f"float32, medians; {versions}"]
    known += [f"memory copy {COPY_PROBLEM.bytes / median(copies) / 1e9:.1f} GB/s"] if copies else []
    known += [f"best matrix product {max(machine.products) / 1e9:.0f} GFLOP/s"] if machine.products else []
    return "; ".join(known) + "."


def _figure(row: dict[str, Any] | None) -> str:
    """Milliseconds of gradspec and, in brackets, how many times as fast as the fastest peer that is."""
    timing = row and row["contenders"].get("gradspec")
    if not row or not timing or "median" not in timing:
        return NONE
    ratio = row["times_fastest_peer"]
    return milliseconds(timing["median"]) + ("" if ratio is None else f" ({ratio:.2f})")


def _where_slower(machine: Measured) -> str:
    rows = [row for row in machine.results.values() if row["times_fastest_peer"] is not None]
    behind = [row for row in rows if row["times_fastest_peer"] < 1]
    text = f"gradspec is the fastest at {len(rows) - len(behind)} of {len(rows)} problems"
    if not behind:
        return f"{text}."
    least = min(behind, key=lambda row: row["times_fastest_peer"])
    named = f"{least['cell']} {least['op']} {MODES[least['mode']]}"
    return f"{text}; the least ratio is {least['times_fastest_peer']:.2f}, at {named}."


# --- the picture ------------------------------------------------------------------------------------------------------

THEMES = {
    "light": {"ink": "#1f2328", "faint": "#59636e", "grid": "#d1d9e0", "marks": ("#0969da", "#bc4c00", "#1a7f37")},
    "dark": {"ink": "#f0f6fc", "faint": "#9198a1", "grid": "#3d444d", "marks": ("#4493f8", "#f0883e", "#3fb950")},
}
WIDTH, LEFT, RIGHT, TOP, LANE, DOT = 860, 158, 76, 92, 15, 7
TICKS = [digit * 10.0**power for power in range(-3, 4) for digit in (1, 2, 5)]
CAPS = ("round", "square", "butt")
"""What tells the marks of machines apart beside their colours."""


@dataclass(frozen=True)
class Scale:
    """Ratios on a logarithmic axis, which shows 1 in any case."""

    low: float
    high: float

    @classmethod
    def of(cls, ratios: list[float]) -> Scale:
        edges = [0.5, 2.0, *(0.6 * ratio for ratio in ratios), *ratios]  # names stand beside the least
        return cls(max(t for t in TICKS if t <= min(edges)), min(t for t in TICKS if t >= max(edges)))

    def __call__(self, ratio: float) -> float:
        span = WIDTH - LEFT - RIGHT
        return LEFT + span * log(ratio / self.low) / log(self.high / self.low)

    @property
    def ticks(self) -> list[float]:
        return [tick for tick in TICKS if self.low <= tick <= self.high]


def picture(machines: list[Measured], theme: str) -> str:
    """Ratios to the fastest peer as SVG: a row for each operator and mode, in it a lane for each machine."""
    look = THEMES[theme]
    groups = [(op, mode) for op in OPERATORS for mode in MODES if any(m.ratios(op, mode) for m in machines)]
    scale = Scale.of([ratio for m in machines for group in groups for ratio in m.ratios(*group).values()])
    height = len(machines) * LANE + 5
    bottom = TOP + len(groups) * height + 12 * (len({op for op, _ in groups}) - 1)
    body, y, before = [*_axis(scale, bottom, look)], float(TOP), groups[0][0] if groups else ""
    for op, mode in groups:
        if op != before:
            y, before = y + 12, op
        if (op, mode) == next(group for group in groups if group[0] == op):
            body.append(_text(0, y + height / 2, OPERATORS[op].split()[0].replace("Maximum", "Max"), look["ink"], 600))
        body.append(_text(LEFT - 12, y + height / 2, MODES[mode], look["faint"], anchor="end"))
        for i, machine in enumerate(machines):
            body += _lane(scale, machine.ratios(op, mode), y + (i + 0.5) * LANE + 2, look, i)
        y += height
    about = f"{_head(machines, look)}{''.join(body)}"
    size = f'width="{WIDTH}" height="{bottom + 34:.0f}" viewBox="0 0 {WIDTH} {bottom + 34:.0f}"'
    font = 'font-family="system-ui,-apple-system,Segoe UI,Helvetica,Arial,sans-serif" font-size="12"'
    title = "<title>gradspec against the fastest peer: ratios of times, by operator and mode</title>"
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size} {font}>{title}{about}</svg>\n'


def _head(machines: list[Measured], look: dict[str, Any]) -> str:
    title = _text(0, 14, "gradspec against the fastest peer", look["ink"], 600, size=17)
    about = (
        "Time of the fastest of PyTorch, JAX and ONNX Runtime ÷ time of gradspec. "
        "A dot is a cell of the grid, a stroke their geometric mean."
    )
    parts, x = [title, _text(0, 36, about, look["faint"])], 0.0
    for i, machine in enumerate(machines):
        parts += [_dots([(x + 6, 58)], look["marks"][i], i), _text(x + 17, 58, machine.name, look["ink"])]
        x += 40 + 6.7 * len(machine.name)
    return "".join(parts)


def _axis(scale: Scale, bottom: float, look: dict[str, Any]) -> Iterator[str]:
    for tick in scale.ticks:
        x, is_one = scale(tick), tick == 1
        width, colour = (1.5, look["ink"]) if is_one else (0.6, look["grid"])
        yield f'<path d="M{x:.1f} {TOP - 6}V{bottom + 4:.0f}" stroke="{colour}" stroke-width="{width}"/>'
        yield _text(x, bottom + 16, f"{tick:g}×", look["ink" if is_one else "faint"], anchor="middle")
    yield _text(scale(1) - 8, TOP - 14, "← the peer is faster", look["faint"], anchor="end", size=11)
    yield _text(scale(1) + 8, TOP - 14, "gradspec is faster →", look["faint"], size=11)
    yield _text(WIDTH, TOP - 14, "mean", look["faint"], anchor="end", size=11)


def _lane(scale: Scale, ratios: dict[str, float], y: float, look: dict[str, Any], number: int) -> Iterator[str]:
    """The dots of a machine, the names of the cells that lie below 1, and the geometric mean."""
    if not ratios:
        return
    colour, mean = look["marks"][number], geometric_mean(ratios.values())
    behind = sorted((cell for cell, ratio in ratios.items() if ratio < 1), key=ratios.__getitem__)
    if behind:
        x = scale(ratios[behind[0]]) - DOT
        yield _text(x, y, " ".join(behind), look["faint"], anchor="end", size=10)
    yield _dots(_apart([scale(ratio) for ratio in ratios.values()], y), colour, number)
    yield f'<path d="M{scale(mean):.1f} {y - 7:.1f}v14" stroke="{look["ink"]}" stroke-width="2"/>'
    yield _text(WIDTH, y, f"{mean:.2f}×", colour, 600, anchor="end")


def _apart(xs: list[float], y: float) -> list[tuple[float, float]]:
    """Dots in a lane, moved up or down where they would lie on each other."""
    placed: list[tuple[float, float]] = []
    for x in sorted(xs):
        free = [dy for dy in (0, -4, 4) if all(abs(x - a) >= DOT or abs(y + dy - b) > 3 for a, b in placed)]
        placed.append((x, y + (free[0] if free else 0)))
    return placed


def _dots(places: list[tuple[float, float]], colour: str, number: int) -> str:
    """Strokes of no length: their caps are the marks, round ones or squares."""
    path = "".join(f"M{x:.1f} {y:.1f}h.01" for x, y in places)
    size, cap = (DOT, CAPS[0]) if number % 2 == 0 else (DOT - 1, CAPS[1])
    return f'<path d="{path}" stroke="{colour}" stroke-width="{size}" stroke-linecap="{cap}" opacity=".85"/>'


def _text(x: float, y: float, text: str, colour: str, weight: int = 400, anchor: str = "start", size: int = 12) -> str:
    more = f' font-weight="{weight}"' * (weight != 400) + f' text-anchor="{anchor}"' * (anchor != "start")
    more += f' font-size="{size}"' * (size != 12)
    return f'<text x="{x:.1f}" y="{y + 0.35 * size:.1f}" fill="{colour}"{more}>{escape(text)}</text>'


# --- the page ---------------------------------------------------------------------------------------------------------

PICTURE = """<picture>
<source media="(prefers-color-scheme: dark)" srcset="ratios-dark.svg">
<img src="ratios-light.svg" alt="Ratios of the fastest peer's time to gradspec's, by operator and mode">
</picture>
"""


def with_measured(page: str, machines: list[Measured]) -> str:
    """The page with other figures between its two marks."""
    head, begins, rest = page.partition(BEGIN)
    _, ends, tail = rest.partition(END)
    if not begins or not ends:
        raise SystemExit(f"the page lacks the lines {BEGIN.strip()} and {END.strip()}")
    return head + BEGIN + "\n" + PICTURE + "\n" + "\n".join(map(table, machines)) + "\n" + END + tail


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--page", type=Path, default=PAGE, help="the pictures lie beside it")
    options = parser.parse_args()
    machines = read(options.files)
    options.page.write_text(with_measured(options.page.read_text(encoding="utf-8"), machines), encoding="utf-8")
    for theme in THEMES:
        (options.page.parent / f"ratios-{theme}.svg").write_text(picture(machines, theme), encoding="utf-8")


if __name__ == "__main__":
    main()
