"""From windows and strides to the block of integers that a pooling kernel is given (``fields``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod
from struct import Struct, pack, unpack
from typing import Any

import numpy as np

from gradspec.backends.cpu.kernels import fields as f
from gradspec.codegen.addresses import address
from gradspec.graph.ir import Array
from gradspec.spec.window import Adaptive, AxisWindow, Window

LONGEST_TILE = 2048
LONGEST_TABLE = 4096
INNER_BLOCK = 64
UNITS_WANTED = 32


@dataclass(frozen=True)
class Axis:
    """One spatial axis as kernels see it: of which kind, and its numbers."""

    kind: int
    size: int
    outputs: int
    kernel: int
    stride: int = 1
    low: int = 0
    high: int = 0
    dilation: int = 1
    window: AxisWindow | None = None
    """The window whose outputs are counted, which for an axis read backwards are its inputs."""

    @property
    def reach(self) -> int:
        return self.dilation * (self.kernel - 1)

    @property
    def is_empty_somewhere(self) -> bool:
        return self.kind == f.SLIDING and not real_cells(self.window).all()

    @property
    def inside(self) -> tuple[int, int]:
        """The outputs of sliding windows whose taps are all real: the first, and the first after them."""
        first = min(-(-self.low // self.stride), self.outputs)
        end = (self.size - 1 - self.reach + self.low) // self.stride + 1
        return first, min(max(end, first), self.outputs)

    @property
    def slots(self) -> int:
        """The most rows that are put together at a time."""
        if self.kind != f.EXPANDING:
            return self.kernel
        stride = self.stride // gcd(self.stride, self.dilation)  # among the windows of one residue class
        return -(-self.kernel // stride) + 1

    @property
    def scans(self) -> bool:
        """Whether prefixes and suffixes cost less than putting together: three steps a row against one a tap."""
        return self.kind == f.SLIDING and self.kernel > 4 * self.stride + 3

    @property
    def doubles(self) -> bool:
        """The same along the last axis, where runs are doubled."""
        return self.kind == f.SLIDING and self.kernel >= (8 if self.stride <= 2 else 4 * self.stride)


def axis_of(window: AxisWindow) -> Axis:
    if isinstance(window, Adaptive):
        size, outputs = window.size, window.outputs
        if size % outputs == 0 and outputs > 1:
            return Axis(f.SLIDING, size, outputs, size // outputs, size // outputs, window=window)
        # In lowest terms n/m, bin o has ⌈(r + n)/m⌉ cells, where r = o·n mod m is every remainder once, m − 1 too.
        cells, bins = size // gcd(size, outputs), outputs // gcd(size, outputs)
        return Axis(f.BINS, size, outputs, (cells - 2) // bins + 2, window=window)
    w = window
    return Axis(f.SLIDING, w.size, w.outputs, w.kernel, w.stride, w.lo, w.hi, w.dilation, window)


def backwards(axis: Axis) -> Axis:
    """The axis on which cells read the windows that cover them."""
    size, outputs = axis.outputs, axis.size
    if axis.kind == f.BINS:
        # Bin o of m reaches cell p of n exactly if cell p of n, as a bin, reaches bin o of m as a cell.
        return replace(axis_of(Adaptive(size, outputs)), window=axis.window)
    if axis.stride == 1:
        return replace(axis, size=size, outputs=outputs, low=axis.reach - axis.low)
    return replace(axis, kind=f.EXPANDING, size=size, outputs=outputs)


Counts = np.ndarray[Any, np.dtype[np.int64]]


def counted_taps(window: Any) -> Counts:
    """The taps of each output, padding included."""
    if isinstance(window, Adaptive):
        o = np.arange(window.outputs)
        return np.asarray(-(-(o + 1) * window.size // window.outputs) - o * window.size // window.outputs)
    start = np.arange(window.outputs) * window.stride - window.lo
    return np.asarray(np.minimum(window.kernel, -((start - window.size - window.hi) // window.dilation)))


def real_cells(window: Any) -> Counts:
    """The real cells of each output."""
    if isinstance(window, Adaptive):
        return counted_taps(window)
    start = np.arange(window.outputs) * window.stride - window.lo
    first = np.maximum(0, -(start // window.dilation))
    end = np.minimum(window.kernel, -((start - window.size) // window.dilation))
    return np.asarray(np.maximum(end - first, 0))


def _spans(window: Adaptive) -> Counts:
    """Where each bin begins, and how many cells it has."""
    starts = np.arange(window.outputs) * window.size // window.outputs
    return np.stack([starts, counted_taps(window)], axis=1)


@dataclass(frozen=True)
class Roles:
    """What a kernel does with its arrays: the field of each, in the order in which they are bound."""

    fields: tuple[int, ...]
    settings: Mapping[int, int]
    """Header fields that do not depend on layouts."""
    components: tuple[int, ...]
    """Bytes per element of each part of a running result."""
    stored: int
    """Bytes per stored number."""
    sizes: tuple[int, ...]
    """Bytes per element of each array."""
    reads_in_place: bool = False
    """Whether the kernel reads cells where they lie if it can, and needs a copy of them only where it cannot."""
    is_quiet: bool = False
    """Whether a result that no window lacks cells for needs nothing more."""
    counts: Callable[[Any], Counts] | None = None
    """What fills the tables COUNTED, if anything does."""
    reals: bool = False
    """Whether the tables REAL are wanted."""
    scan_volume: int = 0
    """Along an axis, prefixes are used only where a window has this many cells per tap of the axis."""
    lists_taps: bool = False
    """Whether a table of the taps of the last axis takes the place of that of a window's cells."""


def cells_of(roles: Roles) -> frozenset[int]:
    """The fields whose arrays have the shape of the input; the others have that of the output."""
    pulls = roles.settings.get(f.PULLS, 0)
    return frozenset({f.X, f.V if pulls else f.U})


Strides = tuple[int, ...]


@dataclass(frozen=True)
class Bound:
    """What one call needs for arrays laid out in one way, all but their addresses."""

    rest: bytes
    units: int
    workspace: int


class Tables:
    """The tables that blocks point to. They differ little from layout to layout and live as long as their binder."""

    def __init__(self) -> None:
        self._known: dict[bytes, Array] = {}

    def at(self, table: Array) -> int:
        """The address of a table with this content."""
        return address(self._known.setdefault(table.tobytes(), table))


class Binder:
    """Blocks of arguments for any arrays of given shapes. Layouts that were met before cost a dictionary lookup."""

    def __init__(self, axes: Sequence[Axis], leads: Sequence[int], roles: Roles) -> None:
        self.axes, self.leads, self.roles = tuple(axes), tuple(leads), roles
        self._bound: dict[tuple[Strides, ...], Bound] = {}
        self._tables = Tables()
        self._pack = Struct(f"<{f.ARRAYS}q").pack
        self._order = [roles.fields.index(i) if i in roles.fields else -1 for i in range(f.ARRAYS)]

    def __call__(self, *arrays: Array) -> tuple[bytes, int, int]:
        """The block, the units and the workspace of a call on these arrays."""
        layout = tuple([a.strides for a in arrays])
        bound = self._bound.get(layout)
        if bound is None:
            if len(self._bound) >= 64:
                self._bound.clear()
            bound = self._bound.setdefault(layout, self._for_strides(layout))
        addresses = [address(arrays[i]) if i >= 0 else 0 for i in self._order]
        return self._pack(*addresses) + bound.rest, bound.units, bound.workspace

    def _for_strides(self, layout: Sequence[Strides]) -> Bound:
        """For arrays of these strides, in bytes."""
        sized = zip(layout, self.roles.sizes, strict=True)
        return self._for_steps([[s // size for s in strides] for strides, size in sized])

    def _for_steps(self, steps: Sequence[Sequence[int]]) -> Bound:
        strides = dict(zip(self.roles.fields, steps, strict=True))
        return _Layout(self.axes, self.leads, self.roles, strides, self._tables).bound()

    def dense(self) -> Bound:
        """For C-contiguous arrays."""
        inputs, outputs = ([*self.leads, *(getattr(a, n) for a in self.axes)] for n in ("size", "outputs"))
        cells = cells_of(self.roles)
        return self._for_steps([c_strides(inputs if i in cells else outputs) for i in self.roles.fields])


def c_strides(shape: Sequence[int]) -> Strides:
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


class _Layout:
    """Arrays of known strides, on their way to a block."""

    def __init__(
        self,
        axes: Sequence[Axis],
        leads: Sequence[int],
        roles: Roles,
        steps: Mapping[int, Sequence[int]],
        tables: Tables,
    ) -> None:
        self.roles, self.tables = roles, tables
        padded = {i: (*s, *[0] * len(axes)) for i, s in steps.items()}  # one axis of one cell stands for none
        strides = [[padded[i][j] if i in padded else 0 for i in range(f.ARRAYS)] for j in range(len(leads) + len(axes))]
        self.leads = [(n, s) for n, s in zip(leads, strides[: len(leads)], strict=True) if n != 1]
        self.axes = list(zip(axes, strides[len(leads) :], strict=True))
        self._take_inner()
        self.leads = _merged_leads(self.leads)
        self._merge_whole_axes()

    def _take_inner(self) -> None:
        """Neighbours in memory are pooled side by side if they belong to a leading axis."""
        self.inner, self.inner_strides = 1, [0] * f.ARRAYS
        last, steps = self.axes[-1]
        if steps[f.X] == 1 or last.size == 1:
            return
        for i, (n, s) in enumerate(self.leads):
            if s[f.X] == 1:
                self.inner, self.inner_strides = n, s
                del self.leads[i]
                return

    def _merge_whole_axes(self) -> None:
        """Neighbouring axes that one bin covers are one axis, if their cells follow each other in memory.

        Read backwards, the cells are windows, each to be divided by its own number of taps along every axis.
        """
        if self.roles.settings.get(f.SCALED, 0):
            return
        cells = cells_of(self.roles) & set(self.roles.fields)
        merged = [self.axes[0]]
        for axis, steps in self.axes[1:]:
            before, before_steps = merged[-1]
            whole = before.kind == axis.kind == f.BINS and before.outputs == axis.outputs == 1
            if whole and all(before_steps[i] == axis.size * steps[i] for i in cells):
                size = before.size * axis.size
                merged[-1] = (Axis(f.BINS, size, 1, size, window=Adaptive(size, 1)), steps)
            else:
                merged.append((axis, steps))
        self.axes = merged

    # --- sizes ------------------------------------------------------------------------------------------------------

    def bound(self) -> Bound:
        blocks = -(-self.inner // INNER_BLOCK)
        inner = -(-self.inner // blocks)
        planes = prod(n for n, _ in self.leads) * blocks
        bands = self._bands(planes)
        is_direct, is_scaled = self._is_direct(blocks), self.roles.settings.get(f.SCALED, 0)
        planar = self._planar(is_direct)
        slabs, rings, end = self._slabs(is_direct, planar)
        tile, room = self._tile()
        unused, stretches = self._stretches(planar)
        tile_at = end * inner - unused * room
        component = -(-(end * inner + stretches * room) // 16) * 16
        table = self._table_room()
        table_at = 8 * f.FRAME + component * sum(self.roles.components)
        table_at = -(-table_at // 64) * 64
        plane_at = table_at + 16 * table
        workspace = plane_at + self._plane_bytes(bands, inner)
        has_holes = not is_scaled and any(axis.is_empty_somewhere for axis, _ in self.axes)
        is_run = is_direct and self._is_run() and bands == self.inner == 1
        shares = self._shares() if is_run and not has_holes else 0
        header = [0] * (f.HEADER - f.ARRAYS)
        fixed = {
            f.RANK: len(self.axes),
            f.LEADS: len(self.leads),
            f.AXES: f.HEADER + f.LEAD * len(self.leads),
            f.INNER: inner,
            f.INNER_TOTAL: self.inner,
            f.BLOCKS: blocks,
            f.BANDS: bands,
            f.HOLES: int(has_holes),
            f.WHOLE: int(is_direct and bands == blocks == 1 and len(self.leads) <= 1 and self._is_whole()),
            f.APART: int(all(a.kind == f.SLIDING and a.stride > a.reach for a, _ in self.axes)),
            f.QUIET: 2 if shares else int(self.roles.is_quiet and is_direct and not has_holes),
            f.SHARES: shares,
            f.ROWS: prod(axis.outputs for axis, _ in self.axes[1:-1]),
            f.DIRECT: int(is_direct),
            f.TILE: tile,
            f.TILE_AT: tile_at,
            f.TILE_ROOM: room,
            f.TABLE_AT: table_at,
            f.TABLE_ROOM: table,
            f.COMPONENT: component,
            f.PLANE_AT: plane_at,
            **{f.INNER_STRIDE + i: s for i, s in enumerate(self.inner_strides)},
            **self.roles.settings,
        }
        for field, value in fixed.items():
            header[field - f.ARRAYS] = value
        numbers = header + [x for n, s in self.leads for x in (n, *s)]
        for i, (axis, steps) in enumerate(self.axes):
            numbers += self._axis_record(i, axis, steps, slabs[i], rings[i], planar)
        return Bound(pack(f"<{len(numbers)}q", *numbers), planes * bands, -(-workspace // 64) * 64)

    def _axis_record(self, i: int, axis: Axis, steps: Sequence[int], slab: int, ring: int, planar: int) -> list[int]:
        is_row = i == len(self.axes) - 1 and self.inner == 1
        record = [0] * f.AXIS
        record[f.KIND], record[f.SIZE], record[f.OUTPUTS] = axis.kind, axis.size, axis.outputs
        record[f.KERNEL], record[f.STRIDE], record[f.DILATION] = axis.kernel, axis.stride, axis.dilation
        record[f.LOW], record[f.HIGH] = axis.low, axis.high
        record[f.SCANS] = int(axis.doubles if is_row else self._scans(axis))
        record[f.PLANAR] = planar if i == len(self.axes) - 2 else 0
        record[f.VOLUME] = prod(later.kernel for later, _ in self.axes[i + 1 :])
        record[f.SLAB], record[f.RING], record[f.SLOTS] = slab, ring, axis.slots
        record[f.INSIDE], record[f.BEYOND] = axis.inside
        record[f.SPANS] = self._table(_spans if axis.kind == f.BINS else None, axis)
        record[f.COUNTED] = self._table(self.roles.counts, axis)
        record[f.REAL] = self._table(real_cells if self.roles.reals else None, axis)
        record[f.STRIDES :] = steps
        return record

    def _planar(self, is_direct: bool) -> int:
        """Whether the last two axes are reduced together, straight from memory, and in which way.

        Values alone may be reduced along the rows last. At stride 1 that does not pay, because rows that were just made
        would be read before they reach the cache. Windows of 3 × 3 and 2 × 2 at stride 2 are read as they are, and so
        are 3 × 3 at stride 1 where output and input are equally wide.
        """
        if len(self.axes) < 2 or self.inner != 1 or f.X not in self.roles.fields or not self._is_in_place():
            return 0
        (before, before_steps), (last, _) = self.axes[-2:]
        alone = self.roles.fields == (f.X, f.Y)
        kinds = {before.kind, last.kind}
        simple = kinds <= {f.SLIDING, f.BINS} and not before.scans and before.dilation == 1
        if not simple:
            return 0
        shape = before.kernel, before.stride
        if shape != (last.kernel, last.stride) or last.dilation != 1 or f.BINS in kinds:
            shape = (0, 0)
        if not alone:
            return 3 if shape in ((3, 1), (3, 2), (2, 2)) and last.outputs <= LONGEST_TILE else 0
        widths_agree = last.outputs == last.size > 2 and before_steps[f.X] == last.size
        many = shape in ((3, 2), (2, 2)) or (shape == (3, 1) and widths_agree)
        return 2 if many and (len(self.axes) > 2 or (is_direct and self._is_run())) else int(before.stride > 1)

    def _table(self, counts: Callable[[Any], Counts] | None, axis: Axis) -> int:
        if counts is None or axis.window is None:
            return 0
        about = Adaptive(axis.size, axis.outputs) if counts is _spans else axis.window
        return self.tables.at(np.ascontiguousarray(counts(about), np.int64))

    def _is_in_place(self) -> bool:
        """Whether rows of cells are read where they lie: neither converted nor divided nor gathered."""
        is_as_computed = self.roles.stored == self.roles.components[0] and not self.roles.settings.get(f.SCALED, 0)
        return self.roles.reads_in_place and is_as_computed and self.axes[-1][1][f.X] == 1

    def _stretches(self, planar: int) -> tuple[int, int]:
        """How many stretches of the last axis are not needed, and how many are after them.

        There are three: two whose runs are doubled in turns, or rows that are kept, and before these a copy of cells.
        Values have that copy last, after the two.
        """
        last, alone = self.axes[-1][0], len(self.roles.components) == 1
        if self.inner > 1:
            return 0, 0
        if not self.roles.reads_in_place or last.doubles or planar == 3:
            return 0, 3
        copies = int(not self._is_in_place() or planar > 0)
        if alone and (last.kind == f.SLIDING or planar):
            return 2, copies
        return 0, 1 if last.kind == f.EXPANDING else copies

    def _scans(self, axis: Axis) -> bool:
        volume = prod(other.kernel for other, _ in self.axes)
        return axis.scans and volume >= self.roles.scan_volume * axis.kernel

    def _slabs(self, is_direct: bool, planar: int) -> tuple[list[int], list[int], int]:
        """Per axis the outputs of the later ones and where its ring begins, and where the last ring ends.

        The finished slab of the first axis comes first; a ring has a slab per row, and one more for the prefix. Values
        that go straight to the output need no slab, and rows that are read straight from memory no ring.
        """
        outputs = [axis.outputs for axis, _ in self.axes]
        slabs = [prod(outputs[i + 1 :]) for i in range(len(outputs))]
        finished = slabs[0] if len(outputs) > 1 or self.inner > 1 else self._tile()[0]
        rings, end = [], 0 if is_direct and len(self.roles.components) == 1 else finished
        for i, (axis, _) in enumerate(self.axes):
            rings.append(end)
            if (i < len(outputs) - 1 or self.inner > 1) and not (i == len(outputs) - 2 and planar in (1, 2)):
                end += slabs[i] * (axis.slots + int(self._scans(axis)))
        return slabs, rings, end

    def _tile(self) -> tuple[int, int]:
        """How many outputs of the last axis are made at a time, and the cells that they read."""
        axis, _ = self.axes[-1]
        longest = LONGEST_TILE if len(self.axes) > 1 or len(self.roles.components) == 1 else LONGEST_TILE // 4
        tile = max(1, min(axis.outputs, longest, 4 * LONGEST_TILE // axis.stride))
        if axis.kind == f.BINS:
            return tile, min(LONGEST_TILE * 2, axis.size)
        if axis.kind == f.EXPANDING:
            return tile, (tile + axis.reach) // axis.stride + 3
        return tile, (tile - 1) * axis.stride + axis.reach + 1

    def _bands(self, planes: int) -> int:
        """Enough units for every thread, while a band has more rows of its own than it shares with the next."""
        if planes >= UNITS_WANTED or not planes:
            return 1
        axis, _ = self.axes[0]
        if len(self.axes) == 1 and self.inner == 1:
            longest = axis.outputs // LONGEST_TILE
        else:
            longest = axis.outputs // max(4, 2 * -(-(axis.reach + 1) // axis.stride))
        return max(1, min(-(-UNITS_WANTED // planes), longest, axis.size))

    def _shares(self) -> int:
        """Where the divisors of all outputs of a small plane lie."""
        counts, outputs = self.roles.counts, [axis.outputs for axis, _ in self.axes]
        if counts is None or self.roles.settings.get(f.SCALED, 0) or prod(outputs) > LONGEST_TABLE:
            return 0
        shares = np.ones((), np.int64)
        for axis, _ in self.axes:
            shares = np.multiply.outer(shares, counts(axis.window))
        computed = np.float64 if self.roles.components[0] == 8 else np.float32
        return self.tables.at(np.ascontiguousarray(shares, computed))

    def _is_whole(self) -> bool:
        """Whether the plane is one run of cells with one output and one divisor."""
        axis, steps = self.axes[0]
        alone = len(self.axes) == 1 and self.inner == 1 and self.roles.fields == (f.X, f.Y)
        one = axis.kind == f.BINS and axis.outputs == 1 and steps[f.X] == 1
        return alone and one and not self.roles.settings.get(f.SCALED, 0) and self.roles.counts is None

    def _table_room(self) -> int:
        if self.roles.lists_taps:
            last, _ = self.axes[-1]
            return last.kernel if last.kind == f.SLIDING else 0
        volume = prod(axis.kernel for axis, _ in self.axes)
        wanted = any(i in self.roles.fields for i in (f.U, f.V, f.INDICES)) and f.X in self.roles.fields
        wanted = wanted or f.TAPE in self.roles.fields
        return volume if wanted and volume <= LONGEST_TABLE else 0

    def _plane_bytes(self, bands: int, inner: int) -> int:
        if not self.roles.settings.get(f.PULLS, 0) or self.roles.stored >= 4:
            return 0
        rows = -(-self.axes[0][0].size // bands)
        return 4 * inner * rows * prod(axis.size for axis, _ in self.axes[1:])

    def _is_run(self) -> bool:
        """Whether the slabs of a plane follow each other in the output, if they are dense there."""
        axis, steps = self.axes[0]
        return axis.outputs == 1 or steps[f.Y] == self.inner * prod(later.outputs for later, _ in self.axes[1:])

    def _is_direct(self, blocks: int) -> bool:
        """Whether finished slabs can be put together in the output itself, unless the kernel says no."""
        if not self.roles.settings.get(f.DIRECT, 1):
            return False
        if f.Y not in self.roles.fields or self.roles.stored != self.roles.components[0] or blocks != 1:
            return False
        step = self.inner
        if self.inner > 1 and self.inner_strides[f.Y] != 1:
            return False
        for axis, steps in reversed(self.axes[1:]):
            if axis.outputs > 1 and steps[f.Y] != step:
                return False
            step *= axis.outputs
        return len(self.axes) > 1 or self.inner > 1 or self.axes[0][1][f.Y] == 1 or self.axes[0][0].outputs == 1


def _merged_leads(leads: Sequence[tuple[int, list[int]]]) -> list[tuple[int, list[int]]]:
    """Neighbouring leading axes as one wherever every array allows it."""
    merged: list[tuple[int, list[int]]] = []
    for n, steps in leads:
        if merged and all(before == n * s for before, s in zip(merged[-1][1], steps, strict=True)):
            merged[-1] = (merged[-1][0] * n, steps)
        else:
            merged.append((n, steps))
    return merged


def as_bits(value: float) -> int:
    """A float64 as the integer of the same bits.

    >>> as_bits(1.0) == 0x3FF << 52
    True
    """
    (bits,) = unpack("<q", pack("<d", value))
    return int(bits)


def spatial_axes(window: Window) -> tuple[Axis, ...]:
    """The axes of a window; one cell where it has none.

    >>> spatial_axes(Window(()))[0].size
    1
    """
    return tuple(map(axis_of, window.axes)) or (axis_of(Adaptive(1, 1)),)
