"""What a run of ``gradspec check`` gives: counts, probes and findings. Outcomes of parts of it add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gradspec.conformance.call import Call
from gradspec.conformance.verdict import KINDS, Finding, Verdict

PLAIN = "plain"
"""The feature of a case that has none."""


@dataclass(frozen=True)
class Failure:
    """A case that is not as it should be, as it was met: neither shrunk nor explained."""

    call: Call
    verdict: Verdict
    features: tuple[str, ...]
    case: str
    """``batch.index``: with the seed, it makes the case again."""

    def to_json(self) -> dict[str, Any]:
        return {
            "call": self.call.to_json(),
            "verdict": self.verdict.to_json(),
            "features": list(self.features),
            "case": self.case,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Failure:
        verdict = Verdict.from_json(data["verdict"])
        return Failure(Call.from_json(data["call"]), verdict, tuple(data["features"]), data["case"])


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

    def count(self, op: str, mode: str, features: Iterable[str], verdicts: Iterable[Verdict]) -> None:
        """Take in one case with all verdicts on it."""
        given = list(verdicts)
        kind = min((v.kind for v in given), key=KINDS.index)
        self.cases[kind] += 1
        self.modes[op, mode, kind] += 1
        for feature in tuple(features) or (PLAIN,):
            self.grid[op, mode, feature, kind] += 1
        if kind == "not_offered":
            self.not_offered[given[0].detail] += 1

    def add(self, other: Tally) -> None:
        self.cases += other.cases
        self.grid += other.grid
        self.modes += other.modes
        self.not_offered += other.not_offered

    @property
    def judged(self) -> int:
        """Cases that the target took and that were judged."""
        return sum(number for kind, number in self.cases.items() if kind != "not_offered")

    def to_json(self) -> dict[str, Any]:
        return {
            "cases": dict(self.cases),
            "grid": [[*key, number] for key, number in sorted(self.grid.items())],
            "modes": [[*key, number] for key, number in sorted(self.modes.items())],
            "not_offered": dict(self.not_offered),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Tally:
        grid = Counter({(op, mode, feature, kind): number for op, mode, feature, kind, number in data["grid"]})
        modes = Counter({(op, mode, kind): number for op, mode, kind, number in data["modes"]})
        return Tally(Counter(data["cases"]), grid, modes, Counter(data["not_offered"]))


@dataclass(frozen=True)
class Probe:
    """One thing measured of the target before it is judged: ``significand bits kept: 24 of 24``."""

    name: str
    op: str
    dtype: str
    result: str
    normal: bool = True
    """Whether this is what the certified tolerance takes for granted."""


COUNTED = ("unjudged", "unreached", "shrinking")


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
    interrupted: bool = False
    errors: list[str] = field(default_factory=list)
    """Why cases could not be judged, through a mistake of the judge or of the machines, not of the target."""
    unjudged: int = 0
    """How many cases that were: they are counted as undecided."""
    unreached: int = 0
    """Cases that were planned and that the end of the time left out."""
    shrinking: float = 0.0
    """Of the seconds, those in which findings were shrunk."""
    repeat: str = ""
    """The command that makes the same cases again, and those that were not reached."""

    def by_kind(self, kind: str) -> list[Finding]:
        return [finding for finding in self.findings if finding.kind == kind]

    def to_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "version": self.version,
            "machine": self.machine,
            "seed": self.seed,
            "cases": self.cases,
            "seconds": self.seconds,
            "findings": [finding.to_json() for finding in self.findings],
            "probes": [vars(probe) for probe in self.probes],
            "tally": self.tally.to_json(),
            "allowed": list(self.allowed),
            "interrupted": self.interrupted,
            "errors": self.errors,
            **{name: getattr(self, name) for name in COUNTED},
            "repeat": self.repeat,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Run:
        return Run(
            **{name: data[name] for name in ("target", "version", "machine", "seed", "cases", "seconds")},
            findings=[Finding.from_json(finding) for finding in data["findings"]],
            probes=[Probe(**probe) for probe in data["probes"]],
            tally=Tally.from_json(data["tally"]),
            allowed=tuple(data["allowed"]),
            **{name: data[name] for name in ("interrupted", "errors", "repeat")},
            **{name: data[name] for name in COUNTED if name in data},
        )
