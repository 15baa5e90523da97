"""Single pooling tasks: what is asked of them, arrays of any layout to bind them to, and guarded memory to run in."""

import ctypes
import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import NamedTuple

import numpy as np

from gradspec.backends.cpu.binding import Binder, KernelCall
from gradspec.backends.cpu.pool.plan import LOWERINGS
from gradspec.codegen.records import address, block_address
from gradspec.graph.ir import Node, Var
from gradspec.graph.types import TensorType, i64
from gradspec.ops import pool as ops
from gradspec.runtime import threads
from gradspec.runtime.task import Task, Work

Shape = tuple[int, ...]
Arrays = Mapping[str, np.ndarray]


class Pooling(NamedTuple):
    """Windows with a maximum or an average over them, and what is pooled."""

    attrs: ops.MaxPool | ops.AvgPool
    x: TensorType

    @property
    def is_max(self) -> bool:
        return isinstance(self.attrs, ops.MaxPool)

    @property
    def spread(self) -> ops.AvgTranspose:
        return ops.AvgTranspose(**vars(self.attrs), sizes=self.attrs.window(self.x).sizes)


class Job(NamedTuple):
    """What is asked of one task: the arrays that go in, and those that come out.

    ``x`` is pooled to ``y`` and ``indices``, the tangent ``dx`` to ``dy``, and the cotangent ``g`` back to ``ct``;
    ``tape`` holds winners.
    """

    takes: str
    gives: str


VALUE, PUSH, PULL, SPREAD = Job("x", "y"), Job("x dx", "y dy"), Job("x g", "y ct"), Job("g", "ct")
RECORDING = [Job("x dx", "y indices dy tape"), Job("x g", "y indices ct tape"), Job("x", "y tape"), Job("x", "tape")]
"""The others read what these recorded last, so they come in this order."""
MAX_JOBS = [
    *(VALUE, Job("x", "y indices"), Job("x", "indices"), PUSH, Job("x dx", "dy"), PULL, Job("x g", "ct"), *RECORDING),
    *(Job("tape dx", "dy"), Job("tape g", "ct")),
]


def jobs_of(pooling: Pooling) -> list[Job]:
    """Everything that can be asked."""
    if not pooling.is_max:
        return [VALUE, SPREAD]
    return [job for job in MAX_JOBS if pooling.x.is_float or not {"dx", "g"} & {*job.takes.split()}]


def types_of(pooling: Pooling) -> dict[str, TensorType]:
    """The types of all arrays that jobs may take or give."""
    attrs, x = pooling
    y = attrs.pooled(x)
    types = {"x": x, "dx": x, "ct": x, "y": y, "dy": y, "g": y, "indices": TensorType(i64, y.shape)}
    if pooling.is_max:
        variables = {name: Var(name, type, None) for name, type in types.items()}
        tape = LOWERINGS["max_pool_gather"].tape(_node(ops.MAX_POOL_GATHER, attrs, variables, "x dx", "dy"))
        assert tape is not None
        types["tape"] = tape
    return types


@dataclass(frozen=True)
class Lowered:
    """A task, and the names of its arrays in the order in which it is bound to them."""

    task: Task
    names: tuple[str, ...]

    def bind(self, arrays: Arrays) -> tuple[bytes, int, int]:
        return self.task.bind(*(arrays[name] for name in self.names))

    def call(self, arrays: Arrays) -> KernelCall:
        """What the kernel is given, by name."""
        assert isinstance(self.task.bind, Binder)
        return self.task.bind.call(tuple(arrays[name].strides for name in self.names))


@cache
def lowered(pooling: Pooling, job: Job) -> Lowered:
    """The task for a job."""
    variables = {name: Var(name, type, None) for name, type in types_of(pooling).items()}
    nodes = _nodes(pooling, job, variables)
    wanted = tuple(variables[name] for name in job.gives.split() if name != "tape")
    tape = variables["tape"] if "tape" in job.takes + job.gives else None
    task = LOWERINGS[nodes[0].op.name].task(Work(nodes, wanted, tape, "tape" in job.takes))
    assert task is not None
    assert task.workspace % 64 == 0
    return Lowered(task, tuple(v.name for v in (*task.inputs, *task.outputs)))


def _nodes(pooling: Pooling, job: Job, variables: Mapping[str, Var]) -> tuple[Node, ...]:
    attrs = pooling.attrs
    if job == SPREAD:
        return (_node(ops.AVG_POOL_TRANSPOSE, pooling.spread, variables, "g", "ct"),)
    if not pooling.is_max:
        return (_node(ops.AVG_POOL, attrs, variables, "x", "y"),)
    value = _node(ops.MAX_POOL, replace(attrs, return_indices=True), variables, "x", "y indices")
    found = [] if "tape" in job.takes else [value]
    if "dy" in job.gives:
        found.append(_node(ops.MAX_POOL_GATHER, attrs, variables, "x dx", "dy"))
    if "ct" in job.gives:
        found.append(_node(ops.MAX_POOL_SCATTER, attrs, variables, "x g", "ct"))
    return tuple(found)


def _node(op: ops.Op, attrs: ops.Windows, variables: Mapping[str, Var], takes: str, gives: str) -> Node:
    return Node(op, attrs, tuple(map(variables.get, takes.split())), tuple(map(variables.get, gives.split())))


# --- running tasks ----------------------------------------------------------------------------------------------------

GUARD, PATTERN = 4096, 0xA5


def carry_out(pooling: Pooling, job: Job, arrays: Arrays, count: int = 1) -> None:
    """Fill the arrays that a job gives; nothing around the workspace of ``count`` threads is written."""
    task = lowered(pooling, job)
    block, units, workspace = task.bind(arrays)
    memory = np.full(GUARD + workspace * count + GUARD, PATTERN, np.uint8)
    at = GUARD // 2 + -(address(memory) + GUARD // 2) % 64
    if count == 1:
        task.task.function(block_address(block), 0, units, address(memory) + at)
    else:
        threads.run(task.task.function, block_address(block), units, address(memory) + at, workspace, count)
    assert (memory[:at] == PATTERN).all(), "something before the workspace is written"
    assert (memory[at + workspace * count :] == PATTERN).all(), "something behind the workspace is written"


def everything(
    pooling: Pooling, arrays: Arrays, count: int = 1, layout: str = "C", jobs: Sequence[Job] = ()
) -> Iterator[tuple[Job, dict[str, np.ndarray]]]:
    """Every job, or these, with its results, in fresh arrays full of rubbish; tapes are read as they were recorded."""
    tapes = {}
    for job in jobs or jobs_of(pooling):
        found = empty_results(pooling, job, layout)
        carry_out(pooling, job, {**arrays, **tapes, **found}, count)
        tapes = {"tape": found["tape"]} if "tape" in found else tapes
        yield job, found


def empty_results(pooling: Pooling, job: Job, layout: str) -> dict[str, np.ndarray]:
    """Arrays of rubbish for what a job gives; tapes are made by plans, in C order."""
    types = types_of(pooling)
    return {name: LAYOUTS["C" if name == "tape" else layout].empty(types[name]) for name in job.gives.split()}


def rubbish(type: TensorType) -> np.ndarray:
    return (
        np.full(prod(type.shape) * type.dtype.numpy.itemsize, PATTERN, np.uint8)
        .view(type.dtype.numpy)
        .reshape(type.shape)
    )


# --- layouts ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """A view of an array of another shape."""

    parent: Callable[[Shape], Shape]
    view: Callable[[np.ndarray, Shape], np.ndarray]

    def empty(self, type: TensorType) -> np.ndarray:
        return self.view(rubbish(TensorType(type.dtype, self.parent(type.shape))), type.shape)


def _last_first(shape: Shape) -> Shape:
    return (*shape[:1], *shape[2:], *shape[1:2])


LAYOUTS = {
    "C": Layout(lambda s: s, lambda p, s: p),
    "transposed": Layout(lambda s: s[::-1], lambda p, s: p.T),
    "channels last": Layout(_last_first, lambda p, s: p if p.ndim < 3 else np.moveaxis(p, -1, 1)),
    "batch last": Layout(lambda s: (*s[1:], *s[:1]), lambda p, s: np.moveaxis(p, -1, 0) if p.ndim else p),
    "reversed": Layout(lambda s: s, lambda p, s: p[..., *(slice(None, None, -1),) * p.ndim]),
    "rows reversed": Layout(lambda s: s, lambda p, s: p[..., ::-1] if s else p),
    "sliced": Layout(lambda s: tuple(2 * n + 1 for n in s), lambda p, s: p[..., *(slice(1, 1 + 2 * n, 2) for n in s)]),
    "padded rows": Layout(
        lambda s: (*s[:-1], *(n + 5 for n in s[-1:])), lambda p, s: p[..., 2 : 2 + s[-1]] if s else p
    ),
}
REPEATED = {
    "one number": Layout(lambda s: (1,) * len(s), np.broadcast_to),
    "one row": Layout(lambda s: (*(1 for _ in s[:-1]), *s[-1:]), np.broadcast_to),
    "one column": Layout(lambda s: (*s[:-1], *(1 for _ in s[-1:])), np.broadcast_to),
}
"""Cells that share memory: these can be read only."""


# --- memory between pages that nobody may touch -----------------------------------------------------------------------


class Fenced:
    """Arrays between pages that may be neither read nor written: each one ends, or begins, where such a page does."""

    def __init__(self, at_end: bool) -> None:
        self.at_end = at_end

    def bytes(self, size: int) -> np.ndarray:
        page = mmap.PAGESIZE
        room = max(1, -(-size // page)) * page
        memory = np.frombuffer(mmap.mmap(-1, room + 2 * page), np.uint8)
        for fence in (memory[:page], memory[page + room :]):
            if ctypes.CDLL(None).mprotect(ctypes.c_void_p(address(fence)), ctypes.c_size_t(page), 0) != 0:
                raise OSError("a page cannot be protected")
        first = page + (room - size if self.at_end else 0)
        return memory[first : first + size]

    def copy(self, array: np.ndarray) -> np.ndarray:
        """The same numbers in a dense fenced array, whose axes are in the same order in memory."""
        order = np.argsort([-abs(stride) for stride in array.strides], kind="stable")
        dense = self.bytes(array.nbytes).view(array.dtype).reshape([array.shape[axis] for axis in order])
        fenced = dense.transpose(np.argsort(order))
        fenced[...] = array
        return fenced

    def carry_out(self, pooling: Pooling, job: Job, arrays: Arrays, layout: str = "C") -> dict[str, np.ndarray]:
        """A job in which every array and the workspace are fenced."""
        task = lowered(pooling, job)
        fenced = {name: self.copy(arrays[name]) for name in job.takes.split()}
        found = {name: self.copy(array) for name, array in empty_results(pooling, job, layout).items()}
        block, units, workspace = task.bind({**fenced, **found})
        memory = self.bytes(workspace)
        task.task.function(block_address(block), 0, units, address(memory))
        return found
