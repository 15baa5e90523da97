"""What a run of ``gradspec check`` gives: counts, probes and findings. Outcomes of parts of it add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from gradspec.conformance.model.case import PLAIN
from gradspec.conformance.model.verdict import Failure, Finding, Probe

FEW = 100
"""Fewer judged cases than these say little."""


@dataclass
class Tally:
    """How many cases of each operator, mode and feature had which verdict, the worst of each case counting.

    ``cases`` counts each case once, under its worst kind; ``grid`` counts it under each of its features.
    """

    cases: Counter[str] = field(default_factory=Counter)
    grid: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    """By operator, mode, feature and kind."""
    modes: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Each case once, by operator, mode and kind."""
    not_offered: Counter[str] = field(default_factory=Counter)
    """Why, and how often."""
    microseconds: Counter[tuple[str, str]] = field(default_factory=Counter, compare=False)
    """What judging took, by operator and mode."""
    cells: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Of references: how many cells of results are judged, by mode, and how many of those are ``weak``."""
    weak: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Of these by mode, the operator that makes them so, where that is known."""

    def count(self, op: str, mode: str, features: Iterable[str], kind: str, reason: str = "") -> None:
        """Take in one case by the worst kind of the verdicts on it."""
        self.cases[kind] += 1
        self.modes[op, mode, kind] += 1
        for feature in tuple(features) or (PLAIN,):
            self.grid[op, mode, feature, kind] += 1
        if kind == "not_offered":
            self.not_offered[reason] += 1

    @property
    def judged(self) -> int:
        """Cases that the target took and that were judged."""
        return sum(number for kind, number in self.cases.items() if kind != "not_offered")


@dataclass(frozen=True)
class Judged:
    """One case after judgement: what is counted of it, and what is wrong with it.

    ``reason`` says why it was not offered; ``unkept`` has the signatures of failures that are like ones already kept;
    ``error`` is a mistake of the judge itself, which leaves the case undecided.
    """

    op: str
    mode: str
    features: tuple[str, ...]
    kind: str
    reason: str = ""
    failures: tuple[Failure, ...] = ()
    unkept: tuple[tuple[str, ...], ...] = ()
    error: str = ""
    seconds: float = field(default=0.0, compare=False)
    cells: int = 0
    weak: int = 0
    weak_by: str = ""

    def count(self, tally: Tally) -> None:
        tally.count(self.op, self.mode, self.features, self.kind, self.reason)
        if self.cells:
            tally.cells[self.mode, "judged"] += self.cells
            tally.cells[self.mode, "weak"] += self.weak
            tally.weak.update({(self.mode, self.weak_by): self.weak} if self.weak_by else {})
        tally.microseconds[self.op, self.mode] += round(1e6 * self.seconds)


@dataclass(frozen=True)
class Batch:
    """The judged cases of one batch, and the worker that judged them."""

    number: int
    cases: tuple[Judged, ...]
    worker: str = ""


@dataclass(frozen=True)
class Coverage:
    """How far the cases of a run went, by the fields of the same names of `Run`."""

    lacking: tuple[tuple[str, str], ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    unmet: tuple[str, ...] = ()
    triples: tuple[int, int] = (0, 0)


@dataclass
class Run:
    """One run of the judge on one target."""

    target: str
    version: str
    machine: str
    seed: int
    cases: int = 0
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    allowed: tuple[str, ...] = ()
    domain: str = ""
    """What cases were drawn from, where that is not everything, in the words of `KernelDomain.read`."""
    containment: str = ""
    """What kernels of one's own were contained by; nothing of a library that is trusted."""
    interrupted: bool = False
    errors: list[str] = field(default_factory=list)
    """Why cases could not be judged, through a mistake of the judge or of the machines, not of the target."""
    unjudged: int = 0
    """How many cases that were: they are counted as undecided."""
    asked: tuple[str, ...] = ()
    """Modes that were asked for by name."""
    lacking: tuple[tuple[str, str], ...] = ()
    """Operators and modes that the target does not offer in any rank or dtype."""
    refused: tuple[tuple[str, str], ...] = ()
    """Modes of references that the target does not offer, and why."""
    unmet: tuple[str, ...] = ()
    """Kinks and branches of a reference that no numbers were found for."""
    triples: tuple[int, int] = (0, 0)
    """Of operators, ranks, modes, dtypes and features any three that met in a case, and any three that can."""
    unreached: int = 0
    """Cases that were planned and that the end of the time left out."""
    wanted: int = 0
    """Cases that were asked for; 0 where time alone ends a run."""
    at_least: int = 0
    """Judged cases without which the run is not whole."""
    starting: float = 0.0
    """Of the seconds, those before the first case could begin."""
    shrinking: float = 0.0
    """Of the seconds, those in which findings were shrunk."""
    repeat: str = ""
    """The command that makes the same cases again, and those that were not reached."""

    @property
    def judged(self) -> int:
        """Cases that were judged, mistakes of the judge not counted."""
        return self.tally.judged - self.unjudged

    @property
    def lacks(self) -> int:
        """How many judged cases are missing to those that were demanded of each mode."""
        return max(0, self.at_least - min(self.judged_by_mode.values(), default=self.judged))

    @property
    def judged_by_mode(self) -> Counter[str]:
        """Judged cases of each mode that was met or asked for by name."""
        found = Counter(dict.fromkeys(self.asked, 0))
        for (_, mode, kind), count in self.tally.modes.items():
            if kind != "not_offered":
                found[mode] += count
        return found

    @property
    def not_judged(self) -> dict[str, str]:
        """Modes that no case was decided in, though they were asked for or are there, and why."""
        decided = {mode for _, mode, kind in self.tally.modes if kind not in ("not_offered", "undecided")}
        met = dict.fromkeys((mode for _, mode, _ in self.tally.modes), "no case of it was decided")
        reasons = {**dict.fromkeys(self.asked, "no case of it came"), **met}
        return {mode: why for mode, why in {**reasons, **dict(self.refused)}.items() if mode not in decided}

    @property
    def owes(self) -> bool:
        """Whether a mode that was asked for by name was not judged."""
        return not self.not_judged.keys().isdisjoint(self.asked)

    @property
    def is_small(self) -> bool:
        """Whether so few cases were judged, and less than half of those asked for, that they say little."""
        return 0 < self.judged < min(self.wanted / 2 or FEW, FEW) and not self.interrupted

    def by_kind(self, kind: str) -> list[Finding]:
        return [finding for finding in self.findings if finding.kind == kind]
