"""Compiled graphs: a plan carried out on arrays, from any number of threads at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from gradspec.codegen.addresses import address, block_address
from gradspec.graph.arrays import OtherKindError, other_array, returned, taken, takes_aligned
from gradspec.graph.family import MOST_GRAPHS, Family
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array, Var
from gradspec.graph.lru import LRUCache
from gradspec.graph.types import DType
from gradspec.runtime import threads as pool
from gradspec.runtime.arguments import fitting, require_count, require_out
from gradspec.runtime.backend import Backend
from gradspec.runtime.frame import Constants, Frame, Values, bound_to
from gradspec.runtime.group import Step
from gradspec.runtime.memory import Frames, aligned_array, aligned_bytes
from gradspec.runtime.plan import Plan, most_threads
from gradspec.runtime.task import Task


class Executable:
    """A plan with its slots and its memory. Constants are given to it, so graphs of one structure can share it."""

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
        """The constants' slots: the operands, the structure's own, and what the prologue makes of them."""
        plan = self.plan
        values = {**dict(zip(plan.operands, map(_aligned, operands), strict=True)), **plan.constants}
        for step in plan.prologue:
            results = _once(plan.backend, step, [values[v] for v in step.inputs])
            values |= zip(step.outputs, map(_frozen, results), strict=True)
        return Constants(values.values())

    def run(self, given: Values, fixed: Constants, outs: Sequence[Array | None] | None, threads: int) -> Values:
        """The results: in ``outs``, which are checked, or in arrays of their own."""
        frame = self._frames.take()
        frame.prepare(fixed)
        values = [*given, *fixed, *frame.values]
        if outs is not None:
            for j, slot in self._direct.items():
                values[slot] = _unless_shared(outs[j], given)
        frame.run(values, threads)
        results = [values[i] for i in self._returned]
        if outs is not None:
            results = _put(outs, results, given)
        elif not self._are_fresh:
            results = _of_their_own(results, given)
        self._frames.give_back(frame)
        return results


def _once(backend: Backend, step: Step, operands: Sequence[Array]) -> Sequence[Array]:
    """What a step makes of constants, in arrays of its own where a task makes it."""
    if step.task is not None:
        return _once_by_task(step.task, operands)
    (node,) = step.nodes
    return backend.kernel(node.op, node.attrs, tuple(v.type for v in node.inputs))(*operands)


def _once_by_task(task: Task, operands: Sequence[Array]) -> Sequence[Array]:
    results = [aligned_array(v.type) for v in task.outputs]
    block, units, workspace = bound_to(task, (*operands, *results))
    workers = min(most_threads([task]), pool.get_num_threads())
    room = aligned_bytes(workers * workspace)
    pool.run(task.function, block_address(block), units, address(room), workspace, workers, task.cost)
    return results


# --- results ----------------------------------------------------------------------------------------------------------


def _aligned(array: Array) -> Array:
    return array if array.flags.aligned else _frozen(array.copy())


def _frozen(array: Array) -> Array:
    array = array.view()
    array.flags.writeable = False
    return array


def _unless_shared(out: Array | None, given: Sequence[Array]) -> Array | None:
    """An array to write into at once, None if it is not aligned or overlaps what is still to be read."""
    if out is None or not out.flags.aligned or any(np.may_share_memory(out, a) for a in given):
        return None
    return out


def _of_their_own(results: Values, given: Values, outs: Sequence[Array | None] = ()) -> Values:
    """Writable arrays that share no memory: views, inputs and repeated results are copied."""
    taken = {id(a) for a in given}
    allowed = {id(a) for a in outs}
    found = []
    for result in results:
        lasting = id(result) in allowed or (result.flags.owndata and result.flags.writeable)
        found.append(result if lasting and id(result) not in taken else result.copy())
        taken.add(id(result))
    return found


def _put(outs: Sequence[Array | None], results: Values, given: Values) -> Values:
    """The results in ``outs``, where one is given. Nothing is copied there before the last result is safe."""
    if len(outs) == 1 and results[0] is outs[0]:
        return results
    results = _of_their_own(results, given, outs)
    for out, result in zip(outs, results, strict=True):
        if out is not None and out is not result:
            np.copyto(out, result)
    return [result if out is None else out for out, result in zip(outs, results, strict=True)]


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

    def call(self, arrays: Sequence[Any], out: Any = None, threads: int | None = None) -> Any:
        """One array for one output, a tuple for several; threads=None: as many as ``get_num_threads`` says."""
        if len(arrays) != len(self._wanted):
            require_count(self._inputs, arrays)
        try:
            given = [
                a
                if type(a) is ndarray and a.shape == shape and a.dtype is dtype and a.flags.aligned
                else fitting(self._inputs[i], a)
                for a, (i, shape, dtype) in zip(arrays, self._wanted)  # noqa: B905  (they were counted)
            ]
            outs = None if out is None else require_out(self.plan.outputs, out)
        except OtherKindError:
            return self._call_in_kind(arrays, out, threads)
        most = self._most_threads
        workers = 1 if most == 1 else min(most, threads or pool.get_num_threads(), pool.MOST_THREADS)
        results = self._run(given, self._fixed, outs, workers)
        return results[0] if self._is_one else tuple(results)

    def _call_in_kind(self, arrays: Sequence[Any], out: Any, threads: int | None) -> Any:
        """The call on what NumPy sees of the arrays: what was given as ``out``, else results of the arrays' kind."""
        targets = out if isinstance(out, tuple) else (out,)
        like = other_array([*arrays, *targets])
        if out is None:
            outs = self.aligned_results() if takes_aligned(like) else None
            targets = (None,) * len(self.plan.outputs)
        else:
            outs = tuple(map(taken, targets))
        found = self.call(list(map(taken, arrays)), outs, threads)
        results = (found,) if self._is_one else found
        own = [returned(r, like) if target is None else target for r, target in zip(results, targets, strict=True)]
        return own[0] if self._is_one else tuple(own)

    def aligned_results(self) -> tuple[Array, ...]:
        """Arrays for the results, each at a multiple of 64 bytes."""
        return tuple(aligned_array(v.type) for v in self.plan.outputs)


class Compiled:
    """A compiled graph: ``run(*arrays, out=None)``, from any number of threads; ``run.plan`` says what it does."""

    def __init__(self, graph: Graph, program: Program, threads: int | None) -> None:
        self.graph, self.plan = graph, program.plan
        self._call, self._threads = program.call, threads

    def __call__(self, *arrays: Any, out: Any = None) -> Any:
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

    def __call__(self, *arrays: Any, out: Any = None) -> Any:
        """As a compiled graph is called."""
        return self.at(*arrays)(*arrays, out=out)

    def at(self, *like: Any, dtype: DType | None = None, **sizes: int) -> Compiled:
        """The compiled graph for arrays or types like these, or for sizes by name."""
        graph = self.family.at(*like, dtype=dtype, **sizes)
        return self._compiled.get_or_make(graph, lambda: self._compile(graph))

    def __repr__(self) -> str:
        return f"<compiled {self.family}>"
