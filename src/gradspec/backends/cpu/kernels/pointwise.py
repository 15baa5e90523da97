"""Pointwise chains: one kernel for each float format runs any program over blocks that stay in the cache.

The words of ``args`` are
- the number of cells, the cells of a block, the word where the instructions begin, their number, and how many of them,
  the first ones, run for the first block only;
- the addresses of the arrays;
- the places: ``origin, step, kind``. A block whose first cell is ``s`` begins ``s·step`` bytes after the address that
  the word ``origin`` holds (``HERE``), ``origin`` bytes into the workspace (``IN_WORKSPACE``), or at the address that
  the workspace holds there (``GIVEN``);
- the instructions, whose operands and results are places, named by the word where they are described;
- views, of arrays that are not contiguous: the word of the address, the number of axes, sizes, and strides in bytes.

Every instruction is a loop over one block. Contiguous arrays are read and written where they lie; of others a block
lies in the workspace, where further instructions bring it or fetch it from. A result lies in no place that its
instruction reads. Products and sums are made by different loops, so that each is rounded.

A block of 0 cells means that the caller cuts the work up: ``kernel(args, start, n, workspace)`` runs the program on the
cells ``start … start + n − 1``, no more of them than a block in the workspace has. This is how another kernel passes
its results on while they are in the cache.
"""

from __future__ import annotations

from typing import Any

from gradspec.backends.cpu.kernels.compiler import Type, choose, f32, f64, i64, inlined, lanes, outlined
from gradspec.backends.cpu.kernels.memory import address_of, float_function, float_of_bits, maximum, pointer_to
from gradspec.backends.cpu.kernels.opcodes import (
    ABS,
    ADD,
    CLAMP,
    COPY,
    DIV,
    FIRST_TRANSFER,
    GATE,
    GATHER,
    GIVEN,
    GIVEN_BYTES,
    HERE,
    INSTRUCTION_WORDS,
    LEAKY_RELU,
    MAX_SHARE,
    MAXIMUM,
    MINIMUM,
    MUL,
    NEG,
    RELU,
    SCALE,
    SQRT,
    STEP,
    SUB,
    WITHIN,
)
from gradspec.backends.cpu.kernels.target import kernel_code

FORMATS = {"f32": f32, "f64": f64}

absolute, square_root, words_at = float_function("fabs"), float_function("sqrt"), pointer_to(i64)


def build(name: str) -> str:
    """The code of the kernel called ``"program:f32"`` or ``"program:f64"``."""
    return kernel_code(_program(FORMATS[name.removeprefix("program:")]))


# --- instructions -----------------------------------------------------------------------------------------------------


def _instructions(number: Type) -> dict[int, Any]:
    """What each opcode makes of two cells and three numbers. Operators of one operand leave the second alone."""
    zero, half, one = number(0), number(0.5), number(1)
    table: dict[int, Any] = {}

    def instruction(opcode: int) -> Any:
        return lambda function: table.setdefault(opcode, inlined(function))

    @instruction(COPY)
    def copy(a, b, p, q, r):
        return a

    @instruction(NEG)
    def neg(a, b, p, q, r):
        return -a

    @instruction(ABS)
    def abs(a, b, p, q, r):
        return absolute(a)

    @instruction(SQRT)
    def sqrt(a, b, p, q, r):
        return square_root(a)

    @instruction(SCALE)
    def scale(a, b, p, q, r):
        return a * p

    @instruction(RELU)
    def relu(a, b, p, q, r):
        return choose(a <= zero, zero, a)

    @instruction(LEAKY_RELU)
    def leaky_relu(a, b, p, q, r):
        return choose(a <= zero, p * a, a)

    @instruction(CLAMP)
    def clamp(a, b, p, q, r):
        above = choose(a < p, p, a)
        return choose(above > q, q, above)

    @instruction(STEP)
    def step(a, b, p, q, r):
        return choose(a < zero, p, choose(a == zero, q, r))

    @instruction(WITHIN)
    def within(a, b, p, q, r):
        return choose((a < p) | (a > q), zero, one)

    @instruction(ADD)
    def add(a, b, p, q, r):
        return a + b

    @instruction(SUB)
    def sub(a, b, p, q, r):
        return a - b

    @instruction(MUL)
    def mul(a, b, p, q, r):
        return a * b

    @instruction(DIV)
    def div(a, b, p, q, r):
        return a / b

    @instruction(MAXIMUM)
    def larger(a, b, p, q, r):
        return maximum(a, b)

    @instruction(MINIMUM)
    def smaller(a, b, p, q, r):
        return -maximum(-a, -b)

    @instruction(MAX_SHARE)
    def max_share(a, b, p, q, r):
        above = (b == b) & (not a <= b)  # a NaN exceeds every number
        below = (a == a) & (not b <= a)
        return choose(above, one, choose(below, zero, half))

    @instruction(GATE)
    def gate(a, b, p, q, r):
        return choose(a == zero, zero, a * b)

    return table


def _loop(number: Type, opcode: int, apply: Any, others: Any) -> Any:
    """``run(which, y, a, b, n, p, q, r)``: the loop over a block for one opcode, and ``others`` for the rest."""

    @inlined
    def run(which, y, a, b, n, p, q, r):
        if which == opcode:
            for i in lanes(number, n):
                y[i] = apply(a[i], b[i], p, q, r)
        else:
            others(which, y, a, b, n, p, q, r)

    return run


def _loops(number: Type) -> Any:
    """The same for every opcode."""

    def run(which, y, a, b, n, p, q, r):
        return

    for opcode, apply in _instructions(number).items():
        run = _loop(number, opcode, apply, run)
    return outlined(run)


# --- views ------------------------------------------------------------------------------------------------------------


def _transfer(number: Type) -> Any:
    cells_at, width = pointer_to(number), number.bytes

    @outlined
    def copy_row(target, target_stride, source, source_stride, n):
        y, x = cells_at(target), cells_at(source)
        if target_stride == width and source_stride == width:
            for i in lanes(number, n):
                y[i] = x[i]
        elif target_stride == width and source_stride == 0:
            repeated = x[0]
            for i in lanes(number, n):
                y[i] = repeated
        else:
            for i in range(n):
                cells_at(target + i * target_stride)[0] = cells_at(source + i * source_stride)[0]

    @outlined
    def run(opcode, args, at, local, start, n, position):
        """Cells ``start … start + n − 1`` of the view described at a word, to ``local`` or from there, row by row.

        ``position`` has room for the place of a row along every axis.
        """
        row, rank = args[args[at]], args[at + 1]
        sizes, strides = at + 2, at + 2 + rank
        last = rank - 1
        rest = start
        for axis in range(last, -1, -1):
            position[axis] = rest % args[sizes + axis]
            rest //= args[sizes + axis]
            if axis < last:
                row += position[axis] * args[strides + axis]
        size, stride, first = args[sizes + last], args[strides + last], position[last]
        while n > 0:
            count = min(n, size - first)
            if opcode == GATHER:
                copy_row(local, width, row + first * stride, stride, count)
            else:
                copy_row(row + first * stride, stride, local, width, count)
            n, local, first = n - count, local + count * width, 0
            for axis in range(last - 1, -1, -1):
                row += args[strides + axis]
                position[axis] += 1
                if position[axis] < args[sizes + axis]:
                    break
                row -= args[sizes + axis] * args[strides + axis]
                position[axis] = 0

    return run


# --- the program ------------------------------------------------------------------------------------------------------


def _program(number: Type) -> Any:
    run, transfer, cells_at = _loops(number), _transfer(number), pointer_to(number)

    @inlined
    def place(args, at, start, workspace):
        origin, kind = args[at], args[at + 2]
        if kind == HERE:
            return args[origin] + start * args[at + 1]
        if kind == GIVEN:
            return words_at(workspace + origin)[0]
        return workspace + origin

    @inlined
    def parameter(args, at):
        return number(float_of_bits(args[at]))

    @outlined
    def cells(args, begin, end, start, n, workspace):
        """The instructions from the word ``begin`` to the word ``end``, on one block."""
        for at in range(begin, end, INSTRUCTION_WORDS):
            opcode, result = args[at], place(args, args[at + 1], start, workspace)
            if opcode >= FIRST_TRANSFER:
                transfer(opcode, args, args[at + 2], result, start, n, words_at(workspace + GIVEN_BYTES))
                continue
            a = cells_at(place(args, args[at + 2], start, workspace))
            b = cells_at(place(args, args[at + 3], start, workspace))
            p, q, r = parameter(args, at + 4), parameter(args, at + 5), parameter(args, at + 6)
            run(opcode, cells_at(result), a, b, n, p, q, r)

    def kernel(args, lo, hi, workspace_pointer):
        size, block, first, once = args[0], args[1], args[2], args[2] + args[4] * INSTRUCTION_WORDS
        end, workspace = first + args[3] * INSTRUCTION_WORDS, address_of(workspace_pointer)
        if block == 0:
            cells(args, first, end, lo, hi, workspace)
            return
        for unit in range(lo, hi):
            start = unit * block
            cells(args, once if unit > lo else first, end, start, min(block, size - start), workspace)

    return kernel
