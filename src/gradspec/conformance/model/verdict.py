"""What is said of a target: a verdict on each result, failures as they are met, and findings, which a run reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gradspec.conformance.model.codec import decode, encode
from gradspec.conformance.model.problem import Call

KINDS = ("defect", "convention", "reduced", "undecided", "not_offered", "pass")
"""From worst to best. A finding is a defect, a convention or reduced."""
FINDINGS = KINDS[:3]


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
    setting: str = ""
    """What the call needs beside its arguments to fail: a key of ``gradspec.conformance.checks.SETTINGS``, with the
    difference after it where it needs another call (``after stride``)."""
    about: Call | None = None
    """The call that it is about, where that is not the one of the case."""
    cells: int = 0
    """Of a reference's result that passes."""
    weak: int = 0
    """Of these, those whose enclosure says little."""


@dataclass(frozen=True)
class Failure:
    """A case that is not as it should be, as it was met: neither shrunk nor explained."""

    call: Call
    verdict: Verdict
    features: tuple[str, ...]
    case: str
    """The name of the case."""

    @staticmethod
    def told(verdict: Verdict, call: Call, features: tuple[str, ...], case: str) -> Failure:
        """By a verdict on the case, or on another call of its neighbourhood."""
        return Failure(verdict.about or call, replace(verdict, about=None), features, case)

    @property
    def judged_call(self) -> Call:
        """The call in the variant that failed."""
        return replace(self.call, variant=self.verdict.variant)

    @property
    def number(self) -> tuple[int, int]:
        """The batch, and the index in it."""
        batch, _, index = self.case.partition(".")
        return int(batch), int(index)


@dataclass(frozen=True)
class Finding:
    """A cause, with its smallest case. The fields of the contract first; ``case`` is the call as plain data."""

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
    seen: tuple[str, ...] = ()
    """Where else it showed: ``op mode dtype`` of the cases of the same cause."""
    causes: tuple[str, ...] = ()
    """The features that it needs: of its smallest case, those that most cases of it have."""
    title: str = ""
    """What is wrong, in one sentence."""
    suspicion: str = ""
    """What a kernel of a reference most likely does instead."""
    setting: str = ""
    """What the reproducer sets up beside the call: see `Verdict.setting`."""
    reproduced: bool | None = None
    """Whether the reproducer showed it when it was run; None where it was not."""
    verification: str = ""
    """The same in words."""
    programs: Mapping[str, str] = field(default_factory=dict)
    """Reproducers by setting, until one is known to show it."""

    @staticmethod
    def of(verdict: Verdict, op: str, mode: str, **more: Any) -> Finding:
        """What a verdict says, as a finding; without ``more`` it is about no call."""
        shared = ("kind", "got", "expected", "rule", "result", "variant", "place", "setting")
        told = {"op": op, "mode": mode, **{name: getattr(verdict, name) for name in shared}}
        return Finding(**{"features": (), "dtype": "", "case": {}, "reproducer": "", **told, **more})

    @staticmethod
    def about(failure: Failure, **more: Any) -> Finding:
        """What a failure shows, as a finding with its call."""
        call = failure.judged_call
        features = {"features": failure.features, "causes": failure.features}
        case = {**features, "dtype": call.problem.dtype, "case": encode(call)}
        return Finding.of(failure.verdict, call.problem.op, call.mode, **case, **more)

    @property
    def call(self) -> Call:
        return decode(Call, self.case, "case")

    @property
    def where(self) -> str:
        return f"{self.op} {self.mode} {self.dtype}"


@dataclass(frozen=True)
class Probe:
    """One thing measured of the target before it is judged: ``significand bits kept: 24 of 24``."""

    name: str
    op: str
    dtype: str
    result: str
    normal: bool = True
    """Whether this is what the certified tolerance takes for granted."""
