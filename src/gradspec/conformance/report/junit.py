"""A run as JUnit XML, which continuous integration services read: one test case per operator and mode."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from gradspec.conformance.model.problem import INPUTS, MODES
from gradspec.conformance.model.run import Run
from gradspec.conformance.model.verdict import KINDS, Finding
from gradspec.conformance.report.words import FAILING, not_judged, summarize, title_of, too_few
from gradspec.system.terminal import printable

NOT_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold, not even as references."""


def text(run: Run, failing: Collection[str] = FAILING) -> str:
    """The document; findings of the ``failing`` kinds are failures, the others are told as output.

    >>> run = Run("native", "gradspec 0.1", "a machine", seed=7)
    >>> run.tally.count("max_pool", "value", (), "pass")
    >>> print(text(run).splitlines()[-3].strip())
    <testcase classname="gradspec.native.max_pool" name="value" time="0.000" />
    """
    suite = Element("testsuite", name=f"gradspec check {run.target}", time=f"{run.seconds:.3f}")
    properties = SubElement(suite, "properties")
    for name in ("target", "version", "machine", "seed", "cases", "repeat"):
        SubElement(properties, "property", name=name, value=_xml(str(getattr(run, name))))
    for op, mode in pairs(run):
        _case(suite, run, op, mode, failing)
    _judge(suite, run)
    for name, tag in {"tests": "testcase", "failures": "failure", "errors": "error", "skipped": "skipped"}.items():
        suite.set(name, str(len(list(suite.iter(tag)))))
    suites = Element("testsuites")
    suites.append(suite)
    indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(suites, encoding="unicode") + "\n"


def pairs(run: Run) -> list[tuple[str, str]]:
    """The operators and modes that took part."""
    seen = {(op, mode) for op, mode, _ in run.tally.modes} | {(f.op, f.mode) for f in run.findings}
    order = {pair: i for i, pair in enumerate((op, mode) for op in INPUTS for mode in MODES)}
    return sorted(seen, key=lambda pair: (order.get(pair, len(order)), pair))


def _case(suite: Element, run: Run, op: str, mode: str, failing: Collection[str]) -> None:
    names = {
        "classname": f"gradspec.{run.target}.{op or 'target'}",
        "name": mode,
        "time": f"{run.tally.microseconds[op, mode] / 1e6:.3f}",
    }
    case = SubElement(suite, "testcase", {name: _xml(value) for name, value in names.items()})
    found = [f for f in run.findings if (f.op, f.mode) == (op, mode)]
    failures, others = ([f for f in found if (f.kind in failing) == wanted] for wanted in (True, False))
    counts = {kind: run.tally.modes[op, mode, kind] for kind in KINDS}
    if failures:
        message = _xml("; ".join(dict.fromkeys(title_of(f) for f in failures)))
        SubElement(case, "failure", type=_xml(failures[0].rule), message=message).text = _xml(_describe(failures))
    elif counts["not_offered"] and not others and not sum(counts[k] for k in KINDS if k != "not_offered"):
        SubElement(case, "skipped", message=f"not offered ({counts['not_offered']} cases)")
    if others:
        SubElement(case, "system-out").text = _xml(_describe(others))


def _judge(suite: Element, run: Run) -> None:
    """What kept the run itself from being whole."""
    errors = [*run.errors, *(["interrupted: this is what had been judged"] if run.interrupted else [])]
    if not run.tally.judged and not run.findings:
        errors.append(summarize(run))
    errors += [too_few(run)] * bool(run.lacks) + [not_judged(run)] * run.owes
    if errors:
        case = SubElement(
            suite, "testcase", classname=_xml(f"gradspec.{run.target}"), name="run", time=f"{run.starting:.3f}"
        )
        SubElement(case, "error", type="incomplete", message=_xml(errors[0])).text = _xml("\n".join(errors))


def _describe(findings: Collection[Finding]) -> str:
    return "\n\n".join("\n".join(_lines(finding)) for finding in findings)


def _lines(finding: Finding) -> Iterator[str]:
    yield f"{finding.kind}: {title_of(finding)} ({finding.count} cases, {finding.dtype}, {', '.join(finding.causes)})"
    yield f"got {finding.got}, expected {finding.expected}"
    yield from filter(None, (finding.explanation, finding.reproducer))


def _xml(text: str) -> str:
    return NOT_XML.sub("\N{REPLACEMENT CHARACTER}", printable(text))
