"""From a failing case to the smallest that fails in the same way."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from math import prod
from time import monotonic
from typing import Any

import numpy as np

from gradspec.conformance.cases.features import tags_of_call
from gradspec.conformance.checks import DEADLY as DEADLY_SETTINGS
from gradspec.conformance.checks import check_again
from gradspec.conformance.checks.memory import fenced
from gradspec.conformance.checks.neighbours import neighbours, others
from gradspec.conformance.judge.conventions import CONVENTIONS
from gradspec.conformance.judge.verdicts import NOTHING_ALLOWED, judge_call
from gradspec.conformance.model.changes import Changes
from gradspec.conformance.model.domain import LEAST
from gradspec.conformance.model.geometry import is_usual
from gradspec.conformance.model.problem import Array, Call, Problem
from gradspec.conformance.model.reference import admits
from gradspec.conformance.model.target import Target
from gradspec.conformance.model.verdict import Failure, Verdict
from gradspec.spec.errors import ShapeError
from gradspec.system.forking import fate

MOST_RUNS = 3000
"""Calls that are tried at most for one failure."""
LONG = 256
"""Cells of an array above which it is filled with ones first."""
DEADLY = ("crash", "hang", "poisoned")
"""What must not be tried again in a process that is still needed."""
AN_ATTEMPT = 1.0
"""Seconds after which a call that is tried again counts as hanging, where there is time for it."""
HANGS = 20
"""Calls that hang for which there is to be time."""
A_TRIAL = 1.0
"""Seconds for a call on memory between forbidden pages."""


def shrink(target: Target, failure: Failure, seconds: float, allow: AbstractSet[str] = NOTHING_ALLOWED) -> Failure:
    """The failure on the simplest call found within so many seconds that breaks the same rule in the same result.

    ``allow`` is what was allowed when it failed: with less, a defect might turn into what is permitted there.
    The search is greedy and takes its steps in a fixed order, so it ends in the same place if time allows.
    """
    kind = Deadly if failure.verdict.rule in DEADLY else Search
    search = kind(target, failure, monotonic() + seconds, allow)
    if seconds <= 0 or not search.begins():
        return failure
    search.fill_large()
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
        self.call, self.verdict = failure.judged_call.in_layout(), failure.verdict  # which no file or pipe keeps

    def begins(self) -> bool:
        """Whether the failure shows again at all."""
        verdict = self._failing(self.call)
        self.verdict = self.verdict if verdict is None else verdict
        return verdict is not None

    def ends(self) -> bool:
        """Whether what was found can be believed."""
        return True

    @property
    def is_over(self) -> bool:
        return self.runs >= MOST_RUNS or monotonic() > self.deadline

    def attempt(self, call: Call) -> bool:
        """Take a call if it is simpler and fails in the same way."""
        if self.is_over or size(call) >= size(self.call) or not admits(call):
            return False
        if self._declines(call) is not None:
            return False
        verdict = self._failing(call)
        if verdict is not None:
            self.call, self.verdict = call, verdict
        return verdict is not None

    def _declines(self, call: Call) -> str | None:
        return self.target.declines(call.problem, call.mode)

    def _failing(self, call: Call) -> Verdict | None:
        self.runs += 1
        wanted = manner(self.verdict)
        alone = () if self.verdict.setting else judge_call(self.target, call, self.allow)
        found = (v for v in alone if manner(v) == wanted)
        checked = check_again(self.target, call, self.verdict.rule, self.verdict.setting)
        return next(found, None) or next((v for v in checked if manner(v) == wanted), None)

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
        if self.call.layout != "contiguous" and self.target.domain.allows("layouts", "contiguous"):
            yield replace(self.call, layout="contiguous").in_layout()
        for step in Changes.of(self.call).smaller(self.verdict.place, self.target.domain):
            try:
                yield step.call(self.call)
            except ShapeError:
                continue

    # --- numbers ------------------------------------------------------------------------------------------------------

    def fill_large(self) -> None:
        """Ones in long arrays, first of all: time may not be enough for more, and who wants to read them?"""
        for name, array in self.call.arrays().items():
            if array.size > LONG and name != "indices":
                self._attempt_with(name, np.ones(array.size, array.dtype))

    def simplify_numbers(self) -> bool:
        """Simpler numbers: whole arrays, then halves of them, down to single cells."""
        before = self.call
        for name, array in self.call.arrays().items():
            for value in (1, 0):
                self._fill(name, 0, array.size, value)
            self._single_cells(name)
        return self.call is not before

    def _fill(self, name: str, first: int, last: int, value: int) -> None:
        """Put ``value`` into a stretch of cells if that is simpler and still fails, or else into its halves."""
        filled = self.call.arrays()[name].copy().ravel()
        is_simpler = cost(filled[first:last]) > cost(np.asarray(value, filled.dtype))
        if self.is_over or not is_simpler.any():
            return
        filled[first:last] = np.where(is_simpler, value, filled[first:last])
        if not self._attempt_with(name, filled) and last - first > 1:
            middle = (first + last) // 2
            self._fill(name, first, middle, value)
            self._fill(name, middle, last, value)

    def _single_cells(self, name: str) -> None:
        for place in np.flatnonzero(cost(self.call.arrays()[name])):
            if self.is_over:
                return
            for number in simpler_numbers(self.call.arrays()[name].ravel()[place]):
                changed = self.call.arrays()[name].copy().ravel()
                changed[place] = number
                if self._attempt_with(name, changed):
                    break

    def _attempt_with(self, name: str, cells: Array) -> bool:
        """The call with other numbers in one of its arrays."""
        arrays = self.call.arrays()
        changed = self.call.with_arrays({**arrays, name: cells.reshape(arrays[name].shape)})
        return self.attempt(changed.in_layout())


class Deadly(Search):
    """The same for calls that end the process or never return: each is tried in a process of its own."""

    survivors = 0
    patience = AN_ATTEMPT
    """Seconds after which a call counts as hanging."""

    def begins(self) -> bool:
        """Whether the failure shows again, and in which of the target's ways to make the call.

        Nothing shows in copies of a process that has used the device.
        """
        if self.target.device.is_in_use():
            return False
        self.target.set_threads(1)  # a forked process has no other threads
        self.patience = AN_ATTEMPT + self.target.device.starting
        if self.verdict.rule == "hang":
            self.patience = min(self.patience, (self.deadline - monotonic()) / HANGS)
        met = self.call, self.verdict
        for call, setting in self._suspects():
            self.call, self.verdict = call, replace(self.verdict, variant=call.variant, setting=setting)
            if monotonic() < self.deadline and super().begins():
                return True
        self.call, self.verdict = met
        return False

    def _suspects(self) -> Iterator[tuple[Call, str]]:
        """What was done in the case: its call in every way, on guarded memory, its neighbours, and all at once."""
        plain = replace(self.call, variant="plain")
        yield plain, ""
        for variant in self.target.variants(plain.problem, plain.mode):
            yield replace(plain, variant=variant), ""
        yield from ((plain, setting) for setting in DEADLY_SETTINGS if self.target.device.is_host)
        for difference in (*Changes.of(plain).differences, *others(plain)):
            for one in neighbours(plain, difference):
                if self._declines(one) is None and self.target.domain.allows("layouts", one.layout):
                    yield one, ""
        yield plain, "together"

    def ends(self) -> bool:
        """A call hangs if it still does when it is given longer, and if others in such processes have returned."""
        if self.verdict.setting.startswith("fence"):
            beyond = reach(self.target, self.call, self.verdict.setting)
            self.verdict = replace(self.verdict, detail=beyond or self.verdict.detail)
        longer = 2 * (AN_ATTEMPT + self.target.device.starting)
        return self.verdict.rule != "hang" or (self.survivors > 0 and self._fate(self.call, longer) == "hang")

    def _declines(self, call: Call) -> str | None:
        """On a device, only as far as nothing is called: copies of a process that has used it could not."""
        return super()._declines(call) if self.target.device.is_host else self.target.domain.excludes(call.problem)

    def _failing(self, call: Call) -> Verdict | None:
        self.runs += 1
        found = self._fate(call, self.patience)
        self.survivors += not found
        wanted = "crash" if self.verdict.rule == "poisoned" else self.verdict.rule
        return self.verdict if found == wanted else None

    def _fate(self, call: Call, seconds: float) -> str:
        def judge_again() -> None:
            if self.verdict.setting:
                check_again(self.target, call, self.verdict.rule, self.verdict.setting)
            else:
                judge_call(self.target, call, self.allow)

        return fate(judge_again, seconds)


def reach(target: Target, call: Call, setting: str) -> str:
    """How far beyond an argument a deadly call reaches: the forbidden page is moved away until the call survives.

    ``it reads 4 bytes beyond the end of x``; nothing where no argument by itself is read or written beyond.
    """
    at_end = setting == "fence_end"
    for name, array in call.arrays().items():
        dies = partial(_dies, target, call, name, at_end)
        if not dies(0):
            continue
        step, none = array.itemsize, 0
        most = mmap.PAGESIZE // step
        if dies(most * step):
            far = f"more than {mmap.PAGESIZE} bytes"
        else:
            while most - none > 1:  # it dies with a page ``none`` cells away, and survives one ``most`` cells away
                middle = (none + most) // 2
                none, most = (middle, most) if dies(middle * step) else (none, middle)
            far = f"{most * step} bytes"
        verb = "writes" if dies(0, readable=True) else "reads"
        return f"it {verb} {far} {'beyond the end' if at_end else 'before the beginning'} of {name}"
    return ""


def _dies(target: Target, call: Call, name: str, at_end: bool, gap: int, readable: bool = False) -> bool:
    arrays = call.arrays()
    moved = call.with_arrays({**arrays, name: fenced(arrays[name], at_end, gap=gap, readable=readable)})
    return fate(lambda: target.run(moved), A_TRIAL) == "crash"


# --- what is simpler --------------------------------------------------------------------------------------------------


def size(call: Call) -> tuple[int, ...]:
    """How large and how involved a call is, what matters most first: a step is taken only if this decreases."""
    arrays = list(call.named().values())
    others = list(call.arrays().values())[len(arrays) :]
    return (
        call.variant != "plain",
        call.layout != "contiguous",
        sum(_extent(array) for array in arrays),
        sum(array.ndim for array in arrays),
        call.problem.dtype != "f32",
        _involved(call.problem),
        sum(_extent(array) for array in others),
        sum(int(cost(array).sum()) for array in (*arrays, *others)),
    )


def _extent(array: Array) -> int:
    """The cells, an axis without any counted as one: the other axes of what is empty are to become small too."""
    return prod(max(1, n) for n in array.shape)


def _involved(problem: Problem) -> int:
    """How far attributes are from their defaults, and how many are spelled out."""
    total = 0
    for name, value in problem.attributes.items():
        if name in LEAST and isinstance(value, tuple):
            least = LEAST[name]
            total += sum(0 if v is None else int(v) - least for v in np.ravel(np.array(value, object)))
        elif not isinstance(value, str | bool | None) and value not in (1, 2):
            total += 1
        total += 2 if is_usual(problem.op, problem.rank, problem.attributes, name) else 3
    return total


def cost(array: Array) -> Array:
    """How involved each number is: 1 is simplest, then 0, small whole numbers, special ones, and the rest.

    A float that is 0 looks like padding, and its right answer often like a wrong one. An integer may be a place, and 0
    is the first.

    >>> cost(np.float32([0, 1, -1, 7, np.nan, -0.0, 0.3])).tolist(), cost(np.array([0, 1])).tolist()
    ([1, 0, 2, 3, 4, 2, 6], [0, 1])
    """
    simplest = 0 if array.dtype.kind in "iub" else 1
    array = array.astype(np.float64)
    whole, plain = np.isfinite(array) & (array == np.trunc(array)), ~np.signbit(array)
    conditions = [
        (array == simplest) & plain,
        (array == 1 - simplest) & plain,
        (array == 0) | (array == 2) | (array == -1),
        whole & (np.abs(array) < 10),
        ~np.isfinite(array),
        whole & (np.abs(array) < 1000),
    ]
    return np.select(conditions, [0, 1, 2, 3, 4, 5], 6)


def simpler_numbers(cell: Any) -> list[Any]:
    """Numbers of the same dtype that may stand for one, simplest first."""
    kind = type(cell)
    options = [
        *((0, 1) if np.asarray(cell).dtype.kind in "iu" else (1, 0)),
        2,
        *([-1] if cell < 0 else []),
        *([round(float(cell))] if np.isfinite(cell) and abs(cell) < 1000 else []),
    ]
    found = [kind(option) for option in dict.fromkeys(options)]
    return [option for option in found if cost(np.asarray(option)) < cost(np.asarray(cell))]
