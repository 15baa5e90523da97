"""A run of the judge of bounds: cases until the budget is spent, findings by cause, tightness."""

from __future__ import annotations

import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from gradspec.conformance.campaign.check import machine_line
from gradspec.conformance.model.case import DEFAULT_SECONDS
from gradspec.conformance.model.problem import Shape
from gradspec.verify.judge.cases import OPS, BoundsCase, box_of, cases
from gradspec.verify.judge.judging import RULES, Flaw, accepted, judge
from gradspec.verify.judge.shrinking import shrunk, unusual
from gradspec.verify.judge.targets import TARGETS, BoundsTarget, Ends
from gradspec.verify.judge.truth import Truth

SHRUNK_OF_EACH = 2
"""Failures alike that are shrunk: they may have several causes."""


@dataclass(frozen=True)
class BoundsFinding:
    """Something wrong, in the smallest case that was found of it."""

    method: str
    rule: str
    size: str
    """``rounding`` if it may be explained by it, ``wrong`` if not; nothing where that makes no sense."""
    ops: tuple[str, ...]
    attributes: tuple[str, ...]
    """Those that must not be left at their defaults for it to show."""
    case: str
    shape: Shape
    box: str
    got: str
    right: str
    reproducer: str
    cells: int
    count: int = 1

    @property
    def cause(self) -> tuple[object, ...]:
        return self.method, self.rule, self.size, self.ops, self.attributes


@dataclass(frozen=True)
class Tightness:
    """Widths of outputs over the ranges of their exact values at sampled points: 1 is as tight as can be."""

    outputs: int
    median: float
    worst: float


@dataclass
class BoundsRun:
    """What a run found. ``judged`` and ``refused`` count cases by method, ``reasons`` refusals by what was said."""

    target: str
    version: str
    machine: str
    seed: int
    cases: int = 0
    seconds: float = 0.0
    findings: list[BoundsFinding] = field(default_factory=list)
    tightness: dict[str, Tightness] = field(default_factory=dict)
    judged: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    interrupted: bool = False
    repeat: str = ""


def check_bounds(
    target: str | BoundsTarget = "bounds",
    *,
    seconds: float | None = None,
    cases: int | None = None,
    seed: int | None = None,
    ops: Sequence[str] = (),
    ranks: Sequence[int] = (),
    fail_fast: bool = False,
    progress: Callable[[BoundsRun], None] = lambda run: None,
) -> BoundsRun:
    """Judge the bounds of a target: ``"bounds"`` (ours), ``"auto_lirpa"``, or your own object.

    No case begins after ``seconds`` (60 unless ``cases`` are given) or after so many ``cases``; the same seed makes the
    same cases.
    """
    if unknown := [op for op in ops if op not in OPS]:
        raise ValueError(
            f"{unknown[0]!r} is no operator whose bounds are judged; give some of {', '.join(sorted({*OPS}))}"
        )
    if not {*ranks} <= {1, 2, 3}:
        raise ValueError(f"ranks are numbers from 1 to 3 here, not {', '.join(map(str, ranks))}")
    judged = target if isinstance(target, BoundsTarget) else TARGETS[target][0]()
    limit = DEFAULT_SECONDS if seconds is None and cases is None else seconds
    run = BoundsRun(judged.name, judged.versions(), machine_line(), secrets.randbelow(2**32) if seed is None else seed)
    campaign = _Campaign(judged, run, float("inf") if limit is None else limit)
    try:
        campaign.judge(tuple(ops), tuple(ranks), cases, fail_fast, progress)
    except KeyboardInterrupt:
        run.interrupted = True
    campaign.finish()
    chosen = {"ops": ops, "ranks": ranks}
    options = [f"--{name} {','.join(map(str, given))}" for name, given in chosen.items() if given]
    run.repeat = " ".join(["gradspec check", judged.name, *options, f"--seed {run.seed} --cases {max(run.cases, 1)}"])
    return run


class _Campaign:
    def __init__(self, target: BoundsTarget, run: BoundsRun, limit: float) -> None:
        self.target, self.run, self.start, self.limit = target, run, time.monotonic(), limit
        self.ratios = defaultdict[str, list[float]](list)
        self.causes = dict[tuple[object, ...], BoundsFinding]()
        self.alike = defaultdict[tuple[object, ...], list[BoundsFinding]](list)

    def judge(
        self,
        ops: tuple[str, ...],
        ranks: tuple[int, ...],
        count: int | None,
        fail_fast: bool,
        progress: Callable[[BoundsRun], None],
    ) -> None:
        run = self.run
        for case in cases(run.seed, self.target.refusal, ops, ranks):
            run.seconds = time.monotonic() - self.start
            if run.seconds > self.limit or run.cases == count or (fail_fast and self.causes):
                return
            run.cases += 1
            self._case(case)
            progress(run)

    def _case(self, case: BoundsCase) -> None:
        refusal = self.target.refusal(case)
        if refusal is not None:
            self.run.refused.update([*self.target.methods])
            self.run.reasons[refusal] += 1
            return
        truth = Truth(case)
        for method in self.target.methods:
            verdict = judge(self.target, case, method, truth)
            if verdict.refused:
                self.run.refused[method] += 1
                self.run.reasons[verdict.refused] += 1
                continue
            if not self.run.judged[method]:
                self._bad_boxes(case, method, truth)
            self.run.judged[method] += 1
            self.ratios[method] += verdict.ratios
            if verdict.flaw is not None:
                self._flawed(case, method, verdict.flaw)

    def _bad_boxes(self, case: BoundsCase, method: str, truth: Truth) -> None:
        for name, (flaw, box) in accepted(self.target, case, method, truth.box).items():
            self._keep(self._finding(case, method, flaw, (name,), box))

    def _flawed(self, case: BoundsCase, method: str, flaw: Flaw) -> None:
        key = (method, *flaw.kind, case.ops, case.features)
        known = self.alike[key]
        if len(known) >= SHRUNK_OF_EACH:
            self._keep(known[0])
            return
        now = time.monotonic()
        until = now + min(5.0, max(0.5, (self.limit - (now - self.start)) / 4))
        smallest, same = shrunk(self.target, case, method, flaw, until)
        known.append(self._finding(smallest, method, same, unusual(smallest), box_of(smallest)))
        self._keep(known[-1])

    def _keep(self, found: BoundsFinding) -> None:
        """Of one cause, the smallest case."""
        before = self.causes.get(found.cause)
        smallest = found if before is None or found.cells < before.cells else before
        self.causes[found.cause] = _counted(smallest, 1 if before is None else before.count + 1)

    def _finding(
        self, case: BoundsCase, method: str, flaw: Flaw, attributes: tuple[str, ...], box: Ends
    ) -> BoundsFinding:
        right = [f"# {line}" for line in (flaw.point, flaw.got, f"right: {flaw.right}") if line]
        text = "\n".join([self.target.reproducer(case, method, box), *right])
        facts = (case.ops, attributes, case.name, case.shape, case.box, flaw.got, flaw.right, text, case.cells)
        return BoundsFinding(method, flaw.rule, flaw.size, *facts)

    def finish(self) -> None:
        run = self.run
        order = [*RULES]
        run.findings = sorted(self.causes.values(), key=lambda f: (f.size == "rounding", order.index(f.rule), f.cells))
        run.seconds = time.monotonic() - self.start
        told = {method: ratios for method, ratios in self.ratios.items() if ratios}
        run.tightness = {name: Tightness(len(r), float(median(r)), float(max(r))) for name, r in told.items()}


def _counted(finding: BoundsFinding, count: int) -> BoundsFinding:
    return BoundsFinding(**{**vars(finding), "count": count})
