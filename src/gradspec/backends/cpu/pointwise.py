"""Pointwise chains on the CPU: a chain becomes a program, which one precompiled kernel runs over cache-sized blocks.

Here are the operators whose results IEEE 754 fixes: they agree with the NumPy backend bit for bit, fused or not.
Others, and formats that have no kernel, run on that backend.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf, prod
from typing import Any

from gradspec.backends.cpu.kernels import opcodes
from gradspec.backends.cpu.kernels.opcodes import (
    AXES_BYTES,
    GIVEN,
    GIVEN_BYTES,
    HEADER_WORDS,
    HERE,
    IN_WORKSPACE,
    INSTRUCTION_WORDS,
    PLACE_WORDS,
)
from gradspec.graph.ir import Array, Node, Var
from gradspec.graph.types import DType
from gradspec.runtime.cache import kernel
from gradspec.runtime.task import Kernel, LoweringBase, Task, Work, address

SOURCE = "gradspec.backends.cpu.kernels.pointwise"
FORMATS = ("f32", "f64")
BLOCK_BYTES = 2048
MOST_LAYOUTS = 64
"""How many layouts of its arrays a chain remembers."""

NANOSECONDS_PER_VECTOR = 0.8
NANOSECONDS_PER_BYTE = 0.04
"""Of one instruction on 16 bytes in the cache, and of an array's way from or to memory."""

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
}


# --- programs ---------------------------------------------------------------------------------------------------------


def _places(work: Work, arrays: Sequence[Var]) -> tuple[dict[Var, int], int]:
    """The place of each variable, and how many registers there are: they come first, then the arrays.

    A register is free again after the last instruction that reads it. An instruction's own operands are still taken
    when its result is placed: the kernel counts on that.
    """
    outputs = set(work.outputs)
    last = {v: i for i, node in enumerate(work.nodes) for v in node.inputs}
    register: dict[Var, int] = {}
    free: list[int] = []
    count = 0
    for i, node in enumerate(work.nodes):
        (result,) = node.outputs
        if result not in outputs:
            if not free:
                free.append(count)
                count += 1
            register[result] = free.pop()
        free += [register[v] for v in dict.fromkeys(node.inputs) if v in register and last[v] == i]
    return register | {v: count + i for i, v in enumerate(arrays)}, count


class Program:
    """A chain in the words that the kernel's source describes; which they are depends on the layout of its arrays.

    ``given``: variables of which the caller leaves a block at a time in memory of its own. It writes the addresses of
    these blocks, in this order, into the first words of the workspace and calls ``kernel(args, start, n, workspace)``
    for the cells ``start … start + n − 1`` in C order, where ``n`` is at most ``block``. The words do not depend on
    where they lie, so they can be part of the caller's own.
    """

    def __init__(self, work: Work, inputs: Sequence[Var], given: Sequence[Var] = ()) -> None:
        arrays = (*inputs, *work.outputs)
        place, self.registers = _places(work, (*arrays, *given))
        self.inputs, self.arrays, self.given = len(inputs), len(arrays), len(given)
        self.shape, self.itemsize = arrays[-1].shape, arrays[-1].dtype.numpy.itemsize
        self.block = BLOCK_BYTES // self.itemsize
        self.workspace = _local_at(self.registers + self.arrays)
        passed_on = [(self.registers + self.inputs + i, v) for i, v in enumerate(work.outputs) if v in given]
        self.length = len(work.nodes) + len(passed_on)
        copies = (self._encoded((opcodes.COPY, ()), target, (place[v],)) for target, v in passed_on)
        self.instructions = b"".join((*copies, *(self._instruction(node, place) for node in work.nodes)))
        self.addresses = struct.Struct(f"={self.arrays}q")
        self.layouts: dict[tuple[tuple[int, ...], ...], tuple[bytes, bytes]] = {}

    def bind(self, *arrays: Array) -> bytes:
        """The words for these arrays, inputs before outputs. Layouts that were met before are remembered."""
        strides = tuple([a.strides for a in arrays])
        found = self.layouts.get(strides)
        if found is None:
            found = self._words(strides)
            if len(self.layouts) < MOST_LAYOUTS:
                self.layouts[strides] = found
        return found[0] + self.addresses.pack(*map(address, arrays)) + found[1]

    def _words(self, strides: Sequence[tuple[int, ...]]) -> tuple[bytes, bytes]:
        """What comes before and after the addresses of arrays that have these strides."""
        axes = self._axes(strides[self.inputs])
        places = [_local(register) for register in range(self.registers)]
        views: list[int] = []
        once: list[Transfer] = []
        before: list[Transfer] = []
        after: list[Transfer] = []
        for i, of_array in enumerate(strides):
            sizes, merged = _merged((self.shape[axis], of_array[axis]) for axis in axes)
            if merged in ([], [self.itemsize]):
                places.append((HEADER_WORDS + i, self.itemsize, HERE))
                continue
            written = i >= self.inputs
            group = after if written else once if merged == [0] else before
            group.append((opcodes.SCATTER if written else opcodes.GATHER, self._word(len(places)), len(views)))
            places.append(_local(len(places)))
            views += HEADER_WORDS + i, len(sizes), *sizes, *merged
        places += [(8 * i, 0, GIVEN) for i in range(self.given)]
        first = self._word(len(places))
        length = self.length + len(once) + len(before) + len(after)
        first_view = first + INSTRUCTION_WORDS * length
        head = _packed([prod(self.shape), 0 if self.given else self.block, first, length, len(once)])
        described = _packed([word for place in places for word in place])
        brought, fetched = _transfers([*once, *before], first_view), _transfers(after, first_view)
        return head, b"".join((described, brought, self.instructions, fetched, _packed(views)))

    def _axes(self, steps: Sequence[int]) -> Sequence[int]:
        """The axes in the order in which cells are counted: that of the first output, whose strides these are.

        What is dense is one row then. A caller that cuts the work up counts in C order.
        """
        axes = [i for i, n in enumerate(self.shape) if n > 1]
        return axes if self.given else sorted(axes, key=lambda i: -abs(steps[i]))

    def _word(self, place: int) -> int:
        """Where a place is described."""
        return HEADER_WORDS + self.arrays + PLACE_WORDS * place

    def _instruction(self, node: Node, place: Mapping[Var, int]) -> bytes:
        (result,) = node.outputs
        return self._encoded(ENCODERS[node.op.name](node.attrs), place[result], [place[v] for v in node.inputs])

    def _encoded(self, instruction: Instruction, result: int, operands: Sequence[int]) -> bytes:
        opcode, numbers = instruction
        words = map(self._word, (result, operands[0], operands[-1]))
        return struct.pack("=4q3d", opcode, *words, *(*numbers, 0.0, 0.0, 0.0)[:3])


Transfer = tuple[int, int, int]
"""Opcode, the word of a place, and how far behind the first view the array's view is described."""


def _transfers(transfers: Iterable[Transfer], first_view: int) -> bytes:
    return b"".join(_packed([opcode, place, first_view + view, 0, 0, 0, 0]) for opcode, place, view in transfers)


def _local(place: int) -> tuple[int, int, int]:
    """A place in the workspace."""
    return _local_at(place), 0, IN_WORKSPACE


def _local_at(place: int) -> int:
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
    return node.op.name in ENCODERS and node.outputs[0].dtype.name in FORMATS


def epilogue_function(dtype: DType) -> Kernel:
    """The function that runs programs on numbers of this type."""
    return kernel(SOURCE, f"program:{dtype}")


# --- the lowering -----------------------------------------------------------------------------------------------------


class Pointwise(LoweringBase):
    """How every operator here is lowered, alone or in a chain."""

    def joins(self, nodes: Sequence[Node], node: Node) -> bool:
        return is_pointwise(node) and node.outputs[0].type == nodes[0].outputs[0].type

    def view(self, node: Node) -> Callable[[Array], Array] | None:
        return None

    def task(self, work: Work) -> Task | None:
        type = work.outputs[0].type
        if type.dtype.name not in FORMATS:
            return None
        made = {v for node in work.nodes for v in node.outputs}
        inputs = tuple(dict.fromkeys(v for node in work.nodes for v in node.inputs if v not in made))
        program = Program(work, inputs)
        size = type.size * program.itemsize
        return Task(
            kernel=f"pointwise {type.dtype}",
            inputs=inputs,
            outputs=work.outputs,
            function=epilogue_function(type.dtype),
            units=-(-size // BLOCK_BYTES),
            cost=size * (program.length * NANOSECONDS_PER_VECTOR / 16 + program.arrays * NANOSECONDS_PER_BYTE),
            workspace=program.workspace,
            bind=program.bind,
            keeps_layout=True,
        )


LOWERINGS = dict.fromkeys(ENCODERS, Pointwise())
