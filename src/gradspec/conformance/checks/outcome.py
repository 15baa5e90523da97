"""Results of two runs of one call compared, and what their difference amounts to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gradspec.conformance.judge.reduced import judged_reduced
from gradspec.conformance.judge.snapshot import Snapshot, differing
from gradspec.conformance.model.problem import Array, Call, Results
from gradspec.conformance.model.target import NotOfferedError, Target
from gradspec.conformance.model.verdict import Verdict
from gradspec.conformance.oracle.expected import expected
from gradspec.conformance.oracle.meaning import Bools
from gradspec.spec.errors import ShapeError, UnsupportedError


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
        except Exception as error:  # whatever the target raises is its own doing
            return Outcome({}, in_words(error))
        finally:
            before.restored()

    @staticmethod
    def written(target: Target, call: Call, outs: Results) -> Outcome:
        """What a run leaves in given arrays."""
        try:
            target.run_into(call, outs)
        except NotOfferedError:
            raise
        except Exception as error:  # whatever the target raises is its own doing
            return Outcome({}, in_words(error))
        return Outcome(outs)


def in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def differences(target: Target, call: Call, first: Outcome, second: Outcome, rule: str, when: str) -> Iterator[Verdict]:
    """What of the second run differs from the first and should not, ``when`` saying how it was run."""
    if second.error:
        yield Verdict("defect", rule, "", call.variant, None, second.error, "the results of the first run", when)
        return
    for name, array in first.results.items():
        again = second.results.get(name)
        if again is None or again.shape != array.shape or again.dtype != array.dtype:
            yield Verdict("defect", rule, name, call.variant, None, _form(again), _form(array), when)
            continue
        places = np.flatnonzero(differing(array, again))
        kind = _kind(target, call, name, array, again, rule) if len(places) else "pass"
        if kind != "pass":
            place = tuple(int(i) for i in np.unravel_index(places[0], array.shape))
            detail = f"{when}, {len(places)} of {array.size} cells have other bits"
            got, was = repr(again[place].item()), repr(array[place].item())
            yield Verdict(kind, rule, name, call.variant, place, got, was, detail)


def _kind(target: Target, call: Call, name: str, first: Array, again: Array, rule: str) -> str:
    """What it is that a second run gave other bits.

    A defect of any target if the second run is wrong where the first was right. If not, it is a defect where the same
    bits are promised, and the target's convention elsewhere. Of memory (``guard``) it says nothing then; but what lies
    around an array may have made both runs wrong.
    """
    wrong = _wrong(target, call, name, again)
    if wrong.any() and (rule == "guard" or (wrong & ~_wrong(target, call, name, first)).any()):
        return "defect"
    if rule == "guard":
        return "pass"
    return "defect" if target.repeatable else "convention"


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
    return wrong if judged_reduced(meaning, got, arithmetic, composed) is None else nowhere


def _form(array: Array | None) -> str:
    return "nothing" if array is None else f"{array.dtype} of shape {array.shape}"
