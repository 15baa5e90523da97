"""A run as one HTML page, which needs no network, no script to be read, and no trust in what a kernel wrote."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from gradspec.conformance.model.case import PLAIN
from gradspec.conformance.model.problem import INPUTS, MODES
from gradspec.conformance.model.run import Run
from gradspec.conformance.model.verdict import FINDINGS, KINDS
from gradspec.conformance.report.finding import article, places
from gradspec.conformance.report.overview import columns_of, overview
from gradspec.conformance.report.templates import FOLDER, read_file, render_page
from gradspec.conformance.report.words import (
    FAILING,
    KIND_WORDS,
    MODE_WORDS,
    describe_domain,
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


def _tiles(run: Run) -> Iterator[dict[str, Any]]:
    """Cases by kind, with their shares in per cent."""
    total, left = sum(run.tally.cases[kind] for kind in KINDS), 0.0
    for kind in KINDS:
        number = run.tally.cases[kind]
        width, unit = 100 * number / total if total else 0.0, _unit(number, len(run.by_kind(kind)))
        yield {"kind": kind, "cases": number, "unit": unit, "left": left, "width": width}
        left += width


def _unit(cases: int, findings: int) -> str:
    words = "case" if cases == 1 else "cases"
    return f"{words}, {findings:,} finding{'' if findings == 1 else 's'}" if findings else words


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
