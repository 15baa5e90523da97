"""A run as one HTML page, which needs no network, no script to be read, and no trust in what a kernel wrote."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeAlias

from markupsafe import Markup

from gradspec.conformance.model.case import FEATURES, PLAIN, REFERENCE_FEATURES
from gradspec.conformance.model.geometry import with_defaults
from gradspec.conformance.model.problem import INPUTS, MODES, Attributes
from gradspec.conformance.model.run import Run
from gradspec.conformance.model.verdict import FINDINGS, KINDS, RULES, Finding
from gradspec.conformance.report.planes import SIGNS, draw_grids
from gradspec.conformance.report.scenes import Scene, scene
from gradspec.conformance.report.templates import FOLDER, read_file, render, render_page
from gradspec.conformance.report.words import (
    FAILING,
    KIND_WORDS,
    MODE_WORDS,
    beyond,
    covered_triples,
    describe_domain,
    kind_words,
    sort_operators,
    summarize,
    title_of,
    too_few,
)

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


# --- the page ---------------------------------------------------------------------------------------------------------

OPEN = 20
"""Findings that are shown unfolded."""
FEW = 4
"""The most findings for which no filters are shown."""
REGIMES = (
    "Every geometry is judged in three regimes. In impulse, one factor of each output is a power of two and "
    "the rest is zero; in exact_sum, every partial sum is a number of the accumulator. Both demand equality. "
    "In rounding, any order of summation is allowed, and the certified tolerance bounds the result."
)
REFERENCE_REGIMES = (
    "Cases of a reference have small whole numbers, on which nothing rounds and equality is demanded, and others, "
    "on which the enclosure of its graph bounds the result. A cell is weak if that is too wide to say much."
)


def page(run: Run, failing: Collection[str] = FAILING) -> str:
    """The report of a run that fails by findings of some kinds.

    >>> text = page(Run("native", "0.1.0", "a machine", seed=7))
    >>> "Nothing was judged" in text, "https://" in text
    (True, False)
    """
    columns = columns_of(run)
    of_references = REFERENCE_REGIMES if "kink" in columns else ""
    return render_page(
        f"{FOLDER}/run.html",
        f"gradspec check {run.target}",
        script=read_file("script.js"),
        run=run,
        worst=next((kind for kind in FINDINGS if run.by_kind(kind)), "pass" if run.tally.judged else "undecided"),
        verdict=summarize(run, failing),
        trouble=list(_trouble(run)),
        facts=_facts(run),
        choices=_choices(run),
        overview=overview(run),
        columns=columns,
        tiles=list(_tiles(run)),
        unusual=sum(not probe.normal for probe in run.probes),
        regimes=REGIMES if any(op in INPUTS for op, *_ in run.tally.grid) else of_references,
        article=article,
        KIND_WORDS=KIND_WORDS,
        OPEN=OPEN,
        FEW=FEW,
    )


def _facts(run: Run) -> dict[str, str]:
    return {
        "version": run.version,
        "machine": run.machine,
        "seed": str(run.seed),
        "cases": f"{run.cases:,}",
        "time": f"{run.seconds:,.1f} s",
        "allowed": ", ".join(run.allowed),
        "domain": describe_domain(run),
        "contained by": run.containment,
    }


def _trouble(run: Run) -> Iterator[str]:
    """What keeps the run from being whole."""
    if run.interrupted:
        yield "! The run was interrupted: this is what had been judged."
    if few := too_few(run):
        yield f"! {few}"
    if run.errors:
        more = f", and {len(run.errors) - 3:,} more" if len(run.errors) > 3 else ""
        yield f"! Some cases could not be judged, through no fault of the target: {'; '.join(run.errors[:3])}{more}"


def _tiles(run: Run) -> Iterator[dict[str, object]]:
    """Cases by kind, with their shares in per cent."""
    total, left = sum(run.tally.cases[kind] for kind in KINDS), 0.0
    for kind in KINDS:
        number, findings = run.tally.cases[kind], len(run.by_kind(kind))
        width, unit = 100 * number / total if total else 0.0, "case" if number == 1 else "cases"
        unit += f", {findings:,} finding{'' if findings == 1 else 's'}" if findings else ""
        yield {"kind": kind, "cases": number, "unit": unit, "left": left, "width": width}
        left += width


def _choices(run: Run) -> dict[str, dict[str, str]]:
    """What findings can be filtered by, and the values among them with their words."""
    findings = run.findings
    everywhere = [place for finding in findings for place in places(finding)]
    return {
        "kind": {kind: KIND_WORDS[kind].many for kind in FINDINGS if any(f.kind == kind for f in findings)},
        "op": {op: op for op in sorted({op for op, _, _ in everywhere})},
        "mode": {mode: MODE_WORDS[mode] for mode in MODES if any(mode == m for _, m, _ in everywhere)},
        "feature": {name: name for name in columns_of(run) if any(name in (f.causes or (PLAIN,)) for f in findings)},
        "dtype": {dtype: dtype for dtype in sorted({dtype for _, _, dtype in everywhere})},
    }


# --- one finding ------------------------------------------------------------------------------------------------------


def article(number: int, finding: Finding, opened: bool) -> Markup:
    """The finding, folded under its title; the attributes are what filters look at."""
    return render(
        f"{FOLDER}/finding.html",
        number=number,
        finding=finding,
        opened=opened,
        features=json.dumps(finding.causes or [PLAIN]),
        places=json.dumps(places(finding)),
        title=title_of(finding),
        chips=(_in_words(finding.op, finding.mode), finding.dtype, *finding.causes),
        rule=RULES.get(finding.rule, finding.rule),
        explanation=beyond(finding),
        picture=picture(finding),
        facts=list(facts(finding)),
        others=[f"{_in_words(op, mode)} {dtype}" for op, mode, dtype in places(finding)[1:]],
    )


def _in_words(op: str, mode: str) -> str:
    return f"{op} {MODE_WORDS.get(mode, mode)}".strip()


def places(finding: Finding) -> list[tuple[str, str, str]]:
    """Operator, mode and dtype of every case it showed in, its own first."""
    seen = (where.rsplit(maxsplit=2) for where in finding.seen)
    own = (finding.op, finding.mode, finding.dtype)
    return list(dict.fromkeys([own, *((words[0], words[1], words[2]) for words in seen if len(words) == 3)]))


def facts(finding: Finding) -> Iterable[tuple[str, str]]:
    """The shapes, attributes, dtype and memory of its call, by name."""
    problem: Attributes = finding.case.get("problem") or {}
    names = (problem.get("signature") or {}).get("names") or INPUTS.get(finding.op, ())
    for name, shape in zip(names, problem.get("shapes", ()), strict=False):
        yield name, "not given" if shape is None else "×".join(map(str, shape)) or "a single number"
    for name, value in _attributes(finding.op, problem).items():
        yield name, str(value)
    yield "dtype", finding.dtype
    yield "memory", str(finding.case.get("layout", ""))
    yield "way of calling", finding.variant if finding.variant != "plain" else ""


def _attributes(op: str, problem: Attributes) -> dict[str, Any]:
    """All of them, as in the call: those that it leaves out have their defaults."""
    given = {name: _tuples(value) for name, value in problem.get("attributes", {}).items()}
    return {**with_defaults(op, problem["rank"], given), **given} if given and op in INPUTS else given


def _tuples(value: object) -> object:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


# --- its picture ------------------------------------------------------------------------------------------------------


def picture(finding: Finding) -> Markup:
    """The case in SVG, or a sentence where there is nothing to draw.

    >>> print(picture(Finding("conv", "value", "defect", (), "f32", {}, "", "", "promised_error", "")))
    <p class="no-picture">No picture: this finding is not about the numbers of one call.</p>
    """
    if not finding.case.get("problem"):
        return _instead("this finding is not about the numbers of one call")
    try:
        call = finding.call
        if any(array.size == 0 for array in call.named().values()):
            return _instead("an input has no cells")
        return _figure(scene(call, finding))
    except Exception:  # a report comes out whole, whatever a target or a file made of one finding
        return _instead("the place of this finding does not fit its case")


def _instead(why: str) -> Markup:
    return render(f"{FOLDER}/scene.html", why=why)


def _figure(shown: Scene) -> Markup:
    used = {mark for plane in shown.planes for marks in plane.marks.values() for mark in marks}
    keys = {mark: words for mark, words in shown.words.items() if mark in used}
    if any(side for plane in shown.planes for pair in plane.margins for side in pair):
        keys["padding"] = "padding"
    cut = "Only what matters of the larger arrays is drawn." if any(plane.is_cut for plane in shown.planes) else ""
    notes = " ".join(note for note in (shown.note, cut) if note)
    grids = [grid for plane in shown.planes for grid in draw_grids(plane)]
    return render(f"{FOLDER}/scene.html", why="", grids=grids, keys=keys, notes=notes, SIGNS=SIGNS)
