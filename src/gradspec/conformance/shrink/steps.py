"""Simpler calls of the same kind: what a failing case is shrunk by.

A problem is taken apart into a `Parts` of independent numbers, one of them is made smaller, and the problem is put
together again. Its arrays are cut from the old ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from inspect import Parameter
from math import prod
from typing import Any

import numpy as np

from gradspec.conformance.model.attributes import is_usual, known
from gradspec.conformance.model.domain import EVERYTHING, LEAST, SIZES, Allowed, KernelDomain
from gradspec.conformance.model.parts import Parts, Refit
from gradspec.conformance.model.problem import COLUMNS, CONVOLUTIONS, FLOATS, Array, Call, Problem, Shape
from gradspec.conformance.model.reference import Resized, free_axes, reference_of

# --- simpler parts ---------------------------------------------------------------------------------------------------


def simpler_parts(parts: Parts) -> Iterator[Parts]:
    """One number made smaller, those first that take most away."""
    for name in ("groups", "channels", "outputs"):
        yield from (parts.changed(**{name: size}) for size in smaller(getattr(parts, name), 1))
    if parts.has_bias:
        yield replace(parts, has_bias=False)
    for name in ("lead", "sizes", "kernel"):
        yield from (parts.changed(**{name: entries}) for entries in _entries_down(getattr(parts, name), 1))
    yield from (replace(parts, attributes=given) for given in _simpler_attributes(parts))
    if parts.dtype in FLOATS and parts.dtype != "f32":
        yield replace(parts, dtype="f32")


def smaller(number: int, least: int) -> list[int]:
    """The least number, and half, three quarters, seven eighths, … of the way from it, up to the one before.

    >>> smaller(9, 1), smaller(2, 1), smaller(1, 1)
    ([1, 5, 7, 8], [1], [])
    """
    way = max(number - least, 0)
    return sorted({number - -(-way // 2**i) for i in range(way.bit_length() + 1)}) if way else []


def _entries_down(entries: tuple[Any, ...], least: int) -> Iterator[tuple[Any, ...]]:
    """One entry made smaller, or one side of it where it is a pair."""
    for i, entry in enumerate(entries):
        if entry is None:
            options: list[Any] = [1]
        elif isinstance(entry, tuple):
            options = list(_entries_down(entry, least))
        else:
            options = smaller(entry, least)
        yield from ((*entries[:i], option, *entries[i + 1 :]) for option in options)


def _simpler_attributes(parts: Parts) -> Iterator[dict[str, Any]]:
    given = dict(parts.attributes)
    usual = [name for name in given if is_usual(parts.op, parts.rank, given, name)]
    if usual:
        yield {name: value for name, value in given.items() if name not in usual}
    for name, value in given.items():
        others = {other: kept for other, kept in given.items() if other != name}
        if known(parts.op)[name] is not Parameter.empty and name not in usual:
            yield others
        if name in LEAST and isinstance(value, tuple):
            yield from ({**given, name: entries} for entries in _entries_down(value, LEAST[name]))
        elif name in ("beta", "divisor_override") and value not in (None, 1, 2):
            yield from ({**given, name: simple} for simple in (type(value)(2), type(value)(1)))


# --- all steps from a call --------------------------------------------------------------------------------------------


def steps(call: Call, place: Shape | None, domain: KernelDomain = EVERYTHING) -> Iterator[Refit | Resized]:
    """Every step to a simpler problem; ``place`` is where the result is wrong, and is kept where that is easy.

    Steps may lead out of a domain, but they include those to sizes that it has: to the next multiple, say.
    """
    if call.problem.is_reference:
        yield from _smaller_sizes(call)
        return
    parts = Parts.of(call.problem)
    for i, size in enumerate(parts.lead):
        wrong = place[i] if place is not None and i < len(place) else 0
        for at in dict.fromkeys(index for index in (wrong, 0) if index < size):
            yield Refit(replace(parts, lead=parts.lead[:i] + parts.lead[i + 1 :]), f"lead{i}", at)
    if parts.rank > 1:
        for i in range(parts.rank):
            for at in dict.fromkeys((0, parts.sizes[i] - 1)):
                yield Refit(_without_axis(parts, i), f"axis{i}", at)
    for simpler in (*simpler_parts(parts), *_allowed_parts(parts, domain)):
        yield from (Refit(simpler, last=last) for last in (False, True))


def _smaller_sizes(call: Call) -> Iterator[Resized]:
    """The call of a reference with one of its free axes made smaller."""
    reference = reference_of(call.problem)
    if reference.draw is not None:
        return
    types = reference.types_of(call.problem)
    for free in free_axes(reference, types):
        for n in smaller(free.size(types) // free.step, 1):
            yield from (Resized(free.resized(types, n * free.step), last) for last in (False, True))


def _allowed_parts(parts: Parts, domain: KernelDomain) -> Iterator[Parts]:
    """Channels and spatial axes of the smaller sizes that a domain has."""
    for axis, name in (("channels", "channels"), ("outputs", "out_channels")):
        sizes = _below(domain.get(name), getattr(parts, axis) * parts.groups)
        yield from (parts.changed(**{axis: n // parts.groups}) for n in sizes if n % parts.groups == 0)
    for i, name in zip(reversed(range(parts.rank)), SIZES, strict=False):
        sizes = _below(domain.get(name), parts.sizes[i])
        yield from (parts.changed(sizes=(*parts.sizes[:i], n, *parts.sizes[i + 1 :])) for n in sizes)
    if parts.lead and parts.op not in (*CONVOLUTIONS, *COLUMNS):  # the channels of a pooling are the last of its leads
        yield from (parts.changed(lead=(*parts.lead[:-1], n)) for n in _below(domain.get("channels"), parts.lead[-1]))


def _below(allowed: Allowed | None, number: int) -> list[int]:
    """The smallest of the sizes below a number, one half-way there, and the next."""
    found = [n for n in allowed or () if n is not None and n < number]
    return sorted({found[0], found[len(found) // 2], found[-1]}) if found else []


def _without_axis(parts: Parts, i: int) -> Parts:
    def rest(entries: Any) -> Any:
        return entries[:i] + entries[i + 1 :] if isinstance(entries, tuple) and len(entries) == parts.rank else entries

    given = {name: rest(value) if name in LEAST else value for name, value in parts.attributes.items()}
    return replace(parts, sizes=rest(parts.sizes), kernel=rest(parts.kernel), attributes=given)


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
