"""A run as one HTML page, which needs no network, no script to be read, and no trust in what a kernel wrote."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from importlib.resources import files

from gradspec.conformance.model.case import PLAIN
from gradspec.conformance.model.problem import INPUTS, MODES
from gradspec.conformance.model.run import Run
from gradspec.conformance.model.verdict import FINDINGS, KINDS
from gradspec.conformance.report.finding import article, code, places
from gradspec.conformance.report.markup import Markup, document, element, joined, scroller, section, table, term
from gradspec.conformance.report.overview import columns_of, overview
from gradspec.conformance.report.words import (
    FAILING,
    KIND_WORDS,
    MODE_WORDS,
    describe_domain,
    kind_words,
    summarize,
    too_few,
)

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
    skip = element("a", "Skip to the findings", href="#findings", class_="skip")
    script = (files("gradspec.conformance.report") / "page" / "script.js").read_text(encoding="utf-8")
    return document(f"gradspec check {run.target}", skip, _header(run, failing), _sections(run), script=script)


def _sections(run: Run) -> Iterable[Markup]:
    yield _findings(run)
    yield section("overview", "Overview", overview(run))
    yield _numbers(run)
    if run.probes:
        yield section("probes", "Probes", _probes(run))
    if run.tally.not_offered:
        yield section("not-offered", "Not offered", _reasons(run))
    yield section("reading", "How to read this page", _reading(run))
    if run.repeat:
        yield section("repeating", "How to repeat this run", _repeating(run))


# --- the run ---------------------------------------------------------------------------------------------------------


def _header(run: Run, failing: Collection[str]) -> Markup:
    worst = next((kind for kind in FINDINGS if run.by_kind(kind)), "pass" if run.tally.judged else "undecided")
    facts = {
        "version": run.version,
        "machine": run.machine,
        "seed": str(run.seed),
        "cases": f"{run.cases:,}",
        "time": f"{run.seconds:,.1f} s",
        "allowed": ", ".join(run.allowed),
        "domain": describe_domain(run),
    }
    return element(
        "header",
        element("p", "gradspec check", class_="brand"),
        element("h1", run.target or "your own kernels"),
        element("p", _symbol(worst), " ", summarize(run, failing), class_=f"verdict {worst}"),
        *(element("p", words, class_="trouble") for words in _trouble(run)),
        element("dl", *(term(name, value) for name, value in facts.items() if value), class_="facts"),
    )


def _trouble(run: Run) -> Iterable[str]:
    """What keeps the run from being whole."""
    if run.interrupted:
        yield "! The run was interrupted: this is what had been judged."
    if few := too_few(run):
        yield f"! {few}"
    if run.errors:
        more = f", and {len(run.errors) - 3:,} more" if len(run.errors) > 3 else ""
        yield f"! Some cases could not be judged, through no fault of the target: {'; '.join(run.errors[:3])}{more}"


def _symbol(kind: str) -> Markup:
    return element("span", kind_words(kind).symbol, class_="symbol", aria_hidden="true")


def _numbers(run: Run) -> Markup:
    """Cases by kind, with a bar of their shares."""
    counts = {kind: run.tally.cases[kind] for kind in KINDS}

    def unit(cases: int, findings: int) -> str:
        words = "case" if cases == 1 else "cases"
        return f"{words}, {findings:,} finding{'' if findings == 1 else 's'}" if findings else words

    tiles = (
        element(
            "div",
            element("dt", _symbol(kind), " ", kind_words(kind).one),
            element("dd", f"{number:,} ", element("span", unit(number, len(run.by_kind(kind))), class_="of")),
            class_=f"tile {kind}" + ("" if number else " none"),
        )
        for kind, number in counts.items()
    )
    title = element("h2", "Cases by kind", class_="aside", id="numbers")
    return element("section", title, element("dl", *tiles, class_="tiles"), _bar(counts), aria_labelledby="numbers")


def _bar(counts: dict[str, int]) -> Markup:
    total, left, parts = sum(counts.values()), 0.0, []
    for kind, number in counts.items():
        width = 100 * number / total if total else 0.0
        if number:
            parts.append(element("rect", x=f"{left:.3f}", y=0, width=f"{width:.3f}", height=1, class_=kind))
        left += width
    return element("svg", *parts, viewBox="0 0 100 1", preserveAspectRatio="none", class_="bar", aria_hidden="true")


def _probes(run: Run) -> Markup:
    unusual = sum(not probe.normal for probe in run.probes)
    rows = (
        element(
            "tr",
            element("th", probe.name, scope="row"),
            element("td", element("code", probe.op)),
            element("td", element("code", probe.dtype)),
            element("td", probe.result),
            element("td", "" if probe.normal else "! unusual"),
            class_=None if probe.normal else "unusual",
        )
        for probe in run.probes
    )
    head = (element("th", name, scope="col") for name in ("probe", "operator", "dtype", "result", ""))
    measured = table(head, rows)
    number = f"{len(run.probes):,} results, {unusual or 'none'} of them other than the certified tolerance assumes"
    return joined(element("p", f"Measured beside the cases: {number}."), scroller(measured, "Probes"))


# --- findings --------------------------------------------------------------------------------------------------------


def _findings(run: Run) -> Markup:
    if not run.findings:
        return section("findings", "Findings", element("p", "None."))
    number = len(run.findings)
    shown = element("p", f"{number} of {number} findings shown.", id="shown", role="status")
    listed = (article(place, finding, opened=place <= OPEN) for place, finding in enumerate(run.findings, 1))
    controls = (_filters(run), shown) if number > FEW else ()
    return section("findings", "Findings", *controls, *listed)


def _filters(run: Run) -> Markup:
    """The controls, which only a script brings to life: hidden until it does."""
    findings = run.findings
    everywhere = [place for finding in findings for place in places(finding)]
    kinds = {kind: KIND_WORDS[kind].many for kind in FINDINGS if any(f.kind == kind for f in findings)}
    features = {name: name for name in columns_of(run) if any(name in (f.causes or (PLAIN,)) for f in findings)}
    choices = {
        "kind": kinds,
        "op": {op: op for op in sorted({op for op, _, _ in everywhere})},
        "mode": {mode: MODE_WORDS[mode] for mode in MODES if any(mode == m for _, m, _ in everywhere)},
        "feature": features,
        "dtype": {dtype: dtype for dtype in sorted({dtype for _, _, dtype in everywhere})},
    }
    controls = [_choice(name, options) for name, options in choices.items()]
    text = _labelled("text", "text", element("input", type="search", id="filter-text", autocomplete="off"))
    names = {"reset": "Reset", "open-all": "Open all", "close-all": "Close all"}
    buttons = (element("button", words, type="button", id=name) for name, words in names.items())
    row = element("div", *buttons, class_="buttons")
    return element("form", *controls, text, row, class_="filters", id="filters", role="search", hidden=True)


def _choice(name: str, options: dict[str, str]) -> Markup:
    label = {"op": "operator"}.get(name, name)
    entries = (element("option", words, value=value) for value, words in {"": "all", **options}.items())
    return _labelled(name, label, element("select", *entries, id=f"filter-{name}"))


def _labelled(name: str, label: str, control: Markup) -> Markup:
    return element("div", element("label", label, for_=f"filter-{name}"), control, class_=f"of-{name}")


# --- beside the findings ---------------------------------------------------------------------------------------------


def _reasons(run: Run) -> Markup:
    reasons = run.tally.not_offered.most_common()
    cells = ((element("td", f"{n:,}", class_="number"), element("td", why or "no reason given")) for why, n in reasons)
    head = (element("th", "cases", scope="col", class_="number"), element("th", "why", scope="col"))
    reasons_table = table(head, (element("tr", *row) for row in cells))
    return joined(element("p", KIND_WORDS["not_offered"].meaning), scroller(reasons_table, "Reasons"))


def _reading(run: Run) -> Markup:
    kinds = (
        element("div", element("dt", _symbol(name), " ", kind.one, class_=f"chip {name}"), element("dd", kind.meaning))
        for name, kind in KIND_WORDS.items()
    )
    columns = columns_of(run)
    features = element("dl", *(term(name, meaning) for name, meaning in columns.items()), class_="words features")
    of_references = REFERENCE_REGIMES if "kink" in columns else ""
    regimes = REGIMES if any(op in INPUTS for op, *_ in run.tally.grid) else of_references
    more = element("details", element("summary", "What the features mean"), features)
    return joined(element("p", regimes), element("dl", *kinds, class_="words"), more)


def _repeating(run: Run) -> Markup:
    said = "The same version of the target, seed and number of cases give the same cases and the same verdicts."
    if run.unreached:
        said += f" They include {run.unreached:,} that were planned and that the end of the time left out."
    return joined(element("p", said), code("Command", run.repeat))
