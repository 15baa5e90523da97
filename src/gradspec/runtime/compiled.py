"""Compiled graphs: a plan carried out on arrays, from any number of threads at once.

Values lie in a list of numbered slots: inputs first, then constants, then what the steps make. Tasks write into the
arena or, where the graph returns the result, into an array of its own; NumPy steps make arrays that may be views.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
from numpy import empty, ndarray

from gradspec.graph.ir import Array, Graph, Var
from gradspec.graph.later import later
from gradspec.runtime import threads as pool
from gradspec.runtime.arguments import fitting, require_count, require_out
from gradspec.runtime.group import Step
from gradspec.runtime.memory import Frame, Frames, aligned_bytes, nbytes
from gradspec.runtime.plan import Plan
from gradspec.runtime.task import Bound, Task, View, address, block_address

NANOSECONDS_PER_THREAD = 50_000
"""Handing work to another thread costs about as much, so no thread is given less."""

Values = list[Any]
Action = Callable[[Values, Frame, int], None]


class Executable:
    """A plan with its slots and its memory. Constants are given to it, so graphs of one structure can share it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        fixed = [*plan.operands, *plan.constants, *(v for step in plan.prologue for v in step.outputs)]
        slots = {v: i for i, v in enumerate((*plan.inputs, *fixed, *plan.made))}
        self._actions = [act for i, step in enumerate(plan.steps) for act in _actions(plan, i, step, slots)]
        self._returned = [slots[v] for v in plan.outputs]
        tasks = [step.task for step in plan.steps if step.task is not None]
        written = {v for task in tasks for v in task.outputs}
        self._direct = {j: slots[v] for j, v in reversed([*enumerate(plan.outputs)]) if v in written}
        self._are_fresh = written.issuperset(plan.outputs) and len({*plan.outputs}) == len(plan.outputs)
        self.most_threads = max(map(_most_threads, tasks), default=1)
        self._frames = Frames(plan.arena_bytes, self._slots_in)

    def _slots_in(self, arena: Array) -> Values:
        """The slots that the steps fill, with views of the arena in those that live there."""
        at = self.plan.arena
        return [ndarray(v.shape, v.dtype.numpy, arena, at[v]) if v in at else None for v in self.plan.made]

    def attach(self, operands: Sequence[Array]) -> Values:
        """The constants' slots: the operands, the structure's own, and what the prologue makes of them."""
        plan = self.plan
        values = {**dict(zip(plan.operands, map(_aligned, operands), strict=True)), **plan.constants}
        for step in plan.prologue:
            results = _once(step, [values[v] for v in step.inputs])
            values |= zip(step.outputs, map(_frozen, results), strict=True)
        return list(values.values())

    def run(self, given: Values, fixed: Values, outs: Sequence[Array | None] | None, threads: int) -> Values:
        """The results: in ``outs``, which are checked, or in arrays of their own."""
        frame = self._frames.take()
        values = [*given, *fixed, *frame.values]
        if outs is not None:
            for j, slot in self._direct.items():
                values[slot] = _unless_shared(outs[j], given)
        for act in self._actions:
            act(values, frame, threads)
        results = [values[i] for i in self._returned]
        if outs is not None:
            results = _put(outs, results, given)
        elif not self._are_fresh:
            results = _of_their_own(results, given)
        self._frames.give_back(frame)
        return results


# --- steps ------------------------------------------------------------------------------------------------------------


def _actions(plan: Plan, number: int, step: Step, slots: dict[Var, int]) -> Iterator[Action]:
    """The step, and then what lets go of the arrays that it was the last to read."""
    reads, writes = [slots[v] for v in step.inputs], [slots[v] for v in step.outputs]
    if step.view is not None:
        yield _view_action(step.view, *reads, *writes)
    elif step.task is None:
        yield _numpy_action(step, reads, writes)
    else:
        results = [(slots[v], v.shape, v.dtype.numpy) for v in step.outputs if v not in plan.arena]
        yield _task_action(step.task, itemgetter(*reads, *writes), results, reads[0])
    kept = {*plan.inputs, *plan.arena}
    drops = [slots[v] for v in {*step.inputs} - kept if plan.last_use[v] == number]
    if drops:
        yield partial(_drop, drops)


def _drop(slots: Sequence[int], values: Values, frame: Frame, threads: int) -> None:
    for slot in slots:
        values[slot] = None


def _most_threads(task: Task) -> int:
    return max(1, int(task.cost / NANOSECONDS_PER_THREAD))


def _task_action(task: Task, arrays: Any, results: list[tuple[int, Any, Any]], first: int) -> Action:
    function, bind, keeps = task.function, task.bind, task.keeps_layout
    most, is_empty = _most_threads(task), task.units == 0

    def act(values: Values, frame: Frame, threads: int) -> None:
        for slot, shape, dtype in results:
            values[slot] = _result(values[slot], shape, dtype, values[first] if keeps else None)
        if is_empty:
            return
        block, units, workspace = _bound(task, bind(*arrays(values)))
        workers = most if most < threads else threads
        if frame.room < workers * workspace:
            frame.reserve(workers * workspace)
        if most == 1:
            function(block_address(block), 0, units, frame.workspace)
        else:
            pool.run(function, block_address(block), units, frame.workspace, workspace, workers)

    return act


def _result(out: Array | None, shape: Any, dtype: Any, like: Array | None) -> Array:
    """What a task writes a result into: ``out``, if it is laid out as kernels write, or a fresh array."""
    if like is None or like.flags.c_contiguous or _repeats(like):
        return empty(shape, dtype) if out is None or not out.flags.c_contiguous else out
    fresh = np.empty_like(like, dtype, "K", False, shape)
    return fresh if out is None or not (out.flags.c_contiguous or out.strides == fresh.strides) else out


def _repeats(array: Array) -> bool:
    """Whether cells share memory along some axis, so that the strides say nothing of an order among its axes."""
    return any(stride == 0 and size > 1 for size, stride in zip(array.shape, array.strides, strict=True))


def _view_action(view: View, read: int, written: int) -> Action:
    def act(values: Values, frame: Frame, threads: int) -> None:
        values[written] = view(values[read])

    return act


def _numpy_action(step: Step, reads: Sequence[int], writes: Sequence[int]) -> Action:
    (node,) = step.nodes
    kernel = later("numpy_kernel", node.op, node.attrs, tuple(v.type for v in node.inputs))
    may_alias = step.may_alias

    def act(values: Values, frame: Frame, threads: int) -> None:
        operands = [values[i] for i in reads]
        for slot, result in zip(writes, kernel(*operands), strict=True):
            values[slot] = result if may_alias else _apart(result, operands)

    return act


def _apart(result: Array, operands: Sequence[Array]) -> Array:
    """The result, or a copy if it is an operand or a view of one."""
    if result.base is None:
        shared = any(result is a for a in operands)
    else:
        shared = any(np.may_share_memory(result, a) for a in operands)
    return result.copy() if shared else result


def _once(step: Step, operands: Sequence[Array]) -> Sequence[Array]:
    """What a step makes of constants, in arrays of its own where a task makes it."""
    if step.task is None:
        (node,) = step.nodes
        found: Sequence[Array] = later("numpy_eager", node.op, node.attrs, *operands)
        return found
    task = step.task
    results = [aligned_bytes(nbytes(v.type)).view(v.dtype.numpy).reshape(v.shape) for v in task.outputs]
    block, units, workspace = _bound(task, task.bind(*operands, *results))
    workers = min(_most_threads(task), pool.get_num_threads())
    room = aligned_bytes(workers * workspace)
    pool.run(task.function, block_address(block), units, address(room), workspace, workers)
    return results


def _bound(task: Task, bound: bytes | Bound) -> Bound:
    return bound if isinstance(bound, tuple) else (bound, task.units, task.workspace)


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
    """An executable with its constants: a function of arrays."""

    def __init__(self, executable: Executable, operands: Sequence[Array]) -> None:
        self.plan = executable.plan
        self._fixed = executable.attach(operands)
        self._run, self._most_threads = executable.run, executable.most_threads
        self._wanted = [(i, v.shape, v.dtype.numpy) for i, v in enumerate(self.plan.inputs)]
        self._is_one = len(self.plan.outputs) == 1

    def call(self, arrays: Sequence[Any], out: Any = None, threads: int | None = None) -> Any:
        """One array for one output, a tuple for several; threads=None: as many as ``get_num_threads`` says."""
        if len(arrays) != len(self._wanted):
            require_count(self.plan.inputs, arrays)
        given = [
            a
            if type(a) is ndarray and a.shape == shape and a.dtype is dtype and a.flags.aligned
            else fitting(self.plan.inputs[i], a)
            for a, (i, shape, dtype) in zip(arrays, self._wanted)  # noqa: B905  (they were counted)
        ]
        outs = None if out is None else require_out(self.plan.outputs, out)
        most = self._most_threads
        workers = 1 if most == 1 else min(most, threads or pool.get_num_threads())
        results = self._run(given, self._fixed, outs, workers)
        return results[0] if self._is_one else tuple(results)


class Compiled:
    """A compiled graph: ``run(*arrays, out=None)``, from any number of threads; ``run.plan`` says what it does."""

    def __init__(self, graph: Graph, program: Program, threads: int | None) -> None:
        self.graph, self.plan = graph, program.plan
        self._call, self._threads = program.call, threads

    def __call__(self, *arrays: Any, out: Any = None) -> Any:
        """One array for one output, a tuple for several, never sharing memory with anything.

        ``out``: an array to put the result into, or a tuple of them for several outputs, None for a fresh one.
        """
        return self._call(arrays, out, self._threads)

    def __repr__(self) -> str:
        inputs = ", ".join(map(repr, self.plan.inputs))
        return f"<compiled graph of ({inputs}) in {len(self.plan.steps)} steps>"
