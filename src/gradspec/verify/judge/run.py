"""A run of the judge of bounds, reported as a run of the judge of kernels: a method stands for an operator."""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from statistics import median
from typing import Any

from gradspec.conformance.campaign.check import machine_line
from gradspec.conformance.campaign.request import Progress, Watch, check_names
from gradspec.conformance.command import CheckError, CheckRequest, perform
from gradspec.conformance.model.case import DEFAULT_SECONDS, PLAIN
from gradspec.conformance.model.run import Run
from gradspec.conformance.model.target import NotOfferedError
from gradspec.conformance.model.verdict import Finding, Probe
from gradspec.verify.judge.cases import OPS, BoundsCase, cases, simpler_cases
from gradspec.verify.judge.judging import AS_ROUNDING, RULES, Truth, accepted_bad_boxes, judge
from gradspec.verify.judge.targets import TARGETS, BoundsTarget

SHRUNK_OF_EACH = 2
"""Similar failures that are shrunk: they may have several causes."""
DRAWS = 2
"""Seeds that a simpler case is tried with."""
TIGHTNESS = "width over the range of exact values at sampled points"
OPTIONS = ("seconds", "cases", "seed", "ops", "ranks", "fail_fast")


def check_bounds(
    target: str | BoundsTarget = "bounds",
    *,
    seconds: float | None = None,
    cases: int | None = None,
    seed: int | None = None,
    ops: Sequence[str] = (),
    ranks: Sequence[int] = (),
    fail_fast: bool = False,
    progress: Watch = lambda standing: None,
) -> Run:
    """Judge the bounds of a target: ``"bounds"`` (ours), ``"auto_lirpa"``, or your own object.

    No case begins after ``seconds`` (60 unless ``cases`` are given) or after so many ``cases``; the same seed makes the
    same cases.
    """
    chosen = {"ops": check_names("operator", ops, OPS), "ranks": check_names("rank", ranks, (1, 2, 3))}
    judged = target if isinstance(target, BoundsTarget) else TARGETS[target]()
    limit = DEFAULT_SECONDS if seconds is None and cases is None else seconds
    run = Run(judged.name, judged.versions(), machine_line(), secrets.randbelow(2**32) if seed is None else seed)
    campaign = _Campaign(judged, run, float("inf") if limit is None else limit)
    try:
        campaign.judge(chosen, cases, fail_fast, progress)
    except KeyboardInterrupt:
        run.interrupted = True
    campaign.finish()
    options = [f"--{name} {','.join(map(str, names))}" for name, names in chosen.items() if names]
    run.repeat = " ".join(["gradspec check", judged.name, *options, f"--seed {run.seed} --cases {max(run.cases, 1)}"])
    return run


class _Campaign:
    def __init__(self, target: BoundsTarget, run: Run, limit: float) -> None:
        self.target, self.run, self.start, self.limit = target, run, time.monotonic(), limit
        self.ratios = defaultdict[str, list[float]](list)
        self.causes = dict[tuple[object, ...], tuple[int, Finding]]()
        """The smallest case of each cause: how many cells it has, and the finding."""
        self.alike = defaultdict[tuple[object, ...], list[tuple[int, Finding]]](list)

    def judge(self, chosen: dict[str, Any], most: int | None, fail_fast: bool, progress: Watch) -> None:
        run = self.run
        for case in islice(cases(run.seed, self.target.refusal, **chosen), most):
            run.seconds = time.monotonic() - self.start
            if run.seconds > self.limit or (fail_fast and self.causes):
                return
            progress(Progress("judging", run, run.cases / most if most else run.seconds / self.limit))
            run.cases += 1
            truth = Truth(case)
            kinds = {method: self._judge_method(method, truth) for method in self.target.methods}
            run.tally.cases[min(kinds.values(), key=("defect", "pass", "not_offered").index)] += 1
            run.tally.modes.update((method, "value", kind) for method, kind in kinds.items())
            features = case.features or (PLAIN,)
            run.tally.grid.update((m, "value", feature, kind) for m, kind in kinds.items() for feature in features)

    def _judge_method(self, method: str, truth: Truth) -> str:
        try:
            defect, ratios = judge(self.target, method, truth)
        except (NotOfferedError, NotImplementedError) as refusal:
            self.run.tally.not_offered[str(refusal) or type(refusal).__name__] += 1
            return "not_offered"
        if method not in self.ratios:
            for finding in accepted_bad_boxes(self.target, method, truth):
                self._keep(truth.case.cells, finding)
        self.ratios[method] += ratios
        if defect is None:
            return "pass"
        alike = self.alike[method, defect.rule, defect.result, truth.case.ops, truth.case.features]
        if len(alike) < SHRUNK_OF_EACH:
            now = time.monotonic()
            left = self.start + self.limit - now
            seconds = left if left == float("inf") else min(5.0, max(0.5, left / 4))
            alike.append(shrink(self.target, truth.case, defect, now + seconds))
            self._keep(*alike[-1])
        else:
            self._keep(*alike[0])
        return "defect"

    def _keep(self, cells: int, finding: Finding) -> None:
        cause = (finding.title, finding.rule, finding.result, finding.causes)
        least, smallest = self.causes.get(cause, (cells, replace(finding, count=0)))
        simplest = finding if cells < least else smallest
        self.causes[cause] = min(cells, least), replace(simplest, count=smallest.count + 1)

    def finish(self) -> None:
        run, rules = self.run, [*RULES.values()]
        ordered = sorted(self.causes.values(), key=lambda f: (f[1].result == AS_ROUNDING, rules.index(f[1].rule), f[0]))
        run.findings = [finding for _, finding in ordered]
        run.seconds = time.monotonic() - self.start
        run.probes = [
            Probe(TIGHTNESS, method, "", f"{median(r):.3g}, at worst {max(r):.3g}, of {len(r):,} outputs")
            for method, r in self.ratios.items()
            if r
        ]


def shrink(target: BoundsTarget, case: BoundsCase, defect: Finding, deadline: float) -> tuple[int, Finding]:
    """The defect in the smallest case that shows it, with its number of cells."""
    tried, is_smallest = {repr(case)}, False
    while not is_smallest:
        is_smallest = True
        for simpler in simpler_cases(case):
            if time.monotonic() > deadline:
                break
            if repr(simpler) not in tried:
                tried.add(repr(simpler))
                same = _same_defect(target, simpler, defect)
                if same is not None:
                    (case, defect), is_smallest = same, False
                    break
    return case.cells, defect


def _same_defect(target: BoundsTarget, case: BoundsCase, defect: Finding) -> tuple[BoundsCase, Finding] | None:
    for draw in range(DRAWS):
        drawn = replace(case, seed=case.seed + draw)
        try:
            other, _ = judge(target, defect.op, Truth(drawn))
        except (NotOfferedError, NotImplementedError, ValueError, TypeError, IndexError):  # refused, or no geometry
            return None
        if other is not None and (other.rule, other.result) == (defect.rule, defect.result):
            return drawn, other
    return None


def perform_bounds(request: CheckRequest) -> int:
    """What ``gradspec check bounds`` and its like do with their options; the exit code."""
    options = {n: value for n, value in request.check.items() if n != "timeout" and (n, value) != ("device", "cpu")}
    if refused := [name for name, value in options.items() if name not in OPTIONS and value]:
        words = f"--{refused[0]} is not for bounds; they take --{', --'.join(OPTIONS)}"
        raise CheckError(words.replace("_", "-"))
    chosen = {name: value for name, value in options.items() if name in OPTIONS}
    return perform(replace(request, check=chosen), judge=check_bounds)
