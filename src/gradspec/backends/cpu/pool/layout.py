"""The arguments of a pooling kernel, from windows and strides: the choice of schedules and the workspace."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, reduce
from math import frexp, gcd, prod
from typing import Any, TypeAlias

import numpy as np

from gradspec.backends.cpu.binding import KernelCall
from gradspec.backends.cpu.planning import Strides, merged
from gradspec.backends.cpu.pool.arguments import (
    UNIT_BYTES,
    Arrays,
    AxisKind,
    Finish,
    Gathering,
    Lead,
    PerArray,
    PoolArguments,
    PoolAxis,
    PoolSettings,
    Role,
    RowChunk,
    Schedule,
)
from gradspec.backends.cpu.pool.axes import ReducedAxis, merge_axes, one_row
from gradspec.backends.tables import Ints, bin_spans, real_cells
from gradspec.codegen.records import Memory, Operand, Words, record_from
from gradspec.runtime.memory import aligned
from gradspec.spec.window import Adaptive, AxisWindow

LONGEST_TILE = 2048
LONGEST_ROW = 1 << 17
"""Most numbers in a row of small windows, or in adjacent planes that are pooled as one."""
LONGEST_TABLE = 4096
LARGEST_SLAB = 16384
"""Most cells of a slab that is joined: the result stays in, or near, the first cache."""
INNER_BLOCK, WIDEST_BLOCK = 64, 512
"""Neighbours that are pooled side by side: usually, and at most."""
FEWEST_UNITS = 8
"""Units of work that wider blocks must leave."""
LONGEST_TRANSPOSED = 15
"""Most cells of a bin in transposed planes: longer ones are reduced along vectors."""
FEWEST_TRANSPOSED = 4
"""Fewest planes that are transposed together."""
CELLS_TRANSPOSED = 8192
"""Most cells of planes that are transposed together: they stay in the first cache."""
UNITS_WANTED = 32
FEW_NEIGHBOURS = 32
"""Up to this many neighbours, bins are faster in transposed planes than in runs."""
MOST_GATHERED = 16
"""Most taps of a window whose cotangent is gathered rather than scattered."""
LARGEST_CHUNK = 4096
"""Most places in the rows of a chunk: they stay in the first cache."""
SHORTEST_RUN = 16
"""Fewest outputs of rows that are one run: a whole vector, so that a vector is read as it was written."""
MOST_ACCUMULATORS = 1 << 15
"""Most places in the accumulators of rows of cells."""

Count: TypeAlias = Callable[[AxisWindow], Ints]
ROLES = tuple(Role)
NOWHERE: PerArray = (0, 0, 0, 0, 0, 0)


@dataclass(frozen=True)
class KernelFamily:
    """What the kernels of an operation have in common, for any window and layout."""

    works_in_place: bool = False
    """Whether cells are read, and finished slabs combined, where they lie in X and Y if the layout allows it."""
    finds_winners: bool = False
    visits_taps: bool = False
    """Whether the taps of finished windows are visited again: tables list the last axis's taps and the real cells."""
    shares_cotangents: bool = False
    """Whether U is a cotangent, and not a tangent, of which the share of every window is computed."""
    scan_volume: int = 0
    """Prefixes are used along an axis only where a window has this many cells per tap of the axis."""


VALUES = RECORDED_WINNERS = KernelFamily(works_in_place=True)
WINNERS = KernelFamily(works_in_place=True, finds_winners=True)
TIES = KernelFamily(visits_taps=True)
TIED_SHARES, TIED_COTANGENTS = KernelFamily(shares_cotangents=True), KernelFamily()


@dataclass(frozen=True)
class Pooling:
    """A pooling of arrays of any layout. Tables that kernels read live as long as this."""

    family: KernelFamily
    axes: tuple[ReducedAxis, ...]
    leads: tuple[int, ...]
    roles: tuple[Role, ...]
    """The roles of the arrays that it is bound to, in order."""
    settings: PoolSettings
    components: tuple[int, ...]
    """Bytes per element of each part of a running result."""
    stored: int
    """Bytes per stored number."""
    counts: Count | None = None
    """What fills the tables of counted taps, if anything does."""
    joins_planes: bool = True
    """Whether a unit of work may have several planes."""
    tables: dict[Hashable, Memory] = field(default_factory=dict, compare=False, repr=False)

    def __call__(self, strides: Sequence[Strides]) -> KernelCall[PoolArguments]:
        """The kernel's arguments for arrays of these strides, in elements; those of a tape are in bytes."""
        steps = dict(zip(self.roles, strides, strict=True))
        if Role.TAPE in steps:
            steps[Role.TAPE] = tuple(s // self.settings.tape_bytes for s in steps[Role.TAPE])
        return _Layout(self, steps).call()

    @property
    def has_cells(self) -> frozenset[Role]:
        """The arrays that have the shape of the input; the others have that of the output."""
        tangents = () if self.family.shares_cotangents else (Role.V if self.settings.is_vjp else Role.U,)
        return frozenset((Role.X, *tangents)) & {*self.roles}

    @property
    def is_value(self) -> bool:
        """Whether nothing but the value is wanted."""
        return self.roles == (Role.X, Role.Y)

    @property
    def carries_tangents(self) -> bool:
        """Whether tangents of winners in planes are wanted, and no winners."""
        is_plane, is_jvp = len(self.axes) == 2, self.family.finds_winners and not self.settings.is_vjp
        return is_plane and is_jvp and {*self.roles} <= {Role.X, Role.Y, Role.U, Role.V}

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
    """Derives a kernel's arguments from the strides of its arrays."""

    def __init__(self, pooling: Pooling, strides: Mapping[Role, Strides]) -> None:
        self.pooling, self.settings = pooling, pooling.settings
        nowhere = (0,) * (len(pooling.leads) + len(pooling.axes))  # also for the axes that one cell stands for
        x, y, u, v, indices, tape = ((*strides.get(role, ()), *nowhere) for role in ROLES)
        steps = [(x[j], y[j], u[j], v[j], indices[j], tape[j]) for j in range(len(nowhere))]
        axes = list(zip(pooling.axes, steps[len(pooling.leads) :], strict=True))
        leads = [(n, s) for n, s in zip(pooling.leads, steps, strict=False) if n != 1]
        self.inner_total, self.inner_strides = _take_inner(leads, axes[-1])
        self.leads, self.axes = merged(leads), self._with_whole_axes_merged(axes)
        most = self._planes_to_transpose()
        self.is_transposed = most >= FEWEST_TRANSPOSED
        if not self.is_transposed:
            self._lengthen_first_axis()
        elif self.inner_total == 1:
            self.inner_total, self.inner_strides = self.leads.pop()
        self.is_row = self.inner_total == 1  # the last axis is reduced along rows, not neighbour by neighbour
        self.blocks = -(-self.inner_total // (most if self.is_transposed else self._widest_block()))
        self.inner = -(-self.inner_total // self.blocks)
        self.planes = prod(n for n, _ in self.leads) * self.blocks
        self.last, self.last_steps = self.axes[-1]
        if len(self.axes) == 1 and (self.is_transposed or self._is_one_small_row()):
            self.axes.insert(0, (one_row(), NOWHERE))

    def _with_whole_axes_merged(self, axes: Sequence[Axis]) -> list[Axis]:
        """Merge adjacent axes that one bin covers, if their cells follow each other in memory.

        If they are transposed and windows have divisors of their own, they cannot be merged; nor if windows count
        padding, as those do whose trimmed taps are the axis.
        """
        is_transpose, found, counts = self.settings.scales_input, [axes[0]], self.pooling.counts
        for axis, steps in axes[1:]:
            before, before_steps = found[-1]
            roles, n = ({Role.Y}, axis.outputs) if is_transpose else (self.pooling.has_cells, axis.size)
            follow = all(before_steps[role] == n * steps[role] for role in roles)
            both = merge_axes(before, axis, is_transpose) if follow else None
            is_counted = counts is not None and any(
                is_transpose or counts(a.window)[0] != a.size for a in (before, axis)
            )
            if both is not None and not is_counted:
                found[-1] = both, steps
            else:
                found.append((axis, steps))
        return found

    @property
    def _plane_cells(self) -> int:
        """Cells of a plane, or its outputs if these are more."""
        return max(prod(axis.size for axis, _ in self.axes), prod(axis.outputs for axis, _ in self.axes), 1)

    def _lengthen_first_axis(self) -> None:
        """Join planes that follow each other in memory, if windows end where the first axis does."""
        pooling, (axis, steps) = self.pooling, self.axes[0]
        tells_places = pooling.counts is not None or pooling.family.visits_taps or Role.INDICES in pooling.roles
        if not (self.leads and pooling.joins_planes and axis.ends_with_windows) or tells_places:
            return
        n, between = self.leads[-1]
        planes = gcd(n, self._planes_in_cache())
        lengths = {role: axis.size if role in pooling.has_cells else axis.outputs for role in pooling.roles}
        if planes > 1 and all(between[role] == length * steps[role] for role, length in lengths.items()):
            self.axes[0] = replace(axis, size=planes * axis.size, outputs=planes * axis.outputs), steps
            x, y, u, v, indices, tape = (planes * step for step in between)
            self.leads[-1:] = [(n // planes, (x, y, u, v, indices, tape))] if planes < n else []

    def _planes_in_cache(self) -> int:
        """How many planes are joined at most, a power of two: as many as stay in the first cache, or more if cells are
        read once and in place; and no more than leave a unit for every thread."""
        pooling, (_, steps) = self.pooling, self.axes[-1]
        is_in_place = pooling.stored == pooling.components[0] and (steps[Role.X] == 1 or self.inner_total > 1)
        longest = LONGEST_ROW if is_in_place and pooling.is_value else LARGEST_SLAB
        units = prod(n for n, _ in self.leads) // UNITS_WANTED
        most = max(1, min(longest // (self._plane_cells * min(self.inner_total, self._widest_block())), units))
        return 1 << (most.bit_length() - 1)

    def _widest_block(self) -> int:
        """How many neighbours are pooled side by side: the more, the fewer strided passes over memory, as long as
        reduced rows stay in the second cache and there are units for some threads."""
        row = max(1, prod(axis.outputs for axis, _ in self.axes[1:]))
        blocks = -(-FEWEST_UNITS // max(1, prod(n for n, _ in self.leads)))
        return max(INNER_BLOCK, min(WIDEST_BLOCK, LARGEST_SLAB // row, -(-self.inner_total // blocks)))

    def _planes_to_transpose(self) -> int:
        """How many planes of short bins are transposed together: vectors cannot follow bins along a row."""
        pooling, (last, _) = self.pooling, self.axes[-1]
        if self._lies_in_runs():
            return 0
        are_short = last.kernel <= LONGEST_TRANSPOSED and 1 not in (last.size, last.outputs)
        planes = self.inner_total if self.inner_total > 1 or not self.leads else self.leads[-1][0]
        if not (last.kind is AxisKind.BINS and are_short and planes > 1 and pooling.joins_planes):
            return 0
        is_divided, is_read = self.settings.divisor != 0.0 or pooling.counts is not None, Role.X in pooling.roles
        if not (pooling.family.works_in_place and is_read) or (is_divided and self._inverses() is None):
            return 0
        most = min(planes, INNER_BLOCK, CELLS_TRANSPOSED // self._plane_cells)
        return most if most < 16 else most // 16 * 16

    # --- the arguments ------------------------------------------------------------------------------------------------

    def call(self) -> KernelCall[PoolArguments]:
        pooling, room = self.pooling, self.tile_room
        elements = self.ring_end * self.inner + self.stretches * room + self.staged_cells
        component = -(-max(elements, self.gathering_end * self.inner) // 16) * 16
        table_at = aligned(UNIT_BYTES + component * sum(pooling.components))
        plane_at = table_at + 16 * self.table_room
        arguments = record_from(
            PoolArguments,
            self,
            **vars(self.settings),
            arrays=pooling.operands,
            axes=tuple(self._axis(i) for i in range(len(self.axes))),
            leads=tuple(Lead(n, s) for n, s in self.leads) or (Lead(1, NOWHERE),),
            rows=prod(axis.outputs for axis, _ in self.axes[1:-1]),
            staged_at=self.ring_end * self.inner + self.stretches * room,
            tile_at=self.ring_end * self.inner,
            tile_room=room,
            table_at=table_at,
            component=component,
            plane_at=plane_at,
        )
        return KernelCall(arguments, self.planes * self.bands, aligned(plane_at + self._plane_bytes()))

    def _axis(self, i: int) -> PoolAxis:
        axis, steps = self.axes[i]
        is_last = i == len(self.axes) - 1
        inside, beyond = axis.inside
        return record_from(
            PoolAxis,
            axis,
            scans=axis.doubles if is_last and self.is_row else self._scans(axis),
            volume=prod(later.kernel for later, _ in self.axes[i + 1 :]),
            slab=self.slabs[i],
            ring=self.rings[i],
            schedule=self._schedule_of(i),
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
        wanted = self.pooling.family.visits_taps
        return self.pooling.table(("real", window), lambda: real_cells(window)) if wanted else None

    @cached_property
    def shares(self) -> Memory | None:
        """The inverses of a small plane's divisors, if planes are transposed, or its outputs are a run."""
        outputs = prod(axis.outputs for axis, _ in self.axes)
        is_run = self.is_direct and self._is_run() and self.bands == self.inner_total == 1
        is_counted = self.pooling.counts is not None and not self.settings.scales_input and not self.has_holes
        is_small = is_counted and outputs <= LONGEST_TABLE
        return self._inverses() if self.is_transposed or (is_small and (is_run or self.reads_runs)) else None

    def _inverses(self) -> Memory | None:
        """The inverses of the divisors of a plane, in two parts; None for maxima, and if the kernel must divide."""
        divisor, counts, windows = self.settings.divisor, self.pooling.counts, [axis.window for axis, _ in self.axes]
        computed = self.pooling.components[0]

        def inverses() -> Any:
            counted = [np.ones(w.outputs) if counts is None else counts(w) for w in windows]
            divisors = reduce(np.multiply.outer, counted) * (divisor or 1.0)
            distinct, which = np.unique(divisors.ravel(), return_inverse=True)
            return np.array([inverse_of(float(d), computed) for d in distinct])[which].T

        if divisor == 0.0 and counts is None:
            return None
        number = np.float64 if computed == 8 else np.float32
        table = self.pooling.table(("inverses", *windows), inverses, number)
        return table if table.all() else None

    @cached_property
    def table_room(self) -> int:
        """Entries of the table of a window's cells, or of the taps of the last axis."""
        if self.pooling.family.visits_taps:
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
        if self.shares is not None and self.is_row:
            return Finish.BY_PLANE
        is_at_once = self._has_one_divisor() and self.is_direct and not self.has_holes
        return Finish.AT_ONCE if is_at_once else Finish.BY_SLAB

    def _has_one_divisor(self) -> bool:
        """Whether values need at most one divisor, or none once the input is divided."""
        return self.pooling.is_value and (self.pooling.counts is None or self.settings.scales_input)

    @cached_property
    def is_direct(self) -> bool:
        """Whether slabs are combined in the output itself."""
        pooling, step = self.pooling, self.inner_total
        if not pooling.family.works_in_place or Role.Y not in pooling.roles or self.blocks != 1:
            return False
        if self.settings.is_vjp and self.bands > 1 and not self._puts_once():
            return False
        if pooling.stored != pooling.components[0] or (not self.is_row and self.inner_strides[Role.Y] != 1):
            return False
        for axis, steps in reversed(self.axes[1:]):
            if axis.outputs > 1 and steps[Role.Y] != step:
                return False
            step *= axis.outputs
        first, steps = self.axes[0]
        return len(self.axes) > 1 or not self.is_row or steps[Role.Y] == 1 or first.outputs == 1

    def _puts_once(self) -> bool:
        """Whether outputs of the first axis are written once, in their final state. Two bands may compute the same
        ones, and neither may read there what the other has not finished."""
        axis, _ = self.axes[0]
        return len(self.axes) > 1 and (axis.kernel <= 3 or self._scans(axis)) and not self._finds_in_runs()

    def _is_run(self) -> bool:
        """Whether the slabs of a plane follow each other in the output, if they are dense there."""
        axis, steps = self.axes[0]
        slab = self.inner_total * prod(later.outputs for later, _ in self.axes[1:])
        return axis.outputs == 1 or steps[Role.Y] == slab

    @property
    def is_whole(self) -> bool:
        """Whether every plane is one run of cells with one output and one divisor, and planes are evenly spaced; or its
        transpose is."""
        axis, steps = self.axes[0]
        is_alone = len(self.axes) == 1 and self.is_row and self.pooling.is_value
        is_even = self.bands == self.blocks == 1 and len(self.leads) <= 1
        is_transpose = self.settings.scales_input
        is_run = axis.is_one_cell if is_transpose else axis.is_one_bin
        is_run &= steps[Role.Y if is_transpose else Role.X] == 1
        return is_alone and is_even and is_run and self.pooling.counts is None

    @cached_property
    def bands(self) -> int:
        """Enough units for every thread, while a band has more rows of its own than it shares with the next."""
        if self.planes >= UNITS_WANTED or not self.planes or self.is_transposed:
            return 1
        axis, _ = self.axes[0]
        longest = axis.outputs // max(4, 2 * -(-(axis.reach + 1) // axis.stride))
        if len(self.axes) == 1 and self.is_row:
            longest = axis.outputs // LONGEST_TILE
        return max(1, min(-(-UNITS_WANTED // self.planes), longest, axis.size))

    # --- schedules ----------------------------------------------------------------------------------------------------

    def _schedule_of(self, i: int) -> Schedule:
        """The schedule of axis ``i``."""
        if i == len(self.axes) - 2:
            return self.schedule
        if not self._joins_slabs(i):
            return Schedule.GENERIC
        return Schedule.PAIRS if self._joins_pairs(i) else Schedule.SLABS

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule of the last two axes: the first of these that applies."""
        if self._finds_in_runs() or self._are_few_runs():
            return Schedule.RUNS
        if self.reads_runs:  # other windows are reduced axis by axis, from the same runs
            return Schedule.GENERIC
        if len(self.axes) < 2 or not (self.is_row or self.is_transposed) or Role.X not in self.pooling.roles:
            return Schedule.GENERIC
        if self._can_transpose_rows():
            return Schedule.TRANSPOSE_ROWS
        if not self._can_fuse_rows():
            return Schedule.GENERIC
        if not self.pooling.is_value:  # to find the first winner, rows cannot be joined before the cells along them
            return Schedule.WINNER_ROWS if self._can_keep_winner_rows() else Schedule.GENERIC
        if self._has_square_loop() and self._has_room_for_rows():
            return Schedule.ROWS
        # At stride 1, joined rows would be read before they reach the cache.
        return Schedule.ROW if self.axes[-2][0].stride > 1 else Schedule.GENERIC

    def _can_transpose_rows(self) -> bool:
        """Transposed windows that cover each cell at most twice along an axis, so that two rows of them are a sum. With
        dilation, these would not be adjacent rows."""
        before, last = self.axes[-2][0], self.last
        if not (before.kind is last.kind is AxisKind.EXPANDING):
            return False
        are_few = all(axis.dilation == 1 and axis.kernel <= 2 * axis.stride for axis in (before, last))
        return are_few and last.outputs <= LONGEST_TILE and self.settings.scales_input and self._has_room_for_rows()

    def _can_fuse_rows(self) -> bool:
        """Whether the rows of a window are joined where they lie, or where they are staged: they must be adjacent, so
        without dilation, and few, since many are combined faster from prefixes and suffixes."""
        before, last = self.axes[-2][0], self.last
        if AxisKind.EXPANDING in (before.kind, last.kind) or before.scans or before.dilation != 1:
            return False
        return self._is_in_place() or self._can_stage()

    def _square(self) -> tuple[int, int]:
        """Kernel and stride if these are equal on both axes, windows are regular and without dilation; or zeros."""
        before, last = self.axes[-2][0], self.last
        shape, is_bins = (before.kernel, before.stride), AxisKind.BINS in (before.kind, last.kind)
        return (0, 0) if shape != (last.kernel, last.stride) or last.dilation != 1 or is_bins else shape

    def _can_keep_winner_rows(self) -> bool:
        """The kernel has loops for these windows, and slots for rows of up to a tile. Tangents that take the place of
        winners must lie as cells do, and go to rows that lie so."""
        (_, before), (_, last) = self.axes[-2:]
        has_loop = self._square() in ((3, 1), (3, 2), (2, 2)) and self.last.outputs <= LONGEST_TILE
        lie_alike = last[Role.U] == last[Role.V] == 1 and before[Role.U] == before[Role.X]
        return has_loop and (not self.pooling.carries_tangents or (lie_alike and not self.has_holes))

    def _has_square_loop(self) -> bool:
        """3 × 3 and 2 × 2 windows at stride 2; and 3 × 3 at stride 1 where output and dense input are equally wide: one
        run makes all output rows there."""
        last, square = self.last, self._square()
        is_dense = self.axes[-2][1][Role.X] == last.size or not self._is_in_place()  # or is staged
        return square in ((3, 2), (2, 2)) or (square == (3, 1) and last.outputs == last.size > 2 and is_dense)

    def _are_few_runs(self) -> bool:
        """Values of windows that have so few runs, and share so few, that joining rows first does not pay."""
        is_value = self.pooling.is_value and self.reads_runs and len(self.axes) > 1
        return is_value and self._are_squares() and all(axis.stride > 1 for axis, _ in self.axes[-2:])

    def _are_squares(self) -> bool:
        """Windows of two or three cells along both of the last axes."""
        before, last = (axis for axis, _ in self.axes[-2:])
        are_regular = before.kind is last.kind is AxisKind.SLIDING and before.dilation == last.dilation == 1
        return are_regular and before.kernel == last.kernel in (2, 3)

    def _slab_cells(self, i: int) -> int:
        """The cells of the later axes."""
        return prod(axis.size for axis, _ in self.axes[i + 1 :])

    def _joins_slabs(self, i: int) -> bool:
        """Whether the slabs of cells of a window are joined before later axes are reduced. No two windows may share
        them (stride at least kernel, no dilation), or they would be joined twice; vectors are as long as slabs."""
        axis, later = self.axes[i][0], range(i + 1, len(self.axes))
        is_value = self.is_row and self.pooling.is_value and self._is_in_place()
        is_value &= self.last.kind is not AxisKind.BINS  # sums have one order, whether planes are turned or not
        is_disjoint = axis.kind is AxisKind.SLIDING and axis.dilation == 1 < axis.kernel <= axis.stride
        is_dense = all(self.axes[j][1][Role.X] == self._slab_cells(j) for j in later)
        return i < len(self.axes) - 2 and is_value and is_disjoint and is_dense and self._slab_cells(i) <= LARGEST_SLAB

    def _joins_pairs(self, i: int) -> bool:
        """Whether slabs of two axes are joined at once: windows of the last four are pairs, and of the last three end
        with the axis, so that the planes that remain are one."""
        later = [axis for axis, _ in self.axes[i:]]
        are_pairs = len(later) == 4 and all(axis.kernel == 2 for axis in later)
        return are_pairs and self._joins_slabs(i + 1) and all(axis.ends_with_windows for axis in later[1:])

    # --- the workspace ------------------------------------------------------------------------------------------------

    def _has_room_for_rows(self) -> bool:
        """Whether many output rows of the last two axes can be written at once: to the output, or to the workspace."""
        is_run = self.is_direct and self._is_run()
        return len(self.axes) > 2 or is_run or (self._can_stage() and not self._is_in_place() and not self.is_direct)

    def _can_stage(self) -> bool:
        """Whether a plane of the last two axes has so few cells and outputs that it may be copied."""
        cells, outputs = (prod(sizes) for sizes in zip(*((a.size, a.outputs) for a, _ in self.axes[-2:]), strict=True))
        is_value = self.pooling.family.works_in_place and self.pooling.is_value
        return is_value and max(cells, outputs) <= LARGEST_SLAB

    @property
    def is_staged(self) -> bool:
        is_as_it_is = self._is_in_place() or (self.schedule is Schedule.ROWS and self._converts_rows())
        return self.schedule in (Schedule.ROW, Schedule.ROWS) and not is_as_it_is

    def _converts_rows(self) -> bool:
        """Whether numbers are converted as they are read, and rounded as rows of a plane are written."""
        (before, steps), last, settings = self.axes[-2], self.last, self.settings
        if len(self.axes) > 2 or not self._lies_in_rows() or not self._has_one_divisor() or self.has_holes:
            return False
        is_dense = before.stride > 1 or steps[Role.X] == last.size
        is_written = self.last_steps[Role.Y] == 1 and steps[Role.Y] == last.outputs
        return is_dense and is_written and (settings.inverse != 0.0 or settings.divisor == 0.0)

    @property
    def staged_cells(self) -> int:
        if self.schedule is Schedule.TRANSPOSE_ROWS:
            return (self.staged_rows + 1) * self.tile_room
        if self.is_transposed:
            return self.inner * prod(axis.size for axis, _ in self.axes)
        if self.schedule is Schedule.ROWS and not self._is_in_place() and not self.is_staged:
            return self.axes[0][0].kernel * self.last.size  # windows that are not all real
        return prod(axis.size for axis, _ in self.axes[-2:]) if self.is_staged else 0

    @property
    def staged_rows(self) -> int:
        """Rows of transposed windows that are staged at once."""
        return max(1, min(self.axes[-2][0].size, LARGEST_SLAB // self.tile_room)) if len(self.axes) > 1 else 0

    @cached_property
    def writes_all_cells(self) -> bool:
        """2 × 2 windows side by side, of real cells only, which reach from one end of the rows to the other."""
        roles = {*self.pooling.roles}
        if (
            len(self.axes) != 2
            or self.bands > 1
            or self.schedule is not Schedule.WINNER_ROWS
            or not self.settings.is_vjp
        ):
            return False
        (first, _), (last, steps) = self.axes
        is_real = first.low == last.low == 0 and first.size >= 2 * first.outputs
        fits = is_real and last.kernel == 2 and last.size == 2 * last.outputs
        return fits and roles <= {Role.X, Role.Y, Role.U, Role.V} and steps[Role.U] == steps[Role.V] == 1

    def _is_in_place(self) -> bool:
        """Whether rows of cells are read where they lie: neither converted nor divided nor gathered."""
        return self._lies_in_rows() and self.pooling.stored == self.pooling.components[0]

    @cached_property
    def reads_runs(self) -> bool:
        """Whether windows along the last axis are joined from neighbours where they lie."""
        return self._lies_in_runs() and not self.is_transposed and not self._scans(self.last)

    def _lies_in_runs(self) -> bool:
        """Whether neighbours are a run that can be read in place: as they are, or converted once. Of few neighbours,
        bins are turned all the same."""
        pooling, (last, _) = self.pooling, self.axes[-1]
        is_bins = last.kind is AxisKind.BINS and last.outputs > 1
        is_run = self.inner_total > (FEW_NEIGHBOURS if is_bins else 1) and self.inner_strides[Role.X] == 1
        is_read_once = pooling.is_value and (is_bins or last.kernel <= last.stride)
        is_in_place = pooling.family.works_in_place and (pooling.stored == pooling.components[0] or is_read_once)
        return is_run and is_in_place and Role.X in pooling.roles and not self.settings.scales_input

    def _lies_in_rows(self) -> bool:
        """Whether rows of cells are read where they lie, or converted on the way."""
        is_run = self.is_row and self.last_steps[Role.X] == 1 and not self.settings.scales_input
        return self.pooling.family.works_in_place and is_run

    @property
    def stretches(self) -> int:
        """Stretches of the last axis: two for doubled runs, or for kept rows, and one for a copy of cells."""
        return 3 if self.is_row or self.is_transposed else 0

    def _scans(self, axis: ReducedAxis) -> bool:
        volume = prod(other.kernel for other, _ in self.axes)
        return axis.scans and volume >= self.pooling.family.scan_volume * axis.kernel

    @cached_property
    def slabs(self) -> list[int]:
        """Per axis the outputs of the later ones."""
        outputs = [axis.outputs for axis, _ in self.axes]
        return [prod(outputs[i + 1 :]) for i in range(len(outputs))]

    @cached_property
    def rings(self) -> list[int]:
        """Where the ring of each axis begins, and where the last one ends.

        The finished slab of the first axis comes first; a ring has a slab per row, and one more for the prefix. Values
        that are written directly to the output need no slab, and fused axes no ring; where slabs of cells are joined,
        one takes the ring's place.
        """
        is_slabless = self.is_direct and len(self.pooling.components) == 1
        finished = self.slabs[0] if len(self.axes) > 1 or not self.is_row else self.tile
        if len(self.axes) == 2 and self.schedule in (Schedule.ROWS, Schedule.TRANSPOSE_ROWS):
            finished *= self.axes[0][0].outputs
        found = [0 if is_slabless else finished]
        for i, (axis, _) in enumerate(self.axes):
            fused = Schedule.ROW, Schedule.ROWS, Schedule.TRANSPOSE_ROWS, Schedule.RUNS
            is_straight = i == len(self.axes) - 2 and self.schedule in fused
            is_ringless = self.is_row or self.is_transposed or self.reads_runs
            has_ring = (i < len(self.axes) - 1 or not is_ringless) and not is_straight
            room = self.slabs[i] * (axis.slots + self._scans(axis)) if has_ring else 0
            found.append(found[-1] + (self._slab_cells(i) if self._joins_slabs(i) else room))
        return found

    def _is_one_small_row(self) -> bool:
        """Whether rows of one axis, in whose runs winners are found, are many or short enough to be one unit each."""
        ((axis, _),) = self.axes
        is_small = self.reads_runs and self.pooling.family.finds_winners
        return is_small and (self.planes >= UNITS_WANTED or axis.size <= LONGEST_TILE)

    @cached_property
    def gathering(self) -> Gathering:
        """Cotangents of small windows are gathered, which takes time for every tap; others are scattered."""
        (first, _), (last, steps) = self.axes[0], self.axes[-1]
        if self.gathers_runs:
            windows = (first.kernel - 1) // first.stride + 1
            return Gathering(is_used=True, in_runs=True, accumulators_at=self.ring_end, slots=windows)
        if not self._gathers():
            return Gathering()
        is_dense = steps[Role.V] == self.inner_total == self.inner and (self.is_row or self.inner_strides[Role.V] == 1)
        is_in_place = is_dense and (
            last.kernel <= 3 if last.stride == 1 else last.stride == 2 <= last.kernel <= 4 and self.is_row
        )
        sums_at = self.ring_end + self.stretches * self.tile_room
        return Gathering(
            is_used=True,
            is_in_place=is_in_place,
            sums_at=sums_at,
            accumulators_at=sums_at + last.stride * self.phase,
            slots=first.kernel,
            pitch=self.margin + self.phase,
            margin=self.margin,
            chunk=self._chunk(sums_at + last.stride * self.phase + self.accumulator_places)
            if is_in_place
            else RowChunk(),
        )

    def _chunk(self, at: int) -> RowChunk:
        """Chunks of 3 × 3 windows in planes of adjacent cells, if winners are needed for nothing else."""
        (first, steps), last = self.axes[0], self.last
        is_plane = len(self.axes) == 2 and {Role.X} <= {*self.pooling.roles} <= {Role.X, Role.Y, Role.U, Role.V}
        is_square = first.kernel == last.kernel == 3 and first.stride == last.stride <= 2
        are_rows = self.is_row and self.last_steps[Role.X] == self.last_steps[Role.U] == 1
        if not (is_plane and is_square and are_rows and last.outputs <= LONGEST_TILE):
            return RowChunk()
        is_even = last.size == last.stride * last.outputs and last.low == 1 and self.is_direct
        is_run = is_even and last.outputs >= SHORTEST_RUN and self._are_runs(steps)
        pitch = last.outputs if is_run else self.margin + self.phase
        rows = max(1, min(first.outputs, (LARGEST_CHUNK // pitch - 3) // first.stride + 1))
        cells = first.stride * (rows - 1) + 3
        largest_at = at + self.margin
        accumulators_at = largest_at + cells * pitch + self.margin
        return RowChunk(rows, is_run, cells if is_run else 1, pitch, largest_at, accumulators_at)

    def _are_runs(self, steps: PerArray) -> bool:
        """Whether rows follow each other in every array."""
        cells, outputs = self.last.size, self.last.outputs
        return steps[Role.X] == steps[Role.V] == cells and steps[Role.U] == outputs == steps[Role.Y]

    def _finds_in_runs(self) -> bool:
        """Whether winners of small windows are found in runs of neighbours. Tangents that take their place must lie as
        cells do."""
        is_run = self.inner_total > 1 and self.inner_strides[Role.X] == 1 and not self.is_transposed
        if len(self.axes) < 2 or not (self.pooling.family.finds_winners and is_run and self._are_squares()):
            return False
        steps = (self.inner_strides, *(steps for _, steps in self.axes))
        lie_alike = all(each[Role.U] == each[Role.X] for each in steps)
        return not self.pooling.carries_tangents or (lie_alike and not self.has_holes)

    @cached_property
    def gathers_runs(self) -> bool:
        """Whether the cotangents of such winners are gathered in runs, too."""
        roles, inner = {*self.pooling.roles}, self.inner_strides
        is_pull = {Role.X, Role.U, Role.V} <= roles <= {Role.X, Role.Y, Role.U, Role.V} and self.settings.is_vjp
        are_runs = inner[Role.U] == inner[Role.V] == 1 and all(axis.stride <= axis.kernel for axis, _ in self.axes)
        is_plane = len(self.axes) == 2 and self._finds_in_runs() and not self.has_holes
        return is_plane and is_pull and are_runs and self.accumulator_places <= MOST_ACCUMULATORS

    def _gathers(self) -> bool:
        """Whether cells gather cotangents. The windows decide, so that sums have one order with and without a tape; if
        no two windows share a cell, there is only one order."""
        has_winners = self.pooling.family.finds_winners or Role.TAPE in self.pooling.roles
        if not (self.settings.is_vjp and has_winners) or len(self.axes) not in (2, 3) or self.writes_all_cells:
            return False  # in four dimensions so many rows contribute to a cell that scattering costs less
        axes = [axis for axis, _ in self.axes]
        are_small = all(
            axis.kind is AxisKind.SLIDING and axis.dilation == 1 and min(axis.outputs, axis.size) > 0 for axis in axes
        )
        if not are_small or self.has_holes or prod(axis.kernel for axis in axes) > MOST_GATHERED:
            return False
        is_sent = self.are_disjoint and self.last.stride > 2
        return not is_sent and self.accumulator_places <= MOST_ACCUMULATORS

    @property
    def gathering_end(self) -> int:
        if not self.gathering.is_used:
            return self.ring_end
        chunk = self.gathering.chunk
        if self.gathering.in_runs:
            return self.gathering.accumulators_at + self.gathering.slots * self.last.outputs
        if chunk.rows:
            return chunk.accumulators_at + (self.axes[0][0].stride * (chunk.rows - 1) + 3) * chunk.pitch + self.margin
        return self.gathering.accumulators_at + self.accumulator_places

    @property
    def phase(self) -> int:
        """Places of a row of cells in each of its phases."""
        return -(-(self.last.low + self.last.size) // self.last.stride)

    @property
    def margin(self) -> int:
        """Windows that cover a cell, except the first."""
        return (self.last.kernel - 1) // self.last.stride

    @property
    def accumulator_places(self) -> int:
        """Places in the accumulators of all rows of cells at a time."""
        rows = self.axes[0][0].kernel * prod(axis.size for axis, _ in self.axes[1:-1])
        return rows * (self.margin + self.phase)

    @property
    def are_disjoint(self) -> bool:
        return all(axis.is_disjoint for axis, _ in self.axes)

    @property
    def ring_end(self) -> int:
        return self.rings[-1]

    @cached_property
    def tile(self) -> int:
        """Outputs of the last axis that are reduced at a time."""
        is_long = len(self.axes) > 1 or len(self.pooling.components) == 1
        longest = LONGEST_TILE if is_long else LONGEST_TILE // 4
        return max(1, min(self.last.outputs, longest, 4 * LONGEST_TILE // self.last.stride))

    @cached_property
    def tile_room(self) -> int:
        """The cells that a tile reads."""
        axis = self.last
        if axis.kind is AxisKind.BINS:
            return axis.size * self.inner if self.is_transposed else min(LONGEST_TILE * 2, axis.size)
        if axis.kind is AxisKind.EXPANDING:
            return (self.tile + axis.reach) // axis.stride + 3
        return (self.tile - 1) * axis.stride + axis.reach + 1

    def _plane_bytes(self) -> int:
        """Bytes of the float32 plane of a 16-bit cotangent."""
        if not self.settings.is_vjp or self.pooling.stored >= 4 or self.gathering.is_used:
            return 0
        rows = -(-self.axes[0][0].size // self.bands)
        return 4 * self.inner * rows * prod(axis.size for axis, _ in self.axes[1:])


def _take_inner(leads: list[LeadAxis], last: Axis) -> tuple[int, PerArray]:
    """Take a leading axis whose elements are adjacent in memory: they are pooled side by side."""
    axis, steps = last
    if steps[Role.X] != 1 and axis.size != 1:
        for i, (n, s) in enumerate(leads):
            if s[Role.X] == 1:
                del leads[i]
                return n, s
    return 1, NOWHERE


# --- inverses of divisors, by which kernels make rounded quotients without a division ---------------------------------

NEGLIGIBLE = 2.0**-60


def inverse_of(divisor: float, computed: int) -> tuple[float, float]:
    """``1/divisor`` as the sum of two numbers of so many bytes: rounded towards 0, and what is missing; or zeros.

    With ``1/d ≈ r + s`` a quotient ``x/d`` is ``x·r + x·s``, the sum rounded once with the first product. For numbers
    of p bits ``s < 2^(1−p)·r``, so before that rounding the error is below ``2^(2−2p)`` of the quotient: s is rounded,
    and so is ``x·s``. The quotient is rounded correctly unless a midpoint between two numbers lies so close. Midpoints
    are ``m·2^e`` with an odd m of p + 1 bits. If d is D times a power of two, D odd, ``x/d`` differs from a midpoint by
    ``1/D`` of such a power at least, which is more than ``2^−p/(2D)`` of it: enough for ``D ≤ 2^(p−4)``.

    Both numbers have one sign, so that an infinite x has an infinite quotient. For a power of two nothing is missing;
    a negligible number instead of 0 changes no quotient, and keeps ∞·0 away.

    >>> inverse_of(3.0, 4)
    (0.3333333134651184, 1.9868215517249155e-08)
    >>> inverse_of(0.1, 4)
    (0.0, 0.0)
    """
    number, digits = (np.float64, 53) if computed == 8 else (np.float32, 24)
    odd = Fraction(abs(frexp(divisor)[0])).numerator
    if not 1 / NEGLIGIBLE > abs(divisor) > NEGLIGIBLE or odd > 2 ** (digits - 4):
        return 0.0, 0.0
    exact = 1 / Fraction(divisor)
    inverse = number(1) / number(divisor)
    if abs(Fraction(float(inverse))) > abs(exact):
        inverse = np.nextafter(inverse, number(0))
    missing = float(exact - Fraction(float(inverse))) or float(inverse) * NEGLIGIBLE
    return float(inverse), float(number(missing))
