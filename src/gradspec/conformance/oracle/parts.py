"""Sums that a kernel may also compute in parts, each stored before they are added.

The tangent of a convolution is ``conv(dx, w) + conv(x, dw, db)``: two convolutions and an addition, to whoever
differentiates by the product rule. In float16 and bfloat16 that stores oftener than one long sum does.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
from flint import fmpq

from gradspec.conformance.model.arithmetic import Arithmetic
from gradspec.conformance.oracle.meaning import Bools, Decision, Floats, Ints, round_array
from gradspec.conformance.oracle.sums import SLACK, SumMeaning
from gradspec.conformance.oracle.tolerance import Permitted, error_of, gamma, stored_error
from gradspec.domains.exact import rational
from gradspec.domains.formats import Format


class SumsOfParts(SumMeaning):
    """``first + second``, with ``added`` a term of the second that is a number of the format already.

    Three parts at most are stored and added: ``A₁``, ``A₂ − added`` and ``added``, of which only the first two round.
    """

    def __init__(self, whole: SumMeaning, first: SumMeaning, second: SumMeaning, added: Floats | None) -> None:
        super().__init__(whole.shape, whole.chunks, whole.mixed)
        self.parts = first, second
        self.added = np.zeros(whole.shape) if added is None else np.broadcast_to(added, whole.shape)

    def _decide(self, got: Floats, arithmetic: Arithmetic) -> Decision:
        decided = super()._decide(got, arithmetic)
        left = np.flatnonzero(~decided.ok)
        if arithmetic.storage != arithmetic.accumulate and len(left):
            decided.ok[left] = self._in_parts(got[left], left, arithmetic)
        return decided

    def _in_parts(self, got: Floats, places: Ints, arithmetic: Arithmetic) -> Bools:
        """Whether results are sums of stored parts: equal to one where the parts are exact, near it otherwise."""
        (a, a_error, a_exact), (b, b_error, b_exact) = (part.summary(places, arithmetic) for part in self.parts)
        added = self.added.ravel()[places]
        equal = _is_stored_sum(got, [a, b - added, added], arithmetic.storage)
        with np.errstate(invalid="ignore", over="ignore"):
            mass = np.abs(a) + np.abs(b) + 2 * np.abs(added)
            stored = _stored(a, a_error, arithmetic) + _stored(b, b_error, arithmetic)
            # ``F + Γ^T_{J−1}(Σ|A_j| + F)`` for J = 3
            error = stored + float(gamma(rational(arithmetic.storage.unit), 2)) * (mass + stored)
            near = np.abs(got - (a + b)) * (1 + SLACK) <= error * (1 - SLACK)
            overflows = mass + error >= float(arithmetic.storage.largest)
        return np.asarray(np.where(np.isfinite(got), np.where(a_exact & b_exact, equal, near), overflows))

    def permitted_at(self, place: int, arithmetic: Arithmetic) -> Permitted:
        alone = super().permitted_at(place, arithmetic)
        if arithmetic.storage == arithmetic.accumulate or alone.low is None or alone.high is None:
            return alone
        facts = [part.facts_at(place, arithmetic) for part in self.parts]
        if all(fact.is_exact_sum(arithmetic) for fact in facts):
            return alone
        errors = [stored_error(fact.value, error_of(fact, arithmetic), arithmetic.storage) for fact in facts]
        mass = sum((abs(fact.value) for fact in facts), 2 * abs(rational(float(self.added.ravel()[place]))))
        stored = sum(errors, fmpq(0))
        error = stored + gamma(rational(arithmetic.storage.unit), 2) * (mass + stored)
        y = facts[0].value + facts[1].value
        return replace(alone, low=min(alone.low, y - error), high=max(alone.high, y + error))


def _stored(value: Floats, error: Floats, arithmetic: Arithmetic) -> Floats:
    """``stored_error`` of arrays."""
    storage = arithmetic.storage
    rounding = np.maximum(float(storage.unit) * (np.abs(value) + error), float(storage.tiniest) / 2)
    return np.asarray(error + rounding)


def _is_stored_sum(got: Floats, parts: list[Floats], storage: Format) -> Bools:
    """Whether a result is the sum of exact parts, with a rounding after each part and each addition, in some order."""
    found = np.zeros(got.shape, np.bool_)
    with np.errstate(invalid="ignore", over="ignore"):
        for a, b, c in permutations(parts):
            stored_a, stored_b, stored_c = (round_array(part, storage) for part in (a, b, c))
            in_turn = round_array(round_array(stored_a + stored_b, storage) + stored_c, storage)
            two_at_once = round_array(round_array(a + b, storage) + stored_c, storage)
            found |= (got == in_turn) | (got == two_at_once)
    return found
