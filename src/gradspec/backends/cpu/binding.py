"""Tasks whose kernels are given records: a record is described once for each layout of a call's arrays, and packed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from gradspec.backends.cpu.planning import Strides, dense
from gradspec.codegen.cache import Kernel
from gradspec.codegen.records import Block, Record, address
from gradspec.graph.ir import Array, Var
from gradspec.runtime.memory import aligned
from gradspec.runtime.task import Bound, Task

MOST_LAYOUTS = 64
"""How many layouts of its arrays a task remembers."""

Arguments = TypeVar("Arguments", bound=Record)


class KernelCall(NamedTuple, Generic[Arguments]):
    """What a kernel is given for arrays of one layout: the record, the units of work and the workspace they take."""

    arguments: Arguments
    units: int
    workspace: int


Describe: TypeAlias = Callable[[Sequence[Strides]], KernelCall[Any]]
"""The call for arrays of given strides, in elements. Operands of its record are their places among the arrays."""


class Binder:
    """Binds a task to arrays: ``bind(*arrays)``. It keeps what it has described, and so the tables in records."""

    def __init__(self, itemsizes: Sequence[int], describe: Describe) -> None:
        """``itemsizes``: bytes per element of each array."""
        self._itemsizes, self._describe = tuple(itemsizes), describe
        self._calls: dict[tuple[Strides, ...], KernelCall[Any]] = {}
        self._blocks: dict[tuple[Strides, ...], tuple[Block, int, int]] = {}

    def __call__(self, *arrays: Array) -> Bound:
        layout = tuple([a.strides for a in arrays])
        found = self._blocks.get(layout)
        if found is None:
            call = self.call(layout)
            found = Block(call.arguments), call.units, call.workspace
            if layout in self._calls:
                self._blocks[layout] = found
        block, units, workspace = found
        return block.at([address(a) for a in arrays]), units, workspace

    def call(self, layout: tuple[Strides, ...]) -> KernelCall[Any]:
        """What arrays of these strides, in bytes, come to."""
        found = self._calls.get(layout)
        if found is None:
            sized = zip(layout, self._itemsizes, strict=True)
            found = self._describe([tuple([s // size for s in strides]) for strides, size in sized])
            if len(self._calls) < MOST_LAYOUTS:
                self._calls[layout] = found
        return found


def task_of(
    name: str,
    function: Kernel,
    inputs: Sequence[Var],
    outputs: Sequence[Var],
    describe: Describe,
    cost: float,
    unit_cost: float = 0.0,
    known: tuple[int, int] | None = None,
    **more: Any,
) -> Task:
    """A task that costs so many nanoseconds, and so many more for each unit; ``more``: other fields of a task.

    ``known``: the units and the workspace where no layout changes them, so that nothing need be described for a plan.
    """
    variables = (*inputs, *outputs)
    sizes = [v.dtype.numpy.itemsize for v in variables]
    bind = Binder(sizes, describe)
    if known is None:
        contiguous = zip(variables, sizes, strict=True)
        known = bind.call(tuple([tuple([size * s for s in dense(v.shape)]) for v, size in contiguous]))[1:]
    units, workspace = known
    cost += unit_cost * units
    return Task(name, tuple(inputs), tuple(outputs), function, units, cost, workspace, bind, **more)


def laid_out(first: int, **sizes: int) -> tuple[dict[str, Any], int]:
    """Where parts of so many bytes begin in a workspace, one after another from ``first`` on, and where they end.

    >>> laid_out(64, sums_at=100, cells_at=8)
    ({'sums_at': 64, 'cells_at': 192}, 256)
    """
    *places, end = accumulate(map(aligned, sizes.values()), initial=first)
    return dict(zip(sizes, places, strict=True)), end
