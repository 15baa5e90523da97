"""A run as the text of an issue, in Markdown as GitHub reads it: what a maintainer needs, and nothing to look up."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from gradspec.conformance.model.case import FEATURES, REFERENCE_FEATURES
from gradspec.conformance.model.run import Run
from gradspec.conformance.model.verdict import RULES, Finding, state_result
from gradspec.conformance.report.html import facts
from gradspec.conformance.report.words import FAILING, MODE_WORDS, beyond, summarize, title_of


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
