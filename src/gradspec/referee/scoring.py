"""``gs.referee.score``: one kernel, judged by one problem in a process that is kept for the next kernel."""

from __future__ import annotations

import atexit
import json
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from json import JSONDecodeError
from threading import get_ident
from time import monotonic
from typing import Any

from gradspec.conformance.campaign.check import check
from gradspec.conformance.campaign.isolated import TargetError
from gradspec.conformance.cases.target_stream import TargetStream
from gradspec.conformance.model.case import Selection
from gradspec.conformance.model.codec import decode, encode
from gradspec.conformance.model.run import Run
from gradspec.conformance.targets.reference.kernel import ReferenceKernel
from gradspec.referee.formats import (
    MOST_CELLS,
    LoadedProblem,
    ProblemSource,
    SolutionKernel,
    find_source,
    load_objects,
    write_types,
)
from gradspec.referee.own_work import OwnWork, Policy, observe
from gradspec.referee.timing import Times, time_kernel
from gradspec.spec.errors import FormatError
from gradspec.system.forking import unforkable
from gradspec.system.processes import (
    Child,
    KeptProcess,
    ProcessLostError,
    describe,
    environment,
    module_child,
    module_path,
)

STARTING = 180.0
"""Seconds in which the code of a problem must have run."""
GRACE = 30.0
"""Seconds beyond its limit after which the process of a problem is given up."""
WARM_BATCHES = 12
"""Batches of cases that the process of a problem makes ready for."""
WROTE = "It wrote to the channel of the judge"
MOST_JUDGES = 4
"""Problems whose processes are kept."""


class ProblemError(ValueError):
    """A problem cannot be judged: it cannot be loaded, or what it holds is not supported."""


@dataclass(frozen=True)
class RefereeFinding:
    """One thing that is wrong with a kernel: the rule, one sentence, and what was seen."""

    rule: str
    title: str
    detail: str = ""


@dataclass(frozen=True)
class ScoreSettings:
    """How kernels are judged. Without a seed, one is drawn that nobody knows before."""

    cases: int = 40
    seconds: float = 20.0
    seed: int | None = None
    modes: tuple[str, ...] = ("value",)
    allow: tuple[str, ...] = ()
    device: str = "cpu"
    timeout: float = 20.0
    own_work: Policy | None = None
    timed: bool = False
    rounds: int = 20
    fail_fast: bool = False


@dataclass(frozen=True)
class Score:
    """What a kernel is worth.

    ``verdict`` is ``pass``, ``fail``, ``undecided`` (cases could not be judged, through no fault of the kernel's) or
    ``error`` (the problem could not be loaded). ``score`` is 0 unless it passed, and then 1, or, where it was timed,
    how many times as fast as the faster of the eager and the compiled reference it is.
    """

    verdict: str
    findings: tuple[RefereeFinding, ...] = ()
    cases: int = 0
    seconds: float = 0.0
    error: str = ""
    own_work: OwnWork | None = None
    times: Times | None = None
    notes: tuple[str, ...] = ()
    seed: int = 0

    @property
    def score(self) -> float:
        if self.verdict != "pass":
            return 0.0
        return 1.0 if self.times is None else self.times.speedup


def score(
    kernel: Any,
    spec: Any,
    inputs: Any = None,
    *,
    cases: int = 40,
    seconds: float = 20.0,
    seed: int | None = None,
    modes: Iterable[str] = ("value",),
    allow: Iterable[str] = (),
    array: str = "",
    device: str = "cpu",
    own_work: bool | str | Iterable[str] = False,
    timed: bool = False,
    fixed_sizes: bool = False,
    most_cells: int = MOST_CELLS,
    timeout: float = 20.0,
    fail_fast: bool = False,
) -> Score:
    """Judge a kernel that may want to cheat, and return its score.

    - ``kernel``: a file (``"solution.py"``, in the format of its problem), ``"module:object"``, or an object, which is
      called in copies of this process only.
    - ``spec``: the problem: a file of KernelBench, a folder of GPU MODE, an operator (``"aten.add.Tensor"``),
      ``"module:reference"``, or an object, such as an ``nn.Module`` or a function of ``gs``.
    - ``inputs``: types, ``"f32[8,64],f32[64]"``; problems in files have their own.
    - ``cases``, ``seconds``, ``timeout``: how much is judged, for how long at most, and how long one call may take;
      with ``fail_fast``, judging ends at the first defect.
    - ``seed``: makes the same cases again. By default nobody knows it before.
    - ``modes``: ``value``, ``jvp``, ``vjp``, ``second``. ``allow``: modes of reduced precision, ``tf32`` for example;
      what a kernel in a file declares of itself is not heard.
    - ``array``, ``device``: whose arrays the kernel takes, and where.
    - ``own_work``: True reports the library operators that the kernel dispatched. ``"no_reference"`` makes it a finding
      to dispatch those of the reference, and a list of operators, ``["mm", "convolution"]``, to dispatch any of them.
    - ``timed``: measure the kernel and the reference, eager and compiled.
    - ``fixed_sizes``: judge on the given types alone. ``most_cells``: how large a problem in a file may be; constants
      of larger ones are divided.

    The process of a problem in a file is kept, so that the next kernel of it takes a second or two.

    >>> import gradspec as gs, numpy as np
    >>> result = score(lambda x: np.maximum(x, 0), lambda x: gs.relu(x), "f32[8,16]", cases=10)
    >>> result.verdict, result.score
    ('pass', 1.0)
    >>> result = score(lambda x: np.zeros_like(x), lambda x: gs.relu(x), "f32[8,16]", cases=10)
    >>> result.verdict, result.findings[0].title
    ('fail', 'The result is zeros')
    """
    policy = None if own_work is False else Policy.of(own_work)
    limits = cases, seconds, seed
    settings = ScoreSettings(*limits, tuple(modes), tuple(allow), device, timeout, policy, timed, fail_fast=fail_fast)
    if isinstance(kernel, str) and isinstance(spec, str):
        source = find_source(spec, inputs=inputs or "", array=array, fixed=fixed_sizes, most_cells=most_cells)
        return score_solution(source, kernel, settings)
    if isinstance(kernel, str) or inputs is None:
        raise ValueError("give a kernel and a problem both by name, or both as objects with the types of inputs")
    loaded = load_objects(spec, inputs, array, fixed_sizes)
    shares = hasattr(kernel, "named_parameters") or isinstance(kernel, type)
    return judge_kernel(kernel, replace(loaded, spec=spec) if shares else loaded, settings, shares or bool(array))


def score_solution(source: ProblemSource, solution: str, settings: ScoreSettings) -> Score:
    """The score of a solution in a file or module, by the kept process of its problem; never an exception."""
    start = monotonic()
    try:
        return judge_of(source, settings.device).score(solution, settings)
    except ProblemError as error:
        return Score("error", error=str(error), seconds=monotonic() - start)


# --- in the process of a problem --------------------------------------------------------------------------------------


def judge_kernel(kernel: Any, loaded: LoadedProblem, settings: ScoreSettings, own_array: bool = True) -> Score:
    """Judge a kernel in copies of this process, or, where that is impossible, by its name in other ones."""
    start = monotonic()
    spec = loaded.reference if loaded.spec is None else loaded.spec
    options: dict[str, Any] = {
        "inputs": write_types(loaded.types),
        "array": loaded.call.array if own_array else None,
        **{
            name: getattr(settings, name)
            for name in ("cases", "seconds", "seed", "modes", "allow", "device", "timeout", "fail_fast")
        },
    }
    try:
        run = check(kernel, spec=spec, isolate=not unforkable(), **options)
    except TargetError as error:
        return Score("undecided", error=str(error), seconds=monotonic() - start)
    except (KeyError, JSONDecodeError, FormatError) as error:  # nothing that the judge says
        return Score("fail", (RefereeFinding("channel", WROTE, f"{type(error).__name__}: {error}"),))
    found, own, times, notes = list(findings_of(run)), None, None, list(loaded.notes)
    if settings.own_work is not None and (why_not := unforkable()):
        notes.append(f"its own work was not observed: {why_not}")
    elif settings.own_work is not None:
        own = observe(kernel, loaded, settings.own_work, settings)
        found += [RefereeFinding("own_work", title, detail) for title, detail in own.forbidden]
    if settings.timed and not found and (why_not := unforkable()):
        notes.append(f"it was not timed: {why_not}")
    elif settings.timed and not found:
        times = time_kernel(kernel, loaded, settings)
        found += [RefereeFinding(*finding) for finding in times.findings]
    verdict = "fail" if found else "undecided" if run.errors or not run.judged else "pass"
    why = "; ".join(run.errors[:3])
    return Score(verdict, tuple(found), run.judged, monotonic() - start, why, own, times, tuple(notes), run.seed)


def findings_of(run: Run) -> Iterable[RefereeFinding]:
    """The defects of a run; one more where the kernel took no case, or not those of the problem's own types."""
    for finding in run.by_kind("defect"):
        detail = f"{finding.got}, expected {finding.expected}" if finding.expected else finding.got
        yield RefereeFinding(finding.rule, finding.title, detail)
    if not run.tally.judged and run.tally.cases:
        reasons = "; ".join(reason for reason, _ in run.tally.not_offered.most_common(2))
        yield RefereeFinding("declined", "It takes no case of the problem", reasons)


def warm_up(loaded: LoadedProblem) -> None:
    """Trace what the first cases of every kernel need, once for all copies of this process."""
    kernel = SolutionKernel("", loaded.call)
    target = ReferenceKernel(kernel, loaded.reference, write_types(loaded.types), array=loaded.call.array)
    stream = TargetStream.of(target, Selection(modes=("value",)), 0)
    for number in range(WARM_BATCHES):
        for case in stream.batch(number):
            loaded.reference.graph(target.reference.types_of(case.problem))


# --- kept processes ---------------------------------------------------------------------------------------------------


class ProblemJudge(KeptProcess):
    """The process of one problem: it runs the problem's code, and judges solutions in copies of itself."""

    def __init__(self, source: ProblemSource, threads: int = 1) -> None:
        def begin() -> Child:
            found = environment(threads) | module_path()
            return module_child("gradspec.referee.worker", [json.dumps(encode(source))], found)

        super().__init__(begin, STARTING)
        self.source = source

    def refusal(self, why: str) -> Exception:
        return ProblemError(why)

    def score(self, solution: str, settings: ScoreSettings) -> Score:
        start, limit = monotonic(), 2 * settings.seconds + settings.timeout + GRACE + 120.0 * settings.timed
        with self._in_use:
            try:
                if self._child is None or self._child.has_ended():
                    self._start()
            except (ProcessLostError, ValueError) as loss:
                why = describe(loss) if isinstance(loss, ProcessLostError) else str(loss)
                raise ProblemError(f"{self.source.path} could not be loaded: {why}") from None
            try:
                answer = self._ask(limit, solution=solution, settings=encode(settings))
                return decode(Score, answer["score"], "score")
            except ProcessLostError as loss:
                found = RefereeFinding("process", "It ends the process that judges it", describe(loss))
            except (ValueError, KeyError, TypeError) as error:
                if isinstance(error, ProblemError):
                    raise
                self._end()
                found = RefereeFinding("channel", WROTE, str(error))
        return Score("fail", (found,), seconds=monotonic() - start)


_judges: dict[int, OrderedDict[tuple[ProblemSource, str], ProblemJudge]] = {}
"""By thread, so that no thread waits for another one's kernel."""


def judge_of(source: ProblemSource, device: str) -> ProblemJudge:
    """This thread's process for a problem; those that it did not use for longest end."""
    kept = _judges.setdefault(get_ident(), OrderedDict())
    key = source, device
    if key not in kept or kept[key].is_closed:
        kept[key] = ProblemJudge(source)
    kept.move_to_end(key)
    while len(kept) > MOST_JUDGES:
        kept.popitem(last=False)[1].close()
    return kept[key]


@atexit.register
def close_judges(threads: Iterable[int] | None = None) -> None:
    """End the processes that some threads keep, or all of them."""
    for thread in list(_judges if threads is None else threads):
        for judge in _judges.pop(thread, {}).values():
            judge.close()
