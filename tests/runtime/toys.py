"""Lowerings whose kernels are Python: they read and write raw memory through the addresses they are given."""

import struct
from ctypes import c_char, string_at

import numpy as np

from gradspec.graph.later import later
from gradspec.runtime.cache import KERNEL_TYPE
from gradspec.runtime.compiled import Executable, Program
from gradspec.runtime.plan import plan
from gradspec.runtime.structure import lifted
from gradspec.runtime.task import LoweringBase, Task, address

TAPE = 0x5A
POINTWISE = ("add", "sub", "mul", "neg", "relu", "abs", "scale", "sum")


def in_memory(at, shape, dtype, strides):
    """The array that lies there, whatever its strides."""
    lowest = sum(min(0, (n - 1) * s) for n, s in zip(shape, strides, strict=True))
    span = sum(abs((n - 1) * s) for n, s in zip(shape, strides, strict=True)) + dtype.itemsize
    return np.ndarray(shape, dtype, (c_char * span).from_address(at + lowest), -lowest, strides)


class Toy(LoweringBase):
    """Carries out nodes by their NumPy kernels. A tape is a tensor of one byte's copies, which readers look for."""

    def __init__(self, *, pointwise=False, keyed=False, tape=None, longest=10**9, workspace=64, keeps_layout=False):
        self.pointwise, self.keyed, self.tape_type, self.longest = pointwise, keyed, tape, longest
        self.workspace, self.keeps_layout = workspace, keeps_layout
        self.works = []

    def key(self, node):
        return (node.inputs[0], repr(node.attrs)) if self.keyed else None

    def tape(self, node):
        return self.tape_type

    def joins(self, nodes, node):
        return self.pointwise and node.op.name in POINTWISE and nodes[0].outputs[0].type == node.outputs[0].type

    def task(self, work):
        if len(work.nodes) > self.longest:
            return None
        self.works.append(work)
        inside = {v for node in work.nodes for v in node.outputs}
        inputs = list(dict.fromkeys(v for node in work.nodes for v in node.inputs if v not in inside))
        outputs = list(work.outputs)
        if work.tape is not None:
            (inputs if work.reads_tape else outputs).append(work.tape)
        variables = [*inputs, *outputs]

        def bind(*arrays):
            assert all(a.flags.aligned and a.dtype == v.dtype.numpy for a, v in zip(arrays, variables, strict=True))
            assert all(a.flags.c_contiguous or self.is_like(a, arrays[0]) for a in arrays[len(inputs) :])
            fields = [n for a in arrays for n in (address(a), *a.strides)]
            return struct.pack(f"={len(fields)}q", *fields)

        def function(args, lo, hi, workspace):
            assert (lo, hi) == (0, 1)
            assert (workspace or 0) % 64 == 0
            count = sum(1 + len(v.shape) for v in variables)
            fields = iter(struct.unpack(f"={count}q", string_at(args, 8 * count)))
            values = {
                v: in_memory(next(fields), v.shape, v.dtype.numpy, [next(fields) for _ in v.shape]) for v in variables
            }
            if work.tape is not None and work.reads_tape:
                assert (values[work.tape] == TAPE).all()
            self.carry_out(work, values)

        called = KERNEL_TYPE(function)
        return Task("toy", tuple(inputs), tuple(outputs), called, 1, 0.0, self.workspace, bind, self.keeps_layout)

    def is_like(self, result, x):
        return self.keeps_layout and result.strides == np.empty_like(x, shape=result.shape).strides

    def carry_out(self, work, values):
        found = dict(values)
        for node in work.nodes:
            kernel = later("numpy_kernel", node.op, node.attrs, tuple(v.type for v in node.inputs))
            found |= zip(node.outputs, kernel(*(found[v] for v in node.inputs)), strict=True)
        for v in work.outputs:
            values[v][...] = found[v]
        if work.tape is not None and not work.reads_tape:
            values[work.tape][...] = TAPE


def planned(graph, lowerings):
    meant, operands = lifted(graph)
    return plan(meant, len(graph.inputs), lowerings.get), operands


def program(graph, lowerings):
    found, operands = planned(graph, lowerings)
    return Program(Executable(found), operands)


def negated(x, times):
    for _ in range(times):
        x = -x
    return x
