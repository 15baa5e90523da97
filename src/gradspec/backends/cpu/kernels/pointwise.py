"""Pointwise chains: one kernel for each float format runs any program over blocks that stay in the cache.

The words of ``args`` are
- the number of cells, the cells of a block, the word where the instructions begin, their number, and how many of them,
  the first ones, run for the first block only;
- the addresses of the arrays;
- the places: ``origin, step, kind``. A block whose first cell is ``s`` begins ``s·step`` bytes after the address that
  the word ``origin`` holds (``HERE``), ``origin`` bytes into the workspace (``IN_WORKSPACE``), or at the address that
  the workspace holds there (``GIVEN``);
- the instructions, whose operands and results are places, named by the word where they are described;
- tables. Of an array that is not contiguous, a view: the word of its address, the number of axes, sizes, and strides in
  bytes. Of statistics: cells that follow each other in one channel, channels, what is added to the variance, and for
  mean, variance, weight and bias the word of the address, 0 for none, and the stride in bytes.

Every instruction is a loop over one block. Contiguous arrays are read and written where they lie; of others a block
lies in the workspace, where further instructions bring it or fetch it from, unless each number is repeated for a while
and the instruction takes it as it is. A result lies in no place that its instruction reads.

16-bit floats are computed in float32 and rounded by every instruction. Sums of products are not fused, so that each is
rounded.

A block of 0 cells means that the caller cuts the work up: ``kernel(args, start, n, workspace)`` runs the program on the
cells ``start … start + n − 1``, no more of them than a block in the workspace has. This is how another kernel passes
its results on while they are in the cache.
"""

from __future__ import annotations

from typing import Any

from gradspec.backends.cpu.kernels import opcodes as code
from gradspec.backends.cpu.kernels.cells import instructions
from gradspec.backends.cpu.kernels.compiler import Type, i64, inlined, lanes, outlined, u64
from gradspec.backends.cpu.kernels.memory import (
    FORMATS,
    Format,
    address_of,
    float_function,
    float_of_bits,
    pointer_to,
)
from gradspec.backends.cpu.kernels.target import kernel_code

square_root, words_at = float_function("sqrt"), pointer_to(i64)


def build(name: str) -> str:
    """The code of the kernel called ``"program:f32"``, or of another format."""
    return kernel_code(_program(FORMATS[name.removeprefix("program:")]))


# --- loops ------------------------------------------------------------------------------------------------------------


def _loop(form: Format, opcode: int, apply: Any, others: Any) -> Any:
    """``run(which, y, a, b, n, p, q, r)``: the loop over a block for one opcode, and ``others`` for the rest."""
    widen, narrow = form.functions()
    number = form.computed

    @inlined
    def run(which, y, a, b, n, p, q, r):
        if which == opcode:
            for i in lanes(number, n):
                y[i] = narrow(apply(widen(a[i]), widen(b[i]), p, q, r))
        else:
            others(which, y, a, b, n, p, q, r)

    return run


def _loops(form: Format) -> Any:
    """The same for every opcode."""

    def run(which, y, a, b, n, p, q, r):
        return

    for opcode, apply in instructions(form.computed).items():
        run = _loop(form, opcode, apply, run)
    return outlined(run)


def _number_loop(form: Format, opcode: int, apply: Any, is_first: bool, others: Any) -> Any:
    """``run(which, y, a, b, n)``: the loop over cells whose other operand is the number ``b``, if that is not first."""
    widen, narrow = form.functions()
    number, unused = form.computed, form.computed(0)

    @inlined
    def run(which, y, a, b, n):
        if which == opcode:
            for i in lanes(number, n):
                if is_first:
                    y[i] = narrow(apply(b, widen(a[i]), unused, unused, unused))
                else:
                    y[i] = narrow(apply(widen(a[i]), b, unused, unused, unused))
        else:
            others(which, y, a, b, n)

    return run


def _number_loops(form: Format) -> Any:
    def run(which, y, a, b, n):
        return

    for opcode, apply in instructions(form.computed).items():
        if opcode in code.BY_NUMBER:
            run = _number_loop(form, code.BY_NUMBER[opcode], apply, False, run)
        if code.NUMBER_BY.get(opcode) != code.BY_NUMBER.get(opcode):
            run = _number_loop(form, code.NUMBER_BY[opcode], apply, True, run)
    return outlined(run)


# --- numbers that are repeated ----------------------------------------------------------------------------------------


@inlined
def _repeated(args, at, start):
    """Where the number of the cell ``start`` of a view lies, and for how many cells it is the same.

    The last axis of the view has the stride 0.
    """
    address, last = args[args[at]], args[at + 1] - 1
    sizes, strides = at + 2, at + 3 + last
    size = args[sizes + last]
    if last == 0:
        return address, size
    rest = u64(start) // u64(size)
    left = size - (start - i64(rest) * size)
    for axis in range(last - 1, -1, -1):
        further = rest // u64(args[sizes + axis])
        address += i64(rest - further * u64(args[sizes + axis])) * args[strides + axis]
        rest = further
    return address, left


def _with_numbers(form: Format) -> Any:
    run, cells_at, width = _number_loops(form), pointer_to(form.stored), form.stored.bytes
    widen, _ = form.functions()

    @outlined
    def with_numbers(opcode, args, table, y, a, start, n):
        """Run after run of cells that have the same number as their other operand."""
        while n > 0:
            address, count = _repeated(args, table, start)
            count = min(count, n)
            run(opcode, cells_at(y), cells_at(a), widen(cells_at(address)[0]), count)
            y, a, start, n = y + count * width, a + count * width, start + count, n - count

    return with_numbers


# --- normalisation ----------------------------------------------------------------------------------------------------

INNER, CHANNELS, EPSILON, MEAN, VARIANCE, WEIGHT, BIAS = 0, 1, 2, 3, 5, 7, 9


def _affine(form: Format, has_weight: bool, has_bias: bool, in_channels: bool) -> Any:
    """``run(y, x, mean, variance, weight, bias, epsilon, n)``: ``n`` cells of one channel, or of as many channels."""
    widen, narrow = form.functions()
    number = form.computed

    @outlined
    def run(y, x, mean, variance, weight, bias, epsilon, n):
        if in_channels:
            for i in lanes(number, n):
                value = (widen(x[i]) - widen(mean[i])) / square_root(widen(variance[i]) + epsilon)
                if has_weight:
                    value = value * widen(weight[i])
                if has_bias:
                    value = value + widen(bias[i])
                y[i] = narrow(value)
        else:
            middle, root = widen(mean[0]), square_root(widen(variance[0]) + epsilon)
            scale, shift = widen(weight[0]), widen(bias[0])
            for i in lanes(number, n):
                value = (widen(x[i]) - middle) / root
                if has_weight:
                    value = value * scale
                if has_bias:
                    value = value + shift
                y[i] = narrow(value)

    return run


def _normalise(form: Format) -> Any:
    cells_at, width, number = pointer_to(form.stored), form.stored.bytes, form.computed

    def chosen(in_channels: bool) -> Any:
        neither, weighted, shifted, both = (
            _affine(form, has_weight, has_bias, in_channels)
            for has_weight, has_bias in ((False, False), (True, False), (False, True), (True, True))
        )

        @inlined
        def run(has_weight, has_bias, y, x, mean, variance, weight, bias, epsilon, n):
            if has_weight and has_bias:
                both(y, x, mean, variance, weight, bias, epsilon, n)
            elif has_weight:
                weighted(y, x, mean, variance, weight, bias, epsilon, n)
            elif has_bias:
                shifted(y, x, mean, variance, weight, bias, epsilon, n)
            else:
                neither(y, x, mean, variance, weight, bias, epsilon, n)

        return run

    along, within = chosen(True), chosen(False)

    @inlined
    def statistic(args, at, channel):
        return cells_at(args[args[at]] + channel * args[at + 1])

    @inlined
    def is_dense(args, at):
        return args[at] == 0 or args[at + 1] == width

    @outlined
    def normalise(args, table, y, x, start, n):
        inner, channels = args[table + INNER], args[table + CHANNELS]
        epsilon = number(float_of_bits(args[table + EPSILON]))
        has_weight, has_bias = args[table + WEIGHT] != 0, args[table + BIAS] != 0
        dense = is_dense(args, table + MEAN) and is_dense(args, table + VARIANCE)
        side_by_side = inner == 1 and dense and is_dense(args, table + WEIGHT) and is_dense(args, table + BIAS)
        while n > 0:
            plane = start // inner
            channel, left = plane % channels, inner - (start - plane * inner)
            mean, variance = statistic(args, table + MEAN, channel), statistic(args, table + VARIANCE, channel)
            weight = statistic(args, table + WEIGHT, channel) if has_weight else mean
            bias = statistic(args, table + BIAS, channel) if has_bias else mean
            count = min(n, channels - channel if side_by_side else left)
            to, of = cells_at(y), cells_at(x)
            if side_by_side:
                along(has_weight, has_bias, to, of, mean, variance, weight, bias, epsilon, count)
            else:
                within(has_weight, has_bias, to, of, mean, variance, weight, bias, epsilon, count)
            y, x, start, n = y + count * width, x + count * width, start + count, n - count

    return normalise


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
            if opcode == code.GATHER:
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


def _program(form: Format) -> Any:
    run, with_numbers, transfer = _loops(form), _with_numbers(form), _transfer(form.stored)
    normalise = _normalise(form) if form.is_float else None
    cells_at, number = pointer_to(form.stored), form.computed

    @inlined
    def place(args, at, start, workspace):
        origin, kind = args[at], args[at + 2]
        if kind == code.HERE:
            return args[origin] + start * args[at + 1]
        if kind == code.GIVEN:
            return words_at(workspace + origin)[0]
        return workspace + origin

    @inlined
    def parameter(args, at):
        return number(float_of_bits(args[at])) if form.is_float else number(0)

    @inlined
    def with_table(opcode, args, at, result, start, n, workspace):
        table = args[at + 3]
        if opcode >= code.GATHER:
            transfer(opcode, args, table, result, start, n, words_at(workspace + code.GIVEN_BYTES))
        elif opcode < code.NORMALISE:
            with_numbers(opcode, args, table, result, place(args, args[at + 2], start, workspace), start, n)
        elif form.is_float:
            normalise(args, table, result, place(args, args[at + 2], start, workspace), start, n)

    @outlined
    def cells(args, begin, end, start, n, workspace):
        """The instructions from the word ``begin`` to the word ``end``, on one block."""
        for at in range(begin, end, code.INSTRUCTION_WORDS):
            opcode, result = args[at], place(args, args[at + 1], start, workspace)
            if opcode >= code.FIRST_WITH_TABLE:
                with_table(opcode, args, at, result, start, n, workspace)
            else:
                a = cells_at(place(args, args[at + 2], start, workspace))
                b = cells_at(place(args, args[at + 3], start, workspace))
                p, q, r = parameter(args, at + 4), parameter(args, at + 5), parameter(args, at + 6)
                run(opcode, cells_at(result), a, b, n, p, q, r)

    def kernel(args, lo, hi, workspace_pointer):
        size, block, first = args[0], args[1], args[2]
        once, end = first + args[4] * code.INSTRUCTION_WORDS, first + args[3] * code.INSTRUCTION_WORDS
        workspace = address_of(workspace_pointer)
        if block == 0:
            cells(args, first, end, lo, hi, workspace)
            return
        for unit in range(lo, hi):
            start = unit * block
            cells(args, once if unit > lo else first, end, start, min(block, size - start), workspace)

    return kernel
