"""Judging in this process: what can be asked about a target, and the cases of a batch, one after the other."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import cached_property
from itertools import chain, product
from math import inf
from time import monotonic

from gradspec.conformance.cases.cover import values_of_case
from gradspec.conformance.cases.data import drawn
from gradspec.conformance.cases.discovery import find_domain, join_domains, plain_layers
from gradspec.conformance.cases.numbers import generator
from gradspec.conformance.cases.problems import Goal, draw_problem
from gradspec.conformance.cases.target_stream import TargetStream
from gradspec.conformance.checks import Prepared, examine, missing_errors
from gradspec.conformance.checks.probes import probe, rounds_factors
from gradspec.conformance.model.case import CampaignSettings, CheckCase, Selection
from gradspec.conformance.model.domain import KernelDomain
from gradspec.conformance.model.problem import RANKS, Problem
from gradspec.conformance.model.reference import on_zeros
from gradspec.conformance.model.run import Coverage, Judged
from gradspec.conformance.model.target import NotOfferedError, Target
from gradspec.conformance.model.verdict import FINDINGS, KINDS, Failure, Finding, Probe, Verdict
from gradspec.conformance.shrink.causes import explain_group
from gradspec.conformance.shrink.search import manner
from gradspec.conformance.targets.user.target import UserKernels

TOGETHER = 32
"""The most cases whose calls are made together on a device."""
A_GROUP = 0.5
"""Seconds that calls which are made together may take: kernels that compile are called for fewer cases at a time, since
nobody hears of any before all of them have been called.
"""
KEPT = 3
"""Failures of one kind that are kept from a batch: more would tell nothing new."""

SAMPLE = 6
"""Problems of each operator and rank that tell whether kernels decline something."""

Signature = tuple[str, ...]


def signature(failure: Failure) -> Signature:
    """Failures of the same signature in one batch are most likely of one cause."""
    problem = failure.call.problem
    return (problem.op, failure.call.mode, problem.dtype, failure.verdict.variant, *manner(failure.verdict))


class InProcess:
    """What can be asked about a target, answered here: `Isolated` asks the same of another process."""

    def __init__(self, target: Target, settings: CampaignSettings, clock: Callable[[], float] = monotonic) -> None:
        self.target, self.settings, self.clock, self.allow = target, settings, clock, frozenset(settings.allow)
        self._values: dict[int, list[tuple[int, ...]]] = {}
        """By the number of a batch that was planned, what meets in its cases."""

    @cached_property
    def _stream(self) -> TargetStream:
        """Made when it is first needed: the cover takes a moment, and only who plans needs it."""
        return TargetStream.of(self.target, self.settings.selection.around(self.target.blocks), self.settings.seed)

    @property
    def domain(self) -> str:
        return str(self.target.domain)

    @property
    def containment(self) -> str:
        return self.target.containment()

    def describe_device(self) -> str:
        """``NVIDIA H200, driver 570.86, CUDA 12.8, cuDNN 91002, TF32 convolutions``; nothing of the CPU."""
        facts = self.target.device.facts(self.target.library)
        return ", ".join(value if name == "GPU" else f"{name} {value}" for name, value in facts.items())

    def versions(self) -> dict[str, str]:
        return self.target.versions()

    def allowing(self, modes: Iterable[str]) -> None:
        """Permit further modes of reduced precision."""
        self.allow |= frozenset(modes)

    def probes(self, seconds: float) -> list[Probe]:
        windows = self.target.of_windows(self.settings.selection)
        return [] if windows is None else probe(self.target, seconds, self.clock, windows)

    def missing_errors(self) -> list[Finding]:
        """Calls that must raise by the target's documentation, and do not."""
        return [
            Finding.of(verdict, error.op, "value", result="", reproducer=error.source, explanation=error.documented)
            for error, verdict in missing_errors(self.target)
        ]

    def find_domain(self, seconds: float) -> str:
        """Infer the domain of a kernel that declares none and raises ``NotImplementedError``; empty if it takes all."""
        if not isinstance(self.target, UserKernels) or not self.target.is_open:
            return ""
        deadline = self.clock() + seconds
        found = discovered(self.target, self.settings.selection, lambda: self.clock() > deadline)
        self.target.within(str(found))
        return str(found)

    def plan(self, first: int, count: int, domain: str = "") -> list[list[CheckCase]]:
        """The cases of so many batches. Where nothing is offered they end when that has been said once.

        ``domain`` is what was found of the kernels, perhaps by a process before this one.
        """
        self.target.within(domain)
        last = min(first + count, self._stream.covering) if self._stream.why_nothing else first + count
        batches = [self._stream.batch(number) for number in range(first, last)]
        self._values |= {number: _values(cases) for number, cases in enumerate(batches, first)}
        return batches

    def coverage(self, batches: int) -> Coverage:
        """How far the cases of the first batches went."""
        planned = (self._values.get(n) or _values(self._stream.batch(n)) for n in range(batches))
        return self._stream.coverage(chain.from_iterable(planned))

    def judged(self, cases: Sequence[CheckCase], deadline: float = inf, together: bool = False) -> Iterator[Judged]:
        """The cases of a batch, each judged when it is asked for; none begins after the deadline.

        Their calls may be made ``together``, of as many as can be called at once, before the first of them is judged.
        Those that a batch begins with are made one by one: kernels are compiled for them.
        """
        seen, done, size = Counter[Signature](), 0, 1
        while done < len(cases) and self.clock() < deadline:
            group = cases[done : done + size]
            start = self.clock()
            ready = self._prepared(group) if together else group
            waited = self.clock() - start
            if any(case.answers for case in ready if isinstance(case, Prepared)):  # what is declined tells nothing
                size = min(TOGETHER, 2 * size) if waited < A_GROUP else (size + 1) // 2
            for case in ready:
                start = self.clock()
                judged = _judged(self.target, case, self.allow, seen)
                yield replace(judged, seconds=waited / len(group) + self.clock() - start)
                if self.clock() >= deadline:
                    return
            done += len(group)

    def _prepared(self, cases: Sequence[CheckCase]) -> Sequence[CheckCase | Prepared]:
        try:
            return Prepared.together(self.target, cases)
        except Exception:  # of the judge: whose case it is shows when each is judged by itself
            return cases

    def rounding(self) -> frozenset[str]:
        """Modes of reduced precision that are in force on the device: documented, and switched on or measured."""
        if self.target.device.is_host:
            return frozenset()
        found = self.target.device.rounding(self.target.library)
        has_windows = self.target.of_windows(Selection()) is not None
        found |= {"tf32"} if "tf32" not in found and has_windows and rounds_factors(self.target) else set()
        return found & self.target.reduced().keys()

    def findings(self, failures: list[Failure], seconds: float) -> list[Finding]:
        """What the failures of one group come to, shrunk for so long."""
        return explain_group(self.target, failures, seconds, self.allow)

    @staticmethod
    def crash_result(
        case: CheckCase, rule: str, got: str, expected: str = "results or an exception", detail: str = ""
    ) -> Judged:
        """A case that ended its process, its device or all patience."""
        call, features = drawn(case), tuple(sorted(case.features))
        verdict = Verdict("defect", rule, got=got, expected=expected, detail=detail)
        failure = Failure(call, verdict, features, case.name)
        return Judged(call.problem.op, call.mode, features, "defect", failures=(failure,))

    def close(self) -> None:
        """There is nothing to close."""


def discovered(kernels: UserKernels, selection: Selection, is_late: Callable[[], bool]) -> KernelDomain:
    """The box of all that kernels take, if they raise ``NotImplementedError`` for some cases, as far as time goes."""
    mode = next((mode for mode in kernels.modes if mode in selection.chosen_modes), "value")
    ops = [op for op in kernels.ops if op in selection.chosen_ops]
    ranks, declined = selection.ranks or kernels.ranks or RANKS, list[Problem]()

    def takes(problem: Problem, layout: str) -> bool | None:
        if is_late():
            return None
        if kernels.misplaced(problem, mode) is not None:
            return False
        try:
            kernels.run(replace(on_zeros(problem, mode), layout=layout).in_layout())
        except NotOfferedError:
            declined.append(problem)
            return False
        except Exception:  # is judged where the case is
            return True
        return True

    rng, dtype = generator(0), kernels.dtypes[0]
    for op, rank in product(ops, ranks):
        drawn = [problem for _ in range(SAMPLE) if (problem := draw_problem(rng, Goal(op, rank)))]
        for problem in (*plain_layers(op, rank, dtype), *drawn):
            takes(replace(problem, dtype=dtype), "contiguous")
    found = [find_domain(op, takes, ranks, kernels.dtypes) for op in ops] if declined else []
    return join_domains([domain for domain in found if domain is not None])


def _values(cases: Iterable[CheckCase]) -> list[tuple[int, ...]]:
    return [values_of_case(case) for case in cases if not case.problem.is_reference]


def _judged(target: Target, given: CheckCase | Prepared, allow: AbstractSet[str], seen: Counter[Signature]) -> Judged:
    case = given.case if isinstance(given, Prepared) else given
    features = tuple(sorted(case.features))
    try:
        call, verdicts = examine(target, given, allow)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{where.filename.rpartition('gradspec/')[2]}:{where.lineno}"
        return undecided(case, f"{type(error).__name__}: {error} at {place}")  # a mistake of the judge
    worst = min(verdicts, key=lambda verdict: KINDS.index(verdict.kind))
    failures = [Failure.told(v, call, features, case.name) for v in verdicts if v.kind in FINDINGS]
    kept, unkept = limit_duplicates(failures, seen)
    reason = worst.detail if worst.kind == "not_offered" else ""
    cells, weak = (sum(getattr(v, name) for v in verdicts) for name in ("cells", "weak"))
    by = next((verdict.weak_by for verdict in verdicts if verdict.weak_by), "")
    told = (features, worst.kind, reason, kept, unkept)
    return Judged(case.problem.op, case.mode, *told, cells=cells, weak=weak, weak_by=by)


def limit_duplicates(
    failures: Collection[Failure], seen: Counter[Signature]
) -> tuple[tuple[Failure, ...], tuple[Signature, ...]]:
    """The failures to keep, and the signatures of the others. ``seen`` counts all of them."""
    kept, unkept = list[Failure](), list[Signature]()
    for failure in failures:
        mark = signature(failure)
        seen[mark] += 1
        if seen[mark] <= KEPT:
            kept.append(failure)
        else:
            unkept.append(mark)
    return tuple(kept), tuple(unkept)


def undecided(case: CheckCase, why: str) -> Judged:
    """Undecided through no fault of the target's."""
    error = f"case {case.name} ({case.problem.op} {case.mode}): {why}"
    return Judged(case.problem.op, case.mode, tuple(sorted(case.features)), "undecided", error=error)
