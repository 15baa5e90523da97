"""Memory safety as it shows from outside: what lies around inputs and outputs, and what was in them before.

A page that may not be touched ends the process when a kernel reads or writes there; a run of the judge makes that a
finding of its own. Bytes that are only watched come first, so that most such kernels are found without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gradspec.conformance.checks.memory import between, fenced, margins_hold
from gradspec.conformance.checks.repeat import Outcome, differences
from gradspec.conformance.judge.verdicts import Snapshot, argument_label
from gradspec.conformance.model.device import NANS, NUMBERS, Bytes
from gradspec.conformance.model.problem import ON_NANS, Array, Call, Results
from gradspec.conformance.model.target import NotOfferedError, Target
from gradspec.conformance.model.verdict import Verdict
from gradspec.system.host import OverrunError

INTO_INPUTS = "the call, with out=, wrote into its inputs"
PLAIN_RUNS = 3
"""Runs of which one most likely finds no NaNs in memory that others have used."""
ON_EMPTY = "with torch.empty full of NaNs"
BESIDE = "the call wrote beside the array it was given"


def inputs(target: Target, call: Call) -> list[Verdict]:
    """Results on inputs with NaNs around them and in their gaps, then at either edge of a forbidden page."""
    first = _amid_numbers(target, call)
    if first.error:
        return []
    places = PLACES if target.device.is_host else ("margins",)
    return next(
        filter(None, (judge_placed(target, call, where, first) for where in places)), _find_shared(target, call)
    )


def _amid_numbers(target: Target, call: Call) -> Outcome:
    """The call as it stands: around arrays on a device are numbers for once, where NaNs lie otherwise."""
    with target.device.filled(NUMBERS):
        return Outcome.of(target, call)


PLACES: dict[str, tuple[Callable[[Array], Array], str]] = {
    "margins": (lambda array: between(array, NANS)[0], "with NaNs around the inputs"),
    "fence_end": (fenced, "with inputs that end where memory does"),
    "fence_begin": (partial(fenced, at_end=False), "with inputs that begin where memory does"),
}
"""Where inputs are put, and how that is said."""


def judge_placed(target: Target, call: Call, where: str, first: Outcome | None = None) -> list[Verdict]:
    """What is wrong with inputs in one of `PLACES` that is right elsewhere."""
    place, when = PLACES[where]
    first = first or _amid_numbers(target, call)
    if first.error:
        return []
    second = Outcome.of(target, call.mapped(place))
    return list(differences(target, call, first, second, "guard", when, where))


def _find_shared(target: Target, call: Call) -> list[Verdict]:
    """Results that lie in the inputs' memory, where the target promises others."""
    if not target.fresh_results:
        return []
    return [
        _defect(call, "guard", name, f"the result lies in the memory of {argument_label(given, call)}")
        for name, result in target.run(call).items()
        for given, array in call.arrays().items()
        if result.size and np.shares_memory(np.asarray(result), array)
    ]


def unwritten(target: Target, call: Call) -> list[Verdict]:
    """NaNs of memory that a kernel of a reference allocates and returns, or reads, without having written to it."""
    if not (target.is_own and target.references and target.library == "torch"):
        return []
    call = call if target.device.is_host else call.mapped(partial(np.asarray, order="C"))  # its gaps hold NaNs, too
    usual = [_amid_numbers(target, call) for _ in range(PLAIN_RUNS)]
    second = Outcome.of(target, replace(call, variant=ON_NANS))
    for first in usual if not second.error else ():
        found = differences(target, call, first, second, "guard", ON_EMPTY, ON_NANS)
        if told := [verdict for verdict in found if verdict.got == "nan"]:
            return told
    return []


def _defect(call: Call, rule: str, name: str, detail: str, got: str = "") -> Verdict:
    setting = "" if detail.startswith("the result lies") else "out"
    return Verdict("defect", rule, name, call.variant, got=got, detail=detail, setting=setting)


def outputs(target: Target, call: Call) -> list[Verdict]:
    """Results written into given arrays: nothing beside them, all of them, whatever was there, and nothing else."""
    if type(target).run_into is Target.run_into:
        return []
    first = Outcome.of(target, call)
    if first.error:
        return []
    before = Snapshot(call)
    try:
        filled = [_write_between(target, call, first.results, fill) for fill in (NANS, NUMBERS)]
    except NotOfferedError:
        return []
    except OverrunError as why:
        return [_defect(call, "guard", str(why), BESIDE)]
    return (
        [_defect(call, "raised", "", "with out=", f.outcome.error) for f in filled if f.outcome.error][:1]
        or [_defect(call, "input_changed", name, INTO_INPUTS) for name in before.restore()]
        or [_defect(call, "guard", name, BESIDE) for f in filled for name in f.overrun()]
        or list(_find_unwritten(target, call, first, *filled))
        or list(_at_the_fence(target, call, first) if target.device.is_host else ())
    )


@dataclass(frozen=True)
class Filled:
    """What a run left in arrays that held ``fill``, as the memory around them did."""

    outcome: Outcome
    memory: dict[str, Bytes]
    fill: int

    def overrun(self) -> list[str]:
        return [name for name, around in self.memory.items() if not margins_hold(around, self.fill)]

    def untouched(self, name: str) -> NDArray[np.bool_]:
        """Where the bytes are still those of ``fill``, a NaN's included."""
        array = self.outcome.results[name]
        cells = np.ascontiguousarray(array).view(np.uint8).reshape(*array.shape, array.itemsize)
        return np.asarray((cells == self.fill).all(axis=-1))


def _write_between(target: Target, call: Call, like: Results, fill: int) -> Filled:
    outs: Results = {}
    memory: dict[str, Bytes] = {}
    for name, array in like.items():
        outs[name], memory[name] = between(_fill(array, fill), fill)
    return Filled(Outcome.written(target, call, outs), memory, fill)


def _fill(like: Array, fill: int) -> Array:
    return np.full(like.nbytes, fill, np.uint8).view(like.dtype).reshape(like.shape)


def _find_unwritten(target: Target, call: Call, first: Outcome, nans: Filled, numbers: Filled) -> Iterator[Verdict]:
    """Cells that still hold what was there before, or that depend on it."""
    for name, array in first.results.items():
        left = nans.untouched(name) & numbers.untouched(name)
        if left.any():
            place = tuple(int(i) for i in np.argwhere(left)[0])
            detail = f"with out=, {int(left.sum())} of {left.size} cells are not written"
            expected = repr(array[place].item())
            yield Verdict(
                "defect", "guard", name, call.variant, place, "what was there before", expected, detail, "out"
            )
            return
    for filled, what in ((nans, "NaN"), (numbers, "numbers")):
        yield from differences(target, call, first, filled.outcome, "guard", f"with out= full of {what}", "out")


def _at_the_fence(target: Target, call: Call, first: Outcome) -> Iterator[Verdict]:
    for at_end in (True, False):
        outs = {name: fenced(_fill(array, NUMBERS), at_end, NUMBERS) for name, array in first.results.items()}
        second = Outcome.written(target, call.mapped(partial(fenced, at_end=at_end)), outs)
        when = f"with inputs and out= that {'end' if at_end else 'begin'} where memory does"
        yield from differences(target, call, first, second, "guard", when, "out")
