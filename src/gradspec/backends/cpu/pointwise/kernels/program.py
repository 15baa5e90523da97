"""The kernel of pointwise chains: one for each format runs any program over blocks that stay in the cache.

Every instruction is a loop over one block. 16-bit floats are computed in float32 and rounded by every instruction. Sums
of products are not fused, so that each is rounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

from gradspec.backends.cpu.pointwise.arguments import BLOCK_BYTES, Opcode, PointwiseArguments, SecondKind
from gradspec.backends.cpu.pointwise.kernels.cells import (
    BY_NUMBER,
    INTEGER_BY_NUMBER,
    OF_ONE,
    OF_ONE_AND_NUMBERS,
    OF_ONE_INTEGER,
    OF_THREE,
    OF_TWO,
    OF_TWO_INTEGERS,
    Meanings,
)
from gradspec.backends.cpu.pointwise.kernels.places import CellRange, cells_at, repeated_at, transfer
from gradspec.codegen.formats import FORMATS, NumberFormat
from gradspec.codegen.intrinsics import address_of, square_root
from gradspec.codegen.language import at_build, inlined, lanes, outlined
from gradspec.codegen.translation import kernel_code


def build(name: str) -> str:
    """The code of the kernel called ``"program:f32"``, or of another format."""
    return kernel_code(kernel, PointwiseArguments, FORMATS[name.removeprefix("program:")])


def kernel(form, args, lo, hi, workspace):
    """The blocks ``lo … hi − 1``; of an embedded program, the cells ``lo … lo + hi − 1``."""
    place, block = address_of(workspace), BLOCK_BYTES // form.stored.bytes
    if args.is_embedded:
        run(form, args, CellRange(lo, hi, place), True)
        return
    for unit in range(lo, hi):
        run(form, args, CellRange(unit * block, min(block, args.size - unit * block), place), unit == lo)


@outlined
def run(form, args, cells, is_first):
    """A program on at most a block of cells."""
    constants, gathers, scatters = args.constants, args.gathers, args.scatters
    if is_first:
        for i in range(len(constants)):
            transfer(form, constants[i], cells, True)
    for i in range(len(gathers)):
        transfer(form, gathers[i], cells, True)
    carry_out(form, args, cells)
    for i in range(len(scatters)):
        transfer(form, scatters[i], cells, False)


def carry_out(form, args, cells):
    """The instructions."""
    instructions, places = args.instructions, args.places
    for i in range(len(instructions)):
        each = instructions[i]
        y, a = cells_at(form, places[each.result], cells), cells_at(form, places[each.first], cells)
        if each.second_kind == SecondKind.PLACE:
            b, c = cells_at(form, places[each.second], cells), cells_at(form, places[each.third], cells)
            on_cells(form, each, y, a, b, c, cells.n)
        elif each.second_kind == SecondKind.REPEATED:
            with_repeated(form, each.opcode, y, a, each.repeated[0], cells)
        elif form.is_float and each.second_kind == SecondKind.NUMBER:
            on_cells_and_number(form, each.opcode, y, a, 0, form.computed(each.numbers[0]), cells.n)
        elif form.is_float:
            normalise(form, each.statistics[0], y, a, cells.start, cells.n)


@at_build
def meanings(form: NumberFormat, of_floats: Meanings, of_integers: Meanings) -> list[tuple[Opcode, Any]]:
    return list((of_floats if form.is_float else of_integers).items())


@outlined
def on_cells(form, instruction, y, a, b, c, n):
    """The loop of an instruction over a block."""
    for opcode, meaning in meanings(form, OF_ONE, OF_ONE_INTEGER):
        if instruction.opcode == opcode:
            for i in lanes(form.computed, n):
                y[i] = form.narrow(meaning(form.widen(a[i])))
            return
    for opcode, meaning in meanings(form, OF_TWO, OF_TWO_INTEGERS):
        if instruction.opcode == opcode:
            for i in lanes(form.computed, n):
                y[i] = form.narrow(meaning(form.widen(a[i]), form.widen(b[i])))
            return
    for opcode, meaning in meanings(form, OF_THREE, OF_THREE):
        if instruction.opcode == opcode:
            for i in lanes(form.computed, n):
                y[i] = form.narrow(meaning(form.widen(a[i]), form.widen(b[i]), form.widen(c[i])))
            return
    if form.is_float:
        on_cells_and_numbers(form, instruction, y, a, n)


def on_cells_and_numbers(form, instruction, y, a, n):
    numbers = tuple(form.computed(instruction.numbers[i]) for i in range(3))
    for opcode, meaning in meanings(form, OF_ONE_AND_NUMBERS, OF_ONE_AND_NUMBERS):
        if instruction.opcode == opcode:
            for i in lanes(form.computed, n):
                y[i] = form.narrow(meaning(form.widen(a[i]), numbers))
            return


@outlined
def with_repeated(form, opcode, y, a, view, cells):
    """Run after run of cells whose other operand is the same number."""
    done, p = 0, form.stored_at(view.array)
    while done < cells.n:
        at, left = repeated_at(view, cells.start + done)
        count = min(left, cells.n - done)
        on_cells_and_number(form, opcode, y, a, done, form.widen(p[at]), count)
        done += count


@outlined
def on_cells_and_number(form, opcode, y, a, at, b, n):
    for known, meaning in meanings(form, BY_NUMBER, INTEGER_BY_NUMBER):
        if opcode == known:
            for i in lanes(form.computed, n):
                y[at + i] = form.narrow(meaning(form.widen(a[at + i]), b))
            return


# --- normalisation ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Normaliser:
    has_weight: bool
    has_bias: bool
    goes_across: bool

    @inlined
    def value(self, x, mean, root, weight, bias):
        value = (x - mean) / root
        if self.has_weight:
            value = value * weight
        if self.has_bias:
            value = value + bias
        return value


NORMALISERS = tuple(Normaliser(*flags) for flags in product((False, True), repeat=3))


@outlined
def normalise(form, statistics, y, x, start, n):
    """The cells ``start … start + n − 1``."""
    has_weight, has_bias = statistics.weight.array != 0, statistics.bias.array != 0
    for kind in NORMALISERS:
        is_affine = has_weight == kind.has_weight and has_bias == kind.has_bias
        if is_affine and statistics.goes_across == kind.goes_across:
            normalised(form, kind, statistics, y, x, start, n)


@outlined
def normalised(form, kind, statistics, y, x, start, n):
    inner, channels, done = statistics.inner, statistics.channels, 0
    while done < n:
        plane = (start + done) // inner
        channel, left = plane % channels, inner - (start + done - plane * inner)
        count = min(n - done, channels - channel if kind.goes_across else left)
        if kind.goes_across:
            across_channels(form, kind, statistics, y, x, done, channel, count)
        else:
            in_channel(form, kind, statistics, y, x, done, channel, count)
        done += count


def across_channels(form, kind, statistics, y, x, at, channel, n):
    """The cell ``at + i`` is one of the channel ``channel + i``."""
    epsilon, s = form.computed(statistics.epsilon), statistics
    means, variances = form.stored_at(s.mean.array), form.stored_at(s.variance.array)
    weights, biases = form.stored_at(s.weight.array), form.stored_at(s.bias.array)
    for i in lanes(form.computed, n):
        mean, root = form.widen(means[channel + i]), square_root(form.widen(variances[channel + i]) + epsilon)
        weight = form.widen(weights[channel + i]) if kind.has_weight else mean
        bias = form.widen(biases[channel + i]) if kind.has_bias else mean
        y[at + i] = form.narrow(kind.value(form.widen(x[at + i]), mean, root, weight, bias))


def in_channel(form, kind, statistics, y, x, at, channel, n):
    s = statistics
    mean = number_of_channel(form, s.mean, channel)
    root = square_root(number_of_channel(form, s.variance, channel) + form.computed(s.epsilon))
    weight = number_of_channel(form, s.weight, channel) if kind.has_weight else mean
    bias = number_of_channel(form, s.bias, channel) if kind.has_bias else mean
    for i in lanes(form.computed, n):
        y[at + i] = form.narrow(kind.value(form.widen(x[at + i]), mean, root, weight, bias))


@inlined
def number_of_channel(form, statistic, channel):
    return form.widen(form.stored_at(statistic.array)[channel * statistic.stride])
