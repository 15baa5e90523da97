"""The published results of the judge on other libraries: ``docs/peers.md``, made by ``gradspec check`` itself.

python benchmarks/peers_page.py                           the page, and pictures, of the results in docs/peers
python benchmarks/peers_page.py --seconds 1260 torch jax  the runs of some libraries first, 21 minutes each
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from markupsafe import Markup

from gradspec.conformance.model.codec import decode, encode
from gradspec.conformance.model.problem import MODES
from gradspec.conformance.model.run import Run
from gradspec.conformance.model.verdict import KINDS, Finding
from gradspec.conformance.report.html import places, short
from gradspec.conformance.report.templates import ENVIRONMENT, read_file
from gradspec.conformance.report.words import MODE_WORDS, kind_words, sort_operators, weak_cells

ROOT = Path(__file__).parents[1]
NOTES, RESULTS = ROOT / "benchmarks" / "peers", ROOT / "docs" / "peers"
PEERS = ("torch", "torch:channels_last", "torch.compile", "jax", "onnxruntime", "onnx.reference")
ALLOWED = {"jax": ("ftz",)}
"""Modes of reduced precision that a peer documents and uses unasked."""
TIMEOUT = 120.0
"""Seconds for one case: the machine may be busy."""
PROGRAMS = 900.0
"""Seconds in which the programs of findings are run once more."""
LONGEST = 4000
"""Characters of a program that is published."""
MOST_ROWS = 2
"""Defects that are listed of a target, those with the most cases first."""


def judge(target: str, seconds: float, seed: int, file: Path) -> None:
    """A run of one target, as data."""
    from gradspec.conformance import check
    from gradspec.conformance.campaign.reproduce import in_new_processes, verify_findings

    run = check(target, seconds=seconds, seed=seed, allow=ALLOWED.get(target, ()), timeout=TIMEOUT)
    shown = verify_findings(run.findings, in_new_processes(sys.path), "a new process", PROGRAMS)
    run.findings = [published(finding) for finding in shown]
    file.write_text(json.dumps(encode(run), ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def published(finding: Finding) -> Finding:
    """A finding without what nobody would read: the arrays of a case, which its program has, and a program of pages."""
    program = finding.reproducer if len(finding.reproducer) <= LONGEST else ""
    return replace(finding, case={}, programs={}, reproducer=program)


def read(file: Path) -> Run:
    return decode(Run, json.loads(file.read_text(encoding="utf-8")), str(file))


def written(folder: Path) -> dict[Path, str]:
    """The page and its pictures, from the results in a folder."""
    runs = [read(file) for target in PEERS if (file := folder / f"{file_name(target)}.json").exists()]
    notes = {run.target: note for run in runs if (note := _note(run.target))}
    text = page(runs, _note("introduction"), notes, folder.name)
    pictures = {folder / f"{file_name(run.target)}.svg": picture(run) for run in runs}
    return {folder.with_suffix(".md"): text, **pictures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help=f"to judge anew, of {', '.join(PEERS)}")
    parser.add_argument("--seconds", type=float, default=1260)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for target in options.targets:
        judge(target, options.seconds, options.seed, RESULTS / f"{file_name(target)}.json")
    for file, text in written(RESULTS).items():
        file.write_text(text, encoding="utf-8")


def _note(name: str) -> str:
    """What people have to say of a target: findings that were looked into by hand, with links."""
    file = NOTES / f"{file_name(name)}.md"
    return file.read_text() if file.exists() else ""


# --- the page: one screen for each target -----------------------------------------------------------------------------


def file_name(target: str) -> str:
    """What the picture and the data of a target are called."""
    return target.replace(":", "-")


def page(runs: Sequence[Run], introduction: str, notes: Mapping[str, str], folder: str) -> str:
    """One page about several targets, with what people have to say of each; pictures and data are in a folder."""
    targets = (_target(run, notes.get(run.target, "").strip(), folder) for run in runs)
    return "\n\n".join([introduction.strip(), _overview(runs), *targets]) + "\n"


def _overview(runs: Sequence[Run]) -> str:
    lines = [
        "| target | version | cases judged | defects | conventions | weak cells of layers |",
        "|---|---|---|---|---|---|",
    ]
    for run in runs:
        judged, weak = (sum(n for (_, k), n in run.tally.cells.items() if k == kind) for kind in ("judged", "weak"))
        share = f"{100 * weak / judged:.1f} % of {judged:,}" if judged else "–"
        numbers = (f"{run.judged:,}", *(len(run.by_kind(kind)) for kind in ("defect", "convention")), share)
        lines.append(f"| [{run.target}](#{anchor(run.target)}) | {run.version} | {' | '.join(map(str, numbers))} |")
    return "\n".join(lines)


def anchor(heading: str) -> str:
    """The name of a heading in links."""
    return "".join(c for c in heading.lower().replace(" ", "-") if c.isalnum() or c in "-_")


def _target(run: Run, note: str, folder: str) -> str:
    path = f"{folder}/{file_name(run.target)}"
    about = f"{run.machine}; seed {run.seed}: {run.judged:,} cases judged in {run.seconds / 60:.0f} minutes."
    weak = weak_cells(run) if run.tally.cells else ""
    allowed = f"Allowed, because it documents it: {', '.join(run.allowed)}." if run.allowed else ""
    facts = " ".join(part for part in (about, weak, allowed) if part)
    picture = f"![What was found in {run.target}, by operator and mode]({path}.svg)"
    shown = sum(bool(finding.reproduced) for finding in run.findings)
    data = f"[All {len(run.findings)} findings]({path}.json), {shown} with a program that shows them in a new process."
    parts = [f"## {run.target}", facts, picture, note, _probes(run), _defects(run), data]
    return "\n\n".join(part for part in parts if part)


def _probes(run: Run) -> str:
    unusual = [probe for probe in run.probes if not probe.normal]
    if not unusual:
        return "All probes of its arithmetic gave what the certified tolerance takes for granted."
    told = dict[tuple[str, str], list[str]]()
    for probe in unusual:
        told.setdefault((probe.name, probe.result), []).append(f"{probe.op} in {probe.dtype}")
    lines = [f"{name}: {result} ({', '.join(where)})" for (name, result), where in told.items()]
    return f"Its probes showed, beside the usual: {'; '.join(lines)}."


def _defects(run: Run) -> str:
    """What the tool calls the defects, one line for those of a kind."""
    alike = dict[tuple[str, str], list[Finding]]()
    for finding in run.by_kind("defect"):
        alike.setdefault((finding.op.partition(" ")[0], _one_line(finding.title) or finding.rule), []).append(finding)
    if not alike:
        return "No defect was found."
    rows = sorted(alike.items(), key=lambda item: -sum(f.count for f in item[1]))
    lines = ["| operator | modes | dtypes | cases | what the tool says |", "|---|---|---|---|---|"]
    for (op, title), found in rows[:MOST_ROWS]:
        modes, dtypes = (dict.fromkeys(parts) for parts in zip(*((f.mode, f.dtype) for f in found), strict=True))
        words = ", ".join(MODE_WORDS.get(mode, mode) for mode in modes)
        lines.append(f"| {op} | {words} | {', '.join(dtypes)} | {sum(f.count for f in found):,} | {title} |")
    more = len(rows) - MOST_ROWS
    return "\n".join(lines) + (f"\n\n{more} more rows of this kind are in the data." if more > 0 else "")


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# --- the picture: a square for each operator and mode, with the worst that was found there ----------------------------

COLUMNS = 3
"""Of operators, beside each other."""
NAME, CELL, ROW = 132, 42, 22
WIDTH, HEAD = NAME + len(MODES) * CELL + 18, 24
STYLE = """
text { font: 12px system-ui, sans-serif; fill: var(--ink); }
.head { fill: var(--soft); font-size: 11px; }
.cell rect { fill: var(--fill); }
.cell text { fill: var(--fore); font-weight: 600; font-size: 11px; }
.never text { fill: var(--strong); }
.never rect { fill: none; }
"""


LEGEND = {
    "pass": "cases that passed, nothing found",
    "defect": "defects",
    "convention": "conventions",
    "reduced": "reduced precision",
    "undecided": "undecided cases alone",
    "not_offered": "not offered",
}


def picture(run: Run) -> str:
    """All operators of a run by their modes; rows of one layer are added up."""
    counts, found = _case_counts(run), _finding_counts(run)
    names = sort_operators(op for op, _ in counts)
    rows = -(-len(names) // COLUMNS) or 1
    columns = [
        {"left": WIDTH * k, "rows": {op: list(_row(op, counts, found)) for op in names[i : i + rows]}}
        for k, i in enumerate(range(0, len(names), rows))
    ]
    colours, _, _ = read_file("style.css").partition("\n\n")
    sizes = {"NAME": NAME, "CELL": CELL, "ROW": ROW, "HEAD": HEAD, "MODES": MODES}
    drawing = ENVIRONMENT.from_string((NOTES / "picture.svg").read_text(encoding="utf-8")).render(
        run=run,
        style=Markup(colours + STYLE),
        width=COLUMNS * WIDTH,
        height=HEAD + rows * ROW + 30,
        columns=columns,
        legend=list(_legend()),
        bottom=HEAD + rows * ROW + 22,
        **sizes,
    )
    return f"{drawing}\n"


def _case_counts(run: Run) -> dict[tuple[str, str], Counter[str]]:
    """Cases by kind, of each operator and mode."""
    found: dict[tuple[str, str], Counter[str]] = {}
    for (op, mode, kind), number in run.tally.modes.items():
        found.setdefault((op.partition(" ")[0], mode), Counter())[kind] += number
    return found


def _finding_counts(run: Run) -> Counter[tuple[str, str, str]]:
    """How many findings of a kind an operator and mode have."""
    every = ({(op.partition(" ")[0], mode, f.kind) for op, mode, _ in places(f)} for f in run.findings)
    return Counter(place for places_ in every for place in places_)


def _row(
    op: str, counts: dict[tuple[str, str], Counter[str]], found: Counter[tuple[str, str, str]]
) -> Iterator[tuple[str, str, str]]:
    """For each mode the kind of its cell, what it says, and its title."""
    for mode in MODES:
        told = counts.get((op, mode), Counter())
        kind = next((kind for kind in KINDS if found[op, mode, kind]), None) or _unfound(told)
        number = "" if kind in ("never", "not_offered") else short(found[op, mode, kind] or told[kind])
        words = ", ".join(kind_words(k).counted(told[k]) for k in KINDS if told[k]) or "never tried"
        yield kind, "·" if kind == "never" else kind_words(kind).symbol + number, f"{op}, {MODE_WORDS[mode]}: {words}"


def _unfound(counts: Counter[str]) -> str:
    return next((kind for kind in ("pass", "undecided", "not_offered") if counts[kind]), "never")


def _legend() -> Iterator[tuple[float, str, str]]:
    """Where each kind is explained, and in which words."""
    left = 8.0
    for kind, words in LEGEND.items():
        yield left, kind, words
        left += 44 + 6.2 * len(words)


if __name__ == "__main__":
    main()
