"""How kinds and modes of a run are written for people, and what a run comes to in one sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from gradspec.conformance.model.domain import KernelDomain
from gradspec.conformance.model.problem import INPUTS
from gradspec.conformance.model.run import Run
from gradspec.conformance.model.verdict import FINDINGS, RULES, Finding, state_result

FAILING = ("defect",)
"""Kinds of findings that fail a run."""
REASONS = 3
"""Reasons that one sentence gives."""


@dataclass(frozen=True)
class KindWords:
    """A kind of verdict: its symbol, so that colour is never all there is to see; its names; and what it says."""

    symbol: str
    one: str
    many: str
    meaning: str

    def counted(self, number: int) -> str:
        return f"{number:,} {self.one if number == 1 else self.many}"


KIND_WORDS: dict[str, KindWords] = {
    "defect": KindWords(
        "✗",
        "defect",
        "defects",
        "The result breaks the rule that is stated with it, and no convention that the target documents or keeps "
        "consistently explains it.",
    ),
    "convention": KindWords(
        "≈",
        "convention",
        "conventions",
        "A documented or consistent choice that differs from ours: which of several NaNs owns a gradient, how ties are "
        "broken, what a window without a real cell gives, the sign of a zero.",
    ),
    "reduced": KindWords(
        "↓",
        "reduced",
        "reduced",
        "Outside the tolerance of full precision, inside that of a reduced-precision mode which the target documents "
        "and this run allowed.",
    ),
    "undecided": KindWords(
        "?",
        "undecided",
        "undecided",
        "No theorem bounds the error of this result tightly enough to judge it. Nothing is claimed.",
    ),
    "not_offered": KindWords(
        "–",
        "not offered",
        "not offered",
        "The target documents no such operator, rank, mode, dtype or attribute. Nothing is held against it.",
    ),
    "pass": KindWords("✓", "pass", "passes", "No result of the case breaks a rule."),
}
MUCH = 1 / 3
"""The part of cells that an enclosure may say little of without a word."""
CELLS_OF = {"value": "values", "jvp": "JVPs", "vjp": "VJPs", "second": "second derivatives"}
MODE_WORDS = {"value": "value", "jvp": "JVP", "vjp": "VJP", "second": "second order"}


def kind_words(kind: str) -> KindWords:
    return KIND_WORDS.get(kind, KindWords("•", kind, kind, ""))


def summarize(run: Run, failing: Collection[str] = FAILING) -> str:
    """The verdict of a run, in which findings of the ``failing`` kinds are not to be.

    >>> summarize(Run("native", "0.1.0", "a machine", seed=7))
    'Nothing was judged: the run ended before its first case.'
    """
    judged = run.judged
    if not judged and not run.findings:
        return f"Nothing was judged: {_why_nothing(run)}."
    cases = "case" if judged == 1 else "cases"
    *others, last = _count_findings(run)
    kinds = f"{', '.join(others)} and {last}" if others else last
    verdict = f"{kinds} found in {judged:,} judged {cases}."
    if "convention" in failing and run.by_kind("convention") and not run.by_kind("defect"):
        verdict = f"Failed, as a strict run allows no convention: {verdict[0].lower()}{verdict[1:]}"
    told = [f"{_could_not(run.unjudged)}."] if run.unjudged else []
    return " ".join(filter(None, [*told, verdict, not_judged(run), much_is_weak(run)]))


def not_judged(run: Run) -> str:
    """The modes that were not judged, in order, and why.

    >>> not_judged(Run("mine", "1.0", "a machine", seed=7, asked=("vjp",), refused=(("vjp", "it has no vjp"),)))
    'Not judged: VJP, because it has no vjp.'
    """
    found = run.not_judged
    modes = [f"{words}, because {found[mode]}" for mode, words in MODE_WORDS.items() if mode in found]
    return f"Not judged: {'; '.join(modes)}." if modes else ""


def much_is_weak(run: Run) -> str:
    """That enclosures say little of many cells of a mode, and by which operator; empty where they are few."""
    shares = {mode: run.tally.cells[mode, "weak"] / (run.tally.cells[mode, "judged"] or 1) for mode in MODE_WORDS}
    told = []
    for mode, share in shares.items():
        if share > MUCH:
            operators = Counter({op: n for (of, op), n in run.tally.weak.items() if of == mode})
            by = "".join(f", mostly by {op}" for op, _ in operators.most_common(1))
            told.append(f"of {100 * share:.0f} % of the cells of {CELLS_OF[mode]} the enclosure says little{by}")
    return f"But {'; '.join(told)}." if told else ""


def describe_domain(run: Run) -> str:
    """What cases were drawn from, if not from everything in some dtypes.

    >>> describe_domain(Run("mine", "1.0", "a machine", seed=7, domain="kernel_size=3x3 channels=8..64:8 dtypes=f32"))
    'takes kernel_size 3x3, channels from 8 to 64 that 8 divides, dtypes f32; judged there'
    """
    domain = KernelDomain.read(run.domain)
    return f"takes {domain.told}; judged there" if domain.without("dtypes", "layouts") else ""


def sort_operators(names: Iterable[str]) -> list[str]:
    """Operators as the specification orders them, then references by name."""
    order = list(INPUTS)
    return sorted(set(names), key=lambda op: (order.index(op) if op in order else len(order), op))


def covered_triples(run: Run) -> str:
    """How many triples of what cases can be or have met in this run; nothing where cases are of references alone.

    >>> covered_triples(Run("mine", "1.0", "a machine", seed=7, triples=(900, 1000)))
    'Of 1,000 triples of operator, rank, mode, dtype and features that can meet in a case, 900 (90.0 %) did.'
    """
    met, total = run.triples
    words = "triples of operator, rank, mode, dtype and features that can meet in a case"
    return f"Of {total:,} {words}, {met:,} ({100 * met / total:.1f} %) did." if total else ""


def weak_cells(run: Run) -> str:
    """How many cells of the results of references were judged, and how many of them by an enclosure that says little.

    >>> run = Run("mine", "1.0", "a machine", seed=7)
    >>> run.tally.cells.update({("value", "judged"): 400, ("value", "weak"): 3})
    >>> weak_cells(run)
    '400 cells of results were judged; of 3 (0.8 %) the enclosure says little.'
    """
    judged, weak = (sum(n for (_, kind), n in run.tally.cells.items() if kind == k) for k in ("judged", "weak"))
    return (
        f"{judged:,} cells of results were judged; of {weak:,} ({100 * weak / judged:.1f} %) the enclosure says little."
    )


def too_few(run: Run) -> str:
    """That too few cases were judged to trust a run that found nothing, and what to do; empty where they are enough.

    >>> run = Run("native", "0.1.0", "a machine", seed=7, seconds=3.0, at_least=50)
    >>> run.tally.cases["pass"] = 8
    >>> too_few(run)
    'Too few cases: 8 were judged in 3 s, and at least 50 were asked for; give it more time.'
    """
    started = f", of which starting took {run.starting:.0f} s" if run.starting > run.seconds / 4 else ""
    least = min([run.judged, *run.judged_by_mode.values()]) if run.lacks else run.judged
    modes = [MODE_WORDS[mode] for mode, n in run.judged_by_mode.items() if n == least < run.judged]
    of, each = (f" of {modes[0]}", " of each mode") if modes else ("", "")
    judged = f"{least:,}{of} {'was' if least == 1 else 'were'} judged in {run.seconds:.0f} s{started}"
    others = run.tally.cases["not_offered"]
    remedy = "give it more time" if others < run.judged else f"{others:,} others are not offered: declare what is"
    if run.lacks:
        return f"Too few cases: {judged}, and at least {run.at_least:,}{each} were asked for; {remedy}."
    return f"Few cases: {judged}, which says little; {remedy}." if run.is_small else ""


def _could_not(cases: int) -> str:
    return f"{cases:,} case{'' if cases == 1 else 's'} could not be judged"


def _why_nothing(run: Run) -> str:
    if run.unjudged:
        return f"{_could_not(run.unjudged)}, through no fault of the target"
    if not run.cases:
        took = f", as starting took {run.seconds:.0f} s; give it more time"
        return "the run ended before its first case" + (took if run.seconds >= 1 and not run.interrupted else "")
    operators = {op for op, _, _ in run.tally.modes}
    reasons = [reason for reason, _ in run.tally.not_offered.most_common() if reason]
    # That there is no such operator says more than what is said of ranks or dtypes.
    most_telling = [reason for reason in reasons if any(op in reason for op in operators)] or reasons
    why = "; ".join(most_telling[:REASONS])
    return "the target offers nothing of what was asked" + (f": {why}" if why else "")


def _count_findings(run: Run) -> list[str]:
    found = {kind: len(run.by_kind(kind)) for kind in FINDINGS}
    words = [kind_words(kind).counted(number) for kind, number in found.items() if number]
    words = [text.replace("reduced", "of reduced precision") for text in words]
    return words if found["defect"] else ["No defect", *words]


def title_of(finding: Finding) -> str:
    """What is wrong in one sentence, or the name of the broken rule where there is none."""
    return finding.title or finding.rule


def beyond(finding: Finding) -> str:
    """What the explanation adds to the rule, and to what was got and expected, which stand beside it."""
    known = f"{state_result(finding)}." if finding.got else ""
    more = finding.explanation.replace(RULES.get(finding.rule, finding.rule), "").replace(known, "").strip()
    return more[:1].upper() + more[1:]
