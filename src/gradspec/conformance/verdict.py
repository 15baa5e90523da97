"""What is said of a target: a verdict on each result, and findings, which are what a run reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

KINDS = ("defect", "convention", "reduced", "undecided", "not_offered", "pass")
"""From worst to best. A finding is a defect, a convention or reduced."""
FINDINGS = ("defect", "convention", "reduced")


@dataclass(frozen=True)
class Verdict:
    """One judgement of one result.

    ``rule`` is a key of ``gradspec.conformance.judge.rules.RULES``; ``place`` is where the result is first wrong;
    ``got`` and ``expected`` say what stands and what may stand there.
    """

    kind: str
    rule: str = ""
    result: str = ""
    variant: str = "plain"
    place: tuple[int, ...] | None = None
    got: str = ""
    expected: str = ""
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Verdict:
        place = None if data["place"] is None else tuple(data["place"])
        return Verdict(**{**data, "place": place})


@dataclass(frozen=True)
class Finding:
    """A cause, with its smallest case. The fields of the contract first; ``case`` is ``Call.to_json``."""

    op: str
    mode: str
    kind: str
    features: tuple[str, ...]
    dtype: str
    case: dict[str, Any]
    got: str
    expected: str
    rule: str
    reproducer: str
    explanation: str = ""
    result: str = ""
    variant: str = "plain"
    place: tuple[int, ...] | None = None
    count: int = 1
    """How many cases showed it."""
    seen: tuple[str, ...] = field(default=())
    """Where else it showed: ``op mode dtype`` of the cases of the same cause."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Finding:
        lists = {name: None if data[name] is None else tuple(data[name]) for name in ("features", "place", "seen")}
        return Finding(**{**data, **lists})
