"""How convolutions are cut into blocks of columns, chunks of channels and parts of rows: units of work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from math import prod

from gradspec.backends.cpu.conv.cases import Blocking, Case, Line, cases, leading, reading, writing
from gradspec.backends.cpu.planning import COMPUTED, regular_axes
from gradspec.codegen.processor import processor
from gradspec.graph.types import TensorType
from gradspec.ops.conv import Convolution
from gradspec.runtime.threads import get_num_threads

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
