"""From a failing case to the smallest that fails in the same way."""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace
from time import monotonic

import numpy as np

from gradspec.conformance.call import Array, Call
from gradspec.conformance.cases.features import tags_of_call
from gradspec.conformance.checks import again
from gradspec.conformance.forked import fate
from gradspec.conformance.judge.conventions import CONVENTIONS
from gradspec.conformance.judge.examine import NOTHING_ALLOWED, judge_call
from gradspec.conformance.run import Failure
from gradspec.conformance.simpler import cost, laid_out_again, simpler_numbers, size, steps
from gradspec.conformance.targets import Target
from gradspec.conformance.verdict import Verdict
from gradspec.spec.errors import ShapeError

MOST_RUNS = 3000
"""Calls that are tried at most for one failure."""
DEADLY = ("crash", "hang")
"""What must not be tried again in a process that is still needed."""
AN_ATTEMPT = 1.0
"""Seconds after which a call that is tried again counts as hanging, where there is time for it."""
HANGS = 20
"""Calls that hang for which there is to be time."""


def shrink(target: Target, failure: Failure, seconds: float, allow: AbstractSet[str] = NOTHING_ALLOWED) -> Failure:
    """The failure on the simplest call found within so many seconds that breaks the same rule in the same result.

    ``allow`` is what was allowed when it failed: with less, a defect might turn into what is permitted there.
    The search is greedy and takes its steps in a fixed order, so it ends in the same place if time allows.
    """
    kind = Deadly if failure.verdict.rule in DEADLY else Search
    search = kind(target, failure, monotonic() + seconds, allow)
    if seconds <= 0 or not search.begins():
        return failure
    while search.simplify_form() or search.simplify_numbers():
        pass
    if not search.ends():
        return failure
    return replace(failure, call=search.call, verdict=search.verdict, features=tuple(sorted(tags_of_call(search.call))))


def manner(verdict: Verdict) -> tuple[str, ...]:
    """In which way a call fails: the kind, the rule, the result, the conventions that explain it, the error raised.

    A sum that must be exact is a sum, so that numbers may become simpler than those of its first failure.
    """
    rule = verdict.rule.replace("exact_sum", "sum")
    raised = (error(verdict.got),) if verdict.rule == "raised" else ()
    return verdict.kind, rule, verdict.result, *conventions(verdict.detail), *raised


def error(text: str) -> str:
    """What an error says before it speaks of numbers and names, which shrinking may change.

    >>> error("RuntimeError: expected 3 channels, got (2, 2)")
    'RuntimeError: expected'
    """
    return re.split(r"[\d\[({<'\"`]", text, maxsplit=1)[0].strip()


def conventions(text: str) -> tuple[str, ...]:
    """The conventions that a text names.

    >>> conventions("the last of equal cells wins (last_tie)")
    ('last_tie',)
    """
    words = set(re.findall(r"\w+", text))
    return tuple(name for name in CONVENTIONS if name in words)


class Search:
    """The simplest failing call so far, and the means to find simpler ones."""

    def __init__(
        self, target: Target, failure: Failure, deadline: float, allow: AbstractSet[str] = NOTHING_ALLOWED
    ) -> None:
        self.target, self.deadline, self.allow, self.runs = target, deadline, allow, 0
        self.verdict = failure.verdict
        self.call = replace(failure.call, variant=failure.verdict.variant)

    def begins(self) -> bool:
        """Whether the failure shows again at all."""
        verdict = self._failing(self.call)
        self.verdict = self.verdict if verdict is None else verdict
        return verdict is not None

    def ends(self) -> bool:
        """Whether what was found can be believed."""
        return True

    def attempt(self, call: Call) -> bool:
        """Take a call if it is simpler and fails in the same way."""
        if self.runs >= MOST_RUNS or monotonic() > self.deadline or size(call) >= size(self.call):
            return False
        if self.target.refusal(call.problem, call.mode) is not None:
            return False
        verdict = self._failing(call)
        if verdict is not None:
            self.call, self.verdict = call, verdict
        return verdict is not None

    def _failing(self, call: Call) -> Verdict | None:
        self.runs += 1
        wanted = manner(self.verdict)
        found = (v for v in judge_call(self.target, call, self.allow) if manner(v) == wanted)
        again_found = (v for v in again(self.target, call, self.verdict.rule) if manner(v) == wanted)
        return next(found, None) or next(again_found, None)

    # --- form ---------------------------------------------------------------------------------------------------------

    def simplify_form(self) -> bool:
        """Steps to simpler problems, until none is left that fails."""
        taken = False
        while any(self.attempt(call) for call in self._simpler_calls()):
            taken = True
        return taken

    def _simpler_calls(self) -> Iterator[Call]:
        if self.call.variant != "plain":
            yield replace(self.call, variant="plain")
        if self.call.layout != "contiguous":
            yield laid_out_again(replace(self.call, layout="contiguous"))
        for step in steps(self.call, self.verdict.place):
            try:
                yield step.call(self.call)
            except ShapeError:
                continue

    # --- numbers ------------------------------------------------------------------------------------------------------

    def simplify_numbers(self) -> bool:
        """Simpler numbers: whole arrays, then halves of them, down to single cells."""
        before = self.call
        for name in range(len(_arrays(self.call))):
            for value in (1, 0):
                self._fill(name, 0, _arrays(self.call)[name].size, value)
            self._single_cells(name)
        return self.call is not before

    def _fill(self, which: int, first: int, last: int, value: int) -> None:
        """Put ``value`` into a stretch of cells if that is simpler and still fails, or else into its halves."""
        array = _arrays(self.call)[which]
        filled = array.copy().ravel()
        is_simpler = cost(filled[first:last]) > cost(np.asarray(value, array.dtype))
        if not is_simpler.any():
            return
        filled[first:last] = np.where(is_simpler, value, filled[first:last])
        if not self.attempt(_with_array(self.call, which, filled.reshape(array.shape))) and last - first > 1:
            middle = (first + last) // 2
            self._fill(which, first, middle, value)
            self._fill(which, middle, last, value)

    def _single_cells(self, which: int) -> None:
        for place in range(_arrays(self.call)[which].size):
            for number in simpler_numbers(_arrays(self.call)[which].ravel()[place]):
                changed = _arrays(self.call)[which].copy().ravel()
                changed[place] = number
                if self.attempt(_with_array(self.call, which, changed.reshape(_arrays(self.call)[which].shape))):
                    break


class Deadly(Search):
    """The same for calls that end the process or never return: each is tried in a process of its own."""

    survivors = 0
    patience = AN_ATTEMPT

    def begins(self) -> bool:
        """Whether the failure shows again, and in which of the target's ways to make the call."""
        self.target.set_threads(1)  # a forked process has no other threads
        if self.verdict.rule == "hang":
            self.patience = min(AN_ATTEMPT, (self.deadline - monotonic()) / HANGS)
        for variant in ("plain", *self.target.variants(self.call.problem, self.call.mode)):
            self.call, self.verdict = replace(self.call, variant=variant), replace(self.verdict, variant=variant)
            if super().begins():
                return True
        return False

    def ends(self) -> bool:
        """A call hangs if it still does when it is given longer, and if others in such processes have returned."""
        return self.verdict.rule != "hang" or (self.survivors > 0 and self._fate(self.call, 2 * AN_ATTEMPT) == "hang")

    def _failing(self, call: Call) -> Verdict | None:
        self.runs += 1
        found = self._fate(call, self.patience)
        self.survivors += not found
        return self.verdict if found == self.verdict.rule else None

    def _fate(self, call: Call, seconds: float) -> str:
        def judge_again() -> None:
            judge_call(self.target, call, self.allow)
            again(self.target, call, self.verdict.rule)

        return fate(judge_again, seconds)


def _arrays(call: Call) -> list[Array]:
    """The inputs that are there, then directions, then the cotangent."""
    return [*call.named().values(), *call.directions, *([] if call.cotangent is None else [call.cotangent])]


def _with_array(call: Call, which: int, array: Array) -> Call:
    """The call with one of its `_arrays` replaced."""
    arrays = _arrays(call)
    arrays[which] = array
    given = iter(arrays)
    inputs = tuple(None if old is None else next(given) for old in call.inputs)
    directions = tuple(next(given) for _ in call.directions)
    changed = replace(call, inputs=inputs, directions=directions, cotangent=next(given, None))
    return laid_out_again(changed)
