"""Results of two runs of one call compared, and what their difference amounts to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gradspec.conformance.call import Array, Call, Results
from gradspec.conformance.checks.memory import differing
from gradspec.conformance.judge.expected import expected
from gradspec.conformance.targets import NotOfferedError, Target
from gradspec.conformance.verdict import Verdict
from gradspec.spec.errors import ShapeError, UnsupportedError


@dataclass(frozen=True)
class Outcome:
    """What a run gave: results, or the error in words."""

    results: Results
    error: str = ""

    @staticmethod
    def of(target: Target, call: Call) -> Outcome:
        try:
            return Outcome({name: np.array(array) for name, array in target.run(call).items()})
        except Exception as error:  # whatever the target raises is its own doing
            return Outcome({}, in_words(error))

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
        kind = _kind(target, call, name, again, rule) if len(places) else "pass"
        if kind != "pass":
            place = tuple(int(i) for i in np.unravel_index(places[0], array.shape))
            detail = f"{when}, {len(places)} of {array.size} cells have other bits"
            got, was = repr(again[place].item()), repr(array[place].item())
            yield Verdict(kind, rule, name, call.variant, place, got, was, detail)


def _kind(target: Target, call: Call, name: str, again: Array, rule: str) -> str:
    """What it is that a second run gave other bits.

    A defect of any target if no kernel may return them. If one may, it is a defect where the same bits are promised,
    and the target's convention elsewhere; of memory (``guard``) it says nothing then.
    """
    if not is_permitted(target, call, name, again):
        return "defect"
    if rule == "guard":
        return "pass"
    return "defect" if target.repeatable else "convention"


def is_permitted(target: Target, call: Call, name: str, got: Array) -> bool:
    """Whether the oracle finds nothing wrong with a result: it is permitted, or not decided."""
    meaning = expected(call).get(name)
    if meaning is None:
        return True
    try:
        return meaning.judge(got, target.arithmetic(call.problem)).passed
    except (ShapeError, UnsupportedError):  # said where results are judged
        return True


def _form(array: Array | None) -> str:
    return "nothing" if array is None else f"{array.dtype} of shape {array.shape}"
