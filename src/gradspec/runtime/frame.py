"""Frames: per-call buffers and cached kernel arguments.

Values lie in a list of numbered slots: inputs first, then constants, then results of steps. Tasks write into the arena
or, where the graph returns the result, into a fresh array; NumPy steps make arrays that may be views.

Tasks are deferred: pending ones run as one job when Python needs a result, at the latest at the end. A frame binds
tasks whose arrays are constant or in the arena once. It caches the arguments of the others for the next call, which may
bring the same addresses and strides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import ref

import numpy as np
from numpy import empty, ndarray

from gradspec.codegen.records import address, block_address, function_address
from gradspec.graph.ir import Array, Var
from gradspec.runtime import threads as pool
from gradspec.runtime.group import Step
from gradspec.runtime.job import LONG, Steps, encode_step
from gradspec.runtime.memory import aligned_bytes
from gradspec.runtime.plan import Plan, most_threads
from gradspec.runtime.task import ArrayFunction, Bound, Task, View

Values = list[Any]


class Constants(list[Any]):
    """The arrays of constants, in order of their slots. A frame refers weakly to those that it was prepared for."""

    __slots__ = ("__weakref__",)


Action = Callable[[Values, "Frame"], None]

Arguments = tuple[Bound, int, bytes]
"""A bound task, the bytes of workspace that it needs, and its encoded step of a job."""


class Frame:
    """Memory for one call at a time: the arena's buffers as arrays, a workspace, and the arguments of tasks."""

    def __init__(self, plan: Plan, slots: Mapping[Var, int]) -> None:
        arena, at = aligned_bytes(plan.arena_bytes), plan.arena
        self.values = [ndarray(v.shape, v.dtype.numpy, arena, at[v]) if v in at else None for v in plan.made]
        self._plan, self._slots = plan, slots
        self._tasks = [step.task for step in plan.steps if step.task is not None]
        self._functions = [function_address(task.function) for task in self._tasks]
        self._steps = Steps(len(self._tasks))
        self._bound: list[Any] = [None] * len(self._tasks)
        self._stride = plan.workspace
        self._actions: list[Action] = []
        self._input_actions: list[Action] = []
        self._inputs: Any = None
        self._workers: dict[tuple[int, int], int] = {}
        self._done, self._threads = 0, 1
        self._constants: ref[Constants] | None = None
        self.dropped: list[int] = []
        self.reserve(0)

    def reserve(self, size: int) -> None:
        """Replace the workspace by one of ``size`` bytes."""
        self._memory: Array | None = None
        self._memory, self.workspace_bytes = aligned_bytes(size), size
        self._workspace = address(self._memory)

    @property
    def nbytes(self) -> int:
        return self._plan.arena_bytes + self.workspace_bytes

    def run(self, values: Values, threads: int) -> None:
        """Carry out the plan on the values of the first slots, and fill the others."""
        self._done, self._threads = 0, threads
        if self._input_actions:
            self._bind_inputs(values)
        for act in self._actions:
            act(values, self)
        self.flush_pending(values, len(self._tasks))

    def _bind_inputs(self, values: Values) -> None:
        """Bind the tasks that depend on inputs only, unless these have the addresses and strides of the last call."""
        layouts = [(address(a), a.strides) for a in values[: len(self._plan.inputs)]]
        if layouts != self._inputs:
            self._inputs = None
            for act in self._input_actions:
                act(values, self)
            self._inputs = layouts

    def flush_pending(self, values: Values, end: int) -> None:
        """Run the pending tasks before number ``end``, then drop the arrays that they were the last to read."""
        first, self._done = self._done, end
        if first < end:
            most = self._workers.get((first, end))
            if most is None:
                most = self._workers[first, end] = most_threads(self._tasks[first:end])
            workers = min(most, self._threads)
            if self.workspace_bytes < workers * self._stride:
                self.reserve(workers * self._stride)
            if workers == 1 and end - first == 1 and self._tasks[first].cost < LONG:
                block, units, _ = self._bound[first]
                if units:
                    self._tasks[first].function(block_address(block), 0, units, self._workspace)
            else:
                job = self._steps.job(first, end, workers)
                pool.carry_out(job, self._workspace, self._stride, workers)
        for slot in self.dropped:
            values[slot] = None
        self.dropped.clear()

    def has_pending(self, end: int) -> bool:
        return self._done < end

    # --- arguments --------------------------------------------------------------------------------------------------

    def arguments(self, i: int, arrays: Sequence[Array]) -> Arguments:
        """The arguments of task ``i`` for its arrays."""
        task = self._tasks[i]
        block, units, workspace = bound = bind_task(task, arrays)
        return bound, workspace, encode_step(self._functions[i], block_address(block), units, task.cost)

    def put(self, i: int, arguments: Arguments) -> None:
        """Set the arguments of task ``i``."""
        self._bound[i], workspace, step = arguments
        self._steps.put(i, step)
        if self._stride < workspace:
            self._stride = workspace

    def prepare(self, fixed: Constants) -> None:
        """Bind the tasks that depend on the arena and on these constants only, and list the actions of every call."""
        if self._constants is None or self._constants() is not fixed:
            self._constants = self._inputs = None
            preparation = _Preparation(self, self._plan, self._slots, fixed)
            self._actions, self._input_actions = [*preparation.actions()], preparation.input_actions
            self._constants = ref(fixed)


def bind_task(task: Task, arrays: Sequence[Array]) -> Bound:
    """Bind a task to arrays: its block of arguments, the units of work and the workspace."""
    return task.bind(*arrays) if task.units else (b"", 0, 0)


# --- actions: what is done at every call -----------------------------------------------------------------------------


class _Preparation:
    """Turns a plan into actions, for a frame and constants."""

    def __init__(self, frame: Frame, plan: Plan, slots: Mapping[Var, int], fixed: Values) -> None:
        self.frame, self.plan, self.slots = frame, plan, slots
        self.values = [*([None] * len(plan.inputs)), *fixed, *frame.values]
        self.constant = {v for v, slot in slots.items() if self.values[slot] is not None}
        """Variables that have the same array at every call."""
        self.ready = {*plan.inputs}
        """Variables whose arrays depend on no pending task."""
        self.tasks = 0
        """The number of tasks before the current step."""
        self.input_actions: list[Action] = []
        """Actions that bind tasks to inputs only. They may run first, and are skipped if no input has moved."""

    def actions(self) -> Iterator[Action]:
        for number, step in enumerate(self.plan.steps):
            if step.task is not None:
                yield from self._task(step.task)
            elif step.view is not None:
                yield from self._view(step, step.view)
            else:
                yield self._numpy(step)
            # The slots that this step is the last to read, except those of inputs and of constant arrays.
            fixed = {*self.plan.inputs, *self.constant}
            drops = self._at(v for v in {*step.inputs} - fixed if self.plan.last_use[v] == number)
            if drops:
                yield partial(_drop, drops)

    def _at(self, variables: Iterable[Var]) -> list[int]:
        return [self.slots[v] for v in variables]

    def _task(self, task: Task) -> Iterator[Action]:
        number, variables = self.tasks, (*task.inputs, *task.outputs)
        for v, check in task.checks:
            is_ready = v in self.ready or v not in self.plan.made
            yield _check_action(check, self.slots[v], 0 if is_ready else number)
        self.tasks += 1
        if self.constant.issuperset(variables):
            self.frame.put(number, self.frame.arguments(number, [self.values[i] for i in self._at(variables)]))
            return
        fresh = [(self.slots[v], v.shape, v.dtype.numpy) for v in task.outputs if v not in self.plan.arena]
        like = self.slots[task.inputs[0]] if task.keeps_layout else None
        varying = [v for v in variables if v not in self.constant]
        act = _bind_action(number, self._at(variables), self._at(varying), fresh, like)
        if {*self.plan.inputs}.issuperset(varying):
            self.input_actions.append(act)
        else:
            yield act

    def _view(self, step: Step, view: View) -> Iterator[Action]:
        (read,), (written,) = self._at(step.inputs), self._at(step.outputs)
        if self.constant.issuperset(step.inputs):
            result = view(self.values[read])
            if np.may_share_memory(result, self.values[read]):
                self.values[written] = self.frame.values[written - len(self.values)] = result
                self.constant.update(step.outputs)
                return
        is_ready = self.ready.issuperset(step.inputs)
        self.ready.update(step.outputs if is_ready else ())
        yield _view_action(view, read, written, 0 if is_ready else self.tasks)

    def _numpy(self, step: Step) -> Action:
        self.ready.update(step.outputs)
        (node,) = step.nodes
        kernel = self.plan.backend.kernel(node.op, node.attrs, tuple(v.type for v in node.inputs))
        return _numpy_action(kernel, self._at(step.inputs), self._at(step.outputs), step.may_alias, self.tasks)


def _drop(slots: Sequence[int], values: Values, frame: Frame) -> None:
    frame.dropped += slots


MOST_BINDINGS = 8
"""The bindings that are cached per task: fresh arrays tend to come back to the same addresses."""


def _bind_action(
    number: int,
    slots: Sequence[int],
    varying: Sequence[int],
    fresh: Sequence[tuple[int, Any, Any]],
    like: int | None,
) -> Action:
    """Allocate the results of a task that are not in the arena, and bind it unless no array has moved."""
    cached: dict[Any, Arguments] = {}
    last: Any = None

    def act(values: Values, frame: Frame) -> None:
        nonlocal last
        for slot, shape, dtype in fresh:
            values[slot] = _output_array(values[slot], shape, dtype, None if like is None else values[like])
        layouts = tuple([(address(values[i]), values[i].strides) for i in varying])
        if layouts == last:
            return
        arguments = cached.get(layouts)
        if arguments is None:
            if len(cached) >= MOST_BINDINGS:
                cached.clear()
            arguments = cached[layouts] = frame.arguments(number, [values[i] for i in slots])
        last = None
        frame.put(number, arguments)
        last = layouts

    return act


def _check_action(check: Callable[[Array], None], slot: int, tasks: int) -> Action:
    def act(values: Values, frame: Frame) -> None:
        if frame.has_pending(tasks):
            frame.flush_pending(values, tasks)
        check(values[slot])

    return act


def _view_action(view: View, read: int, written: int, tasks: int) -> Action:
    def act(values: Values, frame: Frame) -> None:
        operand = values[read]
        result = view(operand)
        if frame.has_pending(tasks) and not np.may_share_memory(result, operand):  # a copy of what is not computed yet
            frame.flush_pending(values, tasks)
            result = view(operand)
        values[written] = result

    return act


def _numpy_action(
    kernel: ArrayFunction, reads: Sequence[int], writes: Sequence[int], may_alias: bool, tasks: int
) -> Action:
    def act(values: Values, frame: Frame) -> None:
        frame.flush_pending(values, tasks)
        operands = [values[i] for i in reads]
        for slot, result in zip(writes, kernel(*operands), strict=True):
            values[slot] = result if may_alias else _copy_if_aliased(result, operands)

    return act


def _copy_if_aliased(result: Array, operands: Sequence[Array]) -> Array:
    """The result, or a copy if it is an operand or a view of one."""
    if result.base is None:
        shared = any(result is a for a in operands)
    else:
        shared = any(np.may_share_memory(result, a) for a in operands)
    return result.copy() if shared else result


def _output_array(out: Array | None, shape: Any, dtype: Any, like: Array | None) -> Array:
    """The array for a result: ``out``, if its layout suits kernels, or a fresh one."""
    if like is None or like.flags.c_contiguous or _repeats(like):
        return empty(shape, dtype) if out is None or not out.flags.c_contiguous else out
    fresh = np.empty_like(like, dtype, "K", False, shape)
    return fresh if out is None or not (out.flags.c_contiguous or out.strides == fresh.strides) else out


def _repeats(array: Array) -> bool:
    """Whether cells share memory along some axis, so that the strides say nothing of an order among its axes."""
    return any(stride == 0 and size > 1 for size, stride in zip(array.shape, array.strides, strict=True))
