"""The book of a campaign: each batch is entered once, and in order."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from gradspec.conformance.campaign.local import Signature, signature
from gradspec.conformance.model.run import Batch, Tally
from gradspec.conformance.model.verdict import Failure

KEPT = 24
"""Failures of one signature that a campaign keeps; the others are counted."""
ERRORS = 20


@dataclass
class Ledger:
    """Batches may arrive in any order and more than once; what is entered depends on neither.

    >>> from gradspec.conformance.model.run import Judged
    >>> judged = Judged("max_pool", "value", (), "pass")
    >>> ledger = Ledger()
    >>> for number in (1, 0, 1, 0):
    ...     ledger.take(Batch(number, (judged, judged)))
    >>> ledger.cases, ledger.tally.cases["pass"]
    (4, 4)
    """

    until_defect: bool = False
    """Whether the first defect ends the book."""
    cases: int = 0
    entered: int = 0
    """Batches in the book: the number of the next one."""
    tally: Tally = field(default_factory=Tally)
    failures: dict[Signature, list[Failure]] = field(default_factory=dict)
    seen: dict[Signature, set[tuple[int, int]]] = field(default_factory=dict)
    """By signature, all cases that failed so, whether their failures were kept or not."""
    errors: list[str] = field(default_factory=list)
    unjudged: int = 0
    """Cases with an error, of which the first are kept."""
    _early: dict[int, Batch] = field(default_factory=dict)

    @property
    def is_full(self) -> bool:
        return self.until_defect and self.tally.cases["defect"] > 0

    def has(self, number: int) -> bool:
        return number < self.entered or number in self._early

    def take(self, batch: Batch) -> None:
        """Take a batch in when all before it are in; one that is known already is ignored."""
        if not self.has(batch.number):
            self._early[batch.number] = batch
        while self.entered in self._early:
            self._enter(self._early.pop(self.entered))
            self.entered += 1

    def close(self) -> None:
        """Take in what came, though batches before it never will."""
        for number in sorted(self._early):
            self._enter(self._early.pop(number))

    def _enter(self, batch: Batch) -> None:
        for index, case in enumerate(batch.cases):
            if self.is_full:
                return
            self.cases += 1
            case.count(self.tally)
            for failure in case.failures:
                kept = self.failures.setdefault(signature(failure), [])
                kept += [failure][: KEPT - len(kept)]
            for mark in (*map(signature, case.failures), *case.unkept):
                self.seen.setdefault(mark, set()).add((batch.number, index))
            if case.error:
                self.unjudged += 1
                self.errors += [case.error][: ERRORS - len(self.errors)]

    def in_order(self) -> list[Failure]:
        """All kept failures in the order of their cases, so that they group alike however they arrived."""
        return sorted((f for failures in self.failures.values() for f in failures), key=lambda failure: failure.number)

    def counted(self, group: Collection[Failure]) -> int:
        """How many cases failures of one cause stand for: their own, and those like them that were not kept."""
        members = {id(failure) for failure in group}
        ours = [mark for mark, kept in self.failures.items() if id(kept[0]) in members]
        return len(set().union(*(self.seen[mark] for mark in ours), (failure.number for failure in group)))
