"""Runs as a Markdown page: what was found in each target, and how to see it for oneself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradspec.conformance.model.run import Run
from gradspec.conformance.model.verdict import FINDINGS, Finding

HEADINGS = {
    "defect": "Defects",
    "convention": "Conventions",
    "reduced": "Reduced precision",
}
MEANINGS = {
    "defect": "results that contradict the documented meaning or the arithmetic of the format",
    "convention": "choices that differ from ours and are documented or consistent",
    "reduced": "results inside the tolerance of a mode of reduced precision that the target documents",
}
LONGEST = 3000
"""Characters of a program that is printed."""


def page(runs: Sequence[Run], introduction: str, notes: Mapping[str, str]) -> str:
    """One page about several targets, with what people have to say of each."""
    targets = (_target(run, notes.get(run.target, "").strip()) for run in runs)
    return "\n\n".join([introduction.strip(), _overview(runs), *targets]) + "\n"


def _overview(runs: Sequence[Run]) -> str:
    lines = [
        "| target | version | cases judged | not offered | defects | conventions |",
        "|---|---|---|---|---|---|",
    ]
    for run in runs:
        found = [len(run.by_kind(kind)) for kind in ("defect", "convention")]
        numbers = (run.tally.judged, run.tally.cases["not_offered"], *found)
        lines.append(f"| [{run.target}](#{anchor(run.target)}) | {run.version} | {' | '.join(map(str, numbers))} |")
    return "\n".join(lines)


def anchor(heading: str) -> str:
    """The name of a heading in links.

    >>> anchor("torch:channels_last")
    'torchchannels_last'
    """
    return "".join(c for c in heading.lower().replace(" ", "-") if c.isalnum() or c in "-_")


def _target(run: Run, note: str) -> str:
    where = f"Version {run.version}, {run.machine}, seed {run.seed}"
    about = f"{where}: {run.tally.judged} cases judged in {run.seconds:.0f} s."
    allowed = f"Allowed, because it documents it: {', '.join(run.allowed)}." if run.allowed else ""
    parts = [f"## {run.target}", about, allowed, note, _probes(run)]
    for kind in FINDINGS:
        if found := run.by_kind(kind):
            parts += [f"### {HEADINGS[kind]} of {run.target}", f"That is, {MEANINGS[kind]}.", *map(_finding, found)]
    if not run.findings:
        parts.append("Nothing was found.")
    return "\n\n".join(part for part in parts if part)


def _probes(run: Run) -> str:
    unusual = [probe for probe in run.probes if not probe.normal]
    if not unusual:
        return "All probes of its arithmetic gave what the certified tolerance takes for granted."
    lines = [f"- {probe.op}, {probe.dtype}: {probe.name}: {probe.result}" for probe in unusual]
    return "What its probes showed beside the usual:\n\n" + "\n".join(lines)


def _finding(finding: Finding) -> str:
    title = f"**{finding.op}, {finding.mode}** ({finding.rule}; {finding.dtype})"
    facts = [f"- gives: `{_one_line(finding.got)}`"]
    facts += [f"- ours: `{_one_line(finding.expected)}`"] if finding.expected else []
    facts.append(f"- with: {', '.join(finding.features) or 'nothing special'}; shown by {finding.count} cases")
    facts += [f"- also: {', '.join(finding.seen)}"] if finding.seen else []
    return "\n\n".join([title, _one_line(finding.explanation), "\n".join(facts), _program(finding)])


def _program(finding: Finding) -> str:
    if len(finding.reproducer) > LONGEST:
        return "The smallest case that was found in the time is too large to print; `--json` has it."
    return f"```python\n{finding.reproducer.strip()}\n```"


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("`", "'")
