"""A run in the forms of other tools: as JUnit XML, which continuous integration services read, and as an issue.

The first has one test case per operator and mode. The second is Markdown as GitHub reads it: what a maintainer needs,
and nothing to look up.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from gradspec.conformance.model.case import FEATURES, REFERENCE_FEATURES
from gradspec.conformance.model.problem import INPUTS, MODES
from gradspec.conformance.model.run import Run
from gradspec.conformance.model.verdict import KINDS, RULES, Finding, state_result
from gradspec.conformance.report.html import facts
from gradspec.conformance.report.words import FAILING, MODE_WORDS, beyond, not_judged, summarize, title_of, too_few
from gradspec.system.terminal import printable

NOT_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold, not even as references."""


def junit_text(run: Run, failing: Collection[str] = FAILING) -> str:
    """The XML document; findings of the ``failing`` kinds are failures, the others are told as output.

    >>> run = Run("native", "gradspec 0.1", "a machine", seed=7)
    >>> run.tally.count("max_pool", "value", (), "pass")
    >>> print(junit_text(run).splitlines()[-3].strip())
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


# --- the text of an issue ---------------------------------------------------------------------------------------------


def issue_text(run: Run, failing: Collection[str] = FAILING) -> str:
    """The findings of the ``failing`` kinds, each with its smallest case and program, and what they were found with.

    >>> print(issue_text(Run("mine", "mine 1.0", "a machine", seed=7)).splitlines()[0])
    Nothing was judged: the run ended before its first case.
    """
    found = [finding for kind in failing for finding in run.by_kind(kind)]
    repeat = f"\n\n```sh\n{run.repeat}\n```" if run.repeat else ""
    parts = ["\n\n".join(_paragraphs(finding)) for finding in found] or [summarize(run, failing)]
    end = f"Found by `gradspec check` in {run.version}, {run.machine}, seed {run.seed}."
    verdict = f" {summarize(run, failing)}" if found else ""
    return "\n\n---\n\n".join([*parts, f"{end}{verdict}{repeat}"]) + "\n"


def _paragraphs(finding: Finding) -> Iterator[str]:
    """Title, what is wrong and by how much, the smallest case, what it needs, the rule, and a program."""
    yield f"## {title_of(finding)}"
    where = " ".join(filter(None, (f"`{finding.op}`", MODE_WORDS.get(finding.mode, finding.mode), finding.dtype)))
    yield " ".join(filter(None, (f"{where}: {state_result(finding) or 'see below'}.", beyond(finding))))
    case = ", ".join(f"{name} {value}" for name, value in facts(finding) if value and value != "contiguous")
    count = f"{finding.count:,} case{'' if finding.count == 1 else 's'} showed it"
    also = f", also in {', '.join(finding.seen)}" if finding.seen else ""
    yield f"**Smallest case:** {case}; {count}{also}."
    meanings = {**FEATURES, **REFERENCE_FEATURES}
    if needs := [meanings[name] for name in finding.causes if name in meanings]:
        yield f"**It needs** {'; '.join(needs)}."
    yield f"**Expected:** {RULES.get(finding.rule, finding.rule)}"
    if finding.reproducer:
        told = f" ({finding.verification})" if finding.verification else ""
        yield f"**Program**{told}:\n\n```python\n{finding.reproducer.rstrip()}\n```"
