"""Simpler calls of the same kind: what a failing case is shrunk by.

A problem is taken apart into a `Parts` of independent numbers, one of them is made smaller, and the problem is put
together again by the specification's geometry; so every step is a legal call. Its arrays are cut from the old ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from inspect import Parameter
from math import prod
from typing import Any

import numpy as np

from gradspec.conformance.model.attributes import is_usual, known
from gradspec.conformance.model.geometry import anatomy
from gradspec.conformance.model.problem import (
    COLUMNS,
    CONVOLUTIONS,
    DTYPES,
    FLOATS,
    INPUTS,
    Array,
    Call,
    Problem,
    Shape,
)

LEAST = {"kernel_size": 1, "stride": 1, "dilation": 1, "padding": 0, "output_padding": 0, "output_size": 1}
"""The attributes that have an entry for each axis, with the least that an entry may be."""


# --- a problem as independent numbers ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parts:
    """A problem in numbers of which each may change alone. Channels are those of one group.

    ``sizes`` are the spatial axes of ``x``; those of the value for ``fold``, whose columns follow from them.
    """

    op: str
    dtype: str
    lead: Shape
    groups: int
    channels: int
    outputs: int
    sizes: Shape
    kernel: Shape
    has_bias: bool
    attributes: Mapping[str, Any]

    @staticmethod
    def of(problem: Problem) -> Parts:
        made_of, given = anatomy(problem), dict(problem.attributes)
        groups, weight = given.pop("groups", 1), problem.shapes[1] if problem.op in CONVOLUTIONS else None
        if problem.op == "fold":
            del given["output_size"]
        channels = made_of.channels if problem.op in (*CONVOLUTIONS, *COLUMNS) else None
        return Parts(
            op=problem.op,
            dtype=problem.dtype,
            lead=problem.lead,
            groups=groups,
            channels=(1 if channels is None else channels) // groups,
            outputs=1 if weight is None else weight[0] // groups if problem.op == "conv" else weight[1],
            sizes=made_of.spatial,
            kernel=() if weight is None else weight[2:],
            has_bias=weight is not None and problem.shapes[2] is not None,
            attributes=given,
        )

    @property
    def rank(self) -> int:
        return len(self.sizes)

    def changed(self, **parts: Any) -> Parts:
        return replace(self, **parts)

    def problem(self) -> Problem:
        """The problem again; ``ShapeError`` where it is not a legal one."""
        given = dict(self.attributes)
        if self.op == "fold":
            given["output_size"] = self.sizes
        if self.groups > 1:
            given["groups"] = self.groups
        problem = Problem(self.op, self.rank, self._shapes(), given, self.dtype)
        anatomy(problem)
        return problem

    def _shapes(self) -> tuple[Shape | None, ...]:
        if self.op == "fold":
            window = {name: value for name, value in self.attributes.items() if name != "output_size"}
            columns = anatomy(Problem("unfold", self.rank, ((self.channels, *self.sizes),), window)).output
            return ((*self.lead, *columns),)
        if self.op not in CONVOLUTIONS:
            x = (*self.lead, *((self.channels,) if self.op == "unfold" else ()), *self.sizes)
            return (x,) * len(INPUTS[self.op])
        x = (*self.lead, self.channels * self.groups, *self.sizes)
        first, second = (self.outputs, self.channels) if self.op == "conv" else (self.channels, self.outputs)
        bias = (self.outputs * self.groups,) if self.has_bias else None
        return x, (first * self.groups, second, *self.kernel), bias


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
    """The least number, the one half-way there and the one before.

    >>> smaller(9, 1), smaller(2, 1), smaller(1, 1)
    ([1, 5, 8], [1], [])
    """
    return sorted({least, (number + least) // 2, number - 1}) if number > least else []


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


# --- arrays for them --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShrinkStep:
    """Simpler parts of a problem, and how its arrays are cut from the old ones.

    An axis that goes, ``lead0`` or ``axis1``, is cut at ``at``; others keep their first cells, or their last.
    """

    parts: Parts
    gone: str = ""
    at: int = 0
    last: bool = False

    def call(self, old: Call) -> Call:
        """The call of the parts; ``ShapeError`` where there is none."""
        problem = self.parts.problem()
        output = anatomy(problem).output
        shapes, arrays = {**problem.named_shapes(), "g": output}, dict[str, Array]()
        for name, array in old.arrays().items():
            own = name if name == "g" or name in old.named() else name[1:]
            if own in shapes:
                arrays[name] = self._cut(old.problem, own, array, shapes[own])
        if "indices" in arrays:
            places, cells = arrays["indices"], prod(problem.attributes["output_size"])
            arrays["indices"] = np.where(places < 0, places, places % cells)
        return replace(old, problem=problem, output=output).with_arrays(arrays).in_layout()

    def _cut(self, old: Problem, name: str, array: Array, shape: Shape) -> Array:
        roles = _roles(old, name)
        if self.gone in roles:
            axis = roles.index(self.gone)
            array = np.take(array, min(self.at, array.shape[axis] - 1), axis)
        if name != "indices":
            with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite, and fails or not
                array = array.astype(DTYPES[self.parts.dtype])
        kept = array.reshape(array.shape + (1,) * (len(shape) - array.ndim))  # where ``keepdims`` comes back
        return recut(kept, shape, self.last)


def recut(array: Array, shape: Shape, last: bool = False) -> Array:
    """The first cells along each axis, or the last; where there are too few they are repeated.

    >>> cells = np.arange(4)
    >>> recut(cells, (3,)).tolist(), recut(cells, (3,), last=True).tolist(), recut(cells, (6,)).tolist()
    ([0, 1, 2], [1, 2, 3], [0, 1, 2, 3, 0, 1])
    """
    if array.size == 0:
        return np.zeros(shape, array.dtype)
    for axis, (old, new) in enumerate(zip(array.shape, shape, strict=True)):
        places = (np.arange(new) + (old - new if last else 0)) % old
        array = np.take(array, places, axis)
    return array


def _roles(problem: Problem, name: str) -> list[str]:
    """What the axes of an input or of the value's cotangent stand for."""
    parts = Parts.of(problem)
    leads, axes = [f"lead{i}" for i in range(len(parts.lead))], [f"axis{i}" for i in range(parts.rank)]
    if name == "weight":
        return ["first", "second", *axes]
    if name == "bias":
        return ["first"]
    if (problem.op, name) in (("unfold", "g"), ("fold", "x")):
        return [*leads, "rows", "columns"]
    if problem.op in (*CONVOLUTIONS, *COLUMNS):
        return [*leads, "channel", *axes]
    return leads if name == "g" and problem.attributes.get("keepdims") is False else [*leads, *axes]


# --- all steps from a call --------------------------------------------------------------------------------------------


def steps(call: Call, place: Shape | None) -> Iterator[ShrinkStep]:
    """Every step to a simpler problem; ``place`` is where the result is wrong, and is kept where that is easy."""
    parts = Parts.of(call.problem)
    for i, size in enumerate(parts.lead):
        wrong = place[i] if place is not None and i < len(place) else 0
        for at in dict.fromkeys(index for index in (wrong, 0) if index < size):
            yield ShrinkStep(replace(parts, lead=parts.lead[:i] + parts.lead[i + 1 :]), f"lead{i}", at)
    if parts.rank > 1:
        for i in range(parts.rank):
            for at in dict.fromkeys((0, parts.sizes[i] - 1)):
                yield ShrinkStep(_without_axis(parts, i), f"axis{i}", at)
    for simpler in simpler_parts(parts):
        yield from (ShrinkStep(simpler, last=last) for last in (False, True))


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


def cost(array: Array) -> Any:
    """How involved each number is: 1 is simplest, then 0, small whole numbers, special ones, and the rest.

    A float that is 0 looks like padding, and its right answer often like a wrong one. An integer may be a place, and 0
    is the first.

    >>> cost(np.float32([0, 1, -1, 7, np.nan, -0.0, 0.3])).tolist(), cost(np.array([0, 1])).tolist()
    ([1, 0, 2, 3, 4, 2, 6], [0, 1])
    """
    simplest = 0 if array.dtype.kind in "iu" else 1
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
