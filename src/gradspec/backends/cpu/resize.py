"""Resizing and its transpose on one kernel of weighted sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import lcm, prod
from struct import pack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradspec.backends.cpu.axes import Blocks, Strides, merged
from gradspec.backends.cpu.dtypes import COMPUTED
from gradspec.backends.cpu.kernels import tap_fields as f
from gradspec.backends.cpu.taps import aligned
from gradspec.codegen.addresses import address
from gradspec.codegen.cache import kernel
from gradspec.graph.ir import Node
from gradspec.ops.resize import Resize
from gradspec.runtime.task import Bound, Lowering, LoweringBase, Task, Work
from gradspec.spec.resize import Axis

SOURCE = "gradspec.backends.cpu.kernels.resize"

TILE, LONGEST = 1024, 8192
"""Targets of a row that are made at a time, and the most cells that they may read from a row of sums."""
EXACT = 1 << 53
"""Whole numbers up to here are doubles, and NumPy divides them as such."""
ONE_CELL = Axis(1, 1, Fraction(1), Fraction(0), None)
"""What no axis at all comes to."""
NANOSECONDS_PER_TAP, NANOSECONDS_PER_UNIT = 1.0, 100.0

Ints = NDArray[np.int64]
Table = NDArray[Any]


# --- what is read -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sums:
    """Along one axis: the cells that each target reads, in order, and their weights."""

    starts: Ints
    cells: Ints
    weights: Table

    @property
    def targets(self) -> int:
        return len(self.starts) - 1

    @property
    def addresses(self) -> tuple[int, int, int]:
        return address(self.starts), address(self.cells), address(self.weights)

    def spans(self, tile: int) -> Ints:
        """For each piece of the targets the first cell that it reads, and the end."""
        ends = [*range(0, self.targets, tile), self.targets]
        read = [self.cells[self.starts[a] : self.starts[b]] for a, b in pairwise(ends)]
        return np.array([(cells.min(), cells.max() + 1) if cells.size else (0, 0) for cells in read], np.int64)


def axis_sums(axis: Axis, back: bool, number: Any) -> Sums:
    """``spec.resize.axis_taps`` as tables, or read backwards.

    Positions are quotients of whole numbers that divide to the nearest double, so that the weights are rounded once.

    >>> sums = axis_sums(Axis(2, 3, Fraction(1, 2), Fraction(0), None), False, np.float32)
    >>> sums.starts.tolist(), sums.cells.tolist(), sums.weights.tolist()
    ([0, 1, 3, 4], [0, 0, 1, 1], [1.0, 0.5, 0.5, 1.0])
    """
    places, whole = _positions(axis)
    before = (places // whole).astype(np.int64)
    share = places - places // whole * whole
    is_between = share > 0
    o = np.arange(axis.outputs)
    outputs = np.concatenate([o, o[is_between]])
    cells = np.concatenate([before, before[is_between] + 1])
    weights = np.concatenate([(whole - share) / whole, share[is_between] / whole])
    targets, read, size = (cells, outputs, axis.size) if back else (outputs, cells, axis.outputs)
    order = np.lexsort((read, targets))
    starts = np.searchsorted(targets[order], np.arange(size + 1))
    return Sums(starts.astype(np.int64), read[order].astype(np.int64), weights[order].astype(number))


def _positions(axis: Axis) -> tuple[Table, int]:
    """Where the outputs lie among the cells, as whole numbers over one denominator."""
    whole = lcm(axis.step.denominator, axis.start.denominator)
    first, step = int(axis.start * whole), int(axis.step * whole)
    largest = 2 * max(abs(first), abs(first + axis.outputs * step), axis.size * whole) + whole
    o = np.arange(axis.outputs, dtype=np.int64 if largest <= EXACT else object)
    places = first + o * step
    if axis.rounding is not None:
        places, whole = _rounded(places, whole, axis.rounding), 1
    return np.clip(places, 0, (axis.size - 1) * whole), whole


def _rounded(places: Table, whole: int, rounding: str) -> Table:
    """``places / whole`` as ``spec.resize.ROUNDINGS`` has it; a division rounded up is one rounded down, mirrored."""
    if rounding == "floor":
        return places // whole
    if rounding == "ceil":
        return -(-places // whole)
    if rounding == "half_down":
        return -((whole - 2 * places) // (2 * whole))
    return (2 * places + whole) // (2 * whole)


# --- the lowering -----------------------------------------------------------------------------------------------------


class _Resizing:
    """The tables of a node, and its blocks of arguments."""

    def __init__(self, node: Node, back: bool) -> None:
        (x,) = node.inputs
        attrs: Resize = node.attrs
        width = COMPUTED[x.dtype.name]
        number = np.float32 if width == 4 else np.float64
        axes = attrs.axes or [ONE_CELL]
        self.sums = [axis_sums(axis, back, number) for axis in axes]
        self.leads = x.shape[: x.ndim - len(attrs.sizes)]
        last = self.sums[-1]
        read = axes[-1].outputs if back else axes[-1].size
        self.tile = min(TILE, last.targets)
        self.spans = last.spans(self.tile)
        widest = int((self.spans[:, 1] - self.spans[:, 0]).max())
        self.rows_first = len(last.cells) >= read and widest <= LONGEST
        self.rows = prod(sums.targets for sums in self.sums[:-1])
        self.tiles = len(self.spans)
        self.units = prod(self.leads) * self.rows * self.tiles
        self.sums_at = aligned(8 * len(self.sums))
        self.workspace = self.sums_at + aligned(width * (widest if self.rows_first else self.tile))
        self.taps = prod(self.leads) * prod(len(sums.cells) for sums in self.sums)

    def described(self, strides: Sequence[Strides]) -> Bound:
        count = len(self.leads)
        leads = merged(zip(self.leads, zip(*(s[:count] for s in strides), strict=True), strict=True))
        at = f.HEADER + f.LEAD * len(leads)
        numbers = at + f.WEIGHTED_AXIS * len(self.sums)
        words = [len(leads), at, len(self.sums), 0, self.rows, self.tile, self.tiles, self.sums_at, numbers]
        words += [word for size, steps in leads for word in (size, *steps)]
        for sums, step, jump in zip(self.sums, *(s[count:] or (0,) for s in strides), strict=True):
            words += [sums.targets, step, jump, *sums.addresses]
        words += [address(self.spans), int(self.rows_first)]
        return pack(f"<{len(words)}q", *words), self.units, self.workspace


@dataclass(frozen=True)
class _ResizeLowering(LoweringBase):
    back: bool

    def task(self, work: Work) -> Task | None:
        (node,) = work.nodes
        (x,), (y,) = node.inputs, node.outputs
        resizing, itemsize = _Resizing(node, self.back), x.dtype.numpy.itemsize
        return Task(
            kernel=f"weighted sums {x.dtype}",
            inputs=(x,),
            outputs=(y,),
            function=kernel(SOURCE, f"weighted:{x.dtype}"),
            units=resizing.units,
            cost=NANOSECONDS_PER_TAP * resizing.taps + NANOSECONDS_PER_UNIT * resizing.units,
            workspace=resizing.workspace,
            bind=Blocks((itemsize, itemsize), resizing.described),
        )


LOWERINGS: dict[str, Lowering] = {"resize": _ResizeLowering(back=False), "resize_transpose": _ResizeLowering(back=True)}
