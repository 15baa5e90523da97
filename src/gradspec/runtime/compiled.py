"""Compiled graphs: plans that are cached by structure and types, and called from any number of threads at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import combinations
from types import MappingProxyType
from typing import Any, overload

import numpy as np
from numpy import ndarray

from gradspec.codegen.records import address, block_address
from gradspec.graph.arrays import (
    ForeignArrayError,
    as_numpy,
    foreign_array,
    plain_floats,
    require_numpy,
    takes_aligned,
    to_library_of,
    to_numpy,
)
from gradspec.graph.builder import is_symbolic_zero
from gradspec.graph.family import MOST_GRAPHS, Family
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array, Var
from gradspec.graph.lru import LRUCache
from gradspec.graph.types import DType, number_as, type_of
from gradspec.runtime import threads as pool
from gradspec.runtime.frame import Constants, Frame, Values, bind_task
from gradspec.runtime.group import Step
from gradspec.runtime.memory import Frames, aligned_array, aligned_bytes
from gradspec.runtime.plan import Plan, make_plan, most_threads
from gradspec.runtime.task import Backend, Task, backend_named
from gradspec.spec.errors import DTypeError, ShapeError
from gradspec.transforms.copy import expand
from gradspec.transforms.trace import trace

MOST_PLANS = 512

_executables = LRUCache["Executable"](MOST_PLANS)


# --- plans of graphs --------------------------------------------------------------------------------------------------


@overload
def compile(program: Family, *, backend: str | None = ..., threads: int | None = ...) -> CompiledFamily: ...
@overload
def compile(
    program: Graph | Callable[..., Any], *types: object, backend: str | None = ..., threads: int | None = ...
) -> Compiled: ...
def compile(
    program: Graph | Family | Callable[..., Any],
    *types: object,
    backend: str | None = None,
    threads: int | None = None,
) -> Compiled | CompiledFamily:
    """A function of arrays that runs a graph, or a function traced on ``types``.

    ``backend`` is ``"cpu"``, compiled kernels, or ``"numpy"``, the readable reference; the first unless given, except
    on Windows, where no kernels are compiled. Without ``threads`` each call uses as many as ``get_num_threads()`` says.
    ``print(run.plan)`` shows what a call does; ``run(x, out=y)`` stores the result in ``y``. For a family, each graph
    is compiled when its sizes first occur, and ``run.at(x)`` returns it.

    >>> run = compile(lambda x: x * x, gs.f32[2])
    >>> run(np.float32([1, 2])).tolist()
    [1.0, 4.0]
    """
    backend_named(backend)
    if isinstance(program, Graph | Family) and types:
        raise TypeError("a graph has its types already; give types with a function only")
    if threads is not None and (type(threads) is not int or threads < 1):
        raise ValueError(f"threads={threads!r} is not a number of threads; give 1 or more, or None for the default")
    if isinstance(program, Family):
        return CompiledFamily(program, lambda graph: compile(graph, backend=backend, threads=threads))
    graph = program if isinstance(program, Graph) else trace(program, *types)
    plan, operands = plan_graph(graph, backend)
    return Compiled(graph, Program(Executable(plan), operands), threads)


def plan_graph(graph: Graph, backend: str | None = None) -> tuple[Plan, list[Array]]:
    """The plan of a graph, and the constants to attach to it. No memory is allocated."""
    chosen = backend_named(backend)
    open_graph, operands = lift_constants(_simplified(graph) if chosen.simplifies else expand(graph))
    return make_plan(open_graph, len(graph.inputs), chosen), operands


def _simplified(graph: Graph) -> Graph:
    made = expand(simple := graph.simplify())
    return simple if made is simple else made.simplify()


def program_for(graph: Graph) -> Program:
    """The program of a graph; graphs of one structure share a plan."""
    open_graph, operands = lift_constants(graph)
    key = (len(graph.inputs), structure_of(open_graph))  # a constant is packed once, an input every time

    def make() -> Executable:
        return Executable(make_plan(_simplified(open_graph), len(graph.inputs), backend_named()))

    return Program(_executables.get_or_make(key, make), operands, graph.inputs)


def lift_constants(graph: Graph) -> tuple[Graph, list[Array]]:
    """The graph with its constants as further inputs, and their arrays.

    Symbolic zeros, which derivatives introduce, stay constants: they are part of the structure.
    """
    zeros = {v: a for v, a in graph.constants.items() if is_symbolic_zero(a)}
    operands = {v: a for v, a in graph.constants.items() if v not in zeros}
    open_graph = Graph((*graph.inputs, *operands), graph.nodes, graph.outputs, MappingProxyType(zeros))
    return open_graph, list(operands.values())


def structure_of(graph: Graph) -> Hashable:
    """Operators, attributes, wiring and types: equal for graphs that differ in the values of constants only.

    Attributes are compared by ``repr``, which tells 0.0 from -0.0, and 1 from True.
    """
    leaves = (*graph.inputs, *graph.constants)
    number = {v: i for i, v in enumerate((*leaves, *(v for node in graph.nodes for v in node.outputs)))}
    return (
        len(graph.inputs),
        tuple((v.dtype.name, v.shape) for v in leaves),
        tuple((node.op, repr(node.attrs), tuple(number[v] for v in node.inputs)) for node in graph.nodes),
        tuple(number[v] for v in graph.outputs),
    )


# --- executables ------------------------------------------------------------------------------------------------------


class Executable:
    """A plan with its slots and its memory. Graphs of one structure share it, each with constants of its own."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        fixed = [*plan.operands, *plan.constants, *(v for step in plan.prologue for v in step.outputs)]
        slots = {v: i for i, v in enumerate((*plan.inputs, *fixed, *plan.made))}
        self._returned = [slots[v] for v in plan.outputs]
        written = {v for step in plan.steps if step.task is not None for v in step.outputs}
        self._direct = {j: slots[v] for j, v in reversed([*enumerate(plan.outputs)]) if v in written}
        self._are_fresh = written.issuperset(plan.outputs) and len({*plan.outputs}) == len(plan.outputs)
        self._frames = Frames(partial(Frame, plan, slots))

    def attach(self, operands: Sequence[Array]) -> Constants:
        """The values of the constant slots: operands, constants of the plan, and results of the prologue."""
        plan = self.plan
        values = {**dict(zip(plan.operands, map(_copy_unaligned, operands), strict=True)), **plan.constants}
        for step in plan.prologue:
            results = _run_once(plan.backend, step, [values[v] for v in step.inputs])
            values |= zip(step.outputs, map(_frozen, results), strict=True)
        return Constants(values.values())

    def run(self, inputs: Values, fixed: Constants, outs: Sequence[Array | None] | None, threads: int) -> Values:
        """Run on checked inputs; the results are in ``outs``, also checked, or in fresh arrays."""
        frame = self._frames.take()
        frame.prepare(fixed)
        values = [*inputs, *fixed, *frame.values]
        if outs is not None:
            for j, slot in self._direct.items():
                values[slot] = _direct_output(outs[j], inputs)
        frame.run(values, threads)
        results = [values[i] for i in self._returned]
        if outs is not None:
            results = _copy_into(outs, results, inputs)
        elif not self._are_fresh:
            results = _unshare(results, inputs)
        self._frames.give_back(frame)
        return results


def _run_once(backend: Backend, step: Step, operands: Sequence[Array]) -> Sequence[Array]:
    """The results of a prologue step; those of a task are fresh arrays."""
    if step.task is not None:
        return _run_task_once(step.task, operands)
    (node,) = step.nodes
    return backend.kernel(node.op, node.attrs, tuple(v.type for v in node.inputs))(*operands)


def _run_task_once(task: Task, operands: Sequence[Array]) -> Sequence[Array]:
    results = [aligned_array(v.type) for v in task.outputs]
    block, units, workspace = bind_task(task, (*operands, *results))
    workers = min(most_threads([task]), pool.get_num_threads())
    memory = aligned_bytes(workers * workspace)
    pool.run(task.function, block_address(block), units, address(memory), workspace, workers, task.cost)
    return results


# --- results ----------------------------------------------------------------------------------------------------------


def _copy_unaligned(array: Array) -> Array:
    return array if array.flags.aligned else _frozen(array.copy())


def _frozen(array: Array) -> Array:
    array = array.view()
    array.flags.writeable = False
    return array


def _direct_output(out: Array | None, inputs: Sequence[Array]) -> Array | None:
    """``out`` if a task may write into it directly; None if it is not aligned or may overlap an input."""
    if out is None or not out.flags.aligned or any(np.may_share_memory(out, a) for a in inputs):
        return None
    return out


def _unshare(results: Values, inputs: Values, outs: Sequence[Array | None] = ()) -> Values:
    """Writable arrays that share no memory: views, inputs and repeated results are copied."""
    used = {id(a) for a in inputs}
    allowed = {id(a) for a in outs}
    unshared = []
    for result in results:
        lasting = id(result) in allowed or (result.flags.owndata and result.flags.writeable)
        unshared.append(result if lasting and id(result) not in used else result.copy())
        used.add(id(result))
    return unshared


def _copy_into(outs: Sequence[Array | None], results: Values, inputs: Values) -> Values:
    """The results, in ``outs`` where there is one. All that may share memory are copied before ``outs`` is written."""
    if len(outs) == 1 and results[0] is outs[0]:
        return results
    results = _unshare(results, inputs, outs)
    for out, result in zip(outs, results, strict=True):
        if out is not None and out is not result:
            np.copyto(out, result)
    return [result if out is None else out for out, result in zip(outs, results, strict=True)]


# --- arguments --------------------------------------------------------------------------------------------------------


def require_count(inputs: Sequence[Var], arrays: Sequence[object]) -> None:
    if len(arrays) != len(inputs):
        wanted = ", ".join(map(repr, inputs))
        raise TypeError(f"the graph takes {len(inputs)} arrays ({wanted}), not {len(arrays)}")


def as_input(var: Var, value: object) -> Array:
    """An argument as an aligned array of the variable's type. Numbers are converted, arrays are not.

    An array of another library than NumPy raises ForeignArrayError.
    """
    if isinstance(value, int | float):
        array = number_as(value, var.dtype.numpy)
    else:
        floats = plain_floats(value, var.dtype.numpy) if var.type.is_float else None
        array = as_numpy(value) if floats is None else floats
    actual = type_of(array)
    if actual.shape != var.shape:
        raise ShapeError(f"input {var!r} was given an array of shape {actual.shape}; pass one of shape {var.shape}")
    if actual.dtype != var.dtype:
        raise DTypeError(
            f"input {var!r} was given {actual.dtype} numbers; gs.convert(x, {var.dtype.public}) converts them"
        )
    return array if array.flags.aligned else array.copy()


def require_out(outputs: Sequence[Var], out: object) -> tuple[Array | None, ...]:
    """``out`` as a checked tuple with an array for each output, or None for a fresh one."""
    outs = out if isinstance(out, tuple) else (out,)
    if len(outs) != len(outputs):
        wanted = ", ".join(map(repr, outputs))
        raise TypeError(
            f"out holds {len(outs)} array{'s' * (len(outs) != 1)}, and the graph returns {len(outputs)} ({wanted}); "
            "give a tuple with an array, or None for a fresh one, for each"
        )
    for var, array in zip(outputs, outs, strict=True):
        if array is not None:
            _require_target(var, array)
    for (i, a), (j, b) in combinations(enumerate(outs), 2):
        if a is not None and b is not None and np.shares_memory(a, b):
            raise ValueError(f"out[{i}] and out[{j}] share memory, so that one result would overwrite the other")
    return outs


def _require_target(var: Var, array: object) -> None:
    if not isinstance(array, np.ndarray):
        require_numpy(array)
        raise TypeError(f"out for {var!r} is {type(array).__name__}; give a NumPy array, such as np.empty(…)")
    if array.shape != var.shape:
        raise ShapeError(f"out for {var!r} has shape {array.shape}; give an array of shape {var.shape}")
    if array.dtype != var.dtype.numpy:
        raise DTypeError(f"out for {var!r} holds {array.dtype} numbers; give an array of {var.dtype.numpy}")
    if not array.flags.writeable:
        raise ValueError(f"out for {var!r} is read-only; give an array that can be written to")


# --- calls ------------------------------------------------------------------------------------------------------------


class Program:
    """An executable with its constants: a function of arrays.

    ``inputs`` are those of the graph that is run, for errors; the plan may be that of another with the same structure.
    """

    def __init__(self, executable: Executable, operands: Sequence[Array], inputs: Sequence[Var] = ()) -> None:
        self.plan = executable.plan
        self._inputs = inputs or self.plan.inputs
        self._fixed = executable.attach(operands)
        self._run, self._most_threads = executable.run, self.plan.most_threads
        self._wanted = [(i, v.shape, v.dtype.numpy) for i, v in enumerate(self.plan.inputs)]
        self._is_one = len(self.plan.outputs) == 1

    def call(self, arrays: Sequence[Any], out: object = None, threads: int | None = None) -> Any:
        """One array for one output, a tuple for several; threads=None: as many as ``get_num_threads`` says."""
        if len(arrays) != len(self._wanted):
            require_count(self._inputs, arrays)
        try:
            inputs = [
                a
                if type(a) is ndarray and a.shape == shape and a.dtype is dtype and a.flags.aligned
                else as_input(self._inputs[i], a)
                for a, (i, shape, dtype) in zip(arrays, self._wanted)  # noqa: B905  (they were counted)
            ]
            outs = None if out is None else require_out(self.plan.outputs, out)
        except ForeignArrayError:
            return self._call_foreign(arrays, out, threads)
        most = self._most_threads
        workers = 1 if most == 1 else min(most, threads or pool.get_num_threads(), pool.MOST_THREADS)
        results = self._run(inputs, self._fixed, outs, workers)
        return results[0] if self._is_one else tuple(results)

    def _call_foreign(self, arrays: Sequence[Any], out: object, threads: int | None) -> Any:
        """Call on NumPy's views of foreign arrays; results are ``out``, or arrays of the same library."""
        targets = out if isinstance(out, tuple) else (out,)
        like = foreign_array([*arrays, *targets])
        if out is None:
            outs = self.aligned_results() if takes_aligned(like) else None
            targets = (None,) * len(self.plan.outputs)
        else:
            outs = tuple(map(to_numpy, targets))
        result = self.call(list(map(to_numpy, arrays)), outs, threads)
        results = (result,) if self._is_one else result
        foreign = [
            to_library_of(like, r) if target is None else target for r, target in zip(results, targets, strict=True)
        ]
        return foreign[0] if self._is_one else tuple(foreign)

    def aligned_results(self) -> tuple[Array, ...]:
        """Arrays for the results, each at a multiple of 64 bytes."""
        return tuple(aligned_array(v.type) for v in self.plan.outputs)


class Compiled:
    """A compiled graph: ``run(*arrays, out=None)``, from any number of threads; ``run.plan`` says what it does."""

    def __init__(self, graph: Graph, program: Program, threads: int | None) -> None:
        self.graph, self.plan = graph, program.plan
        self._call, self._threads = program.call, threads

    def __call__(self, *arrays: object, out: object = None) -> Any:
        """One array for one output, a tuple for several, never sharing memory with anything.

        Results are NumPy arrays, PyTorch tensors or JAX arrays, as the arrays that are given.

        ``out``: an array to put the result into, or a tuple of them for several outputs, None for a fresh one.
        """
        return self._call(arrays, out, self._threads)

    def __repr__(self) -> str:
        inputs = ", ".join(map(repr, self.plan.inputs))
        return f"<compiled graph of ({inputs}) in {len(self.plan.steps)} steps>"


class CompiledFamily:
    """A family whose graphs are compiled when their sizes first occur: ``run(*arrays, out=None)``."""

    def __init__(self, family: Family, compile: Callable[[Graph], Compiled]) -> None:
        self.family, self._compile, self._compiled = family, compile, LRUCache[Compiled](MOST_GRAPHS)

    def __call__(self, *arrays: object, out: object = None) -> Any:
        """As a compiled graph is called."""
        return self.at(*arrays)(*arrays, out=out)

    def at(self, *like: object, dtype: DType | None = None, **sizes: int) -> Compiled:
        """The compiled graph for arrays or types like these, or for sizes by name."""
        graph = self.family.at(*like, dtype=dtype, **sizes)
        return self._compiled.get_or_make(graph, lambda: self._compile(graph))

    def __repr__(self) -> str:
        return f"<compiled {self.family}>"
