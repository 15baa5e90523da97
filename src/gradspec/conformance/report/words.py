"""How kinds and modes of a run are written for people."""

from __future__ import annotations

from dataclasses import dataclass

from gradspec.conformance.run import Run


@dataclass(frozen=True)
class Kind:
    """A kind of verdict: its symbol, so that colour is never all there is to see; its names; and what it says."""

    symbol: str
    one: str
    many: str
    meaning: str

    def counted(self, number: int) -> str:
        return f"{number:,} {self.one if number == 1 else self.many}"


KIND_WORDS: dict[str, Kind] = {
    "defect": Kind(
        "✗",
        "defect",
        "defects",
        "No correct kernel gives this result: it breaks a rule of the specification, and no convention that the target "
        "documents or keeps consistently explains it.",
    ),
    "convention": Kind(
        "≈",
        "convention",
        "conventions",
        "A documented or consistent choice that differs from ours: which of several NaNs owns a gradient, how ties are "
        "broken, what a window without a real cell gives, the sign of a zero.",
    ),
    "reduced": Kind(
        "↓",
        "reduced",
        "reduced",
        "Outside the tolerance of full precision, inside that of a reduced-precision mode which the target documents "
        "and this run allowed.",
    ),
    "undecided": Kind(
        "?",
        "undecided",
        "undecided",
        "No theorem bounds the error of this result tightly enough to judge it. Nothing is claimed.",
    ),
    "not_offered": Kind(
        "–",
        "not offered",
        "not offered",
        "The target documents no such operator, rank, mode, dtype or attribute. Nothing is held against it.",
    ),
    "pass": Kind("✓", "pass", "passes", "Every result of the case is one that a correct kernel may give."),
}
MODE_WORDS = {"value": "value", "jvp": "JVP", "vjp": "VJP", "second": "second order"}


def kind_words(kind: str) -> Kind:
    return KIND_WORDS.get(kind, Kind("•", kind, kind, ""))


def in_one_sentence(run: Run) -> str:
    """The verdict of a run.

    >>> in_one_sentence(Run("native", "0.1.0", "a machine", seed=7))
    'Nothing was judged: the run ended before its first case.'
    """
    judged = run.tally.judged
    kinds = [kind for kind in ("defect", "convention", "reduced") if run.by_kind(kind)]
    if not judged and not kinds:
        offered = "the target offers nothing of what was asked"
        return f"Nothing was judged: {offered if run.cases else 'the run ended before its first case'}."
    found = [kind_words(kind).counted(len(run.by_kind(kind))) for kind in kinds]
    found = [words.replace("reduced", "of reduced precision") for words in found]
    if "defect" not in kinds:
        found.insert(0, "No defect")
    cases = "case" if judged == 1 else "cases"
    return f"{_and(found)} found in {judged:,} judged {cases}."


def _and(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
