"""Pointwise chains on the CPU: a chain becomes a program, which one precompiled kernel runs over cache-sized blocks.

Operators whose results IEEE 754 fixes agree with the NumPy backend bit for bit, and all of them are the same fused or
not. Other kernels run programs on what they make, while it is in the cache.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any

from gradspec.backends.cpu.axes import Strides, merged
from gradspec.backends.cpu.binding import Binder, Call
from gradspec.backends.cpu.pointwise.arguments import (
    BLOCK_BYTES,
    MOST_GIVEN,
    SCRATCH_BYTES,
    Instruction,
    Opcode,
    Place,
    PlaceKind,
    PointwiseArguments,
    Statistic,
    Statistics,
    Transfer,
    View,
    ViewAxis,
)
from gradspec.codegen.cache import kernel
from gradspec.codegen.records import Operand
from gradspec.graph.ir import Array, Node, Var
from gradspec.graph.types import DType
from gradspec.runtime.task import Kernel, LoweringBase, Task, Work

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
}
"""Of instructions that take longer, in units of the others."""

Numbers = tuple[float, ...]
Meaning = tuple[Opcode, Numbers]
"""What an instruction does, with up to three numbers."""


# --- operators --------------------------------------------------------------------------------------------------------


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
        return (Opcode.SHIFT, (0.0,)) if signed else (Opcode.ABS, ())
    if exponent == 2 and not signed:
        return Opcode.MUL, ()
    (single,) = struct.unpack("=f", struct.pack("=f", exponent))
    return Opcode.POWER, (exponent, exponent - single, float(signed))


ENCODERS: dict[str, Callable[[Any], Meaning]] = {
    "neg": _plain(Opcode.NEG),
    "add": _plain(Opcode.ADD),
    "sub": _plain(Opcode.SUB),
    "mul": _plain(Opcode.MUL),
    "div": _plain(Opcode.DIV),
    "scale": lambda attrs: (Opcode.SCALE, (attrs.factor,)),
    "detach": _plain(Opcode.COPY),
    "relu": _plain(Opcode.RELU),
    "leaky_relu": lambda attrs: (Opcode.LEAKY_RELU, (attrs.negative_slope,)),
    "abs": _plain(Opcode.ABS),
    "clamp": _bounded(Opcode.CLAMP),
    "maximum": _plain(Opcode.MAXIMUM),
    "minimum": _plain(Opcode.MINIMUM),
    "sqrt": _plain(Opcode.SQRT),
    "step": lambda attrs: (Opcode.STEP, (attrs.below, attrs.at, attrs.above)),
    "max_share": _plain(Opcode.MAX_SHARE),
    "within": _bounded(Opcode.WITHIN),
    "gate": _plain(Opcode.GATE),
    "exp": _plain(Opcode.EXP),
    "log": _plain(Opcode.LOG),
    "tanh": _plain(Opcode.TANH),
    "sigmoid": _plain(Opcode.SIGMOID),
    "softplus": lambda attrs: (Opcode.SOFTPLUS, (attrs.beta,)),
    "silu": _plain(Opcode.SILU),
    "gelu": lambda attrs: (Opcode.GELU if attrs.approximate == "none" else Opcode.GELU_BY_TANH, ()),
    "normal_cdf": _plain(Opcode.NORMAL_CDF),
    "normal_density": _plain(Opcode.NORMAL_DENSITY),
    "abs_power": lambda attrs: _power(attrs.exponent, attrs.signed),
    "batch_norm": lambda attrs: (Opcode.NORMALISE, (attrs.eps,)),
}

INTEGERS = ("i8", "u8", "i32", "i64")
OF_INTEGERS = ("detach", "maximum", "minimum")
"""The dtypes other than floats that there are programs for, and the operators that these know."""

EXCHANGED = {
    **{opcode: opcode for opcode in (Opcode.ADD, Opcode.MUL, Opcode.MAXIMUM, Opcode.MINIMUM)},
    Opcode.SUB: Opcode.SUB_FROM,
    Opcode.DIV: Opcode.DIV_INTO,
}
"""The instructions that take a repeated number as their second operand, and those that have it as their first."""


def is_pointwise(node: Node) -> bool:
    """Whether a program can carry out the node, which has one shape and dtype throughout."""
    dtype = node.outputs[0].dtype
    return node.op.name in (ENCODERS if dtype.is_float else OF_INTEGERS if dtype.name in INTEGERS else ())


def epilogue_function(dtype: DType) -> Kernel:
    """The function that runs programs on numbers of this type."""
    return kernel(SOURCE, f"program:{dtype}")


# --- programs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """An operator on values by their numbers: those in registers come first, then arrays, and then what is given."""

    opcode: Opcode
    numbers: Numbers
    result: int
    operands: tuple[int, ...]
    """What is read cell by cell."""
    repeated: int | None = None
    """The array that has the second operand's numbers, if it repeats them."""
    statistics: tuple[int | None, ...] = ()
    """Mean, variance, weight and bias, if the step normalises."""

    @classmethod
    def of(cls, node: Node, numbered: Mapping[Var, int]) -> Step:
        (result,), (x, *others) = node.outputs, (numbered[v] for v in node.inputs)
        opcode, numbers = ENCODERS[node.op.name](node.attrs)
        if opcode is not Opcode.NORMALISE:
            return cls(opcode, numbers, numbered[result], (x, *others))
        given = (True, True, node.attrs.weight, node.attrs.bias)
        return cls(opcode, numbers, numbered[result], (x,), None, tuple(others.pop(0) if g else None for g in given))

    def by_number(self, repeating: Collection[int]) -> Step:
        """The step that takes the numbers of one of these arrays as they are, if it can."""
        first, second = self.operands[0], self.operands[-1]
        if self.opcode in EXCHANGED and second in repeating:
            return replace(self, operands=(first,), repeated=second)
        if self.opcode in EXCHANGED and first in repeating:
            return replace(self, opcode=EXCHANGED[self.opcode], operands=(second,), repeated=first)
        return self


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


class Program:
    """A chain as the kernel carries it out: instructions on registers, which are blocks of the workspace, and arrays.

    ``given``: variables of which the caller leaves a block at a time in memory of its own. A node's result that is
    given is written there. Such a program is embedded in the arguments of another kernel, see ``PointwiseArguments``;
    it counts cells in C order.
    """

    def __init__(self, work: Work, inputs: Sequence[Var], given: Sequence[Var] = ()) -> None:
        assert len(given) <= MOST_GIVEN, "a word for each"
        arrays = (*inputs, *work.outputs)
        numbered, self.registers = _numbered(work.nodes, (*arrays, *given))
        self.inputs, self.arrays, self.is_embedded = len(inputs), len(arrays), bool(given)
        of = (*work.outputs, *given)[0]
        self.shape, self.itemsize = of.shape, of.dtype.numpy.itemsize
        self.block = BLOCK_BYTES // self.itemsize
        self.workspace = SCRATCH_BYTES + BLOCK_BYTES * (self.registers + self.arrays)
        self.steps = [Step.of(node, numbered) for node in work.nodes]
        first_output = self.registers + self.inputs
        for i, v in enumerate(work.outputs):
            if v in given:
                self.steps.append(Step(Opcode.COPY, (), first_output + i, (numbered[v],)))
        self._binder = Binder([self.itemsize] * self.arrays, self)

    @property
    def nanoseconds(self) -> float:
        """What all of it takes on one thread, roughly."""
        instructions = sum(COSTS.get(step.opcode, 1) for step in self.steps) * NANOSECONDS_PER_VECTOR / 16
        return prod(self.shape) * self.itemsize * (instructions + self.arrays * NANOSECONDS_PER_BYTE)

    @property
    def units(self) -> int:
        return -(-prod(self.shape) // self.block)

    def __call__(self, strides: Sequence[Strides]) -> Call:
        return Call(self.arguments(strides), self.units, self.workspace)

    def bind(self, *arrays: Array) -> bytes:
        """The bytes of an epilogue's arguments, for kernels whose own are words."""
        return self._binder(*arrays)[0]

    def arguments(self, strides: Sequence[Strides], first: int = 0) -> PointwiseArguments:
        """For arrays, inputs before outputs, of these strides, the first of which has a number among operands."""
        return _Arguments(self, strides, first).record()


class _Arguments:
    """A program for arrays of known strides, on its way to the kernel."""

    def __init__(self, program: Program, strides: Sequence[Strides], first: int) -> None:
        self.program, self.strides, self.first = program, strides, first
        axes = [i for i, n in enumerate(program.shape) if n > 1]
        # Cells are counted as they lie in the first output, so that what is dense there is one row. A kernel that
        # embeds the program counts in C order.
        self.axes = axes if program.is_embedded else sorted(axes, key=lambda i: -abs(strides[program.inputs][i]))
        statistics = {v for step in program.steps for v in step.statistics}
        self.views: dict[int, View] = {}
        """Of arrays that are not dense."""
        for array in range(program.arrays):
            if program.registers + array not in statistics:
                found = merged((program.shape[axis], (strides[array][axis],)) for axis in self.axes)
                if [stride for _, (stride,) in found] not in ([], [1]):
                    view = View(self._operand(array), tuple(ViewAxis(size, stride) for size, (stride,) in found))
                    self.views[program.registers + array] = view

    def _operand(self, array: int) -> Operand:
        return Operand(self.first + array)

    def record(self) -> PointwiseArguments:
        views, first_output = self.views, self.program.registers + self.program.inputs
        ends = {v: view.axes[-1] for v, view in views.items()}
        repeating = {v for v, end in ends.items() if end.stride == 0 and end.size >= LONG_RUN}
        steps = [step.by_number(repeating) for step in self.program.steps]
        read = {v for step in steps for v in step.operands if v < first_output}
        constants = {v for v, view in views.items() if [axis.stride for axis in view.axes] == [0]}
        return PointwiseArguments(
            size=prod(self.program.shape),
            is_embedded=self.program.is_embedded,
            constants=self._transfers(v for v in views if v in read & constants),
            gathers=self._transfers(v for v in views if v in read - constants),
            instructions=tuple(map(self._instruction, steps)),
            scatters=self._transfers(v for v in views if v >= first_output),
        )

    def _transfers(self, values: Iterable[int]) -> tuple[Transfer, ...]:
        return tuple(Transfer(self.views[v], v) for v in values)

    def _instruction(self, step: Step) -> Instruction:
        return Instruction(
            step.opcode,
            result=self._place(step.result),
            first=self._place(step.operands[0]),
            second=self._place(step.operands[-1]),
            numbers=(*step.numbers, 0.0, 0.0, 0.0)[:3],
            repeated=() if step.repeated is None else (self.views[step.repeated],),
            statistics=(self._statistics(step),) if step.statistics else (),
        )

    def _place(self, value: int) -> Place:
        array = value - self.program.registers
        if array < 0 or value in self.views:
            return Place(PlaceKind.WORKSPACE, value)
        if array < self.program.arrays:
            return Place(PlaceKind.ARRAY, array=self._operand(array))
        return Place(PlaceKind.GIVEN, array - self.program.arrays)

    def _statistics(self, step: Step) -> Statistics:
        """Channels are the second axis."""
        after = self.axes[self.axes.index(1) + 1 :] if 1 in self.axes else self.axes
        inner = prod(self.program.shape[axis] for axis in after)
        found = [self._statistic(v) for v in step.statistics]
        are_neighbours = all(each.array is None or each.stride == 1 for each in found)
        return Statistics(inner, self.program.shape[1], inner == 1 and are_neighbours, step.numbers[0], *found)

    def _statistic(self, value: int | None) -> Statistic:
        if value is None:
            return Statistic(None, 0)
        array = value - self.program.registers
        return Statistic(self._operand(array), self.strides[array][0])


# --- the lowering -----------------------------------------------------------------------------------------------------


class Pointwise(LoweringBase):
    """How every operator here is lowered, alone or in a chain."""

    def joins(self, nodes: Sequence[Node], node: Node) -> bool:
        return is_pointwise(node) and node.outputs[0].type == nodes[0].outputs[0].type

    def task(self, work: Work) -> Task | None:
        if not all(map(is_pointwise, work.nodes)):
            return None
        dtype = work.outputs[0].dtype
        made = {v for node in work.nodes for v in node.outputs}
        inputs = tuple(dict.fromkeys(v for node in work.nodes for v in node.inputs if v not in made))
        program = Program(work, inputs)
        return Task(
            kernel=f"pointwise {dtype}",
            inputs=inputs,
            outputs=work.outputs,
            function=epilogue_function(dtype),
            units=program.units,
            cost=program.nanoseconds,
            workspace=program.workspace,
            bind=Binder([program.itemsize] * program.arrays, program),
            keeps_layout=True,
        )


LOWERINGS = dict.fromkeys(ENCODERS, Pointwise())
