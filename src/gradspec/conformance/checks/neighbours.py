"""Calls that differ from a given one in one thing only: an attribute, a size, the numbers of an array, dtype, layout.

A kernel that keeps something from call to call (a table of places, packed weights, a plan) must keep it by all that it
depends on. If its key lacks something, the neighbour that differs in just that is given what was made for the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from gradspec.conformance.model.attributes import settled
from gradspec.conformance.model.parts import Parts, Refit
from gradspec.conformance.model.problem import (
    CONVOLUTIONS,
    DTYPES,
    FLOATS,
    LAYOUTS,
    SELECTIONS,
    Array,
    Attributes,
    Call,
    Shape,
)
from gradspec.conformance.model.reference import admits, neighbouring_sizes
from gradspec.spec.errors import ShapeError

TIE_RULES = ("first", "all", "split")


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
    elif call.problem.is_reference:
        for resized in neighbouring_sizes(call).get(difference, ()):
            with suppress(ShapeError):
                yield resized.call(call)
    else:
        parts = Parts.of(call.problem)
        changed = [parts.changed(dtype=what)] if kind == "dtype" else _other_parts(parts, call, difference)
        for one in changed:
            with suppress(ShapeError, ValueError):
                made = Refit(one).call(call)
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


def structural(call: Call) -> list[str]:
    """The differences in attributes and sizes that a call may have."""
    if call.problem.is_reference:
        return list(neighbouring_sizes(call))
    given = settled(call.problem.op, call.problem.rank, call.problem.attributes)
    sizes = {"output_size"} if call.problem.op == "fold" else set[str]()  # there they are those of the first array
    return [*(name for name in dict.fromkeys([*given, "groups"]) if name in {*ATTRIBUTES} - sizes), *SIZES]


def others(call: Call, variants: tuple[str, ...] = ()) -> list[str]:
    """The differences in numbers, dtype, layout and way of calling."""
    dtypes = list(FLOATS) if call.problem.dtype in FLOATS else [name for name in DTYPES if name not in FLOATS]
    if call.problem.is_reference:  # which is judged in the dtype of its types
        dtypes = []
    return [
        *(f"numbers of {name}" for name in call.arrays()),
        *(f"dtype {name}" for name in dtypes if name != call.problem.dtype),
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


# --- attributes and sizes ---------------------------------------------------------------------------------------------


def _other_parts(parts: Parts, call: Call, difference: str) -> Iterator[Parts]:
    if difference in SIZES:
        yield from SIZES[difference](parts)
        return
    if difference == "groups":
        yield from _other_groups(parts)
        return
    given = settled(parts.op, parts.rank, call.problem.attributes)
    if difference not in given or not _matters(call, difference, given):
        return
    own = {name: value for name, value in parts.attributes.items() if name != difference}
    if difference == "kernel_size":  # a stride that is not given would follow it
        own |= {"stride": given["stride"]}
    for value in ATTRIBUTES[difference](given[difference]):
        yield parts.changed(attributes={**own, difference: value})


def _matters(call: Call, name: str, given: Attributes) -> bool:
    """Whether the attribute has a say in what the call gives."""
    if name == "ties":
        return call.mode != "value"
    if name == "count_include_pad":
        return given["divisor_override"] is None and (given["ceil_mode"] or any(map(any, given["padding"])))
    return True


def _each(change: Callable[[int], int]) -> Callable[[Shape], Iterator[Shape]]:
    """The last entry changed, or all."""

    def values(entries: Shape) -> Iterator[Shape]:
        yield (*entries[:-1], change(entries[-1]))
        yield tuple(map(change, entries))
        yield tuple(entry + 1 for entry in entries)

    return values


def _paddings(entries: tuple[tuple[int, int], ...]) -> Iterator[tuple[tuple[int, int], ...]]:
    """None, or one on every side; the sides swapped, which changes no shape; one cell more before the last axis."""
    yield tuple((0, 0) if any(map(any, entries)) else (1, 1) for _ in entries)
    if any(lo != hi for lo, hi in entries):
        yield tuple((hi, lo) for lo, hi in entries)
    (lo, hi), *_ = entries[::-1]
    yield (*entries[:-1], (lo + 1, hi - 1) if hi else (lo + 1, hi))


ATTRIBUTES: dict[str, Callable[[Any], Iterator[Any]]] = {
    "stride": _each(lambda s: 1 if s > 1 else 2),
    "padding": _paddings,
    "dilation": _each(lambda d: 1 if d > 1 else 2),
    "kernel_size": _each(lambda k: k - 1 if k > 1 else 2),
    "ceil_mode": lambda is_up: iter([not is_up]),
    "count_include_pad": lambda counts: iter([not counts]),
    "divisor_override": lambda divisor: iter([3 if divisor is None else divisor + 1]),
    "ties": lambda rule: iter([other for other in TIE_RULES if other != rule]),
    "groups": lambda groups: iter(()),  # `_other_groups`
    "output_padding": _each(lambda n: 0 if n else 1),
    "output_size": lambda sizes: iter([tuple(n if n is None else n - 1 if n > 1 else 2 for n in sizes)]),
    "keepdims": lambda keeps: iter([not keeps]),
    "beta": lambda beta: iter([2 * beta]),
    "padding_mode": lambda mode: iter(["ignore" if mode == "zeros" else "zeros"]),
}
"""Other values of an attribute."""


def _other_groups(parts: Parts) -> Iterator[Parts]:
    """As many channels in other groups."""
    if parts.op not in CONVOLUTIONS:
        return
    channels, outputs = parts.channels * parts.groups, parts.outputs * parts.groups
    for groups in range(1, min(channels, outputs) + 1):
        if groups != parts.groups and channels % groups == outputs % groups == 0:
            yield parts.changed(groups=groups, channels=channels // groups, outputs=outputs // groups)


def _with_entry(name: str, place: int) -> Callable[[Parts], Iterator[Parts]]:
    """One more, or one less, in one entry of ``lead`` or ``sizes``."""

    def changed(parts: Parts) -> Iterator[Parts]:
        entries = list(getattr(parts, name))
        for step in (1, -1) if entries else ():
            changed = [*entries]
            changed[place] += step
            if prod(changed):
                yield parts.changed(**{name: tuple(changed)})

    return changed


def _swap_sizes(parts: Parts) -> Iterator[Parts]:
    """As many cells, in axes whose sizes are exchanged."""
    for name in ("sizes", "lead"):
        entries: Shape = getattr(parts, name)
        if len(set(entries)) > 1:
            yield parts.changed(**{name: entries[::-1]})


def _more(name: str) -> Callable[[Parts], Iterator[Parts]]:
    def changed(parts: Parts) -> Iterator[Parts]:
        if parts.op in CONVOLUTIONS:
            yield from (parts.changed(**{name: n}) for n in (getattr(parts, name) + 1, getattr(parts, name) - 1) if n)

    return changed


SIZES: dict[str, Callable[[Parts], Iterator[Parts]]] = {
    "size of the last axis": _with_entry("sizes", -1),
    "size of the first axis": _with_entry("sizes", 0),
    "sizes exchanged": _swap_sizes,
    "size of the batch": _with_entry("lead", 0),
    "number of input channels": _more("channels"),
    "number of output channels": _more("outputs"),
}
"""Other sizes of the arrays."""


def with_ties(call: Call) -> Call:
    """The call with few different numbers, so that rules for ties show."""

    def few(array: Array) -> Array:
        return np.asarray(np.arange(array.size).reshape(array.shape) // 2 % 3, array.dtype)

    x = call.arrays().get("x")
    if call.problem.op not in SELECTIONS or x is None:
        return call
    return call.with_arrays({**call.arrays(), "x": few(x)}).in_layout()
