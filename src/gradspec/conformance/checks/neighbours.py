"""Calls that differ from a given one in one thing only: an attribute, a size, the numbers of an array, dtype, layout.

A kernel that keeps something from call to call (a table of places, packed weights, a plan) must keep it by all that it
depends on. If its key lacks something, the neighbour that differs in just that is given what was made for the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np

from gradspec.conformance.model.changes import Changes
from gradspec.conformance.model.problem import LAYOUTS, SELECTIONS, Array, Call
from gradspec.conformance.model.reference import admits
from gradspec.spec.errors import ShapeError


def neighbour(call: Call, difference: str) -> Call | None:
    """The first call that differs in what is named, of `differences`; None where there is none.

    >>> from gradspec.conformance.model.problem import Problem
    >>> x = np.arange(4.0, dtype=np.float32)
    >>> call = Call(Problem("max_pool", 1, ((4,),), {"kernel_size": (2,), "stride": (1,)}), "value", (x,))
    >>> neighbour(call, "stride").problem.attributes["stride"], neighbour(call, "numbers of x").inputs[0].tolist()
    ((2,), [3.0, 2.0, 1.0, 0.0])
    """
    return next(neighbours(call, difference), None)


def neighbours(call: Call, difference: str) -> Iterator[Call]:
    """Calls that differ in one thing, those first that share most of the rest."""
    kind, _, what = difference.rpartition(" ")
    if kind == "numbers of":
        yield from _with_other_numbers(call, what)
    elif kind == "layout":
        if what != call.layout:
            yield replace(call, layout=what).in_layout()
    elif kind == "variant":
        yield replace(call, variant=what)
    else:
        for change in Changes.of(call).other(difference):
            with suppress(ShapeError, ValueError):
                made = change.call(call)
                made = made.mapped(_with_last_bit).in_layout() if kind == "dtype" else made
                if difference != "ceil_mode" or made.output != call.output:  # or nothing was rounded
                    yield made


def _with_last_bit(array: Array) -> Array:
    """The next numbers away from zero, which a narrower format does not have."""
    with np.errstate(over="ignore"):
        return array if array.dtype.kind in "iub" else np.nextafter(array, 2 * array, dtype=array.dtype)


def reverse(call: Call, difference: str) -> str:
    """What a neighbour calls the difference: dtype, layout and variant are named as they are on the other side.

    >>> from gradspec.conformance.model.problem import Problem
    >>> call = Call(Problem("max_pool", 1, ((4,),), {"kernel_size": (2,)}, "f32"), "value", (np.float32([1, 2, 3, 4]),))
    >>> reverse(call, "dtype f16"), reverse(call, "stride")
    ('dtype f32', 'stride')
    """
    kind, _, _ = difference.rpartition(" ")
    own = {"dtype": call.problem.dtype, "layout": call.layout, "variant": call.variant}
    return f"{kind} {own[kind]}" if kind in own else difference


def others(call: Call, variants: tuple[str, ...] = ()) -> list[str]:
    """The differences in numbers, dtype, layout and way of calling."""
    return [
        *(f"numbers of {name}" for name in call.arrays()),
        *(f"dtype {name}" for name in Changes.of(call).dtypes),
        *(f"layout {name}" for name in LAYOUTS if name != call.layout),
        *(f"variant {name}" for name in ("plain", *variants) if name != call.variant),
    ]


# --- numbers ----------------------------------------------------------------------------------------------------------


def _with_other_numbers(call: Call, name: str) -> Iterator[Call]:
    """The same numbers in another order, so that no sum of them tells the two apart; or halves of them."""
    array = call.arrays()[name]
    backwards = np.ascontiguousarray(array).ravel()[::-1].reshape(array.shape)
    fewer = array // 2 if array.dtype.kind in "iu" else array * array.dtype.type(0.5)
    for numbers in (backwards,) if array.dtype.kind == "b" else (backwards, fewer):
        other = call.with_arrays({**call.arrays(), name: numbers}).in_layout()
        is_same = np.array_equal(other.arrays()[name], array, equal_nan=array.dtype.kind not in "iub")
        if not is_same and admits(other):
            yield other


def with_ties(call: Call) -> Call:
    """The call with few different numbers, so that rules for ties show."""

    def few(array: Array) -> Array:
        return np.asarray(np.arange(array.size).reshape(array.shape) // 2 % 3, array.dtype)

    x = call.arrays().get("x")
    if call.problem.op not in SELECTIONS or x is None:
        return call
    return call.with_arrays({**call.arrays(), "x": few(x)}).in_layout()
