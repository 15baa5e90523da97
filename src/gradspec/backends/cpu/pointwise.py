"""Pointwise chains on the CPU: a chain becomes a program, which one precompiled kernel runs over cache-sized blocks.

Operators whose results IEEE 754 fixes agree with the NumPy backend bit for bit, and all of them are the same fused or
not. Other kernels run programs on what they make, while it is in the cache.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Any

from gradspec.backends.cpu.kernels import opcodes
from gradspec.backends.cpu.kernels.opcodes import (
    AXES_BYTES,
    BY_NUMBER,
    FIRST_WITH_TABLE,
    GIVEN,
    GIVEN_BYTES,
    HEADER_WORDS,
    HERE,
    IN_WORKSPACE,
    INSTRUCTION_WORDS,
    NORMALISE,
    NUMBER_BY,
    PLACE_WORDS,
)
from gradspec.codegen.addresses import address
from gradspec.codegen.cache import kernel
from gradspec.graph.ir import Array, Node, Var
from gradspec.graph.types import DType
from gradspec.runtime.task import Kernel, LoweringBase, Task, Work

SOURCE = "gradspec.backends.cpu.kernels.pointwise"
BLOCK_BYTES = 2048
LONG_RUN = 16
"""So often must a number be repeated for instructions to take it as it is; otherwise copies of it are laid out."""

MOST_LAYOUTS = 64
"""How many layouts of its arrays a chain remembers."""

NANOSECONDS_PER_VECTOR = 0.8
NANOSECONDS_PER_BYTE = 0.04
"""Of one instruction on 16 bytes in the cache, and of an array's way from or to memory."""

COSTS = {
    **dict.fromkeys((opcodes.DIV, opcodes.SQRT, NORMALISE), 3),
    **dict.fromkeys((opcodes.EXP, opcodes.TANH, opcodes.SIGMOID, opcodes.SILU, opcodes.NORMAL_DENSITY), 9),
    **dict.fromkeys((opcodes.LOG, opcodes.GELU_BY_TANH), 13),
    **dict.fromkeys((opcodes.SOFTPLUS, opcodes.GELU, opcodes.NORMAL_CDF), 20),
    opcodes.POWER: 36,
}
"""Of instructions that take longer, in units of the others."""

Numbers = tuple[float, ...]
Instruction = tuple[int, Numbers]
"""An opcode and up to three numbers, which the kernel rounds to its format."""


# --- operators --------------------------------------------------------------------------------------------------------


def _plain(opcode: int) -> Callable[[Any], Instruction]:
    return lambda attrs: (opcode, ())


def _bounded(opcode: int) -> Callable[[Any], Instruction]:
    """A missing bound is an infinite one, which no number exceeds."""
    return lambda attrs: (opcode, (-inf if attrs.min is None else attrs.min, inf if attrs.max is None else attrs.max))


ENCODERS: dict[str, Callable[[Any], Instruction]] = {
    "neg": _plain(opcodes.NEG),
    "add": _plain(opcodes.ADD),
    "sub": _plain(opcodes.SUB),
    "mul": _plain(opcodes.MUL),
    "div": _plain(opcodes.DIV),
    "scale": lambda attrs: (opcodes.SCALE, (attrs.factor,)),
    "detach": _plain(opcodes.COPY),
    "relu": _plain(opcodes.RELU),
    "leaky_relu": lambda attrs: (opcodes.LEAKY_RELU, (attrs.negative_slope,)),
    "abs": _plain(opcodes.ABS),
    "clamp": _bounded(opcodes.CLAMP),
    "maximum": _plain(opcodes.MAXIMUM),
    "minimum": _plain(opcodes.MINIMUM),
    "sqrt": _plain(opcodes.SQRT),
    "step": lambda attrs: (opcodes.STEP, (attrs.below, attrs.at, attrs.above)),
    "max_share": _plain(opcodes.MAX_SHARE),
    "within": _bounded(opcodes.WITHIN),
    "gate": _plain(opcodes.GATE),
    "exp": _plain(opcodes.EXP),
    "log": _plain(opcodes.LOG),
    "tanh": _plain(opcodes.TANH),
    "sigmoid": _plain(opcodes.SIGMOID),
    "softplus": lambda attrs: (opcodes.SOFTPLUS, (attrs.beta,)),
    "silu": _plain(opcodes.SILU),
    "gelu": lambda attrs: (opcodes.GELU if attrs.approximate == "none" else opcodes.GELU_BY_TANH, ()),
    "normal_cdf": _plain(opcodes.NORMAL_CDF),
    "normal_density": _plain(opcodes.NORMAL_DENSITY),
    "abs_power": lambda attrs: _power(attrs.exponent, attrs.signed),
    "batch_norm": lambda attrs: (NORMALISE, (attrs.eps, attrs.weight, attrs.bias)),
}


INTEGERS = ("i8", "u8", "i32", "i64")
OF_INTEGERS = ("detach", "maximum", "minimum")
"""The dtypes other than floats that there are programs for, and the operators that these know."""


def _power(exponent: float, signed: bool) -> Instruction:
    """``|x|^q`` or ``sign(x)·|x|^q``. Other than these, an exponent has two parts, if float32 does not hold it."""
    if exponent == 0:
        return (opcodes.STEP, (-1.0, 0.0, 1.0)) if signed else (opcodes.WITHIN, (-inf, inf))
    if exponent == 1:
        return (opcodes.SHIFT, (0.0,)) if signed else (opcodes.ABS, ())
    if exponent == 2 and not signed:
        return opcodes.MUL, ()
    (single,) = struct.unpack("=f", struct.pack("=f", exponent))
    return opcodes.POWER, (exponent, exponent - single, float(signed))


# --- programs ---------------------------------------------------------------------------------------------------------


def _places(nodes: Sequence[Node], outside: Sequence[Var]) -> tuple[dict[Var, int], int]:
    """The place of each variable, and how many registers there are: they come first, then what lies ``outside``.

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


@dataclass(frozen=True)
class Coded:
    """An instruction on places."""

    opcode: int
    numbers: Numbers
    result: int
    operands: tuple[int, ...]

    @property
    def blocks(self) -> tuple[int, ...]:
        """The operands that are read cell by cell."""
        return self.operands[:1] if self.opcode >= FIRST_WITH_TABLE else self.operands

    def by_number(self, repeated: Collection[int]) -> Coded:
        """The instruction that takes the number of a ``repeated`` operand as it is, if there is one."""
        if self.opcode not in BY_NUMBER:
            return self
        first, second = self.operands[0], self.operands[-1]
        if second in repeated:
            return Coded(BY_NUMBER[self.opcode], (), self.result, (first, second))
        if first in repeated:
            return Coded(NUMBER_BY[self.opcode], (), self.result, (second, first))
        return self


def _coded(node: Node, place: Mapping[Var, int]) -> Coded:
    (result,) = node.outputs
    opcode, numbers = ENCODERS[node.op.name](node.attrs)
    return Coded(opcode, numbers, place[result], tuple(place[v] for v in node.inputs))


Strides = tuple[tuple[int, ...], ...]
"""Of every array."""


View = tuple[list[int], list[int]]
"""Sizes and strides in bytes."""


class Program:
    """A chain in the words that the kernel's source describes; which they are depends on the layout of its arrays.

    ``given``: variables of which the caller leaves a block at a time in memory of its own. It writes the addresses of
    these blocks, in this order, into the first words of the workspace and calls ``kernel(args, start, n, workspace)``
    for the cells ``start … start + n − 1`` in C order, where ``n`` is at most ``block``. A node's result that is given
    is written there. The words do not depend on where they lie, so they can be part of the caller's own.
    """

    def __init__(self, work: Work, inputs: Sequence[Var], given: Sequence[Var] = ()) -> None:
        assert len(given) <= GIVEN_BYTES // 8, "a word for each"
        arrays = (*inputs, *work.outputs)
        place, self.registers = _places(work.nodes, (*arrays, *given))
        self.inputs, self.arrays, self.given = len(inputs), len(arrays), len(given)
        of = (*work.outputs, *given)[0]
        self.shape, self.itemsize = of.shape, of.dtype.numpy.itemsize
        self.block = BLOCK_BYTES // self.itemsize
        self.workspace = _local_at(self.registers + self.arrays)
        passed_on = [(self.registers + self.inputs + i, v) for i, v in enumerate(work.outputs) if v in given]
        self.code = [_coded(node, place) for node in work.nodes]
        self.code += [Coded(opcodes.COPY, (), target, (place[v],)) for target, v in passed_on]
        self.statistics = {place for each in self.code if each.opcode == NORMALISE for place in each.operands[1:]}
        self.addresses = struct.Struct(f"={self.arrays}q")
        self.layouts: dict[Strides, tuple[bytes, bytes]] = {}

    @property
    def nanoseconds(self) -> float:
        """What all of it takes on one thread, roughly."""
        instructions = sum(COSTS.get(each.opcode, 1) for each in self.code) * NANOSECONDS_PER_VECTOR / 16
        return prod(self.shape) * self.itemsize * (instructions + self.arrays * NANOSECONDS_PER_BYTE)

    def bind(self, *arrays: Array) -> bytes:
        """The words for these arrays, inputs before outputs. Layouts that were met before are remembered."""
        strides = tuple([a.strides for a in arrays])
        found = self.layouts.get(strides)
        if found is None:
            found = self._words(strides)
            if len(self.layouts) < MOST_LAYOUTS:
                self.layouts[strides] = found
        return found[0] + self.addresses.pack(*map(address, arrays)) + found[1]

    def _words(self, strides: Strides) -> tuple[bytes, bytes]:
        """What comes before and after the addresses of arrays that have these strides."""
        axes = self._axes(strides)
        views = self._views(strides, axes)
        once, code = self._with_transfers(views)
        places = [word for place in self._described(views) for word in place]
        first = HEADER_WORDS + self.arrays + len(places)
        first_table = first + INSTRUCTION_WORDS * len(code)
        tables: list[int] = []
        starts: dict[int, int] = {}
        for place, (sizes, steps) in views.items():
            starts[place] = first_table + len(tables)
            tables += self._address_word(place), len(sizes), *sizes, *steps
        instructions = []
        for each in code:
            table = first_table + len(tables) if each.opcode == NORMALISE else starts.get(each.operands[-1], 0)
            tables += self._statistics(each, strides, axes) if each.opcode == NORMALISE else ()
            instructions.append(self._encoded(each, table))
        head = [prod(self.shape), 0 if self.given else self.block, first, len(code), once]
        return _packed(head), b"".join((_packed(places), *instructions, _packed(tables)))

    def _axes(self, strides: Strides) -> Sequence[int]:
        """The axes in the order in which cells are counted: that of the first output.

        What is dense is one row then. A caller that cuts the work up counts in C order.
        """
        axes = [i for i, n in enumerate(self.shape) if n > 1]
        return axes if self.given else sorted(axes, key=lambda i: -abs(strides[self.inputs][i]))

    def _views(self, strides: Strides, axes: Sequence[int]) -> dict[int, View]:
        """The places of arrays that are not dense, and how they are laid out."""
        views = {}
        for place, of_array in enumerate(strides, self.registers):
            if place not in self.statistics:
                sizes, steps = _merged((self.shape[axis], of_array[axis]) for axis in axes)
                if steps not in ([], [self.itemsize]):
                    views[place] = sizes, steps
        return views

    def _with_transfers(self, views: Mapping[int, View]) -> tuple[int, list[Coded]]:
        """All instructions, and how many of them, the first ones, bring one number that is the same for all cells."""
        repeated = {place for place, (sizes, steps) in views.items() if steps[-1] == 0 and sizes[-1] >= LONG_RUN}
        code = [each.by_number(repeated) for each in self.code]
        read = {place for each in code for place in each.blocks}
        inputs = [place for place in views if place < self.registers + self.inputs and place in read]
        once = [place for place in inputs if views[place][1] == [0]]
        brought = once + [place for place in inputs if place not in once]
        fetched = [place for place in views if place >= self.registers + self.inputs]
        before = [Coded(opcodes.GATHER, (), place, (place, place)) for place in brought]
        after = [Coded(opcodes.SCATTER, (), place, (place, place)) for place in fetched]
        return len(once), [*before, *code, *after]

    def _described(self, views: Collection[int]) -> Iterator[tuple[int, int, int]]:
        for place in range(self.registers + self.arrays):
            if place < self.registers or place in views:
                yield _local_at(place), 0, IN_WORKSPACE
            else:
                yield self._address_word(place), self.itemsize, HERE
        for i in range(self.given):
            yield 8 * i, 0, GIVEN

    def _address_word(self, place: int) -> int:
        return HEADER_WORDS + place - self.registers

    def _statistics(self, each: Coded, strides: Strides, axes: Sequence[int]) -> list[int]:
        """One number per channel, and channels are the second axis."""
        epsilon, *optional = each.numbers
        after = axes[axes.index(1) + 1 :] if 1 in axes else axes
        _, *given = each.operands
        operands = [given.pop(0) if there else None for there in (True, True, *optional)]
        words = [
            prod(self.shape[axis] for axis in after),
            self.shape[1],
            *struct.unpack("=q", struct.pack("=d", epsilon)),
        ]
        for place in operands:
            words += (0, 0) if place is None else (self._address_word(place), strides[place - self.registers][0])
        return words

    def _encoded(self, each: Coded, table: int) -> bytes:
        result, first, last = (
            HEADER_WORDS + self.arrays + PLACE_WORDS * place
            for place in (each.result, each.operands[0], each.operands[-1])
        )
        second = table if each.opcode >= FIRST_WITH_TABLE else last
        return struct.pack("=4q3d", each.opcode, result, first, second, *(*each.numbers, 0.0, 0.0, 0.0)[:3])


def _local_at(place: int) -> int:
    """Where the block of a place begins in the workspace."""
    return GIVEN_BYTES + AXES_BYTES + BLOCK_BYTES * place


def _packed(words: Sequence[int]) -> bytes:
    return struct.pack(f"={len(words)}q", *words)


def _merged(axes: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Sizes and strides, where an axis that steps as far as the whole of the next one is one with it.

    >>> _merged([(2, 24), (3, 8), (2, 4)])
    ([12], [4])
    >>> _merged([(2, 0), (3, 4), (2, 0), (5, 0)])
    ([2, 3, 10], [0, 4, 0])
    """
    sizes: list[int] = []
    strides: list[int] = []
    for size, stride in axes:
        if strides and strides[-1] == size * stride:
            sizes[-1] *= size
            strides[-1] = stride
        else:
            sizes.append(size)
            strides.append(stride)
    return sizes, strides


# --- what other lowerings need to pass their results on --------------------------------------------------------------


def is_pointwise(node: Node) -> bool:
    """Whether a program can carry out the node, which has one shape and dtype throughout."""
    dtype = node.outputs[0].dtype
    return node.op.name in (ENCODERS if dtype.is_float else OF_INTEGERS if dtype.name in INTEGERS else ())


def epilogue_function(dtype: DType) -> Kernel:
    """The function that runs programs on numbers of this type."""
    return kernel(SOURCE, f"program:{dtype}")


# --- the lowering -----------------------------------------------------------------------------------------------------


class Pointwise(LoweringBase):
    """How every operator here is lowered, alone or in a chain."""

    def joins(self, nodes: Sequence[Node], node: Node) -> bool:
        return is_pointwise(node) and node.outputs[0].type == nodes[0].outputs[0].type

    def task(self, work: Work) -> Task | None:
        if not all(map(is_pointwise, work.nodes)):
            return None
        type = work.outputs[0].type
        made = {v for node in work.nodes for v in node.outputs}
        inputs = tuple(dict.fromkeys(v for node in work.nodes for v in node.inputs if v not in made))
        program = Program(work, inputs)
        return Task(
            kernel=f"pointwise {type.dtype}",
            inputs=inputs,
            outputs=work.outputs,
            function=epilogue_function(type.dtype),
            units=-(-type.size // program.block),
            cost=program.nanoseconds,
            workspace=program.workspace,
            bind=program.bind,
            keeps_layout=True,
        )


LOWERINGS = dict.fromkeys(ENCODERS, Pointwise())
