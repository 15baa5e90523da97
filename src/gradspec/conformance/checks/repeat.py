"""Whether the same call gives the same bits: again, elsewhere in memory, after other calls, with other threads."""

from __future__ import annotations

import numpy as np

from gradspec.conformance.checks.memory import beside
from gradspec.conformance.checks.outcome import Outcome, differences
from gradspec.conformance.judge.snapshot import differing
from gradspec.conformance.model.problem import Array, Call
from gradspec.conformance.model.target import Target
from gradspec.conformance.model.verdict import Verdict

THREADS = 4
"""More than one, and more than a small machine has."""


def repeatability(target: Target, call: Call) -> list[Verdict]:
    """The call again: at once, on copies at another alignment, and after a call on other numbers."""
    kept = _kept(target, call)
    if kept is None:
        return []
    held, first = kept
    for when, same in (("run again", call), ("on copies one cell further in memory", call.mapped(beside))):
        verdicts = list(differences(target, call, first, Outcome.of(target, same), "not_repeatable", when))
        if verdicts:
            return verdicts
    Outcome.of(target, call.mapped(_other_numbers))
    when = "after a call on other numbers"
    return _overwritten(call, held, first) or list(
        differences(target, call, first, Outcome.of(target, call), "not_repeatable", when)
    )


def _kept(target: Target, call: Call) -> tuple[dict[str, Array], Outcome] | None:
    """The results as the target handed them out, and copies; None where it gives none: others say so."""
    try:
        held = target.run(call)
    except Exception:  # judged where results are
        return None
    return {name: np.asarray(array) for name, array in held.items()}, Outcome(
        {name: np.array(array) for name, array in held.items()}
    )


def _other_numbers(array: Array) -> Array:
    """Halves of the numbers: other ones, as harmless; integers, which may be places, stay."""
    return array if array.dtype.kind in "iu" else np.asarray(array * array.dtype.type(0.5))


def _overwritten(call: Call, held: dict[str, Array], first: Outcome) -> list[Verdict]:
    """Results of the first run that later calls have changed."""
    return [
        Verdict("defect", "guard", name, call.variant, detail="later calls wrote into the result of an earlier one")
        for name, array in held.items()
        if differing(array, first.results[name]).any()
    ]


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
    return list(differences(target, call, alone, together, "threads", f"with {THREADS} threads in place of one"))
