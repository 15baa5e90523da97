"""Blocks of arguments for arrays of any layout: what layouts a task has met costs a dictionary lookup."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from gradspec.backends.cpu.axes import Strides
from gradspec.codegen.addresses import address
from gradspec.codegen.records import Block, Record
from gradspec.graph.ir import Array
from gradspec.runtime.task import Bound

MOST_LAYOUTS = 64
"""How many layouts of its arrays a task remembers."""


class Call(NamedTuple):
    """What a kernel is given for arrays of one layout: the record, the units of work and the workspace they take."""

    arguments: Record
    units: int
    workspace: int


Describe: TypeAlias = Callable[[Sequence[Strides]], Call]
"""The call for arrays of given strides, in elements. Operands of its record are their places among the arrays."""


class Binder:
    """Binds a task to arrays: ``bind(*arrays)``."""

    def __init__(self, itemsizes: Sequence[int], describe: Describe) -> None:
        """``itemsizes``: bytes per element of each array."""
        self._itemsizes, self._describe = tuple(itemsizes), describe
        self._known: dict[tuple[Strides, ...], tuple[Block, int, int]] = {}

    def __call__(self, *arrays: Array) -> Bound:
        layout = tuple([a.strides for a in arrays])
        found = self._known.get(layout)
        if found is None:
            call = self.call(layout)
            found = Block(call.arguments), call.units, call.workspace
            if len(self._known) < MOST_LAYOUTS:
                self._known[layout] = found
        block, units, workspace = found
        return block.at([address(a) for a in arrays]), units, workspace

    def call(self, layout: Sequence[Strides]) -> Call:
        """What arrays of these strides, in bytes, come to."""
        sized = zip(layout, self._itemsizes, strict=True)
        return self._describe([tuple(s // size for s in strides) for strides, size in sized])
