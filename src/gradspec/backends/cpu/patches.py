"""Where convolutions read: lines, cases and the tables of offsets, in the words of ``kernels.conv_fields``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd, prod

import numpy as np

from gradspec.backends.cpu.kernels import conv_fields as f
from gradspec.graph.ir import Array
from gradspec.spec.window import Regular


@dataclass(frozen=True)
class Line:
    """One axis of a case: position ``q`` and tap ``u`` meet the cell ``q·stride + first + u·step``.

    The positions are the outputs ``out, out + out_step, …``, and the taps those of the weights from ``tap`` on, ``tap_step`` apart.
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
    fitting = (t for t in range(min(period, axis.kernel)) if (cell + axis.lo - d * t) % s == 0)
    tap = next(fitting, None)
    if tap is None:
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


@dataclass(frozen=True)
class Staged:
    """How the running axis of a case is staged: planes, and how far rows shift from one tap to the next in a plane."""

    planes: int
    shift: int
    halo: int

    @classmethod
    def of(cls, line: Line, rows: int) -> Staged:
        """Rows are shared between taps unless that would stage more rows that nobody reads than rows that are read."""
        if line.taps > 1:
            planes = line.stride // gcd(line.stride, abs(line.step))
            shift = line.step * planes // line.stride
            halo = (-(-line.taps // planes) - 1) * abs(shift)
            if planes < line.taps and halo <= max(rows, 8):
                return cls(planes, shift, halo)
        return cls(max(1, line.taps), 0, 0)


class Case:
    """A product of lines, the samples first, cut into blocks."""

    def __init__(self, lines: Sequence[Line], blocking: Blocking, lanes: int) -> None:
        self.lines, self.blocking = lines, blocking
        run = blocking.run
        self.positions = [line.positions for line in lines]
        self.inner, self.total = prod(self.positions[run + 1 :]), prod(self.positions[run:])
        self.outer = prod(self.positions[:run])
        self.taps = prod(line.taps for line in lines)
        self.blocks = -(-self.total // blocking.columns)
        # A block that does not begin with a row reaches into one more.
        whole = self.blocks == 1 or blocking.columns % self.inner == 0
        rows = min(self.positions[run], (blocking.columns - 1) // self.inner + (1 if whole else 2))
        self.staged = Staged.of(lines[run], rows)
        self.plane = (rows + self.staged.halo) * self.inner
        self.pitches = self._tap_pitches()
        needed = self.plane * self.staged.planes * prod(line.taps for line in self._others())
        self.channel_pitch = -(-needed // lanes) * lanes
        if self.channel_pitch % 512 == 0:  # columns of many channels would fall on the same lines of the cache
            self.channel_pitch += lanes

    def _others(self) -> list[Line]:
        run = self.blocking.run
        return [*self.lines[:run], *self.lines[run + 1 :]]

    def _tap_pitches(self) -> list[int]:
        """Elements between the staged taps of each axis: planes of the running one are innermost."""
        pitch, found = self.plane * self.staged.planes, {self.blocking.run: self.plane}
        for axis in reversed(range(len(self.lines))):
            if axis != self.blocking.run:
                found[axis] = pitch
                pitch *= self.lines[axis].taps
        return [found[axis] for axis in range(len(self.lines))]

    def table(self, itemsize: int) -> Array:
        """Bytes from a chunk's first staged element to the columns of each channel and tap, in this order."""
        run, staged = self.blocking.run, self.staged
        offsets = np.arange(self.blocking.chunk)[:, None] * self.channel_pitch
        for axis, line in enumerate(self.lines):
            u = np.arange(line.taps)
            if axis == run and staged.shift:
                steps = u // staged.planes * staged.shift
                here = u % staged.planes * self.plane + (steps - min(0, int(steps.min()))) * self.inner
            else:
                here = u * self.pitches[axis]
            offsets = (offsets[..., None] + here).reshape(len(offsets), offsets.shape[1] * line.taps)
        return np.ascontiguousarray(offsets.reshape(-1) * itemsize, np.int64)

    def taps_of(self, strides: Sequence[int]) -> Array:
        """Where the taps lie in weights with these strides along the spatial axes."""
        offsets = np.zeros(1, np.int64)
        for line, stride in zip(self.lines[1:], strides, strict=True):
            here = (line.tap + np.arange(line.taps) * line.tap_step) * stride
            offsets = (offsets[:, None] + here).reshape(len(offsets) * line.taps)
        return np.ascontiguousarray(offsets)

    def axis_words(self, axis: int, out_stride: int) -> list[int]:
        line, run = self.lines[axis], self.blocking.run
        words = [0] * f.AXIS_WORDS
        staged, first = line.taps, line.first
        if axis == run:
            staged = self.staged.planes
            least = (-(-line.taps // staged) - 1) * self.staged.shift if self.staged.shift < 0 else 0
            first += least * line.stride
        words[f.STAGED_TAPS], words[f.TAP_STEP], words[f.TAP_PITCH] = staged, line.step, self.pitches[axis]
        words[f.STRIDE], words[f.FIRST], words[f.SIZE] = line.stride, first, line.size
        words[f.POSITIONS], words[f.PITCH_OF] = line.positions, prod(self.positions[axis + 1 :])
        words[f.OUT_PITCH], words[f.ALL_TAPS] = line.out_step * out_stride, line.taps
        words[f.LEAST] = line.first - first
        return words

    def segment(self, out_strides: Sequence[int]) -> tuple[int, int]:
        """The first axis from which on columns are evenly spaced in the result, and their number."""
        pitches = [line.out_step * stride for line, stride in zip(self.lines, out_strides, strict=True)]
        axis = len(self.lines) - 1
        while axis > self.blocking.run and pitches[axis - 1] == pitches[axis] * self.positions[axis]:
            axis -= 1
        return axis, prod(self.positions[axis:])


def cases(per_axis: Sequence[Sequence[Line]], samples: int) -> Iterator[tuple[Line, ...]]:
    """Every product of lines, behind that of the samples."""
    return ((Line(samples, samples), *lines) for lines in product(*per_axis))
