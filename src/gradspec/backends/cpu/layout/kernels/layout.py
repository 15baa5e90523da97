"""Copies between arrays of any strides, and fills: one kernel for every size of a number, whatever its bits mean.

A box is copied two axes at a time: in rows, or, where one array is contiguous along one of the two axes and the other
along the other, in squares that are transposed in registers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gradspec.backends.cpu.layout.arguments import SQUARE_BYTES, CopyArguments, CopyKind
from gradspec.backends.cpu.layout.kernels.rows import BITS, copy_row, fill_row
from gradspec.codegen.intrinsics import load, shuffled, spaced, store
from gradspec.codegen.language import Type, at_build, inlined, number_of, outlined, unrolled
from gradspec.codegen.translation import kernel_code

LINE = 64
"""Bytes of a row of the target that are written at once: a cache line."""
BAND = 256
"""Bytes of the source's rows that are transposed before the next ones: each may lie on another page."""
ZIPPED_BYTES = 16
"""What an instruction that interleaves registers works on: wider registers are several of these side by side."""


# --- squares of matrices, transposed in vector registers --------------------------------------------------------------


class Mixed(NamedTuple):
    """A row made of two others: their numbers, and its lanes among those of the first and then of the second."""

    first: int
    second: int
    lanes: list[int]


@at_build
def steps_to_columns(number: Type, side: int) -> list[list[Mixed]]:
    """The rows of a square on their way to its columns, a step for each bit of their numbers.

    Inside blocks of 16 bytes, two rows are put together like the teeth of a zip: numbers first, then pairs of numbers,
    which are columns of two rows, then pairs of these, and so on. Then whole blocks change places.
    """
    block, widths = min(side, ZIPPED_BYTES // number.bytes), [1 << i for i in range(side.bit_length() - 1)]
    return [_zipped(side, block, width) if width < block else _exchanged(side, width) for width in widths]


def _zipped(side: int, block: int, width: int) -> list[Mixed]:
    """Of rows ``width`` apart the lower halves of all blocks, ``width`` lanes of each in turn, and the upper halves."""
    low = [i for start in range(0, side, block) for i in range(start, start + block // 2)]
    teeth = [row + i for at in range(0, side // 2, width) for row in (0, side) for i in low[at : at + width]]
    halves = teeth, [i + block // 2 for i in teeth]
    first = [at + i for at in range(0, side, 2 * width) for i in range(width)]
    return [Mixed(i, i + width, lanes) for i in first for lanes in halves]


def _exchanged(side: int, width: int) -> list[Mixed]:
    """Of rows ``width`` apart, the first gets every other ``width`` lanes of both, and the second the rest."""
    left = [i if not i & width else side + i - width for i in range(side)]
    right = [i + width if not i & width else side + i for i in range(side)]
    return [Mixed(i - width, i, right) if i & width else Mixed(i, i + width, left) for i in range(side)]


@inlined
def transposed(rows):
    """The columns of a square of numbers, whose side is a power of two, from vectors that are its rows."""
    for step in steps_to_columns(number_of(rows[0]), len(rows)):
        rows = tuple(shuffled(row.lanes)(rows[row.first], rows[row.second]) for row in step)
    return rows


@dataclass(frozen=True)
class SquareBlock:
    """Squares of numbers, so many below and beside each other, that are transposed at once."""

    number: Type
    down: int
    across: int

    @property
    def side(self) -> int:
        return SQUARE_BYTES // self.number.bytes

    @inlined
    def copy(self, source, step, target, jump):
        """Rows ``step`` bytes apart become columns of rows ``jump`` bytes apart."""
        vector = self.number.of(self.side)
        reads, writes = spaced(self.down * self.side)(source, step), spaced(self.across * self.side)(target, jump)
        for i in unrolled(self.down):
            for j in unrolled(self.across):
                rows = tuple(load(vector)(reads[i * self.side + k] + j * SQUARE_BYTES) for k in range(self.side))
                columns = transposed(rows)
                for k in unrolled(self.side):
                    store(columns[k], writes[j * self.side + k] + i * SQUARE_BYTES)


@outlined
def copy_transposed(form, source, step, target, jump, rows, columns):
    """Rows ``step`` bytes apart become columns of rows ``jump`` bytes apart; there is a square of them at least.

    A cache line of the target is written at once, and those of the source are read again while they are near. The last
    squares begin earlier where they would reach beyond the end.
    """
    one, many = SquareBlock(form.stored, 1, 1), SquareBlock(form.stored, LINE // SQUARE_BYTES, 2)
    width, side = form.stored.bytes, one.side
    line, band = LINE // width, BAND // width
    for left in range(0, columns, band):
        right = min(left + band, columns)
        for top in range(0, rows, line):
            first = left
            if top + line <= rows:
                while first + 2 * side <= right:
                    many.copy(source + top * step + first * width, step, target + first * jump + top * width, jump)
                    first += 2 * side
            for up in range(top, min(top + line, rows), side):
                for at in range(first, right, side):
                    i, j = min(up, rows - side), min(at, columns - side)
                    one.copy(source + i * step + j * width, step, target + j * jump + i * width, jump)


# --- boxes ------------------------------------------------------------------------------------------------------------


def build(name: str) -> str:
    """The code of the kernel called ``"copy:4"`` for numbers of four bytes."""
    return kernel_code(copy, CopyArguments, BITS[int(name.removeprefix("copy:"))])


@inlined
def copy_plane(form, args, box, source, target):
    """The last two axes of a box."""
    rows, cells = box.axes[len(box.axes) - 2], box.axes[len(box.axes) - 1]
    n, step, jump = cells.size, cells.source_stride, cells.target_stride
    if box.kind == CopyKind.SQUARES:
        copy_transposed(form, source, step, target, rows.target_stride, n, rows.size)
        return
    for i in range(rows.size):
        x, y = source + i * rows.source_stride, target + i * rows.target_stride
        if box.kind == CopyKind.ROWS:
            copy_row(form, y, jump, x, step, n)
        elif box.kind == CopyKind.REPEATED:
            fill_row(form, y, jump, form.stored_at(x)[0], n)
        else:
            fill_row(form, y, jump, form.stored(args.value), n)


def copy_box(form, args, box, a, source, target):
    """The planes of a box along the axes from number ``a`` on."""
    if a == len(box.axes) - 2:
        copy_plane(form, args, box, source, target)
        return
    axis = box.axes[a]
    for i in range(axis.size):
        copy_box(form, args, box, a + 1, source + i * axis.source_stride, target + i * axis.target_stride)


def copy(form, args, lo, hi, workspace):
    """A unit is some boxes, for one index of an axis that all of them have."""
    together = args.together
    groups = len(args.boxes) // together
    for unit in range(lo, hi):
        lead, first = unit // groups, unit % groups * together
        for i in range(first, first + together):
            box = args.boxes[i]
            source = box.source + box.source_at + lead * box.source_lead
            target = args.target + box.target_at + lead * box.target_lead
            copy_box(form, args, box, 0, source, target)
