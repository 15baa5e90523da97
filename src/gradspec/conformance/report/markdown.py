"""Runs as a Markdown page: one screen for each target, with a picture; every finding is in the data beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradspec.conformance.model.run import Run
from gradspec.conformance.model.verdict import Finding
from gradspec.conformance.report.words import MODE_WORDS, weak_cells

MOST_ROWS = 8
"""Defects that are listed of a target, those with the most cases first."""


def file_name(target: str) -> str:
    """What the picture and the data of a target are called.

    >>> file_name("torch:channels_last")
    'torch-channels_last'
    """
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
    """The name of a heading in links.

    >>> anchor("torch:channels_last")
    'torchchannels_last'
    """
    return "".join(c for c in heading.lower().replace(" ", "-") if c.isalnum() or c in "-_")


def _target(run: Run, note: str, folder: str) -> str:
    path = f"{folder}/{file_name(run.target)}"
    about = (
        f"{run.version}; {run.machine}; seed {run.seed}: {run.judged:,} cases judged in {run.seconds / 60:.0f} minutes."
    )
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
