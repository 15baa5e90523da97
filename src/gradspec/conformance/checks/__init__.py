"""What is checked beside the results themselves, on some of the cases.

A check looks at one call and says what is wrong; `again` makes the checks of a rule on any call, for shrinking.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gradspec.conformance.call import Call
from gradspec.conformance.cases import Case
from gradspec.conformance.checks import guards, repeat
from gradspec.conformance.targets import Target
from gradspec.conformance.verdict import Verdict


@dataclass(frozen=True)
class Check:
    """One check, made on every ``every``-th case: of a batch, and of the cases that differ from batch to batch."""

    look: Callable[[Target, Call], list[Verdict]]
    every: int
    offset: int
    rules: tuple[str, ...]
    """What it may say is broken."""

    def applies(self, case: Case) -> bool:
        # Batches have their modes and numbers in the same order, so the place in a batch alone would meet few of them.
        return (case.batch + case.index) % self.every == self.offset

    def __call__(self, target: Target, case: Case, call: Call) -> list[Verdict]:
        return self.look(target, call) if self.applies(case) else []


CHECKS = (
    Check(repeat.repeatability, 5, 0, ("not_repeatable", "guard")),
    Check(repeat.threads, 5, 1, ("threads",)),
    Check(guards.inputs, 5, 2, ("guard", "crash")),
    Check(guards.outputs, 5, 3, ("guard", "input_changed", "raised", "crash")),
)


def again(target: Target, call: Call, rule: str) -> list[Verdict]:
    """The checks that may say a rule is broken, made on one call."""
    return [verdict for check in CHECKS if rule in check.rules for verdict in check.look(target, call)]
