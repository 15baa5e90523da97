"""Axes as kernels see them, and blocks of arguments that depend on how arrays are laid out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from struct import Struct

from gradspec.codegen.addresses import address
from gradspec.graph.ir import Array
from gradspec.runtime.task import Bound

MOST_LAYOUTS = 64
"""How many layouts of its arrays a task remembers."""

Strides = tuple[int, ...]
Axis = tuple[int, Strides]
"""A size, and a stride in each of some arrays."""


def merged(axes: Iterable[Axis]) -> list[Axis]:
    """Neighbouring axes as one where every array allows it; those of one cell are left out.

    >>> merged([(2, (24, 0)), (1, (7, 7)), (3, (8, 0)), (8, (1, 1))])
    [(6, (8, 0)), (8, (1, 1))]
    """
    found: list[Axis] = []
    for size, strides in axes:
        if size == 1:
            continue
        if found and all(before == size * s for before, s in zip(found[-1][1], strides, strict=True)):
            found[-1] = (found[-1][0] * size, strides)
        else:
            found.append((size, strides))
    return found


def by_stride(axes: Iterable[Axis], array: int = 0) -> list[Axis]:
    """Axes in the order of their strides in one of the arrays, the largest first."""
    return sorted(axes, key=lambda axis: -abs(axis[1][array]))


def dense(shape: Sequence[int]) -> Strides:
    """Strides, in elements, of a C-contiguous array.

    >>> dense((2, 3, 4))
    (12, 4, 1)
    """
    strides = [1] * len(shape)
    for i in range(len(shape) - 1, 0, -1):
        strides[i - 1] = strides[i] * shape[i]
    return tuple(strides)


class Blocks:
    """Binds a task to arrays: a block is their addresses and ``described(strides)``, which counts elements.

    Layouts that were met before cost a dictionary lookup.
    """

    def __init__(self, sizes: Sequence[int], described: Callable[[Sequence[Strides]], Bound]) -> None:
        """``sizes``: bytes per element of each array."""
        self._sizes, self._described = tuple(sizes), described
        self._pack = Struct(f"<{len(sizes)}q").pack
        self._known: dict[tuple[Strides, ...], Bound] = {}

    def __call__(self, *arrays: Array) -> Bound:
        layout = tuple([a.strides for a in arrays])
        found = self._known.get(layout)
        if found is None:
            elements = [tuple(s // size for s in strides) for strides, size in zip(layout, self._sizes, strict=True)]
            found = self._described(elements)
            if len(self._known) < MOST_LAYOUTS:
                self._known[layout] = found
        rest, units, workspace = found
        return self._pack(*map(address, arrays)) + rest, units, workspace
