"""Results of a target that counts subnormal numbers as zero: our rules, and its conventions, on the numbers it sees.

The tolerance has a term for sums. A selection has none: zeros tie, and the winner, its tangent and its index are those
of the flushed numbers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gradspec.conformance.call import FLOATS, Array, Call
from gradspec.conformance.judge.conventions import NEEDS_DOCUMENTATION, explanations
from gradspec.conformance.judge.expected import expected
from gradspec.conformance.oracle import Judgement


def explains(call: Call, name: str, judgement: Judgement) -> bool:
    """Whether a result is right, or right by convention, where numbers below the smallest normal one are zero."""
    if call.problem.dtype not in FLOATS:
        return False
    arithmetic = replace(judgement.arithmetic, flush_to_zero=True)
    smallest = float(arithmetic.accumulate.normal)
    seen = _seen(call, smallest)
    meaning = expected(seen)[name]
    if meaning is None:
        return False
    again = meaning.judge(flushed(judgement.got, smallest), arithmetic)
    return again.passed or any(NEEDS_DOCUMENTATION.isdisjoint(e.names) for e in explanations(seen, name, again))


def flushed(array: Array, smallest: float) -> Array:
    """Numbers below the smallest normal one of the accumulator as zeros of their sign.

    >>> flushed(np.float32([1e-40, -1.0]), 2.0**-126).tolist()
    [0.0, -1.0]
    """
    return np.where(np.abs(array) < smallest, np.copysign(array.dtype.type(0), array), array)


def _seen(call: Call, smallest: float) -> Call:
    def zeroed(array: Array | None) -> Array | None:
        return array if array is None or array.dtype.kind in "iu" else flushed(array, smallest)

    inputs, directions = tuple(map(zeroed, call.inputs)), tuple(flushed(array, smallest) for array in call.directions)
    return replace(call, inputs=inputs, directions=directions, cotangent=zeroed(call.cotangent))
