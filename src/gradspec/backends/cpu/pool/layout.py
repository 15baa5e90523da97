"""From windows and strides to what a pooling kernel is given."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, TypeAlias

import numpy as np

from gradspec.backends.cpu.axes import Strides
from gradspec.backends.cpu.binding import KernelCall
from gradspec.backends.cpu.pool.arguments import (
    UNIT_BYTES,
    Arrays,
    AxisKind,
    Finish,
    Lead,
    PerArray,
    Planar,
    PoolArguments,
    PoolAxis,
    PoolSettings,
    Role,
)
from gradspec.backends.cpu.pool.axes import ReducedAxis, one_bin
from gradspec.backends.tables import Ints, bin_spans, real_cells
from gradspec.codegen.records import Memory, Operand, Words
from gradspec.runtime.memory import aligned
from gradspec.spec.window import Adaptive, AxisWindow

LONGEST_TILE = 2048
LONGEST_TABLE = 4096
INNER_BLOCK = 64
UNITS_WANTED = 32

Count: TypeAlias = Callable[[AxisWindow], Ints]
ROLES = tuple(Role)
NOWHERE: PerArray = (0, 0, 0, 0, 0, 0)


@dataclass(frozen=True)
class Pooling:
    """A pooling of arrays of any layout. Tables that kernels read live as long as this."""

    axes: tuple[ReducedAxis, ...]
    leads: tuple[int, ...]
    roles: tuple[Role, ...]
    """What the arrays are that it is bound to, in order."""
    settings: PoolSettings
    components: tuple[int, ...]
    """Bytes per element of each part of a running result."""
    stored: int
    """Bytes per stored number."""
    reads_in_place: bool = False
    """Whether the kernel reads cells where they lie if it can, and needs a copy of them only where it cannot."""
    is_quiet: bool = False
    """Whether a result that no window lacks cells for needs nothing more."""
    writes_directly: bool = True
    """Whether finished slabs may be put together in the output itself."""
    counts: Count | None = None
    """What fills the tables of counted taps, if anything does."""
    wants_real_cells: bool = False
    scan_volume: int = 0
    """Along an axis, prefixes are used only where a window has this many cells per tap of the axis."""
    lists_taps: bool = False
    """Whether a table of the taps of the last axis takes the place of that of a window's cells."""
    tables: dict[Hashable, Memory] = field(default_factory=dict, compare=False, repr=False)

    def __call__(self, strides: Sequence[Strides]) -> KernelCall[PoolArguments]:
        """What the kernel is given for arrays of these strides, in elements; those of a tape are bytes."""
        steps = dict(zip(self.roles, strides, strict=True))
        if Role.TAPE in steps:
            steps[Role.TAPE] = tuple(s // self.settings.tape_bytes for s in steps[Role.TAPE])
        return _Layout(self, steps).call()

    @property
    def has_cells(self) -> frozenset[Role]:
        """The arrays that have the shape of the input; the others have that of the output."""
        return frozenset({Role.X, Role.V if self.settings.pulls else Role.U}) & {*self.roles}

    @property
    def operands(self) -> Arrays:
        x, y, u, v, indices, tape = (Operand(self.roles.index(r)) if r in self.roles else None for r in ROLES)
        return x, y, u, v, indices, tape

    @property
    def largest(self) -> int:
        """The cells of the input, or of the output if these are more."""
        return prod(self.leads) * max(prod(a.size for a in self.axes), prod(a.outputs for a in self.axes))

    def table(self, key: Hashable, make: Callable[[], Any], dtype: Any = np.int64) -> Memory:
        """A table that is made once."""
        if key not in self.tables:
            self.tables[key] = np.ascontiguousarray(make(), dtype)
        return self.tables[key]


Axis: TypeAlias = tuple[ReducedAxis, PerArray]
LeadAxis: TypeAlias = tuple[int, PerArray]


class _Layout:
    """Arrays of known strides, on their way to a kernel's arguments."""

    def __init__(self, pooling: Pooling, strides: Mapping[Role, Strides]) -> None:
        self.pooling, self.settings = pooling, pooling.settings
        nowhere = (0,) * (len(pooling.leads) + len(pooling.axes))  # also for the axes that one cell stands for
        x, y, u, v, indices, tape = ((*strides.get(role, ()), *nowhere) for role in ROLES)
        steps = [(x[j], y[j], u[j], v[j], indices[j], tape[j]) for j in range(len(nowhere))]
        axes = list(zip(pooling.axes, steps[len(pooling.leads) :], strict=True))
        leads = [(n, s) for n, s in zip(pooling.leads, steps, strict=False) if n != 1]
        self.inner_total, self.inner_strides = _take_inner(leads, axes[-1])
        self.leads, self.axes = _merged_leads(leads), self._with_whole_axes_merged(axes)
        self.is_row = self.inner_total == 1  # the last axis is reduced along rows, not neighbour by neighbour
        self.blocks = -(-self.inner_total // INNER_BLOCK)
        self.inner = -(-self.inner_total // self.blocks)
        self.planes = prod(n for n, _ in self.leads) * self.blocks
        self.last, self.last_steps = self.axes[-1]

    def _with_whole_axes_merged(self, axes: Sequence[Axis]) -> list[Axis]:
        """Neighbouring axes that one bin covers are one axis, if their cells follow each other in memory.

        Read backwards, the cells are windows, each to be divided by its own number of taps along every axis.
        """
        if self.settings.scales_input:
            return [*axes]
        merged = [axes[0]]
        for axis, steps in axes[1:]:
            before, before_steps = merged[-1]
            follow = all(before_steps[role] == axis.size * steps[role] for role in self.pooling.has_cells)
            if before.is_one_bin and axis.is_one_bin and follow:
                merged[-1] = one_bin(before.size * axis.size), steps
            else:
                merged.append((axis, steps))
        return merged

    # --- the arguments ------------------------------------------------------------------------------------------------

    def call(self) -> KernelCall[PoolArguments]:
        pooling, room = self.pooling, self.tile_room
        tile_at = self.ring_end * self.inner - self.unused_stretches * room
        component = -(-(self.ring_end * self.inner + self.stretches * room) // 16) * 16
        table_at = aligned(UNIT_BYTES + component * sum(pooling.components))
        plane_at = table_at + 16 * self.table_room
        arguments = PoolArguments(
            **vars(self.settings),
            arrays=pooling.operands,
            axes=tuple(self._axis(i) for i in range(len(self.axes))),
            leads=tuple(Lead(n, s) for n, s in self.leads) or (Lead(1, NOWHERE),),
            inner=self.inner,
            inner_total=self.inner_total,
            inner_strides=self.inner_strides,
            blocks=self.blocks,
            bands=self.bands,
            has_holes=self.has_holes,
            are_apart=all(a.kind is AxisKind.SLIDING and a.stride > a.reach for a, _ in self.axes),
            finish=self.finish,
            shares=self.shares,
            rows=prod(axis.outputs for axis, _ in self.axes[1:-1]),
            is_direct=self.is_direct,
            is_whole=self.is_whole,
            tile=self.tile,
            tile_at=tile_at,
            tile_room=room,
            table_at=table_at,
            table_room=self.table_room,
            component=component,
            plane_at=plane_at,
        )
        return KernelCall(arguments, self.planes * self.bands, aligned(plane_at + self._plane_bytes()))

    def _axis(self, i: int) -> PoolAxis:
        axis, steps = self.axes[i]
        is_last = i == len(self.axes) - 1
        inside, beyond = axis.inside
        return PoolAxis(
            kind=axis.kind,
            size=axis.size,
            outputs=axis.outputs,
            kernel=axis.kernel,
            stride=axis.stride,
            low=axis.low,
            dilation=axis.dilation,
            scans=axis.doubles if is_last and self.is_row else self._scans(axis),
            volume=prod(later.kernel for later, _ in self.axes[i + 1 :]),
            slab=self.slabs[i],
            ring=self.rings[i],
            slots=axis.slots,
            planar=self.planar if i == len(self.axes) - 2 else Planar.NOT,
            inside=inside,
            beyond=beyond,
            spans=self._spans(axis),
            counted=self._counted(axis.window),
            real=self._real(axis.window),
            strides=steps,
        )

    # --- tables -------------------------------------------------------------------------------------------------------

    def _spans(self, axis: ReducedAxis) -> Words | None:
        if axis.kind is not AxisKind.BINS:
            return None
        bins = Adaptive(axis.size, axis.outputs)
        return self.pooling.table(("spans", bins), lambda: bin_spans(bins))

    def _counted(self, window: AxisWindow) -> Words | None:
        counts = self.pooling.counts
        return None if counts is None else self.pooling.table(("counted", window), lambda: counts(window))

    def _real(self, window: AxisWindow) -> Words | None:
        wanted = self.pooling.wants_real_cells
        return self.pooling.table(("real", window), lambda: real_cells(window)) if wanted else None

    @cached_property
    def shares(self) -> Memory | None:
        """The divisors of all outputs of a small plane that lies in the output as one run."""
        outputs, windows = prod(axis.outputs for axis, _ in self.axes), [axis.window for axis, _ in self.axes]
        is_run = self.is_direct and self._is_run() and self.bands == self.inner_total == 1
        counts = self.pooling.counts
        if counts is None or self.settings.scales_input or self.has_holes or not is_run or outputs > LONGEST_TABLE:
            return None

        def products() -> Any:
            shares = np.ones((), np.int64)
            for window in windows:
                shares = np.multiply.outer(shares, counts(window))
            return shares

        number = np.float64 if self.pooling.components[0] == 8 else np.float32
        return self.pooling.table(("shares", *windows), products, number)

    @cached_property
    def table_room(self) -> int:
        """Entries of the table of a window's cells, or of the taps of the last axis."""
        if self.pooling.lists_taps:
            return self.last.kernel if self.last.kind is AxisKind.SLIDING else 0
        volume, roles = prod(axis.kernel for axis, _ in self.axes), {*self.pooling.roles}
        wanted = Role.TAPE in roles or (Role.X in roles and not roles.isdisjoint({Role.U, Role.V, Role.INDICES}))
        return volume if wanted and volume <= LONGEST_TABLE else 0

    # --- the output ---------------------------------------------------------------------------------------------------

    @cached_property
    def has_holes(self) -> bool:
        return not self.settings.scales_input and any(axis.is_empty_somewhere for axis, _ in self.axes)

    @property
    def finish(self) -> Finish:
        if self.shares is not None:
            return Finish.BY_PLANE
        is_at_once = self.pooling.is_quiet and self.is_direct and not self.has_holes
        return Finish.AT_ONCE if is_at_once else Finish.BY_SLAB

    @cached_property
    def is_direct(self) -> bool:
        """Whether finished slabs are put together in the output itself."""
        pooling, step = self.pooling, self.inner_total
        if not pooling.writes_directly or Role.Y not in pooling.roles or self.blocks != 1:
            return False
        if pooling.stored != pooling.components[0] or (not self.is_row and self.inner_strides[Role.Y] != 1):
            return False
        for axis, steps in reversed(self.axes[1:]):
            if axis.outputs > 1 and steps[Role.Y] != step:
                return False
            step *= axis.outputs
        first, steps = self.axes[0]
        return len(self.axes) > 1 or not self.is_row or steps[Role.Y] == 1 or first.outputs == 1

    def _is_run(self) -> bool:
        """Whether the slabs of a plane follow each other in the output, if they are dense there."""
        axis, steps = self.axes[0]
        slab = self.inner_total * prod(later.outputs for later, _ in self.axes[1:])
        return axis.outputs == 1 or steps[Role.Y] == slab

    @property
    def is_whole(self) -> bool:
        """Whether every plane is one run of cells with one output and one divisor, and planes are evenly spaced."""
        axis, steps = self.axes[0]
        is_alone = len(self.axes) == 1 and self.is_row and self.pooling.roles == (Role.X, Role.Y)
        is_plain = not self.settings.scales_input and self.pooling.counts is None
        is_even = self.is_direct and self.bands == self.blocks == 1 and len(self.leads) <= 1
        return is_alone and is_plain and is_even and axis.is_one_bin and steps[Role.X] == 1

    @cached_property
    def bands(self) -> int:
        """Enough units for every thread, while a band has more rows of its own than it shares with the next."""
        if self.planes >= UNITS_WANTED or not self.planes:
            return 1
        axis, _ = self.axes[0]
        longest = axis.outputs // max(4, 2 * -(-(axis.reach + 1) // axis.stride))
        if len(self.axes) == 1 and self.is_row:
            longest = axis.outputs // LONGEST_TILE
        return max(1, min(-(-UNITS_WANTED // self.planes), longest, axis.size))

    # --- the workspace ------------------------------------------------------------------------------------------------

    @cached_property
    def planar(self) -> Planar:
        """Whether the last two axes are reduced together, straight from memory, and in which way.

        Values alone may be reduced along the rows last. At stride 1 that does not pay, because rows that were just made
        would be read before they reach the cache. Windows of 3 × 3 and 2 × 2 at stride 2 are read as they are, and so
        are 3 × 3 at stride 1 where output and input are equally wide.
        """
        if len(self.axes) < 2 or not self.is_row or Role.X not in self.pooling.roles or not self._is_in_place():
            return Planar.NOT
        (before, before_steps), last = self.axes[-2], self.last
        kinds = {before.kind, last.kind}
        if AxisKind.EXPANDING in kinds or before.scans or before.dilation != 1:
            return Planar.NOT
        shape = before.kernel, before.stride
        if shape != (last.kernel, last.stride) or last.dilation != 1 or AxisKind.BINS in kinds:
            shape = (0, 0)
        if self.pooling.roles != (Role.X, Role.Y):
            is_kept = shape in ((3, 1), (3, 2), (2, 2)) and last.outputs <= LONGEST_TILE
            return Planar.KEPT_ROWS if is_kept else Planar.NOT
        widths_agree = last.outputs == last.size > 2 and before_steps[Role.X] == last.size
        is_many = shape in ((3, 2), (2, 2)) or (shape == (3, 1) and widths_agree)
        if is_many and (len(self.axes) > 2 or (self.is_direct and self._is_run())):
            return Planar.MANY_ROWS
        return Planar.BY_ROW if before.stride > 1 else Planar.NOT

    def _is_in_place(self) -> bool:
        """Whether rows of cells are read where they lie: neither converted nor divided nor gathered."""
        is_as_computed = self.pooling.stored == self.pooling.components[0] and not self.settings.scales_input
        return self.pooling.reads_in_place and is_as_computed and self.last_steps[Role.X] == 1

    @property
    def unused_stretches(self) -> int:
        """Of three stretches of the last axis, two whose runs are doubled in turns, or rows that are kept, come before
        a copy of cells; where that alone is needed, the others take no room."""
        is_alone = not self._needs_all_stretches() and (self.last.kind is AxisKind.SLIDING or bool(self.planar))
        return 2 if self.is_row and is_alone else 0

    @property
    def stretches(self) -> int:
        """How many are needed."""
        if not self.is_row:
            return 0
        if self._needs_all_stretches():
            return 3
        is_copied = not self._is_in_place() or self.planar is not Planar.NOT
        return 1 if self.last.kind is AxisKind.EXPANDING else int(is_copied)

    def _needs_all_stretches(self) -> bool:
        return not self.pooling.reads_in_place or self.last.doubles or self.planar is Planar.KEPT_ROWS

    def _scans(self, axis: ReducedAxis) -> bool:
        volume = prod(other.kernel for other, _ in self.axes)
        return axis.scans and volume >= self.pooling.scan_volume * axis.kernel

    @cached_property
    def slabs(self) -> list[int]:
        """Per axis the outputs of the later ones."""
        outputs = [axis.outputs for axis, _ in self.axes]
        return [prod(outputs[i + 1 :]) for i in range(len(outputs))]

    @cached_property
    def rings(self) -> list[int]:
        """Where the ring of each axis begins, and where the last one ends.

        The finished slab of the first axis comes first; a ring has a slab per row, and one more for the prefix. Values
        that go straight to the output need no slab, and rows that are read straight from memory no ring.
        """
        is_slabless = self.is_direct and len(self.pooling.components) == 1
        finished = self.slabs[0] if len(self.axes) > 1 or not self.is_row else self.tile
        found = [0 if is_slabless else finished]
        for i, (axis, _) in enumerate(self.axes):
            is_straight = i == len(self.axes) - 2 and self.planar in (Planar.BY_ROW, Planar.MANY_ROWS)
            has_ring = (i < len(self.axes) - 1 or not self.is_row) and not is_straight
            found.append(found[-1] + (self.slabs[i] * (axis.slots + self._scans(axis)) if has_ring else 0))
        return found

    @property
    def ring_end(self) -> int:
        return self.rings[-1]

    @cached_property
    def tile(self) -> int:
        """How many outputs of the last axis are made at a time."""
        is_long = len(self.axes) > 1 or len(self.pooling.components) == 1
        longest = LONGEST_TILE if is_long else LONGEST_TILE // 4
        return max(1, min(self.last.outputs, longest, 4 * LONGEST_TILE // self.last.stride))

    @cached_property
    def tile_room(self) -> int:
        """The cells that they read."""
        axis = self.last
        if axis.kind is AxisKind.BINS:
            return min(LONGEST_TILE * 2, axis.size)
        if axis.kind is AxisKind.EXPANDING:
            return (self.tile + axis.reach) // axis.stride + 3
        return (self.tile - 1) * axis.stride + axis.reach + 1

    def _plane_bytes(self) -> int:
        """Of the float32 plane of a 16-bit cotangent."""
        if not self.settings.pulls or self.pooling.stored >= 4:
            return 0
        rows = -(-self.axes[0][0].size // self.bands)
        return 4 * self.inner * rows * prod(axis.size for axis, _ in self.axes[1:])


def _take_inner(leads: list[LeadAxis], last: Axis) -> tuple[int, PerArray]:
    """Neighbours in memory are pooled side by side if they belong to a leading axis, which is taken from the others."""
    axis, steps = last
    if steps[Role.X] != 1 and axis.size != 1:
        for i, (n, s) in enumerate(leads):
            if s[Role.X] == 1:
                del leads[i]
                return n, s
    return 1, NOWHERE


def _merged_leads(leads: Sequence[LeadAxis]) -> list[LeadAxis]:
    """Neighbouring leading axes as one wherever every array allows it."""
    merged: list[LeadAxis] = []
    for n, steps in leads:
        if merged and all(before == n * s for before, s in zip(merged[-1][1], steps, strict=True)):
            merged[-1] = (merged[-1][0] * n, steps)
        else:
            merged.append((n, steps))
    return merged
