"""Pointwise chains on the CPU: a chain becomes a program, which one precompiled kernel runs over cache-sized blocks.

Operators whose results IEEE 754 fixes agree with the NumPy backend bit for bit, and all of them are the same fused or
not. Other kernels run programs on what they make, while it is in the cache.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf, prod
from typing import Any

from gradspec.backends.cpu.binding import KernelCall, task_of
from gradspec.backends.cpu.planning import Strides, merged
from gradspec.backends.cpu.pointwise.arguments import (
    BLOCK_BYTES,
    MOST_GIVEN,
    SCRATCH_BYTES,
    BlockPlace,
    CellFormat,
    Instruction,
    Opcode,
    PlaceKind,
    PointwiseArguments,
    SecondKind,
    Statistic,
    Statistics,
    View,
    ViewAxis,
)
from gradspec.codegen.cache import Kernel, kernel
from gradspec.codegen.records import Operand
from gradspec.graph.ir import Node, Var
from gradspec.graph.types import DType, boolean, u8
from gradspec.runtime.task import Lowering, Task, Work

SOURCE = "gradspec.backends.cpu.pointwise.kernels.program"
LONG_RUN = 16
"""So often must a number be repeated for instructions to take it as it is; otherwise copies of it are laid out."""

NANOSECONDS_PER_VECTOR = 0.8
NANOSECONDS_PER_BYTE = 0.04
"""Of one instruction on 16 bytes in the cache, and of an array's way from or to memory."""

COSTS = {
    **dict.fromkeys((Opcode.DIV, Opcode.SQRT, Opcode.NORMALISE), 3),
    **dict.fromkeys((Opcode.EXP, Opcode.TANH, Opcode.SIGMOID, Opcode.SILU, Opcode.NORMAL_DENSITY), 9),
    **dict.fromkeys((Opcode.LOG, Opcode.GELU_BY_TANH), 13),
    **dict.fromkeys((Opcode.SOFTPLUS, Opcode.GELU, Opcode.NORMAL_CDF), 20),
    Opcode.POWER: 36,
    Opcode.TRUNC_DIVIDE: 30,
}
"""Of instructions that take longer, in units of the others."""

Numbers = tuple[float, ...]
Meaning = tuple[Opcode, Numbers]
"""What an instruction does, with up to three numbers; if it can have a second operand, the first of them is that."""


# --- operators --------------------------------------------------------------------------------------------------------


NAMESAKES = (
    *("neg", "abs", "sqrt", "floor", "round", "relu", "exp", "log", "tanh", "sigmoid", "silu"),
    *("normal_cdf", "normal_density"),
    *("add", "sub", "mul", "div", "maximum", "minimum", "max_share", "gate"),
    *("trunc_divide", "greater", "equal", "where"),
)
"""Operators that are what their opcode says."""


def _plain(opcode: Opcode) -> Callable[[Any], Meaning]:
    return lambda attrs: (opcode, ())


def _bounded(opcode: Opcode) -> Callable[[Any], Meaning]:
    """A missing bound is an infinite one, which no number exceeds."""
    return lambda attrs: (opcode, (-inf if attrs.min is None else attrs.min, inf if attrs.max is None else attrs.max))


def _power(exponent: float, signed: bool) -> Meaning:
    """``|x|^q`` or ``sign(x)·|x|^q``. Other than these, an exponent has two parts, if float32 does not hold it."""
    if exponent == 0:
        return (Opcode.STEP, (-1.0, 0.0, 1.0)) if signed else (Opcode.WITHIN, (-inf, inf))
    if exponent == 1:
        return (Opcode.ADD, (0.0,)) if signed else (Opcode.ABS, ())
    if exponent == 2 and not signed:
        return Opcode.MUL, ()
    (single,) = struct.unpack("=f", struct.pack("=f", exponent))
    return Opcode.POWER, (exponent, exponent - single, float(signed))


ENCODERS: dict[str, Callable[[Any], Meaning]] = {
    **{name: _plain(Opcode[name.upper()]) for name in NAMESAKES},
    "detach": _plain(Opcode.COPY),
    "scale": lambda attrs: (Opcode.MUL, (attrs.factor,)),
    "leaky_relu": lambda attrs: (Opcode.LEAKY_RELU, (attrs.negative_slope,)),
    "clamp": _bounded(Opcode.CLAMP),
    "within": _bounded(Opcode.WITHIN),
    "step": lambda attrs: (Opcode.STEP, (attrs.below, attrs.at, attrs.above)),
    "softplus": lambda attrs: (Opcode.SOFTPLUS, (attrs.beta,)),
    "gelu": lambda attrs: (Opcode.GELU if attrs.approximate == "none" else Opcode.GELU_BY_TANH, ()),
    "abs_power": lambda attrs: _power(attrs.exponent, attrs.signed),
    "batch_norm": _plain(Opcode.NORMALISE),
    "convert": lambda attrs: (Opcode.NOT_ZERO if attrs.dtype == "bool" else Opcode.COPY, ()),
}

OF_INTEGERS = (
    *("detach", "neg", "abs", "relu", "add", "sub", "mul", "trunc_divide", "maximum", "minimum"),
    *("greater", "equal", "where", "convert"),
)
"""The operators that programs on integers know; truth values are integers, too."""

EXCHANGED = {
    **{opcode: opcode for opcode in (Opcode.ADD, Opcode.MUL, Opcode.MAXIMUM, Opcode.MINIMUM)},
    Opcode.SUB: Opcode.SUB_FROM,
    Opcode.DIV: Opcode.DIV_INTO,
}
"""The instructions that take a repeated number as their second operand, and those that have it as their first."""

FORMATS = CellFormat.__members__


def program_dtype(nodes: Iterable[Node]) -> DType | None:
    """What programs of these nodes compute with, if one can: what they make, or compare; None if that is truth values.

    Those are in any program what it computes with, and so is what it converts.
    """
    variables = (v for node in nodes for v in (*node.outputs, *node.inputs))
    return next((v.dtype for v in variables if v.dtype != boolean), None)


def is_pointwise(node: Node) -> bool:
    """Whether a program can carry out the node, which has one shape throughout."""
    are_known = all(v.dtype.name.upper() in FORMATS for v in (*node.inputs, *node.outputs))
    dtype = program_dtype((node,)) or boolean
    return are_known and node.op.name in (ENCODERS if dtype.is_float else OF_INTEGERS)


def joins_program(nodes: Sequence[Node], node: Node) -> bool:
    """Whether a program can carry out a node together with what made its operands."""
    if not is_pointwise(node) or node.outputs[0].shape != nodes[0].outputs[0].shape:
        return False
    own, theirs = program_dtype((node,)), program_dtype(nodes)
    return own is None or theirs is None or own == theirs


def epilogue_function(dtype: DType) -> Kernel:
    """The function that runs programs on numbers of this type."""
    return kernel(SOURCE, f"program:{dtype}")


# --- programs ---------------------------------------------------------------------------------------------------------


def _numbered(nodes: Sequence[Node], outside: Sequence[Var]) -> tuple[dict[Var, int], int]:
    """The number of each variable, and how many registers there are: they come first, then what lies ``outside``.

    A register is free again after the last instruction that reads it. An instruction's own operands are still taken
    when its result is placed: the kernel counts on that.
    """
    elsewhere = set(outside)
    last = {v: i for i, node in enumerate(nodes) for v in node.inputs}
    register: dict[Var, int] = {}
    free: list[int] = []
    count = 0
    for i, node in enumerate(nodes):
        (result,) = node.outputs
        if result not in elsewhere:
            if not free:
                free.append(count)
                count += 1
            register[result] = free.pop()
        free += [register[v] for v in dict.fromkeys(node.inputs) if v in register and last[v] == i]
    return register | {v: count + i for i, v in enumerate(outside)}, count


def _instruction(node: Node, numbered: Mapping[Var, int]) -> Instruction:
    """What a node comes to. Statistics are no operands: they are not read cell by cell."""
    opcode, numbers = ENCODERS[node.op.name](node.attrs)
    (result,), operands = node.outputs, node.inputs[: 1 if opcode is Opcode.NORMALISE else 3]
    first, second, third = ([numbered[v] for v in operands] * 3)[:3]
    kind = SecondKind.NUMBER if numbers and opcode in EXCHANGED else SecondKind.PLACE
    p, q, r = (*numbers, 0.0, 0.0, 0.0)[:3]
    return Instruction(opcode, numbered[result], first, second, third, kind, (p, q, r))


class PointwiseProgram:
    """A chain as the kernel carries it out.

    Its values have numbers. Those in registers, which are blocks of the workspace, come first, then arrays, inputs
    before outputs, and then what is ``given``: variables of which the caller leaves a block at a time in memory of its
    own. A node's result that is given is written there. Such a program is embedded in the arguments of another kernel,
    as ``PointwiseArguments`` says, and counts cells in C order.
    """

    def __init__(self, work: Work, inputs: Sequence[Var], given: Sequence[Var] = ()) -> None:
        assert len(given) <= MOST_GIVEN, "a word for each"
        arrays = (*inputs, *work.outputs)
        self.numbered, self.registers = _numbered(work.nodes, (*arrays, *given))
        self.inputs, self.arrays, self.given = len(inputs), len(arrays), len(given)
        self.dtype = program_dtype(work.nodes) or u8
        self.formats = [CellFormat[v.dtype.name.upper()] for v in arrays]
        self.shape, self.itemsize = (*work.outputs, *given)[0].shape, self.dtype.numpy.itemsize
        self.block = BLOCK_BYTES // self.itemsize
        self.workspace = SCRATCH_BYTES + BLOCK_BYTES * (self.registers + self.arrays)
        self.instructions = [_instruction(node, self.numbered) for node in work.nodes]
        self.norms = {i: node for i, node in enumerate(work.nodes) if node.op.name == "batch_norm"}
        for result, v in enumerate(work.outputs, self.first_output):
            if v in given:
                source = self.numbered[v]
                self.instructions.append(Instruction(Opcode.COPY, result, source, source, source))

    @property
    def first_output(self) -> int:
        """The number of the first value that is no register and no input."""
        return self.registers + self.inputs

    @property
    def own_formats(self) -> set[CellFormat]:
        """Those in which an array holds what a block of the program does."""
        own = CellFormat[self.dtype.name.upper()]
        return {own, CellFormat.BOOL} if own is CellFormat.U8 else {own}

    @property
    def units(self) -> int:
        return -(-prod(self.shape) // self.block)

    @property
    def nanoseconds(self) -> float:
        """What all of it takes on one thread, roughly."""
        instructions = sum(COSTS.get(each.opcode, 1) for each in self.instructions) * NANOSECONDS_PER_VECTOR / 16
        return prod(self.shape) * self.itemsize * (instructions + self.arrays * NANOSECONDS_PER_BYTE)

    def __call__(self, strides: Sequence[Strides]) -> KernelCall[PointwiseArguments]:
        return KernelCall(self.arguments(strides), self.units, self.workspace)

    def arguments(self, strides: Sequence[Strides], first: int = 0) -> PointwiseArguments:
        """For arrays of these strides; ``first`` is the number of the first of them among a call's arrays."""
        return _Fitting(self, strides, first).arguments()


class _Fitting:
    """A program for arrays of known strides."""

    def __init__(self, program: PointwiseProgram, strides: Sequence[Strides], first: int) -> None:
        self.program, self.strides, self.first = program, strides, first
        axes = [i for i, n in enumerate(program.shape) if n > 1]
        # Cells are counted as they lie in the first output, so that what is dense there is one row. Whoever embeds a
        # program counts in C order.
        self.axes = axes if program.given else sorted(axes, key=lambda i: -abs(strides[program.inputs][i]))
        self.views = self._views()
        own = program.own_formats
        ends = ((value, view.axes[-1]) for value, view in self.views.items() if view.format in own)
        self.repeating = {value for value, axis in ends if axis.stride == 0 and axis.size >= LONG_RUN}

    def _views(self) -> dict[int, View]:
        """Of the arrays that are not dense, or hold something else. Statistics, of one axis, are not among them."""
        program, found = self.program, {}
        whole = {steps for steps in self.strides if len(steps) == len(program.shape)}
        layouts = {steps: merged((program.shape[i], (steps[i],)) for i in self.axes) for steps in whole}
        for value, (steps, format) in enumerate(zip(self.strides, program.formats, strict=True), program.registers):
            axes = tuple(ViewAxis(size, stride) for size, (stride,) in layouts.get(steps, ()))
            if [axis.stride for axis in axes] not in ([], [1]) or format not in program.own_formats:
                found[value] = View(self._operand(value), format, value, axes or (ViewAxis(1, 0),))
        return found

    def _operand(self, value: int) -> Operand:
        return Operand(self.first + value - self.program.registers)

    def arguments(self) -> PointwiseArguments:
        program, views = self.program, self.views
        instructions = tuple(self._fitted(i, each) for i, each in enumerate(program.instructions))
        operands = {value for each in instructions for value in (each.first, each.second, each.third)}
        read = {value for value in operands if value < program.first_output}
        constants = {value for value, view in views.items() if len(view.axes) == 1 and view.axes[0].stride == 0}
        return PointwiseArguments(
            size=prod(program.shape),
            is_embedded=bool(program.given),
            places=tuple(map(self._place, range(program.registers + program.arrays + program.given))),
            constants=tuple(view for value, view in views.items() if value in read & constants),
            gathers=tuple(view for value, view in views.items() if value in read - constants),
            instructions=instructions,
            scatters=tuple(view for value, view in views.items() if value >= program.first_output),
        )

    def _place(self, value: int) -> BlockPlace:
        array = value - self.program.registers
        if array < 0 or value in self.views:
            return BlockPlace(PlaceKind.WORKSPACE, value)
        if array < self.program.arrays:
            return BlockPlace(PlaceKind.ARRAY, array=self._operand(value))
        return BlockPlace(PlaceKind.GIVEN, array - self.program.arrays)

    def _fitted(self, number: int, each: Instruction) -> Instruction:
        """The instruction with its statistics, or one that takes the numbers of an array as they are, if it can."""
        if number in self.program.norms:
            statistics = self._statistics(self.program.norms[number])
            return replace(each, second_kind=SecondKind.STATISTICS, statistics=(statistics,))
        if each.second_kind is SecondKind.PLACE and each.opcode in EXCHANGED:
            if each.second in self.repeating:
                return self._by_number(each, each.opcode, each.first, each.second)
            if each.first in self.repeating:
                return self._by_number(each, EXCHANGED[each.opcode], each.second, each.first)
        return each

    def _by_number(self, each: Instruction, opcode: Opcode, cells: int, repeated: int) -> Instruction:
        view = self.views[repeated]
        return Instruction(opcode, each.result, cells, cells, cells, SecondKind.REPEATED, repeated=(view,))

    def _statistics(self, node: Node) -> Statistics:
        """Channels are the second axis."""
        after = self.axes[self.axes.index(1) + 1 :] if 1 in self.axes else self.axes
        inner = prod(self.program.shape[axis] for axis in after)
        given = [self._statistic(v) for v in node.inputs[1:]]
        are_neighbours = all(each.stride == 1 for each in given)
        there = (True, True, node.attrs.weight, node.attrs.bias)
        each = [given.pop(0) if is_there else Statistic() for is_there in there]
        return Statistics(inner, self.program.shape[1], inner == 1 and are_neighbours, node.attrs.eps, *each)

    def _statistic(self, v: Var) -> Statistic:
        value = self.program.numbered[v]
        return Statistic(self._operand(value), self.strides[value - self.program.registers][0])


# --- the lowering -----------------------------------------------------------------------------------------------------


class Pointwise(Lowering):
    """How every operator here is lowered, alone or in a chain."""

    def joins(self, nodes: Sequence[Node], node: Node) -> bool:
        return joins_program(nodes, node)

    def task(self, work: Work) -> Task | None:
        dtypes = {program_dtype((node,)) for node in work.nodes} - {None}
        if len(dtypes) > 1 or not all(map(is_pointwise, work.nodes)):
            return None
        made = {v for node in work.nodes for v in node.outputs}
        inputs = tuple(dict.fromkeys(v for node in work.nodes for v in node.inputs if v not in made))
        program = PointwiseProgram(work, inputs)
        name, function = f"pointwise {program_dtype(work.nodes) or boolean}", epilogue_function(program.dtype)
        return task_of(name, function, inputs, work.outputs, program, program.nanoseconds, keeps_layout=True)


LOWERINGS = dict.fromkeys(ENCODERS, Pointwise())
