"""What the kernel of pointwise chains is given, a *program*, and what it keeps while it runs.

A program works on its cells block by block, and counts them alike in all its arrays. An instruction reads the blocks of
its operands and writes that of its result, which is none of them. A block of an array that is dense in this count is
read and written where it lies. Of another, a *view* is copied to a block of the workspace before the instructions or
from there after them; unless each of its numbers is repeated for a while, and an instruction takes it as it is.

All blocks hold numbers of the program's format. Truth values are 0 and 1 there, and bytes in arrays; so arrays of them
are views, and those of numbers that the program converts are, too: what a view holds is converted as it is copied.

Strides count elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from gradspec.backends.cpu.arguments import MOST_AXES
from gradspec.codegen.records import Operand, Record, Scratch, layout

BLOCK_BYTES = 2048
"""Some blocks of each array fit the first cache."""
MOST_GIVEN = 8


class Opcode(IntEnum):
    """What an instruction makes of its operands: one; one and some numbers; two; one and statistics; or three.

    ``SUB_FROM`` and ``DIV_INTO`` are ``SUB`` and ``DIV`` with their operands exchanged.
    """

    COPY, NEG, ABS, SQRT, RELU = range(5)
    EXP, LOG, TANH, SIGMOID, SILU, GELU, GELU_BY_TANH, NORMAL_CDF, NORMAL_DENSITY = range(5, 14)
    LEAKY_RELU, SOFTPLUS, CLAMP, STEP, WITHIN, POWER = range(14, 20)
    ADD, SUB, MUL, DIV, MAXIMUM, MINIMUM, MAX_SHARE, GATE, SUB_FROM, DIV_INTO = range(20, 30)
    NORMALISE = 30
    FLOOR, ROUND = 31, 32
    NOT_ZERO, GREATER, EQUAL, TRUNC_DIVIDE, WHERE = range(33, 38)


class SecondKind(IntEnum):
    """What the second operand is, if any: a place, the first of the numbers, what a view repeats, or statistics."""

    PLACE, NUMBER, REPEATED, STATISTICS = range(4)


class CellFormat(IntEnum):
    """How an array holds its cells."""

    F16, BF16, F32, F64, I8, U8, I32, I64, BOOL = range(9)


class PlaceKind(IntEnum):
    """Where the block of some cells lies: in an array, in the workspace, or where the caller says."""

    ARRAY, WORKSPACE, GIVEN = range(3)


@dataclass(frozen=True)
class BlockPlace(Record):
    kind: PlaceKind
    number: int = 0
    """Of the block among those of the workspace, or those that are given."""
    array: Operand | None = None


@dataclass(frozen=True)
class ViewAxis(Record):
    size: int
    stride: int


@dataclass(frozen=True)
class View(Record):
    """An array that is not dense, repeats its numbers, or has another format; there is an axis at least."""

    array: Operand
    format: CellFormat
    block: int
    """Of the workspace, to copy cells to or from there."""
    axes: tuple[ViewAxis, ...]


@dataclass(frozen=True)
class Statistic(Record):
    """A number for each channel."""

    array: Operand | None = None
    stride: int = 0


@dataclass(frozen=True)
class Statistics(Record):
    """``(x − mean)/√(variance + ε)·weight + bias``, of which the last two may be missing."""

    inner: int
    """Cells that follow each other in one channel."""
    channels: int
    goes_across: bool
    """Whether neighbouring cells are of neighbouring channels, whose numbers are neighbours, too."""
    epsilon: float
    mean: Statistic
    variance: Statistic
    weight: Statistic
    bias: Statistic


@dataclass(frozen=True)
class Instruction(Record):
    opcode: Opcode
    result: int
    """The number of a place, as are its operands."""
    first: int
    second: int
    """The first again where there is no other place, and so is the third."""
    third: int
    second_kind: SecondKind = SecondKind.PLACE
    numbers: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """The kernel rounds them to its format."""
    repeated: tuple[View, ...] = ()
    statistics: tuple[Statistics, ...] = ()


@dataclass(frozen=True)
class PointwiseArguments(Record):
    """A program. The kernel carries out its blocks ``lo … hi − 1``.

    Of one that is *embedded*, an epilogue in the arguments of another kernel, that kernel cuts the work up: it calls
    ``kernel(program, start, n, workspace)`` for the cells ``start … start + n − 1``, at most a block of them, after it
    has left the addresses of the blocks that it gives in the first words of the workspace.
    """

    size: int
    is_embedded: bool
    places: tuple[BlockPlace, ...]
    constants: tuple[View, ...]
    """Of one number that is the same for all cells: their blocks stay as they are."""
    gathers: tuple[View, ...]
    instructions: tuple[Instruction, ...]
    scatters: tuple[View, ...]


@dataclass
class ProgramScratch(Scratch):
    """What the workspace begins with. The blocks follow."""

    given: Annotated[tuple[int, ...], MOST_GIVEN]
    """Addresses."""
    position: Annotated[tuple[int, ...], MOST_AXES]
    """Of a row of a view."""


SCRATCH_BYTES = layout(ProgramScratch).size
