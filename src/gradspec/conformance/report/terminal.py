"""A run for the terminal: who is judged, what probes measured, what was found, and what it all comes to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import indent

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradspec.conformance.call import INPUTS, MODES
from gradspec.conformance.judge.rules import RULES
from gradspec.conformance.report.printable import ascii_text, printable
from gradspec.conformance.report.words import MODE_WORDS, in_one_sentence, kind_words
from gradspec.conformance.run import Run
from gradspec.conformance.verdict import KINDS, Finding

STYLES = {"defect": "bold red", "convention": "yellow", "reduced": "magenta", "undecided": "blue", "pass": "green"}
SHOWN = {"defect": 40, "convention": 12, "reduced": 6}
"""Findings of each kind that are shown in full; files have all of them."""
REASONS = 12
WIDEST = 100
"""Columns: sentences read badly beyond that."""


class Page:
    """A console whose every line fits, and that shows no character it cannot."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.width = min(console.width, WIDEST)
        self.is_ascii = not (console.encoding or "").lower().startswith("utf")

    def clean(self, text: str) -> str:
        return ascii_text(text) if self.is_ascii else printable(text)

    def say(self, text: str = "", style: str = "") -> None:
        """A sentence, broken between words."""
        self.console.print(Text(self.clean(text), style), width=self.width)

    def verbatim(self, text: str) -> None:
        """Lines that somebody may copy: never broken."""
        self.console.print(Text(self.clean(text)), soft_wrap=True)

    def heading(self, text: str, style: str = "bold") -> None:
        title = self.clean(text)
        dashes = "-" * max(0, self.width - len(title) - 1)
        self.console.print("", Text.assemble((f"{title} ", style), (dashes, "dim")), sep="\n", width=self.width)

    def fields(self, rows: Iterable[tuple[str, str]]) -> None:
        """Names on the left, and what they stand for."""
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in rows:
            if value:
                table.add_row(name, Text(self.clean(value)))
        self.console.print(table, width=self.width)

    def table(self, header: Sequence[str], rows: Iterable[Sequence[Text | str]], right: Sequence[int] = ()) -> None:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for i, name in enumerate(header):
            table.add_column(name, justify="right" if i in right else "left", overflow="fold")
        for row in rows:
            table.add_row(*(cell if isinstance(cell, Text) else Text(self.clean(cell)) for cell in row))
        self.console.print(table, width=self.width)


def show_start(run: Run, console: Console) -> None:
    """What is known before the first case."""
    page = Page(console)
    page.fields(
        [
            ("target", f"{run.target} ({run.version})"),
            ("machine", run.machine),
            ("seed", str(run.seed)),
            ("allowed", ", ".join(run.allowed)),
        ]
    )
    if run.probes:
        page.heading("probes")
        page.table(("measured", "result", "of"), _probe_rows(page, run))


def _probe_rows(page: Page, run: Run) -> Iterable[Sequence[Text | str]]:
    """One row per result, with all that gave it; what the tolerance does not take for granted stands out."""
    same: dict[tuple[str, str, bool], list[str]] = {}
    for probe in run.probes:
        same.setdefault((probe.name, probe.result, probe.normal), []).append(f"{probe.op} {probe.dtype}".strip())
    names = list(dict.fromkeys(probe.name for probe in run.probes))
    for (name, result, normal), measured in sorted(same.items(), key=lambda row: names.index(row[0][0])):
        yield name, Text(page.clean(result), "" if normal else "bold yellow"), ", ".join(measured)


def show(run: Run, console: Console) -> None:
    """What a run found; the verdict last, where it is seen."""
    page = Page(console)
    for kind, most in SHOWN.items():
        found = run.by_kind(kind)
        for number, finding in enumerate(found[:most], 1):
            _show_finding(page, finding, f"{kind} {number} of {len(found)}")
        if len(found) > most:
            page.say(f"... and {kind_words(kind).counted(len(found) - most)} more: --json or --report has all of them")
    if run.tally.cases:
        _show_grid(page, run)
    _show_not_offered(page, run)
    _show_end(page, run)


def _show_finding(page: Page, finding: Finding, number: str) -> None:
    where = " ".join(filter(None, (finding.op, MODE_WORDS.get(finding.mode, finding.mode), finding.dtype)))
    page.heading(f"{number}: {where}, {finding.count} case{'' if finding.count == 1 else 's'}", STYLES[finding.kind])
    place = "" if finding.place is None else f" at {list(finding.place)}"
    variant = "" if finding.variant == "plain" else f", {finding.variant}"
    page.fields(
        [
            ("result", f"{finding.result}{place}{variant}"),
            ("got", finding.got),
            ("expected", finding.expected),
            ("rule", f"{finding.rule}: {RULES[finding.rule]}" if finding.rule in RULES else finding.rule),
            ("features", ", ".join(finding.features)),
            ("also in", ", ".join(finding.seen)),
            ("why", finding.explanation),
        ]
    )
    if finding.reproducer:
        page.say()
        page.verbatim(indent(finding.reproducer.rstrip(), "    "))


def _show_grid(page: Page, run: Run) -> None:
    """Operators down, modes across: how many cases passed, or the worst that was met."""
    tried = {op for op, _, _ in run.tally.modes}
    page.heading("cases")
    rows: list[list[Text | str]] = [[op, *(_cell(run, op, mode) for mode in MODES)] for op in INPUTS if op in tried]
    page.table(("", *(MODE_WORDS[mode] for mode in MODES)), rows)


def _cell(run: Run, op: str, mode: str) -> Text:
    counts = {kind: run.tally.modes[op, mode, kind] for kind in KINDS if kind != "not_offered"}
    judged = sum(counts.values())
    worst = next((kind for kind, count in counts.items() if count), None)
    if worst is None:
        return Text("not offered" if run.tally.modes[op, mode, "not_offered"] else "-", "dim")
    if worst == "pass":
        return Text(f"{judged} pass", STYLES["pass"])
    return Text(f"{counts[worst]} {worst} of {judged}", STYLES[worst])


def _show_not_offered(page: Page, run: Run) -> None:
    reasons = run.tally.not_offered.most_common(REASONS)
    if not reasons:
        return
    page.heading("not offered")
    page.table(("cases", "why"), [(str(count), reason) for reason, count in reasons], right=(0,))
    if len(run.tally.not_offered) > REASONS:
        page.say(f"... and for {len(run.tally.not_offered) - REASONS} more reasons")


def _show_end(page: Page, run: Run) -> None:
    page.heading("verdict")
    page.say(in_one_sentence(run), STYLES["defect"] if run.by_kind("defect") else "bold")
    counts = ", ".join(kind_words(kind).counted(run.tally.cases[kind]) for kind in KINDS if run.tally.cases[kind])
    rate = run.cases / run.seconds if run.seconds else 0.0
    page.say(f"{run.cases:,} cases in {run.seconds:.0f} s ({60 * rate:,.0f} a minute): {counts or 'none'}")
    for error in run.errors:
        page.say(f"could not be judged: {error}", "bold red")
    if run.interrupted:
        page.say("Interrupted: this is what had been judged.", "bold yellow")
    if run.repeat:
        page.say("To repeat:")
        page.verbatim(f"    {run.repeat}")
