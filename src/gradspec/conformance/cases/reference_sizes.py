"""Sizes that a reference is judged on: which axes of its inputs are free, and the sizes that tests skip."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import prod
from typing import TypeAlias, TypeVar

import numpy as np

from gradspec.conformance.model.parts import recut
from gradspec.conformance.model.problem import Call, Problem
from gradspec.conformance.model.reference import FreeAxes, Reference, Types, array_types, in_dtype, reference_of
from gradspec.graph.graph import Graph
from gradspec.spec.errors import ShapeError

Item = TypeVar("Item")
Axis: TypeAlias = tuple[int, int]
"""An input, and one of its axes."""

SMALL = (1, 2, 3, 7)
BLOCKS = (33, 16, 127, 65, 128, 31, 257, 64, 32, 129, 17, 255, 100, 513, 1025)
"""Sizes that blocks of a kernel divide, and their neighbours; those first that most mistakes show in."""
MOST_CELLS = 1 << 16
"""Cells of all inputs together, where the given types have no more."""
FEW = 4
"""Cells of an axis that is not varied."""
MOST_CLASSES = 1 << 10
MOST_GROWTH = 4
"""How many times the cells of the given types there may be."""


def free_axes(reference: Reference, types: Types) -> tuple[FreeAxes, ...]:
    """The axes that may have another size, those together that need to have one size.

    They are those of the types that were given: smaller ones may agree in more sizes by chance. Axes of few cells, but
    for the very first, most often mean something (a window of 3 × 3, four gates), and stay. Axes of one size stay so
    if the reference takes that, as nothing says that a kernel is meant for more; or else those that stand in the same
    place of their inputs, or two of them, or one alone.
    """
    ranks = [t.ndim for t in types]
    given = next((one for one in reference.types if [t.ndim for t in one] == ranks), types)
    return reference.found.get_or_make((free_axes, given), lambda: _free_axes(reference, given))  # type: ignore[no-any-return]


def _free_axes(reference: Reference, types: Types) -> tuple[FreeAxes, ...]:
    found: list[FreeAxes] = []
    axes = [(i, axis) for i, t in enumerate(types) for axis in range(t.ndim)]
    for axis in (a for a in axes if types[a[0]].shape[a[1]] > FEW or a == (0, 0)):
        taken = {other for free in found for other in free.axes}
        if axis not in taken:
            groups = _groups(types, [other for other in axes if other not in taken], axis)
            free = next(filter(None, (_free(reference, types, group) for group in groups)), None)
            found += [] if free is None else [free]
    return tuple(found)


def _groups(types: Types, axes: Sequence[Axis], first: Axis) -> Iterator[frozenset[Axis]]:
    def size(axis: Axis) -> int:
        return types[axis[0]].shape[axis[1]]

    alike = [axis for axis in axes if size(axis) == size(first)]
    from_end = first[1] - types[first[0]].ndim
    groups = [
        alike,
        [axis for axis in alike if axis[1] == first[1]],
        [axis for axis in alike if axis[1] - types[axis[0]].ndim == from_end],
        *([first, other] for other in alike if other != first),
        [first],
    ]
    yield from dict.fromkeys(frozenset(group) for group in groups)


def _free(reference: Reference, types: Types, group: frozenset[Axis]) -> FreeAxes | None:
    """The axes, if the reference takes other sizes of them: one more or one less, or else twice as many."""
    one = FreeAxes(group)
    n = one.size(types)
    if reference.may_take(one.resized(types, n + 1)) or (n > 1 and reference.may_take(one.resized(types, n - 1))):
        return one
    steps = [step for step in (2, 4, 8, n) if step > 1 and n % step == 0]
    return next((FreeAxes(group, s) for s in steps if reference.may_take(one.resized(types, n + s))), None)


def cells(types: Types) -> int:
    return sum(prod(t.shape) for t in types)


def proposed(reference: Reference, dtype: str, blocks: Sequence[int] = ()) -> Iterator[Types]:
    """Lists of types without end: those that were given, then with other sizes, one axis at a time and all at once."""
    lists = [in_dtype(types, dtype) for types in reference.types]
    yield from lists
    if reference.draw is not None:
        return
    seen = {*lists}
    for types in by_turns((t for t in _ladder(reference, types, blocks) if t not in seen) for types in lists):
        seen.add(types)
        yield types


def by_turns(entries: Iterable[Iterator[Item]]) -> Iterator[Item]:
    """One of each, then the next of each, as long as there are any."""
    left = list(entries)
    while left:
        for entry in (*left,):
            found = list(islice(entry, 1))
            yield from found
            if not found:
                left.remove(entry)


def _ladder(reference: Reference, types: Types, blocks: Sequence[int]) -> Iterator[Types]:
    free, most = free_axes(reference, types), max(MOST_CELLS, MOST_GROWTH * cells(types))

    def taken(changed: Types) -> Iterator[Types]:
        if cells(changed) <= most and reference.takes(changed):
            yield changed

    around = [size for block in blocks for size in (block + 1, block - 1, 2 * block, 2 * block + 3, block)]
    small = types
    for one in free:  # what a long axis is tried with
        small = next(taken(one.resized(small, 2 * one.step)), small)
    for size in (*islice(around, 5), *SMALL[:1], 0, *BLOCKS[:3], *SMALL[1:], *around[5:], *BLOCKS[3:]):
        for number, one in enumerate(free):
            given = types if size <= max(SMALL) or number % 2 == 0 else small
            yield from taken(one.resized(given, size * one.step if size <= max(SMALL) else _near(size, one.step)))
        if size in SMALL:
            everywhere = types
            for one in free:
                everywhere = next(taken(one.resized(everywhere, (size + len(everywhere)) * one.step)), everywhere)
            yield everywhere
        else:
            for one in free:
                yield from taken(one.resized(small, _near(size, one.step)))


def _near(size: int, step: int) -> int:
    return size // step * step


# --- the same call on other sizes -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Resized:
    """Other types of a call, and how its arrays are cut from the old ones: their first cells are kept, or their last.

    Where an axis grows its cells come again.
    """

    types: Types
    last: bool = False

    def call(self, old: Call) -> Call:
        """The call on these types; ``ShapeError`` where there is none."""
        reference = reference_of(old.problem)
        if not reference.takes(self.types):
            raise ShapeError(f"{reference.name} takes no {self.types}; use other sizes")
        problem = reference.problem(self.types, old.problem.interface.of)
        arrays, types = old.arrays(), array_types(problem, old.mode)
        cut = {name: recut(arrays[name], t.shape, self.last) for name, t in types.items()}
        for name in (name for name in problem.inputs if types[name].is_integer):
            cut[name] = np.minimum(cut[name], classes(problem, name) - 1)
        return replace(old, problem=problem, output=reference.output(problem).shape).with_arrays(cut).in_layout()


def neighbouring_sizes(call: Call) -> dict[str, list[Resized]]:
    """Calls with one more, or one less, along an axis; by what differs."""
    reference = reference_of(call.problem)
    if reference.draw is not None:
        return {}
    types = reference.types_of(call.problem)
    found = {}
    for free in free_axes(reference, types):
        i, axis = min(free.axes)
        sizes = (free.size(types) + free.step, free.size(types) - free.step)
        changed = [free.resized(types, n) for n in sizes if n > 0]
        found[f"size of axis {axis} of {call.problem.inputs[i]}"] = [Resized(t) for t in changed]
    return found


def classes(problem: Problem, name: str) -> int:
    """The largest number below which integers of an input name cells, by trial: the size of some axis."""
    sizes = sorted({n for shape in problem.shapes for n in shape or () if 0 < n <= MOST_CLASSES}, reverse=True)
    reference, place = reference_of(problem), problem.inputs.index(name)
    types = reference.types_of(problem)

    def find() -> int:
        return next((size for size in sizes if _takes_integers(reference.graph(types), place, size)), 1)

    return reference.found.get_or_make((classes, types, place), find)  # type: ignore[no-any-return]


def _takes_integers(graph: Graph, place: int, size: int) -> bool:
    """Whether the reference gives numbers, and neither an error nor NaNs, for the last of so many places."""
    arrays = [np.ones(v.shape, v.dtype.numpy) for v in graph.inputs]
    arrays[place] = np.full(arrays[place].shape, size - 1, arrays[place].dtype)
    try:
        found = graph(*arrays)
    except Exception:  # an index that names nothing
        return False
    results = found if isinstance(found, tuple) else (found,)
    return all(bool(np.isfinite(np.asarray(r, np.float64)).all()) for r in results)
