"""The overview: operators and modes down, features across, each cell what is wrong there or how much was right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

from gradspec.conformance.model.case import FEATURES, PLAIN, REFERENCE_FEATURES
from gradspec.conformance.model.problem import INPUTS, MODES
from gradspec.conformance.model.run import Run
from gradspec.conformance.model.verdict import FINDINGS, KINDS, Finding
from gradspec.conformance.report.finding import places
from gradspec.conformance.report.words import KIND_WORDS, MODE_WORDS, covered_triples, kind_words, sort_operators

Place: TypeAlias = tuple[str, str, str]
"""An operator, a mode and a feature."""

COLUMNS = {PLAIN: "none of the features", **FEATURES}
"""Of operators; references have features of their own."""


@dataclass(frozen=True)
class OverviewCell:
    """What is said of an operator, a mode and a feature."""

    kind: str
    text: str
    where: str = ""
    counts: str = ""
    feature: str = ""
    """The feature that findings to link to have as a cause."""
    span: int = 0
    """The columns that it takes, if it is said of all features."""


@dataclass(frozen=True)
class Overview:
    operators: dict[str, dict[str, list[OverviewCell]]]
    """The cells of every row, by operator and mode."""
    notes: list[str]
    legend: dict[str, tuple[str, str]]
    """A symbol and words for every kind of cell."""


LEGEND = {
    **{name: (kind.symbol, kind.one) for name, kind in KIND_WORDS.items()},
    "masked": ("○", "every case failed, by the cause in another column"),
    "never": ("·", "never tried"),
}


def overview(run: Run) -> Overview | None:
    """The grid; operators that took no part are named below it. None if nothing was judged."""
    judged = {op for op, _, _, kind in run.tally.grid if kind != "not_offered"}
    if not judged:
        return None
    causes, columns = _causes(run.findings), columns_of(run)
    operators = {op: {mode: _row(run, causes, op, mode, columns) for mode in MODES} for op in sort_operators(judged)}
    refused = {op for op, *_ in run.tally.grid} | {op for op, _ in run.lacking}
    others = {"Not offered": refused - judged, "Not in this run": {*INPUTS} - refused - judged}
    others = others if judged & {*INPUTS} else {}
    lists = {title: ", ".join(op for op in INPUTS if op in ops) for title, ops in others.items()}
    rest = [f"{title}: {ops}." for title, ops in lists.items() if ops]
    return Overview(operators, [covered_triples(run), *rest], LEGEND)


def _causes(findings: Iterable[Finding]) -> dict[Place, str]:
    """By operator, mode and feature, the worst kind of finding that the feature is a cause of."""
    worst: dict[Place, str] = {}
    for finding in sorted(findings, key=lambda finding: KINDS.index(finding.kind)):
        for (op, mode, _), feature in product(places(finding), finding.causes or (PLAIN,)):
            worst.setdefault((op, mode, feature), finding.kind)
    return worst


def columns_of(run: Run) -> dict[str, str]:
    """The features that cases of this run could have, and what else findings of bounds need."""
    ops, met = ({place[i] for place in run.tally.grid} for i in (0, 2))
    has_windows = bool(ops & {*INPUTS} or met & {*FEATURES} - {*REFERENCE_FEATURES})
    has_references = bool(met & {*REFERENCE_FEATURES} - {*FEATURES}) or not has_windows
    features = {
        **(COLUMNS if has_windows else {PLAIN: COLUMNS[PLAIN]}),
        **(REFERENCE_FEATURES if has_references else {}),
    }
    needed = (name for finding in run.findings for name in finding.causes if name not in features)
    return {**features, **dict.fromkeys(needed, "an attribute that is not at its default, or a kind of invalid box")}


def _row(run: Run, causes: Mapping[Place, str], op: str, mode: str, columns: Collection[str]) -> list[OverviewCell]:
    """A cell for each feature; one for all where the target has no such mode, or no case of it was made."""
    met = {kind for tried, its_mode, _, kind in run.tally.grid if (tried, its_mode) == (op, mode)}
    if met - {"not_offered"}:
        return [_cell(run, causes, (op, mode, feature)) for feature in columns]
    if met or (op, mode) in run.lacking:
        return [OverviewCell("not_offered", f"– the target has no {_named(mode)} of it", span=len(columns))]
    return [OverviewCell("never", f"· no case of its {_named(mode)} was tried", span=len(columns))]


def _named(mode: str) -> str:
    return "second derivative" if mode == "second" else MODE_WORDS[mode]


def _cell(run: Run, causes: Mapping[Place, str], place: Place) -> OverviewCell:
    op, mode, feature = place
    counts = Counter({kind: run.tally.grid[*place, kind] for kind in KINDS})
    kind = causes.get(place) or shown(counts)
    told = ", ".join(kind_words(k).counted(counts[k]) for k in KINDS if counts[k]) or "never tried"
    where = f"{op}, {MODE_WORDS[mode]}, {feature}"
    if kind in ("never", "masked"):
        return OverviewCell(kind, LEGEND[kind][0], where, told)
    text = f"{kind_words(kind).symbol}{short(counts[kind] or run.tally.modes[op, mode, kind])}"
    return OverviewCell(kind, text, where, told, feature if place in causes else "")


def shown(counts: Counter[str]) -> str:
    """What is said of cases none of whose findings has its cause here: whether any of them passed.

    >>> shown(Counter({"pass": 3, "defect": 1})), shown(Counter(not_offered=2)), shown(Counter(defect=2))
    ('pass', 'not_offered', 'masked')
    """
    judged = [kind for kind in ("pass", "undecided") if counts[kind]]
    if judged:
        return judged[0]
    return "masked" if any(counts[kind] for kind in FINDINGS) else "not_offered" if counts["not_offered"] else "never"


def short(number: int) -> str:
    """At most four characters.

    >>> [short(n) for n in (7, 999, 1000, 12_345, 999_999, 3_400_000)]
    ['7', '999', '1.0k', '12k', '999k', '3.4M']
    """
    for size, letter in ((10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number // (size // 10) / 10}{letter}" if number < 10 * size else f"{number // size}{letter}"
    return str(number)
