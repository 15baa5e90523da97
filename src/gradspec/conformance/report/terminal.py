"""A run for the terminal: who is judged, what was found, what probes measured, and what it all comes to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from textwrap import indent

from rich.console import Console
from rich.text import Text

from gradspec.conformance.model.problem import MODES
from gradspec.conformance.model.run import Run
from gradspec.conformance.model.verdict import KINDS, RULES, Finding
from gradspec.conformance.report.words import (
    FAILING,
    MODE_WORDS,
    beyond,
    covered_triples,
    describe_domain,
    kind_words,
    sort_operators,
    summarize,
    title_of,
    too_few,
    weak_cells,
)
from gradspec.system.pages import Rows, TerminalPage

STYLES = {"defect": "bold red", "convention": "yellow", "reduced": "magenta", "undecided": "blue", "pass": "green"}
SHOWN = {"defect": 40, "convention": 12, "reduced": 6}
"""Findings of each kind that are shown in full; files have all of them."""
REASONS = 12
CELLS = {"defect": "DEFECT", "convention": "differ", "reduced": "reduced", "undecided": "?", "pass": "ok"}
"""Kinds in a table that must not be wide, after the number of cases."""
CASES = {
    "pass": "ok",
    "defect": "with a defect",
    "convention": "with a convention",
    "reduced": "of reduced precision",
    "undecided": "undecided",
    "not_offered": "not offered",
}
NARROW = 72
"""Columns below which a table has a line for every operator and mode."""


def show_start(run: Run, console: Console) -> None:
    """What is known before the first case."""
    page = TerminalPage(console)
    named = run.version.startswith(f"{run.target} ")
    target = run.version if named else f"{run.target} ({run.version})"
    facts = {"target": target, "machine": run.machine, "seed": str(run.seed), "allowed": ", ".join(run.allowed)}
    page.fields({**facts, "domain": describe_domain(run), "contained by": run.containment}.items())


def _probe_rows(page: TerminalPage, run: Run) -> Rows:
    """One row per result, with all that gave it; what the tolerance does not take for granted stands out."""
    same = defaultdict[tuple[str, str, bool], list[str]](list)
    for probe in run.probes:
        same[probe.name, probe.result, probe.normal].append(f"{probe.op} {probe.dtype}".strip())
    names = list(dict.fromkeys(probe.name for probe in run.probes))
    for (name, result, normal), measured in sorted(same.items(), key=lambda row: names.index(row[0][0])):
        yield name, Text(page.clean(result), "" if normal else "bold yellow"), ", ".join(measured)


def show(run: Run, console: Console, failing: Collection[str] = FAILING) -> None:
    """What a run found; the verdict last, where it is seen."""
    page = TerminalPage(console)
    for kind, most in SHOWN.items():
        found = run.by_kind(kind)
        for number, finding in enumerate(found[:most], 1):
            _show_finding(page, finding, f"{kind} {number} of {len(found)}")
        if len(found) > most:
            page.say(f"... and {kind_words(kind).counted(len(found) - most)} more: --json or --report has all of them")
    if run.tally.cases:
        _show_grid(page, run)
    _show_not_offered(page, run)
    if run.probes:
        page.heading("probes")
        page.table(("measured", "result", "of"), _probe_rows(page, run))
    _show_end(page, run, failing)


def _show_finding(page: TerminalPage, finding: Finding, number: str) -> None:
    page.heading(f"{number}: {title_of(finding)}", STYLES[finding.kind])
    where = " ".join(filter(None, (finding.op, MODE_WORDS.get(finding.mode, finding.mode), finding.dtype)))
    cases = f", {finding.count:,} case{'' if finding.count == 1 else 's'}" if finding.case else ""
    place = "" if finding.place is None else f" at {list(finding.place)}"
    variant = "" if finding.variant == "plain" else f", {finding.variant}"
    facts = {
        "in": f"{where}{cases}",
        "result": f"{finding.result}{place}{variant}",
        "got": finding.got,
        "expected": finding.expected,
        "rule": RULES.get(finding.rule, finding.rule),
        "needs": ", ".join(finding.causes),
        "also in": ", ".join(finding.seen),
        "more": beyond(finding),
        "program": finding.verification,
    }
    page.fields(facts.items())
    if finding.reproducer:
        page.say()
        page.verbatim(indent(finding.reproducer.rstrip(), "    "))


def _show_grid(page: TerminalPage, run: Run) -> None:
    """Operators down, modes across: how many cases passed, or the worst that was met."""
    met = {op for op, _, _ in run.tally.modes}
    absent = _absent(run)
    operators = sort_operators(met - absent)
    modes = [mode for mode in MODES if any(mode == tried for _, tried, _ in run.tally.modes)]
    page.heading("cases")
    if page.width < NARROW:
        lines = ((op, MODE_WORDS[mode], _cell(run, op, mode)) for op in operators for mode in modes)
        page.table(("", "", ""), lines, whole=[0])
    else:
        rows: Rows = [(op, *(_cell(run, op, mode) for mode in modes)) for op in operators]
        page.table(("", *(MODE_WORDS[mode] for mode in modes)), rows, whole=[0])
    if absent:
        page.say(f"Not offered: {', '.join(sort_operators(absent))}.", "dim")
    if run.tally.cells:
        page.say(weak_cells(run), "dim")
    if run.triples[1]:
        page.say(covered_triples(run), "dim")
    if run.unmet:
        page.say(f"No inputs were found for these kinks: {', '.join(run.unmet)}.", "dim")
    if run.findings:
        page.say("A case counts once here, under the worst that it showed; findings may share cases.", "dim")


def _absent(run: Run) -> set[str]:
    """Operators that the target has not at all, where it has any: one line says so of all of them."""
    judged = {op for op, _, kind in run.tally.modes if kind != "not_offered"}
    return {op for op, _, _ in run.tally.modes} - judged if judged else set()


def _cell(run: Run, op: str, mode: str) -> Text:
    counts = {kind: run.tally.modes[op, mode, kind] for kind in KINDS if kind != "not_offered"}
    worst = next((kind for kind, count in counts.items() if count), None)
    if worst is None:
        return Text("not offered" if run.tally.modes[op, mode, "not_offered"] else "-", "dim")
    passed = f"{counts['pass']} {CELLS['pass']}, " if worst == "undecided" and counts["pass"] else ""
    return Text(f"{passed}{counts[worst]} {CELLS[worst]}", STYLES[worst])


def _show_not_offered(page: TerminalPage, run: Run) -> None:
    said = {f"it has no {op}" for op in _absent(run)}
    reasons = [(str(count), why) for why, count in run.tally.not_offered.most_common() if why not in said]
    if not reasons:
        return
    page.heading("not offered")
    page.table(("cases", "why"), reasons[:REASONS], right=(0,))
    if len(reasons) > REASONS:
        page.say(f"... and for {len(reasons) - REASONS} more reasons")


def _show_end(page: TerminalPage, run: Run, failing: Collection[str]) -> None:
    page.heading("verdict")
    page.say(summarize(run, failing), STYLES["defect"] if any(map(run.by_kind, failing)) else "bold")
    counts = ", ".join(f"{run.tally.cases[kind]:,} {words}" for kind, words in CASES.items() if run.tally.cases[kind])
    seconds = run.seconds - run.shrinking
    rate = 60 * run.cases / seconds if seconds else 0.0
    page.say(f"{run.cases:,} cases in {seconds:.0f} s ({rate:,.0f} a minute): {counts or 'none'}")
    if run.shrinking >= 1:
        page.say(f"{run.shrinking:.0f} s more went to shrinking what was found.")
    if few := too_few(run):
        page.say(few, "bold red" if run.lacks else "bold yellow")
    for error in run.errors:
        page.say(f"could not be judged: {error}", "bold red")
    if run.interrupted:
        page.say("Interrupted: this is what had been judged.", "bold yellow")
    if run.repeat and run.cases:
        more = f", with {run.unreached:,} more that were planned and not reached in time" if run.unreached else ""
        page.say(f"To repeat these cases{more}:")
        page.verbatim(f"    {run.repeat}")
