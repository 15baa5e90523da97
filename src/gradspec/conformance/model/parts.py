"""A problem taken apart into independent numbers, changed in one of them and put together again, with its arrays.

The specification's geometry puts it together, so that every change is a legal call or a ``ShapeError``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from gradspec.conformance.model.geometry import geometry_of
from gradspec.conformance.model.problem import (
    COLUMNS,
    CONVOLUTIONS,
    DTYPES,
    INPUTS,
    Array,
    Attributes,
    Call,
    Problem,
    Shape,
)


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
    attributes: Attributes

    @staticmethod
    def of(problem: Problem) -> Parts:
        made_of, given = geometry_of(problem), dict(problem.attributes)
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
        geometry_of(problem)
        return problem

    def _shapes(self) -> tuple[Shape | None, ...]:
        if self.op == "fold":
            window = {name: value for name, value in self.attributes.items() if name != "output_size"}
            columns = geometry_of(Problem("unfold", self.rank, ((self.channels, *self.sizes),), window)).output
            return ((*self.lead, *columns),)
        if self.op not in CONVOLUTIONS:
            x = (*self.lead, *((self.channels,) if self.op == "unfold" else ()), *self.sizes)
            return (x,) * len(INPUTS[self.op])
        x = (*self.lead, self.channels * self.groups, *self.sizes)
        first, second = (self.outputs, self.channels) if self.op == "conv" else (self.channels, self.outputs)
        bias = (self.outputs * self.groups,) if self.has_bias else None
        return x, (first * self.groups, second, *self.kernel), bias


# --- arrays for them --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Refit:
    """Other parts of a problem, and how its arrays are cut from the old ones.

    An axis that goes, ``lead0`` or ``axis1``, is cut at ``at``; others keep their first cells, or their last.
    """

    parts: Parts
    gone: str = ""
    at: int = 0
    last: bool = False

    def call(self, old: Call) -> Call:
        """The call of the parts; ``ShapeError`` where there is none."""
        problem = self.parts.problem()
        output = geometry_of(problem).output
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
    sizes = list(enumerate(zip(array.shape, shape, strict=True)))
    for axis, (old, new) in sorted(sizes, key=lambda axis: axis[1][1] > axis[1][0]):  # cut first, then repeat
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
