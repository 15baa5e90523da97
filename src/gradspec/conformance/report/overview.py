"""The overview: operators and modes down, features across, each cell what is wrong there or how much was right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import product
from typing import TypeAlias

from gradspec.conformance.model.case import FEATURES, PLAIN, REFERENCE_FEATURES
from gradspec.conformance.model.problem import INPUTS, MODES
from gradspec.conformance.model.run import Run
from gradspec.conformance.model.verdict import FINDINGS, KINDS, Finding
from gradspec.conformance.report.finding import places
from gradspec.conformance.report.markup import Markup, element, joined, scroller
from gradspec.conformance.report.words import KIND_WORDS, MODE_WORDS, covered_triples, kind_words, sort_operators

Place: TypeAlias = tuple[str, str, str]
"""An operator, a mode and a feature."""

COLUMNS = {PLAIN: "none of the features", **FEATURES}
"""Of operators; references have features of their own."""


def overview(run: Run) -> Markup:
    """The grid with its legend; operators that took no part are named below it."""
    judged = {op for op, _, _, kind in run.tally.grid if kind != "not_offered"}
    if not judged:
        return element("p", "No case was judged.")
    operators = sort_operators(judged)
    causes = _causes(run.findings)
    columns = columns_of(run)
    table = element("table", _head(columns), *(_operator(run, causes, op, columns) for op in operators), class_="grid")
    refused = {op for op, *_ in run.tally.grid} | {op for op, _ in run.lacking}
    others = {"Not offered": refused - judged, "Not in this run": {*INPUTS} - refused - judged}
    others = others if judged & {*INPUTS} else {}
    lists = {title: ", ".join(op for op in INPUTS if op in ops) for title, ops in others.items()}
    rest = (element("p", f"{title}: {ops}.", class_="aside-text") for title, ops in lists.items() if ops)
    covered = covered_triples(run)
    met = element("p", covered, class_="aside-text") if covered else ""
    return joined(_legend(), scroller(table, "Overview grid"), met, *rest)


def _causes(findings: Iterable[Finding]) -> dict[Place, str]:
    """By operator, mode and feature, the worst kind of finding that the feature is a cause of."""
    worst: dict[Place, str] = {}
    for finding in sorted(findings, key=lambda finding: KINDS.index(finding.kind)):
        for (op, mode, _), feature in product(places(finding), finding.causes or (PLAIN,)):
            worst.setdefault((op, mode, feature), finding.kind)
    return worst


def _legend() -> Markup:
    kinds = {
        **{name: (kind.symbol, kind.one) for name, kind in KIND_WORDS.items()},
        "masked": ("○", "every case failed, by the cause in another column"),
        "never": ("·", "never tried"),
    }
    items = (
        element("li", element("span", symbol, class_=f"swatch {name}", aria_hidden="true"), f" {words}")
        for name, (symbol, words) in kinds.items()
    )
    said = (
        "Findings stand where they have their causes, and lead there; a case that fails by one cause says nothing of "
        "its other features. Elsewhere the number of cases that passed."
    )
    return joined(element("p", said), element("ul", *items, class_="legend"))


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


def _head(columns: Mapping[str, str]) -> Markup:
    turned = {"scope": "col", "class_": "turned"}
    features = (element("th", element("span", name), **turned, title=said) for name, said in columns.items())
    corner = (element("th", name, scope="col", class_=name) for name in ("operator", "mode"))
    return element("thead", element("tr", *corner, *features))


def _operator(run: Run, causes: Mapping[Place, str], op: str, columns: Collection[str]) -> Markup:
    name = element("th", _breakable(op), scope="rowgroup", rowspan=len(MODES), class_="operator")
    rows = (
        element(
            "tr",
            name if mode == MODES[0] else "",
            element("th", {"second": "2nd"}.get(mode, MODE_WORDS[mode]), scope="row", class_="mode"),
            *_row(run, causes, op, mode, columns),
        )
        for mode in MODES
    )
    return element("tbody", *rows)


def _row(run: Run, causes: Mapping[Place, str], op: str, mode: str, columns: Collection[str]) -> list[Markup]:
    """A cell for each feature; one for all where the target has no such mode, or no case of it was made."""
    met = {kind for tried, its_mode, _, kind in run.tally.grid if (tried, its_mode) == (op, mode)}
    if met - {"not_offered"}:
        return [_cell(run, causes, (op, mode, feature)) for feature in columns]
    if met or (op, mode) in run.lacking:
        return [element("td", f"– the target has no {_named(mode)} of it", colspan=len(columns), class_="not_offered")]
    return [element("td", f"· no case of its {_named(mode)} was tried", colspan=len(columns), class_="never")]


def _named(mode: str) -> str:
    return "second derivative" if mode == "second" else MODE_WORDS[mode]


def _breakable(name: str) -> Markup:
    """A name that may be broken after each underscore."""
    return Markup(f"_{element('wbr')}".join(map(joined, name.split("_"))))


def _cell(run: Run, causes: Mapping[Place, str], place: Place) -> Markup:
    op, mode, feature = place
    counts = Counter({kind: run.tally.grid[*place, kind] for kind in KINDS})
    kind = causes.get(place) or shown(counts)
    told = ", ".join(kind_words(k).counted(counts[k]) for k in KINDS if counts[k]) or "never tried"
    where = f"{op}, {MODE_WORDS[mode]}, {feature}"
    if kind in ("never", "masked"):
        return element("td", "·" if kind == "never" else "○", class_=kind, title=f"{where}: {told}")
    text = f"{kind_words(kind).symbol}{short(counts[kind] or run.tally.modes[op, mode, kind])}"
    if place not in causes:
        return element("td", text, class_=kind, title=f"{where}: {told}")
    data = {"data_op": op, "data_mode": mode, "data_feature": feature}
    link = element("a", text, href="#findings", title=told, aria_label=f"{where}: {told}", **data)
    return element("td", link, class_=kind)


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
