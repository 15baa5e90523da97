"""``gs.referee.score``: one kernel, judged by one problem in a process that is kept for the next kernel."""

from __future__ import annotations

import atexit
import json
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import count
from json import JSONDecodeError
from threading import get_ident
from time import monotonic
from typing import Any

from gradspec.conformance.campaign.check import check
from gradspec.conformance.campaign.isolated import BUSY, TargetError, rule_of
from gradspec.conformance.cases.target_stream import TargetStream
from gradspec.conformance.model.case import Selection
from gradspec.conformance.model.codec import decode, encode
from gradspec.conformance.model.run import Run
from gradspec.conformance.targets.devices import device_named
from gradspec.conformance.targets.reference.kernel import ReferenceKernel
from gradspec.referee.formats import (
    MOST_CELLS,
    LoadedProblem,
    ProblemSource,
    find_source,
    load_objects,
    with_timed_types,
    write_types,
)
from gradspec.referee.own_work import OwnWork, Policy, observe, source_of
from gradspec.referee.timing import COMPILING, Times, compiled_reference, contender_host, time_kernel
from gradspec.spec.errors import FormatError
from gradspec.system.forking import unforkable
from gradspec.system.host import follow
from gradspec.system.hosting import (
    ChannelError,
    CopyHost,
    HostedFunction,
    HostLostError,
    HostServer,
    ImportFailedError,
    KernelHost,
    LeftBehindError,
    stand_in,
)
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
LEAST = 0.25
"""The share of the cases that must have been tried for a kernel to pass: one that sleeps meets few."""
LOST, WROTE = "It ends its process, or never answers", "It wrote to the channel of the judge"
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
    memory: int | None = None
    """Bytes that the processes of a kernel may hold together; by default three quarters of what there is."""


@dataclass(frozen=True)
class Score:
    """What a kernel is worth.

    ``verdict`` is ``pass``, ``fail``, ``undecided`` (cases could not be judged, or there was time for too few) or
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
    containment: str = ""
    """What keeps the kernel from the judge and the machine."""

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
    sizes: str = "",
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
    - ``timed``: measure the kernel and the reference, eager and compiled, on ``sizes`` (``"f32[4096,4096]"``), or else
      on the first of the types that it is judged on.
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
        options = {
            "inputs": inputs or "",
            "array": array,
            "fixed": fixed_sizes,
            "most_cells": most_cells,
            "sizes": sizes,
        }
        source = find_source(spec, **options)
        return score_solution(source, kernel, settings)
    if isinstance(kernel, str) or inputs is None:
        raise ValueError("give a kernel and a problem both by name, or both as objects with the types of inputs")
    loaded = load_objects(spec, inputs, array, fixed_sizes)
    loaded = with_timed_types(loaded, sizes) if sizes else loaded
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


def judge_solution(solution: str, loaded: LoadedProblem, settings: ScoreSettings, server: HostServer | None) -> Score:
    """Judge a solution in a process that holds nothing of the judge; without a server of those, in this one."""
    start = monotonic()
    if server is None:
        return judge_kernel(loaded.call.solution(solution), loaded, settings)
    is_on_cpu = settings.device == "cpu"
    host = KernelHost(solution, settings.memory if is_on_cpu else 0, loaded.call.options, server)
    host.limit, host.device, host.library = STARTING, settings.device, loaded.call.array
    try:
        kernel = stand_in(host, lambda name: False)
        host.limit = settings.timeout if unforkable() else None  # a copy that judges has a limit of its own
        return judge_kernel(kernel, loaded, settings, host=host)
    except HostLostError as loss:
        found = RefereeFinding("hang" if loss.silence else "crash", LOST, str(loss))
    except LeftBehindError as error:
        found = RefereeFinding("left_behind", "It leaves processes behind", str(error))
    except (ChannelError, ImportFailedError) as error:
        is_said = isinstance(error, ChannelError) or str(error).startswith(host.spoke)
        rule, title = ("channel", WROTE) if is_said else ("raised", "It cannot be loaded")
        found = RefereeFinding(rule, title, str(error))
    finally:
        host.close()
    return Score("fail", (found,), seconds=monotonic() - start)


def judge_kernel(
    kernel: Any, loaded: LoadedProblem, settings: ScoreSettings, own_array: bool = True, host: KernelHost | None = None
) -> Score:
    """Judge a kernel in its host, or an object in copies of this process where that is possible."""
    start = monotonic()
    names = ("cases", "seconds", "seed", "modes", "allow", "timeout", "fail_fast")
    options = {name: getattr(settings, name) for name in names}
    types, array = write_types(loaded.types), loaded.call.array if own_array else None
    spec = loaded.reference if loaded.spec is None else loaded.spec
    target = ReferenceKernel(kernel, spec, types, name=host.name if host else "", array=array, host=host)
    device = "cpu" if host else settings.device
    try:
        run = check(target, isolate=not unforkable(), device=device, **options)
    except TargetError as error:
        loss = error.__cause__
        if isinstance(loss, ProcessLostError) and not loss.doubt:
            found = [RefereeFinding(rule_of(loss), LOST, str(error))]
            return Score("fail", tuple(found), seconds=monotonic() - start)
        return Score("undecided", error=str(error), seconds=monotonic() - start)
    except (KeyError, JSONDecodeError, FormatError) as error:  # nothing that the judge says
        return Score("fail", (RefereeFinding("channel", WROTE, f"{type(error).__name__}: {error}"),))
    found, own, times, notes = list(findings_of(run)), None, None, list(loaded.notes)
    if (tried := run.tally.cases.total()) < settings.cases and not found:
        advice = "" if tried >= LEAST * settings.cases else ", too few to decide; allow more --seconds"
        notes.append(f"only {tried} of {settings.cases} cases were tried in {settings.seconds:g} s{advice}")
    why_not = "" if loaded.source and host else unforkable()
    if why_not:
        notes += ["its own work was not observed: " + why_not] * (settings.own_work is not None)
        notes += ["it was not timed: " + why_not] * (settings.timed and not found)
    else:
        own, times = _observe_and_time(kernel, loaded, settings, host, is_timed=settings.timed and not found)
    found += [RefereeFinding("own_work", title, detail) for title, detail in (own.forbidden if own else ())]
    found += [RefereeFinding(*finding) for finding in (times.findings if times else ())]
    is_decided = not run.errors and run.judged > 0 and tried >= LEAST * settings.cases
    verdict = "fail" if found else "pass" if is_decided else "undecided"
    told = "; ".join(run.errors[:3]), own, times, tuple(notes), run.seed, run.containment
    return Score(verdict, tuple(found), run.judged, monotonic() - start, *told)


def _observe_and_time(
    kernel: Any, loaded: LoadedProblem, settings: ScoreSettings, host: KernelHost | None, is_timed: bool
) -> tuple[OwnWork | None, Times | None]:
    """What a kernel dispatches, and how long it takes, each in a process in which nothing was called before."""
    copies = dict(_references(loaded, is_timed))
    copies |= {} if host else {"kernel": CopyHost(_following(kernel))}
    for copy in copies.values():
        copy.limit, copy.device, copy.library = COMPILING, settings.device, loaded.call.array
    functions = {name: HostedFunction(copy, "", None) for name, copy in copies.items()}
    if host is not None:
        functions["kernel"], host.limit = kernel, COMPILING
    own = times = None
    try:
        if settings.own_work is not None:
            source = source_of(host.name if host else kernel)
            own = observe(functions["kernel"], functions["eager"], loaded, settings.own_work, source)
        if is_timed and not (own and own.forbidden):
            for function in functions.values():
                function.host.drop_session()
            times = time_kernel(functions, loaded, settings)
    finally:
        for copy in copies.values():
            copy.close()
    return own, times


def _references(loaded: LoadedProblem, is_timed: bool) -> Iterable[tuple[str, KernelHost]]:
    """The reference as it is, and compiled: in copies of this process, or in new ones where it cannot be copied."""
    for name in ("eager", "compiled")[: 1 + is_timed]:
        if name == "compiled" and loaded.call.array != "torch":
            continue
        if loaded.source and unforkable():
            yield name, contender_host("TimedReference", json.dumps(encode(loaded.source)), name)
        else:
            yield name, CopyHost(_following(loaded.eager if name == "eager" else compiled_reference(loaded)))


def _following(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that, if it is a module, is on the device of its arrays."""

    def call(*arrays: Any) -> Any:
        follow(function, arrays)
        return function(*arrays)

    return call


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
    kernel, types = loaded.call.solution(""), write_types(loaded.types)
    target = ReferenceKernel(kernel, loaded.reference, types, array=loaded.call.array)
    stream = TargetStream.of(target, Selection(modes=("value",)), 0)
    for number in range(WARM_BATCHES):
        for case in stream.batch(number):
            loaded.reference.graph(target.reference.types_of(case.problem))


# --- kept processes ---------------------------------------------------------------------------------------------------


class ProblemJudge(KeptProcess):
    """The process of one problem: it runs the problem's code, and judges solutions in copies of itself."""

    patience = BUSY

    def __init__(self, source: ProblemSource, device: str = "cpu") -> None:
        own = device_named(device).environment(next(_numbers))

        def begin() -> Child:
            found = environment(1) | module_path() | own
            return module_child("gradspec.referee.worker", [json.dumps(encode(source))], found)

        super().__init__(begin, STARTING)
        self.source = source

    def refusal(self, why: str) -> Exception:
        return ProblemError(why)

    def score(self, solution: str, settings: ScoreSettings) -> Score:
        start, limit = monotonic(), 2 * settings.seconds + settings.timeout + GRACE + 120.0 * settings.timed + STARTING
        with self._in_use:
            try:
                if self._child is None or self._child.has_ended():
                    self._start()
            except (ProcessLostError, ValueError) as loss:
                self._end()  # the next solution must not meet a process that is about to end
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


_numbers = count()
"""Of processes: those of several GPUs are given out in turn."""
_judges: dict[int, OrderedDict[tuple[ProblemSource, str], ProblemJudge]] = {}
"""By thread, so that no thread waits for another one's kernel."""


def judge_of(source: ProblemSource, device: str) -> ProblemJudge:
    """This thread's process for a problem; those that it did not use for longest end."""
    kept = _judges.setdefault(get_ident(), OrderedDict())
    key = source, device
    if key not in kept or kept[key].is_closed:
        kept[key] = ProblemJudge(source, device)
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
