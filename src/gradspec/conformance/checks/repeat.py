"""Whether the same call gives the same bits: again, elsewhere in memory, after other calls, with other threads.

Results of two runs are compared, and what their difference amounts to is said.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gradspec.conformance.checks.memory import beside
from gradspec.conformance.judge.reduced import judge_reduced
from gradspec.conformance.judge.verdicts import Snapshot, differing, same_bits
from gradspec.conformance.model.device import NUMBERS, ExhaustedError
from gradspec.conformance.model.problem import Array, Call, Results, Shape
from gradspec.conformance.model.target import Answer, HeldResults, NotOfferedError, Target
from gradspec.conformance.model.verdict import Verdict
from gradspec.conformance.oracle.expected import expected
from gradspec.conformance.oracle.meaning import Bools
from gradspec.spec.errors import ShapeError, UnsupportedError
from gradspec.system.host import OverrunError
from gradspec.system.hosting import ChannelError, LeftBehindError

SCRIBBLE = 7
"""What a caller writes into a result."""
CONTROLS, NOISE = 8, 4.0
"""Calls that tell how much results vary by themselves, and how many times that says something of what was changed."""
THREADS = 4
"""More than one, and more than a small machine has."""


@dataclass(frozen=True)
class Outcome:
    """What a run gave: results, or the error in words."""

    results: Results
    error: str = ""

    @staticmethod
    def of(target: Target, call: Call) -> Outcome:
        """What a run gave. It leaves the call as it was; that a target writes there is said where it is judged."""
        before = Snapshot(call)
        try:
            return Outcome({name: np.array(array) for name, array in target.run(call).items()})
        except (ExhaustedError, ChannelError, LeftBehindError):
            raise
        except Exception as error:  # whatever the target raises is its own doing
            return Outcome({}, describe_error(error))
        finally:
            before.restore()

    @staticmethod
    def of_answer(answer: Answer) -> Outcome:
        """What a call gave beside others in other threads. Filters of warnings belong to all of them."""
        if isinstance(answer, Exception):
            return Outcome({}, "" if isinstance(answer, Warning | ExhaustedError) else describe_error(answer))
        return Outcome({name: np.array(array) for name, array in answer.items()})

    def is_like(self, other: Outcome) -> bool:
        """Whether nothing differs, as far as there are results."""
        pairs = [(array, other.results.get(name)) for name, array in self.results.items()]
        return not self.error and all(b is not None and same_bits(a, b) for a, b in pairs)

    @staticmethod
    def written(target: Target, call: Call, outs: Results) -> Outcome:
        """What a run leaves in given arrays."""
        try:
            target.run_into(call, outs)
        except (NotOfferedError, OverrunError, ExhaustedError, ChannelError, LeftBehindError):
            raise
        except Exception as error:  # whatever the target raises is its own doing
            return Outcome({}, describe_error(error))
        return Outcome(outs)


def describe_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def differences(
    target: Target, call: Call, first: Outcome, second: Outcome, rule: str, when: str, setting: str = ""
) -> Iterator[Verdict]:
    """What of the second run differs from the first and should not, ``when`` and ``setting`` saying how it was run."""

    def told(kind: str, name: str, place: Shape | None, got: str, was: str, detail: str) -> Verdict:
        return Verdict(kind, rule, name, call.variant, place, got, was, detail, setting)

    if second.error:
        yield told("defect", "", None, second.error, "the results of the first run", when)
        return
    for name, array in first.results.items():
        again = second.results.get(name)
        if again is None or again.shape != array.shape or again.dtype != array.dtype:
            yield told("defect", name, None, _form(again), _form(array), when)
            continue
        places = np.flatnonzero(differing(array, again))
        kind = _kind(target, call, name, array, again, rule) if len(places) else "pass"
        if kind != "pass":
            place = tuple(int(i) for i in np.unravel_index(places[0], array.shape))
            detail = f"{when}, {len(places)} of {array.size} cells have other bits"
            yield told(kind, name, place, repr(again[place].item()), repr(array[place].item()), detail)


def _kind(target: Target, call: Call, name: str, first: Array, again: Array, rule: str) -> str:
    """What it is that a second run gave other bits.

    A defect of any target if the second run is wrong where the first was right. If not, it is a defect where the same
    bits are promised, and the target's convention elsewhere. Of memory (``guard``) and of other calls it says nothing
    then, nor where runs vary as much by themselves; but what lies around an array may have made both runs wrong.
    """
    wrong, is_of_others = _wrong(target, call, name, again), rule in ("guard", "state", "concurrent")
    if wrong.any() and is_of_others and not target.repeatable:
        wrong &= _beyond_noise(target, call, name, first, again)
    if wrong.any() and (rule == "guard" or (wrong & ~_wrong(target, call, name, first)).any()):
        return "defect"
    if is_of_others:
        return "pass"
    return "defect" if target.repeatable else "convention"


def _beyond_noise(target: Target, call: Call, name: str, first: Array, again: Array) -> Bools:
    """Where two runs differ by more than runs of the same call do; a NaN in the place of a number always does."""
    was, now = first.astype(np.float64), again.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"), target.device.filled(NUMBERS):
        runs = (Outcome.of(target, call).results.get(name, first) for _ in range(CONTROLS))
        spread = [np.abs(run.astype(np.float64) - was) for run in runs if run.shape == first.shape]
        noise = NOISE * max((np.max(s, where=np.isfinite(s), initial=0.0) for s in spread), default=0.0)
        return np.asarray(differing(first, again) & ~(np.abs(now - was) <= noise))


def _wrong(target: Target, call: Call, name: str, got: Array) -> Bools:
    """Where the oracle permits no such result; nowhere if that is not decided."""
    nowhere: Bools = np.zeros(got.shape, np.bool_)
    meaning, arithmetic = expected(call).get(name), target.arithmetic(call.problem)
    if meaning is None:
        return nowhere
    try:
        wrong = ~meaning.judge(got, arithmetic).ok
    except (ShapeError, UnsupportedError):  # said where results are judged
        return nowhere
    composed = target.composed(call.problem, call.mode)
    return wrong if judge_reduced(meaning, got, arithmetic, composed) is None else nowhere


def _form(array: Array | None) -> str:
    return "nothing" if array is None else f"{array.dtype} of shape {array.shape}"


SETTINGS = ("again", "beside", "halves", "held", "scribbled")
"""A second call, copies elsewhere, after other numbers, a result held meanwhile, and one written into."""
OVERWRITTEN = "later calls wrote into the result of an earlier one"
WITH_THREADS = f"with {THREADS} threads in place of one"


def halves(array: Array) -> Array:
    return array if array.dtype.kind in "iub" else np.asarray(array * array.dtype.type(0.5))


def repeatability(target: Target, call: Call) -> list[Verdict]:
    """The call again: at once, on copies at another alignment, and after a call on other numbers."""
    kept = _run_and_keep(target, call)
    if kept is None:
        return []
    held, first = kept
    runs = (("again", "run again", call), ("beside", "on copies one cell further in memory", call.mapped(beside)))
    for setting, when, same in runs:
        verdicts = list(differences(target, call, first, Outcome.of(target, same), "not_repeatable", when, setting))
        if verdicts:
            return verdicts
    # Halves are other numbers, as harmless; integers, which may be places, stay.
    Outcome.of(target, call.mapped(halves))
    when = "after a call on other numbers"
    return (
        _find_overwritten(call, held, first)
        or list(differences(target, call, first, Outcome.of(target, call), "not_repeatable", when, "halves"))
        or _write_into_results(target, call, held, first)
    )


def _run_and_keep(target: Target, call: Call) -> tuple[HeldResults, Outcome] | None:
    """The results as the target handed them out, and copies; None where it gives none: others say so."""
    try:
        held = target.hold(call)
    except Exception:  # judged where results are
        return None
    return held, Outcome({name: np.array(array) for name, array in held.now().items()})


def _find_overwritten(call: Call, held: HeldResults, first: Outcome) -> list[Verdict]:
    """Results of the first run that later calls have changed."""
    return [
        Verdict("defect", "guard", name, call.variant, detail=OVERWRITTEN, setting="held")
        for name, array in held.now().items()
        if differing(array, first.results[name]).any()
    ]


def _write_into_results(target: Target, call: Call, held: HeldResults, first: Outcome) -> list[Verdict]:
    """Whether the caller may write into a result: it must not be what the target gives, or reads, next time."""
    before = Snapshot(call)
    held.fill(SCRIBBLE)
    before.restore()  # a result may lie in its inputs
    when = "after the caller wrote into its first result"
    return list(differences(target, call, first, Outcome.of(target, call), "guard", when, "scribbled"))


def threads(target: Target, call: Call) -> list[Verdict]:
    """The call with one thread and with several; the target is left with one."""
    if not target.set_threads(1):
        return []
    alone = Outcome.of(target, call)
    if alone.error:
        return []
    try:
        target.set_threads(THREADS)
        together = Outcome.of(target, call)
    finally:
        target.set_threads(1)
    return list(differences(target, call, alone, together, "threads", WITH_THREADS, "threads"))
