"""Where convolutions read: lines, cases and the tables of offsets (see ``arguments``)."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import gcd, prod

import numpy as np

from gradspec.backends.cpu.conv.arguments import CaseAxis
from gradspec.backends.cpu.planning import Strides
from gradspec.codegen.records import Words, record_from
from gradspec.spec.window import Regular


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
        offsets = np.arange(self.blocking.chunk)[:, None] * self.channel_pitch
        for axis, (line, staged) in enumerate(zip(self.lines, self.staged, strict=True)):
            planes = np.arange(line.taps) % max(1, staged.planes)
            here = planes * self.tap_pitches[axis] + staged.shifts(line.taps) * self.pitches[axis]
            offsets = (offsets[..., None] + here).reshape(len(offsets), offsets.shape[1] * line.taps)
        return np.ascontiguousarray(offsets.reshape(-1) * itemsize, np.int64)

    def taps_of(self, strides: Strides) -> Words:
        """Where the taps lie in weights with these strides along the spatial axes: a table that is made once."""
        if strides not in self._taps:
            offsets = np.zeros(1, np.int64)
            for line, stride in zip(self.lines[len(self.lines) - len(strides) :], strides, strict=True):
                here = (line.tap + np.arange(line.taps) * line.tap_step) * stride
                offsets = (offsets[:, None] + here).reshape(len(offsets) * line.taps)
            self._taps[strides] = np.ascontiguousarray(offsets)
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
