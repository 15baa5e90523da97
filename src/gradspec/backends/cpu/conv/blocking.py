"""How convolutions are cut into blocks of columns, chunks of channels and parts of rows: units of work."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import accumulate, product
from math import gcd, prod

import numpy as np

from gradspec.backends.cpu.conv.arguments import CaseAxis
from gradspec.backends.cpu.planning import COMPUTED, Strides, regular_axes
from gradspec.codegen.processor import processor
from gradspec.codegen.records import Words, record_from
from gradspec.graph.types import TensorType
from gradspec.ops.conv import Convolution
from gradspec.runtime.threads import get_num_threads
from gradspec.spec.window import Regular

# --- where convolutions read: lines, cases and the tables of offsets (see arguments) ----------------------------------


@dataclass(frozen=True)
class Line:
    """One axis of a case: position ``q`` and tap ``u`` meet the cell ``q·stride + first + u·step``.

    The positions are the outputs ``out, out + out_step, …``, the taps those of the weights from ``tap`` on,
    ``tap_step`` apart.
    """

    positions: int
    size: int
    stride: int = 1
    first: int = 0
    taps: int = 1
    step: int = 0
    out: int = 0
    out_step: int = 1
    tap: int = 0
    tap_step: int = 1


def reading(axis: Regular) -> list[Line]:
    """The one line of an axis that is read as its window says."""
    return [Line(axis.outputs, axis.size, axis.stride, -axis.lo, axis.kernel, axis.dilation)]


def writing(axis: Regular) -> list[Line]:
    """The lines of an axis that is read backwards: one for each residue of its cells.

    Cell ``i`` receives from output ``o`` through tap ``t`` if ``o·s = i + lo − d·t``. With ``i = i₀ + s·q``, the taps
    that fit are ``t₀, t₀ + s/g, …``, ``g = gcd(s, d)``, and each is ``d/g`` outputs before the last.

    >>> [(l.positions, l.taps, l.first, l.step) for l in writing(Regular(6, 3, 2, 1, 1, 1, 3))]
    [(3, 1, 0, -1), (3, 2, 1, -1)]
    """
    s, d, common = axis.stride, axis.dilation, gcd(axis.stride, axis.dilation)
    return [_backwards(axis, cell, s, d, common) for cell in range(min(s, axis.size))]


def _backwards(axis: Regular, cell: int, s: int, d: int, common: int) -> Line:
    positions, period = -(-(axis.size - cell) // s), s // common
    fits = (cell + axis.lo) % common == 0
    tap = (cell + axis.lo) // common * pow(d // common, -1, period) % period  # d·t = cell + lo modulo s
    if not fits or tap >= axis.kernel:
        return Line(positions, axis.outputs, taps=0, out=cell, out_step=s)
    first, taps = (cell + axis.lo - d * tap) // s, -(-(axis.kernel - tap) // period)
    return Line(positions, axis.outputs, 1, first, taps, -d // common, cell, s, tap, period)


def all_sums(parts: Iterable[Words]) -> Words:
    """Every sum of an offset of each part, those of the last one beside each other.

    >>> all_sums([np.array([0, 100]), np.array([1, 2, 3])]).tolist()
    [1, 2, 3, 101, 102, 103]
    """
    return reduce(np.add.outer, parts, np.zeros((), np.int64)).reshape(-1)


# --- cases ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Blocking:
    """Which axis runs, how many columns a block has at most, and how many channels are staged at once."""

    run: int
    columns: int
    chunk: int
    slides: bool = False
    """Whether taps of the last axis are shifts as well. Rows have gaps between them then, and blocks are whole rows."""


@dataclass(frozen=True)
class Staged:
    """How one axis of a case is staged: planes, and how far positions shift from one tap to the next in a plane."""

    planes: int
    shift: int = 0
    halo: int = 0

    @classmethod
    def of(cls, line: Line, positions: int) -> Staged:
        """Taps share cells unless that would stage more cells that nobody reads than cells that are read."""
        if line.taps > 1:
            planes = line.stride // gcd(line.stride, abs(line.step))
            shift = line.step * planes // line.stride
            halo = (-(-line.taps // planes) - 1) * abs(shift)
            if planes < line.taps and halo <= max(positions, 8):
                return cls(planes, shift, halo)
        return cls(line.taps)

    def first(self, taps: int) -> int:
        """Where the positions of the first tap begin, so that none begin before 0."""
        return max(0, -self.shift) * (max(0, taps - 1) // max(1, self.planes))

    def shifts(self, taps: int) -> Words:
        """Where the positions of each tap begin."""
        return self.first(taps) + np.arange(taps) // max(1, self.planes) * self.shift


class Case:
    """A product of lines, the leading axes first, cut into blocks."""

    def __init__(self, lines: Sequence[Line], blocking: Blocking, lanes: int) -> None:
        self.lines, self.blocking = lines, blocking
        self._taps: dict[Strides, Words] = {}
        run = blocking.run
        self.positions = [line.positions for line in lines]
        self.inner, self.total = prod(self.positions[run + 1 :]), prod(self.positions[run:])
        self.outer = prod(self.positions[:run])
        self.taps = prod(line.taps for line in lines)
        self.blocks = -(-self.total // blocking.columns)
        # A block that does not begin with a row reaches into one more.
        whole = self.blocks == 1 or blocking.columns % self.inner == 0
        rows = min(self.positions[run], (blocking.columns - 1) // self.inner + (1 if whole else 2))
        self.staged = [Staged(line.taps) for line in lines]
        self.staged[run] = Staged.of(lines[run], rows)
        if blocking.slides:
            self.staged[-1] = Staged.of(lines[-1], self.positions[-1])
        counts = [1] * run + [rows, *self.positions[run + 1 :]]
        self.counts = [count + of_axis.halo for count, of_axis in zip(counts, self.staged, strict=True)]
        self.pitches = [prod(self.counts[axis + 1 :]) for axis in range(len(lines))]
        self.tap_pitches, needed = self._tap_pitches()
        self.channel_pitch = -(-needed // lanes) * lanes
        if self.channel_pitch % 512 == 0:  # columns of many channels would fall on the same lines of the cache
            self.channel_pitch += lanes

    def _tap_pitches(self) -> tuple[list[int], int]:
        """Elements between the planes of each axis, those of the running one innermost, and in all of them."""
        run = self.blocking.run
        pitch, found = prod(self.counts[run:]), {}
        for axis in (run, *(a for a in reversed(range(len(self.lines))) if a != run)):
            found[axis] = pitch
            pitch *= self.staged[axis].planes
        return [found[axis] for axis in range(len(self.lines))], pitch

    @cached_property
    def staging(self) -> tuple[Hashable, ...]:
        """What its table depends on: most cases of a transposed convolution are staged alike."""
        taps = tuple(line.taps for line in self.lines)
        return taps, tuple(self.staged), tuple(self.tap_pitches), tuple(self.pitches), self.channel_pitch

    def table(self, itemsize: int) -> Words:
        """Bytes from a chunk's first staged element to the columns of each channel and tap, in this order."""
        parts = [np.arange(self.blocking.chunk) * self.channel_pitch]
        for axis, (line, staged) in enumerate(zip(self.lines, self.staged, strict=True)):
            planes = np.arange(line.taps) % max(1, staged.planes)
            parts.append(planes * self.tap_pitches[axis] + staged.shifts(line.taps) * self.pitches[axis])
        return all_sums(parts) * itemsize

    def taps_of(self, strides: Strides) -> Words:
        """Where the taps lie in weights with these strides along the spatial axes: a table that is made once."""
        if strides not in self._taps:
            along = zip(self.lines[len(self.lines) - len(strides) :], strides, strict=True)
            self._taps[strides] = all_sums((n.tap + np.arange(n.taps) * n.tap_step) * stride for n, stride in along)
        return self._taps[strides]

    def axis_arguments(self, axis: int, out_stride: int) -> CaseAxis:
        line, staged = self.lines[axis], self.staged[axis]
        before = staged.first(line.taps) * line.stride
        return record_from(
            CaseAxis,
            line,
            staged_taps=staged.planes,
            tap_step=line.step,
            tap_pitch=self.tap_pitches[axis],
            first=line.first - before,
            staged_positions=self.counts[axis],
            pitch=self.pitches[axis],
            out_pitch=line.out_step * out_stride,
            least=before,
        )

    def segment(self, out_strides: Sequence[int]) -> tuple[int, int]:
        """The first axis from which on columns are evenly spaced in the result, and their number."""
        pitches = [line.out_step * stride for line, stride in zip(self.lines, out_strides, strict=True)]
        axis = len(self.lines) - 1
        while axis > self.blocking.run and pitches[axis - 1] == pitches[axis] * self.positions[axis]:
            axis -= 1
        return axis, prod(self.positions[axis:])


def leading(shape: Sequence[int], rank: int) -> list[Line]:
    """The axes before channels and cells, of which there is at least one."""
    return [Line(size, size) for size in shape[: len(shape) - rank - 1] or (1,)]


def cases(per_axis: Sequence[Sequence[Line]], lead: Sequence[Line]) -> Iterator[tuple[Line, ...]]:
    """Every product of lines, behind the leading axes."""
    return ((*lead, *lines) for lines in product(*per_axis))


# --- blocks, chunks and parts -----------------------------------------------------------------------------------------


TERMS = 288
"""About so many terms of each sum are added up at a time: a strip of columns then stays in the first caches."""
MANY_CHANNELS = 128
"""Staged at once: a strip of their columns lies on more pages than a processor remembers."""
COLUMNS, VECTORS = 384, 48
"""What a block has at least, where there are as many: columns, and vectors of them."""
PANEL_BYTES = 1 << 18
"""Of the weights that are used with each stretch of columns in turn: they stay in the second cache."""
STAGED_BYTES = 1 << 19
MOST_STAGED_BYTES, MOST_WORKSPACE = 4 << 20, 8 << 20
"""What needs more per thread, windows of a hundred thousand cells, is left to NumPy."""
SCRATCH_BYTES = 1 << 18
FEW_ROWS = 8
"""Of weights: with so few of them, staging takes as long as multiplying."""
POOR_FILL = 0.8
LONG_ROW, MOST_WASTE = 8, 1.15
"""Vectors of a row that tiles fill well, and how many more outputs they may compute."""
UNITS_PER_THREAD = 4
"""Fewer units are split further, where there is work for more: results do not depend on how many there are."""
MUCH_WORK = 1 << 22
"""Products: as many are worth more units."""
SLACK_BYTES = 1024
"""Behind staged cells: tiles read whole vectors."""
PADDED = 64


def rounded(n: int, to: int = PADDED) -> int:
    return -(-n // to) * to


def _fitted(blocking: Blocking, of: Sequence[Line], case: Sequence[Line]) -> Blocking:
    """The same number of rows for a case whose rows may be shorter."""
    if not blocking.slides:
        return blocking
    return replace(blocking, columns=blocking.columns // of[-1].positions * case[-1].positions)


def _by_rows(blocking: Blocking, lines: Sequence[Line], together: int) -> Blocking:
    """Blocks of a multiple of ``together`` rows of the running axis, or of all of them for 0."""
    rows, *others = (line.positions for line in lines[blocking.run :])
    inner = prod(others)
    wanted = rounded(-(-blocking.columns // inner), together) if together else rows
    return replace(blocking, columns=min(wanted, rows) * inner)


class BlockedConvolution:
    """A convolution of given shapes: its cases, blocks and units. Nothing here depends on memory layouts."""

    def __init__(
        self,
        writes: bool,
        attrs: Convolution,
        source: TensorType,
        result: TensorType,
        products: int = 1,
        in_place: bool = True,
        by_rows: bool = False,
        together: int | None = None,
    ) -> None:
        """``by_rows``: columns are taken a row at a time, whatever pays.

        ``together``: blocks are multiples of so many rows of the running axis, or all rows for 0.
        """
        self.attrs, self.writes, self.rank = attrs, writes, attrs.rank
        self.itemsize = COMPUTED[source.dtype.name]
        self.lanes = processor().lanes(self.itemsize)
        self.columns = max(COLUMNS, VECTORS * self.lanes)
        lead = leading(source.shape, self.rank)
        self.leads, self.axes = len(lead), len(lead) + self.rank
        self.groups = attrs.groups
        self.channels = source.shape[-1 - self.rank] // self.groups
        self.rows = result.shape[-1 - self.rank] // self.groups
        self.out_sizes = result.shape[result.ndim - self.rank :]
        lines = [(writing if writes else reading)(axis) for axis in regular_axes(attrs.window)]
        self.products = products
        plain = list(cases(lines, lead))
        self.most_taps = max(prod(line.taps for line in case) for case in plain)
        self.chunk = self._chunk(self.most_taps)
        self.in_place = in_place and all(line.out_step == 1 for line in plain[0])
        blocking = self._blocking(plain[0], by_rows)
        if together is not None:
            blocking = _by_rows(blocking, plain[0], together)
        self.in_place = self.in_place and (blocking.run >= self.leads or lead[-1].positions == 1)
        self.cases = [Case(case, _fitted(blocking, plain[0], case), self.lanes) for case in plain]
        self.parts, self.part_rows = self._parts()
        self.units = sum(self.units_of(case) for case in self.cases)
        self.taps = prod(attrs.kernel)

    def _chunk(self, taps: int) -> int:
        """Equal chunks of about ``TERMS`` terms: the order of a sum depends on channels and taps alone."""
        pieces = -(-self.channels // max(1, TERMS // max(1, taps)))
        return max(1, -(-self.channels // max(1, pieces)))

    def _blocking(self, lines: Sequence[Line], by_rows: bool) -> Blocking:
        positions = [line.positions for line in lines]
        totals = [prod(positions[axis:]) for axis in range(len(lines))]
        spatial = range(self.leads, self.axes)
        run = next(
            (a for a in reversed(spatial) if totals[a] >= self.columns), self.leads if self.rank else self.leads - 1
        )
        if totals[run] < POOR_FILL * rounded(totals[run], self.lanes):
            run = self.leads - 1  # samples side by side, where their planes are too small to fill vectors
        slides = self.rank > 1 and (by_rows or self._rows_pay(lines[-1]))
        if slides or by_rows:
            run = max(self.leads, self.axes - 2)
        columns = self._columns(prod(positions[run + 1 :]), totals[run], prod(positions[:run]))
        if slides:
            columns = -(-columns // positions[-1]) * positions[-1]
        blocking = Blocking(run, columns, self.chunk, slides)
        while True:
            case = Case(lines, blocking, self.lanes)
            if case.channel_pitch * self.chunk * self.itemsize <= STAGED_BYTES or columns <= 4 * self.lanes:
                return blocking
            columns = rounded(columns // 2, positions[-1] if slides else self.lanes)
            if columns == blocking.columns:
                return blocking
            blocking = Blocking(run, columns, self.chunk, slides)

    def _rows_pay(self, last: Line) -> bool:
        """Whether a row of outputs at a time is better than columns across rows, where every tap is staged apart."""
        computed = rounded(last.positions, self.lanes)
        fills = last.positions >= LONG_ROW * self.lanes and computed <= MOST_WASTE * last.positions
        return last.taps > 1 and (self.rows <= FEW_ROWS or fills)

    def _columns(self, inner: int, total: int, outer: int) -> int:
        """Whole rows where a few of them make about the right number of columns."""
        most = self.columns if self.rows > FEW_ROWS else 16 * self.columns
        if not self.in_place:
            most = max(4 * self.lanes, min(most, SCRATCH_BYTES // (self.rows * self.itemsize * self.products or 1)))
        work = 2 * self.rows * self.channels * prod(self.attrs.kernel)
        blocks = -(-total // most)
        fewest = -(-UNITS_PER_THREAD * get_num_threads() // (outer * self.groups))
        if blocks < fewest and total * work > 2 * MUCH_WORK:
            blocks = min(fewest, max(1, total // (12 * self.lanes)))
        columns = -(-total // blocks)
        if columns >= inner > 1 and blocks > 1:
            return -(-columns // inner) * inner
        return min(total, rounded(columns, 3 * self.lanes)) if blocks > 1 else total

    def _parts(self) -> tuple[int, int]:
        units = sum(case.outer * self.groups * case.blocks for case in self.cases)
        work = self.rows * self.channels * prod(self.attrs.kernel) * max(case.total for case in self.cases)
        parts = 1
        enough = 2 * get_num_threads()
        while units * parts < enough and self.rows // (2 * parts) >= 32 and work // parts > MUCH_WORK:
            parts *= 2
        rows = rounded(-(-self.rows // parts), 8)
        return -(-self.rows // rows), rows

    def units_of(self, case: Case) -> int:
        return case.outer * self.groups * case.blocks * self.parts

    def is_square(self, case: Case) -> bool:
        """Whether windows are three by three cells of one channel, and neighbouring windows are on neighbouring cells.

        The kernel counts cells by positions. A stride that divides the dilation also lets taps share cells, but the
        positions of these are not neighbours.
        """
        if not case.blocking.slides:
            return False
        *before, above, last = zip(case.lines, case.staged, strict=True)
        return (
            self.rows == self.channels == 1
            and all(line.taps == 1 for line, _ in before)
            and (above[0].taps, last[0].taps) == (3, 3)
            and above[0].stride == last[0].stride == 1
            and abs(above[1].shift) == 1
            and last[1].planes == 1
            and case.positions[-1] >= self.lanes
        )

    # --- memory -------------------------------------------------------------------------------------------------------

    @cached_property
    def pitch(self) -> int:
        return rounded(
            (max(min(case.total, case.blocking.columns) for case in self.cases) + 8 * self.lanes) * self.itemsize
        )

    @cached_property
    def staged_bytes(self) -> int:
        return rounded(max(case.channel_pitch for case in self.cases) * self.chunk * self.itemsize + SLACK_BYTES)

    @cached_property
    def border_rows(self) -> int:
        """Rows of cells that a block of three by three windows reads."""
        return max((case.counts[case.blocking.run] for case in self.cases if self.is_square(case)), default=0)

    @cached_property
    def zero_bytes(self) -> int:
        """Of a row of padding."""
        return rounded(max((case.counts[-1] for case in self.cases if self.is_square(case)), default=0) * self.itemsize)

    @property
    def gathers(self) -> bool:
        """Whether a strip of columns is gathered before several panels are multiplied by it."""
        return processor().gathers_strips and self.chunk >= MANY_CHANNELS

    @property
    def strip_bytes(self) -> int:
        return rounded(processor().strip_bytes * self.chunk * self.most_taps) if self.gathers else 0

    @property
    def pack_units(self) -> int:
        return len(self.cases) * self.groups * -(-self.channels // self.chunk)

    @property
    def panels_at(self) -> int:
        return rounded(8 * self.pack_units)

    @property
    def packed_bytes(self) -> int:
        taps = sum(case.taps for case in self.cases)
        return self.panels_at + rounded(self.rows * self.groups * self.channels * taps * self.itemsize + PADDED)

    @property
    def row_block(self) -> int:
        k = self.chunk * self.most_taps
        return max(8, PANEL_BYTES // max(1, k * self.itemsize) // 8 * 8)

    @cached_property
    def panel_starts(self) -> list[int]:
        """The first element of each case's panels."""
        each = self.rows * self.groups * self.channels
        return list(accumulate((each * case.taps for case in self.cases[:-1]), initial=0))

    @cached_property
    def unit_starts(self) -> list[int]:
        """The first unit of each case."""
        return list(accumulate(map(self.units_of, self.cases[:-1]), initial=0))
