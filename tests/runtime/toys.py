"""Lowerings whose kernels are Python: they read and write raw memory through the addresses they are given."""

import struct
from ctypes import c_char, string_at

import numpy as np

from gradspec.backends import numpy
from gradspec.codegen.cache import KERNEL_TYPE
from gradspec.codegen.records import address
from gradspec.graph.ir import Var
from gradspec.runtime.compiled import Executable, Program, lift_constants
from gradspec.runtime.plan import make_plan
from gradspec.runtime.task import Backend, Lowering, Task

TAPE = 0x5A
POINTWISE = ("add", "sub", "mul", "neg", "relu", "abs", "scale", "sum")


def in_memory(at, shape, dtype, strides):
    """The array that lies there, whatever its strides."""
    lowest = sum(min(0, (n - 1) * s) for n, s in zip(shape, strides, strict=True))
    span = sum(abs((n - 1) * s) for n, s in zip(shape, strides, strict=True)) + dtype.itemsize
    return np.ndarray(shape, dtype, (c_char * span).from_address(at + lowest), -lowest, strides)


def numpy_of(node):
    return numpy.kernel(node.op, node.attrs, tuple(v.type for v in node.inputs))


def toy_task(name, inputs, outputs, compute, *, workspace=64, keeps_layout=False, **rest):
    """A task whose results are what ``compute`` makes of a dictionary of its variables' arrays."""
    variables = [*inputs, *outputs]

    def bind(*arrays):
        assert all(a.flags.aligned and a.dtype == v.dtype.numpy for a, v in zip(arrays, variables, strict=True))
        like = np.empty_like(arrays[0], shape=arrays[-1].shape).strides
        for result in arrays[len(inputs) :]:
            assert result.flags.c_contiguous or (keeps_layout and result.strides == like)
        fields = [n for a in arrays for n in (address(a), *a.strides)]
        return struct.pack(f"={len(fields)}q", *fields), 1, workspace

    def function(args, lo, hi, workspace):
        assert (lo, hi) == (0, 1)
        assert (workspace or 0) % 64 == 0
        count = sum(1 + len(v.shape) for v in variables)
        fields = iter(struct.unpack(f"={count}q", string_at(args, 8 * count)))
        compute(
            {v: in_memory(next(fields), v.shape, v.dtype.numpy, [next(fields) for _ in v.shape]) for v in variables}
        )

    kernel = KERNEL_TYPE(function)
    return Task(name, tuple(inputs), tuple(outputs), kernel, 1, 0.0, workspace, bind, keeps_layout, **rest)


class Toy(Lowering):
    """Carries out nodes by their NumPy kernels. A tape is a tensor of one byte's copies, which readers look for."""

    def __init__(self, *, pointwise=False, keyed=False, tape=None, longest=10**9, packs=None, **settings):
        self.pointwise, self.keyed, self.tape_type, self.longest = pointwise, keyed, tape, longest
        self.packs, self.settings = packs, settings
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
        packed = {v: packing(v, self.packs) for v in self.to_pack(work) if v in inputs} if self.packs else {}
        reads = [packed[v].outputs[0] if v in packed else v for v in inputs]

        def compute(values):
            if work.tape is not None and work.reads_tape:
                assert (values[work.tape] == TAPE).all()
            known = {v: unpacked(v, values[reads[i]]) if v in packed else values[v] for i, v in enumerate(inputs)}
            self.carry_out(work, values, known)

        return toy_task("toy", reads, outputs, compute, before=tuple(packed.values()), **self.settings)

    def to_pack(self, work):
        return [node.inputs[1] for node in work.nodes if len(node.inputs) > 1]

    def carry_out(self, work, values, found):
        for node in work.nodes:
            found |= zip(node.outputs, numpy_of(node)(*(found[v] for v in node.inputs)), strict=True)
        for v in work.outputs:
            values[v][...] = found[v]
        if work.tape is not None and not work.reads_tape:
            values[work.tape][...] = TAPE


def packing(v, how):
    """A task that leaves a variable's cells negated and in a row; in two steps if ``how`` says so."""
    row = type(v.type)(v.dtype, (v.type.size,))
    first, second = Var(f"{v.name}.row", row, None), Var(f"{v.name}.packed", row, None)

    def flatten(values):
        values[first][...] = values[v].reshape(-1)

    def negate(source):
        def compute(values):
            values[second][...] = -values[source].reshape(-1)

        return compute

    if how == "twice":
        before = toy_task("flatten", [v], [first], flatten, share="flatten")
        return toy_task("negate", [first], [second], negate(first), before=(before,), share="negate")
    return toy_task("pack", [v], [second], negate(v), share="pack" if how == "shared" else None)


def unpacked(v, row):
    return -row.reshape(v.shape)


class Viewing(Lowering):
    """Nodes that are views, as far as NumPy can make them."""

    def view(self, node):
        kernel = numpy_of(node)
        return lambda x: kernel(x)[0]


def toy_backend(lowerings):
    return Backend(lowerings.get, numpy.kernel, fallback="numpy: no compiled kernel", simplifies=True)


def planned(graph, lowerings):
    meant, operands = lift_constants(graph)
    return make_plan(meant, len(graph.inputs), toy_backend(lowerings)), operands


def program(graph, lowerings):
    found, operands = planned(graph, lowerings)
    return Program(Executable(found), operands)


def negated(x, times):
    for _ in range(times):
        x = -x
    return x
